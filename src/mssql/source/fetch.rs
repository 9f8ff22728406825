//! One fetch: reads rows, and checks that the table still matches the plan.

use std::sync::Arc;

use highwater_engine::cursor::{Cursor, SourceState};
use highwater_engine::error::ErrorKind;
use highwater_engine::source::{FetchError, FetchWindow, Rows};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::connection::SqlError;
use crate::source::OnSchemaChange;

use super::describe::{self, Column};
use super::plan::{FetchProgress, Plan};
use super::schema::SchemaComparison;
use super::tracking::lost_tracking;
use super::{Mssql, State, is_refusal, traced, values};

/// Change tracking is not enabled on the table.
const NOT_TRACKED: u32 = 22105;
/// How often a table is described again within one fetch.
const DESCRIBED_MAX: u32 = 3;

impl Mssql {
    /// Fetches once, within a span.
    pub(super) async fn traced_fetch(
        &self,
        state: &mut State,
        window: FetchWindow<'_>,
    ) -> Result<Rows, FetchError> {
        let (span, began_at) = (self.fetch_span(), Instant::now());
        let rows = self.try_fetch(state, window).instrument(span.clone()).await;
        let error = traced::note(&span, &rows);
        self.calls.took(&self.settings.poller, began_at.elapsed(), error);
        rows
    }

    /// Fetches once, from the first row on; anything read by an earlier attempt is discarded.
    async fn try_fetch(
        &self,
        state: &mut State,
        window: FetchWindow<'_>,
    ) -> Result<Rows, FetchError> {
        for _ in 0..DESCRIBED_MAX {
            let read = self.try_read(state, window).await;
            if let Some(rows) = read.inspect_err(|error| state.doubt_after(error))? {
                return Ok(rows);
            }
        }
        let reason = format!("the columns of `{}` keep changing", self.origin);
        Err(FetchError::new(ErrorKind::Transient, reason))
    }

    /// Reads by the current plan; `None` if the table has changed meanwhile.
    async fn try_read(
        &self,
        state: &mut State,
        window: FetchWindow<'_>,
    ) -> Result<Option<Rows>, FetchError> {
        // A bounded range is re-read completely.
        let fit = state.rows_fit.filter(|_| window.upto.is_none()).unwrap_or(usize::MAX);
        let window = FetchWindow { rows_max: window.rows_max.min(fit), ..window };
        self.resolve_doubt(state, window).await?;
        let is_new = state.plan.is_none();
        let (plan, connection) = self.plan(state).await?;
        self.check_known(&plan, window, is_new)?;
        let (sql, params) = plan.whole_statement(window)?;
        let mut answer =
            FetchProgress { is_identified: plan.identify().is_some(), ..FetchProgress::of(window) };
        let take = |row| {
            // Not earlier: until rows arrive, the buffer may hold the previous rows.
            if answer.json.capacity() == 0 {
                answer.json = std::mem::take(&mut *self.spare());
            }
            plan.read(row, &mut answer)
        };
        let read = connection.query(&sql, &params, take).await;
        // Before acting on the answer.
        plan.check_encoding(connection)?;
        answer.identity.check(&self.origin, window)?;
        if answer.lost_index {
            self.compare_by_server(state, &plan)?;
            return Ok(None);
        }
        if let Err(error) = read
            && !answer.is_full
        {
            return self.failed(state, &plan, window, error).await.map(|()| None);
        }
        if let Some(sql) = plan.missing_statement(&answer) {
            let read = connection.query(&sql, &[], |row| Ok(values(&row).pop())).await?;
            answer.tail = read.into_iter().flatten().next();
        }
        if answer.is_full {
            let sql = self.origin.describe();
            answer.described = connection.query(&sql, &[], describe::column).await?;
        }
        if answer.described != plan.described {
            let described = std::mem::take(&mut answer.described);
            self.adopt(state, &plan, window, &described)?;
            return Ok(None);
        }
        state.refused_at = None;
        state.rows_fit = plan.rows_that_fit(&answer).or(state.rows_fit);
        let identity = answer.identity.clone();
        let mut rows = plan.finish(answer, window)?;
        rows.remember = plan.schema.kept(rows.remember, window.state, !rows.rows.is_empty());
        rows.remember = identity.kept(rows.remember, window);
        rows.anchor = identity.anchor(window);
        Ok(Some(rows))
    }

    /// Describes the columns again after a failed read: they may have changed.
    async fn resolve_doubt(
        &self,
        state: &mut State,
        window: FetchWindow<'_>,
    ) -> Result<(), FetchError> {
        let Some(plan) = state.plan.clone().filter(|_| state.in_doubt) else { return Ok(()) };
        let described = self.describe(&mut state.connection).await?;
        if described != plan.described {
            self.adopt(state, &plan, window, &described)?;
        }
        state.in_doubt = false;
        Ok(())
    }

