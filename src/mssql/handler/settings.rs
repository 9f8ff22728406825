//! Settings of the handler.

use std::time::Duration;

use crate::connection_string::SqlConnection;

/// Where rows are written.
#[derive(Clone, Debug)]
pub struct SqlHandlerConfig {
    /// Name of the setting that holds the connection string.
    pub connection_setting: String,
    /// What that connection string says.
    pub connection: SqlConnection,
    /// The target, as written.
    pub table: String,
    /// Columns of the target that tell its rows apart; `None` for those of the source's key.
    pub key: Option<Vec<String>>,
    /// Columns of the source and where they go; `None` for all, under their own names.
    pub columns: Option<Vec<(String, String)>>,
    /// Whether a row that was deleted at the source is deleted in the target.
    pub deletes: bool,
    /// The table of fences, as written.
    pub fence_table: String,
    /// The table of applied events; `None` for none.
    pub ledger: Option<LedgerConfig>,
    /// Limit on one batch.
    pub timeout: Duration,
    /// Tries of one batch within one tick; at least 1.
    pub tries_max: u32,
}

/// Where applied events are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerConfig {
    /// The table, as written.
    pub table: String,
    /// How long an event is remembered; at least a day.
    pub days: u32,
}
