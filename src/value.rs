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
    use proptest::prelude::*;

    use super::*;

    /// What a reader of the JSON text makes of a number.
    fn read_back(value: &Value) -> f64 {
        let text = value.to_json().to_string();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json.as_f64().unwrap_or_else(|| panic!("{text} is no number"))
    }

    #[test]
    fn the_ends_of_the_floats_read_back_bit_for_bit() {
        for number in [0.0, -0.0, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, -5e-324] {
            assert_eq!(read_back(&Value::Float(number)).to_bits(), number.to_bits());
        }
        for number in [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, 16_777_217.0] {
            let json = Value::Real(number).to_json().to_string();
            assert_eq!(json.parse::<f32>().unwrap().to_bits(), number.to_bits(), "{json}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        // A key that reads back one bit off repeats or skips its row.
        #[test]
        fn floats_read_back_bit_for_bit(bits: u64) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            prop_assert_eq!(read_back(&Value::Float(number)).to_bits(), bits);
        }

        #[test]
        fn reals_read_back_bit_for_bit(bits: u32) {
            let number = f32::from_bits(bits);
            prop_assume!(number.is_finite());
            let json = Value::Real(number).to_json().to_string();
            prop_assert_eq!(json.parse::<f32>().unwrap().to_bits(), bits, "{}", json);
        }
    }

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
