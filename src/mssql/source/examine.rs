//! The source's part of `highwater doctor`: each check is one statement, and one finding for its answer.
//!
//! # Why so
//!
//! A statement for each check, so that a right that is missing for one does not hide the others. Where
//! the server refuses, the check is unknown, with the right that would let it be known; what only a
//! real server knows is told apart. Nothing is written, no table is locked, and what could read many
//! rows is bounded by `TOP` and the command time-out.

mod clock;
mod columns;
mod elsewhere;
pub(super) mod index;
mod position;
mod rights;
mod server;
mod shape;

use highwater_engine::clock::Clock;
use highwater_engine::cursor::{Cursor, SourceFingerprint, SourceState};
use highwater_engine::doctor::Finding;
use highwater_engine::error::{ErrorKind, chain};
use highwater_engine::source::{FetchError, Source as _};
use highwater_engine::value::Value;

use crate::connection::{Param, SqlError};
use crate::ident::QualifiedName;

use super::choice::Choice;
use super::describe::Column;
use super::plan::Plan;
use super::{Mssql, values};

/// What the embedded development server calls itself.
const EMBEDDED: &str = "Highwater development server";
/// Errors of a server that does not know what it is asked.
const NOT_KNOWN: [u32; 6] = [102, 156, 195, 207, 208, 40515];
/// Errors of a login that may not ask.
/// <https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors>
const NOT_ALLOWED: [u32; 7] = [229, 230, 262, 297, 300, 371, 916];

/// Where the poller stands, as far as its state tells.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// What the state document is of; `None` where there is none.
    pub fingerprint: Option<&'a SourceFingerprint>,
    /// The checkpoint.
    pub after: Option<&'a Cursor>,
    /// What the source asked to be remembered.
    pub state: &'a SourceState,
}

/// An examination of one source.
struct Examination<'a> {
    source: &'a Mssql,
    standing: Standing<'a>,
    clock: &'a dyn Clock,
    embedded: bool,
    findings: Vec<Finding>,
}

/// What is known of the table once it was described and fits the settings.
struct Table {
    columns: Vec<Column>,
    choice: Choice,
    plan: Plan,
}

impl Mssql {
    /// Checks everything that the poller's source needs, and what would make it better. Reads only.
    ///
    /// Ends early where what follows has no sense: without a connection, a table, or settings that fit
    /// it. The source is open then if its mode could be chosen.
    pub async fn examine(&self, standing: Standing<'_>, clock: &dyn Clock) -> Vec<Finding> {
        let findings = Vec::new();
        let mut examination =
            Examination { source: self, standing, clock, embedded: false, findings };
        examination.run().await;
        examination.findings
    }
}

