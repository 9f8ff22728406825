//! Types and values as a server writes them in COLMETADATA and ROW.
#![expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "fixed widths of the protocol: values were brought into the type's range before"
)]

use std::io;

use super::{COLLATION, invalid, utf16_bytes};
use crate::{
    dates::{DAYS_1900, SECOND},
    types::{Type, Value, decimal_length, time_length},
};

/// Appends a type (`TYPE_INFO`).
pub(crate) fn put_type(out: &mut Vec<u8>, ty: Type) {
    let sized = |out: &mut Vec<u8>, id: u8, bytes: Option<u32>| {
        out.push(id);
        out.extend(bytes.map_or(u16::MAX, |bytes| bytes as u16).to_le_bytes());
    };
    let text = |out: &mut Vec<u8>, id: u8, bytes: Option<u32>| {
        sized(out, id, bytes);
        out.extend(COLLATION);
    };
    match ty.base() {
        Type::Bit => out.extend([0x68, 1]),
        Type::TinyInt => out.extend([0x26, 1]),
        Type::SmallInt => out.extend([0x26, 2]),
        Type::Int => out.extend([0x26, 4]),
        Type::BigInt => out.extend([0x26, 8]),
        Type::Real => out.extend([0x6D, 4]),
        Type::Float => out.extend([0x6D, 8]),
        Type::Decimal(p, s) => out.extend([0x6A, decimal_length(p), p, s]),
        Type::Money => out.extend([0x6E, 8]),
        Type::SmallMoney => out.extend([0x6E, 4]),
        Type::NVarChar(n) => text(out, 0xE7, n.map(|n| u32::from(n) * 2)),
        Type::VarChar(n) => text(out, 0xA7, n.map(u32::from)),
        Type::NChar(n) => text(out, 0xEF, Some(u32::from(n) * 2)),
        Type::Char(n) => text(out, 0xAF, Some(u32::from(n))),
        Type::VarBinary(n) => sized(out, 0xA5, n.map(u32::from)),
        Type::Binary(n) => sized(out, 0xAD, Some(u32::from(n))),
        Type::RowVersion => sized(out, 0xAD, Some(8)),
        Type::Guid => out.extend([0x24, 16]),
        Type::Date => out.push(0x28),
        Type::Time(s) => out.extend([0x29, s]),
        Type::SmallDateTime => out.extend([0x6F, 4]),
        Type::DateTime => out.extend([0x6F, 8]),
        Type::DateTime2(s) => out.extend([0x2A, s]),
        Type::DateTimeOffset(s) => out.extend([0x2B, s]),
        // None of these is the base of another type.
        Type::Named(_) => out.push(0x1F),
    }
}

/// Appends a value of a row.
///
/// # Errors
///
/// Fails for a value that is not of the type; the engine must convert it before.
pub(crate) fn put_value(out: &mut Vec<u8>, ty: Type, value: &Value) -> io::Result<()> {
    let ty = ty.base();
    match (ty, value) {
        (_, Value::Null) => put_null(out, ty),
        (Type::Bit, Value::Bool(bit)) => out.extend([1, u8::from(*bit)]),
        (Type::Bit, Value::Int(n)) => out.extend([1, u8::from(*n != 0)]),
        (Type::TinyInt | Type::SmallInt | Type::Int | Type::BigInt, Value::Int(n)) => {
            put_sized(out, &n.to_le_bytes()[..ty.facts().length as usize]);
        }
        (Type::Real, Value::Float(n)) => put_sized(out, &(*n as f32).to_le_bytes()),
        (Type::Float, Value::Float(n)) => put_sized(out, &n.to_le_bytes()),
        (Type::Decimal(p, s), Value::Decimal(n, from)) => {
            let n = rescale(*n, *from, s);
            let length = decimal_length(p);
            out.extend([length, u8::from(n >= 0)]);
            out.extend(&n.unsigned_abs().to_le_bytes()[..usize::from(length) - 1]);
        }
        (Type::Money, Value::Decimal(n, scale)) => {
            let n = rescale(*n, *scale, 4) as i64;
            out.push(8);
            out.extend(((n >> 32) as i32).to_le_bytes());
            out.extend((n as u32).to_le_bytes());
        }
        (Type::SmallMoney, Value::Decimal(n, scale)) => {
            put_sized(out, &(rescale(*n, *scale, 4) as i32).to_le_bytes());
        }
        (Type::NVarChar(n), Value::Text(text)) => put_bytes(out, n, &utf16_bytes(text)),
        (Type::NChar(n), Value::Text(text)) => put_bytes(out, Some(n), &utf16_bytes(text)),
        (Type::VarChar(n), Value::Text(text)) => put_bytes(out, n, &latin1(text)),
        (Type::Char(n), Value::Text(text)) => put_bytes(out, Some(n), &latin1(text)),
        (Type::VarBinary(n) | Type::NVarChar(n), Value::Bytes(bytes)) => put_bytes(out, n, bytes),
        (Type::NChar(n), Value::Bytes(bytes)) => put_bytes(out, Some(n), bytes),
        (Type::Binary(_) | Type::RowVersion, Value::Bytes(bytes)) => {
            put_bytes(out, Some(8), bytes);
        }
        (Type::Guid, Value::Guid(g)) => {
            out.extend([16, g[3], g[2], g[1], g[0], g[5], g[4], g[7], g[6]]);
            out.extend(&g[8..]);
        }
        _ => return put_temporal(out, ty, value),
    }
    Ok(())
}

