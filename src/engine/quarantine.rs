//! Quarantined rows: rows that the handler rejects, and the format in which they are stored.
//!
//! One JSON object per row, stored alongside the state document and named by the id of the row's event.
//! A row that is quarantined twice because its checkpoint was not committed therefore has one entry.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;
use time::OffsetDateTime;

use crate::cursor::{Cursor, KeyValues};
use crate::document::Holder;
use crate::event::{BatchId, ChangeEvent, EventId, Operation};
use crate::store::StateKey;

/// Version of the format.
pub const VERSION: u32 = 1;

/// Largest event that is stored in full; a larger one is stored without its columns. Stores accept
/// documents of up to 4 MiB.
const EVENT_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Why a row was quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The target permanently rejected the row on its own.
    Refused,
    /// The row failed too often or for too long, and the target has accepted another row since.
    Attempts,
    /// Processes crashed while handling only this row.
    Crashes,
}

impl Reason {
    /// Returns the name used in entries, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Attempts => "attempts",
            Self::Crashes => "crashes",
        }
    }
}

/// What is known about a row that is being quarantined.
#[derive(Clone, Debug)]
pub struct QuarantinedRow<'a> {
    /// The poller.
    pub poller: &'a str,
    /// The last batch in which it was tried.
    pub batch_id: &'a BatchId,
    /// The lease holder that quarantines it.
    pub holder: &'a Holder,
    /// Why it is quarantined.
    pub reason: Reason,
    /// Counted attempts.
    pub attempts: u32,
    /// Crashes while handling it.
    pub crashes: u32,
    /// When it first failed; storage time.
    pub first_failed_at: OffsetDateTime,
    /// When it was quarantined; storage time.
    pub quarantined_at: OffsetDateTime,
    /// The first error.
    pub first_error: &'a str,
    /// The last error.
    pub last_error: &'a str,
}

/// A quarantine entry, as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Version of the format; see [`VERSION`].
    pub version: u32,
    /// The poller.
    pub poller_name: String,
    /// Id of the row's event.
    pub event_id: EventId,
    /// The last batch in which it was tried.
    pub batch_id: BatchId,
    /// Why it was quarantined.
    pub reason: Reason,
    /// The last error.
    pub error: String,
    /// The first error.
    pub first_error: String,
    /// Counted attempts.
    pub attempts: u32,
    /// Crashes while handling it.
    pub crashes: u32,
    /// When it first failed; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub first_failed_at: OffsetDateTime,
    /// When it was quarantined; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub quarantined_at: OffsetDateTime,
    /// The instance that quarantined it.
    pub quarantined_by: String,
    /// Generation of the state document.
    pub generation: u64,
    /// Token of the lease.
    pub fencing_token: u64,
    /// Whether the row's columns were left out because they are too large to store.
    #[serde(default)]
    pub without_columns: bool,
    /// The event as it was delivered; exactly one.
    pub events: Vec<Box<RawValue>>,
}

/// A quarantine entry that cannot be read.
#[derive(Debug, Error)]
pub enum EntryError {
    /// The JSON does not have the format of an entry.
    #[error("`{key}` is not a valid quarantine entry")]
    Form {
        /// Where it is stored.
        key: String,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The entry was written by a later version.
    #[error(
        "`{key}` has version {found}, newer than the supported {VERSION}; upgrade this program"
    )]
    Version {
        /// Where it is stored.
        key: String,
        /// Its version.
        found: u32,
    },
    /// The entry belongs to another row than its name says.
    #[error("`{key}` contains event `{event}` of poller `{poller}`, which does not match its name")]
    Misplaced {
        /// Where it is stored.
        key: String,
        /// The event in it.
        event: EventId,
        /// The poller in it.
        poller: String,
    },
    /// The entry does not hold exactly the event that it names.
    #[error("`{key}` does not contain its event: {reason}")]
    Event {
        /// Where it is stored.
        key: String,
        /// What is wrong with its event.
        reason: String,
    },
}

