//! A loss of rows after the checkpoint, kept in the document until an operator resets the poller. Pure.

use serde_json::Value as Json;

use super::{LeaseAge, StateDocument};
use crate::cursor::SourceState;

/// Name under which a loss is kept beside what the source remembers.
const LOST: &str = "position_lost";

impl StateDocument {
    /// Returns why rows after the checkpoint are lost, if a tick has found that.
    pub fn lost_position(&self) -> Option<&str> {
        let lost = self.source_state.get(LOST)?;
        Some(lost.as_str().unwrap_or("rows after the checkpoint are lost"))
    }

    /// Notes that rows after the checkpoint are lost. Owner and token stay.
    #[must_use]
    pub fn losing_position(&self, reason: &str, age: LeaseAge) -> Self {
        let mut next = self.written_by_other(age);
        next.source_state.insert(LOST.to_owned(), Json::from(reason));
        next
    }
}

/// Returns what a source remembers without a loss, as an operator who resets a poller accepts it.
pub(crate) fn forgiven(mut state: SourceState) -> SourceState {
    state.remove(LOST);
    state
}
