//! Judges the recorded events after the storm. Pure.
//!
//! A redelivered row state is explained by the call that delivered it before: the commit of that call must be
//! one that may have failed. So that call must be the last of its term, because a later one shows that the
//! commit was accepted; and a fault must have hit its process or storage between the start of the call and
//! the commit. SIGTERM and cut database connections explain nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use highwater::state::FencingToken;
use highwater_fakehost::EXIT_CODE_RESTART;
use tokio::time::Instant;

use crate::ledger::{Call, End, Exit, Fault, Kind, Ledger, RowState, Term};
use crate::table::Copied;

/// Longest time from the response to a call until the outcome of its commit is settled.
const COMMIT_MAX: Duration = Duration::from_secs(6);
/// Requests of a dead process may be read this long after its end.
const ECHO: Duration = Duration::from_millis(250);

/// Why a row state was redelivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    KilledInCall,
    KilledBeforeCommit,
    Frozen,
    Restarted,
    /// The handler itself reported a lost lease or an unknown commit outcome, though storage was only slow.
    NotKnown,
}

#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Row states in the table that were never accepted.
    pub(crate) lost: Vec<RowState>,
    pub(crate) again: BTreeMap<Cause, u64>,
    /// From a kill that hit a lease holder to the first accepted call of the next holder.
    pub(crate) after_kill: Vec<Duration>,
    /// The same from the exit of a process that was asked to stop.
    pub(crate) after_terminate: Vec<Duration>,
    pub(crate) violations: Vec<String>,
}

pub(crate) fn judge(ledger: &Ledger, table: &[RowState]) -> Judgement {
    let mut judgement = Judgement {
        lost: table.iter().filter(|row| !ledger.accepted.contains(row)).copied().collect(),
        violations: ledger.violations.clone(),
        ..Judgement::default()
    };
    check_order(ledger, &mut judgement);
    check_terms(ledger, &mut judgement);
    check_exits(ledger, &mut judgement);
    check_lost_leases(ledger, &mut judgement);
    count_again(ledger, &mut judgement);
    measure_kills(ledger, &mut judgement);
    measure_stops(ledger, &mut judgement);
    judgement
}

/// Each takeover came within its limit, and there was at least one to measure.
pub(crate) fn judge_takeovers(after: &str, times: &[Duration], limit: Duration) -> Option<String> {
    if times.is_empty() {
        return Some(format!("no takeover after {after} was measured"));
    }
    let late = times.iter().find(|time| **time > limit);
    late.map(|time| format!("a takeover after {after} took {time:?}, the limit is {limit:?}"))
}

/// The copy equals its source, and nothing was applied to it twice.
pub(crate) fn judge_copy(copied: &Copied) -> Vec<String> {
    let Copied { unlike, applied, again, noted } = copied;
    let mut violations = Vec::new();
    if !unlike.is_empty() {
        violations.push(format!("source and target differ: {unlike:?}"));
    }
    if !again.is_empty() {
        violations.push(format!("applied more than once: {again:?}"));
    }
    // A state that a later one of the same batch replaces is recorded, and not written.
    if noted < applied {
        violations.push(format!("{applied} row states are applied, and {noted} noted"));
    }
    violations
}

/// Within a term cursors only grow, from row to row and from call to call.
fn check_order(ledger: &Ledger, judgement: &mut Judgement) {
    let mut last: BTreeMap<Term, u64> = BTreeMap::new();
    for (number, call) in ledger.calls.iter().enumerate() {
        let reached = last.entry(call.term).or_default();
        for row in &call.rows {
            if row.version <= *reached {
                let text = format!("call {number} goes back from {reached} to {row:?}");
                judgement.violations.push(text);
            }
            *reached = row.version;
        }
    }
}

