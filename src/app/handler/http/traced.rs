//! The span of one request, by the conventions for HTTP clients:
//! <https://opentelemetry.io/docs/specs/semconv/http/http-spans/>

use reqwest::StatusCode;
use reqwest::header::{HeaderName, HeaderValue};
use tracing::Span;
use tracing::field::Empty;
use url::Url;

use super::TRACEPARENT;
use crate::handler::HandlerError;
use crate::trace;

/// Returns the span of a try. It contains only the host of the address: the rest may contain a secret.
pub(super) fn span(url: &Url, tries: u32) -> Span {
    trace::span!(
        "POST",
        otel.kind = "client",
        http.request.method = "POST",
        http.request.resend_count = (tries > 1).then(|| i64::from(tries - 1)),
        server.address = url.host_str(),
        server.port = url.port_or_known_default().map(i64::from),
        http.response.status_code = Empty,
        error.type = Empty,
    )
}

/// Returns the header that makes `span` the parent of the receiver's spans.
pub(super) fn header(span: &Span) -> Option<(HeaderName, HeaderValue)> {
    let context = trace::context_of(span)?.to_string();
    Some((TRACEPARENT, HeaderValue::try_from(context).ok()?))
}

/// Records the status on the current span.
pub(super) fn note_status(status: StatusCode) {
    Span::current().record("http.response.status_code", i64::from(status.as_u16()));
}

/// Records on a span why its request failed.
pub(super) fn note_error(span: &Span, error: &HandlerError) {
    span.record("error.type", error.name());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::clock::SystemClock;
    use crate::trace::{PendingExport, Sampler, SpanLayer};

    #[test]
    fn a_span_contains_only_the_host_of_an_address() {
        let collected = Arc::new(PendingExport::default());
        let layer = SpanLayer {
            spans: Some(Arc::clone(&collected)),
            logs: None,
            sampler: Sampler::default(),
            clock: Arc::new(SystemClock),
        };
        let subscriber = tracing_subscriber::registry().with(layer);
        let url = Url::parse("https://cleo:s3cret@target.example/h00k?code=k3y").unwrap();
        tracing::subscriber::with_default(subscriber, || drop(span(&url, 1)));
        let spans = format!("{:?}", collected.take_spans());
        assert!(spans.contains("target.example"), "{spans}");
        for secret in ["cleo", "s3cret", "h00k", "k3y"] {
            assert!(!spans.contains(secret), "`{secret}` is in {spans}");
        }
    }
}
