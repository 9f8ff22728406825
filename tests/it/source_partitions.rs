//! Partitions of a poller: together they read each row once, for any key.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use highwater::cursor::CursorMode::{ChangeTracking, RowVersion};
use highwater::error::chain;
use highwater::partition::Partition;
use highwater::poller::Operator;
use highwater::repartition::Repartition;
use highwater::source::mssql::{Mssql, SourceSettings};

use crate::any_server::AnyServer;
use crate::sql::events;
use crate::ticks::Ticks;

const PARTITIONS: u16 = 3;

/// Types of a key, each with an expression of row number `@n` that differs from row to row.
const KEYS: [(&str, &str); 11] = [
    ("int", "@n - 20"),
    ("bigint", "@n * 4294967296"),
    ("decimal(9, 2)", "@n / 4.0"),
    ("nvarchar(20)", "N'kéy @n'"),
    ("varchar(20)", "'key @n'"),
    ("char(12)", "'key @n'"),
    ("datetime2(3)", "DATEADD(DAY, @n, '2026-01-01')"),
    ("date", "DATEADD(DAY, @n, '2026-01-01')"),
    ("varbinary(8)", "CAST(CAST(@n AS bigint) AS varbinary(8))"),
    ("float", "@n * 1.5"),
    (
        "sql_variant",
        "CASE WHEN @n % 2 = 0 THEN CAST(@n AS sql_variant) ELSE CAST(N'@n' AS sql_variant) END",
    ),
];

/// Reads all partitions of `settings`; returns how often each event was read, and how many rows each
/// partition has.
async fn read(settings: &SourceSettings) -> (BTreeMap<String, u32>, Vec<usize>) {
    let (mut times, mut sizes) = (BTreeMap::new(), Vec::new());
    for partition in Partition::all(PARTITIONS) {
        let settings = SourceSettings { partition, ..settings.clone() };
        let (rows, _) = events(&Mssql::new(settings).unwrap(), None, 100).await;
        sizes.push(rows.len());
        for row in rows {
            *times.entry(row.id.to_string()).or_default() += 1;
        }
    }
    (times, sizes)
}

#[tokio::test]
async fn partitions_contain_each_row_once_for_every_key_type() {
    for (declared, value) in KEYS {
        let mut tsql = format!(
            "CREATE TABLE dbo.t (k {declared} NOT NULL PRIMARY KEY, rv rowversion NOT NULL)"
        );
        for row in 1..=40 {
            let value = value.replace("@n", &row.to_string());
            write!(tsql, "; INSERT INTO dbo.t (k) VALUES ({value})").unwrap();
        }
        let world = AnyServer::start(&tsql).await;
        let settings = world.settings("t", RowVersion, "rv");
        let settings = SourceSettings { key: vec!["k".to_owned()], ..settings };
        let (unpartitioned, _) = events(&Mssql::new(settings.clone()).unwrap(), None, 100).await;
        let (times, sizes) = read(&settings).await;
        assert_eq!(sizes.iter().sum::<usize>(), 40, "{declared}: {sizes:?}");
        let once = unpartitioned.iter().all(|row| times.get(&row.id.to_string()) == Some(&1));
        assert!(once && times.len() == unpartitioned.len(), "{declared}: {times:?}");
        assert!(sizes.iter().all(|size| *size >= 4), "{declared}: {sizes:?}");
    }
}

