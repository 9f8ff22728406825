//! Looks up one row by its key, for `highwater trace`: everything that decides when it is delivered.
//!
//! # Design
//!
//! Two requests: the columns, then one batch. The row is found by a seek on its key, and whatever else is computed
//! about it, such as whether it is after the checkpoint, is computed for this row alone. So the size of the table does
//! not matter.
//!
//! Conditions of the filter are evaluated one by one, also those that a read does not reach because an earlier one
//! fails. If the server cannot do that, the whole filter is evaluated instead, in a further request.
//!
//! The sessions that hold rows back come last in the batch, as dynamic SQL. A login that may not see them gets an
//! error there, after everything else has arrived, and that error is ignored.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use highwater_engine::cursor::{Cursor, CursorMode, RowVersion, TrackedPhase, TrackedPosition};
use highwater_engine::error::ErrorKind;
use highwater_engine::event::Operation;
use highwater_engine::normalize::end_of;
use highwater_engine::source::{
    FetchError, FetchWindow, LookupError, Predicate, RowLookup, RowReport, Rows, Session,
    SourceShape,
};
use highwater_engine::value::Value;
use serde_json::Value as Json;

use crate::connection::{Connection, Param};
use crate::filter::Filter;
use crate::ident::{literal, quote};

use super::choice::{self, Survey};
use super::describe::{self, Column};
use super::form::KeyValue;
use super::mark::Marks;
use super::plan::{Plan, unexpected};
use super::query::{Bounds, KeyTypes, RowQuery, bound};
use super::range::bare;
use super::tracking::{known, position};
use super::zone::now;
use super::{Decided, Mssql, partition, values};

/// Most rows to read: a second one shows that the key is not unique.
const ROWS_MAX: usize = 2;
/// Another transaction holds the lock that a read waits for.
const LOCKED: u32 = 1222;
/// Errors of a value that cannot be converted.
const NOT_CONVERTED: [u32; 7] = [241, 242, 245, 295, 8114, 8115, 8169];
/// Sessions whose open transactions have written to this database, oldest first. The start time of a transaction is
/// in the server's local time.
/// <https://learn.microsoft.com/sql/relational-databases/system-dynamic-management-views/sys-dm-tran-database-transactions-transact-sql>
const SESSIONS: &str = "SELECT TOP (5) CAST(s.session_id AS BIGINT), s.login_name, s.host_name, s.program_name, \
     DATEDIFF(SECOND, d.database_transaction_begin_time, GETDATE()) \
     FROM sys.dm_tran_database_transactions AS d \
     JOIN sys.dm_tran_session_transactions AS x ON x.transaction_id = d.transaction_id \
     JOIN sys.dm_exec_sessions AS s ON s.session_id = x.session_id \
     WHERE d.database_id = DB_ID() AND d.database_transaction_type = 1 \
     AND d.database_transaction_begin_time IS NOT NULL ORDER BY d.database_transaction_begin_time";

/// The answer of the server, one result after another.
#[derive(Debug, Default)]
struct Answer {
    head: Vec<Value>,
    rows: Vec<Vec<Value>>,
    changes: Vec<Vec<Value>>,
    /// Whether everything but the sessions has arrived.
    is_complete: bool,
    sessions: Vec<Session>,
}

/// How the filter is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilterForm {
    /// Each condition by itself.
    Conditions,
    /// As a read evaluates it.
    Whole,
    /// Not at all.
    Without,
}

impl Answer {
    fn read(&mut self, row: &tiberius::Row, is_tracked: bool) {
        let cells = values(row);
        // Only a tracked table has changes.
        match (row.result_index(), is_tracked) {
            (0, _) => self.head = cells,
            (1, _) => self.rows.push(cells),
            (2, true) => self.changes.push(cells),
            (2, false) | (3, true) => self.is_complete = true,
            (_, _) => self.sessions.extend(session(&cells)),
        }
    }
}

impl FilterForm {
    /// Returns the next form to try if the server cannot evaluate this one. Without the filter, an error is about the
    /// key.
    fn simpler(self) -> Option<Self> {
        match self {
            Self::Conditions => Some(Self::Whole),
            Self::Whole => Some(Self::Without),
            Self::Without => None,
        }
    }
}

fn session(cells: &[Value]) -> Option<Session> {
    let [Value::Int(id), login, host, program, Value::Int(seconds)] = cells else { return None };
    let text = |value: &Value| {
        if let Value::Text(text) = value {
            Some(text.clone()).filter(|text| !text.is_empty())
        } else {
            None
        }
    };
    let (login, host, program) = (text(login), text(host), text(program));
    Some(Session { id: *id, login, host, program, seconds: *seconds })
}

