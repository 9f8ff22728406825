//! How text compares: a model of SQL Server's collations.
//!
//! As in every collation there, trailing blanks are ignored. `HW_FOLDED` ignores case and otherwise compares
//! character by character, where SQL Server uses the weights of a language; `HW_BINARY` compares UTF-16 code
//! units. `HW_INSTANT` is for stored times with an offset, which is part of the value but not of its order.
//! `HW_VARIANT` is for values that are stored with their types: they order by type family first, then by
//! value.

use std::cmp::Ordering;

use rusqlite::{Connection, types::Value as Stored};

use super::store::stored;
use crate::{
    convert,
    dates::DAY,
    types::{Type, Value},
    variant,
};

/// Most digits of a decimal.
const DIGITS_MAX: u32 = 38;

/// Registers the collations on a connection.
pub(crate) fn register(connection: &Connection) -> rusqlite::Result<()> {
    connection.create_collation("HW_FOLDED", folded)?;
    connection.create_collation("HW_BINARY", binary)?;
    connection.create_collation("HW_INSTANT", |a, b| instant(a).cmp(instant(b)))?;
    connection.create_collation("HW_VARIANT", by_family)
}

/// A value with its family, the lowest first; exact numbers as integer and fractional parts.
/// <https://learn.microsoft.com/sql/t-sql/data-types/sql-variant-transact-sql>
#[derive(Debug, PartialEq, PartialOrd)]
enum Place {
    Unreadable(String),
    Guid(String),
    Binary(Vec<u8>),
    Text(Vec<char>),
    Exact(i128, i128),
    Approximate(f64),
    /// As an instant; a time alone has the first day of 1900.
    Time(i128),
}

impl Place {
    fn of(kept: &str) -> Self {
        let unreadable = || Self::Unreadable(kept.to_owned());
        let Some((ty, value)) = variant::decode(kept) else { return unreadable() };
        match value {
            Value::Guid(_) => {
                let Stored::Text(by_weight) = stored(ty, &value) else { return unreadable() };
                Self::Guid(by_weight)
            }
            Value::Bytes(bytes) => Self::Binary(bytes),
            Value::Text(text) => Self::Text(folded_letters(&text)),
            Value::Bool(bit) => Self::Exact(bit.into(), 0),
            Value::Int(number) => Self::Exact(number.into(), 0),
            Value::Decimal(number, scale) => {
                let unit = 10_i128.pow(scale.into());
                // All fractions in the same, smallest unit.
                let fraction = number.rem_euclid(unit) * 10_i128.pow(DIGITS_MAX - u32::from(scale));
                Self::Exact(number.div_euclid(unit), fraction)
            }
            Value::Float(number) => Self::Approximate(number),
            Value::Date(_) | Value::Time(_) | Value::DateTime2(..) | Value::DateTimeOffset(..) => {
                let instant = convert::cast(&value, Some(ty), Type::DateTimeOffset(7), 0);
                let Ok(Value::DateTimeOffset(days, ticks, _)) = instant else {
                    return unreadable();
                };
                Self::Time(i128::from(days) * i128::from(DAY) + i128::from(ticks))
            }
            Value::Null => unreadable(),
        }
    }
}

fn by_family(a: &str, b: &str) -> Ordering {
    Place::of(a).partial_cmp(&Place::of(b)).unwrap_or(Ordering::Equal)
}

fn folded(a: &str, b: &str) -> Ordering {
    folded_letters(a).cmp(&folded_letters(b))
}

fn folded_letters(text: &str) -> Vec<char> {
    without_blanks(text).chars().flat_map(char::to_lowercase).collect()
}

fn binary(a: &str, b: &str) -> Ordering {
    without_blanks(a).encode_utf16().cmp(without_blanks(b).encode_utf16())
}

/// The time in UTC, which is stored first.
fn instant(stored: &str) -> &str {
    stored.get(.."0001-01-01T00:00:00.0000000".len()).unwrap_or(stored)
}

