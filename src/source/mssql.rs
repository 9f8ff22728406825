//! Changed rows of a SQL Server table or view: one fetch is one query in one round trip.
//!
//! # When no row is missed
//!
//! - Mode `rowversion`: always. No transaction that is still open can hold a rowversion below
//!   `MIN_ACTIVE_ROWVERSION()`, and only rows below it are read.
//! - Mode `timestamp+pk`: while the time from stamping a row to its commit, plus the difference of
//!   the writers' clocks, stays below the settle window. The column has to hold UTC.
//!
//! Rows whose cursor is `NULL` are never read; a column that can be `NULL` is counted once and
//! reported. Values go to the server as parameters, cast to the type of the column they are compared
//! with; the position of a row comes back as the server's own text.

mod decode;
mod describe;
mod form;
mod limit;
mod plan;
mod query;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::config::SqlConnection;
use crate::cursor::{CursorMode, SourceFingerprint};
use crate::error::ErrorKind;
use crate::event::SourceLabel;
use crate::mssql::ident::{QualifiedName, quote};
use crate::mssql::{Connection, Param, Retries, RetryTerms, SqlError};
use crate::value::Value;

use super::{FetchError, FetchWindow, Rows, Source, SourceShape};
use describe::{Column, DESCRIBE};
use plan::{Answer, Plan};

pub use limit::SizeLimits;

/// Invalid object name, invalid column name: the table is not as it was described.
const TABLE_CHANGED: [u32; 2] = [208, 207];

/// What is read, and from where.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// Name of the poller.
    pub poller: String,
    /// Server, database and login.
    pub connection: SqlConnection,
    /// Table or view: `orders`, `dbo.orders`, `[dbo].[My Table]`.
    pub table: String,
    /// How rows are ordered.
    pub mode: CursorMode,
    /// The rowversion or time column.
    pub cursor_column: String,
    /// Key columns, in key order; together with the cursor they identify a row.
    pub key: Vec<String>,
    /// Columns to deliver; all when absent.
    pub columns: Option<Vec<String>>,
    /// A condition in T-SQL on the columns of `t`.
    pub filter: Option<String>,
    /// How far behind the server's clock the timestamp mode stays.
    pub settle: Duration,
    /// How much is read at once.
    pub limits: SizeLimits,
}

/// Reads changed rows of one table over one connection.
#[derive(Debug)]
pub struct Mssql {
    settings: SourceSettings,
    table: QualifiedName,
    shape: SourceShape,
    retry: RetryTerms,
    state: Mutex<State>,
    #[cfg(any(test, feature = "test-util"))]
    unbounded: bool,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    plan: Option<Arc<Plan>>,
    /// How many rows a batch holds, judged by those read last.
    rows_fit: Option<usize>,
}

impl Mssql {
    /// Returns a source that has not connected yet.
    ///
    /// # Errors
    ///
    /// [`FetchError`] of kind [`ErrorKind::Configuration`] if the settings contradict themselves.
    pub fn new(settings: SourceSettings) -> Result<Self, FetchError> {
        let configuration = |reason: String| FetchError::new(ErrorKind::Configuration, reason);
        let mut table =
            QualifiedName::parse(&settings.table).map_err(|e| configuration(e.to_string()))?;
        if let Some(database) = table.database.take() {
            // The rowversion of another database does not order its rows.
            let connected = settings.connection.database.as_deref().unwrap_or_default();
            if !database.eq_ignore_ascii_case(connected) {
                return Err(configuration(format!(
                    "table `{}` is in another database than the connection (`{connected}`): name \
                     `{database}` in the connection string",
                    settings.table
                )));
            }
        }
        if settings.key.is_empty() {
            return Err(configuration(
                "no key column is named: a key orders rows that change at the \
                                      same time"
                    .to_owned(),
            ));
        }
        let mut settings = settings;
        settings.filter = settings
            .filter
            .map(|filter| filter.trim().to_owned())
            .filter(|filter| !filter.is_empty());
        let shape = SourceShape {
            label: SourceLabel {
                poller: settings.poller.clone(),
                object: table.to_string(),
                mode: settings.mode.as_str(),
            },
            mode: settings.mode,
            key: settings.key.clone(),
            fingerprint: fingerprint(&settings, &table),
        };
        let connection = Connection::new(settings.connection.clone(), None);
        let state = Mutex::new(State { connection, plan: None, rows_fit: None });
        Ok(Self {
            settings,
            table,
            shape,
            retry: RetryTerms::NEVER,
            state,
            #[cfg(any(test, feature = "test-util"))]
            unbounded: false,
        })
    }