impl Mssql {
    pub(super) async fn look_up_row(
        &self,
        connection: &mut Connection,
        lookup: RowLookup<'_>,
    ) -> Result<RowReport, LookupError> {
        let columns = self.describe_to_choose(connection, lookup).await?;
        let (plan, shape) = (self.make_plan(&columns)?, &self.decided()?.shape);
        // A position in another source says nothing about this one.
        let is_same = lookup.stored == Some(&shape.fingerprint);
        let lookup = RowLookup { after: lookup.after.filter(|_| is_same), ..lookup };
        let is_tracked = plan.untracked().is_none();
        let mut form = FilterForm::Conditions;
        let mut of_filter = None;
        let (answer, read) = loop {
            let (sql, params) = plan.lookup_statement(lookup, form)?;
            let mut answer = Answer::default();
            let read = connection.query(&sql, &params, |row| {
                answer.read(&row, is_tracked);
                Ok(())
            });
            let read = read.await;
            plan.check_encoding(connection).map_err(FetchError::from)?;
            let failed = read.as_ref().err();
            let failed = failed.filter(|error| !answer.is_complete && error.is_rejected());
            let message = failed.and_then(|error| Some(error.message()?.to_owned()));
            let next = plan.filter.as_ref().and_then(|_| form.simpler());
            match (message, next) {
                (Some(message), Some(next)) => (of_filter, form) = (Some(message), next),
                (_, _) => break (answer, read),
            }
        };
        match read {
            Err(error) if error.number() == Some(LOCKED) => {
                return Ok(RowReport { exists: true, is_locked: true, ..RowReport::default() });
            }
            Err(error) if error.number().is_some_and(|it| NOT_CONVERTED.contains(&it)) => {
                let column = plan.key_names.join(", ");
                let reason = error.message().unwrap_or("it cannot be converted").to_owned();
                return Err(LookupError::Value { column, reason });
            }
            Err(error) if !answer.is_complete => return Err(FetchError::from(error).into()),
            // The login may not see the sessions.
            Ok(_) | Err(_) => {}
        }
        if let (FilterForm::Without, Some(message)) = (form, of_filter) {
            let reason = format!("`SOURCE__FILTER` could not be evaluated for the row: {message}");
            return Err(FetchError::new(ErrorKind::Configuration, reason).into());
        }
        plan.report(answer, lookup, (shape, form))
    }

    /// Describes the columns, and chooses the mode if the settings leave it open; in one request.
    async fn describe_to_choose(
        &self,
        connection: &mut Connection,
        lookup: RowLookup<'_>,
    ) -> Result<Vec<Column>, FetchError> {
        if self.is_decided() {
            return self.describe(connection).await;
        }
        let (columns, is_tracked) = self.describe_with_tracking(connection).await?;
        let shape = |choice: &_| self.origin.shape(&self.settings, self.filter.as_ref(), choice);
        let is_stored = |choice: &_| lookup.stored == Some(&shape(choice).fingerprint);
        let survey = Survey { origin: &self.origin, columns: &columns, tracked: is_tracked };
        let choice = choice::choose(&self.settings, survey, is_stored)?.choice;
        let shape = shape(&choice);
        self.decided.get_or_init(|| Decided { choice, shape });
        Ok(columns)
    }

    async fn describe_with_tracking(
        &self,
        connection: &mut Connection,
    ) -> Result<(Vec<Column>, bool), FetchError> {
        let Some(table) = self.origin.table() else {
            return Ok((self.describe(connection).await?, false));
        };
        let name = literal(&table.quoted());
        let sql = format!(
            "{}\nSELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID({name})) AS [v];",
            self.origin.describe()
        );
        let mut is_tracked = false;
        let read = |row: tiberius::Row| {
            if row.len() > 1 {
                return describe::column(row).map(Some);
            }
            is_tracked = matches!(values(&row).as_slice(), [Value::Int(_)]);
            Ok(None)
        };
        let columns = match connection.query(&sql, &[], read).await {
            Ok(columns) => columns.into_iter().flatten().collect(),
            // The server does not support change tracking.
            Err(error) if error.is_rejected() => self.describe(connection).await?,
            Err(error) => return Err(error.into()),
        };
        if columns.is_empty() {
            return Err(super::plan::not_found(&self.origin));
        }
        Ok((columns, is_tracked))
    }
}

/// Conditions on the row, as parts of the select list, and the statements around it.
struct Parts {
    head: String,
    after: Option<String>,
    is_readable: Option<String>,
    cursor: String,
    /// What follows the row.
    tail: String,
}

impl Plan {
    /// Returns the batch that looks up a row: the bounds, the row, its changes, a mark, and the sessions.
    fn lookup_statement(
        &self,
        lookup: RowLookup<'_>,
        form: FilterForm,
    ) -> Result<(String, Vec<Param>), LookupError> {
        let key = self.lookup_key(lookup)?;
        let mut params: Vec<Param> = key.iter().map(|value| value.param.clone()).collect();
        let parts = match self.untracked() {
            Some(read) => self.parts(&read, lookup, &mut params)?,
            None => self.tracked_parts(lookup, &key, &mut params)?,
        };
        let first = params.len() + 1;
        let filter = self.filter.iter().filter(|_| form != FilterForm::Without);
        params.extend(filter.flat_map(Filter::values).map(|it| Param::Text(it.to_owned())));
        let predicates = self.conditions(form).into_iter();
        let predicates = predicates.map(|it| it.sql(|at| format!("@P{}", first + at)));
        let mut select = self.key_list(&self.select);
        select.push(format!("{} AS [__cursor]", parts.cursor));
        select.push(self.partition_number("t"));
        select.push(flag(self.deleted.as_deref(), false, "__deleted"));
        select.push(flag(parts.after.as_deref(), true, "__after"));
        select.push(flag(parts.is_readable.as_deref(), true, "__readable"));
        select.extend(
            predicates.zip(0..).map(|(it, at)| flag(Some(&it), true, &format!("__filter{at}"))),
        );
        let sql = format!(
            "{}\nSELECT TOP ({ROWS_MAX}) {}\nFROM {} AS t\nWHERE {};\n{}",
            parts.head,
            select.join(", "),
            self.quoted,
            self.key_is("t", &key),
            parts.tail,
        );
        Ok((sql, params))
    }

