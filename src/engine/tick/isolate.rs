//! Finding the row that the target does not accept: a pure state machine.
//!
//! [`Isolation::next_step`] says what to do, and the caller reports the result with [`Isolation::record`]. Rows are
//! referred to by their index in the fetch. The machine knows no handler, no lease and no clock.
//!
//! ```text
//! Deliver ── accepted ──────────────────────────────▶ Settle
//!    ▲ │
//!    │ └─ failed ─┬─ too large ──── the front half ──▶ Deliver
//!    │            ├─ search ─────── the front half ──▶ Deliver
//!    │            ├─ retry ──────── the front half ──▶ Wait ──▶ Deliver
//!    │            ├─ rejected alone, permanently ────▶ Park ──▶ Settle
//!    │            │  (an open breaker: ReadMore and Probe, too)
//!    │            ├─ failed alone too often ─ ReadMore ─ Announce ─ Probe ─┬ nothing is accepted ▶ GiveUp
//!    └─────────────────────────────── once more ────────────────────────┘ (and Park if it fails again)
//!                 └─ anything else, or no time ──────▶ GiveUp
//!
//! several processes crashed ─┬─ with several rows ─── the front half ──▶ Announce ──▶ Deliver
//!                            └─ with one row ────────▶ Park ──▶ Settle
//! ```
//!
//! `ReadMore` is skipped if rows of the fetch follow. `Announce` writes to the document what is delivered next: a
//! process that crashes cannot record it afterwards.
//!
//! Rows are delivered in order, and accepted rows are settled before the rows after them are delivered. The one
//! exception is a probe: before a row is parked that failed for an unknown reason, rows after it are delivered.
//! Whether the target accepts another row tells a bad row from a target that is down.
//!
//! # How the row is found
//!
//! A batch that fails is retried with its front half, so that each retry also narrows the search. What a failure
//! proves depends on what happened since; see [`Evidence`]. A few retries follow in the same tick, the next ones in
//! later ticks, after a backoff. Once the target accepted other rows while these failed, one of these rows is at
//! fault, and the search continues without waiting: if a front half is accepted, the row must be in the other half,
//! which needs no call of its own. A reply that names the first row that was not accepted ends the search.
//!
//! # The breaker
//!
//! A target that rejects everything permanently looks like a table of bad rows. So a breaker opens once
//! [`FailurePolicy::breaker_rows`] rows were parked in a row: then a tick tries one row, and one other row if that
//! is rejected, and parks no rejected row unless the other row is accepted. A row with which processes crash is
//! parked all the same.

use std::ops::Range;
use std::time::Duration;

use time::OffsetDateTime;

use crate::document::InFlight;
use crate::handler::CallTries;
use crate::policy::{Attempt, Blame, FailurePolicy, Verdict};
use crate::quarantine::Reason;

/// How many rows after a failing one are probed alone, to tell a bad row from a target that is down.
pub(super) const PROBE_ROWS_MAX: usize = 8;

/// How often a failed batch is retried within a tick, each time with the front half.
pub(super) const RETRIES_MAX: u32 = 2;

/// Rows, by their index in the fetch.
pub(super) type Rows = Range<usize>;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait before that retry of the tick, counted from 1, then [`Isolation::step_done`].
    Wait(u32),
    /// Write to the document what is delivered next, then [`Isolation::step_done`].
    Announce(Announcement),
    /// Deliver these rows to the handler, then [`Isolation::record`] the outcome.
    Deliver {
        /// The rows.
        rows: Rows,
        /// How often the handler may try them.
        tries: CallTries,
    },
    /// Read the rows after the last one, then call [`Isolation::rows_read`].
    ReadMore,
    /// Deliver these rows out of turn, with a single try, then [`Isolation::record`] the outcome.
    Probe(Rows),
    /// Park the current row, then call [`Isolation::parked`].
    Park(Reason),
    /// The current rows are settled: commit them, then [`Isolation::start_waiting`].
    Settle(Settlement),
    /// Record that the current rows were not accepted, and end the tick.
    GiveUp(End),
}

/// Rows that are written to the document before they are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Announcement {
    /// These rows may crash the process, which could not record it afterwards.
    Suspects(Rows),
    /// The failing row and the rows that are probed: a process that crashes now did not crash with that row alone.
    Probe(Rows),
}

/// What became of settled rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    /// The handler accepted them.
    Accepted,
    /// They were parked.
    Parked,
    /// There are none: all rows of the fetch wait with their parked keys.
    Diverted,
}

