//! Where a new poller starts: at the beginning, or, if requested once, from now.

use highwater::admin::InitResult;
use highwater::cursor::CursorMode::{self, ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::error::chain;
use highwater::poller::outcome_row;

use crate::ticks::{Ticks, commit};

const TABLE: &str = "CREATE TABLE dbo.t (id int IDENTITY NOT NULL PRIMARY KEY, x int NULL, \
                     at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(), rv rowversion NOT NULL); \
                     ALTER TABLE dbo.t ENABLE CHANGE_TRACKING";

async fn poller_of(mode: CursorMode) -> Ticks {
    let mut ticks = Ticks::concurrent(TABLE, mode).await;
    ticks.settings.cursor_column = match mode {
        RowVersion => Some("rv".to_owned()),
        TimestampPk => Some("at".to_owned()),
        IntegerPk => Some("id".to_owned()),
        ChangeTracking => None,
    };
    ticks.start_now = true;
    ticks
}

#[tokio::test]
async fn in_every_mode_only_rows_after_the_start_are_delivered() {
    for mode in [RowVersion, TimestampPk, IntegerPk, ChangeTracking] {
        let mut ticks = poller_of(mode).await;
        ticks.at(0).await.run("INSERT INTO dbo.t (x) VALUES (1), (2)").await;
        ticks.at(6).await;
        let started = ticks.process().admin().init().await.unwrap();
        let InitResult::Started { after: Some(after) } = started else { panic!("{started:?}") };
        assert_eq!((after.mode, after.key.len()), (mode, 0), "behind all rows that have it");
        assert_eq!(ticks.tick().await.0, [0; 0], "{mode}");
        ticks.run("INSERT INTO dbo.t (x) VALUES (3)").await;
        ticks.tick_at(7).await;
        ticks.run("INSERT INTO dbo.t (x) VALUES (4)").await;
        for second in [13, 20, 27] {
            ticks.tick_at(second).await;
        }
        assert_eq!(ticks.handler.ids(), [3, 4], "{mode}");
        // A start happens once: rows are not skipped a second time.
        assert_eq!(ticks.process().admin().init().await.unwrap(), InitResult::StartedBefore);
    }
}

#[tokio::test]
async fn a_table_replaced_between_start_and_first_delivery_stops_the_poller() {
    for mode in [RowVersion, TimestampPk, IntegerPk] {
        let mut ticks = poller_of(mode).await;
        ticks.at(0).await.run("INSERT INTO dbo.t (x) VALUES (1), (2)").await;
        ticks.at(6).await;
        ticks.process().admin().init().await.unwrap();
        ticks.run(&format!("DROP TABLE dbo.t; {TABLE}")).await;
        ticks.run("INSERT INTO dbo.t (x) VALUES (3), (4), (5)").await;
        let error = ticks.failure_at(20).await;
        assert!(
            error.contains("is not the table that the checkpoint was made of"),
            "{mode}: {error}"
        );
    }
}

#[tokio::test]
async fn rows_committed_after_the_start_are_delivered_if_the_mode_detects_them() {
    for mode in [RowVersion, ChangeTracking] {
        let mut ticks = poller_of(mode).await;
        let late = ticks.at(0).await.begin("INSERT INTO dbo.t (x) VALUES (1)").await;
        ticks.run("INSERT INTO dbo.t (x) VALUES (2)").await;
        ticks.process().admin().init().await.unwrap();
        commit(late).await;
        assert!(ticks.tick_at(1).await.0.contains(&1), "{mode}");
    }
}

#[tokio::test]
async fn times_that_a_type_cannot_distinguish_are_not_skipped() {
    for declared in ["date", "smalldatetime", "datetime", "datetime2(0)", "datetimeoffset(3)"] {
        let mut ticks = Ticks::embedded(
            &format!("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, at {declared} NOT NULL)"),
            TimestampPk,
            "its clock, which can pass a day",
        )
        .await;
        ticks.settings.cursor_column = Some("at".to_owned());
        ticks.start_now = true;
        ticks.at(30).await;
        ticks.process().admin().init().await.unwrap();
        ticks.at(31).await.run("INSERT INTO dbo.t VALUES (1, SYSUTCDATETIME())").await;
        ticks.world.database().set_now("2026-01-03T00:00:00").unwrap();
        assert_eq!(ticks.tick().await.0, [1], "{declared}");
    }
}

#[tokio::test]
async fn no_tick_starts_from_now_implicitly_or_after_state_loss() {
    let mut ticks = poller_of(RowVersion).await;
    ticks.run("INSERT INTO dbo.t (x) VALUES (1)").await;
    let report = ticks.report().await;
    let row = outcome_row(&report.result);
    assert_eq!((row.event, row.status), ("not_started", 500));
    let error = chain(&report.result.unwrap_err());
    assert!(error.contains("run `highwater init orders` once"), "{error}");
    assert_eq!(ticks.process().admin().init().await.unwrap(), {
        let after = ticks.document().await.checkpoint.cursor;
        InitResult::Started { after }
    });
    ticks.run("INSERT INTO dbo.t (x) VALUES (2)").await;
    assert_eq!(ticks.tick().await.0, [2]);
    ticks.lose_document();
    let error = chain(&ticks.process().admin().init().await.unwrap_err());
    assert!(error.contains("state document of `orders` is gone"), "{error}");
}

#[tokio::test]
async fn a_poller_that_starts_at_the_beginning_can_be_initialized_too() {
    let mut ticks = poller_of(RowVersion).await;
    ticks.start_now = false;
    ticks.run("INSERT INTO dbo.t (x) VALUES (1)").await;
    assert_eq!(ticks.process().admin().init().await.unwrap(), InitResult::Started { after: None });
    assert_eq!(ticks.tick().await.0, [1]);
}

#[tokio::test]
async fn an_untracked_table_has_no_current_position() {
    let mut ticks = poller_of(ChangeTracking).await;
    ticks.run("ALTER TABLE dbo.t DISABLE CHANGE_TRACKING").await;
    let error = chain(&ticks.process().admin().init().await.unwrap_err());
    assert!(error.contains("changes of `dbo.t` are not tracked"), "{error}");
}

crate::ticks::also_cold![
    in_every_mode_only_rows_after_the_start_are_delivered,
    a_table_replaced_between_start_and_first_delivery_stops_the_poller,
    rows_committed_after_the_start_are_delivered_if_the_mode_detects_them,
    times_that_a_type_cannot_distinguish_are_not_skipped,
    no_tick_starts_from_now_implicitly_or_after_state_loss,
    a_poller_that_starts_at_the_beginning_can_be_initialized_too,
];
