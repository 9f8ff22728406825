//! Writes rows to a SQL Server table: each batch in one transaction, together with the fence check.
//!
//! # One batch
//!
//! ```text
//! begin    ─► fence: lock the poller's row; if the writer's (generation, token) is lower ─► rollback, Fenced
//!          ─► for a range that is redelivered: also lock the row of the poller that runs alongside, and
//!             check that the rows are still as they were read; if not ─► rollback, they are read again
//!          ─► ledger (if on): record the events; skip those recorded before
//!          ─► target: delete, then update or insert, in chunks below 2,100 parameters
//! commit   ─► all of it, or none of it
//! ```
//!
//! # Design
//!
//! - **Effectively once.** A batch that is redelivered because its answer was lost finds its events in the
//!   ledger: they were recorded in the same transaction as the rows. Without a ledger the same rows are
//!   written again, to the same effect.
//! - **Stale owners.** The fence row stays locked until the transaction ends, so it cannot be raised between
//!   the check and the commit. What a stale owner writes before its successor has reached the target counts
//!   as written earlier. After that, its batches are rejected as a whole. See [`Fence`].
//! - **Older states.** A poller and a replayed range of its past write concurrently, each under its own
//!   fence. Rows found unchanged while the poller's fence is locked have no newer state that the poller could
//!   have written already, and a later one has to wait until the lock is released.
//! - **Aborts.** A transaction that is dropped before its commit is rolled back with its connection.
//! - If a batch holds several states of one row, the last one is written.

mod describe;
mod failure;
mod form;
mod plan;
mod rows;
mod settings;
mod statement;
mod traced;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use highwater_engine::document::{Fence, FencingToken, Generation, StaleWrite};
use highwater_engine::error::ErrorKind;
use highwater_engine::event::EventId;
use highwater_engine::handler::spans::within;
use highwater_engine::handler::tries::log_retry;
use highwater_engine::handler::{Delivery, Handler, HandlerError, ReplayGuard, SETTLE_TIME_MAX};
use highwater_engine::metrics::DatabaseCalls;
use thiserror::Error;
use tiberius::{ColumnData, Row};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{Connection, Param, Retries, RetryTerms, SqlError, Transaction};
use crate::ident::{NameError, QualifiedName};
use describe::{Column, DESCRIBE};
use failure::{Names, Step};
use plan::{Plan, Statement};
use rows::EventRow;

pub use settings::{LedgerConfig, SqlHandlerConfig};
pub use statement::{create_fence, create_ledger, grant};

/// First pause before a batch is tried again; a tenth of it after a deadlock.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// How often old events are deleted from the ledger.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);
/// Permissions needed on the fence table.
pub const FENCE_RIGHTS: [&str; 3] = ["SELECT", "INSERT", "UPDATE"];
/// Permissions needed on the ledger.
pub const LEDGER_RIGHTS: [&str; 3] = ["SELECT", "INSERT", "DELETE"];

/// An invalid name for one of the handler's tables.
#[derive(Debug, Error)]
pub enum TableError {
    /// Not a table name.
    #[error("`{setting}`")]
    Name {
        /// The setting, or the argument.
        setting: &'static str,
        /// Why.
        #[source]
        source: NameError,
    },
    /// The name includes a database, which belongs in the connection string.
    #[error("`{setting}`: table `{table}` names a database: name it in the connection string")]
    Database {
        /// The setting, or the argument.
        setting: &'static str,
        /// The table, as written.
        table: String,
    },
}

/// Parses the table name in `setting`.
///
/// # Errors
///
/// [`TableError`] if the text is not a table name, or names a database.
pub fn table_name(setting: &'static str, text: &str) -> Result<QualifiedName, TableError> {
    let table =
        QualifiedName::parse(text).map_err(|source| TableError::Name { setting, source })?;
    if table.database.is_some() {
        return Err(TableError::Database { setting, table: text.to_owned() });
    }
    Ok(table)
}

