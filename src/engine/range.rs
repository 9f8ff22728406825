//! Ranges of a poller's past that are redelivered: positions as people write them, which ranges are valid, the names
//! of their documents, and the direction of a moved checkpoint. Pure.
//!
//! A range starts *after* a position and ends *at* one: `(from, to]`, as between two checkpoints. It lies in the
//! past: what comes after the checkpoint is delivered by the poller itself, and a range that overtook it would
//! deliver rows that may not be complete yet.

mod direction;

use std::cmp::Ordering;

use thiserror::Error;

pub use self::direction::{Direction, is_first_reading, mismatch, refuse_future, refuse_other_key};
use crate::cursor::{
    Cursor, CursorError, CursorMode, KeyValues, RowVersion, TrackedPhase, TrackedPosition,
    normalize_timestamp,
};

/// Why a range cannot be redelivered.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RangeError {
    /// The text is not a position.
    #[error("invalid position `{text}` for mode `{mode}`: {reason}")]
    Position {
        /// The text.
        text: String,
        /// The mode of the poller.
        mode: CursorMode,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// It would overtake the poller.
    #[error(
        "the range ends at `{upto}`, beyond the poller's checkpoint `{checkpoint}`; the poller itself delivers \
         what follows. End it at the checkpoint with `--to-checkpoint`"
    )]
    BeyondCheckpoint {
        /// Leading part of the end.
        upto: String,
        /// Leading part of the checkpoint.
        checkpoint: String,
    },
    /// It may overtake the poller; only the server knows.
    #[error(
        "the range ends at `{0}` as the checkpoint does, but at another key, and only the server knows which \
         comes first: end it at the checkpoint with `--to-checkpoint`, or at an earlier position"
    )]
    KeyUnknown(String),
    /// It ends at or before its start.
    #[error("the range is empty: it starts after `{after}` and ends at `{upto}`")]
    Empty {
        /// Leading part of the start.
        after: String,
        /// Leading part of the end.
        upto: String,
    },
    /// The position is beyond all rows of the source.
    #[error(
        "`{to}` is beyond the end of the source, which is at `{present}`; rows that are not written \
         yet would be skipped. Use `to-now` to go to the end"
    )]
    BeyondPresent {
        /// Leading part of the position.
        to: String,
        /// Leading part of the source's end.
        present: String,
    },
    /// Its key belongs to another table.
    #[error(
        "the key `{found}` does not fit this source, whose key columns are `{columns}`: give a value of each, or no key"
    )]
    Key {
        /// The given key.
        found: String,
        /// Key columns of the source.
        columns: String,
    },
    /// The position has another mode.
    #[error("a position of mode `{0}` does not apply to a poller of mode `{1}`")]
    OtherMode(CursorMode, CursorMode),
    /// The initial snapshot of change tracking is not part of the changes.
    #[error(
        "rows of the initial snapshot of change tracking have no position among the changes, so they \
         cannot be replayed: start at a version, such as `--from 17`; to redeliver all rows of the \
         table, add a poller with the same source under another name"
    )]
    FirstReading,
}

/// A range of a poller's past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The position before its first row; `None` for the beginning.
    pub after: Option<Cursor>,
    /// The position of its last row.
    pub upto: Cursor,
}

impl Range {
    /// Returns the range if it is before `checkpoint`; `upto` defaults to the checkpoint itself.
    ///
    /// # Errors
    ///
    /// [`RangeError`]; it says what is wrong, and what to use instead.
    pub fn before(
        checkpoint: &Cursor,
        after: Option<Cursor>,
        upto: Option<Cursor>,
    ) -> Result<Self, RangeError> {
        let upto = end(checkpoint, upto)?;
        if let Some(after) = &after {
            refuse_empty(after, &upto)?;
        }
        if checkpoint.mode == CursorMode::ChangeTracking {
            let is_change = |cursor: &Cursor| {
                let at = cursor.value.parse::<TrackedPosition>();
                at.is_ok_and(|at| at.phase == TrackedPhase::Changes)
            };
            if !after.as_ref().is_some_and(is_change) || !is_change(&upto) {
                return Err(RangeError::FirstReading);
            }
        }
        Ok(Self { after, upto })
    }

    /// Returns the range as text.
    pub fn text(&self) -> String {
        let after = self.after.as_ref().map_or_else(
            || "from the beginning".to_owned(),
            |after| format!("after {}", position_text(after)),
        );
        format!("{after}, up to and including {}", position_text(&self.upto))
    }

    /// Returns the windows that end at `ends`, which must be in order and within the range.
    pub fn windows(&self, ends: &[Cursor]) -> Vec<Self> {
        let mut after = self.after.clone();
        let inner = ends.iter().filter(|end| **end != self.upto);
        let ends = inner.chain(std::iter::once(&self.upto));
        let window =
            |upto: &Cursor| Self { after: after.replace(upto.clone()), upto: upto.clone() };
        ends.map(window).collect()
    }
}

