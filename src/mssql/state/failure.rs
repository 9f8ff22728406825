//! What a server error means for a read or a write of one of our tables.

use highwater_engine::error::ErrorKind;
use highwater_engine::store::StoreError;

use super::OwnTable;
use crate::connection::SqlError;

/// Whether the row to create already exists.
pub(crate) fn is_duplicate(error: &SqlError) -> bool {
    !error.is_unsent() && matches!(error.number(), Some(2627 | 2601))
}

/// Classifies a request that failed for a reason other than its precondition.
pub(crate) fn of(name: &str, table: &OwnTable, error: &SqlError) -> StoreError {
    let key = name.to_owned();
    let verdict = match (error.number(), error.is_unsent()) {
        (_, true) if error.kind == ErrorKind::Configuration => Verdict::Refused(None),
        // An answer was received, but not in the expected form.
        (None, false) if error.kind == ErrorKind::Configuration => {
            Verdict::Refused(Some(other_table(table)))
        }
        (_, true) => Verdict::NotWritten,
        (Some(number), false) => classify(number, error.kind, table),
        (None, false) => Verdict::Unknown,
    };
    let text = error.without_advice();
    match verdict {
        Verdict::NotWritten => StoreError::Unreachable { key, reason: text },
        Verdict::Unknown => StoreError::Unknown { key, reason: text },
        Verdict::Refused(None) => StoreError::Refused { key, reason: text },
        Verdict::Refused(Some(remedy)) => {
            StoreError::Refused { key, reason: format!("{text}: {remedy}") }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing has happened yet, so a retry is safe and may help.
    NotWritten,
    Unknown,
    /// With the fix, if the error does not state it.
    Refused(Option<String>),
}

/// Classifies a server error about a statement that was sent.
///
/// <https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors>
fn classify(number: u32, kind: ErrorKind, table: &OwnTable) -> Verdict {
    let (ddl, name) = (table.ddl(), &table.name);
    Verdict::Refused(Some(match number {
        // Deadlock, lock time-out, changed since its snapshot: the server has rolled the statement back, and
        // it was its own transaction. So the outcome is certain, unlike that of a lost answer.
        1205 | 1222 | 3960 => return Verdict::NotWritten,
        208 => format!(
            "the table `{name}` is not in this database, or the user has no permission on it: run \
             the output of {ddl}"
        ),
        229 | 230 => format!(
            "grant {} on `{name}` to the user of the connection string, as in the output of {ddl}",
            table.rights_text()
        ),
        334 => format!("the table `{name}` has a trigger: remove it"),
        3906 => "the database is read-only: connect to the primary replica".to_owned(),
        // A value that must not be NULL or does not fit, an impossible conversion, a column that cannot be
        // set, a constraint: our tables have none of these.
        257 | 271 | 273 | 515 | 529 | 547 | 2628 | 4405 | 4406 | 8152 => other_table(table),
        _ => match kind {
            ErrorKind::Configuration | ErrorKind::Data => other_table(table),
            // For example a failover or a full log: it may have occurred before or after the commit.
            ErrorKind::Transient | ErrorKind::Internal => return Verdict::Unknown,
        },
    }))
}

/// Returns the error of an answer with several rows for one key.
pub(crate) fn not_unique(name: &str, table: &OwnTable, rows: usize) -> StoreError {
    let reason = format!("{rows} rows: {}", other_table(table));
    StoreError::Refused { key: name.to_owned(), reason }
}

fn other_table(table: &OwnTable) -> String {
    format!("the table `{}` does not match the output of {}", table.name, table.ddl())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::{statement, table_name};
    use super::*;

    #[test]
    fn server_errors_are_classified_by_number() {
        let table = statement::own(table_name("ops.state").unwrap());
        let numbers = [
            (208, ErrorKind::Configuration),
            (207, ErrorKind::Configuration),
            (229, ErrorKind::Configuration),
            (257, ErrorKind::Transient),
            (334, ErrorKind::Transient),
            (547, ErrorKind::Transient),
            (1205, ErrorKind::Transient),
            (1222, ErrorKind::Transient),
            (2628, ErrorKind::Transient),
            (3906, ErrorKind::Transient),
            (8115, ErrorKind::Data),
            (9002, ErrorKind::Transient),
            (40197, ErrorKind::Transient),
        ];
        let outcomes = numbers.map(|(number, kind)| match classify(number, kind, &table) {
            Verdict::NotWritten => format!("{number} not written\n"),
            Verdict::Unknown => format!("{number} unknown\n"),
            Verdict::Refused(remedy) => format!("{number} refused: {}\n", remedy.unwrap()),
        });
        expect![[r#"
            208 refused: the table `ops.state` is not in this database, or the user has no permission on it: run the output of `highwater ddl state --table ops.state`
            207 refused: the table `ops.state` does not match the output of `highwater ddl state --table ops.state`
            229 refused: grant SELECT, INSERT, UPDATE and DELETE on `ops.state` to the user of the connection string, as in the output of `highwater ddl state --table ops.state`
            257 refused: the table `ops.state` does not match the output of `highwater ddl state --table ops.state`
            334 refused: the table `ops.state` has a trigger: remove it
            547 refused: the table `ops.state` does not match the output of `highwater ddl state --table ops.state`
            1205 not written
            1222 not written
            2628 refused: the table `ops.state` does not match the output of `highwater ddl state --table ops.state`
            3906 refused: the database is read-only: connect to the primary replica
            8115 refused: the table `ops.state` does not match the output of `highwater ddl state --table ops.state`
            9002 unknown
            40197 unknown
        "#]].assert_eq(&outcomes.concat());
    }

    #[test]
    fn requests_never_sent_differ_from_those_that_may_have_run() {
        let table = statement::own(table_name("ops.state").unwrap());
        let error = |kind| SqlError::new(kind, "reset");
        let outcomes = [
            of("orders.json", &table, &error(ErrorKind::Transient)),
            of("orders.json", &table, &error(ErrorKind::Transient).before_sending()),
            of("orders.json", &table, &error(ErrorKind::Configuration).before_sending()),
            of("orders.json", &table, &error(ErrorKind::Configuration)),
        ];
        let outcomes = outcomes.map(|error| format!("{error}\n")).concat();
        expect![[r#"
            `orders.json`: no response from the state store: reset
            `orders.json`: cannot reach the state store: reset
            `orders.json`: the state store rejected the request: reset
            `orders.json`: the state store rejected the request: reset: the table `ops.state` does not match the output of `highwater ddl state --table ops.state`
        "#]]
        .assert_eq(&outcomes);
    }
}
