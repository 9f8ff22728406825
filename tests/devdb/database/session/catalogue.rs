//! A session's queries and updates of the catalog.

use super::SqliteSession;
use crate::{
    database::{catalog, errors::sql_error, tracking},
    tsql::parser::{Schema, TableColumn},
    types::{SqlError, Type},
};

impl SqliteSession {
    /// Saves the last row version and, directly before a commit, assigns changes their version.
    pub(super) fn save_versions(&self, commits: bool) -> Result<(), SqlError> {
        let save = || {
            catalog::save_version(&self.connection, self.shared.last_version())?;
            if commits { tracking::seal(&self.connection) } else { Ok(()) }
        };
        save().map_err(|error| sql_error(&error))
    }

    /// Removes the tracked changes of a table up to now.
    ///
    /// # Errors
    ///
    /// 4998: the table is not tracked.
    pub(crate) fn forget_changes(&mut self, table: &str) -> Result<(), SqlError> {
        self.writing(|session| tracking::forget(&session.connection, table))
    }
}

impl Schema for SqliteSession {
    fn columns(&self, table: &str) -> Result<Option<Vec<TableColumn>>, SqlError> {
        catalog::columns(&self.connection, table).map_err(|error| sql_error(&error))
    }

    fn key(&self, table: &str) -> Result<Vec<String>, SqlError> {
        catalog::key(&self.connection, table).map_err(|error| sql_error(&error))
    }

    fn is_tracked(&self, table: &str) -> Result<bool, SqlError> {
        tracking::is_tracked(&self.connection, table).map_err(|error| sql_error(&error))
    }

    fn variable(&self, name: &str) -> Option<Type> {
        self.variables.get(name).map(|(ty, _)| *ty)
    }

    fn database(&self) -> &str {
        &self.state.database
    }

    fn identity_insert(&self, table: &str) -> bool {
        self.identity_insert.eq_ignore_ascii_case(table)
    }
}
