//! The span of a delivery.

use tracing::{Instrument as _, Span};

use super::HandlerError;

/// Runs `work` within `span`, and records a failure on the span.
///
/// # Errors
///
/// The error of `work`.
pub async fn within<T>(
    span: Span,
    work: impl Future<Output = Result<T, HandlerError>>,
) -> Result<T, HandlerError> {
    let result = work.instrument(span.clone()).await;
    if let Err(error) = &result {
        span.record("error.type", error.name());
    }
    result
}
