//! Connections to SQL Server: connecting, running one statement, and classifying errors.
//!
//! # Design
//!
//! After a dropped future, a time-out or a cancelled query, a connection of the driver is out of step with
//! its server: the next result belongs to another statement. So a client is moved out of its [`Connection`]
//! before each statement and returned only after a complete answer. In every other case it is dropped, and
//! the next statement reconnects. Queries are never cancelled.

mod column_type;
mod connect;
mod dial;
mod error;
mod number;
mod param;
mod retry;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use futures_util::TryStreamExt as _;
use tiberius::{Query, Row};
use tokio::time::{Instant, timeout};

use crate::connection_string::SqlConnection;

use connect::{Client, Connected, connect};

pub(crate) use column_type::ColumnType;
pub use connect::ForeignText;
use error::Limit;
pub use error::SqlError;
pub use number::{ReadRetry, errors_table};
pub use param::Param;
pub use retry::{Retries, RetryTerms};
pub use transaction::Transaction;

/// Longest idle time of a connection that is reused. Azure's network drops an idle flow after four minutes
/// without notifying either end.
/// <https://learn.microsoft.com/azure/load-balancer/load-balancer-tcp-idle-timeout>
const IDLE_MAX: Duration = Duration::from_secs(180);
/// How much longer than the driver's own limit to wait for a statement, in case the driver does not return.
const GUARD: Duration = Duration::from_secs(2);
/// Above this severity the server closes the connection, or may close it.
const SEVERITY_KEPT_MAX: u8 = 16;

/// One connection, opened on first use and reopened after it broke.
#[derive(Debug)]
pub struct Connection {
    settings: SqlConnection,
    credential: Option<Arc<dyn TokenCredential>>,
    idle: Option<Idle>,
    foreign_text: Option<ForeignText>,
    hides_values: bool,
}

struct Idle {
    client: Box<Client>,
    since: Instant,
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The driver's own `Debug` output includes the bytes it has read.
        formatter.debug_struct("Idle").field("since", &self.since).finish_non_exhaustive()
    }
}

impl Connection {
    /// Returns a connection that is not open yet. Only token logins need a credential.
    pub fn new(settings: SqlConnection, credential: Option<Arc<dyn TokenCredential>>) -> Self {
        Self { settings, credential, idle: None, foreign_text: None, hides_values: false }
    }

    /// Reports no error message that may contain a value of a column.
    #[must_use]
    pub fn hiding_values(self) -> Self {
        Self { hides_values: true, ..self }
    }

    /// Returns the server's conversion of text to bytes, if that is not UTF-16. Known after the first
    /// statement.
    pub fn foreign_text(&self) -> Option<&ForeignText> {
        self.foreign_text.as_ref()
    }