    /// Leaves out the upper bound, which is what keeps rows from being missed: to show that it does.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn without_bound(mut self) -> Self {
        self.unbounded = true;
        self
    }

    /// Logs in with tokens of `credential` where the connection string asks for tokens.
    #[must_use]
    pub fn with_credential(mut self, credential: Arc<dyn TokenCredential>) -> Self {
        self.state.get_mut().connection =
            Connection::new(self.settings.connection.clone(), Some(credential));
        self
    }

    /// Tries a fetch again that failed for a reason that may pass; without this it fails at once.
    #[must_use]
    pub fn with_retries(self, retry: RetryTerms) -> Self {
        Self { retry, ..self }
    }

    async fn plan(&self, connection: &mut Connection) -> Result<Plan, FetchError> {
        let name = self.table.quoted();
        let columns = connection.query(DESCRIBE, &[Param::Text(name)], column).await?;
        let plan = Plan::new(&self.settings, &self.table, &columns)?;
        #[cfg(any(test, feature = "test-util"))]
        let plan = if self.unbounded { plan.without_bound() } else { plan };
        if plan.cursor_is_nullable() {
            self.count_null_cursors(connection).await;
        }
        Ok(plan)
    }

    /// Warns of rows that are never read. A count that fails must not stop the poller.
    async fn count_null_cursors(&self, connection: &mut Connection) {
        let poller = self.settings.poller.as_str();
        let column = self.settings.cursor_column.as_str();
        let sql = format!(
            "SELECT COUNT_BIG(*) AS [n] FROM {} AS t WHERE t.{} IS NULL",
            self.table.quoted(),
            quote(column)
        );
        let counted = connection.query(&sql, &[], |row| Ok(values(row).pop())).await;
        match counted.map(|mut rows| rows.pop().flatten()) {
            Ok(Some(Value::Int(0))) => {}
            Ok(Some(Value::Int(rows))) => tracing::warn!(
                event = "null_cursors",
                poller.name = poller,
                rows,
                "{rows} rows of poller `{poller}` have NULL in cursor column `{column}` and are not \
                 delivered"
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!(
                event = "null_cursors_not_counted",
                poller.name = poller,
                error = crate::error::chain(&error),
                "Rows of poller `{poller}` with NULL in cursor column `{column}` could not be counted"
            ),
        }
    }
}

#[async_trait]
impl Source for Mssql {
    fn shape(&self) -> &SourceShape {
        &self.shape
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let mut state = self.state.lock().await;
        let mut retries = Retries::begin(self.retry);
        loop {
            let rows = self.try_fetch(&mut state, window).await;
            let Err(error) = &rows else { return rows };
            let Some(pause) = error.of_sql().and_then(|error| retries.pause_after(error)) else {
                return rows;
            };
            tracing::info!(
                event = "fetch_tried_again",
                poller.name = self.settings.poller,
                error = crate::error::chain(error),
                "Poller `{}` could not read and tries again in {pause:.1?}",
                self.settings.poller
            );
            sleep(pause).await;
        }
    }
}

impl Mssql {
    /// Fetches once, from the first row on: what an earlier try has read is forgotten.
    async fn try_fetch(
        &self,
        state: &mut State,
        window: FetchWindow<'_>,
    ) -> Result<Rows, FetchError> {
        let State { connection, plan, rows_fit } = state;
        let plan = match plan {
            Some(known) => Arc::clone(known),
            None => Arc::clone(plan.insert(Arc::new(self.plan(connection).await?))),
        };
        // A range that is read again is read whole.
        let fit = rows_fit.filter(|_| window.upto.is_none()).unwrap_or(usize::MAX);
        let window = FetchWindow { rows_max: window.rows_max.min(fit), ..window };
        let (sql, params) = plan.statement(window)?;
        let mut answer = Answer::new(window.rows_max);
        let read = connection.query(sql, &params, |row| plan.read(row, &mut answer)).await;
        if let Err(error) = read
            && !answer.is_cut()
        {
            if error.number().is_some_and(|number| TABLE_CHANGED.contains(&number)) {
                state.plan = None;
            }
            return Err(error.into());
        }
        *rows_fit = plan.rows_that_fit(&answer).or(*rows_fit);
        plan.finish(answer, window)
    }
}

impl FetchError {
    /// Returns the error of the connection, where it is one.
    fn of_sql(&self) -> Option<&SqlError> {
        self.source.as_deref()?.downcast_ref()
    }
}

impl From<SqlError> for FetchError {
    fn from(error: SqlError) -> Self {
        Self { kind: error.kind, reason: error.to_string(), source: Some(error.into()) }
    }
}

fn fingerprint(settings: &SourceSettings, table: &QualifiedName) -> SourceFingerprint {
    let SqlConnection { host, instance, port, database, .. } = &settings.connection;
    let instance = instance.as_deref().unwrap_or_default();
    let server = format!("{host}\\{instance},{port}").to_lowercase();
    let key = settings.key.iter().map(|column| quote(column)).collect::<Vec<_>>().join(",");
    SourceFingerprint::of(&[
        ("server", &server),
        ("database", database.as_deref().unwrap_or_default()),
        ("object", &table.quoted()),
        ("mode", settings.mode.as_str()),
        ("cursor", &settings.cursor_column),
        ("key", &key),
        ("filter", settings.filter.as_deref().unwrap_or_default()),
    ])
}

/// Returns the values of a row.
fn values(row: tiberius::Row) -> Vec<Value> {
    row.into_token_row().into_iter().map(decode::value).collect()
}

/// Reads one row of the answer to [`DESCRIBE`].
fn column(row: tiberius::Row) -> Result<Column, SqlError> {
    let row = values(row);
    let [
        Value::Text(name),
        Value::Text(type_name),
        Value::Int(max_length),
        Value::Int(precision),
        Value::Int(scale),
        Value::Bool(nullable),
        collation @ (Value::Text(_) | Value::Null),
    ] = row.as_slice()
    else {
        let reason = format!("the catalogue describes a column as {row:?}");
        return Err(SqlError::new(ErrorKind::Internal, reason));
    };
    Ok(Column {
        name: name.clone(),
        type_name: type_name.to_lowercase(),
        max_length: *max_length,
        precision: *precision,
        scale: *scale,
        nullable: *nullable,
        collation: if let Value::Text(name) = collation { Some(name.clone()) } else { None },
    })
}
