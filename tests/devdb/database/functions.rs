//! Functions that translated statements call, all named `hw_…`.
#![expect(clippy::wildcard_enum_match_arm, reason = "dates are picked out of all values")]

mod numbers;
mod texts;

use std::{error::Error, sync::Arc};

use rusqlite::{
    Connection,
    functions::{Context, FunctionFlags},
    types::{Value as Stored, ValueRef},
};

use sha2::{Digest as _, Sha256};

use super::{
    like,
    shared::{SessionState, Shared},
    store::{loaded, loaded_untyped, stored},
};
use crate::{
    codepage::CodePage,
    convert,
    dates::{self, DAY, Stamp},
    tsql::{lexer, parser::physical},
    types::{Named, SqlError, Type, Value},
    variant,
};

const PURE: FunctionFlags = FunctionFlags::SQLITE_UTF8.union(FunctionFlags::SQLITE_DETERMINISTIC);
const IMPURE: FunctionFlags = FunctionFlags::SQLITE_UTF8;

/// How an [`SqlError`] travels through SQLite's error text.
const MARK: &str = "hw-error";

/// Registers every function on a connection.
pub(crate) fn register(
    connection: &Connection,
    shared: &Arc<Shared>,
    state: &Arc<SessionState>,
) -> rusqlite::Result<()> {
    connection.create_scalar_function("hw_cast", 4, PURE, cast)?;
    connection.create_scalar_function("hw_assign", 4, PURE, assign)?;
    connection.create_scalar_function("hw_page", 2, PURE, page)?;
    connection.create_scalar_function("hw_dateadd", 4, PURE, date_add)?;
    connection.create_scalar_function("hw_datediff", 3, PURE, date_difference)?;
    let session = state.clone();
    connection.create_scalar_function("hw_object", 1, PURE, move |context| {
        let name = context.get::<Option<String>>(0)?;
        Ok(name.and_then(|name| object(&name, &session.database)))
    })?;
    numbers::register(connection)?;
    texts::register(connection)?;
    connection.create_scalar_function("hw_variant", 2, PURE, variant_property)?;
    connection.create_scalar_function("hw_like", 3, PURE, is_like)?;
    connection.create_scalar_function("hw_sha256", 1, PURE, sha256)?;
    let clock = shared.clone();
    connection
        .create_scalar_function("hw_now", 0, IMPURE, move |_| Ok(dates::stamp_text(clock.now())))?;
    let clock = shared.clone();
    connection.create_scalar_function("hw_local_now", 0, IMPURE, move |_| {
        Ok(dates::stamp_text(clock.local_now()))
    })?;
    let versions = shared.clone();
    connection.create_scalar_function("hw_dbts", 0, IMPURE, move |_| {
        Ok(versions.last_version().to_be_bytes().to_vec())
    })?;
    let versions = shared.clone();
    connection.create_scalar_function("hw_min_active", 0, IMPURE, move |_| {
        Ok(versions.min_active_version().to_be_bytes().to_vec())
    })?;
    let (versions, session) = (shared.clone(), state.clone());
    connection.create_scalar_function("hw_next_rowversion", 0, IMPURE, move |_| {
        Ok(versions.next_version(session.id).to_be_bytes().to_vec())
    })?;
    let (identities, session) = (shared.clone(), state.clone());
    connection.create_scalar_function("hw_next_identity", 1, IMPURE, move |context| {
        let identity = identities.next_identity(&context.get::<String>(0)?);
        session.update(|facts| facts.identity = Some(identity));
        Ok(identity)
    })?;
    let identities = shared.clone();
    connection.create_scalar_function("hw_last_identity", 1, IMPURE, move |context| {
        let table = context.get::<Option<String>>(0)?;
        let last = table.and_then(|table| identities.last_identity(&table));
        // For a table that never had a row, SQL Server returns the seed.
        Ok(last.map(|last| last.max(1)))
    })?;
    register_facts(connection, state)
}

fn register_facts(connection: &Connection, state: &Arc<SessionState>) -> rusqlite::Result<()> {
    let session = state.clone();
    connection
        .create_scalar_function("hw_database", 0, IMPURE, move |_| Ok(session.database.clone()))?;
    let session = state.clone();
    connection
        .create_scalar_function("hw_identity", 0, IMPURE, move |_| Ok(session.facts().identity))?;
    let session = state.clone();
    connection.create_scalar_function("hw_rowcount", 0, IMPURE, move |_| {
        Ok(i64::try_from(session.facts().row_count).unwrap_or(i64::MAX))
    })?;
    let session = state.clone();
    connection.create_scalar_function("hw_trancount", 0, IMPURE, move |_| {
        Ok(session.facts().transactions)
    })?;
    let session = state.clone();
    connection.create_scalar_function("hw_lock_timeout", 0, IMPURE, move |_| {
        Ok(session.facts().lock_timeout_ms)
    })?;
    connection.create_scalar_function("hw_newid", 0, IMPURE, |_| {
        Ok(stored(Type::Guid, &Value::Guid(uuid::Uuid::new_v4().into_bytes())))
    })
}

