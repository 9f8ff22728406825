//! A loss of rows after the checkpoint, kept in the document until an operator resets the poller. Pure.

use serde_json::Value as Json;

use super::state_document::StateDocument;
use super::transitions::DocumentAge;
use crate::cursor::SourceState;
use crate::grant::Generation;

/// Key under which a loss is stored with the source state.
const LOST: &str = "position_lost";

impl StateDocument {
    /// Returns why rows after the checkpoint are lost, if a tick has found that.
    pub fn lost_position(&self) -> Option<&str> {
        let lost = self.source_state.get(LOST)?;
        Some(lost.as_str().unwrap_or("rows after the checkpoint are lost"))
    }

    /// Whether the poller was reset, or started again, under a later generation than the one given.
    pub fn was_reset_after(&self, generation: Generation) -> bool {
        self.reset_generation.is_some_and(|reset| reset > generation)
    }

    /// Records that rows after the checkpoint are lost. Owner and token stay.
    #[must_use]
    pub fn losing_position(&self, reason: &str, age: DocumentAge) -> Self {
        let mut next = self.written_by_other(age);
        next.source_state.insert(LOST.to_owned(), Json::from(reason));
        next
    }
}

impl StateDocument {
    /// Replaces the retained state of the source, except a recorded loss: that may have been written meanwhile.
    pub(crate) fn remember(&mut self, state: &SourceState) {
        let lost = self.source_state.remove(LOST);
        self.source_state.clone_from(state);
        self.source_state.extend(lost.map(|lost| (LOST.to_owned(), lost)));
    }

    /// Carries over the loss of the document that this one replaces, if both have the same source.
    pub(crate) fn inherit_loss(&mut self, replaced: &Self) {
        let lost = replaced.source_state.get(LOST);
        if let Some(lost) = lost.filter(|_| replaced.source_fingerprint == self.source_fingerprint)
        {
            self.source_state.entry(LOST.to_owned()).or_insert_with(|| lost.clone());
        }
    }
}

/// Returns the retained state without a loss, as accepted by an operator who resets a poller.
pub(crate) fn without_loss(mut state: SourceState) -> SourceState {
    state.remove(LOST);
    state
}
