//! Changed rows of a SQL Server table or view. One fetch is one query in one round trip.
//!
//! # When no row is missed
//!
//! - Mode `rowversion`: always. No transaction that is still open can hold a rowversion below
//!   `MIN_ACTIVE_ROWVERSION()`, and only rows below it are read.
//! - Mode `change_tracking`: always. Versions are assigned at commit. If the changes after the position
//!   were cleaned up, the poller stops. It also sees deleted rows.
//! - Mode `integer+pk`: if the time from allocating a number to the commit of its row stays below the settle
//!   window, and numbers only grow. It sees inserted rows only.
//! - Mode `timestamp+pk`: if the time from stamping a row to its commit, plus the clock difference between
//!   writers, stays below the settle window. The column has to hold UTC.
//!
//! Rows whose cursor is `NULL` are never read; for a nullable cursor column they are counted once and
//! reported. Values are sent as parameters, cast to the type of the column they are compared with. The
//! position of a row comes back as the server's own text.

mod cells;
mod choice;
mod columns;
mod current;
mod decode;
mod describe;
mod examine;
mod fetch;
mod form;
mod identity;
mod json_schema;
mod key;
mod limit;
mod lookup;
mod mark;
mod mask;
mod origin;
mod other_databases;
mod partition;
mod plan;
mod present;
mod proposal;
mod query;
mod range;
#[cfg(any(test, feature = "test-util"))]
mod sample_table;
mod schema;
mod selection;
mod settings;
mod similar;
mod traced;
mod tracking;
mod unique_key;
mod variant;
mod zone;

use std::sync::{Arc, OnceLock, PoisonError};

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use highwater_engine::cursor::{Cursor, CursorMode, SourceFingerprint, SourceState};
use highwater_engine::error::ErrorKind;
use highwater_engine::event::counted;
use highwater_engine::metrics::DatabaseCalls;
use highwater_engine::source::{
    Anchor, FetchError, FetchWindow, LookupError, RowLookup, RowReport, Rows, Source, SourceShape,
};
use highwater_engine::value::Value;
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::connection::{Connection, Param, Retries, RetryTerms, SqlError};
use crate::connection_string::SqlAuth;
use crate::filter::Filter;
use crate::ident::quote;

use choice::{Choice, ReasonedChoice, Survey};
use describe::Column;
use identity::Identity;
use origin::Origin;
use plan::{FetchProgress, Plan, ReadSpec};
use schema::SchemaComparison;

pub use examine::StoredPosition;
pub use json_schema::RowSchema;
pub use limit::SizeLimits;
pub use mask::{Mask, MaskMethod, NoMaskSecret};
pub use proposal::SourceProposal;
#[cfg(any(test, feature = "test-util"))]
pub use sample_table::SampleTable;
pub use selection::{OperationProblem, check_operations};
pub use settings::{OnSchemaChange, Relation, SourceClock, SourceSettings};

/// Whether change tracking is enabled for the object `@P1` and visible to the login.
const TRACKED: &str = "SELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(@P1)) AS [v]";

/// Reads changed rows of one table over one connection.
#[derive(Debug)]
pub struct Mssql {
    settings: SourceSettings,
    origin: Origin,
    filter: Option<Filter>,
    /// The description of the source until its mode is chosen.
    undecided: SourceShape,
    decided: OnceLock<Decided>,
    retry: RetryTerms,
    state: Mutex<State>,
    /// Connection of lookups, which an operator asks for: no tick waits for one.
    lookups: Mutex<Box<Connection>>,
    /// Buffer of delivered rows, reused by the next fetch.
    spare: std::sync::Mutex<String>,
    calls: DatabaseCalls,
    #[cfg(any(test, feature = "test-util"))]
    unbounded: bool,
}

