//! Converts values of the driver to [`Value`]s and to JSON, without loss.
//!
//! The driver's own conversions are not used: they shift times by their offset, panic on large decimals and
//! round money. The texts produced here:
//!
//! | type | text |
//! |---|---|
//! | `decimal`, `numeric`, money (cast by the query) | all digits of the scale: `-12.3400` |
//! | `date` | `2013-01-31` |
//! | `time(s)`, `datetime2(s)` | exactly `s` digits of the second: `2013-01-31T10:00:00.1230000` for 7 |
//! | `datetimeoffset(s)` | local time, then the offset: `2013-01-31T15:30:00.1230000+05:30` |
//! | `datetime` | as the server prints it, three digits: `2013-01-31T10:00:00.003` |
//! | `smalldatetime` | `2013-01-31T10:00:00` |
//! | `uniqueidentifier` | lower case |

use std::borrow::Cow;

use tiberius::numeric::Numeric;
use tiberius::time::{Date, DateTime, DateTime2, DateTimeOffset, SmallDateTime, Time};
use tiberius::xml::XmlData;
use tiberius::{ColumnData, Uuid};

use highwater_engine::value::{
    Value, push_bool, push_bytes, push_float, push_int, push_null, push_real, push_text,
};

/// Days from 0001-01-01 to 1900-01-01, the epoch of the older types.
const DAYS_TO_1900: i64 = 693_595;
/// Units of `datetime` in a second.
const DATETIME_TICKS: u32 = 300;
const SECONDS_PER_DAY: i64 = 86_400;

/// Converts a value of the driver to neutral form.
pub(super) fn value(data: &ColumnData<'_>) -> Value {
    match data {
        ColumnData::U8(value) => int(*value),
        ColumnData::I16(value) => int(*value),
        ColumnData::I32(value) => int(*value),
        ColumnData::I64(value) => int(*value),
        ColumnData::F32(value) => value.map_or(Value::Null, Value::Real),
        ColumnData::F64(value) => value.map_or(Value::Null, Value::Float),
        ColumnData::Bit(value) => value.map_or(Value::Null, Value::Bool),
        ColumnData::Binary(value) => {
            value.as_ref().map_or(Value::Null, |bytes| Value::Bytes(bytes.to_vec()))
        }
        ColumnData::String(value) => text(value.as_deref(), String::push_str),
        ColumnData::Xml(value) => text(xml(value.as_ref()), String::push_str),
        ColumnData::Guid(value) => text(*value, guid),
        ColumnData::Numeric(value) => text(*value, numeric),
        ColumnData::DateTime(value) => text(*value, datetime),
        ColumnData::SmallDateTime(value) => text(*value, smalldatetime),
        ColumnData::Time(value) => text(*value, time),
        ColumnData::Date(value) => text(*value, date),
        ColumnData::DateTime2(value) => text(*value, datetime2),
        ColumnData::DateTimeOffset(value) => text(*value, datetimeoffset),
    }
}

/// Writes a value of the driver as JSON: the same as its [`value`], without creating that.
pub(super) fn push(json: &mut String, data: &ColumnData<'_>) {
    match data {
        ColumnData::U8(value) => some(json, *value, push_integer),
        ColumnData::I16(value) => some(json, *value, push_integer),
        ColumnData::I32(value) => some(json, *value, push_integer),
        ColumnData::I64(value) => some(json, *value, push_integer),
        ColumnData::F32(value) => some(json, *value, push_real),
        ColumnData::F64(value) => some(json, *value, push_float),
        ColumnData::Bit(value) => some(json, *value, push_bool),
        ColumnData::Binary(value) => some(json, value.as_deref(), push_bytes),
        ColumnData::String(value) => some(json, value.as_deref(), push_text),
        ColumnData::Xml(value) => some(json, xml(value.as_ref()), push_text),
        ColumnData::Guid(value) => quoted(json, *value, guid),
        ColumnData::Numeric(value) => quoted(json, *value, numeric),
        ColumnData::DateTime(value) => quoted(json, *value, datetime),
        ColumnData::SmallDateTime(value) => quoted(json, *value, smalldatetime),
        ColumnData::Time(value) => quoted(json, *value, time),
        ColumnData::Date(value) => quoted(json, *value, date),
        ColumnData::DateTime2(value) => quoted(json, *value, datetime2),
        ColumnData::DateTimeOffset(value) => quoted(json, *value, datetimeoffset),
    }
}

