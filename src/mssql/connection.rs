//! Connections to SQL Server: connecting, running one statement, and what an error means.
//!
//! # Why so
//!
//! A connection of the driver is out of step with its server after a dropped future, a time-out or a
//! cancelled query, and a result read then belongs to another statement. So a client is taken out of
//! its [`Connection`] before each statement and put back only after a complete answer; whatever else
//! happens, it is dropped, and the next statement connects anew. Queries are never cancelled.

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
pub use number::{Again, errors_table};
pub use param::Param;
pub use retry::{Retries, RetryTerms};
pub use transaction::Transaction;

/// Longest rest of a connection that is used again. Azure's network forgets an idle flow after four
/// minutes without telling either end.
/// <https://learn.microsoft.com/azure/load-balancer/load-balancer-tcp-idle-timeout>
const IDLE_MAX: Duration = Duration::from_secs(180);
/// How much longer than the driver's own limit a statement is waited for, whatever the driver does.
const GUARD: Duration = Duration::from_secs(2);
/// Above this severity the server ends the connection, or may.
const SEVERITY_KEPT_MAX: u8 = 16;

/// One connection, made when first used and again whenever the last one broke.
#[derive(Debug)]
pub struct Connection {
    settings: SqlConnection,
    credential: Option<Arc<dyn TokenCredential>>,
    idle: Option<Idle>,
    foreign_text: Option<ForeignText>,
}

struct Idle {
    client: Box<Client>,
    since: Instant,
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The driver's own form dumps the bytes it has read.
        formatter.debug_struct("Idle").field("since", &self.since).finish_non_exhaustive()
    }
}

impl Connection {
    /// Returns a connection that is not made yet. A credential is needed for token logins only.
    pub fn new(settings: SqlConnection, credential: Option<Arc<dyn TokenCredential>>) -> Self {
        Self { settings, credential, idle: None, foreign_text: None }
    }

    /// Returns what the server makes of text that is cast to bytes, where that is not UTF-16. Known once
    /// a statement has run.
    pub fn foreign_text(&self) -> Option<&ForeignText> {
        self.foreign_text.as_ref()
    }

    /// Runs one statement in one round trip and returns what `read` makes of its rows.
    ///
    /// A connection that has rested may have been closed from afar; if it breaks before the first
    /// row, the statement is sent once more on a new one. It must therefore be one that only reads.
    /// A drop leaves the connection unconnected.
    ///
    /// # Errors
    ///
    /// [`SqlError`] if no connection can be made, the statement fails or takes longer than the
    /// command time-out, or `read` refuses a row.
    pub async fn query<T>(
        &mut self,
        sql: &str,
        params: &[Param],
        mut read: impl FnMut(Row) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, SqlError> {
        if let Some(client) = self.take() {
            match self.run(client, sql, params, &mut read).await {
                Err(Failure::BeforeFirstRow(error)) if error.is_broken_connection() => {
                    tracing::debug!(%error, "Connection broke while it rested, connecting again");
                }
                other => return other.map_err(Failure::into_error),
            }
        }
        let client = self.connect().await?;
        self.run(client, sql, params, &mut read).await.map_err(Failure::into_error)
    }

    /// Runs one statement as [`Connection::query`] does, but never sends it twice.
    ///
    /// For a statement that writes: if the connection breaks, it may have run.
    ///
    /// # Errors
    ///
    /// As [`Connection::query`], and if a connection broke while it rested.
    /// [`SqlError::is_unsent`] tells what never left from what may have run.
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

    /// Returns how the server would run `batch`, which it does not: its plan as XML, in the rows that
    /// `read` is given.
    ///
    /// On a connection of its own, since the setting that asks for plans stays with a session. The
    /// login needs the right `SHOWPLAN`.
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
            // It has to be alone in its batch.
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

    /// Takes the client out, unless it has rested for too long.
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
        rows
    }
}

/// Runs one statement; gives the client back where it is fit for another.
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
    let whole = match &rows {
        Ok(_) => true,
        Err(Failure::BeforeFirstRow(error) | Failure::AfterFirstRow(error)) => {
            // A database that has moved answers on a new connection only.
            error.severity().is_some_and(|severity| severity <= SEVERITY_KEPT_MAX)
                && error.again() != Some(Again::Anew)
        }
    };
    (rows, whole.then_some(client))
}

/// Tells whether a statement may be sent once more.
enum Failure {
    BeforeFirstRow(SqlError),
    AfterFirstRow(SqlError),
}

impl Failure {
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