/// How rows are ordered, and the resulting description of the source.
#[derive(Debug)]
struct Decided {
    choice: Choice,
    shape: SourceShape,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    plan: Option<Arc<Plan>>,
    /// Whether the columns must be described again before the plan is used, because the last read failed.
    in_doubt: bool,
    /// Position at which the poller stopped because the columns had changed since the plan was made, and the
    /// state retained at that time.
    refused_at: Option<(Cursor, SourceState)>,
    /// How many rows fit into a batch, estimated from the last ones read.
    rows_fit: Option<usize>,
    /// Whether the limits of a view or a query were reported.
    origin_reported: bool,
    /// Whether a unique index covered cursor and key at the last check.
    has_unique_key: bool,
}

impl Mssql {
    /// Returns the grantee of permissions, as SQL text.
    fn user(&self) -> String {
        match &self.settings.connection.auth {
            SqlAuth::Password { user, .. } | SqlAuth::EntraUser { user, .. } => quote(user),
            SqlAuth::ManagedIdentity { .. }
            | SqlAuth::WorkloadIdentity { .. }
            | SqlAuth::ServicePrincipal { .. }
            | SqlAuth::Default { .. } => "[the identity's user]".to_owned(),
        }
    }

    /// Returns a source that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`FetchError`] of kind [`ErrorKind::Configuration`] if the settings contradict themselves.
    pub fn new(settings: SourceSettings) -> Result<Self, FetchError> {
        let configuration = |reason: String| FetchError::new(ErrorKind::Configuration, reason);
        let origin = Origin::of(&settings).map_err(configuration)?;
        let filter = origin::filter(&settings).map_err(configuration)?;
        if settings.key.is_empty() {
            return Err(configuration(
                "no key column is set: a key orders rows that change at the \
                                      same time"
                    .to_owned(),
            ));
        }
        if settings.columns.is_some() && !settings.columns_excluded.is_empty() {
            let both = "both a column list and excluded columns are set: remove one";
            return Err(configuration(both.to_owned()));
        }
        if origin.table().is_none() && settings.mode == Some(CursorMode::ChangeTracking) {
            let reason = "a query has no tracked changes: read a table, or choose another mode";
            return Err(configuration(reason.to_owned()));
        }
        if origin.table().is_none() && settings.cursor_column.is_none() {
            let reason = "no cursor column is set: a query needs one in every mode";
            return Err(configuration(reason.to_owned()));
        }
        let choice = Choice::of(&settings)?;
        let best = Choice { mode: CursorMode::RowVersion, cursor: None };
        let undecided = origin.shape(&settings, filter.as_ref(), &best);
        let decided = OnceLock::new();
        if let Some(choice) = choice {
            let shape = origin.shape(&settings, filter.as_ref(), &choice);
            decided.get_or_init(|| Decided { choice, shape });
        }
        let calls = DatabaseCalls::new("SELECT", origin.table().map(ToString::to_string));
        let connection = Self::connection(&settings, None);
        let lookups = Mutex::new(Box::new(Self::connection(&settings, None)));
        let state = Mutex::new(State {
            connection,
            plan: None,
            in_doubt: false,
            refused_at: None,
            rows_fit: None,
            origin_reported: false,
            has_unique_key: false,
        });
        Ok(Self {
            settings,
            origin,
            filter,
            undecided,
            decided,
            retry: RetryTerms::NEVER,
            state,
            lookups,
            spare: std::sync::Mutex::default(),
            calls,
            #[cfg(any(test, feature = "test-util"))]
            unbounded: false,
        })
    }