fn end(checkpoint: &Cursor, upto: Option<Cursor>) -> Result<Cursor, RangeError> {
    let Some(upto) = upto else { return Ok(checkpoint.clone()) };
    let other_mode = || RangeError::OtherMode(upto.mode, checkpoint.mode);
    match upto.compare_leading(checkpoint).ok_or_else(other_mode)? {
        Ordering::Less => Ok(upto),
        // The checkpoint is after all rows with its leading part.
        Ordering::Equal if checkpoint.key.is_empty() || upto == *checkpoint => Ok(upto),
        // The poller has delivered nothing after the checkpoint yet.
        Ordering::Equal if upto.key.is_empty() => Ok(checkpoint.clone()),
        Ordering::Equal => Err(RangeError::KeyUnknown(upto.value)),
        Ordering::Greater => Err(RangeError::BeyondCheckpoint {
            upto: upto.value,
            checkpoint: checkpoint.value.clone(),
        }),
    }
}

fn refuse_empty(after: &Cursor, upto: &Cursor) -> Result<(), RangeError> {
    let empty = match after.compare_leading(upto) {
        None => return Err(RangeError::OtherMode(after.mode, upto.mode)),
        Some(Ordering::Less) => false,
        // After all rows of its leading part, nothing of it is left; only the server can order two keys.
        Some(Ordering::Equal) => after.key.is_empty() || after == upto,
        Some(Ordering::Greater) => true,
    };
    if empty {
        return Err(RangeError::Empty { after: after.value.clone(), upto: upto.value.clone() });
    }
    Ok(())
}

/// Parses a position: a JSON object as in state documents, or its leading part alone, which means the position after
/// all rows that have it.
///
/// `like` is a position of the poller: it determines the mode, and the format of times.
///
/// # Errors
///
/// [`RangeError::Position`] or [`RangeError::OtherMode`].
pub fn position(text: &str, like: &Cursor) -> Result<Cursor, RangeError> {
    let text = text.trim();
    let wrong =
        |reason: String| RangeError::Position { text: text.to_owned(), mode: like.mode, reason };
    if !text.starts_with('{') {
        let value = leading(text, like).map_err(wrong)?;
        return Ok(Cursor { mode: like.mode, value, key: KeyValues::new() });
    }
    let read: Cursor = serde_json::from_str(text).map_err(|error| {
        wrong(format!("{error}; expected `kind`, `value` and `tiebreaker` as in a state document"))
    })?;
    if read.mode != like.mode {
        return Err(RangeError::OtherMode(read.mode, like.mode));
    }
    let value = leading(&read.value, like).map_err(wrong)?;
    Ok(Cursor { value, ..read })
}

fn leading(text: &str, like: &Cursor) -> Result<String, String> {
    let message = |error: CursorError| error.to_string();
    match like.mode {
        CursorMode::RowVersion => {
            text.parse::<RowVersion>().map(|version| version.to_string()).map_err(message)
        }
        CursorMode::IntegerPk => {
            let number = Cursor { value: text.to_owned(), ..like.clone() }.integer_value();
            number.map(|number| number.to_string()).map_err(message)
        }
        CursorMode::ChangeTracking => {
            text.parse::<TrackedPosition>().map(|at| at.to_string()).map_err(message)
        }
        CursorMode::TimestampPk => time(text, &like.value),
    }
}

/// Parses a time in the poller's own format: with `Z` or as a date if the poller's times are. The time of day may be
/// omitted, and a space may replace the `T`.
fn time(text: &str, like: &str) -> Result<String, String> {
    let message = |error: CursorError| error.to_string();
    let is_date = |text: &str| !text.contains(['T', ' ']);
    if is_date(like) {
        let date = normalize_timestamp(text).map_err(message)?;
        return if is_date(&date) {
            Ok(date)
        } else {
            Err("the cursor column holds dates, so expected one such as `2026-04-07`".to_owned())
        };
    }
    let zoned = like.ends_with('Z');
    let (body, has_zone) = text.strip_suffix('Z').map_or((text, false), |body| (body, true));
    if has_zone && !zoned {
        return Err("the cursor column has no offset, so leave out the `Z`".to_owned());
    }
    let body = body.replacen(' ', "T", 1);
    let body = if is_date(&body) { format!("{body}T00:00:00") } else { body };
    normalize_timestamp(&format!("{body}{}", if zoned { "Z" } else { "" })).map_err(message)
}

/// Returns a position in text for people.
pub fn position_text(cursor: &Cursor) -> String {
    if cursor.key.is_empty() {
        return format!("{} `{}`", cursor.mode, cursor.value);
    }
    let key = cursor.key.to_json();
    format!("{} `{}` with key {key}", cursor.mode, cursor.value)
}

/// Whether the text can be the id of a range: 1 to 32 lower-case letters, digits and `-`.
pub fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&text.len()) && text.bytes().all(fits)
}

/// The purpose of redelivering a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Redeliver it as it was.
    Replay,
    /// Redeliver it in windows, to a target that needs everything again.
    Backfill,
}

impl Purpose {
    /// Returns its name, which is part of document names.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Backfill => "backfill",
        }
    }

    /// Returns the name of the range `id` of `poller`, under which it is stored and delivered.
    pub fn name(self, poller: &str, id: &str) -> String {
        format!("{poller}.{}.{id}", self.as_str())
    }

    /// Returns the id by which a target recognises its rows as a replay; the same in all windows.
    pub fn replay_id(self, id: &str) -> String {
        format!("{}-{id}", self.as_str())
    }
}

/// Returns the name of a window of the range `name`; the first one has number 1.
pub fn window_name(name: &str, number: usize) -> String {
    format!("{name}.{number}")
}

#[cfg(test)]
mod tests;
