//! Detection of a source that no longer has what follows the checkpoint.
//!
//! # Reason
//!
//! After a loss the source may look right again: the ids of a truncated table grow past the checkpoint, or change
//! tracking is enabled again. Reading on would then skip rows although ticks had reported the loss. So a final loss
//! is stored in the document, once, and no tick reads past it until an operator resets the poller. The process that
//! found it also remembers it until that reset, and stores it again if it is missing because the store was down or
//! the document was replaced.

use std::time::Duration;

use tracing::warn;

use super::memory::Memory;
use super::{Poller, TickError};
use crate::cursor::CursorMode;
use crate::document::{Generation, Snapshot, StateDocument};
use crate::error::{Loss, chain, end_loss};
use crate::journal::EventKind;
use crate::source::FetchError;

/// Attempts to detect a loss again if another instance has moved on.
pub(crate) const LOSS_TRIES_MAX: u32 = 3;

/// A final loss found by this process.
#[derive(Clone, Debug)]
pub(crate) struct FoundLoss {
    /// The generation of the document at whose position it was found. An import or a broken lease may raise the
    /// generation too, so only the generation of a reset ends the loss.
    generation: Generation,
    reason: String,
}

impl Poller {
    /// Stores the final loss that a tick has found. Returns `false` if it was found at a position that another
    /// instance has left meanwhile: only the source knows whether anything is lost after the new one.
    pub(crate) async fn store_loss(&self, memory: &Memory, error: &FetchError) -> bool {
        // A range is cancelled or started again; its poller keeps its own position.
        if !error.is_final_loss() || self.range_of.is_some() {
            return true;
        }
        match Box::pin(self.write_loss(memory.snapshot(), &error.reason)).await {
            Ok(stands) => stands,
            Err(unwritten) => {
                warn!(
                    event = "loss_not_written",
                    poller.name = self.name,
                    error = chain(&unwritten),
                    "Could not record that poller `{}` has lost its position; the next tick retries",
                    self.name
                );
                true
            }
        }
    }

    /// Adds the commands that end a loss to the error of a tick that has found it.
    pub(crate) fn lost(&self, error: FetchError) -> FetchError {
        if self.range_of.is_some() { error } else { self.with_remedy(error) }
    }

    /// Adds the commands to an error that reports a loss.
    pub(crate) fn add_loss_remedy(&self, error: TickError) -> TickError {
        if let TickError::Fetch(error) = error {
            return TickError::Fetch(if error.is_position_lost() {
                self.with_remedy(error)
            } else {
                error
            });
        }
        error
    }

    fn with_remedy(&self, error: FetchError) -> FetchError {
        let remedy = self.end_loss(error.forbids_keeping(), false);
        FetchError { reason: format!("{}; {remedy}", error.reason), ..error }
    }

    /// Returns the commands that end a loss.
    pub(crate) fn end_loss(&self, is_final: bool, is_new_source: bool) -> String {
        let is_tracked = self.source.shape().mode == CursorMode::ChangeTracking;
        end_loss(&self.name, Loss { is_tracked, is_final, is_new_source })
    }

    /// Writes the loss to the document at whose position it was found, and again to what others have written since.
    async fn write_loss(&self, known: Option<&Snapshot>, reason: &str) -> Result<bool, TickError> {
        // If the store is down, the next tick retries.
        let mut changing = self.documents(Duration::ZERO).change();
        let mut base = match known {
            Some(known) => known.clone(),
            None => changing.read(|| self.blank()).await?,
        };
        let generation = base.document.generation;
        let found_at =
            (base.document.checkpoint.cursor.clone(), base.document.source_state.clone());
        self.remember_loss(Some(FoundLoss { generation, reason: reason.to_owned() }));
        loop {
            let document = &base.document;
            // A document for another source is not affected.
            let is_ours = document.source_fingerprint == self.source.shape().fingerprint;
            if base.etag.is_none() || !is_ours || document.lost_position().is_some() {
                return Ok(true);
            }
            let mut next = Box::new(document.losing_position(reason, base.age(self.store.grain())));
            next.write_id = self.instance.next_write_id();
            self.number(EventKind::PositionLost, &mut next);
            if let Some(written) = changing.write(&base, next).await? {
                self.record_note(EventKind::PositionLost, &written.document, written.written_at());
                return Ok(true);
            }
            base = changing.read(|| self.blank()).await?;
            let StateDocument { checkpoint, source_state, .. } = &*base.document;
            let is_there = (&checkpoint.cursor, source_state) == (&found_at.0, &found_at.1);
            // A tick that moved on has read the source at the new position. An import has not.
            let has_moved_on = base.document.generation == generation && !is_there;
            if has_moved_on || base.document.was_reset_after(generation) {
                self.remember_loss(None);
                return Ok(base.document.lost_position().is_some());
            }
        }
    }

    /// Fails if an earlier read found that rows after the checkpoint of `document` are lost.
    pub(crate) fn refuse_lost(&self, document: &StateDocument) -> Result<(), TickError> {
        let mut found = self.loss.lock().expect("no holder of this lock panics");
        *found = found.take().filter(|found| !document.was_reset_after(found.generation));
        let unwritten = found.as_ref().map(|found| found.reason.as_str());
        match document.lost_position().or(unwritten) {
            None => Ok(()),
            Some(reason) => Err(TickError::Fetch(FetchError::rows_lost(reason))),
        }
    }

    fn remember_loss(&self, found: Option<FoundLoss>) {
        *self.loss.lock().expect("no holder of this lock panics") = found;
    }
}
