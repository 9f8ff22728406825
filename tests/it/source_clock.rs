//! A time column that is filled with the server's local time: the bound uses the same clock.

use highwater::admin::InitResult;
use highwater::config::SourceClock::{self, Local, Offset, Utc};
use highwater::cursor::CursorMode::TimestampPk;

use crate::ticks::{Ticks, commit};

const TABLE: &str = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, \
                     at datetime2(3) NOT NULL DEFAULT SYSDATETIME())";

/// Seconds of an hour.
const HOUR: u32 = 3_600;

async fn in_zone(minutes: i16, clock: SourceClock) -> Ticks {
    let mut ticks = Ticks::embedded(TABLE, TimestampPk, "a zone that can be set").await;
    ticks.world.database().set_zone(minutes);
    ticks.settings.cursor_column = Some("at".to_owned());
    ticks.settings.clock = clock;
    ticks
}

/// Keys that are delivered if one transaction commits late, but within the settle window.
async fn with_a_late_commit(zone: i16, clock: SourceClock) -> Vec<i64> {
    let mut ticks = in_zone(zone, clock).await;
    let late = ticks.at(0).await.begin("INSERT INTO dbo.t (id) VALUES (1)").await;
    ticks.at(1).await.run("INSERT INTO dbo.t (id) VALUES (2)").await;
    ticks.tick_at(2).await;
    commit(late).await;
    ticks.tick_at(20).await;
    ticks.handler.ids()
}

#[tokio::test]
async fn west_of_utc_the_window_holds_by_the_local_clock_only() {
    assert_eq!(with_a_late_commit(-300, Utc).await, [2], "row 1 is lost: the bound lies ahead");
    for (zone, clock) in [(-300, Local), (-300, Offset(-300)), (-300, Offset(-360)), (120, Local)] {
        let expected: &[i64] = if clock == Offset(-360) { &[] } else { &[1, 2] };
        assert_eq!(with_a_late_commit(zone, clock).await, expected, "{clock:?}");
    }
}

#[tokio::test]
async fn east_of_utc_rows_would_come_hours_late() {
    for (clock, first) in [(Utc, 2 * HOUR + 6), (Local, 6), (Offset(60), HOUR + 6)] {
        let mut ticks = in_zone(120, clock).await;
        ticks.at(0).await.run("INSERT INTO dbo.t (id) VALUES (1)").await;
        assert_eq!(ticks.tick_at(first - 2).await.0, [0; 0], "{clock:?}");
        assert_eq!(ticks.tick_at(first).await.0, [1], "{clock:?}");
    }
}

/// Keys that are delivered if the clock is set back by an hour at `HOUR`, and a row is written every half
/// hour.
async fn through_an_autumn_night(clock: SourceClock) -> Vec<i64> {
    let mut ticks = in_zone(120, clock).await;
    for half in 0..8 {
        if half * HOUR / 2 == HOUR {
            ticks.world.database().set_zone(60);
        }
        ticks.at(half * HOUR / 2).await;
        ticks.run(&format!("INSERT INTO dbo.t (id) VALUES ({half})")).await;
        ticks.tick_at(half * HOUR / 2 + 10).await;
    }
    ticks.tick_at(6 * HOUR).await;
    let mut ids = ticks.handler.ids();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn an_hour_that_is_repeated_is_skipped_unless_the_offset_is_fixed() {
    assert_eq!(through_an_autumn_night(Offset(60)).await, [0, 1, 2, 3, 4, 5, 6, 7]);
    let by_local = through_an_autumn_night(Local).await;
    assert!(!by_local.contains(&2) && by_local.ends_with(&[4, 5, 6, 7]), "{by_local:?}");
}

#[tokio::test]
async fn a_start_from_now_uses_the_same_clock() {
    let mut ticks = in_zone(-300, Local).await;
    ticks.start_now = true;
    ticks.at(0).await.run("INSERT INTO dbo.t (id) VALUES (1)").await;
    ticks.at(10).await;
    let started = ticks.process().admin().init().await.unwrap();
    let InitResult::Started { after: Some(after) } = started else { panic!("{started:?}") };
    assert_eq!(after.value, "2026-01-01T05:00:04.9950000");
    ticks.run("INSERT INTO dbo.t (id) VALUES (2)").await;
    assert_eq!(ticks.tick_at(20).await.0, [2]);
}

#[tokio::test]
async fn a_column_with_an_offset_accepts_no_clock_setting() {
    let mut ticks = in_zone(0, Local).await;
    ticks.run("CREATE TABLE dbo.o (id int NOT NULL PRIMARY KEY, at datetimeoffset NOT NULL)").await;
    ticks.settings.relation = highwater::config::Relation::Table("o".to_owned());
    let error = ticks.failure().await;
    assert!(error.contains("`SOURCE__CLOCK` is `local`") && error.contains("remove"), "{error}");
}

crate::ticks::also_cold![
    west_of_utc_the_window_holds_by_the_local_clock_only,
    east_of_utc_rows_would_come_hours_late,
    an_hour_that_is_repeated_is_skipped_unless_the_offset_is_fixed,
    a_start_from_now_uses_the_same_clock,
    a_column_with_an_offset_accepts_no_clock_setting,
];
