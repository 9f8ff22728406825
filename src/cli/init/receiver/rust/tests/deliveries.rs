//! The receiver against recorded deliveries.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use hmac::{Hmac, Mac as _};
use receiver::support::Failure;
use receiver::support::once::{RETENTION_SECONDS, connect};
use receiver::support::receive::{BODY_BYTES_MAX, Receiver};
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::TempDir;

const DELIVERY: &str = include_str!("../deliveries/batch.json");
const SECRET: &str = "whsec_YSBzZWNyZXQgb2YgdGhlIHRlc3RzIGFsb25l";
const OTHER: &str = "whsec_YW5vdGhlciBzZWNyZXQ=";
const NOW: i64 = 1_790_000_000;

/// How the handler fails at an event.
type Fails = Arc<Mutex<Option<(String, bool)>>>;

struct Bench {
    receiver: Receiver,
    database: PathBuf,
    fails: Fails,
    _folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("db");
        let fails = Fails::default();
        let failing = Arc::clone(&fails);
        let handle = move |change: &receiver::row::Change, db: &rusqlite::Connection| {
            db.execute("INSERT INTO applied (event_id) VALUES (?)", [&change.id])?;
            // After the write, which must be undone.
            match &*failing.lock().unwrap() {
                Some((id, true)) if *id == change.id => Err(Failure::event("rejected by the target")),
                Some((id, false)) if *id == change.id => Err("the target is away".into()),
                _ => Ok(()),
            }
        };
        let receiver = Receiver::new(SECRET, database.clone(), Box::new(handle)).unwrap();
        let table = "CREATE TABLE applied (number INTEGER PRIMARY KEY, event_id TEXT)";
        connect(&database).unwrap().execute_batch(table).unwrap();
        Self { receiver, database, fails, _folder: folder }
    }

    fn fail(&self, failure: Option<(&str, bool)>) {
        *self.fails.lock().unwrap() = failure.map(|(id, of_event)| (id.to_owned(), of_event));
    }

    fn query(&self, sql: &str) -> Vec<String> {
        let db = connect(&self.database).unwrap();
        let mut statement = db.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }

    fn applied(&self) -> Vec<String> {
        self.query("SELECT event_id FROM applied ORDER BY number")
    }

    fn post(&self, body: &str) -> (u16, Value) {
        self.receiver.receive(&sign(body.as_bytes(), SECRET, NOW), body.as_bytes(), NOW)
    }

    #[track_caller]
    fn assert_rejected(&self, status: u16, reply: &(u16, Value)) {
        assert_eq!(reply.0, status, "{reply:?}");
        assert!(reply.1["error"].is_string(), "{reply:?}");
        assert!(self.applied().is_empty());
    }
}

