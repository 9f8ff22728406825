//! Settings of the handler.

use std::time::Duration;

use crate::connection_string::SqlConnection;

/// Where rows are written.
#[derive(Clone, Debug)]
pub struct SqlHandlerConfig {
    /// Name of the setting that holds the connection string.
    pub connection_setting: String,
    /// Its parsed connection string.
    pub connection: SqlConnection,
    /// The target, as written.
    pub table: String,
    /// Key columns of the target; `None` for those of the source's key.
    pub key: Option<Vec<String>>,
    /// Columns of the source, each with its target column; `None` for all, under their own names.
    pub columns: Option<Vec<(String, String)>>,
    /// Whether rows deleted at the source are deleted in the target.
    pub deletes: bool,
    /// The table of fences, as written.
    pub fence_table: String,
    /// The table of applied events; `None` for none.
    pub ledger: Option<LedgerConfig>,
    /// Time limit of one batch.
    pub timeout: Duration,
    /// Most attempts per batch within one tick; at least 1.
    pub tries_max: u32,
}

/// Where applied events are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerConfig {
    /// The table, as written.
    pub table: String,
    /// How long an event is kept; at least a day.
    pub days: u32,
}
