//! Parts of a batch: its front and the rest, each a batch with an id of its own.
//!
//! A part is what a fetch of its range would have made: the same events under the same content
//! identity. So a part needs no record of its own before it is delivered: whoever finds the whole
//! batch in flight delivers all of it again, and a target recognises the events.

use super::batch::{Batch, Next};
use super::deliver::Hand;
use super::observe::Observation;
use super::{Poller, Position, TickError};
use crate::lease::Lease;

impl Batch {
    /// Splits into the first `rows` events and the rest; `None` where either would be empty.
    pub(super) fn split(
        &self,
        poller: &str,
        lease: &Lease<'_>,
        rows: usize,
    ) -> Option<(Self, Self)> {
        let (front, rest) = self.events.split_at_checked(rows)?;
        let position = |after| Position {
            generation: lease.generation().0,
            replay_id: lease.document().replay_id.clone(),
            after,
        };
        let front = Self::of(poller, position(self.after.clone()), front.to_vec(), true, self.lag)?;
        let after = position(Some(front.upto.clone()));
        let mut rest = Self::of(poller, after, rest.to_vec(), self.more, self.lag)?;
        rest.remember.clone_from(&self.remember);
        Some((front, rest))
    }
}

impl Poller {
    /// Returns what follows the batch in hand within the same tick: a part that waits, else the next rows.
    pub(super) async fn next_after(
        &self,
        lease: &mut Lease<'_>,
        hand: &mut Hand,
        seen: &mut Observation<'_>,
    ) -> Result<Next, TickError> {
        match hand.waiting.pop() {
            Some(part) if self.may_go_on(lease, seen) => Ok(Next::Batch(Box::new(part))),
            Some(part) if part.suspicion.is_some() => Ok(Next::Later(Box::new(part))),
            Some(_) => Ok(Next::NotNow),
            None => self.next_batch(lease, &hand.batch, seen).await,
        }
    }
}
