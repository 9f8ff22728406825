//! Spans: the steps of a tick, for a tracing back end.
//!
//! [`span!`] creates a span for anything that takes time, in any layer, and `tracing` tracks their nesting.
//! [`SpanLayer`] converts those spans, and log events, to what is exported. Without that layer no span is created:
//! only one atomic load remains. Spans created here never appear in the log lines of the streams.
//!
//! Fields are attributes under their own names, except `otel.name` (the span's name), `otel.kind` (`server`,
//! `client`), and `traceparent` and `tracestate` (the parent, if it belongs to another process). A span with an
//! `error.type` counts as failed.
//!
//! Log events name their poller themselves, even within a span that has its name: the JSON lines nest the fields of
//! the current span under `span`, while alerts and queries read `poller.name` of the event. Only within a tick is one
//! macro enough, `tick_event!`, which also adds the invocation. What logs elsewhere often runs without a span: a
//! command, the recovery controller, or a poller inside another program.

mod layer;

use std::fmt;

use tracing::Span;
use tracing_subscriber::registry::{LookupSpan as _, Registry};

use self::layer::OpenSpan;
pub use self::layer::{FinishedSpan, LogRecord, PendingExport, SpanKind, SpanLayer};

/// Target of the spans that are exported, and of nothing else.
pub const TARGET: &str = "highwater::span";

/// Target of the event of a successful tick. If replies to the Functions host contain its line, the streams do not.
pub const TICK_TARGET: &str = "highwater::poller::tick";

/// Creates a span that is exported; see [`crate::trace`] for the meaning of its fields.
#[doc(hidden)]
#[macro_export]
macro_rules! span {
    ($name:literal $(, $($field:tt)*)?) => {
        tracing::error_span!(target: "highwater::span", $name $(, $($field)*)?)
    };
}
#[doc(hidden)]
pub use span;

/// Identifies a span of a trace, as carried between processes by W3C Trace Context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Id of the trace; never zero.
    pub trace_id: [u8; 16],
    /// Id of the span; never zero.
    pub span_id: [u8; 8],
    /// Whether the span is recorded.
    pub sampled: bool,
}

impl TraceContext {
    /// Parses a `traceparent` header; `None` if it is invalid.
    ///
    /// <https://www.w3.org/TR/trace-context/#traceparent-header>
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [version] = bytes::<1>(version)?;
        let [flags] = bytes::<1>(flags)?;
        // Later versions may add parts; this version has no more.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace_id, span_id) = (bytes::<16>(trace)?, bytes::<8>(span)?);
        let valid = trace_id != [0; 16] && span_id != [0; 8];
        valid.then_some(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }

    /// Returns the trace id in hexadecimal, which is the `operation_Id` of Application Insights.
    pub fn trace_id_text(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.trace_id))
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (self.trace_id_text(), u64::from_be_bytes(self.span_id));
        write!(formatter, "00-{trace}-{span:016x}-{:02x}", u8::from(self.sampled))
    }
}

/// Parses lower-case hexadecimal digits, two per byte.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if !digits || text.len() != 2 * N {
        return None;
    }
    let mut found = [0; N];
    for (at, byte) in found.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(found)
}

/// Returns the exported span that is or encloses `span`; `None` if nothing is exported.
pub fn context_of(span: &Span) -> Option<TraceContext> {
    let found = span.with_subscriber(|(id, dispatch)| {
        let registry = dispatch.downcast_ref::<Registry>()?;
        let mut scope = registry.span(id)?.scope();
        scope.find_map(|span| span.extensions().get::<OpenSpan>().map(|open| open.context))
    });
    found.flatten()
}

/// Decides which traces are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Share of recorded traces among those that start here, from 0 to 1.
    share: f64,
    /// Whether the parent's decision applies to a trace that comes from another process.
    parent_decides: bool,
}

impl Default for Sampler {
    /// Every tick, whatever its caller records: the Functions host sends a context that it does not itself record by
    /// default.
    fn default() -> Self {
        Self { share: 1.0, parent_decides: false }
    }
}

impl Sampler {
    /// Returns the sampler named by `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`.
    ///
    /// # Errors
    ///
    /// The expected values.
    pub fn named(name: &str, share: Option<&str>) -> Result<Self, String> {
        let share = || match share.map(str::parse::<f64>) {
            None => Ok(1.0),
            Some(Ok(share)) if (0.0..=1.0).contains(&share) => Ok(share),
            Some(_) => Err("a number from 0 to 1 in `OTEL_TRACES_SAMPLER_ARG`".to_owned()),
        };
        let (parent_decides, own) = match name.strip_prefix("parentbased_") {
            Some(own) => (true, own),
            None => (false, name),
        };
        let share = match own {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => share()?,
            _ => {
                return Err("`always_on`, `always_off` or `traceidratio`, each also behind \
                            `parentbased_`"
                    .to_owned());
            }
        };
        Ok(Self { share, parent_decides })
    }

    /// Whether to record a trace that comes from `parent`, or starts here.
    pub fn records(&self, trace_id: [u8; 16], parent: Option<&TraceContext>) -> bool {
        if let Some(parent) = parent.filter(|_| self.parent_decides) {
            return parent.sampled;
        }
        // The last 56 bits of an id are random, so all processes of a trace decide the same.
        let random = u128::from_be_bytes(trace_id) & ((1 << 56) - 1);
        let bits = u64::try_from(random).unwrap_or(u64::MAX) >> 24;
        f64::from(u32::try_from(bits).unwrap_or(u32::MAX))
            < self.share * f64::from(u32::MAX) + self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_written_as_it_was_read() {
        let context = TraceContext::parse(PARENT).unwrap();
        assert!(context.sampled);
        assert_eq!(context.to_string(), PARENT);
        let later = PARENT.replace("00-4", "01-4") + "-more";
        assert_eq!(TraceContext::parse(&later), Some(context));
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
        for text in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e47ää-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
    }

    #[test]
    fn samplers_are_those_of_the_specification() {
        let recorded = TraceContext::parse(PARENT).unwrap();
        let not = TraceContext { sampled: false, ..recorded };
        let id = recorded.trace_id;
        for (name, share, alone, under_recorded, under_not) in [
            ("always_on", None, true, true, true),
            ("always_off", None, false, false, false),
            ("parentbased_always_on", None, true, true, false),
            ("parentbased_always_off", None, false, true, false),
            ("traceidratio", None, true, true, true),
            ("traceidratio", Some("0"), false, false, false),
            ("parentbased_traceidratio", Some("0.0"), false, true, false),
        ] {
            let sampler = Sampler::named(name, share).unwrap();
            let found = [None, Some(&recorded), Some(&not)].map(|p| sampler.records(id, p));
            assert_eq!(found, [alone, under_recorded, under_not], "{name} {share:?}");
        }
        assert!(Sampler::default().records(id, Some(&not)), "recorded unless configured otherwise");
        for (name, share) in
            [("on", None), ("traceidratio", Some("2")), ("traceidratio", Some("x"))]
        {
            assert!(Sampler::named(name, share).is_err(), "{name} {share:?}");
        }
    }

    #[test]
    fn a_share_of_traces_is_about_that_share() {
        let sampler = Sampler::named("traceidratio", Some("0.25")).unwrap();
        let id = |n: u128| (n << 24).to_be_bytes();
        let step = (1 << 32) / 1000;
        let recorded = (0..1000).filter(|n| sampler.records(id(n * step), None)).count();
        assert!((249..=251).contains(&recorded), "{recorded}");
    }
}
