//! State in a SQL Server table: for deployments with a database and no storage account.
//!
//! Each key is one row. A poller has one, its marker has another so that it outlives the first, and so has
//! each quarantined row. A read is one statement, and so is a write. Each is its own transaction, and a write
//! is sent once. Times are the database's, taken in the statement; no client clock is involved.
//!
//! A lease could be claimed in one statement, `UPDATE … SET token = token + 1 WHERE … expires_at < now`. Here
//! it takes two. The read returns the document and the database's time, the rule for an expired lease is
//! applied to both, and the `UPDATE` raises the token only if the row still has the tag that was read. Any
//! write in between has changed the tag, and time that passes in between does not make an expired lease
//! valid. So this grants no more than the single statement would. Renewals and commits are guarded in the
//! same way, and the rule is the same for all stores.
//!
//! A statement takes its time when it starts, and may then wait for a lock. So the date of a read can be too
//! early by that wait: a lease may look younger than it is, never older.
//!
//! # Design
//!
//! - The tag is a `rowversion` column and the time of the write. The server sets the first at every write,
//!   including manual ones. The second keeps a tag from recurring after the database was restored, when
//!   version numbers are reused.
//! - Names have a binary collation: under the usual ones `A` and `a` are the same key.
//! - The table is never created here. `highwater ddl state` prints the statements, so the user of the
//!   connection only needs SELECT, INSERT, UPDATE and, to remove rows from the quarantine, DELETE on this
//!   table.

mod answer;
pub(crate) mod failure;
pub(crate) mod pool;
mod statement;
mod table;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use highwater_engine::store::{
    ETag, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult,
};

use crate::connection::{Param, SqlError};
use crate::connection_string::SqlConnection;

use answer::Tag;
use pool::{Pool, Request};
use statement::Statements;

pub(crate) use answer::{cells, name as text, other_columns};
pub use statement::{create_table, grant};
pub(crate) use table::OwnTable;
pub use table::{TableNameError, table_name};

/// Where state is kept.
#[derive(Clone, Debug)]
pub struct SqlStoreSettings {
    /// Server, database and login.
    pub connection: SqlConnection,
    /// The table: `highwater_state`, `ops.highwater_state`, `[ops].[High Water]`.
    pub table: String,
    /// The application that owns the rows.
    pub app: String,
    /// Time limit for connecting and for a statement, if the connection's own limits are longer: several
    /// attempts must fit between two heartbeats.
    pub request_timeout: Duration,
}

/// Keeps state in a table, one row per key.
#[derive(Debug)]
pub struct SqlStore {
    pool: Pool,
    app: String,
    table: OwnTable,
    statements: Statements,
}

impl SqlStore {
    /// Returns a store that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`TableNameError`] if the table name is invalid.
    pub fn new(settings: SqlStoreSettings) -> Result<Self, TableNameError> {
        let SqlStoreSettings { connection, table, app, request_timeout } = settings;
        let table = statement::own(table_name(&table)?);
        let statements = Statements::new(&table.name);
        Ok(Self { pool: Pool::new(connection, request_timeout), app, table, statements })
    }

    /// Logs in with tokens from `credential` if the connection string asks for tokens.
    #[must_use]
    pub fn with_credential(self, credential: Arc<dyn TokenCredential>) -> Self {
        Self { pool: self.pool.with_credential(credential), ..self }
    }

    /// Returns the connections, to share them with other data in the same database.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the application that owns the rows.
    pub(crate) fn app(&self) -> &str {
        &self.app
    }

    /// Returns the parameters that identify a row.
    fn row(&self, name: &str) -> Result<Vec<Param>, StoreError> {
        let is_within = |text: &str, units_max| text.encode_utf16().count() <= units_max;
        if is_within(&self.app, statement::APP_UNITS_MAX)
            && is_within(name, statement::NAME_UNITS_MAX)
        {
            return Ok(vec![Param::Text(self.app.clone()), Param::Text(name.to_owned())]);
        }
        let reason = format!(
            "the application name is limited to {} characters and the row name to {}",
            statement::APP_UNITS_MAX,
            statement::NAME_UNITS_MAX
        );
        Err(StoreError::Refused { key: name.to_owned(), reason })
    }

    fn failed(&self, name: &str, error: &SqlError) -> StoreError {
        failure::of(name, &self.table, error)
    }
}

