//! Parameters of a remote procedure call: a type and a value.

use std::io;

use super::{Reader, invalid, utf16};
use crate::{
    dates::{DAYS_1900, SECOND},
    types::{Type, Value},
};

/// Reads the type and the value of a parameter.
///
/// # Errors
///
/// Fails for an unsupported type and for a message that ends too early.
pub(crate) fn parameter(r: &mut Reader<'_>) -> io::Result<(Type, Value)> {
    match r.u8()? {
        0x1F => Ok((Type::NVarChar(Some(4000)), Value::Null)),
        0x26 => integer(r),
        0x68 => {
            r.u8()?;
            let value = if r.u8()? == 0 { Value::Null } else { Value::Bool(r.u8()? != 0) };
            Ok((Type::Bit, value))
        }
        0x6D => float(r),
        0x6A | 0x6C => decimal(r),
        0x6E => money(r),
        id @ (0xE7 | 0xEF | 0xA7 | 0xAF) => text(r, id >= 0xE0),
        0xA5 | 0xAD => {
            let length = r.u16()?;
            let bytes = if length == u16::MAX { r.chunked()? } else { r.short()? };
            let ty = Type::VarBinary((length != u16::MAX).then_some(length));
            Ok((ty, bytes.map_or(Value::Null, Value::Bytes)))
        }
        0x24 => guid(r),
        0x28 => {
            let value = if r.u8()? == 0 { Value::Null } else { Value::Date(days(r)?) };
            Ok((Type::Date, value))
        }
        0x29 => {
            let scale = scale(r)?;
            let value = match usize::from(r.u8()?) {
                0 => Value::Null,
                length => Value::Time(ticks(r, length, scale)?),
            };
            Ok((Type::Time(scale), value))
        }
        0x2A => {
            let scale = scale(r)?;
            let value = match usize::from(r.u8()?).checked_sub(3) {
                None => Value::Null,
                Some(length) => {
                    let ticks = ticks(r, length, scale)?;
                    Value::DateTime2(days(r)?, ticks)
                }
            };
            Ok((Type::DateTime2(scale), value))
        }
        0x2B => {
            let scale = scale(r)?;
            let value = match usize::from(r.u8()?).checked_sub(5) {
                None => Value::Null,
                Some(length) => {
                    let ticks = ticks(r, length, scale)?;
                    Value::DateTimeOffset(days(r)?, ticks, r.i16()?)
                }
            };
            Ok((Type::DateTimeOffset(scale), value))
        }
        0x6F => datetime(r),
        id => Err(invalid(format!("parameter type `0x{id:02x}` is not known"))),
    }
}

fn integer(r: &mut Reader<'_>) -> io::Result<(Type, Value)> {
    let ty = match r.u8()? {
        1 => Type::TinyInt,
        2 => Type::SmallInt,
        4 => Type::Int,
        _ => Type::BigInt,
    };
    let value = match r.u8()? {
        0 => Value::Null,
        1 => Value::Int(r.u8()?.into()),
        2 => Value::Int(r.i16()?.into()),
        4 => Value::Int(r.i32()?.into()),
        _ => Value::Int(r.i64()?),
    };
    Ok((ty, value))
}

fn float(r: &mut Reader<'_>) -> io::Result<(Type, Value)> {
    let ty = if r.u8()? == 4 { Type::Real } else { Type::Float };
    let value = match r.u8()? {
        0 => Value::Null,
        4 => Value::Float(f32::from_bits(r.u32()?).into()),
        _ => Value::Float(f64::from_bits(r.u64()?)),
    };
    Ok((ty, value))
}

fn decimal(r: &mut Reader<'_>) -> io::Result<(Type, Value)> {
    r.u8()?;
    let (precision, scale) = (r.u8()?, r.u8()?);
    let ty = Type::Decimal(precision, scale);
    let Some(length) = usize::from(r.u8()?).checked_sub(1) else {
        return Ok((ty, Value::Null));
    };
    let negative = r.u8()? == 0;
    if length > 16 {
        return Err(invalid("decimal is too long"));
    }
    let magnitude = r.take(length)?.iter().rev().fold(0_u128, |sum, b| sum << 8 | u128::from(*b));
    let number = i128::try_from(magnitude).map_err(|error| invalid(error.to_string()))?;
    Ok((ty, Value::Decimal(if negative { -number } else { number }, scale)))
}

fn money(r: &mut Reader<'_>) -> io::Result<(Type, Value)> {
    let ty = if r.u8()? == 4 { Type::SmallMoney } else { Type::Money };
    let value = match r.u8()? {
        0 => Value::Null,
        4 => Value::Decimal(r.i32()?.into(), 4),
        _ => {
            let high = i128::from(r.i32()?);
            Value::Decimal(high << 32 | i128::from(r.u32()?), 4)
        }
    };
    Ok((ty, value))
}

