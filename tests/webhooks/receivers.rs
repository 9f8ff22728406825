//! The receivers of `docs/receivers`, deployed like a user's own.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use highwater::clock::{Clock, SystemClock};
use highwater::config::HttpConfig;
use highwater::handler::HandlerError;
use highwater_devdb::{Database, Engine as _, Parameter, Reply, Type, Value};
use hmac::{Hmac, Mac as _};
use serde_json::json;
use sha2::Sha256;
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

/// A receiver and the path at which it accepts each event once.
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

    async fn assert_accepted(&self, ids: &[&str]) {
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
async fn events_are_accepted_once_even_in_another_batch() {
    for receiver in Receiver::each() {
        let batch = Batch::of(ROWS);
        for secret in [OLD_SECRET, NEW_SECRET] {
            for gzip in [false, true] {
                let config = HttpConfig { gzip, ..receiver.config(secret) };
                batch.deliver(&config).await.unwrap();
                receiver.assert_accepted(&ids(&batch)).await;
            }
        }
        let overlapping = Batch::of(&[ROWS[1], ROWS[2], (4, 4, Some("fourth"))]);
        overlapping.deliver(&receiver.config(NEW_SECRET)).await.unwrap();
        receiver.assert_accepted(&[&ids(&batch)[..], &ids(&overlapping)[2..]].concat()).await;
    }
}

#[tokio::test]
async fn an_invalid_or_expired_signature_is_rejected() {
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
        receiver.assert_accepted(&[]).await;
    }
}

#[tokio::test]
async fn a_tampered_body_is_rejected() {
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
            receiver.assert_accepted(&ids(&batch)[..1]).await;
        }
    }
}

#[tokio::test]
async fn a_superseded_lease_holder_writes_nothing() {
    for receiver in Receiver::each() {
        let config = receiver.config(NEW_SECRET);
        let first = Batch::of(&ROWS[..1]);
        first.deliver(&config).await.unwrap();
        for (generation, token) in [(7, 41), (6, 43)] {
            let stale = Batch { generation, token, ..Batch::of(&ROWS[1..]) };
            let error = stale.deliver(&config).await.unwrap_err();
            let HandlerError::Fenced(refused) = error else { panic!("{error:?}") };
            assert_eq!(refused.current.to_string(), "7.42", "{}", receiver.path);
        }
        receiver.assert_accepted(&ids(&first)).await;
        let newer = Batch { generation: 8, token: 1, ..Batch::of(&ROWS[1..]) };
        newer.deliver(&config).await.unwrap();
        receiver.assert_accepted(&[ids(&first), ids(&newer)].concat()).await;
    }
}

/// A request to a receiver, signed like the sender's.
struct Signed {
    body: Vec<u8>,
    /// Value of `content-encoding`, and the bytes that are sent instead of the body.
    packed: Option<(&'static str, Vec<u8>)>,
}

impl Signed {
    fn text(body: &str) -> Self {
        Self { body: body.as_bytes().to_vec(), packed: None }
    }

