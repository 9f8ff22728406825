//! What the recovery controller asks a poller beside its document. Reads, and moves nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use time::OffsetDateTime;

use super::{Operator, Poller};
use crate::journal::{Happened, JournalMode};
use crate::source::FetchWindow;
use crate::state::StateDocument;

/// Who the controller is where operators are named.
const CONTROLLER: &str = "recovery controller";

impl Poller {
    /// Whether `document` is of the source in the settings; `None` where that cannot be told now.
    pub(crate) async fn is_of_its_source(&self, document: &StateDocument) -> Option<bool> {
        let stored = &document.source_fingerprint;
        if document.is_blank() && document.checkpoint.cursor.is_none() {
            return Some(true);
        }
        self.source.open(Some(stored)).await.ok()?;
        Some(self.source.shape().fingerprint == *stored)
    }

    /// Whether a row lies behind the checkpoint; `None` where the source does not answer.
    pub(crate) async fn has_rows_waiting(&self, document: &StateDocument) -> Option<bool> {
        let window = FetchWindow {
            after: document.checkpoint.cursor.as_ref(),
            upto: None,
            rows_max: 1,
            state: &document.source_state,
        };
        self.source.has_rows_behind(window).await.ok()
    }

    /// Keeps how long the last commit took, for the next tick to tell of.
    pub(super) fn keep_commit(&self, milliseconds: u64) {
        self.last_commit_ms.store(milliseconds.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns how long the last commit of this process took, in milliseconds, with the step's name.
    pub(super) fn last_commit(&self) -> Option<(String, u64)> {
        let kept = self.last_commit_ms.load(Ordering::Relaxed).checked_sub(1)?;
        Some(("commit".to_owned(), kept))
    }

    /// Returns how long its lease lives without a write.
    pub fn lease_ttl(&self) -> Duration {
        self.terms.ttl
    }

    /// Returns the longest pause after failures.
    pub(crate) fn retry_delay_max(&self) -> Duration {
        self.limits.retry_delay_max
    }

    /// Whether it keeps a journal.
    pub(crate) fn keeps_journal(&self) -> bool {
        self.recorder().mode() != JournalMode::Off
    }

    /// Numbers a write of the controller.
    pub(crate) fn number_recovery(&self, document: &mut StateDocument) {
        self.number(Happened::Recovered, document);
    }

    /// Tells the journal of a write of the controller.
    pub(crate) async fn tell_of_recovery(
        &self,
        document: &StateDocument,
        at: OffsetDateTime,
        condition: &str,
    ) {
        let operator = Operator { by: CONTROLLER, reason: condition };
        self.tell_of_operator((Happened::Recovered, operator), document, at).await;
    }
}
