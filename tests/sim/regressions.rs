//! What failed once, by the name of what was wrong: the seed, and the script as it was shrunk.
//!
//! A seed's plan depends on how plans are drawn, so what a regression is about is also a test of its
//! own beside the code.

use std::time::Duration;

use crate::run::run_script;
use crate::script::{Op, Property};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Name, property, seed, script.
const REGRESSIONS: &[(&str, Property, u64, &[Op])] = &[(
    // Reads the document before another instance creates it, and the marker after that.
    "a poller's first document is taken for one that vanished",
    Property::Faults,
    57,
    &[Op::Tick(0), Op::Wait(ms(144)), Op::Freeze(0, ms(24_744)), Op::Tick(2)],
)];

#[test]
fn what_failed_once_passes() {
    for (name, property, seed, ops) in REGRESSIONS {
        let violation = run_script(*seed, *property, ops);
        assert_eq!(violation, None, "{name}");
    }
}