/// How a tick ends whose rows were not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The rows are retried after a backoff.
    Retry,
    /// The poller is paused in front of them.
    Stop,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All rows were accepted.
    Accepted,
    /// That many rows from the front were accepted, and are committed or can be.
    AcceptedFront(usize),
    /// A step of a chain, not the last one, accepted only that many rows from the front.
    AcceptedFrontByStep(usize),
    /// The rows are too large for the target.
    TooLarge,
    /// The rows failed.
    Failed(Blame),
    /// The tick's time is up.
    OutOfTime(TimeGiven),
}

/// How much time rows had that were not accepted in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeGiven {
    /// All the time of a tick: with as many rows it would never be enough.
    WholeTick,
    /// What other rows had left of it.
    RestOfTick,
}

impl Outcome {
    fn blame(self) -> Blame {
        match self {
            // The handler made progress: the accepted rows are committed, and attempts are counted from the start.
            Self::AcceptedFront(_) | Self::Accepted => Blame::Target,
            Self::AcceptedFrontByStep(_) | Self::TooLarge | Self::OutOfTime(_) => Blame::Unknown,
            Self::Failed(blame) => blame,
        }
    }
}

/// Whether another call may follow in this tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextCall {
    /// Yes.
    Allowed,
    /// No: the tick has no time left, or the poller was paused.
    NotNow,
}

/// The context in which a call ended.
#[derive(Clone, Debug)]
pub(super) struct CallContext {
    /// What the state document says of the current rows.
    pub(super) tried: PriorAttempts,
    /// What the document announces.
    pub(super) announced: Announced,
    /// The storage service's time.
    pub(super) now: OffsetDateTime,
    /// What went wrong.
    pub(super) error: String,
    /// Whether another call may follow in this tick.
    pub(super) next_call: NextCall,
    /// Rows that were parked since a row was last accepted.
    pub(super) quarantined_in_a_row: u32,
}

impl CallContext {
    fn may_call_again(&self) -> bool {
        self.next_call == NextCall::Allowed
    }
}

/// What the in-flight record of the document describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    /// A batch.
    Batch,
    /// A row that failed alone, and the rows that were probed after it.
    Probe,
}

/// With what the last of several processes crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrashedWith {
    /// With a single row.
    OneRow,
    /// With several rows, or it is unknown.
    SeveralRows,
}

/// A decision to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Fewer rows are delivered: all of them were too large, or had too little time.
    Halved {
        /// How many.
        to: usize,
    },
    /// The failing row is searched for by halving.
    Bisect,
    /// All steps of a chain get the front that one of them accepted.
    FrontOfChain {
        /// How many rows.
        to: usize,
    },
}

/// What happened to rows in earlier ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PriorAttempts {
    pub(super) attempt: u32,
    pub(super) crashes: u32,
    pub(super) crashes_survived: u32,
    pub(super) first_failed_at: Option<OffsetDateTime>,
    pub(super) first_error: Option<String>,
    pub(super) last_error: Option<String>,
    pub(super) failed_step: Option<String>,
}

impl PriorAttempts {
    /// Returns what the document says of the current batch.
    pub(super) fn of(in_flight: Option<&InFlight>) -> Self {
        let Some(batch) = in_flight else { return Self::default() };
        Self {
            attempt: batch.attempt,
            crashes: batch.crashes,
            crashes_survived: batch.crashes_survived,
            first_failed_at: batch.first_failed_at,
            first_error: batch.first_error.clone(),
            last_error: batch.last_error.clone(),
            failed_step: batch.failed_step.clone(),
        }
    }
}

/// Consecutive rows, and what is known if one of them may be the failing one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    rows: Rows,
    suspicion: Option<Box<Suspicion>>,
}

impl Segment {
    fn plain(rows: Rows) -> Self {
        Self { rows, suspicion: None }
    }

    /// Keeps the first `rows`; the others wait until the failing row is found.
    fn narrow_to(&mut self, rows: usize) {
        let Rows { start, end } = self.rows;
        let middle = end.min(start + rows);
        self.rows = start..middle;
        if middle < end
            && let Some(suspicion) = &mut self.suspicion
        {
            let rest_end = suspicion.rest.as_ref().map_or(end, |rest| rest.end);
            suspicion.rest = Some(middle..rest_end);
        }
    }
}

/// What is known about rows of which one fails.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suspicion {
    tried: PriorAttempts,
    /// The rows after them in the same batch, which are delivered in one call once the failing row is found.
    rest: Option<Rows>,
    evidence: Evidence,
}

