//! The state of a poller, computed in one place. Pure.
//!
//! Every view calls [`Evidence::health`]: the page, `/api/status`, `status`, `doctor`, `recover`, metrics and the
//! health routes. So they always agree.
//!
//! # No flapping
//!
//! The state is that of the last finished tick, until the next one finishes. A tick in progress is shown alongside it
//! ([`Health::running`]), and an expired backoff stays a backoff until the batch is retried. Otherwise a poller that
//! fails every five seconds would look healthy in between.
//!
//! # Silence
//!
//! Idle and failing ticks write to the document at most every `STATUS_INTERVAL`. A poller is silent once three of its
//! due times and two of these intervals have passed without a trace of a tick. If `STATUS_INTERVAL` is 0, idle ticks
//! leave no trace, so the state is [`PollerState::Unknown`] instead of [`PollerState::Silent`].

use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use crate::clock::span;
use crate::error::restore_state;
use crate::event::counted;
use crate::schedule::Schedule;

/// Missed due times after which a poller is silent.
const DUE_TIMES_MISSED: usize = 3;
/// The same, in intervals at which idle ticks leave a trace.
const INTERVALS_MISSED: u32 = 2;

/// Two times of one failure differ by less: one is the service's, the other was computed.
const SAME_TICK: time::Duration = time::Duration::seconds(3);

/// The state of a poller in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PollerState {
    /// No tick has left a trace yet.
    #[default]
    NeverRan,
    /// A tick is in progress, and none has finished before it.
    Running,
    /// The last tick succeeded.
    Idle,
    /// The target did not accept the batch; the next attempt is scheduled.
    BackingOff,
    /// The last tick failed.
    Failing,
    /// Ticks deliver nothing until an operator decides.
    Stopped,
    /// No tick has run for longer than the schedule allows.
    Silent,
    /// The same, but idle ticks leave no trace: they may be running.
    Unknown,
    /// The poller has run before, but its state document is gone.
    Vanished,
    /// An operator paused it.
    Paused,
    /// No function runs it.
    Disabled,
    /// A range that was delivered completely.
    Done,
    /// A range that was cancelled.
    Cancelled,
    /// Other partitions deliver its rows.
    TakenOver,
}

/// How urgent a state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing to do.
    #[default]
    Ok,
    /// Nothing is delivered now. It is deliberate, or resolves by itself.
    Warning,
    /// Nothing is delivered until an operator acts.
    Error,
}

impl PollerState {
    /// Whether the next due tick is expected to read rows.
    pub fn announces_tick(self) -> bool {
        matches!(
            self,
            Self::NeverRan | Self::Running | Self::Idle | Self::BackingOff | Self::Failing
        )
    }

    /// All states, in the order of their names in metrics.
    pub const ALL: [Self; 14] = [
        Self::NeverRan,
        Self::Running,
        Self::Idle,
        Self::BackingOff,
        Self::Failing,
        Self::Stopped,
        Self::Silent,
        Self::Unknown,
        Self::Vanished,
        Self::Paused,
        Self::Disabled,
        Self::Done,
        Self::Cancelled,
        Self::TakenOver,
    ];

    /// Returns the name of the state in JSON, metrics and command output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NeverRan => "never_ran",
            Self::Running => "running",
            Self::Idle => "idle",
            Self::BackingOff => "backing_off",
            Self::Failing => "failing",
            Self::Stopped => "stopped",
            Self::Silent => "silent",
            Self::Unknown => "unknown",
            Self::Vanished => "vanished",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::TakenOver => "taken_over",
        }
    }

    /// Returns how urgent the state is.
    pub fn severity(self) -> Severity {
        match self {
            Self::Running | Self::Idle | Self::Done | Self::Cancelled | Self::TakenOver => {
                Severity::Ok
            }
            Self::NeverRan | Self::BackingOff | Self::Unknown | Self::Paused | Self::Disabled => {
                Severity::Warning
            }
            Self::Failing | Self::Stopped | Self::Silent | Self::Vanished => Severity::Error,
        }
    }
}

