//! The text of a fetch. Pure: names come quoted, values are parameters.
//!
//! # Design
//!
//! The upper bound is read in its own statement, before the snapshot of the read exists. Inside the `SELECT`
//! it might be evaluated later, and rows that commit in between would be lost. The server's own values (its
//! last rowversion, its clock) are a separate first result, since they are needed most when there are no
//! rows. The lower bound leads with a plain `>=`, which makes it a single seek in an index over cursor and
//! key.

use highwater_engine::cursor::{Cursor, CursorMode};
use highwater_engine::partition::Partition;
use highwater_engine::source::FetchWindow;

use crate::filter::Filter;
use crate::ident::{literal, quote};
use crate::source::SourceClock;

use super::describe::Column;
use super::partition;
use super::variant::ValueType;
use super::zone::now;

/// Alias of the column with the leading part of a row's position.
pub(super) const CURSOR_ALIAS: &str = "__cursor";

/// Alias of the column with the server's comparison of a row's position with the previous one.
pub(super) const SAME_ALIAS: &str = "__same";

/// What to read, apart from the window.
#[derive(Debug)]
pub(super) struct RowQuery<'a> {
    /// Quoted name of the table or view.
    pub(super) table: &'a str,
    pub(super) mode: CursorMode,
    pub(super) cursor: &'a Column,
    pub(super) key: &'a [Column],
    /// The select list, without the cursor.
    pub(super) select: &'a [String],
    /// The condition under which a row counts as deleted.
    pub(super) deleted: Option<&'a str>,
    /// The condition that a row's operation is delivered.
    pub(super) selected: Option<&'a str>,
    pub(super) filter: Option<&'a Filter>,
    /// The partition to read.
    pub(super) partition: Option<Partition>,
    /// The clock of a time column.
    pub(super) clock: SourceClock,
    /// The types of the bounds' key values.
    pub(super) bases: KeyTypes,
    /// The quoted names of all columns that are read, if the server compares each row's position with the
    /// previous one.
    pub(super) same_of: Option<&'a [String]>,
}

/// Types of key values in bounds, in the order of the key; empty if values have the types of their columns.
#[derive(Debug, Default)]
pub(super) struct KeyTypes {
    pub(super) after: Vec<Option<ValueType>>,
    pub(super) upto: Vec<Option<ValueType>>,
}

/// Which bounds a window has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bounds {
    pub(super) after: BoundKind,
    pub(super) upto: BoundKind,
}

impl Bounds {
    pub(super) fn of(window: FetchWindow<'_>) -> Self {
        let reach = |at: Option<&Cursor>| match at {
            None => BoundKind::Nothing,
            Some(cursor) if cursor.key.is_empty() => BoundKind::Cursor,
            Some(_) => BoundKind::Row,
        };
        Self { after: reach(window.after), upto: reach(window.upto) }
    }
}

/// The kind of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BoundKind {
    /// No bound.
    Nothing,
    /// A row: cursor and key.
    Row,
    /// A cursor alone: after all rows with it.
    Cursor,
}

