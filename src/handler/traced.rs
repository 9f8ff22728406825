//! The spans of the handlers that write somewhere themselves, one for each delivery.
//!
//! Conventions: <https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>,
//! <https://opentelemetry.io/docs/specs/semconv/db/sql-server/>. No content is in a span, nor an address
//! beyond the host. Neither messages of the storage queue nor rows have a place for the trace's context.

use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::HandlerError;
use crate::trace::span;

/// The port that goes without saying.
const SQL_PORT: u16 = 1433;

/// Returns the span of sending messages to a queue.
pub(super) fn send(queue: &str) -> Span {
    span!(
        "send",
        otel.name = format!("send {queue}"),
        otel.kind = "client",
        messaging.system = "azure_storage_queue",
        messaging.operation.name = "send",
        messaging.operation.type = "send",
        messaging.destination.name = queue,
        messaging.batch.message_count = Empty,
        error.type = Empty,
    )
}

/// Returns the span of writing a blob.
pub(super) fn create_blob(container: &str) -> Span {
    span!(
        "blob create",
        otel.kind = "client",
        highwater.blob.container = container,
        error.type = Empty,
    )
}

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

/// Does `work` within `span`, and notes there why it was in vain.
pub(super) async fn within<T>(
    span: Span,
    work: impl Future<Output = Result<T, HandlerError>>,
) -> Result<T, HandlerError> {
    let result = work.instrument(span.clone()).await;
    if let Err(error) = &result {
        span.record("error.type", error.name());
    }
    result
}