fn text(r: &mut Reader<'_>, wide: bool) -> io::Result<(Type, Value)> {
    let length = r.u16()?;
    r.take(5)?;
    let max = length == u16::MAX;
    let bytes = if max { r.chunked()? } else { r.short()? };
    let (ty, text) = if wide {
        (Type::NVarChar((!max).then_some(length / 2)), bytes.map(|b| utf16(&b)))
    } else {
        let latin1 = |b: Vec<u8>| b.into_iter().map(char::from).collect();
        (Type::VarChar((!max).then_some(length)), bytes.map(latin1))
    };
    Ok((ty, text.map_or(Value::Null, Value::Text)))
}

fn guid(r: &mut Reader<'_>) -> io::Result<(Type, Value)> {
    r.u8()?;
    if r.u8()? == 0 {
        return Ok((Type::Guid, Value::Null));
    }
    let (mut first, mut second, mut third) = (r.u32()?, r.u16()?, r.u16()?);
    (first, second, third) = (first.swap_bytes(), second.swap_bytes(), third.swap_bytes());
    let mut bytes = Vec::with_capacity(16);
    bytes.extend(first.to_le_bytes());
    bytes.extend(second.to_le_bytes());
    bytes.extend(third.to_le_bytes());
    bytes.extend(r.take(8)?);
    let guid =
        bytes.try_into().map_err(|_bytes: Vec<u8>| invalid("uniqueidentifier is too short"))?;
    Ok((Type::Guid, Value::Guid(guid)))
}

fn datetime(r: &mut Reader<'_>) -> io::Result<(Type, Value)> {
    let ty = if r.u8()? == 4 { Type::SmallDateTime } else { Type::DateTime };
    let value = match r.u8()? {
        0 => Value::Null,
        4 => {
            let days = u32::from(r.u16()?) + DAYS_1900;
            Value::DateTime2(days, u64::from(r.u16()?) * 60 * SECOND)
        }
        _ => {
            let days = DAYS_1900.checked_add_signed(r.i32()?);
            let days = days.ok_or_else(|| invalid("datetime is out of range"))?;
            let milliseconds = (u64::from(r.u32()?) * 10 + 1) / 3;
            Value::DateTime2(days, milliseconds * 10_000)
        }
    };
    Ok((ty, value))
}

fn scale(r: &mut Reader<'_>) -> io::Result<u8> {
    match r.u8()? {
        scale @ 0..=7 => Ok(scale),
        scale => Err(invalid(format!("scale is `{scale}`, must be at most `7`"))),
    }
}

fn ticks(r: &mut Reader<'_>, length: usize, scale: u8) -> io::Result<u64> {
    if length > 5 {
        return Err(invalid("time is too long"));
    }
    Ok(r.uint(length)? * 10_u64.pow(7 - u32::from(scale)))
}

fn days(r: &mut Reader<'_>) -> io::Result<u32> {
    u32::try_from(r.uint(3)?).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::encode::{put_type, put_value};

    #[test]
    fn encoded_values_decode_to_the_same_value() {
        let cases = [
            (Type::Bit, Value::Bool(true)),
            (Type::TinyInt, Value::Int(200)),
            (Type::SmallInt, Value::Int(-2)),
            (Type::Int, Value::Int(-70_000)),
            (Type::BigInt, Value::Int(i64::MIN)),
            (Type::Real, Value::Float(1.5)),
            (Type::Float, Value::Float(-0.1)),
            (Type::Decimal(38, 10), Value::Decimal(-12_345_678_901_234_567_890, 10)),
            (Type::Money, Value::Decimal(-9_223_372_036_854_775_807, 4)),
            (Type::SmallMoney, Value::Decimal(-1, 4)),
            (Type::NVarChar(Some(20)), Value::Text("Zoë 😀".into())),
            (Type::NVarChar(None), Value::Text("x".repeat(9000))),
            (Type::VarChar(Some(5)), Value::Text("é".into())),
            (Type::VarBinary(None), Value::Bytes(vec![1, 2, 3])),
            (Type::Guid, Value::Guid(*b"0123456789abcdef")),
            (Type::Date, Value::Date(739_000)),
            (Type::Time(3), Value::Time(123_450_000)),
            (Type::SmallDateTime, Value::DateTime2(DAYS_1900 + 5, 60 * SECOND)),
            (Type::DateTime, Value::DateTime2(DAYS_1900 - 5, 30_000)),
            (Type::DateTime2(7), Value::DateTime2(739_000, 1_234_567)),
            (Type::DateTimeOffset(0), Value::DateTimeOffset(1, SECOND, -840)),
        ];
        for (ty, value) in cases {
            for value in [value, Value::Null] {
                let mut bytes = Vec::new();
                put_type(&mut bytes, ty);
                put_value(&mut bytes, ty, &value).unwrap();
                let mut reader = Reader::new(&bytes);
                assert_eq!(parameter(&mut reader).unwrap(), (ty, value));
                assert!(reader.is_empty(), "{ty}");
                for length in 0..bytes.len().min(40) {
                    parameter(&mut Reader::new(&bytes[..length])).unwrap_err();
                }
            }
        }
    }
}
