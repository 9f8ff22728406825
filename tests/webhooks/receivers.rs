//! The receivers of `docs/receivers`, as what people put behind a URL.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use highwater::clock::{Clock, SystemClock};
use highwater::config::HttpConfig;
use highwater::handler::HandlerError;
use serde_json::json;
use time::OffsetDateTime;

use crate::child::{Server, file, node};
use crate::sample::{Batch, NEW_SECRET, OLD_SECRET, config};

const ROWS: &[(i64, u64, Option<&str>)] =
    &[(1, 1, Some("Zoë")), (2, 2, Some("second")), (3, 3, None)];

pub(crate) fn javascript(downstream: &str) -> Server {
    let mut command = node("tests/webhooks/serve.mjs");
    command.env("WEBHOOK_SECRETS", secrets()).env("DOWNSTREAM_URL", downstream);
    Server::start(&mut command)
}

pub(crate) fn python(database: &Path) -> Server {
    let mut command = Command::new("python3");
    command.arg(file("tests/webhooks/serve.py"));
    Server::start(command.env("WEBHOOK_SECRETS", secrets()).env("DATABASE", database))
}

fn secrets() -> String {
    format!("{NEW_SECRET} {OLD_SECRET}")
}

/// A receiver and the path at which it takes each event once.
struct Receiver {
    server: Server,
    path: &'static str,
    _folder: tempfile::TempDir,
}

impl Receiver {
    fn each() -> [Self; 2] {
        let folder = tempfile::tempdir().unwrap();
        let python = python(&folder.path().join("db"));
        let other = tempfile::tempdir().unwrap();
        [
            Self { server: javascript("http://127.0.0.1:9"), path: "/remember", _folder: other },
            Self { server: python, path: "/once", _folder: folder },
        ]
    }

    fn url(&self) -> String {
        self.server.url(self.path)
    }

    fn config(&self, secret: &str) -> HttpConfig {
        config(&self.url(), &[secret])
    }

    async fn assert_taken(&self, ids: &[&str]) {
        assert_eq!(self.server.get("/taken").await, json!(ids), "{}", self.path);
    }
}

fn ids(batch: &Batch) -> Vec<&str> {
    batch.events.iter().map(|event| event.id.as_str()).collect()
}

#[derive(Debug)]
struct Late;

impl Clock for Late {
    fn now(&self) -> OffsetDateTime {
        SystemClock.now() - time::Duration::minutes(6)
    }
}

#[tokio::test]
async fn events_are_taken_once_also_where_they_come_in_another_batch() {
    for receiver in Receiver::each() {
        let batch = Batch::of(ROWS);
        for secret in [OLD_SECRET, NEW_SECRET] {
            for gzip in [false, true] {
                let config = HttpConfig { gzip, ..receiver.config(secret) };
                batch.deliver(&config).await.unwrap();
                receiver.assert_taken(&ids(&batch)).await;
            }
        }
        let overlapping = Batch::of(&[ROWS[1], ROWS[2], (4, 4, Some("fourth"))]);
        overlapping.deliver(&receiver.config(NEW_SECRET)).await.unwrap();
        receiver.assert_taken(&[&ids(&batch)[..], &ids(&overlapping)[2..]].concat()).await;
    }
}

#[tokio::test]
async fn what_is_not_signed_well_or_not_of_now_is_refused() {
    let batch = Batch::of(ROWS);
    for receiver in Receiver::each() {
        let foreign = "whsec_Zm9yZWlnbi1mb3JlaWduLWZvcmVpZ24tZm9yZWln";
        for result in [
            batch.deliver(&receiver.config(foreign)).await,
            batch.deliver(&config(&receiver.url(), &[])).await,
            batch.deliver_by(Arc::new(Late), &receiver.config(NEW_SECRET)).await,
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, HandlerError::Misconfigured(_)), "{error:?}");
        }
        receiver.assert_taken(&[]).await;
    }
}

#[tokio::test]
async fn a_body_that_was_changed_on_the_way_is_refused() {
    let body = r#"{"poller":"orders","generation":7,"fencing_token":1,"events":[]}"#;
    let now = SystemClock.now().unix_timestamp().to_string();
    let signed =
        node("tests/webhooks/sign.mjs").args([NEW_SECRET, "msg_1", &now, body]).output().unwrap();
    let signature = String::from_utf8(signed.stdout).unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for receiver in Receiver::each() {
        for (sent, status) in [(body.to_owned(), 200), (body.replace('7', "8"), 401)] {
            let request = client.post(receiver.url()).body(sent);
            let request = request.header("webhook-id", "msg_1").header("webhook-timestamp", &now);
            let response = request.header("webhook-signature", signature.trim()).send().await;
            assert_eq!(response.unwrap().status(), status, "{}", receiver.path);
        }
    }
}

#[tokio::test]
async fn the_first_event_that_fails_is_named_and_ends_the_batch() {
    for receiver in Receiver::each() {
        let batch = Batch::of(&[ROWS[0], (2, 2, Some("poison")), ROWS[2]]);
        for _ in 0..2 {
            let error = batch.deliver(&receiver.config(NEW_SECRET)).await.unwrap_err();
            let HandlerError::Partial { accepted, .. } = error else { panic!("{error:?}") };
            assert_eq!(accepted, 1);
            receiver.assert_taken(&ids(&batch)[..1]).await;
        }
    }
}

#[tokio::test]
async fn a_lease_that_was_taken_over_writes_nothing() {
    for receiver in Receiver::each() {
        let config = receiver.config(NEW_SECRET);
        let first = Batch::of(&ROWS[..1]);
        first.deliver(&config).await.unwrap();
        for (generation, token) in [(7, 41), (6, 43)] {
            let stale = Batch { generation, token, ..Batch::of(&ROWS[1..]) };
            let error = stale.deliver(&config).await.unwrap_err();
            assert!(error.to_string().contains("answered 409"), "{error}");
        }
        receiver.assert_taken(&ids(&first)).await;
        let newer = Batch { generation: 8, token: 1, ..Batch::of(&ROWS[1..]) };
        newer.deliver(&config).await.unwrap();
        receiver.assert_taken(&[ids(&first), ids(&newer)].concat()).await;
    }
}
