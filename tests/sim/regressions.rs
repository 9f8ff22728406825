//! What failed once, by the name of what was wrong, as the script to which it was shrunk.
//!
//! What chance does depends on how everything before it was drawn, so a script is not tied to the one
//! seed that found it: it runs in the worlds of many. What a regression is about is also a test of its
//! own beside the code.

use std::time::Duration;

use crate::run::play;
use crate::script::{Op, Plan, Property};

const SEEDS: u64 = 100;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Name, property, script.
const REGRESSIONS: &[(&str, Property, &[Op])] = &[(
    // Seed 57: frozen between its read of the document, which another instance then creates, and its
    // read of the marker.
    "a poller's first document is taken for one that vanished",
    Property::Faults,
    &[Op::Tick(0), Op::Wait(ms(144)), Op::Freeze(0, ms(24_744)), Op::Tick(1)],
)];

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