/// What kind of failure a tick ended with.
///
/// The names are the `outcome` values of [`outcome_row`](crate::poller::outcome_row). A failed handler call has
/// three, because 503, 401 and 400 need different actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// The next attempt may succeed.
    Retried,
    /// It fails again until something is fixed.
    Failing,
    /// Only an operator can resolve it.
    Stopped,
}

impl FailureClass {
    /// Returns the class of a kind of failure.
    pub fn of(kind: &str) -> Self {
        match kind {
            "handler_failed" | "out_of_time" => Self::Retried,
            "position_lost"
            | "schema_changed"
            | "fingerprint"
            | "fence_ahead"
            | "not_started"
            | "first_run_elsewhere" => Self::Stopped,
            _ => Self::Failing,
        }
    }

    /// Whether ticks that failed with `before` have stopped with `kind`: then it is recorded at once.
    pub(crate) fn is_new_stop(before: &str, kind: &str) -> bool {
        before != kind && Self::of(kind) == Self::Stopped
    }
}

/// Consecutive failed ticks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The last one; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The first one.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// How many.
    pub count: u64,
    /// What failed: see [`FailureClass::of`].
    pub kind: String,
    /// Why, in one line.
    pub error: String,
}

/// What is stored under the name of a poller.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredState<'a> {
    /// No document.
    Missing {
        /// Whether a marker says that the poller ran before.
        ran_before: bool,
    },
    /// A document that cannot be used, and why.
    Unreadable(&'a str),
    /// A document.
    Found(Box<Document<'a>>),
}

/// What a state document says about its poller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document<'a> {
    /// [`PollerState::Done`], [`PollerState::Cancelled`] or [`PollerState::TakenOver`], if nothing is left to
    /// deliver.
    pub ended: Option<PollerState>,
    /// Whether a lease was ever granted.
    pub has_run: bool,
    /// The lease.
    pub lease: LeaseStatus<'a>,
    /// Who paused the poller, and why.
    pub paused: Option<Pause<'a>>,
    /// Why ticks stop before they read: rows are lost after the checkpoint, or the target's fence is ahead.
    pub stopped: Option<String>,
    /// Failed ticks since the last success.
    pub failure: Option<Failure>,
    /// When a tick last succeeded.
    pub last_success_at: Option<OffsetDateTime>,
    /// When a tick last left a trace.
    pub last_tick_at: Option<OffsetDateTime>,
    /// When the batch in flight is retried.
    pub next_attempt_at: Option<OffsetDateTime>,
    /// Keys whose rows are not delivered until an operator acts.
    pub quarantined: u64,
}

/// A lease according to its document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseStatus<'a> {
    /// Released.
    #[default]
    Free,
    /// Held and renewed.
    Held,
    /// Held by an instance that stopped renewing it.
    Lapsed {
        /// The instance.
        owner_id: &'a str,
    },
}

/// A pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause<'a> {
    /// Who paused it.
    pub by: &'a str,
    /// Why.
    pub reason: &'a str,
    /// Since when.
    pub at: OffsetDateTime,
    /// Whether the failure policy or a reply of the target paused it, rather than a person.
    pub is_by_rule: bool,
}

/// What this process saw of the poller itself; empty in a process that runs no ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Whether a tick is in progress.
    pub running: bool,
    /// When the last tick ended, with any outcome.
    pub last_tick_at: Option<OffsetDateTime>,
    /// When a tick last succeeded.
    pub last_success_at: Option<OffsetDateTime>,
    /// Failed ticks since that success.
    pub failure: Option<Failure>,
}

