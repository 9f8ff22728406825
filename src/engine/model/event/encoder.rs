//! Converts rows to events: the JSON of a batch is written once, one event after another.

use std::sync::Arc;

use super::json::Buffer;
use super::{ChangeEvent, EventId, EventJson, Operation, SourceLabel};
use crate::cursor::{Cursor, update_sized};
use crate::value::{push_int, push_text};

/// Approximate size of an event without its columns, key and source, in bytes.
const OTHER_BYTES: usize = 200;

/// Encodes the events of one batch.
///
/// The format is `{id, op, pk, cursor, before: null, after, source}`. The order of the fields is part of it, because
/// the digest covers the bytes.
#[derive(Debug)]
pub struct EventEncoder {
    poller: String,
    /// What follows the columns in each event.
    tail: String,
    buffer: Buffer,
    /// The key of the current event, as JSON.
    key: String,
    events: Vec<ChangeEvent>,
}

impl EventEncoder {
    /// Returns an encoder with room for this many events, whose columns have `columns_bytes` bytes in total.
    pub fn new(source: &SourceLabel, events: usize, columns_bytes: usize) -> Self {
        let tail = tail_of(source);
        let bytes = about(&tail, events, columns_bytes);
        Self {
            poller: source.poller.clone(),
            tail,
            buffer: Buffer::with_capacity(bytes),
            key: String::new(),
            events: Vec::with_capacity(events),
        }
    }

    /// Returns the approximate size of this many events, whose columns have the given number of bytes in total.
    pub fn bytes_of(source: &SourceLabel, events: usize, columns_bytes: usize) -> usize {
        about(&tail_of(source), events, columns_bytes)
    }

    /// Adds the event of a row. `after` has its columns as a JSON object; a deleted row has none.
    pub fn push(&mut self, op: Operation, cursor: Cursor, after: &str) {
        let id = self.write(op, &cursor, after);
        self.events.push(ChangeEvent { id, op, cursor, json: self.buffer.end(), unreadable: None });
    }

    /// Adds the event of a row that cannot be delivered, without its columns.
    pub fn push_unreadable(&mut self, op: Operation, cursor: Cursor, why: Arc<str>) {
        let id = self.write(op, &cursor, "null");
        self.events.push(ChangeEvent {
            id,
            op,
            cursor,
            json: self.buffer.end(),
            unreadable: Some(why),
        });
    }

    /// Returns the events, in the order in which they were added.
    pub fn finish(self) -> Vec<ChangeEvent> {
        self.buffer.share();
        self.events
    }

    /// Writes an event.
    pub(super) fn write(&mut self, op: Operation, cursor: &Cursor, after: &str) -> EventId {
        let id = self.identify(cursor);
        let json = self.buffer.begin();
        json.push_str("{\"id\":\"");
        json.push_str(id.as_str());
        json.push_str("\",\"op\":\"");
        json.push_str(op.as_str());
        json.push_str("\",\"pk\":");
        json.push_str(&self.key);
        json.push_str(",\"cursor\":{\"kind\":\"");
        json.push_str(cursor.mode.as_str());
        json.push_str("\",\"value\":");
        push_text(json, &cursor.value);
        json.push_str(",\"tiebreaker\":");
        json.push_str(&self.key);
        json.push_str("},\"before\":null,\"after\":");
        json.push_str(if op == Operation::Delete { "null" } else { after });
        json.push_str(&self.tail);
        id
    }

    /// Returns the JSON of the one event that was written.
    pub(super) fn into_json(self) -> EventJson {
        self.buffer.alone()
    }

    /// Writes the key as JSON, and derives the id of the state of its row.
    fn identify(&mut self, cursor: &Cursor) -> EventId {
        let mut hash = EventId::begin(&self.poller, cursor);
        let key = &mut self.key;
        key.clear();
        for (index, (name, value)) in cursor.key.iter().enumerate() {
            key.push(if index == 0 { '{' } else { ',' });
            push_text(key, name);
            key.push(':');
            let from = key.len();
            push_value(key, value);
            update_sized(&mut hash, name.as_bytes());
            update_sized(&mut hash, key.as_bytes().get(from..).unwrap_or_default());
        }
        key.push_str(if cursor.key.is_empty() { "{}" } else { "}" });
        EventId::end(hash)
    }
}

fn about(tail: &str, events: usize, columns_bytes: usize) -> usize {
    columns_bytes + events * (tail.len() + OTHER_BYTES)
}

/// Returns what follows the columns in each event.
fn tail_of(source: &SourceLabel) -> String {
    let mut tail = ",\"source\":{\"poller\":".to_owned();
    push_text(&mut tail, &source.poller);
    tail.push_str(",\"object\":");
    push_text(&mut tail, &source.object);
    tail.push_str(",\"mode\":");
    push_text(&mut tail, source.mode);
    tail.push_str("}}");
    tail
}

/// Writes a value of a key.
fn push_value(json: &mut String, value: &serde_json::Value) {
    match (value, value.as_i64()) {
        (_, Some(number)) => push_int(json, number),
        (serde_json::Value::String(text), _) => push_text(json, text),
        (other, _) => json.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Serialize;
    use serde_json::value::RawValue;

    use super::*;
    use crate::cursor::{CursorMode, KeyValues};

    /// The format as written by `serde_json`.
    #[derive(Serialize)]
    struct WireEvent<'a> {
        id: &'a EventId,
        op: Operation,
        pk: &'a KeyValues,
        cursor: &'a Cursor,
        before: (),
        after: Option<&'a RawValue>,
        source: &'a SourceLabel,
    }

    fn key_value() -> impl Strategy<Value = serde_json::Value> {
        prop_oneof![
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            any::<bool>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ]
    }

    fn cursor() -> impl Strategy<Value = Cursor> {
        let mode = prop::sample::select(CursorMode::ALL.to_vec());
        let key = prop::collection::vec((any::<String>(), key_value()), 0..4);
        (mode, any::<String>(), key).prop_map(|(mode, value, key)| Cursor {
            mode,
            value,
            key: key.into_iter().collect(),
        })
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop::sample::select(Operation::ALL.to_vec())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn events_are_written_as_serde_does(
            names: (String, String),
            rows in prop::collection::vec((cursor(), operation(), 0_u8..99), 1..4),
        ) {
            let source = SourceLabel { poller: names.0, object: names.1, mode: "rowversion" };
            let mut encoder = EventEncoder::new(&source, rows.len(), 0);
            let mut expected = Vec::new();
            for (cursor, op, after) in rows {
                let after = format!("{{\"a\":{after}}}");
                encoder.push(op, cursor.clone(), &after);
                let id = EventId::of(&source.poller, &cursor);
                let after = RawValue::from_string(after).unwrap();
                let wire = WireEvent {
                    id: &id,
                    op,
                    pk: &cursor.key,
                    cursor: &cursor,
                    before: (),
                    after: (op != Operation::Delete).then_some(&after),
                    source: &source,
                };
                expected.push(serde_json::to_string(&wire).unwrap());
            }
            let events = encoder.finish();
            let written: Vec<&str> = events.iter().map(|event| event.json.as_str()).collect();
            prop_assert_eq!(&written, &expected);
            let joined = EventJson::joined(events.iter().map(|event| &event.json));
            let expected = expected.join(",");
            prop_assert_eq!(joined.as_deref(), Some(expected.as_str()));
        }
    }
}
