//! The race of a stale owner, forced many times: always the same trace, that of seed 004, whatever fails on
//! the way.
//!
//! ```text
//! cargo test -p highwater-engine --test sim -- --nocapture the_race
//! ```
//!
//! Two workers tick one poller under a lease of one second. The first acquires the lease, calls its handler,
//! and is frozen with its write pending. Its timers freeze too; otherwise the lease's deadline would stop the
//! handler, and there would be no race. The second takes over the expired lease and writes. Then the first
//! thaws, still sure of its lease, and its write reaches the fence.
//!
//! Poller, lease, memory store and fence are the real ones, and the trace is the engine's own log; the
//! handler is one that writes to a fenced target. Barriers order the events, and paused time and a seed
//! decide the rest, so each run gives the same trace, with or without injected faults.
//!
//! The lease expires two seconds after its TTL, so the takeover comes three seconds after the first worker's
//! last write, and the thaw 2.5 s after the first worker's lease has ended.

mod faults;
mod stage;
mod trace;

use std::sync::Arc;

use tracing_subscriber::layer::SubscriberExt as _;

use self::faults::Chance;
use self::trace::{JobId, Trace};

const REPRODUCTIONS: u64 = 500;

/// The events of seed 004 with their names, fields and values.
const TRACE: [&str; 7] = [
    r#"{"event":"lease_acquired","job_id":"orders","token":1,"forced":true}"#,
    r#"{"event":"execution_started","job_id":"orders","token":1}"#,
    r#"{"event":"lease_acquired","job_id":"orders","token":2,"forced":true}"#,
    r#"{"event":"execution_started","job_id":"orders","token":2}"#,
    r#"{"event":"stale_write_blocked","job_id":"orders","stale_token":1,"current_token":2,"reason":"token_mismatch"}"#,
    r#"{"event":"worker_exit","reason":"stale"}"#,
    r#"{"event":"worker_exit","reason":"success"}"#,
];

/// Forces the race once, in its own runtime with paused time. Returns the trace and the number of injected
/// faults. `seed` decides latencies and which calls fail; `faults_percent` decides how many.
fn reproduce(seed: u64, faults_percent: u8) -> (Vec<String>, u64) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let trace = Trace::of(JobId(stage::POLLER));
    let chance = Arc::new(Chance::new(seed, faults_percent));
    let subscriber = tracing_subscriber::registry().with(trace.clone());
    tracing::subscriber::with_default(subscriber, || {
        runtime.block_on(stage::play(Arc::clone(&chance)));
    });
    (trace.take(), chance.injected())
}

fn check(faults_percent: u8) -> u64 {
    let mut injected = 0;
    for seed in 1..=REPRODUCTIONS {
        let (trace, faults) = reproduce(seed, faults_percent);
        assert_eq!(trace, TRACE, "seed {seed}");
        injected += faults;
    }
    for line in TRACE {
        println!("{line}");
    }
    println!("race: {REPRODUCTIONS} at {faults_percent} %: one trace, {injected} faults injected");
    injected
}

#[test]
fn the_race_is_the_same_without_faults() {
    assert_eq!(check(0), 0);
}

#[test]
fn the_race_is_the_same_at_5_percent_faults() {
    assert!(check(5) > REPRODUCTIONS);
}

#[test]
fn the_race_is_the_same_at_10_percent_faults() {
    assert!(check(10) > REPRODUCTIONS);
}
