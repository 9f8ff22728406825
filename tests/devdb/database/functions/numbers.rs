//! Arithmetic as in SQL Server: in the type of the result, or an error.

use std::{error::Error, sync::Arc};

use rusqlite::{
    Connection,
    functions::{Context, FunctionFlags},
    types::{Value as Stored, ValueRef},
};

use super::{PURE, failure, read_type};
use crate::{
    convert,
    database::store::stored,
    types::{SqlError, Type, Value},
};

pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    connection.create_scalar_function("hw_calculate", 4, PURE, calculate)?;
    connection.create_scalar_function("hw_count", 2, PURE, count)?;
    connection.create_scalar_function("hw_round", 2, PURE, round)?;
    // Not declared pure, so that it is only called where it occurs.
    connection.create_scalar_function("hw_fail", 1, FunctionFlags::SQLITE_UTF8, |context| {
        let text = "Subquery returned more than 1 value. This is not permitted when the subquery \
                    follows =, !=, <, <= , >, >= or when the subquery is used as an expression.";
        Err::<i64, _>(failure(&SqlError::new(context.get(0)?, 16, text)))
    })
}

/// `hw_calculate(operator, left, right, type)`
fn calculate(context: &Context<'_>) -> rusqlite::Result<Stored> {
    if (1..=2).any(|side| context.get_raw(side) == ValueRef::Null) {
        return Ok(Stored::Null);
    }
    let operator: String = context.get(0)?;
    let read = |value: ValueRef<'_>| -> Result<_, Box<dyn Error + Send + Sync>> {
        Ok(read_type(value.as_str()?)?)
    };
    let ty: Arc<Type> = context.get_or_create_aux(3, read)?;
    let result = if ty.decimal().is_some() || matches!(*ty, Type::Float | Type::Real) {
        fractional(&operator, context.get(1)?, context.get(2)?)
    } else {
        whole(&operator, context.get(1)?, context.get(2)?)
    };
    let value = result.and_then(|result| {
        let value = result.ok_or_else(|| overflow(*ty))?;
        convert::cast(&value, None, *ty, 0)
    });
    value.map(|value| stored(*ty, &value)).map_err(|error| failure(&error))
}

/// [`None`] if the result is not a 64-bit integer.
fn whole(operator: &str, left: i64, right: i64) -> Result<Option<Value>, SqlError> {
    let result = match operator {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        _ if right == 0 => return Err(divided_by_zero()),
        "/" => left.checked_div(right),
        _ => Some(left.checked_rem(right).unwrap_or(0)),
    };
    Ok(result.map(Value::Int))
}

/// [`None`] if the result is not a number.
fn fractional(operator: &str, left: f64, right: f64) -> Result<Option<Value>, SqlError> {
    let result = match operator {
        "+" => left + right,
        "-" => left - right,
        "*" => left * right,
        _ if right == 0.0 => return Err(divided_by_zero()),
        "/" => left / right,
        _ => left % right,
    };
    Ok(result.is_finite().then_some(Value::Float(result)))
}

fn divided_by_zero() -> SqlError {
    SqlError::new(8134, 16, "Divide by zero error encountered.")
}

fn overflow(ty: Type) -> SqlError {
    let text = format!("Arithmetic overflow error converting expression to data type {ty}.");
    SqlError::new(8115, 16, text)
}

/// `hw_count(clause, number)`: the number, if it is valid for the clause.
fn count(context: &Context<'_>) -> rusqlite::Result<i64> {
    let (clause, number): (String, Option<i64>) = (context.get(0)?, context.get(1)?);
    let (code, what) = match (clause.as_str(), number) {
        (_, None) => (1060, "may not be NULL"),
        ("FETCH", Some(..=0)) => (10744, "must be greater than zero"),
        ("OFFSET", Some(..0)) => (10742, "may not be negative"),
        (_, Some(..0)) => (127, "may not be negative"),
        (_, Some(number)) => return Ok(number),
    };
    let text = format!("The number of rows of a {clause} clause {what}.");
    Err(failure(&SqlError::new(code, 15, text)))
}

/// `hw_round(number, digits)`: half away from zero, and before the decimal point for negative digits.
fn round(context: &Context<'_>) -> rusqlite::Result<Stored> {
    let digits = context.get::<Option<i64>>(1)?;
    let (text, is_whole) = match (context.get_raw(0), digits) {
        (ValueRef::Integer(number), Some(_)) => (number.to_string(), true),
        (ValueRef::Real(number), Some(_)) => (number.to_string(), false),
        _ => return Ok(Stored::Null),
    };
    let rounded = || {
        let (number, scale) = convert::parse_decimal(&text)?;
        let places = i64::from(scale).checked_sub(digits?)?;
        let Some(places) = u32::try_from(places).ok().filter(|places| *places > 0) else {
            return Some(text.clone());
        };
        let Some(unit) = 10_i128.checked_pow(places) else {
            return Some("0".to_owned());
        };
        let half = if number < 0 { -unit / 2 } else { unit / 2 };
        Some(convert::decimal_text((number + half) / unit * unit, scale))
    };
    let rounded = rounded().ok_or_else(|| failure(&overflow(Type::Float)))?;
    let stored = if is_whole {
        rounded.parse().map(Stored::Integer).ok()
    } else {
        rounded.parse().map(Stored::Real).ok()
    };
    stored.ok_or_else(|| failure(&overflow(Type::BigInt)))
}
