//! The identity of a key in the names of files, rows and blobs.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::{KeyValues, parse_short_hex, short_hex, update_sized};

/// A hash of the key of a row: 32 hex digits, the same for all versions of the row.
///
/// Keys themselves may be long, secret, or not fit into a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; 32]);

impl KeyId {
    /// Derives the id of a key. The order of its columns makes no difference, as it makes none between keys.
    pub fn of(key: &KeyValues) -> Self {
        let mut columns: Vec<_> = key.iter().collect();
        columns.sort_unstable_by_key(|(name, _)| *name);
        let mut hash = Sha256::new();
        hash.update(b"key-1");
        for (name, value) in columns {
            update_sized(&mut hash, name.as_bytes());
            update_sized(&mut hash, value.to_string().as_bytes());
        }
        Self(short_hex(&hash.finalize().into()))
    }

    /// Reads an id; `None` if the text is not 32 hex digits in lower case.
    pub fn parse(text: &str) -> Option<Self> {
        parse_short_hex(text).map(Self)
    }

    /// Returns the 32 hex digits.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("KeyId").field(&self.as_str()).finish()
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for KeyId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom(format!("key id `{text}`, expected 32 hex digits in lower case"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(key: &str) -> KeyId {
        KeyId::of(&serde_json::from_str(key).unwrap())
    }

    #[test]
    fn equal_keys_have_one_id_and_others_have_other_ids() {
        let key = id(r#"{"a":1,"b":"x"}"#);
        assert_eq!(id(r#"{"b":"x","a":1}"#), key);
        for other in
            [r#"{"a":1}"#, r#"{"a":1,"b":"y"}"#, r#"{"a":"1","b":"x"}"#, r#"{"c":1,"b":"x"}"#]
        {
            assert_ne!(id(other), key, "{other}");
        }
        assert_eq!(KeyId::parse(key.as_str()), Some(key.clone()));
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<KeyId>(&json).unwrap(), key);
        for text in ["", "7", &"A".repeat(32), &"0".repeat(33)] {
            assert_eq!(KeyId::parse(text), None, "{text}");
        }
    }
}