impl QuarantinedRow<'_> {
    /// Returns the key under which the row of `event` is stored, and the bytes.
    pub fn entry(&self, event: &ChangeEvent) -> (StateKey, Vec<u8>) {
        let without_columns = event.json.len() > EVENT_BYTES_MAX;
        let json = if without_columns { reference(event) } else { event.json.to_string() };
        let entry = Entry {
            version: VERSION,
            poller_name: self.poller.to_owned(),
            event_id: event.id.clone(),
            batch_id: self.batch_id.clone(),
            reason: self.reason,
            error: self.last_error.to_owned(),
            first_error: self.first_error.to_owned(),
            attempts: self.attempts,
            crashes: self.crashes,
            first_failed_at: self.first_failed_at,
            quarantined_at: self.quarantined_at,
            quarantined_by: self.holder.owner_id.clone(),
            generation: self.holder.generation.0,
            fencing_token: self.holder.token.0,
            without_columns,
            events: RawValue::from_string(json).into_iter().collect(),
        };
        let key =
            StateKey::Quarantined { poller: entry.poller_name.clone(), event: event.id.clone() };
        let bytes = serde_json::to_vec_pretty(&entry).unwrap_or_default();
        (key, bytes)
    }
}

/// Returns the event without its columns: only the identity and version of the row.
fn reference(event: &ChangeEvent) -> String {
    serde_json::json!({
        "id": event.id, "op": event.op, "pk": event.cursor.key, "cursor": event.cursor,
        "before": null, "after": null,
    })
    .to_string()
}

/// Decodes an entry.
///
/// # Errors
///
/// [`EntryError`] if it is damaged, belongs to another row, or is of a later version.
pub fn decode(key: &StateKey, bytes: &[u8]) -> Result<Entry, EntryError> {
    let entry: Entry = serde_json::from_slice(bytes)
        .map_err(|source| EntryError::Form { key: key.path(), source })?;
    if entry.version > VERSION {
        return Err(EntryError::Version { key: key.path(), found: entry.version });
    }
    if *key != entry.state_key() {
        let Entry { event_id: event, poller_name: poller, .. } = entry;
        return Err(EntryError::Misplaced { key: key.path(), event, poller });
    }
    entry.event()?;
    Ok(entry)
}

/// The fields that are read from a stored event.
#[derive(Deserialize)]
struct StoredEvent {
    id: EventId,
    op: Operation,
    cursor: Cursor,
}

impl Entry {
    /// Returns the key under which the entry is stored.
    pub fn state_key(&self) -> StateKey {
        StateKey::Quarantined { poller: self.poller_name.clone(), event: self.event_id.clone() }
    }

    /// Returns the event as it was delivered.
    ///
    /// # Errors
    ///
    /// [`EntryError::Event`] if the event is missing or is another one.
    pub fn event(&self) -> Result<ChangeEvent, EntryError> {
        let wrong = |reason: String| EntryError::Event { key: self.state_key().path(), reason };
        let [json] = self.events.as_slice() else {
            return Err(wrong(format!("it holds {} events", self.events.len())));
        };
        let event: StoredEvent =
            serde_json::from_str(json.get()).map_err(|error| wrong(error.to_string()))?;
        if event.id != self.event_id {
            return Err(wrong(format!("it holds event `{}`", event.id)));
        }
        let StoredEvent { id, op, cursor } = event;
        Ok(ChangeEvent { id, op, cursor, json: json.get().to_owned().into() })
    }

    /// Returns the entry updated after another rejection, and its bytes.
    pub fn refused_again(&self, error: &str) -> (Self, Vec<u8>) {
        let attempts = self.attempts.saturating_add(1);
        let entry = Self { attempts, error: error.to_owned(), ..self.clone() };
        let bytes = serde_json::to_vec_pretty(&entry).unwrap_or_default();
        (entry, bytes)
    }

