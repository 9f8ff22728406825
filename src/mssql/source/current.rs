//! One row by its key, in its current state: for redelivering a quarantined row.

use std::sync::Arc;

use highwater_engine::cursor::{Cursor, TrackedPhase, TrackedPosition};
use highwater_engine::error::ErrorKind;
use highwater_engine::source::{FetchError, Rows};
use highwater_engine::value::Value;

use crate::connection::Param;
use crate::filter::Filter;
use crate::ident::quote;

use super::form::KeyValue;
use super::plan::{FetchProgress, Plan, unexpected};
use super::query::{SAME_ALIAS, operation};
use super::tracking::position;
use super::zone::now;

/// Most rows to read: a second one shows that the key is not unique.
pub(super) const ROWS_MAX: usize = 2;

impl Plan {
    /// Returns the statement and parameters that read the row with the key of `at`.
    pub(super) fn current_statement(
        &self,
        at: &Cursor,
    ) -> Result<(String, Vec<Param>), FetchError> {
        let values = self.key_values(at)?;
        let key_is = |alias: &str| self.key_is(alias, &values);
        let mut params: Vec<Param> = values.iter().map(|value| value.param.clone()).collect();
        let first = params.len() + 1;
        let values = self.filter.iter().flat_map(Filter::values);
        params.extend(values.map(|value| Param::Text(value.to_owned())));
        let filter =
            self.filter.as_ref().map(|filter| filter.sql(|at| format!("@P{}", first + at)));
        // Rows of all operations: if the live row were left out, a stored delete of it would seem to be current.
        let filter = filter.map(|filter| format!("\nAND {filter}")).unwrap_or_default();
        let rows = format!("FROM {} AS t\nWHERE {}{filter};", self.quoted, key_is("t"));
        let select = self.select.join(", ");
        let deleted = self.deleted.as_deref().map(operation);
        if let Some(read) = self.untracked() {
            let leading = read.leading_value();
            let same =
                if self.asks_same { format!(", 0 AS [{SAME_ALIAS}]") } else { String::new() };
            let op = deleted.map(|deleted| format!(", {deleted}")).unwrap_or_default();
            let sql = format!(
                "SELECT CONVERT(NVARCHAR(33), {}, 126) AS [__now];\n\
                 SELECT TOP ({ROWS_MAX}) {select}, {leading} AS [__cursor]{same}{op}\n{rows}",
                now(self.clock)
            );
            return Ok((sql, params));
        }
        params.push(Param::BigInt(changes_since(position(at, &self.poller)?)));
        let op = deleted.unwrap_or_else(|| "N'U' AS [__op]".to_owned());
        // Take the version before reading the row. A row that changes in between is then delivered in its new
        // state, and again in its turn. In the opposite order, a target would treat the delivery in its turn
        // as a duplicate.
        let sql = format!(
            "DECLARE @cur BIGINT = CHANGE_TRACKING_CURRENT_VERSION();\n\
             DECLARE @at BIGINT = (SELECT MAX(c.SYS_CHANGE_VERSION) \
             FROM CHANGETABLE(CHANGES {}, @P{}) AS c WHERE c.SYS_CHANGE_VERSION <= @cur AND {});\n\
             SELECT @cur AS [__cur], @at AS [__at];\n\
             SELECT TOP ({ROWS_MAX}) {select}, CAST(NULL AS BIGINT) AS [__version], {op}\n{rows}\n{}",
            self.quoted,
            params.len(),
            key_is("c"),
            self.kept_since_text(),
        );
        Ok((sql, params))
    }

    /// Returns the row, or none if no row has the key any more or its operation is not delivered.
    pub(super) fn current(
        &self,
        mut answer: FetchProgress,
        at: &Cursor,
    ) -> Result<Rows, FetchError> {
        // If the answer was cut after its first row, there was another row.
        if answer.rows.len() >= ROWS_MAX || answer.is_full {
            let key = at.key.to_json();
            let reason = format!("several rows of `{}` have the key {key}", self.table);
            return Err(FetchError::new(ErrorKind::Configuration, reason));
        }
        answer.check_rows()?;
        if self.cursor.is_none() {
            let place = Value::Text(placed(&answer, position(at, &self.poller)?)?.to_string());
            for row in &mut answer.rows {
                row.position = place.clone();
            }
        }
        let columns = Arc::clone(&self.columns);
        if answer.rows.iter().any(|row| !self.selection.is_possible(row.op)) {
            return Ok(Rows { columns, is_unselected: true, ..Rows::default() });
        }
        Ok(Rows { columns, json: answer.json, rows: answer.rows, ..Rows::default() })
    }

    /// Returns the condition that a row has the key in the first parameters.
    pub(super) fn key_is(&self, alias: &str, values: &[KeyValue]) -> String {
        let columns = self.key.iter().zip(values).zip(1..);
        let equal = columns.map(|((column, value), number)| {
            let value = column.cast(&format!("@P{number}"), value.base.as_ref());
            format!("{alias}.{} = {value}", quote(&column.name))
        });
        equal.collect::<Vec<_>>().join(" AND ")
    }
}

/// Returns the version after which the changes that led to the row's state were made.
fn changes_since(at: TrackedPosition) -> i64 {
    match at.phase {
        TrackedPhase::Snapshot => at.version,
        TrackedPhase::Changes => at.version - 1,
    }
}

/// Returns the position of a row's last change, given an earlier position of it.
fn placed(answer: &FetchProgress, at: TrackedPosition) -> Result<TrackedPosition, FetchError> {
    let (current, changed) = match answer.head.as_slice() {
        [Value::Int(current), changed] => (*current, changed),
        head => return Err(unexpected(head, "its current change version")),
    };
    let Some(Value::Int(kept_since)) = answer.tail else {
        return Err(unexpected(&answer.head, "the oldest change version it keeps"));
    };
    let kept = changes_since(at) >= kept_since && at.version <= current;
    Ok(if let Value::Int(version) = changed {
        TrackedPosition { version: *version, phase: TrackedPhase::Changes }
    } else if kept {
        // The row is unchanged since then.
        at
    } else {
        // The time of its last change is no longer known: treat it as part of a snapshot of the table.
        TrackedPosition { version: current, phase: TrackedPhase::Snapshot }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(current: i64, changed: Value, kept_since: i64, at: &str) -> String {
        let tail = Some(Value::Int(kept_since));
        let mut answer = FetchProgress::new(ROWS_MAX);
        answer.head = vec![Value::Int(current), changed];
        answer.tail = tail;
        placed(&answer, at.parse().unwrap()).unwrap().to_string()
    }

    #[test]
    fn a_tracked_row_has_the_position_of_its_last_change() {
        assert_eq!(place(9, Value::Int(7), 0, "5"), "7");
        assert_eq!(place(9, Value::Int(7), 0, "snapshot@5"), "7");
        assert_eq!(place(9, Value::Int(5), 0, "5"), "5");
    }

    #[test]
    fn an_unchanged_tracked_row_keeps_its_position_while_that_is_known() {
        assert_eq!(place(9, Value::Null, 5, "snapshot@5"), "snapshot@5");
        assert_eq!(place(9, Value::Null, 6, "snapshot@5"), "snapshot@9", "cleaned up");
        assert_eq!(place(9, Value::Null, 5, "5"), "snapshot@9", "cleaned up");
        assert_eq!(place(4, Value::Null, 0, "snapshot@5"), "snapshot@4", "restored");
    }
}
