//! The server's error numbers: who has to act, and whether trying again within moments may help.
//!
//! Numbers: <https://learn.microsoft.com/azure/azure-sql/database/troubleshoot-common-errors-issues>
//! and <https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors>.

use std::fmt::Write as _;

use highwater_engine::error::ErrorKind::{self, Configuration, Data, Transient};

/// How a read that failed may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Almost at once, on the same connection: it gave way to the work of others.
    Soon,
    /// A little later, on a new connection: the server is busy, or the database is moving.
    Anew,
}

/// What some numbers mean.
pub(super) struct Class {
    numbers: &'static [u32],
    pub(super) kind: ErrorKind,
    pub(super) again: Option<Again>,
    meaning: &'static str,
    advice: &'static str,
}

impl Class {
    const fn new(numbers: &'static [u32], kind: ErrorKind, meaning: &'static str) -> Self {
        Self { numbers, kind, again: None, meaning, advice: "" }
    }

    const fn again(self, again: Again) -> Self {
        Self { again: Some(again), ..self }
    }

    const fn advice(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }

    /// Returns meaning and advice, as they follow a number.
    pub(super) fn words(&self) -> String {
        let colon = if self.advice.is_empty() { "" } else { ": " };
        format!(" ({}){colon}{}", self.meaning, self.advice)
    }
}

const CLASSES: &[Class] = &[
    Class::new(&[1205], Transient, "deadlock").again(Again::Soon),
    Class::new(&[1222], Transient, "waited too long for a lock").again(Again::Soon),
    Class::new(&[3960, 3961], Transient, "changed since its snapshot").again(Again::Soon),
    Class::new(
        &[41301, 41302, 41305, 41325, 41839],
        Transient,
        "conflict in a memory-optimised table",
    )
    .again(Again::Soon),
    Class::new(
        &[701, 802, 1204, 8628, 8645, 8651],
        Transient,
        "the server is short of memory or of locks",
    )
    .again(Again::Anew),
    Class::new(
        &[40143, 40197, 40540, 40613, 42108, 42109, 4221],
        Transient,
        "the database is moving or waking up",
    )
    .again(Again::Anew),
    Class::new(
        &[40501, 10928, 10929, 10936, 49918, 49919, 49920],
        Transient,
        "the service is too busy",
    )
    .again(Again::Anew),
    Class::new(
        &[921, 922, 927, 952, 976, 983, 6005, 17142, 18401],
        Transient,
        "the server or the database is starting, stopping or failing over",
    )
    .again(Again::Anew),
    Class::new(&[4060], Configuration, "database not opened").again(Again::Anew).advice(
        "check the database's name, and that the login has a user in it; after a failover it heals by \
         itself",
    ),
    Class::new(&[911, 916, 4064], Configuration, "database not opened")
        .advice("check the database's name, and that the login has a user in it"),
    Class::new(&[18452, 18456, 18487, 18488], Configuration, "login refused")
        .advice("check user and password, or the identity's database user"),
    Class::new(&[40615, 40914], Configuration, "blocked by the server's firewall")
        .advice("allow this app's address"),
    Class::new(&[208, 4902], Configuration, "object not found")
        .advice("check the table's name, and the filter"),
    Class::new(&[207, 4104], Configuration, "column not found")
        .advice("check the column settings, and the filter"),
    Class::new(&[448], Data, "collation not known")
        .advice("restore the collation of the key, or reset the poller to its beginning"),
    Class::new(&[229, 230, 262, 297, 300, 371], Configuration, "right missing")
        .advice("grant SELECT on the object to this user"),
    Class::new(
        &[102, 105, 137, 156, 195, 319, 2715, 4145, 8622],
        Configuration,
        "statement refused",
    )
    .advice("check the filter"),
    Class::new(
        &[206, 220, 232, 241, 242, 244, 245, 248, 8114, 8115, 8134, 8152, 8169],
        Data,
        "value not convertible",
    )
    .advice("check the filter, and that the state belongs to this table"),
];

/// What is not known is left to the next tick: trying again then does no harm.
const UNKNOWN: (ErrorKind, Option<Again>) = (Transient, None);

/// Returns who has to act on a server's error number, how it may be tried again, and what it means.
pub(super) fn class(number: u32) -> (ErrorKind, Option<Again>, String) {
    match CLASSES.iter().find(|class| class.numbers.contains(&number)) {
        Some(class) => (class.kind, class.again, class.words()),
        None => (UNKNOWN.0, UNKNOWN.1, String::new()),
    }
}

/// Returns the known error numbers as a table in Markdown: what `docs/reference/connections.md` shows.
pub fn errors_table() -> String {
    let mut table =
        "| error | meaning | within the tick | who acts |\n|---|---|---|---|\n".to_owned();
    for Class { numbers, kind, again, meaning, advice } in CLASSES {
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let numbers = numbers.join(", ");
        let again = match again {
            Some(Again::Soon) => "tried again soon, on the same connection",
            Some(Again::Anew) => "tried again later, on a new connection",
            None => "not tried again",
        };
        let who = match kind {
            Transient => "nobody: later ticks go on trying",
            Configuration | Data | ErrorKind::Internal => *advice,
        };
        // Writing to a string cannot fail.
        writeln!(table, "| {numbers} | {meaning} | {again} | {who} |").unwrap_or_default();
    }
    table + "| any other | | not tried again | later ticks go on trying |\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_say_who_has_to_act_and_what_is_tried_again() {
        let (soon, anew) = (Some(Again::Soon), Some(Again::Anew));
        for (number, kind, again) in [
            (1205, Transient, soon),
            (1222, Transient, soon),
            (3960, Transient, soon),
            (40613, Transient, anew),
            (40197, Transient, anew),
            (40501, Transient, anew),
            (49919, Transient, anew),
            (4060, Configuration, anew),
            (18456, Configuration, None),
            (208, Configuration, None),
            (207, Configuration, None),
            (229, Configuration, None),
            (241, Data, None),
            (50000, Transient, None),
        ] {
            let (found_kind, found_again, _) = class(number);
            assert_eq!((found_kind, found_again), (kind, again), "{number}");
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
