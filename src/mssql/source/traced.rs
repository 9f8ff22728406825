//! The span of a fetch, by the conventions for SQL Server:
//! <https://opentelemetry.io/docs/specs/semconv/db/sql-server/>

use tracing::Span;
use tracing::field::Empty;

use highwater_engine::source::{FetchError, Rows};
use highwater_engine::trace::span;

use super::{Mssql, sql_error};

/// The default port, which the conventions leave out.
const PORT: u16 = 1433;

impl Mssql {
    /// Returns the span of one read. It omits the statement, since a filter may contain values.
    pub(super) fn fetch_span(&self) -> Span {
        let connection = &self.settings.connection;
        let port = i64::from(connection.port);
        span!(
            "SELECT",
            otel.name = self.summary(),
            otel.kind = "client",
            db.system.name = "microsoft.sql_server",
            db.namespace = connection.database,
            db.collection.name = self.origin.table().map(ToString::to_string),
            db.operation.name = "SELECT",
            db.query.summary = self.summary(),
            server.address = connection.host,
            server.port = (connection.port != PORT).then_some(port),
            db.response.returned_rows = Empty,
            db.response.status_code = Empty,
            error.type = Empty,
        )
    }

    fn summary(&self) -> String {
        match self.origin.table() {
            Some(table) => format!("SELECT {table}"),
            None => "SELECT".to_owned(),
        }
    }
}

/// Records the result of a read on its span; returns the error in the form of the conventions.
pub(super) fn note(span: &Span, result: &Result<Rows, FetchError>) -> Option<String> {
    match result {
        Ok(rows) => {
            span.record("db.response.returned_rows", rows.rows.len());
            None
        }
        Err(error) => {
            let number = sql_error(error).and_then(crate::connection::SqlError::number);
            let number = number.map(|number| number.to_string());
            if let Some(number) = &number {
                span.record("db.response.status_code", number.as_str());
            }
            let error = number.unwrap_or_else(|| error.kind.as_str().to_owned());
            span.record("error.type", error.as_str());
            Some(error)
        }
    }
}
