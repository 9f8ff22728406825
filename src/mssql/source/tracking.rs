//! Mode `change_tracking`: first the rows that the table has, then what has changed since.
//!
//! # Why so
//!
//! Versions are given at the commit, so no change can appear later below a version that was current:
//! that version is read first and bounds the read. Each changed key comes once, with its last version;
//! if it changes again in between, it has left the range and comes with the later one. A row that a
//! filter keeps out is told apart from one that was deleted by the change itself.
//!
//! What is older than the retention is cleaned up, and the server answers as if nothing had happened.
//! So the lowest version that may still be asked for is read *after* the changes: if it has passed
//! what was asked for, nothing of the answer is used. Since it also moves on while a table rests, the
//! version up to which all is known is kept in the document and renewed now and then.

use std::sync::Arc;

use highwater_engine::cursor::{
    Cursor, CursorError, CursorMode, SourceState, TrackedPhase, TrackedPosition,
};
use highwater_engine::error::ErrorKind;
use highwater_engine::source::{FetchError, FetchWindow, Lag, RetainedState, Rows};
use highwater_engine::value::Value;
use serde_json::Value as Json;

use crate::connection::Param;
use crate::filter::Filter;
use crate::ident::literal;

use super::decode;
use super::form::KeyValue;
use super::partition;
use super::plan::{Answer, Plan, unexpected};
use super::query::{bound, operation};

/// Up to which version all changes were delivered.
const COMPLETE_TO: &str = "complete_to";
/// When that was noted, by the server's clock.
const NOTED_AT: &str = "noted_at";
/// The version of a change.
const VERSION: &str = "c.SYS_CHANGE_VERSION";
/// Operators of the condition that a row lies behind a position.
const AFTER: [&str; 3] = [">", ">", ">="];
/// Operators of the condition that a row lies up to a position.
const UPTO: [&str; 3] = ["<", "<=", "<="];
/// How often a resting table's version is noted anew; far less than any sensible retention.
const NOTED_EVERY_MS: i64 = 300_000;

/// Text and parameters of a statement while they are put together.
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