/// A term belongs to one process: one instance, and one run of it.
fn check_terms(ledger: &Ledger, judgement: &mut Judgement) {
    let mut terms: BTreeMap<Term, Vec<&Call>> = BTreeMap::new();
    for call in ledger.calls.iter().filter(|call| call.end != End::Stale) {
        terms.entry(call.term).or_default().push(call);
    }
    for (term, calls) in terms {
        let (first, last) = (calls[0], calls[calls.len() - 1]);
        if calls.iter().any(|call| call.worker != first.worker) {
            judgement.violations.push(format!("both instances used {term:?}"));
        }
        let ended = |exit: &&Exit| {
            exit.worker == first.worker && first.began < exit.at && exit.at + ECHO < last.began
        };
        if ledger.exits.iter().find(ended).is_some() {
            judgement.violations.push(format!("two lives of an instance used {term:?}"));
        }
    }
}

/// Processes end by a kill, or on request and then with success.
fn check_exits(ledger: &Ledger, judgement: &mut Judgement) {
    for exit in &ledger.exits {
        let explains = |fault: &Fault| {
            let kind = match exit.code {
                137 => Kind::Kill(exit.worker),
                EXIT_CODE_RESTART => Kind::Terminate(exit.worker),
                _ => return false,
            };
            fault.kind == kind && fault.from <= exit.at
        };
        if !ledger.faults.iter().any(explains) {
            judgement.violations.push(format!("a process ended by itself: {exit:?}"));
        }
    }
    for fault in &ledger.faults {
        let Kind::Terminate(worker) = fault.kind else { continue };
        let is_in_flight = |call: &&Call| {
            let ended = call.ended.is_none_or(|ended| ended > fault.from);
            call.worker == worker && call.began <= fault.from && ended
        };
        if let Some(call) =
            ledger.calls.iter().find(is_in_flight).filter(|c| c.end != End::Answered)
        {
            let (id, end) = (&call.batch_id, call.end);
            judgement.violations.push(format!("SIGTERM broke off batch `{id}`: {end:?}"));
        }
    }
}

/// An instance that reports a lost lease must not have released it; otherwise its last write landed, and
/// nothing was lost.
fn check_lost_leases(ledger: &Ledger, judgement: &mut Judgement) {
    for failed in &ledger.failed {
        let Some(Term { generation, token }) = lost_term(&failed.text) else { continue };
        let was_released = ledger
            .released
            .iter()
            .any(|(of, released)| *of == generation && released.contains(FencingToken(token)));
        if was_released {
            let text = format!("a lost lease was reported that had been released: {}", failed.text);
            judgement.violations.push(text);
        }
    }
}

/// Returns the grant that a `LostLeaseError` says was superseded.
fn lost_term(text: &str) -> Option<Term> {
    let (_, held) = text.split_once("lease superseded: held token ")?;
    let (token, rest) = held.split_once(" of generation ")?;
    let generation = rest.split(',').next()?;
    Some(Term { generation: generation.parse().ok()?, token: token.parse().ok()? })
}

fn count_again(ledger: &Ledger, judgement: &mut Judgement) {
    let last_calls: BTreeMap<Term, usize> =
        ledger.calls.iter().enumerate().map(|(number, call)| (call.term, number)).collect();
    let mut brought: BTreeMap<RowState, usize> = BTreeMap::new();
    let mut unexplained = BTreeSet::new();
    for (number, call) in ledger.calls.iter().enumerate() {
        if call.end == End::Stale {
            continue;
        }
        for row in &call.rows {
            let Some(before) = brought.insert(*row, number) else { continue };
            let is_last = last_calls.get(&ledger.calls[before].term) == Some(&before);
            match cause(ledger, before, number).filter(|_| is_last) {
                Some(cause) => *judgement.again.entry(cause).or_default() += 1,
                None => {
                    unexplained.insert((before, number));
                }
            }
        }
    }
    let shown = |number: usize| {
        let call = &ledger.calls[number];
        format!("call {number} ({:?} of {} as {:?})", call.end, call.worker, call.term)
    };
    judgement.violations.extend(unexplained.into_iter().map(|(before, number)| {
        format!("{} brought again what {} had brought, for no reason", shown(number), shown(before))
    }));
}

