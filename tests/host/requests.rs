//! REQ: the host's requests.

use std::collections::BTreeMap;

use highwater_fakehost::{Connection, Framing, Invocation, Level, Outcome};
use serde_json::{Value as Json, json};

use crate::bench::{Bench, Host, answered, exchange, failure, logs};
use crate::data;

/// Runs a recorded body like any other; returns bench, host and outcome for more checks.
async fn run_recorded(name: &str) -> (Bench, Host, Outcome) {
    let bench = Bench::with_rows(1..=3).await;
    let host = bench.host().await;
    let outcome = host.invoke(Invocation::new("nightly", data::body(name))).await;
    assert_eq!(logs(&outcome).len(), 1);
    let reply = outcome.reply.as_ref().unwrap();
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    (bench, host, outcome)
}

pub(crate) async fn recorded(name: &str) {
    let (_bench, host, _) = run_recorded(name).await;
    host.finish().await;
    assert!(!host.lines().iter().any(|(_, line)| line["event"] == "invocation"));
}

pub(crate) async fn past_due(name: &str) {
    out_of_the_ordinary(name, "is_past_due", &Json::Bool(true)).await;
}

pub(crate) async fn by_hand(name: &str) {
    out_of_the_ordinary(name, "is_manual", &Json::Bool(true)).await;
}

pub(crate) async fn retried(name: &str) {
    out_of_the_ordinary(name, "retry_count", &Json::from(1)).await;
}

async fn out_of_the_ordinary(name: &str, field: &str, value: &Json) {
    let (_bench, host, outcome) = run_recorded(name).await;
    let (level, line) = host.event("invocation").await;
    assert_eq!(level, Level::Information);
    assert_eq!(line[field], *value, "{line}");
    assert_eq!(line["invocation_id"], *outcome.id, "{line}");
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_request_runs_byte_for_byte() {
    let mut bench = Bench::with_rows(1..=1).await;
    for name in ["minutely", "orders", "expo", "inf"] {
        bench.add_poller(name);
    }
    let host = bench.host().await;
    let (mut row, mut delivered) = (1, BTreeMap::new());
    for (name, recorded) in data::recorded_requests() {
        let request = data::raw(&recorded, host.port());
        let (verdict, reply) = exchange(host.port(), &request).await.unwrap();
        if name.starts_with("ping") {
            assert_eq!(reply.status, 200, "{name}");
            continue;
        }
        assert!(verdict.is_success(), "{name}: {verdict:?}");
        if name.starts_with("http_status") {
            let envelope: Json = serde_json::from_slice(&reply.body).unwrap();
            // The recorded path requests a view that does not exist.
            assert_eq!(envelope["Outputs"]["res"]["statusCode"], "404", "{envelope}");
            continue;
        }
        let line = answered(&reply);
        let header = |name: &str| {
            let mut lines = request.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(key, _)| *key == name).unwrap().1.to_owned()
        };
        let id = header("X-Azure-Functions-InvocationId");
        let function = request.split(['/', ' ']).nth(2).unwrap().to_owned();
        assert_eq!((&line["invocation_id"], &line["poller.name"]), (&json!(id), &json!(function)));
        // Each poller delivers the rows added since its last run.
        let rows = row - delivered.insert(function, row).unwrap_or(0);
        assert_eq!(line["rows"], rows, "{name}: {line}");
        for (text, field, value) in [
            ("\"IsPastDue\":true", "is_past_due", json!(true)),
            ("\"Metadata\":{\"timer\":", "is_manual", json!(true)),
            ("\"RetryCount\":1", "retry_count", json!(1)),
            ("\"RetryCount\":2", "retry_count", json!(2)),
            ("\"RetryCount\":3", "retry_count", json!(3)),
        ] {
            if request.contains(text) {
                let is_it = |line: &Json| {
                    (&line["event"], &line["invocation_id"], &line[field])
                        == (&json!("invocation"), &json!(id), &value)
                };
                host.line(is_it).await;
            }
        }
        row += 1;
        bench.insert(row..=row);
    }
    let batches = bench.receiver.batches();
    assert!(batches.iter().all(|batch| batch.accepted && batch.attempt == 1), "{batches:?}");
    host.finish().await;
}

