//! The statements a poller sends.

use super::{Connection, connect, plain, rows};
use crate::Database;

const ROWVERSION_POLL: &str = "
    DECLARE @hi BINARY(8) = MIN_ACTIVE_ROWVERSION();
    SELECT TOP (@P1) t.[id], t.[x], CAST(t.[rv] AS BIGINT) AS [__cursor],
        CAST(@hi AS BIGINT) AS [__hi], CAST(@@DBTS AS BIGINT) AS [__dbts]
    FROM [dbo].[T] AS t
    WHERE t.[rv] >= CAST(CAST(@P2 AS BIGINT) AS BINARY(8))
        AND (t.[rv] > CAST(CAST(@P2 AS BIGINT) AS BINARY(8)) OR t.[id] > CAST(@P3 AS int))
        AND t.[rv] < @hi
    ORDER BY t.[rv], t.[id];";

const TIMESTAMP_POLL: &str = "
    DECLARE @hi DATETIME2(7) = DATEADD(MILLISECOND, -@P4, SYSUTCDATETIME());
    SELECT TOP (@P1) t.[id], t.[c], CONVERT(NVARCHAR(33), t.[c], 126) AS [__cursor]
    FROM [dbo].[T] AS t
    WHERE t.[c] >= CAST(@P2 AS DATETIME2(7))
        AND (t.[c] > CAST(@P2 AS DATETIME2(7)) OR t.[id] > CAST(@P3 AS int)) AND t.[c] < @hi
    ORDER BY t.[c], t.[id];";

async fn poll(client: &mut Connection, top: i32, cursor: i64, id: &str) -> Vec<(i32, i64)> {
    let found = rows(client, ROWVERSION_POLL, &[&top, &cursor, &id]).await;
    let row = |row: &tiberius::Row| (row.get("id").unwrap(), row.get("__cursor").unwrap());
    found.iter().map(row).collect()
}

fn versioned(database: &Database) {
    database
        .execute(
            "CREATE TABLE [dbo].[T] ([id] int NOT NULL PRIMARY KEY, [x] \
        nvarchar(20) NULL, [rv] ROWVERSION NOT NULL)",
        )
        .unwrap();
    database.execute("INSERT INTO dbo.T (id, x) VALUES (1, N'a'), (2, N'b'), (3, NULL)").unwrap();
}

#[tokio::test]
async fn rowversion_pages_are_consecutive_and_updates_reappear() {
    let (server, database) = plain().await;
    versioned(&database);
    let mut client = connect(&server).await;
    let first = poll(&mut client, 2, 0, "0").await;
    assert_eq!(first.iter().map(|row| row.0).collect::<Vec<_>>(), [1, 2]);
    let (id, cursor) = first[1];
    let second = poll(&mut client, 2, cursor, &id.to_string()).await;
    assert_eq!(second.iter().map(|row| row.0).collect::<Vec<_>>(), [3]);
    let last = second[0].1;
    assert!(poll(&mut client, 2, last, "3").await.is_empty());
    database.execute("UPDATE dbo.T SET x = 'again' WHERE id IN (1, 3)").unwrap();
    let third = poll(&mut client, 9, last, "3").await;
    assert_eq!(third.iter().map(|row| row.0).collect::<Vec<_>>(), [1, 3]);
    assert!(third[0].1 > last);
    let row = rows(&mut client, ROWVERSION_POLL, &[&1_i32, &last, &"0"]).await;
    assert_eq!(row[0].get::<&str, _>("x"), Some("again"));
    assert_eq!(row[0].get::<i64, _>("__hi"), row[0].get::<i64, _>("__dbts").map(|n| n + 1));
}

#[tokio::test]
async fn upper_bounds_filters_and_composite_keys_are_supported() {
    let (server, database) = plain().await;
    database
        .execute(
            "CREATE TABLE dbo.[Order Lines] (a int, b nvarchar(9), rv rowversion, \
        PRIMARY KEY (a, b))",
        )
        .unwrap();
    database
        .execute("INSERT INTO dbo.[Order Lines] (a, b) VALUES (1,'x'),(1,'y'),(2,'x'),(3,'z')")
        .unwrap();
    let mut client = connect(&server).await;
    let sql = "DECLARE @hi BINARY(8) = MIN_ACTIVE_ROWVERSION();
        SELECT TOP (@P1) t.[a], t.[b], CAST(t.[rv] AS BIGINT) AS [__cursor]
        FROM [dbo].[Order Lines] AS t
        WHERE (t.[a] < @P5 AND t.[b] <> N'q')
            AND t.[rv] >= CAST(CAST(@P2 AS BIGINT) AS BINARY(8))
            AND (t.[rv] > CAST(CAST(@P2 AS BIGINT) AS BINARY(8))
                OR (t.[a] >= CAST(@P3 AS int)
                    AND (t.[a] > CAST(@P3 AS int) OR t.[b] > CAST(@P4 AS nvarchar(9)))))
            AND t.[rv] < @hi
            AND (t.[rv] < CAST(CAST(@P6 AS BIGINT) AS BINARY(8))
                OR (t.[rv] = CAST(CAST(@P6 AS BIGINT) AS BINARY(8)) AND t.[a] <= CAST(@P7 AS int)))
        ORDER BY t.[rv], t.[a], t.[b]";
    let all = rows(&mut client, sql, &[&9_i32, &0_i64, &"0", &"", &9_i32, &i64::MAX, &"0"]).await;
    assert_eq!(all.len(), 4);
    let cursor: i64 = all[1].get("__cursor").unwrap();
    let upto: i64 = all[2].get("__cursor").unwrap();
    let page = rows(&mut client, sql, &[&9_i32, &cursor, &"1", &"y", &9_i32, &upto, &"2"]).await;
    assert_eq!(page.len(), 1);
    assert_eq!(page[0].get::<i32, _>("a"), Some(2));
    let none = rows(&mut client, sql, &[&9_i32, &cursor, &"1", &"y", &9_i32, &upto, &"1"]).await;
    assert!(none.is_empty());
}

