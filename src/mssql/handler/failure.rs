//! What a SQL error means for the batch. Pure.

use highwater_engine::error::ErrorKind;
use highwater_engine::handler::HandlerError;

use crate::connection::SqlError;

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Connecting, starting a transaction, committing.
    Connection,
    /// Reading the target's columns, or writing to it.
    Target,
    Fence,
    Ledger,
}

/// Names to show in instructions to the operator.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) target: String,
    /// The fence table, and the command that prints its DDL.
    pub(super) fence: (String, String),
    /// The same for the ledger.
    pub(super) ledger: (String, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Retry,
    Busy,
    /// These rows fail permanently.
    Rows,
    Missing,
    Right,
    /// The table, or how columns are mapped to it.
    Table,
    ReadOnly,
    Settings,
}

/// Converts a SQL error into the outcome of the batch.
pub(super) fn of(step: Step, error: &SqlError, names: &Names) -> HandlerError {
    let meaning = match error.number() {
        Some(number) if !error.is_unsent() => meaning(step, number, error.kind),
        Some(_) | None => match error.kind {
            ErrorKind::Configuration => Meaning::Settings,
            ErrorKind::Transient | ErrorKind::Data | ErrorKind::Internal => Meaning::Retry,
        },
    };
    let text = error.without_advice();
    let table = match step {
        Step::Connection | Step::Target => &names.target,
        Step::Fence => &names.fence.0,
        Step::Ledger => &names.ledger.0,
    };
    let remedy = |otherwise: &str| match step {
        Step::Connection | Step::Target => otherwise.to_owned(),
        Step::Fence => format!("run the output of `{}`", names.fence.1),
        Step::Ledger => format!("run the output of `{}`", names.ledger.1),
    };
    HandlerError::Misconfigured(match meaning {
        Meaning::Retry => return HandlerError::Retryable(text),
        Meaning::Busy => return HandlerError::Throttled { reason: text, retry_after: None },
        Meaning::Rows => {
            return HandlerError::Rejected(format!("`{table}` rejected the rows: {text}"));
        }
        Meaning::Missing => {
            let remedy = remedy("check `HANDLER__TABLE` and the database of the connection");
            format!(
                "{text}: the table `{table}` is not in this database, or the user has no permission \
                     on it: {remedy}"
            )
        }
        Meaning::Right => {
            let remedy = remedy("grant SELECT, INSERT, UPDATE and DELETE on it");
            format!("{text}: the user of the connection lacks a permission on `{table}`: {remedy}")
        }
        Meaning::Table => {
            let remedy = remedy("check `HANDLER__COLUMNS` against the table");
            format!("{text}: the table `{table}` cannot be written with these settings: {remedy}")
        }
        Meaning::ReadOnly => {
            format!("{text}: the database is read-only: connect to the primary replica")
        }
        Meaning::Settings => text,
    })
}

/// Classifies a server error about a statement that was sent.
///
/// <https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors>
fn meaning(step: Step, number: u32, kind: ErrorKind) -> Meaning {
    match (number, step) {
        (40501 | 10928 | 10929 | 10936 | 49918..=49920, _) => Meaning::Busy,
        (208 | 4902, _) => Meaning::Missing,
        (229 | 230 | 262 | 297 | 300 | 371, _) => Meaning::Right,
        (3906, _) => Meaning::ReadOnly,
        // Two processes inserted the missing fence row at the same time; a retry finds it.
        (2601 | 2627, Step::Fence | Step::Ledger | Step::Connection) => Meaning::Retry,
        // A duplicate key, NULL in a column that is not nullable, a violated constraint, a value that is too
        // long or too large, a failed conversion, invalid XML or an invalid path, a row that does not fit its
        // page.
        (
            220
            | 232
            | 241
            | 242
            | 244
            | 245
            | 248
            | 511
            | 515
            | 547
            | 1946
            | 2601
            | 2627
            | 2628
            | 6522
            | 8114
            | 8115
            | 8152
            | 8169
            | 8170
            | 9400..=9499,
            Step::Target,
        ) => Meaning::Rows,
        // A column with a different name or type, a column that the server sets, a view over several tables,
        // a trigger on one of our tables.
        (
            206 | 207 | 213 | 257 | 271 | 272 | 273 | 334 | 447 | 448 | 468 | 515 | 529 | 544 | 547
            | 2628 | 4405 | 4406 | 8102 | 8152,
            _,
        ) => Meaning::Table,
        (_, _) => match kind {
            ErrorKind::Data if step == Step::Target => Meaning::Rows,
            ErrorKind::Configuration | ErrorKind::Data => Meaning::Table,
            ErrorKind::Transient | ErrorKind::Internal => Meaning::Retry,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_errors_are_classified_by_number_and_step() {
        use ErrorKind::{Configuration, Data, Transient};
        for (step, number, kind, expected) in [
            (Step::Target, 1205, Transient, Meaning::Retry),
            (Step::Target, 1222, Transient, Meaning::Retry),
            (Step::Target, 50_000, Transient, Meaning::Retry),
            (Step::Target, 40501, Transient, Meaning::Busy),
            (Step::Target, 547, Transient, Meaning::Rows),
            (Step::Target, 2627, Transient, Meaning::Rows),
            (Step::Target, 2628, Transient, Meaning::Rows),
            (Step::Target, 8115, Data, Meaning::Rows),
            (Step::Target, 9420, Transient, Meaning::Rows),
            (Step::Target, 207, Configuration, Meaning::Table),
            (Step::Target, 544, Transient, Meaning::Table),
            (Step::Target, 208, Configuration, Meaning::Missing),
            (Step::Fence, 2627, Transient, Meaning::Retry),
            (Step::Fence, 208, Configuration, Meaning::Missing),
            (Step::Fence, 334, Transient, Meaning::Table),
            (Step::Ledger, 229, Configuration, Meaning::Right),
            (Step::Ledger, 2628, Transient, Meaning::Table),
            (Step::Connection, 3902, Transient, Meaning::Retry),
            (Step::Connection, 3906, Transient, Meaning::ReadOnly),
        ] {
            assert_eq!(meaning(step, number, kind), expected, "{step:?} {number}");
        }
    }

    #[test]
    fn errors_without_a_number_are_retried_unless_the_settings_are_wrong() {
        let names = Names {
            target: "dbo.t".to_owned(),
            fence: ("dbo.f".to_owned(), "highwater ddl fence".to_owned()),
            ledger: ("dbo.l".to_owned(), "highwater ddl ledger".to_owned()),
        };
        let outcome = |kind| of(Step::Target, &SqlError::new(kind, "x"), &names);
        assert!(matches!(outcome(ErrorKind::Transient), HandlerError::Retryable(_)));
        assert!(matches!(outcome(ErrorKind::Internal), HandlerError::Retryable(_)));
        assert!(matches!(outcome(ErrorKind::Configuration), HandlerError::Misconfigured(_)));
    }
}
