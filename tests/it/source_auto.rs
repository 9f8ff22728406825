//! Mode `auto`: the mode is chosen by what the table has, said why, and kept.

use highwater::cursor::CursorMode::{self, ChangeTracking, IntegerPk, RowVersion, TimestampPk};

use crate::sql::logged;
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
async fn a_poller_stays_with_what_it_chose_when_the_table_gets_better() {
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
    // Asked for by name, the new column is another source, and no checkpoint fits it.
    ticks.settings.cursor_column = Some("rv".to_owned());
    let error = ticks.failure().await;
    assert!(error.contains("source has changed"), "{error}");
}

#[tokio::test]
async fn a_cursor_that_is_named_decides() {
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
async fn a_table_with_nothing_to_go_by_is_an_error_that_says_what_to_add() {
    let mut ticks = auto("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)").await;
    let error = ticks.failure().await;
    assert!(error.contains("ALTER TABLE [dbo].[t] ADD rv ROWVERSION"), "{error}");
    ticks.run("DROP TABLE dbo.t").await;
    let error = ticks.failure().await;
    assert!(error.contains("table `dbo.t` not found"), "{error}");
}

crate::ticks::also_cold![
    the_mode_follows_the_table_and_the_log_says_why,
    a_poller_stays_with_what_it_chose_when_the_table_gets_better,
    a_cursor_that_is_named_decides,
    a_table_with_nothing_to_go_by_is_an_error_that_says_what_to_add,
];
