//! State in a table of SQL Server: for those who have a database and no storage account to spare.
//!
//! A key is one row: a poller has one, its marker has another, so that it outlives the first, and so
//! has each row that was set aside. A read is one statement and so is a write; each is a transaction of
//! its own, and a write is sent once. Times are the database's, taken in the statement; no client's
//! clock decides anything.
//!
//! A claim in one statement, `UPDATE … SET token = token + 1 WHERE … expires_at < now`, is two here:
//! the read brings the document and the database's time, the rule for a lapsed lease judges both, and
//! the `UPDATE` raises the token only where the row still has the tag that was read. Whatever came
//! between has changed the tag, and time that passed between makes a lapsed lease no younger. So no more
//! is granted than by the one statement, the renewal and the commit are guarded in the same way, and the
//! rule is the one of all stores.
//!
//! A statement takes its time when it starts, and may then wait for a lock: a read's date can be
//! behind by that wait, so that a lease looks younger than it is, never older.
//!
//! # Why so
//!
//! - The tag is a `rowversion` column and the time of the write. The server sets the first itself at
//!   every write, one by hand included; the second keeps a tag from coming back after the database
//!   was restored, when the versions are counted again.
//! - Names have a binary collation: under the usual ones `A` and `a` are one key.
//! - The table is never created here. `highwater ddl state` prints the statements, so that the user
//!   of the connection needs no right but SELECT, INSERT, UPDATE and, to take rows out of the
//!   quarantine, DELETE on this one table.

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
    ETag, Loaded, Precondition, StateKey, StateStore, StoreError, Written,
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
    /// The application whose rows these are.
    pub app: String,
    /// Limit for connecting, and for a statement, where those of the connection are longer: several
    /// tries must fit between two heartbeats.
    pub request_timeout: Duration,
}

/// Keeps state in a table, one row for each key.
#[derive(Debug)]
pub struct SqlStore {
    pool: Pool,
    app: String,
    table: OwnTable,
    statements: Statements,
}

impl SqlStore {
    /// Returns a store that has not connected yet.
    ///
    /// # Errors
    ///
    /// [`TableNameError`] if the name of the table is none.
    pub fn new(settings: SqlStoreSettings) -> Result<Self, TableNameError> {
        let SqlStoreSettings { connection, table, app, request_timeout } = settings;
        let table = statement::own(table_name(&table)?);
        let statements = Statements::new(&table.name);
        Ok(Self { pool: Pool::new(connection, request_timeout), app, table, statements })
    }

    /// Logs in with tokens of `credential` where the connection string asks for tokens.
    #[must_use]
    pub fn with_credential(self, credential: Arc<dyn TokenCredential>) -> Self {
        Self { pool: self.pool.with_credential(credential), ..self }
    }

    /// Returns the connections, for what else is kept in the same database.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the application whose rows these are.
    pub(crate) fn app(&self) -> &str {
        &self.app
    }

    /// Returns the parameters that say which row is meant.
    fn row(&self, name: &str) -> Result<Vec<Param>, StoreError> {
        let fits = |text: &str, units_max| text.encode_utf16().count() <= units_max;
        if fits(&self.app, statement::APP_UNITS_MAX) && fits(name, statement::NAME_UNITS_MAX) {
            return Ok(vec![Param::Text(self.app.clone()), Param::Text(name.to_owned())]);
        }
        let reason = format!(
            "the application may have {} characters and the name {}",
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

    async fn load(&self, key: &StateKey) -> Result<Loaded, StoreError> {
        let name = key.path();
        let params = self.row(&name)?;
        let request = Request { name: &name, sql: &self.statements.load, params: &params };
        let judge = |rows: Result<Vec<Loaded>, SqlError>| match rows {
            // Without its key the table holds what two of them have created.
            Ok(rows) if rows.len() > 1 => Err(failure::not_unique(&name, &self.table, rows.len())),
            Ok(mut rows) => rows.pop().ok_or_else(|| no_row(&name)),
            Err(error) => Err(self.failed(&name, &error)),
        };
        self.pool.read(request, answer::loaded, judge).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<Written, StoreError> {
        let name = key.path();
        if bytes.len() > BYTES_MAX {
            let reason = format!("a document may have at most {BYTES_MAX} bytes");
            return Err(StoreError::Refused { key: name, reason });
        }
        let mut params = self.row(&name)?;
        params.push(Param::Bytes(bytes));
        let sql = match &precondition {
            Precondition::Absent => &self.statements.create,
            Precondition::Matches(ETag(tag)) => {
                let Some(Tag { version, last_modified }) = Tag::parse(tag) else {
                    // No row has ever had it.
                    return Err(StoreError::Conflict { key: name });
                };
                params.extend([Param::Bytes(version.to_vec()), Param::Text(last_modified)]);
                &self.statements.replace
            }
        };
        let conflict = || StoreError::Conflict { key: name.clone() };
        let judge = |rows: Result<Vec<Written>, SqlError>| match (rows, precondition) {
            (Ok(mut rows), Precondition::Matches(_)) => rows.pop().ok_or_else(conflict),
            (Ok(mut rows), Precondition::Absent) => rows.pop().ok_or_else(|| no_row(&name)),
            (Err(error), Precondition::Absent) if failure::is_duplicate(&error) => Err(conflict()),
            (Err(error), _) => Err(self.failed(&name, &error)),
        };
        let request = Request { name: &name, sql, params: &params };
        self.pool.write(request, answer::written, judge).await
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        let name = "the state table";
        let mut params = self.row(name)?;
        params.truncate(1);
        let request = Request { name, sql: &self.statements.list, params: &params };
        let judge =
            |names: Result<Vec<String>, SqlError>| names.map_err(|error| self.failed(name, &error));
        let names = self.pool.read(request, answer::name, judge).await?;
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
        let judge =
            |apps: Result<Vec<String>, SqlError>| apps.map_err(|error| self.failed(&name, &error));
        self.pool.read(request, answer::name, judge).await.map(Some)
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
        // No row has ever had another form.
        let Tag { version, last_modified } = Tag::parse(&etag.0).ok_or_else(conflict)?;
        let mut params = self.row(&name)?;
        params.extend([Param::Bytes(version.to_vec()), Param::Text(last_modified)]);
        let request = Request { name: &name, sql: &self.statements.remove, params: &params };
        let judge = |rows: Result<Vec<String>, SqlError>| match rows {
            Ok(mut rows) => rows.pop().map(|_name| ()).ok_or_else(conflict),
            Err(error) => Err(self.failed(&name, &error)),
        };
        self.pool.write(request, answer::name, judge).await
    }
}

/// Coarseness of `SYSUTCDATETIME()`: where the server's operating system has no finer clock, it moves
/// 64 times a second.
/// <https://learn.microsoft.com/sql/t-sql/functions/sysutcdatetime-transact-sql>
const GRAIN: Duration = Duration::from_millis(16);

/// Largest document, the same as in Azure Blob Storage, so that state can move from one to the other.
const BYTES_MAX: usize = 4 * 1024 * 1024;

fn no_row(name: &str) -> StoreError {
    StoreError::Unknown { key: name.to_owned(), reason: "answer without a row".to_owned() }
}