    /// Lets the server compare rows from now on, since the index that made them unique is gone. Rows read by
    /// the old plan are not delivered.
    fn compare_by_server(&self, state: &mut State, plan: &Plan) -> Result<(), FetchError> {
        state.has_unique_key = false;
        state.plan = Some(Arc::new(self.make_plan(&plan.described)?.of_unique_key(false)));
        if self.speaks_for_all() {
            self.warn_no_unique_index(plan);
        }
        Ok(())
    }

    /// Checks whether changed columns explain a failed read.
    async fn failed(
        &self,
        state: &mut State,
        plan: &Plan,
        window: FetchWindow<'_>,
        error: SqlError,
    ) -> Result<(), FetchError> {
        if error.number() == Some(NOT_TRACKED) {
            let reason = format!(
                "changes of `{}` were not tracked, or the login may not see them ({error})",
                self.origin
            );
            // Without a command: this text is kept, and tracking may be on again when it is read.
            let lost = lost_tracking(&reason);
            let reason = format!(
                "{}. Turn tracking on if it is still off, since a reset fails until then",
                lost.reason
            );
            return Err(FetchError { reason, ..lost });
        }
        let error = FetchError::from(error);
        if !is_refusal(&error) {
            return Err(error);
        }
        match self.describe(&mut state.connection).await {
            Ok(described) if described != plan.described => {
                self.adopt(state, plan, window, &described)
            }
            // The columns are not the cause: the filter, a permission, or an object that a view reads is.
            Ok(_) | Err(_) => Err(error),
        }
    }

    /// Reads by the changed columns from now on, unless the poller has to stop.
    ///
    /// A refusal keeps the old plan. It applies to the position at which it was made, and the state retained
    /// then. If either differs at a later fetch, an operator has reset the poller. The columns are then
    /// accepted as in a new process, where only the state document decides.
    fn adopt(
        &self,
        state: &mut State,
        old: &Plan,
        window: FetchWindow<'_>,
        described: &[Column],
    ) -> Result<(), FetchError> {
        let unchanged =
            |(at, known): &(Cursor, SourceState)| window.after == Some(at) && window.state == known;
        let moved = state.refused_at.as_ref().is_some_and(|refused| !unchanged(refused));
        if described.is_empty() || moved {
            (state.plan, state.refused_at) = (None, None);
            return Ok(());
        }
        let new = self.make_plan(described).inspect_err(|_| state.plan = None)?;
        let new = new.of_unique_key(state.has_unique_key);
        let changes = new.schema.changes_from(&old.schema);
        let refusal = match window.after {
            Some(_) if !new.schema.orders_as(&old.schema) => Some(self.reordered(&changes)),
            _ if changes.is_empty() => None,
            _ => self.changed(&changes).err(),
        };
        if let Some(refusal) = refusal {
            state.refused_at = window.after.map(|after| (after.clone(), window.state.clone()));
            return Err(refusal);
        }
        state.plan = Some(Arc::new(new));
        state.rows_fit = None;
        Ok(())
    }

    /// Compares the columns with those of the last delivery, perhaps by another process.
    fn check_known(
        &self,
        plan: &Plan,
        window: FetchWindow<'_>,
        is_new: bool,
    ) -> Result<(), FetchError> {
        let stops = self.settings.on_schema_change == OnSchemaChange::Stop;
        match plan.schema.known(window.state) {
            SchemaComparison::Reordered => {
                Err(self.reordered(&plan.schema.changes_since(window.state)))
            }
            SchemaComparison::Changed if is_new || stops => {
                self.changed(&plan.schema.changes_since(window.state))
            }
            SchemaComparison::Same | SchemaComparison::Changed => Ok(()),
        }
    }

    /// Reports a change, or stops because of it.
    fn changed(&self, changes: &str) -> Result<(), FetchError> {
        let poller = self.settings.poller.as_str();
        if self.settings.on_schema_change == OnSchemaChange::Stop {
            return Err(FetchError::schema_changed(format!(
                "columns of `{}` changed ({changes}), and `SOURCE__ON_SCHEMA_CHANGE` is `stop`: \
                 change them back, or set it to `follow` until the poller has delivered rows",
                self.origin
            )));
        }
        tracing::warn!(
            event = "schema_changed",
            poller.name = poller,
            changes,
            "Columns of `{}`, read by poller `{poller}`, changed ({changes})",
            self.origin
        );
        Ok(())
    }

    pub(super) fn reordered(&self, changes: &str) -> FetchError {
        FetchError::reordered(format!(
            "the key or cursor of `{}` changed ({changes}), so rows may be in another order than when the \
             checkpoint was made: change it back",
            self.origin
        ))
    }
}
