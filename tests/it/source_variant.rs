//! A key of type `sql_variant`: each value has its own type, which the statements must name.

use std::time::Duration;

use highwater::cursor::{Cursor, CursorMode, SourceState};
use highwater::error::{ErrorKind, chain};
use highwater::event::ChangeEvent;
use highwater::normalize::normalize;
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::source::{FetchWindow, Source as _};

use crate::any_server::AnyServer;
use crate::sql::{World, events, fetch};

// One row at a time: the values of one statement would all be converted to one type.
const TABLE: &str = "CREATE TABLE dbo.t (shop int NOT NULL, k sql_variant NOT NULL, \
                     at datetime2(3) NOT NULL, n bigint NOT NULL, rv rowversion NOT NULL, \
                     PRIMARY KEY (shop, k)); \
                     INSERT INTO dbo.t (shop, k, at, n) VALUES (1, CAST('2020-01-01' AS date), '2020-01-01', 1); \
                     INSERT INTO dbo.t (shop, k, at, n) VALUES (1, CAST(N'0.5' AS float), '2020-01-01', 1); \
                     INSERT INTO dbo.t (shop, k, at, n) VALUES (1, CAST(N'7.50' AS decimal(9, 2)), '2020-01-01', 1); \
                     INSERT INTO dbo.t (shop, k, at, n) VALUES (1, CAST(7 AS int), '2020-01-01', 1); \
                     INSERT INTO dbo.t (shop, k, at, n) VALUES (1, CAST(N'é:9' AS nvarchar(9)), '2020-01-01', 1); \
                     INSERT INTO dbo.t (shop, k, at, n) VALUES (2, CAST(0x00FF AS varbinary(4)), '2020-01-01', 1)";

/// The keys in the server's order: by the family of the type, the highest last.
const ORDERED: [&str; 6] = [
    "nvarchar(9) COLLATE SQL_Latin1_General_CP1_CI_AS:é:9",
    "int:7",
    "decimal(9, 2):7.50",
    "float:0.5",
    "date:2020-01-01",
    "varbinary(4):0x00FF",
];

/// Modes in which all rows share a cursor, so that the key alone orders them.
const MODES: [(CursorMode, &str); 3] = [
    (CursorMode::TimestampPk, "at"),
    (CursorMode::IntegerPk, "n"),
    (CursorMode::ChangeTracking, ""),
];

fn settings(settings: SourceSettings) -> SourceSettings {
    let key = ["shop", "k"].map(str::to_owned).to_vec();
    SourceSettings { key, settle: Duration::ZERO, ..settings }
}

fn keys(events: &[ChangeEvent]) -> Vec<&str> {
    events.iter().map(|event| event.cursor.key["k"].as_str().unwrap()).collect()
}

async fn world() -> AnyServer {
    let world = AnyServer::start(TABLE).await;
    world.track("dbo.t").await;
    world
}

#[tokio::test]
async fn keys_of_several_types_follow_the_servers_order_for_any_page_size() {
    for (mode, cursor) in MODES {
        let world = world().await;
        let source = Mssql::new(settings(world.settings("t", mode, cursor))).unwrap();
        let (whole, _) = events(&source, None, 9).await;
        assert_eq!(keys(&whole), ORDERED, "{mode}");
        for page in 1..4 {
            let (mut found, mut after) = (Vec::new(), None::<Cursor>);
            for _ in 0..=ORDERED.len() {
                let (read, _) = events(&source, after.as_ref(), page).await;
                after = read.last().map(|event| event.cursor.clone()).or(after);
                found.extend(read);
            }
            assert_eq!(found, whole, "{mode} in pages of {page}");
        }
    }
}

