//! Pausing and resuming a poller on request of an operator.
//!
//! Neither needs the source or the handler, which may be what is broken. Both are conditional writes, repeated on top
//! of whatever was written meanwhile.

use std::time::Duration;

use time::OffsetDateTime;

use crate::admin::Admin;
use crate::document::{LeaseState, Paused, RecentTick, Snapshot, StateDocument};
use crate::journal::EventKind;
use crate::poller::memory::never_ran;
use crate::poller::{Operator, TickError};

/// How long an operator's change is retried if other writers or a broken store interfere.
pub(super) const CHANGE_TIME_MAX: Duration = Duration::from_secs(10);

/// Result of pausing.
#[derive(Clone, Debug, PartialEq)]
pub enum PauseOutcome {
    /// No tick starts from now on.
    Paused {
        /// What was written.
        paused: Paused,
        /// The instance with a tick in progress, which ends after the batch in flight.
        running: Option<String>,
    },
    /// It was already paused; nothing changes.
    AlreadyPaused(Paused),
}

/// Result of resuming.
#[derive(Clone, Debug, PartialEq)]
pub enum ResumeOutcome {
    /// The next tick runs.
    Resumed {
        /// The pause that was ended.
        was: Paused,
    },
    /// It was not paused, but its failed batch was backing off; the next tick retries it.
    BackoffEnded {
        /// The end of that backoff.
        until: OffsetDateTime,
    },
    /// It was neither paused nor backing off.
    NotPaused,
}

/// A change to write, or a result that needs none.
pub(super) enum Change<T> {
    Write(Box<StateDocument>, T),
    Nothing(T),
}

impl Admin<'_> {
    /// Keeps ticks from running, in any process, until [`Self::resume`]. A poller that never ran can be paused too.
    ///
    /// # Errors
    ///
    /// [`TickError::Load`] if the state cannot be read or written, [`TickError::StateVanished`] if the poller has run
    /// and its state is gone.
    pub async fn pause(self, operator: Operator<'_>) -> Result<PauseOutcome, TickError> {
        self.change((EventKind::Paused, operator), |base| {
            if let Some(paused) = &base.document.paused {
                return Change::Nothing(PauseOutcome::AlreadyPaused(paused.clone()));
            }
            let paused = Paused {
                by: operator.by.to_owned(),
                reason: operator.reason.to_owned(),
                at: base.now(),
                extra: serde_json::Map::new(),
            };
            let age = base.age(self.poller.store.grain());
            let running = match base.document.lease_state(self.poller.instance.owner_id(), age) {
                LeaseState::Held { owner_id } => Some(owner_id),
                LeaseState::Free | LeaseState::Own | LeaseState::Lapsed => None,
            };
            let next = base.document.pause(paused.clone(), age);
            Change::Write(Box::new(next), PauseOutcome::Paused { paused, running })
        })
        .await
    }

    /// Lets ticks run again, whatever paused the poller: an operator, its failure policy, or a handler whose target
    /// is gone.
    ///
    /// The next tick also retries a failed batch that is backing off, even if the poller was not paused: the operator
    /// knows that the cause is fixed. Attempts and crashes of its rows stay counted, unless they paused the poller.
    ///
    /// # Errors
    ///
    /// As [`Self::pause`].
    pub async fn resume(self, operator: Operator<'_>) -> Result<ResumeOutcome, TickError> {
        self.change((EventKind::Resumed, operator), |base| {
            let in_flight = base.document.in_flight.as_ref();
            let waits_until = in_flight.and_then(|batch| batch.next_attempt_at);
            let answer = match (&base.document.paused, waits_until) {
                (Some(was), _) => ResumeOutcome::Resumed { was: was.clone() },
                (None, Some(until)) if until > base.now() => ResumeOutcome::BackoffEnded { until },
                (None, _) => return Change::Nothing(ResumeOutcome::NotPaused),
            };
            let mut next = base.document.resume(base.age(self.poller.store.grain()));
            next.note(operator_tick("resumed", operator, base.now()));
            Change::Write(Box::new(next), answer)
        })
        .await
    }

    /// Applies a change to what is stored, and again after each conflict, until it is written. If nothing is stored,
    /// a blank document is created first.
    pub(super) async fn change<T>(
        self,
        action: (EventKind, Operator<'_>),
        change: impl Fn(&Snapshot) -> Change<T>,
    ) -> Result<T, TickError> {
        let mut changing = self.poller.documents(CHANGE_TIME_MAX).change();
        loop {
            let base = changing.read(|| self.poller.blank()).await?;
            // A new document in place of a lost one would hide the loss.
            if never_ran(&base.document) {
                self.poller.refuse_loss().await?;
            }
            let (mut next, answer) = match change(&base) {
                Change::Write(next, answer) => (next, answer),
                Change::Nothing(answer) => return Ok(answer),
            };
            next.write_id = self.poller.instance.next_write_id();
            self.poller.number(action.0, &mut next);
            if let Some(written) = changing.write(&base, next).await? {
                self.poller
                    .record_operator_action(action, &written.document, written.written_at())
                    .await;
                return Ok(answer);
            }
        }
    }
}

/// Returns the entry of the ring for an operator's action.
pub(super) fn operator_tick(
    outcome: &str,
    operator: Operator<'_>,
    at: OffsetDateTime,
) -> RecentTick {
    RecentTick::note(outcome, at, [("by", operator.by), ("reason", operator.reason)])
}
