//! Checks of data outside of the database whose rowversions are tracked: other databases, other replicas.

use highwater_engine::cursor::CursorMode;
use highwater_engine::doctor::Finding;

use super::super::other_databases::OtherDatabases;
use super::server::unexpected_answer;
use super::{Examination, Table};

/// Permission to list the references of a view.
const NAMED_RIGHT: &str = "to enable this check, a DBA runs `GRANT VIEW DEFINITION TO [user]` and `GRANT SELECT \
     ON sys.sql_expression_dependencies TO [user]`";

impl Examination<'_> {
    /// Checks for data that the bound of mode `rowversion` does not cover.
    pub(super) async fn uncovered_data(&mut self, table: &Table) {
        let source = self.source;
        if table.choice.mode != CursorMode::RowVersion {
            return;
        }
        if source.settings.connection.application_intent_read_only {
            self.add(read_intent());
        }
        let Some(view) = source.bounded_view(table.choice.mode, &table.columns) else { return };
        let answer = {
            let mut state = source.state.lock().await;
            source.other_databases(&mut state.connection, view).await
        };
        let check = "other databases";
        self.add(match &answer {
            Ok(outside) => named(check, outside),
            Err(error) => self.unanswered(check, error, NAMED_RIGHT),
        });
    }
}

fn read_intent() -> Finding {
    Finding::warning(
        "read intent",
        "the connection asks for a read-only replica, where the upper bound of mode `rowversion` \
         is not documented",
        "remove `ApplicationIntent=ReadOnly` from the connection string: poll the primary replica",
    )
}

fn named(check: &'static str, outside: &OtherDatabases) -> Finding {
    match outside {
        OtherDatabases::Nothing => Finding::ok(check, "the view's definition names none"),
        OtherDatabases::Database(name) => Finding::warning(
            check,
            format!(
                "the view also reads from `{name}`, but rowversions are tracked in the connection's \
                 database only: late commits there are lost"
            ),
            "if the cursor column comes from there, connect to that database, or use mode \
             `timestamp+pk`; a table used only for lookups does no harm",
        ),
        OtherDatabases::Unknown => unexpected_answer(check),
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::doctor::Level;

    use super::*;

    #[test]
    fn a_view_that_names_another_database_is_a_warning_with_its_name() {
        assert_eq!(named("x", &OtherDatabases::Nothing).level, Level::Ok);
        let finding = named("x", &OtherDatabases::Database("far.shop".to_owned()));
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.found.contains("also reads from `far.shop`"), "{finding:?}");
        assert_eq!(named("x", &OtherDatabases::Unknown).level, Level::Unknown);
    }
}