/// Writes rows to one table over one connection.
#[derive(Debug)]
pub struct Sql {
    app: String,
    config: SqlHandlerConfig,
    tables: Tables,
    names: Names,
    state: Mutex<State>,
    calls: DatabaseCalls,
}

#[derive(Debug)]
struct Tables {
    target: QualifiedName,
    fence: QualifiedName,
    ledger: Option<QualifiedName>,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    /// Columns of the target; read again after an error that a schema change may have caused.
    described: Option<Arc<[Column]>>,
    forget_at: Instant,
    /// The poller of a call that has not finished. If the call is dropped, its transaction may still be open
    /// on the server.
    unfinished: Option<String>,
}

/// Why a batch was not written.
enum Failed {
    Sql(Step, SqlError),
    Other(HandlerError),
}

impl From<HandlerError> for Failed {
    fn from(error: HandlerError) -> Self {
        Self::Other(error)
    }
}

impl From<StaleWrite> for Failed {
    fn from(stale: StaleWrite) -> Self {
        Self::Other(stale.into())
    }
}

impl Sql {
    /// Returns a handler that is not connected yet. `app` separates the pollers of several applications that
    /// write to one database.
    ///
    /// # Errors
    ///
    /// [`TableError`] if a table name is invalid.
    pub fn new(app: &str, config: &SqlHandlerConfig) -> Result<Self, TableError> {
        let mut config = config.clone();
        let limit = config.timeout;
        config.connection.connect_timeout = config.connection.connect_timeout.min(limit);
        config.connection.command_timeout = config.connection.command_timeout.min(limit);
        let ledger = config.ledger.as_ref().map(|ledger| ledger.table.as_str());
        let tables = Tables {
            target: table_name("HANDLER__TABLE", &config.table)?,
            fence: table_name("HANDLER__FENCE_TABLE", &config.fence_table)?,
            ledger: ledger.map(|name| table_name("HANDLER__LEDGER_TABLE", name)).transpose()?,
        };
        let command = |what: &str, table: &QualifiedName| {
            (table.to_string(), format!("highwater ddl {what} --table {}", table.as_argument()))
        };
        let names = Names {
            target: tables.target.to_string(),
            fence: command("fence", &tables.fence),
            ledger: command("ledger", tables.ledger.as_ref().unwrap_or(&tables.fence)),
        };
        let state = State {
            connection: Connection::new(config.connection.clone(), None),
            described: None,
            forget_at: Instant::now(),
            unfinished: None,
        };
        let calls = DatabaseCalls::new("BATCH", Some(names.target.clone()));
        Ok(Self { app: app.to_owned(), config, tables, names, state: Mutex::new(state), calls })
    }

    /// Logs in with tokens from `credential` if the connection string asks for tokens.
    #[must_use]
    pub fn with_credential(mut self, credential: Arc<dyn TokenCredential>) -> Self {
        self.state.get_mut().connection =
            Connection::new(self.config.connection.clone(), Some(credential));
        self
    }

    /// Retries a batch until it is written or a retry is pointless. A retry is harmless whatever became of
    /// the previous attempt: see the module documentation.
    async fn deliver(
        &self,
        state: &mut State,
        delivery: &Delivery<'_>,
    ) -> Result<(), HandlerError> {
        let rows = delivery.events.iter().map(|event| {
            EventRow::read(event).map_err(|error| {
                HandlerError::Rejected(format!("malformed event `{}`: {error}", event.id))
            })
        });
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let terms = RetryTerms { time_max: self.config.timeout, pause_min: PAUSE_MIN };
        let mut retries = Retries::begin(terms);
        let mut tries = 0;
        loop {
            tries += 1;
            let knew_target = state.described.is_some();
            let written = self.write(state, delivery, &rows).await;
            delivery.progress.report(1);
            let Err(failed) = written else { return Ok(()) };
            let pause = match &failed {
                Failed::Sql(_, error) if tries < self.config.tries_max => {
                    retries.pause_after(error)
                }
                Failed::Sql(..) | Failed::Other(_) => None,
            };
            let error = match failed {
                Failed::Sql(step, error) => failure::of(step, &error, &self.names),
                Failed::Other(error) => error,
            };
            if matches!(error, HandlerError::Rejected(_) | HandlerError::Misconfigured(_)) {
                state.described = None;
                if knew_target {
                    // The target may have changed since its columns were read.
                    continue;
                }
            }
            let Some(pause) = pause else { return Err(error) };
            log_retry(delivery.poller, &delivery.batch_id, tries, self.config.tries_max, &error);
            sleep(pause).await;
        }
    }

