//! How the ticks of this process ended, for the status views.
//!
//! Separate from `memory`, which a running tick keeps locked: a view never waits for a tick. Times are monotonic and
//! are converted to storage times only for display, because a failing tick may have no storage time at all.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::Level;

use super::outcome::failed;
use super::{Poller, TickError, TickOutcome};
use crate::document::{DocumentAge, LastFailure, Snapshot};
use crate::error::{chain, shortened};
use crate::handler::HandlerError;
use crate::status::health::{self, Failure, FailureClass, Process, StoredState};

/// How the last ticks of this process ended.
#[derive(Debug, Default)]
pub(crate) struct TickHistory {
    is_running: bool,
    last_tick: Option<Instant>,
    last_success: Option<Instant>,
    /// Failed ticks since the last success.
    failure: Option<FailedTicks>,
    /// What is stored, as last seen.
    seen: Option<LastSeen>,
    /// The storage service's time, and when it was that.
    clock: Option<(OffsetDateTime, Instant)>,
}

/// What is stored under the name of a poller, as this process last saw it.
#[derive(Clone, Debug)]
pub(crate) enum LastSeen {
    /// A document, and its age when it was seen. The age is not continued: a lease that nobody has looked at since
    /// would seem to have lapsed.
    Document(Box<Snapshot>, DocumentAge),
    /// No document.
    Missing {
        /// Whether the poller has run before.
        ran_before: bool,
    },
    /// A document that cannot be used, and why.
    Unreadable(String),
    /// The last tick failed before it knew.
    Unknown,
}

impl LastSeen {
    /// Returns it as evidence.
    pub(crate) fn stored(&self) -> StoredState<'_> {
        match self {
            Self::Document(snapshot, age) => {
                StoredState::Found(Box::new(health::Document::of(&snapshot.document, *age)))
            }
            Self::Missing { ran_before } => StoredState::Missing { ran_before: *ran_before },
            Self::Unreadable(error) => StoredState::Unreadable(error),
            Self::Unknown => StoredState::Found(Box::default()),
        }
    }
}

#[derive(Debug)]
struct FailedTicks {
    since: Instant,
    last: Instant,
    count: u64,
    /// How many of them are not in the document.
    unrecorded: u64,
    /// When this process last wrote them to the document, and their kind then.
    recorded: Option<(Instant, &'static str)>,
    kind: &'static str,
    error: String,
}

/// Marks a tick as running until it is dropped: a tick may be cancelled.
pub(crate) struct RunningTick<'a>(&'a Poller);

impl Drop for RunningTick<'_> {
    fn drop(&mut self) {
        self.0.tick_history().is_running = false;
    }
}

