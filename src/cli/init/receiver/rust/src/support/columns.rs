//! Reads the columns of a row from JSON.

use std::fmt;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::STANDARD;
use ::time::macros::format_description;
use ::time::{Date, OffsetDateTime, PrimitiveDateTime, Time};
use ::uuid::Uuid;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A decimal number with all its digits. Parse it with the crate of your choice, such as `rust_decimal`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal(pub String);

/// A column is missing, or is not of the type that the table had when the types were written.
#[derive(Debug)]
pub struct InvalidColumn(String);

impl fmt::Display for InvalidColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidColumn {}

/// Returns a column, converted.
pub fn column<T>(
    columns: &Map<String, Value>,
    name: &str,
    read: fn(&Value) -> Result<T, String>,
) -> Result<T, InvalidColumn> {
    let value = columns.get(name).ok_or_else(|| "it is missing".to_owned());
    value.and_then(read).map_err(|reason| {
        InvalidColumn(format!("column `{name}`: {reason}; if the table has changed, update row.rs"))
    })
}

/// Returns a column that can be NULL, converted.
pub fn nullable<T>(
    columns: &Map<String, Value>,
    name: &str,
    read: fn(&Value) -> Result<T, String>,
) -> Result<Option<T>, InvalidColumn> {
    match columns.get(name) {
        Some(Value::Null) => Ok(None),
        _ => column(columns, name, read).map(Some),
    }
}

/// Numbers, booleans and text, as they are in JSON.
pub fn json<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| error.to_string())
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("expected text, found {value}"))
}

/// A number whose digits count.
pub fn decimal(value: &Value) -> Result<Decimal, String> {
    let text = text(value)?;
    let is_digit = |c: char| c.is_ascii_digit() || "-.".contains(c);
    if text.is_empty() || !text.chars().all(is_digit) {
        return Err(format!("`{text}` is not a decimal number"));
    }
    Ok(Decimal(text.to_owned()))
}

/// A `date`.
pub fn date(value: &Value) -> Result<Date, String> {
    Date::parse(text(value)?, format_description!("[year]-[month]-[day]")).map_err(|error| error.to_string())
}

/// A `time`.
pub fn time(value: &Value) -> Result<Time, String> {
    let form = format_description!("[hour]:[minute]:[second][optional [.[subsecond]]]");
    Time::parse(text(value)?, form).map_err(|error| error.to_string())
}

/// A date and time without an offset.
pub fn date_time(value: &Value) -> Result<PrimitiveDateTime, String> {
    let form =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second][optional [.[subsecond]]]");
    PrimitiveDateTime::parse(text(value)?, form).map_err(|error| error.to_string())
}

/// A `datetimeoffset`.
pub fn date_time_offset(value: &Value) -> Result<OffsetDateTime, String> {
    let form = &::time::format_description::well_known::Rfc3339;
    OffsetDateTime::parse(text(value)?, form).map_err(|error| error.to_string())
}

/// A `uniqueidentifier`.
pub fn uuid(value: &Value) -> Result<Uuid, String> {
    text(value)?.parse().map_err(|error: ::uuid::Error| error.to_string())
}

/// Binary data.
pub fn base64(value: &Value) -> Result<Vec<u8>, String> {
    STANDARD.decode(text(value)?).map_err(|error| error.to_string())
}
