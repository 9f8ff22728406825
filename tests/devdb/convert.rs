//! CAST and CONVERT: values from one SQL type to another.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a table of conversions names the pairs that differ, not all 24 types"
)]

use super::{
    codepage::CodePage,
    dates::{self, DAY, DAYS_1900},
    types::{Column, Named, Reply, SqlError, Type, Value},
    variant,
};

/// Converts a value like `CONVERT(to, value, style)`; strings that are too long are cut.
///
/// `from` is the declared type of the value, if known.
///
/// # Errors
///
/// 241, 245, 8114, 8115, 8169: the value cannot be converted.
pub(crate) fn cast(
    value: &Value,
    from: Option<Type>,
    to: Type,
    style: i64,
) -> Result<Value, SqlError> {
    if *value == Value::Null {
        return Ok(Value::Null);
    }
    if to == Type::Named(Named::Variant) {
        return variant::encode(value, from);
    }
    if let (Some(Type::Named(Named::Variant)), Value::Text(kept)) = (from, value) {
        let (ty, value) = variant::decode(kept).ok_or_else(|| unreadable(to))?;
        return cast(&value, Some(ty), to, style);
    }
    let (from, to) = (from.map(Type::base), to.base());
    if let Value::Text(text) = value
        && to.is_binary()
        && matches!(style, 1 | 2)
    {
        return cast(&Value::Bytes(hex_bytes(text, style)?), None, to, 0);
    }
    match to {
        Type::Bit => match value {
            Value::Text(text) if text.eq_ignore_ascii_case("true") => Ok(Value::Bool(true)),
            Value::Text(text) if text.eq_ignore_ascii_case("false") => Ok(Value::Bool(false)),
            other => Ok(Value::Bool(integer(other, to)? != 0)),
        },
        Type::TinyInt => ranged(value, to, 0, u8::MAX.into()),
        Type::SmallInt => ranged(value, to, i16::MIN.into(), i16::MAX.into()),
        Type::Int => ranged(value, to, i32::MIN.into(), i32::MAX.into()),
        Type::BigInt => ranged(value, to, i64::MIN, i64::MAX),
        Type::Float => float(value, to).map(Value::Float),
        Type::Real => float(value, to).map(|number| Value::Float(single(number).into())),
        Type::Decimal(precision, scale) => decimal(value, precision, scale),
        Type::Money => decimal(value, 19, 4),
        Type::SmallMoney => decimal(value, 10, 4),
        Type::NVarChar(length) if is_wide_bytes(value, from, style) => {
            Ok(of_utf16(value, length.map_or(usize::MAX, |length| usize::from(length) * 2)))
        }
        Type::NVarChar(length) | Type::VarChar(length) => {
            Ok(Value::Text(fitted(value, from, to, style, length)?))
        }
        Type::NChar(length) | Type::Char(length) => {
            let mut text = fitted(value, from, to, style, Some(length))?;
            let missing = usize::from(length).saturating_sub(text.encode_utf16().count());
            text.extend(std::iter::repeat_n(' ', missing));
            Ok(Value::Text(text))
        }
        Type::VarBinary(length) => {
            let mut bytes = binary(value, from)?;
            bytes.truncate(length.map_or(usize::MAX, usize::from));
            Ok(Value::Bytes(bytes))
        }
        Type::Binary(length) => fixed_binary(value, from, length),
        Type::RowVersion => fixed_binary(value, from, 8),
        Type::Guid => guid(value),
        Type::Date
        | Type::Time(_)
        | Type::SmallDateTime
        | Type::DateTime
        | Type::DateTime2(_)
        | Type::DateTimeOffset(_) => temporal(value, from, to),
        // None of these is the base of another type.
        Type::Named(_) => Err(not_allowed(to)),
    }
}