/// What triggers the ticks of a poller.
#[derive(Clone, Copy, Debug, Default)]
pub enum Trigger<'a> {
    /// Its functions are unknown, or it needs none.
    #[default]
    Unknown,
    /// No function runs it, for this reason.
    Off(&'a str),
    /// When its functions run.
    Timer(&'a [Schedule]),
}

/// Everything known about one poller.
#[derive(Clone, Debug)]
pub struct Evidence<'a> {
    /// Its name.
    pub poller: &'a str,
    /// The time; that of the storage service if known.
    pub now: OffsetDateTime,
    /// Its document.
    pub stored: StoredState<'a>,
    /// What this process saw.
    pub process: Process,
    /// What triggers its ticks.
    pub trigger: Trigger<'a>,
    /// How often idle ticks leave a trace: zero for never, `None` if the poller is not in the settings.
    pub status_interval: Option<Duration>,
}

/// The state of a poller, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Health {
    /// The state.
    pub state: PollerState,
    /// How urgent it is.
    pub severity: Severity,
    /// Whether a tick is in progress.
    pub running: bool,
    /// Why, in one line; `None` if nothing is wrong.
    pub cause: Option<String>,
    /// Since when.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// Failed ticks since the last success.
    pub last_failure: Option<Failure>,
    /// When a tick last succeeded.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_success_at: Option<OffsetDateTime>,
    /// When a tick last left a trace.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_tick_at: Option<OffsetDateTime>,
    /// Page of the documentation that says what to do, relative to `docs/`.
    pub runbook: Option<&'static str>,
}

/// What an interval without a trace of a tick means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    /// Ticks run, or it is unknown how often they should.
    No,
    /// They do not run.
    Silent,
    /// They may be running: idle ticks leave no trace.
    Unknown,
}

/// A state with its reason, before the result is assembled.
struct Verdict {
    state: PollerState,
    cause: Option<String>,
    since: Option<OffsetDateTime>,
}

impl Verdict {
    fn new(state: PollerState, cause: impl Into<String>, since: Option<OffsetDateTime>) -> Self {
        Self { state, cause: Some(cause.into()), since }
    }

    fn fine(state: PollerState) -> Self {
        Self { state, cause: None, since: None }
    }
}

