//! The span of one invocation, as the conventions for functions have it:
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

/// An invocation of a function, by the host or by a timer of our own.
#[derive(Clone, Copy, Debug)]
pub struct Invoked<'a> {
    /// Name of the function.
    pub function: &'a str,
    /// Id of the invocation.
    pub id: &'a str,
    /// When it runs, as the function says, where that is known.
    pub schedule: Option<&'a str>,
    /// The caller's span, where it has told one.
    pub traceparent: Option<&'a str>,
    /// What other systems add to that.
    pub tracestate: Option<&'a str>,
    /// What starts it.
    pub trigger: Trigger,
    /// Whether it is the first one of this process.
    pub is_first: bool,
}

impl Invoked<'_> {
    /// Returns the span of an invocation that is exported, and in which all others of it lie.
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

impl<'a> Invoked<'a> {
    /// Returns the invocation that asks for a tick.
    pub fn of(function: &'a str, request: &'a TickRequest, is_first: bool) -> Self {
        let (traceparent, tracestate) =
            (request.traceparent.as_deref(), request.tracestate.as_deref());
        let (id, trigger) = (&request.invocation_id, Trigger::Timer);
        Self { function, id, schedule: None, traceparent, tracestate, trigger, is_first }
    }
}

/// Notes on a span how its tick ended, and ends it.
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

/// Notes on a span whether its run of the recovery controller came to an end, and ends it.
pub fn note_recovery<T, E>(span: Span, ended: &Result<T, E>) {
    if ended.is_err() {
        span.record("error.type", "RecoveryError");
    }
    drop(span);
}
