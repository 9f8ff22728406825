//! Metrics of a lease, each recorded where its event happens.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{AcquireResult, Lease, LeaseContext, LeaseError};
use crate::document::{LeaseState, Refusal, Snapshot, StateDocument};
use crate::metrics::{FoundBy, Metrics};

/// Counts a lease as held for as long as it lives.
#[derive(Debug)]
pub(super) struct Active {
    metrics: Option<Arc<Metrics>>,
    poller: String,
}

impl Active {
    fn begin(context: LeaseContext<'_>) -> Self {
        let poller = context.key.poller().to_owned();
        let metrics = context.instance.metrics().cloned();
        if let Some(metrics) = &metrics {
            metrics.lease_active(&poller, 1);
        }
        Self { metrics, poller }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.lease_active(&self.poller, -1);
        }
    }
}

/// Measures a grant that took `duration`. A grant over a lapsed lease also counts that its holder died.
pub(super) fn granted(context: LeaseContext<'_>, base: &Snapshot, duration: Duration) -> Active {
    let poller = context.key.poller();
    if let Some(metrics) = context.instance.metrics() {
        metrics.lease_acquired(poller, duration);
        let age = base.age(context.store.grain());
        if base.document.lease_state(context.instance.owner_id(), age) == LeaseState::Lapsed {
            let idle = base.document.idle(age).saturating_sub(duration);
            let requeued = base.document.in_flight.is_some();
            metrics.lease_expired(poller, FoundBy::Tick, idle, requeued);
        }
    }
    Active::begin(context)
}

impl<'a> Lease<'a> {
    /// Requests a lease and counts the outcome. A refusal by the document in memory sends no request, so it is not
    /// counted.
    pub(super) async fn acquire_measured(
        context: LeaseContext<'a>,
        base: &Snapshot,
        granted: Result<StateDocument, Refusal>,
    ) -> Result<AcquireResult<'a>, LeaseError> {
        let asked = Box::pin(Self::request(context, base, granted)).await;
        let outcome = match &asked {
            Ok(AcquireResult::Held(_)) => "acquired",
            Ok(AcquireResult::Conflict) => "conflict",
            Ok(AcquireResult::Refused(_)) => return asked,
            Err(_) => "error",
        };
        if let Some(metrics) = context.instance.metrics() {
            metrics.lease_asked(context.key.poller(), outcome);
        }
        asked
    }
}

impl Lease<'_> {
    /// Measures the rest of the lease at the start of a commit; returns until when the commit may look for its
    /// outcome.
    pub(super) fn committing(&self) -> Instant {
        if let Some(metrics) = self.context.instance.metrics() {
            let left = self.deadline().saturating_duration_since(Instant::now());
            metrics.lease_remaining(self.context.key.poller(), left);
        }
        self.write_deadline()
    }
}

/// A renewal in progress: it counts as failed unless it lands, also when dropped.
pub(super) struct Heartbeat<'a> {
    context: LeaseContext<'a>,
    succeeded: bool,
}

impl<'a> Heartbeat<'a> {
    pub(super) fn begin(context: LeaseContext<'a>) -> Self {
        Self { context, succeeded: false }
    }

    pub(super) fn succeeded(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Heartbeat<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.context.instance.metrics() {
            metrics.heartbeat(self.context.key.poller(), self.succeeded);
        }
    }
}