#[tokio::test]
async fn a_composite_key_maps_to_one_partition_and_so_does_its_deleted_row() {
    let mut tsql = "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 2 DAYS, \
                    AUTO_CLEANUP = ON); \
                    CREATE TABLE dbo.t (a int NOT NULL, b nvarchar(9) NOT NULL, \
                    CONSTRAINT pk_t PRIMARY KEY (a, b)); ALTER TABLE dbo.t ENABLE CHANGE_TRACKING"
        .to_owned();
    for row in 1..=30 {
        write!(tsql, "; INSERT INTO dbo.t (a, b) VALUES ({}, N'b{row}')", row % 5).unwrap();
    }
    let world = AnyServer::start(&tsql).await;
    let settings = world.settings("t", ChangeTracking, "");
    let settings = SourceSettings { key: vec!["a".to_owned(), "b".to_owned()], ..settings };
    let (times, sizes) = read(&settings).await;
    assert_eq!((times.len(), sizes.iter().sum::<usize>()), (30, 30), "{sizes:?}");
    let mut gone = 0;
    for partition in Partition::all(PARTITIONS) {
        let source = Mssql::new(SourceSettings { partition, ..settings.clone() }).unwrap();
        let (before, _) = events(&source, None, 100).await;
        let last = before.last().unwrap();
        let key = &last.cursor.key;
        let (a, b) = (key["a"].as_i64().unwrap(), key["b"].as_str().unwrap());
        world.execute(&format!("DELETE FROM dbo.t WHERE a = {a} AND b = N'{b}'")).await;
        gone += 1;
        let (after, _) = events(&source, Some(&last.cursor), 100).await;
        let deleted = after.iter().filter(|event| event.cursor.key == *key).count();
        assert_eq!(deleted, 1, "its own part tells of it: {after:?}");
        let of_others = after.iter().filter(|event| event.cursor.key != *key).count();
        assert_eq!(of_others, 0, "and of no other's, {gone} are gone: {after:?}");
    }
}

/// Partitions of a table that is replaced while they are paused cannot reach the bound of the old table.
#[tokio::test]
async fn a_repartition_stopped_by_a_lost_position_completes_after_the_printed_fix() {
    let ann = Operator { by: "ann", reason: "more parts" };
    let table = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, note nvarchar(9))";
    let mut ticks =
        Ticks::numbered(&format!("{table}; INSERT INTO dbo.t VALUES (9, N'old')")).await;
    ticks.until_quiet().await.unwrap();
    ticks
        .run(&format!("DROP TABLE dbo.t; {table}; INSERT INTO dbo.t VALUES (1, N'a'), (2, N'b')"))
        .await;
    let run = async |ticks: &mut Ticks| {
        let (old, new) = (ticks.processes(1), ticks.processes(2));
        Box::pin(Repartition::new(old, new).run(ann, &|_| ())).await
    };
    let error = chain(&run(&mut ticks).await.unwrap_err());
    assert!(error.contains("is not the table that the checkpoint was made of"), "{error}");
    ticks.follow(&error).await.unwrap();
    run(&mut ticks).await.unwrap();
    ticks.partitions = 2;
    // Below the bound of the old table.
    ticks.run("INSERT INTO dbo.t VALUES (3, N'c'), (4, N'd')").await;
    for part in Partition::all(2) {
        ticks.partition = part;
        ticks.until_quiet().await.unwrap();
    }
    let mut ids = ticks.handler.ids();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4, 9]);
}

#[tokio::test]
async fn a_poller_is_still_partitioned_if_its_first_document_is_lost() {
    let table = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)";
    let rows = "INSERT INTO dbo.t VALUES (1), (2), (3), (4), (5), (6)";
    let mut ticks = Ticks::numbered(&format!("{table}; {rows}")).await;
    ticks.partitions = 2;
    for part in Partition::all(2).into_iter().rev() {
        ticks.partition = part;
        ticks.until_quiet().await.unwrap();
    }
    ticks.lose_document();
    assert_eq!(ticks.partition_layout().await.parts, Some(2));
    let (old, new) = (ticks.processes(2), ticks.processes(3));
    let ann = Operator { by: "ann", reason: "more parts" };
    let error = Box::pin(Repartition::new(old, new).run(ann, &|_| ())).await.unwrap_err();
    let error = chain(&error);
    assert!(error.contains("state document of `orders__p0` is gone"), "{error}");
}

crate::ticks::also_cold![
    a_repartition_stopped_by_a_lost_position_completes_after_the_printed_fix,
    a_poller_is_still_partitioned_if_its_first_document_is_lost,
];
