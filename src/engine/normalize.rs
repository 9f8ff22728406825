//! Converts rows to change events. It is pure, and detects rows that cannot be ordered or encoded before a handler
//! sees them.

use std::sync::Arc;

use thiserror::Error;

use crate::cursor::{Cursor, CursorError, CursorMode, KeyValues, RowVersion};
use crate::event::{ChangeEvent, EventEncoder};
use crate::source::{Row, Rows, SourceShape};
use crate::value::Value;

/// A row that cannot become an event. Each tick fails until the source is fixed.
#[derive(Debug, Error)]
pub enum NormalizeError {
    /// The row has fewer key values than the source has key columns.
    #[error("row {row} has no value for key column `{column}`: select it, or fix the key setting")]
    MissingKey {
        /// Index in the batch.
        row: usize,
        /// The column.
        column: String,
    },
    /// A key value is `NULL`, so the row has no place in the order.
    #[error("row {row} has NULL in key column `{column}`: choose a key without NULL")]
    NullKey {
        /// Index in the batch.
        row: usize,
        /// The column.
        column: String,
    },
    /// A key value is text that a checkpoint cannot store.
    #[error(
        "row {row} has half a surrogate pair in key column `{column}`, which a checkpoint cannot store: \
         fix the text, or choose another key"
    )]
    HalfPairKey {
        /// Index in the batch.
        row: usize,
        /// The column.
        column: String,
    },
    /// The cursor column has a type that the mode cannot order by.
    #[error("row {row} has cursor `{found}`, but mode `{mode}` needs {expected}")]
    CursorType {
        /// Index in the batch.
        row: usize,
        /// What was found.
        found: String,
        /// The mode.
        mode: CursorMode,
        /// What the mode needs.
        expected: &'static str,
    },
    /// The cursor's text cannot be read.
    #[error("row {row}")]
    Cursor {
        /// Index in the batch.
        row: usize,
        /// What is wrong with it.
        #[source]
        source: CursorError,
    },
    /// A value or the event of the row is larger than the settings allow, and the key of the row is not parked for it.
    #[error("{0}; nothing after the row is delivered until then")]
    Unreadable(Arc<str>),
}

/// Turns rows into events, in order.
///
/// # Errors
///
/// [`NormalizeError`] names the first row that cannot be delivered, and why.
pub fn normalize(shape: &SourceShape, rows: &Rows) -> Result<Vec<ChangeEvent>, NormalizeError> {
    let mut encoder = EventEncoder::new(&shape.label, rows.rows.len(), rows.json.len());
    let names = key_names(shape);
    for (index, row) in rows.rows.iter().enumerate() {
        let key = key_values(&names, index, row)?;
        let cursor = position(shape, index, row, key)?;
        match &row.unreadable {
            Some(why) => encoder.push_unreadable(row.op, cursor, Arc::clone(why)),
            None => encoder.push(row.op, cursor, rows.object(row)),
        }
    }
    Ok(encoder.finish())
}

/// Returns the position of the last row; `None` if it has none, or if there is no row.
pub fn end_of(shape: &SourceShape, rows: &Rows) -> Option<Cursor> {
    let (index, row) = rows.rows.iter().enumerate().next_back()?;
    let key = key_values(&key_names(shape), index, row).ok()?;
    position(shape, index, row, key).ok()
}

/// Whether the events of rows that are not encoded yet certainly fit into a batch of `bytes_max` bytes: they must
/// fit with twice their size.
pub fn is_sure_to_fit(shape: &SourceShape, rows: &Rows, bytes_max: usize) -> bool {
    EventEncoder::bytes_of(&shape.label, rows.rows.len(), rows.json.len()) <= bytes_max / 2
}

/// Returns how many events fit into a batch of `bytes_max` bytes. An event that is larger on its own becomes unreadable;
/// `rows` are the rows of the events.
pub fn fitting(
    shape: &SourceShape,
    rows: &Rows,
    events: &mut [ChangeEvent],
    bytes_max: usize,
) -> usize {
    let mut bytes = 0_usize;
    for (index, event) in events.iter_mut().enumerate() {
        if event.json.len() > bytes_max
            && let Some(reference) = too_large(shape, rows.rows.get(index), rows, event, bytes_max)
        {
            *event = reference;
        }
        bytes = bytes.saturating_add(event.json.len());
        if bytes > bytes_max && index > 0 {
            return index;
        }
    }
    events.len()
}