/// Converts a value for a column, where nothing may be cut.
///
/// # Errors
///
/// As [`cast`], and 2628 for a string or binary value that is too long.
pub(crate) fn assign(
    value: &Value,
    from: Option<Type>,
    to: Type,
    column: &str,
) -> Result<Value, SqlError> {
    let converted = cast(value, from, to, 0)?;
    let was_cut = match (value, &converted) {
        (Value::Text(before), Value::Text(after)) if to != Type::Named(Named::Variant) => {
            before.trim_end().len() > after.trim_end().len()
        }
        (Value::Bytes(before), Value::Bytes(after)) => before.len() > after.len(),
        (Value::Int(_), Value::Text(after)) if after == "*" => return Err(overflow(to)),
        _ => false,
    };
    if was_cut {
        let text = format!("String or binary data would be truncated in column '{column}'.");
        return Err(SqlError::new(2628, 16, text));
    }
    Ok(converted)
}

/// Text from UTF-16 bytes, with U+FFFD for an unpaired surrogate.
pub(crate) fn wide_text(bytes: &[u8]) -> String {
    let (units, _) = bytes.as_chunks::<2>();
    let units: Vec<u16> = units.iter().copied().map(u16::from_le_bytes).collect();
    String::from_utf16_lossy(&units)
}

/// Whether bytes are treated as UTF-16, and not as the digits that a style asks for.
fn is_wide_bytes(value: &Value, from: Option<Type>, style: i64) -> bool {
    matches!(value, Value::Bytes(_)) && (style == 0 || from.is_some_and(Type::is_wide))
}

/// Bytes as UTF-16 text, cut; text with an unpaired surrogate stays bytes.
fn of_utf16(value: &Value, length: usize) -> Value {
    let Value::Bytes(bytes) = value else { return value.clone() };
    let bytes = bytes.get(..length).unwrap_or(bytes);
    let (units, _) = bytes.as_chunks::<2>();
    let units: Vec<u16> = units.iter().copied().map(u16::from_le_bytes).collect();
    String::from_utf16(&units).map_or_else(|_half_pair| Value::Bytes(bytes.into()), Value::Text)
}

/// Text of a decimal: `-12.50`.
pub(crate) fn decimal_text(number: i128, scale: u8) -> String {
    let scale = usize::from(scale);
    let digits = format!("{:0>width$}", number.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if number < 0 { "-" } else { "" };
    let point = if scale == 0 { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}")
}

/// Reads a decimal; exponents are not supported.
pub(crate) fn parse_decimal(text: &str) -> Option<(i128, u8)> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let number = format!("{whole}{fraction}").parse().ok()?;
    Some((number, u8::try_from(fraction.len()).ok()?))
}

/// Text of a GUID, in capitals.
pub(crate) fn guid_text(guid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in guid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&hex(&[*byte]));
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from_digit(n.into(), 16).unwrap_or('0').to_ascii_uppercase();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Reads a GUID, with or without braces.
pub(crate) fn parse_guid(text: &str) -> Option<[u8; 16]> {
    let text = text.trim().trim_start_matches('{').trim_end_matches('}').replace('-', "");
    if text.len() != 32 {
        return None;
    }
    u128::from_str_radix(&text, 16).ok().map(u128::to_be_bytes)
}

fn ranged(value: &Value, to: Type, low: i64, high: i64) -> Result<Value, SqlError> {
    let number = integer(value, to)?;
    if number < low.into() || number > high.into() {
        return Err(overflow(to));
    }
    i64::try_from(number).map(Value::Int).map_err(|_error| overflow(to))
}

fn integer(value: &Value, to: Type) -> Result<i128, SqlError> {
    match value {
        Value::Bool(bit) => Ok(i128::from(*bit)),
        Value::Int(number) => Ok(i128::from(*number)),
        Value::Float(number) => {
            format!("{:.0}", number.trunc()).parse().map_err(|_error| overflow(to))
        }
        Value::Decimal(number, scale) => Ok(number / 10_i128.pow((*scale).into())),
        Value::Bytes(bytes) => {
            let tail = bytes.iter().rev().take(8).rev();
            let number = tail.fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
            Ok(i128::from(number.cast_signed()))
        }
        Value::Text(text) if text.trim().is_empty() => Ok(0),
        Value::Text(text) => text.trim().parse().map_err(|_error| {
            let text =
                format!("Conversion failed when converting the value '{text}' to data type {to}.");
            SqlError::new(245, 16, text)
        }),
        Value::Null
        | Value::Guid(_)
        | Value::Date(_)
        | Value::Time(_)
        | Value::DateTime2(..)
        | Value::DateTimeOffset(..) => Err(not_allowed(to)),
    }
}

