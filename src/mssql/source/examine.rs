//! The source's checks in `highwater doctor`: each check is one statement and one finding.
//!
//! # Design
//!
//! Each check has its own statement, so that a missing permission for one does not hide the others. If the
//! server rejects a statement, the check is unknown, and its finding names the permission that is missing.
//! Checks that need a real server are reported as such. Nothing is written and no table is locked. Statements
//! that could read many rows are limited by `TOP` and the command time-out.

mod clock;
mod columns;
pub(super) mod index;
mod position;
mod rights;
mod server;
mod shape;
mod uncovered_data;

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

/// Name that the embedded development server reports.
const EMBEDDED: &str = "Highwater development server";
/// Errors of a server that does not support a query.
const NOT_KNOWN: [u32; 6] = [102, 156, 195, 207, 208, 40515];
/// Errors of a login without the permission for a query.
/// <https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-events-and-errors>
const NOT_ALLOWED: [u32; 7] = [229, 230, 262, 297, 300, 371, 916];

/// Where the poller is, according to its state.
#[derive(Clone, Copy, Debug)]
pub struct StoredPosition<'a> {
    /// The source of the state document; `None` if there is none.
    pub fingerprint: Option<&'a SourceFingerprint>,
    /// The checkpoint.
    pub after: Option<&'a Cursor>,
    /// State that the source asked to retain.
    pub state: &'a SourceState,
}

/// An examination of one source.
struct Examination<'a> {
    source: &'a Mssql,
    standing: StoredPosition<'a>,
    clock: &'a dyn Clock,
    embedded: bool,
    findings: Vec<Finding>,
}

/// Facts about the table once it is described and matches the settings.
struct Table {
    columns: Vec<Column>,
    choice: Choice,
    plan: Plan,
}

impl Mssql {
    /// Checks everything that the poller's source needs, and what would improve it. Read-only.
    ///
    /// Stops early if later checks would be meaningless: without a connection, a table, or settings that
    /// match it. Afterwards the source is open if its mode could be chosen.
    pub async fn examine(&self, standing: StoredPosition<'_>, clock: &dyn Clock) -> Vec<Finding> {
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
        self.uncovered_data(&table).await;
        self.mode_facts(&table).await;
        self.cursor_clock(&table).await;
        self.read(&table).await;
        self.plan_shape(&table).await;
    }

    /// Describes the table and matches the settings to it.
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
        let planned = source
            .decided()
            .and_then(|decided| Ok((decided.choice.clone(), source.make_plan(&columns)?)));
        match planned {
            Ok((choice, plan)) => {
                let by = choice.cursor.as_deref().map(|name| format!(" by `{name}`"));
                let found = format!("`{}`{}", choice.mode, by.unwrap_or_default());
                self.add(Finding::ok("mode", found));
                Some(Table { columns, choice, plan })
            }
            Err(error) => {
                // Report every column without a JSON form, where a tick stops at the first one. Any other
                // error is reported at the same time, not only after those are fixed.
                let reported = self.unreadable(&columns);
                if !reported.contains(&error.reason) {
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

    /// Queries one row; `right` is the statement that would grant the permission.
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

    /// Returns the statement that grants a permission on the source's table.
    fn grant(&self, right: &str) -> String {
        format!("GRANT {right} ON {} TO {}", self.object(), self.source.user())
    }

    /// Returns the object of grants, as SQL text.
    fn object(&self) -> String {
        let table = self.source.origin.table();
        table.map_or("[the query's tables]".to_owned(), QualifiedName::quoted)
    }

    /// Returns the finding of a query that failed.
    fn unanswered(&self, check: &'static str, error: &SqlError, right: &str) -> Finding {
        unanswered(check, (error.number(), &chain(error)), right, self.embedded)
    }

    /// Adds the finding of an error that every tick would fail with.
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
        Some(number) if embedded && NOT_KNOWN.contains(&number) => {
            Finding::needs_real_server(check)
        }
        Some(number) if NOT_ALLOWED.contains(&number) => {
            let found = format!("the login lacks the permission for this check (error {number})");
            Finding::unknown(
                check,
                found,
                format!("{right}; the poller itself does not need this permission"),
            )
        }
        _ => {
            Finding::unknown(check, text, "run `highwater doctor` again; the poller may still work")
        }
    }
}

/// Returns the fix for an error of a tick; most errors contain it themselves.
fn advice(error: &FetchError) -> &'static str {
    match error.kind {
        ErrorKind::Transient => {
            "nothing if it is temporary, since ticks retry; otherwise find out what slows the database down"
        }
        ErrorKind::Configuration => "fix the setting, permission or object that the error names",
        ErrorKind::Data => "decide as the error says: ticks cannot continue before that",
        ErrorKind::Internal => "report it as a bug, with this text",
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::doctor::Level;

    use super::*;

    #[test]
    fn a_failed_check_is_unknown_and_names_the_permission_or_the_error() {
        let right = "GRANT VIEW DATABASE STATE TO [u]";
        let missing = unanswered("x", (Some(262), "denied"), right, false);
        assert_eq!(missing.level, Level::Unknown);
        assert!(missing.fix.unwrap().starts_with(right));
        assert_eq!(
            unanswered("x", (Some(208), "no"), right, true),
            Finding::needs_real_server("x")
        );
        // A real server that does not support a query says so in its own words.
        let old = unanswered("x", (Some(208), "Invalid object"), right, false);
        assert_eq!((old.level, old.found.as_str()), (Level::Unknown, "Invalid object"));
        let lost = unanswered("x", (None, "connection reset"), right, true);
        assert_eq!(lost.found, "connection reset");
    }
}