/// Returns the bytes of a binary value.
pub(super) fn bytes<'a>(data: &'a ColumnData<'_>) -> Option<&'a [u8]> {
    if let ColumnData::Binary(Some(bytes)) = data { Some(bytes) } else { None }
}

fn int(value: Option<impl Into<i64>>) -> Value {
    value.map_or(Value::Null, |value| Value::Int(value.into()))
}

fn text<T>(value: Option<T>, write: impl FnOnce(&mut String, T)) -> Value {
    value.map_or(Value::Null, |value| {
        let mut text = String::new();
        write(&mut text, value);
        Value::Text(text)
    })
}

fn xml<'a>(value: Option<&'a Cow<'_, XmlData>>) -> Option<&'a str> {
    value.map(|xml| (**xml).as_ref())
}

fn some<T>(json: &mut String, value: Option<T>, write: impl FnOnce(&mut String, T)) {
    match value {
        Some(value) => write(json, value),
        None => push_null(json),
    }
}

/// Writes text that needs no escaping.
fn quoted<T>(json: &mut String, value: Option<T>, write: impl FnOnce(&mut String, T)) {
    some(json, value, |json, value| {
        json.push('"');
        write(json, value);
        json.push('"');
    });
}

fn push_integer(json: &mut String, value: impl Into<i64>) {
    push_int(json, value.into());
}

/// Writes a number, padded with leading zeros to `digits` digits.
fn padded(text: &mut String, value: u64, digits: usize) {
    let mut number = itoa::Buffer::new();
    let number = number.format(value);
    (number.len()..digits).for_each(|_| text.push('0'));
    text.push_str(number);
}

/// Returns the two digits of a number below a hundred.
fn pair(value: u64) -> [u8; 2] {
    let value = u8::try_from(value % 100).unwrap_or_default();
    [b'0' + value / 10, b'0' + value % 10]
}

fn push_ascii(text: &mut String, bytes: &[u8]) {
    text.push_str(str::from_utf8(bytes).unwrap_or_default());
}

fn guid(text: &mut String, value: Uuid) {
    text.push_str(value.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
}

fn numeric(text: &mut String, value: Numeric) {
    let scale = usize::from(value.scale());
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(value.value().unsigned_abs());
    if value.value() < 0 {
        text.push('-');
    }
    let (integer, fraction) = digits.split_at(digits.len().saturating_sub(scale));
    text.push_str(if integer.is_empty() { "0" } else { integer });
    if scale > 0 {
        text.push('.');
        (fraction.len()..scale).for_each(|_| text.push('0'));
        text.push_str(fraction);
    }
}

fn date(text: &mut String, value: Date) {
    day(text, value.days().into());
}

/// Writes the day that is `days` days after 0001-01-01.
///
/// The algorithm counts years from March, so that the leap day is a year's last.
/// <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>
fn day(text: &mut String, days: i64) {
    let days = days + 306; // from 0000-03-01
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    // The server has no years before 1.
    padded(text, year.unsigned_abs(), 4);
    let [[months, month], [days, day]] = [month, day].map(|part| pair(part.unsigned_abs()));
    push_ascii(text, &[b'-', months, month, b'-', days, day]);
}

/// Writes a time of day; `fraction` counts units of ten to the minus `digits`.
fn clock(text: &mut String, seconds: u64, fraction: u64, digits: usize) {
    let parts = [seconds / 3600, seconds / 60 % 60, seconds % 60];
    let [[hours, hour], [minutes, minute], [tens, second]] = parts.map(pair);
    push_ascii(text, &[hours, hour, b':', minutes, minute, b':', tens, second]);
    if digits > 0 {
        text.push('.');
        padded(text, fraction, digits);
    }
}

/// Splits a time into seconds and units of its scale.
fn seconds_and_fraction(value: Time) -> (u64, u64) {
    // The driver has checked that the scale is at most 7.
    let unit = 10_u64.pow(u32::from(value.scale()));
    (value.increments() / unit, value.increments() % unit)
}

fn time(text: &mut String, value: Time) {
    let (seconds, fraction) = seconds_and_fraction(value);
    clock(text, seconds, fraction, usize::from(value.scale()));
}

fn datetime2(text: &mut String, value: DateTime2) {
    date(text, value.date());
    text.push('T');
    time(text, value.time());
}

fn datetimeoffset(text: &mut String, value: DateTimeOffset) {
    // On the wire the time is in UTC, whatever the offset.
    let offset = i64::from(value.offset());
    let (utc_seconds, fraction) = seconds_and_fraction(value.datetime2().time());
    let utc_seconds = i64::try_from(utc_seconds).unwrap_or(SECONDS_PER_DAY);
    let local = utc_seconds + offset * 60;
    day(text, i64::from(value.datetime2().date().days()) + local.div_euclid(SECONDS_PER_DAY));
    text.push('T');
    let seconds = local.rem_euclid(SECONDS_PER_DAY).unsigned_abs();
    clock(text, seconds, fraction, usize::from(value.datetime2().time().scale()));
    text.push(if offset < 0 { '-' } else { '+' });
    let offset = offset.unsigned_abs();
    let [[hours, hour], [minutes, minute]] = [offset / 60, offset % 60].map(pair);
    push_ascii(text, &[hours, hour, b':', minutes, minute]);
}

fn datetime(text: &mut String, value: DateTime) {
    let ticks = value.seconds_fragments();
    let (seconds, rest) = (ticks / DATETIME_TICKS, ticks % DATETIME_TICKS);
    // Rounded as the server does: .003, .007, .010.
    let millis = (rest * 1_000 + DATETIME_TICKS / 2) / DATETIME_TICKS;
    day(text, DAYS_TO_1900 + i64::from(value.days()));
    text.push('T');
    clock(text, seconds.into(), millis.into(), 3);
}

fn smalldatetime(text: &mut String, value: SmallDateTime) {
    // The driver calls them fragments, but they are minutes.
    let seconds = u64::from(value.seconds_fragments()) * 60;
    day(text, DAYS_TO_1900 + i64::from(value.days()));
    text.push('T');
    clock(text, seconds, 0, 0);
}

/// Returns the day number of a date; the inverse of [`day`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 306
}

