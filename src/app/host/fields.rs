//! Reads fields of JSON without building the rest.
//!
//! The host adds parts of any size to an invocation, such as exceptions. A tree of values would need some 40 times the
//! memory of the text, so fields are found in the text, and only their own text is parsed.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::value::RawValue;

/// Calls `visit` for each field of a JSON object, in order.
///
/// # Errors
///
/// [`serde_json::Error`] if the text is not JSON, or not an object.
pub(super) fn each_field<'a>(
    json: &'a [u8],
    visit: impl FnMut(String, &'a RawValue),
) -> Result<(), serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    reader.deserialize_map(Fields(visit))?;
    reader.end()
}

struct Fields<F>(F);

impl<'a, F: FnMut(String, &'a RawValue)> Visitor<'a> for Fields<F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(mut self, mut fields: M) -> Result<(), M::Error> {
        while let Some((name, value)) = fields.next_entry::<String, &RawValue>()? {
            (self.0)(name, value);
        }
        Ok(())
    }
}

/// Returns a field of an object, the last one of that name; `None` also if the value is not an object.
pub(super) fn field<'a>(json: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let mut found = None;
    let is_read = each_field(json.get().as_bytes(), |of, value| {
        if of == name {
            found = Some(value);
        }
    });
    is_read.ok().and(found)
}

/// Returns a value if it has the form of `T`.
pub(super) fn parsed<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Option<T> {
    serde_json::from_str(json.get()).ok()
}

/// Whether a value is an object.
pub(super) fn is_object(json: &RawValue) -> bool {
    json.get().starts_with('{')
}
