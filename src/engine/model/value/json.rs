//! Values as JSON text, appended to a buffer. The output is the same as that of `serde_json`.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Writes `null`.
pub fn push_null(json: &mut String) {
    json.push_str("null");
}

/// Writes `true` or `false`.
pub fn push_bool(json: &mut String, value: bool) {
    json.push_str(if value { "true" } else { "false" });
}

/// Writes a whole number.
pub fn push_int(json: &mut String, value: i64) {
    json.push_str(itoa::Buffer::new().format(value));
}

/// Writes a `real` as the shortest number that reads back the same.
pub fn push_real(json: &mut String, value: f32) {
    // Through text, so that 0.1 does not become 0.10000000149011612.
    push_float(json, value.to_string().parse().unwrap_or(f64::NAN));
}

/// Writes a `float` as the shortest number that reads back the same.
///
/// A non-finite number is written as its name: no client can store those, but a restored file may contain them.
pub fn push_float(json: &mut String, value: f64) {
    match serde_json::Number::from_f64(value) {
        // Writing to a string cannot fail.
        Some(number) => write!(json, "{number}").unwrap_or_default(),
        None if value.is_nan() => json.push_str("\"NaN\""),
        None if value > 0.0 => json.push_str("\"Infinity\""),
        None => json.push_str("\"-Infinity\""),
    }
}

/// Writes binary data as base64.
pub fn push_bytes(json: &mut String, bytes: &[u8]) {
    json.push('"');
    STANDARD.encode_string(bytes, json);
    json.push('"');
}

/// Writes text.
pub fn push_text(json: &mut String, text: &str) {
    json.push('"');
    let mut rest = text;
    // The escaped character is one byte, so the text on both sides of it stays valid UTF-8.
    while let Some((plain, byte, behind)) = next_escaped(rest) {
        json.push_str(plain);
        push_escaped(json, byte);
        rest = behind;
    }
    json.push_str(rest);
    json.push('"');
}

/// Writes text from UTF-16 bytes in little-endian order.
///
/// SQL Server allows an unpaired surrogate, UTF-8 does not: such text is written like `JSON.stringify` does, with
/// each unpaired surrogate as an escape.
pub fn push_utf16(json: &mut String, bytes: &[u8]) {
    let begin = json.len();
    let (units, _) = bytes.as_chunks::<2>();
    json.reserve(units.len() + 2);
    json.push('"');
    // Most text starts with ASCII, and much is nothing else.
    let is_plain =
        |unit: &[u8; 2]| matches!(unit, [byte, 0] if byte.is_ascii() && !is_escaped(*byte));
    let plain = units.iter().take_while(|unit| is_plain(unit)).count();
    let (plain, rest) = units.split_at(plain);
    json.extend(plain.iter().map(|[byte, _]| char::from(*byte)));
    for unit in char::decode_utf16(rest.iter().copied().map(u16::from_le_bytes)) {
        match unit {
            Ok(character) => push_char(json, character),
            Err(_half) => {
                json.truncate(begin);
                push_half_pairs(json, units.iter().copied().map(u16::from_le_bytes));
                return;
            }
        }
    }
    json.push('"');
}

fn push_char(json: &mut String, character: char) {
    match u8::try_from(character) {
        Ok(byte) if is_escaped(byte) => push_escaped(json, byte),
        _ => json.push(character),
    }
}

/// Writes UTF-16 text, escaping each unpaired surrogate and each control character.
pub(super) fn push_half_pairs(json: &mut String, units: impl Iterator<Item = u16>) {
    json.push('"');
    for unit in char::decode_utf16(units) {
        match unit {
            Ok(character @ ('"' | '\\')) => json.extend(['\\', character]),
            Ok(character) if character >= ' ' => json.push(character),
            Ok(control) => push_unit(json, u32::from(control)),
            Err(half) => push_unit(json, u32::from(half.unpaired_surrogate())),
        }
    }
    json.push('"');
}

/// Returns the text before the first byte to escape, that byte, and the text after it.
fn next_escaped(text: &str) -> Option<(&str, u8, &str)> {
    let at = text.bytes().position(is_escaped)?;
    let byte = *text.as_bytes().get(at)?;
    Some((text.get(..at)?, byte, text.get(at + 1..)?))
}

