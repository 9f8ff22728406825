//! Conversion of values to and from their SQLite form.
//!
//! Every stored form orders like the values in SQL Server: dates are fixed-width text, binary values are
//! blobs, decimals of more than 15 digits are text with the sign first and all digits of the largest decimal,
//! GUIDs are text with their bytes by weight.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a table of forms names the pairs that differ, not all 24 types"
)]

use rusqlite::types::{Value as Stored, ValueRef};

use super::functions::failure;
use crate::{
    convert,
    dates::{self, DAY},
    tsql::coerce::{Class, class},
    types::{SqlError, Type, Value},
};

/// Offset that makes negative decimals sort before positive ones and among themselves.
const DECIMAL_MAX: i128 = 10_i128.pow(38);

/// Bytes of a GUID as written, in the order in which SQL Server compares them.
/// <https://learn.microsoft.com/dotnet/api/system.data.sqltypes.sqlguid.compareto>
const GUID_WEIGHTS: [usize; 16] = [10, 11, 12, 13, 14, 15, 8, 9, 7, 6, 5, 4, 3, 2, 1, 0];

/// The stored form of a value of a type.
pub(crate) fn stored(ty: Type, value: &Value) -> Stored {
    match value {
        Value::Null => Stored::Null,
        Value::Bool(bit) => Stored::Integer((*bit).into()),
        Value::Int(number) => Stored::Integer(*number),
        Value::Float(number) => Stored::Real(*number),
        Value::Text(text) => Stored::Text(text.clone()),
        Value::Bytes(bytes) => Stored::Blob(bytes.clone()),
        Value::Guid(guid) => Stored::Text(ordered_guid(guid)),
        Value::Date(days) => Stored::Text(dates::date_text(*days)),
        Value::Time(ticks) => Stored::Text(dates::time_text(*ticks, 7)),
        Value::DateTime2(days, ticks) => Stored::Text(dates::stamp_text((*days, *ticks))),
        Value::DateTimeOffset(days, ticks, offset) => {
            let stamp = dates::stamp_text((*days, *ticks));
            Stored::Text(format!("{stamp}{}", dates::offset_text(*offset)))
        }
        Value::Decimal(number, scale) => match class(ty) {
            Class::Decimal(_) if *number < 0 => {
                Stored::Text(format!("m{:039}", number.saturating_add(DECIMAL_MAX)))
            }
            Class::Decimal(_) => Stored::Text(format!("p{number:039}")),
            _ => convert::decimal_text(*number, *scale).parse().map_or(Stored::Null, Stored::Real),
        },
    }
}

/// The value of a type from its stored form.
///
/// # Errors
///
/// As a conversion; a form that is not a value of the type is never treated as `NULL`.
pub(crate) fn loaded(ty: Type, stored: ValueRef<'_>) -> rusqlite::Result<Value> {
    let value = match stored {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Real(number) => Value::Float(number),
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
        ValueRef::Text(bytes) => {
            let text = String::from_utf8_lossy(bytes).into_owned();
            loaded_text(ty, text.clone()).ok_or_else(|| {
                let text = format!("'{text}' is kept for a value of {ty}, which it is not.");
                failure(&SqlError::new(50_000, 16, text))
            })?
        }
    };
    let fits = match &value {
        Value::Int(_) => ty == Type::BigInt,
        Value::Float(_) => matches!(ty, Type::Real | Type::Float),
        Value::Bytes(_) => ty.is_binary() || ty.is_wide(),
        _ => true,
    };
    // A sum or a quotient may have another number type than the expression.
    if fits {
        return Ok(value);
    }
    convert::cast(&value, None, ty, 0).map_err(|error| failure(&error))
}

/// The value from a stored form of unknown type.
pub(crate) fn loaded_untyped(stored: ValueRef<'_>) -> Value {
    match stored {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Real(number) => Value::Float(number),
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
        ValueRef::Text(bytes) => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
    }
}

