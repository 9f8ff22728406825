//! Whether a tick continues where it would end: to repeat a fetch that failed after committed work, to follow the
//! source, or to wait for the end of a short backoff.
//!
//! A fetch that fails after committed work releases the lease, so that the work is recorded before anything waits
//! for the source. The rows after it need not wait for the next timer, though.
//!
//! In follow mode a tick polls for new rows after a pause, for as long as its limits allow. The lease is released
//! meanwhile: idle polls write nothing, and rows that are found are acquired, handled and committed as in a tick of
//! their own.

use std::time::Duration;

use time::OffsetDateTime;

use super::Tick;
use super::report::tick_event;
use crate::error::{ErrorKind, chain};
use crate::poller::position_loss::LOSS_TRIES_MAX;
use crate::poller::{TickError, TickOutcome};
use crate::source::FetchError;
use crate::tick::TickRequest;

/// Shortest wait for the end of a backoff, which may be over already by a store's coarse clock.
const BACK_OFF_WAIT_MIN: Duration = Duration::from_millis(10);
/// How often the document is read during a backoff: an operator may end it, or pause the poller.
const BACK_OFF_LOOK_INTERVAL: Duration = Duration::from_secs(30);

impl Tick<'_> {
    /// Runs rounds until there is no reason for another. The limits of the tick apply to all of them together.
    pub(super) async fn rounds(&mut self) -> Result<TickOutcome, TickError> {
        let (mut batches, mut losses) = (0, 0);
        loop {
            let end = match Box::pin(self.round()).await {
                Err(TickError::Fetch(error)) if error.is_position_lost() => {
                    losses += 1;
                    let stands = self.poller.store_loss(&self.memory, &error).await;
                    if !stands && losses < LOSS_TRIES_MAX {
                        self.memory.forget();
                        continue;
                    }
                    return Err(TickError::Fetch(self.poller.lost(error)));
                }
                end => end,
            };
            let continues = match &end {
                Err(TickError::Fetch(error)) => self.retries_fetch(error, batches),
                Err(_) => false,
                Ok(TickOutcome::BackingOff { until, .. }) => self.wait_for_backoff(*until).await,
                Ok(outcome) => self.polls_again(outcome).await,
            };
            if matches!(end, Ok(TickOutcome::Idle)) && (continues || batches > 0) {
                self.memory.uncount_idle_tick();
            }
            if !continues {
                return end.map(|outcome| outcome_after(outcome, batches));
            }
            batches = self.report.batches();
            self.report.start_round();
        }
    }

    /// Whether to repeat a failed fetch: only if batches were committed since the last round.
    fn retries_fetch(&self, error: &FetchError, batches: u64) -> bool {
        let may_heal = error.kind == ErrorKind::Transient && self.may_start_batch();
        if !may_heal || self.report.batches() == batches {
            return false;
        }
        tick_event!(
            self.report,
            info,
            event = "tick_begun_anew",
            error = chain(error),
            "Poller `{}` committed its work, and retries the fetch that failed",
            self.poller.name
        );
        true
    }

    /// Waits for the end of a backoff if the host would retry anyway: all of its retries may fall into the backoff,
    /// and the next timer may be a day away. If the backoff outlasts the tick, this waits as long as there is time,
    /// so that a host with unlimited retries does not retry every second.
    async fn wait_for_backoff(&self, until: OffsetDateTime) -> bool {
        let TickRequest { stop, is_retried, .. } = self.report.request();
        let elapsed = self.report.started_at().elapsed();
        let left = self.poller.limits.tick_time_max.saturating_sub(elapsed);
        let Some(snapshot) = self.memory.snapshot().filter(|_| *is_retried && !left.is_zero())
        else {
            return false;
        };
        let wait = Duration::try_from(until - snapshot.now()).unwrap_or_default();
        stop.rest(wait.clamp(BACK_OFF_WAIT_MIN, BACK_OFF_LOOK_INTERVAL).min(left)).await;
        !stop.is_set()
    }

    /// Waits for the next poll in follow mode, once the source has no more rows.
    async fn polls_again(&self, outcome: &TickOutcome) -> bool {
        let (TickOutcome::Idle | TickOutcome::Committed { more: false }) = outcome else {
            return false;
        };
        let poller = self.poller;
        let elapsed = self.report.started_at().elapsed();
        let follow = poller.flow.follow.filter(|_| self.may_start_batch());
        let pause = follow.and_then(|follow| follow.pause(elapsed, poller.limits.tick_time_max));
        let Some(pause) = pause else { return false };
        let stop = &self.report.request().stop;
        stop.rest(pause).await;
        !stop.is_set()
    }

    /// Whether limits allow another batch after the committed ones.
    fn may_start_batch(&self) -> bool {
        let batches_max = self.poller.limits.batches_max;
        self.report.has_time() && batches_max.is_none_or(|max| self.report.batches() < max)
    }
}

/// Returns the outcome of a tick that had committed that many batches before its last round.
fn outcome_after(outcome: TickOutcome, batches: u64) -> TickOutcome {
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
