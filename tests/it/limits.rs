//! Values and rows that are too large: named, never skipped, and never sent by the server.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use highwater::admin::Redrive;
use highwater::cursor::CursorMode::RowVersion;
use highwater::error::chain;
use highwater::policy::{FailurePolicy, OnFailure};
use highwater::poller::StopSignal;
use highwater::quarantine::Reason;
use highwater::source::mssql::{Mssql, SizeLimits, SourceSettings};
use highwater_devdb::Value as Stored;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::any_server::AnyServer;
use crate::flights::Drain;
use crate::sql::{drain, events};

fn limited(world: &AnyServer, value_bytes_max: usize, batch_bytes_max: usize) -> SourceSettings {
    let limits = SizeLimits { value_bytes_max, batch_bytes_max };
    SourceSettings { limits, ..world.settings("t", RowVersion, "rv") }
}

/// Returns why the only row cannot be read.
async fn unreadable(settings: SourceSettings) -> String {
    let source = Mssql::new(settings).unwrap();
    let (found, _) = events(&source, None, 10).await;
    let [event] = found.as_slice() else { panic!("one row") };
    event.unreadable.as_deref().unwrap().to_owned()
}

async fn world_with(declared: &str) -> AnyServer {
    AnyServer::start(&format!(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, c {declared} NULL)"
    ))
    .await
}