fn loaded_text(ty: Type, text: String) -> Option<Value> {
    Some(match class(ty) {
        Class::Text => Value::Text(text),
        Class::Number | Class::Binary => convert::cast(&Value::Text(text), None, ty, 0).ok()?,
        Class::Decimal(scale) => {
            let number: i128 = text.get(1..)?.parse().ok()?;
            let number = if text.starts_with('m') { number - DECIMAL_MAX } else { number };
            Value::Decimal(number, scale)
        }
        Class::Guid => Value::Guid(guid_of(&text)?),
        Class::Date => Value::Date(dates::parse(&text)?.stamp.0),
        Class::Time => Value::Time(dates::parse_time(&text)?),
        Class::Stamp => {
            let (days, ticks) = dates::parse(&text)?.stamp;
            Value::DateTime2(days, ticks)
        }
        Class::Offset => {
            // Stored in UTC, so the parsed time must not be moved by the offset.
            let parsed = dates::parse(&text)?;
            let (days, ticks) = parsed.stamp;
            Value::DateTimeOffset(days, ticks.min(DAY), parsed.offset.unwrap_or(0))
        }
    })
}

fn ordered_guid(guid: &[u8; 16]) -> String {
    let bytes = GUID_WEIGHTS.map(|at| guid.get(at).copied().unwrap_or_default());
    format!("{:032X}", u128::from_be_bytes(bytes))
}

fn guid_of(ordered: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(ordered, 16).ok()?;
    let mut guid = [0; 16];
    for (at, byte) in GUID_WEIGHTS.iter().zip(number.to_be_bytes()) {
        *guid.get_mut(*at)? = byte;
    }
    Some(guid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_order_by_their_last_group_first() {
        // One bit in each position, the least significant first, in SQL Server's order.
        let guids = [
            "01000000-0000-0000-0000-000000000000",
            "00010000-0000-0000-0000-000000000000",
            "00000100-0000-0000-0000-000000000000",
            "00000001-0000-0000-0000-000000000000",
            "00000000-0100-0000-0000-000000000000",
            "00000000-0001-0000-0000-000000000000",
            "00000000-0000-0100-0000-000000000000",
            "00000000-0000-0001-0000-000000000000",
            "00000000-0000-0000-0001-000000000000",
            "00000000-0000-0000-0100-000000000000",
            "00000000-0000-0000-0000-000000000001",
            "00000000-0000-0000-0000-000000000100",
            "00000000-0000-0000-0000-000000010000",
            "00000000-0000-0000-0000-000001000000",
            "00000000-0000-0000-0000-000100000000",
            "00000000-0000-0000-0000-010000000000",
        ];
        let guids = guids.map(|text| Value::Guid(convert::parse_guid(text).unwrap()));
        let texts: Vec<_> = guids.iter().map(|guid| text(Type::Guid, guid)).collect();
        assert!(texts.is_sorted(), "{texts:#?}");
        for (guid, text) in guids.iter().zip(&texts) {
            assert_eq!(loaded(Type::Guid, ValueRef::Text(text.as_bytes())).unwrap(), *guid);
        }
    }

    fn text(ty: Type, value: &Value) -> String {
        match stored(ty, value) {
            Stored::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn long_decimals_order_as_numbers() {
        let ty = Type::Decimal(38, 10);
        let max = 10_i128.pow(38) - 1;
        let numbers = [-max, -123, -122, -1, 0, 1, 9, 10, 100, max];
        let texts: Vec<_> = numbers.iter().map(|n| text(ty, &Value::Decimal(*n, 10))).collect();
        assert!(texts.is_sorted(), "{texts:#?}");
        for (number, text) in numbers.iter().zip(&texts) {
            let value = loaded(ty, ValueRef::Text(text.as_bytes())).unwrap();
            assert_eq!(value, Value::Decimal(*number, 10));
        }
    }

    #[test]
    fn short_decimals_round_trip_exactly() {
        let ty = Type::Decimal(15, 4);
        for number in [-999_999_999_999_999, -1, 0, 1, 10, 123_456_789_012_345] {
            let Stored::Real(float) = stored(ty, &Value::Decimal(number, 4)) else {
                panic!("not a float");
            };
            let value = loaded(ty, ValueRef::Real(float)).unwrap();
            assert_eq!(value, Value::Decimal(number, 4));
        }
    }

    #[test]
    fn an_offset_round_trips_with_its_instant() {
        let ty = Type::DateTimeOffset(7);
        let value = Value::DateTimeOffset(739_000, 5, -330);
        let text = text(ty, &value);
        assert_eq!(loaded(ty, ValueRef::Text(text.as_bytes())).unwrap(), value);
    }
}
