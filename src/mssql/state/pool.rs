//! Connections to the database, shared by everything stored in it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use highwater_engine::store::StoreError;
use tiberius::Row;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::connection::{Connection, Param, SqlError};
use crate::connection_string::SqlConnection;

/// Most concurrent connections. A request takes milliseconds, so this serves hundreds of pollers.
const CONNECTIONS_MAX: usize = 8;

/// Several connections, since the pollers of a process must not wait for each other: one poller's statement
/// may hang.
#[derive(Debug)]
pub(crate) struct Pool {
    connection: SqlConnection,
    credential: Option<Arc<dyn TokenCredential>>,
    request_timeout: Duration,
    permits: Semaphore,
    /// Idle connections; never more than there are permits.
    idle: Mutex<Vec<Connection>>,
}

/// One statement, and its subject.
pub(crate) struct Request<'a> {
    /// The name of what is read or written, for errors.
    pub(crate) name: &'a str,
    /// The statement.
    pub(crate) sql: &'a str,
    /// Its parameters.
    pub(crate) params: &'a [Param],
}

impl Pool {
    /// Returns connections that are not open yet. `request_timeout` limits connecting, and a statement, if
    /// the connection's own limits are longer.
    pub(super) fn new(mut connection: SqlConnection, request_timeout: Duration) -> Self {
        connection.connect_timeout = connection.connect_timeout.min(request_timeout);
        connection.command_timeout = connection.command_timeout.min(request_timeout);
        Self {
            connection,
            credential: None,
            request_timeout,
            permits: Semaphore::new(CONNECTIONS_MAX),
            idle: Mutex::default(),
        }
    }

    /// Returns a separate pool for the same database.
    pub(super) fn another(&self) -> Self {
        let (connection, credential) = (self.connection.clone(), self.credential.clone());
        Self { credential, ..Self::new(connection, self.request_timeout) }
    }

    /// Logs in with tokens from `credential` if the connection string asks for tokens.
    pub(super) fn with_credential(self, credential: Arc<dyn TokenCredential>) -> Self {
        Self { credential: Some(credential), ..self }
    }

    /// Sends a read. It is sent again if an idle connection broke, which does no harm.
    ///
    /// # Errors
    ///
    /// Those of `convert`, and [`StoreError::Unreachable`] if all connections are busy.
    pub(crate) async fn read<T, U>(
        &self,
        request: Request<'_>,
        row: fn(Row) -> Result<T, SqlError>,
        convert: impl FnOnce(Result<Vec<T>, SqlError>) -> Result<U, StoreError>,
    ) -> Result<U, StoreError> {
        self.send((request, true), row, convert).await
    }

    /// Sends a write, which is sent only once.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub(crate) async fn write<T, U>(
        &self,
        request: Request<'_>,
        row: fn(Row) -> Result<T, SqlError>,
        convert: impl FnOnce(Result<Vec<T>, SqlError>) -> Result<U, StoreError>,
    ) -> Result<U, StoreError> {
        self.send((request, false), row, convert).await
    }

    async fn send<T, U>(
        &self,
        (request, may_repeat): (Request<'_>, bool),
        row: fn(Row) -> Result<T, SqlError>,
        convert: impl FnOnce(Result<Vec<T>, SqlError>) -> Result<U, StoreError>,
    ) -> Result<U, StoreError> {
        let Request { name, sql, params } = request;
        let _permit = self.permit(name).await?;
        let mut connection = self.take();
        let answer = if may_repeat {
            connection.query(sql, params, row).await
        } else {
            connection.query_once(sql, params, row).await
        };
        let outcome = convert(answer);
        self.give_back(connection, &outcome);
        outcome
    }

    async fn permit(&self, name: &str) -> Result<SemaphorePermit<'_>, StoreError> {
        let permit = timeout(self.request_timeout, self.permits.acquire()).await;
        permit.ok().and_then(Result::ok).ok_or_else(|| {
            let reason = format!("all {CONNECTIONS_MAX} connections are busy");
            StoreError::Unreachable { key: name.to_owned(), reason }
        })
    }

    /// Returns an idle connection, or one that is not open yet. A connection that is not given back, for
    /// example because the request was dropped, is closed.
    fn take(&self) -> Connection {
        let idle = self.idle.lock().expect("no holder of this lock panics").pop();
        idle.unwrap_or_else(|| Connection::new(self.connection.clone(), self.credential.clone()))
    }

    /// Gives a connection back, unless the operator has to act. The fix may be to the login, or to the
    /// server's DNS record after a failover, and an old connection would not pick it up.
    fn give_back<T>(&self, connection: Connection, result: &Result<T, StoreError>) {
        if !matches!(result, Err(StoreError::Refused { .. })) {
            self.idle.lock().expect("no holder of this lock panics").push(connection);
        }
    }
}