fn without_blanks(text: &str) -> &str {
    text.trim_end_matches(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_blanks_and_case_are_ignored() {
        for (a, b) in [("a", "A"), ("a", "a  "), ("Ärger", "äRGER "), ("", " ")] {
            assert_eq!(folded(a, b), Ordering::Equal, "`{a}` and `{b}`");
        }
        assert_eq!(folded("a", " a"), Ordering::Greater);
        assert_eq!(folded("a", "ä"), Ordering::Less);
        assert_eq!(folded("aa", "B"), Ordering::Less);
    }

    #[test]
    fn the_offset_is_ignored_when_comparing() {
        let (a, b) = ("2020-01-01T00:00:00.0000001+00:00", "2020-01-01T00:00:00.0000001-14:00");
        assert_eq!(instant(a), instant(b));
        assert_eq!(instant(a), "2020-01-01T00:00:00.0000001");
    }

    /// The documented hierarchy, from its lowest family up.
    #[test]
    fn variants_order_by_family_and_within_it_by_value() {
        let kept = |ty: Type, text: &str| {
            let style = if ty.is_binary() { 1 } else { 126 };
            let value = convert::cast(&Value::Text(text.to_owned()), None, ty, style).unwrap();
            let kept = variant::encode(&value, Some(ty)).unwrap();
            let Value::Text(kept) = kept else { panic!("{kept:?}") };
            kept
        };
        let nvarchar = Type::NVarChar(Some(9));
        let ascending = [
            kept(Type::Guid, "FFFFFFFF-FFFF-FFFF-FFFF-000000000000"),
            kept(Type::Guid, "00000000-0000-0000-0000-000000000001"),
            kept(Type::VarBinary(Some(4)), "0x"),
            kept(Type::Binary(2), "0x00FF"),
            kept(Type::VarBinary(Some(4)), "0xFF"),
            kept(nvarchar, ""),
            kept(Type::VarChar(Some(9)), "9"),
            kept(Type::Char(3), "a"),
            kept(nvarchar, "B"),
            kept(Type::Decimal(38, 0), "-99999999999999999999999999999999999999"),
            kept(Type::BigInt, "-9223372036854775808"),
            kept(Type::SmallMoney, "-0.5"),
            kept(Type::Decimal(38, 38), "-0.1"),
            kept(Type::Bit, "0"),
            kept(Type::Decimal(38, 38), "0.00000000000000000000000000000000000001"),
            kept(Type::TinyInt, "1"),
            kept(Type::Money, "1.5"),
            kept(Type::Int, "10"),
            kept(Type::Float, "-1e300"),
            kept(Type::Real, "0.5"),
            kept(Type::Float, "1.5"),
            kept(Type::Time(7), "23:59:59"),
            kept(Type::SmallDateTime, "2020-01-01T00:00:00"),
            kept(Type::DateTimeOffset(7), "2020-01-01T01:00:00+00:30"),
            kept(Type::DateTime2(7), "2020-01-01T10:00:00.0033333"),
            kept(Type::DateTime2(7), "2020-01-01T10:00:00.0033334"),
            kept(Type::Date, "2020-01-02"),
        ];
        for (low, a) in ascending.iter().enumerate() {
            for (high, b) in ascending.iter().enumerate() {
                assert_eq!(by_family(a, b), low.cmp(&high), "{a:?} and {b:?}");
            }
        }
        for (a, b) in [
            (kept(Type::TinyInt, "1"), kept(Type::Decimal(9, 2), "1.00")),
            (kept(Type::Char(3), "A"), kept(nvarchar, "a")),
            (kept(Type::Real, "0.5"), kept(Type::Float, "0.5")),
            (kept(Type::DateTime, "2020-01-01"), kept(Type::Date, "2020-01-01")),
        ] {
            assert_eq!(by_family(&a, &b), Ordering::Equal, "{a:?} and {b:?}");
        }
    }

    #[test]
    fn a_binary_collation_compares_code_units() {
        assert_eq!(binary("B", "a"), Ordering::Less);
        assert_eq!(binary("a", "a "), Ordering::Equal);
        // Higher as a character, lower as a pair of surrogates.
        assert_eq!(binary("😀", "｡"), Ordering::Less);
    }
}
