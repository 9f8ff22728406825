//! Connections to the database, shared by all that keeps things in it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use highwater_engine::store::StoreError;
use tiberius::Row;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::connection::{Connection, Param, SqlError};
use crate::connection_string::SqlConnection;

/// Most connections at a time. A request takes milliseconds, so that many serve hundreds of pollers.
const CONNECTIONS_MAX: usize = 8;

/// Several connections, since the pollers of a process must not wait for each other: the statement that
/// one of them waits for may be one that hangs.
#[derive(Debug)]
pub(crate) struct Pool {
    connection: SqlConnection,
    credential: Option<Arc<dyn TokenCredential>>,
    request_timeout: Duration,
    permits: Semaphore,
    /// Connections that nobody uses at the moment; never more than there are permits.
    idle: Mutex<Vec<Connection>>,
}

/// One statement, and what it is about.
pub(crate) struct Request<'a> {
    /// What is read or written, for errors.
    pub(crate) name: &'a str,
    /// The statement.
    pub(crate) sql: &'a str,
    /// Its parameters.
    pub(crate) params: &'a [Param],
}

impl Pool {
    /// Returns connections that are not made yet. `request_timeout` limits connecting, and a statement,
    /// where the limits of the connection are longer.
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

    /// Returns other connections to the same database.
    pub(super) fn another(&self) -> Self {
        let (connection, credential) = (self.connection.clone(), self.credential.clone());
        Self { credential, ..Self::new(connection, self.request_timeout) }
    }

    /// Logs in with tokens of `credential` where the connection string asks for tokens.
    pub(super) fn with_credential(self, credential: Arc<dyn TokenCredential>) -> Self {
        Self { credential: Some(credential), ..self }
    }

    /// Sends what only reads: again where a connection broke while it rested, which does no harm.
    ///
    /// # Errors
    ///
    /// Those of `judge`, and [`StoreError::Unreachable`] where all connections are busy.
    pub(crate) async fn read<T, U>(
        &self,
        request: Request<'_>,
        row: fn(Row) -> Result<T, SqlError>,
        judge: impl FnOnce(Result<Vec<T>, SqlError>) -> Result<U, StoreError>,
    ) -> Result<U, StoreError> {
        self.send((request, true), row, judge).await
    }

    /// Sends what writes, and so is sent once.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub(crate) async fn write<T, U>(
        &self,
        request: Request<'_>,
        row: fn(Row) -> Result<T, SqlError>,
        judge: impl FnOnce(Result<Vec<T>, SqlError>) -> Result<U, StoreError>,
    ) -> Result<U, StoreError> {
        self.send((request, false), row, judge).await
    }

    async fn send<T, U>(
        &self,
        (request, may_repeat): (Request<'_>, bool),
        row: fn(Row) -> Result<T, SqlError>,
        judge: impl FnOnce(Result<Vec<T>, SqlError>) -> Result<U, StoreError>,
    ) -> Result<U, StoreError> {
        let Request { name, sql, params } = request;
        let _permit = self.permit(name).await?;
        let mut connection = self.take();
        let answer = if may_repeat {
            connection.query(sql, params, row).await
        } else {
            connection.query_once(sql, params, row).await
        };
        let judged = judge(answer);
        self.give_back(connection, &judged);
        judged
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
}
