//! The backlog of a poller according to the server, in the modes that count.

use highwater::cursor::CursorMode::{ChangeTracking, RowVersion};
use highwater::cursor::{Cursor, SourceState};
use highwater::source::mssql::Mssql;
use highwater::source::{FetchWindow, Lag, PositionRange, Source as _};

use crate::any_server::AnyServer;
use crate::sql::events;
use crate::ticks::Ticks;

/// Returns the lag read at the checkpoint.
async fn lag(ticks: &Ticks) -> Lag {
    let document = ticks.document().await;
    let window = FetchWindow {
        after: document.checkpoint.cursor.as_ref(),
        upto: None,
        rows_max: 10,
        state: &document.source_state,
    };
    Mssql::new(ticks.settings.clone()).unwrap().fetch(window).await.unwrap().lag
}

fn without_range(lag: Lag) -> Lag {
    Lag { range: None, ..lag }
}

#[tokio::test]
async fn numbers_count_as_held_back_until_settled_and_as_pending_afterwards() {
    let table = "CREATE TABLE dbo.t (id int IDENTITY NOT NULL PRIMARY KEY, note nvarchar(9) NULL)";
    let mut ticks = Ticks::numbered(table).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b'), ('c')").await;
    ticks.tick_at(0).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('d'), ('e')").await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2, 3]);
    ticks.at(6).await;
    let numbers = |positions, held_back| Lag { positions, held_back, ..Lag::default() };
    assert_eq!(without_range(lag(&ticks).await), numbers(Some(0), Some(2)));
    let range = PositionRange { first: None, readable: 3, newest: 5 };
    assert_eq!(lag(&ticks).await.range, Some(range));
    ticks.at(10).await;
    assert_eq!(without_range(lag(&ticks).await), numbers(Some(2), Some(0)));
}

#[tokio::test]
async fn versions_are_pending_until_read_and_their_retention_is_known_after_a_cleanup() {
    let table = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, note nvarchar(9) NULL); \
                 ALTER TABLE dbo.t ENABLE CHANGE_TRACKING";
    let needs = "a clean-up of changes on demand";
    let mut ticks = Ticks::embedded(table, ChangeTracking, needs).await;
    ticks.at(0).await.run("INSERT INTO dbo.t VALUES (1, 'a')").await;
    ticks.tick().await;
    let first = lag(&ticks).await;
    assert_eq!((first.time, first.positions, first.held_back), (None, Some(0), None));
    for note in ["b", "c", "d"] {
        ticks.run(&format!("UPDATE dbo.t SET note = '{note}'")).await;
    }
    let behind = lag(&ticks).await;
    assert_eq!(behind.positions, Some(3));
    assert_eq!(behind.retention_left, None, "no clean-up has run since tracking began");
    let at = ticks.document().await.checkpoint.cursor;
    let source = Mssql::new(ticks.settings.clone()).unwrap();
    assert_eq!(rows_behind(&source, at.as_ref(), 9).await, 1, "one row, however often it changed");
    ticks.tick().await;
    let caught_up = lag(&ticks).await;
    assert!(caught_up.positions < behind.positions, "{caught_up:?}");
    assert_eq!(caught_up.retention_left, None, "{caught_up:?}");
    ticks.world.database().forget_changes("dbo.t").unwrap();
    let left = lag(&ticks).await.retention_left;
    assert_eq!(left, Some(0), "the next clean-up loses what is not read by then");
    for note in ["e", "f"] {
        ticks.run(&format!("UPDATE dbo.t SET note = '{note}'")).await;
        ticks.tick().await;
    }
    let recovered = lag(&ticks).await.retention_left;
    assert!(recovered > left, "{recovered:?}");
}

async fn rows_behind(source: &Mssql, after: Option<&Cursor>, rows_max: usize) -> u64 {
    let window = FetchWindow { after, upto: None, rows_max, state: &SourceState::new() };
    source.count(window).await.unwrap()
}

#[tokio::test]
async fn rows_are_counted_up_to_a_limit() {
    let world = AnyServer::with_flights(10).await;
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    let (all, _) = events(&source, None, 100).await;
    assert_eq!(rows_behind(&source, None, 100).await, 10);
    let at = Some(&all[6].cursor);
    assert_eq!(rows_behind(&source, at, 100).await, 3);
    assert_eq!(rows_behind(&source, at, 2).await, 2);
}

crate::ticks::also_cold![
    numbers_count_as_held_back_until_settled_and_as_pending_afterwards,
    versions_are_pending_until_read_and_their_retention_is_known_after_a_cleanup,
];
