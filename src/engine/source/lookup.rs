//! One row by its key, with everything that decides when it is delivered.

use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use super::FetchError;
use crate::cursor::{Cursor, KeyValues, SourceFingerprint, SourceState};

/// The row to look up, and where the poller is.
#[derive(Clone, Copy, Debug)]
pub struct RowLookup<'a> {
    /// The key. A value may be the text of any type that the server converts.
    pub key: &'a KeyValues,
    /// The source of the state document; `None` if there is no document.
    pub stored: Option<&'a SourceFingerprint>,
    /// The checkpoint.
    pub after: Option<&'a Cursor>,
    /// The retained state of the source.
    pub state: &'a SourceState,
}

/// What the source knows about a row.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a row")]
pub struct RowReport {
    /// Whether the table or view has the row.
    pub exists: bool,
    /// Whether another transaction has locked the row, so that nothing else about it is known.
    pub is_locked: bool,
    /// Whether its last known change is a delete.
    pub is_deleted: bool,
    /// The position at which it is delivered; `None` if unknown.
    pub position: Option<Cursor>,
    /// The cursor column, if it is NULL in this row.
    pub null_cursor: Option<String>,
    /// Whether the position is after the checkpoint, by the server's comparison.
    pub is_after: bool,
    /// Whether the position is below the upper bound of a read.
    pub is_readable: bool,
    /// The upper bound; `None` if the mode has none.
    pub bound: Option<String>,
    /// How long until the row settles, if that is known.
    pub settles_in: Option<Duration>,
    /// The conditions of the filter, in order.
    pub predicates: Vec<Predicate>,
    /// Whether its operation is delivered.
    pub is_selected: bool,
    /// The number of its partition, if the poller is partitioned.
    pub partition: Option<u16>,
    /// Sessions with open transactions that write, oldest first; empty if the login may not see them.
    pub sessions: Vec<Session>,
}

/// A condition on rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Predicate {
    /// As written in the settings.
    pub text: String,
    /// Whether the row satisfies it.
    pub holds: bool,
}

/// A session of the database with an open transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Session {
    /// Its number.
    pub id: i64,
    /// Its login.
    pub login: Option<String>,
    /// The machine.
    pub host: Option<String>,
    /// The program.
    pub program: Option<String>,
    /// How long ago the transaction first wrote.
    pub seconds: i64,
}

/// A row that could not be looked up.
#[derive(Debug, Error)]
pub enum LookupError {
    /// The value does not have the type of the key column.
    #[error("invalid value for key column `{column}`: {reason}")]
    Value {
        /// The column.
        column: String,
        /// What is wrong.
        reason: String,
    },
    /// The source could not be read.
    #[error(transparent)]
    Fetch(#[from] FetchError),
}
