//! Settings of batch flow.

use std::time::Duration;

use expect_test::expect;

use super::{MINIMAL, check_mistakes, read};
use crate::policy::{Flow, Follow};

fn flow(settings: &str) -> Flow {
    read(&[MINIMAL, settings]).pollers["orders"].flow
}

#[test]
fn follow_mode_needs_a_time() {
    assert_eq!(flow("").follow, None);
    let interval = "HIGHWATER__POLLERS__ORDERS__FOLLOW_INTERVAL = 1s";
    assert_eq!(flow(interval).follow, None);
    let time = Duration::from_secs(50);
    let follow = Follow { time, interval: Duration::from_millis(200) };
    let set = "HIGHWATER__POLLERS__ORDERS__FOLLOW_FOR = 50s";
    assert_eq!(flow(set), Flow { follow: Some(follow), ..Flow::default() });
}

#[test]
fn the_minimum_batch_size_follows_a_smaller_maximum() {
    let max = "HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX = 40";
    assert_eq!(flow(max).batch_rows_min, 40);
    let both = format!("{max}\nHIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MIN = 40");
    assert_eq!(flow(&both).batch_rows_min, 40);
}

#[test]
fn overlapped_commits_are_off_by_default_and_checked_against_other_settings() {
    assert!(!flow("").overlap_commit);
    let overlap = "HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT = true";
    assert_eq!(flow(overlap), Flow { overlap_commit: true, ..Flow::default() });
    let crashes = "
        HIGHWATER__POLLERS__ORDERS__ON_FAILURE = park
        HIGHWATER__POLLERS__ORDERS__CRASHES_MAX = 1
    ";
    check_mistakes(
        &[MINIMAL, overlap, crashes],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT` is `true`, expected `false`, since `HIGHWATER__POLLERS__ORDERS__CRASHES_MAX` is `1`
              see docs/reference/settings.md#overlap_commit
        "#]],
    );
    let audit = "
        HIGHWATER__POLLERS__ORDERS__SOURCE__MODE = timestamp+pk
        HIGHWATER__POLLERS__ORDERS__SOURCE__AUDIT_AFTER = 10m
    ";
    check_mistakes(
        &[MINIMAL, overlap, audit],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT` is `true`, expected `false`, since `HIGHWATER__POLLERS__ORDERS__SOURCE__AUDIT_AFTER` is set
              see docs/reference/settings.md#overlap_commit
        "#]],
    );
    let chain = "
        HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = chain
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEPS = first,second
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__FIRST__KIND = stdout
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__SECOND__KIND = stdout
    ";
    check_mistakes(
        &[MINIMAL, overlap, chain],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT` is `true`, expected `false`, since `HIGHWATER__POLLERS__ORDERS__HANDLER__KIND` is `chain`
              see docs/reference/settings.md#overlap_commit
        "#]],
    );
}

#[test]
fn a_minimum_above_the_maximum_is_rejected() {
    let wrong = "
        HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX = 40
        HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MIN = 41
    ";
    check_mistakes(
        &[MINIMAL, wrong],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MIN` is `41`, expected at most 40, the value of `HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX`
              see docs/reference/settings.md#batch_rows_min
        "#]],
    );
}