    fn parts(
        &self,
        read: &RowQuery<'_>,
        lookup: RowLookup<'_>,
        params: &mut Vec<Param>,
    ) -> Result<Parts, FetchError> {
        let settle = params.len() + 1;
        if matches!(self.mode, CursorMode::TimestampPk | CursorMode::IntegerPk) {
            params.push(Param::Int(self.settle_ms));
        }
        if self.mode == CursorMode::IntegerPk {
            params.extend(Marks::of(lookup.state).params());
        }
        let column = format!("t.{}", quote(&read.cursor.name));
        let done = "SELECT 1 AS [__done];";
        let (head, is_readable, tail) = match self.mode {
            CursorMode::RowVersion | CursorMode::ChangeTracking => (
                "DECLARE @hi BINARY(8) = MIN_ACTIVE_ROWVERSION();\n\
                 SELECT CAST(@hi AS BIGINT) AS [__hi], CAST(@@DBTS AS BIGINT) AS [__dbts];"
                    .to_owned(),
                format!("{column} < @hi"),
                format!(
                    "{done}\nIF CAST(@hi AS BIGINT) <= CAST(@@DBTS AS BIGINT) EXEC (N'{SESSIONS}');"
                ),
            ),
            CursorMode::TimestampPk => (
                format!(
                    "DECLARE @hi {} = DATEADD(MILLISECOND, -@P{settle}, {now});\n\
                     SELECT CONVERT(NVARCHAR(33), @hi, 126) AS [__hi], \
                     CONVERT(NVARCHAR(33), {now}, 126) AS [__now];",
                    read.cursor.declared(),
                    now = now(self.clock),
                ),
                format!("{column} < @hi"),
                done.to_owned(),
            ),
            CursorMode::IntegerPk => {
                (integer_head(settle), format!("{column} <= @hi"), done.to_owned())
            }
        };
        let window = FetchWindow {
            after: lookup.after,
            upto: None,
            rows_max: ROWS_MAX,
            state: lookup.state,
        };
        let first = params.len() + 1;
        let bases: KeyTypes = self.key_types(window)?;
        let read = RowQuery { bases, ..*read };
        let after = read.is_after(Bounds::of(window).after, first);
        if let Some(cursor) = lookup.after {
            self.bind(cursor, params)?;
        }
        Ok(Parts {
            head,
            after,
            is_readable: Some(is_readable),
            cursor: read.leading_value(),
            tail,
        })
    }

    fn tracked_parts(
        &self,
        lookup: RowLookup<'_>,
        key: &[KeyValue],
        params: &mut Vec<Param>,
    ) -> Result<Parts, FetchError> {
        let after = lookup.after.filter(|after| !after.key.is_empty());
        let values = after.map(|after| self.key_values(after)).transpose()?.unwrap_or_default();
        let first = params.len() + 1;
        params.extend(values.iter().map(|value| value.param.clone()));
        // By the key alone: versions are compared when the answer is read.
        let is_after = |alias: &str| {
            let columns = self.key_names_of(alias).into_iter().zip(&self.key).zip(&values);
            let columns = columns.zip(first..).map(|(((name, column), value), at)| {
                (name, column.cast(&format!("@P{at}"), value.base.as_ref()))
            });
            let columns: Vec<_> = columns.collect();
            (!columns.is_empty()).then(|| bound(&columns, [">", ">", ">="]))
        };
        let mut change = self.key_list(&self.select_of_change());
        change.push("c.SYS_CHANGE_VERSION AS [__version]".to_owned());
        change.push("c.SYS_CHANGE_OPERATION AS [__op]".to_owned());
        change.push(flag(is_after("c").as_deref(), false, "__after"));
        change.push(self.partition_number("c"));
        Ok(Parts {
            head: format!(
                "DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();\n\
                 DECLARE @min BIGINT = CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID({}));\n\
                 SELECT @cur AS [__cur], @min AS [__min];",
                literal(&self.quoted)
            ),
            after: is_after("t"),
            is_readable: None,
            cursor: "CAST(NULL AS BIGINT)".to_owned(),
            tail: format!(
                "SELECT TOP ({ROWS_MAX}) {}\nFROM CHANGETABLE(CHANGES {}, @min) AS c\nWHERE {};\n\
                 SELECT 1 AS [__done];",
                change.join(", "),
                self.quoted,
                self.key_is("c", key),
            ),
        })
    }

