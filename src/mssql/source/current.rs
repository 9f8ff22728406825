//! One row by its key, as it is now: for a row that was set aside and is to be delivered again.

use std::sync::Arc;

use highwater_engine::cursor::{Cursor, TrackedPhase, TrackedPosition};
use highwater_engine::error::ErrorKind;
use highwater_engine::source::{FetchError, Rows};
use highwater_engine::value::Value;

use crate::connection::Param;
use crate::filter::Filter;
use crate::ident::quote;

use super::form::KeyValue;
use super::limit::Cut;
use super::plan::{Answer, Plan, unexpected};
use super::query::{SAME_ALIAS, operation};
use super::tracking::position;
use super::zone::now;

/// Most rows that are read: a second one shows that the key is none.
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
        // The version before the row: one that changes in between comes as it is then, and once more
        // in its turn. The other way round, a target would take what comes in its turn for known.
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

    /// Returns the row, or none where no row has the key any more.
    pub(super) fn current(&self, mut answer: Answer, at: &Cursor) -> Result<Rows, FetchError> {
        // One that was cut behind its first row had another.
        if answer.rows.len() >= ROWS_MAX || matches!(answer.cut, Some(Cut::Full)) {
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
        Ok(Rows { columns, json: answer.json, rows: answer.rows, ..Rows::default() })
    }

    /// Returns the condition that a row has the key that the first parameters hold.
    fn key_is(&self, alias: &str, values: &[KeyValue]) -> String {
        let columns = self.key.iter().zip(values).zip(1..);
        let equal = columns.map(|((column, value), number)| {
            let value = column.cast(&format!("@P{number}"), value.base.as_ref());
            format!("{alias}.{} = {value}", quote(&column.name))
        });
        equal.collect::<Vec<_>>().join(" AND ")
    }
}

/// Returns the version behind which the changes lie that may have made the row what it is.
fn changes_since(at: TrackedPosition) -> i64 {
    match at.phase {
        TrackedPhase::Snapshot => at.version,
        TrackedPhase::Changes => at.version - 1,
    }
}

/// Returns the position of a row's last change, given one that it had.
fn placed(answer: &Answer, at: TrackedPosition) -> Result<TrackedPosition, FetchError> {
    let (current, changed) = match answer.head.as_slice() {
        [Value::Int(current), changed] => (*current, changed),
        head => return Err(unexpected(head, "its current version of changes")),
    };
    let Some(Value::Int(kept_since)) = answer.tail else {
        return Err(unexpected(&answer.head, "from which version on it keeps changes"));
    };
    let kept = changes_since(at) >= kept_since && at.version <= current;
    Ok(if let Value::Int(version) = changed {
        TrackedPosition { version: *version, phase: TrackedPhase::Changes }
    } else if kept {
        // It is as it was then.
        at
    } else {
        // When it changed last is not known any more: it is what the table has now.
        TrackedPosition { version: current, phase: TrackedPhase::Snapshot }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(current: i64, changed: Value, kept_since: i64, at: &str) -> String {
        let tail = Some(Value::Int(kept_since));
        let mut answer = Answer::new(ROWS_MAX);
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
    fn a_tracked_row_that_has_not_changed_keeps_its_position_while_that_is_known() {
        assert_eq!(place(9, Value::Null, 5, "snapshot@5"), "snapshot@5");
        assert_eq!(place(9, Value::Null, 6, "snapshot@5"), "snapshot@9", "cleaned up");
        assert_eq!(place(9, Value::Null, 5, "5"), "snapshot@9", "cleaned up");
        assert_eq!(place(4, Value::Null, 0, "snapshot@5"), "snapshot@4", "restored");
    }
}
