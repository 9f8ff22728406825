//! A query as the source: the same guarantees as for a table.

use highwater::config::Relation;
use highwater::cursor::CursorMode::{ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::error::{ErrorKind, chain};
use highwater::source::Source as _;
use highwater::source::mssql::{Mssql, SourceSettings};

use crate::any_server::AnyServer;
use crate::sql::{drain, events, failure, fetch, flights_in_order, logged};

const FLIGHTS: usize = 200;

fn query(base: SourceSettings, text: &str) -> SourceSettings {
    SourceSettings { relation: Relation::Query(text.to_owned()), ..base }
}

#[tokio::test]
async fn a_query_is_read_like_a_table() {
    let world = AnyServer::with_flights(FLIGHTS).await;
    for mode in [RowVersion, TimestampPk] {
        for text in [
            "SELECT * FROM dbo.flights",
            "SELECT f.id, f.time_hour, f.rv, f.carrier + N'-' + CAST(f.flight AS nvarchar(9)) AS name \
             FROM dbo.flights AS f WHERE f.id > 0 -- a comment at its end",
            "SELECT t.id, t.time_hour, t.rv FROM (SELECT id, time_hour, rv FROM dbo.flights) AS t",
        ] {
            let source = Mssql::new(query(world.flights(mode), text)).unwrap();
            assert_eq!(drain(&source, 7).await, flights_in_order(mode, FLIGHTS), "{text}");
        }
    }
    let settings = query(
        world.flights(RowVersion),
        "SELECT id, rv, carrier AS [the carrier] FROM dbo.flights",
    );
    let source = Mssql::new(settings).unwrap();
    let (all, _) = events(&source, None, 1).await;
    let json: serde_json::Value = serde_json::from_str(&all[0].json).unwrap();
    assert_eq!(json["source"]["object"], "query");
    assert_eq!(json["after"]["the carrier"], "UA");
}

#[tokio::test]
async fn a_query_of_two_tables_sees_changes_of_the_cursor_table() {
    let world = AnyServer::start(
        "CREATE TABLE dbo.o (id int NOT NULL PRIMARY KEY, c int NOT NULL, rv rowversion NOT NULL); \
         CREATE TABLE dbo.c (id int NOT NULL PRIMARY KEY, name nvarchar(9) NOT NULL); \
         INSERT INTO dbo.c VALUES (1, N'a'), (2, N'b'); INSERT INTO dbo.o (id, c) VALUES (1, 1), (2, 2)",
    )
    .await;
    let text = "SELECT o.id, o.rv, c.name FROM dbo.o AS o JOIN dbo.c AS c ON c.id = o.c";
    let source = Mssql::new(query(world.settings("o", RowVersion, "rv"), text)).unwrap();
    let (all, _) = events(&source, None, 9).await;
    assert!(all[1].json.contains(r#""name":"b""#), "{}", all[1].json);
    world.execute("UPDATE dbo.o SET c = 1 WHERE id = 2").await;
    let (again, _) = events(&source, Some(&all[1].cursor), 9).await;
    assert!(again.len() == 1 && again[0].json.contains(r#""name":"a""#));
}

#[tokio::test]
async fn a_query_supports_filters_column_lists_and_marks_like_a_table() {
    let world = AnyServer::with_flights(20).await;
    let base =
        query(world.flights(RowVersion), "SELECT id AS number, rv, carrier FROM dbo.flights");
    let settings = SourceSettings {
        key: vec!["number".to_owned()],
        mode: Some(IntegerPk),
        cursor_column: Some("number".to_owned()),
        columns_excluded: vec!["rv".to_owned()],
        filter: Some("number IN (@one, 9)".to_owned()),
        filter_params: [("ONE".to_owned(), "int:5".to_owned())].into(),
        settle: std::time::Duration::ZERO,
        ..base
    };
    let source = Mssql::new(settings).unwrap();
    let rows = fetch(&source, None, 9).await.unwrap();
    assert_eq!(
        (rows.columns.names(), rows.rows.len()),
        (["number".to_owned(), "carrier".to_owned()].as_slice(), 2)
    );
}

#[tokio::test]
async fn limits_of_a_query_are_reported_once() {
    let world = AnyServer::with_flights(5).await;
    let text = "SELECT id, rv FROM dbo.flights";
    let source = Mssql::new(query(world.flights(RowVersion), text)).unwrap();
    let (_, log) = logged(drain(&source, 2)).await;
    assert_eq!(
        log.matches("so the server cannot tell whether the key `id` is unique").count(),
        1,
        "{log}"
    );
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    let (_, log) = logged(drain(&source, 2)).await;
    assert!(!log.contains("query_key_not_checked"), "{log}");
}

#[tokio::test]
async fn an_invalid_query_is_named() {
    let world = AnyServer::with_flights(5).await;
    for (text, expected) in [
        ("SELECT id, nothing FROM dbo.flights", "error 207: Invalid column name 'nothing'"),
        ("SELECT id FROM dbo.nothing", "error 208"),
        (
            "SELECT id, rv, COUNT(*) FROM dbo.flights GROUP BY id, rv",
            "No column name was specified",
        ),
        ("SELECT id, rv, id FROM dbo.flights", "The column 'id' was specified multiple times"),
        (
            "SELECT id, flight FROM dbo.flights",
            "cursor column `rv` is not in `SOURCE__QUERY`, which has `id`",
        ),
        ("SELECT id, flight AS rv FROM dbo.flights", "mode `rowversion` needs"),
        ("SELECT id FROM dbo.flights WHERE", "error 102"),
    ] {
        let (error, text) = failure(query(world.flights(RowVersion), text)).await;
        assert!(text.contains(expected), "`{expected}` not in `{text}`");
        assert_eq!(error.kind, ErrorKind::Configuration, "{text}");
    }
    for (text, expected) in [
        ("SELECT id FROM dbo.flights;", "`SOURCE__QUERY`: it ends with `;`"),
        ("DELETE dbo.flights", "does not start with `SELECT`"),
    ] {
        let error = Mssql::new(query(world.flights(RowVersion), text)).unwrap_err();
        assert!(error.reason.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn an_unset_mode_follows_the_cursor_type() {
    let world = AnyServer::with_flights(5).await;
    let base = query(world.flights(RowVersion), "SELECT id, rv, time_hour FROM dbo.flights");
    for (cursor, mode) in [("rv", RowVersion), ("time_hour", TimestampPk), ("id", IntegerPk)] {
        let cursor_column = Some(cursor.to_owned());
        let settings = SourceSettings { mode: None, cursor_column, ..base.clone() };
        let source = Mssql::new(settings).unwrap();
        source.open(None).await.unwrap();
        assert_eq!(source.shape().mode, mode);
    }
    let tracked = SourceSettings { mode: Some(ChangeTracking), cursor_column: None, ..base };
    let error = Mssql::new(tracked).unwrap_err();
    assert!(error.reason.contains("a query has no tracked changes"), "{}", chain(&error));
}

#[tokio::test]
async fn the_fingerprint_covers_the_query() {
    let world = AnyServer::with_flights(0).await;
    let base = world.flights(RowVersion);
    let of = |settings: SourceSettings| Mssql::new(settings).unwrap().shape().fingerprint.clone();
    let one = of(query(base.clone(), "SELECT * FROM dbo.flights"));
    assert_eq!(one, of(query(base.clone(), " SELECT * FROM dbo.flights\n")));
    assert_ne!(one, of(query(base.clone(), "SELECT * FROM dbo.flights WHERE id > 1")));
    assert_ne!(one, of(base));
}