impl Poller {
    fn tick_history(&self) -> MutexGuard<'_, TickHistory> {
        self.history.lock().expect("no holder of this lock panics")
    }

    /// Records that a tick is running, until the result is dropped.
    pub(crate) fn running_tick(&self) -> RunningTick<'_> {
        self.tick_history().is_running = true;
        RunningTick(self)
    }

    /// Records how a tick that delivered `rows` ended. `is_recorded` says whether its failure is already in the document.
    ///
    /// A tick that only parked rows, or was skipped, paused or backing off is neither a success nor a failure. Nor is a lost lease, which
    /// is part of the protocol.
    ///
    /// Returns the kind of the failure, unless the failure before it was of the same kind.
    pub(crate) fn note_end_of_tick(
        &self,
        result: &Result<TickOutcome, TickError>,
        rows: u64,
        is_recorded: bool,
    ) -> Option<&'static str> {
        let now = Instant::now();
        let mut history = self.tick_history();
        history.last_tick = Some(now);
        match result {
            Ok(outcome @ (TickOutcome::Committed { .. } | TickOutcome::Idle)) => {
                if rows > 0 || *outcome == TickOutcome::Idle {
                    history.last_success = Some(now);
                }
                history.failure = None;
            }
            Ok(_) => {}
            Err(error) => {
                let kind = failure_kind(error)?;
                let failure = history.failure.get_or_insert_with(|| FailedTicks::since(now));
                failure.last = now;
                failure.count += 1;
                failure.unrecorded += 1;
                let before = std::mem::replace(&mut failure.kind, kind);
                failure.error = shortened(if let TickError::Handler(of_handler) = error {
                    // As the document says it.
                    chain(of_handler)
                } else {
                    chain(error)
                });
                if is_recorded {
                    failure.note_recorded();
                }
                return (before != kind).then_some(kind);
            }
        }
        None
    }

    /// Records what a tick knew of the document when it ended.
    pub(crate) fn note_document(
        &self,
        snapshot: Option<&Snapshot>,
        result: &Result<TickOutcome, TickError>,
    ) {
        match (snapshot, result) {
            // The snapshot, if any, is the one of the tick before.
            (_, Err(TickError::StateVanished { .. })) => {
                self.note_seen(LastSeen::Missing { ran_before: true });
            }
            (Some(snapshot), _) => self.note_snapshot(snapshot),
            // What an earlier tick knew may be what an operator has changed since.
            (None, Err(_)) => self.note_seen(LastSeen::Unknown),
            // Another writer was first: the next tick reads what it wrote.
            (None, Ok(_)) => {}
        }
    }

    /// Records a document that was read.
    pub(crate) fn note_snapshot(&self, snapshot: &Snapshot) {
        let age = snapshot.age(self.store.grain());
        let mut history = self.tick_history();
        history.clock = Some(snapshot.clock());
        match &mut history.seen {
            // An idle tick leaves the document as it is.
            Some(LastSeen::Document(seen, seen_age))
                if Arc::ptr_eq(&seen.document, &snapshot.document) =>
            {
                *seen_age = age;
            }
            seen => *seen = Some(LastSeen::Document(Box::new(snapshot.clone()), age)),
        }
    }

    /// Records what was found under the poller's name.
    pub(crate) fn note_seen(&self, seen: LastSeen) {
        self.tick_history().seen = Some(seen);
    }

    /// Records the storage service's time.
    pub(crate) fn note_time(&self, now: OffsetDateTime) {
        self.tick_history().clock = Some((now, Instant::now()));
    }

    /// Returns what this process last saw of the document; `None` before the first tick.
    pub(crate) fn seen(&self) -> Option<LastSeen> {
        let history = self.tick_history();
        let is_running = history.is_running;
        history.seen.clone().or_else(|| is_running.then_some(LastSeen::Unknown))
    }

    /// Returns the storage service's time, continued from its last answer.
    pub(crate) fn storage_time(&self) -> Option<OffsetDateTime> {
        self.tick_history().clock.map(|(at, seen)| at + seen.elapsed())
    }

    /// Returns the failed ticks that are not in the document yet.
    pub(crate) fn unrecorded_failure(&self, now: OffsetDateTime) -> Option<LastFailure> {
        let history = self.tick_history();
        let failure = history.failure.as_ref().filter(|failure| failure.unrecorded > 0)?;
        Some(LastFailure {
            at: now - failure.last.elapsed(),
            since: now - failure.since.elapsed(),
            count: failure.unrecorded,
            kind: failure.kind.to_owned(),
            error: failure.error.clone(),
            extra: serde_json::Map::new(),
        })
    }

    /// Whether to record failed ticks in the document: this is the first one, the first one that needs an operator,
    /// or the last record is `interval` old.
    pub(crate) fn is_failure_due(&self, interval: Duration) -> bool {
        let history = self.tick_history();
        let failure = history.failure.as_ref().filter(|failure| failure.unrecorded > 0);
        failure.is_some_and(|failure| failure.is_due(interval))
    }

    /// Notes that the failed ticks are in the document.
    pub(crate) fn note_failure_recorded(&self) {
        if let Some(failure) = &mut self.tick_history().failure {
            failure.note_recorded();
        }
    }

    /// Returns what this process saw of its own ticks, in storage times. Never waits for a running tick.
    pub fn process(&self, now: OffsetDateTime) -> Process {
        let at = |instant: Instant| now - instant.elapsed();
        let history = self.tick_history();
        Process {
            running: history.is_running,
            last_tick_at: history.last_tick.map(at),
            last_success_at: history.last_success.map(at),
            failure: history.failure.as_ref().map(|failure| Failure {
                at: at(failure.last),
                since: at(failure.since),
                count: failure.count,
                kind: failure.kind.to_owned(),
                error: failure.error.clone(),
            }),
        }
    }
}

impl FailedTicks {
    fn since(now: Instant) -> Self {
        let (kind, error) = ("", String::new());
        Self { since: now, last: now, count: 0, unrecorded: 0, recorded: None, kind, error }
    }

    fn note_recorded(&mut self) {
        self.unrecorded = 0;
        self.recorded = Some((Instant::now(), self.kind));
    }

    fn is_due(&self, interval: Duration) -> bool {
        self.recorded.is_none_or(|(at, kind)| {
            FailureClass::is_new_stop(kind, self.kind) || at.elapsed() >= interval
        })
    }
}

/// Returns the kind of a failure, as [`FailureClass::of`] reads it; `None` for an outcome that is not a failure of the
/// poller.
fn failure_kind(error: &TickError) -> Option<&'static str> {
    if let TickError::Handler(error) = error
        && !matches!(error, HandlerError::Fenced(_))
    {
        return Some(handler_failure_kind(error));
    }
    let row = failed(error);
    (row.level == Level::ERROR).then_some(row.outcome)
}

/// Returns the kind of a handler's failure: the three need different actions.
pub(crate) fn handler_failure_kind(error: &HandlerError) -> &'static str {
    match error {
        HandlerError::Misconfigured(_) | HandlerError::Gone(_) => "handler_misconfigured",
        HandlerError::Rejected(_) => "handler_rejected",
        HandlerError::Retryable(_)
        | HandlerError::Throttled { .. }
        | HandlerError::TooLarge(_)
        | HandlerError::Partial { .. }
        | HandlerError::Stalled(_)
        | HandlerError::Fenced(_) => "handler_failed",
    }
}
