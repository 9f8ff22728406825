//! Functions of text, whose characters are UTF-16 code units as in SQL Server.

use rusqlite::{
    Connection,
    functions::Context,
    types::{Value as Stored, ValueRef},
};

use super::{PURE, failure};
use crate::types::SqlError;

/// Longest text that a function builds, in characters.
const REPLICATED_MAX: usize = 1 << 28;

pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    connection.create_scalar_function("hw_upper", 1, PURE, |context| {
        Ok(text(context, 0)?.map(|text| text.to_uppercase()))
    })?;
    connection.create_scalar_function("hw_lower", 1, PURE, |context| {
        Ok(text(context, 0)?.map(|text| text.to_lowercase()))
    })?;
    connection.create_scalar_function("hw_length", 1, PURE, |context| {
        let blank = u16::from(b' ');
        let length = |units: Vec<u16>| {
            let end = units.iter().rposition(|unit| *unit != blank).map_or(0, |last| last + 1);
            i64::try_from(end).unwrap_or(i64::MAX)
        };
        Ok(units(context, 0)?.map(length))
    })?;
    connection.create_scalar_function("hw_substring", 3, PURE, substring)?;
    connection.create_scalar_function("hw_bytes", 3, PURE, bytes)?;
    connection.create_scalar_function("hw_replace", 4, PURE, replace)?;
    connection.create_scalar_function("hw_replicate", 3, PURE, replicate)
}

/// The code units of an argument; a text with an unpaired surrogate is stored as bytes.
fn units(context: &Context<'_>, at: usize) -> rusqlite::Result<Option<Vec<u16>>> {
    Ok(match context.get_raw(at) {
        ValueRef::Null => None,
        ValueRef::Blob(bytes) => {
            let (units, _) = bytes.as_chunks::<2>();
            Some(units.iter().copied().map(u16::from_le_bytes).collect())
        }
        ValueRef::Text(_) | ValueRef::Integer(_) | ValueRef::Real(_) => {
            Some(context.get::<String>(at)?.encode_utf16().collect())
        }
    })
}

fn text(context: &Context<'_>, at: usize) -> rusqlite::Result<Option<String>> {
    Ok(units(context, at)?.map(|units| String::from_utf16_lossy(&units)))
}

fn kept(units: &[u16]) -> Stored {
    String::from_utf16(units).map_or_else(
        |_half_pair| Stored::Blob(units.iter().copied().flat_map(u16::to_le_bytes).collect()),
        Stored::Text,
    )
}

/// `hw_substring(text, start, length)`; the first character is 1.
fn substring(context: &Context<'_>) -> rusqlite::Result<Stored> {
    let (Some(units), Some(range)) = (units(context, 0)?, range(context)?) else {
        return Ok(Stored::Null);
    };
    Ok(kept(part(&units, range)))
}

/// `hw_bytes(bytes, start, length)`
fn bytes(context: &Context<'_>) -> rusqlite::Result<Stored> {
    let (Some(bytes), Some(range)) = (context.get::<Option<Vec<u8>>>(0)?, range(context)?) else {
        return Ok(Stored::Null);
    };
    Ok(Stored::Blob(part(&bytes, range).to_vec()))
}

/// Start and end, counted from 0; both may be out of range.
fn range(context: &Context<'_>) -> rusqlite::Result<Option<(i64, i64)>> {
    let (Some(start), Some(length)) = (context.get::<Option<i64>>(1)?, context.get(2)?) else {
        return Ok(None);
    };
    if length < 0_i64 {
        let text = "Invalid length parameter passed to the LEFT or SUBSTRING function.";
        return Err(failure(&SqlError::new(537, 16, text)));
    }
    let first = start.saturating_sub(1);
    Ok(Some((first, first.saturating_add(length))))
}

fn part<T>(all: &[T], (first, end): (i64, i64)) -> &[T] {
    let place = |at: i64| usize::try_from(at.max(0)).unwrap_or(usize::MAX).min(all.len());
    all.get(place(first)..place(end)).unwrap_or_default()
}

/// `hw_replace(text, from, to, exact)`
fn replace(context: &Context<'_>) -> rusqlite::Result<Option<String>> {
    let (Some(text), Some(from), Some(to)) =
        (text(context, 0)?, text(context, 1)?, text(context, 2)?)
    else {
        return Ok(None);
    };
    if from.is_empty() || context.get::<bool>(3)? {
        return Ok(Some(if from.is_empty() { text } else { text.replace(&from, &to) }));
    }
    let letters: Vec<char> = text.chars().collect();
    let sought: Vec<char> = from.chars().collect();
    let alike = |a: &char, b: &char| a == b || a.to_lowercase().eq(b.to_lowercase());
    let (mut replaced, mut rest) = (String::new(), letters.as_slice());
    while let Some((first, behind)) = rest.split_first() {
        match rest.split_at_checked(sought.len()) {
            Some((here, behind)) if here.iter().zip(&sought).all(|(a, b)| alike(a, b)) => {
                replaced.push_str(&to);
                rest = behind;
            }
            _ => {
                replaced.push(*first);
                rest = behind;
            }
        }
    }
    Ok(Some(replaced))
}

/// `hw_replicate(text, times, longest)`
fn replicate(context: &Context<'_>) -> rusqlite::Result<Stored> {
    let (Some(units), Some(times)) = (units(context, 0)?, context.get::<Option<i64>>(1)?) else {
        return Ok(Stored::Null);
    };
    let Ok(times) = usize::try_from(times) else {
        return Ok(Stored::Null);
    };
    let longest = usize::try_from(context.get::<i64>(2)?).unwrap_or(usize::MAX);
    let wanted = units.len().saturating_mul(times).min(longest);
    if wanted > REPLICATED_MAX {
        let error = SqlError::unsupported("A text of more than 256 Mi characters");
        return Err(failure(&error));
    }
    if let (ValueRef::Text(text), false) = (context.get_raw(0), wanted == longest) {
        return Ok(Stored::Text(String::from_utf8_lossy(text).repeat(times)));
    }
    let all: Vec<u16> = units.iter().copied().cycle().take(wanted).collect();
    Ok(kept(&all))
}