/// Where a fetch begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    after: Option<TrackedPosition>,
    upto: Option<TrackedPosition>,
    /// Whether rows of the table are read.
    rows: bool,
    /// Changes later than this version are read.
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
        // All of a version's changes may have one number: those behind the key are still to come.
        let whole = in_rows || window.after.is_some_and(|cursor| cursor.key.is_empty());
        let since = if whole { at.version } else { at.version - 1 };
        // Once changes up to a version are known, the table's rows were read to their end.
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

    /// Returns the statement that has to follow an answer which was not read to its end; `None` where
    /// nothing is missing.
    ///
    /// What says whether the changes were all kept comes last, so a cut answer is without it.
    pub(super) fn missing_statement(&self, answer: &Answer) -> Option<String> {
        (self.cursor.is_none() && answer.is_cut()).then(|| self.kept_since_text())
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

    /// Reads changes in the order of their versions, with the rows as they are now.
    fn changes_text(
        &self,
        window: FetchWindow<'_>,
        range: Range,
        since: i64,
        statement: &mut Statement,
    ) -> Result<String, FetchError> {
        let (from, gone) = self.changes_from(window, range, since, statement)?;
        let deleted = self.deleted.iter().fold(gone, |gone, soft| format!("{gone} OR {soft}"));
        // Behind rows that fill a page, changes would be read in vain.
        let condition = if range.rows { "IF @@ROWCOUNT < @P1\n" } else { "" };
        Ok(format!(
            "{condition}SELECT TOP (@P1) {}, {VERSION} AS [__version], {}\n\
             {from}\nORDER BY {VERSION}, {};",
            self.select_of_change().join(", "),
            operation(&deleted),
            self.key_names_of("c").join(", "),
        ))
    }

    /// Returns where the changes of a window are, and the condition that one is of a row that is gone.
    fn changes_from(
        &self,
        window: FetchWindow<'_>,
        range: Range,
        since: i64,
        statement: &mut Statement,
    ) -> Result<(String, String), FetchError> {
        let since = statement.bind(Param::BigInt(since));
        let version = VERSION;
        let mut conditions = vec![format!("{version} <= @cur")];
        for (cursor, at, operators) in
            [(window.after, range.after, AFTER), (window.upto, range.upto, UPTO)]
        {
            let at = at.filter(|at| at.phase == TrackedPhase::Changes);
            let Some((cursor, at)) = cursor.zip(at) else { continue };
            if cursor.key.is_empty() {
                // Behind it lie the changes that are asked for; up to it lie all of its version.
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
        // By the change, as a deleted row has no key of its own.
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
            // Inside, its columns can be none but the table's.
            conditions.push(format!(
                "({gone} OR EXISTS (SELECT 1 FROM {} AS t WHERE {same} AND {}))",
                self.quoted,
                statement.filter(filter)
            ));
        }
        let from = format!(
            "FROM CHANGETABLE(CHANGES {}, {since}) AS c LEFT JOIN {} AS t ON {same}\nWHERE {}",
            self.quoted,
            self.quoted,
            conditions.join("\nAND "),
        );
        Ok((from, gone))
    }

    /// Returns the statement and parameters that count the changes of a window, but at most so many. One
    /// that begins at the beginning is of all rows of the table.
    pub(super) fn tracked_count(
        &self,
        window: FetchWindow<'_>,
    ) -> Result<(String, Vec<Param>), FetchError> {
        if window.after.is_none() {
            return Ok(self.table_count(window));
        }
        let range = Range::of(window, &self.poller)?;
        let since = range.changes_since.ok_or_else(|| {
            FetchError::new(ErrorKind::Configuration, "the window holds rows of the first reading")
        })?;
        let mut statement = Statement { params: vec![Self::count_param(window)] };
        let (from, _gone) = self.changes_from(window, range, since, &mut statement)?;
        let sql = format!(
            "DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();\n\
             SELECT COUNT_BIG(*) AS [__rows] FROM (SELECT TOP (@P1) {VERSION} AS [__one]\n{from}) AS w;"
        );
        Ok((sql, statement.params))
    }

    fn table_count(&self, window: FetchWindow<'_>) -> (String, Vec<Param>) {
        let mut statement = Statement { params: vec![Self::count_param(window)] };
        let filter = self.filter.as_ref().map(|filter| statement.filter(filter));
        let filter = filter.map(|filter| format!("\nWHERE {filter}")).unwrap_or_default();
        let sql = format!(
            "SELECT COUNT_BIG(*) AS [__rows] FROM (SELECT TOP (@P1) 1 AS [__one] FROM {} AS t{filter}) AS w;",
            self.quoted
        );
        (sql, statement.params)
    }

    /// Makes sure that the changes of a window were still kept when `answer` was given, after it was read.
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
                    "changes of `{}` after version `{since}` are wanted, and they are kept from version \
                     `{kept_since}` on only: begin at `{kept_since}` or later",
                    self.table
                ),
            )),
            Verdict::TakenBack(at) => Err(Self::taken_back(at, *current)),
        }
    }

    /// Returns the condition that keys behind `alias` belong to the part that is read.
    fn of_partition(&self, alias: &str) -> Option<String> {
        self.partition.map(|partition| partition::condition(partition, &self.key, alias))
    }

    /// Returns the key columns, each with the expression of its value in a position.
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

    /// Returns the rows, unless what follows the checkpoint is no longer there.
    pub(super) fn tracked_rows(
        &self,
        answer: Answer,
        window: FetchWindow<'_>,
    ) -> Result<Rows, FetchError> {
        let range = Range::of(window, &self.poller)?;
        let (current, now) = match answer.head.as_slice() {
            [Value::Int(current), Value::Text(now)] => (*current, now.as_str()),
            [Value::Null, _] => return Err(self.not_tracked(range)),
            head => return Err(unexpected(head, "its current version of changes")),
        };
        // Without it nothing is delivered, whatever else has come.
        let Some(Value::Int(kept_since)) = answer.tail else {
            // For a missing right the server says `NULL`, too: only if tracking is off, rows are lost.
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
        // A batch that is read again has the positions that it had.
        let started = range.after.or(range.upto).map_or(current, |at| at.version);
        answer.check_rows()?;
        let more = answer.has_more();
        let mut rows = answer.rows;
        for row in &mut rows {
            let at = if let Value::Int(version) = row.position {
                TrackedPosition { version, phase: TrackedPhase::Changes }
            } else {
                TrackedPosition { version: started, phase: TrackedPhase::Snapshot }
            };
            row.position = Value::Text(at.to_string());
        }
        // Only a fetch that ended where the table's changes end knows them all.
        let whole = !more && range.upto.is_none() && range.changes_since.is_some();
        let remember =
            if whole { noted(window.state, range, current, now, rows.is_empty()) } else { None };
        let more = more || (!rows.is_empty() && unread(range));
        // Before the first clean-up the oldest version is where tracking began. The distance to that says
        // nothing about how soon changes are lost: a clean-up moves by age, and has not begun.
        let cleaned_to =
            Some(kept_since).filter(|kept| answer.identity.tracked_from() != Some(*kept));
        let since = |from: i64, to: i64| u64::try_from(to.saturating_sub(from)).unwrap_or(0);
        let lag = Lag {
            positions: range.changes_since.map(|at| since(at, current)),
            retention_left: range.changes_since.zip(cleaned_to).map(|(at, kept)| since(kept, at)),
            ..Lag::default()
        };
        let (columns, json) = (Arc::clone(&self.columns), answer.json);
        Ok(Rows { columns, json, rows, more, lag, remember, ..Rows::default() })
    }

    /// Returns the position behind all changes so far, from what the server said of its versions.
    pub(super) fn tracked_present(&self, answer: &[Value]) -> Result<Cursor, FetchError> {
        let [Value::Int(version), Value::Int(_)] = answer else {
            return Err(FetchError::new(ErrorKind::Configuration, self.tracking_advice()));
        };
        let at = TrackedPosition { version: *version, phase: TrackedPhase::Changes };
        Ok(Cursor::tracked(at, highwater_engine::cursor::KeyValues::new()))
    }

    fn expired(&self, since: i64, kept_since: i64) -> FetchError {
        FetchError::rows_lost(format!(
            "changes of `{}` were delivered up to version `{since}`, and are kept from version `{kept_since}` on only: \
             some were cleaned up before they were read; raise `CHANGE_RETENTION`",
            self.table
        ))
    }

    fn taken_back(at: i64, current: i64) -> FetchError {
        FetchError::rows_lost(format!(
            "the checkpoint is at version `{at}` of the changes, the database's current one is `{current}`: it was \
             restored or replaced, and rows could be missed"
        ))
    }

    /// Says that there are no changes to be read: to somebody who begins, or to somebody who had some.
    fn not_tracked(&self, range: Range) -> FetchError {
        let advice = self.tracking_advice();
        match range.after {
            None => FetchError::new(ErrorKind::Configuration, advice),
            Some(_) => lost_tracking(&advice),
        }
    }

    fn tracking_advice(&self) -> String {
        format!(
            "changes of `{}` are not tracked, or there is no right to see them: run `ALTER TABLE {} ENABLE \
             CHANGE_TRACKING`, and let a DBA run `GRANT VIEW CHANGE TRACKING ON {} TO [user]`, or choose another mode",
            self.table, self.quoted, self.quoted
        )
    }
}