    /// Returns the values of the key to look up.
    fn lookup_key(&self, lookup: RowLookup<'_>) -> Result<Vec<KeyValue>, LookupError> {
        let value = |(column, name): (&Column, &String)| {
            let json = lookup.key.get(name).ok_or_else(|| "it is missing".to_owned());
            let value = json.and_then(|json| value_of(column, json));
            value.map_err(|reason| LookupError::Value { column: name.clone(), reason })
        };
        self.key.iter().zip(&self.key_names).map(value).collect()
    }

    /// Returns the key columns of a select list, without their aliases.
    fn key_list(&self, select: &[String]) -> Vec<String> {
        let key = self.key_at.iter().filter_map(|at| select.get(*at));
        key.zip(0..).map(|(item, at)| format!("{} AS [__k{at}]", bare(item))).collect()
    }

    fn partition_number(&self, alias: &str) -> String {
        let number = self.partition.map_or_else(
            || "CAST(NULL AS BIGINT)".to_owned(),
            |partition| partition::number(partition, &self.key, alias),
        );
        format!("{number} AS [__partition]")
    }

    fn report(
        &self,
        mut answer: Answer,
        lookup: RowLookup<'_>,
        (shape, form): (&SourceShape, FilterForm),
    ) -> Result<RowReport, LookupError> {
        if answer.rows.len() >= ROWS_MAX {
            let key = lookup.key.to_json();
            let reason = format!("several rows of `{}` have the key {key}", self.table);
            return Err(FetchError::new(ErrorKind::Configuration, reason).into());
        }
        let row = answer.rows.pop();
        let sessions = std::mem::take(&mut answer.sessions);
        if self.cursor.is_none() {
            return self.tracked_report(&answer, row, lookup, (shape, form));
        }
        // One of the sessions may have inserted it.
        let Some(row) = row else { return Ok(RowReport { sessions, ..RowReport::default() }) };
        let Some(found) = Found::of(row, self.key.len()) else {
            return Err(unexpected(&answer.head, "a row").into());
        };
        let is_null = found.place.last() == Some(&Value::Null);
        let cursor = self.cursor.as_ref().map(|cursor| cursor.name.clone());
        let (position, key) = self.place(found.place).map_err(FetchError::from)?;
        let (bound, is_newer, settles_in) = self.bound_of(&answer.head, &position);
        Ok(RowReport {
            exists: true,
            is_locked: false,
            is_deleted: found.is_deleted,
            position: position_of(shape, position, key),
            null_cursor: cursor.filter(|_| is_null),
            is_after: found.is_after,
            is_readable: found.is_readable || is_newer,
            bound,
            settles_in,
            predicates: self.predicates(&found.predicates, form),
            is_selected: self.selection.is_possible(operation_of_row(found.is_deleted)),
            partition: found.partition,
            sessions,
        })
    }

    /// Returns the upper bound as text, whether the row is newer than the read of it, and how long until the row
    /// settles.
    fn bound_of(
        &self,
        head: &[Value],
        position: &Value,
    ) -> (Option<String>, bool, Option<Duration>) {
        let version = |value: i64| RowVersion(u64::from_be_bytes(value.to_be_bytes()));
        match (self.mode, head, position) {
            (CursorMode::RowVersion, [Value::Int(hi), Value::Int(last)], position) => {
                let is_newer = matches!(position, Value::Int(at) if version(*at) > version(*last));
                (Some(version(*hi).to_string()), is_newer, None)
            }
            (CursorMode::TimestampPk, [Value::Text(hi), Value::Text(now)], Value::Text(at)) => {
                let due = super::decode::millis(at).map(|at| at + i64::from(self.settle_ms));
                let left = due.zip(super::decode::millis(now)).map(|(due, now)| due - now);
                let left = left.and_then(|left| u64::try_from(left).ok());
                (Some(hi.clone()), false, left.map(Duration::from_millis))
            }
            (CursorMode::IntegerPk, [Value::Int(hi), ..], _) => {
                (Some(hi.to_string()).filter(|_| self.settle_ms > 0), false, None)
            }
            _ => (None, false, None),
        }
    }

    /// Returns the conditions to evaluate.
    fn conditions(&self, form: FilterForm) -> Vec<Filter> {
        match (&self.filter, form) {
            (Some(filter), FilterForm::Conditions) => filter.conditions(),
            (Some(filter), FilterForm::Whole) => vec![filter.clone()],
            (Some(_), FilterForm::Without) | (None, _) => Vec::new(),
        }
    }

    fn predicates(&self, hold: &[bool], form: FilterForm) -> Vec<Predicate> {
        let texts = self.conditions(form).into_iter();
        let texts = texts.map(|condition| condition.text().to_owned());
        texts.zip(hold).map(|(text, holds)| Predicate { text, holds: *holds }).collect()
    }

