//! What the SQL Server source reads: the real driver, over TLS, against the development server or the one
//! that `HIGHWATER_TEST_SQLSERVER` names.

use std::time::Duration;

use highwater::config::Relation;
use highwater::cursor::CursorMode::{RowVersion, TimestampPk};
use highwater::cursor::{self, Cursor, SourceState};
use highwater::error::ErrorKind;
use highwater::mssql::{Connection, Param};
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::source::{FetchWindow, Source as _};

use crate::any_server::AnyServer;
use crate::sql::{World, drain, events, fetch, flights_in_order, logged};

const FLIGHTS: usize = 27_004;

#[tokio::test]
async fn every_flight_is_read_once_and_in_order() {
    let world = AnyServer::with_flights(FLIGHTS).await;
    for mode in [RowVersion, TimestampPk] {
        let expected = flights_in_order(mode, FLIGHTS);
        for rows_max in [100, 1_000] {
            let source = Mssql::new(world.flights(mode)).unwrap();
            assert!(drain(&source, rows_max).await == expected, "{mode} by {rows_max}");
        }
    }
}

#[tokio::test]
async fn ties_may_be_split_across_batches_without_loss() {
    let world = AnyServer::with_flights(700).await;
    for mode in [RowVersion, TimestampPk] {
        let expected = flights_in_order(mode, 700);
        for rows_max in [1, 7] {
            let source = Mssql::new(world.flights(mode)).unwrap();
            assert_eq!(drain(&source, rows_max).await, expected, "{mode} by {rows_max}");
        }
    }
}

#[tokio::test]
async fn the_row_after_a_batch_only_signals_that_more_rows_follow() {
    let world = AnyServer::with_flights(10).await;
    for mode in [RowVersion, TimestampPk] {
        let source = Mssql::new(world.flights(mode)).unwrap();
        for (rows_max, expected, more) in [(9, 9, true), (10, 10, false), (11, 10, false)] {
            let (events, says_more) = events(&source, None, rows_max).await;
            assert_eq!((events.len(), says_more), (expected, more), "{mode} by {rows_max}");
        }
        // It was not delivered: it is the first of the next batch.
        let (front, _) = events(&source, None, 9).await;
        let (rest, _) = events(&source, Some(&front[8].cursor), 9).await;
        assert_eq!(rest.len(), 1, "{mode}");
    }
}

#[tokio::test]
async fn a_retry_gets_the_rows_of_its_batch_and_no_others() {
    let world = AnyServer::with_flights(300).await;
    for mode in [RowVersion, TimestampPk] {
        let source = Mssql::new(world.flights(mode)).unwrap();
        let (first, _) = events(&source, None, 30).await;
        let (second, _) = events(&source, Some(&first[29].cursor), 40).await;
        for (after, batch) in [(None, &first), (Some(&first[29].cursor), &second)] {
            let upto = Some(&batch[batch.len() - 1].cursor);
            let rows = source
                .fetch(FetchWindow { after, upto, rows_max: 1_000, state: &SourceState::new() })
                .await
                .unwrap();
            let again = highwater::normalize::normalize(source.shape(), &rows).unwrap();
            assert_eq!(&again, batch, "{mode}");
            assert!(!rows.more);
        }
    }
}

