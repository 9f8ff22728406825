//! The machine against a target whose rows are known: all small cases, and large ones drawn at random.

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

    /// Returns how many rows were quarantined since a row was last committed as accepted.
    fn quarantined_in_a_row(&self) -> u32 {
        let aside = self
            .settled
            .iter()
            .rev()
            .take_while(|(_, settlement)| *settlement == Settlement::Quarantined);
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
                | Outcome::OutOfTime { .. } => rows.start,
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
        first_failed_alone: false,
        now: OffsetDateTime::UNIX_EPOCH,
        error: "no".to_owned(),
        may_call_again: true,
        quarantined_in_a_row: 0,
    }
}

/// Runs one tick with `rows` rows of those that `target` knows; the rest lie behind them.
fn run(
    policy: FailurePolicy,
    rows: usize,
    tried: &PriorAttempts,
    target: &Target,
    calls_max: usize,
) -> Run {
    let mut machine = Isolation::of(policy, rows, false, 3);
    let mut run = Run::default();
    loop {
        assert!(run.calls.len() < 10_000, "it does not end");
        let step = machine.next();
        assert_eq!(step, machine.next(), "asking changes nothing");
        match step {
            Step::Deliver { rows, .. } | Step::Probe { rows, .. } => {
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
                    may_call_again: run.calls.len() < calls_max,
                    quarantined_in_a_row: run.quarantined_in_a_row(),
                    ..nothing_known()
                };
                machine.record(outcome, &when);
            }
            Step::ReadMore => machine.has_read_more(target.bad.len() - rows),
            Step::Quarantine(reason) => {
                assert_eq!(machine.rows().len(), 1, "one row at a time is set aside");
                run.set_aside.push((machine.rows().start, reason));
                run.set_aside_at.push(run.calls.len());
                machine.quarantined();
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
                if !machine.advance() {
                    return run;
                }
                let quarantined_in_a_row = run.quarantined_in_a_row();
                machine.hold_back(&CallContext { quarantined_in_a_row, ..nothing_known() });
            }
            Step::GiveUp(end) => {
                run.end = Some((machine.rows(), end));
                return run;
            }
        }
    }
}

fn policies() -> impl Iterator<Item = FailurePolicy> {
    [OnFailure::Retry, OnFailure::Quarantine, OnFailure::Stop].into_iter().flat_map(|on_failure| {
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
        assert_eq!(policy.on_failure, OnFailure::Quarantine);
        if *reason == Reason::Attempts {
            let accepts = |(_, outcome): &(Rows, Outcome)| {
                matches!(outcome, Outcome::Accepted | Outcome::AcceptedFront(_))
            };
            assert!(run.calls.iter().any(accepts), "no row proves that the target is up: {run:?}");
        }
        assert_eq!(run.accepted(*row), 0, "a row was set aside and taken: {run:?}");
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
                            let target = Target { bad, blame, says_front, rows_max, up_from };
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

fn refused_alone(bad: Vec<bool>) -> Target {
    Target { bad, blame: Blame::Rows, says_front: false, rows_max: usize::MAX, up_from: 0 }
}

#[test]
fn a_target_that_is_down_gets_one_call_and_no_row_is_quarantined() {
    for policy in policies() {
        let target = Target { up_from: usize::MAX, ..refused_alone(vec![false; 1_000]) };
        let run = run(policy, 1_000, &PriorAttempts::default(), &target, usize::MAX);
        assert_eq!(run.calls.len(), 1);
        assert_eq!(run.end, Some((0..1_000, End::Retry)));
    }
}

#[test]
fn a_row_that_fails_alone_is_quarantined_only_if_another_row_is_accepted() {
    let policy = FailurePolicy { on_failure: OnFailure::Quarantine, ..FailurePolicy::default() };
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
fn an_outage_that_ends_before_the_probe_quarantines_nothing() {
    let policy = FailurePolicy { on_failure: OnFailure::Quarantine, ..FailurePolicy::default() };
    let target = Target { up_from: 1, ..refused_alone(vec![false; 2]) };
    let run = run(policy, 1, &failed_before(9), &target, usize::MAX);
    assert!(run.set_aside.is_empty());
    // The row behind it was taken before it, so it comes again in its turn.
    assert_eq!(run.settled, [(0..1, Settlement::Accepted), (1..2, Settlement::Accepted)]);
    assert_eq!(run.accepted(1), 2);
}

#[test]
fn deadly_rows_are_written_down_before_each_call_and_halved() {
    let policy = FailurePolicy { bisect_on_error: true, ..FailurePolicy::default() };
    let mut machine = Isolation::of(policy, 8, false, 3);
    assert_eq!(machine.crashed(4, false, &nothing_known()), None);
    assert_eq!(machine.next(), Step::Deliver { rows: 0..8, announce: false });
    assert_eq!(machine.crashed(5, false, &nothing_known()), Some(Decision::Bisect));
    assert_eq!(machine.next(), Step::Deliver { rows: 0..4, announce: true });
    assert_eq!(machine.prior_attempts().map(|tried| tried.crashes), Some(4), "one more is enough");
    let policy = FailurePolicy { on_failure: OnFailure::Quarantine, ..policy };
    let mut machine = Isolation::of(policy, 1, false, 3);
    assert_eq!(machine.crashed(5, true, &nothing_known()), None);
    assert_eq!(machine.next(), Step::Quarantine(Reason::Crashes));
}

#[test]
fn a_target_that_rejects_everything_gets_two_calls_once_the_breaker_is_open() {
    let policy = FailurePolicy {
        on_failure: OnFailure::Quarantine,
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
        on_failure: OnFailure::Quarantine,
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
        let on_failure = OnFailure::Quarantine;
        let policy =
            FailurePolicy { on_failure, bisect_on_error, breaker_rows, ..FailurePolicy::default() };
        let (rows, target) = (bad.len(), refused_alone(bad));
        let run = run(policy, rows, &PriorAttempts::default(), &target, usize::MAX);
        check(&run, policy, &target, rows);
        // Between the first and the last of more of them, a row was accepted: in a call, or by its position.
        let most = usize::try_from(breaker_rows).unwrap();
        let quarantined: Vec<(usize, usize)> =
            run.set_aside.iter().map(|(row, _)| *row).zip(run.set_aside_at.clone()).collect();
        for some in quarantined.windows(most + 1) {
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
            on_failure: OnFailure::Quarantine,
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