    /// Writes a batch in one transaction.
    async fn write(
        &self,
        state: &mut State,
        delivery: &Delivery<'_>,
        rows: &[EventRow<'_>],
    ) -> Result<(), Failed> {
        let described = self.described(state).await?;
        let forget = self.config.ledger.as_ref().filter(|_| state.forget_at <= Instant::now());
        let connection = &mut state.connection;
        let started = connection.begin().await;
        let mut transaction = started.map_err(|error| Failed::Sql(Step::Connection, error))?;
        delivery.progress.report(1);
        let work = Work { sql: self, delivery, rows, described: &described, forget };
        if let Err(failed) = work.run(&mut transaction).await {
            transaction.rollback().await;
            return Err(failed);
        }
        let committed = transaction.commit().await;
        committed.map_err(|error| Failed::Sql(Step::Connection, error))?;
        if forget.is_some() {
            state.forget_at = Instant::now() + FORGET_INTERVAL;
        }
        Ok(())
    }

    async fn described(&self, state: &mut State) -> Result<Arc<[Column]>, Failed> {
        if let Some(described) = &state.described {
            return Ok(Arc::clone(described));
        }
        let name = Param::Text(self.tables.target.quoted());
        let columns = state.connection.query(DESCRIBE, &[name], describe::column).await;
        let columns = columns.map_err(|error| Failed::Sql(Step::Target, error))?;
        if columns.is_empty() {
            return Err(HandlerError::Misconfigured(format!(
                "the table `{}` is not in this database, or the user has no permission on it: check \
                 `HANDLER__TABLE` and the database of the connection",
                self.names.target
            ))
            .into());
        }
        Ok(Arc::clone(state.described.insert(columns.into())))
    }
}

/// The work of one transaction.
#[derive(Clone, Copy)]
struct Work<'a> {
    sql: &'a Sql,
    delivery: &'a Delivery<'a>,
    rows: &'a [EventRow<'a>],
    described: &'a [Column],
    /// Set if it is time to delete old events from the ledger.
    forget: Option<&'a LedgerConfig>,
}

