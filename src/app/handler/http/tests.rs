//! Tests of the handler over local sockets.

mod auth;
mod bad_input;
mod concurrency;
mod notifier;
mod rejects_everything;
mod tls;

use std::collections::VecDeque;
use std::io::Read as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::serve::ListenerExt as _;
use time::macros::datetime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::handler::CallTries;
use crate::handler::testing::Sample;

/// Sends its replies in order, the last one repeatedly, and records the requests.
#[derive(Default)]
struct Receiver {
    replies: Mutex<VecDeque<Reply>>,
    requests: Mutex<Vec<(HeaderMap, Bytes)>>,
    connections: AtomicUsize,
}

/// Status, headers, body.
#[derive(Clone)]
struct Reply(u16, &'static [(&'static str, &'static str)], String);

fn status(status: u16) -> Reply {
    Reply(status, &[], String::new())
}

impl Receiver {
    /// Starts a receiver and returns it with its URL, which holds a secret.
    async fn start(replies: &[Reply]) -> (Arc<Self>, String) {
        let replies = Mutex::new(replies.iter().cloned().collect());
        let receiver = Arc::new(Self { replies, ..Self::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?code=s3cret", listener.local_addr().unwrap());
        let counting = Arc::clone(&receiver);
        let listener = listener.tap_io(move |_| {
            counting.connections.fetch_add(1, Ordering::Relaxed);
        });
        let router = Router::new().fallback(take).with_state(Arc::clone(&receiver));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (receiver, url)
    }

    fn requests(&self) -> Vec<(HeaderMap, Bytes)> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn take(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Bytes) -> Response {
    receiver.requests.lock().unwrap().push((headers, body));
    let reply = {
        let mut replies = receiver.replies.lock().unwrap();
        if replies.len() > 1 { replies.pop_front() } else { replies.front().cloned() }
    };
    let Reply(status, headers, body) = reply.unwrap();
    let mut response = body.into_response();
    *response.status_mut() = status.try_into().unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}

#[derive(Debug)]
struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> time::OffsetDateTime {
        datetime!(2026-11-20 12:00:00 UTC)
    }
}

fn handler(url: &str, tries_max: u32) -> Http {
    handler_of(&config(url, tries_max))
}

fn plain_body(sample: &Sample) -> Vec<u8> {
    body::encode(BodyForm::Highwater, &super::concurrency::as_one_part(sample.delivery()))
        .unwrap()
        .into_bytes()
}

fn config(url: &str, tries_max: u32) -> HttpConfig {
    let timeout = Duration::from_millis(if url.contains("slow") { 50 } else { 10_000 });
    HttpConfig { timeout, tries_max, ..HttpConfig::new(url.parse().unwrap()) }
}

fn handler_of(config: &HttpConfig) -> Http {
    let clock = Arc::new(StoppedClock);
    let pause = Duration::from_millis(1);
    let pacing = Pacing { backoff: Backoff { first: pause, max: pause }, ..Pacing::default() };
    Http::with_pacing(Client::new().unwrap(), config, clock, pacing)
}

async fn deliver(url: &str, tries_max: u32) -> Result<(), HandlerError> {
    let result = handler(url, tries_max).handle(Sample::new(3).delivery()).await;
    if let Err(error) = &result {
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }
    result
}

#[tokio::test]
async fn a_request_is_as_the_contract_says() {
    let (receiver, url) = Receiver::start(&[status(204)]).await;
    let sample = Sample::new(3);
    handler(&url, 1).handle(sample.delivery()).await.unwrap();
    let (headers, body) = receiver.requests().pop().unwrap();
    assert_eq!(body, plain_body(&sample));
    let mut lines: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()))
        .filter(|line| !line.starts_with("host:") && !line.starts_with("content-length:"))
        .collect();
    lines.sort();
    let text = lines.concat().replace(sample.batch_id.as_str(), "<batch id>");
    expect_test::expect![[r"
        accept: */*
        content-type: application/json
        idempotency-key: <batch id>
        traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
        tracestate: vendor=7,other=x
        user-agent: highwater/<version>
        webhook-id: <batch id>
        webhook-timestamp: 1795176000
        x-highwater-attempt: 2
        x-highwater-fencing-token: 42
        x-highwater-generation: 7
        x-highwater-poller: orders
        x-highwater-started-at: 1970-01-01T00:00:01.5Z
    "]]
    .assert_eq(&text.replace(env!("CARGO_PKG_VERSION"), "<version>"));
}

#[tokio::test]
async fn a_compressed_body_decompresses_to_the_plain_one() {
    let (receiver, url) = Receiver::start(&[status(204)]).await;
    let sample = Sample::new(100);
    let handler = handler_of(&HttpConfig { gzip: true, ..config(&url, 1) });
    handler.handle(sample.delivery()).await.unwrap();
    let (headers, body) = receiver.requests().pop().unwrap();
    assert_eq!(headers["content-encoding"], "gzip");
    let plain = plain_body(&sample);
    assert!(body.len() < plain.len() / 3);
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&*body).read_to_end(&mut unpacked).unwrap();
    assert_eq!(unpacked, plain);
}

#[tokio::test]
async fn deliveries_share_one_connection() {
    let (receiver, url) = Receiver::start(&[status(503), status(200)]).await;
    let handler = handler(&url, 2);
    for _ in 0..5 {
        handler.handle(Sample::new(3).delivery()).await.unwrap();
    }
    assert_eq!(receiver.requests().len(), 6);
    assert_eq!(receiver.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn tries_are_identical_and_bounded() {
    let (receiver, url) = Receiver::start(&[status(500)]).await;
    let error = deliver(&url, 3).await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    assert!(error.to_string().ends_with(" answered 500 (after 3 tries)"), "{error}");
    let requests = receiver.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| *request == requests[0]));
}

#[tokio::test]
async fn only_retryable_replies_are_retried() {
    for (reply, requests) in [
        (status(200), 1),
        (status(400), 1),
        (status(401), 1),
        (status(410), 1),
        (status(413), 1),
        (status(429), 1),
        (status(502), 3),
        (Reply(429, &[("retry-after", "0")], String::new()), 3),
        (Reply(503, &[("retry-after", "3")], String::new()), 1),
    ] {
        let (receiver, url) = Receiver::start(std::slice::from_ref(&reply)).await;
        let ok = deliver(&url, 3).await.is_ok();
        assert_eq!(ok, matches!(reply, Reply(200, ..)));
        assert_eq!(receiver.requests().len(), requests);
    }
}

#[tokio::test]
async fn one_try_means_one_reply_that_the_events_failed() {
    let sample = Sample::new(3);
    let once = Delivery { tries: CallTries::One, ..sample.delivery() };
    for (reply, requests) in
        [(status(500), 1), (Reply(429, &[("retry-after", "0")], String::new()), 3)]
    {
        let (receiver, url) = Receiver::start(&[reply]).await;
        handler(&url, 3).handle(once).await.unwrap_err();
        assert_eq!(receiver.requests().len(), requests);
    }
    // Without a reply the target may have accepted them, and only the same id tells it so.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = handler(&format!("http://127.0.0.1:{port}/hook"), 3).handle(once).await;
    let error = error.unwrap_err().to_string();
    assert!(error.ends_with("(after 3 tries)"), "{error}");
}

#[tokio::test]
async fn a_later_try_can_succeed() {
    let (receiver, url) = Receiver::start(&[status(500), status(408), status(200)]).await;
    deliver(&url, 3).await.unwrap();
    assert_eq!(receiver.requests().len(), 3);
}

#[tokio::test]
async fn a_batch_can_be_accepted_in_part() {
    let id = Sample::new(3).events[1].id.to_string();
    let body = format!(r#"{{"batchItemFailures":[{{"itemIdentifier":"{id}"}}]}}"#);
    let (receiver, url) = Receiver::start(&[Reply(207, &[], body)]).await;
    let error = deliver(&url, 3).await.unwrap_err();
    assert!(matches!(error, HandlerError::Partial { accepted: 1, .. }), "{error:?}");
    assert_eq!(receiver.requests().len(), 1);
}

#[test]
fn retries_use_the_common_backoff() {
    let config = HttpConfig::new("https://example.org".parse().unwrap());
    let handler = Http::new(Client::new().unwrap(), &config, Arc::new(StoppedClock));
    let error = HandlerError::Retryable(String::new());
    for tries in [1, 2, 8, u32::MAX] {
        assert_eq!(handler.pause(tries, 7, &error), Some(DELAYS.delay(tries, 7)));
    }
}

#[test]
fn a_target_that_asks_for_more_than_two_seconds_is_left_to_a_later_tick() {
    let config = HttpConfig::new("https://example.org".parse().unwrap());
    let handler = Http::new(Client::new().unwrap(), &config, Arc::new(StoppedClock));
    for (requested, pause) in [(Some(2), Some(2)), (Some(3), None), (None, None)] {
        let retry_after = requested.map(Duration::from_secs);
        let error = HandlerError::Throttled { reason: "429".to_owned(), retry_after };
        assert_eq!(handler.pause(1, 7, &error), pause.map(Duration::from_secs));
    }
}