    /// Removes the upper bound that keeps rows from being missed, so that tests can show its effect.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn without_bound(mut self) -> Self {
        self.unbounded = true;
        self
    }

    /// Logs in with tokens from `credential` if the connection string asks for tokens.
    #[must_use]
    pub fn with_credential(mut self, credential: Arc<dyn TokenCredential>) -> Self {
        let connection = |credential| Self::connection(&self.settings, Some(credential));
        **self.lookups.get_mut() = connection(Arc::clone(&credential));
        self.state.get_mut().connection = connection(credential);
        self
    }

    fn connection(
        settings: &SourceSettings,
        credential: Option<Arc<dyn TokenCredential>>,
    ) -> Connection {
        let connection = Connection::new(settings.connection.clone(), credential);
        if settings.mask.columns().is_empty() { connection } else { connection.hiding_values() }
    }

    /// Retries fetches after transient errors; without this they fail at once.
    #[must_use]
    pub fn with_retries(self, retry: RetryTerms) -> Self {
        Self { retry, ..self }
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, String> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn describe(&self, connection: &mut Connection) -> Result<Vec<Column>, FetchError> {
        let columns = connection.query(&self.origin.describe(), &[], describe::column).await?;
        if columns.is_empty() {
            return Err(plan::not_found(&self.origin));
        }
        Ok(columns)
    }

    /// Whether the mode is known, from the settings or since the source was opened.
    pub fn is_decided(&self) -> bool {
        self.decided.get().is_some()
    }

    /// Chooses how to read a table from its description.
    async fn choose(
        &self,
        connection: &mut Connection,
        settings: &SourceSettings,
        columns: &[Column],
        is_stored: impl Fn(&Choice) -> bool,
    ) -> Result<ReasonedChoice, FetchError> {
        let survey = Survey { origin: &self.origin, columns, tracked: false };
        let tracked = choice::depends_on_tracking(settings, survey, &is_stored)?
            && self.is_tracked(connection).await?;
        choice::choose(settings, Survey { tracked, ..survey }, is_stored)
    }

    /// Whether changes are tracked and visible. If the server rejects the query, there are none to read.
    async fn is_tracked(&self, connection: &mut Connection) -> Result<bool, FetchError> {
        let Some(table) = self.origin.table() else { return Ok(false) };
        let name = Param::Text(table.quoted());
        match connection.query(TRACKED, &[name], |row| Ok(values(&row).pop())).await {
            Ok(tracked) => Ok(matches!(tracked.as_slice(), [Some(Value::Int(_))])),
            Err(error) if error.is_rejected() => {
                let poller = self.settings.poller.as_str();
                tracing::warn!(
                    event = "change_tracking_unavailable",
                    poller.name = poller,
                    error = highwater_engine::error::chain(&error),
                    "The server does not support change tracking, so poller `{poller}` cannot use it on \
                     `{table}`"
                );
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the chosen mode. A source is always opened before it is fetched from.
    fn decided(&self) -> Result<&Decided, FetchError> {
        self.decided.get().ok_or_else(|| {
            let reason = "the source was not opened, so its mode is not chosen yet";
            FetchError::new(ErrorKind::Internal, reason)
        })
    }

    async fn plan<'a>(
        &self,
        state: &'a mut State,
    ) -> Result<(Arc<Plan>, &'a mut Connection), FetchError> {
        let State { connection, plan, origin_reported, has_unique_key, .. } = state;
        if let Some(known) = plan {
            return Ok((Arc::clone(known), connection));
        }
        let columns = self.describe(connection).await?;
        let new_plan = self.make_plan(&columns)?;
        let choice = &self.decided()?.choice;
        let reports = self.speaks_for_all();
        let counts = reports && new_plan.cursor_is_nullable();
        if let Some(column) = choice.cursor.as_deref().filter(|_| counts) {
            self.count_null_cursors(connection, column).await;
        }
        if !std::mem::replace(origin_reported, true) {
            match self.origin.table() {
                None => self.report_unchecked_key("a query"),
                Some(table) => {
                    if reports && let Some(view) = self.bounded_view(choice.mode, &columns) {
                        self.warn_of_other_databases(connection, view).await;
                    }
                    *has_unique_key =
                        self.check_unique_key(connection, table, &new_plan, reports).await;
                }
            }
        }
        let new_plan = new_plan.of_unique_key(*has_unique_key);
        Ok((Arc::clone(plan.insert(Arc::new(new_plan))), connection))
    }

    /// Whether this poller reports facts that hold for all partitions; one of them is enough.
    fn speaks_for_all(&self) -> bool {
        self.settings.partition.is_none_or(|partition| partition.index == 0)
    }

    /// Returns the plan for a table with these columns.
    fn make_plan(&self, described: &[Column]) -> Result<Plan, FetchError> {
        let choice = &self.decided()?.choice;
        let read = ReadSpec { origin: &self.origin, filter: self.filter.as_ref(), choice };
        let new_plan = Plan::new(&self.settings, read, described)?;
        #[cfg(any(test, feature = "test-util"))]
        let new_plan = if self.unbounded { new_plan.without_bound() } else { new_plan };
        Ok(new_plan)
    }

    /// Warns of rows that are never read. A failed count must not stop the poller.
    async fn count_null_cursors(&self, connection: &mut Connection, column: &str) {
        let poller = self.settings.poller.as_str();
        let sql = format!(
            "SELECT COUNT_BIG(*) AS [n] FROM {} AS t WHERE t.{} IS NULL",
            self.origin.sql(),
            quote(column)
        );
        let found = connection.query(&sql, &[], |row| Ok(values(&row).pop())).await;
        match found.map(|mut rows| rows.pop().flatten()) {
            Ok(Some(Value::Int(0))) => {}
            Ok(Some(Value::Int(rows))) => tracing::warn!(
                event = "null_cursors",
                poller.name = poller,
                rows,
                "{} of poller `{poller}` with NULL in cursor column `{column}`: not delivered",
                counted(rows.unsigned_abs(), "row")
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!(
                event = "null_cursors_not_counted",
                poller.name = poller,
                error = highwater_engine::error::chain(&error),
                "Rows of poller `{poller}` with NULL in cursor column `{column}` could not be counted"
            ),
        }
    }
}

#[async_trait]
impl Source for Mssql {
    // A fetch without rows drops its buffer, so that an idle poller holds none.
    fn reuse(&self, mut buffer: String) {
        if !buffer.is_empty() {
            buffer.clear();
            *self.spare() = buffer;
        }
    }

    fn shape(&self) -> &SourceShape {
        self.decided.get().map_or(&self.undecided, |decided| &decided.shape)
    }

    async fn open(&self, stored: Option<&SourceFingerprint>) -> Result<(), FetchError> {
        if self.decided.get().is_some() {
            return Ok(());
        }
        let mut state = self.state.lock().await;
        let columns = self.describe(&mut state.connection).await?;
        let shape =
            |choice: &Choice| self.origin.shape(&self.settings, self.filter.as_ref(), choice);
        let is_stored = |choice: &Choice| stored == Some(&shape(choice).fingerprint);
        let connection = &mut state.connection;
        let chosen = self.choose(connection, &self.settings, &columns, is_stored).await?;
        let ReasonedChoice { choice, reason } = chosen;
        let (poller, mode) = (self.settings.poller.as_str(), choice.mode.as_str());
        let column = choice.cursor.as_deref().unwrap_or_default();
        tracing::info!(
            event = "mode_chosen",
            poller.name = poller,
            mode,
            column,
            reason,
            "Poller `{poller}` reads `{}` in mode `{mode}`: {reason}",
            self.origin
        );
        let shape = shape(&choice);
        self.decided.get_or_init(|| Decided { choice, shape });
        Ok(())
    }

    async fn present(&self) -> Result<Option<Cursor>, FetchError> {
        let mut state = self.state.lock().await;
        let (plan, connection) = self.plan(&mut state).await?;
        let (sql, params) = plan.present_statement();
        let answer = connection.query(&sql, &params, |row| Ok(values(&row))).await?;
        plan.present(answer.first().map(Vec::as_slice).unwrap_or_default())
    }

    async fn anchor(&self, kept: Option<&SourceState>) -> Result<Anchor, FetchError> {
        let mut state = self.state.lock().await;
        let (plan, connection) = self.plan(&mut state).await?;
        // Rows after the position in one order may be before it in another, and would be skipped.
        if let Some(kept) =
            kept.filter(|kept| plan.schema.known(kept) == SchemaComparison::Reordered)
        {
            return Err(self.reordered(&plan.schema.changes_since(kept)));
        }
        let mut identity = Identity::default();
        if let Some(sql) = plan.identify() {
            let cells = connection.query(&sql, &[], |row| Ok(values(&row))).await?;
            identity = Identity::read(cells.first().map(Vec::as_slice).unwrap_or_default());
        }
        Ok(plan.anchor(&identity, kept))
    }

    async fn count(&self, window: FetchWindow<'_>) -> Result<u64, FetchError> {
        let mut state = self.state.lock().await;
        self.count_rows(&mut state, window).await
    }

    async fn last_of(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let mut state = self.state.lock().await;
        self.last_row(&mut state, window).await
    }

    async fn fetch_at_once(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let mut state = self.state.lock().await;
        self.traced_fetch(&mut state, window).await
    }

    async fn has_rows_behind(&self, window: FetchWindow<'_>) -> Result<bool, FetchError> {
        let settled = mark::all_settled(window.state);
        let found = self.fetch_at_once(FetchWindow { state: &settled, ..window }).await?;
        Ok(!found.rows.is_empty())
    }

    async fn has_unique_key(&self) -> Result<bool, FetchError> {
        let mut state = self.state.lock().await;
        let (plan, connection) = self.plan(&mut state).await?;
        self.is_key_unique(connection, &plan).await
    }

    async fn current(&self, at: &Cursor) -> Result<Rows, FetchError> {
        let mut state = self.state.lock().await;
        let (plan, connection) = self.plan(&mut state).await?;
        let (sql, params) = plan.current_statement(at)?;
        let mut answer = FetchProgress { is_range: true, ..FetchProgress::new(current::ROWS_MAX) };
        let read = connection.query(&sql, &params, |row| plan.read(row, &mut answer)).await;
        plan.check_encoding(connection)?;
        if let Err(error) = read
            && !answer.is_full
        {
            let error = error.into();
            state.doubt_after(&error);
            return Err(error);
        }
        plan.current(answer, at)
    }

    async fn look_up(&self, lookup: RowLookup<'_>) -> Result<RowReport, LookupError> {
        let mut connection = self.lookups.lock().await;
        self.look_up_row(&mut connection, lookup).await
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let mut state = self.state.lock().await;
        let mut retries = Retries::begin(self.retry);
        loop {
            let rows = self.traced_fetch(&mut state, window).await;
            let Err(error) = &rows else { return rows };
            let Some(pause) = sql_error(error).and_then(|error| retries.pause_after(error)) else {
                return rows;
            };
            tracing::info!(
                event = "fetch_tried_again",
                poller.name = self.settings.poller,
                error = highwater_engine::error::chain(error),
                "Poller `{}` failed to read, retrying in {pause:.1?}",
                self.settings.poller
            );
            sleep(pause).await;
        }
    }
}

impl State {
    /// Marks the columns to be described again before the next read, if the table may no longer match the
    /// plan.
    ///
    /// The plan itself is kept. As long as the state document has no hash of the key, only a comparison with
    /// the plan reveals a changed key.
    fn doubt_after(&mut self, error: &FetchError) {
        self.in_doubt |= is_refusal(error);
    }
}

/// Whether the server rejected the statement, or the table is not the one that was read before. A server that
/// is unreachable or busy, or rejects the login, says nothing about the statement.
fn is_refusal(error: &FetchError) -> bool {
    let refuses = |error: &SqlError| {
        error.number().is_some() && error.read_retry().is_none() && !error.is_unsent()
    };
    error.is_position_lost() || error.schema_changed || sql_error(error).is_some_and(refuses)
}

/// Returns the SQL error, if it is one.
fn sql_error(error: &FetchError) -> Option<&SqlError> {
    error.source.as_deref()?.downcast_ref()
}

impl From<SqlError> for FetchError {
    fn from(error: SqlError) -> Self {
        let plain = Self::new(error.kind, error.to_string());
        Self { source: Some(error.into()), ..plain }
    }
}

/// Returns the values of a row.
fn values(row: &tiberius::Row) -> Vec<Value> {
    row.cells().map(|(_, cell)| decode::value(cell)).collect()
}
