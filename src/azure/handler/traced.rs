//! The spans of the handlers that write to a service themselves, one per delivery.
//!
//! Conventions: <https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>,
//! <https://opentelemetry.io/docs/specs/semconv/db/sql-server/>. A span has no content, and no address beyond
//! the host. Neither messages of the storage queue nor rows have a place for the trace context.

use tracing::Span;
use tracing::field::Empty;

pub(super) use highwater_engine::handler::spans::within;

use highwater_engine::trace::span;

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
