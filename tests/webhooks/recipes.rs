//! The recipes of `docs/receivers`: a redelivery changes nothing.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use highwater::handler::HandlerError;
use serde_json::json;
use tokio::net::TcpListener;

use crate::receivers::{javascript, python};
use crate::sample::{Batch, NEW_SECRET, config};

const ROWS: &[(i64, u64, Option<&str>)] = &[(1, 1, Some("a")), (2, 2, Some("b")), (1, 3, None)];

#[tokio::test]
async fn an_upsert_overwrites_its_earlier_write() {
    let folder = tempfile::tempdir().unwrap();
    let server = python(&folder.path().join("db"));
    let config = config(&server.url("/upsert"), &[NEW_SECRET]);
    for _ in 0..3 {
        Batch::of(ROWS).deliver(&config).await.unwrap();
        let orders = server.get("/orders").await;
        let expected = json!([
            [1, "0x0000000000000001", r#"{"id": 1, "name": "a"}"#],
            [1, "0x0000000000000003", "null"],
            [2, "0x0000000000000002", r#"{"id": 2, "name": "b"}"#],
        ]);
        assert_eq!(orders, expected);
    }
}

#[tokio::test]
async fn processed_events_outlive_the_process_and_a_failure_leaves_none() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("db");
    let (poisoned, batch) = (Batch::of(&[ROWS[0], (2, 2, Some("poison"))]), Batch::of(ROWS));
    let first = python(&database);
    let error = poisoned.deliver(&config(&first.url("/once"), &[NEW_SECRET])).await.unwrap_err();
    assert!(matches!(error, HandlerError::Partial { accepted: 1, .. }), "{error:?}");
    // Killed, as by a crash.
    drop(first);
    for _ in 0..2 {
        let server = python(&database);
        batch.deliver(&config(&server.url("/once"), &[NEW_SECRET])).await.unwrap();
        let ids: Vec<&str> = batch.events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!(server.get("/taken").await, json!(ids));
    }
}

#[tokio::test]
async fn a_forwarded_idempotency_key_lets_the_target_detect_a_redelivery() {
    let calls: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let kept = Arc::clone(&calls);
    let downstream = Router::new().fallback(move |headers: HeaderMap, body: Bytes| {
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        kept.lock().unwrap().push((key, String::from_utf8(body.to_vec()).unwrap()));
        async {}
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, downstream).await });

    let server = javascript(&url);
    let batch = Batch::of(ROWS);
    for _ in 0..2 {
        batch.deliver(&config(&server.url("/pass-on"), &[NEW_SECRET])).await.unwrap();
    }
    let calls = calls.lock().unwrap();
    let (first, second) = calls.split_at(ROWS.len());
    assert_eq!(first, second, "the same keys with the same work");
    let keys: Vec<&str> = first.iter().map(|(key, _)| key.as_str()).collect();
    let ids: Vec<&str> = batch.events.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(keys, ids);
}
