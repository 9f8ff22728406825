//! The direction in which an operator moves a checkpoint. Pure.

use std::cmp::Ordering;

use super::{Cursor, RangeError};
use crate::cursor::{CursorMode, TrackedPhase, TrackedPosition};

/// The direction in which a checkpoint moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It does not move.
    Stays,
    /// Rows are redelivered.
    Back,
    /// Rows are skipped.
    Forward,
    /// Both positions have the same leading part, and only the server can order their keys.
    ByKey,
}

impl Direction {
    /// Returns the direction from one position to another; `None` is the beginning.
    ///
    /// # Errors
    ///
    /// [`RangeError::OtherMode`] if they have different modes.
    pub fn between(from: Option<&Cursor>, to: Option<&Cursor>) -> Result<Self, RangeError> {
        let (from, to) = match (from, to) {
            (None, None) => return Ok(Self::Stays),
            (Some(_), None) => return Ok(Self::Back),
            (None, Some(_)) => return Ok(Self::Forward),
            (Some(from), Some(to)) => (from, to),
        };
        let other_mode = || RangeError::OtherMode(to.mode, from.mode);
        Ok(match to.compare_leading(from).ok_or_else(other_mode)? {
            Ordering::Less => Self::Back,
            Ordering::Greater => Self::Forward,
            Ordering::Equal if to == from => Self::Stays,
            // Without a key, a position is after all rows with its leading part.
            Ordering::Equal if from.key.is_empty() => Self::Back,
            Ordering::Equal if to.key.is_empty() => Self::Forward,
            Ordering::Equal => Self::ByKey,
        })
    }

    /// Returns the direction, given the number of rows from `to` to `from`. If there are any, `from` is after `to`.
    /// Otherwise it counts as forward, which is the direction that needs confirmation.
    #[must_use]
    pub fn known_by(self, rows_again: u64) -> Self {
        match self {
            Self::ByKey if rows_again > 0 => Self::Back,
            Self::ByKey => Self::Forward,
            known @ (Self::Stays | Self::Back | Self::Forward) => known,
        }
    }
}

/// Rejects a position beyond the end of the source, which would skip rows that are not written yet. `present` is the
/// current end of the source; `None` if it never had rows.
///
/// # Errors
///
/// [`RangeError::BeyondPresent`], or [`RangeError::OtherMode`].
pub fn refuse_future(to: &Cursor, present: Option<&Cursor>) -> Result<(), RangeError> {
    let beyond = |present: String| RangeError::BeyondPresent { to: to.value.clone(), present };
    let Some(present) = present else { return Err(beyond("the beginning".to_owned())) };
    match to.compare_leading(present) {
        None => Err(RangeError::OtherMode(to.mode, present.mode)),
        Some(Ordering::Greater) => Err(beyond(present.value.clone())),
        Some(Ordering::Less | Ordering::Equal) => Ok(()),
    }
}

/// Whether a position is within the initial snapshot of change tracking, whose rows are not changes and cannot be
/// counted as such.
pub fn is_first_reading(cursor: &Cursor) -> bool {
    let at = || cursor.value.parse::<TrackedPosition>();
    cursor.mode == CursorMode::ChangeTracking
        && at().is_ok_and(|at| at.phase == TrackedPhase::Snapshot)
}

/// Rejects a position whose key does not have exactly the columns `key`.
///
/// # Errors
///
/// [`RangeError::Key`].
pub fn refuse_other_key(cursor: &Cursor, key: &[String]) -> Result<(), RangeError> {
    let has_all = key.iter().all(|column| cursor.key.get(column).is_some());
    if cursor.key.is_empty() || (has_all && cursor.key.len() == key.len()) {
        return Ok(());
    }
    Err(RangeError::Key { found: cursor.key.to_json().to_string(), columns: key.join("`, `") })
}

