//! Parts of a batch: its front and the rest, each a batch with an id of its own.
//!
//! A part is what a fetch of its range would have made: the same events under the same content
//! identity. So a part needs no record of its own before it is delivered: whoever finds the whole
//! batch in flight delivers all of it again, and a target recognises the events.

use time::OffsetDateTime;

use super::batch::{Batch, Next};
use super::deliver::Hand;
use super::observe::Observation;
use super::{Poller, Position, TickError};
use crate::lease::Lease;
use crate::state::{AfterCommit, Commit, StateDocument};

impl Batch {
    /// Splits into the first `rows` events and the rest; `None` where either would be empty.
    pub(super) fn split(
        &self,
        poller: &str,
        lease: &Lease<'_>,
        rows: usize,
    ) -> Option<(Self, Self)> {
        self.split_under(poller, lease.document(), rows)
    }

    fn split_under(
        &self,
        poller: &str,
        document: &StateDocument,
        rows: usize,
    ) -> Option<(Self, Self)> {
        let (front, rest) = self.events.split(rows)?;
        let at = Position::under(document, self.after.clone());
        let front = Self::of(poller, at, front, true, self.lag)?;
        let after = Position::under(document, Some(front.upto.clone()));
        let mut rest = Self::of(poller, after, rest, self.more, self.lag)?;
        rest.remember.clone_from(&self.remember);
        rest.late = self.late;
        Some((Self { late: self.late, ..front }, rest))
    }

    /// Returns row `index` as a batch of its own.
    pub(super) fn row(&self, poller: &str, lease: &Lease<'_>, index: usize) -> Option<Self> {
        let before = index.checked_sub(1).and_then(|before| self.events.get(before));
        let after = before.map_or_else(|| self.after.clone(), |event| Some(event.cursor.clone()));
        let event = self.events.at(index)?;
        let at = Position::under(lease.document(), after);
        let row = Self::of(poller, at, event, true, self.lag)?;
        Some(Self { late: self.late, ..row })
    }
}

impl Poller {
    /// Whether what a handler accepts of `batch` may be committed while it runs: the document must
    /// speak of these very rows, and nobody suspect that one of them kills processes.
    pub(super) fn may_be_accepted_in_part(&self, batch: &Batch, document: &StateDocument) -> bool {
        document.in_flight.as_ref().is_some_and(|in_flight| {
            in_flight.batch_id == batch.id && in_flight.crashes_in_a_row() < self.policy.crashes_max
        }) && !batch.late
            && batch.suspicion.as_ref().is_none_or(|suspicion| !suspicion.deadly)
    }

    /// Returns the commit of the first `rows` rows of `batch`, which leaves the rest in flight.
    pub(super) fn commit_of_front(
        &self,
        batch: &Batch,
        document: &StateDocument,
        rows: usize,
        now: OffsetDateTime,
    ) -> Option<Commit> {
        let (front, rest) = batch.split_under(&self.name, document, rows)?;
        let then = AfterCommit::Handle(Box::new(rest.in_flight()));
        self.keep_ids(&front, document.checkpoint.cursor.as_ref());
        Some(self.commit_of(&front, document, now, then))
    }

    /// Returns the commit of `batch` on `document`.
    pub(super) fn commit_of(
        &self,
        batch: &Batch,
        document: &StateDocument,
        now: OffsetDateTime,
        then: AfterCommit,
    ) -> Commit {
        Commit {
            batch_id: batch.id.clone(),
            upto: batch.upto.clone(),
            rows: batch.rows_taken(),
            now,
            audit: self.audit_step(batch, document),
            then,
        }
    }

    /// Returns what follows the batch in hand within the same tick: a part that waits, else the next rows.
    pub(super) async fn next_after<'a>(
        &'a self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'a>,
        seen: &mut Observation<'_>,
    ) -> Result<Next, TickError> {
        match hand.waiting.pop() {
            Some(part) if self.may_go_on(lease, seen) => Ok(Next::Batch(Box::new(part))),
            Some(part) if part.suspicion.is_some() => Ok(Next::Later(Box::new(part))),
            Some(_) => Ok(Next::NotNow),
            None => {
                let next = match &hand.batch {
                    late if late.late => Next::behind_late(late),
                    _ => self.next_batch(lease, hand, seen).await?,
                };
                self.or_late(lease, hand, next, seen).await
            }
        }
    }
}
