//! Mode `change_tracking`: first the rows of the table, then the changes since.
//!
//! # Design
//!
//! Versions are assigned at commit, so no change can appear later below a version that was current. That
//! version is read first, and bounds the read. Each changed key is returned once, with its last version; if
//! it changes again in between, it leaves the range and is returned with the later one. The change itself
//! distinguishes a deleted row from one that the filter excludes.
//!
//! Changes older than the retention are cleaned up, and the server does not report that. So the lowest valid
//! version is read *after* the changes: if it is above the requested one, the answer is discarded. It also
//! advances while a table is idle, so the version up to which everything is known is stored in the document,
//! and updated from time to time.
//!
//! # Operations
//!
//! The server reports the net operation since the requested version: a row that was inserted and updated since then
//! is an insert. Rows of the table carry no operation.
//!
//! The requested version is not the version of what was delivered last. While nothing is delivered it stays, and
//! while a backlog is read in several pages, it may be before delivered inserts, or after an insert whose row changed
//! before it was read. So an operation can be an insert or an update depending on when it is read, and a selection
//! has both or neither: see [`check_operations`].
//!
//! [`check_operations`]: super::selection::check_operations

use std::sync::Arc;

use highwater_engine::cursor::{
    Cursor, CursorError, CursorMode, SourceState, TrackedPhase, TrackedPosition,
};
use highwater_engine::error::ErrorKind;
use highwater_engine::source::{FetchError, FetchWindow, Lag, PositionRange, RetainedState, Rows};
use highwater_engine::value::Value;
use serde_json::Value as Json;

use crate::connection::Param;
use crate::filter::Filter;
use crate::ident::literal;

use super::decode;
use super::form::KeyValue;
use super::partition;
use super::plan::{FetchProgress, Plan, unexpected};
use super::query::{bound, operation};

/// The version up to which all changes were delivered.
const COMPLETE_TO: &str = "complete_to";
/// When that was recorded, by the server's clock.
const NOTED_AT: &str = "noted_at";
/// The version of a change.
const VERSION: &str = "c.SYS_CHANGE_VERSION";
/// The condition that a row was inserted after the requested version.
const INSERTED: &str = "c.SYS_CHANGE_OPERATION = N'I'";
/// Operators of the condition that a row is after a position.
const AFTER: [&str; 3] = [">", ">", ">="];
/// Operators of the condition that a row is at or before a position.
const UPTO: [&str; 3] = ["<", "<=", "<="];
/// How often the version of an idle table is recorded; far below any sensible retention.
const NOTED_EVERY_MS: i64 = 300_000;

/// Parameters of a statement under construction.
struct Statement {
    params: Vec<Param>,
}

impl Statement {
    /// Adds a parameter; returns its name.
    fn bind(&mut self, param: Param) -> String {
        self.params.push(param);
        format!("@P{}", self.params.len())
    }

    /// Adds the values of a filter; returns its condition.
    fn filter(&mut self, filter: &Filter) -> String {
        let first = self.params.len() + 1;
        self.params.extend(filter.values().map(|value| Param::Text(value.to_owned())));
        filter.sql(|at| format!("@P{}", first + at))
    }
}

/// The changes of a window.
struct Changes {
    /// The `FROM` clause, with its conditions.
    from: String,
    /// The expression for the operation of a change: `D`, `I` or `U`.
    operation: String,
}

/// Where a fetch starts and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    after: Option<TrackedPosition>,
    upto: Option<TrackedPosition>,
    /// Whether rows of the table are read.
    rows: bool,
    /// Changes after this version are read.
    changes_since: Option<i64>,
}

impl Range {
    fn of(window: FetchWindow<'_>, poller: &str) -> Result<Self, FetchError> {
        let after = window.after.map(|at| position(at, poller)).transpose()?;
        let upto = window.upto.map(|at| position(at, poller)).transpose()?;
        let known = known(window.state);
        let ends_in_rows = upto.is_some_and(|upto| upto.phase == TrackedPhase::Snapshot);
        let Some(at) = after else {
            return Ok(Self { after, upto, rows: true, changes_since: None });
        };
        let in_rows = at.phase == TrackedPhase::Snapshot;
        // All changes of a version may share its number: those after the key are still to come.
        let complete = in_rows || window.after.is_some_and(|cursor| cursor.key.is_empty());
        let since = if complete { at.version } else { at.version - 1 };
        // If changes up to a version are known, the table's rows were read completely.
        let rows = in_rows && (ends_in_rows || known.is_none_or(|known| known < at.version));
        let changes_since = (!ends_in_rows).then(|| known.map_or(since, |known| since.max(known)));
        Ok(Self { after, upto, rows, changes_since })
    }
}

