//! Events as rows: the JSON of an event read back, column by column. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::value::RawValue;

use highwater_engine::event::{ChangeEvent, Operation};

/// The JSON of each column, by its name in the source.
pub(super) type Cells<'a> = BTreeMap<String, &'a RawValue>;

/// One event, with its columns.
#[derive(Debug)]
pub(super) struct EventRow<'a> {
    pub(super) event: &'a ChangeEvent,
    pub(super) pk: Cells<'a>,
    /// The row's current state; empty if it was deleted.
    pub(super) after: Cells<'a>,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    pk: Cells<'a>,
    #[serde(borrow)]
    after: Option<Cells<'a>>,
}

impl<'a> EventRow<'a> {
    pub(super) fn read(event: &'a ChangeEvent) -> Result<Self, serde_json::Error> {
        let Wire { pk, after } = serde_json::from_str(&event.json)?;
        Ok(Self { event, pk, after: after.unwrap_or_default() })
    }

    pub(super) fn is_delete(&self) -> bool {
        self.event.op == Operation::Delete
    }

    /// Returns the JSON text of a column. Falls back to the key, since a key column may not be delivered.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        let find = |cells: &Cells<'a>| {
            let exact = cells.get(name).copied();
            exact.or_else(|| {
                let same = |known: &&String| known.to_lowercase() == name.to_lowercase();
                cells.keys().find(same).and_then(|known| cells.get(known)).copied()
            })
        };
        find(&self.after).or_else(|| find(&self.pk)).map(RawValue::get)
    }
}

/// A value, decoded from its JSON form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scalar<'a> {
    Null,
    Bool(bool),
    /// A number, as written.
    Number(&'a str),
    Text(String),
    /// Text with an unpaired surrogate, as UTF-16.
    HalfPair(Vec<u16>),
}

impl<'a> Scalar<'a> {
    /// Reads a value; `None` for an object or an array, which no column holds.
    pub(super) fn read(json: &'a str) -> Option<Self> {
        match json.as_bytes().first()? {
            b'n' => Some(Self::Null),
            b't' => Some(Self::Bool(true)),
            b'f' => Some(Self::Bool(false)),
            b'"' => match serde_json::from_str(json) {
                Ok(text) => Some(Self::Text(text)),
                Err(_half_pair) => {
                    let Wtf8(bytes) = serde_json::from_str(json).ok()?;
                    Some(Self::HalfPair(utf16(&bytes)))
                }
            },
            b'-' | b'0'..=b'9' => Some(Self::Number(json)),
            _ => None,
        }
    }
}

/// A JSON string in which each unpaired surrogate is encoded as if it were a character.
struct Wtf8(Vec<u8>);

impl<'de> Deserialize<'de> for Wtf8 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Wtf8;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Wtf8, E> {
                Ok(Wtf8(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// Converts UTF-8 that may contain unpaired surrogates to UTF-16. <https://wtf-8.codeberg.page>
fn utf16(bytes: &[u8]) -> Vec<u16> {
    let mut units = Vec::with_capacity(bytes.len());
    let mut bytes = bytes.iter().copied();
    while let Some(first) = bytes.next() {
        let (following, bits) = match first {
            0..=0x7F => (0, first),
            0xC0..=0xDF => (1, first & 0x1F),
            0xE0..=0xEF => (2, first & 0x0F),
            _ => (3, first & 0x07),
        };
        let rest = bytes.by_ref().take(following);
        let code = rest.fold(u32::from(bits), |code, byte| code << 6 | u32::from(byte & 0x3F));
        match (char::from_u32(code), u16::try_from(code)) {
            (Some(character), _) => units.extend(character.encode_utf16(&mut [0; 2]).iter()),
            (None, Ok(half)) => units.push(half),
            (None, Err(_)) => units.push(0xFFFD),
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use highwater_engine::value::Value;

    use super::*;

    #[test]
    fn each_form_is_read_back() {
        for (json, expected) in [
            ("null", Scalar::Null),
            ("true", Scalar::Bool(true)),
            ("false", Scalar::Bool(false)),
            ("-12.50", Scalar::Number("-12.50")),
            (r#""a\n\"ä""#, Scalar::Text("a\n\"ä".to_owned())),
        ] {
            assert_eq!(Scalar::read(json), Some(expected), "{json}");
        }
        assert_eq!(Scalar::read("[1]"), None);
        assert_eq!(Scalar::read(r#"{"a":1}"#), None);
    }

    #[test]
    fn an_unpaired_surrogate_keeps_every_unit() {
        let units = vec![0x22, 0x5C, 0x0A, 0xE4, 0xD83D, 0x61, 0x20AC, 0xD83D, 0xDE00, 0xDE00];
        let mut json = String::new();
        Value::HalfPair(units.clone()).push_json(&mut json);
        assert_eq!(Scalar::read(&json), Some(Scalar::HalfPair(units)));
    }

    #[test]
    fn a_column_is_found_in_the_row_then_in_the_key_ignoring_case() {
        let sample = highwater_engine::handler::testing::Sample::new(1);
        let row = EventRow::read(&sample.events[0]).unwrap();
        assert!(row.get("name").unwrap().starts_with("\"line one"));
        assert_eq!(row.get("NAME"), row.get("name"));
        assert_eq!(row.get("ID"), Some("1"));
        assert_eq!(row.get("none"), None);
    }
}
