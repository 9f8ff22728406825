//! The examples of `docs/reference/http-handler.md` match what the handler sends.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use highwater::config::{BodyForm, HttpConfig};
use serde_json::Value as Json;
use tokio::net::TcpListener;

use crate::child::file;
use crate::sample::{Batch, NEW_SECRET, config};

#[tokio::test]
async fn the_examples_of_the_page_match_the_sent_requests() {
    let seen: Arc<Mutex<Vec<(HeaderMap, Json)>>> = Arc::default();
    let kept = Arc::clone(&seen);
    let router = Router::new().fallback(move |headers: HeaderMap, body: Bytes| {
        kept.lock().unwrap().push((headers, serde_json::from_slice(&body).unwrap()));
        async {}
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });

    let batch = Batch::of(&[(1001, 2001, Some("Zoë"))]);
    for body in [BodyForm::Highwater, BodyForm::CloudEvents, BodyForm::Debezium] {
        batch.deliver(&HttpConfig { body, ..config(&url, &[NEW_SECRET]) }).await.unwrap();
    }
    let page = std::fs::read_to_string(file("docs/reference/http-handler.md")).unwrap();
    let examples: Vec<Json> = page
        .split("```json\n")
        .skip(1)
        .map(|rest| serde_json::from_str(rest.split("```").next().unwrap()).unwrap())
        .collect();
    let seen = seen.lock().unwrap();
    assert_eq!(examples.len(), seen.len());
    for (example, (headers, sent)) in examples.iter().zip(seen.iter()) {
        let pretty = serde_json::to_string_pretty(sent).unwrap();
        assert_eq!(example, sent, "the page must hold this:\n{pretty}");
        for name in headers.keys().filter(|name| *name != "host" && *name != "accept") {
            assert!(page.contains(&format!("`{name}`")), "the page does not tell of `{name}`");
        }
    }
}
