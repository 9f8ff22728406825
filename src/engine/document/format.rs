//! The stored format of the state document and of its marker, and strict validation.
//!
//! A document that is truncated, foreign, of another version, or that requires an unknown feature is an error that
//! says what to do. It is never treated as absent: that would restart the poller at the beginning, and overwrite
//! state that may still be needed.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use thiserror::Error;
use time::OffsetDateTime;

use super::state_document::{
    Activity, BacklogObservation, CheckpointMetadata, Histogram, LastFailure, RecentTick,
    StateDocument,
};
use crate::cursor::CursorError;
use crate::error::restore_state;
use crate::grant::Generation;

/// The version of the format that this build reads and writes.
pub const VERSION: u32 = 1;

/// Names in `requires` that this build supports.
const KNOWN_REQUIREMENTS: &[&str] =
    &["paused", super::fence::REQUIREMENT, super::parked::REQUIREMENT, super::range::REQUIREMENT];

/// A stored document that must not be used or overwritten.
#[derive(Debug, Error)]
pub enum FormatError {
    /// The bytes are not JSON; most often a truncated copy.
    #[error(
        "state document of `{poller}` {}; nothing was overwritten: {}",
        self.defect(),
        restore_state(poller, None)
    )]
    NotJson {
        /// The poller.
        poller: String,
        /// Length of what was found.
        length: usize,
        /// Where the JSON breaks.
        cause: serde_json::Error,
    },
    /// JSON, but not a state document.
    #[error(
        "state document of `{poller}` {}: check the container and path; if they are right, {}",
        self.defect(),
        restore_state(poller, None)
    )]
    Foreign {
        /// The poller.
        poller: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Written by a version that this build does not know.
    #[error(
        "state document of `{poller}` {}: deploy a build that reads it",
        self.defect()
    )]
    Version {
        /// The poller.
        poller: String,
        /// The version found, as JSON.
        found: String,
    },
    /// Requires a feature that this build does not know.
    #[error(
        "state document of `{poller}` {}: deploy a newer build",
        self.defect()
    )]
    Requirement {
        /// The poller.
        poller: String,
        /// The unknown name.
        requirement: String,
    },
    /// Belongs to another poller.
    #[error(
        "state document of `{poller}` {}: two pollers share one path, or the document was \
         copied there; {}",
        self.defect(),
        restore_state(poller, None)
    )]
    OtherPoller {
        /// The poller that asked.
        poller: String,
        /// The name in the document.
        found: String,
    },
    /// The lease has no fencing token, so the next grant could repeat an earlier one.
    #[error(
        "state document of `{poller}` {}: without it the next grant could repeat an earlier token; {}",
        self.defect(),
        restore_state(poller, None)
    )]
    NoToken {
        /// The poller.
        poller: String,
        /// The value found instead, as JSON; `null` if it is missing.
        found: String,
    },
    /// There is no position, although a batch was delivered.
    #[error(
        "state document of `{poller}` {}: everything would be delivered again; {}",
        self.defect(),
        restore_state(poller, None)
    )]
    NoCursor {
        /// The poller.
        poller: String,
        /// The last batch.
        batch_id: String,
    },
    /// The marker cannot be read.
    #[error(
        "marker of `{poller}` is not JSON ({length} bytes; {cause}): remove `{poller}.marker.json`, then run \
         `highwater recover --yes` to write it again"
    )]
    Marker {
        /// The poller.
        poller: String,
        /// Length of what was found.
        length: usize,
        /// Where the JSON breaks.
        cause: serde_json::Error,
    },
    /// The checkpoint's cursor cannot be used.
    #[error(
        "state document of `{poller}` {}: {}",
        self.defect(),
        restore_state(poller, None)
    )]
    Cursor {
        /// The poller.
        poller: String,
        /// What is wrong with it.
        cause: CursorError,
    },
}