#[tokio::test]
async fn ranges_between_such_keys_are_counted_and_split() {
    let world = world().await;
    for (mode, cursor) in MODES.into_iter().take(2) {
        let source = Mssql::new(settings(world.settings("t", mode, cursor))).unwrap();
        let (all, _) = events(&source, None, 9).await;
        let (after, upto, state) = (&all[0].cursor, &all[4].cursor, SourceState::new());
        let window = |rows_max| FetchWindow {
            after: Some(after),
            upto: Some(upto),
            rows_max,
            state: &state,
        };
        let read = normalize(source.shape(), &source.fetch(window(9)).await.unwrap()).unwrap();
        assert_eq!(read, all[1..5], "{mode}");
        assert_eq!(source.count(window(9)).await.unwrap(), 4, "{mode}");
        let last = source.last_of(window(2)).await.unwrap();
        let last = normalize(source.shape(), &last).unwrap();
        assert_eq!(last[0].cursor, all[2].cursor, "{mode}");
    }
}

#[tokio::test]
async fn a_row_is_found_by_such_a_key_and_a_deleted_one_keeps_it() {
    for (mode, cursor) in MODES {
        let world = world().await;
        let source = Mssql::new(settings(world.settings("t", mode, cursor))).unwrap();
        let (all, _) = events(&source, None, 9).await;
        for event in &all {
            let rows = source.current(&event.cursor).await.unwrap();
            assert_eq!(
                normalize(source.shape(), &rows).unwrap(),
                std::slice::from_ref(event),
                "{mode}"
            );
        }
        world.execute("DELETE FROM dbo.t WHERE k = CAST(CAST(7 AS bigint) AS sql_variant)").await;
        let rows = source.current(&all[1].cursor).await.unwrap();
        assert_eq!(rows.rows.len(), 0, "{mode}");
        let (then, _) = events(&source, all.last().map(|event| &event.cursor), 9).await;
        let gone: &[&str] = if mode == CursorMode::ChangeTracking { &["int:7"] } else { &[] };
        assert_eq!(keys(&then), gone, "{mode}");
    }
}

/// A checkpoint may have been edited: no part of it is inserted into a statement.
#[tokio::test]
async fn a_key_without_a_type_is_rejected_before_a_request() {
    let world = World::start(TABLE).await;
    let source = Mssql::new(settings(world.settings("t", CursorMode::TimestampPk, "at"))).unwrap();
    let (all, _) = events(&source, None, 9).await;
    let faults = world.server.faults();
    let sent = faults.statements();
    for hostile in [
        "int) AS sql_variant) OR 1 = 1; DROP TABLE dbo.t; --:5",
        "nvarchar(9) COLLATE Latin1_General_CI_AS) AS sql_variant); DROP TABLE dbo.t --:a",
        "int:5; DROP TABLE dbo.t",
        "decimal(9, 2); DROP TABLE dbo.t --:1.50",
        "decimal(9, 2):1.5' OR 1 = 1 --",
        "[int]:5",
        "5",
        "",
    ] {
        let mut cursor = all[0].cursor.clone();
        cursor.key.insert("k".to_owned(), hostile.into());
        let error = fetch(&source, Some(&cursor), 9).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Data, "{error}");
        assert!(error.reason.contains("for key column `k`"), "{error}");
        assert!(error.reason.contains("has its type as prefix"), "{error}");
    }
    assert_eq!(faults.statements(), sent);
    // A text that is read as a value stays a value, whatever it contains.
    let text = "nvarchar(99) COLLATE Latin1_General_CI_AS:é:9' OR 1 = 1; DROP TABLE dbo.t --";
    let mut cursor = all[0].cursor.clone();
    cursor.key.insert("k".to_owned(), text.into());
    assert_eq!(keys(&events(&source, Some(&cursor), 9).await.0), ORDERED[1..]);
    // The server rejects a collation that it does not know.
    cursor.key.insert("k".to_owned(), "nvarchar(9) COLLATE Klingon_CI_AS:a".into());
    let error = fetch(&source, Some(&cursor), 9).await.unwrap_err();
    assert!(chain(&error).contains("Klingon_CI_AS"), "{}", chain(&error));
}