impl Plan {
    /// Returns the statement and parameters for a window.
    pub(super) fn tracked_statement(
        &self,
        window: FetchWindow<'_>,
    ) -> Result<(String, Vec<Param>), FetchError> {
        let range = Range::of(window, &self.poller)?;
        let mut statement = Statement { params: vec![Self::rows_param(window)] };
        let mut parts = vec![
            "DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();\n\
             SELECT @cur AS [__cur], CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];"
                .to_owned(),
        ];
        if range.rows {
            parts.push(self.rows_text(window, range, &mut statement)?);
        }
        if let Some(since) = range.changes_since {
            parts.push(self.changes_text(window, range, since, &mut statement)?);
        }
        parts.push(self.kept_since_text());
        Ok((parts.join("\n"), statement.params))
    }

    /// Returns the statement that has to follow an answer that was not read to its end; `None` if nothing is
    /// missing.
    ///
    /// The version that shows whether all changes were retained comes last, so a cut answer lacks it.
    pub(super) fn missing_statement(&self, answer: &FetchProgress) -> Option<String> {
        (self.cursor.is_none() && answer.is_full).then(|| self.kept_since_text())
    }

    pub(super) fn kept_since_text(&self) -> String {
        format!(
            "SELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID({})) AS [__min];",
            literal(&self.quoted)
        )
    }

    /// Reads rows of the table in the order of the key.
    fn rows_text(
        &self,
        window: FetchWindow<'_>,
        range: Range,
        statement: &mut Statement,
    ) -> Result<String, FetchError> {
        let is_row =
            |at: Option<TrackedPosition>| at.is_some_and(|at| at.phase == TrackedPhase::Snapshot);
        let mut conditions = Vec::new();
        for (cursor, at, operators) in [
            (window.after, range.after, [">", ">", ">="]),
            (window.upto, range.upto, ["<", "<=", "<="]),
        ] {
            let Some(cursor) = cursor.filter(|cursor| is_row(at) && !cursor.key.is_empty()) else {
                continue;
            };
            conditions.push(bound(&self.bound_key("t", cursor, statement)?, operators));
        }
        conditions.extend(self.of_partition("t"));
        conditions.extend(self.selected.clone());
        conditions.extend(self.filter.as_ref().map(|filter| statement.filter(filter)));
        let filter = match conditions.as_slice() {
            [] => String::new(),
            some => format!("\nWHERE {}", some.join("\nAND ")),
        };
        Ok(format!(
            "SELECT TOP (@P1) {}, CAST(NULL AS BIGINT) AS [__version], {}\n\
             FROM {} AS t{filter}\nORDER BY {};",
            self.select.join(", "),
            self.deleted.as_deref().map_or_else(|| "N'U' AS [__op]".to_owned(), operation),
            self.quoted,
            self.key_names_of("t").join(", "),
        ))
    }

    /// Reads changes in the order of their versions, with the current rows.
    fn changes_text(
        &self,
        window: FetchWindow<'_>,
        range: Range,
        since: i64,
        statement: &mut Statement,
    ) -> Result<String, FetchError> {
        let Changes { from, operation } = self.changes_from(window, range, since, statement)?;
        // If rows fill the page, the changes after them would be read for nothing.
        let condition = if range.rows { "IF @@ROWCOUNT < @P1\n" } else { "" };
        Ok(format!(
            "{condition}SELECT TOP (@P1) {}, {VERSION} AS [__version], {operation} AS [__op]\n\
             {from}\nORDER BY {VERSION}, {};",
            self.select_of_change().join(", "),
            self.key_names_of("c").join(", "),
        ))
    }