impl Evidence<'_> {
    /// Returns the state of the poller.
    pub fn health(&self) -> Health {
        let failure = self.failure();
        let verdict = self.verdict(failure.as_ref());
        let document = self.document();
        let is_held = document.is_some_and(|document| document.lease == LeaseStatus::Held);
        let state = verdict.state;
        let quarantined = document.map_or(0, |document| document.quarantined);
        // Other rows are delivered, so this is not a state.
        let has_quarantined = state.severity() == Severity::Ok && quarantined > 0;
        let verdict = Verdict {
            cause: if has_quarantined {
                Some(self.quarantined(quarantined))
            } else {
                verdict.cause
            },
            ..verdict
        };
        Health {
            state,
            severity: match (state, self.status_interval) {
                // A poller that is not in the settings is not expected to run.
                (PollerState::Disabled | PollerState::NeverRan, None) => Severity::Ok,
                _ if has_quarantined => Severity::Warning,
                _ => state.severity(),
            },
            running: self.process.running || is_held,
            cause: verdict.cause,
            since: verdict.since,
            last_success_at: self.last_success_at(),
            last_tick_at: self.last_tick_at(),
            runbook: if has_quarantined {
                Some("runbooks/quarantine.md")
            } else {
                runbook(state, failure.as_ref())
            },
            last_failure: failure,
        }
    }

    fn document(&self) -> Option<&Document<'_>> {
        match &self.stored {
            StoredState::Found(document) => Some(document),
            StoredState::Missing { .. } | StoredState::Unreadable(_) => None,
        }
    }

    fn last_success_at(&self) -> Option<OffsetDateTime> {
        self.document()
            .and_then(|document| document.last_success_at)
            .max(self.process.last_success_at)
    }

    fn last_tick_at(&self) -> Option<OffsetDateTime> {
        self.document().and_then(|document| document.last_tick_at).max(self.process.last_tick_at)
    }

    /// Returns the failed ticks since the last success, from document and process.
    fn failure(&self) -> Option<Failure> {
        let success_at = self.last_success_at();
        let stands = |failure: &&Failure| success_at.is_none_or(|at| failure.at >= at);
        let stored = self.document().and_then(|document| document.failure.as_ref()).filter(stands);
        let own = self.process.failure.as_ref().filter(stands);
        match (stored, own) {
            // The document is written less often than ticks fail.
            (Some(stored), Some(own)) => {
                let same_tick = stored.kind == own.kind && (own.at - stored.at).abs() < SAME_TICK;
                // Of the same failure, the document may say more.
                let newest = if own.at >= stored.at && !same_tick { own } else { stored };
                let count = stored.count.max(own.count);
                Some(Failure { since: stored.since.min(own.since), count, ..newest.clone() })
            }
            (stored, own) => own.or(stored).cloned(),
        }
    }

    fn verdict(&self, failure: Option<&Failure>) -> Verdict {
        let document = match &self.stored {
            StoredState::Unreadable(error) => {
                return Verdict::new(
                    PollerState::Failing,
                    *error,
                    failure.map(|failure| failure.since),
                );
            }
            StoredState::Missing { ran_before } => {
                let vanished = failure.filter(|failure| failure.kind == "state_vanished");
                if *ran_before || vanished.is_some() {
                    let cause =
                        vanished.map_or_else(|| self.vanished(), |vanished| vanished.error.clone());
                    return Verdict::new(
                        PollerState::Vanished,
                        cause,
                        vanished.map(|vanished| vanished.since),
                    );
                }
                &Document::default()
            }
            StoredState::Found(document) => document,
        };
        if let Some(ended) = document.ended {
            return Verdict::fine(ended);
        }
        if let Some(pause) = &document.paused {
            let Pause { by, reason, at, is_by_rule } = *pause;
            let state = if is_by_rule { PollerState::Stopped } else { PollerState::Paused };
            return Verdict::new(state, format!("paused by {by}: {reason}"), Some(at));
        }
        if let Trigger::Off(reason) = self.trigger {
            return Verdict::new(PollerState::Disabled, reason, None);
        }
        if let Some(reason) = &document.stopped {
            return Verdict::new(
                PollerState::Stopped,
                reason,
                failure.map(|failure| failure.since),
            );
        }
        let class = failure.map(|failure| FailureClass::of(&failure.kind));
        if let (Some(failure), Some(FailureClass::Stopped)) = (failure, class) {
            return Verdict::new(PollerState::Stopped, &failure.error, Some(failure.since));
        }
        let mut is_unknown = false;
        match self.silence(document) {
            Silence::No => {}
            Silence::Silent => {
                let cause = self.silent(failure);
                return Verdict::new(PollerState::Silent, cause, self.last_tick_at());
            }
            Silence::Unknown => is_unknown = true,
        }
        if let LeaseStatus::Lapsed { owner_id } = document.lease {
            let cause = format!(
                "instance {owner_id} stopped during a tick and did not release the lease; the next tick takes over"
            );
            return Verdict::new(PollerState::Failing, cause, self.last_tick_at());
        }
        if let (Some(failure), Some(class)) = (failure, class) {
            let state = match class {
                FailureClass::Retried => PollerState::BackingOff,
                FailureClass::Failing | FailureClass::Stopped => PollerState::Failing,
            };
            return Verdict::new(state, &failure.error, Some(failure.since));
        }
        if is_unknown {
            let cause = "no tick has left a trace since then; with STATUS_INTERVAL=0, idle ticks leave none";
            return Verdict::new(PollerState::Unknown, cause, self.last_tick_at());
        }
        if self.last_success_at().is_some()
            || document.has_run && document.lease == LeaseStatus::Free
        {
            Verdict::fine(PollerState::Idle)
        } else if self.process.running || document.lease == LeaseStatus::Held {
            Verdict::fine(PollerState::Running)
        } else if self.last_tick_at().is_some() {
            // It ticks, but has nothing to do yet: another instance is active, or rows are held back.
            Verdict::fine(PollerState::Idle)
        } else {
            let cause = format!(
                "no tick yet: start the function app, or run `highwater tick {}`",
                self.poller
            );
            Verdict::new(PollerState::NeverRan, cause, None)
        }
    }

    /// Judges the time since the last trace of a tick.
    fn silence(&self, document: &Document<'_>) -> Silence {
        let (Some(last), Some(interval)) = (self.last_tick_at(), self.status_interval) else {
            return Silence::No;
        };
        // Ticks that back off write nothing. The first one that writes is due after the backoff.
        let last = document.next_attempt_at.map_or(last, |until| last.max(until.min(self.now)));
        let Trigger::Timer(schedules) = self.trigger else { return Silence::No };
        let Some(due) = missed(schedules, last) else { return Silence::No };
        let until = due.max(last + interval * INTERVALS_MISSED);
        if self.process.running || document.lease == LeaseStatus::Held || self.now < until {
            Silence::No
        } else if interval.is_zero() {
            Silence::Unknown
        } else {
            Silence::Silent
        }
    }

    fn silent(&self, failure: Option<&Failure>) -> String {
        let cause = match self.last_tick_at() {
            Some(at) => {
                let ago = span(u64::try_from((self.now - at).whole_seconds()).unwrap_or(0));
                format!("no tick for {ago}: start the function app, or `highwater run`")
            }
            None => "no tick: start the function app, or `highwater run`".to_owned(),
        };
        match failure {
            Some(failure) => format!("{cause}; the last tick failed: {}", failure.error),
            None => cause,
        }
    }

    fn quarantined(&self, keys: u64) -> String {
        let poller = self.poller;
        let (keys, are) = (counted(keys, "key"), if keys == 1 { "is" } else { "are" });
        format!(
            "{keys} {are} quarantined and not delivered: see `highwater quarantine list {poller}`, fix the cause, then \
             `highwater quarantine redrive {poller} --all`"
        )
    }

    fn vanished(&self) -> String {
        let poller = self.poller;
        let restore = restore_state(poller, None);
        format!("the state document of `{poller}` is gone, but the poller ran before: {restore}")
    }
}