/// What shows that one of the rows fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// They failed together, maybe because the target was down. The front half is delivered next.
    Failed,
    /// Rows in front of them were accepted since they failed, so that may be over: all of them are delivered next.
    FrontAccepted,
    /// They were rejected permanently, or too large although as many other rows were not, or the target named the first
    /// of them: one of them is at fault. The front half is delivered next, and if it is accepted the row is in the
    /// other half.
    Proven,
    /// As [`Self::Proven`], because they failed, the target accepted rows in front of them, and they failed again.
    FailedAgain,
    /// As [`Self::FailedAgain`], and the target accepted rows in front of them since the second failure, too.
    FailedBetween,
    /// Processes crashed with them. As [`Self::Proven`], and they are announced before each call.
    Crashes,
}

impl Evidence {
    /// Whether one of the rows is at fault, and not the target.
    fn is_proof(self) -> bool {
        match self {
            Self::Failed | Self::FrontAccepted => false,
            Self::Proven | Self::FailedAgain | Self::FailedBetween | Self::Crashes => true,
        }
    }

    /// Returns the evidence against the rest once the front half is accepted.
    fn after_accepted_front(self) -> Self {
        match self {
            Self::Failed | Self::FrontAccepted => Self::FrontAccepted,
            Self::FailedAgain | Self::FailedBetween => Self::FailedBetween,
            Self::Proven | Self::Crashes => self,
        }
    }
}

/// What the machine waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Wait,
    Announce,
    Deliver,
    ReadMore(ProbeWidth),
    AnnounceProbe(Probe),
    Probe(Probe),
    /// Other rows were accepted, so the current row is retried: an outage may have ended in between.
    RetryRow {
        /// The accepted rows that follow the current one, and go into the same commit if it is parked.
        accepted: Option<Rows>,
    },
    Park {
        reason: Reason,
        accepted: Option<Rows>,
    },
    Settled(Settlement),
    GivenUp(End),
}

/// How many rows after a failing one are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeWidth {
    /// All at once, then some of them one by one.
    AllRows,
    /// A single one, another with each grant.
    OneRow,
}

/// Probed rows after a failing one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Probe {
    rest: Segment,
    at: ProbeAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeAt {
    /// All of them: usually only one row is bad.
    All,
    /// Only this one: see [`ProbeWidth::OneRow`].
    Only(usize),
    /// This one, after all of them together were rejected.
    Row(usize),
}

impl Probe {
    /// Returns the rows to deliver.
    fn rows(&self) -> Rows {
        match self.at {
            ProbeAt::All => self.rest.rows.clone(),
            ProbeAt::Only(index) | ProbeAt::Row(index) => {
                let at = self.rest.rows.start + index;
                at..(at + 1).min(self.rest.rows.end)
            }
        }
    }
}

/// When a batch that fails for an unknown reason is halved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halving {
    /// With its first retry.
    FirstRetry,
    /// Once its attempts are exhausted, or never: see [`FailurePolicy::bisect_on_error`]. Until then a batch is retried
    /// under its id.
    Exhausted,
}

/// Whether a fetch can continue after its last row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsAfter {
    /// It can.
    Readable,
    /// The rows after it were delivered before.
    Delivered,
}

/// The rows of one fetch on their way to a handler.
#[derive(Clone, Debug)]
pub(super) struct Isolation {
    policy: FailurePolicy,
    halving: Halving,
    /// How many rows were read.
    read: usize,
    rows_after: RowsAfter,
    /// Chooses the row to probe if only one may be.
    seed: u64,
    /// Retries in this tick.
    retries: u32,
    /// How often a handler may try rows that are not suspected.
    tries: CallTries,
    /// Most rows that the target has accepted at once.
    accepted_max: usize,
    current: Segment,
    /// The segments that follow, the next one last.
    waiting: Vec<Segment>,
    state: State,
}

impl Isolation {
    /// Starts with that many rows. `seed` should differ for each grant.
    pub(super) fn new(
        policy: FailurePolicy,
        halving: Halving,
        rows: usize,
        rows_after: RowsAfter,
        seed: u64,
    ) -> Self {
        Self {
            policy,
            halving,
            read: rows,
            rows_after,
            seed,
            retries: 0,
            tries: CallTries::Several,
            accepted_max: 0,
            current: Segment::plain(0..rows),
            waiting: Vec::new(),
            state: State::Deliver,
        }
    }