#[tokio::test]
async fn an_updated_row_is_read_again() {
    let world = AnyServer::with_flights(10).await;
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    let (all, _) = events(&source, None, 100).await;
    world.execute("UPDATE dbo.flights SET flight = 0 WHERE id IN (3, 8)").await;
    let (again, _) = events(&source, Some(&all[9].cursor), 100).await;
    let ids: Vec<_> = again.iter().map(|event| event.cursor.key["id"].as_i64().unwrap()).collect();
    assert_eq!(ids, [3, 8]);
    assert!(again[0].json.contains(r#""flight":0"#), "{}", again[0].json);
}

#[tokio::test]
async fn a_late_commit_is_not_skipped() {
    let world = AnyServer::with_flights(3).await;
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    let mut writer = world.session().await;
    let insert = "INSERT INTO dbo.flights (id, time_hour) VALUES (4, '2013-01-01')";
    writer.run(&format!("BEGIN TRAN; {insert}")).await;
    let (before, _) = events(&source, None, 100).await;
    assert_eq!(before.len(), 3);
    writer.run("COMMIT").await;
    let (after, _) = events(&source, Some(&before[2].cursor), 100).await;
    assert_eq!(after.len(), 1);
}

#[tokio::test]
async fn rows_younger_than_the_settle_window_wait() {
    let world = World::start(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, at datetime2(7) NOT NULL); \
         INSERT INTO dbo.t VALUES (1, '2026-01-01T10:00:00'), (2, '2026-01-01T10:00:06')",
    )
    .await;
    let source = Mssql::new(world.settings("t", TimestampPk, "at")).unwrap();
    world.database.set_now("2026-01-01T10:00:10.5").unwrap();
    let rows = fetch(&source, None, 9).await.unwrap();
    assert_eq!(rows.rows.len(), 1);
    assert_eq!(rows.lag.time, Some(Duration::from_millis(10_500)));
    world.database.set_now("2026-01-01T10:00:11.0000001").unwrap();
    assert_eq!(fetch(&source, None, 9).await.unwrap().rows.len(), 2);
}

#[tokio::test]
async fn every_cursor_type_pages_through_its_ties() {
    for declared in [
        "datetime2(7)",
        "datetime2(3)",
        "datetime2(0)",
        "datetime",
        "smalldatetime",
        "date",
        "datetimeoffset(7)",
    ] {
        let world = AnyServer::start(&format!(
            "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, at {declared} NOT NULL); \
             INSERT INTO dbo.t VALUES (1, '2020-01-01T10:00:00'), (2, '2020-01-01T10:00:00.003'), \
             (3, '2020-01-01T10:00:00.003'), (4, '2020-01-01T10:00:00.003'), \
             (5, '2020-01-01T10:00:00.997'), (6, '2020-01-02T00:00:00'), (7, '2020-01-03T00:00:00')"
        ))
        .await;
        let source = Mssql::new(world.settings("t", TimestampPk, "at")).unwrap();
        for rows_max in [1, 2] {
            let ids = drain(&source, rows_max).await;
            assert!(ids.into_iter().eq(1..=7), "{declared} by {rows_max}");
        }
    }
}

#[tokio::test]
async fn a_composite_key_breaks_ties_and_may_be_excluded_from_events() {
    let world = AnyServer::start(
        "CREATE TABLE dbo.[Order Lines] ([order no] bigint NOT NULL, [line]]s] nvarchar(9) NOT NULL, \
         g uniqueidentifier NOT NULL, d decimal(9, 2) NOT NULL, note nvarchar(60), \
         at datetime2(7) NOT NULL)",
    )
    .await;
    let mut expected = Vec::new();
    for order in 1..=3 {
        for line in ["a", "b"] {
            for guid in
                ["11111111-0000-0000-0000-000000000001", "22222222-0000-0000-0000-000000000001"]
            {
                for price in ["-1.50", "2.00"] {
                    let note = format!("{order}{line}{guid}{price}");
                    world.execute(&format!(
                            "INSERT INTO dbo.[Order Lines] VALUES \
                             ({order}, '{line}', '{guid}', {price}, '{note}', '2020-01-01T10:00:00')"
                        )).await;
                    expected.push(note);
                }
            }
        }
    }
    let key = ["order no", "line]s", "G", "d"].map(str::to_owned).to_vec();
    let columns = Some(vec!["note".to_owned()]);
    let settings = world.settings("[Order Lines]", TimestampPk, "at");
    let source = Mssql::new(SourceSettings { key, columns, ..settings }).unwrap();
    for rows_max in [1, 5] {
        let mut notes = Vec::new();
        let mut after: Option<Cursor> = None;
        while notes.len() < expected.len() {
            let rows = fetch(&source, after.as_ref(), rows_max).await.unwrap();
            assert_eq!(rows.columns.names(), ["note"]);
            notes.extend(rows.rows.iter().map(|row| rows.object(row).to_owned()));
            let events = highwater::normalize::normalize(source.shape(), &rows).unwrap();
            after = Some(events.last().unwrap().cursor.clone());
        }
        let object = |note| serde_json::json!({ "note": note }).to_string();
        let wanted: Vec<_> = expected.iter().map(object).collect();
        assert_eq!(notes, wanted);
        assert_eq!(fetch(&source, after.as_ref(), 9).await.unwrap().rows, []);
    }
}

#[tokio::test]
async fn a_filter_is_one_condition() {
    let world = AnyServer::with_flights(50).await;
    let filter = Some("id = 5 OR id = 9 -- two of them".to_owned());
    let source = Mssql::new(SourceSettings { filter, ..world.flights(RowVersion) }).unwrap();
    assert_eq!(drain(&source, 1).await, [5, 9]);
}

#[tokio::test]
async fn the_fingerprint_covers_meaning_only() {
    let world = World::with_flights(0).await;
    let base = world.flights(RowVersion);
    let of = |settings: &SourceSettings| {
        Mssql::new(settings.clone()).unwrap().shape().fingerprint.clone()
    };
    let mut same = base.clone();
    same.relation = Relation::Table(" [dbo].[flights]".to_owned());
    same.columns = Some(vec!["id".to_owned()]);
    same.connection.host = "127.0.0.1".to_owned();
    same.connection.application_name = "another".to_owned();
    same.settle = Duration::ZERO;
    assert_eq!(of(&base), of(&same));
    let mut other = base.clone();
    other.filter = Some("id > 5".to_owned());
    assert_ne!(of(&base), of(&other));
}

#[tokio::test]
async fn a_changed_table_is_described_again() {
    let world = AnyServer::with_flights(5).await;
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    assert_eq!(fetch(&source, None, 100).await.unwrap().columns.names().len(), 6);
    world.execute("DROP TABLE dbo.flights").await;
    let error = fetch(&source, None, 100).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Configuration, "{error}");
    world
        .execute("CREATE TABLE dbo.flights (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL)")
        .await;
    world.execute("INSERT INTO dbo.flights (id) VALUES (7), (8), (9)").await;
    let rows = fetch(&source, None, 100).await.unwrap();
    assert_eq!(rows.columns.names(), ["id", "rv"]);
    let objects: Vec<_> = rows.rows.iter().map(|row| rows.object(row).to_owned()).collect();
    let ids = objects.iter().map(|object| {
        serde_json::from_str::<serde_json::Value>(object).unwrap()["id"].as_i64().unwrap()
    });
    assert_eq!(ids.collect::<Vec<_>>(), [7, 8, 9]);
}

