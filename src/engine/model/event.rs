//! What a handler receives: change events and batches.

mod encoder;
mod json;

use std::fmt;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::cursor::{Cursor, hex, parse_short_hex, short_hex, update_sized};
use crate::value::{Value, push_text};

pub use self::encoder::EventEncoder;
pub use self::json::EventJson;

/// What happened to a row, as far as its source knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// The row was inserted after the poller's position, according to change tracking.
    Insert,
    /// The row was updated, and existed before, according to change tracking.
    Update,
    /// The row was inserted or updated; its source does not know which.
    Upsert,
    /// The row was deleted.
    Delete,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Insert, Self::Update, Self::Upsert, Self::Delete];

    /// Returns the name in events and settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Upsert => "upsert",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Identity of one state of one row: the key by which a handler recognises a redelivery.
///
/// A hash of poller, key and cursor. It is the same each time the same state is delivered, also by another instance,
/// after a reset, and by a replay.
///
/// The 32 hex digits are stored inline: separate strings would take a tenth of the memory of a full batch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId([u8; 32]);

impl EventId {
    /// Derives the id of a row's state.
    pub fn of(poller: &str, cursor: &Cursor) -> Self {
        let mut hash = Self::begin(poller, cursor);
        for (name, value) in cursor.key.iter() {
            update_sized(&mut hash, name.as_bytes());
            update_sized(&mut hash, value.to_string().as_bytes());
        }
        Self::end(hash)
    }

    /// Starts an id; name and JSON of each key value follow.
    fn begin(poller: &str, cursor: &Cursor) -> Sha256 {
        let mut hash = Sha256::new();
        hash.update(b"event-1");
        update_sized(&mut hash, poller.as_bytes());
        update_sized(&mut hash, cursor.mode.as_str().as_bytes());
        update_sized(&mut hash, cursor.value.as_bytes());
        hash
    }

    fn end(hash: Sha256) -> Self {
        Self(short_hex(&hash.finalize().into()))
    }

    /// Parses an id; `None` if the text is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        parse_short_hex(text).map(Self)
    }

    /// Returns the 32 hex digits.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Returns the id as a number.
    pub fn number(&self) -> u128 {
        u128::from_str_radix(self.as_str(), 16).unwrap_or_default()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("EventId").field(&self.as_str()).finish()
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for EventId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom(format!("event id `{text}`, expected 32 hex digits in lower case"))
        })
    }
}

/// Identity of a batch's content: the same id always means the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchId(String);

impl BatchId {
    /// Derives the id from everything that distinguishes two batches for a target.
    pub fn of(identity: &BatchIdentity<'_>) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"batch-1");
        update_sized(&mut hash, identity.poller.as_bytes());
        hash.update(identity.generation.to_be_bytes());
        update_sized(&mut hash, identity.replay_id.unwrap_or_default().as_bytes());
        update_sized(&mut hash, &position_bytes(identity.after));
        update_sized(&mut hash, &position_bytes(Some(identity.upto)));
        update_sized(&mut hash, identity.digest.as_str().as_bytes());
        Self::end(hash)
    }

    /// Derives the id under which a step of a handler chain receives this batch.
    ///
    /// Two steps may have the same target, which must not treat the second delivery as a duplicate of the first.
    #[must_use]
    pub fn of_step(&self, step: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"step-1");
        update_sized(&mut hash, self.0.as_bytes());
        update_sized(&mut hash, step.as_bytes());
        Self::end(hash)
    }

    fn end(hash: Sha256) -> Self {
        let digits = short_hex(&hash.finalize().into());
        Self(format!("batch_{}", str::from_utf8(&digits).unwrap_or_default()))
    }

    /// Returns the text form, `batch_` and 32 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a [`BatchId`] is derived from.
#[derive(Clone, Copy, Debug)]
pub struct BatchIdentity<'a> {
    /// Name of the poller.
    pub poller: &'a str,
    /// Generation of the state document.
    pub generation: u64,
    /// Set while a range is redelivered on request.
    pub replay_id: Option<&'a str>,
    /// Position before the first row; `None` at the beginning of the source.
    pub after: Option<&'a Cursor>,
    /// Position of the last row.
    pub upto: &'a Cursor,
    /// Digest of the encoded rows.
    pub digest: &'a EventsDigest,
}

/// SHA-256 over the encoded events of a batch, in hex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventsDigest(String);

impl EventsDigest {
    /// Hashes the encoded events in order.
    #[expect(single_use_lifetimes, reason = "the suggested elision is not stable yet")]
    pub fn of<'a>(events: impl IntoIterator<Item = &'a ChangeEvent>) -> Self {
        let mut hash = Sha256::new();
        for event in events {
            update_sized(&mut hash, event.json.as_bytes());
        }
        Self(hex(&hash.finalize()))
    }

    /// Returns the 64 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One changed row, encoded once: every handler and the digest use the same bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeEvent {
    /// Idempotency key of this state of the row.
    pub id: EventId,
    /// What happened.
    pub op: Operation,
    /// Position of the row in the source's order.
    pub cursor: Cursor,
    /// The event as one JSON object:
    /// `{id, op, pk, cursor, before: null, after, source}`.
    pub json: EventJson,
    /// Why the row cannot be delivered; its columns are left out then.
    pub unreadable: Option<Arc<str>>,
}

/// Where an event came from, as handlers see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceLabel {
    /// Name of the poller.
    pub poller: String,
    /// Table, view or query, as configured.
    pub object: String,
    /// How rows are ordered.
    pub mode: &'static str,
}

