//! A tick whose source failed in the middle: what is done is committed first, then it is waited for.
//!
//! # Why so
//!
//! A batch is committed by the write that announces the next one, so that next one is read while the
//! batch is finished and not written down. A source that tries again for seconds would leave it so for
//! seconds, and a crash in them would deliver it twice. So that one read fails at once; the commit
//! releases the lease; and the tick begins anew, with a read for which nothing waits.

use super::observe::Observation;
use super::{Memory, Poller, TickError, TickOutcome};
use crate::error::{ErrorKind, chain};

impl Poller {
    /// Runs the tick, and begins it anew where the source failed behind work that is now committed:
    /// that read may be waited for, since nothing else does so any more.
    ///
    /// Each beginning but the first has a committed batch before it, and the limits of the tick hold.
    pub(super) async fn run(
        &self,
        memory: &mut Memory,
        seen: &mut Observation<'_>,
    ) -> Result<TickOutcome, TickError> {
        let mut batches = 0;
        loop {
            let end = Box::pin(self.run_once(memory, seen)).await;
            let Err(TickError::Fetch(error)) = &end else { return Ok(after_work(end?, batches)) };
            let may_heal = error.kind == ErrorKind::Transient && self.may_begin_anew(seen);
            if !may_heal || seen.batches() == batches {
                return end;
            }
            batches = seen.batches();
            tracing::info!(
                event = "tick_begun_anew",
                poller.name = self.name,
                invocation_id = seen.request().invocation_id,
                error = chain(error),
                "Poller `{}` has committed what it had in hand, and reads on",
                self.name
            );
        }
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
