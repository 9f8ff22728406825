//! Keys that are not unique: a page in which two rows share cursor and key is never delivered.

use std::time::Duration;

use highwater::cursor::CursorMode::{IntegerPk, RowVersion, TimestampPk};
use highwater::cursor::{Cursor, KeyValues, SourceState};
use highwater::error::{ErrorKind, chain};
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::source::{FetchWindow, Source as _};
use highwater::testing::Received;
use highwater::tick::TickRequest;

use crate::any_server::AnyServer;
use crate::sql::{events, fetch, logged};
use crate::ticks::Ticks;

const TIMED: &str =
    "CREATE TABLE dbo.t (id int NOT NULL, at datetime2(7) NOT NULL, n int NOT NULL)";
const NUMBERED: &str = "CREATE TABLE dbo.t (id int NOT NULL, n int NOT NULL)";

async fn timed(rows: &str) -> Ticks {
    let world = AnyServer::start(&format!("{TIMED}; INSERT INTO dbo.t VALUES {rows}")).await;
    let settings = world.settings("t", TimestampPk, "at");
    Ticks::new(world, settings)
}

#[tokio::test]
async fn five_rows_at_one_position_are_an_error_and_never_partly_delivered() {
    let row = "(1, '2020-01-01T10:00:00', 0)";
    let mut ticks = timed(&[row; 5].join(", ")).await;
    for _ in 0..2 {
        let error = ticks.failure().await;
        for part in [
            "the key of `dbo.t` is not unique",
            "two rows have `at` = \"2020-01-01T10:00:00\", `id` = 1.",
            "`SOURCE__KEY`",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(ticks.handler.ids(), [0; 0]);
        // The query of the message runs as printed, and finds them.
        let query = error.split('`').find(|part| part.starts_with("SELECT")).unwrap();
        let found = ticks.world.session().await.run(query).await;
        assert_eq!(found.len(), 1, "{query}");
    }
    // The suggested fix works.
    ticks.settings.key = vec!["id".to_owned(), "n".to_owned()];
    ticks.run("DELETE FROM dbo.t").await;
    let rows = [1, 2, 3].map(|n| format!("(1, '2020-01-01T10:00:00', {n})")).join(", ");
    ticks.run(&format!("INSERT INTO dbo.t VALUES {rows}")).await;
    assert_eq!(ticks.tick().await.0, [1, 1, 1]);
}

#[tokio::test]
async fn duplicates_are_found_wherever_a_page_ends() {
    let rows =
        "(1, '2020-01-01', 0), (2, '2020-01-01', 0), (2, '2020-01-01', 1), (3, '2020-01-01', 0)";
    for (mode, cursor) in [(TimestampPk, "at"), (IntegerPk, "id")] {
        let world = AnyServer::start(&format!("{TIMED}; INSERT INTO dbo.t VALUES {rows}")).await;
        let settings = world.settings("t", mode, cursor);
        let source = Mssql::new(SourceSettings { settle: Duration::ZERO, ..settings }).unwrap();
        for rows_max in [2, 3, 4, 9] {
            let error = fetch(&source, None, rows_max).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Configuration);
            assert!(error.reason.contains("`id` = 2"), "{mode} by {rows_max}: {error}");
        }
        // The row after the page is the first of the two: the next page finds them.
        assert_eq!(fetch(&source, None, 1).await.unwrap().rows.len(), 1, "{mode}");
    }
}

#[tokio::test]
async fn rows_before_the_duplicates_are_delivered_once_with_and_without_prefetch() {
    for prefetch in [true, false] {
        let mut ticks = timed(
            "(1, '2020-01-01', 0), (2, '2020-01-02', 0), (3, '2020-01-03', 0), (4, '2020-01-04', 0), \
             (4, '2020-01-04', 1), (5, '2020-01-05', 0)",
        )
        .await;
        ticks.flow.prefetch = prefetch;
        let error = ticks.failure().await;
        assert!(error.contains("the key of `dbo.t` is not unique"), "{error}");
        assert_eq!(ticks.handler.ids(), [1, 2], "the page of 3 and 4 ends between the duplicates");
        ticks.run("DELETE FROM dbo.t WHERE n = 1").await;
        assert_eq!(ticks.tick().await.0, [3, 4, 5], "prefetch {prefetch}");
    }
}

