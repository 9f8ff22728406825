//! What failed once, by the name of what was wrong, as the script to which it was shrunk.
//!
//! What chance does depends on how everything before it was drawn, so a script is not tied to the one
//! seed that found it: it runs in the worlds of many, and must meet in some of them what it is about. What
//! a regression is about is also a test of its own beside the code.

use std::time::Duration;

use highwater::policy::{FailurePolicy, OnFailure};

use crate::bad::{Bad, BadRows};
use crate::coverage::Coverage;
use crate::run::play;
use crate::script::{Op, Plan, Property};

const SEEDS: u64 = 100;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const ROWS: [Op; 2] = [Op::Begin(5), Op::End { which: 0, commit: true }];

/// A name, a script, and what it must meet in some of the worlds: one that meets it in none has gone hollow,
/// since worlds have changed.
type Regression = (&'static str, &'static [Op], &'static [&'static str]);

const REGRESSIONS: &[Regression] = &[
    (
        // Seed 57: frozen between its read of the document, which another instance then creates, and
        // its read of the marker.
        "a poller's first document is taken for one that vanished",
        &[ROWS[0], ROWS[1], Op::Tick(0), Op::Wait(ms(144)), Op::Freeze(0, ms(24_744)), Op::Tick(1)],
        &["instance: frozen in a tick", "store: write refused by its precondition"],
    ),
    (
        // Seed 91: the grant rode on the creation, which landed again after a deletion, so that the
        // next holder was given a generation and a token that had been given before.
        "a creation that lands late repeats a grant",
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
        &["operator: deleted the document", "store: creation landed after a deletion"],
    ),
    (
        // Seed 67: between the creation of the blank document and the first grant an operator broke
        // the lease, and what had a token was no longer taken for blank: grants went on under
        // generation 0, below that of the document before.
        "a blank document whose lease is broken keeps generation 0",
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
        &[
            "operator: deleted the document",
            "store: creation landed after a deletion",
            "operator: broke the lease",
        ],
    ),
];

/// Failures that need a policy and certain rows, as the exact schedule: which rows are bad, what the
/// policy is, and what happens. Each has a test among `poller::tests` besides.
struct Scenario {
    name: &'static str,
    bad: &'static [(u64, Bad)],
    attempts_max: u32,
    crashes_max: u32,
    /// The handler says while it runs what it has taken for good.
    accepts: bool,
    /// Calls of both instances, in turn, each a good while after the one before.
    ticks: usize,
    met: &'static [&'static str],
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        // Found by seed 37. Row 2 fails, and row 4 kills whoever handles it: while processes die, row 2
        // must still be told from an outage, by a row behind it that may be the one that kills.
        name: "a row that kills processes hides one before it that fails",
        bad: &[(2, Bad::Failing), (4, Bad::Deadly)],
        attempts_max: 1,
        crashes_max: 2,
        accepts: false,
        ticks: 24,
        met: &[
            "handler: row bad for good",
            "handler: row kills the process",
            "policy: row behind a failing one probed",
            "policy: row set aside after attempts",
            "policy: row set aside after crashes",
        ],
    },
    Scenario {
        // Found by seed 321. Rows 1 to 3 are accepted before row 4 kills the process, which goes on until
        // row 4 is in hand alone: only that one may be set aside.
        name: "a row that was accepted for good is set aside",
        bad: &[(4, Bad::Deadly)],
        attempts_max: 1,
        crashes_max: 1,
        accepts: true,
        ticks: 24,
        met: &[
            "document: prefix committed on a renewal",
            "handler: row kills the process",
            "policy: row set aside after crashes",
        ],
    },
    Scenario {
        // Found by seed 100,367. Row 2 fails and is alone in hand, as its lease says; the row behind it
        // that is tried, row 3, kills the process: that is no death with row 2.
        name: "a row is set aside for deaths with another, since its own lease named it",
        bad: &[(2, Bad::Failing), (3, Bad::Deadly)],
        attempts_max: 1,
        crashes_max: 1,
        accepts: false,
        ticks: 24,
        met: &[
            "handler: row bad for good",
            "handler: row kills the process",
            "policy: row behind a failing one probed",
            "policy: row set aside after crashes",
        ],
    },
];

impl Scenario {
    fn plan(&self, seed: u64) -> Plan {
        let plan = Plan::of(seed, Property::Faults, None);
        let policy = FailurePolicy {
            on_failure: OnFailure::Quarantine,
            attempts_max: self.attempts_max,
            crashes_max: self.crashes_max,
            record_age_max: None,
            bisect_on_error: true,
        };
        let mut limits = plan.limits;
        limits.batch_rows_max = 6;
        limits.batch_bytes_max = 1 << 20;
        limits.batches_max = None;
        limits.tick_time_max = ms(900_000);
        limits.handler_stop_after = ms(1_200_000);
        limits.handler_stall_max = None;
        // Slow enough for a renewal between two rows, where the lease is short.
        let pace_ms = if self.accepts { 2_000 } else { plan.pace_ms };
        let keys = 1_000_000;
        Plan {
            fault_percent: 0,
            chain: false,
            rows_per_write: 1,
            bad: BadRows::these(self.bad),
            accepts: self.accepts,
            policy,
            limits,
            pace_ms,
            keys,
            ..plan
        }
    }

    fn ops(&self, plan: &Plan) -> Vec<Op> {
        let mut ops = vec![Op::Begin(6), ROWS[1]];
        for tick in 0..self.ticks {
            let pause = plan.terms.ttl + plan.limits.retry_delay_max + ms(60_000);
            ops.extend([Op::Tick(tick % 2), Op::Wait(pause)]);
        }
        ops
    }
}

/// Fails for a kind that no run has met.
fn check_met(name: &str, kinds: &[&str], all: &Coverage) {
    for kind in kinds {
        let count = all.count(kind);
        println!("regression: {name}: {count} times `{kind}` in {SEEDS} worlds");
        assert!(count > 0, "{name}: gone hollow, never `{kind}`");
    }
}

#[test]
fn what_failed_once_on_certain_rows_passes() {
    for scenario in SCENARIOS {
        let mut all = Coverage::default();
        for seed in 1..=SEEDS {
            let plan = scenario.plan(seed);
            let run = play(seed, &plan, &scenario.ops(&plan), false);
            assert_eq!(run.violation, None, "{}, seed {seed}", scenario.name);
            all.add(&run.coverage);
        }
        check_met(scenario.name, scenario.met, &all);
    }
}

#[test]
fn what_failed_once_passes() {
    for (name, ops, kinds) in REGRESSIONS {
        let mut all = Coverage::default();
        for seed in 1..=SEEDS {
            // Nothing but what the script says, with time for it to meet a tick half-way.
            let plan = Plan::of(seed, Property::Faults, None);
            let plan = Plan { fault_percent: 0, latency_ms: 200, bad: BadRows::NONE, ..plan };
            let run = play(seed, &plan, ops, false);
            assert_eq!(run.violation, None, "{name}, seed {seed}");
            all.add(&run.coverage);
        }
        check_met(name, kinds, &all);
    }
}
