//! The plan of a described table: its statements, and how to read their rows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_engine::cursor::{Cursor, CursorError, CursorMode, RowVersion, SourceState};
use highwater_engine::error::{ErrorKind, restart_in_source};
use highwater_engine::partition::Partition;
use highwater_engine::source::{
    Anchor, Columns, FetchError, FetchWindow, Lag, PositionRange, RetainedState, Row, Rows,
};
use highwater_engine::value::Value;

use crate::connection::Param;
use crate::filter::Filter;
use crate::ident::quote;
use crate::source::SourceClock;

use super::cells::CellForm;
use super::choice::{self, Choice};
use super::columns::{self, Role};
use super::describe::Column;
use super::identity::{self, Identity};
use super::limit::Guard;
use super::mark::{Marks, ServerReport};
use super::mask::Hashes;
use super::origin::Origin;
use super::query::{Bounds, KeyTypes, RowQuery};
use super::schema::{Schema, SchemaComparison};
use super::selection::Selection;
use super::{SourceSettings, decode, tracking, unique_key, zone};

/// What to read, and in which order.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadSpec<'a> {
    pub(super) origin: &'a Origin,
    pub(super) filter: Option<&'a Filter>,
    pub(super) choice: &'a Choice,
}

/// How to read one described table, and the layout of its rows.
#[derive(Debug)]
pub(super) struct Plan {
    /// Name of the poller.
    pub(super) poller: String,
    /// Name of the table, and its quoted form.
    pub(super) table: String,
    pub(super) quoted: String,
    pub(super) mode: CursorMode,
    /// The cursor column; `None` under change tracking.
    pub(super) cursor: Option<Column>,
    /// Key columns, and their names in checkpoints.
    pub(super) key: Vec<Column>,
    pub(super) key_names: Vec<String>,
    /// The delivered columns: the first ones of each row.
    pub(super) columns: Arc<Columns>,
    /// Index of each key value in a row.
    pub(super) key_at: Vec<usize>,
    /// How each column of a row is decoded.
    pub(super) forms: Vec<CellForm>,
    /// The hashes of masked columns.
    pub(super) hashes: Option<Hashes>,
    /// Cells per row: columns, then the sizes of the guarded ones, the position, whether it repeats the
    /// previous one if the server compares them, and the kind of change if rows can be deleted.
    pub(super) width: usize,
    pub(super) guard: Guard,
    /// All columns as the server described them, and the schema of those that are read.
    pub(super) described: Vec<Column>,
    pub(super) schema: Schema,
    /// The select list, without the cursor.
    pub(super) select: Vec<String>,
    pub(super) filter: Option<Filter>,
    /// The partition to read.
    pub(super) partition: Option<Partition>,
    /// The condition under which a row counts as deleted.
    pub(super) deleted: Option<String>,
    /// The operations to deliver, and the condition for that on a row of the table.
    pub(super) selection: Selection,
    pub(super) selected: Option<String>,
    pub(super) settle_ms: i32,
    /// The clock of a time column.
    pub(super) clock: SourceClock,
    /// The statement that describes the columns.
    describe: String,
    /// The columns of the identity query; empty without an identity.
    identify: Vec<String>,
    /// The statements of fetches, built so far.
    statements: Mutex<BTreeMap<Bounds, Arc<str>>>,
    /// The quoted names of all columns in statements.
    read: Vec<String>,
    /// Whether each row includes the server's comparison of its position with the previous one.
    pub(super) asks_same: bool,
    /// Whether the plan relies on a unique index; each fetch then checks that it still exists.
    relies_on_index: bool,
    /// Set by tests that show the purpose of the upper bound.
    unbounded: bool,
}