    /// Returns what selects the changes of a window, and distinguishes their operations.
    fn changes_from(
        &self,
        window: FetchWindow<'_>,
        range: Range,
        since: i64,
        statement: &mut Statement,
    ) -> Result<Changes, FetchError> {
        let since = statement.bind(Param::BigInt(since));
        let version = VERSION;
        let mut conditions = vec![format!("{version} <= @cur")];
        for (cursor, at, operators) in
            [(window.after, range.after, AFTER), (window.upto, range.upto, UPTO)]
        {
            let at = at.filter(|at| at.phase == TrackedPhase::Changes);
            let Some((cursor, at)) = cursor.zip(at) else { continue };
            if cursor.key.is_empty() {
                // A lower bound without a key is covered by the requested version; an upper bound includes
                // all of its version.
                if operators == UPTO {
                    let at = statement.bind(Param::BigInt(at.version));
                    conditions.push(format!("{version} <= {at}"));
                }
                continue;
            }
            let mut columns = vec![(version.to_owned(), statement.bind(Param::BigInt(at.version)))];
            columns.extend(self.bound_key("c", cursor, statement)?);
            conditions.push(bound(&columns, operators));
        }
        // By the key of the change, since a deleted row has no other.
        conditions.extend(self.of_partition("c"));
        let same: Vec<String> = self
            .key_names_of("t")
            .into_iter()
            .zip(self.key_names_of("c"))
            .map(|(row, change)| format!("{row} = {change}"))
            .collect();
        let same = same.join(" AND ");
        let gone = format!(
            "c.SYS_CHANGE_OPERATION = N'D' OR {} IS NULL",
            self.key_names_of("t").first().map_or("NULL", String::as_str)
        );
        if let Some(filter) = &self.filter {
            // In a subquery, so that its columns can only be the table's.
            conditions.push(format!(
                "({gone} OR EXISTS (SELECT 1 FROM {} AS t WHERE {same} AND {}))",
                self.quoted,
                statement.filter(filter)
            ));
        }
        let deleted = self.deleted.iter().fold(gone, |gone, soft| format!("{gone} OR {soft}"));
        conditions.extend(self.selection.of_change(&deleted));
        let operation =
            format!("CASE WHEN {deleted} THEN N'D' WHEN {INSERTED} THEN N'I' ELSE N'U' END");
        let from = format!(
            "FROM CHANGETABLE(CHANGES {}, {since}) AS c LEFT JOIN {} AS t ON {same}\nWHERE {}",
            self.quoted,
            self.quoted,
            conditions.join("\nAND "),
        );
        Ok(Changes { from, operation })
    }

    /// Returns the statement and parameters that count the changes of a window, up to its limit. A window
    /// from the beginning counts all rows of the table.
    pub(super) fn tracked_count(
        &self,
        window: FetchWindow<'_>,
    ) -> Result<(String, Vec<Param>), FetchError> {
        if window.after.is_none() {
            return Ok(self.table_count(window));
        }
        let range = Range::of(window, &self.poller)?;
        let since = range.changes_since.ok_or_else(|| {
            FetchError::new(
                ErrorKind::Configuration,
                "the window contains rows of the initial snapshot",
            )
        })?;
        let mut statement = Statement { params: vec![Self::count_param(window)] };
        let Changes { from, .. } = self.changes_from(window, range, since, &mut statement)?;
        let sql = format!(
            "DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();\n\
             SELECT COUNT_BIG(*) AS [__rows] FROM (SELECT TOP (@P1) {VERSION} AS [__one]\n{from}) AS w;"
        );
        Ok((sql, statement.params))
    }

    fn table_count(&self, window: FetchWindow<'_>) -> (String, Vec<Param>) {
        let mut statement = Statement { params: vec![Self::count_param(window)] };
        let filter = self.filter.as_ref().map(|filter| statement.filter(filter));
        let conditions: Vec<String> = self.selected.iter().cloned().chain(filter).collect();
        let filter = match conditions.as_slice() {
            [] => String::new(),
            some => format!("\nWHERE {}", some.join("\nAND ")),
        };
        let sql = format!(
            "SELECT COUNT_BIG(*) AS [__rows] FROM (SELECT TOP (@P1) 1 AS [__one] FROM {} AS t{filter}) AS w;",
            self.quoted
        );
        (sql, statement.params)
    }

    /// Checks that the changes of a window were still retained when `answer` was given, after they were read.
    pub(super) fn check_kept(
        &self,
        window: FetchWindow<'_>,
        answer: &[Value],
    ) -> Result<(), FetchError> {
        let [Value::Int(current), Value::Int(kept_since)] = answer else {
            return Err(FetchError::new(ErrorKind::Configuration, self.tracking_advice()));
        };
        match verdict(Range::of(window, &self.poller)?, *current, *kept_since) {
            Verdict::Good => Ok(()),
            Verdict::Expired(since) => Err(FetchError::new(
                ErrorKind::Data,
                format!(
                    "changes of `{}` after version `{since}` are needed, but they are kept only from version \
                     `{kept_since}` on: start at `{kept_since}` or later",
                    self.table
                ),
            )),
            Verdict::TakenBack(at) => Err(Self::taken_back(at, *current)),
        }
    }