impl Examination<'_> {
    async fn run(&mut self) {
        if !self.connect().await {
            return;
        }
        self.edition().await;
        self.clocks().await;
        self.row_versioning().await;
        let Some(table) = self.table().await else { return };
        self.types(&table);
        self.nulls(&table).await;
        self.indexes(&table).await;
        self.rights(&table).await;
        self.round_trip(&table).await;
        self.transactions(&table).await;
        self.elsewhere(&table).await;
        self.mode_facts(&table).await;
        self.cursor_clock(&table).await;
        self.read(&table).await;
        self.plan_shape(&table).await;
    }

    /// Describes the table and fits the settings to it.
    async fn table(&mut self) -> Option<Table> {
        let check = "table";
        let source = self.source;
        let described = {
            let mut state = source.state.lock().await;
            source.describe(&mut state.connection).await
        };
        let columns = match described {
            Ok(columns) => columns,
            Err(error) => {
                self.refused(check, &error);
                return None;
            }
        };
        let found = format!("`{}` has {} columns", source.origin, columns.len());
        self.add(Finding::ok(check, found));
        if let Err(error) = source.open(self.standing.fingerprint).await {
            self.refused("mode", &error);
            return None;
        }
        let made = source
            .decided()
            .and_then(|decided| Ok((decided.choice.clone(), source.make_plan(&columns)?)));
        match made {
            Ok((choice, plan)) => {
                let by = choice.cursor.as_deref().map(|name| format!(" by `{name}`"));
                let found = format!("`{}`{}", choice.mode, by.unwrap_or_default());
                self.add(Finding::ok("mode", found));
                Some(Table { columns, choice, plan })
            }
            Err(error) => {
                // Each column that has no form is named, where the first one ends a tick. Whatever else is
                // wrong must not wait until they are mended.
                let told = self.unreadable(&columns);
                if !told.contains(&error.reason) {
                    self.refused("settings", &error);
                }
                None
            }
        }
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    async fn ask(&self, sql: &str, params: &[Param]) -> Result<Vec<Vec<Value>>, SqlError> {
        let mut state = self.source.state.lock().await;
        state.connection.query(sql, params, |row| Ok(values(&row))).await
    }

    /// Asks for one row; `right` is the statement that would allow the question.
    async fn ask_row(
        &mut self,
        check: &'static str,
        (sql, params): (&str, &[Param]),
        right: &str,
    ) -> Option<Vec<Value>> {
        match self.ask(sql, params).await {
            Ok(mut rows) => Some(rows.pop().unwrap_or_default()),
            Err(error) => {
                self.add(self.unanswered(check, &error, right));
                None
            }
        }
    }

    /// Returns the statement that grants a right on what is read.
    fn grant(&self, right: &str) -> String {
        format!("GRANT {right} ON {} TO {}", self.object(), self.source.user())
    }

    /// Returns what rights are granted on, as SQL text.
    fn object(&self) -> String {
        let table = self.source.origin.table();
        table.map_or("[what the query reads]".to_owned(), QualifiedName::quoted)
    }

    /// Returns the finding of a question that got no answer.
    fn unanswered(&self, check: &'static str, error: &SqlError, right: &str) -> Finding {
        unanswered(check, (error.number(), &chain(error)), right, self.embedded)
    }

    /// Adds the finding of something that would end each tick with the same error.
    fn refused(&mut self, check: &'static str, error: &FetchError) {
        self.add(Finding::error(check, chain(error), advice(error)));
    }
}

fn unanswered(
    check: &'static str,
    (number, text): (Option<u32>, &str),
    right: &str,
    embedded: bool,
) -> Finding {
    match number {
        Some(number) if embedded && NOT_KNOWN.contains(&number) => Finding::only_real(check),
        Some(number) if NOT_ALLOWED.contains(&number) => {
            let found = format!("the login may not ask (error {number})");
            Finding::unknown(
                check,
                found,
                format!("{right}; the poller itself needs no such right"),
            )
        }
        _ => {
            Finding::unknown(check, text, "run `highwater doctor` again; the poller may still work")
        }
    }
}

/// Returns what to do about an error of a tick; most say it themselves.
fn advice(error: &FetchError) -> &'static str {
    match error.kind {
        ErrorKind::Transient => {
            "nothing, if it passes: a tick tries again; else look for what holds the database up"
        }
        ErrorKind::Configuration => "mend the setting, right or object that the error names",
        ErrorKind::Data => "decide as the error says: no tick goes on before that",
        ErrorKind::Internal => "report it as a bug, with this text",
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::doctor::Level;

    use super::*;

    #[test]
    fn what_got_no_answer_is_unknown_and_names_the_right_or_the_server() {
        let right = "GRANT VIEW DATABASE STATE TO [u]";
        let missing = unanswered("x", (Some(262), "denied"), right, false);
        assert_eq!(missing.level, Level::Unknown);
        assert!(missing.fix.unwrap().starts_with(right));
        assert_eq!(unanswered("x", (Some(208), "no"), right, true), Finding::only_real("x"));
        // A real server that does not know the question says so in its own words.
        let old = unanswered("x", (Some(208), "Invalid object"), right, false);
        assert_eq!((old.level, old.found.as_str()), (Level::Unknown, "Invalid object"));
        let lost = unanswered("x", (None, "connection reset"), right, true);
        assert_eq!(lost.found, "connection reset");
    }
}
