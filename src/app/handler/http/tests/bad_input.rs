//! Misbehaving endpoints: each has one outcome and costs little memory.
//!
//! `docs/reference/http-handler.md` lists them with the names of these tests.

use super::*;
use highwater_test_support::raw::{Act, Raw, SOCKET_BYTES};

async fn serve(act: Act) -> (Arc<Raw>, String) {
    let (raw, origin) = Raw::start(act).await;
    (raw, format!("{origin}/hook?code=s3cret"))
}

/// Delivers to a server that does `act`, and expects a failure that contains `text`.
async fn fails(act: Act, text: &str) -> HandlerError {
    let (_, url) = serve(act).await;
    let error = deliver(&url, 1).await.unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
    error
}

/// The same, for a retryable failure.
async fn is_retryable(act: Act, text: &str) {
    let error = fails(act, text).await;
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
}

/// Delivers to a server that sends without end, and expects that the connection is closed early.
async fn is_bounded(head: &'static [u8], again: &'static [u8], text: &str) {
    let (raw, url) = serve(Act::Flood(head, again)).await;
    let error = deliver(&url, 1).await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    assert!(error.to_string().contains(text) && error.to_string().len() < 1000, "{error}");
    let sent = raw.sent.load(Ordering::Relaxed);
    assert!(sent < REPLY_BYTES_MAX + SOCKET_BYTES, "the server sent {sent} bytes");
}

#[tokio::test]
async fn connections_are_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?code=s3cret", listener.local_addr().unwrap());
    drop(listener);
    let error = deliver(&url, 2).await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    assert!(error.to_string().contains("onnection refused"), "{error}");
}

#[tokio::test]
async fn the_reply_is_not_http() {
    is_retryable(Act::Say(b"SSH-2.0-OpenSSH\r\n"), "error sending request").await;
    is_retryable(Act::Say(b"\0\xff\xfe\x16\x03\x01"), "error sending request").await;
    is_retryable(Act::Say(b"HTTP/1.1 OK OK\r\n\r\n"), "error sending request").await;
}

#[tokio::test]
async fn the_reply_is_cut_short() {
    for (answer, text) in [
        (&b""[..], "error sending request"),
        (b"HTTP/1.1 200", "error sending request"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "the reply is cut short"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{", "the reply is cut short"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "the reply is cut short"),
    ] {
        is_retryable(Act::Say(answer), text).await;
    }
}

#[tokio::test]
async fn the_connection_is_reset() {
    is_retryable(Act::Reset, "error sending request").await;
}

#[tokio::test]
async fn no_reply_arrives() {
    let (raw, url) = serve(Act::Stall(b"")).await;
    let error = deliver(&url.replace("hook", "slow"), 2).await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    assert!(error.to_string().ends_with(": timed out (after 2 tries)"), "{error}");
    assert_eq!(raw.requests.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn the_reply_stalls_halfway() {
    let start = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"batchItem";
    let (_, url) = serve(Act::Stall(start)).await;
    let error = deliver(&url.replace("hook", "slow"), 1).await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    assert!(error.to_string().ends_with("the reply is cut short: timed out"), "{error}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let replies = [Reply(status, &[("location", "/elsewhere")], String::new())];
        let (receiver, url) = Receiver::start(&replies).await;
        let error = deliver(&url, 3).await.unwrap_err();
        assert!(matches!(error, HandlerError::Misconfigured(_)), "{error:?}");
        assert_eq!(receiver.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_success_exceeds_the_read_limit() {
    let (_, url) = Receiver::start(&[Reply(200, &[], " ".repeat(REPLY_BYTES_MAX))]).await;
    deliver(&url, 1).await.unwrap();
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n";
    is_bounded(head, &[b' '; 16_384], "the reply is longer than 1 MiB").await;
}

#[tokio::test]
async fn a_failure_exceeds_the_read_limit() {
    let head = b"HTTP/1.1 500 Oops\r\ncontent-length: 104857600\r\n\r\n";
    is_bounded(head, &[b'x'; 16_384], "answered 500: xxx").await;
}

#[tokio::test]
async fn headers_do_not_end() {
    let header =
        b"x-more: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n";
    is_bounded(b"HTTP/1.1 200 OK\r\n", header, "error sending request").await;
}

#[tokio::test]
async fn failures_name_an_event_that_was_not_sent() {
    let known = Sample::new(3).events[1].id.to_string();
    let body = format!(
        r#"{{"batchItemFailures":[{{"itemIdentifier":"{known}"}},{{"itemIdentifier":"other"}}]}}"#
    );
    let (_, url) = Receiver::start(&[Reply(200, &[], body)]).await;
    let error = deliver(&url, 1).await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    assert!(error.to_string().contains("names an event that is not in the batch"), "{error}");
}

#[tokio::test]
async fn failures_are_invalid() {
    for body in [
        r#"{"batchItemFailures":"all"}"#.to_owned(),
        r#"{"batchItemFailures":[{"itemIdentifier":7}]}"#.to_owned(),
        format!(r#"{{"batchItemFailures":{}"#, "[".repeat(500_000)),
        r#"{"body":{"batchItemFailures":[]}}"#.to_owned(),
        r#"{"BatchItemFailures":[]}"#.to_owned(),
    ] {
        let (_, url) = Receiver::start(&[Reply(200, &[], body)]).await;
        let error = deliver(&url, 1).await.unwrap_err();
        assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
        assert!(error.to_string().contains("`batchItemFailures` "), "{error}");
    }
}

#[tokio::test]
async fn the_reply_is_a_web_page() {
    const HTML: &[(&str, &str)] = &[("content-type", "text/html; charset=utf-8")];
    let page = Reply(200, HTML, "<!DOCTYPE html>\n<title>Your site is ready</title>".to_owned());
    let (receiver, url) = Receiver::start(&[page]).await;
    let error = deliver(&url, 3).await.unwrap_err();
    assert!(matches!(error, HandlerError::Misconfigured(_)), "{error:?}");
    assert!(error.to_string().contains("starts with `<!DOCTYPE html>`"), "{error}");
    assert_eq!(receiver.requests().len(), 1);
    let accepting = HttpConfig { accept_html: true, ..config(&url, 3) };
    handler_of(&accepting).handle(Sample::new(3).delivery()).await.unwrap();
}

#[tokio::test]
async fn retry_after_is_huge_or_invalid() {
    const YEARS: Reply = Reply(429, &[("retry-after", "99999999999999")], String::new());
    const CENTURIES: Reply = Reply(
        429,
        &[
            ("date", "Sat, 01 Jan 2000 00:00:00 GMT"),
            ("retry-after", "Sat, 01 Jan 2400 00:00:00 GMT"),
        ],
        String::new(),
    );
    const UNKNOWN: Reply = Reply(429, &[("retry-after", "-5")], String::new());
    // The engine limits it by a setting.
    let years = Some(Duration::from_secs(99_999_999_999_999));
    // 400 years have 146,097 days.
    let centuries = Some(Duration::from_secs(146_097 * 24 * 60 * 60));
    for (reply, expected) in [(YEARS, years), (CENTURIES, centuries), (UNKNOWN, None)] {
        let (_, url) = Receiver::start(std::slice::from_ref(&reply)).await;
        let error = deliver(&url, 3).await.unwrap_err();
        let HandlerError::Throttled { retry_after, .. } = error else { panic!("{error:?}") };
        assert_eq!(retry_after, expected, "{:?}", reply.1);
    }
}