    fn tracked_report(
        &self,
        answer: &Answer,
        row: Option<Vec<Value>>,
        lookup: RowLookup<'_>,
        (shape, form): (&SourceShape, FilterForm),
    ) -> Result<RowReport, LookupError> {
        let at = lookup.after.map(|after| position(after, &self.poller)).transpose()?;
        let found = row.and_then(|row| Found::of(row, self.key.len()));
        let change = answer.changes.last().and_then(|change| Change::of(change, self.key.len()));
        let place = change.as_ref().map(|change| TrackedPosition {
            version: change.version,
            phase: TrackedPhase::Changes,
        });
        let read = TrackedRead {
            at,
            has_key: lookup.after.is_some_and(|after| !after.key.is_empty()),
            complete_to: known(lookup.state),
        };
        let is_after_in_rows = found.as_ref().is_some_and(|found| found.is_after);
        let is_after = read.is_after(
            change.as_ref().map(|change| (change.version, change.is_after)),
            found.is_some().then_some(is_after_in_rows),
        );
        // In the table's rows, a row has the version at which they were started.
        let place = match at {
            Some(at) if at.phase == TrackedPhase::Snapshot => {
                let is_later = |place: &TrackedPosition| place.version > at.version;
                place.filter(|place| is_later(place) || found.is_none()).or(Some(at))
            }
            _ => place,
        };
        let is_deleted = change.as_ref().is_some_and(|change| change.op == Operation::Delete)
            || found.as_ref().is_some_and(|found| found.is_deleted);
        let operation = match (&change, is_deleted) {
            (_, true) => Operation::Delete,
            (Some(change), false) if place.is_some_and(|at| at.phase == TrackedPhase::Changes) => {
                change.op
            }
            (_, false) => Operation::Upsert,
        };
        let exists = found.is_some();
        let partition = found.as_ref().and_then(|found| found.partition);
        let partition = partition.or_else(|| change.as_ref().and_then(|change| change.partition));
        let predicates = found.as_ref().map(|found| self.predicates(&found.predicates, form));
        let key = match (found, change) {
            (Some(found), _) => found.place,
            (None, Some(change)) => change.key,
            (None, None) => Vec::new(),
        };
        let position = match place.filter(|_| !key.is_empty()) {
            Some(place) => {
                let mut cells = key;
                cells.truncate(self.key.len());
                cells.push(Value::Null);
                let (_, key) = self.place(cells).map_err(FetchError::from)?;
                position_of(shape, Value::Text(place.to_string()), key)
            }
            None => None,
        };
        Ok(RowReport {
            exists,
            is_locked: false,
            is_deleted,
            position,
            null_cursor: None,
            is_after,
            is_readable: true,
            bound: None,
            settles_in: None,
            predicates: predicates.unwrap_or_default(),
            is_selected: self.selection.is_possible(operation),
            partition,
            sessions: Vec::new(),
        })
    }
}

/// Where a poller with change tracking is.
#[derive(Clone, Copy, Debug)]
struct TrackedRead {
    at: Option<TrackedPosition>,
    /// Whether the position has a key; without one it is after everything at its version.
    has_key: bool,
    /// The version up to which all changes are known.
    complete_to: Option<i64>,
}

impl TrackedRead {
    /// Whether a row is still to be read. `change` is the version of its last change, and whether its key is after the
    /// position's; `row` is the latter for a row of the table.
    fn is_after(self, change: Option<(i64, bool)>, row: Option<bool>) -> bool {
        let Some(at) = self.at else { return change.is_some() || row.is_some() };
        if at.phase == TrackedPhase::Snapshot {
            // What changed since the rows were started is read after them.
            let is_later = change.is_some_and(|(version, _)| version > at.version);
            return is_later || (self.has_key && row == Some(true));
        }
        change.is_some_and(|(version, is_after)| {
            let at_version = version == at.version && self.has_key && is_after;
            (version > at.version || at_version)
                && self.complete_to.is_none_or(|known| version > known)
        })
    }
}

/// A row of the table.
struct Found {
    /// The key, and the cursor.
    place: Vec<Value>,
    partition: Option<u16>,
    is_deleted: bool,
    is_after: bool,
    is_readable: bool,
    predicates: Vec<bool>,
}

impl Found {
    fn of(mut cells: Vec<Value>, key: usize) -> Option<Self> {
        let rest = (cells.len() > key).then(|| cells.split_off(key + 1))?;
        let [partition, is_deleted, is_after, is_readable, predicates @ ..] = rest.as_slice()
        else {
            return None;
        };
        let is = |value: &Value| *value == Value::Int(1);
        Some(Self {
            place: cells,
            partition: number(partition),
            is_deleted: is(is_deleted),
            is_after: is(is_after),
            is_readable: is(is_readable),
            predicates: predicates.iter().map(is).collect(),
        })
    }
}

/// The last change of a key.
struct Change {
    key: Vec<Value>,
    version: i64,
    op: Operation,
    is_after: bool,
    partition: Option<u16>,
}

impl Change {
    fn of(cells: &[Value], key: usize) -> Option<Self> {
        let (key, rest) = cells.split_at_checked(key)?;
        let [Value::Int(version), Value::Text(op), is_after, partition] = rest else {
            return None;
        };
        let op = match op.as_str() {
            "D" => Operation::Delete,
            "I" => Operation::Insert,
            _ => Operation::Update,
        };
        let (is_after, partition) = (*is_after == Value::Int(1), number(partition));
        Some(Self { key: key.to_vec(), version: *version, op, is_after, partition })
    }
}