fn put_temporal(out: &mut Vec<u8>, ty: Type, value: &Value) -> io::Result<()> {
    match (ty, value) {
        (Type::Date, Value::Date(days)) => put_sized(out, &days.to_le_bytes()[..3]),
        (Type::Time(s), Value::Time(ticks)) => put_sized(out, &time(*ticks, s)),
        (Type::SmallDateTime, Value::DateTime2(days, ticks)) => {
            out.push(4);
            out.extend((days.saturating_sub(DAYS_1900) as u16).to_le_bytes());
            out.extend(((ticks / (60 * SECOND)) as u16).to_le_bytes());
        }
        (Type::DateTime, Value::DateTime2(days, ticks)) => {
            out.push(8);
            out.extend(days.cast_signed().wrapping_sub_unsigned(DAYS_1900).to_le_bytes());
            out.extend((((ticks * 300 + SECOND / 2) / SECOND) as u32).to_le_bytes());
        }
        (Type::DateTime2(s), Value::DateTime2(days, ticks)) => {
            let mut bytes = time(*ticks, s);
            bytes.extend(&days.to_le_bytes()[..3]);
            put_sized(out, &bytes);
        }
        (Type::DateTimeOffset(s), Value::DateTimeOffset(days, ticks, offset)) => {
            let mut bytes = time(*ticks, s);
            bytes.extend(&days.to_le_bytes()[..3]);
            bytes.extend(offset.to_le_bytes());
            put_sized(out, &bytes);
        }
        _ => return Err(invalid(format!("value `{value:?}` is not of type `{ty}`"))),
    }
    Ok(())
}

/// Rescales an unscaled number, dropping digits.
fn rescale(n: i128, from: u8, to: u8) -> i128 {
    if to >= from {
        n.saturating_mul(10_i128.saturating_pow(u32::from(to - from)))
    } else {
        n / 10_i128.saturating_pow(u32::from(from - to))
    }
}

fn time(ticks: u64, scale: u8) -> Vec<u8> {
    let units = ticks / 10_u64.pow(7 - u32::from(scale.min(7)));
    units.to_le_bytes()[..time_length(scale) as usize].to_vec()
}

fn latin1(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect()
}

fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(bytes.len() as u8);
    out.extend(bytes);
}

fn put_bytes(out: &mut Vec<u8>, length: Option<u16>, bytes: &[u8]) {
    if length.is_some() {
        out.extend((bytes.len() as u16).to_le_bytes());
        out.extend(bytes);
        return;
    }
    out.extend((bytes.len() as u64).to_le_bytes());
    if !bytes.is_empty() {
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
    }
    out.extend([0; 4]);
}

fn put_null(out: &mut Vec<u8>, ty: Type) {
    match ty {
        Type::NVarChar(None) | Type::VarChar(None) | Type::VarBinary(None) => out.extend([0xFF; 8]),
        _ if ty.is_text() || ty.is_binary() => out.extend([0xFF; 2]),
        _ => out.push(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(ty: Type, value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        put_value(&mut out, ty, value).unwrap();
        out
    }

    #[test]
    fn numbers_have_the_width_of_their_type() {
        assert_eq!(encoded(Type::TinyInt, &Value::Int(255)), [1, 255]);
        assert_eq!(encoded(Type::SmallInt, &Value::Int(-2)), [2, 0xFE, 0xFF]);
        assert_eq!(encoded(Type::Decimal(5, 2), &Value::Decimal(-125, 1)), [5, 0, 0xE2, 4, 0, 0]);
        assert_eq!(encoded(Type::SmallMoney, &Value::Decimal(1, 0)), [4, 0x10, 0x27, 0, 0]);
    }

    #[test]
    fn null_is_encoded_by_type_family() {
        assert_eq!(encoded(Type::Int, &Value::Null), [0]);
        assert_eq!(encoded(Type::NVarChar(Some(9)), &Value::Null), [0xFF, 0xFF]);
        assert_eq!(encoded(Type::VarBinary(None), &Value::Null), [0xFF; 8]);
    }

    #[test]
    fn an_empty_max_value_is_not_null() {
        assert_eq!(encoded(Type::VarBinary(None), &Value::Bytes(vec![])), [0; 12]);
    }

    #[test]
    fn a_value_of_another_type_is_an_error() {
        let mut out = Vec::new();
        let error = put_value(&mut out, Type::Int, &Value::Text("1".into())).unwrap_err();
        assert!(error.to_string().contains("not of type `int`"), "{error}");
    }
}
