//! Which part of a poller's past is delivered again: positions as people write them, what a range may be,
//! and under which names it is kept; and which way a checkpoint moves that is put elsewhere. Pure.
//!
//! A range begins *after* a position and ends *at* one, which is part of it: `(from, to]`, as between two
//! checkpoints. It lies in the past: what comes after the checkpoint is the poller's own to deliver, and a
//! range that overtook it would deliver rows that may not be complete yet.

mod direction;

use std::cmp::Ordering;

use thiserror::Error;

pub use self::direction::{Direction, is_first_reading, misfit, refuse_future, refuse_other_key};
use crate::cursor::{
    Cursor, CursorError, CursorMode, KeyValues, RowVersion, TrackedPhase, TrackedPosition,
    normalize_timestamp,
};

/// Why something is no range that can be delivered again.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RangeError {
    /// The text is no position.
    #[error("`{text}` is no position of mode `{mode}`: {reason}")]
    Position {
        /// As it was given.
        text: String,
        /// Of the poller.
        mode: CursorMode,
        /// Why not, and what was expected.
        reason: String,
    },
    /// It would overtake the poller.
    #[error(
        "the range ends at `{upto}`, beyond the poller's checkpoint `{checkpoint}`: what comes after that is \
         delivered by the poller itself; end it at the checkpoint with `--to-checkpoint`"
    )]
    BeyondCheckpoint {
        /// Leading part of the end.
        upto: String,
        /// Leading part of the checkpoint.
        checkpoint: String,
    },
    /// Whether it would overtake the poller only the server knows.
    #[error(
        "the range ends at `{0}` as the checkpoint does, but at another key, and only the server knows which \
         comes first: end it at the checkpoint with `--to-checkpoint`, or at an earlier position"
    )]
    KeyUnknown(String),
    /// It ends where it starts, or before.
    #[error("the range is empty: it starts after `{after}` and ends at `{upto}`")]
    Empty {
        /// Leading part of the beginning.
        after: String,
        /// Leading part of the end.
        upto: String,
    },
    /// It is past everything that the source has.
    #[error(
        "`{to}` lies beyond all that the source has, which ends at `{present}`: rows that nobody has written \
         yet would be skipped; `to-now` goes to the end"
    )]
    BeyondPresent {
        /// Leading part of the position.
        to: String,
        /// Leading part of the end.
        present: String,
    },
    /// Its key is that of another table.
    #[error(
        "the key `{found}` does not fit this source, whose key columns are `{columns}`: give a value of each, or no key"
    )]
    Key {
        /// As it was given.
        found: String,
        /// Key columns of the source.
        columns: String,
    },
    /// A position was made by another mode.
    #[error("a position of mode `{0}` says nothing of a poller of mode `{1}`")]
    OtherMode(CursorMode, CursorMode),
    /// Change tracking's first reading is no part of the changes.
    #[error(
        "rows that change tracking delivered by its first reading of the table have no place among the \
         changes, so they cannot be delivered again as they were: begin at a version, such as `--from 17`; to \
         deliver all rows of the table anew, give a poller with the same source another name"
    )]
    FirstReading,
}

/// A part of a poller's past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Rows come after it; `None` for the beginning.
    pub after: Option<Cursor>,
    /// Rows come up to it, and it is part of the range.
    pub upto: Cursor,
}

impl Range {
    /// Returns the range if it is before `checkpoint`; `upto` is the checkpoint itself where none is
    /// given.
    ///
    /// # Errors
    ///
    /// [`RangeError`] says what is wrong with it, and what to ask for instead.
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

    /// Returns the windows that end at `ends`, which are in order and within the range.
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
        // The checkpoint is after all rows that have its leading part.
        Ordering::Equal if checkpoint.key.is_empty() || upto == *checkpoint => Ok(upto),
        // Behind the checkpoint there is nothing yet that the poller has delivered.
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
        // Behind all rows of its leading part nothing is left of it; of two keys only the server knows.
        Some(Ordering::Equal) => after.key.is_empty() || after == upto,
        Some(Ordering::Greater) => true,
    };
    if empty {
        return Err(RangeError::Empty { after: after.value.clone(), upto: upto.value.clone() });
    }
    Ok(())
}

/// Reads a position: a JSON object as state documents have it, or its leading part alone, which then
/// means the position after all rows that have it.
///
/// `like` is a position of the poller: it says of which mode they are, and how its times are written.
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

/// Reads a time in the form of the poller's own: with `Z` where those have it, as a date where they are
/// dates. The hours may be left out, and a space may replace the `T`.
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

/// Returns a position as people read it.
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

/// What a range is delivered again for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Once more, as it was.
    Replay,
    /// In windows, to a target that needs everything again.
    Backfill,
}

impl Purpose {
    /// Returns its name, which is part of the names of documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Backfill => "backfill",
        }
    }

    /// Returns the name under which the range `id` of `poller` is kept, and delivers.
    pub fn name(self, poller: &str, id: &str) -> String {
        format!("{poller}.{}.{id}", self.as_str())
    }

    /// Returns the id by which a target recognises its rows as a replay; the same in all windows.
    pub fn replay_id(self, id: &str) -> String {
        format!("{}-{id}", self.as_str())
    }
}

/// Returns the name of a window of the range that is kept under `name`; the first one is 1.
pub fn window_name(name: &str, number: usize) -> String {
    format!("{name}.{number}")
}

#[cfg(test)]
mod tests;
