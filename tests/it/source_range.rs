//! Past ranges: the rows between two positions, their number, and where the range can be split.

use highwater::cursor::CursorMode::{ChangeTracking, RowVersion, TimestampPk};
use highwater::cursor::{Cursor, KeyValues, SourceState};
use highwater::event::ChangeEvent;
use highwater::normalize::normalize;
use highwater::source::mssql::Mssql;
use highwater::source::{FetchWindow, Source as _};

use crate::any_server::AnyServer;
use crate::sql::events;
use crate::ticks::Ticks;

/// The content of a range: its rows, how many were counted up to a limit, and the last of them.
struct RangeContent {
    rows: Vec<ChangeEvent>,
    counted: u64,
    last: Option<Cursor>,
}

async fn ask(source: &Mssql, after: Option<&Cursor>, upto: &Cursor, first: usize) -> RangeContent {
    let state = SourceState::new();
    let window = |rows_max| FetchWindow { after, upto: Some(upto), rows_max, state: &state };
    let fetched = source.fetch(window(1_000)).await.unwrap();
    assert!(!fetched.more);
    let counted = source.count(window(first)).await.unwrap();
    let last = match source.last_of(window(first)).await {
        Ok(last) => normalize(source.shape(), &last).unwrap().pop().map(|event| event.cursor),
        Err(_) => None,
    };
    RangeContent { rows: normalize(source.shape(), &fetched).unwrap(), counted, last }
}

fn without_key(cursor: &Cursor) -> Cursor {
    Cursor { key: KeyValues::new(), ..cursor.clone() }
}

#[tokio::test]
async fn a_range_contains_the_rows_between_two_positions_and_splits_by_row() {
    let world = AnyServer::with_flights(300).await;
    for mode in [RowVersion, TimestampPk] {
        let source = Mssql::new(world.flights(mode)).unwrap();
        let (all, _) = events(&source, None, 300).await;
        let range = ask(&source, Some(&all[49].cursor), &all[249].cursor, 60).await;
        assert_eq!(range.rows, all[50..250], "{mode}: after the start, up to the end");
        assert_eq!((range.counted, range.last), (60, Some(all[109].cursor.clone())), "{mode}");
        let range = ask(&source, None, &all[249].cursor, 1_000).await;
        assert_eq!((range.counted, range.last), (250, Some(all[249].cursor.clone())), "{mode}");

        // Without a key a position is after all rows with its cursor, and several rows share a time.
        let (after, upto) = (without_key(&all[49].cursor), without_key(&all[249].cursor));
        let inside = |event: &&ChangeEvent| {
            event.cursor.value > after.value && event.cursor.value <= upto.value
        };
        let expected: Vec<_> = all.iter().filter(inside).cloned().collect();
        let range = ask(&source, Some(&after), &upto, 1_000).await;
        assert_eq!(range.rows, expected, "{mode}");
        assert_eq!(range.counted, u64::try_from(expected.len()).unwrap(), "{mode}");
        let nothing = ask(&source, Some(&all[299].cursor), &all[299].cursor, 10).await;
        assert_eq!((nothing.counted, nothing.last), (0, None), "{mode}");
    }
}

#[tokio::test]
async fn numbers_of_the_past_need_no_mark_to_settle() {
    let ticks = Ticks::numbered("CREATE TABLE dbo.t (id int IDENTITY NOT NULL PRIMARY KEY)").await;
    for _ in 0..9 {
        ticks.run("INSERT INTO dbo.t DEFAULT VALUES").await;
    }
    let source = Mssql::new(ticks.settings.clone()).unwrap();
    let at = |number| Cursor::integer(number, KeyValues::new());
    let range = ask(&source, Some(&at(2)), &at(7), 3).await;
    let rows: Vec<i64> =
        range.rows.iter().map(|event| event.cursor.integer_value().unwrap()).collect();
    assert_eq!(rows, [3, 4, 5, 6, 7]);
    assert_eq!((range.counted, range.last.unwrap().value.as_str()), (3, "5"));
}

#[tokio::test]
async fn changes_are_reread_while_retained_and_each_row_by_its_last_change() {
    let table = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, note nvarchar(9) NULL); \
                 ALTER TABLE dbo.t ENABLE CHANGE_TRACKING";
    let needs = "a clean-up of changes on demand";
    let ticks = Ticks::embedded(table, ChangeTracking, needs).await;
    for id in 1..=5 {
        ticks.run(&format!("INSERT INTO dbo.t VALUES ({id}, 'a')")).await;
    }
    ticks.run("UPDATE dbo.t SET note = 'b' WHERE id = 3").await;
    ticks.run("DELETE FROM dbo.t WHERE id = 4").await;
    let source = Mssql::new(ticks.settings.clone()).unwrap();
    let at = |version: &str| Cursor::tracked(version.parse().unwrap(), KeyValues::new());
    let ids = |range: &RangeContent| -> Vec<i64> {
        range.rows.iter().map(|event| event.cursor.key["id"].as_i64().unwrap()).collect()
    };
    let range = ask(&source, Some(&at("1")), &at("5"), 10).await;
    assert_eq!((ids(&range), range.counted), (vec![2, 5], 2), "3 and 4 have changed since");
    let range = ask(&source, Some(&at("1")), &at("7"), 3).await;
    assert_eq!((ids(&range), range.counted), (vec![2, 5, 3, 4], 3));
    assert_eq!(range.last, None, "changes are not divided");
    ticks.world.database().forget_changes("dbo.t").unwrap();
    let state = SourceState::new();
    let (after, upto) = (at("1"), at("5"));
    let window = FetchWindow { after: Some(&after), upto: Some(&upto), rows_max: 9, state: &state };
    let error = source.count(window).await.unwrap_err().to_string();
    assert!(
        error.contains("after version `1` are needed") && error.contains("start at"),
        "{error}"
    );
}