/// Returns the milliseconds since year 1 of a text like `2013-01-31T10:00:00.1234567Z`, or of a date.
pub(super) fn millis(text: &str) -> Option<i64> {
    let (day, clock) = text.trim_end_matches('Z').split_once('T').unwrap_or((text, "00:00:00"));
    let number = |text: Option<&str>| text?.parse::<i64>().ok();
    let mut parts = day.split('-');
    let days = days(number(parts.next())?, number(parts.next())?, number(parts.next())?);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut parts = clock.split(':');
    let minutes = number(parts.next())? * 60 + number(parts.next())?;
    let seconds = days * SECONDS_PER_DAY + minutes * 60 + number(parts.next())?;
    let fraction: String = fraction.chars().chain("000".chars()).take(3).collect();
    Some(seconds * 1000 + fraction.parse::<i64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the delivered JSON.
    fn json(data: &ColumnData<'_>) -> String {
        let mut json = String::new();
        push(&mut json, data);
        json
    }

    fn check(cases: impl IntoIterator<Item = (ColumnData<'static>, &'static str)>) {
        for (data, expected) in cases {
            assert_eq!(json(&data), expected, "{data:?}");
            assert_eq!(value(&data).to_json().to_string(), expected, "{data:?}");
        }
    }

    fn quoted(cases: &[(ColumnData<'static>, &'static str)]) {
        for (data, text) in cases {
            assert_eq!(value(data), Value::Text((*text).to_owned()), "{data:?}");
            assert_eq!(json(data), format!("\"{text}\""), "{data:?}");
        }
    }

    #[test]
    fn plain_values_keep_their_type() {
        check([
            (ColumnData::U8(Some(255)), "255"),
            (ColumnData::I16(Some(i16::MIN)), "-32768"),
            (ColumnData::I32(Some(i32::MAX)), "2147483647"),
            (ColumnData::I64(Some(i64::MIN)), "-9223372036854775808"),
            (ColumnData::F32(Some(0.1)), "0.1"),
            (ColumnData::F64(Some(1e300)), "1e+300"),
            (ColumnData::Bit(Some(true)), "true"),
            (ColumnData::Binary(Some(Cow::Borrowed(&[0, 255]))), "\"AP8=\""),
            (ColumnData::String(Some("ä\0b".into())), "\"ä\\u0000b\""),
            (ColumnData::Xml(Some(Cow::Owned(XmlData::new("<a/>")))), "\"<a/>\""),
            (
                ColumnData::Guid(Some(Uuid::from_u128(0xAB << 120))),
                "\"ab000000-0000-0000-0000-000000000000\"",
            ),
            (ColumnData::String(None), "null"),
            (ColumnData::Numeric(None), "null"),
            (ColumnData::DateTimeOffset(None), "null"),
        ]);
    }

    #[test]
    fn decimals_keep_every_digit() {
        let of = |value, scale| ColumnData::Numeric(Some(Numeric::new_with_scale(value, scale)));
        let nines = 10_i128.pow(38) - 1;
        quoted(&[
            (of(0, 0), "0"),
            (of(0, 2), "0.00"),
            (of(-5, 2), "-0.05"),
            (of(123_400, 4), "12.3400"),
            (of(nines, 0), "99999999999999999999999999999999999999"),
            (of(-nines, 10), "-9999999999999999999999999999.9999999999"),
            (of(nines, 38), "0.99999999999999999999999999999999999999"),
            (of(-1, 38), "-0.00000000000000000000000000000000000001"),
            // The limits of money.
            (of(9_223_372_036_854_775_807, 4), "922337203685477.5807"),
            (of(-9_223_372_036_854_775_808, 4), "-922337203685477.5808"),
        ]);
    }

    #[test]
    fn dates_run_from_year_1_to_9999() {
        let of = |days| ColumnData::Date(Some(Date::new(days)));
        quoted(&[
            (of(0), "0001-01-01"),
            (of(58), "0001-02-28"),
            (of(59), "0001-03-01"),
            (of(693_595), "1900-01-01"),
            (of(730_178), "2000-02-29"),
            (of(3_652_058), "9999-12-31"),
        ]);
    }

    #[test]
    fn times_have_the_digits_of_their_scale() {
        let time = |increments, scale| ColumnData::Time(Some(Time::new(increments, scale)));
        let second = |days, increments, scale| {
            let time = Time::new(increments, scale);
            ColumnData::DateTime2(Some(DateTime2::new(Date::new(days), time)))
        };
        quoted(&[
            (time(0, 0), "00:00:00"),
            (time(1, 7), "00:00:00.0000001"),
            (time(863_999_999_999, 7), "23:59:59.9999999"),
            (time(86_399_999, 3), "23:59:59.999"),
            (second(0, 0, 7), "0001-01-01T00:00:00.0000000"),
            (second(3_652_058, 863_999_999_999, 7), "9999-12-31T23:59:59.9999999"),
            (second(693_595, 3_600, 0), "1900-01-01T01:00:00"),
        ]);
    }

    #[test]
    fn offsets_are_added_to_utc_times_from_the_wire() {
        let of = |days, increments, offset| {
            let time = Time::new(increments, 7);
            let utc = DateTime2::new(Date::new(days), time);
            ColumnData::DateTimeOffset(Some(DateTimeOffset::new(utc, offset)))
        };
        let hour = 36_000_000_000;
        quoted(&[
            (of(730_178, 6 * hour + hour / 2, 330), "2000-02-29T12:00:00.0000000+05:30"),
            (of(730_178, 23 * hour, 840), "2000-03-01T13:00:00.0000000+14:00"),
            (of(730_178, hour + 1, -840), "2000-02-28T11:00:00.0000001-14:00"),
            (of(730_178, 0, -1), "2000-02-28T23:59:00.0000000-00:01"),
            (of(0, 0, 0), "0001-01-01T00:00:00.0000000+00:00"),
        ]);
    }

    #[test]
    fn older_types_are_written_as_the_server_prints_them() {
        let of = |days, ticks| ColumnData::DateTime(Some(DateTime::new(days, ticks)));
        let small =
            |days, minutes| ColumnData::SmallDateTime(Some(SmallDateTime::new(days, minutes)));
        quoted(&[
            (of(0, 0), "1900-01-01T00:00:00.000"),
            (of(0, 1), "1900-01-01T00:00:00.003"),
            (of(0, 2), "1900-01-01T00:00:00.007"),
            (of(0, 3), "1900-01-01T00:00:00.010"),
            (of(-1, 25_919_999), "1899-12-31T23:59:59.997"),
            (of(-53_690, 0), "1753-01-01T00:00:00.000"),
            (of(2_958_463, 25_919_999), "9999-12-31T23:59:59.997"),
            (small(0, 0), "1900-01-01T00:00:00"),
            (small(65_535, 1_439), "2079-06-06T23:59:00"),
        ]);
    }

    #[test]
    fn days_and_dates_agree() {
        for days in (0..3_652_059).step_by(997) {
            let mut text = String::new();
            day(&mut text, days);
            assert_eq!(millis(&text), Some(days * 86_400_000), "{text}");
        }
        let noon = millis("2013-01-01T12:00:00.1239999Z").unwrap();
        assert_eq!(noon - millis("2013-01-01T11:59:59").unwrap(), 1_123);
        assert_eq!(millis("soon"), None);
    }
}
