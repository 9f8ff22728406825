//! Answers a request: signature, limits, parsing, statuses.

use std::io::Read as _;
use std::path::PathBuf;

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use hmac::{Hmac, Mac as _};
use rusqlite::Connection;
use serde_json::{Map, Value, json};
use sha2::Sha256;

use super::Failure;
use super::once::{NotApplied, apply_once, connect};
use crate::row::{Change, Key, Row};

/// Reject a request that is older or newer than this: it may be a recorded one, sent again.
const TOLERANCE_SECONDS: i64 = 5 * 60;
/// A small request may unpack to a huge one.
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The reply to a request of which no event is applied.
#[derive(Debug)]
pub struct Rejection {
    status: u16,
    reply: Value,
}

impl Rejection {
    fn new(status: u16, reason: impl Into<String>) -> Self {
        Self { status, reply: json!({ "error": reason.into() }) }
    }

    /// The lease is lower than this one, which has written.
    pub fn fenced((generation, token): (i64, i64)) -> Self {
        let fence = json!({ "generation": generation, "fencing_token": token });
        Self { status: 409, reply: json!({ "error": "a newer lease has written", "fence": fence }) }
    }

    /// The body is larger than [`BODY_BYTES_MAX`]: the sender halves the batch.
    pub fn too_large() -> Self {
        Self::new(413, format!("the body is larger than {BODY_BYTES_MAX} bytes"))
    }

    /// Returns the status and the object to answer with.
    pub fn into_reply(self) -> (u16, Value) {
        (self.status, self.reply)
    }
}

/// A batch of changes.
#[derive(Debug)]
pub struct Batch {
    pub poller: String,
    pub generation: i64,
    pub fencing_token: i64,
    pub changes: Vec<Change>,
}

/// What applies a change.
pub type Handle = Box<dyn Fn(&Change, &Connection) -> Result<(), Failure> + Send + Sync>;

/// Answers requests. Create it at start, so that a process without its settings does not start.
pub struct Receiver {
    keys: Vec<Vec<u8>>,
    database: PathBuf,
    handle: Handle,
}

impl Receiver {
    /// Checks the settings: `secrets` are `whsec_…` separated by blanks, `database` is a file.
    pub fn new(secrets: &str, database: PathBuf, handle: Handle) -> Result<Self, String> {
        let keys = read_secrets(secrets)?;
        connect(&database).map_err(|error| format!("open `{}`: {error}", database.display()))?;
        Ok(Self { keys, database, handle })
    }

    /// Handles a request at a time in Unix seconds; returns the status and the object to answer with.
    pub fn receive(&self, headers: &HeaderMap, raw: &[u8], now: i64) -> (u16, Value) {
        let id = header(headers, "webhook-id");
        match self.apply(headers, raw, now) {
            // Everything before it is applied; it and what follows are redelivered.
            Ok(Some(failed)) => (200, json!({ "batchItemFailures": [{ "itemIdentifier": failed }] })),
            Ok(None) => (200, json!({ "batchItemFailures": [] })),
            Err(NotApplied::Rejected(rejection)) => {
                let (status, reply) = rejection.into_reply();
                eprintln!("batch {id} rejected: {status} {reply}");
                (status, reply)
            }
            Err(NotApplied::Failed(error)) => {
                // The whole batch is redelivered; the log has the reason.
                eprintln!("batch {id} failed: {error}");
                (503, json!({ "error": "the batch cannot be applied now" }))
            }
        }
    }

