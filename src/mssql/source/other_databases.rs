//! The databases that a view references outside of the connection's, whose rowversions alone are tracked.

use highwater_engine::cursor::CursorMode;
use highwater_engine::value::Value;

use super::describe::Column;
use super::{Mssql, values};
use crate::connection::{Connection, Param, SqlError};
use crate::ident::QualifiedName;

/// Number of databases that the view's definition references, and one of them.
/// <https://learn.microsoft.com/sql/relational-databases/system-catalog-views/sys-sql-expression-dependencies-transact-sql>
const NAMED: &str = "SELECT COUNT(*) AS n, MIN(COALESCE(d.referenced_server_name + N'.', N'') \
     + COALESCE(d.referenced_database_name, N'')) AS name \
     FROM sys.sql_expression_dependencies AS d WHERE d.referencing_id = OBJECT_ID(@P1) \
     AND (d.referenced_server_name IS NOT NULL OR d.referenced_database_name <> DB_NAME())";

/// The server's answer about a view.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OtherDatabases {
    /// Its definition references no other database.
    Nothing,
    /// It references at least this one.
    Database(String),
    /// The answer has an unexpected form.
    Unknown,
}

impl OtherDatabases {
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
    /// Returns the name of the view, if rows may come from a database that the mode does not cover.
    ///
    /// A view has no primary key, and a table references nothing. For a query, its own text is checked.
    pub(super) fn bounded_view(
        &self,
        mode: CursorMode,
        columns: &[Column],
    ) -> Option<&QualifiedName> {
        let is_table = columns.iter().any(|column| column.primary);
        self.origin.table().filter(|_| mode == CursorMode::RowVersion && !is_table)
    }

    /// Queries which other databases a view references.
    pub(super) async fn other_databases(
        &self,
        connection: &mut Connection,
        view: &QualifiedName,
    ) -> Result<OtherDatabases, SqlError> {
        let params = [Param::Text(view.quoted())];
        let answer = connection.query(NAMED, &params, |row| Ok(values(&row))).await?;
        Ok(OtherDatabases::read(&answer))
    }

    /// Warns of a view that references another database. Most logins lack the permission to query this, and a
    /// poller does not need it, so that case is not reported.
    pub(super) async fn warn_of_other_databases(
        &self,
        connection: &mut Connection,
        view: &QualifiedName,
    ) {
        let poller = self.settings.poller.as_str();
        if let Ok(OtherDatabases::Database(name)) = self.other_databases(connection, view).await {
            tracing::warn!(
                event = "view_reads_elsewhere",
                poller.name = poller,
                database = name,
                "View `{view}` of poller `{poller}` also reads from `{name}`, but rowversions are tracked in \
                 the connection's database only: if the cursor column comes from there, late commits \
                 are lost; connect to that database, or use mode `timestamp+pk`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_no_database_one_database_or_invalid() {
        let name = Value::Text("far.shop".to_owned());
        assert_eq!(
            OtherDatabases::read(&[vec![Value::Int(0), Value::Null]]),
            OtherDatabases::Nothing
        );
        let found = OtherDatabases::read(&[vec![Value::Int(2), name]]);
        assert_eq!(found, OtherDatabases::Database("far.shop".to_owned()));
        assert_eq!(OtherDatabases::read(&[]), OtherDatabases::Unknown);
        assert_eq!(
            OtherDatabases::read(&[vec![Value::Int(2), Value::Null]]),
            OtherDatabases::Unknown
        );
    }
}