fn is_escaped(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

fn push_escaped(json: &mut String, byte: u8) {
    match byte {
        b'"' => json.push_str("\\\""),
        b'\\' => json.push_str("\\\\"),
        b'\n' => json.push_str("\\n"),
        b'\r' => json.push_str("\\r"),
        b'\t' => json.push_str("\\t"),
        0x08 => json.push_str("\\b"),
        0x0C => json.push_str("\\f"),
        _ => push_unit(json, u32::from(byte)),
    }
}

fn push_unit(json: &mut String, unit: u32) {
    // Writing to a string cannot fail.
    write!(json, "\\u{unit:04x}").unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut String)) -> String {
        let mut json = "before ".to_owned();
        write(&mut json);
        json.strip_prefix("before ").unwrap().to_owned()
    }

    fn utf16(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn every_character_of_one_byte_is_written_as_serde_does() {
        for byte in 0..=u8::MAX {
            let text = format!("a{}b{0}", char::from(byte));
            let expected = serde_json::to_string(&text).unwrap();
            assert_eq!(written(|json| push_text(json, &text)), expected);
            assert_eq!(written(|json| push_utf16(json, &utf16(&text))), expected);
        }
    }

    #[test]
    fn text_is_written_as_serde_does_with_an_escape_at_any_position() {
        for at in 0..150 {
            for odd in ["\"", "\\", "\n", "\u{1}", "\u{7f}", "ä", "€", "😀", ""] {
                let text = format!("{}{odd}{}", "x".repeat(at), "y".repeat(149 - at));
                let expected = serde_json::to_string(&text).unwrap();
                assert_eq!(written(|json| push_text(json, &text)), expected);
                assert_eq!(written(|json| push_utf16(json, &utf16(&text))), expected);
            }
        }
    }

    #[test]
    fn an_unpaired_surrogate_is_escaped_and_valid_text_is_unchanged() {
        let bytes: Vec<u8> = [0x22, 0x5C, 0x0A, 0xE4, 0xD83D, 0x61, 0xDE00_u16]
            .iter()
            .flat_map(|unit| unit.to_le_bytes())
            .collect();
        assert_eq!(written(|json| push_utf16(json, &bytes)), r#""\"\\\u000aä\ud83da\ude00""#);
    }

    #[test]
    fn non_finite_numbers_are_named_rather_than_null() {
        for (value, name) in [
            (f64::NAN, "\"NaN\""),
            (f64::INFINITY, "\"Infinity\""),
            (f64::NEG_INFINITY, "\"-Infinity\""),
        ] {
            assert_eq!(written(|json| push_float(json, value)), name);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::as_conversions,
                reason = "no number"
            )]
            let real = value as f32;
            assert_eq!(written(|json| push_real(json, real)), name);
        }
    }

    #[test]
    fn the_extremes_of_the_floats_read_back_bit_for_bit() {
        for number in [0.0, -0.0, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, -5e-324] {
            let json = written(|json| push_float(json, number));
            let back: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(back.as_f64().unwrap().to_bits(), number.to_bits(), "{json}");
        }
        for number in [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, 16_777_217.0] {
            let json = written(|json| push_real(json, number));
            assert_eq!(json.parse::<f32>().unwrap().to_bits(), number.to_bits(), "{json}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn text_is_written_as_serde_does(text: String) {
            let expected = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(&written(|json| push_text(json, &text)), &expected);
            prop_assert_eq!(written(|json| push_utf16(json, &utf16(&text))), expected);
        }

        #[test]
        fn numbers_and_bytes_are_written_as_serde_does(int: i64, bits: u64, bytes: Vec<u8>) {
            prop_assert_eq!(written(|json| push_int(json, int)), int.to_string());
            let float = f64::from_bits(bits);
            if float.is_finite() {
                let expected = serde_json::to_string(&float).unwrap();
                prop_assert_eq!(written(|json| push_float(json, float)), expected);
            }
            let expected = format!("\"{}\"", STANDARD.encode(&bytes));
            prop_assert_eq!(written(|json| push_bytes(json, &bytes)), expected);
        }

        // A key that reads back one bit off repeats or skips its row.
        #[test]
        fn reals_read_back_bit_for_bit(bits: u32) {
            let number = f32::from_bits(bits);
            prop_assume!(number.is_finite());
            let json = written(|json| push_real(json, number));
            prop_assert_eq!(json.parse::<f32>().unwrap().to_bits(), bits, "{}", json);
        }
    }
}