#[tokio::test]
async fn a_value_over_the_limit_is_named_and_nothing_is_skipped() {
    for (declared, at_limit, over_limit, bytes) in [
        ("nvarchar(max)", "N'äääää'", "N'ääääää'", 12),
        ("nvarchar(20)", "N'äääää'", "N'ääääää'", 12),
        ("ntext", "N'äääää'", "N'ääääää'", 12),
        ("varchar(max)", "'aaaaaaaaaa'", "'aaaaaaaaaaa'", 11),
        ("text", "'aaaaaaaaaa'", "'aaaaaaaaaaa'", 11),
        ("varbinary(max)", "0x00000000000000000000", "0x0000000000000000000000", 11),
        ("image", "0x00000000000000000000", "0x0000000000000000000000", 11),
        ("xml", "N'<aa/>'", "N'<aaa/>'", 12),
    ] {
        let world = world_with(declared).await;
        let insert = format!(
            "INSERT INTO dbo.t (id, c) VALUES (1, NULL), (2, {at_limit}), (3, {over_limit}), (4, NULL)"
        );
        world.execute(&insert).await;
        let settings = limited(&world, 10, 1 << 20);
        let source = Mssql::new(settings.clone()).unwrap();
        let (found, more) = events(&source, None, 10).await;
        assert_eq!((found.len(), more), (4, false), "{declared}");
        for event in &found {
            assert_eq!(event.unreadable.is_some(), event.cursor.key["id"] == 3, "{declared}");
        }
        let why = found[2].unreadable.as_deref().unwrap();
        for part in [
            "poller `orders`: column `c` of `dbo.t`",
            &format!("a value of {bytes} bytes in the row with key {{\"id\":3}}"),
            "more than the 10 that `VALUE_BYTES_MAX` allows",
        ] {
            assert!(why.contains(part), "{declared}: {why}");
        }
        assert!(found[2].json.contains(r#""after":null"#), "{declared}");
        let columns = Some(vec!["id".to_owned()]);
        let without = Mssql::new(SourceSettings { columns, ..settings.clone() }).unwrap();
        assert_eq!(drain(&without, 10).await, [1, 2, 3, 4]);
        let raised = SizeLimits { value_bytes_max: bytes, ..settings.limits };
        let raised = Mssql::new(SourceSettings { limits: raised, ..settings }).unwrap();
        assert_eq!(drain(&raised, 10).await, [1, 2, 3, 4]);
        world.execute("UPDATE dbo.t SET c = NULL WHERE id = 3").await;
        assert_eq!(drain(&source, 10).await, [1, 2, 4, 3]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_over_the_limit_blocks_the_poller_until_an_operator_acts() {
    let world = world_with("nvarchar(max)").await;
    let insert = "INSERT INTO dbo.t (id, c) VALUES (1, N'a'), (2, N'b'), (3, N'too long'), (4, N'd'), (5, N'e')";
    world.execute(insert).await;
    let settings = limited(&world, 10, 1 << 20);
    let drain = Drain::over(world, settings, 10);
    for _ in 0..3 {
        let report = drain.tick().await;
        let text = chain(&report.result.unwrap_err());
        assert!(text.contains("column `c` of `dbo.t` has a value of 16 bytes"), "{text}");
        assert_eq!(drain.handler.ids(), [1, 2], "once, and nothing after it");
    }
    drain.world.execute("UPDATE dbo.t SET c = N'short' WHERE id = 3").await;
    drain.tick().await.result.unwrap();
    assert_eq!(drain.handler.ids(), [1, 2, 4, 5, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_over_the_limit_is_parked_with_its_key_and_the_rest_flows() {
    let world = world_with("nvarchar(max)").await;
    let insert = "INSERT INTO dbo.t (id, c) VALUES (1, N'a'), (2, N'b'), (3, N'too long'), (4, N'd'), (5, N'e')";
    world.execute(insert).await;
    let settings = limited(&world, 10, 1 << 20);
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let drain = Drain::with_policy(world, settings, 10, policy);
    drain.tick().await.result.unwrap();
    assert_eq!(drain.handler.ids(), [1, 2, 4, 5]);
    let admin = drain.poller.admin();
    let key = admin.quarantined().await.unwrap().pop().unwrap();
    let entry = admin.entry(&key).await.unwrap().unwrap().entry.unwrap();
    assert_eq!((entry.reason, entry.without_columns), (Reason::Unreadable, true));
    assert!(
        entry.error.contains("column `c` of `dbo.t` has a value of 16 bytes"),
        "{}",
        entry.error
    );
    drain.world.execute("UPDATE dbo.t SET c = N'short' WHERE id = 3").await;
    let redrive = Redrive {
        id: "replay-1",
        keys: &[key],
        as_stored: false,
        drop_gone: false,
        interval: Duration::ZERO,
        stop: StopSignal::new(),
    };
    admin.redrive(&redrive, &mut |_, _| {}).await.unwrap();
    assert_eq!(drain.handler.ids(), [1, 2, 4, 5, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_without_a_unique_index_cannot_be_parked() {
    for (key, parked) in [("customer", false), ("id", true)] {
        let world = AnyServer::start(
            "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, customer int NOT NULL, \
             c nvarchar(max) NULL); \
             INSERT INTO dbo.t (id, customer, c) VALUES (1, 7, N'too long'), (2, 7, N'b')",
        )
        .await;
        let settings = SourceSettings { key: vec![key.to_owned()], ..limited(&world, 10, 1 << 20) };
        let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
        let drain = Drain::with_policy(world, settings, 10, policy);
        let result = drain.tick().await.result;
        assert_eq!(result.is_ok(), parked, "{key}: {result:?}");
        if let Err(error) = result {
            assert!(chain(&error).contains("no unique index covers `SOURCE__KEY`"), "{error:?}");
            assert_eq!(drain.handler.ids(), [0; 0], "nothing is skipped");
        }
    }
}

#[tokio::test]
async fn keys_are_read_regardless_of_the_limit() {
    let world = AnyServer::start(
        "CREATE TABLE dbo.t (id nvarchar(50) NOT NULL PRIMARY KEY, rv rowversion NOT NULL, \
         c varbinary(max)); \
         INSERT INTO dbo.t (id, c) VALUES (N'a key longer than that', 0x000000)",
    )
    .await;
    let text = unreadable(limited(&world, 2, 1 << 20)).await;
    assert!(
        text.contains("3 bytes in the row with key {\"id\":\"a key longer than that\"}"),
        "{text}"
    );
}

/// Counts the bytes that the server sends.
#[derive(Clone, Default)]
struct Counter {
    connections: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

impl Counter {
    /// Returns the port of a proxy in front of the server.
    async fn start(&self, world: &AnyServer) -> u16 {
        let server = (world.connection().host, world.connection().port);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let counter = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counter.connections.fetch_add(1, Ordering::Relaxed);
                let server = TcpStream::connect((server.0.as_str(), server.1)).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(async move {
                    tokio::io::copy(&mut from_client, &mut to_server).await.unwrap_or_default();
                });
                let bytes = Arc::clone(&counter.bytes);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 14];
                    while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                        bytes.fetch_add(read, Ordering::Relaxed);
                        if to_client.write_all(&buffer[..read]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        port
    }

    fn bytes(&self) -> usize {
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

/// Inserts rows with this many bytes each, generated by the server if it can.
async fn insert_large(world: &AnyServer, ids: RangeInclusive<i64>, bytes: usize) {
    if !world.is_named() {
        let rows = ids.map(|id| vec![Stored::Int(id), Stored::Bytes(vec![7; bytes])]);
        world.database().insert_rows("dbo.t", &["id", "c"], rows).unwrap();
        return;
    }
    let mut session = world.session().await;
    for id in ids {
        let value = format!("REPLICATE(CAST('a' AS varchar(max)), {bytes})");
        let value = format!("CAST({value} AS varbinary(max))");
        session.run(&format!("INSERT INTO dbo.t (id, c) VALUES ({id}, {value})")).await;
    }
}

#[tokio::test]
async fn the_server_does_not_send_a_value_over_the_limit() {
    let world = world_with("varbinary(max)").await;
    insert_large(&world, 1..=1, 16 << 20).await;
    let counter = Counter::default();
    let mut settings = limited(&world, 1 << 20, 1 << 20);
    settings.connection.port = counter.start(&world).await;
    let why = unreadable(settings).await;
    assert!(why.contains("a value of 16777216 bytes"), "{why}");
    let sent = counter.bytes();
    assert!((1..100_000).contains(&sent), "{sent} bytes");
}

#[tokio::test]
async fn reading_stops_at_a_full_batch_and_then_requests_fewer_rows() {
    const ROWS: i64 = 64;
    let world = world_with("varbinary(max)").await;
    insert_large(&world, 1..=ROWS, 1 << 20).await;
    let counter = Counter::default();
    // A megabyte is a third larger as base64.
    let mut settings = limited(&world, 1 << 20, 6 << 20);
    settings.connection.port = counter.start(&world).await;
    let source = Mssql::new(settings).unwrap();

    let (first, more) = events(&source, None, 1000).await;
    assert_eq!((first.len(), more), (4, true), "not 64 rows, and not one more than the limit");
    let mut ids = 4;
    let mut after = first.into_iter().last().map(|event| event.cursor);
    counter.bytes();
    loop {
        let (batch, more) = events(&source, after.as_ref(), 1000).await;
        ids += batch.len();
        after = batch.into_iter().last().map(|event| event.cursor);
        // The row that signals more rows comes with them.
        let sent = counter.bytes();
        assert!(sent < 6 << 20, "{sent} bytes");
        if !more {
            break;
        }
    }
    assert_eq!(i64::try_from(ids), Ok(ROWS));
    // The connection that was abandoned with unread rows, and the next one.
    assert_eq!(counter.connections.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn one_row_may_exceed_the_batch_limit() {
    let world = world_with("varbinary(max)").await;
    world.execute("INSERT INTO dbo.t (id, c) VALUES (1, 0x00000000), (2, 0x00), (3, 0x00)").await;
    let source = Mssql::new(limited(&world, 100, 3)).unwrap();
    let (all, more) = events(&source, None, 10).await;
    assert_eq!((all.len(), more), (1, true));
}