    /// Returns the current rows.
    pub(super) fn rows(&self) -> Rows {
        self.current.rows.clone()
    }

    /// Whether one of the current rows may be the failing one; see [`Evidence`].
    pub(super) fn is_suspected(&self) -> bool {
        self.current.suspicion.is_some()
    }

    /// Returns what is known about the current rows if one of them fails; otherwise the document has it.
    pub(super) fn prior_attempts(&self) -> Option<&PriorAttempts> {
        self.current.suspicion.as_ref().map(|suspicion| &suspicion.tried)
    }

    /// Whether rows wait after the current ones.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Makes the next rows the current ones; `false` if none wait.
    pub(super) fn start_waiting(&mut self) -> bool {
        let Some(next) = self.waiting.pop() else { return false };
        self.current = next;
        self.state = self.delivery();
        true
    }

    /// Returns what to do next.
    pub(super) fn next_step(&self) -> Step {
        match &self.state {
            State::Wait => Step::Wait(self.retries),
            State::Announce => Step::Announce(Announcement::Suspects(self.next_rows())),
            State::Deliver => {
                let tries = if self.is_suspected() { CallTries::One } else { self.tries };
                Step::Deliver { rows: self.next_rows(), tries }
            }
            // The record still describes the probed rows.
            State::RetryRow { .. } => Step::Deliver { rows: self.rows(), tries: CallTries::One },
            State::ReadMore(_) => Step::ReadMore,
            State::AnnounceProbe(probe) => {
                let whole = self.current.rows.start..probe.rest.rows.end;
                Step::Announce(Announcement::Probe(whole))
            }
            State::Probe(probe) => Step::Probe(probe.rows()),
            State::Park { reason, .. } => Step::Park(*reason),
            State::Settled(settlement) => Step::Settle(*settlement),
            State::GivenUp(end) => Step::GiveUp(*end),
        }
    }