fn float(value: &Value, to: Type) -> Result<f64, SqlError> {
    let text = match value {
        Value::Float(number) => return Ok(*number),
        Value::Decimal(number, scale) => decimal_text(*number, *scale),
        Value::Text(text) => text.trim().to_owned(),
        other => integer(other, to)?.to_string(),
    };
    text.parse().map_err(|_error| unreadable(to))
}

/// The nearest number that a `real` can hold.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "that is what is asked"
)]
fn single(number: f64) -> f32 {
    number as f32
}

fn decimal(value: &Value, precision: u8, scale: u8) -> Result<Value, SqlError> {
    let to = Type::Decimal(precision, scale);
    let (number, from) = match value {
        Value::Decimal(number, from) => (*number, *from),
        Value::Float(number) => {
            let text = format!("{number:.digits$}", digits = usize::from(scale));
            parse_decimal(&text).ok_or_else(|| overflow(to))?
        }
        Value::Text(text) => parse_decimal(text).ok_or_else(|| unreadable(to))?,
        other => (integer(other, to)?, 0),
    };
    let number = rescale(number, from, scale).ok_or_else(|| overflow(to))?;
    if number.unsigned_abs() >= 10_u128.pow(precision.into()) {
        return Err(overflow(to));
    }
    Ok(Value::Decimal(number, scale))
}

/// Rescales a number, rounding half away from zero.
fn rescale(number: i128, from: u8, to: u8) -> Option<i128> {
    if to >= from {
        return number.checked_mul(10_i128.checked_pow((to - from).into())?);
    }
    let unit = 10_i128.checked_pow((from - to).into())?;
    let half = unit / 2;
    Some(if number < 0 { (number - half) / unit } else { (number + half) / unit })
}

/// The style of `CONVERT` that writes binary values as `0x…`. It leaves other types as they are.
const HEXADECIMAL: i64 = 1;

impl Reply {
    /// Returns the rows of a result set as clients show them: binary values in hexadecimal, `NULL` for no value.
    pub fn texts(&self) -> Vec<Vec<String>> {
        let Self::Rows { columns, rows, .. } = self else { return Vec::new() };
        let shown = |(value, column): (&Value, &Column)| match value {
            Value::Null => "NULL".to_owned(),
            value => text(value, Some(column.ty), HEXADECIMAL),
        };
        rows.iter().map(|row| row.iter().zip(columns).map(shown).collect()).collect()
    }
}

fn text(value: &Value, from: Option<Type>, style: i64) -> String {
    let scale = match from {
        Some(Type::DateTime2(scale) | Type::DateTimeOffset(scale) | Type::Time(scale)) => scale,
        Some(Type::DateTime) => 3,
        Some(Type::SmallDateTime) => 0,
        _ => 7,
    };
    match value {
        Value::Null => String::new(),
        Value::Bool(bit) => i32::from(*bit).to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Decimal(number, scale) => decimal_text(*number, *scale),
        Value::Text(text) => text.clone(),
        Value::Bytes(bytes) if matches!(style, 1 | 2) => {
            format!("{}{}", if style == 1 { "0x" } else { "" }, hex(bytes))
        }
        Value::Bytes(bytes) if from.is_some_and(Type::is_wide) => wide_text(bytes),
        Value::Bytes(bytes) => CodePage::default().decode(bytes),
        Value::Guid(guid) => guid_text(guid),
        Value::Date(days) => dates::date_text(*days),
        Value::Time(ticks) => dates::time_text(*ticks, scale),
        Value::DateTime2(days, ticks) if matches!(style, 126 | 127) => {
            dates::iso_text((*days, *ticks), scale)
        }
        Value::DateTime2(days, ticks) => {
            format!("{} {}", dates::date_text(*days), dates::time_text(*ticks, scale))
        }
        Value::DateTimeOffset(days, ticks, _) if style == 127 => {
            format!("{}Z", dates::iso_text((*days, *ticks), scale))
        }
        Value::DateTimeOffset(days, ticks, offset) => {
            let ticks_away = i128::from(*offset) * i128::from(DAY / 1440);
            let (days, ticks) =
                dates::shift((*days, *ticks), ticks_away).unwrap_or((*days, *ticks));
            let offset = dates::offset_text(*offset);
            if style == 126 {
                return format!("{}{offset}", dates::iso_text((days, ticks), scale));
            }
            format!("{} {} {offset}", dates::date_text(days), dates::time_text(ticks, scale))
        }
    }
}