#[tokio::test]
async fn a_restored_database_is_an_error_and_never_skipped() {
    let world = AnyServer::with_flights(5).await;
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    let (all, _) = events(&source, None, 100).await;
    let last: cursor::RowVersion = all[4].cursor.value.parse().unwrap();
    let beyond = Cursor::row_version(cursor::RowVersion(last.0 + 1), all[4].cursor.key.clone());
    let error = fetch(&source, Some(&beyond), 100).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Data);
    assert!(error.reason.contains("it was restored or replaced"), "{error}");
}

#[tokio::test]
async fn null_cursors_are_counted_and_reported() {
    let world = AnyServer::start(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, at datetime2(7) NULL); \
         INSERT INTO dbo.t VALUES (1, '2020-01-01'), (2, NULL), (3, NULL)",
    )
    .await;
    let source = Mssql::new(world.settings("t", TimestampPk, "at")).unwrap();
    let (ids, text) = logged(drain(&source, 10)).await;
    assert_eq!(ids, [1]);
    assert_eq!(text.matches("2 rows of poller `orders` with NULL").count(), 1, "{text}");
    assert!(text.contains("WARN") && text.contains("poller.name=\"orders\" rows=2"), "{text}");
}

#[tokio::test]
async fn every_type_arrives_without_loss() {
    let world = AnyServer::start(
        "CREATE TABLE dbo.t (id bigint NOT NULL PRIMARY KEY, at datetime2(7) NOT NULL, a bit, b tinyint, \
         c smallint, d real, e float, f decimal(38, 10), g money, h smallmoney, i nvarchar(max), \
         j varchar(10), k nchar(3), l varbinary(max), m uniqueidentifier, n date, o time(7), p datetime, \
         q smalldatetime, r datetime2(3), s datetimeoffset(7)); \
         INSERT INTO dbo.t VALUES (9223372036854775807, '2020-01-01', 1, 255, -32768, 0.1, 1e300, \
         9999999999999999999999999999.9999999999, 922337203685477.5807, -214748.3648, N'ä😀', 'x', N'y', \
         0x00FF, 'ABCDEF00-0000-0000-0000-000000000001', '0001-01-01', '23:59:59.9999999', \
         '1753-01-01T00:00:00.003', '2079-06-06T23:59:00', '9999-12-31T23:59:59.999', \
         '2020-02-29T12:00:00.1234567+05:30')",
    )
    .await;
    let source = Mssql::new(world.settings("t", TimestampPk, "at")).unwrap();
    let rows = fetch(&source, None, 10).await.unwrap();
    let columns: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(rows.object(&rows.rows[0])).unwrap();
    let shown: Vec<_> = columns.values().map(ToString::to_string).collect();
    expect_test::expect![[r#"
        9223372036854775807
        "2020-01-01T00:00:00.0000000"
        true
        255
        -32768
        0.1
        1e+300
        "9999999999999999999999999999.9999999999"
        "922337203685477.5807"
        "-214748.3648"
        "ä😀"
        "x"
        "y  "
        "AP8="
        "abcdef00-0000-0000-0000-000000000001"
        "0001-01-01"
        "23:59:59.9999999"
        "1753-01-01T00:00:00.003"
        "2079-06-06T23:59:00"
        "9999-12-31T23:59:59.999"
        "2020-02-29T12:00:00.1234567+05:30""#]]
    .assert_eq(&shown.join("\n"));
}

#[tokio::test]
async fn parameters_reach_the_server_as_they_are() {
    let world = AnyServer::start("CREATE TABLE dbo.t (id int)").await;
    let mut connection = Connection::new(world.connection(), None);
    let params = [
        Param::BigInt(i64::MIN),
        Param::Int(-1),
        Param::Text("O'Brien ä😀".to_owned()),
        Param::Bytes(vec![0, 255]),
        Param::Bool(true),
        Param::Float(0.5),
    ];
    let rows = connection
        .query("SELECT @P1, @P2, @P3, @P4, @P5, @P6", &params, |row| {
            Ok(row.into_token_row().into_iter().map(|data| format!("{data:?}")).collect::<Vec<_>>())
        })
        .await
        .unwrap();
    assert_eq!(rows[0][0], "I64(Some(-9223372036854775808))");
    assert_eq!(rows[0][2], "String(Some(\"O'Brien ä😀\"))");
    assert_eq!(rows[0][3], "Binary(Some([0, 255]))");
}