impl RowQuery<'_> {
    /// Returns the batch of statements for windows with these bounds.
    ///
    /// `@P1` is the number of rows; in modes with a settle window, `@P2` is the window in milliseconds; in
    /// integer mode `@P3` to `@P5` are the marks. The cursor and the key values of each bound follow, then
    /// the values of the filter.
    pub(super) fn text(&self, bounds: Bounds) -> String {
        let cursor = format!("t.{}", quote(&self.cursor.name));
        let mut params = Params(match self.mode {
            CursorMode::RowVersion | CursorMode::ChangeTracking => 1,
            CursorMode::TimestampPk => 2,
            CursorMode::IntegerPk => 5,
        });
        let mut conditions = Vec::new();
        conditions.extend(self.lower(bounds.after, &mut params));
        conditions.extend(self.upper(bounds.upto, &mut params));
        match self.mode {
            // Rows that are read again had settled when they were first read, whatever the window was then.
            CursorMode::TimestampPk | CursorMode::IntegerPk
                if bounds.upto != BoundKind::Nothing => {}
            CursorMode::RowVersion | CursorMode::TimestampPk => {
                conditions.push(format!("{cursor} < @hi"));
            }
            CursorMode::IntegerPk => conditions.push(format!("{cursor} <= @hi")),
            CursorMode::ChangeTracking => {}
        }
        conditions.extend(self.of_partition());
        conditions.extend(self.selected.map(str::to_owned));
        let first = params.0 + 1;
        conditions.extend(self.filter.map(|filter| filter.sql(|at| format!("@P{}", first + at))));
        // A column may appear only once in the order.
        let key = self.key.iter().filter(|column| *column != self.cursor);
        let key = key.map(|column| format!("t.{}", quote(&column.name)));
        let sorted: Vec<String> = std::iter::once(cursor.clone()).chain(key).collect();
        let (conditions, order) = (conditions.join("\nAND "), sorted.join(", "));
        let rows = format!("{} AS t\nWHERE {conditions}\nORDER BY {order}", self.table);
        // Rows are compared within the page, so that the server need not sort all of them.
        let (top, same, rows) = match self.same_of {
            None => ("TOP (@P1) ", String::new(), rows),
            Some(columns) => {
                let columns: Vec<_> = columns.iter().map(|name| format!("t.{name}")).collect();
                let page = format!("SELECT TOP (@P1) {}\nFROM {rows}", columns.join(", "));
                let rows = format!("({page}) AS t\nORDER BY {order}");
                ("", same_as_before(&sorted), rows)
            }
        };
        format!(
            "{}\nSELECT {top}{}, {} AS [{CURSOR_ALIAS}]{same}{}\nFROM {rows};",
            self.head(),
            self.select.join(", "),
            self.cursor_value(&cursor),
            self.deleted.map(|deleted| format!(", {}", operation(deleted))).unwrap_or_default(),
        )
    }

    /// Returns the condition that rows belong to the partition.
    fn of_partition(&self) -> Option<String> {
        self.partition.map(|partition| partition::condition(partition, self.key, "t"))
    }

    /// Returns the condition that rows are at or before a position.
    fn upper(&self, reach: BoundKind, params: &mut Params) -> Option<String> {
        match reach {
            BoundKind::Nothing => None,
            BoundKind::Row => {
                Some(bound(&self.position(params, &self.bases.upto), ["<", "<=", "<="]))
            }
            BoundKind::Cursor => {
                let cursor = quote(&self.cursor.name);
                Some(format!("t.{cursor} <= {}", self.leading(params)))
            }
        }
    }

    /// Returns the condition that rows are after a position.
    fn lower(&self, reach: BoundKind, params: &mut Params) -> Option<String> {
        match reach {
            BoundKind::Nothing => None,
            BoundKind::Row => {
                Some(bound(&self.position(params, &self.bases.after), [">", ">", ">="]))
            }
            BoundKind::Cursor => {
                let cursor = quote(&self.cursor.name);
                Some(format!("t.{cursor} > {}", self.leading(params)))
            }
        }
    }

    /// Returns the condition that a row is after a position, whose cursor and key values are the parameters from
    /// `first` on; `None` for the beginning.
    pub(super) fn is_after(&self, after: BoundKind, first: usize) -> Option<String> {
        self.lower(after, &mut Params(first - 1))
    }

    /// Returns the conditions of a range of the past, and the columns that order its rows.
    ///
    /// `first` is the number of the first parameter: the cursor and the key values of each bound, then the
    /// values of the filter.
    pub(super) fn past(&self, bounds: Bounds, first: usize) -> (String, Vec<String>) {
        let mut params = Params(first - 1);
        let mut conditions: Vec<String> =
            self.lower(bounds.after, &mut params).into_iter().collect();
        conditions.extend(self.upper(bounds.upto, &mut params));
        // A bound excludes NULL by itself.
        if conditions.is_empty() && self.cursor.nullable {
            conditions.push(format!("t.{} IS NOT NULL", quote(&self.cursor.name)));
        }
        conditions.extend(self.of_partition());
        conditions.extend(self.selected.map(str::to_owned));
        let first = params.0 + 1;
        conditions.extend(self.filter.map(|filter| filter.sql(|at| format!("@P{}", first + at))));
        let key = self.key.iter().filter(|column| *column != self.cursor);
        let order = std::iter::once(self.cursor).chain(key);
        let order = order.map(|column| format!("t.{}", quote(&column.name)));
        (conditions.join("\nAND "), order.collect())
    }

    /// Returns the statements before the read: the upper bound, and the server's own values.
    fn head(&self) -> String {
        match self.mode {
            CursorMode::RowVersion => "DECLARE @hi BINARY(8) = MIN_ACTIVE_ROWVERSION();\n\
                 SELECT CAST(@hi AS BIGINT) AS [__hi], CAST(@@DBTS AS BIGINT) AS [__dbts];"
                .to_owned(),
            CursorMode::TimestampPk => format!(
                "DECLARE @hi {} = DATEADD(MILLISECOND, -@P2, {now});\n\
                 SELECT CONVERT(NVARCHAR(33), {now}, 126) AS [__now];",
                self.cursor.declared(),
                now = now(self.clock),
            ),
            CursorMode::IntegerPk => self.integer_head(),
            CursorMode::ChangeTracking => String::new(),
        }
    }

    /// The highest number is read before the clock: all lower numbers were allocated earlier.
    fn integer_head(&self) -> String {
        let last = if self.cursor.identity {
            format!("CAST(IDENT_CURRENT({}) AS BIGINT)", literal(self.table))
        } else {
            "CAST(NULL AS BIGINT)".to_owned()
        };
        format!(
            "DECLARE @max BIGINT = (SELECT MAX(t.{}) FROM {} AS t);\n\
             DECLARE @now DATETIME2(7) = SYSUTCDATETIME();\n\
             DECLARE @hi BIGINT = CASE WHEN @P2 = 0 THEN @max\n\
             WHEN CAST(NULLIF(@P5, N'') AS DATETIME2(7)) <= DATEADD(MILLISECOND, -@P2, @now) \
             THEN CAST(NULLIF(@P4, N'') AS BIGINT)\n\
             ELSE CAST(NULLIF(@P3, N'') AS BIGINT) END;\n\
             SELECT @hi AS [__hi], @max AS [__max], {last} AS [__last], \
             CONVERT(NVARCHAR(33), @now, 126) AS [__now];",
            quote(&self.cursor.name),
            self.table,
        )
    }

    /// Returns the leading part of a row's position, in its transport form.
    pub(super) fn leading_value(&self) -> String {
        self.cursor_value(&format!("t.{}", quote(&self.cursor.name)))
    }

    /// Returns the cursor in its transport form: a number, or the server's own text.
    fn cursor_value(&self, cursor: &str) -> String {
        match self.mode {
            CursorMode::RowVersion | CursorMode::IntegerPk => format!("CAST({cursor} AS BIGINT)"),
            CursorMode::TimestampPk => {
                let style = if self.cursor.type_name == "datetimeoffset" { 127 } else { 126 };
                format!("CONVERT(NVARCHAR(33), {cursor}, {style})")
            }
            CursorMode::ChangeTracking => "NULL".to_owned(),
        }
    }

    /// Returns the columns of a position, each with its value: the cursor, then the key.
    fn position(&self, params: &mut Params, bases: &[Option<ValueType>]) -> Vec<(String, String)> {
        let cursor = (format!("t.{}", quote(&self.cursor.name)), self.leading(params));
        let bases = bases.iter().map(Option::as_ref).chain(std::iter::repeat(None));
        let key = self.key.iter().zip(bases).map(|(column, base)| {
            (format!("t.{}", quote(&column.name)), column.cast(&params.next(), base))
        });
        std::iter::once(cursor).chain(key).collect()
    }

    fn leading(&self, params: &mut Params) -> String {
        let cursor = params.next();
        if self.mode == CursorMode::RowVersion {
            return format!("CAST(CAST({cursor} AS BIGINT) AS BINARY(8))");
        }
        format!("CAST({cursor} AS {})", self.cursor.declared())
    }
}

