//! The span of one invocation, by the conventions for functions:
//! <https://opentelemetry.io/docs/specs/semconv/faas/faas-spans/>

use time::format_description::well_known::Rfc3339;
use tracing::Span;
use tracing::field::Empty;

use crate::clock::{Clock as _, SystemClock};
use crate::metrics::Trigger;
use crate::poller::{Poller, outcome_row};
use crate::telemetry::Telemetry;
use crate::tick::{TickReport, TickRequest};
use crate::trace::span;

/// An invocation of a function, by the host or by our own timers.
#[derive(Clone, Copy, Debug)]
pub struct TracedInvocation<'a> {
    /// Name of the function.
    pub function: &'a str,
    /// Id of the invocation.
    pub id: &'a str,
    /// The schedule of the function, if known.
    pub schedule: Option<&'a str>,
    /// The caller's span, if there is one.
    pub traceparent: Option<&'a str>,
    /// W3C trace state of the caller.
    pub tracestate: Option<&'a str>,
    /// What triggered it.
    pub trigger: Trigger,
    /// Whether it is the first one of this process.
    pub is_first: bool,
}

impl TracedInvocation<'_> {
    /// Returns the exported span of an invocation, the parent of all its other spans.
    pub fn span(&self, telemetry: &Telemetry) -> Span {
        span!(
            "tick",
            otel.name = self.function,
            otel.kind = "server",
            traceparent = self.traceparent,
            tracestate = self.tracestate,
            faas.trigger = self.trigger.as_str(),
            faas.cron = self.schedule,
            faas.time = SystemClock.now().format(&Rfc3339).ok(),
            faas.invocation_id = self.id,
            faas.coldstart = self.is_first,
            cloud.resource_id = telemetry.function_id(self.function),
            poller.name = Empty,
            outcome = Empty,
            rows = Empty,
            batches = Empty,
            error.type = Empty,
        )
    }
}

impl<'a> TracedInvocation<'a> {
    /// Returns the invocation of a tick.
    pub fn of(function: &'a str, request: &'a TickRequest, is_first: bool) -> Self {
        let (traceparent, tracestate) =
            (request.traceparent.as_deref(), request.tracestate.as_deref());
        let (id, trigger) = (&request.invocation_id, Trigger::Timer);
        Self { function, id, schedule: None, traceparent, tracestate, trigger, is_first }
    }
}

/// Records the result of a tick on its span, and ends the span.
pub fn note(span: Span, poller: &Poller, report: &TickReport) {
    let row = outcome_row(&report.result);
    span.record("poller.name", poller.name());
    span.record("outcome", row.outcome);
    span.record("rows", report.rows);
    span.record("batches", report.batches);
    if let Some(error) = row.error.filter(|_| report.result.is_err()) {
        span.record("error.type", error);
    }
    drop(span);
}

/// Records the result of a recovery run on its span, and ends the span.
pub fn note_recovery<T, E>(span: Span, ended: &Result<T, E>) {
    if ended.is_err() {
        span.record("error.type", "RecoveryError");
    }
    drop(span);
}