/// The text of a value in this many characters. Strings and dates are cut; a number becomes empty.
/// <https://learn.microsoft.com/sql/t-sql/functions/cast-and-convert-transact-sql#truncate-and-round-results>
fn fitted(
    value: &Value,
    from: Option<Type>,
    to: Type,
    style: i64,
    length: Option<u16>,
) -> Result<String, SqlError> {
    let text = text(value, from, style);
    let fits = length.is_none_or(|length| text.encode_utf16().count() <= length.into());
    match value {
        _ if fits => Ok(text),
        Value::Int(_) if to.is_coded() && from != Some(Type::BigInt) => Ok("*".to_owned()),
        Value::Int(_) | Value::Decimal(..) | Value::Float(_) => Err(overflow(to)),
        Value::Guid(_) => {
            let text = "Insufficient result space to convert uniqueidentifier value to char.";
            Err(SqlError::new(8170, 16, text))
        }
        Value::Null
        | Value::Bool(_)
        | Value::Text(_)
        | Value::Bytes(_)
        | Value::Date(_)
        | Value::Time(_)
        | Value::DateTime2(..)
        | Value::DateTimeOffset(..) => Ok(cut(&text, length)),
    }
}

fn cut(text: &str, length: Option<u16>) -> String {
    let Some(length) = length.map(usize::from) else {
        return text.into();
    };
    let mut units = 0;
    text.chars()
        .take_while(|c| {
            units += c.len_utf16();
            units <= length
        })
        .collect()
}

/// Bytes as SQL Server lays them out; numbers are big-endian in the width of their type.
fn binary(value: &Value, from: Option<Type>) -> Result<Vec<u8>, SqlError> {
    match value {
        Value::Bytes(bytes) => Ok(bytes.clone()),
        Value::Text(text) if from.is_some_and(Type::is_coded) => {
            // Non-ASCII characters have different bytes in each code page.
            if !text.is_ascii() {
                return Err(SqlError::unsupported("A varchar beyond ASCII as binary"));
            }
            Ok(text.bytes().collect())
        }
        Value::Text(text) => Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        Value::Guid(guid) => Ok(guid.to_vec()),
        Value::Bool(bit) => Ok(vec![u8::from(*bit)]),
        Value::Int(number) => {
            let width = from.map_or(8, |from| usize::try_from(from.facts().length).unwrap_or(8));
            let bytes = number.to_be_bytes();
            Ok(bytes.get(8 - width.clamp(1, 8)..).unwrap_or(&bytes).to_vec())
        }
        Value::Null
        | Value::Float(_)
        | Value::Decimal(..)
        | Value::Date(_)
        | Value::Time(_)
        | Value::DateTime2(..)
        | Value::DateTimeOffset(..) => Err(not_allowed(Type::VarBinary(None))),
    }
}

/// Bytes of hex digits, after `0x` in style 1.
fn hex_bytes(text: &str, style: i64) -> Result<Vec<u8>, SqlError> {
    let digits = if style == 1 { text.strip_prefix("0x") } else { Some(text) };
    let bytes = digits.filter(|digits| digits.len() % 2 == 0).and_then(|digits| {
        let pairs = (0..digits.len()).step_by(2).map(|at| digits.get(at..at + 2));
        pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
    });
    let text = "Error converting data type nvarchar to varbinary.";
    bytes.ok_or_else(|| SqlError::new(8114, 16, text))
}

/// Numbers keep their low bytes at the right, strings their first bytes at the left.
fn fixed_binary(value: &Value, from: Option<Type>, length: u16) -> Result<Value, SqlError> {
    let mut bytes = binary(value, from)?;
    let length = usize::from(length);
    if matches!(value, Value::Int(_) | Value::Bool(_)) {
        let missing = length.saturating_sub(bytes.len());
        bytes.splice(0..0, std::iter::repeat_n(0, missing));
        bytes.drain(..bytes.len().saturating_sub(length));
    }
    bytes.resize(length, 0);
    Ok(Value::Bytes(bytes))
}