impl ChangeEvent {
    /// Encodes one row with its position; [`EventEncoder`] does so for the rows of a batch.
    pub fn encode(
        source: &SourceLabel,
        op: Operation,
        cursor: Cursor,
        columns: &[(&str, &Value)],
    ) -> Self {
        let mut after = "{".to_owned();
        for (index, (name, value)) in columns.iter().enumerate() {
            if index > 0 {
                after.push(',');
            }
            push_text(&mut after, name);
            after.push(':');
            value.push_json(&mut after);
        }
        after.push('}');
        let mut encoder = EventEncoder::new(source, 1, after.len());
        let id = encoder.write(op, &cursor, &after);
        Self { id, op, cursor, json: encoder.into_json(), unreadable: None }
    }
}

fn position_bytes(cursor: Option<&Cursor>) -> Vec<u8> {
    cursor.map(|cursor| serde_json::to_vec(cursor).unwrap_or_default()).unwrap_or_default()
}

/// Returns a number with its noun, as people read it: `1 row`, `2 batches`, `3 entries`.
pub fn counted(number: u64, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) if !stem.ends_with(['a', 'e', 'o']) => format!("{number} {stem}ies"),
        _ if noun.ends_with("ch") || noun.ends_with("sh") => format!("{number} {noun}es"),
        _ => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::{KeyValues, RowVersion};

    #[test]
    fn one_has_a_singular_noun() {
        for (number, noun, expected) in [
            (0, "row", "0 rows"),
            (1, "row", "1 row"),
            (1, "batch", "1 batch"),
            (2, "batch", "2 batches"),
            (2, "entry", "2 entries"),
            (2, "key", "2 keys"),
        ] {
            assert_eq!(counted(number, noun), expected);
        }
    }

    fn cursor(version: u64, id: i64) -> Cursor {
        let mut key = KeyValues::new();
        key.insert("id".to_owned(), id.into());
        Cursor::row_version(RowVersion(version), key)
    }

    fn label() -> SourceLabel {
        SourceLabel {
            poller: "orders".to_owned(),
            object: "dbo.orders".to_owned(),
            mode: "rowversion",
        }
    }

    #[test]
    fn an_event_is_one_json_object_with_the_documented_fields() {
        let row = Value::Text("x".to_owned());
        let event =
            ChangeEvent::encode(&label(), Operation::Upsert, cursor(1, 7), &[("name", &row)]);
        expect_test::expect![[r#"{"id":"2d2e","op":"upsert","pk":{"id":7},"cursor":{"kind":"rowversion","value":"0x0000000000000001","tiebreaker":{"id":7}},"before":null,"after":{"name":"x"},"source":{"poller":"orders","object":"dbo.orders","mode":"rowversion"}}"#]]
        .assert_eq(&event.json.replace(event.id.as_str(), "2d2e"));
    }

    #[test]
    fn an_operation_changes_the_event_and_not_its_id() {
        let row = Value::Text("x".to_owned());
        for op in Operation::ALL {
            let event = ChangeEvent::encode(&label(), op, cursor(1, 7), &[("name", &row)]);
            assert_eq!(event.id, EventId::of("orders", &cursor(1, 7)));
            let json: serde_json::Value = serde_json::from_str(&event.json).unwrap();
            assert_eq!(json["op"], op.as_str());
            assert_eq!(json["op"], serde_json::to_value(op).unwrap());
            assert_eq!(json["after"].is_null(), op == Operation::Delete, "{op}");
        }
    }

    #[test]
    fn a_step_gets_a_batch_under_its_own_stable_id() {
        let batch = BatchId("batch_1".to_owned());
        let other = BatchId("batch_2".to_owned());
        let ids = [batch.of_step("a"), batch.of_step("b"), other.of_step("a"), batch.clone()];
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), ids.len());
        assert_eq!(batch.of_step("a"), ids[0]);
        assert_eq!(ids[0].as_str(), "batch_2528070139c57b9c19d521eb102ee70e");
    }

    #[test]
    fn event_ids_depend_on_poller_key_and_cursor_alone() {
        assert_eq!(EventId::of("a", &cursor(1, 7)), EventId::of("a", &cursor(1, 7)));
        for other in [
            EventId::of("b", &cursor(1, 7)),
            EventId::of("a", &cursor(2, 7)),
            EventId::of("a", &cursor(1, 8)),
        ] {
            assert_ne!(EventId::of("a", &cursor(1, 7)), other);
        }
    }

    #[test]
    fn a_batch_id_changes_with_every_part_of_its_identity() {
        let (low, high) = (cursor(1, 1), cursor(2, 1));
        let digest = EventsDigest("d".to_owned());
        let other_digest = EventsDigest("e".to_owned());
        let base = BatchIdentity {
            poller: "p",
            generation: 1,
            replay_id: None,
            after: None,
            upto: &high,
            digest: &digest,
        };
        let variants = [
            BatchIdentity { poller: "q", ..base },
            BatchIdentity { generation: 2, ..base },
            BatchIdentity { replay_id: Some("r"), ..base },
            BatchIdentity { after: Some(&low), ..base },
            BatchIdentity { upto: &low, ..base },
            BatchIdentity { digest: &other_digest, ..base },
        ];
        for variant in &variants {
            assert_ne!(BatchId::of(&base), BatchId::of(variant));
        }
        assert_eq!(BatchId::of(&base), BatchId::of(&base.clone()));
    }
}