/// The error in an SQLite error text, if a function of this module raised it.
pub(crate) fn raised(text: &str) -> Option<SqlError> {
    let mut parts = text.splitn(4, '|');
    if parts.next() != Some(MARK) {
        return None;
    }
    let number = parts.next()?.parse().ok()?;
    let class = parts.next()?.parse().ok()?;
    Some(SqlError::new(number, class, parts.next()?))
}

/// Raises an error from a function or from reading a value.
pub(crate) fn failure(error: &SqlError) -> rusqlite::Error {
    let text = format!("{MARK}|{}|{}|{}", error.number, error.class, error.message);
    rusqlite::Error::UserFunctionError(text.into())
}

/// `hw_cast(value, from, to, style)`
fn cast(context: &Context<'_>) -> rusqlite::Result<Stored> {
    let from = source_type(context)?;
    let to = target_type(context)?;
    let value = argument(context, 0, from)?;
    let converted = convert::cast(&value, from, to, context.get(3)?);
    converted.map(|value| stored(to, &value)).map_err(|error| failure(&error))
}

/// `hw_assign(value, from, to, column)`
fn assign(context: &Context<'_>) -> rusqlite::Result<Stored> {
    let from = source_type(context)?;
    let to = target_type(context)?;
    let value = argument(context, 0, from)?;
    let column: String = context.get(3)?;
    let converted = convert::assign(&value, from, to, &column);
    converted.map(|value| stored(to, &value)).map_err(|error| failure(&error))
}

/// `hw_page(text, collation)`
fn page(context: &Context<'_>) -> rusqlite::Result<Option<String>> {
    let page = CodePage::of(&context.get::<String>(1)?).unwrap_or_default();
    let text = match context.get_raw(0) {
        ValueRef::Null => return Ok(None),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(half_pair) => convert::wide_text(half_pair),
        ValueRef::Integer(_) | ValueRef::Real(_) => context.get(0)?,
    };
    Ok(Some(page.convert(&text)))
}

/// `hw_dateadd(part, number, date, type)`
fn date_add(context: &Context<'_>) -> rusqlite::Result<Stored> {
    let part: String = context.get(0)?;
    let ty = read_type(&context.get::<String>(3)?)?;
    let Some(number) = context.get::<Option<i64>>(1)? else {
        return Ok(Stored::Null);
    };
    let value = argument(context, 2, Some(ty))?;
    let move_stamp = |stamp: Stamp| {
        let ticks = match part.as_str() {
            "year" | "yy" | "yyyy" => return add_months(stamp, number.checked_mul(12)?),
            "month" | "mm" | "m" => return add_months(stamp, number),
            part => dates::unit_ticks(part)?,
        };
        // Units below a tick are given in hundreds.
        let by = i128::from(number) * i128::from(ticks);
        dates::shift(
            stamp,
            if matches!(part.as_str(), "nanosecond" | "ns") { by / 100 } else { by },
        )
    };
    let moved = match value {
        Value::Null => return Ok(Stored::Null),
        Value::Date(days) => move_stamp((days, 0)).map(|(days, _)| Value::Date(days)),
        Value::DateTime2(days, ticks) => {
            move_stamp((days, ticks)).map(|(days, ticks)| Value::DateTime2(days, ticks))
        }
        Value::DateTimeOffset(days, ticks, offset) => move_stamp((days, ticks))
            .map(|(days, ticks)| Value::DateTimeOffset(days, ticks, offset)),
        _ => None,
    };
    let text = "Adding a value to a date column caused an overflow.";
    let moved = moved.ok_or_else(|| failure(&SqlError::new(517, 16, text)))?;
    let rounded = convert::cast(&moved, Some(ty), ty, 0).map_err(|error| failure(&error))?;
    Ok(stored(ty, &rounded))
}

/// `hw_datediff(part, from, to)`: the number of boundaries of the part in between.
fn date_difference(context: &Context<'_>) -> rusqlite::Result<Option<i64>> {
    let part: String = context.get(0)?;
    let instant = |index: usize| {
        let text = context.get::<Option<String>>(index)?;
        Ok::<_, rusqlite::Error>(text.and_then(|text| dates::parse(&text)).map(|p| p.stamp))
    };
    let (Some(from), Some(to)) = (instant(1)?, instant(2)?) else {
        return Ok(None);
    };
    let months = |(days, _): Stamp| {
        let (year, month, _) = dates::civil(days);
        year * 12 + i64::from(month)
    };
    let difference = match part.as_str() {
        "year" | "yy" | "yyyy" => Some(dates::civil(to.0).0 - dates::civil(from.0).0),
        "month" | "mm" | "m" => Some(months(to) - months(from)),
        part => dates::unit_ticks(part).and_then(|unit| {
            let total =
                |(days, ticks): Stamp| i128::from(days) * i128::from(DAY) + i128::from(ticks);
            let units = |stamp| total(stamp).div_euclid(unit.into());
            i64::try_from(units(to) - units(from)).ok()
        }),
    };
    let text = format!("'{part}' is not a recognized datediff option.");
    difference.map(Some).ok_or_else(|| failure(&SqlError::new(155, 15, text)))
}