/// Returns the column that shows whether the previous row has the same values in `order`, according to their
/// collations and types.
fn same_as_before(order: &[String]) -> String {
    let over = format!("OVER (ORDER BY {})", order.join(", "));
    let equal = order.iter().map(|column| format!("LAG({column}) {over} = {column}"));
    let equal = equal.collect::<Vec<_>>().join(" AND ");
    format!(", CASE WHEN {equal} THEN 1 ELSE 0 END AS [{SAME_ALIAS}]")
}

/// Returns the column that distinguishes deleted rows.
pub(super) fn operation(deleted: &str) -> String {
    format!("CASE WHEN {deleted} THEN N'D' ELSE N'U' END AS [__op]")
}

/// Returns the condition that a row is on one side of a position, given as columns and their values, the
/// leading one first.
///
/// `operators` are those for all columns but the last, for the last, and for the leading comparison, which
/// the index seeks by.
pub(super) fn bound(columns: &[(String, String)], [strict, last, leading]: [&str; 3]) -> String {
    let mut ways = Vec::new();
    let mut equal = String::new();
    for (index, (column, value)) in columns.iter().enumerate() {
        let operator = if index + 1 == columns.len() { last } else { strict };
        ways.push(match equal.as_str() {
            "" => format!("{column} {operator} {value}"),
            equal => format!("({equal}{column} {operator} {value})"),
        });
        // The leading comparison already implies equality of the first column.
        if index > 0 {
            equal = format!("{equal}{column} = {value} AND ");
        }
    }
    match columns {
        [] | [_] => ways.concat(),
        [(column, value), ..] => {
            format!("{column} {leading} {value} AND ({})", ways.join(" OR "))
        }
    }
}

/// Numbers parameters in the order of binding.
struct Params(usize);

impl Params {
    fn next(&mut self) -> String {
        self.0 += 1;
        format!("@P{}", self.0)
    }
}

#[cfg(test)]
#[expect(clippy::needless_raw_string_hashes, reason = "as expect-test writes them")]
mod tests;