impl FormatError {
    /// Returns what is wrong, phrased to follow the name of the document or file, without what to do about it.
    pub fn defect(&self) -> String {
        match self {
            Self::NotJson { length, cause, .. } | Self::Marker { length, cause, .. } => {
                format!("is not JSON ({length} bytes; {cause})")
            }
            Self::Foreign { cause, .. } => format!("is not a state document ({cause})"),
            Self::Version { found, .. } => {
                format!("has version `{found}`, this build reads `{VERSION}`")
            }
            Self::Requirement { requirement, .. } => {
                format!("requires `{requirement}`, which this build does not know")
            }
            Self::OtherPoller { found, .. } => format!("names poller `{found}`"),
            Self::NoToken { found, .. } if found == "null" => "has no fencing token".to_owned(),
            Self::NoToken { found, .. } => {
                format!("has the fencing token `{found}`, expected a whole number")
            }
            Self::NoCursor { batch_id, .. } => {
                format!("has no cursor, although batch `{batch_id}` was delivered")
            }
            Self::Cursor { cause, .. } => {
                format!("has a checkpoint that cannot be used ({cause})")
            }
        }
    }
}

/// Returns why JSON is not a state document, in terms of the document.
fn foreign(bytes: &[u8], cause: &serde_json::Error) -> String {
    const NEEDED: [&str; 5] =
        ["version", "poller_name", "source_fingerprint", "checkpoint", "lease"];
    let json: Json = serde_json::from_slice(without_bom(bytes)).unwrap_or_default();
    let fields = match json {
        Json::Object(fields) => fields,
        Json::Null => return "it is `null`, expected an object".to_owned(),
        Json::Array(_) => return "it is a list, expected an object".to_owned(),
        Json::Bool(_) | Json::Number(_) | Json::String(_) => {
            return "it is a single value, expected an object".to_owned();
        }
    };
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|name| !fields.contains_key(*name)).collect();
    if !missing.is_empty() {
        return format!("it has no `{}`", missing.join("`, `"));
    }
    // Our own type names mean nothing to a reader.
    let text = cause.to_string();
    match text.split_once("expected struct ") {
        Some((found, _)) => format!("{found}expected an object"),
        None => text,
    }
}

/// Reads the stored form of `poller`'s document.
///
/// # Errors
///
/// [`FormatError`]; it names the first problem that makes the document unusable.
pub fn decode(poller: &str, bytes: &[u8]) -> Result<StateDocument, FormatError> {
    let owned = || poller.to_owned();
    let json: Json = serde_json::from_slice(without_bom(bytes))
        .map_err(|cause| FormatError::NotJson { poller: owned(), length: bytes.len(), cause })?;
    if let Some(found) = json.get("version").filter(|found| **found != VERSION) {
        return Err(FormatError::Version { poller: owned(), found: found.to_string() });
    }
    if let Some(requirement) = unknown_requirement(&json) {
        return Err(FormatError::Requirement { poller: owned(), requirement });
    }
    if let Some(Json::Object(lease)) = json.get("lease") {
        let found = lease.get("fencing_token").unwrap_or(&Json::Null);
        if !found.is_u64() {
            return Err(FormatError::NoToken { poller: owned(), found: found.to_string() });
        }
    }
    let document: StateDocument = match serde_json::from_value(json) {
        Ok(document) => document,
        Err(cause) => without_bad_statistics(poller, bytes).ok_or_else(|| {
            FormatError::Foreign { poller: owned(), cause: foreign(bytes, &cause) }
        })?,
    };
    if document.poller_name != poller {
        let found = document.poller_name;
        return Err(FormatError::OtherPoller { poller: owned(), found });
    }
    let checkpoint = &document.checkpoint;
    if let (None, Some(batch_id)) = (&checkpoint.cursor, &checkpoint.last_successful_batch_id) {
        let batch_id = batch_id.as_str().to_owned();
        return Err(FormatError::NoCursor { poller: owned(), batch_id });
    }
    let in_flight = document.in_flight.iter().map(|batch| &batch.upto);
    let windows = document.audit.windows.iter().map(|window| &window.upto);
    for cursor in document.checkpoint.cursor.iter().chain(in_flight).chain(windows) {
        cursor.validate().map_err(|cause| FormatError::Cursor { poller: owned(), cause })?;
    }
    Ok(document)
}

