//! The databases that a view names beside the connection's, in which alone a rowversion is bounded.

use highwater_engine::cursor::CursorMode;
use highwater_engine::value::Value;

use super::describe::Column;
use super::{Mssql, values};
use crate::connection::{Connection, Param, SqlError};
use crate::ident::QualifiedName;

/// How many the view's own text names, and one of them.
/// <https://learn.microsoft.com/sql/relational-databases/system-catalog-views/sys-sql-expression-dependencies-transact-sql>
const NAMED: &str = "SELECT COUNT(*) AS n, MIN(COALESCE(d.referenced_server_name + N'.', N'') \
     + COALESCE(d.referenced_database_name, N'')) AS name \
     FROM sys.sql_expression_dependencies AS d WHERE d.referencing_id = OBJECT_ID(@P1) \
     AND (d.referenced_server_name IS NOT NULL OR d.referenced_database_name <> DB_NAME())";

/// What the server tells of a view.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outside {
    /// Its own text names no other database.
    Nothing,
    /// It names this one, at least.
    Database(String),
    /// The answer could not be read.
    Unknown,
}

impl Outside {
    /// Reads the answer to [`NAMED`].
    fn read(answer: &[Vec<Value>]) -> Self {
        match answer.first().map(Vec::as_slice) {
            Some([Value::Int(0), _]) => Self::Nothing,
            Some([Value::Int(_), Value::Text(name)]) => Self::Database(name.clone()),
            _ => Self::Unknown,
        }
    }
}

impl Mssql {
    /// Returns the name of what can read from another database, where the mode is bounded in one: a view.
    ///
    /// A view has no primary key, and a table names nothing. Of a query its own text is checked.
    pub(super) fn bounded_view(
        &self,
        mode: CursorMode,
        columns: &[Column],
    ) -> Option<&QualifiedName> {
        let is_table = columns.iter().any(|column| column.primary);
        self.origin.table().filter(|_| mode == CursorMode::RowVersion && !is_table)
    }

    /// Asks which other databases a view names.
    pub(super) async fn outside(
        &self,
        connection: &mut Connection,
        view: &QualifiedName,
    ) -> Result<Outside, SqlError> {
        let params = [Param::Text(view.quoted())];
        let answer = connection.query(NAMED, &params, |row| Ok(values(&row))).await?;
        Ok(Outside::read(&answer))
    }

    /// Warns of a view that names another database. Most logins may not ask, and a poller needs no such
    /// right, so that nothing is told to them.
    pub(super) async fn warn_of_outside(&self, connection: &mut Connection, view: &QualifiedName) {
        let poller = self.settings.poller.as_str();
        if let Ok(Outside::Database(name)) = self.outside(connection, view).await {
            tracing::warn!(
                event = "view_reads_elsewhere",
                poller.name = poller,
                database = name,
                "View `{view}` of poller `{poller}` reads from `{name}` too, and a rowversion is bounded in \
                 the connection's database only: where the cursor's column comes from there, late commits \
                 are lost; connect to that database, or read by `timestamp+pk`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_tells_nothing_one_database_or_cannot_be_read() {
        let name = Value::Text("far.shop".to_owned());
        assert_eq!(Outside::read(&[vec![Value::Int(0), Value::Null]]), Outside::Nothing);
        let found = Outside::read(&[vec![Value::Int(2), name]]);
        assert_eq!(found, Outside::Database("far.shop".to_owned()));
        assert_eq!(Outside::read(&[]), Outside::Unknown);
        assert_eq!(Outside::read(&[vec![Value::Int(2), Value::Null]]), Outside::Unknown);
    }
}
