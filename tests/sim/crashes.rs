//! A crash at every await of a tick, one after the other: what the scripts meet by chance, exhaustively.
//!
//! Covers ticks that succeed, ticks that isolate a rejected row and quarantine it, and ticks whose handler
//! fails.

use std::time::Duration;

use highwater_engine::journal::JournalMode;
use highwater_engine::policy::{FailurePolicy, Flow, OnFailure, ParkPolicy};

use crate::bad::{Bad, BadRows};
use crate::run::{Run, play};
use crate::script::{Op, Plan, Property};

const SEEDS: u64 = 8;
/// Above the number of awaits of any tick.
const AWAITS_MAX: u64 = 2_000;
/// Longer than any tick.
const LONG: Op = Op::Wait(Duration::from_secs(3_600));
const ROWS: [Op; 2] = [Op::Begin(8), Op::End { which: 0, commit: true }];

/// The outcome of the rows of the crashing tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    Taken,
    /// One or more are rejected, found by halving, and quarantined.
    Refused,
    /// One or more fail as in an outage: the tick records a failure.
    Failing,
}

impl Rows {
    fn plan(self, quiet: &Plan, draw: u64) -> Plan {
        let policy = FailurePolicy {
            on_failure: OnFailure::Park,
            attempts_max: 3,
            crashes_max: 3,
            record_age_max: None,
            bisect_on_error: true,
            breaker_rows: 10,
            park: ParkPolicy::NO_RETRIES,
        };
        // Allows all calls that halving needs, and one batch of all rows.
        let mut limits = quiet.limits;
        limits.batch_rows_max = 8;
        limits.batch_bytes_max = 1 << 20;
        limits.batches_max = None;
        limits.tick_time_max = Duration::from_secs(900);
        limits.handler_stop_after = Duration::from_secs(1_200);
        match self {
            Self::Taken => Plan { bad: BadRows::NONE, ..quiet.clone() },
            Self::Refused => {
                let bad = BadRows::of_kind(draw, 20, &[Bad::Refused]);
                Plan { limits, policy, bad, ..quiet.clone() }
            }
            Self::Failing => {
                let bad = BadRows::of_kind(draw, 20, &[Bad::Failing]);
                let (on_failure, bisect_on_error) = (OnFailure::Retry, false);
                let policy = FailurePolicy { on_failure, bisect_on_error, ..policy };
                Plan { limits, policy, bad, ..quiet.clone() }
            }
        }
    }

    /// The kind that a tick with this outcome must meet.
    fn kind(self) -> &'static str {
        match self {
            Self::Taken => "tick: committed",
            Self::Refused => "policy: row set aside once refused",
            Self::Failing => "tick: handler_failed",
        }
    }
}

/// Plays a world in which a tick crashes at its n-th await.
///
/// The next tick first reads what the crash has left, before any other write.
fn dying(seed: u64, plan: &Plan, before: &[Op], awaits: u64) -> Run {
    let crash = [ROWS[0], ROWS[1], Op::Crash(0, awaits), Op::Tick(0), LONG, Op::Tick(0), LONG];
    let run = play(seed, plan, &[before, &crash].concat(), false);
    assert_eq!(run.violation, None, "seed {seed}, a crash at await {awaits}");
    run
}

/// Returns what the crashed tick left, or `None` if it has fewer awaits.
fn left(run: &Run) -> Option<Left> {
    let saw = |kind| run.coverage.count(kind) > 0;
    saw("instance: crash in a tick").then(|| Left {
        behind: saw("journal: behind the document").into(),
        nothing: saw("journal: nothing of the document yet").into(),
    })
}

/// How many crashes left a journal with missing entries, and how many left one without any entry.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    behind: u64,
    nothing: u64,
}

/// Crashes the tick of a plan at each of its awaits; returns their number.
fn die_everywhere(seed: u64, plan: &Plan, before: &[Op], all: &mut Left) -> u64 {
    let survived = (1..AWAITS_MAX).find(|awaits| {
        let died = left(&dying(seed, plan, before, *awaits));
        let Left { behind, nothing } = died.unwrap_or_default();
        all.behind += behind;
        all.nothing += nothing;
        died.is_none()
    });
    let survived = survived.unwrap_or_else(|| panic!("seed {seed}: the tick never ends"));
    assert!(survived > 10, "seed {seed}: {survived} awaits are too few for a batch");
    survived - 1
}

/// Checks a poller's first tick, which creates its document, and a later one. Before the first await nothing
/// has been sent, so the crashes start after it.
fn check(rows: Rows) {
    let (mut crashes, mut all) = (0, Left::default());
    for seed in 1..=SEEDS {
        let plan = Plan::of(seed, Property::Faults, None);
        // Every second seed records everything, so that ticks also crash between a commit and its journal
        // entry.
        let journal = if seed % 2 == 0 { JournalMode::Full } else { JournalMode::Commits };
        let (chain, remembers) = (seed % 4 < 2, seed % 3 == 0);
        let flow = Flow { overlap_commit: seed % 4 == 3, ..plan.flow };
        let quiet = Plan { fault_percent: 0, journal, chain, remembers, flow, ..plan };
        for before in [&[][..], &[ROWS[0], ROWS[1], Op::Tick(0), LONG]] {
            // The first draw of bad rows with which an undisturbed tick has this outcome.
            let of_draw = |draw| rows.plan(&quiet, draw);
            let met =
                |plan: &Plan, ops: &[Op]| play(seed, plan, ops, false).coverage.count(rows.kind());
            let tick = [before, &[ROWS[0], ROWS[1], Op::Tick(0), LONG]].concat();
            let shows = |plan: &Plan| {
                let runs_well = rows == Rows::Taken && met(plan, &tick) > 0;
                runs_well || met(plan, &tick) > met(plan, before)
            };
            let plan = (1..=100).map(of_draw).find(shows);
            let plan = plan.unwrap_or_else(|| panic!("seed {seed}: no draw shows {rows:?}"));
            crashes += die_everywhere(seed, &plan, before, &mut all);
        }
    }
    println!("crashes: at every await of {} ticks, {rows:?}: {crashes} in all, {all:?}", 2 * SEEDS);
    assert!(all.behind > 0 && all.nothing > 0, "{all:?}");
}

#[test]
fn a_crash_at_any_await_of_a_tick_loses_nothing() {
    check(Rows::Taken);
}

#[test]
fn a_crash_at_any_await_of_a_tick_that_quarantines_rows_loses_nothing() {
    check(Rows::Refused);
}

#[test]
fn a_crash_at_any_await_of_a_tick_whose_handler_fails_loses_nothing() {
    check(Rows::Failing);
}