fn guid(value: &Value) -> Result<Value, SqlError> {
    let guid = match value {
        Value::Guid(guid) => Some(*guid),
        Value::Text(text) => parse_guid(text),
        Value::Bytes(bytes) => bytes.as_slice().try_into().ok(),
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Decimal(..)
        | Value::Date(_)
        | Value::Time(_)
        | Value::DateTime2(..)
        | Value::DateTimeOffset(..) => return Err(not_allowed(Type::Guid)),
    };
    let text = "Conversion failed when converting from a character string to uniqueidentifier.";
    guid.map(Value::Guid).ok_or_else(|| SqlError::new(8169, 16, text))
}

fn temporal(value: &Value, from: Option<Type>, to: Type) -> Result<Value, SqlError> {
    let text = "Conversion failed when converting date and/or time from character string.";
    let unreadable = || SqlError::new(241, 16, text);
    // Local point in time and offset.
    let (stamp, offset) = match value {
        Value::Date(days) => ((*days, 0), 0),
        Value::Time(ticks) => ((DAYS_1900, *ticks), 0),
        Value::DateTime2(days, ticks) if from == Some(Type::DateTime) && to != Type::DateTime => {
            (dates::exact_datetime((*days, *ticks)), 0)
        }
        Value::DateTime2(days, ticks) => ((*days, *ticks), 0),
        Value::DateTimeOffset(days, ticks, offset) => {
            let away = i128::from(*offset) * i128::from(DAY / 1440);
            (dates::shift((*days, *ticks), away).ok_or_else(|| overflow(to))?, *offset)
        }
        Value::Text(text) => {
            if let (Type::Time(_), Some(ticks)) = (to, dates::parse_time(text)) {
                ((DAYS_1900, ticks), 0)
            } else {
                let parsed = dates::parse(text).ok_or_else(unreadable)?;
                (parsed.stamp, parsed.offset.unwrap_or(0))
            }
        }
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Decimal(..)
        | Value::Bytes(_)
        | Value::Guid(_) => return Err(not_allowed(to)),
    };
    let rounded = |scale| dates::round(stamp, scale);
    Ok(match to {
        Type::Date => Value::Date(stamp.0),
        Type::Time(scale) => Value::Time(rounded(scale).1),
        Type::DateTime => {
            let (days, ticks) = dates::round_to_datetime(stamp);
            Value::DateTime2(days, ticks)
        }
        Type::SmallDateTime => {
            let (days, ticks) = stamp;
            let minute = DAY / 1440;
            let ticks = (ticks + minute / 2) / minute * minute;
            Value::DateTime2(days + u32::from(ticks >= DAY), ticks % DAY)
        }
        Type::DateTimeOffset(scale) => {
            let away = -i128::from(offset) * i128::from(DAY / 1440);
            let (days, ticks) = dates::shift(rounded(scale), away).ok_or_else(|| overflow(to))?;
            Value::DateTimeOffset(days, ticks, offset)
        }
        other => {
            let scale = if let Type::DateTime2(scale) = other { scale } else { 7 };
            let (days, ticks) = rounded(scale);
            Value::DateTime2(days, ticks)
        }
    })
}

fn overflow(to: Type) -> SqlError {
    let text = format!("Arithmetic overflow error converting expression to data type {to}.");
    SqlError::new(8115, 16, text)
}

fn unreadable(to: Type) -> SqlError {
    SqlError::new(8114, 16, format!("Error converting data type nvarchar to {to}."))
}

