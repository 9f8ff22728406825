//! What all HTTP servers of this process share: which requests they accept, and how long they wait for a client.

mod guard;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use crate::repeats::LogThrottle;

pub use self::guard::Authority;
pub(crate) use self::guard::{Refusal, is_own_navigation, is_same_origin, is_token};

/// Largest head of a request. The Functions host and browsers send less than a kilobyte.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Most connections of a server at the same time. The Functions host has one per running invocation, so this is more than it
/// needs; a process may have 1024 open files by default, and databases and receivers need some too.
const CONNECTIONS_MAX: usize = 512;
/// Most refused clients at the same time that get a reply; further ones are disconnected without one.
const REFUSED_MAX: usize = 32;
/// How long a refused client has to read its reply.
const REFUSED_LINGER: Duration = Duration::from_secs(1);
/// How often refused connections are logged.
const REFUSED_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// How long a server waits for a client. A client that exceeds it loses its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientTimeouts {
    /// From the end of a reply, or from connecting, to the end of the next request's head.
    pub(crate) head: Duration,
    /// From the head of a request to the end of its body.
    pub(crate) body: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self { head: Duration::from_secs(30), body: Duration::from_secs(30) }
    }
}

/// Serves `router` until `shutdown` completes, then waits for the requests that are being answered.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    timeouts: ClientTimeouts,
    shutdown: impl Future<Output = ()>,
) {
    serve_at_most(CONNECTIONS_MAX, listener, router, timeouts, shutdown).await;
}

async fn serve_at_most(
    connections_max: usize,
    mut listener: TcpListener,
    router: Router,
    timeouts: ClientTimeouts,
    shutdown: impl Future<Output = ()>,
) {
    let router = router.layer(Extension(timeouts));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(timeouts.head);
    builder.max_buf_size(HEAD_BYTES_MAX);
    let connections = GracefulShutdown::new();
    let free = Arc::new(Semaphore::new(connections_max));
    let refusals = Refusals::default();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let (stream, _) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            // Waits after an error, such as too many open files.
            accepted = Listener::accept(&mut listener) => accepted,
        };
        let Ok(permit) = Arc::clone(&free).try_acquire_owned() else {
            refusals.refuse(stream, connections_max);
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(event = "connection_failed", "A connection ended: {error}");
            }
            drop(permit);
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// Answers connections that are too many.
struct Refusals {
    running: Arc<Semaphore>,
    log_throttle: LogThrottle,
}

impl Default for Refusals {
    fn default() -> Self {
        let running = Arc::new(Semaphore::new(REFUSED_MAX));
        Self { running, log_throttle: LogThrottle::each(REFUSED_LOG_INTERVAL) }
    }
}

impl Refusals {
    fn refuse(&self, stream: TcpStream, connections_max: usize) {
        if self.log_throttle.are_due("", "") {
            warn!(
                event = "too_many_connections",
                connections_max,
                "Refusing connections: {connections_max} are open, the most that a server accepts"
            );
        }
        let Ok(permit) = Arc::clone(&self.running).try_acquire_owned() else { return };
        tokio::spawn(async move {
            let answered = answer_refused(stream, connections_max);
            if let Ok(Err(error)) = tokio::time::timeout(REFUSED_LINGER, answered).await {
                debug!(event = "connection_failed", "A refused connection ended: {error}");
            }
            drop(permit);
        });
    }
}

/// Replies with 503 without reading a request, then waits for the client to close: unread bytes at that time would reset the
/// connection, and the client might lose the reply.
async fn answer_refused(mut stream: TcpStream, connections_max: usize) -> std::io::Result<()> {
    let body = format!("too many connections: {connections_max} are open\n");
    let length = body.len();
    let reply = format!(
        "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
         content-type: text/plain; charset=utf-8\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await?;
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// The body of a request was not received.
#[derive(Debug)]
pub(crate) struct BodyError {
    /// Status of the reply.
    pub(crate) status: StatusCode,
    /// Why.
    pub(crate) reason: String,
}

/// Reads the body of a request, of at most `bytes_max`.
pub(crate) async fn read_body(mut request: Request, bytes_max: usize) -> Result<Bytes, BodyError> {
    let limit = request.extensions().get::<ClientTimeouts>().copied().unwrap_or_default().body;
    DefaultBodyLimit::max(bytes_max).apply(&mut request);
    match tokio::time::timeout(limit, Bytes::from_request(request, &())).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(rejection)) => {
            Err(BodyError { status: rejection.status(), reason: rejection.body_text() })
        }
        Err(_elapsed) => Err(BodyError {
            status: StatusCode::REQUEST_TIMEOUT,
            reason: format!("the body did not arrive within {limit:?}"),
        }),
    }
}

/// Returns a reply to a request that is refused.
type Refuse = fn(Refusal) -> Response<Body>;

/// Returns routes that answer only what `authority` admits; `refuse` answers everything else.
///
/// This is the outermost layer: a refused request gets no information, not even a 404.
pub(crate) fn guarded(router: Router, authority: Authority, refuse: Refuse) -> Router {
    router.layer(from_fn_with_state((authority, refuse), judge))
}

async fn judge(
    State((authority, refuse)): State<(Authority, Refuse)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    match authority.admit(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refuse(refusal),
    }
}