#[tokio::test]
async fn a_range_and_a_closed_window_are_checked_too() {
    let mut ticks = timed("(1, '2020-01-01', 0), (2, '2020-01-02', 0)").await;
    let audited = |ticks: &mut Ticks| ticks.process().with_audit_after(Duration::ZERO);
    let report = audited(&mut ticks).tick(&TickRequest::default()).await;
    report.result.unwrap();
    assert_eq!(ticks.handler.ids(), [1, 2]);
    // It is at the checkpoint, so no later page can contain it.
    ticks.run("INSERT INTO dbo.t VALUES (2, '2020-01-02', 1)").await;
    assert_eq!(ticks.tick().await.0, [0; 0]);
    let report = audited(&mut ticks).tick(&TickRequest::default()).await;
    let error = chain(&report.result.unwrap_err());
    assert!(error.contains("the key of `dbo.t` is not unique"), "{error}");
    let upto = Cursor::timestamp("2020-01-03T00:00:00.0000000", KeyValues::new()).unwrap();
    let state = SourceState::new();
    let window = FetchWindow { after: None, upto: Some(&upto), rows_max: 9, state: &state };
    let source = Mssql::new(ticks.settings.clone()).unwrap();
    let error = source.fetch(window).await.unwrap_err();
    assert!(error.reason.contains("the key of `dbo.t` is not unique"), "{error}");
}

#[tokio::test]
async fn keys_equal_under_the_collation_are_not_unique() {
    let world = AnyServer::start(
        "CREATE TABLE dbo.t (id nvarchar(9) COLLATE Latin1_General_100_CI_AS NOT NULL, \
         at datetime2(7) NOT NULL); \
         INSERT INTO dbo.t VALUES ('a', '2020-01-01'), ('A', '2020-01-01'), ('b', '2020-01-01')",
    )
    .await;
    let source = Mssql::new(world.settings("t", TimestampPk, "at")).unwrap();
    let error = fetch(&source, None, 1).await.unwrap_err();
    assert!(error.reason.contains("is not unique"), "{error}");
}

#[tokio::test]
async fn a_key_without_a_unique_index_is_warned_about_once() {
    let warned = |text: &str| text.matches("event=\"key_without_unique_index\"").count();
    let poll = async |tsql: &str| {
        let world = AnyServer::start(tsql).await;
        let source = Mssql::new(world.settings("t", IntegerPk, "id")).unwrap();
        logged(async {
            for _ in 0..2 {
                fetch(&source, None, 9).await.unwrap();
            }
        })
        .await
        .1
    };
    let text = poll(NUMBERED).await;
    assert_eq!(warned(&text), 1, "{text}");
    assert!(
        text.contains("WARN") && text.contains("No unique index on `dbo.t` covers `id`"),
        "{text}"
    );
    let wider = poll(&format!("{NUMBERED}; CREATE UNIQUE INDEX ix ON dbo.t (id, n)")).await;
    assert_eq!(warned(&wider), 1, "other columns make it unique: {wider}");
    for unique in [
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)",
        "CREATE TABLE dbo.t (id int NOT NULL UNIQUE)",
        "CREATE TABLE dbo.t (id int NOT NULL); CREATE UNIQUE INDEX ix ON dbo.t (id)",
    ] {
        let text = poll(unique).await;
        assert_eq!(warned(&text), 0, "{unique}: {text}");
    }
    let view =
        poll("CREATE TABLE dbo.u (id int NOT NULL); CREATE VIEW dbo.t AS SELECT id FROM dbo.u")
            .await;
    assert_eq!(warned(&view), 0, "{view}");
    assert!(view.contains("reads a view, so the server cannot tell"), "{view}");
}

#[tokio::test]
async fn rowversions_are_unique_without_the_key() {
    let world = AnyServer::start(
        "CREATE TABLE dbo.t (id int NOT NULL, rv rowversion NOT NULL); \
         INSERT INTO dbo.t (id) VALUES (1), (1), (1)",
    )
    .await;
    let source = Mssql::new(world.settings("t", RowVersion, "rv")).unwrap();
    assert_eq!(fetch(&source, None, 9).await.unwrap().rows.len(), 3);
}

/// Pairs of keys that differ in form, but not to the server.
const EQUAL_KEYS: [(&str, &str, &str); 2] = [
    ("datetimeoffset(7)", "'2020-01-01T10:00:00+00:00'", "'2020-01-01T12:00:00+02:00'"),
    ("sql_variant", "CAST(7 AS int)", "CAST(7 AS bigint)"),
];