/// What a fetch has read so far.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of an answer")]
pub(super) struct FetchProgress {
    /// Whether the first result is the identity of the table.
    pub(super) is_identified: bool,
    pub(super) identity: Identity,
    /// Whether the index that the plan relies on is gone.
    pub(super) lost_index: bool,
    /// Values about the server itself.
    pub(super) head: Vec<Value>,
    pub(super) rows: Vec<Row>,
    /// The columns of the rows.
    pub(super) json: String,
    /// The values after the rows, under change tracking.
    pub(super) tail: Option<Value>,
    /// The last result: the columns.
    pub(super) described: Vec<Column>,
    /// Most rows to keep; one more only shows that more rows follow.
    pub(super) rows_max: usize,
    /// Whether this is a range with a given end, which is cut only if necessary.
    pub(super) is_range: bool,
    pub(super) more: bool,
    /// Whether reading stopped because a batch is full, so that the resulting error is not a real one.
    pub(super) is_full: bool,
    /// Why the page must not be delivered: two of its rows share a position.
    pub(super) repeated: Option<String>,
}

impl FetchProgress {
    /// Returns an empty answer.
    pub(super) fn new(rows_max: usize) -> Self {
        Self { rows_max, ..Self::default() }
    }

    /// Returns an empty answer for the rows of a window.
    pub(super) fn of(window: FetchWindow<'_>) -> Self {
        Self { is_range: window.upto.is_some(), ..Self::new(window.rows_max) }
    }

    /// Whether there are rows after those that were kept.
    pub(super) fn has_more(&self) -> bool {
        self.more || self.is_full
    }

    /// Rejects an answer with two rows at one position.
    pub(super) fn check_rows(&self) -> Result<(), FetchError> {
        self.repeated.as_ref().map_or(Ok(()), |reason| Err(unique_key::not_unique(reason)))
    }
}

impl Plan {
    /// Checks the settings against the table's columns, and builds the statements.
    pub(super) fn new(
        settings: &SourceSettings,
        read: ReadSpec<'_>,
        described: &[Column],
    ) -> Result<Self, FetchError> {
        let ReadSpec { origin, filter, choice } = read;
        let find = |role, name: &str| columns::find(settings, origin, described, role, name);
        let mode = choice.mode;
        let by = Role::Cursor(Some(mode));
        let cursor = choice.cursor.as_deref().map(|cursor| find(by, cursor)).transpose()?;
        if let Some(cursor) = &cursor {
            cursor.fits(mode).map_err(|needed| {
                configuration(format!(
                    "cursor column `{}` of `{origin}` is of type `{}`, but mode `{mode}` needs {needed}",
                    cursor.name, cursor.type_name
                ))
            })?;
        }
        let key =
            settings.key.iter().map(|name| find(Role::Key, name)).collect::<Result<Vec<_>, _>>()?;
        if let Some(column) = key.iter().find(|column| !column.can_be_key()) {
            return Err(configuration(format!(
                "key column `{}` of `{origin}` is of type `{}`, which cannot be part of a checkpoint: set \
                 another as `SOURCE__KEY`",
                column.name, column.type_name
            )));
        }
        if let Some(cursor) = cursor.as_ref().filter(|_| mode == CursorMode::TimestampPk) {
            zone::check(settings.clock, cursor).map_err(configuration)?;
        }
        if mode == CursorMode::ChangeTracking {
            choice::check_key(origin, described, &key).map_err(configuration)?;
        }
        let masked = columns::masked(settings, origin, choice, described)?;
        let delivered = columns::delivered(settings, origin, choice, described)?;
        let deleted = columns::deleted(settings, origin, mode, described)?;
        let selection = Selection::new(settings.operations.as_deref(), mode, deleted.is_some())
            .map_err(configuration)?;
        let names = Columns::new(delivered.iter().map(|column| column.name.as_str()));
        let mut read = delivered;
        let key_at: Vec<_> =
            key.iter().map(|column| columns::position(&mut read, column)).collect();
        let (guard, select) =
            Guard::new(settings, origin.to_string(), &read, &key_at).map_err(configuration)?;
        let forms = read.iter().map(CellForm::of_column).collect();
        let ordering: Vec<&Column> = cursor.iter().chain(&key).collect();
        let hashes = Hashes::of(&settings.mask, &masked, &read);
        let schema = Schema::of(&read, hashes.as_ref(), &ordering);
        let soft_delete = settings.soft_delete.as_deref();
        let soft_delete = soft_delete.map(|name| find(Role::SoftDelete, name)).transpose()?;
        let names_read = read.iter().chain(&cursor).chain(&soft_delete);
        let mut names_read: Vec<String> = names_read.map(|column| quote(&column.name)).collect();
        names_read.sort_unstable();
        names_read.dedup();
        Ok(Self {
            poller: settings.poller.clone(),
            table: origin.to_string(),
            described: described.to_vec(),
            schema,
            quoted: origin.sql(),
            mode,
            settle_ms: settle_ms(settings.settle, cursor.as_ref())?,
            clock: settings.clock,
            width: select.len() + 1 + usize::from(cursor.is_none() || deleted.is_some()),
            selected: selection.of_row(deleted.as_deref()),
            selection,
            deleted,
            cursor,
            key,
            key_names: settings.key.clone(),
            columns: Arc::new(names),
            key_at,
            forms,
            hashes,
            guard,
            select,
            filter: filter.cloned(),
            partition: settings.partition,
            describe: origin.describe(),
            identify: identity::select(origin, mode),
            statements: Mutex::default(),
            read: names_read,
            asks_same: false,
            relies_on_index: false,
            unbounded: false,
        })
    }

