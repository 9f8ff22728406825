//! What lies outside of the database that a rowversion is bounded in: other databases, other replicas.

use super::server::not_told;
use super::{Examination, Table};
use crate::cursor::CursorMode;
use crate::doctor::Finding;
use crate::mssql::Param;
use crate::value::Value;

/// Databases that the text of a view names, beside its own.
/// <https://learn.microsoft.com/sql/relational-databases/system-catalog-views/sys-sql-expression-dependencies-transact-sql>
const NAMED: &str = "SELECT COUNT(*) AS n, MIN(COALESCE(d.referenced_server_name + N'.', N'') \
     + COALESCE(d.referenced_database_name, N'')) AS name \
     FROM sys.sql_expression_dependencies AS d WHERE d.referencing_id = OBJECT_ID(@P1) \
     AND (d.referenced_server_name IS NOT NULL OR d.referenced_database_name <> DB_NAME())";
/// Who may ask that.
const NAMED_RIGHT: &str = "to have it checked, a DBA runs `GRANT VIEW DEFINITION TO [user]` and `GRANT SELECT \
     ON sys.sql_expression_dependencies TO [user]`";

impl Examination<'_> {
    /// What mode `rowversion` cannot bound.
    pub(super) async fn elsewhere(&mut self, table: &Table) {
        if table.choice.mode != CursorMode::RowVersion {
            return;
        }
        if self.source.settings.connection.application_intent_read_only {
            self.add(read_intent());
        }
        // A view has no primary key, and a table names nothing. Of a query its own text is checked.
        let is_table = table.columns.iter().any(|column| column.primary);
        let Some(name) = self.source.origin.table().filter(|_| !is_table) else { return };
        let param = Param::Text(name.quoted());
        if let Some(row) = self.ask_row("other databases", (NAMED, &[param]), NAMED_RIGHT).await {
            self.add(named(&row));
        }
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

fn named(row: &[Value]) -> Finding {
    let check = "other databases";
    match row {
        [Value::Int(0), _] => Finding::ok(check, "the view's own text names none"),
        [Value::Int(_), Value::Text(name)] => Finding::warning(
            check,
            format!(
                "the view reads from `{name}` too, and a rowversion is bounded in the connection's \
                 database only: late commits there are lost"
            ),
            "where the cursor's column comes from there, connect to that database, or read by \
             `timestamp+pk`; a table that is only looked up does no harm",
        ),
        _ => not_told(check),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn a_view_that_names_another_database_is_a_warning_with_its_name() {
        let name = Value::Text("far.shop".to_owned());
        assert_eq!(named(&[Value::Int(0), Value::Null]).level, Level::Ok);
        let finding = named(&[Value::Int(2), name]);
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.found.contains("reads from `far.shop` too"), "{finding:?}");
        assert_eq!(named(&[]).level, Level::Unknown);
    }
}
