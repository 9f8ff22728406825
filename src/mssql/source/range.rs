//! Counts a range of the past, and finds where it can be divided into windows.
//!
//! # Design
//!
//! A range is divided by rows, not by the span of its cursor: numbers and times are dense where much was
//! written. The end of a window is its last row, found by one seek over as many index entries as the window
//! has rows. All windows together read the range once, and only their last rows are sent.

use highwater_engine::error::ErrorKind;
use highwater_engine::event::Operation;
use highwater_engine::source::{FetchError, FetchWindow, Rows};
use highwater_engine::value::Value;

use crate::connection::{Param, SqlError};
use crate::filter::Filter;

use super::cells::CellForm;
use super::plan::{Plan, unexpected};
use super::query::{Bounds, RowQuery};
use super::{Mssql, State, values};

impl Mssql {
    pub(super) async fn count_rows(
        &self,
        state: &mut State,
        window: FetchWindow<'_>,
    ) -> Result<u64, FetchError> {
        let (plan, connection) = self.plan(state).await?;
        let tracked = plan.untracked().is_none();
        let (sql, params) =
            if tracked { plan.tracked_count(window)? } else { plan.past_count(window)? };
        let counted = connection.query(&sql, &params, |row| Ok(values(&row))).await?;
        if tracked {
            let (sql, params) = plan.present_statement();
            let present = connection.query(&sql, &params, |row| Ok(values(&row))).await?;
            plan.check_kept(window, present.first().map(Vec::as_slice).unwrap_or_default())?;
        }
        match counted.first().map(Vec::as_slice) {
            Some([Value::Int(rows)]) => Ok(u64::try_from(*rows).unwrap_or(0)),
            other => Err(unexpected(other.unwrap_or_default(), "the number of rows")),
        }
    }

    pub(super) async fn last_row(
        &self,
        state: &mut State,
        window: FetchWindow<'_>,
    ) -> Result<Rows, FetchError> {
        let (plan, connection) = self.plan(state).await?;
        let (sql, params) = plan.past_last(window)?;
        let mut rows = connection.query(&sql, &params, |row| Ok(values(&row))).await?;
        plan.check_encoding(connection)?;
        let mut last = Rows::default();
        if let Some(cells) = rows.pop() {
            let (position, key) = plan.place(cells)?;
            last.push(Operation::Upsert, position, key, &[]);
        }
        Ok(last)
    }
}

impl Plan {
    /// Returns the statement and parameters that count the rows of a window, up to its limit.
    fn past_count(&self, window: FetchWindow<'_>) -> Result<(String, Vec<Param>), FetchError> {
        let (conditions, _order, params) = self.past(window)?;
        // A range of all rows has no conditions.
        let where_ = if conditions.is_empty() { conditions } else { format!("WHERE {conditions}") };
        let sql = format!(
            "SELECT COUNT_BIG(*) AS [__rows] FROM (SELECT TOP (@P1) 1 AS [__one] FROM {} AS t\n\
             {where_}) AS w;",
            self.quoted
        );
        Ok((sql, params))
    }

    /// Returns the statement and parameters that read the last row of a window: its key, then its cursor.
    fn past_last(&self, window: FetchWindow<'_>) -> Result<(String, Vec<Param>), FetchError> {
        let (conditions, order, params) = self.past(window)?;
        let Some(read) = self.untracked() else { return Err(cannot_divide()) };
        let key: Vec<&str> =
            self.key_at.iter().filter_map(|at| self.select.get(*at)).map(String::as_str).collect();
        // In their transport form, values need not sort like the columns.
        let carried =
            key.iter().zip(0..).map(|(value, at)| format!("{} AS [__k{at}]", bare(value)));
        let sorted = order.iter().zip(0..).map(|(column, at)| format!("{column} AS [__o{at}]"));
        let inner: Vec<String> = carried.chain(sorted).collect();
        let outer: Vec<String> = (0..key.len()).map(|at| format!("w.[__k{at}]")).collect();
        let back: Vec<String> = (0..order.len()).map(|at| format!("w.[__o{at}] DESC")).collect();
        let sql = format!(
            "SELECT TOP (1) {}, w.[__cursor] FROM (SELECT TOP (@P1) {}, {} AS [__cursor] FROM {} AS t\n\
             WHERE {conditions}\nORDER BY {}) AS w ORDER BY {};",
            outer.join(", "),
            inner.join(", "),
            read.leading_value(),
            self.quoted,
            order.join(", "),
            back.join(", "),
        );
        Ok((sql, params))
    }

