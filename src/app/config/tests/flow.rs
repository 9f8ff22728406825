//! How batches follow each other.

use std::time::Duration;

use expect_test::expect;

use super::{MINIMAL, check_mistakes, read};
use crate::policy::{Flow, Follow};

fn flow(settings: &str) -> Flow {
    read(&[MINIMAL, settings]).pollers["orders"].flow
}

#[test]
fn a_tick_follows_its_source_where_it_is_told_for_how_long() {
    assert_eq!(flow("").follow, None);
    let interval = "HIGHWATER__POLLERS__ORDERS__FOLLOW_INTERVAL = 1s";
    assert_eq!(flow(interval).follow, None);
    let time = Duration::from_secs(50);
    let follow = Follow { time, interval: Duration::from_millis(200) };
    let set = "HIGHWATER__POLLERS__ORDERS__FOLLOW_FOR = 50s";
    assert_eq!(flow(set), Flow { follow: Some(follow), ..Flow::default() });
}

#[test]
fn the_fewest_rows_of_a_batch_follow_the_most_where_those_are_fewer() {
    let max = "HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX = 40";
    assert_eq!(flow(max).batch_rows_min, 40);
    let both = format!("{max}\nHIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MIN = 40");
    assert_eq!(flow(&both).batch_rows_min, 40);
}

#[test]
fn a_commit_is_overlapped_only_where_that_is_asked_for_and_goes_together_with_the_rest() {
    assert!(!flow("").overlap_commit);
    let asked = "HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT = true";
    assert_eq!(flow(asked), Flow { overlap_commit: true, ..Flow::default() });
    let deaths = "
        HIGHWATER__POLLERS__ORDERS__ON_FAILURE = quarantine
        HIGHWATER__POLLERS__ORDERS__CRASHES_MAX = 1
    ";
    check_mistakes(
        &[MINIMAL, asked, deaths],
        &expect![[r#"
        1 mistake in the settings
        setting `HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT` is `true`, expected `false`, since `HIGHWATER__POLLERS__ORDERS__CRASHES_MAX` is `1`
    "#]],
    );
    let audit = "
        HIGHWATER__POLLERS__ORDERS__SOURCE__MODE = timestamp+pk
        HIGHWATER__POLLERS__ORDERS__SOURCE__AUDIT_AFTER = 10m
    ";
    check_mistakes(
        &[MINIMAL, asked, audit],
        &expect![[r#"
        1 mistake in the settings
        setting `HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT` is `true`, expected `false`, since `HIGHWATER__POLLERS__ORDERS__SOURCE__AUDIT_AFTER` is set
    "#]],
    );
    let chain = "
        HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = chain
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEPS = first,second
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__FIRST__KIND = stdout
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__SECOND__KIND = stdout
    ";
    check_mistakes(
        &[MINIMAL, asked, chain],
        &expect![[r#"
        1 mistake in the settings
        setting `HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT` is `true`, expected `false`, since `HIGHWATER__POLLERS__ORDERS__HANDLER__KIND` is `chain`
    "#]],
    );
}

#[test]
fn what_does_not_go_together_is_refused() {
    let wrong = "
        HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX = 40
        HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MIN = 41
    ";
    check_mistakes(
        &[MINIMAL, wrong],
        &expect![[r#"
        1 mistake in the settings
        setting `HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MIN` is `41`, expected at most 40, as `HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX` says
    "#]],
    );
}
