//! Values of SQL columns in a neutral form, and the JSON form of each.
//!
//! Every SQL Server type has one written-down JSON form that loses nothing: integers are JSON
//! numbers, `float` and `real` are the shortest number that reads back the same, `bit` is a JSON
//! boolean, binary is base64, and everything else (decimal, money, dates with all seven digits,
//! uniqueidentifier, xml, strings) is a JSON string.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// One value of one column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// SQL `NULL`.
    Null,
    /// A `bit`.
    Bool(bool),
    /// Any integer type up to `bigint`.
    Int(i64),
    /// A `real`.
    Real(f32),
    /// A `float`.
    Float(f64),
    /// A string, or a type whose lossless form is text.
    Text(String),
    /// Binary data.
    Bytes(Vec<u8>),
}

impl Value {
    /// Returns the JSON form of the value.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            // Through text, so that 0.1 does not become 0.10000000149011612.
            Self::Real(value) => value
                .to_string()
                .parse::<f64>()
                .map_or(serde_json::Value::Null, serde_json::Value::from),
            Self::Float(value) => (*value).into(),
            Self::Text(value) => value.as_str().into(),
            Self::Bytes(value) => STANDARD.encode(value).into(),
        }
    }

    /// Whether the value is SQL `NULL`.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns about how many bytes the value takes in memory, for limits on batches.
    pub fn size(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) => 1,
            Self::Int(_) | Self::Real(_) | Self::Float(_) => 8,
            Self::Text(value) => value.len(),
            Self::Bytes(value) => value.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_its_json_form() {
        for (value, json) in [
            (Value::Null, "null"),
            (Value::Bool(true), "true"),
            (Value::Int(i64::MIN), "-9223372036854775808"),
            (Value::Real(0.1), "0.1"),
            (Value::Float(5e-324), "5e-324"),
            (Value::Text("12.3400".to_owned()), "\"12.3400\""),
            (Value::Bytes(vec![0, 255]), "\"AP8=\""),
        ] {
            assert_eq!(value.to_json().to_string(), json);
        }
    }
}
