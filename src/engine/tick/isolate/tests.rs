//! The machine against a target whose rows are known: all small cases, and large ones drawn at random.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::policy::OnFailure;

/// What a target does with the rows that it is given.
#[derive(Clone, Debug)]
struct Target {
    /// Rows that it does not take.
    bad: Vec<bool>,
    /// What it says to rows among which one is bad.
    blame: Blame,
    /// Whether it says how many rows from the front it has taken.
    says_front: bool,
    /// Most rows that it takes at once.
    rows_max: usize,
    /// It is down for all calls before this one.
    up_from: usize,
    /// Whether bad rows are too large for it.
    says_too_large: bool,
}

impl Target {
    fn answer(&self, rows: &Rows, call: usize) -> Outcome {
        if call < self.up_from {
            return Outcome::Failed(Blame::Unknown);
        }
        if rows.len() > self.rows_max {
            return Outcome::TooLarge;
        }
        match self.bad[rows.clone()].iter().position(|bad| *bad) {
            None => Outcome::Accepted,
            Some(_) if self.says_too_large && rows.len() > 1 => Outcome::TooLarge,
            Some(0) if self.says_front => Outcome::Failed(Blame::FirstRow),
            Some(front) if self.says_front => Outcome::AcceptedFront(front),
            Some(_) => Outcome::Failed(self.blame),
        }
    }
}

/// What came of all rows that were read.
#[derive(Debug, Default)]
struct Run {
    /// Rows of each call, and what was said to it.
    calls: Vec<(Rows, Outcome)>,
    /// Rows that were settled, in order.
    settled: Vec<(Rows, Settlement)>,
    set_aside: Vec<(usize, Reason)>,
    /// How many calls came before each of these.
    set_aside_at: Vec<usize>,
    end: Option<(Rows, End)>,
}

impl Run {
    /// Returns how many rows from the front are settled.
    fn done(&self) -> usize {
        self.settled.last().map_or(0, |(rows, _)| rows.end)
    }

    /// Returns how many rows were parked since a row was last committed as accepted.
    fn quarantined_in_a_row(&self) -> u32 {
        let aside = self
            .settled
            .iter()
            .rev()
            .take_while(|(_, settlement)| *settlement == Settlement::Parked);
        u32::try_from(aside.count()).unwrap()
    }

    fn calls_with(&self, row: usize) -> usize {
        self.calls.iter().filter(|(rows, _)| rows.contains(&row)).count()
    }

    fn accepted(&self, row: usize) -> usize {
        let taken = |(rows, outcome): &&(Rows, Outcome)| {
            let end = match outcome {
                Outcome::Accepted => rows.end,
                Outcome::AcceptedFront(front) => rows.start + front,
                Outcome::AcceptedFrontByStep(_)
                | Outcome::TooLarge
                | Outcome::Failed(_)
                | Outcome::OutOfTime(_) => rows.start,
            };
            (rows.start..end).contains(&row)
        };
        self.calls.iter().filter(taken).count()
    }
}

/// The context of rows that were never tried.
fn nothing_known() -> CallContext {
    CallContext {
        tried: PriorAttempts::default(),
        announced: Announced::Batch,
        now: OffsetDateTime::UNIX_EPOCH,
        error: "no".to_owned(),
        next_call: NextCall::Allowed,
        quarantined_in_a_row: 0,
    }
}