impl Work<'_> {
    async fn run(self, transaction: &mut Transaction<'_>) -> Result<(), Failed> {
        self.pass_fence(transaction).await?;
        self.delivery.progress.report(1);
        if let Some(replay_guard) = self.delivery.replay_guard {
            self.keep_newer_out(transaction, replay_guard).await?;
            self.delivery.progress.report(1);
        }
        let new = match &self.sql.tables.ledger {
            None => self.rows.iter().collect(),
            Some(ledger) => self.note(transaction, ledger).await?,
        };
        self.write_target(transaction, &new).await?;
        // Not during a redelivery: a deleted event might be one of those that are redelivered.
        if let (Some(ledger), Some(table)) = (self.forget, &self.sql.tables.ledger)
            && new.len() == self.rows.len()
        {
            let mut params = self.poller();
            params.push(Param::Int(-i32::try_from(ledger.days).unwrap_or(i32::MAX)));
            let sql = statement::forget(table);
            let forgotten = transaction.query(&sql, &params, |_row| Ok(())).await;
            forgotten.map_err(|error| Failed::Sql(Step::Ledger, error))?;
        }
        Ok(())
    }

    /// Locks the fence and raises it, or fails because the writer is stale.
    async fn pass_fence(self, transaction: &mut Transaction<'_>) -> Result<(), Failed> {
        let at_fence = |error| Failed::Sql(Step::Fence, error);
        let table = &self.sql.tables.fence;
        let Delivery { generation, fencing_token: token, .. } = *self.delivery;
        let name = || self.of_app(self.delivery.poller);
        let found = transaction.query(&statement::fence(table), &name(), read_fence).await;
        let raise = match found.map_err(at_fence)?.as_slice() {
            [] => statement::fence_first(table),
            [current] if current.admit(generation, token)? == *current => return Ok(()),
            [_lower] => statement::fence_raise(table),
            several => {
                let (table, command) = &self.sql.names.fence;
                return Err(HandlerError::Misconfigured(format!(
                    "the table `{table}` has {} rows for one poller: it does not match the \
                     output of `{command}`",
                    several.len()
                ))
                .into());
            }
        };
        let mut params = name();
        params.extend([number(generation.0)?, number(token.0)?]);
        let raised = transaction.query(&raise, &params, |_row| Ok(())).await;
        raised.map(drop).map_err(at_fence)
    }

    /// Locks the fence of the poller that runs alongside this replay, and checks that the rows have no newer
    /// state that the poller may have written.
    async fn keep_newer_out(
        self,
        transaction: &mut Transaction<'_>,
        replay_guard: ReplayGuard<'_>,
    ) -> Result<(), Failed> {
        let at_fence = |error| Failed::Sql(Step::Fence, error);
        let table = &self.sql.tables.fence;
        let mut name = self.of_app(replay_guard.poller);
        let found = transaction.query(&statement::fence(table), &name, read_fence).await;
        if found.map_err(at_fence)?.is_empty() {
            // The lowest possible fence, so every grant of the poller passes it.
            name.extend([Param::BigInt(0), Param::BigInt(0)]);
            let first = statement::fence_first(table);
            let created = transaction.query(&first, &name, |_row| Ok(())).await;
            created.map_err(at_fence)?;
        }
        if replay_guard.rows.are_unchanged().await? {
            return Ok(());
        }
        let reason = "rows have changed since they were read; the batch is read again".to_owned();
        Err(HandlerError::Throttled { reason, retry_after: Some(Duration::ZERO) }.into())
    }

    /// Records the events as applied; returns the rows of those that are new.
    async fn note(
        &self,
        transaction: &mut Transaction<'_>,
        ledger: &QualifiedName,
    ) -> Result<Vec<&EventRow<'_>>, Failed> {
        let ids: BTreeSet<Vec<u8>> = self.rows.iter().map(|row| binary(&row.event.id)).collect();
        let ids: Vec<Vec<u8>> = ids.into_iter().collect();
        let mut new = BTreeSet::new();
        for chunk in ids.chunks(statement::ROWS_MAX) {
            let mut params = self.poller();
            params.push(Param::Text(self.scope()));
            params.extend(chunk.iter().cloned().map(Param::Bytes));
            let sql = statement::ledger(ledger, chunk.len());
            let recorded = transaction.query(&sql, &params, read_id).await;
            new.extend(recorded.map_err(|error| Failed::Sql(Step::Ledger, error))?);
            self.delivery.progress.report(1);
        }
        Ok(self.rows.iter().filter(|row| new.contains(&binary(&row.event.id))).collect())
    }

    async fn write_target(
        &self,
        transaction: &mut Transaction<'_>,
        rows: &[&EventRow<'_>],
    ) -> Result<(), Failed> {
        let deletes = self.sql.config.deletes;
        let rows: Vec<_> = rows.iter().copied().filter(|row| deletes || !row.is_delete()).collect();
        let plan = |row| {
            Plan::new(&self.sql.config, &self.sql.tables.target, self.described, row)
                .map_err(HandlerError::Misconfigured)
        };
        // A deleted row has only its key, so deletes need a plan of their own.
        let by_deleted =
            rows.iter().find(|row| row.is_delete()).map(|row| plan(row)).transpose()?;
        let by_kept = rows.iter().find(|row| !row.is_delete()).map(|row| plan(row)).transpose()?;
        let Some(plan) = by_kept.or(by_deleted) else { return Ok(()) };
        for part in plan.parts(&rows)? {
            // One statement at a time: a batch is the largest thing in memory.
            let Statement { sql, params } = plan.statement(&part)?;
            let written = transaction.query(&sql, &params, |_row| Ok(())).await;
            written.map_err(|error| Failed::Sql(Step::Target, error))?;
            self.delivery.progress.report(1);
        }
        Ok(())
    }

    /// Returns the scope within which an event is applied once: each replay, and each step of a handler
    /// chain, since steps may share a ledger.
    fn scope(&self) -> String {
        let replay_id = self.delivery.replay_id.unwrap_or_default();
        match self.delivery.step {
            Some(step) => format!("{replay_id}@{}", step.name),
            None => replay_id.to_owned(),
        }
    }

    /// Returns the leading parameters of every statement on the ledger.
    fn poller(&self) -> Vec<Param> {
        self.of_app(&self.delivery.source.poller)
    }

    /// Returns the same for the fence of `name`.
    fn of_app(&self, name: &str) -> Vec<Param> {
        vec![Param::Text(self.sql.app.clone()), Param::Text(name.to_owned())]
    }
}

