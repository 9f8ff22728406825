//! The current end of a source: for a poller that starts with new changes.

use highwater_engine::cursor::{Cursor, CursorError, CursorMode, KeyValues, RowVersion};
use highwater_engine::error::ErrorKind;
use highwater_engine::source::FetchError;
use highwater_engine::value::Value;

use crate::connection::Param;
use crate::ident::{literal, quote};
use crate::source::SourceClock;

use super::describe::Column;
use super::plan::{Plan, unexpected};
use super::zone::now;

impl Plan {
    /// Returns the statement that queries the end.
    pub(super) fn present_statement(&self) -> (String, Vec<Param>) {
        let Some(cursor) = &self.cursor else {
            let object = literal(&self.quoted);
            let sql = format!(
                "SELECT CHANGE_TRACKING_CURRENT_VERSION() AS [__cur], \
                 CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID({object})) AS [__min];"
            );
            return (sql, Vec::new());
        };
        match self.mode {
            CursorMode::RowVersion | CursorMode::ChangeTracking => {
                ("SELECT CAST(MIN_ACTIVE_ROWVERSION() AS BIGINT) AS [__hi];".to_owned(), Vec::new())
            }
            CursorMode::TimestampPk => {
                (time_statement(cursor, self.clock), vec![self.behind_param(cursor)])
            }
            CursorMode::IntegerPk => {
                let column = quote(&cursor.name);
                let sql = format!(
                    "SELECT CAST(MAX(t.{column}) AS BIGINT) AS [__max] FROM {} AS t;",
                    self.quoted
                );
                (sql, Vec::new())
            }
        }
    }

    /// Anything stamped from now on has to be after it, even if the type rounds down.
    fn behind_param(&self, cursor: &Column) -> Param {
        Param::Int(self.settle_ms.saturating_add(cursor.grain_ms()))
    }

    /// Reads the answer; `None` if the source has never had a row.
    pub(super) fn present(&self, answer: &[Value]) -> Result<Option<Cursor>, FetchError> {
        let key = KeyValues::new();
        let data = |error: CursorError| FetchError::new(ErrorKind::Internal, error.to_string());
        match (self.mode, answer) {
            (CursorMode::ChangeTracking, answer) => self.tracked_present(answer).map(Some),
            (CursorMode::RowVersion, [Value::Int(hi)]) => {
                // All rows below belong to transactions that have ended.
                let hi = u64::from_be_bytes(hi.to_be_bytes());
                Ok(Some(Cursor::row_version(RowVersion(hi.saturating_sub(1)), key)))
            }
            (CursorMode::TimestampPk, [Value::Text(text)]) => {
                Cursor::timestamp(text, key).map(Some).map_err(data)
            }
            (CursorMode::IntegerPk, [Value::Int(max)]) => Ok(Some(Cursor::integer(*max, key))),
            (CursorMode::IntegerPk, [Value::Null]) => Ok(None),
            (_, answer) => Err(unexpected(answer, "its current end")),
        }
    }
}

fn time_statement(cursor: &Column, clock: SourceClock) -> String {
    let style = if cursor.type_name == "datetimeoffset" { 127 } else { 126 };
    format!(
        "SELECT CONVERT(NVARCHAR(33), CAST(DATEADD(MILLISECOND, -@P1, {}) AS {}), \
         {style}) AS [__at];",
        now(clock),
        cursor.declared()
    )
}
