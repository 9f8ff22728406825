//! Finding the row that the target does not accept: a pure state machine.
//!
//! [`Isolation::next`] says what to do, and the caller reports the result with [`Isolation::record`]. Rows are
//! referred to by their index in the fetch. The machine knows no handler, no lease and no clock.
//!
//! ```text
//! Deliver ── accepted ──────────────────────────────▶ Settle
//!    ▲ │
//!    │ └─ failed ─┬─ too large ──── the front half ──▶ Deliver
//!    │            ├─ bisect ─────── the front half ──▶ Deliver
//!    │            ├─ rejected alone, permanently ────▶ Quarantine ──▶ Settle
//!    │            │  (an open breaker: Probe, too)
//!    │            ├─ failed alone too often ─ Probe ─┬ nothing is accepted ▶ GiveUp
//!    └───────────────── once more ──────────────────┘ (and Quarantine if it fails again)
//!                 └─ anything else, or no time ──────▶ GiveUp
//! ```
//!
//! Rows are delivered in order, and accepted rows are settled before the rows after them are delivered. The one
//! exception is a probe: before a row is quarantined, rows after it are delivered. Whether the target accepts
//! another row tells a bad row from a target that is down.
//!
//! A target that rejects everything permanently looks like a table of bad rows. So a breaker opens once
//! [`FailurePolicy::breaker_rows`] rows were quarantined in a row: then a tick tries one row, and one other row if that
//! is rejected, and quarantines nothing unless the other row is accepted.

use std::ops::Range;
use std::time::Duration;

use time::OffsetDateTime;

use crate::document::InFlight;
use crate::policy::{Attempt, Blame, FailurePolicy, Verdict};
use crate::quarantine::Reason;

/// How many rows after a failing one are probed alone, to tell a bad row from a target that is down.
const PROBE_ROWS_MAX: usize = 8;

/// Rows, by their index in the fetch.
pub(super) type Rows = Range<usize>;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Deliver these rows to the handler, then [`Isolation::record`] the outcome.
    Deliver {
        /// The rows.
        rows: Rows,
        /// Whether to record that first: these rows may crash the process, which could not record it afterwards.
        announce: bool,
    },
    /// Read the rows after the last one, then call [`Isolation::has_read_more`].
    ReadMore,
    /// Deliver these rows out of turn, then [`Isolation::record`] the outcome.
    Probe {
        /// The rows.
        rows: Rows,
        /// Set before the first probe: record these rows first, because a process that crashes then did not crash
        /// with the failing row alone.
        announce: Option<Rows>,
    },
    /// Quarantine the current row, then call [`Isolation::quarantined`].
    Quarantine(Reason),
    /// The current rows are settled: commit them, then [`Isolation::advance`].
    Settle(Settlement),
    /// Record that the current rows were not accepted, and end the tick.
    GiveUp(End),
}

/// What became of settled rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    /// The handler accepted them.
    Accepted,
    /// They were quarantined.
    Quarantined,
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
    OutOfTime {
        /// Whether these rows had all the time of a tick, and it was not enough.
        had_all: bool,
    },
}

impl Outcome {
    fn blame(self) -> Blame {
        match self {
            // The handler made progress: the accepted rows are committed, and attempts are counted from the start.
            Self::AcceptedFront(_) | Self::Accepted => Blame::Target,
            Self::AcceptedFrontByStep(_) | Self::TooLarge | Self::OutOfTime { .. } => {
                Blame::Unknown
            }
            Self::Failed(blame) => blame,
        }
    }
}

/// The context in which a call ended.
#[derive(Clone, Debug)]
pub(super) struct CallContext {
    /// What the state document says of the current rows.
    pub(super) tried: PriorAttempts,
    /// Whether the first of them failed alone before, and a process crashed while others were probed.
    pub(super) first_failed_alone: bool,
    /// The storage service's time.
    pub(super) now: OffsetDateTime,
    /// What went wrong.
    pub(super) error: String,
    /// Whether another call may follow in this tick.
    pub(super) may_call_again: bool,
    /// Rows that were quarantined since a row was last accepted.
    pub(super) quarantined_in_a_row: u32,
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
        }
    }
}

