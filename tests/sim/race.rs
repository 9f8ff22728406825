//! The race of seed 004, many times: one trace, whatever fails on the way.
#![cfg(feature = "demo")]

use highwater::race::{expected_trace, reproduce};

const REPRODUCTIONS: u64 = 500;

/// The events of seed 004 with their names, fields and values, written out.
const TRACE: [&str; 7] = [
    r#"{"event":"lease_acquired","job_id":"orders","token":1,"forced":true}"#,
    r#"{"event":"execution_started","job_id":"orders","token":1}"#,
    r#"{"event":"lease_acquired","job_id":"orders","token":2,"forced":true}"#,
    r#"{"event":"execution_started","job_id":"orders","token":2}"#,
    r#"{"event":"stale_write_blocked","job_id":"orders","stale_token":1,"current_token":2,"reason":"token_mismatch"}"#,
    r#"{"event":"worker_exit","reason":"stale"}"#,
    r#"{"event":"worker_exit","reason":"success"}"#,
];

fn check(faults_percent: u8) -> u64 {
    let mut injected = 0;
    for seed in 1..=REPRODUCTIONS {
        let reproduction = reproduce(seed, faults_percent).unwrap();
        assert_eq!(reproduction.trace, TRACE, "seed {seed}");
        injected += reproduction.faults;
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

#[test]
fn what_the_command_judges_by_is_the_trace_of_the_seed() {
    assert_eq!(expected_trace(), TRACE);
}