fn not_allowed(to: Type) -> SqlError {
    let text = format!("Explicit conversion to data type {to} is not allowed.");
    SqlError::new(529, 16, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(value: &Value, from: Type, style: i64) -> String {
        match cast(value, Some(from), Type::NVarChar(Some(50)), style).unwrap() {
            Value::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    fn of(text: &str, to: Type) -> Value {
        cast(&Value::Text(text.into()), None, to, 0).unwrap()
    }

    #[test]
    fn hex_digits_become_bytes_by_their_style() {
        let bytes = |text: &str, style| {
            cast(&Value::Text(text.to_owned()), None, Type::VarBinary(Some(2)), style)
        };
        assert_eq!(bytes("0x00ff", 1), Ok(Value::Bytes(vec![0, 255])));
        assert_eq!(bytes("00FF01", 2), Ok(Value::Bytes(vec![0, 255])));
        for (text, style) in [("00ff", 1), ("0x0", 1), ("0x00", 2), ("xx", 2)] {
            assert_eq!(bytes(text, style).unwrap_err().number, 8114, "{text}");
        }
    }

    #[test]
    fn cursor_text_round_trips() {
        let cases = [
            ("2026-01-01T10:00:00.1234567", Type::DateTime2(7), 126),
            ("2026-01-01T10:00:00.12", Type::DateTime2(2), 126),
            ("2026-01-01T10:00:00", Type::DateTime2(7), 126),
            ("2026-01-01T10:00:00.003", Type::DateTime, 126),
            ("2026-01-01T10:00:00", Type::SmallDateTime, 126),
            ("2026-01-01", Type::Date, 126),
            ("2026-01-01T10:00:00.1234567Z", Type::DateTimeOffset(7), 127),
            ("-12.50", Type::Decimal(9, 2), 0),
            ("0123456789AB", Type::VarChar(Some(20)), 0),
        ];
        for (text, ty, style) in cases {
            assert_eq!(text_of(&of(text, ty), ty, style), text, "{ty}");
        }
    }

    #[test]
    fn bigint_and_rowversion_conversions_are_inverse() {
        for number in [0, 1, 2001, i64::MAX] {
            let bytes = cast(&Value::Int(number), Some(Type::BigInt), Type::Binary(8), 0).unwrap();
            assert_eq!(bytes, Value::Bytes(number.to_be_bytes().to_vec()));
            assert_eq!(
                cast(&bytes, Some(Type::Binary(8)), Type::BigInt, 0).unwrap(),
                Value::Int(number)
            );
        }
    }

    #[test]
    fn an_offset_keeps_the_instant() {
        let value = of("2026-01-01T00:30:00+05:30", Type::DateTimeOffset(7));
        let ty = Type::DateTimeOffset(7);
        assert_eq!(text_of(&value, ty, 127), "2025-12-31T19:00:00Z");
        assert_eq!(text_of(&value, ty, 126), "2026-01-01T00:30:00+05:30");
    }

    #[test]
    fn a_datetime_is_not_equal_to_its_own_text_as_datetime2() {
        let value = of("2026-01-01T00:00:00.003", Type::DateTime);
        let wider = cast(&value, Some(Type::DateTime), Type::DateTime2(7), 0).unwrap();
        assert_eq!(text_of(&wider, Type::DateTime2(7), 126), "2026-01-01T00:00:00.0033333");
    }

    #[test]
    fn errors_have_the_numbers_of_sql_server() {
        let number = |value: Value, to| cast(&value, None, to, 0).unwrap_err().number;
        assert_eq!(number(Value::Text("x".into()), Type::Int), 245);
        assert_eq!(number(Value::Text("x".into()), Type::Float), 8114);
        assert_eq!(number(Value::Text("x".into()), Type::DateTime2(7)), 241);
        assert_eq!(number(Value::Text("x".into()), Type::Guid), 8169);
        assert_eq!(number(Value::Int(300), Type::TinyInt), 8115);
        assert_eq!(number(Value::Int(100), Type::Decimal(3, 1)), 8115);
        let long = assign(&Value::Text("abc".into()), None, Type::NVarChar(Some(2)), "c");
        assert_eq!(long.unwrap_err().number, 2628);
        assert_eq!(number(Value::Int(123), Type::NVarChar(Some(2))), 8115);
        assert_eq!(number(Value::Guid([0; 16]), Type::Char(9)), 8170);
        let narrow = Type::VarChar(Some(2));
        let starred = cast(&Value::Int(123), Some(Type::Int), narrow, 0);
        assert_eq!(starred, Ok(Value::Text("*".into())));
        assert_eq!(assign(&Value::Int(123), None, narrow, "c").unwrap_err().number, 8115);
    }
}
