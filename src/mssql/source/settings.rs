//! Settings of a source.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_engine::cursor::CursorMode;
use highwater_engine::event::Operation;
use highwater_engine::partition::Partition;

use super::{Mask, SizeLimits};
use crate::connection_string::SqlConnection;

/// The relation that rows are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// A table or a view, as written.
    Table(String),
    /// One `SELECT`, as written.
    Query(String),
}

/// What to do if columns are added, removed or retyped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSchemaChange {
    /// Deliver rows in their current form.
    #[default]
    Follow,
    /// Deliver nothing until an operator has decided.
    Stop,
}

/// The clock that fills a time column without an offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceClock {
    /// `SYSUTCDATETIME()`, `GETUTCDATE()`.
    #[default]
    Utc,
    /// `SYSDATETIME()`, `GETDATE()`: the time of the server's zone.
    Local,
    /// A fixed offset from UTC, in minutes.
    Offset(i16),
}

/// What is read, and from where.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// Name of the poller.
    pub poller: String,
    /// Server, database and login.
    pub connection: SqlConnection,
    /// Table or view, such as `orders`, `dbo.orders`, `[dbo].[My Table]`, or a query.
    pub relation: Relation,
    /// How rows are ordered; `None` to choose by what the table offers.
    pub mode: Option<CursorMode>,
    /// The cursor column; change tracking has none.
    pub cursor_column: Option<String>,
    /// Key columns, in key order; together with the cursor they identify a row.
    pub key: Vec<String>,
    /// Columns to deliver; all if absent.
    pub columns: Option<Vec<String>>,
    /// Columns to exclude; none if a list is given.
    pub columns_excluded: Vec<String>,
    /// Columns to leave out or to hash.
    pub mask: Mask,
    /// A condition in T-SQL on the columns of `t`.
    pub filter: Option<String>,
    /// Values of the condition's `@name`s, by name; as text, or typed like `int:5`.
    pub filter_params: BTreeMap<String, String>,
    /// Column that marks a row as deleted.
    pub soft_delete: Option<String>,
    /// The operations to deliver; all if absent.
    pub operations: Option<Vec<Operation>>,
    /// How late a commit may be in the modes that cannot detect it: `timestamp+pk`, `integer+pk`.
    pub settle: Duration,
    /// The clock of a cursor column that holds times without an offset, in mode `timestamp+pk`.
    pub clock: SourceClock,
    /// How much is read at once.
    pub limits: SizeLimits,
    /// What to do if columns are added, removed or retyped.
    pub on_schema_change: OnSchemaChange,
    /// The partition to read; `None` for all rows.
    pub partition: Option<Partition>,
}
