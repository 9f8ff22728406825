//! Overlapping a commit with the next handler, where that is asked for.
//!
//! The commit of a batch announces the next one, so nothing but its answer is missing when the next handler is
//! called. Here it is left to that call: the lease sends it first and goes on beside the handler, and nothing else
//! is written until it is confirmed. So commits leave one by one and in order, and a batch that was handled is
//! committed only behind the one before it. Where a commit does not come to be, the handler is dropped.
//!
//! A process that dies meanwhile leaves two batches to be delivered again, and the document speaks of the first.
//! That one comes with a crash counted, and is not overlapped then; so whichever of them kills is found out with
//! the next death at the latest.

use super::ahead::has_troubled;
use super::batch::{Batch, Next};
use super::deliver::Hand;
use super::observe::Observation;
use super::{Poller, TickError};
use crate::lease::Lease;
use crate::policy::OVERLAP_CRASHES_MIN;
use crate::state::Commit;

impl Hand<'_> {
    /// Takes `next` in hand, and keeps the batch before it for as long as its commit is not known.
    pub(super) fn go_on_with(&mut self, next: Batch, lease: &Lease<'_>) {
        let before = std::mem::replace(&mut self.batch, next);
        self.uncommitted = lease.is_committing().then_some(before);
    }
}

impl Poller {
    /// Leaves the commit of the batch in hand to the call with the next one, where that may be; else returns it.
    pub(super) fn left_to_the_next(
        &self,
        lease: &mut Lease<'_>,
        hand: &Hand<'_>,
        next: &Result<Next, TickError>,
        commit: Commit,
    ) -> Result<Option<Commit>, TickError> {
        let Ok(Next::Batch(next)) = next else { return Ok(Some(commit)) };
        if !self.overlaps(lease, hand, next) {
            return Ok(Some(commit));
        }
        let is_left = lease.commit_beside(commit.clone()).map_err(TickError::of_commit)?;
        Ok((!is_left).then_some(commit))
    }

    /// Whether the commit of the batch in hand may go on beside the handler of `next`: not where either is
    /// under suspicion, since what is written down then must stand before anything is tried.
    fn overlaps(&self, lease: &Lease<'_>, hand: &Hand<'_>, next: &Batch) -> bool {
        let batch = &hand.batch;
        let is_plain = !batch.late && !batch.quarantined && !has_troubled(batch, lease.document());
        let next_is_plain = !next.late && next.suspicion.is_none() && hand.waiting.is_empty();
        self.flow.overlap_commit && self.may_overlap() && is_plain && next_is_plain
    }

    /// Whether the poller is one whose commits may be overlapped: settings that ask for it elsewhere are refused.
    fn may_overlap(&self) -> bool {
        self.handler.steps().is_empty()
            && self.policy.crashes_max >= OVERLAP_CRASHES_MIN
            && self.audit.is_none()
            && self.range_of.is_none()
            && !self.through_pause
    }

    /// Tells of a commit that was made beside the handler, before anything is made of what the handler said.
    pub(super) fn note_commit_beside(
        lease: &mut Lease<'_>,
        hand: &mut Hand<'_>,
        seen: &mut Observation<'_>,
    ) {
        if let (Some(batch), Some(took)) = (hand.uncommitted.take(), lease.take_confirmed()) {
            seen.batch_complete(&batch, batch.after.as_ref(), took, lease.now());
        }
    }
}