    /// Prepares for keys whose equality only the server can decide. A unique index rules out equal ones as
    /// long as it exists. Without one the server compares the rows of each page.
    pub(super) fn of_unique_key(mut self, is_unique: bool) -> Self {
        if self.cursor.is_none() || !self.key.iter().any(Column::equates_loosely) {
            return self;
        }
        if is_unique {
            self.identify.push(self.still_unique());
            self.relies_on_index = true;
        } else {
            self.asks_same = true;
            self.width += 1;
        }
        self
    }

    /// Returns the identity query; `None` without an identity.
    pub(super) fn identify(&self) -> Option<String> {
        (!self.identify.is_empty()).then(|| format!("SELECT {};", self.identify.join(", ")))
    }

    /// Whether the answer to [`Self::identify`] shows that the unique index is gone.
    pub(super) fn lost_index(&self, cells: &[Value]) -> bool {
        self.relies_on_index && cells.last() != Some(&Value::Int(1))
    }

    /// Removes the upper bound from the statements.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn without_bound(self) -> Self {
        Self { unbounded: true, ..self }
    }

    /// Whether there can be rows that are never read.
    pub(super) fn cursor_is_nullable(&self) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.nullable)
    }

    /// Returns the statement and parameters for a window.
    pub(super) fn statement(
        &self,
        window: FetchWindow<'_>,
    ) -> Result<(String, Vec<Param>), FetchError> {
        let Some(read) = self.untracked() else { return self.tracked_statement(window) };
        let read = RowQuery { bases: self.key_types(window)?, ..read };
        Ok((self.text(&read, Bounds::of(window)), self.params(window)?))
    }

    /// Returns the same, preceded by the identity query and followed by a description of the columns by which
    /// the rows were read. If the text depends on the bounds alone, it is built once per kind of window.
    pub(super) fn whole_statement(
        &self,
        window: FetchWindow<'_>,
    ) -> Result<(Arc<str>, Vec<Param>), FetchError> {
        let complete = |sql: &str| {
            let identify = self.identify().map(|identify| identify + "\n").unwrap_or_default();
            Arc::from([&identify, sql, "\n", &self.describe].concat())
        };
        let Some(read) = self.untracked() else {
            let (sql, params) = self.tracked_statement(window)?;
            return Ok((complete(&sql), params));
        };
        let (bounds, params) = (Bounds::of(window), self.params(window)?);
        if self.has_variants() {
            let read = RowQuery { bases: self.key_types(window)?, ..read };
            return Ok((complete(&self.text(&read, bounds)), params));
        }
        let mut known = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        let sql = known.entry(bounds).or_insert_with(|| complete(&self.text(&read, bounds)));
        Ok((Arc::clone(sql), params))
    }

    fn text(&self, read: &RowQuery<'_>, bounds: Bounds) -> String {
        let sql = read.text(bounds);
        if self.unbounded {
            return sql.replace(" < @hi", " IS NOT NULL").replace(" <= @hi", " IS NOT NULL");
        }
        sql
    }

    /// Returns the parameters for a window.
    fn params(&self, window: FetchWindow<'_>) -> Result<Vec<Param>, FetchError> {
        let mut params = vec![Self::rows_param(window)];
        if matches!(self.mode, CursorMode::TimestampPk | CursorMode::IntegerPk) {
            params.push(Param::Int(self.settle_ms));
        }
        if self.mode == CursorMode::IntegerPk {
            params.extend(Marks::of(window.state).params());
        }
        for cursor in [window.after, window.upto].into_iter().flatten() {
            self.bind(cursor, &mut params)?;
        }
        let values = self.filter.iter().flat_map(Filter::values);
        params.extend(values.map(|value| Param::Text(value.to_owned())));
        Ok(params)
    }

    /// Returns what to read; `None` under change tracking.
    pub(super) fn untracked(&self) -> Option<RowQuery<'_>> {
        Some(RowQuery {
            table: &self.quoted,
            mode: self.mode,
            cursor: self.cursor.as_ref()?,
            key: &self.key,
            select: &self.select,
            deleted: self.deleted.as_deref(),
            selected: self.selected.as_deref(),
            filter: self.filter.as_ref(),
            partition: self.partition,
            clock: self.clock,
            bases: KeyTypes::default(),
            same_of: self.asks_same.then_some(self.read.as_slice()),
        })
    }

    /// One row more than requested: it shows whether more rows follow.
    pub(super) fn rows_param(window: FetchWindow<'_>) -> Param {
        Param::BigInt(i64::try_from(window.rows_max).unwrap_or(i64::MAX).saturating_add(1))
    }

    /// Exactly as many rows as requested.
    pub(super) fn count_param(window: FetchWindow<'_>) -> Param {
        Param::BigInt(i64::try_from(window.rows_max).unwrap_or(i64::MAX))
    }

    pub(super) fn bind(&self, cursor: &Cursor, params: &mut Vec<Param>) -> Result<(), FetchError> {
        let data = |reason: String| FetchError::new(ErrorKind::Data, reason);
        if cursor.mode != self.mode {
            return Err(data(other_mode(cursor, self.mode, &self.poller)));
        }
        let wrong = |error: CursorError| data(format!("checkpoint: {error}"));
        params.push(match self.mode {
            CursorMode::RowVersion => {
                let version: RowVersion = cursor.value.parse().map_err(wrong)?;
                Param::BigInt(i64::from_be_bytes(version.0.to_be_bytes()))
            }
            CursorMode::TimestampPk => {
                let column = self.cursor.as_ref();
                let text = column.map(|column| column.cursor_text(&cursor.value));
                Param::Text(text.unwrap_or_default())
            }
            CursorMode::IntegerPk => Param::BigInt(cursor.integer_value().map_err(wrong)?),
            CursorMode::ChangeTracking => Param::Text(cursor.value.clone()),
        });
        // A position without a key is after all rows with its cursor.
        if !cursor.key.is_empty() {
            params.extend(self.key_values(cursor)?.into_iter().map(|value| value.param));
        }
        Ok(())
    }

    /// Returns how many rows of this size fit into a batch.
    pub(super) fn rows_that_fit(&self, answer: &FetchProgress) -> Option<usize> {
        self.guard.rows_that_fit(answer.rows.len(), answer.json.len())
    }

    /// Returns the rows, unless the server is not that of the checkpoint.
    pub(super) fn finish(
        &self,
        answer: FetchProgress,
        window: FetchWindow<'_>,
    ) -> Result<Rows, FetchError> {
        if self.cursor.is_none() {
            return self.tracked_rows(answer, window);
        }
        let remember = match self.mode {
            CursorMode::RowVersion => {
                check_version(&answer.head, window)?;
                None
            }
            CursorMode::IntegerPk => self.marks_after(&answer.head, window)?,
            CursorMode::TimestampPk | CursorMode::ChangeTracking => None,
        };
        answer.check_rows()?;
        // Nothing is concluded from an answer that was not read to its end.
        let remember = remember.filter(|_| !answer.is_full);
        let lag = lag(self.mode, &answer.head, &answer.rows, window.after);
        let more = answer.has_more();
        let (json, rows) = (answer.json, answer.rows);
        Ok(Rows {
            columns: Arc::clone(&self.columns),
            json,
            rows,
            more,
            lag,
            remember,
            ..Rows::default()
        })
    }

    /// Returns the state to store with a position that an operator sets, or confirms if there is `kept`
    /// state.
    pub(super) fn anchor(&self, identity: &Identity, kept: Option<&SourceState>) -> Anchor {
        let mut anchor = Anchor::default();
        if let Some(kept) = kept {
            anchor.changes = identity.changes_since(kept);
            if self.schema.known(kept) != SchemaComparison::Same {
                let changes = self.schema.changes_since(kept);
                anchor.changes.push(format!("columns changed ({changes})"));
            }
            if self.mode == CursorMode::ChangeTracking {
                anchor.state = tracking::anchored(kept);
            }
            // Marks are dropped: they depend on the clock of the server that they came from.
            let schema = self.schema.facts().into_iter();
            let schema = schema.filter_map(|(name, fact)| Some((name.to_owned(), fact?)));
            anchor.state.extend(schema);
        }
        let facts = identity.facts().into_iter();
        anchor.state.extend(facts.map(|(name, fact)| (name.to_owned(), fact)));
        anchor
    }

    /// Advances the marks, unless the table's numbers were reset.
    fn marks_after(
        &self,
        head: &[Value],
        window: FetchWindow<'_>,
    ) -> Result<Option<RetainedState>, FetchError> {
        let [hi, max, last, Value::Text(now)] = head else {
            return Err(unexpected(head, "the table's highest number"));
        };
        let number = |value: &Value| if let Value::Int(n) = value { Some(*n) } else { None };
        let at = window.after.and_then(|after| after.integer_value().ok());
        if let (Some(at), Some(last)) = (at, number(last))
            && at > last
        {
            return Err(FetchError::rows_lost(format!(
                "the checkpoint is at `{at}`, the last identity of `{}` is `{last}`: the table was \
                 emptied, reseeded or restored, and rows could be missed",
                self.table
            )));
        }
        // Nothing is recorded for a range of the past.
        if self.settle_ms == 0 || window.upto.is_some() {
            return Ok(None);
        }
        let seen = ServerReport { hi: number(hi), max: number(max), now };
        Ok(Marks::of(window.state).after(&seen))
    }
}

