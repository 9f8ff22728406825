//! SQLite errors as SQL Server would report them.

use rusqlite::{Error, ErrorCode, ffi};

use super::functions::raised;
use crate::types::SqlError;

/// The SQL Server error for an SQLite error.
pub(crate) fn sql_error(error: &Error) -> SqlError {
    if let Error::UserFunctionError(text) = error
        && let Some(raised) = raised(&text.to_string())
    {
        return raised;
    }
    let Error::SqliteFailure(failure, text) = error else {
        return SqlError::new(50_000, 16, format!("Development server: {error}"));
    };
    let text = text.as_deref().unwrap_or_default();
    if let Some(raised) = raised(text) {
        return raised;
    }
    if text == "integer overflow" {
        let text = "Arithmetic overflow error converting expression to data type bigint.";
        return SqlError::new(8115, 16, text);
    }
    let object = text.rsplit(": ").next().unwrap_or(text);
    match (failure.code, failure.extended_code) {
        (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => {
            SqlError::new(1222, 16, "Lock request time out period exceeded.")
        }
        (_, ffi::SQLITE_CONSTRAINT_PRIMARYKEY) => SqlError::new(
            2627,
            14,
            format!("Violation of PRIMARY KEY constraint. Cannot insert duplicate key: {object}."),
        ),
        (_, ffi::SQLITE_CONSTRAINT_UNIQUE) => SqlError::new(
            2601,
            14,
            format!("Cannot insert duplicate key row in object with unique index: {object}."),
        ),
        (_, ffi::SQLITE_CONSTRAINT_NOTNULL) => {
            let column = object.rsplit('.').next().unwrap_or(object);
            let text = format!(
                "Cannot insert the value NULL into column '{column}'; column does not allow nulls."
            );
            SqlError::new(515, 16, text)
        }
        _ => SqlError::new(50_000, 16, format!("Development server: {error}")),
    }
}