#[tokio::test]
async fn keys_equal_on_the_server_are_not_unique() {
    for (key, one, other) in EQUAL_KEYS {
        for (cursor, mode, at) in
            [("datetime2(7)", TimestampPk, "'2020-01-01'"), ("int", IntegerPk, "1")]
        {
            let world = AnyServer::start(&format!(
                "CREATE TABLE dbo.t (id {key} NOT NULL, at {cursor} NOT NULL, gone bit NOT NULL DEFAULT 0); \
                 INSERT INTO dbo.t (id, at) VALUES ({one}, {at}); \
                 INSERT INTO dbo.t (id, at) VALUES ({other}, {at})"
            ))
            .await;
            let settings = world.settings("t", mode, "at");
            let settings = SourceSettings { settle: Duration::ZERO, ..settings };
            // The delete column is then between two others.
            let gone = (mode == TimestampPk).then(|| "Gone".to_owned());
            let deletes = SourceSettings { soft_delete: gone, ..settings.clone() };
            for settings in [&settings, &deletes] {
                let source = Mssql::new(settings.clone()).unwrap();
                for rows_max in [1, 2] {
                    let error = fetch(&source, None, rows_max).await.unwrap_err();
                    assert!(error.reason.contains("is not unique"), "{key} by {rows_max}: {error}");
                }
                if mode == TimestampPk {
                    let upto = Cursor::timestamp("2020-01-03T00:00:00.0000000", KeyValues::new());
                    let (upto, state) = (upto.unwrap(), SourceState::new());
                    let range =
                        FetchWindow { after: None, upto: Some(&upto), rows_max: 9, state: &state };
                    let error = source.fetch(range).await.unwrap_err();
                    assert!(error.reason.contains("is not unique"), "{key} in a range: {error}");
                }
                world.execute("UPDATE dbo.t SET gone = 1 WHERE gone = 0").await;
            }
            // A single row, deleted or not, is not reported.
            world
                .execute(&format!(
                    "DELETE FROM dbo.t; INSERT INTO dbo.t (id, at) VALUES ({one}, {at})"
                ))
                .await;
            let (all, marked) =
                (Mssql::new(settings.clone()).unwrap(), Mssql::new(deletes.clone()).unwrap());
            for source in [&all, &marked] {
                let (found, _) = events(source, None, 2).await;
                assert_eq!(source.current(&found[0].cursor).await.unwrap().rows.len(), 1, "{key}");
            }
            // With an index it cannot happen, and the server is not queried.
            world.execute("CREATE UNIQUE INDEX ux ON dbo.t (id)").await;
            for settings in [settings, deletes] {
                let source = Mssql::new(settings).unwrap();
                assert_eq!(fetch(&source, None, 1).await.unwrap().rows.len(), 1, "{key}");
            }
        }
    }
}

#[tokio::test]
async fn dropping_a_unique_index_is_noticed_by_a_running_process() {
    for (key, one, other) in EQUAL_KEYS {
        for (cursor, mode, at) in
            [("datetime2(7)", TimestampPk, "'2020-01-0N'"), ("int", IntegerPk, "N")]
        {
            let at = |n: u8| at.replace('N', &n.to_string());
            let mut ticks = Ticks::concurrent(
                &format!(
                    "CREATE TABLE dbo.t (id {key} NOT NULL, at {cursor} NOT NULL, note nvarchar(9)); \
                     CREATE UNIQUE INDEX ux ON dbo.t (id, at); \
                     INSERT INTO dbo.t VALUES ({one}, {}, N'first')",
                    at(1)
                ),
                mode,
            )
            .await;
            ticks.settings.cursor_column = Some("at".to_owned());
            ticks.at(0).await;
            ticks.until_quiet().await.unwrap();
            // The twins are the second row of a page and the first of the next: between them paging would
            // lose one.
            ticks
                .run(&format!(
                    "DROP INDEX ux ON dbo.t; INSERT INTO dbo.t VALUES ({one}, {}, N'second'); \
                     INSERT INTO dbo.t VALUES ({one}, {three}, N'third'), ({other}, {three}, N'twin')",
                    at(2),
                    three = at(3),
                ))
                .await;
            let (error, log) = logged(async { ticks.until_quiet().await.unwrap_err() }).await;
            assert!(error.contains("the key of `dbo.t` is not unique"), "{key} by {mode}: {error}");
            let warned = log.matches("event=\"key_without_unique_index\"").count();
            assert_eq!(warned, 1, "{log}");
            // As suggested: the duplicate is removed, and the index is restored.
            ticks
                .run(&format!(
                    "UPDATE dbo.t SET at = {} WHERE note = N'twin'; CREATE UNIQUE INDEX ux ON dbo.t (id, at)",
                    at(4)
                ))
                .await;
            ticks.until_quiet().await.unwrap();
            let received = ticks.handler.received();
            let rows = received.iter().flat_map(Received::payloads);
            let notes: Vec<_> = rows.map(|row| row["note"].as_str().map(str::to_owned)).collect();
            let expected = ["first", "second", "third", "twin"].map(|note| Some(note.to_owned()));
            assert_eq!(notes, expected, "{key} by {mode}");
        }
    }
}

crate::ticks::also_cold![
    five_rows_at_one_position_are_an_error_and_never_partly_delivered,
    rows_before_the_duplicates_are_delivered_once_with_and_without_prefetch,
    keys_equal_on_the_server_are_not_unique,
];