fn sign(body: &[u8], secret: &str, at: i64) -> HeaderMap {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    let mac = mac.chain_update(format!("batch_1.{at}.")).chain_update(body);
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    let mut headers = HeaderMap::new();
    headers.insert("webhook-id", "batch_1".parse().unwrap());
    headers.insert("webhook-timestamp", at.to_string().parse().unwrap());
    headers.insert("webhook-signature", signature.parse().unwrap());
    headers
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// Returns the recorded delivery with another value of a field.
fn with(field: &str, value: Value) -> String {
    let mut delivery: Value = serde_json::from_str(DELIVERY).unwrap();
    delivery[field] = value;
    delivery.to_string()
}

fn events() -> Vec<Value> {
    let delivery: Value = serde_json::from_str(DELIVERY).unwrap();
    delivery["events"].as_array().unwrap().clone()
}

fn ids() -> Vec<String> {
    events().iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn events_are_applied_in_order_and_once() {
    let bench = Bench::new();
    for _ in 0..2 {
        assert_eq!(bench.post(DELIVERY), (200, json!({ "batchItemFailures": [] })));
        assert_eq!(bench.applied(), ids());
    }
}

#[test]
fn a_deleted_row_has_no_columns() {
    let mut event = events().remove(0);
    event["op"] = "delete".into();
    event["after"] = Value::Null;
    assert_eq!(Bench::new().post(&with("events", json!([event]))).0, 200);
}

#[test]
fn an_event_that_fails_keeps_those_before_it() {
    let (bench, ids) = (Bench::new(), ids());
    bench.fail(Some((&ids[1], true)));
    let failures = json!({ "batchItemFailures": [{ "itemIdentifier": ids[1] }] });
    assert_eq!(bench.post(DELIVERY), (200, failures));
    assert_eq!(bench.applied(), ids[..1]);
    bench.fail(None);
    assert_eq!(bench.post(DELIVERY).0, 200);
    assert_eq!(bench.applied(), ids);
}

#[test]
fn any_other_error_undoes_the_batch() {
    let (bench, ids) = (Bench::new(), ids());
    bench.fail(Some((&ids[1], false)));
    bench.assert_rejected(503, &bench.post(DELIVERY));
    bench.fail(None);
    assert_eq!(bench.post(DELIVERY).0, 200);
    assert_eq!(bench.applied(), ids);
}

#[test]
fn a_wrong_signature_is_rejected() {
    let (bench, body) = (Bench::new(), DELIVERY.as_bytes());
    for headers in [sign(body, OTHER, NOW), sign(b"another body", SECRET, NOW), HeaderMap::new()] {
        bench.assert_rejected(401, &bench.receiver.receive(&headers, body, NOW));
    }
    let mut headers = sign(body, SECRET, NOW);
    let several = format!("v1,AAAA {}", headers["webhook-signature"].to_str().unwrap());
    headers.insert("webhook-signature", several.parse().unwrap());
    assert_eq!(bench.receiver.receive(&headers, body, NOW).0, 200);
}

#[test]
fn an_old_request_is_rejected_after_five_minutes() {
    let (bench, body) = (Bench::new(), DELIVERY.as_bytes());
    for at in [NOW - 301, NOW + 301] {
        bench.assert_rejected(401, &bench.receiver.receive(&sign(body, SECRET, at), body, NOW));
    }
    for at in [NOW - 300, NOW + 300] {
        assert_eq!(bench.receiver.receive(&sign(body, SECRET, at), body, NOW).0, 200);
    }
}

#[test]
fn what_is_no_batch_is_rejected() {
    let bench = Bench::new();
    for body in [
        String::new(),
        "null".to_owned(),
        "[]".to_owned(),
        "{".to_owned(),
        with("poller", Value::Null),
        with("generation", json!("1")),
        with("events", json!({})),
        with("events", json!([null])),
        with("events", json!([{ "id": "1" }])),
    ] {
        bench.assert_rejected(400, &bench.post(&body));
    }
}

#[test]
fn a_row_of_another_table_is_rejected() {
    let bench = Bench::new();
    let mut event = events().remove(0);
    event["after"] = json!({});
    let reply = bench.post(&with("events", json!([event])));
    bench.assert_rejected(400, &reply);
    assert!(reply.1["error"].as_str().unwrap().contains("column"), "{reply:?}");
}

#[test]
fn a_gzip_body_is_accepted_and_a_false_one_rejected() {
    let (bench, body) = (Bench::new(), DELIVERY.as_bytes());
    let mut headers = sign(body, SECRET, NOW);
    for encoding in ["gzip", "br"] {
        headers.insert("content-encoding", encoding.parse().unwrap());
        bench.assert_rejected(400, &bench.receiver.receive(&headers, body, NOW));
    }
    for encoding in ["gzip", "GZIP"] {
        headers.insert("content-encoding", encoding.parse().unwrap());
        assert_eq!(bench.receiver.receive(&headers, &gzip(body), NOW).0, 200);
    }
}

#[test]
fn a_body_above_the_limit_is_answered_so_that_the_batch_is_halved() {
    let bench = Bench::new();
    let large = vec![0; BODY_BYTES_MAX + 1];
    // The limit comes before the signature.
    let mut headers = sign(b"", SECRET, NOW);
    bench.assert_rejected(413, &bench.receiver.receive(&headers, &large, NOW));
    headers.insert("content-encoding", "gzip".parse().unwrap());
    bench.assert_rejected(413, &bench.receiver.receive(&headers, &gzip(&large), NOW));
}

#[test]
fn an_instance_that_lost_its_lease_cannot_write() {
    let bench = Bench::new();
    let mut newer: Value = serde_json::from_str(&with("events", json!([]))).unwrap();
    newer["fencing_token"] = (newer["fencing_token"].as_i64().unwrap() + 1).into();
    assert_eq!(bench.post(&newer.to_string()).0, 200);
    let reply = bench.post(DELIVERY);
    bench.assert_rejected(409, &reply);
    assert_eq!(reply.1["fence"]["fencing_token"], newer["fencing_token"]);
}

#[test]
fn ids_are_removed_after_the_retention() {
    let bench = Bench::new();
    assert_eq!(bench.post(DELIVERY).0, 200);
    let (later, body) = (NOW + RETENTION_SECONDS + 1, with("events", json!([])));
    let headers = sign(body.as_bytes(), SECRET, later);
    assert_eq!(bench.receiver.receive(&headers, body.as_bytes(), later).0, 200);
    assert!(bench.query("SELECT event_id FROM processed_events").is_empty());
}

#[test]
fn a_process_without_its_settings_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    for secrets in ["", "bm90IGEgc2VjcmV0", "whsec_", "whsec_?"] {
        let refused = Receiver::new(secrets, folder.path().join("db"), Box::new(|_, _| Ok(())));
        assert!(refused.is_err(), "{secrets}");
    }
    let away = Receiver::new(SECRET, folder.path().join("away/db"), Box::new(|_, _| Ok(())));
    assert!(away.is_err());
}
