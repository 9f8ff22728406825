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
//! - The table is never created here. `highwater state ddl` prints the statements, so that the user
//!   of the connection needs no right but SELECT, INSERT, UPDATE and, to take rows out of the
//!   quarantine, DELETE on this one table.
//! - Several connections, since the pollers of a process must not wait for each other: the statement
//!   that one of them waits for may be one that hangs.

mod answer;
mod failure;
mod statement;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::{ETag, Loaded, Precondition, StateKey, StateStore, StoreError, Written};
use crate::config::SqlConnection;
use crate::mssql::ident::QualifiedName;
use crate::mssql::{Connection, Param, SqlError};

use answer::Tag;
use statement::Statements;

pub use statement::{TableNameError, create_table, grant, table_name};

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
    connection: SqlConnection,
    credential: Option<Arc<dyn TokenCredential>>,
    app: String,
    table: QualifiedName,
    statements: Statements,
    request_timeout: Duration,
    permits: Semaphore,
    /// Connections that nobody uses at the moment; never more than there are permits.
    idle: Mutex<Vec<Connection>>,
}

impl SqlStore {
    /// Returns a store that has not connected yet.
    ///
    /// # Errors
    ///
    /// [`TableNameError`] if the name of the table is none.
    pub fn new(settings: SqlStoreSettings) -> Result<Self, TableNameError> {
        let SqlStoreSettings { mut connection, table, app, request_timeout } = settings;
        let table = table_name(&table)?;
        connection.connect_timeout = connection.connect_timeout.min(request_timeout);
        connection.command_timeout = connection.command_timeout.min(request_timeout);
        Ok(Self {
            connection,
            credential: None,
            app,
            statements: Statements::new(&table),
            table,
            request_timeout,
            permits: Semaphore::new(CONNECTIONS_MAX),
            idle: Mutex::default(),
        })
    }

    /// Logs in with tokens of `credential` where the connection string asks for tokens.
    #[must_use]
    pub fn with_credential(self, credential: Arc<dyn TokenCredential>) -> Self {
        Self { credential: Some(credential), ..self }
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

    async fn permit(&self, name: &str) -> Result<SemaphorePermit<'_>, StoreError> {
        let permit = timeout(self.request_timeout, self.permits.acquire()).await;
        permit.ok().and_then(Result::ok).ok_or_else(|| {
            let reason = format!("all {CONNECTIONS_MAX} connections are busy");
            StoreError::Unreachable { key: name.to_owned(), reason }
        })
    }

    /// Takes a connection that nobody uses, or one that is not made yet. It is closed where it is not
    /// given back, as when its user is dropped.
    fn take(&self) -> Connection {
        let idle = self.idle.lock().expect("no holder of this lock panics").pop();
        idle.unwrap_or_else(|| Connection::new(self.connection.clone(), self.credential.clone()))
    }

    /// Gives a connection back, unless the operator has to act: what is mended may be the login, or
    /// where the server's name leads after a fail-over, and an old connection would not see it.
    fn give_back<T>(&self, connection: Connection, result: &Result<T, StoreError>) {
        if !matches!(result, Err(StoreError::Refused { .. })) {
            self.idle.lock().expect("no holder of this lock panics").push(connection);
        }
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
        let _permit = self.permit(&name).await?;
        let mut connection = self.take();
        // Sent again where a connection broke while it rested: a read does no harm.
        let rows = connection.query(&self.statements.load, &params, answer::loaded).await;
        let loaded = match rows {
            // Without its key the table holds what two of them have created.
            Ok(rows) if rows.len() > 1 => Err(failure::not_unique(&name, &self.table, rows.len())),
            Ok(mut rows) => rows.pop().ok_or_else(|| no_row(&name)),
            Err(error) => Err(self.failed(&name, &error)),
        };
        self.give_back(connection, &loaded);
        loaded
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
        let _permit = self.permit(&name).await?;
        let mut connection = self.take();
        let rows = connection.query_once(sql, &params, answer::written).await;
        let written = match (rows, precondition) {
            (Ok(mut rows), Precondition::Matches(_)) => {
                rows.pop().ok_or(StoreError::Conflict { key: name })
            }
            (Ok(mut rows), Precondition::Absent) => rows.pop().ok_or_else(|| no_row(&name)),
            (Err(error), Precondition::Absent) if failure::is_duplicate(&error) => {
                Err(StoreError::Conflict { key: name })
            }
            (Err(error), _) => Err(self.failed(&name, &error)),
        };
        self.give_back(connection, &written);
        written
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        let name = "the state table";
        let mut params = self.row(name)?;
        params.truncate(1);
        let _permit = self.permit(name).await?;
        let mut connection = self.take();
        let names = connection.query(&self.statements.list, &params, answer::name).await;
        let names = names.map_err(|error| self.failed(name, &error));
        self.give_back(connection, &names);
        let mut keys: Vec<_> = names?.iter().filter_map(|name| StateKey::parse(name)).collect();
        keys.sort();
        Ok(keys)
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        let name = key.path();
        let conflict = || StoreError::Conflict { key: name.clone() };
        // No row has ever had another form.
        let Tag { version, last_modified } = Tag::parse(&etag.0).ok_or_else(conflict)?;
        let mut params = self.row(&name)?;
        params.extend([Param::Bytes(version.to_vec()), Param::Text(last_modified)]);
        let _permit = self.permit(&name).await?;
        let mut connection = self.take();
        let rows = connection.query_once(&self.statements.remove, &params, answer::name).await;
        let removed = match rows {
            Ok(mut rows) => rows.pop().map(|_name| ()).ok_or_else(conflict),
            Err(error) => Err(self.failed(&name, &error)),
        };
        self.give_back(connection, &removed);
        removed
    }
}

/// Coarseness of `SYSUTCDATETIME()`: where the server's operating system has no finer clock, it moves
/// 64 times a second.
/// <https://learn.microsoft.com/sql/t-sql/functions/sysutcdatetime-transact-sql>
const GRAIN: Duration = Duration::from_millis(16);

/// Largest document, the same as in Azure Blob Storage, so that state can move from one to the other.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most connections at a time. A request takes milliseconds, so that many serve hundreds of pollers.
const CONNECTIONS_MAX: usize = 8;

fn no_row(name: &str) -> StoreError {
    StoreError::Unknown { key: name.to_owned(), reason: "answer without a row".to_owned() }
}
