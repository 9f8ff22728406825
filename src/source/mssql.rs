//! Changed rows of a SQL Server table or view: one fetch is one query in one round trip.
//!
//! # When no row is missed
//!
//! - Mode `rowversion`: always. No transaction that is still open can hold a rowversion below
//!   `MIN_ACTIVE_ROWVERSION()`, and only rows below it are read.
//! - Mode `integer+pk`: while the time from taking a number to the commit of its row stays below the
//!   settle window, and numbers only grow. It sees inserted rows only.
//! - Mode `timestamp+pk`: while the time from stamping a row to its commit, plus the difference of
//!   the writers' clocks, stays below the settle window. The column has to hold UTC.
//!
//! Rows whose cursor is `NULL` are never read; a column that can be `NULL` is counted once and
//! reported. Values go to the server as parameters, cast to the type of the column they are compared
//! with; the position of a row comes back as the server's own text.

mod decode;
mod describe;
mod mark;
mod plan;
mod query;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use tokio::sync::Mutex;

use crate::config::SqlConnection;
use crate::cursor::{CursorMode, SourceFingerprint};
use crate::error::ErrorKind;
use crate::event::SourceLabel;
use crate::mssql::ident::{QualifiedName, quote};
use crate::mssql::{Connection, Param, SqlError};
use crate::value::Value;

use super::{FetchError, FetchWindow, Rows, Source, SourceShape};
use describe::{Column, DESCRIBE};
use plan::{Answer, Plan};

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
}

/// Reads changed rows of one table over one connection.
#[derive(Debug)]
pub struct Mssql {
    settings: SourceSettings,
    table: QualifiedName,
    shape: SourceShape,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    plan: Option<Arc<Plan>>,
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
        let state = Mutex::new(State { connection, plan: None });
        Ok(Self { settings, table, shape, state })
    }

    /// Logs in with tokens of `credential` where the connection string asks for tokens.
    #[must_use]
    pub fn with_credential(mut self, credential: Arc<dyn TokenCredential>) -> Self {
        self.state.get_mut().connection =
            Connection::new(self.settings.connection.clone(), Some(credential));
        self
    }

    async fn plan(&self, connection: &mut Connection) -> Result<Plan, FetchError> {
        let name = self.table.quoted();
        let columns = connection.query(DESCRIBE, &[Param::Text(name)], column).await?;
        let plan = Plan::new(&self.settings, &self.table, &columns)?;
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
        let State { connection, plan } = &mut *state;
        let plan = match plan {
            Some(known) => Arc::clone(known),
            None => Arc::clone(plan.insert(Arc::new(self.plan(connection).await?))),
        };
        let (sql, params) = plan.statement(window)?;
        let mut answer = Answer::default();
        let read = connection.query(&sql, &params, |row| plan.read(row, &mut answer)).await;
        if let Err(error) = read {
            if error.number().is_some_and(|number| TABLE_CHANGED.contains(&number)) {
                state.plan = None;
            }
            return Err(error.into());
        }
        plan.finish(answer, window)
    }
}

impl From<SqlError> for FetchError {
    fn from(error: SqlError) -> Self {
        let plain = Self::new(error.kind, error.to_string());
        Self { source: Some(error.into()), ..plain }
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
        Value::Bool(identity),
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
        identity: *identity,
    })
}
