//! Settings of a source.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_engine::cursor::CursorMode;
use highwater_engine::partition::Partition;

use super::SizeLimits;
use crate::connection_string::SqlConnection;

/// What rows are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// A table or a view, as written.
    Table(String),
    /// One `SELECT`, as written.
    Query(String),
}

/// What to do where columns are added, removed or retyped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSchemaChange {
    /// Deliver rows as they are now.
    #[default]
    Follow,
    /// Deliver nothing until somebody has looked.
    Stop,
}

/// The clock that a time column without an offset is filled by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceClock {
    /// `SYSUTCDATETIME()`, `GETUTCDATE()`.
    #[default]
    Utc,
    /// `SYSDATETIME()`, `GETDATE()`: the time of the server's zone.
    Local,
    /// As far from UTC all year, in minutes.
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
    /// How rows are ordered; `None` to choose by what the table has.
    pub mode: Option<CursorMode>,
    /// The column that they are ordered by; change tracking has none.
    pub cursor_column: Option<String>,
    /// Key columns, in key order; together with the cursor they identify a row.
    pub key: Vec<String>,
    /// Columns to deliver; all when absent.
    pub columns: Option<Vec<String>>,
    /// Columns not to deliver; none where a list is given.
    pub columns_excluded: Vec<String>,
    /// A condition in T-SQL on the columns of `t`.
    pub filter: Option<String>,
    /// Values that the condition names as `@name`, by these names; as text, or as `int:5`.
    pub filter_params: BTreeMap<String, String>,
    /// Column that tells that a row counts as deleted.
    pub soft_delete: Option<String>,
    /// How late a commit may come in the modes that cannot know: `timestamp+pk`, `integer+pk`.
    pub settle: Duration,
    /// The clock of a cursor column that holds times without an offset, in mode `timestamp+pk`.
    pub clock: SourceClock,
    /// How much is read at once.
    pub limits: SizeLimits,
    /// What to do where columns are added, removed or retyped.
    pub on_schema_change: OnSchemaChange,
    /// The part of the keys whose rows are read; `None` for all.
    pub partition: Option<Partition>,
}