    /// Runs one statement in one round trip, and returns its rows as converted by `read`.
    ///
    /// The server may have closed an idle connection. If it breaks before the first row, the statement is
    /// sent again on a new connection, so the statement must be read-only. If the call is dropped, the
    /// connection is closed.
    ///
    /// # Errors
    ///
    /// [`SqlError`] if no connection can be opened, the statement fails or exceeds the command time-out, or
    /// `read` rejects a row.
    pub async fn query<T>(
        &mut self,
        sql: &str,
        params: &[Param],
        mut read: impl FnMut(Row) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, SqlError> {
        if let Some(client) = self.take() {
            match self.run(client, sql, params, &mut read).await {
                Err(Failure::BeforeFirstRow(error)) if error.is_broken_connection() => {
                    tracing::debug!(%error, "Idle connection broke, reconnecting");
                }
                other => return other.map_err(Failure::into_error),
            }
        }
        let client = self.connect().await?;
        self.run(client, sql, params, &mut read).await.map_err(Failure::into_error)
    }

    /// Runs one statement like [`Connection::query`], but never sends it twice.
    ///
    /// For statements that write: if the connection breaks, the statement may have run.
    ///
    /// # Errors
    ///
    /// As [`Connection::query`], and if an idle connection broke. [`SqlError::is_unsent`] separates
    /// statements that were never sent from those that may have run.
    pub async fn query_once<T>(
        &mut self,
        sql: &str,
        params: &[Param],
        mut read: impl FnMut(Row) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, SqlError> {
        let client = match self.take() {
            Some(client) => client,
            None => self.connect().await?,
        };
        self.run(client, sql, params, &mut read).await.map_err(Failure::into_error)
    }

    /// Returns the server's estimated plan for `batch`, without running it: XML, in the rows given to `read`.
    ///
    /// Uses a separate connection, since the setting that requests plans stays with the session. The login
    /// needs the permission `SHOWPLAN`.
    ///
    /// # Errors
    ///
    /// As [`Connection::query`].
    pub async fn estimated_plan<T>(
        &self,
        batch: &str,
        read: impl FnMut(Row) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, SqlError> {
        let mut client = self.connected().await?.client;
        let action = "ask for a plan";
        let failed = |error| SqlError::of(action, error);
        let limit = self.settings.command_timeout;
        let rows = timeout(limit + GUARD, async {
            // The `SET` must be the only statement in its batch.
            let set = client.simple_query("SET SHOWPLAN_XML ON").await.map_err(failed)?;
            set.into_results().await.map_err(failed)?;
            let plan = client.simple_query(batch).await.map_err(failed)?;
            plan.into_results().await.map_err(failed)
        });
        let rows = rows
            .await
            .map_err(|elapsed| SqlError::timeout(action, Limit::Command(limit), elapsed))??;
        rows.into_iter().flatten().map(read).collect()
    }

    /// Returns the idle client, unless it has been idle for too long.
    fn take(&mut self) -> Option<Box<Client>> {
        let idle = self.idle.take().filter(|idle| idle.since.elapsed() <= IDLE_MAX);
        idle.map(|idle| idle.client)
    }

    async fn connect(&mut self) -> Result<Box<Client>, SqlError> {
        let Connected { client, foreign_text } = self.connected().await?;
        self.foreign_text = foreign_text;
        Ok(Box::new(client))
    }

    async fn connected(&self) -> Result<Connected, SqlError> {
        let connected = connect(&self.settings, self.credential.as_deref()).await;
        connected.map_err(SqlError::before_sending)
    }

    async fn run<T>(
        &mut self,
        client: Box<Client>,
        sql: &str,
        params: &[Param],
        read: &mut impl FnMut(Row) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, Failure> {
        let limit = self.settings.command_timeout;
        let (rows, client) = answered(client, limit, sql, params, read).await;
        self.idle = client.map(|client| Idle { client, since: Instant::now() });
        if self.hides_values { rows.map_err(Failure::without_value) } else { rows }
    }
}

/// Runs one statement; returns the client too if it can be reused.
async fn answered<T>(
    mut client: Box<Client>,
    limit: Duration,
    sql: &str,
    params: &[Param],
    read: &mut impl FnMut(Row) -> Result<T, SqlError>,
) -> (Result<Vec<T>, Failure>, Option<Box<Client>>) {
    let rows = timeout(limit + GUARD, rows(&mut client, sql, params, read)).await.unwrap_or_else(
        |elapsed| {
            let limit = Limit::Command(limit);
            Err(Failure::AfterFirstRow(SqlError::timeout("run a statement", limit, elapsed)))
        },
    );
    let reusable = match &rows {
        Ok(_) => true,
        Err(Failure::BeforeFirstRow(error) | Failure::AfterFirstRow(error)) => {
            // A database that has moved is reachable only through a new connection.
            error.severity().is_some_and(|severity| severity <= SEVERITY_KEPT_MAX)
                && error.read_retry() != Some(ReadRetry::NewConnection)
        }
    };
    (rows, reusable.then_some(client))
}

/// Whether a failed statement may be sent again.
enum Failure {
    BeforeFirstRow(SqlError),
    AfterFirstRow(SqlError),
}

impl Failure {
    fn without_value(self) -> Self {
        match self {
            Self::BeforeFirstRow(error) => Self::BeforeFirstRow(error.without_value()),
            Self::AfterFirstRow(error) => Self::AfterFirstRow(error.without_value()),
        }
    }

    fn into_error(self) -> SqlError {
        match self {
            Self::BeforeFirstRow(error) | Self::AfterFirstRow(error) => error,
        }
    }
}

async fn rows<T>(
    client: &mut Client,
    sql: &str,
    params: &[Param],
    read: &mut impl FnMut(Row) -> Result<T, SqlError>,
) -> Result<Vec<T>, Failure> {
    let mut query = Query::new(sql);
    for param in params {
        param.bind(&mut query);
    }
    let run = |error| SqlError::of("run a statement", error);
    let stream = query.query(client).await.map_err(|e| Failure::BeforeFirstRow(run(e)))?;
    let mut stream = stream.into_row_stream();
    let mut rows = Vec::new();
    loop {
        match stream.try_next().await {
            Ok(Some(row)) => rows.push(read(row).map_err(Failure::AfterFirstRow)?),
            Ok(None) => return Ok(rows),
            Err(error) if rows.is_empty() => return Err(Failure::BeforeFirstRow(run(error))),
            Err(error) => return Err(Failure::AfterFirstRow(run(error))),
        }
    }
}