/// Reports that changes are no longer tracked.
pub(super) fn lost_tracking(reason: &str) -> FetchError {
    FetchError::rows_lost(format!(
        "{reason}; what changes while tracking is off is not known, also after it is on again"
    ))
}

/// Whether there can be more although no row says so: changes are read after the table's rows only.
fn unread(range: Range) -> bool {
    range.rows && range.changes_since.is_none() && range.upto.is_none()
}

/// What the server's versions say of a position.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// Changes later than this version are not all kept.
    Expired(i64),
    /// The position is at a version that the database has not reached.
    TakenBack(i64),
}

fn verdict(range: Range, current: i64, kept_since: i64) -> Verdict {
    if let Some(at) = range.after.filter(|at| at.version > current) {
        return Verdict::TakenBack(at.version);
    }
    // Rows that are still being read will need the changes since they began to be.
    let since = range.changes_since.or(range.after.map(|at| at.version));
    match since.filter(|since| *since < kept_since) {
        Some(since) => Verdict::Expired(since),
        None => Verdict::Good,
    }
}

/// Returns what to remember of changes that are known up to `current`.
fn noted(
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
    // A table that rests is noted now and then, at once: no other write may come for days. That its
    // rows were read to their end is worth a note, but no write.
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

/// Returns what stays true of `kept` while the position stays.
pub(super) fn anchored(kept: &SourceState) -> SourceState {
    let known = kept.iter().filter(|(name, _)| [COMPLETE_TO, NOTED_AT].contains(&name.as_str()));
    known.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn known(state: &SourceState) -> Option<i64> {
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