pub(crate) async fn any_framing() {
    let bench = Bench::new().await;
    let host = bench.host().await;
    let recorded = ["invoke_chunked", "invoke_two_chunks", "invoke_content_length"];
    for (id, name) in (1..).zip(recorded) {
        bench.insert(id..=id);
        let request = data::wire(name, host.port());
        let (verdict, reply) = exchange(host.port(), &request).await.unwrap();
        assert!(verdict.is_success() && reply.status == 200, "{name}: {verdict:?}");
        let line = answered(&reply);
        assert_eq!(line["rows"], 1, "{line}");
        assert_eq!(line["invocation_id"], "6a184cc4-2b0e-4c5e-9d0f-3f6f1f0e7a11");
    }
    let framings = [Framing::Chunked, Framing::ContentLength];
    for (id, framing) in (4..).zip(framings) {
        bench.insert(id..=id);
        let body = data::body("01_scheduled");
        let outcome = host.invoke(Invocation { framing, ..Invocation::new("nightly", body) }).await;
        assert_eq!(logs(&outcome).len(), 1);
    }
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5]);
    host.finish().await;
}

pub(crate) async fn keep_alive() {
    let bench = Bench::new().await;
    let host = bench.host().await;
    let request = data::wire("invoke_chunked", host.port());
    let mut connection = Connection::open(host.port()).await.unwrap();
    for id in 1..=5 {
        bench.insert(id..=id);
        let reply = connection.exchange(request.as_bytes()).await.unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.header("connection"), None, "a close would have to be announced");
        assert_eq!(connection.ping().await.unwrap().status, 200);
    }
    bench.insert(6..=6);
    assert!(exchange(host.port(), &request).await.unwrap().0.is_success());
    // The first one is still open, though others came and went.
    assert_eq!(connection.ping().await.unwrap().status, 200);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5, 6]);
    host.finish().await;
}

pub(crate) async fn bad_body() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    for body in ["", "no", "[]", "\"x\"", "null", "{", "{\"Data\":", "\u{0}"] {
        let outcome = host.invoke(Invocation::new("nightly", body)).await;
        assert!(failure(&outcome).contains(" 400 ("), "{outcome:?}");
        let reply = outcome.reply.as_ref().unwrap();
        assert_eq!(reply.header("content-type"), Some("application/json"));
        let envelope: Json = serde_json::from_slice(&reply.body).unwrap();
        assert!(envelope["Logs"][0].is_string(), "{envelope}");
    }
    assert!(bench.receiver.batches().is_empty());
    assert!(host.run().await.verdict.is_success());
    assert_eq!((host.exits(), bench.receiver.accepted()), (vec![], vec![1]));
}

pub(crate) async fn unknown_function() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    for function in ["unknown", "NIGHTLY", "Nightly", "nightly/", "nightly/more", "api/nightly"] {
        let outcome = host.invoke(Invocation::new(function, data::body("01_scheduled"))).await;
        assert!(failure(&outcome).contains(" 404 ("), "{outcome:?}");
        let reply = outcome.reply.as_ref().unwrap();
        let envelope: Json = serde_json::from_slice(&reply.body).unwrap();
        assert!(envelope["Logs"][0].is_string(), "{envelope}");
    }
    assert!(bench.receiver.batches().is_empty());
}

pub(crate) async fn large_body() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    let body = String::from_utf8(data::body("19_retry_attempt_1")).unwrap();
    let body = body.replace("   at System", &"   at System".repeat(3 << 20 >> 3));
    assert!(body.len() > 3 << 20);
    let outcome = host.invoke(Invocation::new("nightly", body)).await;
    assert_eq!(logs(&outcome).len(), 1);
    assert_eq!(bench.receiver.accepted(), [1]);
    host.finish().await;
}
