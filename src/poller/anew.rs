//! A tick that goes on where it would end: since a read failed behind committed work, or since it follows the
//! source.
//!
//! A read that fails behind finished work ends the lease, so that the work is written down before
//! anything waits for the source. The rows behind it need not wait for the next timer, though.
//!
//! A tick that follows looks for new rows after a pause, for as long as it may. The lease is given up
//! meanwhile: idle looks write nothing, and what is found is acquired, handled and committed as in a tick of
//! its own.

use std::time::Duration;

use time::OffsetDateTime;

use super::loss::LOSS_TRIES_MAX;
use super::observe::Observation;
use super::range::rest;
use super::{Memory, Poller, TickError, TickOutcome, TickRequest};
use crate::error::{ErrorKind, chain};
use crate::source::FetchError;

/// Shortest wait for the end of a back-off, which may be over by a store's coarse clock already.
const BACK_OFF_WAIT_MIN: Duration = Duration::from_millis(10);
/// How often the document is read while a back-off is waited for: an operator may end or pause it.
const BACK_OFF_LOOK_INTERVAL: Duration = Duration::from_secs(30);

impl Poller {
    /// Runs the tick, and begins it anew where the source failed behind work that is now committed:
    /// that read may be waited for, since nothing else does so any more. Or looks again where it follows.
    ///
    /// The limits of the tick hold for all of it.
    pub(super) async fn run(
        &self,
        memory: &mut Memory,
        seen: &mut Observation<'_>,
    ) -> Result<TickOutcome, TickError> {
        let (mut batches, mut losses) = (0, 0);
        loop {
            let end = match Box::pin(self.run_once(memory, seen)).await {
                Err(TickError::Fetch(error)) if error.position_lost => {
                    losses += 1;
                    if !self.keep_loss(memory, &error).await && losses < LOSS_TRIES_MAX {
                        memory.forget();
                        continue;
                    }
                    return Err(TickError::Fetch(self.lost(error)));
                }
                end => end,
            };
            let goes_on = match &end {
                Err(TickError::Fetch(error)) => self.reads_on(error, batches, seen),
                Err(_) => false,
                Ok(TickOutcome::BackingOff { until, .. }) => {
                    self.waits_for_end_of_back_off(*until, memory, seen).await
                }
                Ok(outcome) => self.looks_again(outcome, seen).await,
            };
            if matches!(end, Ok(TickOutcome::Idle)) && (goes_on || batches > 0) {
                memory.uncount_idle_tick();
            }
            if !goes_on {
                return end.map(|outcome| after_work(outcome, batches));
            }
            batches = seen.batches();
            seen.begin_round();
        }
    }

    /// Whether a read that failed is made again: only where batches were committed since `batches` were.
    fn reads_on(&self, error: &FetchError, batches: u64, seen: &Observation<'_>) -> bool {
        let may_heal = error.kind == ErrorKind::Transient && self.may_begin_anew(seen);
        if !may_heal || seen.batches() == batches {
            return false;
        }
        tracing::info!(
            event = "tick_begun_anew",
            poller.name = self.name,
            invocation_id = seen.request().invocation_id,
            error = chain(error),
            "Poller `{}` has committed what it had in hand, and reads on",
            self.name
        );
        true
    }

    /// Waits for the end of a back-off where the host would call again anyway: its retries may all fall into the
    /// back-off, and the next tick may be a day away. One that ends later than the tick is waited for as long as
    /// there is time, so that a host that retries for ever does not do so each second.
    async fn waits_for_end_of_back_off(
        &self,
        until: OffsetDateTime,
        memory: &Memory,
        seen: &Observation<'_>,
    ) -> bool {
        let TickRequest { stop, is_retried, .. } = seen.request();
        let left = self.limits.tick_time_max.saturating_sub(seen.began_at().elapsed());
        let Some(snapshot) = memory.snapshot().filter(|_| *is_retried && !left.is_zero()) else {
            return false;
        };
        let wait = Duration::try_from(until - snapshot.now()).unwrap_or_default();
        rest(wait.clamp(BACK_OFF_WAIT_MIN, BACK_OFF_LOOK_INTERVAL).min(left), stop).await;
        !stop.is_set()
    }

    /// Waits for the next look at the source, where the tick follows it and has run out of rows.
    async fn looks_again(&self, outcome: &TickOutcome, seen: &Observation<'_>) -> bool {
        let (TickOutcome::Idle | TickOutcome::Committed { more: false }) = outcome else {
            return false;
        };
        let elapsed = seen.began_at().elapsed();
        let follow = self.flow.follow.filter(|_| self.may_begin_anew(seen));
        let pause = follow.and_then(|follow| follow.pause(elapsed, self.limits.tick_time_max));
        let Some(pause) = pause else { return false };
        rest(pause, &seen.request().stop).await;
        !seen.request().stop.is_set()
    }

    /// Whether limits allow a batch after those that are committed.
    fn may_begin_anew(&self, seen: &Observation<'_>) -> bool {
        !seen.request().stop.is_set()
            && seen.began_at().elapsed() < self.limits.tick_time_max
            && self.limits.batches_max.is_none_or(|max| seen.batches() < max)
    }
}

/// Returns how a tick ends that had committed so many batches before it began anew.
fn after_work(outcome: TickOutcome, batches: u64) -> TickOutcome {
    if batches == 0 {
        return outcome;
    }
    match outcome {
        TickOutcome::Idle => TickOutcome::Committed { more: false },
        TickOutcome::Skipped(_) | TickOutcome::BackingOff { .. } | TickOutcome::Paused { .. } => {
            TickOutcome::Committed { more: true }
        }
        outcome @ TickOutcome::Committed { .. } => outcome,
    }
}