/// Runs one tick with `rows` rows of those that `target` knows; the rest follow.
fn run(
    policy: FailurePolicy,
    rows: usize,
    tried: &PriorAttempts,
    target: &Target,
    calls_max: usize,
) -> Run {
    let halving = if policy.bisect_on_error { Halving::FirstRetry } else { Halving::Exhausted };
    let mut machine = Isolation::new(policy, halving, rows, RowsAfter::Readable, 3);
    let mut run = Run::default();
    machine.prepare(&CallContext { tried: tried.clone(), ..nothing_known() });
    loop {
        assert!(run.calls.len() < 10_000, "it does not end");
        let step = machine.next_step();
        assert_eq!(step, machine.next_step(), "asking changes nothing");
        match step {
            Step::Wait(_) | Step::Announce(_) => machine.step_done(),
            Step::Deliver { rows, .. } | Step::Probe(rows) => {
                assert!(!rows.is_empty() && rows.end <= target.bad.len());
                let outcome = target.answer(&rows, run.calls.len());
                run.calls.push((rows, outcome));
                let when = CallContext {
                    // The document speaks of the first rows only.
                    tried: if run.settled.is_empty() {
                        tried.clone()
                    } else {
                        PriorAttempts::default()
                    },
                    next_call: if run.calls.len() < calls_max {
                        NextCall::Allowed
                    } else {
                        NextCall::NotNow
                    },
                    quarantined_in_a_row: run.quarantined_in_a_row(),
                    ..nothing_known()
                };
                let was_suspected = machine.is_suspected();
                machine.record(outcome, &when);
                // Rows that are too large are halved first: the next call notices that there is no time for it, and so
                // the half is recorded.
                let may_follow = outcome == Outcome::TooLarge && !was_suspected;
                if !when.may_call_again()
                    && matches!(outcome, Outcome::Failed(_) | Outcome::TooLarge)
                    && !may_follow
                {
                    let next = machine.next_step();
                    let ends = matches!(next, Step::GiveUp(_) | Step::Park(_) | Step::Settle(_));
                    assert!(ends, "{next:?} follows a failed call without time for it");
                }
            }
            Step::ReadMore => machine.rows_read(target.bad.len() - rows),
            Step::Park(reason) => {
                assert_eq!(machine.rows().len(), 1, "one row at a time is parked");
                run.set_aside.push((machine.rows().start, reason));
                run.set_aside_at.push(run.calls.len());
                machine.parked();
            }
            Step::Settle(settlement) => {
                let rows = machine.rows();
                let begins_at = run.set_aside.last().map_or(run.done(), |(row, _)| {
                    // Rows that prove it was the row go into the same commit.
                    if settlement == Settlement::Accepted && *row == run.done() {
                        row + 1
                    } else {
                        run.done()
                    }
                });
                assert_eq!(rows.start, begins_at, "in order and without a gap");
                run.settled.push((rows, settlement));
                if !machine.start_waiting() {
                    return run;
                }
                let quarantined_in_a_row = run.quarantined_in_a_row();
                machine.prepare(&CallContext { quarantined_in_a_row, ..nothing_known() });
            }
            Step::GiveUp(end) => {
                run.end = Some((machine.rows(), end));
                return run;
            }
        }
    }
}

fn policies() -> impl Iterator<Item = FailurePolicy> {
    [OnFailure::Retry, OnFailure::Park, OnFailure::Stop].into_iter().flat_map(|on_failure| {
        [false, true].into_iter().map(move |bisect_on_error| FailurePolicy {
            on_failure,
            bisect_on_error,
            ..FailurePolicy::default()
        })
    })
}

fn failed_before(attempt: u32) -> PriorAttempts {
    PriorAttempts { attempt, ..PriorAttempts::default() }
}

/// What must hold whatever the target and the policy.
fn check(run: &Run, policy: FailurePolicy, target: &Target, rows: usize) {
    for (part, settlement) in &run.settled {
        for row in part.clone().filter(|_| *settlement == Settlement::Accepted) {
            assert!(run.accepted(row) > 0, "row {row} was committed and never taken: {run:?}");
        }
    }
    for (row, reason) in &run.set_aside {
        assert!(target.bad[*row] || target.rows_max == 0 || target.up_from > 0, "{run:?}");
        assert_eq!(policy.on_failure, OnFailure::Park);
        if *reason == Reason::Attempts {
            let accepts = |(_, outcome): &(Rows, Outcome)| {
                matches!(outcome, Outcome::Accepted | Outcome::AcceptedFront(_))
            };
            assert!(run.calls.iter().any(accepts), "no row proves that the target is up: {run:?}");
        }
        assert_eq!(run.accepted(*row), 0, "a row was parked and accepted: {run:?}");
    }
    match &run.end {
        None => assert!(run.done() >= rows, "{run:?}"),
        Some((kept, _)) => assert!(!kept.is_empty() && kept.start >= run.done(), "{run:?}"),
    }
}