    /// Returns the condition that keys, qualified with `alias`, belong to the partition.
    fn of_partition(&self, alias: &str) -> Option<String> {
        self.partition.map(|partition| partition::condition(partition, &self.key, alias))
    }

    /// Returns the key columns, each with the expression for its value in a position.
    fn bound_key(
        &self,
        alias: &str,
        cursor: &Cursor,
        statement: &mut Statement,
    ) -> Result<Vec<(String, String)>, FetchError> {
        let values = self.key.iter().zip(self.key_values(cursor)?);
        let values = values.map(|(column, KeyValue { param, base })| {
            column.cast(&statement.bind(param), base.as_ref())
        });
        let values: Vec<String> = values.collect();
        Ok(self.key_names_of(alias).into_iter().zip(values).collect())
    }

    /// Returns the rows, unless changes after the checkpoint are no longer available.
    pub(super) fn tracked_rows(
        &self,
        answer: FetchProgress,
        window: FetchWindow<'_>,
    ) -> Result<Rows, FetchError> {
        let range = Range::of(window, &self.poller)?;
        let (current, now) = match answer.head.as_slice() {
            [Value::Int(current), Value::Text(now)] => (*current, now.as_str()),
            [Value::Null, _] => return Err(self.not_tracked(range)),
            head => return Err(unexpected(head, "its current change version")),
        };
        // Without it nothing is delivered, whatever else was read.
        let Some(Value::Int(kept_since)) = answer.tail else {
            // The server also returns `NULL` for a missing permission; rows are lost only if tracking is off.
            return Err(if answer.identity.is_untracked() {
                self.not_tracked(range)
            } else {
                FetchError::new(ErrorKind::Configuration, self.tracking_advice())
            });
        };
        match verdict(range, current, kept_since) {
            Verdict::Good => {}
            Verdict::Expired(since) => return Err(self.expired(since, kept_since)),
            Verdict::TakenBack(at) => return Err(Self::taken_back(at, current)),
        }
        // Rows of a batch that is read again keep their positions.
        let started = range.after.or(range.upto).map_or(current, |at| at.version);
        answer.check_rows()?;
        let more = answer.has_more();
        let mut rows = answer.rows;
        let first = rows.first();
        let first = first.map(|row| if let Value::Int(at) = row.position { at } else { started });
        for row in &mut rows {
            let at = if let Value::Int(version) = row.position {
                TrackedPosition { version, phase: TrackedPhase::Changes }
            } else {
                TrackedPosition { version: started, phase: TrackedPhase::Snapshot }
            };
            row.position = Value::Text(at.to_string());
        }
        // Only a fetch that reached the end of the changes knows all of them.
        let complete = !more && range.upto.is_none() && range.changes_since.is_some();
        let remember = if complete {
            recorded(window.state, range, current, now, rows.is_empty())
        } else {
            None
        };
        let more = more || (!rows.is_empty() && unread(range));
        // Before the first cleanup the oldest version is where tracking started. The distance to it does not
        // show how soon changes are lost: cleanup goes by age, and has not started.
        let cleaned_to =
            Some(kept_since).filter(|kept| answer.identity.tracked_from() != Some(*kept));
        let since = |from: i64, to: i64| u64::try_from(to.saturating_sub(from)).unwrap_or(0);
        let lag = Lag {
            positions: range.changes_since.map(|at| since(at, current)),
            retention_left: range.changes_since.zip(cleaned_to).map(|(at, kept)| since(kept, at)),
            range: Some(PositionRange { first, readable: current, newest: current }),
            ..Lag::default()
        };
        let (columns, json) = (Arc::clone(&self.columns), answer.json);
        Ok(Rows { columns, json, rows, more, lag, remember, ..Rows::default() })
    }

    /// Returns the position after all current changes, from the server's versions.
    pub(super) fn tracked_present(&self, answer: &[Value]) -> Result<Cursor, FetchError> {
        let [Value::Int(version), Value::Int(_)] = answer else {
            return Err(FetchError::new(ErrorKind::Configuration, self.tracking_advice()));
        };
        let at = TrackedPosition { version: *version, phase: TrackedPhase::Changes };
        Ok(Cursor::tracked(at, highwater_engine::cursor::KeyValues::new()))
    }