/// Returns the event without its columns, and with the reason.
fn too_large(
    shape: &SourceShape,
    row: Option<&Row>,
    rows: &Rows,
    event: &ChangeEvent,
    bytes_max: usize,
) -> Option<ChangeEvent> {
    let largest = row.and_then(|row| rows.largest(row));
    let column = largest.map_or_else(
        || "without any column".to_owned(),
        |(name, bytes)| format!("most of it in column `{name}` with {bytes} bytes"),
    );
    let why = format!(
        "poller `{}`: the row of `{}` with key {} is {} bytes as an event, more than the {bytes_max} that \
         `BATCH_BYTES_MAX` allows, {column}: raise that setting of the poller, leave the column out of its \
         `SOURCE__COLUMNS`, or shorten the value",
        shape.label.poller,
        shape.label.object,
        event.cursor.key.to_json(),
        event.json.len(),
    );
    let mut encoder = EventEncoder::new(&shape.label, 1, 0);
    encoder.push_unreadable(event.op, event.cursor.clone(), why.into());
    encoder.finish().pop()
}

fn position(
    shape: &SourceShape,
    index: usize,
    row: &Row,
    key: KeyValues,
) -> Result<Cursor, NormalizeError> {
    let wrong = |expected| NormalizeError::CursorType {
        row: index,
        found: row.position.to_json().to_string(),
        mode: shape.mode,
        expected,
    };
    match (shape.mode, &row.position) {
        (CursorMode::RowVersion, Value::Int(value)) => {
            let bits = u64::from_be_bytes(value.to_be_bytes());
            Ok(Cursor::row_version(RowVersion(bits), key))
        }
        (CursorMode::RowVersion, _) => Err(wrong("an 8-byte rowversion")),
        (CursorMode::TimestampPk, Value::Text(text)) => Cursor::timestamp(text, key)
            .map_err(|source| NormalizeError::Cursor { row: index, source }),
        (CursorMode::TimestampPk, _) => Err(wrong("the text of a timestamp")),
        (CursorMode::IntegerPk, Value::Int(value)) => Ok(Cursor::integer(*value, key)),
        (CursorMode::IntegerPk, _) => Err(wrong("a whole number")),
        (CursorMode::ChangeTracking, Value::Text(text)) => text
            .parse()
            .map(|position| Cursor::tracked(position, key))
            .map_err(|source| NormalizeError::Cursor { row: index, source }),
        (CursorMode::ChangeTracking, _) => Err(wrong("a position of change tracking")),
    }
}

fn key_names(shape: &SourceShape) -> Vec<Arc<str>> {
    shape.key.iter().map(|name| Arc::from(name.as_str())).collect()
}