    /// Returns the key of the row.
    ///
    /// # Errors
    ///
    /// As [`Self::event`].
    pub fn row_key(&self) -> Result<KeyValues, EntryError> {
        Ok(self.event()?.cursor.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::RowVersion;
    use crate::document::{FencingToken, Generation};
    use crate::event::{BatchIdentity, EventsDigest, SourceLabel};
    use crate::value::Value;

    fn event(text: &str) -> ChangeEvent {
        let mut key = KeyValues::new();
        key.insert("id".to_owned(), 7.into());
        let source = SourceLabel {
            poller: "orders".to_owned(),
            object: "dbo.orders".to_owned(),
            mode: "rowversion",
        };
        let name = Value::Text(text.to_owned());
        let cursor = Cursor::row_version(RowVersion(1), key);
        ChangeEvent::encode(&source, Operation::Upsert, cursor, &[("name", &name)])
    }

    fn entry(event: &ChangeEvent) -> (StateKey, Vec<u8>) {
        let holder = Holder {
            generation: Generation(3),
            owner_id: "app@1".to_owned(),
            token: FencingToken(9),
        };
        let batch_id = BatchId::of(&BatchIdentity {
            poller: "orders",
            generation: 3,
            replay_id: None,
            after: None,
            upto: &event.cursor,
            digest: &EventsDigest::of(std::slice::from_ref(event)),
        });
        let row = QuarantinedRow {
            poller: "orders",
            batch_id: &batch_id,
            holder: &holder,
            reason: Reason::Refused,
            attempts: 2,
            crashes: 0,
            first_failed_at: OffsetDateTime::UNIX_EPOCH,
            quarantined_at: OffsetDateTime::UNIX_EPOCH,
            first_error: "503",
            last_error: "422",
        };
        row.entry(event)
    }

    #[test]
    fn an_entry_reads_back_with_the_row_as_it_was_delivered() {
        let event = event("x");
        let (key, bytes) = entry(&event);
        assert_eq!(key.path(), format!("orders.quarantine.{}.json", event.id));
        let read = decode(&key, &bytes).unwrap();
        assert_eq!(read.events[0].get(), event.json.as_str());
        assert_eq!((read.first_error.as_str(), read.error.as_str()), ("503", "422"));
        assert_eq!((read.reason, read.attempts, read.fencing_token), (Reason::Refused, 2, 9));
    }

    #[test]
    fn a_row_that_is_too_large_to_store_is_stored_by_reference() {
        let event = event(&"x".repeat(EVENT_BYTES_MAX));
        let (key, bytes) = entry(&event);
        assert!(bytes.len() < 4096, "{}", bytes.len());
        let read = decode(&key, &bytes).unwrap();
        assert!(read.without_columns);
        assert!(read.events[0].get().contains(r#""pk":{"id":7}"#), "{}", read.events[0]);
    }

    #[test]
    fn an_invalid_entry_is_an_error_that_names_it() {
        let (key, bytes) = entry(&event("x"));
        let damaged = decode(&key, &bytes[..40]).unwrap_err();
        assert!(damaged.to_string().contains(&key.path()), "{damaged}");
        let text = String::from_utf8(bytes).unwrap().replace("\"version\": 1", "\"version\": 2");
        let newer = decode(&key, text.as_bytes()).unwrap_err().to_string();
        assert!(newer.contains("has version 2"), "{newer}");
    }

    #[test]
    fn an_entry_under_the_name_of_another_is_an_error() {
        let (_, bytes) = entry(&event("x"));
        let elsewhere = StateKey::parse(&format!("orders.quarantine.{:032}.json", 7)).unwrap();
        let misplaced = decode(&elsewhere, &bytes).unwrap_err().to_string();
        assert!(misplaced.contains("does not match its name"), "{misplaced}");
    }

    #[test]
    fn an_entry_without_its_event_is_an_error() {
        let (key, bytes) = entry(&event("x"));
        let with = |events: serde_json::Value| {
            let mut entry: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            entry["events"] = events;
            decode(&key, entry.to_string().as_bytes()).unwrap_err().to_string()
        };
        let mut other: serde_json::Value = serde_json::from_str(&event("x").json).unwrap();
        other["id"] = format!("{:032}", 7).into();
        for (events, expected) in [
            (serde_json::json!([]), "holds 0 events"),
            (serde_json::json!(["x"]), "invalid type"),
            (serde_json::json!([other]), "holds event `0"),
        ] {
            let text = with(events);
            assert!(text.contains(expected), "{text}");
        }
    }
}