/// Consecutive rows, and whether one of them is known to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    rows: Rows,
    suspicion: Option<Box<Suspicion>>,
}

/// What is known about rows of which one fails.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suspicion {
    tried: PriorAttempts,
    /// The rows after them in the same batch, which are delivered in one call once the failing row is found.
    rest: Option<Rows>,
    /// Whether processes crashed with them.
    is_from_crashes: bool,
}

/// What the machine waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Deliver,
    ReadMore(ProbeWidth),
    Probe(Probe),
    /// Other rows were accepted, so the current row is retried: an outage may have ended in between.
    RetryRow {
        /// The accepted rows that follow the current one, and go into the same commit if it is quarantined.
        accepted: Option<Rows>,
    },
    Quarantine {
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

/// The rows of one fetch on their way to a handler.
#[derive(Clone, Debug)]
pub(super) struct Isolation {
    policy: FailurePolicy,
    /// How many rows were read.
    read: usize,
    /// Whether no rows may be read after them.
    is_closed: bool,
    /// Chooses the row to probe if only one may be.
    seed: u64,
    current: Segment,
    /// The segments that follow, the next one last.
    waiting: Vec<Segment>,
    state: State,
}

impl Isolation {
    /// Starts with that many rows; `is_closed` if the rows after them were delivered before. `seed` should differ
    /// for each grant.
    pub(super) fn of(policy: FailurePolicy, rows: usize, is_closed: bool, seed: u64) -> Self {
        Self {
            policy,
            read: rows,
            is_closed,
            seed,
            current: Segment { rows: 0..rows, suspicion: None },
            waiting: Vec::new(),
            state: State::Deliver,
        }
    }

    /// Returns the current rows.
    pub(super) fn rows(&self) -> Rows {
        self.current.rows.clone()
    }

    /// Whether one of the current rows is known to fail.
    pub(super) fn is_suspected(&self) -> bool {
        self.current.suspicion.is_some()
    }

    /// Whether processes crashed with the current rows.
    pub(super) fn is_from_crashes(&self) -> bool {
        self.current.suspicion.as_ref().is_some_and(|suspicion| suspicion.is_from_crashes)
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
    pub(super) fn advance(&mut self) -> bool {
        let Some(next) = self.waiting.pop() else { return false };
        self.current = next;
        self.state = State::Deliver;
        true
    }

    /// Returns what to do next.
    pub(super) fn next(&self) -> Step {
        match &self.state {
            State::Deliver => {
                Step::Deliver { rows: self.next_rows(), announce: self.is_from_crashes() }
            }
            // The record still describes the probed rows.
            State::RetryRow { .. } => Step::Deliver { rows: self.rows(), announce: false },
            State::ReadMore(_) => Step::ReadMore,
            State::Probe(Probe { rest, at }) => {
                let row = |index: usize| {
                    let at = rest.rows.start + index;
                    at..(at + 1).min(rest.rows.end)
                };
                let whole = self.current.rows.start..rest.rows.end;
                match *at {
                    ProbeAt::All => Step::Probe { rows: rest.rows.clone(), announce: Some(whole) },
                    ProbeAt::Only(index) => Step::Probe { rows: row(index), announce: Some(whole) },
                    ProbeAt::Row(index) => Step::Probe { rows: row(index), announce: None },
                }
            }
            State::Quarantine { reason, .. } => Step::Quarantine(*reason),
            State::Settled(settlement) => Step::Settle(*settlement),
            State::GivenUp(end) => Step::GiveUp(*end),
        }
    }

    /// Starts with the first row alone if the breaker is open: halving would only ask a failing target more often.
    pub(super) fn hold_back(&mut self, when: &CallContext) {
        if self.policy.breaker_is_open(when.quarantined_in_a_row)
            && !self.is_suspected()
            && self.current.rows.len() > 1
        {
            let tried = when.tried.clone();
            self.suspect(Suspicion { tried, rest: None, is_from_crashes: false });
            self.narrow(1);
        }
    }

    /// Reports that `crashes` processes in a row have crashed with the current rows; `alone` if the last one had a
    /// single row.
    pub(super) fn crashed(
        &mut self,
        crashes: u32,
        alone: bool,
        when: &CallContext,
    ) -> Option<Decision> {
        if self.is_suspected() {
            return None;
        }
        let tried = when.tried.clone();
        match self.policy.judge_crashes(self.current.rows.len(), crashes, alone)? {
            Verdict::Bisect => {
                // One more crash is enough to narrow the search further.
                let crashes = self.policy.crashes_max.saturating_sub(1);
                let tried = PriorAttempts { crashes, crashes_survived: 0, ..tried };
                self.suspect(Suspicion { tried, rest: None, is_from_crashes: true });
                Some(Decision::Bisect)
            }
            Verdict::Quarantine => {
                self.state = State::Quarantine { reason: Reason::Crashes, accepted: None };
                None
            }
            Verdict::Stop => {
                self.state = State::GivenUp(End::Stop);
                None
            }
            Verdict::Retry | Verdict::Isolate | Verdict::Probe => None,
        }
    }

    /// Records the outcome of the call that [`Self::next`] asked for; returns a decision to log.
    pub(super) fn record(&mut self, outcome: Outcome, when: &CallContext) -> Option<Decision> {
        match std::mem::replace(&mut self.state, State::Deliver) {
            State::Probe(probe) => {
                self.state = self.probed(probe, outcome, when);
                None
            }
            State::RetryRow { accepted } => self.row_retried(accepted, outcome, when),
            State::Deliver
            | State::ReadMore(_)
            | State::Quarantine { .. }
            | State::Settled(_)
            | State::GivenUp(_) => self.delivered(outcome, when),
        }
    }

    /// Reports that many rows read after the last one.
    pub(super) fn has_read_more(&mut self, rows: usize) {
        let rest = self.read..self.read + rows;
        self.read = rest.end;
        let State::ReadMore(width) = self.state else { return };
        self.state = if rows == 0 {
            State::GivenUp(End::Retry)
        } else {
            State::Probe(self.probe_of(Segment { rows: rest, suspicion: None }, width))
        };
    }

    /// Reports that the current row was quarantined.
    pub(super) fn quarantined(&mut self) {
        let accepted =
            match std::mem::replace(&mut self.state, State::Settled(Settlement::Quarantined)) {
                State::Quarantine { accepted, .. } => accepted,
                State::Deliver
                | State::ReadMore(_)
                | State::Probe(_)
                | State::RetryRow { .. }
                | State::Settled(_)
                | State::GivenUp(_) => None,
            };
        self.clear();
        // The rows that the target accepted go into the same commit, because they are next to the row.
        if let Some(rows) = accepted {
            self.current.rows = rows;
            self.state = State::Settled(Settlement::Accepted);
        }
    }

    /// Returns the rows to deliver next: all current ones, or the front half of those with the failing row. The row
    /// is found in at most ⌊log2 n⌋ + 1 failing calls: if the front is accepted, the row must be after it, without
    /// another call.
    fn next_rows(&self) -> Rows {
        let Rows { start, end } = self.current.rows;
        let half = (end - start) / 2;
        if self.is_suspected() && half > 0 { start..start + half } else { start..end }
    }

    fn delivered(&mut self, outcome: Outcome, when: &CallContext) -> Option<Decision> {
        let tried = self.next_rows();
        let is_part = tried != self.current.rows;
        if outcome == Outcome::Accepted {
            if is_part {
                self.split_front(tried.len());
            } else {
                self.clear();
            }
            self.state = State::Settled(Settlement::Accepted);
            return None;
        }
        if is_part {
            self.narrow(tried.len());
        }
        let rows = self.current.rows.len();
        match outcome {
            Outcome::AcceptedFrontByStep(to) if when.may_call_again && self.can_split(to) => {
                self.split_front(to);
                return Some(Decision::FrontOfChain { to });
            }
            Outcome::TooLarge if !self.is_suspected() && rows > 1 => {
                let to = rows.div_ceil(2);
                self.split_front(to);
                return Some(Decision::Halved { to });
            }
            Outcome::AcceptedFront(to) if self.is_suspected() && self.can_split(to) => {
                self.split_front(to);
                self.state = State::Settled(Settlement::Accepted);
                return None;
            }
            Outcome::OutOfTime { had_all } => return self.out_of_time(had_all, when),
            Outcome::Accepted
            | Outcome::AcceptedFront(_)
            | Outcome::AcceptedFrontByStep(_)
            | Outcome::TooLarge
            | Outcome::Failed(_) => {}
        }
        self.answer(self.judge(outcome.blame(), when), when)
    }

    fn answer(&mut self, verdict: Verdict, when: &CallContext) -> Option<Decision> {
        let calls_again = !matches!(verdict, Verdict::Retry | Verdict::Stop);
        if calls_again && !when.may_call_again {
            if verdict == Verdict::Bisect {
                self.shrink(when);
            }
            self.state = State::GivenUp(End::Retry);
            return None;
        }
        match verdict {
            Verdict::Retry => self.state = State::GivenUp(End::Retry),
            Verdict::Stop => self.state = State::GivenUp(End::Stop),
            Verdict::Bisect => {
                self.suspect_for(when);
                return Some(Decision::Bisect);
            }
            Verdict::Isolate => {
                self.suspect_for(when);
                self.narrow(1);
            }
            Verdict::Quarantine => {
                self.state = State::Quarantine { reason: Reason::Refused, accepted: None };
            }
            Verdict::Probe => {
                self.suspect_for(when);
                self.state = self.begin_probe(when);
            }
        }
        None
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
            first_failed_alone: when.first_failed_alone,
            attempts: tried.attempt.saturating_add(1),
            failing_for: failing_for
                .and_then(|since| Duration::try_from(since).ok())
                .unwrap_or_default(),
            quarantined_in_a_row: when.quarantined_in_a_row,
        })
    }

    /// Whether these rows would be quarantined if they failed now for an unknown reason.
    pub(super) fn is_last_attempt(&self, rows: &Rows, when: &CallContext) -> bool {
        let known = self.prior_attempts().filter(|_| *rows == self.current.rows);
        self.judge_rows(rows.len(), known.unwrap_or(&when.tried), Blame::Unknown, when)
            == Verdict::Probe
    }

    /// Rows for which a whole tick was not enough would never succeed; fewer rows may.
    fn out_of_time(&mut self, had_all: bool, when: &CallContext) -> Option<Decision> {
        if self.judge(Blame::Unknown, when) == Verdict::Stop {
            self.state = State::GivenUp(End::Stop);
            return None;
        }
        self.state = State::GivenUp(End::Retry);
        if had_all && self.shrink(when) {
            return Some(Decision::Halved { to: self.current.rows.len() });
        }
        None
    }

    fn begin_probe(&mut self, when: &CallContext) -> State {
        let of_suspicion = self.current.suspicion.as_mut().and_then(|found| found.rest.take());
        let rest = of_suspicion
            .map(|rows| Segment { rows, suspicion: None })
            .or_else(|| self.waiting.pop());
        // The next row may be another one that crashes processes, and a target that seems to be failing gets few calls.
        let is_open = self.policy.breaker_is_open(when.quarantined_in_a_row);
        let width = if is_open || self.is_from_crashes() {
            ProbeWidth::OneRow
        } else {
            ProbeWidth::AllRows
        };
        match rest {
            Some(rest) => State::Probe(self.probe_of(rest, width)),
            None if self.is_closed => State::GivenUp(End::Retry),
            None => State::ReadMore(width),
        }
    }

    fn probe_of(&self, rest: Segment, width: ProbeWidth) -> Probe {
        let at = match width {
            ProbeWidth::AllRows => ProbeAt::All,
            ProbeWidth::OneRow => {
                let rows = u64::try_from(rest.rows.len()).unwrap_or(u64::MAX);
                let index = self.seed.checked_rem(rows).unwrap_or(0);
                ProbeAt::Only(usize::try_from(index).unwrap_or(0))
            }
        };
        Probe { rest, at }
    }

    /// Returns the state after a probe.
    fn probed(&mut self, probe: Probe, outcome: Outcome, when: &CallContext) -> State {
        let Probe { rest, at } = probe;
        let rows = rest.rows.len();
        let is_target =
            matches!(outcome, Outcome::OutOfTime { .. } | Outcome::Failed(Blame::Target));
        let next = match (at, outcome) {
            (ProbeAt::All, Outcome::Accepted) => {
                return State::RetryRow { accepted: Some(rest.rows) };
            }
            (ProbeAt::All, Outcome::AcceptedFront(front)) if front > 0 && front < rows => {
                let middle = rest.rows.start + front;
                let behind = middle..rest.rows.end;
                self.waiting.push(Segment { rows: behind, suspicion: rest.suspicion });
                return State::RetryRow { accepted: Some(rest.rows.start..middle) };
            }
            // It is next to the failing row, so both go into one commit.
            (ProbeAt::Row(0) | ProbeAt::Only(0), Outcome::Accepted) => {
                let middle = rest.rows.start + 1;
                if middle < rest.rows.end {
                    let after = Segment { rows: middle..rest.rows.end, suspicion: rest.suspicion };
                    self.waiting.push(after);
                }
                return State::RetryRow { accepted: Some(rest.rows.start..middle) };
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
        if next < PROBE_ROWS_MAX.min(rows) && when.may_call_again {
            return State::Probe(Probe { rest, at: ProbeAt::Row(next) });
        }
        State::GivenUp(End::Retry)
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
                let behind = accepted.map(|rows| Segment { rows, suspicion: None });
                self.waiting.extend(behind);
                self.state = State::Settled(Settlement::Accepted);
                None
            }
            Outcome::OutOfTime { had_all } => self.out_of_time(had_all, when),
            Outcome::AcceptedFrontByStep(_)
            | Outcome::AcceptedFront(_)
            | Outcome::Failed(Blame::Target) => {
                self.state = State::GivenUp(End::Retry);
                None
            }
            Outcome::Failed(Blame::Rows) => {
                self.state = State::Quarantine { reason: Reason::Refused, accepted };
                None
            }
            Outcome::TooLarge | Outcome::Failed(Blame::FirstRow | Blame::Unknown) => {
                self.state = State::Quarantine { reason: Reason::Attempts, accepted };
                None
            }
        }
    }

    fn can_split(&self, rows: usize) -> bool {
        rows > 0 && rows < self.current.rows.len()
    }

    /// Keeps the first `rows` current; the rest waits, with the failing row known to be there.
    fn split_front(&mut self, rows: usize) {
        let Rows { start, end } = self.current.rows;
        let behind = Segment { rows: start + rows..end, suspicion: self.current.suspicion.take() };
        self.waiting.push(behind);
        self.current.rows = start..start + rows;
    }

    /// Continues the search in the first `rows`; the rest can wait.
    fn narrow(&mut self, rows: usize) {
        let Rows { start, end } = self.current.rows;
        self.current.rows = start..start + rows;
        if let Some(suspicion) = &mut self.current.suspicion {
            let rest_end = suspicion.rest.as_ref().map_or(end, |rest| rest.end);
            suspicion.rest = Some(start + rows..rest_end);
        }
    }

    /// Keeps half of the rows for which there is no time now, so that a later tick starts with fewer. `false` for a
    /// single row.
    fn shrink(&mut self, when: &CallContext) -> bool {
        let half = self.current.rows.len() / 2;
        if half == 0 {
            return false;
        }
        self.suspect_for(when);
        self.current.rows.end = self.current.rows.start + half;
        true
    }

    fn suspect_for(&mut self, when: &CallContext) {
        let mut tried = when.tried.clone();
        tried.first_failed_at.get_or_insert(when.now);
        tried.first_error.get_or_insert_with(|| when.error.clone());
        self.suspect(Suspicion { tried, rest: None, is_from_crashes: false });
    }

    fn suspect(&mut self, suspicion: Suspicion) {
        self.current.suspicion.get_or_insert_with(|| Box::new(suspicion));
    }

    /// Drops the suspicion with the current rows; the rows that waited for it come next.
    fn clear(&mut self) {
        let rest = self.current.suspicion.take().and_then(|suspicion| suspicion.rest);
        self.waiting.extend(rest.map(|rows| Segment { rows, suspicion: None }));
    }
}

#[cfg(test)]
mod tests;
