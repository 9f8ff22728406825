//! The conditional write of a holder, and what a rejected or unanswered one means.
//!
//! A store's "rejected" is definite for one request only. If an earlier attempt of the same write got no response,
//! it may have landed and made the later one fail. Storage clients with automatic retries commonly take that for a
//! lost lease. So, after anything but success, the document is read and compared:
//!
//! | the document | meaning |
//! |---|---|
//! | has our `write_id`, or our grant committed our batch last | the write landed |
//! | lists our grant as released, under whichever grant it is now | the write landed: a holder writes nothing after its release |
//! | has the tag that we wrote under | not landed (yet): repeat the same write, only one can win |
//! | is still our grant at our checkpoint | another writer came first: apply our change to its document |
//! | is still our grant, at a front whose commit we abandoned | that commit landed late: apply our change to it |
//! | anything else, such as our batch committed by another grant | lost: write nothing more |
//! | cannot be read, or is no state document | unknown: read again until the deadline |
//!
//! An abandoned request may still land minutes later. That is why every write is conditional.
//!
//! Applying a change to another writer's document costs no pause the first time, but does from the second time on:
//! behind a proxy that changes `ETag`s no write ever matches, and the loop would otherwise send requests as fast as
//! they are answered.

use super::LeaseError;
use crate::backoff::{Pause, seed_of};
use crate::cursor::Cursor;
use crate::document::{DocumentStore, Holder, Refusal, Snapshot, StateDocument};
use crate::event::BatchId;
use crate::store::StoreError;

/// One change of a document by the holder of its lease.
pub(super) type Change<'a> =
    dyn Fn(&StateDocument, &Holder) -> Result<StateDocument, Refusal> + Send + Sync + 'a;

/// One write of a holder, however many attempts it takes.
#[derive(Clone, Copy)]
pub(super) struct LogicalWrite<'a> {
    pub(super) holder: &'a Holder,
    /// The same for all attempts of this write, and unique to it.
    pub(super) write_id: &'a str,
    /// The batch it commits, if any.
    pub(super) batch_id: Option<&'a BatchId>,
    /// Where an abandoned earlier write of the holder may put the checkpoint.
    pub(super) unconfirmed_front: Option<&'a Cursor>,
}

impl DocumentStore<'_> {
    /// Applies `change` to the document that `holder` wrote last, or to its rightful successor, and writes the
    /// result.
    pub(super) async fn change_held(
        self,
        base: &Snapshot,
        logical: LogicalWrite<'_>,
        change: &(dyn Fn(&StateDocument) -> Result<StateDocument, Refusal> + Send + Sync),
    ) -> Result<Snapshot, LeaseError> {
        let LogicalWrite { holder, write_id, batch_id, unconfirmed_front } = logical;
        let checkpoint = &base.document.checkpoint.cursor;
        // A renewal may have committed the same front before.
        let committed_before = base.document.checkpoint.last_successful_batch_id.as_ref();
        let batch_id = batch_id.filter(|id| committed_before != Some(*id));
        let mut base = base.clone();
        let mut pause = Pause::new(self.until, seed_of(write_id));
        let mut rebased = false;
        loop {
            let mut next = change(&base.document)?;
            write_id.clone_into(&mut next.write_id);
            let Some(etag) = &base.etag else { return Err(LeaseError::Gone) };
            match self.put(&next, etag).await {
                Ok(snapshot) => return Ok(snapshot),
                Err(error @ StoreError::Refused { .. }) => return Err(error.into()),
                Err(error @ StoreError::Unreachable { .. }) => {
                    pause.or_give_up(error).await?;
                    continue;
                }
                Err(StoreError::Conflict { .. } | StoreError::Unknown { .. }) => {}
            }
            let Some(found) = self.read(&mut pause).await? else { return Err(LeaseError::Gone) };
            let unchanged = found.etag == base.etag;
            let found_at = found.document.checkpoint.cursor.as_ref();
            let moved_by_us = unconfirmed_front.is_some() && found_at == unconfirmed_front;
            let committed = batch_id.is_some_and(|id| found.document.was_committed_by(holder, id));
            if found.document.write_id == write_id
                || (!moved_by_us && committed)
                || (!unchanged && found.document.was_released_by(holder))
            {
                return Ok(found);
            }
            let still_ours = found.document.is_held_by(holder)
                && (found_at == checkpoint.as_ref() || moved_by_us);
            if !unchanged && !still_ours {
                // The change itself knows best why it is refused: usually because of a newer grant.
                change(&found.document)?;
                return Err(LeaseError::Lost(found.document.superseded(holder)));
            }
            if unchanged {
                pause.or_give_up(self.unknown_outcome()).await?;
            } else if rebased {
                pause.or_give_up(self.contended()).await?;
            }
            rebased |= !unchanged;
            base = found;
        }
    }
}
