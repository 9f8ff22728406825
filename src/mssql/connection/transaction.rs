//! Several statements in one transaction.
//!
//! # Design
//!
//! A client with an open transaction must never be used for anything else: other statements would become part
//! of the transaction, and be lost with it. So a [`Transaction`] owns its client until it has ended. If it is
//! dropped before that, it closes the connection, and the server rolls back.
//!
//! It starts and ends in statements of its own, not within a statement that has parameters. The server runs
//! those as a procedure, and reports an error (266) if one leaves a transaction open.
//! <https://learn.microsoft.com/sql/relational-databases/errors-events/mssqlserver-266-database-engine-error>

use std::time::Duration;

use highwater_engine::error::ErrorKind;
use tiberius::Row;
use tokio::time::{Instant, timeout};

use super::connect::Client;
use super::error::Limit;
use super::{Connection, Failure, GUARD, Idle, Param, SqlError, answered};

/// Rolls back, unless an error has ended the transaction already: `XACT_ABORT` is on in every session.
const ROLLBACK: &str = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION";

/// An open transaction.
#[derive(Debug)]
pub struct Transaction<'a> {
    connection: &'a mut Connection,
    client: Option<Idle>,
}

impl Connection {
    /// Starts a transaction. An idle connection that broke is reopened, since no statement has run on it.
    ///
    /// # Errors
    ///
    /// [`SqlError`] if no connection can be opened, or the server rejects the statement.
    pub async fn begin(&mut self) -> Result<Transaction<'_>, SqlError> {
        const BEGIN: &str = "BEGIN TRANSACTION";
        let limit = self.settings.command_timeout;
        let started = match self.take() {
            Some(client) => match plain(client, limit, BEGIN).await {
                Err(error) if error.is_broken_connection() => {
                    tracing::debug!(%error, "Idle connection broke, reconnecting");
                    None
                }
                started => Some(started?),
            },
            None => None,
        };
        let client = match started {
            Some(client) => client,
            None => plain(self.connect().await?, limit, BEGIN).await?,
        };
        Ok(Transaction { connection: self, client: Some(Idle { client, since: Instant::now() }) })
    }
}

impl Transaction<'_> {
    /// Runs one statement in the transaction, and returns its rows as converted by `read`.
    ///
    /// After an error the transaction accepts no further statement.
    ///
    /// # Errors
    ///
    /// [`SqlError`] if the statement fails or exceeds the command time-out, or `read` rejects a row.
    pub async fn query<T>(
        &mut self,
        sql: &str,
        params: &[Param],
        mut read: impl FnMut(Row) -> Result<T, SqlError>,
    ) -> Result<Vec<T>, SqlError> {
        let client = self.client.take().ok_or_else(ended)?.client;
        let limit = self.connection.settings.command_timeout;
        let (rows, client) = answered(client, limit, sql, params, &mut read).await;
        match (rows, client) {
            (Ok(rows), client) => {
                self.client = client.map(|client| Idle { client, since: Instant::now() });
                Ok(rows)
            }
            (Err(error), client) => {
                if let Some(client) = client {
                    self.give_back(client).await;
                }
                Err(Failure::into_error(error))
            }
        }
    }

    /// Commits the transaction.
    ///
    /// # Errors
    ///
    /// [`SqlError`] if the server rejects the commit, so nothing is committed, or if no answer arrives, so
    /// the outcome is unknown.
    pub async fn commit(mut self) -> Result<(), SqlError> {
        let client = self.client.take().ok_or_else(ended)?.client;
        let limit = self.connection.settings.command_timeout;
        let client = plain(client, limit, "COMMIT TRANSACTION").await?;
        self.connection.idle = Some(Idle { client, since: Instant::now() });
        Ok(())
    }

    /// Rolls back the transaction.
    pub async fn rollback(mut self) {
        if let Some(Idle { client, .. }) = self.client.take() {
            self.give_back(client).await;
        }
    }

    /// Rolls back and keeps the client. If that fails, closing the connection rolls back.
    async fn give_back(&mut self, client: Box<Client>) {
        match plain(client, self.connection.settings.command_timeout, ROLLBACK).await {
            Ok(client) => self.connection.idle = Some(Idle { client, since: Instant::now() }),
            Err(error) => tracing::debug!(%error, "Closing the connection to roll back"),
        }
    }
}

/// Runs a statement without parameters or rows; returns the client only on success.
async fn plain(
    mut client: Box<Client>,
    limit: Duration,
    sql: &str,
) -> Result<Box<Client>, SqlError> {
    let failed = |error| SqlError::of("run a statement", error);
    let run = async { client.simple_query(sql).await?.into_results().await.map(drop) };
    match timeout(limit + GUARD, run).await {
        Ok(done) => done.map_err(failed)?,
        Err(elapsed) => {
            let limit = Limit::Command(limit);
            return Err(SqlError::timeout("run a statement", limit, elapsed));
        }
    }
    Ok(client)
}

fn ended() -> SqlError {
    SqlError::new(ErrorKind::Internal, "the transaction has ended")
}
