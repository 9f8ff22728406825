//! Values of SQL columns in a neutral form, and the JSON form of each.
//!
//! Every SQL Server type has one documented, lossless JSON form (`docs/reference/types.md`):
//! integers are JSON numbers, `float` and `real` are the shortest number that reads back the same,
//! `bit` is a JSON boolean, binary is base64, and everything else (decimal, money, dates with all
//! seven digits, uniqueidentifier, xml, strings) is a JSON string.

mod json;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub use self::json::{
    push_bool, push_bytes, push_float, push_int, push_null, push_real, push_text, push_utf16,
};

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
    /// Text with an unpaired surrogate, which SQL Server allows and UTF-8 does not; as UTF-16.
    HalfPair(Vec<u16>),
    /// Binary data.
    Bytes(Vec<u8>),
}

impl Value {
    /// Returns text from UTF-16 bytes in little-endian order.
    pub fn of_utf16(bytes: &[u8]) -> Self {
        let (units, _) = bytes.as_chunks::<2>();
        let units: Vec<u16> = units.iter().copied().map(u16::from_le_bytes).collect();
        String::from_utf16(&units).map_or_else(|_half_pair| Self::HalfPair(units), Self::Text)
    }

    /// Returns the JSON form of the value. For [`Value::HalfPair`] it is lossy.
    ///
    /// No JSON value in memory can contain an unpaired surrogate: it becomes U+FFFD. Delivered JSON is written by
    /// [`Self::push_json`] instead, which preserves it.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            // Through text, so that 0.1 does not become 0.10000000149011612.
            Self::Real(value) => number(value.to_string().parse().unwrap_or(f64::NAN)),
            Self::Float(value) => number(*value),
            Self::Text(value) => value.as_str().into(),
            Self::HalfPair(units) => String::from_utf16_lossy(units).into(),
            Self::Bytes(value) => STANDARD.encode(value).into(),
        }
    }

    /// Whether the value is SQL `NULL`.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Appends the JSON form of the value to `json`.
    pub fn push_json(&self, json: &mut String) {
        match self {
            Self::Null => push_null(json),
            Self::Bool(value) => push_bool(json, *value),
            Self::Int(value) => push_int(json, *value),
            Self::Real(value) => push_real(json, *value),
            Self::Float(value) => push_float(json, *value),
            Self::Text(value) => push_text(json, value),
            Self::HalfPair(units) => json::push_half_pairs(json, units.iter().copied()),
            Self::Bytes(value) => push_bytes(json, value),
        }
    }
}

/// A number, or the name of a non-finite one: no client can store those, but a restored file may contain them.
fn number(value: f64) -> serde_json::Value {
    let name = match value {
        value if value.is_nan() => "NaN",
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        value => return value.into(),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the number that a reader of the JSON text gets.
    fn read_back(value: &Value) -> f64 {
        let text = value.to_json().to_string();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json.as_f64().unwrap_or_else(|| panic!("{text} is no number"))
    }

    #[test]
    fn the_extremes_of_the_floats_read_back_bit_for_bit() {
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

        // A key that is off by one bit repeats or skips its row.
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
    fn an_unpaired_surrogate_is_escaped_and_valid_text_is_unchanged() {
        let bytes =
            |units: &[u16]| units.iter().flat_map(|unit| unit.to_le_bytes()).collect::<Vec<_>>();
        let valid = Value::of_utf16(&bytes(&[0x61, 0xD83D, 0xDE00]));
        assert_eq!(valid, Value::Text("a😀".to_owned()));
        let half = Value::of_utf16(&bytes(&[0x22, 0x5C, 0x0A, 0xE4, 0xD83D, 0x61, 0xDE00]));
        let mut json = String::new();
        half.push_json(&mut json);
        assert_eq!(json, r#""\"\\\u000aä\ud83da\ude00""#);
    }

    #[test]
    fn non_finite_numbers_are_named_rather_than_null() {
        for (value, name) in
            [(f64::NAN, "NaN"), (f64::INFINITY, "Infinity"), (f64::NEG_INFINITY, "-Infinity")]
        {
            assert_eq!(Value::Float(value).to_json(), name);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::as_conversions,
                reason = "no number"
            )]
            let real = value as f32;
            assert_eq!(Value::Real(real).to_json(), name);
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
            let mut written = String::new();
            value.push_json(&mut written);
            assert_eq!(written, json);
        }
    }
}
