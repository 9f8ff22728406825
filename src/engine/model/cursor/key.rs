//! The key of a row, which is part of every event.
//!
//! # Reason
//!
//! A map would hash the names and store a copy of each for every row. Keys have few columns, and the rows of a batch
//! share their names.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;

/// Key columns and their values, in key order; a JSON object when serialised.
///
/// Two keys are equal if they have the same values under the same names, in any order.
#[derive(Clone, Default, Eq)]
pub struct KeyValues(Vec<(Arc<str>, Json)>);

impl KeyValues {
    /// Returns a key without columns.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a key without columns, with room for this many.
    pub fn with_capacity(columns: usize) -> Self {
        Self(Vec::with_capacity(columns))
    }

    /// Sets the value of a column; a new column is added at the end.
    pub fn insert(&mut self, name: impl Into<Arc<str>>, value: Json) {
        let name = name.into();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    /// Returns the value of a column.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.0.iter().find(|(known, _)| **known == *name).map(|(_, value)| value)
    }

    /// Returns names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns how many columns it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no columns.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns it as a JSON object.
    pub fn to_json(&self) -> Json {
        Json::Object(self.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect())
    }
}

impl Index<&str> for KeyValues {
    type Output = Json;

    /// Returns the value of a column, or null if there is none, like a JSON object.
    fn index(&self, name: &str) -> &Json {
        self.get(name).unwrap_or(&Json::Null)
    }
}

impl PartialEq for KeyValues {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|(name, value)| other.get(name) == Some(value))
    }
}

impl<N: Into<Arc<str>>> FromIterator<(N, Json)> for KeyValues {
    fn from_iter<I: IntoIterator<Item = (N, Json)>>(columns: I) -> Self {
        let mut key = Self::new();
        for (name, value) in columns {
            key.insert(name, value);
        }
        key
    }
}

impl fmt::Debug for KeyValues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for KeyValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for KeyValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Columns;

        impl<'de> Visitor<'de> for Columns {
            type Value = KeyValues;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut columns: A) -> Result<KeyValues, A::Error> {
                let mut key = KeyValues::new();
                while let Some((name, value)) = columns.next_entry::<String, Json>()? {
                    key.insert(name, value);
                }
                Ok(key)
            }
        }

        deserializer.deserialize_map(Columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_json_is_an_object_in_key_order() {
        let text = r#"{"b":1,"a":"x"}"#;
        let key: KeyValues = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&key).unwrap(), text);
        assert_eq!(key.to_json().to_string(), text);
        assert_eq!(format!("{key:?}"), r#"{"b": Number(1), "a": String("x")}"#);
        let wrong = serde_json::from_str::<KeyValues>("[1]").unwrap_err().to_string();
        assert!(wrong.starts_with("invalid type: sequence, expected a map"), "{wrong}");
    }

    #[test]
    fn a_name_has_one_value_and_order_does_not_distinguish_keys() {
        let key = |text: &str| serde_json::from_str::<KeyValues>(text).unwrap();
        assert_eq!(key(r#"{"a":1,"b":2,"a":3}"#).to_json(), serde_json::json!({"a": 3, "b": 2}));
        assert_eq!(key(r#"{"a":1,"b":2}"#), key(r#"{"b":2,"a":1}"#));
        for other in
            [r#"{"a":1}"#, r#"{"a":1,"b":3}"#, r#"{"a":1,"c":2}"#, r#"{"a":1,"b":2,"c":3}"#]
        {
            assert_ne!(key(r#"{"a":1,"b":2}"#), key(other), "{other}");
        }
        assert!(key("{}").is_empty() && key("{}").get("a").is_none());
        assert_eq!((&key(r#"{"a":1}"#)["a"], &key("{}")["a"]), (&Json::from(1), &Json::Null));
    }
}