#[test]
fn all_small_cases_settle_in_order_and_lose_no_row() {
    for rows in 1..=5_usize {
        for behind in 0..=1 {
            for bad in 0..1_u32 << (rows + behind) {
                let bad: Vec<bool> = (0..rows + behind).map(|row| bad >> row & 1 == 1).collect();
                for blame in [Blame::Rows, Blame::FirstRow, Blame::Unknown, Blame::Target] {
                    for (rows_max, up_from) in [(usize::MAX, 0), (2, 0), (usize::MAX, 2), (0, 0)] {
                        for says_front in [false, true] {
                            let bad = bad.clone();
                            let says_too_large = rows_max == 2 && says_front;
                            let target = Target {
                                bad,
                                blame,
                                says_front,
                                rows_max,
                                up_from,
                                says_too_large,
                            };
                            for policy in policies() {
                                for attempt in [0, 9] {
                                    for calls_max in [usize::MAX, 1, 3] {
                                        let tried = failed_before(attempt);
                                        let run = run(policy, rows, &tried, &target, calls_max);
                                        check(&run, policy, &target, rows);
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn isolating(attempts_max: u32) -> FailurePolicy {
    FailurePolicy {
        on_failure: OnFailure::Park,
        bisect_on_error: true,
        attempts_max,
        ..FailurePolicy::default()
    }
}

fn refused_alone(bad: Vec<bool>) -> Target {
    Target {
        bad,
        blame: Blame::Rows,
        says_front: false,
        rows_max: usize::MAX,
        up_from: 0,
        says_too_large: false,
    }
}

#[test]
fn a_target_that_is_down_gets_few_calls_with_ever_fewer_rows_and_no_row_is_parked() {
    for policy in policies() {
        let target = Target { up_from: usize::MAX, ..refused_alone(vec![false; 1_000]) };
        let run = run(policy, 1_000, &PriorAttempts::default(), &target, usize::MAX);
        let calls: Vec<usize> = run.calls.iter().map(|(rows, _)| rows.len()).collect();
        let expected: &[usize] = if policy.bisect_on_error { &[1_000, 500, 250] } else { &[1_000] };
        assert_eq!(calls, expected);
        assert_eq!(run.end, Some((0..*calls.last().unwrap(), End::Retry)));
    }
}

/// Runs ticks until all rows are settled, each with the row that it starts at. A tick starts with the rows that the
/// one before left in flight.
fn run_to_the_end(policy: FailurePolicy, rows: usize, target: &Target) -> Vec<(usize, Run)> {
    let (mut from, mut in_flight, mut tried) = (0, rows, PriorAttempts::default());
    let mut runs = Vec::new();
    while from < rows {
        assert!(runs.len() < 100, "it does not end");
        let later = Target { bad: target.bad[from..].to_vec(), ..target.clone() };
        let run = run(policy, in_flight.min(rows - from), &tried, &later, usize::MAX);
        let began_at = from;
        match &run.end {
            Some((kept, End::Retry)) => {
                let front = match run.calls.last() {
                    Some((_, Outcome::AcceptedFront(front))) => *front,
                    Some(_) | None => 0,
                };
                let is_progress = kept.start + front > 0;
                tried = failed_before(if is_progress { 0 } else { tried.attempt } + 1);
                in_flight = kept.len() - front;
                from += kept.start + front;
            }
            Some((_, End::Stop)) => panic!("{run:?}"),
            None => {
                tried = PriorAttempts::default();
                (from, in_flight) = (from + run.done(), rows);
            }
        }
        runs.push((began_at, run));
    }
    runs
}

#[test]
fn a_failure_that_is_over_by_the_first_retry_costs_one_more_call() {
    let policy = isolating(5);
    let target = Target { up_from: 1, ..refused_alone(vec![false; 1_000]) };
    let runs = run_to_the_end(policy, 1_000, &target);
    let calls: Vec<usize> =
        runs.iter().flat_map(|(_, run)| &run.calls).map(|(rows, _)| rows.len()).collect();
    assert_eq!(calls, [1_000, 500, 500]);
}

/// What `docs/how-to/failures.md` says about the cost of a bad row.
#[test]
fn one_bad_row_in_a_thousand_costs_few_calls_wherever_it_is_and_whatever_the_reply() {
    let replies = [
        ("400", Blame::Rows, false, false),
        ("413", Blame::Rows, false, true),
        ("500", Blame::Unknown, false, false),
        ("accepted", Blame::Unknown, true, false),
    ];
    let mut costs = Vec::new();
    for attempts_max in [1, 5] {
        for (reply, blame, says_front, says_too_large) in replies {
            let mut most = 0;
            for row in 0..1_000 {
                let mut bad = vec![false; 1_001];
                bad[row] = true;
                let target =
                    Target { blame, says_front, says_too_large, ..refused_alone(bad.clone()) };
                let runs = run_to_the_end(isolating(attempts_max), 1_000, &target);
                let aside: usize = runs.iter().map(|(_, run)| run.set_aside.len()).sum();
                assert_eq!(aside, 1, "{reply} {row}: {runs:?}");
                for innocent in (0..1_000).filter(|innocent| *innocent != row) {
                    let accepted: usize = runs
                        .iter()
                        .filter(|(from, _)| *from <= innocent)
                        .map(|(from, run)| run.accepted(innocent - from))
                        .sum();
                    assert_eq!(accepted, 1, "{reply} {row}: row {innocent} was accepted again");
                }
                most = most.max(runs.iter().map(|(_, run)| run.calls.len()).sum());
            }
            costs.push((attempts_max, reply, most));
        }
    }
    let once = [(1, "400", 13), (1, "413", 14), (1, "500", 14), (1, "accepted", 5)];
    let five_times = [(5, "400", 13), (5, "413", 14), (5, "500", 19), (5, "accepted", 7)];
    assert_eq!(costs, [once, five_times].concat());
}

#[test]
fn a_row_that_fails_alone_is_parked_only_if_another_row_is_accepted() {
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let mut target = Target { blame: Blame::Unknown, ..refused_alone(vec![true, false]) };
    let taken = run(policy, 1, &failed_before(9), &target, usize::MAX);
    assert_eq!(taken.set_aside, [(0, Reason::Attempts)]);
    // PriorAttempts, probed, tried once more; what the probe delivered is committed with it.
    assert_eq!(taken.calls_with(0), 2);
    assert_eq!(taken.settled, [(1..2, Settlement::Accepted)]);
    target.bad = vec![true, true];
    let refused = run(policy, 1, &failed_before(9), &target, usize::MAX);
    assert_eq!((refused.set_aside.len(), refused.end), (0, Some((0..1, End::Retry))));
}

#[test]
fn an_outage_that_ends_before_the_probe_parks_nothing() {
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let target = Target { up_from: 1, ..refused_alone(vec![false; 2]) };
    let run = run(policy, 1, &failed_before(9), &target, usize::MAX);
    assert!(run.set_aside.is_empty());
    // The row after it was accepted before it, so it is redelivered in its turn.
    assert_eq!(run.settled, [(0..1, Settlement::Accepted), (1..2, Settlement::Accepted)]);
    assert_eq!(run.accepted(1), 2);
}

#[test]
fn deadly_rows_are_written_down_before_each_call_and_halved() {
    let policy = FailurePolicy { bisect_on_error: true, ..FailurePolicy::default() };
    let of =
        |policy, rows| Isolation::new(policy, Halving::FirstRetry, rows, RowsAfter::Readable, 3);
    let mut machine = of(policy, 8);
    let (when, several) = (nothing_known(), CrashedWith::SeveralRows);
    assert_eq!(machine.judge_crashes(4, several, &when), None);
    assert_eq!(machine.next_step(), Step::Deliver { rows: 0..8, tries: CallTries::Several });
    assert_eq!(machine.judge_crashes(5, several, &when), Some(Decision::Bisect));
    assert_eq!(machine.next_step(), Step::Announce(Announcement::Suspects(0..4)));
    machine.step_done();
    assert_eq!(machine.next_step(), Step::Deliver { rows: 0..4, tries: CallTries::One });
    assert_eq!(machine.prior_attempts().map(|tried| tried.crashes), Some(4), "one more is enough");
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..policy };
    let mut machine = of(policy, 1);
    assert_eq!(machine.judge_crashes(5, CrashedWith::OneRow, &when), None);
    assert_eq!(machine.next_step(), Step::Park(Reason::Crashes));
}

#[test]
fn a_target_that_rejects_everything_gets_two_calls_once_the_breaker_is_open() {
    let policy = FailurePolicy {
        on_failure: OnFailure::Park,
        bisect_on_error: true,
        breaker_rows: 3,
        ..FailurePolicy::default()
    };
    let target = refused_alone(vec![true; 100]);
    let run = run(policy, 100, &PriorAttempts::default(), &target, usize::MAX);
    assert_eq!(run.set_aside.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(run.end, Some((3..4, End::Retry)));
    let open = run.calls.iter().position(|(rows, _)| *rows == (3..4)).unwrap();
    assert_eq!(run.calls.len() - open, 2, "{:?}", run.calls);
}

#[test]
fn an_open_breaker_lets_bad_rows_through_one_by_one_until_a_row_is_accepted() {
    let policy = FailurePolicy {
        on_failure: OnFailure::Park,
        bisect_on_error: true,
        breaker_rows: 2,
        ..FailurePolicy::default()
    };
    let bad = [true, true, true, false, false, true, false].to_vec();
    let run = run(policy, 7, &PriorAttempts::default(), &refused_alone(bad), usize::MAX);
    assert_eq!(run.end, None);
    assert_eq!(run.set_aside.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [0, 1, 2, 5]);
    assert!(run.set_aside.iter().all(|(_, reason)| *reason == Reason::Refused));
}

proptest! {
    #[test]
    fn no_more_rows_than_the_breaker_allows_are_quarantined_in_a_row(
        bad in prop::collection::vec(prop::bool::weighted(0.8), 1..60),
        breaker_rows in 1_u32..5,
        bisect_on_error: bool,
    ) {
        let on_failure = OnFailure::Park;
        let policy =
            FailurePolicy { on_failure, bisect_on_error, breaker_rows, ..FailurePolicy::default() };
        let (rows, target) = (bad.len(), refused_alone(bad));
        let run = run(policy, rows, &PriorAttempts::default(), &target, usize::MAX);
        check(&run, policy, &target, rows);
        // Between the first and the last of more of them, a row was accepted: in a call, or by its position.
        let most = usize::try_from(breaker_rows).unwrap();
        let parked: Vec<(usize, usize)> =
            run.set_aside.iter().map(|(row, _)| *row).zip(run.set_aside_at.clone()).collect();
        for some in parked.windows(most + 1) {
            let ((first, from), (last, to)) = (some[0], some[most]);
            let in_a_call =
                run.calls[from..to].iter().any(|(_, outcome)| *outcome == Outcome::Accepted);
            let by_position = (first..last).any(|row| run.accepted(row) > 0);
            prop_assert!(in_a_call || by_position, "more than {breaker_rows} in a row: {run:?}");
        }
    }

    #[test]
    fn refused_rows_are_found_in_few_calls(
        rows in 1_usize..1_500,
        bad in prop::collection::btree_set(0_usize..1_500, 0..4),
    ) {
        let policy = FailurePolicy {
            on_failure: OnFailure::Park,
            bisect_on_error: true,
            ..FailurePolicy::default()
        };
        let bad: Vec<bool> = (0..rows).map(|row| bad.contains(&row)).collect();
        let target = refused_alone(bad.clone());
        let run = run(policy, rows, &PriorAttempts::default(), &target, usize::MAX);
        check(&run, policy, &target, rows);
        prop_assert_eq!(&run.end, &None);
        let found: Vec<usize> = run.set_aside.iter().map(|(row, _)| *row).collect();
        let expected: Vec<usize> = (0..rows).filter(|row| bad[*row]).collect();
        prop_assert_eq!(&found, &expected);
        let log2 = usize::try_from(rows.ilog2()).unwrap();
        for (nth, row) in found.iter().enumerate() {
            // Each fault before it costs one call of the rest, in which it is too.
            prop_assert!(run.calls_with(*row) <= log2 + 2 + nth * (log2 + 2));
        }
        for row in (0..rows).filter(|row| !bad[*row]) {
            prop_assert_eq!(run.accepted(row), 1, "an innocent row was taken twice");
        }
    }
}

/// A machine with eight rows in a state that it reaches by these outcomes.
fn after(attempt: u32, outcomes: &[Outcome]) -> Isolation {
    let mut machine = Isolation::new(isolating(5), Halving::FirstRetry, 8, RowsAfter::Readable, 3);
    let when = CallContext { tried: failed_before(attempt), ..nothing_known() };
    machine.prepare(&when);
    settle(&mut machine, &when);
    for outcome in outcomes {
        machine.record(*outcome, &when);
        settle(&mut machine, &when);
    }
    machine
}

/// Goes on until the next call, or the end.
fn settle(machine: &mut Isolation, when: &CallContext) {
    loop {
        match machine.next_step() {
            Step::Wait(_) | Step::Announce(_) => machine.step_done(),
            Step::Settle(_) if machine.start_waiting() => machine.prepare(when),
            Step::ReadMore
            | Step::Deliver { .. }
            | Step::Probe(_)
            | Step::Park(_)
            | Step::Settle(_)
            | Step::GiveUp(_) => return,
        }
    }
}

fn word(step: Step) -> String {
    let range = |rows: &Rows| format!("{}..{}", rows.start, rows.end);
    match step {
        Step::Wait(retry) => format!("wait {retry}"),
        Step::Announce(Announcement::Suspects(rows)) => format!("announce {}", range(&rows)),
        Step::Announce(Announcement::Probe(rows)) => format!("announce probe {}", range(&rows)),
        Step::Deliver { rows, .. } => format!("deliver {}", range(&rows)),
        Step::ReadMore => "read more".to_owned(),
        Step::Probe(rows) => format!("probe {}", range(&rows)),
        Step::Park(_) => "park".to_owned(),
        Step::Settle(_) => "settle".to_owned(),
        Step::GiveUp(_) => "give up".to_owned(),
    }
}

/// Each state against each outcome: what the machine does next, and with which rows of eight.
///
/// 400 is [`Blame::Rows`], `accepted: 0` is [`Blame::FirstRow`], 500 is [`Blame::Unknown`] and 429 is [`Blame::Target`].
#[test]
fn every_outcome_has_its_next_step_in_every_state() {
    use Outcome::{Accepted, AcceptedFront, Failed, OutOfTime, TooLarge};
    const UNKNOWN: Outcome = Failed(Blame::Unknown);
    let alone = [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN];
    let states = [
        ("a new batch", after(0, &[])),
        ("failed before", after(1, &[])),
        ("its front accepted", after(1, &[Accepted])),
        ("the rest failed, too", after(1, &[Accepted, UNKNOWN])),
        ("one row, last attempt", after(4, &alone[..2])),
        ("probing all", after(4, &alone[..3])),
        ("probing one by one", after(4, &alone)),
        ("once more after the probe", after(4, &[&alone[..3], &[Accepted]].concat())),
    ];
    let outcomes = [
        ("accepted", Accepted),
        ("a front", AcceptedFront(1)),
        ("413", TooLarge),
        ("400", Failed(Blame::Rows)),
        ("accepted: 0", Failed(Blame::FirstRow)),
        ("500", UNKNOWN),
        ("429", Failed(Blame::Target)),
        ("no time", OutOfTime(TimeGiven::RestOfTick)),
    ];
    let mut table = String::new();
    for (state, machine) in states {
        writeln!(table, "{state}: {}", word(machine.next_step())).unwrap();
        for (name, outcome) in outcomes {
            let mut machine = machine.clone();
            machine.record(outcome, &nothing_known());
            writeln!(table, "    {name:12} {}", word(machine.next_step())).unwrap();
        }
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tick/isolate/table.txt");
        std::fs::write(path, &table).unwrap();
    }
    assert_eq!(table, include_str!("table.txt"));
}

#[test]
fn a_handler_may_try_again_only_what_is_not_delivered_with_fewer_rows() {
    let tries = |halving, rows, attempt| {
        let mut machine = Isolation::new(isolating(5), halving, rows, RowsAfter::Readable, 3);
        machine.prepare(&CallContext { tried: failed_before(attempt), ..nothing_known() });
        let Step::Deliver { tries, .. } = machine.next_step() else {
            panic!("{:?}", machine.next_step())
        };
        tries
    };
    assert_eq!(tries(Halving::FirstRetry, 8, 0), CallTries::One);
    assert_eq!(tries(Halving::FirstRetry, 8, 1), CallTries::One);
    assert_eq!(tries(Halving::FirstRetry, 1, 0), CallTries::Several);
    assert_eq!(tries(Halving::FirstRetry, 1, 1), CallTries::One);
    for (rows, attempt) in [(8, 0), (8, 1), (1, 0), (1, 1)] {
        assert_eq!(tries(Halving::Exhausted, rows, attempt), CallTries::Several);
    }
}

#[test]
fn a_row_that_failed_once_is_retried_though_others_were_too_large_with_it() {
    let mut machine = Isolation::new(isolating(1), Halving::FirstRetry, 4, RowsAfter::Readable, 3);
    let (when, unknown) = (nothing_known(), Outcome::Failed(Blame::Unknown));
    machine.prepare(&when);
    machine.record(Outcome::TooLarge, &when);
    assert_eq!(word(machine.next_step()), "deliver 0..2");
    machine.record(Outcome::Accepted, &when);
    settle(&mut machine, &when);
    machine.record(Outcome::TooLarge, &when);
    assert_eq!(word(machine.next_step()), "deliver 2..3", "as many others were accepted");
    machine.record(Outcome::Accepted, &when);
    settle(&mut machine, &when);
    assert_eq!(word(machine.next_step()), "deliver 3..4");
    machine.record(unknown, &when);
    assert_eq!(word(machine.next_step()), "read more");
    machine.rows_read(1);
    machine.step_done();
    machine.record(Outcome::Accepted, &when);
    assert_eq!(word(machine.next_step()), "deliver 3..4", "it has failed once only");
}

#[test]
fn a_retry_that_runs_out_of_time_does_not_count_as_one_that_had_the_whole_tick() {
    let policy = FailurePolicy { attempts_max: 9, ..isolating(9) };
    let mut machine = Isolation::new(policy, Halving::FirstRetry, 8, RowsAfter::Readable, 3);
    let when = nothing_known();
    machine.prepare(&when);
    machine.record(Outcome::Failed(Blame::Unknown), &when);
    machine.step_done();
    assert_eq!(machine.record(Outcome::OutOfTime(TimeGiven::WholeTick), &when), None);
    assert_eq!((machine.next_step(), machine.rows()), (Step::GiveUp(End::Retry), 0..4));
}

/// A machine with that many rows that have failed `attempt` times, before its first call.
fn started(halving: Halving, rows: usize, attempt: u32) -> (Isolation, CallContext) {
    let mut machine = Isolation::new(isolating(5), halving, rows, RowsAfter::Readable, 3);
    let when = CallContext { tried: failed_before(attempt), ..nothing_known() };
    machine.prepare(&when);
    (machine, when)
}

fn without_time(when: &CallContext) -> CallContext {
    CallContext { next_call: NextCall::NotNow, ..when.clone() }
}

#[test]
fn the_search_is_announced_once_and_continues_with_half_of_the_rows_in_the_next_tick() {
    let rejected = Outcome::Failed(Blame::Rows);
    let (mut machine, when) = started(Halving::FirstRetry, 8, 0);
    assert_eq!(machine.record(rejected, &when), Some(Decision::Bisect));
    assert_eq!(machine.record(rejected, &when), None);
    let (mut machine, when) = started(Halving::FirstRetry, 8, 0);
    assert_eq!(machine.record(rejected, &without_time(&when)), None);
    assert_eq!((machine.next_step(), machine.rows()), (Step::GiveUp(End::Retry), 0..4));
    // The next tick tries the first row alone, so it needs no half of these.
    let (mut machine, when) = started(Halving::FirstRetry, 8, 4);
    machine.record(Outcome::Failed(Blame::FirstRow), &without_time(&when));
    assert_eq!((machine.next_step(), machine.rows()), (Step::GiveUp(End::Retry), 0..4));
    let (mut machine, when) = started(Halving::Exhausted, 8, 0);
    machine.record(Outcome::Failed(Blame::FirstRow), &when);
    assert_eq!((machine.next_step(), machine.rows()), (Step::GiveUp(End::Retry), 0..8));
}

#[test]
fn rows_wait_after_a_front_and_are_not_lost_with_it() {
    let (mut machine, when) = started(Halving::FirstRetry, 8, 1);
    assert!(!machine.has_waiting());
    machine.record(Outcome::Accepted, &when);
    assert!(machine.has_waiting(), "the rest of the batch");
}

#[test]
fn an_open_breaker_does_not_restart_a_search() {
    let (mut machine, when) = started(Halving::FirstRetry, 8, 1);
    let open = CallContext { quarantined_in_a_row: u32::MAX, ..when };
    machine.prepare(&open);
    assert_eq!(machine.rows(), 0..8);
}

#[test]
fn one_more_crash_narrows_the_search_whatever_was_survived_before() {
    let tried = PriorAttempts { crashes: 9, crashes_survived: 4, ..PriorAttempts::default() };
    let when = CallContext { tried, ..nothing_known() };
    let mut machine = Isolation::new(isolating(5), Halving::FirstRetry, 8, RowsAfter::Readable, 3);
    let decision = machine.judge_crashes(5, CrashedWith::SeveralRows, &when);
    assert_eq!(decision, Some(Decision::Bisect));
    let known = machine.prior_attempts().unwrap();
    assert_eq!((known.crashes, known.crashes_survived), (4, 0));
}

#[test]
fn a_chain_continues_with_a_front_only_if_it_is_a_real_part_and_there_is_time() {
    let by_step = Outcome::AcceptedFrontByStep;
    let (machine, when) = started(Halving::Exhausted, 8, 0);
    let recorded = |outcome, when: &CallContext| {
        let mut machine = machine.clone();
        let decision = machine.record(outcome, when);
        (decision, word(machine.next_step()), machine.rows())
    };
    let front = Some(Decision::FrontOfChain { to: 3 });
    assert_eq!(recorded(by_step(3), &when), (front, "deliver 0..3".to_owned(), 0..3));
    for (outcome, when) in
        [(by_step(3), &without_time(&when)), (by_step(0), &when), (by_step(8), &when)]
    {
        assert_eq!(recorded(outcome, when), (None, "give up".to_owned(), 0..8), "{outcome:?}");
    }
}

#[test]
fn only_a_single_row_with_one_attempt_left_is_probed() {
    for (rows, attempt, is_last) in [(1, 4, true), (1, 3, false), (8, 4, false)] {
        let (machine, when) = started(Halving::Exhausted, rows, attempt);
        assert_eq!(machine.is_last_attempt(&(0..rows), &when), is_last, "{rows} {attempt}");
    }
}

#[test]
fn a_front_of_no_or_all_probed_rows_proves_nothing() {
    let unknown = Outcome::Failed(Blame::Unknown);
    for front in [0, 7] {
        let mut machine = after(4, &[unknown; 3]);
        assert_eq!(word(machine.next_step()), "probe 1..8");
        machine.record(Outcome::AcceptedFront(front), &nothing_known());
        assert_eq!(word(machine.next_step()), "probe 1..2", "{front}");
    }
    let mut machine = after(4, &[unknown; 3]);
    machine.record(Outcome::AcceptedFront(3), &nothing_known());
    assert_eq!((word(machine.next_step()), machine.rows()), ("deliver 0..1".to_owned(), 0..1));
}

#[test]
fn a_single_row_is_probed_once() {
    let unknown = Outcome::Failed(Blame::Unknown);
    let (mut machine, when) = started(Halving::Exhausted, 1, 4);
    machine.record(unknown, &when);
    machine.rows_read(1);
    machine.step_done();
    assert_eq!(word(machine.next_step()), "probe 1..2");
    machine.record(unknown, &when);
    assert_eq!(machine.next_step(), Step::GiveUp(End::Retry));
}

#[test]
fn the_row_after_an_accepted_front_is_delivered_alone() {
    let (mut machine, when) = started(Halving::FirstRetry, 8, 1);
    assert_eq!(word(machine.next_step()), "deliver 0..4");
    machine.record(Outcome::AcceptedFront(2), &when);
    assert_eq!((machine.next_step(), machine.rows()), (Step::Settle(Settlement::Accepted), 0..2));
    settle(&mut machine, &when);
    assert_eq!(word(machine.next_step()), "deliver 2..3");
}
