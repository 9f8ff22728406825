//! What the recovery controller queries from a poller in addition to its document. Reads only.

use std::time::Duration;

use time::OffsetDateTime;

use crate::admin::Operator;
use crate::document::StateDocument;
use crate::journal::EventKind;
use crate::poller::Poller;
use crate::source::FetchWindow;

/// The controller's name, where operators are named.
const CONTROLLER: &str = "recovery controller";

impl Poller {
    /// Whether `document` belongs to the source in the settings; `None` if that is unknown now.
    pub(super) async fn matches_source(&self, document: &StateDocument) -> Option<bool> {
        let stored = &document.source_fingerprint;
        if document.is_blank() && document.checkpoint.cursor.is_none() {
            return Some(true);
        }
        self.source.open(Some(stored)).await.ok()?;
        Some(self.source.shape().fingerprint == *stored)
    }

    /// Whether a row follows the checkpoint; `None` if the source does not respond.
    pub(super) async fn has_rows_waiting(&self, document: &StateDocument) -> Option<bool> {
        let window = FetchWindow {
            after: document.checkpoint.cursor.as_ref(),
            upto: None,
            rows_max: 1,
            state: &document.source_state,
        };
        self.source.has_rows_behind(window).await.ok()
    }

    /// Returns the longest backoff after failures.
    pub(super) fn retry_delay_max(&self) -> Duration {
        self.limits.retry_delay_max
    }

    /// Returns the longest backoff that a target may ask for.
    pub(super) fn retry_after_max(&self) -> Duration {
        self.limits.retry_after_max
    }

    /// Numbers a write of the controller.
    pub(super) fn number_write(&self, document: &mut StateDocument) {
        self.number(EventKind::Recovered, document);
    }

    /// Records a write of the controller in the journal.
    pub(super) async fn record_recovery(
        &self,
        document: &StateDocument,
        at: OffsetDateTime,
        condition: &str,
    ) {
        let operator = Operator { by: CONTROLLER, reason: condition };
        self.record_operator_action((EventKind::Recovered, operator), document, at).await;
    }
}
