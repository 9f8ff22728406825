//! Several statements as one: all of them count, or none.
//!
//! # Why so
//!
//! A client with a transaction open must never be used for anything else: what comes next would
//! become part of it, and be lost with it. So a [`Transaction`] keeps its client to itself until it
//! has ended. Dropped before that, it closes the connection, which the server answers with a rollback.
//!
//! It begins and ends in statements of their own and not within one that has parameters: the server
//! runs those as a procedure, and takes one that leaves a transaction open for a mistake (error 266).
//! <https://learn.microsoft.com/sql/relational-databases/errors-events/mssqlserver-266-database-engine-error>

use std::time::Duration;

use highwater_engine::error::ErrorKind;
use tiberius::Row;
use tokio::time::{Instant, timeout};

use super::connect::Client;
use super::error::Limit;
use super::{Connection, Failure, GUARD, Idle, Param, SqlError, answered};

/// Ends a transaction, unless an error has ended it: `XACT_ABORT` is on in every session.
const ROLLBACK: &str = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION";

/// A transaction that is open.
#[derive(Debug)]
pub struct Transaction<'a> {
    connection: &'a mut Connection,
    client: Option<Idle>,
}

impl Connection {
    /// Begins a transaction. A connection that broke while it rested is made anew, since nothing has
    /// run on it.
    ///
    /// # Errors
    ///
    /// [`SqlError`] if no connection can be made, or the server refuses.
    pub async fn begin(&mut self) -> Result<Transaction<'_>, SqlError> {
        const BEGIN: &str = "BEGIN TRANSACTION";
        let limit = self.settings.command_timeout;
        let begun = match self.take() {
            Some(client) => match plain(client, limit, BEGIN).await {
                Err(error) if error.is_broken_connection() => {
                    tracing::debug!(%error, "Connection broke while it rested, connecting again");
                    None
                }
                begun => Some(begun?),
            },
            None => None,
        };
        let client = match begun {
            Some(client) => client,
            None => plain(self.connect().await?, limit, BEGIN).await?,
        };
        Ok(Transaction { connection: self, client: Some(Idle { client, since: Instant::now() }) })
    }
}

impl Transaction<'_> {
    /// Runs one statement in the transaction and returns what `read` makes of its rows.
    ///
    /// After an error the transaction takes no further statement.
    ///
    /// # Errors
    ///
    /// [`SqlError`] if the statement fails or takes longer than the command time-out, or `read`
    /// refuses a row.
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

    /// Makes all of it count.
    ///
    /// # Errors
    ///
    /// [`SqlError`] if the server refuses, so that none of it counts, or if the answer does not come,
    /// so that nobody knows.
    pub async fn commit(mut self) -> Result<(), SqlError> {
        let client = self.client.take().ok_or_else(ended)?.client;
        let limit = self.connection.settings.command_timeout;
        let client = plain(client, limit, "COMMIT TRANSACTION").await?;
        self.connection.idle = Some(Idle { client, since: Instant::now() });
        Ok(())
    }

    /// Undoes all of it.
    pub async fn rollback(mut self) {
        if let Some(Idle { client, .. }) = self.client.take() {
            self.give_back(client).await;
        }
    }

    /// Rolls back and keeps the client; where that fails, the end of the connection undoes all.
    async fn give_back(&mut self, client: Box<Client>) {
        match plain(client, self.connection.settings.command_timeout, ROLLBACK).await {
            Ok(client) => self.connection.idle = Some(Idle { client, since: Instant::now() }),
            Err(error) => tracing::debug!(%error, "Connection is closed to undo its transaction"),
        }
    }
}

/// Runs a statement without parameters or rows; gives the client back only if it has.
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