fn number(value: &Value) -> Option<u16> {
    if let Value::Int(number) = value { u16::try_from(*number).ok() } else { None }
}

fn operation_of_row(is_deleted: bool) -> Operation {
    if is_deleted { Operation::Delete } else { Operation::Upsert }
}

/// Returns the position of a row, if it has one.
fn position_of(shape: &SourceShape, position: Value, key: Vec<Value>) -> Option<Cursor> {
    let mut rows = Rows::default();
    rows.push(Operation::Upsert, position, key, &[]);
    end_of(shape, &rows)
}

/// Returns a column that is 1 if `condition` holds; without a condition, if `otherwise`.
fn flag(condition: Option<&str>, otherwise: bool, name: &str) -> String {
    match condition {
        Some(condition) => format!("CASE WHEN {condition} THEN 1 ELSE 0 END AS [{name}]"),
        None => format!("{} AS [{name}]", u8::from(otherwise)),
    }
}

/// Reads the mark by which a fetch is bounded. Unlike a fetch this needs no highest number, which could take a scan.
fn integer_head(settle: usize) -> String {
    let (settled, waiting, taken_at) = (settle + 1, settle + 2, settle + 3);
    format!(
        "DECLARE @now DATETIME2(7) = SYSUTCDATETIME();\n\
         DECLARE @hi BIGINT = CASE WHEN @P{settle} = 0 THEN 9223372036854775807\n\
         WHEN CAST(NULLIF(@P{taken_at}, N'') AS DATETIME2(7)) <= DATEADD(MILLISECOND, -@P{settle}, @now) \
         THEN CAST(NULLIF(@P{waiting}, N'') AS BIGINT)\n\
         ELSE CAST(NULLIF(@P{settled}, N'') AS BIGINT) END;\n\
         SELECT @hi AS [__hi], CONVERT(NVARCHAR(33), @now, 126) AS [__now];"
    )
}