    fn expired(&self, since: i64, kept_since: i64) -> FetchError {
        FetchError::rows_lost(format!(
            "changes of `{}` were delivered up to version `{since}`, and are kept from version `{kept_since}` on: \
             some were cleaned up before they were read; raise `CHANGE_RETENTION`",
            self.table
        ))
    }

    fn taken_back(at: i64, current: i64) -> FetchError {
        FetchError::rows_lost(format!(
            "the checkpoint is at change version `{at}`, but the database's current one is `{current}`: it was \
             restored or replaced, and rows could be missed"
        ))
    }

    /// Changes are not tracked: a settings error for a new poller, a loss for one with a position.
    fn not_tracked(&self, range: Range) -> FetchError {
        let advice = self.tracking_advice();
        match range.after {
            None => FetchError::new(ErrorKind::Configuration, advice),
            Some(_) => lost_tracking(&advice),
        }
    }

    fn tracking_advice(&self) -> String {
        format!(
            "changes of `{}` are not tracked, or the login may not see them: run `ALTER TABLE {} ENABLE \
             CHANGE_TRACKING`, and have a DBA run `GRANT VIEW CHANGE TRACKING ON {} TO [user]`, or choose another mode",
            self.table, self.quoted, self.quoted
        )
    }
}

/// Reports that changes are no longer tracked.
pub(super) fn lost_tracking(reason: &str) -> FetchError {
    FetchError::rows_lost(format!(
        "{reason}; changes made while tracking is off stay unknown, even after it is on again"
    ))
}

/// Whether there can be more although no row shows it: changes are read only after the table's rows.
fn unread(range: Range) -> bool {
    range.rows && range.changes_since.is_none() && range.upto.is_none()
}

/// What the server's versions mean for a position.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// Changes after this version are not all retained.
    Expired(i64),
    /// The position is at a version that the database has not reached.
    TakenBack(i64),
}

fn verdict(range: Range, current: i64, kept_since: i64) -> Verdict {
    if let Some(at) = range.after.filter(|at| at.version > current) {
        return Verdict::TakenBack(at.version);
    }
    // A poller still reading the table will need the changes since it started.
    let since = range.changes_since.or(range.after.map(|at| at.version));
    match since.filter(|since| *since < kept_since) {
        Some(since) => Verdict::Expired(since),
        None => Verdict::Good,
    }
}

/// Returns the state to retain once changes are known up to `current`.
fn recorded(
    state: &SourceState,
    range: Range,
    current: i64,
    now: &str,
    is_empty: bool,
) -> Option<RetainedState> {
    let since = range.changes_since?;
    let noted_at = state.get(NOTED_AT).and_then(Json::as_str).and_then(decode::millis);
    let recent = noted_at
        .zip(decode::millis(now))
        .is_some_and(|(then, now)| (then..then + NOTED_EVERY_MS).contains(&now));
    // For an idle table the version is stored from time to time, at once: there may be no other write for
    // days. The end of the table's rows is worth recording, but not worth a write.
    let due = current > since && !recent;
    if is_empty && !due && !range.rows {
        return None;
    }
    let state = SourceState::from_iter([
        (COMPLETE_TO.to_owned(), current.to_string().into()),
        (NOTED_AT.to_owned(), now.into()),
    ]);
    Some(RetainedState { state, at_once: is_empty && due })
}

/// Returns the part of `kept` that stays valid while the position stays.
pub(super) fn anchored(kept: &SourceState) -> SourceState {
    let known = kept.iter().filter(|(name, _)| [COMPLETE_TO, NOTED_AT].contains(&name.as_str()));
    known.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the version up to which all changes are known.
pub(super) fn known(state: &SourceState) -> Option<i64> {
    state.get(COMPLETE_TO).and_then(Json::as_str).and_then(|digits| digits.parse().ok())
}

pub(super) fn position(cursor: &Cursor, poller: &str) -> Result<TrackedPosition, FetchError> {
    let data = |reason| FetchError::new(ErrorKind::Data, reason);
    if cursor.mode != CursorMode::ChangeTracking {
        return Err(data(super::plan::other_mode(cursor, CursorMode::ChangeTracking, poller)));
    }
    cursor.value.parse().map_err(|error: CursorError| data(format!("checkpoint: {error}")))
}

#[cfg(test)]
mod tests;