fn key_values(names: &[Arc<str>], index: usize, row: &Row) -> Result<KeyValues, NormalizeError> {
    let mut key = KeyValues::with_capacity(names.len());
    for (position, name) in names.iter().enumerate() {
        let column = || name.as_ref().to_owned();
        match row.key.get(position) {
            None => return Err(NormalizeError::MissingKey { row: index, column: column() }),
            Some(Value::Null) => {
                return Err(NormalizeError::NullKey { row: index, column: column() });
            }
            Some(Value::HalfPair(_)) => {
                return Err(NormalizeError::HalfPairKey { row: index, column: column() });
            }
            Some(value) => key.insert(Arc::clone(name), value.to_json()),
        }
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::SourceFingerprint;
    use crate::event::{Operation, SourceLabel};

    fn shape(mode: CursorMode) -> SourceShape {
        SourceShape {
            label: SourceLabel {
                poller: "p".to_owned(),
                object: "dbo.t".to_owned(),
                mode: mode.as_str(),
            },
            mode,
            key: vec!["a".to_owned(), "b".to_owned()],
            fingerprint: SourceFingerprint::of(&[]),
            definition: crate::cursor::SourceDefinition::default(),
        }
    }

    fn rows(position: Value, key: Vec<Value>) -> Rows {
        let mut rows = Rows::of(["c"]);
        rows.push(Operation::Upsert, position, key, &[Value::Text("x".to_owned())]);
        rows
    }

    fn error(mode: CursorMode, rows: &Rows) -> String {
        crate::error::chain(&normalize(&shape(mode), rows).unwrap_err())
    }

    #[test]
    fn a_row_becomes_an_event_at_its_position() {
        let rows = rows(Value::Int(-1), vec![Value::Int(1), Value::Text("k".to_owned())]);
        let events = normalize(&shape(CursorMode::RowVersion), &rows).unwrap();
        let cursor = &events[0].cursor;
        assert_eq!(cursor.value, "0xFFFFFFFFFFFFFFFF");
        assert_eq!(serde_json::to_string(&cursor.key).unwrap(), r#"{"a":1,"b":"k"}"#);
    }

    #[test]
    fn events_are_counted_up_to_the_limit_and_a_larger_one_is_unreadable() {
        let shape = shape(CursorMode::RowVersion);
        let key = || vec![Value::Int(1), Value::Text("k".to_owned())];
        let mut rows = Rows::of(["c", "big"]);
        let values = [Value::Int(7), Value::Text("x".repeat(498))];
        for _ in 0..2 {
            rows.push(Operation::Upsert, Value::Int(1), key(), &values);
        }
        let events = normalize(&shape, &rows).unwrap();
        let one = events[0].json.len();
        for (bytes_max, count) in [(one, 1), (2 * one - 1, 1), (2 * one, 2), (usize::MAX, 2)] {
            let mut same = events.clone();
            assert_eq!(fitting(&shape, &rows, &mut same, bytes_max), count, "{bytes_max}");
            assert_eq!(same, events);
        }
        assert_eq!(fitting(&shape, &rows, &mut [], 1), 0);
        let mut large = events.clone();
        assert_eq!(
            fitting(&shape, &rows, &mut large, one - 1),
            2,
            "both are small without columns"
        );
        let why = large[0].unreadable.clone().unwrap();
        for part in [
            "poller `p`".to_owned(),
            "the row of `dbo.t` with key {\"a\":1,\"b\":\"k\"}".to_owned(),
            format!("is {one} bytes as an event, more than the {}", one - 1),
            "column `big` with 500 bytes".to_owned(),
        ] {
            assert!(why.contains(&part), "{why}");
        }
        assert_eq!(large[0].id, events[0].id);
        assert!(large[0].json.contains(r#""after":null"#), "{}", &*large[0].json);
    }

    #[test]
    fn a_row_that_cannot_be_ordered_is_rejected_with_its_column() {
        let both = || vec![Value::Int(1), Value::Int(2)];
        for (mode, rows, expected) in [
            (
                CursorMode::RowVersion,
                rows(Value::Int(1), vec![Value::Int(1)]),
                "key column `b`: select",
            ),
            (
                CursorMode::RowVersion,
                rows(Value::Int(1), vec![Value::Null, Value::Null]),
                "NULL in key column `a`",
            ),
            (
                CursorMode::RowVersion,
                rows(Value::Int(1), vec![Value::Int(1), Value::HalfPair(vec![0xD83D])]),
                "half a surrogate pair in key column `b`",
            ),
            (
                CursorMode::RowVersion,
                rows(Value::Null, both()),
                "cursor `null`, but mode `rowversion` needs",
            ),
            (CursorMode::TimestampPk, rows(Value::Int(3), both()), "needs the text of a timestamp"),
            (
                CursorMode::TimestampPk,
                rows(Value::Text("soon".to_owned()), both()),
                "row 0: timestamp `soon`",
            ),
            (CursorMode::IntegerPk, rows(Value::Null, both()), "needs a whole number"),
            (
                CursorMode::ChangeTracking,
                rows(Value::Text("soon".to_owned()), both()),
                "row 0: change tracking position `soon`",
            ),
        ] {
            let text = error(mode, &rows);
            assert!(text.contains(expected), "{text}");
        }
    }
}