#[async_trait]
impl StateStore for SqlStore {
    fn grain(&self) -> Duration {
        GRAIN
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        let name = key.path();
        let params = self.row(&name)?;
        let request = Request { name: &name, sql: &self.statements.load, params: &params };
        let convert = |rows: Result<Vec<ReadResult>, SqlError>| match rows {
            // Without its primary key the table keeps duplicates created concurrently.
            Ok(rows) if rows.len() > 1 => Err(failure::not_unique(&name, &self.table, rows.len())),
            Ok(mut rows) => rows.pop().ok_or_else(|| no_row(&name)),
            Err(error) => Err(self.failed(&name, &error)),
        };
        self.pool.read(request, answer::loaded, convert).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        let name = key.path();
        if bytes.len() > BYTES_MAX {
            let reason = format!("a document is limited to {BYTES_MAX} bytes");
            return Err(StoreError::Refused { key: name, reason });
        }
        let mut params = self.row(&name)?;
        params.push(Param::Bytes(bytes));
        let sql = match &precondition {
            Precondition::Absent => &self.statements.create,
            Precondition::Matches(ETag(tag)) => {
                let Some(Tag { version, last_modified }) = Tag::parse(tag) else {
                    // No row has ever had this tag.
                    return Err(StoreError::Conflict { key: name });
                };
                params.extend([Param::Bytes(version.to_vec()), Param::Text(last_modified)]);
                &self.statements.replace
            }
        };
        let conflict = || StoreError::Conflict { key: name.clone() };
        let convert = |rows: Result<Vec<WriteResult>, SqlError>| match (rows, precondition) {
            (Ok(mut rows), Precondition::Matches(_)) => rows.pop().ok_or_else(conflict),
            (Ok(mut rows), Precondition::Absent) => rows.pop().ok_or_else(|| no_row(&name)),
            (Err(error), Precondition::Absent) if failure::is_duplicate(&error) => Err(conflict()),
            (Err(error), _) => Err(self.failed(&name, &error)),
        };
        let request = Request { name: &name, sql, params: &params };
        self.pool.write(request, answer::written, convert).await
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        let name = "the state table";
        let mut params = self.row(name)?;
        params.truncate(1);
        let request = Request { name, sql: &self.statements.list, params: &params };
        let convert =
            |names: Result<Vec<String>, SqlError>| names.map_err(|error| self.failed(name, &error));
        let names = self.pool.read(request, answer::name, convert).await?;
        let mut keys: Vec<_> = names.iter().filter_map(|name| StateKey::parse(name)).collect();
        keys.sort();
        Ok(keys)
    }

    fn location(&self, key: &StateKey) -> String {
        format!("{}, app `{}`, name `{key}`", self.table.name, self.app)
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        let name = key.path();
        let params = self.row(&name)?;
        let request = Request { name: &name, sql: &self.statements.apps, params: &params };
        let convert =
            |apps: Result<Vec<String>, SqlError>| apps.map_err(|error| self.failed(&name, &error));
        self.pool.read(request, answer::name, convert).await.map(Some)
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        let (pool, table) = (self.pool.another(), self.table.clone());
        let statements = Statements::new(&table.name);
        Some(Arc::new(Self { pool, app: app.to_owned(), table, statements }))
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        Ok((self.list().await?, 1))
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        let name = key.path();
        let conflict = || StoreError::Conflict { key: name.clone() };
        // No row has ever had a tag of another form.
        let Tag { version, last_modified } = Tag::parse(&etag.0).ok_or_else(conflict)?;
        let mut params = self.row(&name)?;
        params.extend([Param::Bytes(version.to_vec()), Param::Text(last_modified)]);
        let request = Request { name: &name, sql: &self.statements.remove, params: &params };
        let convert = |rows: Result<Vec<String>, SqlError>| match rows {
            Ok(mut rows) => rows.pop().map(|_name| ()).ok_or_else(conflict),
            Err(error) => Err(self.failed(&name, &error)),
        };
        self.pool.write(request, answer::name, convert).await
    }
}

/// Resolution of `SYSUTCDATETIME()`: if the server's operating system has no finer clock, it ticks 64 times a
/// second.
/// <https://learn.microsoft.com/sql/t-sql/functions/sysutcdatetime-transact-sql>
const GRAIN: Duration = Duration::from_millis(16);

/// Largest document, the same as in Azure Blob Storage, so that state can be moved from one to the other.
const BYTES_MAX: usize = 4 * 1024 * 1024;

fn no_row(name: &str) -> StoreError {
    StoreError::Unknown { key: name.to_owned(), reason: "the answer has no row".to_owned() }
}
