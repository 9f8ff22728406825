//! Changes that the notifier of a poller reports.

use super::{Reason, Report, RowEvent, rows_of};
use crate::cursor::KeyId;
use crate::document::{Paused, StateDocument};
use crate::error::chain;
use crate::notification::{Change, ChangeEvent};
use crate::poller::{TickError, TickOutcome};
use crate::quarantine::Entry;
use crate::status::health::FailureClass;
use crate::tick::failure::breaker_text;

/// A poller without its document does not continue by itself, although its state has a name of its own.
const VANISHED: &str = "state_vanished";

impl Report<'_> {
    /// Notes how ticks failed before this one, according to the document.
    pub(in crate::tick) fn note_known_failure(&mut self, document: &StateDocument) {
        if self.poller.notifier.is_none() {
            return;
        }
        // Both are recorded without, or before, the failure of the tick that finds them.
        let recorded = document.lost_position().map(|_| "position_lost");
        let recorded = recorded.or_else(|| document.fence_ahead().map(|_| "fence_ahead"));
        let failing = document.last_failure.as_ref().map(|failure| failure.kind.as_str());
        self.known_failure = recorded.or(failing).map(str::to_owned);
    }

    /// Notes that this tick failed in another way than the one before it in this process.
    ///
    /// Another process may have reported the same failure: then the document has it.
    pub(in crate::tick) fn failed_in_new_way(
        &mut self,
        kind: &'static str,
        result: &Result<TickOutcome, TickError>,
    ) {
        let Err(error) = result else { return };
        let is_stop = FailureClass::of(kind) == FailureClass::Stopped || kind == VANISHED;
        if is_stop && self.known_failure.as_deref() != Some(kind) {
            self.add(Change::new(ChangeEvent::PollerStopped, Some(kind), chain(error)));
        }
    }

    /// Notes that a rule has paused the poller.
    pub(in crate::tick) fn paused_by_rule(&mut self, kind: &'static str, paused: &Paused) {
        let change = Change::new(ChangeEvent::PollerStopped, Some(kind), paused.reason.clone());
        self.add(change);
    }

    pub(super) fn rows_were_set_aside(
        &mut self,
        event: ChangeEvent,
        events: &[RowEvent],
        reason: Reason,
        error: &str,
    ) {
        let change = Change::new(event, Some(reason.as_str()), error.to_owned());
        let key_id = events.first().map(|event| KeyId::of(&event.cursor.key));
        self.add(Change { key_id, count: rows_of(events), ..change });
    }

    pub(super) fn key_was_quarantined(&mut self, entry: &Entry) {
        let (event, kind) = (ChangeEvent::RowQuarantined, Some(entry.reason.as_str()));
        let change = Change::new(event, kind, entry.error.clone());
        self.add(Change { key_id: Some(entry.key_id.clone()), ..change });
    }

    pub(super) fn breaker_has_opened(&mut self, quarantined_in_a_row: u32) {
        let reason = breaker_text(quarantined_in_a_row);
        self.add(Change::new(ChangeEvent::BreakerOpened, None, reason));
    }

    fn add(&mut self, change: Change) {
        if self.poller.notifier.is_some() {
            change.add_to(&mut self.changes);
        }
    }
}
