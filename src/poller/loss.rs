//! A source that no longer has what follows the checkpoint.
//!
//! # Why
//!
//! After a loss the source may look right again: the numbers of a truncated table grow past the checkpoint,
//! tracking that was off is on again. Reading on would then skip rows although ticks had reported the loss. So
//! a loss that the source calls final is written into the document, once, and no tick reads past it before
//! an operator resets the poller.

use tracing::warn;

use super::memory::Memory;
use super::{Poller, TickError};
use crate::cursor::CursorMode;
use crate::error::{Loss, chain, end_loss};
use crate::journal::Happened;
use crate::source::FetchError;
use crate::state::{Precondition, StateDocument, StoreError, encode};

impl Poller {
    /// Completes the error of a tick whose source has lost the position: keeps a final loss, and adds the
    /// commands that end it.
    pub(super) async fn lost(&self, memory: &Memory, error: FetchError) -> FetchError {
        // A range is given up or started again; its poller keeps its own position.
        if self.range_of.is_some() {
            return error;
        }
        if error.final_loss
            && let Err(unwritten) = Box::pin(self.keep_loss(memory, &error.reason)).await
        {
            warn!(
                event = "loss_not_written",
                poller.name = self.name,
                error = chain(&unwritten),
                "Could not write down that poller `{}` has lost its position; the next tick tries again",
                self.name
            );
        }
        self.with_remedy(error)
    }

    /// Adds the commands to an error that reports a loss.
    pub(super) fn with_remedy_of(&self, error: TickError) -> TickError {
        if let TickError::Fetch(error) = error {
            return TickError::Fetch(if error.position_lost {
                self.with_remedy(error)
            } else {
                error
            });
        }
        error
    }

    fn with_remedy(&self, error: FetchError) -> FetchError {
        let remedy = self.end_loss(error.final_loss, false);
        FetchError { reason: format!("{}; {remedy}", error.reason), ..error }
    }

    /// Returns the commands that end a loss.
    pub(super) fn end_loss(&self, is_final: bool, is_new_source: bool) -> String {
        let is_tracked = self.source.shape().mode == CursorMode::ChangeTracking;
        end_loss(&self.name, Loss { is_tracked, is_final, is_new_source })
    }

    async fn keep_loss(&self, memory: &Memory, reason: &str) -> Result<(), TickError> {
        let base = match memory.snapshot() {
            Some(known) => known.clone(),
            None => Box::pin(self.read()).await?,
        };
        let Some(etag) = base.etag.clone() else { return Ok(()) };
        if base.document.lost_position().is_some() {
            return Ok(());
        }
        let mut next = base.document.losing_position(reason, base.age(self.store.grain()));
        next.write_id = self.instance.next_write_id();
        self.number(Happened::Noted, &mut next);
        match self.store.store(&self.key, encode(&next), Precondition::Matches(etag)).await {
            Ok(written) => self.tell_of_note(&next, written.date),
            // Another writer was first; the next tick reads what it wrote.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(super::LoadError::Store(error).into()),
        }
        Ok(())
    }
}

/// Fails if an earlier read found that rows after the checkpoint of `document` are lost.
pub(super) fn refuse_lost(document: &StateDocument) -> Result<(), TickError> {
    match document.lost_position() {
        None => Ok(()),
        Some(reason) => Err(TickError::Fetch(FetchError::rows_lost(reason))),
    }
}
