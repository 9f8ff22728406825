use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;

use axum::routing::post;
use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::*;

/// Longer than any step of these tests.
const LIMIT: Duration = Duration::from_secs(20);
/// A limit that no test waits for.
const NEVER: Duration = Duration::from_secs(3600);

async fn echo(request: Request) -> Response<Body> {
    match read_body(request, 16).await {
        Ok(body) => Response::new(Body::from(body)),
        Err(BodyError { status, reason }) => {
            let mut response = Response::new(Body::from(reason));
            *response.status_mut() = status;
            response
        }
    }
}

async fn start(timeouts: ClientTimeouts) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Router::new().route("/", post(echo)), timeouts, pending()));
    address
}

/// Sends bytes, and returns what arrives until the server closes the connection.
async fn reply(address: SocketAddr, sent: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent).await.unwrap();
    rest(&mut stream).await
}

async fn rest(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    let read = tokio::time::timeout(LIMIT, stream.read_to_end(&mut received)).await;
    if let Err(error) = read.expect("the connection is closed") {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    String::from_utf8(received).unwrap()
}

const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";

#[tokio::test]
async fn half_open_connections_are_closed() {
    let head = Duration::from_millis(200);
    let address = start(ClientTimeouts { head, body: NEVER }).await;
    let started = Instant::now();
    let starts: [&[u8]; 4] = [b"", b"P", b"POST / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nHost: a"];
    // In rounds: if too many wait to be accepted, the system drops some, which look open to their clients.
    for _ in 0..5 {
        let all = join_all((0..20).flat_map(|_| starts).map(|start| reply(address, start)));
        // Another client is answered meanwhile.
        let (all, answered) = tokio::join!(all, reply(address, REQUEST));
        assert!(answered.ends_with("\r\n\r\nbody"), "{answered}");
        assert!(all.iter().all(|text| !text.contains(" 200 ")), "{all:?}");
    }
    assert!(started.elapsed() >= 5 * head);
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_last_reply() {
    let head = Duration::from_millis(200);
    let address = start(ClientTimeouts { head, body: NEVER }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody";
    stream.write_all(&[&request[..], request].concat()).await.unwrap();
    let text = rest(&mut stream).await;
    assert_eq!(text.matches("\r\n\r\nbody").count(), 2, "{text}");
}

#[tokio::test]
async fn a_body_that_stalls_or_is_too_large_is_refused() {
    let body = Duration::from_millis(100);
    let address = start(ClientTimeouts { head: NEVER, body }).await;
    for (request, status, reason) in [
        ("Content-Length: 4\r\n\r\nbo", "408", "within 100ms"),
        ("Transfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n", "408", "within 100ms"),
        ("Content-Length: 17\r\n\r\n12345678901234567", "413", "limit"),
    ] {
        let request = format!("POST / HTTP/1.1\r\nConnection: close\r\n{request}");
        let text = reply(address, request.as_bytes()).await;
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {text}");
        assert!(text.contains(reason), "{request}: {text}");
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let address = start(ClientTimeouts { head: NEVER, body: NEVER }).await;
    let request = format!("POST / HTTP/1.1\r\nX: {}", "x".repeat(2 * HEAD_BYTES_MAX));
    let text = reply(address, request.as_bytes()).await;
    assert!(!text.contains(" 200 "), "{text}");
}

#[tokio::test]
async fn connections_that_are_too_many_are_refused_until_one_closes() {
    const MAX: usize = 3;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let timeouts = ClientTimeouts { head: NEVER, body: NEVER };
    let router = Router::new().route("/", post(echo));
    tokio::spawn(serve_at_most(MAX, listener, router, timeouts, pending()));
    let mut open = Vec::new();
    for _ in 0..MAX {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"POST / HT").await.unwrap();
        open.push(stream);
    }
    // More than get a reply.
    let all = join_all((0..2 * REFUSED_MAX).map(|_| reply(address, REQUEST))).await;
    let refused = "too many connections: 3 are open\n";
    assert!(all.iter().all(|text| !text.contains(" 200 ")), "{all:?}");
    assert!(all.iter().any(|text| text.starts_with("HTTP/1.1 503 ") && text.ends_with(refused)));
    // The open ones are served, and a place that becomes free is used.
    let mut first = open.pop().unwrap();
    let request = b"TP/1.1\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";
    first.write_all(request).await.unwrap();
    let text = rest(&mut first).await;
    assert!(text.ends_with("\r\n\r\nbody"), "{text}");
    let deadline = Instant::now() + LIMIT;
    while !reply(address, REQUEST).await.ends_with("\r\n\r\nbody") {
        assert!(Instant::now() < deadline, "no place became free");
    }
}

/// A stop answers what was sent, and waits for no client that sends nothing more.
#[tokio::test]
async fn a_stopping_server_answers_running_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let stop = Arc::new(Mutex::new(Some(stop)));
    let handler = async move || {
        if let Some(stop) = stop.lock().unwrap().take() {
            stop.send(()).unwrap();
        }
        // The stop is noticed before the reply.
        tokio::task::yield_now().await;
        "done"
    };
    let timeouts = ClientTimeouts { head: Duration::from_millis(200), body: NEVER };
    let router = Router::new().route("/", post(handler));
    let shutdown = async { stopped.await.unwrap_or_default() };
    let server = tokio::spawn(serve(listener, router, timeouts, shutdown));
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(b"POST / HT").await.unwrap();
    let text = reply(address, b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n").await;
    assert!(text.ends_with("done"), "{text}");
    tokio::time::timeout(LIMIT, server).await.expect("it stops").unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