/// `hw_variant(variant, property)`
fn variant_property(context: &Context<'_>) -> rusqlite::Result<Stored> {
    let (Some(of), name) = (context.get::<Option<String>>(0)?, context.get::<String>(1)?) else {
        return Ok(Stored::Null);
    };
    let property = variant::property(&of, &name).unwrap_or(Value::Null);
    Ok(stored(Type::Named(Named::Variant), &property))
}

/// `hw_like(text, pattern, escape)`
fn is_like(context: &Context<'_>) -> rusqlite::Result<Option<bool>> {
    let (text, pattern) = (context.get::<Option<String>>(0)?, context.get::<Option<String>>(1)?);
    let escape = context.get::<Option<String>>(2)?;
    let escape = escape.and_then(|escape| escape.chars().next());
    Ok(text.zip(pattern).map(|(text, pattern)| like::fits(&text, &pattern, escape)))
}

/// `hw_sha256(bytes)`
fn sha256(context: &Context<'_>) -> rusqlite::Result<Option<Vec<u8>>> {
    let bytes = context.get::<Option<Vec<u8>>>(0)?;
    Ok(bytes.map(|bytes| Sha256::digest(bytes).to_vec()))
}

/// `hw_object(name)`: physical name of the table that a T-SQL name in a string refers to.
fn object(name: &str, database: &str) -> Option<String> {
    let tokens = lexer::tokens(name).ok()?;
    let mut parts = Vec::new();
    let mut tokens = tokens.iter().peekable();
    loop {
        parts.push(match tokens.next()? {
            lexer::Token::Word(part) | lexer::Token::Name(part) => part.clone(),
            // An empty part between two dots is the default schema.
            lexer::Token::Symbol(".") if parts.len() == 1 => {
                parts.push("dbo".to_owned());
                continue;
            }
            _ => return None,
        });
        match tokens.next() {
            Some(lexer::Token::Symbol(".")) => {}
            None => return physical(&parts, database),
            Some(_) => return None,
        }
    }
}

fn argument(context: &Context<'_>, index: usize, ty: Option<Type>) -> rusqlite::Result<Value> {
    let raw: ValueRef<'_> = context.get_raw(index);
    ty.map_or_else(|| Ok(loaded_untyped(raw)), |ty| loaded(ty, raw))
}

/// Type named by the second argument, cached between rows.
fn source_type(context: &Context<'_>) -> rusqlite::Result<Option<Type>> {
    let parse = |value: ValueRef<'_>| -> Result<_, Box<dyn Error + Send + Sync>> {
        let text = value.as_str()?;
        if text.is_empty() { Ok(None) } else { Ok(Some(read_type(text)?)) }
    };
    context.get_or_create_aux(1, parse).map(|ty: Arc<Option<Type>>| *ty)
}

/// Type named by the third argument, cached between rows.
fn target_type(context: &Context<'_>) -> rusqlite::Result<Type> {
    let parse = |value: ValueRef<'_>| -> Result<_, Box<dyn Error + Send + Sync>> {
        Ok(read_type(value.as_str()?)?)
    };
    context.get_or_create_aux(2, parse).map(|ty: Arc<Type>| *ty)
}

/// Parses the display form of [`Type`].
pub(crate) fn read_type(text: &str) -> rusqlite::Result<Type> {
    let unknown = || failure(&SqlError::new(243, 16, format!("Type {text} is not defined.")));
    Type::read(text).ok_or_else(unknown)
}

/// Adds months; a day that the month does not have becomes its last.
fn add_months((days, ticks): Stamp, months: i64) -> Option<Stamp> {
    let (year, month, day) = dates::civil(days);
    let total = (year * 12 + i64::from(month) - 1).checked_add(months)?;
    let (year, month) = (total.div_euclid(12), u32::try_from(total.rem_euclid(12)).ok()? + 1);
    let days = (0..4).find_map(|back| dates::days(year, month, day.checked_sub(back)?))?;
    Some((days, ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_parses_what_it_displays() {
        for ty in [
            Type::NVarChar(None),
            Type::VarBinary(Some(9)),
            Type::Decimal(38, 10),
            Type::RowVersion,
            Type::DateTime2(0),
            Type::Char(3),
            Type::SmallMoney,
        ] {
            assert_eq!(read_type(&ty.to_string()).unwrap(), ty);
        }
        assert!(read_type("vector").is_err());
    }

    #[test]
    fn months_end_on_their_last_day() {
        let day = |y, m, d| (dates::days(y, m, d).unwrap(), 0);
        assert_eq!(add_months(day(2026, 1, 31), 1), Some(day(2026, 2, 28)));
        assert_eq!(add_months(day(2026, 3, 31), -13), Some(day(2025, 2, 28)));
    }
}