fn cause(ledger: &Ledger, before: usize, again: usize) -> Option<Cause> {
    let (call, again) = (&ledger.calls[before], &ledger.calls[again]);
    let until = (call.ended.unwrap_or(again.began) + COMMIT_MAX).min(again.began);
    let met = |kind: Kind| {
        ledger.faults.iter().any(|fault| fault.kind == kind && overlaps(fault, call.began, until))
    };
    let reported =
        |text: &str| ["LostLeaseError", "CommitError"].iter().any(|word| text.contains(word));
    match call.end {
        End::Dropped if met(Kind::Kill(call.worker)) => Some(Cause::KilledInCall),
        _ if met(Kind::Freeze) => Some(Cause::Frozen),
        _ if met(Kind::Restart) => Some(Cause::Restarted),
        _ if met(Kind::Kill(call.worker)) => Some(Cause::KilledBeforeCommit),
        _ if ledger.failed.iter().any(|failed| {
            let in_time = failed.at >= call.began && failed.at <= again.began;
            failed.worker == call.worker && in_time && reported(&failed.text)
        }) =>
        {
            Some(Cause::NotKnown)
        }
        End::Open | End::Answered | End::Stale | End::Dropped => None,
    }
}

fn overlaps(fault: &Fault, from: Instant, to: Instant) -> bool {
    fault.from <= to && fault.to.is_none_or(|over| over >= from)
}

fn measure_kills(ledger: &Ledger, judgement: &mut Judgement) {
    let mut seen = BTreeSet::new();
    for fault in &ledger.faults {
        let (Kind::Kill(_), Some((term, true))) = (fault.kind, fault.term_after) else { continue };
        // The dead holder's lease remains until it expires, and may be hit again.
        if !seen.insert(term) {
            continue;
        }
        let next = |call: &&Call| call.end == End::Answered && call.term > term;
        let Some(call) = ledger.calls.iter().find(next) else { continue };
        let ended = call.ended.unwrap_or(call.began);
        let disturbs = |other: &&Fault| match other.kind {
            Kind::Freeze | Kind::Restart => overlaps(other, fault.from, ended),
            // A successor was killed too, or may have been.
            Kind::Kill(_) => {
                let is_meanwhile = other.from > fault.from && other.from < ended;
                is_meanwhile && other.term_after.is_none_or(|(after, _)| after > term)
            }
            Kind::Terminate(_) | Kind::Cut(_) => false,
        };
        if ledger.faults.iter().find(disturbs).is_none() {
            judgement.after_kill.push(ended - fault.from);
        }
    }
}

