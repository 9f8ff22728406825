//! One call of the handler, and how long it may take.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Poller;
use super::batch::Batch;
use super::observe::Observation;
use crate::handler::{Delivery, Handler, HandlerError, Step, is_of_step};
use crate::lease::Lease;
use crate::policy::{Blame, Verdict};

impl Poller {
    /// Returns how long the handler may take for `batch`, where that is less than the rest of the tick.
    ///
    /// A row that is about to be set aside is tried, then another row, then it again: each of its calls
    /// gets half of the time that is left, so that there is time for all of it. It has failed before
    /// then, so what is merely slow had all the time of a tick.
    pub(super) fn time_for(
        &self,
        lease: &Lease<'_>,
        batch: &Batch,
        seen: &Observation<'_>,
    ) -> Option<Duration> {
        let in_flight = lease.document().in_flight.as_ref();
        if in_flight.is_none_or(|tried| tried.attempt == 0) {
            return None;
        }
        let judged = self.judge_as(lease, batch, Blame::Unknown);
        let end = self.limits.tick_time_max.min(self.limits.handler_stop_after);
        let left = end.checked_sub(seen.began_at().elapsed()).filter(|left| !left.is_zero())?;
        (judged == Verdict::Probe).then_some(left / 2)
    }

    /// Returns the same for a step of a chain. One before the step that failed last has not failed itself, so
    /// it may be slow: were it stopped, rows would be set aside that the step at fault has not been given.
    pub(super) fn time_for_step(
        &self,
        lease: &Lease<'_>,
        batch: &Batch,
        (steps, index): (&[Step], usize),
        seen: &Observation<'_>,
    ) -> Option<Duration> {
        let in_flight = lease.document().in_flight.as_ref();
        let error = in_flight.and_then(|tried| tried.last_error.as_deref()).unwrap_or_default();
        let mut behind = steps.iter().skip(index + 1);
        let fails_behind = behind.any(|step| is_of_step(error, &step.name));
        if fails_behind { None } else { self.time_for(lease, batch, seen) }
    }

    /// Calls a handler, and stops it after `limit`.
    pub(super) async fn within(
        &self,
        limit: Option<Duration>,
        to: &dyn Handler,
        delivery: Delivery<'_>,
    ) -> Result<(), HandlerError> {
        let Some(limit) = limit else { return self.guarded(to, delivery).await };
        let handled = timeout(limit, self.guarded(to, delivery)).await;
        handled.unwrap_or_else(|_| {
            Err(HandlerError::Retryable(format!(
                "no answer within {limit:.0?}, which is what a row that has failed so often gets"
            )))
        })
    }

    /// Calls a handler, and stops it where it reports progress and has made none for too long.
    pub(super) async fn guarded(
        &self,
        to: &dyn Handler,
        delivery: Delivery<'_>,
    ) -> Result<(), HandlerError> {
        let handled = to.handle(delivery);
        let stall_max = self.limits.handler_stall_max;
        let Some(stall_max) = stall_max.filter(|_| to.reports_progress()) else {
            return handled.await;
        };
        let mut handled = pin!(handled);
        let mut steps = 0;
        loop {
            tokio::select! {
                biased;
                done = &mut handled => return done,
                () = sleep(stall_max) => {}
            }
            // Between one and two of the limit: good enough for a guard that counts in minutes.
            if delivery.progress.steps() == steps {
                return Err(HandlerError::Stalled(stall_max));
            }
            steps = delivery.progress.steps();
        }
    }
}
