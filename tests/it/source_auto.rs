//! Mode `auto`: the mode is chosen by the table's columns, logged with a reason, and kept.

use highwater::cursor::CursorMode::{self, ChangeTracking, IntegerPk, RowVersion, TimestampPk};

use highwater::source::Source as _;
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater_devdb::{Fault, SqlError};

use crate::sql::{World, logged};
use crate::ticks::Ticks;

async fn auto(tsql: &str) -> Ticks {
    let mut ticks = Ticks::numbered(tsql).await;
    ticks.settings.mode = None;
    ticks.settings.cursor_column = None;
    ticks
}

async fn mode(ticks: &Ticks) -> CursorMode {
    ticks.document().await.checkpoint.cursor.unwrap().mode
}

#[tokio::test]
async fn the_mode_follows_the_table_and_the_log_says_why() {
    for (columns, more, expected, reason) in [
        ("rv rowversion NOT NULL, ", "", RowVersion, "`rv` is a rowversion"),
        ("", "ALTER TABLE dbo.t ENABLE CHANGE_TRACKING", ChangeTracking, "its changes are tracked"),
        ("", "", IntegerPk, "`id` is an identity"),
    ] {
        let mut ticks = auto(&format!(
            "CREATE TABLE dbo.t ({columns}id int IDENTITY NOT NULL PRIMARY KEY, x int NULL); {more}; \
             INSERT INTO dbo.t (x) VALUES (1), (2), (3)"
        ))
        .await;
        let log = logged(Box::pin(ticks.tick_at(0))).await.1;
        assert!(log.contains(&format!("reads `dbo.t` in mode `{expected}`: {reason}")), "{log}");
        ticks.tick_at(5).await;
        assert_eq!(ticks.handler.ids(), [1, 2, 3], "{expected}");
        assert_eq!(mode(&ticks).await, expected);
    }
}

#[tokio::test]
async fn a_poller_keeps_its_mode_if_the_table_gains_a_better_one() {
    let mut ticks = auto(
        "CREATE TABLE dbo.t (id int IDENTITY NOT NULL PRIMARY KEY, x int NULL); \
         INSERT INTO dbo.t (x) VALUES (1)",
    )
    .await;
    ticks.tick_at(0).await;
    ticks.tick_at(5).await;
    ticks.run("ALTER TABLE dbo.t ADD rv rowversion; INSERT INTO dbo.t (x) VALUES (2)").await;
    ticks.tick_at(10).await;
    ticks.tick_at(15).await;
    assert_eq!((ticks.handler.ids(), mode(&ticks).await), (vec![1, 2], IntegerPk));
    // Configured by name, the new column is another source, and no checkpoint matches it.
    ticks.settings.cursor_column = Some("rv".to_owned());
    let error = ticks.failure().await;
    assert!(error.contains("cursor was `id`, is now `rv`"), "{error}");
}

#[tokio::test]
async fn a_configured_cursor_decides_the_mode() {
    let mut ticks = auto(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, at datetimeoffset(3) NOT NULL, \
         rv rowversion NOT NULL); INSERT INTO dbo.t (id, at) VALUES (1, '2026-01-01T10:00:00+00:00')",
    )
    .await;
    ticks.settings.cursor_column = Some("at".to_owned());
    ticks.tick_at(6).await;
    assert_eq!((ticks.handler.ids(), mode(&ticks).await), (vec![1], TimestampPk));
}

#[tokio::test]
async fn a_table_without_a_usable_cursor_is_an_error_with_a_fix() {
    let mut ticks = auto("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)").await;
    let error = ticks.failure().await;
    assert!(error.contains("ALTER TABLE [dbo].[t] ADD rv ROWVERSION"), "{error}");
    ticks.run("DROP TABLE dbo.t").await;
    let error = ticks.failure().await;
    assert!(error.contains("table `dbo.t` not found"), "{error}");
}

crate::ticks::also_cold![
    the_mode_follows_the_table_and_the_log_says_why,
    a_poller_keeps_its_mode_if_the_table_gains_a_better_one,
    a_configured_cursor_decides_the_mode,
    a_table_without_a_usable_cursor_is_an_error_with_a_fix,
];

#[tokio::test]
async fn change_tracking_is_queried_only_if_the_result_matters() {
    // The error number that another engine with this protocol uses for unknown names.
    let unknown =
        SqlError::new(33_557_097, 16, "function change_tracking_min_valid_version does not exist");
    for (column, cursor, expected) in [
        ("rv rowversion NOT NULL, ", None, RowVersion),
        ("at datetime2(7) NOT NULL, ", Some("at"), TimestampPk),
        ("", None, IntegerPk),
    ] {
        let table = format!("CREATE TABLE dbo.t ({column}id int IDENTITY NOT NULL PRIMARY KEY)");
        let world = World::start(&table).await;
        let faults = world.server.faults();
        let tracking = "CHANGE_TRACKING_MIN_VALID_VERSION";
        faults.arm_matching(tracking, u64::MAX, Fault::Error(unknown.clone()));
        let cursor_column = cursor.map(str::to_owned);
        let base = world.settings("t", RowVersion, "rv");
        let settings = SourceSettings { mode: None, cursor_column, ..base };
        let source = Mssql::new(settings.clone()).unwrap();
        assert_eq!(source.propose(false).await.unwrap().mode, expected);
        let (opened, log) = logged(source.open(None)).await;
        opened.unwrap();
        assert_eq!(source.shape().mode, expected);
        let is_warned = log.contains("event=\"change_tracking_unavailable\"");
        assert_eq!(is_warned, expected == IntegerPk, "{log}");
        // A transient error decides nothing.
        if expected == IntegerPk {
            faults.clear();
            let deadlock = SqlError::new(1205, 13, "Transaction was deadlocked");
            faults.arm_matching(tracking, 1, Fault::Error(deadlock));
            let source = Mssql::new(settings).unwrap();
            source.open(None).await.unwrap_err();
            assert!(!source.is_decided());
        }
    }
}
