//! What failed once, by the name of what was wrong, as the script to which it was shrunk.
//!
//! What chance does depends on how everything before it was drawn, so a script is not tied to the one
//! seed that found it: it runs in the worlds of many. What a regression is about is also a test of its
//! own beside the code.

use std::time::Duration;

use crate::run::{play, run_seed};
use crate::script::{Op, Plan, Property};

const SEEDS: u64 = 100;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const ROWS: [Op; 2] = [Op::Begin(5), Op::End { which: 0, commit: true }];

/// Name, property, script.
const REGRESSIONS: &[(&str, Property, &[Op])] = &[
    (
        // Seed 57: frozen between its read of the document, which another instance then creates, and
        // its read of the marker.
        "a poller's first document is taken for one that vanished",
        Property::Faults,
        &[Op::Tick(0), Op::Wait(ms(144)), Op::Freeze(0, ms(24_744)), Op::Tick(1)],
    ),
    (
        // Seed 91: the grant rode on the creation, which landed again after a deletion, so that the
        // next holder was given a generation and a token that had been given before.
        "a creation that lands late repeats a grant",
        Property::Faults,
        &[
            ROWS[0],
            ROWS[1],
            Op::Tick(0),
            Op::Wait(ms(60_000)),
            Op::LoseDocument,
            Op::CreationLands,
            ROWS[0],
            ROWS[1],
            Op::Tick(1),
        ],
    ),
    (
        // Seed 67: between the creation of the blank document and the first grant an operator broke
        // the lease, and what had a token was no longer taken for blank: grants went on under
        // generation 0, below that of the document before.
        "a blank document whose lease is broken keeps generation 0",
        Property::Faults,
        &[
            ROWS[0],
            ROWS[1],
            Op::Tick(0),
            Op::Wait(ms(60_000)),
            Op::LoseDocument,
            Op::CreationLands,
            Op::BreakLease,
            Op::Tick(1),
        ],
    ),
];

/// Failures that need a policy and rows of a certain kind: the seed that found each. Each has a test
/// among `poller::tests` besides, which does not depend on how chance is drawn.
const FOUND: &[(&str, u64)] = &[
    ("a row that kills processes hides one before it that fails", 37),
    ("a row that was accepted for good is set aside", 321),
    ("a row is set aside for deaths with another, since its own lease named it", 100_367),
];

#[test]
fn seeds_that_failed_once_pass() {
    for (name, seed) in FOUND {
        let violation = run_seed(*seed, Property::Faults, None).violation;
        assert_eq!(violation, None, "{name}, seed {seed}");
    }
}

#[test]
fn what_failed_once_passes() {
    for (name, property, ops) in REGRESSIONS {
        for seed in 1..=SEEDS {
            // Nothing but what the script says, with time for it to meet a tick half-way.
            let plan =
                Plan { fault_percent: 0, latency_ms: 200, ..Plan::of(seed, *property, None) };
            let violation = play(seed, &plan, ops, false).violation;
            assert_eq!(violation, None, "{name}, seed {seed}");
        }
    }
}
