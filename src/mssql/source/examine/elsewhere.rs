//! What lies outside of the database that a rowversion is bounded in: other databases, other replicas.

use highwater_engine::cursor::CursorMode;
use highwater_engine::doctor::Finding;

use super::super::outside::Outside;
use super::server::not_told;
use super::{Examination, Table};

/// Who may ask what a view names.
const NAMED_RIGHT: &str = "to have it checked, a DBA runs `GRANT VIEW DEFINITION TO [user]` and `GRANT SELECT \
     ON sys.sql_expression_dependencies TO [user]`";

impl Examination<'_> {
    /// What mode `rowversion` cannot bound.
    pub(super) async fn elsewhere(&mut self, table: &Table) {
        let source = self.source;
        if table.choice.mode != CursorMode::RowVersion {
            return;
        }
        if source.settings.connection.application_intent_read_only {
            self.add(read_intent());
        }
        let Some(view) = source.bounded_view(table.choice.mode, &table.columns) else { return };
        let told = {
            let mut state = source.state.lock().await;
            source.outside(&mut state.connection, view).await
        };
        let check = "other databases";
        self.add(match &told {
            Ok(outside) => named(check, outside),
            Err(error) => self.unanswered(check, error, NAMED_RIGHT),
        });
    }
}

fn read_intent() -> Finding {
    Finding::warning(
        "read intent",
        "the connection asks for a replica that is only read, where the upper bound of mode `rowversion` \
         is not documented",
        "remove `ApplicationIntent=ReadOnly` from the connection string: poll the primary replica",
    )
}

fn named(check: &'static str, outside: &Outside) -> Finding {
    match outside {
        Outside::Nothing => Finding::ok(check, "the view's own text names none"),
        Outside::Database(name) => Finding::warning(
            check,
            format!(
                "the view reads from `{name}` too, and a rowversion is bounded in the connection's \
                 database only: late commits there are lost"
            ),
            "where the cursor's column comes from there, connect to that database, or read by \
             `timestamp+pk`; a table that is only looked up does no harm",
        ),
        Outside::Unknown => not_told(check),
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::doctor::Level;

    use super::*;

    #[test]
    fn a_view_that_names_another_database_is_a_warning_with_its_name() {
        assert_eq!(named("x", &Outside::Nothing).level, Level::Ok);
        let finding = named("x", &Outside::Database("far.shop".to_owned()));
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.found.contains("reads from `far.shop` too"), "{finding:?}");
        assert_eq!(named("x", &Outside::Unknown).level, Level::Unknown);
    }
}
