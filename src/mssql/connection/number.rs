//! Classifies the server's error numbers: what to do, and whether a retry within moments may help.
//!
//! Numbers: <https://learn.microsoft.com/azure/azure-sql/database/troubleshoot-common-errors-issues>
//! and <https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors>.

use std::fmt::Write as _;

use highwater_engine::error::ErrorKind::{self, Configuration, Data, Transient};

/// How a failed read may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRetry {
    /// Almost immediately, on the same connection: the statement lost to other work.
    SameConnection,
    /// A little later, on a new connection: the server is busy, or the database is moving.
    NewConnection,
}

/// The meaning of some error numbers.
pub(super) struct ErrorClass {
    numbers: &'static [u32],
    pub(super) kind: ErrorKind,
    pub(super) read_retry: Option<ReadRetry>,
    meaning: &'static str,
    advice: &'static str,
}

impl ErrorClass {
    const fn new(numbers: &'static [u32], kind: ErrorKind, meaning: &'static str) -> Self {
        Self { numbers, kind, read_retry: None, meaning, advice: "" }
    }

    const fn read_retry(self, read_retry: ReadRetry) -> Self {
        Self { read_retry: Some(read_retry), ..self }
    }

    const fn advice(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }

    /// Returns meaning and advice, to append to a number.
    pub(super) fn words(&self) -> String {
        let colon = if self.advice.is_empty() { "" } else { ": " };
        format!(" ({}){colon}{}", self.meaning, self.advice)
    }
}

const CLASSES: &[ErrorClass] = &[
    ErrorClass::new(&[1205], Transient, "deadlock").read_retry(ReadRetry::SameConnection),
    ErrorClass::new(&[1222], Transient, "waited too long for a lock").read_retry(ReadRetry::SameConnection),
    ErrorClass::new(&[3960, 3961], Transient, "changed since its snapshot").read_retry(ReadRetry::SameConnection),
    ErrorClass::new(
        &[41301, 41302, 41305, 41325, 41839],
        Transient,
        "conflict in a memory-optimised table",
    )
    .read_retry(ReadRetry::SameConnection),
    ErrorClass::new(
        &[701, 802, 1204, 8628, 8645, 8651],
        Transient,
        "the server is short of memory or of locks",
    )
    .read_retry(ReadRetry::NewConnection),
    ErrorClass::new(
        &[40143, 40197, 40540, 40613, 42108, 42109, 4221],
        Transient,
        "the database is moving or waking up",
    )
    .read_retry(ReadRetry::NewConnection),
    ErrorClass::new(
        &[40501, 10928, 10929, 10936, 49918, 49919, 49920],
        Transient,
        "the service is too busy",
    )
    .read_retry(ReadRetry::NewConnection),
    ErrorClass::new(
        &[921, 922, 927, 952, 976, 983, 6005, 17142, 18401],
        Transient,
        "the server or the database is starting, stopping or failing over",
    )
    .read_retry(ReadRetry::NewConnection),
    ErrorClass::new(&[4060], Configuration, "database not opened").read_retry(ReadRetry::NewConnection).advice(
        "check the database's name, and that the login has a user in it; after a failover it resolves by \
         itself",
    ),
    ErrorClass::new(&[911, 916, 4064], Configuration, "database not opened")
        .advice("check the database's name, and that the login has a user in it"),
    ErrorClass::new(&[18452, 18456, 18487, 18488], Configuration, "login refused")
        .advice("check user and password, or the identity's database user"),
    ErrorClass::new(&[40615, 40914], Configuration, "blocked by the server's firewall")
        .advice("allow this app's address"),
    ErrorClass::new(&[208, 4902], Configuration, "object not found")
        .advice("check the table's name, and the filter"),
    ErrorClass::new(&[207, 4104], Configuration, "column not found")
        .advice("check the column settings, and the filter"),
    ErrorClass::new(&[448], Data, "unknown collation")
        .advice("restore the collation of the key, or reset the poller to its beginning"),
    ErrorClass::new(&[229, 230, 262, 297, 300, 371], Configuration, "permission missing")
        .advice("grant SELECT on the object to this user"),
    ErrorClass::new(
        &[102, 105, 137, 156, 195, 319, 2715, 4145, 8622],
        Configuration,
        "statement rejected",
    )
    .advice("check the filter"),
    ErrorClass::new(
        &[206, 220, 232, 241, 242, 244, 245, 248, 8114, 8115, 8134, 8152, 8169],
        Data,
        "value not convertible",
    )
    .advice("check the filter, and that the state belongs to this table"),
];

/// Unknown errors are left to the next tick, where a retry does no harm.
const UNKNOWN: (ErrorKind, Option<ReadRetry>) = (Transient, None);

/// Returns the class of a server error number: who has to act, how to retry, and its meaning.
pub(super) fn class(number: u32) -> (ErrorKind, Option<ReadRetry>, String) {
    match CLASSES.iter().find(|class| class.numbers.contains(&number)) {
        Some(class) => (class.kind, class.read_retry, class.words()),
        None => (UNKNOWN.0, UNKNOWN.1, String::new()),
    }
}

/// Returns the known error numbers as a Markdown table, for `docs/reference/connections.md`.
pub fn errors_table() -> String {
    let mut table =
        "| error | meaning | within the tick | action |\n|---|---|---|---|\n".to_owned();
    for ErrorClass { numbers, kind, read_retry, meaning, advice } in CLASSES {
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let numbers = numbers.join(", ");
        let retry = match read_retry {
            Some(ReadRetry::SameConnection) => "retried soon, on the same connection",
            Some(ReadRetry::NewConnection) => "retried later, on a new connection",
            None => "not retried",
        };
        let action = match kind {
            Transient => "none: later ticks retry",
            Configuration | Data | ErrorKind::Internal => *advice,
        };
        // Writing to a string cannot fail.
        writeln!(table, "| {numbers} | {meaning} | {retry} | {action} |").unwrap_or_default();
    }
    table + "| any other | | not retried | later ticks retry |\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_are_classified_by_action_and_retry() {
        let (soon, later) = (Some(ReadRetry::SameConnection), Some(ReadRetry::NewConnection));
        for (number, kind, retry) in [
            (1205, Transient, soon),
            (1222, Transient, soon),
            (3960, Transient, soon),
            (40613, Transient, later),
            (40197, Transient, later),
            (40501, Transient, later),
            (49919, Transient, later),
            (4060, Configuration, later),
            (18456, Configuration, None),
            (208, Configuration, None),
            (207, Configuration, None),
            (229, Configuration, None),
            (241, Data, None),
            (50000, Transient, None),
        ] {
            let (found_kind, found_retry, _) = class(number);
            assert_eq!((found_kind, found_retry), (kind, retry), "{number}");
        }
    }

    #[test]
    fn no_number_has_two_meanings_and_each_mistake_has_advice() {
        let mut seen = BTreeSet::new();
        for class in CLASSES {
            for number in class.numbers {
                assert!(seen.insert(number), "{number}");
            }
            assert_eq!(class.kind == Transient, class.advice.is_empty(), "{}", class.meaning);
        }
    }
}