/// Returns how to compare with a key value that a person wrote.
fn value_of(column: &Column, json: &Json) -> Result<KeyValue, String> {
    let kind = column.type_name.as_str();
    let Json::String(text) = json else { return column.key_value(json) };
    match kind {
        "tinyint" | "smallint" | "int" | "bigint" => {
            let number: i64 = text.trim().parse().map_err(|_other| {
                format!("`{text}` is not a whole number, which type `{kind}` needs")
            })?;
            Ok(KeyValue { param: Param::BigInt(number), base: None })
        }
        "binary" | "varbinary" | "timestamp" | "rowversion" if text.starts_with("0x") => {
            let bytes =
                hex(text).ok_or_else(|| format!("`{text}` is not `0x` and pairs of hex digits"))?;
            column.key_value(&Json::String(STANDARD.encode(bytes)))
        }
        _ => column.key_value(json),
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?;
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            let pair = str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use highwater_engine::cursor::{KeyValues, SourceDefinition, SourceFingerprint, SourceState};
    use highwater_engine::event::SourceLabel;
    use highwater_engine::partition::Partition;
    use highwater_engine::source::Source as _;
    use serde_json::json;

    use super::*;
    use crate::source::SourceSettings;
    use crate::source::plan::tests::{plan, settings};

    #[tokio::test]
    async fn a_lookup_does_not_wait_for_a_read_of_a_tick() {
        let connection = crate::connection_string::SqlConnection::parse(
            "Server=127.0.0.1,1;User ID=u;Password=p",
        );
        let settings = SourceSettings {
            connection: connection.unwrap(),
            ..settings(CursorMode::RowVersion, "rv")
        };
        let source = Mssql::new(settings).unwrap();
        let _reading = source.state.lock().await;
        let (key, state) = (key(json!("17")), SourceState::new());
        let lookup = RowLookup { key: &key, stored: None, after: None, state: &state };
        let answer = tokio::time::timeout(Duration::from_secs(20), source.look_up(lookup)).await;
        assert!(answer.expect("no wait for the read").is_err(), "no server has this address");
    }

    fn key(value: Json) -> KeyValues {
        KeyValues::from_iter([("ID", value)])
    }

    fn statement(settings: SourceSettings, after: Option<&Cursor>) -> (String, Vec<Param>) {
        let settings = SourceSettings { columns: Some(vec!["price".to_owned()]), ..settings };
        let (key, state) = (key(json!("17")), SourceState::new());
        let lookup = RowLookup { key: &key, stored: None, after, state: &state };
        plan(&settings).unwrap().lookup_statement(lookup, FilterForm::Conditions).unwrap()
    }

    #[test]
    fn a_row_is_found_by_a_seek_on_its_key() {
        let after = Cursor::row_version(RowVersion(9), key(json!(3)));
        let filtered = SourceSettings {
            filter: Some("price > 1 AND [any] = @a".to_owned()),
            filter_params: [("A".to_owned(), "int:5".to_owned())].into(),
            partition: Some(Partition { index: 1, count: 4 }),
            ..settings(CursorMode::RowVersion, "rv")
        };
        let (sql, params) = statement(filtered, Some(&after));
        let (before, sessions) = sql.split_once("\nIF CAST").unwrap();
        assert!(sessions.contains("EXEC (N'SELECT TOP (5)"), "{sessions}");
        expect![[r#"
            DECLARE @hi BINARY(8) = MIN_ACTIVE_ROWVERSION();
            SELECT CAST(@hi AS BIGINT) AS [__hi], CAST(@@DBTS AS BIGINT) AS [__dbts];
            SELECT TOP (2) t.[id] AS [__k0], CAST(t.[rv] AS BIGINT) AS [__cursor], CAST(SUBSTRING(HASHBYTES('SHA2_256', ISNULL(CONVERT(NVARCHAR(40), t.[id]), N'')), 1, 4) AS BIGINT) % 4 AS [__partition], 0 AS [__deleted], CASE WHEN t.[rv] >= CAST(CAST(@P2 AS BIGINT) AS BINARY(8)) AND (t.[rv] > CAST(CAST(@P2 AS BIGINT) AS BINARY(8)) OR t.[id] > CAST(@P3 AS int)) THEN 1 ELSE 0 END AS [__after], CASE WHEN t.[rv] < @hi THEN 1 ELSE 0 END AS [__readable], CASE WHEN (price > 1
            ) THEN 1 ELSE 0 END AS [__filter0], CASE WHEN ([any] = CAST(@P4 AS int)
            ) THEN 1 ELSE 0 END AS [__filter1]
            FROM [dbo].[t] AS t
            WHERE t.[id] = CAST(@P1 AS int);
            SELECT 1 AS [__done];"#]]
        .assert_eq(before);
        assert_eq!(params.len(), 4);
        for mode in [CursorMode::RowVersion, CursorMode::TimestampPk] {
            let cursor = if mode == CursorMode::RowVersion { "rv" } else { "at" };
            let (sql, _) = statement(settings(mode, cursor), None);
            // Nothing else narrows the rows, and nothing else is read from the table.
            assert_eq!(sql.matches("FROM [dbo].[t]").count(), 1, "{sql}");
            assert!(
                sql.contains("FROM [dbo].[t] AS t\nWHERE t.[id] = CAST(@P1 AS int);\n"),
                "{sql}"
            );
        }
    }

    #[test]
    fn a_filter_is_evaluated_as_a_whole_if_its_conditions_fail_and_at_last_not_at_all() {
        let settings = SourceSettings {
            filter: Some("price > 1 AND [any] = @a".to_owned()),
            filter_params: [("A".to_owned(), "int:5".to_owned())].into(),
            columns: Some(vec!["price".to_owned()]),
            ..settings(CursorMode::RowVersion, "rv")
        };
        let plan = plan(&settings).unwrap();
        let (key, state) = (key(json!("17")), SourceState::new());
        let lookup = RowLookup { key: &key, stored: None, after: None, state: &state };
        let whole =
            "CASE WHEN (price > 1 AND [any] = CAST(@P2 AS int)\n) THEN 1 ELSE 0 END AS [__filter0]";
        for (form, next, conditions, values) in [
            (FilterForm::Conditions, Some(FilterForm::Whole), 2, 2),
            (FilterForm::Whole, Some(FilterForm::Without), 1, 2),
            (FilterForm::Without, None, 0, 1),
        ] {
            let (sql, params) = plan.lookup_statement(lookup, form).unwrap();
            assert_eq!(sql.matches("AS [__filter").count(), conditions, "{sql}");
            assert_eq!(sql.contains(whole), form == FilterForm::Whole, "{sql}");
            assert_eq!((params.len(), form.simpler()), (values, next));
        }
        let found = plan.predicates(&[false], FilterForm::Whole);
        assert_eq!(found[0].text, "price > 1 AND [any] = @a");
    }

    #[test]
    fn a_row_that_is_not_found_may_be_inserted_by_an_open_session() {
        let settings = settings(CursorMode::RowVersion, "rv");
        let plan =
            plan(&SourceSettings { columns: Some(vec!["price".to_owned()]), ..settings }).unwrap();
        let (key, state) = (key(json!("17")), SourceState::new());
        let lookup = RowLookup { key: &key, stored: None, after: None, state: &state };
        let row = [Value::Int(61), Value::Null, Value::Null, Value::Null, Value::Int(340)];
        let sessions: Vec<Session> = session(&row).into_iter().collect();
        let answer = Answer { sessions: sessions.clone(), ..Answer::default() };
        let shape = SourceShape {
            label: SourceLabel {
                poller: "p".to_owned(),
                object: "dbo.t".to_owned(),
                mode: CursorMode::RowVersion.as_str(),
            },
            mode: CursorMode::RowVersion,
            key: vec!["ID".to_owned()],
            fingerprint: SourceFingerprint::of(&[]),
            definition: SourceDefinition::default(),
        };
        let found = plan.report(answer, lookup, (&shape, FilterForm::Conditions)).unwrap();
        assert_eq!(found, RowReport { sessions, ..RowReport::default() });
    }

    #[test]
    fn a_tracked_row_and_its_last_change_are_found_by_their_key() {
        let settings =
            SourceSettings { cursor_column: None, ..settings(CursorMode::ChangeTracking, "") };
        let at = "snapshot@5".parse().unwrap();
        let (sql, params) = statement(settings, Some(&Cursor::tracked(at, key(json!(3)))));
        assert_eq!(params.len(), 2);
        expect![[r#"
            DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();
            DECLARE @min BIGINT = CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(N'[dbo].[t]'));
            SELECT @cur AS [__cur], @min AS [__min];
            SELECT TOP (2) t.[id] AS [__k0], CAST(NULL AS BIGINT) AS [__cursor], CAST(NULL AS BIGINT) AS [__partition], 0 AS [__deleted], CASE WHEN t.[id] > CAST(@P2 AS int) THEN 1 ELSE 0 END AS [__after], 1 AS [__readable]
            FROM [dbo].[t] AS t
            WHERE t.[id] = CAST(@P1 AS int);
            SELECT TOP (2) c.[id] AS [__k0], c.SYS_CHANGE_VERSION AS [__version], c.SYS_CHANGE_OPERATION AS [__op], CASE WHEN c.[id] > CAST(@P2 AS int) THEN 1 ELSE 0 END AS [__after], CAST(NULL AS BIGINT) AS [__partition]
            FROM CHANGETABLE(CHANGES [dbo].[t], @min) AS c
            WHERE c.[id] = CAST(@P1 AS int);
            SELECT 1 AS [__done];"#]].assert_eq(&sql);
    }

    #[test]
    fn a_mark_bounds_numbers_without_a_scan() {
        let after = Cursor::integer(9, KeyValues::new());
        let key = vec!["rv".to_owned()];
        let settings = SourceSettings { key, ..settings(CursorMode::IntegerPk, "id") };
        let settings = SourceSettings { columns: Some(vec!["price".to_owned()]), ..settings };
        let key = KeyValues::from_iter([("rv", json!("0x00000000000007D1"))]);
        let state = SourceState::new();
        let lookup = RowLookup { key: &key, stored: None, after: Some(&after), state: &state };
        let plan = plan(&settings).unwrap();
        let (sql, params) = plan.lookup_statement(lookup, FilterForm::Conditions).unwrap();
        assert!(!sql.contains("MAX("), "{sql}");
        assert!(
            sql.contains("CASE WHEN t.[id] > CAST(@P6 AS int) THEN 1 ELSE 0 END AS [__after]"),
            "{sql}"
        );
        assert_eq!(params.first(), Some(&Param::Bytes(vec![0, 0, 0, 0, 0, 0, 7, 0xD1])));
    }

    #[test]
    fn a_key_has_the_type_of_its_column() {
        let plan = plan(&SourceSettings {
            columns: Some(vec!["price".to_owned()]),
            ..settings(CursorMode::RowVersion, "rv")
        });
        let plan = plan.unwrap();
        let state = SourceState::new();
        for (value, expected) in [
            (json!("seventeen"), "`seventeen` is not a whole number, which type `int` needs"),
            (json!(null), "it is null"),
        ] {
            let key = key(value);
            let lookup = RowLookup { key: &key, stored: None, after: None, state: &state };
            let error = plan.lookup_key(lookup).unwrap_err().to_string();
            assert_eq!(error, format!("invalid value for key column `ID`: {expected}"));
        }
    }

    #[test]
    fn a_tracked_row_is_compared_by_version_and_then_by_key() {
        let read = |at: Option<&str>, has_key, complete_to| TrackedRead {
            at: at.map(|at| at.parse().unwrap()),
            has_key,
            complete_to,
        };
        for (read, change, row, expected) in [
            (read(None, false, None), None, Some(false), true),
            (read(None, false, None), None, None, false),
            // While the rows of the table are read.
            (read(Some("snapshot@5"), true, None), None, Some(true), true),
            (read(Some("snapshot@5"), true, None), None, Some(false), false),
            (read(Some("snapshot@5"), true, None), Some((4, false)), Some(false), false),
            (read(Some("snapshot@5"), true, None), Some((6, false)), Some(false), true),
            (read(Some("snapshot@5"), false, None), None, Some(true), false),
            // Afterwards.
            (read(Some("7"), true, None), None, Some(true), false),
            (read(Some("7"), true, None), Some((6, true)), Some(true), false),
            (read(Some("7"), true, None), Some((7, true)), Some(true), true),
            (read(Some("7"), true, None), Some((7, false)), None, false),
            (read(Some("7"), false, None), Some((7, true)), Some(true), false),
            (read(Some("7"), true, None), Some((8, false)), Some(true), true),
            (read(Some("7"), true, Some(9)), Some((8, false)), Some(true), false),
            (read(Some("7"), true, Some(9)), Some((10, false)), None, true),
        ] {
            assert_eq!(read.is_after(change, row), expected, "{read:?} {change:?} {row:?}");
        }
    }

    #[test]
    fn a_session_is_shown_as_far_as_it_is_known() {
        let text = |text: &str| Value::Text(text.to_owned());
        let row = [Value::Int(61), text("etl"), Value::Null, text(""), Value::Int(340)];
        let found = session(&row).unwrap();
        assert_eq!((found.id, found.seconds), (61, 340));
        assert_eq!((found.login.as_deref(), found.host, found.program), (Some("etl"), None, None));
        assert_eq!(session(&row[1..]), None);
    }
}