/// Returns the last of the due times that may be missed; `None` if the schedules end before.
fn missed(schedules: &[Schedule], last: OffsetDateTime) -> Option<OffsetDateTime> {
    (0..DUE_TIMES_MISSED).try_fold(last, |at, _| {
        schedules.iter().filter_map(|schedule| schedule.next_after(at)).min()
    })
}

/// Part of the error of a tick whose breaker is open.
pub(crate) const BREAKER_TEXT: &str = "so the target may be rejecting every row";

/// Returns the page that says what to do.
fn runbook(state: PollerState, failure: Option<&Failure>) -> Option<&'static str> {
    let kind = failure.map(|failure| failure.kind.as_str());
    match state {
        PollerState::Running
        | PollerState::Idle
        | PollerState::Done
        | PollerState::Cancelled
        | PollerState::TakenOver => None,
        PollerState::NeverRan => Some("runbooks/never-ran.md"),
        PollerState::Disabled => Some("runbooks/disabled.md"),
        PollerState::Paused => Some("runbooks/paused.md"),
        PollerState::Silent | PollerState::Unknown => Some("runbooks/silent.md"),
        PollerState::Vanished => Some("runbooks/vanished.md"),
        PollerState::Stopped if kind == Some("fence_ahead") => Some("runbooks/fenced.md"),
        PollerState::Stopped => Some("runbooks/stopped.md"),
        PollerState::Failing | PollerState::BackingOff
            if failure.is_some_and(|failure| failure.error.contains(BREAKER_TEXT)) =>
        {
            Some("runbooks/breaker.md")
        }
        PollerState::BackingOff => Some("runbooks/backing-off.md"),
        PollerState::Failing if kind.is_some_and(|kind| kind.starts_with("handler")) => {
            Some("runbooks/handler.md")
        }
        PollerState::Failing => Some("runbooks/failures.md"),
    }
}

#[cfg(test)]
mod tests;
