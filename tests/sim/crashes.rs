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

/// Plays a world in which a tick dies at its n-th await, and returns whether it has as many.
///
/// The next tick begins with a look at what the crash has left, before anybody writes again.
fn dies(seed: u64, plan: &Plan, before: &[Op], awaits: u64) -> Option<Left> {
    let crash = [ROWS[0], ROWS[1], Op::Crash(0, awaits), Op::Tick(0), LONG, Op::Tick(0), LONG];
    let run = play(seed, plan, &[before, &crash].concat(), false);
    assert_eq!(run.violation, None, "seed {seed}, a crash at await {awaits}");
    let saw = |kind| run.coverage.count(kind) > 0;
    saw("instance: crash in a tick").then(|| Left {
        behind: saw("journal: behind the document").into(),
        nothing: saw("journal: nothing of the document yet").into(),
    })
}

/// How many crashes left a journal that is behind, and how many one without a line.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    behind: u64,
    nothing: u64,
}

/// The first tick of a poller, which makes its document, and a later one. Where nothing was awaited
/// yet nothing has been sent, so it begins behind the first.
#[test]
fn a_crash_at_any_await_of_a_tick_loses_nothing() {
    let (mut crashes, mut left) = (0, Left::default());
    for seed in 1..=SEEDS {
        let plan = Plan::of(seed, Property::Faults, None);
        // Every second tells all of it, so that ticks die between a commit and its line, too.
        let journal = if seed % 2 == 0 { JournalMode::Full } else { JournalMode::Commits };
        let (chain, remembers) = (seed % 4 < 2, seed % 3 == 0);
        let quiet = Plan { fault_percent: 0, bad: BadRows::NONE, ..plan };
        let plan = Plan { journal, chain, remembers, ..quiet };
        for before in [&[][..], &[ROWS[0], ROWS[1], Op::Tick(0), LONG]] {
            let survived = (1..AWAITS_MAX).find(|awaits| {
                let died = dies(seed, &plan, before, *awaits);
                let Left { behind, nothing } = died.unwrap_or_default();
                left.behind += behind;
                left.nothing += nothing;
                died.is_none()
            });
            let survived = survived.unwrap_or_else(|| panic!("seed {seed}: the tick never ends"));
            assert!(survived > 10, "seed {seed}: {survived} awaits are too few for a batch");
            crashes += survived - 1;
        }
    }
    println!("crashes: at every await of {} ticks, {crashes} in all, {left:?}", 2 * SEEDS);
    assert!(left.behind > 0 && left.nothing > 0, "{left:?}");
}