#[async_trait]
impl Handler for Sql {
    fn time_limit(&self) -> Option<Duration> {
        Some(self.config.timeout)
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let mut state = self.state.lock().await;
        let limit = self.config.timeout;
        let connection = &self.config.connection;
        let at = (connection.host.as_str(), connection.port);
        let span = traced::write_rows(&self.names.target, connection.database.as_deref(), at);
        let began_at = Instant::now();
        state.unfinished = Some(delivery.poller.to_owned());
        let write = async {
            timeout(limit, self.deliver(&mut state, &delivery)).await.unwrap_or_else(|_elapsed| {
                Err(HandlerError::Retryable(format!("the batch was not written within {limit:?}")))
            })
        };
        let written = within(span, write).await;
        let error = written.as_ref().err().map(|error| error.name().to_owned());
        self.calls.took(delivery.poller, began_at.elapsed(), error);
        state.unfinished = None;
        written
    }

    /// Waits for the fence lock, which an aborted transaction holds until it is rolled back.
    async fn settle(&self) {
        let mut state = self.state.lock().await;
        let Some(poller) = state.unfinished.take() else { return };
        let name = [Param::Text(self.app.clone()), Param::Text(poller)];
        let sql = statement::fence(&self.tables.fence);
        let locked = state.connection.query(&sql, &name, read_fence);
        if !timeout(SETTLE_TIME_MAX, locked).await.is_ok_and(|locked| locked.is_ok()) {
            tracing::debug!("The rollback of an aborted transaction was not confirmed");
        }
    }
}

/// Returns a number as a `bigint`.
fn number(number: u64) -> Result<Param, HandlerError> {
    let number = i64::try_from(number).map(Param::BigInt);
    number.map_err(|error| HandlerError::Retryable(format!("generation or token: {error}")))
}

/// Returns the 16 bytes of an event id, which is written as 32 hex digits.
fn binary(id: &EventId) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, _) = id.as_str().as_bytes().as_chunks::<2>();
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    pairs.iter().filter_map(byte).collect()
}

fn read_fence(row: Row) -> Result<Fence, SqlError> {
    let cells: Vec<ColumnData<'static>> = row.into_token_row().into_iter().collect();
    let [ColumnData::I64(Some(generation)), ColumnData::I64(Some(token))] = cells.as_slice() else {
        return Err(other_columns());
    };
    match (u64::try_from(*generation), u64::try_from(*token)) {
        (Ok(generation), Ok(token)) => {
            Ok(Fence { generation: Generation(generation), token: FencingToken(token) })
        }
        _ => Err(other_columns()),
    }
}

fn read_id(row: Row) -> Result<Vec<u8>, SqlError> {
    match row.into_token_row().into_iter().next() {
        Some(ColumnData::Binary(Some(id))) => Ok(id.into_owned()),
        _ => Err(other_columns()),
    }
}

fn other_columns() -> SqlError {
    SqlError::new(ErrorKind::Configuration, "column types differ from those of the DDL")
}
