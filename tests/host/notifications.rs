//! Notifications of the real program: sent under the host and by `highwater tick`, without their secrets in any line.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde_json::Value as Json;
use tokio::net::TcpListener;

use crate::bench::Bench;
use crate::receiver::Answer;

const SECRET: &str = "B0123456789x1y2z3";

type Notifications = Arc<Mutex<Vec<(HeaderMap, Json)>>>;

async fn receive(
    State(received): State<Notifications>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let notification = serde_json::from_slice(&body).unwrap();
    received.lock().unwrap().push((headers, notification));
    StatusCode::NO_CONTENT
}

/// Starts an endpoint, and returns what it receives and its URL.
async fn endpoint() -> (Notifications, String) {
    let received = Notifications::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/services/{SECRET}", listener.local_addr().unwrap());
    let router = Router::new().fallback(receive).with_state(Arc::clone(&received));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (received, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantined_row_and_a_stopped_poller_are_notified_once() {
    let mut bench = Bench::with_rows(1..=1).await;
    let (received, url) = endpoint().await;
    bench.set_env("HIGHWATER__NOTIFY__URL", &url);
    bench.set_env("HIGHWATER__NOTIFY__SIGNING_SECRETS", "NOTIFY_SECRET");
    bench.set_env("NOTIFY_SECRET", "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg==");
    bench.set("ON_FAILURE", "park");
    bench.set("PARK_RETRIES_MAX", "0");
    bench.receiver.script(&[Answer::Reject(422, "no")]);
    let host = bench.host().await;
    for _ in 0..3 {
        host.run().await;
    }
    host.event("row_quarantined").await;
    let sent = received.lock().unwrap().clone();
    assert_eq!(sent.len(), 1, "{sent:#?}");
    let (headers, notification) = &sent[0];
    assert!(headers["webhook-signature"].to_str().unwrap().starts_with("v1,"));
    assert_eq!(
        (&notification["poller"], &notification["app"]),
        (&"nightly".into(), &"local".into())
    );
    let change = &notification["changes"][0];
    assert_eq!((&change["event"], &change["kind"]), (&"row_quarantined".into(), &"refused".into()));
    assert!(change["reason"].as_str().unwrap().contains("answered 422: no"), "{change}");
    host.stop().await;

    // A command is another process, with its own minute.
    bench.set("ON_FAILURE", "stop");
    bench.unset("PARK_RETRIES_MAX");
    bench.insert(2..=2);
    bench.receiver.script(&[Answer::Reject(422, "no")]);
    for _ in 0..2 {
        bench.command(&["tick", "nightly"]).await;
    }
    let sent = received.lock().unwrap().clone();
    assert_eq!(sent.len(), 2, "{sent:#?}");
    let change = &sent[1].1["changes"][0];
    let expected = (&"poller_stopped".into(), &"on_failure_stop".into());
    assert_eq!((&change["event"], &change["kind"]), expected);
    for record in host.journal().records() {
        assert!(!record.message.contains(SECRET), "{}", record.message);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_reports_an_invalid_url_without_its_path() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set_env("HIGHWATER__NOTIFY__URL", &format!("http://hooks.contoso.com/services/{SECRET}"));
    let output = bench.command(&["doctor"]).await;
    let text = format!("{output:?}");
    assert!(text.contains("setting `HIGHWATER__NOTIFY__URL` is `http://…`"), "{text}");
    assert!(!text.contains(SECRET), "{text}");
}