    /// Returns conditions, order and parameters of a window; `@P1` is the number of rows.
    fn past(
        &self,
        window: FetchWindow<'_>,
    ) -> Result<(String, Vec<String>, Vec<Param>), FetchError> {
        let Some(read) = self.untracked() else { return Err(cannot_divide()) };
        let read = RowQuery { bases: self.key_types(window)?, ..read };
        let (conditions, order) = read.past(Bounds::of(window), 2);
        let mut params = vec![Self::count_param(window)];
        for cursor in [window.after, window.upto].into_iter().flatten() {
            self.bind(cursor, &mut params)?;
        }
        let values = self.filter.iter().flat_map(Filter::values);
        params.extend(values.map(|value| Param::Text(value.to_owned())));
        Ok((conditions, order, params))
    }

    /// Returns position and key of a row, of which nothing else is read.
    pub(super) fn place(&self, mut cells: Vec<Value>) -> Result<(Value, Vec<Value>), SqlError> {
        let position = cells.pop().unwrap_or(Value::Null);
        for (cell, at) in cells.iter_mut().zip(&self.key_at) {
            if let Some(form) = self.forms.get(*at) {
                if let (true, Value::Bytes(bytes)) = (*form != CellForm::Plain, &*cell) {
                    self.check_utf16(*at, bytes)?;
                }
                *cell = form.decoded(std::mem::replace(cell, Value::Null));
            }
        }
        Ok((position, cells))
    }
}

/// Returns an item of a select list without its alias.
pub(super) fn bare(item: &str) -> &str {
    match item.rfind(" AS [") {
        Some(at) if !item.starts_with("t.") => item.get(..at).unwrap_or(item),
        Some(_) | None => item,
    }
}

fn cannot_divide() -> FetchError {
    let reason = "changes cannot be divided into windows: use one window";
    FetchError::new(ErrorKind::Configuration, reason)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use highwater_engine::cursor::CursorMode;

    use super::*;
    use crate::source::describe::Column;
    use crate::source::query::{BoundKind, KeyTypes};

    #[test]
    fn an_item_is_reduced_to_its_expression() {
        for (item, expression) in [
            ("t.[id]", "t.[id]"),
            ("CAST(t.[a] AS varbinary(max)) AS [a]", "CAST(t.[a] AS varbinary(max))"),
            ("t.[a AS [b]", "t.[a AS [b]"),
        ] {
            assert_eq!(bare(item), expression);
        }
    }

    fn column(name: &str, type_name: &str) -> Column {
        let plain = crate::source::describe::tests::column(type_name, 8, 10, 0);
        Column { name: name.to_owned(), ..plain }
    }

    #[test]
    fn a_range_ends_at_a_position_or_after_all_rows_with_its_cursor() {
        let cursor = column("rv", "timestamp");
        let key = [column("id", "int")];
        let read = RowQuery {
            table: "[dbo].[T]",
            mode: CursorMode::RowVersion,
            cursor: &cursor,
            key: &key,
            select: &[],
            deleted: None,
            selected: None,
            filter: None,
            partition: None,
            clock: crate::source::SourceClock::Utc,
            bases: KeyTypes::default(),
            same_of: None,
        };
        let past = |after, upto| {
            let (conditions, order) = read.past(Bounds { after, upto }, 2);
            assert_eq!(order, ["t.[rv]", "t.[id]"]);
            conditions
        };
        expect![[r#"
            t.[rv] > CAST(CAST(@P2 AS BIGINT) AS BINARY(8))
            AND t.[rv] <= CAST(CAST(@P3 AS BIGINT) AS BINARY(8))"#]]
        .assert_eq(&past(BoundKind::Cursor, BoundKind::Cursor));
        expect![[r#"
            t.[rv] <= CAST(CAST(@P2 AS BIGINT) AS BINARY(8)) AND (t.[rv] < CAST(CAST(@P2 AS BIGINT) AS BINARY(8)) OR t.[id] <= CAST(@P3 AS int))"#]]
        .assert_eq(&past(BoundKind::Nothing, BoundKind::Row));
        let text = read.text(Bounds { after: BoundKind::Nothing, upto: BoundKind::Cursor });
        assert!(
            text.contains("WHERE t.[rv] <= CAST(CAST(@P2 AS BIGINT) AS BINARY(8))\nAND"),
            "{text}"
        );
    }
}