/// Returns why a position does not apply to a source that is read in `mode` by `key`; `None` if it does.
pub fn mismatch(cursor: &Cursor, mode: CursorMode, key: &[String]) -> Option<String> {
    if cursor.mode != mode {
        let found = cursor.mode;
        return Some(format!(
            "the position has mode `{found}`, but the source is read in mode `{mode}`"
        ));
    }
    refuse_other_key(cursor, key).err().map(|_| {
        let found: Vec<&str> = cursor.key.iter().map(|(column, _)| column).collect();
        format!(
            "the key columns of the position are `{}`, but those of the source are `{}`",
            found.join("`, `"),
            key.join("`, `")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::{KeyValues, RowVersion};

    fn rv(version: u64, id: Option<i64>) -> Cursor {
        let key = id.map(|id| ("id".to_owned(), id.into()));
        Cursor::row_version(RowVersion(version), key.into_iter().collect())
    }

    fn tracked(text: &str) -> Cursor {
        Cursor { mode: CursorMode::ChangeTracking, value: text.to_owned(), key: KeyValues::new() }
    }

    #[test]
    fn the_direction_follows_the_leading_part_and_a_missing_key() {
        let at = rv(9, Some(7));
        for (from, to, expected) in [
            (None, None, Direction::Stays),
            (Some(at.clone()), None, Direction::Back),
            (None, Some(at.clone()), Direction::Forward),
            (Some(at.clone()), Some(at.clone()), Direction::Stays),
            (Some(at.clone()), Some(rv(8, Some(99))), Direction::Back),
            (Some(at.clone()), Some(rv(10, Some(1))), Direction::Forward),
            // Rows after the key have the same leading part.
            (Some(at.clone()), Some(rv(9, None)), Direction::Forward),
            (Some(rv(9, None)), Some(at.clone()), Direction::Back),
            (Some(at.clone()), Some(rv(9, Some(1))), Direction::ByKey),
            (Some(tracked("snapshot@9")), Some(tracked("9")), Direction::Forward),
        ] {
            let way = Direction::between(from.as_ref(), to.as_ref());
            assert_eq!(way, Ok(expected), "{from:?} {to:?}");
        }
        let other = Direction::between(Some(&at), Some(&tracked("9")));
        assert!(matches!(other, Err(RangeError::OtherMode(..))));
    }

    #[test]
    fn the_direction_between_two_keys_follows_the_count_and_is_a_skip_if_unknown() {
        assert_eq!(Direction::ByKey.known_by(1), Direction::Back);
        assert_eq!(Direction::ByKey.known_by(0), Direction::Forward);
        assert_eq!(Direction::Back.known_by(0), Direction::Back);
        assert_eq!(Direction::Forward.known_by(3), Direction::Forward);
    }

    #[test]
    fn rows_that_are_not_written_yet_are_not_skipped() {
        assert_eq!(refuse_future(&rv(9, None), Some(&rv(9, None))), Ok(()));
        assert_eq!(refuse_future(&rv(8, Some(1)), Some(&rv(9, None))), Ok(()));
        for present in [Some(rv(9, None)), None] {
            let refused = refuse_future(&rv(10, None), present.as_ref());
            assert!(matches!(refused, Err(RangeError::BeyondPresent { .. })), "{present:?}");
        }
        let other = refuse_future(&rv(1, None), Some(&tracked("9")));
        assert!(matches!(other, Err(RangeError::OtherMode(..))));
    }

    #[test]
    fn a_key_has_the_columns_of_the_source_or_none() {
        let columns = ["id".to_owned()];
        assert_eq!(refuse_other_key(&rv(1, None), &columns), Ok(()));
        assert_eq!(refuse_other_key(&rv(1, Some(1)), &columns), Ok(()));
        for columns in [&["other".to_owned()][..], &["id".to_owned(), "line".to_owned()], &[]] {
            let refused = refuse_other_key(&rv(1, Some(1)), columns);
            assert!(matches!(refused, Err(RangeError::Key { .. })), "{columns:?}");
        }
    }

    #[test]
    fn a_first_reading_is_one_of_change_tracking() {
        assert!(is_first_reading(&tracked("snapshot@3")));
        assert!(!is_first_reading(&tracked("3")) && !is_first_reading(&rv(3, None)));
    }
}
