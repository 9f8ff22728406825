//! Pausing a poller and letting it run again, as an operator asks for it.
//!
//! Neither touches the source or the handler: both are what may be broken then. Both are conditional
//! writes, made again on top of whatever was written meanwhile.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::sleep;

use super::memory::never_ran;
use super::{LoadError, Poller, TickError};
use crate::journal::Happened;
use crate::lease::Snapshot;
use crate::state::{Paused, Precondition, RecentTick, Standing, StateDocument, StoreError, encode};

/// Most tries of one change: those that other writers or broken answers thwart, and the creation.
const TRIES_MAX: u32 = 6;
/// Pause before the second try; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Who changes something by hand, and why.
#[derive(Clone, Copy, Debug)]
pub struct Operator<'a> {
    /// Who.
    pub by: &'a str,
    /// Why.
    pub reason: &'a str,
}

/// What became of a request to pause.
#[derive(Clone, Debug, PartialEq)]
pub enum Pausing {
    /// No tick begins from now on.
    Paused {
        /// What was written.
        paused: Paused,
        /// The instance that has a tick running, which ends after the batch in hand.
        running: Option<String>,
    },
    /// It was paused already; that stays as it is.
    PausedBefore(Paused),
}

/// What became of a request to resume.
#[derive(Clone, Debug, PartialEq)]
pub enum Resuming {
    /// The next tick runs.
    Resumed {
        /// What had stopped the poller.
        was: Paused,
    },
    /// It was not paused, but waited to try its failed batch again; the next tick does.
    BackOffEnded {
        /// Until when it would have waited.
        until: OffsetDateTime,
    },
    /// It was not paused, and waited for nothing.
    NotPaused,
}

/// A change that is made, or an answer that needs none.
pub(super) enum Change<T> {
    Write(Box<StateDocument>, T),
    Nothing(T),
}

impl Poller {
    /// Keeps ticks from running, in whatever process, until [`Self::resume`]. Also a poller that never
    /// ran can be paused.
    ///
    /// # Errors
    ///
    /// [`TickError::Load`] if the state cannot be read or written, [`TickError::StateVanished`] if the poller has run
    /// and its state is gone.
    pub async fn pause(&self, operator: Operator<'_>) -> Result<Pausing, TickError> {
        self.change((Happened::Paused, operator), true, |base| {
            if let Some(paused) = &base.document.paused {
                return Change::Nothing(Pausing::PausedBefore(paused.clone()));
            }
            let paused = Paused {
                by: operator.by.to_owned(),
                reason: operator.reason.to_owned(),
                at: base.now(),
                extra: serde_json::Map::new(),
            };
            let age = base.age(self.store.grain());
            let running = match base.document.standing(self.instance.owner_id(), age) {
                Standing::Held { owner_id } => Some(owner_id),
                Standing::Free | Standing::Own | Standing::Lapsed => None,
            };
            let next = base.document.pause(paused.clone(), age);
            Change::Write(Box::new(next), Pausing::Paused { paused, running })
        })
        .await
    }

    /// Lets ticks run again, whoever paused the poller: an operator, its failure policy, or a handler
    /// whose target said that it is gone.
    ///
    /// A failed batch that waits to be tried again is tried by the next tick, paused or not: whoever asks
    /// knows that what was in the way is gone. Its attempts and crashes are counted anew.
    ///
    /// # Errors
    ///
    /// As [`Self::pause`].
    pub async fn resume(&self, operator: Operator<'_>) -> Result<Resuming, TickError> {
        self.change((Happened::Resumed, operator), false, |base| {
            let in_flight = base.document.in_flight.as_ref();
            let waits_until = in_flight.and_then(|batch| batch.next_attempt_at);
            let answer = match (&base.document.paused, waits_until) {
                (Some(was), _) => Resuming::Resumed { was: was.clone() },
                (None, Some(until)) if until > base.now() => Resuming::BackOffEnded { until },
                (None, _) => return Change::Nothing(Resuming::NotPaused),
            };
            let mut next = base.document.resume(base.age(self.store.grain()));
            next.note(by_hand("resumed", operator, base.now()));
            Change::Write(Box::new(next), answer)
        })
        .await
    }

    /// Applies a change to what is stored, and again to what is stored then, until it is written.
    /// Where nothing is stored a blank document is created first if `create` says so.
    pub(super) async fn change<T>(
        &self,
        told: (Happened, Operator<'_>),
        create: bool,
        change: impl Fn(&Snapshot) -> Change<T>,
    ) -> Result<T, TickError> {
        let write_id = self.instance.next_write_id();
        let mut written = None;
        let mut pause = PAUSE_MIN;
        let mut last = StoreError::Conflict { key: self.key.path() };
        for tried in 1..=TRIES_MAX {
            let try_it = self.try_change(told, create, (&write_id, &mut written), &change);
            // Boxed: a document is large, and this future lies within those of all that changes one.
            let error = match Box::pin(try_it).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => continue,
                Err(error) => error,
            };
            let TickError::Load(LoadError::Store(
                thwarted @ (StoreError::Conflict { .. }
                | StoreError::Unreachable { .. }
                | StoreError::Unknown { .. }),
            )) = error
            else {
                return Err(error);
            };
            last = thwarted;
            if tried < TRIES_MAX {
                sleep(pause).await;
                pause *= 2;
            }
        }
        Err(LoadError::Store(last).into())
    }

    /// Tries once; `written` holds the answer of a write that may have landed.
    async fn try_change<T>(
        &self,
        told: (Happened, Operator<'_>),
        create: bool,
        (write_id, written): (&str, &mut Option<T>),
        change: impl Fn(&Snapshot) -> Change<T>,
    ) -> Result<Option<T>, TickError> {
        let loaded = self.store.load(&self.key).await.map_err(LoadError::Store)?;
        let stored = loaded.stored.map(|stored| Snapshot::read(&self.key, stored, loaded.date));
        let stored = stored.transpose().map_err(LoadError::Format)?;
        // A file in the place of a lost one would hide the loss.
        if stored.as_ref().is_none_or(|stored| never_ran(&stored.document)) {
            self.refuse_loss().await?;
        }
        let base = match stored {
            Some(stored) => stored,
            None if create => {
                self.create_blank().await?;
                return Ok(None);
            }
            None => {
                let fingerprint = self.source.shape().fingerprint.clone();
                Snapshot::absent(StateDocument::blank(&self.name, fingerprint), loaded.date)
            }
        };
        if base.document.write_id == write_id {
            self.tell_of_operator(told, &base.document, base.now()).await;
            return Ok(written.take());
        }
        let (mut next, answer) = match change(&base) {
            Change::Write(next, answer) => (next, answer),
            Change::Nothing(answer) => return Ok(Some(answer)),
        };
        let Some(etag) = base.etag else { return Ok(None) };
        write_id.clone_into(&mut next.write_id);
        self.number(told.0, &mut next);
        match self.store.store(&self.key, encode(&next), Precondition::Matches(etag)).await {
            Ok(done) => {
                self.tell_of_operator(told, &next, done.date).await;
                Ok(Some(answer))
            }
            Err(error) => {
                *written = Some(answer);
                Err(LoadError::Store(error).into())
            }
        }
    }
}

/// Returns the entry of the ring for what an operator did.
pub(super) fn by_hand(outcome: &str, operator: Operator<'_>, at: OffsetDateTime) -> RecentTick {
    RecentTick::note(outcome, at, [("by", operator.by), ("reason", operator.reason)])
}