/// Reads a document without its unreadable statistics, which do not affect delivery. `None` if it cannot be read
/// without them either.
fn without_bad_statistics(poller: &str, bytes: &[u8]) -> Option<StateDocument> {
    let mut json: Json = serde_json::from_slice(without_bom(bytes)).ok()?;
    let mut dropped = Vec::new();
    let bad = [
        ("/observed", is_unreadable::<Option<BacklogObservation>>(&json, "/observed")),
        ("/last_success_at", is_unreadable::<StoredTime>(&json, "/last_success_at")),
        ("/last_failure", is_unreadable::<Option<LastFailure>>(&json, "/last_failure")),
        ("/timings", is_unreadable::<BTreeMap<String, Histogram>>(&json, "/timings")),
        ("/recent", is_unreadable::<Vec<RecentTick>>(&json, "/recent")),
        ("/activity", is_unreadable::<Vec<Activity>>(&json, "/activity")),
        (
            "/checkpoint/metadata",
            is_unreadable::<CheckpointMetadata>(&json, "/checkpoint/metadata"),
        ),
    ];
    for (pointer, _) in bad.into_iter().filter(|(_, is_bad)| *is_bad) {
        let (parent, name) = pointer.rsplit_once('/')?;
        json.pointer_mut(parent)?.as_object_mut()?.remove(name);
        dropped.push(name);
    }
    let document = serde_json::from_value(json).ok().filter(|_| !dropped.is_empty())?;
    let fields = dropped.join("`, `");
    tracing::warn!(
        event = "statistics_dropped",
        poller.name = poller,
        fields,
        "Statistics `{fields}` in the state document of poller `{poller}` could not be read and were dropped; the \
         position is not affected"
    );
    Some(document)
}

/// A time as written in documents.
#[derive(Deserialize)]
struct StoredTime(
    #[serde(with = "time::serde::rfc3339::option")]
    #[expect(dead_code, reason = "it is only parsed to validate it")]
    Option<OffsetDateTime>,
);

fn is_unreadable<T: DeserializeOwned>(json: &Json, pointer: &str) -> bool {
    json.pointer(pointer).is_some_and(|found| T::deserialize(found).is_err())
}

/// Returns the stored format: JSON indented by two spaces, since people read it.
pub fn encode(document: &StateDocument) -> Vec<u8> {
    serde_json::to_vec_pretty(document).expect("a state document has only string keys")
}

/// The marker, which outlives a lost state document: proof that the poller has run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The poller.
    pub poller_name: String,
    /// Generation of the document it was written for.
    pub generation: Generation,
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// Reads the stored form of `poller`'s marker.
///
/// # Errors
///
/// [`FormatError::Marker`] if it cannot be read.
pub fn decode_marker(poller: &str, bytes: &[u8]) -> Result<Marker, FormatError> {
    serde_json::from_slice(without_bom(bytes)).map_err(|cause| FormatError::Marker {
        poller: poller.to_owned(),
        length: bytes.len(),
        cause,
    })
}

/// Returns the stored form of a marker.
pub fn encode_marker(marker: &Marker) -> Vec<u8> {
    serde_json::to_vec_pretty(marker).expect("a marker has only string keys")
}

fn unknown_requirement(json: &Json) -> Option<String> {
    let names = json.get("requires")?.as_array()?;
    names
        .iter()
        .map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned))
        .find(|name| !KNOWN_REQUIREMENTS.contains(&name.as_str()))
}