    fn apply(&self, headers: &HeaderMap, raw: &[u8], now: i64) -> Result<Option<String>, NotApplied> {
        let checked = unpack(headers, raw)
            .and_then(|body| verify(&self.keys, headers, &body, now).map(|()| body))
            .and_then(|body| read_batch(&body));
        let batch = checked.map_err(NotApplied::Rejected)?;
        let (id, attempt) = (header(headers, "webhook-id"), header(headers, "x-highwater-attempt"));
        eprintln!("batch {id} of poller {}, attempt {attempt}: {} events", batch.poller, batch.changes.len());
        let mut db = connect(&self.database)?;
        apply_once(&mut db, &batch, &*self.handle, now)
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn read_secrets(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let keys: Result<Vec<Vec<u8>>, String> = (1..)
        .zip(text.split_whitespace())
        .map(|(number, secret)| {
            let key = secret.strip_prefix("whsec_").and_then(|encoded| STANDARD.decode(encoded).ok());
            let key = key.filter(|key| !key.is_empty());
            key.ok_or_else(|| format!("secret {number} of WEBHOOK_SECRETS is not `whsec_` and base64"))
        })
        .collect();
    match keys {
        Ok(keys) if keys.is_empty() => {
            Err("WEBHOOK_SECRETS is not set: expected secrets `whsec_…`, separated by blanks".to_owned())
        }
        keys => keys,
    }
}

/// Returns the body as it is signed.
fn unpack(headers: &HeaderMap, raw: &[u8]) -> Result<Vec<u8>, Rejection> {
    if raw.len() > BODY_BYTES_MAX {
        return Err(Rejection::too_large());
    }
    match header(headers, "content-encoding").trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(raw.to_vec()),
        "gzip" => {
            let mut body = Vec::new();
            let limit = BODY_BYTES_MAX as u64 + 1;
            let unpacked = GzDecoder::new(raw).take(limit).read_to_end(&mut body);
            unpacked.map_err(|_| Rejection::new(400, "the body is not gzip, though content-encoding says so"))?;
            if body.len() > BODY_BYTES_MAX { Err(Rejection::too_large()) } else { Ok(body) }
        }
        _ => Err(Rejection::new(400, "content-encoding is neither gzip nor identity")),
    }
}

/// Rejects a request unless one of its signatures is good under one of `keys`.
fn verify(keys: &[Vec<u8>], headers: &HeaderMap, body: &[u8], now: i64) -> Result<(), Rejection> {
    let (id, timestamp) = (header(headers, "webhook-id"), header(headers, "webhook-timestamp"));
    let is_near = |seconds: i64| seconds.abs_diff(now) <= TOLERANCE_SECONDS.unsigned_abs();
    if !timestamp.parse().is_ok_and(is_near) {
        return Err(Rejection::new(401, "webhook-timestamp is missing or too far from now"));
    }
    let given = header(headers, "webhook-signature").split(' ');
    let given: Vec<Vec<u8>> = given
        .filter_map(|signature| STANDARD.decode(signature.strip_prefix("v1,")?).ok())
        .collect();
    let is_good = keys.iter().any(|key| {
        let Ok(mac) = Hmac::<Sha256>::new_from_slice(key) else { return false };
        let mac = mac.chain_update(format!("{id}.{timestamp}.")).chain_update(body);
        // Constant time, so that the duration of the comparison reveals nothing.
        given.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
    });
    if is_good { Ok(()) } else { Err(Rejection::new(401, "webhook-signature is missing or wrong")) }
}

/// Returns the batch in a body of the form `highwater`.
fn read_batch(body: &[u8]) -> Result<Batch, Rejection> {
    let invalid = |reason: String| Rejection::new(400, reason);
    let batch: Value = serde_json::from_slice(body).map_err(|_| invalid("the body is not JSON".to_owned()))?;
    let missing = |field: &str| invalid(format!("`{field}` is missing or of the wrong type"));
    let number = |field: &str| batch.get(field).and_then(Value::as_i64).ok_or_else(|| missing(field));
    let events = batch.get("events").and_then(Value::as_array).ok_or_else(|| missing("events"))?;
    Ok(Batch {
        poller: batch.get("poller").and_then(Value::as_str).ok_or_else(|| missing("poller"))?.to_owned(),
        generation: number("generation")?,
        fencing_token: number("fencing_token")?,
        changes: events.iter().map(change).collect::<Result<_, String>>().map_err(invalid)?,
    })
}

/// Returns an event as a typed change.
fn change(event: &Value) -> Result<Change, String> {
    let text = |field: &str| event.get(field).and_then(Value::as_str).map(str::to_owned);
    let id = text("id").ok_or("an event has no `id`")?;
    let object = |field: &str| -> Result<&Map<String, Value>, String> {
        let found = event.get(field).and_then(Value::as_object);
        found.ok_or_else(|| format!("event {id}: `{field}` is missing or of the wrong type"))
    };
    let op = text("op").ok_or_else(|| format!("event {id} has no `op`"))?;
    let invalid = |error| format!("event {id}: {error}");
    let key = Key::from_json(object("pk")?).map_err(invalid)?;
    let row = match event.get("after") {
        Some(Value::Null) => None,
        _ => Some(Row::from_json(object("after")?).map_err(invalid)?),
    };
    Ok(Change { id: id.clone(), op, key, row })
}