/// Checks that the database has not gone back to before the checkpoint.
fn check_version(head: &[Value], window: FetchWindow<'_>) -> Result<(), FetchError> {
    let Some(after) = window.after else { return Ok(()) };
    let [_, Value::Int(last)] = head else {
        return Err(unexpected(head, "its last rowversion"));
    };
    let last = RowVersion(u64::from_be_bytes(last.to_be_bytes()));
    match after.value.parse::<RowVersion>() {
        Ok(version) if version > last => Err(FetchError::rows_lost(format!(
            "the checkpoint is at rowversion `{version}`, the database's last one is \
             `{last}`: it was restored or replaced, and rows could be missed"
        ))),
        // An invalid cursor was rejected before the statement was sent.
        Ok(_) | Err(_) => Ok(()),
    }
}

pub(super) fn unexpected(head: &[Value], wanted: &str) -> FetchError {
    FetchError::new(
        ErrorKind::Internal,
        format!("the server returned {head:?} instead of {wanted}"),
    )
}

/// A table without columns does not exist.
pub(super) fn not_found(table: &Origin) -> FetchError {
    configuration(format!(
        "table `{table}` not found, or the login may not see it: check its name and the database, and grant \
         SELECT on it"
    ))
}

/// A checkpoint of another mode than the source.
pub(super) fn other_mode(cursor: &Cursor, mode: CursorMode, poller: &str) -> String {
    format!(
        "the checkpoint has mode `{}`, but the source has `{mode}`: restore the mode; or {}",
        cursor.mode,
        restart_in_source(poller)
    )
}