/// Editors on Windows may write a byte order mark.
fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document of seed 000 §4, verbatim.
    const SEED: &str = r#"{
  "version": 1,
  "poller_name": "orders",
  "source_fingerprint": "sha256:...",
  "checkpoint": {
    "cursor": {
      "kind": "timestamp+pk",
      "value": "2026-04-07T01:23:45.123456Z",
      "tiebreaker": { "id": 12093 }
    },
    "last_successful_batch_id": "batch_20260407_012346_0001",
    "updated_at": "2026-04-07T01:23:46.020000Z",
    "metadata": { "row_count": 100 }
  },
  "lease": {
    "owner_id": "funcapp/instance-abc123",
    "fencing_token": 42,
    "acquired_at": "2026-04-07T01:23:00Z",
    "heartbeat_at": "2026-04-07T01:23:20Z",
    "expires_at": "2026-04-07T01:25:00Z"
  }
}"#;

    fn error(bytes: &str) -> String {
        decode("orders", bytes.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn the_example_document_reads_and_writes_back_field_for_field() {
        let document = decode("orders", SEED.as_bytes()).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&encode(&document)).unwrap();
        let seed: serde_json::Value = serde_json::from_str(SEED).unwrap();
        for (section, field) in [
            ("checkpoint", "cursor"),
            ("checkpoint", "last_successful_batch_id"),
            ("checkpoint", "metadata"),
            ("lease", "owner_id"),
            ("lease", "fencing_token"),
            ("lease", "acquired_at"),
            ("lease", "expires_at"),
        ] {
            assert_eq!(written[section][field], seed[section][field], "{section}.{field}");
        }
        assert_eq!(written["checkpoint"]["updated_at"], "2026-04-07T01:23:46.02Z");
        assert_eq!(decode("orders", &encode(&document)).unwrap(), document);
    }

    #[test]
    fn unknown_fields_survive_a_rewrite_at_every_level() {
        let mut json: serde_json::Value = serde_json::from_str(SEED).unwrap();
        let at = "2026-04-07T01:23:00Z";
        json["in_flight"] = serde_json::json!({
            "batch_id": "b", "upto": json["checkpoint"]["cursor"], "rows": 1, "digest": "d",
        });
        json["paused"] = serde_json::json!({ "by": "eve", "reason": "r", "at": at });
        json["observed"] = serde_json::json!({ "at": at });
        json["recent"] = serde_json::json!([{ "at": at, "outcome": "tick_complete" }]);
        let places = [
            "",
            "/checkpoint",
            "/checkpoint/metadata",
            "/lease",
            "/in_flight",
            "/paused",
            "/observed",
            "/recent/0",
        ];
        for (number, place) in places.iter().enumerate() {
            json.pointer_mut(place).unwrap()["later"] = number.into();
        }
        let document = decode("orders", json.to_string().as_bytes()).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&encode(&document)).unwrap();
        for (number, place) in places.iter().enumerate() {
            assert_eq!(written.pointer(place).unwrap()["later"], number, "`{place}`");
        }
    }

    #[test]
    fn a_required_field_is_rejected_by_name_by_a_version_that_does_not_know_it() {
        let requiring = |names: &str| SEED.replacen('{', &format!("{{\"requires\": {names},"), 1);
        for known in ["[]", "[\"paused\"]"] {
            assert!(decode("orders", requiring(known).as_bytes()).is_ok(), "{known}");
        }
        for (names, expected) in
            [("[\"paused\", \"sharding\"]", "requires `sharding`"), ("[7]", "requires `7`")]
        {
            let text = error(&requiring(names));
            assert!(text.contains(expected) && text.contains("deploy a newer build"), "{text}");
        }
    }

    #[test]
    fn unusable_content_is_rejected_with_its_reason() {
        let with = |from: &str, to: &str| SEED.replace(from, to);
        for (document, expected) in [
            (String::new(), "is not JSON (0 bytes; EOF"),
            (SEED.chars().take(200).collect(), "is not JSON (200 bytes; EOF"),
            ("[]".to_owned(), "not a state document (it is a list, expected an object)"),
            ("null".to_owned(), "not a state document (it is `null`, expected an object)"),
            (
                r#"{"hello":"world"}"#.to_owned(),
                "(it has no `version`, `poller_name`, `source_fingerprint`, `checkpoint`, `lease`)",
            ),
            (with("\"version\": 1", "\"version\": 99"), "has version `99`, this build reads `1`"),
            (with("\"version\": 1", "\"version\": \"1\""), "has version `\"1\"`"),
            (
                with("\"version\": 1", "\"version\": 1, \"requires\": [\"paused\", \"sharding\"]"),
                "requires `sharding`",
            ),
            (with("\"orders\"", "\"other\""), "names poller `other`"),
            (with("2026-04-07T01:23:45.123456Z", "yesterday"), "checkpoint that cannot be used"),
        ] {
            let text = error(&document);
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_document_without_token_or_cursor_is_rejected_with_the_commands_that_repair_it() {
        let with = |pointer: &str, value: Option<Json>| {
            let mut json: Json = serde_json::from_str(SEED).unwrap();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let parent = json.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            match value {
                Some(value) => parent.insert(name.to_owned(), value),
                None => parent.remove(name),
            };
            json.to_string()
        };
        for (pointer, value, expected) in [
            ("/lease/fencing_token", None, "has no fencing token:"),
            ("/lease/fencing_token", Some(Json::Null), "has no fencing token:"),
            ("/lease/fencing_token", Some((-1).into()), "has the fencing token `-1`"),
            ("/lease/fencing_token", Some("42".into()), "has the fencing token `\"42\"`"),
            ("/checkpoint/cursor", None, "although batch `batch_20260407_012346_0001` was"),
            (
                "/checkpoint/cursor",
                Some(Json::Null),
                "although batch `batch_20260407_012346_0001` was",
            ),
        ] {
            let text = error(&with(pointer, value));
            assert!(text.contains(expected), "{text}");
            for command in ["state rebuild orders", "state import", "reset orders to-beginning"] {
                assert!(text.contains(&format!("`highwater {command}")), "{command}: {text}");
            }
        }
    }

    #[test]
    fn unreadable_statistics_are_dropped_and_everything_else_stays() {
        let seed = decode("orders", SEED.as_bytes()).unwrap();
        for (pointer, value) in [
            ("timings", serde_json::json!([-1])),
            ("timings", serde_json::json!({ "fetch": [-1] })),
            ("timings", Json::Null),
            ("recent", serde_json::json!([{ "at": "never" }])),
            ("recent", serde_json::json!("none")),
            ("observed", serde_json::json!({ "at": "2026-04-07T01:23:00Z", "idle_ticks": -1 })),
        ] {
            let mut json: Json = serde_json::from_str(SEED).unwrap();
            json[pointer] = value;
            let read = decode("orders", json.to_string().as_bytes());
            assert_eq!(
                read.unwrap_or_else(|error| panic!("{pointer}: {error}")),
                seed,
                "{pointer}"
            );
        }
        let mut json: Json = serde_json::from_str(SEED).unwrap();
        json["checkpoint"]["metadata"]["row_count"] = (-1).into();
        let read = decode("orders", json.to_string().as_bytes()).unwrap();
        assert_eq!(read.checkpoint.cursor, seed.checkpoint.cursor);
        // Fields that affect delivery are still strict, with and without a bad statistic.
        for (pointer, value) in [
            ("/generation", serde_json::json!(-1)),
            ("/paused", serde_json::json!({ "by": 1 })),
            ("/checkpoint/updated_at", serde_json::json!("never")),
        ] {
            let mut json: Json = serde_json::from_str(SEED).unwrap();
            json["timings"] = serde_json::json!([-1]);
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            json.pointer_mut(parent).unwrap()[name] = value;
            assert!(decode("orders", json.to_string().as_bytes()).is_err(), "{pointer}");
        }
    }

    #[test]
    fn two_pollers_cannot_share_one_document() {
        // Each has its own under its own name, and a document stored under the other name is rejected.
        let [orders, invoices] = ["orders", "invoices"].map(|poller| {
            let key = crate::store::StateKey::Document(poller.to_owned());
            assert_eq!(key.path(), format!("{poller}.json"));
            SEED.replace("\"orders\"", &format!("\"{poller}\""))
        });
        assert!(decode("orders", orders.as_bytes()).is_ok());
        assert!(decode("invoices", invoices.as_bytes()).is_ok());
        for (poller, other, bytes) in
            [("invoices", "orders", orders), ("orders", "invoices", invoices)]
        {
            let refused = decode(poller, bytes.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(&format!("names poller `{other}`")), "{refused}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_ignored() {
        assert!(decode("orders", format!("\u{feff}{SEED}").as_bytes()).is_ok());
    }

    #[test]
    fn a_marker_reads_back() {
        let marker = Marker {
            poller_name: "orders".to_owned(),
            generation: Generation(7),
            created_at: OffsetDateTime::UNIX_EPOCH,
        };
        assert_eq!(decode_marker("orders", &encode_marker(&marker)).unwrap(), marker);
        assert!(decode_marker("orders", b"{").is_err());
    }
}