#[tokio::test]
async fn an_open_transaction_is_invisible_and_holds_the_bound_back() {
    let (server, database) = plain().await;
    versioned(&database);
    let (mut reader, mut writer) = (connect(&server).await, connect(&server).await);
    let before = poll(&mut reader, 9, 0, "0").await;
    let last = before[2].1;
    writer
        .simple_query("BEGIN TRAN; INSERT INTO dbo.T (id) VALUES (4)")
        .await
        .unwrap()
        .into_results()
        .await
        .unwrap();
    assert_eq!(poll(&mut reader, 9, last, "3").await, []);
    let all = rows(&mut reader, ROWVERSION_POLL, &[&9_i32, &0_i64, &"0"]).await;
    assert_eq!(all[0].get::<i64, _>("__hi"), Some(last + 1));
    assert_eq!(all[0].get::<i64, _>("__dbts"), Some(last + 1));
    writer.simple_query("COMMIT").await.unwrap().into_results().await.unwrap();
    assert_eq!(poll(&mut reader, 9, last, "3").await, [(4, last + 1)]);
}

#[tokio::test]
async fn a_dropped_connection_rolls_its_transaction_back() {
    let (server, database) = plain().await;
    versioned(&database);
    let mut writer = connect(&server).await;
    writer.begin_transaction().await.unwrap();
    writer.execute("UPDATE dbo.T SET x = 'lost'", &[]).await.unwrap();
    drop(writer);
    // Waits for the writer's lock, so it sees the end of the transaction.
    let update = move || database.execute("UPDATE dbo.T SET x = 'kept' WHERE x = 'a'");
    assert_eq!(tokio::task::spawn_blocking(update).await.unwrap(), Ok(1));
}

#[tokio::test]
async fn timestamp_pages_break_ties_by_key_and_stay_before_the_clock() {
    let (server, database) = plain().await;
    database.execute("CREATE TABLE dbo.T (id int PRIMARY KEY, c datetime2(7) NOT NULL)").unwrap();
    database
        .execute(
            "INSERT INTO dbo.T VALUES
        (1, '2026-01-01T00:00:00.1234567'), (2, '2026-01-01T00:00:00.1234567'),
        (3, '2026-01-01T00:00:00.1234567'), (4, '2026-01-01 00:00:01'),
        (5, '2026-01-01T00:00:02.0000001')",
        )
        .unwrap();
    database.set_now("2026-01-01T00:00:07").unwrap();
    let mut client = connect(&server).await;
    let (mut cursor, mut key, mut seen) = (String::from("0001-01-01"), 0, Vec::new());
    loop {
        let key_text = key.to_string();
        let page = rows(
            &mut client,
            TIMESTAMP_POLL,
            &[&2_i32, &cursor.as_str(), &key_text.as_str(), &5000_i32],
        )
        .await;
        let Some(last) = page.last() else { break };
        seen.extend(page.iter().map(|row| row.get::<i32, _>("id").unwrap()));
        cursor = last.get::<&str, _>("__cursor").unwrap().to_owned();
        key = last.get("id").unwrap();
    }
    assert_eq!(seen, [1, 2, 3, 4], "the fifth is not older than the settle window");
    assert_eq!(cursor, "2026-01-01T00:00:01");
    database.set_now("2026-01-01T00:00:07.0000002").unwrap();
    let page =
        rows(&mut client, TIMESTAMP_POLL, &[&2_i32, &cursor.as_str(), &"4", &5000_i32]).await;
    assert_eq!(page[0].get::<&str, _>("__cursor"), Some("2026-01-01T00:00:02.0000001"));
}

#[tokio::test]
async fn datetimeoffset_cursors_compare_by_instant() {
    let (server, database) = plain().await;
    database
        .execute(
            "CREATE TABLE dbo.T (id int PRIMARY KEY, c datetimeoffset(7) NOT NULL);
        INSERT INTO dbo.T VALUES (1, '2026-01-01T05:30:00+05:30'), (2, '2026-01-01T00:00:00Z'),
            (3, '2025-12-31T23:59:59.9999999-00:01')",
        )
        .unwrap();
    let mut client = connect(&server).await;
    let sql = "SELECT TOP (@P1) t.[id], CONVERT(NVARCHAR(33), t.[c], 127) AS [__cursor]
        FROM [dbo].[T] AS t WHERE t.[c] >= CAST(@P2 AS datetimeoffset(7))
        AND (t.[c] > CAST(@P2 AS datetimeoffset(7)) OR t.[id] > CAST(@P3 AS int))
        ORDER BY t.[c], t.[id]";
    let page = rows(&mut client, sql, &[&1_i32, &"0001-01-01", &"0"]).await;
    assert_eq!(page[0].get::<&str, _>("__cursor"), Some("2026-01-01T00:00:00Z"));
    let page = rows(&mut client, sql, &[&9_i32, &"2026-01-01T00:00:00Z", &"1"]).await;
    let ids: Vec<i32> = page.iter().map(|row| row.get("id").unwrap()).collect();
    assert_eq!(ids, [2, 3]);
}
