//! A crash at every await of a tick, one after the other: what scripts meet by chance, in full.

use std::time::Duration;

use highwater::journal::JournalMode;

use crate::bad::BadRows;
use crate::run::play;
use crate::script::{Op, Plan, Property};

const SEEDS: u64 = 8;
/// More than any tick has awaits.
const AWAITS_MAX: u64 = 2_000;
/// No tick lasts as long.
const LONG: Op = Op::Wait(Duration::from_secs(3_600));
const ROWS: [Op; 2] = [Op::Begin(8), Op::End { which: 0, commit: true }];

/// Plays a world in which the last tick before the drain dies at its n-th await, and returns whether
/// it has as many.
fn dies(seed: u64, plan: &Plan, before: &[Op], awaits: u64) -> bool {
    let crash = [ROWS[0], ROWS[1], Op::Crash(0, awaits), Op::Tick(0), LONG];
    let run = play(seed, plan, &[before, &crash].concat(), false);
    assert_eq!(run.violation, None, "seed {seed}, a crash at await {awaits}");
    run.coverage.count("instance: crash in a tick") > 0
}

/// The first tick of a poller, which makes its document, and a later one. Where nothing was awaited
/// yet nothing has been sent, so it begins behind the first.
#[test]
fn a_crash_at_any_await_of_a_tick_loses_nothing() {
    let mut crashes = 0;
    for seed in 1..=SEEDS {
        let plan = Plan::of(seed, Property::Faults, None);
        // Every second tells all of it, so that ticks die between a commit and its line, too.
        let journal = if seed % 2 == 0 { JournalMode::Full } else { JournalMode::Commits };
        let plan = Plan { fault_percent: 0, bad: BadRows::NONE, journal, ..plan };
        for before in [&[][..], &[ROWS[0], ROWS[1], Op::Tick(0), LONG]] {
            let survived = (1..AWAITS_MAX).find(|awaits| !dies(seed, &plan, before, *awaits));
            let survived = survived.unwrap_or_else(|| panic!("seed {seed}: the tick never ends"));
            assert!(survived > 10, "seed {seed}: {survived} awaits are too few for a batch");
            crashes += survived - 1;
        }
    }
    println!("crashes: at every await of {} ticks, {crashes} in all", 2 * SEEDS);
}
