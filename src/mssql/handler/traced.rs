//! The span of a delivery to a table.
//!
//! Conventions: <https://opentelemetry.io/docs/specs/semconv/db/sql-server/>. The span holds no content, and
//! no address beyond the host. Rows have no place for the trace context.

use highwater_engine::trace::span;
use tracing::Span;
use tracing::field::Empty;

/// The default port, which the conventions leave out.
const SQL_PORT: u16 = 1433;

/// Returns the span of the statements that write a batch to a table.
pub(super) fn write_rows(table: &str, database: Option<&str>, (host, port): (&str, u16)) -> Span {
    span!(
        "BATCH",
        otel.name = format!("BATCH {table}"),
        otel.kind = "client",
        db.system.name = "microsoft.sql_server",
        db.namespace = database,
        db.collection.name = table,
        db.operation.name = "BATCH",
        db.query.summary = format!("BATCH {table}"),
        server.address = host,
        server.port = (port != SQL_PORT).then_some(i64::from(port)),
        error.type = Empty,
    )
}
