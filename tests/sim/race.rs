//! The race of seed 004, many times: one trace, whatever fails on the way.
#![cfg(feature = "demo")]

use highwater::race::{expected_trace, reproduce};

const REPRODUCTIONS: u64 = 500;

fn check(faults_percent: u8) -> u64 {
    let expected = expected_trace();
    let mut injected = 0;
    for seed in 1..=REPRODUCTIONS {
        let reproduction = reproduce(seed, faults_percent).unwrap();
        assert_eq!(reproduction.trace, expected, "seed {seed}");
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
fn its_events_are_those_of_the_seed() {
    let names: Vec<String> = expected_trace()
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| line["event"].as_str().unwrap().to_owned())
        .collect();
    let seed = [
        "lease_acquired",
        "execution_started",
        "lease_acquired",
        "execution_started",
        "stale_write_blocked",
        "worker_exit",
        "worker_exit",
    ];
    assert_eq!(names, seed);
}