    /// Reports that [`Step::Wait`] or [`Step::Announce`] is done. In another state it changes nothing: that is a
    /// mistake of the caller, for which no row may be lost.
    pub(super) fn step_done(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Deliver) {
            State::Wait | State::Announce => State::Deliver,
            State::AnnounceProbe(probe) => State::Probe(probe),
            state @ (State::Deliver
            | State::ReadMore(_)
            | State::Probe(_)
            | State::RetryRow { .. }
            | State::Park { .. }
            | State::Settled(_)
            | State::GivenUp(_)) => state,
        };
    }

    /// Decides how to start with the current rows, given what the document says of them.
    pub(super) fn prepare(&mut self, when: &CallContext) {
        let rows = self.current.rows.len();
        let has_failed = when.tried.attempt > 0;
        self.tries = match self.halving {
            // It is retried with fewer rows, or was already.
            Halving::FirstRetry if rows > 1 || has_failed => CallTries::One,
            Halving::FirstRetry | Halving::Exhausted => CallTries::Several,
        };
        if self.is_suspected() || rows == 1 {
            return;
        }
        // Halving would only ask a failing target more often.
        let breaker_is_open = self.policy.breaker_is_open(when.quarantined_in_a_row);
        if breaker_is_open || (has_failed && self.halving == Halving::FirstRetry) {
            self.suspect(when.tried.clone(), Evidence::Failed);
        }
        if breaker_is_open {
            self.narrow_to(1);
        }
    }

    /// Reports that `crashes` processes in a row have crashed with the current rows; before [`Self::prepare`].
    pub(super) fn judge_crashes(
        &mut self,
        crashes: u32,
        last: CrashedWith,
        when: &CallContext,
    ) -> Option<Decision> {
        if self.is_suspected() {
            return None;
        }
        let alone = last == CrashedWith::OneRow;
        match self.policy.judge_crashes(self.current.rows.len(), crashes, alone)? {
            Verdict::Bisect => {
                // One more crash is enough to narrow the search further.
                let crashes = self.policy.crashes_max.saturating_sub(1);
                let tried = PriorAttempts { crashes, crashes_survived: 0, ..when.tried.clone() };
                self.suspect(tried, Evidence::Crashes);
                self.state = self.delivery();
                Some(Decision::Bisect)
            }
            Verdict::Park => {
                self.state = State::Park { reason: Reason::Crashes, accepted: None };
                None
            }
            Verdict::Stop => {
                self.state = State::GivenUp(End::Stop);
                None
            }
            Verdict::Retry | Verdict::Isolate | Verdict::Probe => None,
        }
    }

    /// Records the outcome of the call that [`Self::next_step`] asked for; returns a decision to log.
    pub(super) fn record(&mut self, outcome: Outcome, when: &CallContext) -> Option<Decision> {
        match std::mem::replace(&mut self.state, State::Deliver) {
            State::Probe(probe) => {
                self.state = self.probed(probe, outcome, when);
                None
            }
            State::RetryRow { accepted } => self.row_retried(accepted, outcome, when),
            State::Wait
            | State::Announce
            | State::Deliver
            | State::ReadMore(_)
            | State::AnnounceProbe(_)
            | State::Park { .. }
            | State::Settled(_)
            | State::GivenUp(_) => self.delivered(outcome, when),
        }
    }

    /// Reports that many rows read after the last one.
    pub(super) fn rows_read(&mut self, rows: usize) {
        let rest = self.read..self.read + rows;
        self.read = rest.end;
        let State::ReadMore(width) = self.state else { return };
        self.state = if rows == 0 {
            State::GivenUp(End::Retry)
        } else {
            self.probe(Segment::plain(rest), width)
        };
    }

    /// Reports that the current row was parked.
    pub(super) fn parked(&mut self) {
        let settled = State::Settled(Settlement::Parked);
        let accepted = match std::mem::replace(&mut self.state, settled) {
            State::Park { accepted, .. } => accepted,
            State::Wait
            | State::Announce
            | State::Deliver
            | State::ReadMore(_)
            | State::AnnounceProbe(_)
            | State::Probe(_)
            | State::RetryRow { .. }
            | State::Settled(_)
            | State::GivenUp(_) => None,
        };
        self.clear_suspicion();
        // The rows after it were split off while it was searched for.
        self.join_waiting();
        // The rows that the target accepted go into the same commit, because they are next to the row.
        if let Some(rows) = accepted {
            self.current.rows = rows;
            self.state = State::Settled(Settlement::Accepted);
        }
    }

    /// Returns the state in which the current rows are delivered.
    fn delivery(&self) -> State {
        match self.evidence() {
            Some(Evidence::Crashes) => State::Announce,
            Some(_) | None => State::Deliver,
        }
    }

    /// Returns the state in which the current rows are delivered, in this tick or a later one.
    fn next_delivery(&self, when: &CallContext) -> State {
        if when.may_call_again() { self.delivery() } else { State::GivenUp(End::Retry) }
    }

    fn evidence(&self) -> Option<Evidence> {
        self.current.suspicion.as_ref().map(|suspicion| suspicion.evidence)
    }

    /// Returns the rows to deliver next: all current ones, or the front half of those with the failing row.
    fn next_rows(&self) -> Rows {
        let Rows { start, end } = self.current.rows;
        let half = (end - start) / 2;
        match self.evidence() {
            None | Some(Evidence::FrontAccepted) => start..end,
            Some(_) if half > 0 => start..start + half,
            Some(_) => start..end,
        }
    }

    fn delivered(&mut self, outcome: Outcome, when: &CallContext) -> Option<Decision> {
        let delivered = self.next_rows();
        let is_front = delivered != self.current.rows;
        if outcome == Outcome::Accepted {
            self.accepted_max = self.accepted_max.max(delivered.len());
            if is_front {
                self.split_at(delivered.len());
            } else {
                self.clear_suspicion();
            }
            self.state = State::Settled(Settlement::Accepted);
            return None;
        }
        if is_front {
            self.narrow_to(delivered.len());
        }
        let rows = self.current.rows.len();
        match outcome {
            Outcome::AcceptedFrontByStep(to) if when.may_call_again() && self.can_split(to) => {
                self.split_at(to);
                Some(Decision::FrontOfChain { to })
            }
            Outcome::TooLarge if rows > 1 => self.too_large(when),
            Outcome::AcceptedFront(to) if self.is_suspected() && self.can_split(to) => {
                self.split_at(to);
                self.suspect_next_row();
                self.state = State::Settled(Settlement::Accepted);
                None
            }
            Outcome::OutOfTime(given) => self.out_of_time(given, when),
            Outcome::Accepted
            | Outcome::AcceptedFront(_)
            | Outcome::AcceptedFrontByStep(_)
            | Outcome::TooLarge
            | Outcome::Failed(_) => self.failed(outcome.blame(), when),
        }
    }

    /// Continues after several rows that are too large for the target.
    fn too_large(&mut self, when: &CallContext) -> Option<Decision> {
        let rows = self.current.rows.len();
        if self.is_suspected() {
            let decision = self.prove(Evidence::Proven);
            self.state = self.next_delivery(when);
            return decision;
        }
        // The target accepted as many other rows, so one of these is too large.
        if rows <= self.accepted_max && self.policy.bisect_on_error {
            self.suspect_for(when, Evidence::Proven);
            return Some(Decision::Bisect);
        }
        // Even without time for it: the next call notices that, and so fewer rows are recorded.
        let to = rows.div_ceil(2);
        self.split_at(to);
        Some(Decision::Halved { to })
    }

    /// Decides what follows a failure of the current rows.
    fn failed(&mut self, blame: Blame, when: &CallContext) -> Option<Decision> {
        if blame != Blame::Target {
            let decision = self.prove(Evidence::FailedAgain);
            if self.evidence().is_some_and(Evidence::is_proof) && self.current.rows.len() > 1 {
                if blame == Blame::FirstRow {
                    self.narrow_to(1);
                }
                self.state = self.next_delivery(when);
                return decision;
            }
        }
        self.apply(self.judge(blame, when), blame, when)
    }

    /// Notes that the current rows failed, in case rows in front of them were accepted since they failed before.
    fn prove(&mut self, proof: Evidence) -> Option<Decision> {
        let suspicion = self.current.suspicion.as_mut()?;
        if suspicion.evidence != Evidence::FrontAccepted {
            return None;
        }
        suspicion.evidence = proof;
        Some(Decision::Bisect)
    }

    fn apply(&mut self, verdict: Verdict, blame: Blame, when: &CallContext) -> Option<Decision> {
        let calls_again = !matches!(verdict, Verdict::Retry | Verdict::Stop);
        if calls_again && !when.may_call_again() {
            if verdict == Verdict::Bisect {
                self.halve(when);
            }
            self.state = State::GivenUp(End::Retry);
            return None;
        }
        match verdict {
            Verdict::Retry => self.state = self.retry(blame, when),
            Verdict::Stop => self.state = State::GivenUp(End::Stop),
            Verdict::Bisect => {
                let is_new = !self.is_suspected();
                let evidence =
                    if blame == Blame::Rows { Evidence::Proven } else { Evidence::Failed };
                self.suspect_for(when, evidence);
                self.state = self.delivery();
                return is_new.then_some(Decision::Bisect);
            }
            Verdict::Isolate => {
                self.suspect_for(when, Evidence::Failed);
                self.narrow_to(1);
            }
            Verdict::Park => {
                self.state = State::Park { reason: Reason::Refused, accepted: None };
            }
            Verdict::Probe => {
                self.suspect_for(when, Evidence::Failed);
                self.state = self.start_probe(when);
            }
        }
        None
    }

    /// Returns the state before a retry of the current rows, now or in a later tick.
    fn retry(&mut self, blame: Blame, when: &CallContext) -> State {
        let halves = self.halving == Halving::FirstRetry && self.current.rows.len() > 1;
        match blame {
            Blame::Unknown if halves && self.retries < RETRIES_MAX && when.may_call_again() => {
                self.suspect_for(when, Evidence::Failed);
                self.retries += 1;
                State::Wait
            }
            Blame::FirstRow if halves => {
                self.suspect_for(when, Evidence::Failed);
                self.narrow_to(1);
                State::GivenUp(End::Retry)
            }
            Blame::Rows | Blame::FirstRow | Blame::Unknown | Blame::Target => {
                State::GivenUp(End::Retry)
            }
        }
    }

    /// Judges a failure of the current rows.
    fn judge(&self, blame: Blame, when: &CallContext) -> Verdict {
        let tried = self.prior_attempts().unwrap_or(&when.tried);
        self.judge_rows(self.current.rows.len(), tried, blame, when)
    }

    fn judge_rows(
        &self,
        rows: usize,
        tried: &PriorAttempts,
        blame: Blame,
        when: &CallContext,
    ) -> Verdict {
        let failing_for = tried.first_failed_at.map(|at| when.now - at);
        self.policy.judge(Attempt {
            blame,
            rows,
            first_failed_alone: when.announced == Announced::Probe,
            attempts: tried.attempt.saturating_add(1),
            failing_for: failing_for
                .and_then(|since| Duration::try_from(since).ok())
                .unwrap_or_default(),
            quarantined_in_a_row: when.quarantined_in_a_row,
        })
    }

    /// Whether these rows would be parked if they failed now for an unknown reason.
    pub(super) fn is_last_attempt(&self, rows: &Rows, when: &CallContext) -> bool {
        let known = self.prior_attempts().filter(|_| *rows == self.current.rows);
        self.judge_rows(rows.len(), known.unwrap_or(&when.tried), Blame::Unknown, when)
            == Verdict::Probe
    }

    /// Rows for which a whole tick was not enough would never succeed; fewer rows may. The rest of a tick says nothing: the
    /// next tick begins with these rows, or with the next step of the chain.
    fn out_of_time(&mut self, given: TimeGiven, when: &CallContext) -> Option<Decision> {
        if given == TimeGiven::WholeTick && self.judge(Blame::Unknown, when) == Verdict::Stop {
            self.state = State::GivenUp(End::Stop);
            return None;
        }
        self.state = State::GivenUp(End::Retry);
        // A retry had what the first call left.
        if given == TimeGiven::WholeTick && self.retries == 0 && self.halve(when) {
            return Some(Decision::Halved { to: self.current.rows.len() });
        }
        None
    }

    fn start_probe(&mut self, when: &CallContext) -> State {
        let of_suspicion = self.current.suspicion.as_mut().and_then(|found| found.rest.take());
        self.waiting.extend(of_suspicion.map(Segment::plain));
        self.join_waiting();
        let rest = self.waiting.pop();
        // The next row may be another one that crashes processes, and a target that seems to be failing gets few calls.
        let is_open = self.policy.breaker_is_open(when.quarantined_in_a_row);
        let width = if is_open || self.evidence() == Some(Evidence::Crashes) {
            ProbeWidth::OneRow
        } else {
            ProbeWidth::AllRows
        };
        match (rest, self.rows_after) {
            (Some(rest), _) => self.probe(rest, width),
            (None, RowsAfter::Delivered) => State::GivenUp(End::Retry),
            (None, RowsAfter::Readable) => State::ReadMore(width),
        }
    }

    fn probe(&self, rest: Segment, width: ProbeWidth) -> State {
        let at = match width {
            ProbeWidth::AllRows => ProbeAt::All,
            ProbeWidth::OneRow => {
                let rows = u64::try_from(rest.rows.len()).unwrap_or(u64::MAX);
                let index = self.seed.checked_rem(rows).unwrap_or(0);
                ProbeAt::Only(usize::try_from(index).unwrap_or(0))
            }
        };
        State::AnnounceProbe(Probe { rest, at })
    }

    /// Returns the state after a probe.
    fn probed(&mut self, probe: Probe, outcome: Outcome, when: &CallContext) -> State {
        let Probe { rest, at } = probe;
        let rows = rest.rows.len();
        let is_target = matches!(outcome, Outcome::OutOfTime(_) | Outcome::Failed(Blame::Target));
        let next = match (at, outcome) {
            (ProbeAt::All, Outcome::Accepted) => return self.after_accepted(rest.rows),
            (ProbeAt::All, Outcome::AcceptedFront(front)) if front > 0 && front < rows => {
                let middle = rest.rows.start + front;
                let after = middle..rest.rows.end;
                self.waiting.push(Segment { rows: after, suspicion: rest.suspicion });
                return self.after_accepted(rest.rows.start..middle);
            }
            // It is next to the failing row, so both go into one commit.
            (ProbeAt::Row(0) | ProbeAt::Only(0), Outcome::Accepted) => {
                let middle = rest.rows.start + 1;
                if middle < rest.rows.end {
                    let after = Segment { rows: middle..rest.rows.end, suspicion: rest.suspicion };
                    self.waiting.push(after);
                }
                return self.after_accepted(rest.rows.start..middle);
            }
            // The failing row is elsewhere; these rows are redelivered in their turn.
            (ProbeAt::Row(_) | ProbeAt::Only(_), Outcome::Accepted) => {
                self.waiting.push(rest);
                return State::RetryRow { accepted: None };
            }
            (ProbeAt::Only(_), _) => {
                self.waiting.push(rest);
                return State::GivenUp(End::Retry);
            }
            (_, _) if is_target => return State::GivenUp(End::Retry),
            // A single row was just delivered alone.
            (ProbeAt::All, _) if rows == 1 => return State::GivenUp(End::Retry),
            (ProbeAt::All, _) => 0,
            (ProbeAt::Row(index), _) => index + 1,
        };
        if next < PROBE_ROWS_MAX.min(rows) && when.may_call_again() {
            return State::Probe(Probe { rest, at: ProbeAt::Row(next) });
        }
        State::GivenUp(End::Retry)
    }

    /// Returns the state after the target accepted the rows that follow the failing one.
    ///
    /// The row failed alone before that. An outage may have ended in between, so it is retried, unless it failed
    /// before together with others, and the target accepted rows between those two failures, too.
    fn after_accepted(&self, rows: Rows) -> State {
        let accepted = Some(rows);
        if self.evidence() == Some(Evidence::FailedBetween) {
            return State::Park { reason: Reason::Attempts, accepted };
        }
        State::RetryRow { accepted }
    }

    fn row_retried(
        &mut self,
        accepted: Option<Rows>,
        outcome: Outcome,
        when: &CallContext,
    ) -> Option<Decision> {
        match outcome {
            Outcome::Accepted => {
                self.current.suspicion = None;
                // These rows were accepted before the current one; they are redelivered in their turn.
                self.waiting.extend(accepted.map(Segment::plain));
                self.state = State::Settled(Settlement::Accepted);
                None
            }
            Outcome::OutOfTime(given) => self.out_of_time(given, when),
            Outcome::AcceptedFrontByStep(_)
            | Outcome::AcceptedFront(_)
            | Outcome::Failed(Blame::Target) => {
                self.state = State::GivenUp(End::Retry);
                None
            }
            Outcome::Failed(Blame::Rows) => {
                self.state = State::Park { reason: Reason::Refused, accepted };
                None
            }
            Outcome::TooLarge | Outcome::Failed(Blame::FirstRow | Blame::Unknown) => {
                self.state = State::Park { reason: Reason::Attempts, accepted };
                None
            }
        }
    }

    fn can_split(&self, rows: usize) -> bool {
        rows > 0 && rows < self.current.rows.len()
    }

    /// Keeps the first `rows` current; the rest waits, with the failing row known to be there.
    fn split_at(&mut self, rows: usize) {
        let Rows { start, end } = self.current.rows;
        let mut suspicion = self.current.suspicion.take();
        if let Some(suspicion) = &mut suspicion {
            suspicion.evidence = suspicion.evidence.after_accepted_front();
        }
        self.waiting.push(Segment { rows: start + rows..end, suspicion });
        self.current.rows = start..start + rows;
    }

    /// Continues the search in the first `rows`; the rest can wait.
    fn narrow_to(&mut self, rows: usize) {
        self.current.narrow_to(rows);
    }

    /// Continues the search with the first row that waits: the target accepted those in front of it.
    fn suspect_next_row(&mut self) {
        if let Some(next) = self.waiting.last_mut() {
            next.narrow_to(1);
            if let Some(suspicion) = &mut next.suspicion {
                suspicion.evidence = Evidence::Proven;
            }
        }
    }

    /// Keeps half of the rows for which there is no time now, so that a later tick starts with fewer. `false` for a
    /// single row.
    fn halve(&mut self, when: &CallContext) -> bool {
        let half = self.current.rows.len() / 2;
        if half == 0 {
            return false;
        }
        self.suspect_for(when, Evidence::Failed);
        self.current.rows.end = self.current.rows.start + half;
        true
    }

    fn suspect_for(&mut self, when: &CallContext, evidence: Evidence) {
        let mut tried = when.tried.clone();
        tried.first_failed_at.get_or_insert(when.now);
        tried.first_error.get_or_insert_with(|| when.error.clone());
        self.suspect(tried, evidence);
    }

    /// Suspects the current rows, unless they are suspected already.
    fn suspect(&mut self, tried: PriorAttempts, evidence: Evidence) {
        let suspicion = Suspicion { tried, rest: None, evidence };
        self.current.suspicion.get_or_insert_with(|| Box::new(suspicion));
    }

    /// Drops the suspicion with the current rows; the rows that waited for it come next.
    fn clear_suspicion(&mut self) {
        let rest = self.current.suspicion.take().and_then(|suspicion| suspicion.rest);
        self.waiting.extend(rest.map(Segment::plain));
    }

    /// Joins the next segments if nothing is known about them, so that they are delivered in one call.
    fn join_waiting(&mut self) {
        while let [.., after, next] = self.waiting.as_mut_slice()
            && next.suspicion.is_none()
            && after.suspicion.is_none()
            && next.rows.end == after.rows.start
        {
            after.rows.start = next.rows.start;
            self.waiting.pop();
        }
    }
}

#[cfg(test)]
mod tests;