    async fn send(self, url: &str) -> (u16, String) {
        let now = SystemClock.now().unix_timestamp();
        let key = STANDARD.decode(NEW_SECRET.strip_prefix("whsec_").unwrap()).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("msg_1.{now}.").as_bytes());
        mac.update(&self.body);
        let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = client.post(url).header("webhook-id", "msg_1");
        let request =
            request.header("webhook-timestamp", now).header("webhook-signature", signature);
        let request = match self.packed {
            Some((encoding, bytes)) => request.header("content-encoding", encoding).body(bytes),
            None => request.body(self.body),
        };
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

const EMPTY_BATCH: &str = r#"{"poller":"orders","generation":7,"fencing_token":1,"events":[]}"#;

#[tokio::test]
async fn a_body_that_is_not_a_batch_is_rejected_with_a_reason() {
    for receiver in Receiver::each() {
        for (body, reason) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("null", "not an object"),
            ("[]", "not an object"),
            (r#"[{"specversion":"1.0","data":{}}]"#, "not an object"),
            ("{}", "`poller`"),
            (&EMPTY_BATCH.replace(r#""orders""#, "null"), "`poller`"),
            (&EMPTY_BATCH.replace('7', r#""7""#), "`generation`"),
            (&EMPTY_BATCH.replace("[]", "{}"), "`events`"),
            (&EMPTY_BATCH.replace("[]", "[{}]"), "`id`"),
            (&EMPTY_BATCH.replace("[]", "[null]"), "`id`"),
        ] {
            let (status, answer) = Signed::text(body).send(&receiver.url()).await;
            assert_eq!(status, 400, "{} {body}", receiver.path);
            assert!(answer.contains(reason), "{} {body}: {answer}", receiver.path);
        }
        let (status, _) = Signed::text(EMPTY_BATCH).send(&receiver.url()).await;
        assert_eq!(status, 200, "{}", receiver.path);
    }
}

#[tokio::test]
async fn a_compressed_body_is_read_up_to_a_limit_and_rejected_if_invalid() {
    let batch = EMPTY_BATCH.as_bytes();
    let cut = gzip(batch)[..30].to_vec();
    let large = vec![b' '; (64 << 20) + 1];
    for receiver in Receiver::each() {
        for (body, encoding, sent, expected) in [
            (batch, "gzip", gzip(batch), 200),
            (batch, "GZIP", gzip(batch), 200),
            (batch, "identity", batch.to_vec(), 200),
            (batch, "gzip", batch.to_vec(), 400),
            (batch, "gzip", cut.clone(), 400),
            (batch, "br", batch.to_vec(), 400),
            // 413 makes the sender halve the batch.
            (&large[..], "gzip", gzip(&large), 413),
            (&large[..], "identity", large.clone(), 413),
        ] {
            let request = Signed { body: body.to_vec(), packed: Some((encoding, sent)) };
            let (status, answer) = request.send(&receiver.url()).await;
            assert_eq!(status, expected, "{} {encoding}: {answer}", receiver.path);
        }
    }
}

/// Not the fault of an event: nothing is acknowledged, and the reason is logged.
#[tokio::test]
async fn an_unavailable_target_fails_the_whole_batch() {
    let folder = tempfile::tempdir().unwrap();
    let log = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
    let mut javascript = node("tests/webhooks/serve.mjs");
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = nowhere.local_addr().unwrap().port();
    drop(nowhere);
    javascript
        .env("WEBHOOK_SECRETS", secrets())
        .env("DOWNSTREAM_URL", format!("http://127.0.0.1:{port}"));
    let mut python = Command::new("python3");
    python.arg(file("tests/webhooks/serve.py")).env("WEBHOOK_SECRETS", secrets());
    python.env("DATABASE", folder.path().join("db"));
    for (mut command, path, reason) in
        [(javascript, "/pass-on", "ECONNREFUSED"), (python, "/away", "closed database")]
    {
        let server = Server::start(command.stderr(log("log")));
        let batch = Batch::of(ROWS);
        let error = batch.deliver(&config(&server.url(path), &[NEW_SECRET])).await.unwrap_err();
        assert!(matches!(error, HandlerError::Retryable(_)), "{path}: {error:?}");
        assert!(error.to_string().contains("answered 503"), "{path}: {error}");
        drop(server);
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        assert!(log.contains(batch.id.as_str()) && log.contains(reason), "{path}: {log}");
    }
}

#[test]
fn a_receiver_without_secrets_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    for secrets in [None, Some(""), Some("whsec_"), Some("bmV3LW5ldw=="), Some("whsec_%%%")] {
        let mut python = Command::new("python3");
        python.arg(file("tests/webhooks/serve.py")).env("DATABASE", folder.path().join("db"));
        for mut command in [node("tests/webhooks/serve.mjs"), python] {
            command.env_remove("WEBHOOK_SECRETS").stdin(Stdio::piped());
            secrets.map(|secrets| command.env("WEBHOOK_SECRETS", secrets));
            let output = command.output().unwrap();
            let stderr_text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{command:?}");
            assert!(stderr_text.contains("WEBHOOK_SECRETS"), "{command:?}: {stderr_text}");
        }
    }
}

/// The C# receiver is not compiled here, but its table and its statement are run.
#[test]
fn the_csharp_receiver_detects_a_redelivery_by_the_duplicate_key_error() {
    let text = std::fs::read_to_string(file("docs/receivers/csharp/Changes.cs")).unwrap();
    let table: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("//   ")).collect();
    let note = text.split('"').find(|part| part.starts_with("INSERT INTO")).unwrap();
    assert!(text.contains("when (error.Number is 2627 or 2601)"));
    let database = Database::in_memory().unwrap();
    database.execute(&table.join(" ")).unwrap();
    let mut session = database.connect("Shop").unwrap();
    let parameter = |name: &str, text: &str| Parameter {
        name: name.to_owned(),
        ty: Type::NVarChar(Some(4000)),
        value: Value::Text(text.to_owned()),
    };
    for (poller, id, expected) in [
        ("orders", "46efdc3c7149273bd3bcf53faf0b0e07", None),
        ("orders", "46efdc3c7149273bd3bcf53faf0b0e07", Some(2627)),
        ("others", "46efdc3c7149273bd3bcf53faf0b0e07", None),
    ] {
        let sql = format!("SET NOCOUNT ON; {note}");
        let replies = session.run(&sql, &[parameter("@poller", poller), parameter("@id", id)]);
        let error = replies.iter().find_map(|reply| match reply {
            Reply::Error(error) => Some(error.number),
            Reply::Rows { .. } | Reply::Done(_) => None,
        });
        assert_eq!(error, expected, "{poller}");
    }
}
