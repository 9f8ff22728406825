//! Parts of a batch: its front and the rest, each a batch with an id of its own.
//!
//! A part is what a fetch of its range would have made: the same events under the same content
//! identity. So a part needs no record of its own before it is delivered: whoever finds the whole
//! batch in flight delivers all of it again, and a target recognises the events.

use super::batch::{Batch, Next};
use super::observe::Observation;
use super::{Handled, Poller, Position, TickError};
use crate::handler::HandlerError;
use crate::lease::Lease;

/// Why a target is asked to take a smaller batch, and what is done where there is none.
const SINGLE_ROW: &str = "a single row is too large for the target, and smaller than that it gets \
                          not: raise the target's limit, or leave out columns";

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
    /// Hands `batch` over, or as much from its front as the target takes at once: where it is too
    /// large, its left half, and so on down to one row.
    ///
    /// `batch` becomes what was taken; what follows it is put on `waiting`, the next part last.
    pub(super) async fn handle_what_fits(
        &self,
        lease: &mut Lease<'_>,
        batch: &mut Batch,
        waiting: &mut Vec<Batch>,
        seen: &mut Observation<'_>,
    ) -> Result<(), TickError> {
        // Each round that goes on halves the batch.
        loop {
            let Handled::TooLarge(reason) = self.handle(lease, batch, seen).await? else {
                return Ok(());
            };
            let half = batch.events.len().div_ceil(2);
            let Some((front, rest)) = batch.split(&self.name, lease, half) else {
                let error = HandlerError::Rejected(format!("{reason}; {SINGLE_ROW}"));
                self.write_down(lease, batch, &error, seen).await;
                return Err(TickError::Handler(error));
            };
            seen.batch_halved(batch, &front, &reason);
            waiting.push(rest);
            *batch = front;
        }
    }

    /// Returns what follows `batch` within the same tick: a part that waits, else the next rows.
    pub(super) async fn next_after(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        waiting: &mut Vec<Batch>,
        seen: &mut Observation<'_>,
    ) -> Result<Next, TickError> {
        match waiting.pop() {
            Some(part) if self.may_go_on(lease, seen) => Ok(Next::Batch(Box::new(part))),
            Some(_) => Ok(Next::NotNow),
            None => self.next_batch(lease, batch, seen).await,
        }
    }
}
