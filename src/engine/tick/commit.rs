//! Committing the current batch: one write, which also announces the next batch or releases the lease.
//!
//! # Overlapping commits
//!
//! The commit of a batch announces the next one, so only its response is missing when the next handler is called.
//! With `OVERLAP_COMMIT` the commit is sent first and completes while that handler runs; nothing else is written
//! until it is confirmed. Commits therefore leave one by one and in order, and a handled batch is committed only
//! after the one before it. If the commit fails, the handler call is dropped.
//!
//! A process that crashes meanwhile leaves two batches to redeliver, and the document describes the first. That one
//! is redelivered with a crash counted, and is then not overlapped, so whichever of the two causes crashes is found
//! with the next crash at the latest.

use std::sync::Arc;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::LeasedTick;
use super::batch::{Batch, Work};
use super::fetch::Next;
use super::isolate::Settlement;
use super::prefetch::has_failed_before;
use crate::document::{AfterCommit, Commit, StateDocument};
use crate::policy::OVERLAP_CRASHES_MIN;
use crate::poller::{Poller, TickError};

impl LeasedTick<'_, '_> {
    /// Commits the current rows. The same write announces the next batch, or releases the lease if there is none.
    pub(super) async fn commit(&mut self, next: &Result<Next, TickError>) -> Result<(), TickError> {
        self.report.note_next(next);
        if let Ok(Next::Nothing(Some(state))) = next {
            self.work.remember = Some(state.clone());
        }
        let (batch, started_at) = (Arc::clone(&self.work.batch), Instant::now());
        let rows = self.work.rows_accepted();
        let then = match next {
            Ok(Next::Work(next)) => AfterCommit::Announce(Box::new(next.in_flight())),
            Ok(Next::Deferred(next)) => {
                AfterCommit::ReleaseAndKeep(Box::new(next.in_flight()), Some(self.end_of_tick()))
            }
            Ok(Next::Nothing(_) | Next::LimitReached) | Err(_) => {
                AfterCommit::Release(Some(self.end_of_tick()))
            }
        };
        let document = self.lease.expected();
        let before = document.checkpoint.cursor.clone();
        let skipped = document.audit.rows_skipped;
        let commit = self.poller.commit_of(&batch, rows, document, self.lease.now(), then);
        let is_diverted = self.work.settlement == Settlement::Diverted;
        let commit = Commit { is_diverted, ..commit };
        self.lease.remember(self.work.remember());
        let Some(commit) = self.overlap_with(next, commit)? else { return Ok(()) };
        if let Err(error) = self.lease.commit(commit).await {
            self.report.front_committed(&batch, self.lease.document());
            return Err(TickError::of_commit(error));
        }
        self.poller.keep_ids(&batch, before.as_ref());
        self.report.rows_not_audited(skipped, self.lease.document().audit.rows_skipped);
        let took = started_at.elapsed();
        self.report.batch_complete(&batch, rows, before.as_ref(), took, self.lease.now());
        self.report.breaker(self.lease.document().quarantined_in_a_row);
        match next {
            Ok(Next::Work(_)) => self.lease.still_held().map_err(TickError::LeaseLost),
            Ok(Next::Nothing(_) | Next::LimitReached | Next::Deferred(_)) | Err(_) => Ok(()),
        }
    }

    fn end_of_tick(&mut self) -> crate::document::EndOfTick {
        let rows = self.work.rows_accepted();
        let settled = Some((&*self.work.batch, rows));
        self.report.end_of_tick(self.report.end(), settled, &self.lease)
    }

    /// Makes `next` the current work, and keeps the previous batch until its commit is confirmed.
    pub(super) fn continue_with(&mut self, next: Work) {
        let before = std::mem::replace(&mut self.work, next);
        self.uncommitted = self.lease.is_committing().then_some(before.batch);
    }