fn measure_stops(ledger: &Ledger, judgement: &mut Judgement) {
    for fault in &ledger.faults {
        let (Kind::Terminate(_), Some(gone)) = (fault.kind, fault.to) else { continue };
        let next = |call: &&Call| call.end == End::Answered && call.began > gone;
        let Some(call) = ledger.calls.iter().find(next) else { continue };
        let ended = call.ended.unwrap_or(call.began);
        let disturbs = |other: &&Fault| {
            let counts = other.kind.is_of_storage() || matches!(other.kind, Kind::Kill(_));
            counts && overlaps(other, fault.from, ended)
        };
        if ledger.faults.iter().find(disturbs).is_none() {
            judgement.after_terminate.push(ended - gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use highwater::state::ReleasedGrants;

    use super::*;
    use crate::ledger::Failed;

    /// Calls and faults at given milliseconds.
    struct History {
        ledger: Ledger,
        zero: Instant,
    }

    impl History {
        fn new() -> Self {
            Self { ledger: Ledger::default(), zero: Instant::now() }
        }

        fn at(&self, millis: u64) -> Instant {
            self.zero + Duration::from_millis(millis)
        }

        fn call(&mut self, (worker, token): (usize, u64), at: u64, versions: &[u64], end: End) {
            let row = |version: &u64| RowState { key: 1, version: *version, token: *version };
            let call = Call {
                worker,
                term: Term { generation: 1, token },
                batch_id: format!("{versions:?}"),
                rows: versions.iter().map(row).collect(),
                began: self.at(at),
                ended: None,
                end: End::Open,
            };
            let ids = versions.iter().map(ToString::to_string).collect();
            let (number, ended) = (self.ledger.begin(call, ids), self.at(at + 10));
            if self.ledger.calls[number].end == End::Open {
                self.ledger.end(number, end);
                self.ledger.calls[number].ended = Some(ended);
            }
        }

        fn fault(&mut self, kind: Kind, from: u64, to: u64) {
            let (from, to) = (self.at(from), self.at(to));
            self.ledger.faults.push(Fault { kind, from, to: Some(to), term_after: None });
            let code = match kind {
                Kind::Kill(worker) => (worker, 137),
                Kind::Terminate(worker) => (worker, EXIT_CODE_RESTART),
                Kind::Freeze | Kind::Restart | Kind::Cut(_) => return,
            };
            self.ledger.exits.push(Exit { worker: code.0, at: to, code: code.1 });
        }

        fn judge(&self, table: &[u64]) -> Judgement {
            let rows =
                table.iter().map(|version| RowState { key: 1, version: *version, token: *version });
            judge(&self.ledger, &rows.collect::<Vec<_>>())
        }

        #[track_caller]
        fn is_wrong(&self, word: &str) {
            let violations = self.judge(&[]).violations;
            let [violation] = &violations[..] else { panic!("{violations:#?}") };
            assert!(violation.contains(word), "{violation}");
        }
    }

    #[test]
    fn a_row_counts_as_lost_until_its_last_state_is_acknowledged() {
        let mut history = History::new();
        history.call((0, 1), 0, &[1, 2], End::Answered);
        history.call((0, 1), 20, &[3], End::Dropped);
        assert_eq!(history.judge(&[2, 3]).lost, [RowState { key: 1, version: 3, token: 3 }]);
    }

    #[test]
    fn a_lost_lease_that_had_been_released_is_a_false_report() {
        let mut history = History::new();
        let text = |token: u64| {
            format!(
                "LostLeaseError: lease lost: lease superseded: held token {token} of generation 7, document has 9 owned by `b`"
            )
        };
        let released = serde_json::from_str(r#"[{"from": 2, "to": 4}]"#).unwrap();
        history.ledger.released.push((7, released));
        let at = history.at(0);
        history.ledger.failed.push(Failed { worker: 0, at, text: text(5) });
        assert_eq!(history.judge(&[]).violations, Vec::<String>::new());
        history.ledger.failed.push(Failed { worker: 0, at, text: text(3) });
        history.is_wrong("had been released");
    }

    #[test]
    fn a_copy_must_be_complete_and_made_once() {
        let copied = |unlike: &[&str], again: usize, noted| Copied {
            unlike: unlike.iter().map(|row| (*row).to_owned()).collect(),
            applied: 2,
            again: vec![Vec::new(); again],
            noted,
        };
        assert_eq!(judge_copy(&copied(&[], 0, 2)), Vec::<String>::new());
        for (wrong, word) in [
            (copied(&["row"], 0, 2), "differ"),
            (copied(&[], 1, 2), "more than once"),
            (copied(&[], 0, 1), "1 noted"),
        ] {
            let [violation] = &judge_copy(&wrong)[..] else { panic!("{wrong:?}") };
            assert!(violation.contains(word), "{violation}");
        }
    }

    #[test]
    fn a_redelivery_needs_a_reason() {
        for (fault, cause) in [
            (Some(Kind::Kill(0)), Some(Cause::KilledBeforeCommit)),
            (Some(Kind::Freeze), Some(Cause::Frozen)),
            (Some(Kind::Restart), Some(Cause::Restarted)),
            (Some(Kind::Kill(1)), None),
            (Some(Kind::Terminate(0)), None),
            (Some(Kind::Cut(1)), None),
            (None, None),
        ] {
            let mut history = History::new();
            history.call((0, 1), 0, &[1, 2], End::Answered);
            if let Some(kind) = fault {
                history.fault(kind, 12, 20);
            }
            history.call((1, 2), 7_000, &[1, 2, 3], End::Answered);
            let judgement = history.judge(&[3]);
            assert_eq!(judgement.again.get(&Cause::KilledInCall), None);
            match cause {
                Some(cause) => {
                    assert_eq!(judgement.again, BTreeMap::from([(cause, 2)]));
                    assert_eq!(judgement.violations, Vec::<String>::new());
                }
                None => history.is_wrong("for no reason"),
            }
        }
    }

    #[test]
    fn a_reason_long_after_the_commit_does_not_count() {
        let mut history = History::new();
        history.call((0, 1), 0, &[1], End::Answered);
        history.fault(Kind::Kill(0), 8_000, 8_001);
        history.call((1, 2), 16_000, &[1], End::Answered);
        history.is_wrong("for no reason");
    }

    #[test]
    fn rows_proven_committed_by_a_later_call_may_not_be_redelivered() {
        let mut history = History::new();
        history.call((0, 1), 0, &[1], End::Answered);
        history.call((0, 1), 20, &[2], End::Dropped);
        history.fault(Kind::Kill(0), 25, 30);
        history.call((1, 2), 7_000, &[1, 2], End::Answered);
        assert_eq!(history.judge(&[]).again, BTreeMap::from([(Cause::KilledInCall, 1)]));
        history.is_wrong("for no reason");
    }

    #[test]
    fn order_terms_and_content_are_checked() {
        let mut history = History::new();
        history.call((0, 1), 0, &[2], End::Answered);
        history.call((0, 1), 20, &[1], End::Answered);
        history.is_wrong("goes back");

        let mut history = History::new();
        history.call((0, 1), 0, &[1], End::Answered);
        history.call((1, 1), 20, &[2], End::Answered);
        history.is_wrong("both instances");

        let mut history = History::new();
        history.call((0, 1), 0, &[1], End::Answered);
        history.fault(Kind::Kill(0), 15, 20);
        history.call((0, 1), 400, &[2], End::Answered);
        history.is_wrong("two lives");

        let mut history = History::new();
        history.call((0, 1), 0, &[1], End::Dropped);
        history.fault(Kind::Terminate(0), 5, 20);
        history.is_wrong("broke off");
    }

    #[test]
    fn a_stale_call_is_rejected_and_not_counted() {
        let mut history = History::new();
        history.call((1, 2), 0, &[1], End::Answered);
        history.call((0, 1), 20, &[1, 2], End::Answered);
        let judgement = history.judge(&[1, 2]);
        assert_eq!(judgement.lost.len(), 1);
        assert_eq!((judgement.again.len(), judgement.violations.len()), (0, 0));
    }

    #[test]
    fn the_state_may_not_regress_and_a_token_has_one_owner() {
        let sample = |token, checkpoint, owner: &str| crate::ledger::Sample {
            term: Term { generation: 1, token },
            owner: Some(owner.to_owned()),
            is_held: true,
            checkpoint,
            released: ReleasedGrants::default(),
        };
        for (second, word) in [
            (sample(2, 4, "a"), "went back"),
            (sample(1, 5, "a"), "went back"),
            (sample(2, 5, "b"), "is of `a`"),
        ] {
            let mut history = History::new();
            history.ledger.sample(sample(2, 5, "a"));
            history.ledger.sample(second);
            history.is_wrong(word);
        }
    }

    #[test]
    fn a_takeover_is_measured_only_if_nothing_else_happened() {
        let mut history = History::new();
        history.call((0, 1), 0, &[1], End::Dropped);
        history.fault(Kind::Kill(0), 5, 9);
        history.ledger.faults[0].term_after = Some((Term { generation: 1, token: 1 }, true));
        history.call((1, 2), 7_000, &[1], End::Answered);
        assert_eq!(history.judge(&[]).after_kill, [Duration::from_millis(7_005)]);
        history.fault(Kind::Freeze, 3_000, 4_000);
        assert!(history.judge(&[]).after_kill.is_empty());
    }

    #[test]
    fn a_takeover_limit_is_violated_by_a_late_takeover_and_by_none() {
        let (soon, late) = (Duration::from_secs(7), Duration::from_secs(23));
        let limit = Duration::from_secs(22);
        assert_eq!(judge_takeovers("a kill", &[soon, limit], limit), None);
        let text = judge_takeovers("a kill", &[soon, late], limit).unwrap();
        assert!(text.contains("a takeover after a kill took 23s"), "{text}");
        let text = judge_takeovers("SIGTERM", &[], limit).unwrap();
        assert_eq!(text, "no takeover after SIGTERM was measured");
    }
}