fn configuration(reason: impl Into<String>) -> FetchError {
    FetchError::new(ErrorKind::Configuration, reason)
}

fn settle_ms(settle: Duration, cursor: Option<&Column>) -> Result<i32, FetchError> {
    let millis = settle.as_millis() + u128::from(cursor.map_or(0, Column::rounding_ms));
    i32::try_from(millis).map_err(|error| {
        let reason = format!("the settle window is `{settle:?}`, but must be at most 24 days");
        FetchError { source: Some(error.into()), ..configuration(reason) }
    })
}

/// Returns how far behind a read was, according to the server's values before it.
fn lag(mode: CursorMode, head: &[Value], rows: &[Row], after: Option<&Cursor>) -> Lag {
    let number = |at: &str| at.parse::<RowVersion>().ok().map(|version| version.0);
    match (mode, head) {
        (CursorMode::RowVersion, [Value::Int(hi), Value::Int(last)]) => {
            let unsigned = |n: &i64| u64::from_be_bytes(n.to_be_bytes());
            // The bound is the oldest open writer's rowversion, or the next one to be allocated.
            let (newest, last) = (unsigned(hi).saturating_sub(1), unsigned(last));
            let at = after.and_then(|after| number(&after.value));
            let first = rows.first().and_then(|row| number_of(&row.position));
            let signed = |n: u64| i64::try_from(n).ok();
            Lag {
                positions: at.map(|at| newest.saturating_sub(at)),
                held_back: Some(last.saturating_sub(newest)),
                range: Some(range(first, signed(newest), signed(last))),
                ..Lag::default()
            }
        }
        (CursorMode::IntegerPk, [hi, max, ..]) => {
            let between = |to: Option<i64>, from: Option<i64>| {
                Some(u64::try_from(to?.saturating_sub(from?)).unwrap_or(0))
            };
            let at = after.and_then(|after| after.integer_value().ok());
            let (hi, max) = (number_of(hi), number_of(max));
            let first = rows.first().and_then(|row| number_of(&row.position));
            Lag {
                positions: between(hi, at),
                held_back: between(max, hi.max(at)),
                range: Some(range(first, hi, max)),
                ..Lag::default()
            }
        }
        (CursorMode::TimestampPk, [Value::Text(now)]) => {
            let first = rows.first().map(|row| &row.position);
            Lag { time: age(now, first), ..Lag::default() }
        }
        _ => Lag::default(),
    }
}

fn number_of(value: &Value) -> Option<i64> {
    if let Value::Int(number) = value { Some(*number) } else { None }
}

/// Returns the positions that a read saw. An empty table has none in use, so all are newer.
fn range(first: Option<i64>, readable: Option<i64>, newest: Option<i64>) -> PositionRange {
    let [readable, newest] = [readable, newest].map(|at| at.unwrap_or(i64::MIN));
    PositionRange { first, readable, newest }
}

/// Returns the age of a row; zero without a row.
fn age(now: &str, first: Option<&Value>) -> Option<Duration> {
    let Some(Value::Text(first)) = first else { return Some(Duration::ZERO) };
    let age = decode::millis(now)? - decode::millis(first)?;
    Some(Duration::from_millis(u64::try_from(age).unwrap_or(0)))
}

#[cfg(test)]
pub(super) mod tests;