    /// Leaves the commit to the call with the next batch if it may overlap with it; returns it otherwise.
    fn overlap_with(
        &mut self,
        next: &Result<Next, TickError>,
        commit: Commit,
    ) -> Result<Option<Commit>, TickError> {
        let Ok(Next::Work(next)) = next else { return Ok(Some(commit)) };
        if !self.overlaps(next) {
            return Ok(Some(commit));
        }
        let is_overlapped =
            self.lease.commit_alongside(commit.clone()).map_err(TickError::of_commit)?;
        Ok((!is_overlapped).then_some(commit))
    }

    /// Whether the commit may overlap with the handler of `next`. Not if either is under suspicion: what is recorded
    /// then must be stored before anything is delivered.
    fn overlaps(&self, next: &Work) -> bool {
        let work = &self.work;
        let is_plain = !work.batch.is_late()
            && work.settlement == Settlement::Accepted
            && !has_failed_before(work, self.lease.expected());
        let next_is_plain = !next.batch.is_late()
            && !next.isolation.is_suspected()
            && !next.isolation.has_waiting()
            && next.batch.diverted.is_empty();
        self.poller.may_overlap() && is_plain && next_is_plain
    }

    /// Reports a commit that was made alongside the handler, before the handler's result is used.
    pub(super) fn note_commit_alongside(&mut self) {
        if let (Some(batch), Some(took)) = (self.uncommitted.take(), self.lease.take_confirmed()) {
            let before = batch.at.after.as_ref();
            self.report.batch_complete(&batch, batch.rows(), before, took, self.lease.now());
        }
    }
}

impl Poller {
    /// Whether this poller overlaps commits; settings that ask for it in other cases are rejected.
    fn may_overlap(&self) -> bool {
        self.flow.overlap_commit
            && self.handler.steps().is_empty()
            && self.policy.crashes_max >= OVERLAP_CRASHES_MIN
            && self.audit.is_none()
            && self.range_of.is_none()
            && !self.through_pause
    }

    /// Whether rows of `batch` that the handler has accepted may be committed while it runs: the document must
    /// describe exactly these rows, and none of them may be suspected of crashing processes.
    pub(super) fn may_commit_front_early(&self, batch: &Batch, document: &StateDocument) -> bool {
        document.in_flight.as_ref().is_some_and(|in_flight| {
            in_flight.batch_id == batch.id && in_flight.crashes_in_a_row() < self.policy.crashes_max
        }) && !batch.is_late()
    }

    /// Returns the commit of the first `rows` rows of `batch`, but the last one, which leaves the rest in flight; `None`
    /// if the document has it already, or either part would be empty. The commit of the last row is that of the batch.
    pub(super) fn commit_of_front(
        &self,
        batch: &Batch,
        document: &StateDocument,
        rows: usize,
        now: OffsetDateTime,
    ) -> Option<Commit> {
        let rows = rows.min(batch.events.len().saturating_sub(1));
        let checkpoint = document.checkpoint.cursor.as_ref();
        let committed = batch.events.iter().position(|event| Some(&event.cursor) == checkpoint);
        if committed.is_some_and(|last| rows <= last + 1) {
            return None;
        }
        let front = batch.part(&self.name, 0..rows)?;
        let rest = batch.part(&self.name, rows..batch.events.len())?;
        let then = AfterCommit::Announce(Box::new(rest.in_flight()));
        self.keep_ids(&front, checkpoint);
        Some(self.commit_of(&front, front.rows(), document, now, then))
    }

    /// Returns the commit of `batch` on `document`, of which a handler accepted that many rows.
    pub(super) fn commit_of(
        &self,
        batch: &Batch,
        rows: u64,
        document: &StateDocument,
        now: OffsetDateTime,
        then: AfterCommit,
    ) -> Commit {
        Commit {
            batch_id: batch.id.clone(),
            upto: batch.upto.clone(),
            rows,
            is_diverted: false,
            unreadable_last: batch.unreadable_last(),
            now,
            audit: self.audit_step(batch, document),
            then,
        }
    }
}
