//! `highwater doctor` over the real driver and the SQL Server under test: each finding in its good and its
//! bad case, as far as that server can show them.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use highwater::clock::SystemClock;
use highwater::config::SourceClock;
use highwater::cursor::CursorMode::{ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::cursor::{Cursor, KeyValues, SourceFingerprint, SourceState};
use highwater::doctor::{Finding, Level};
use highwater::source::mssql::{Mssql, SourceSettings, StoredPosition};
use highwater_devdb::{Fault, SqlError};

use crate::any_server::{AnyServer, say};
use crate::sql::{World, fetch, logged};

const ORDERS: &str = "CREATE TABLE dbo.orders (id int NOT NULL PRIMARY KEY, at datetime2(3) NOT NULL, \
     price money NULL, rv rowversion NOT NULL); CREATE INDEX ix_at ON dbo.orders (at, id); \
     CREATE INDEX ix_rv ON dbo.orders (rv); \
     INSERT INTO dbo.orders (id, at) VALUES (1, '2026-01-01T09:00:00.123'), (2, '2026-01-01T09:00:00')";

/// Checks that pass for such a table.
const GOOD: [&str; 15] = [
    "clock",
    "column types",
    "connection",
    "cursor clock",
    "cursor text",
    "encryption",
    "index",
    "mode",
    "nullability",
    "read",
    "rights",
    "row versioning",
    "settle window",
    "table",
    "unique key",
];

/// Checks that the embedded server does not support.
const REAL: [&str; 5] =
    ["edition", "least rights", "open transactions", "plan", "snapshot isolation"];

struct Findings(Vec<Finding>);

impl Findings {
    /// Level, and text with the fix, of the only finding of a check.
    fn of(&self, check: &str) -> (Level, String) {
        let mut found = self.0.iter().filter(|finding| finding.check == check);
        let finding = found.next().unwrap_or_else(|| panic!("no `{check}` in {:#?}", self.0));
        assert!(found.next().is_none(), "`{check}` twice in {:#?}", self.0);
        let fix = finding.fix.as_deref().unwrap_or_default();
        (finding.level, format!("{} | {fix}", finding.found))
    }

    #[track_caller]
    fn expect(&self, check: &str, level: Level, words: &str) {
        let (found, text) = self.of(check);
        assert!(found == level && text.contains(words), "{check}: {found}: {text}");
    }

    fn levels(&self) -> BTreeMap<&'static str, Level> {
        self.0.iter().map(|finding| (finding.check, finding.level)).collect()
    }
}

async fn examined_at(
    world: &AnyServer,
    settings: SourceSettings,
    after: Option<&Cursor>,
) -> Findings {
    let source = Mssql::new(settings).unwrap();
    let current = StoredPosition { fingerprint: None, after, state: &SourceState::new() };
    Findings(source.examine(current, &*world.clock()).await)
}

async fn examined(world: &AnyServer, settings: SourceSettings) -> Findings {
    examined_at(world, settings, None).await
}

async fn world(tsql: &str) -> AnyServer {
    AnyServer::start(tsql).await
}

#[tokio::test]
async fn a_complete_table_passes_except_for_checks_that_need_a_real_server() {
    let world = world(ORDERS).await;
    let found = examined(&world, world.settings("orders", TimestampPk, "at")).await;
    if world.is_named() {
        // Other findings depend on the server, except those about the table.
        let wrong: Vec<_> = found.0.iter().filter(|it| it.level == Level::Error).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(GOOD.iter().chain(&REAL).all(|check| found.levels().contains_key(check)));
    } else {
        let (mut good, mut real) = (Vec::new(), Vec::new());
        for (check, level) in found.levels() {
            match level {
                Level::Ok => good.push(check),
                Level::Unknown => real.push(check),
                Level::Warning | Level::Error => panic!("{:#?}", found.of(check)),
            }
        }
        assert_eq!((good.as_slice(), real.as_slice()), (GOOD.as_slice(), REAL.as_slice()));
        for check in REAL {
            found.expect(check, Level::Unknown, "only a real server answers this");
        }
        found.expect("connection", Level::Ok, "Highwater development server");
    }
    found.expect("column types", Level::Ok, "price money as string of digits");
    found.expect("cursor text", Level::Ok, "`2026-01-01T09:00:00.123");
    found.expect("read", Level::Ok, "rows are due");
    found.expect("index", Level::Ok, "`ix_at` returns rows in order of `at`, `id`");
    found.expect("row versioning", Level::Ok, "is on");
}

#[tokio::test]
async fn a_missing_index_is_printed_as_a_create_statement() {
    let world = world(
        "CREATE TABLE dbo.[my ]]t] ([i]]d] int NOT NULL PRIMARY KEY, at datetime2(7) NOT NULL, \
         n int NOT NULL); CREATE INDEX ix_n ON dbo.[my ]]t] (n, at)",
    )
    .await;
    let mut settings = world.settings("[my ]]t]", TimestampPk, "at");
    settings.key = vec!["i]d".to_owned()];
    let found = examined(&world, settings.clone()).await;
    let statement = "CREATE INDEX [ix_my ]]t_at_i]]d] ON [dbo].[my ]]t] ([at], [i]]d])";
    found.expect("index", Level::Warning, statement);
    found.expect("index", Level::Warning, "every tick scans the whole table");
    // The printed statement fixes it.
    world.execute(statement).await;
    examined(&world, settings).await.expect("index", Level::Ok, "ix_my ]t_at_i]d");
}

#[tokio::test]
async fn an_index_in_other_directions_is_only_a_prefix_match() {
    let world = world(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, at datetime2(7) NOT NULL); \
         CREATE INDEX ix ON dbo.t (at DESC, id)",
    )
    .await;
    let found = examined(&world, world.settings("t", TimestampPk, "at")).await;
    found.expect("index", Level::Warning, "`ix` starts with `at`");
    world.execute("CREATE INDEX ix2 ON dbo.t (at DESC, id DESC)").await;
    let found = examined(&world, world.settings("t", TimestampPk, "at")).await;
    found.expect("index", Level::Ok, "`ix2`");
}

#[tokio::test]
async fn a_key_that_is_not_unique_can_skip_rows() {
    let world = world(
        "CREATE TABLE dbo.t (id int NOT NULL, at datetime2(7) NOT NULL, rv rowversion NOT NULL)",
    )
    .await;
    let found = examined(&world, world.settings("t", TimestampPk, "at")).await;
    // One key may occur at several times.
    let statement = "CREATE UNIQUE INDEX [ux_t_at_id] ON [dbo].[t] ([at], [id])";
    found.expect("unique key", Level::Error, statement);
    let twins = "SELECT [at], [id], COUNT(*) AS n FROM [dbo].[t] AS t GROUP BY [at], [id] HAVING COUNT(*) > 1";
    found.expect("unique key", Level::Error, twins);
    // Both run as printed, and fix it.
    world.execute("INSERT INTO dbo.t (id, at) VALUES (1, '2026-01-01'), (1, '2026-01-01')").await;
    assert_eq!(world.session().await.run(twins).await.len(), 1);
    world.execute("DELETE FROM dbo.t").await;
    world.execute(statement).await;
    let found = examined(&world, world.settings("t", TimestampPk, "at")).await;
    found.expect("unique key", Level::Ok, "`ux_t_at_id`");
    found.expect("index", Level::Ok, "`ux_t_at_id`");
    world.execute("DROP INDEX ux_t_at_id ON dbo.t").await;
    let found = examined(&world, world.settings("t", RowVersion, "rv")).await;
    found.expect("unique key", Level::Warning, "the same `rv`, `id`");
    world.execute("CREATE UNIQUE INDEX uq ON dbo.t (id)").await;
    let found = examined(&world, world.settings("t", TimestampPk, "at")).await;
    found.expect("unique key", Level::Ok, "`uq`");
}

#[tokio::test]
async fn nulls_in_nullable_columns_are_counted() {
    let world = world(
        "CREATE TABLE dbo.t (id int NULL, at datetime2(7) NULL); \
         INSERT INTO dbo.t (id, at) VALUES (1, '2026-01-01')",
    )
    .await;
    let settings = world.settings("t", TimestampPk, "at");
    let levels = |found: &Findings| {
        let nulls = found.0.iter().filter(|finding| finding.check == "nullability");
        nulls.map(|finding| (finding.level, finding.found.clone())).collect::<Vec<_>>()
    };
    let found = levels(&examined(&world, settings.clone()).await);
    assert!(found.iter().all(|(level, _)| *level == Level::Warning), "{found:?}");
    assert!(found[0].1.contains("cursor `at`") && found[1].1.contains("key `id`"), "{found:?}");
    world.execute("INSERT INTO dbo.t (id, at) VALUES (2, NULL), (3, NULL)").await;
    let found = levels(&examined(&world, settings.clone()).await);
    assert_eq!(found[0].0, Level::Error);
    assert!(
        found[0].1.contains("2 rows have NULL in cursor `at`; such a row is never read"),
        "{found:?}"
    );
    world.execute("INSERT INTO dbo.t (id, at) VALUES (NULL, '2026-01-02')").await;
    let found = levels(&examined(&world, settings).await);
    assert!(
        found[1].0 == Level::Error && found[1].1.contains("1 row has NULL in key"),
        "{found:?}"
    );
}

#[tokio::test]
async fn all_unreadable_columns_are_named() {
    let world = world(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, g geography, m geometry, rv rowversion)",
    )
    .await;
    let mut settings = world.settings("t", RowVersion, "rv");
    let found = examined(&world, settings.clone()).await;
    let errors: Vec<&Finding> =
        found.0.iter().filter(|finding| finding.level == Level::Error).collect();
    assert_eq!(errors.len(), 2, "{errors:#?}");
    assert!(errors[0].found.contains("column `g` is of type `geography`"), "{errors:#?}");
    assert!(errors[1].fix.as_ref().unwrap().contains("AsTextZM"), "{errors:#?}");
    // They do not hide other problems either.
    let key = vec!["di".to_owned()];
    let found = examined(&world, SourceSettings { key, ..settings.clone() }).await;
    found.expect("settings", Level::Error, "correct `HIGHWATER__POLLERS__ORDERS__SOURCE__KEY`");
    settings.columns = Some(vec!["id".to_owned()]);
    examined(&world, settings).await.expect("column types", Level::Ok, "id int as number");
}

#[tokio::test]
async fn a_checkpoint_of_another_source_is_not_used_in_a_query() {
    let world = world(ORDERS).await;
    let source = Mssql::new(world.settings("orders", RowVersion, "rv")).unwrap();
    let key = [("other".to_owned(), 1.into())].into_iter().collect();
    let after = Cursor::row_version(highwater::cursor::RowVersion(2_001), key);
    let fingerprint = SourceFingerprint::of(&[("key", "other")]);
    let current = StoredPosition {
        fingerprint: Some(&fingerprint),
        after: Some(&after),
        state: &serde_json::from_value(serde_json::json!({ "columns": [] })).unwrap(),
    };
    let found = Findings(source.examine(current, &*world.clock()).await);
    found.expect("read", Level::Ok, "from the beginning; the checkpoint belongs to another source");
}

#[tokio::test]
async fn objects_named_by_settings_must_exist() {
    let world = world(ORDERS).await;
    let found = examined(&world, world.settings("missing", RowVersion, "rv")).await;
    found.expect("table", Level::Error, "table `dbo.missing` not found");
    let found = examined(&world, world.settings("orders", RowVersion, "at")).await;
    found.expect("settings", Level::Error, "mode `rowversion` needs a `rowversion` column");
    let mut auto = world.settings("orders", RowVersion, "rv");
    (auto.mode, auto.cursor_column) = (None, None);
    examined(&world, auto).await.expect("mode", Level::Ok, "`rowversion` by `rv`");
}

#[tokio::test]
async fn the_database_clock_is_compared_with_the_local_clock() {
    let world = world(ORDERS).await;
    let settings = world.settings("orders", TimestampPk, "at");
    examined(&world, settings.clone()).await.expect("clock", Level::Ok, "the database");
    if world.is_named() {
        return say("skipped the second half: needs a settable clock");
    }
    world.database().set_now("2026-01-01T09:59:50").unwrap();
    examined(&world, settings.clone()).await.expect(
        "clock",
        Level::Warning,
        "the database is behind",
    );
    // Only the database sets a rowversion.
    examined(&world, world.settings("orders", RowVersion, "rv")).await.expect(
        "clock",
        Level::Ok,
        "",
    );
}

#[tokio::test]
async fn the_clock_of_the_column_default_is_compared_with_the_configured_clock() {
    let ask = |default: &str| {
        format!(
            "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, at datetime NOT NULL DEFAULT {default}); \
             INSERT INTO dbo.t (id) VALUES (1)"
        )
    };
    for (default, zone, clock, level, words) in [
        ("GETDATE()", -300, SourceClock::Utc, Level::Error, "set `SOURCE__CLOCK=local`"),
        ("GETDATE()", 120, SourceClock::Utc, Level::Warning, "rows are delivered 120 minutes late"),
        ("GETDATE()", 120, SourceClock::Local, Level::Warning, "SOURCE__AUDIT_AFTER=65m"),
        ("GETDATE()", 120, SourceClock::Offset(60), Level::Ok, "local time by its default"),
        ("GETUTCDATE()", 120, SourceClock::Utc, Level::Ok, "UTC by its default constraint"),
        ("GETUTCDATE()", 120, SourceClock::Local, Level::Error, "set `SOURCE__CLOCK=utc`"),
    ] {
        let world = AnyServer::embedded("SELECT 1", "a zone that can be set").await;
        world.database().set_zone(zone);
        world.execute(&ask(default)).await;
        let settings = SourceSettings { clock, ..world.settings("t", TimestampPk, "at") };
        examined(&world, settings).await.expect("cursor clock", level, words);
    }
}

#[tokio::test]
async fn an_open_transaction_is_reported_as_holding_back_rowversions() {
    let world = world(ORDERS).await;
    let settings = world.settings("orders", RowVersion, "rv");
    examined(&world, settings.clone()).await.expect("hold-back", Level::Ok, "no open transaction");
    let mut writer = world.session().await;
    writer.run("BEGIN TRAN; INSERT INTO dbo.orders (id, at) VALUES (3, '2026-01-01')").await;
    examined(&world, settings).await.expect(
        "hold-back",
        Level::Warning,
        "holds back up to 1 rowversions",
    );
}

#[tokio::test]
async fn change_tracking_is_checked_on_database_and_table() {
    let world = world(ORDERS).await;
    let settings = world.settings("orders", ChangeTracking, "");
    let found = examined(&world, settings.clone()).await;
    found.expect(
        "change tracking",
        Level::Error,
        "ALTER TABLE [dbo].[orders] ENABLE CHANGE_TRACKING",
    );
    found.expect("read", Level::Error, "are not tracked");
    world.track("dbo.orders").await;
    let found = examined(&world, settings.clone()).await;
    found.expect("change tracking", Level::Ok, "changes are kept from version");
    if !world.is_named() {
        found.expect("retention", Level::Unknown, "only a real server");
    }
    let rights = found.0.iter().filter(|finding| finding.check == "rights").count();
    assert_eq!(rights, 2, "SELECT and VIEW CHANGE TRACKING");
    if world.is_named() {
        return say("skipped the rest: needs a cleanup of changes on demand");
    }
    // The rows after the checkpoint are gone.
    world.execute("UPDATE dbo.orders SET at = at").await;
    let behind = Cursor { mode: ChangeTracking, value: "0".to_owned(), key: KeyValues::new() };
    world.database().forget_changes("dbo.orders").unwrap();
    let found = examined_at(&world, settings, Some(&behind)).await;
    found.expect("read", Level::Error, "some were cleaned up before they were read");
    found.expect("read", Level::Error, "to-beginning --skip-rows --reason");
}

#[tokio::test]
async fn a_checkpoint_that_the_database_has_not_reached_is_an_error() {
    let world = world(
        "CREATE TABLE dbo.t (id int IDENTITY NOT NULL PRIMARY KEY, x int NULL); \
         INSERT INTO dbo.t (x) VALUES (1)",
    )
    .await;
    let settings = world.settings("t", IntegerPk, "id");
    let at = |id| Cursor::integer(id, KeyValues::from_iter([("id".to_owned(), id.into())]));
    examined_at(&world, settings.clone(), Some(&at(1))).await.expect(
        "read",
        Level::Ok,
        "no row is due",
    );
    let found = examined_at(&world, settings, Some(&at(2))).await;
    found.expect("read", Level::Error, "emptied, reseeded or restored");
    found.expect(
        "read",
        Level::Error,
        "`highwater reset orders to-beginning --reason \"position lost\"`",
    );
    found.expect("read", Level::Error, "`highwater reset orders to-now --skip-rows ");
}

#[tokio::test]
async fn for_a_view_an_index_on_its_tables_is_suggested() {
    let world = world(ORDERS).await;
    world.execute("CREATE VIEW dbo.v AS SELECT o.id, o.at FROM dbo.orders AS o").await;
    let found = examined(&world, world.settings("v", TimestampPk, "at")).await;
    found.expect("index", Level::Unknown, "index its tables by `at`, `id`");
}

#[tokio::test]
async fn setups_in_which_rowversions_have_no_bound_are_reported() {
    let world = world(ORDERS).await;
    world.execute("CREATE VIEW dbo.v AS SELECT o.id, o.at, o.rv FROM dbo.orders AS o").await;
    let read_only = |mode, cursor| {
        let mut settings = world.settings("v", mode, cursor);
        settings.connection.application_intent_read_only = true;
        settings
    };
    let found = examined(&world, read_only(RowVersion, "rv")).await;
    found.expect("read intent", Level::Warning, "remove `ApplicationIntent=ReadOnly`");
    // The named server may itself be the embedded one.
    if world.is_named() && found.levels()["other databases"] == Level::Ok {
        found.expect("other databases", Level::Ok, "names none");
    } else {
        found.expect("other databases", Level::Unknown, "only a real server answers this");
    }
    let found = examined(&world, read_only(TimestampPk, "at")).await;
    assert!(!found.levels().contains_key("read intent"), "{:#?}", found.0);
    assert!(!found.levels().contains_key("other databases"), "{:#?}", found.0);
    let found = examined(&world, world.settings("orders", RowVersion, "rv")).await;
    assert!(!found.levels().contains_key("read intent"), "{:#?}", found.0);
}

#[tokio::test]
async fn doctor_and_the_first_fetch_report_a_view_of_another_database() {
    let world = world(ORDERS).await;
    let view = "CREATE VIEW dbo.v AS SELECT o.id, o.at, o.rv, b.name FROM dbo.orders AS o \
                LEFT JOIN msdb.dbo.backupset AS b ON b.backup_set_id = o.id";
    // Neither the embedded server nor a database of Azure SQL can access another database.
    if let Err(error) = world.session().await.try_run(view).await {
        return say(&format!("skipped: needs a view over another database: {error}"));
    }
    let settings = || world.settings("v", RowVersion, "rv");
    let found = examined(&world, settings()).await;
    found.expect("other databases", Level::Warning, "also reads from `msdb`");
    let source = Mssql::new(settings()).unwrap();
    for expected in [1, 0] {
        let (rows, log) = logged(fetch(&source, None, 9)).await;
        assert_eq!(rows.unwrap().rows.len(), 2);
        assert_eq!(log.matches("event=\"view_reads_elsewhere\"").count(), expected, "{log}");
    }
    let source = Mssql::new(world.settings("v", TimestampPk, "at")).unwrap();
    let (rows, log) = logged(fetch(&source, None, 9)).await;
    assert!(rows.is_ok() && !log.contains("view_reads_elsewhere"), "{log}");
}

#[tokio::test]
async fn checks_stop_if_the_server_does_not_respond() {
    let other = AnyServer::embedded(ORDERS, "a server that goes").await;
    let mut settings = other.settings("orders", RowVersion, "rv");
    let clock = other.clock();
    // Replaced by one that closes each connection.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    settings.connection.port = listener.local_addr().unwrap().port();
    let accepted = Arc::new(AtomicU32::new(0));
    let count = accepted.clone();
    let closing = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let source = Mssql::new(settings).unwrap();
    let current = StoredPosition { fingerprint: None, after: None, state: &SourceState::new() };
    let found = Findings(source.examine(current, &*clock).await);
    found.expect("connection", Level::Error, "check `Server` and port");
    assert!(found.0.len() == 1 && found.0[0].unreachable, "{:#?}", found.0);
    assert_eq!(accepted.load(Ordering::Relaxed), 1, "connections");
    closing.abort();
}

/// Runs the program, with a poller `orders` on `server` whose state is in `folder`.
fn program(connection: &str, folder: &std::path::Path, arguments: &[&str]) -> Output {
    std::fs::create_dir_all(folder.join("state")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_highwater"))
        .arg("doctor")
        .args(arguments)
        .env_clear()
        .env("SHOP", connection)
        .env("HIGHWATER__STATE__STORE", "file")
        .env("HIGHWATER__STATE__FOLDER", folder)
        .env("HIGHWATER__POLLERS__ORDERS__SOURCE__CONNECTION", "SHOP")
        .env("HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE", "orders")
        .env("HIGHWATER__POLLERS__ORDERS__SOURCE__MODE", "rowversion")
        .env("HIGHWATER__POLLERS__ORDERS__SOURCE__CURSOR", "rv")
        .env("HIGHWATER__POLLERS__ORDERS__SOURCE__KEY", "id")
        .env("HIGHWATER__POLLERS__ORDERS__HANDLER__KIND", "stdout")
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_reflects_the_findings() {
    let world = world(ORDERS).await;
    let connection = world.connection_string();
    let folder = std::env::temp_dir().join(format!("highwater-doctor-{}", std::process::id()));
    let run = |arguments: &[&str]| program(&connection, &folder, arguments);

    let output = run(&["--poller", "orders", "--verbose"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let stderr_text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr_text.as_str()), (Some(0), ""), "{text}");
    assert!(text.starts_with("poller orders\n"), "{text}");
    assert!(text.contains("  ok      state store: reachable"), "{text}");
    assert!(text.contains("  ok      poller state: never_ran: no tick yet"), "{text}");
    assert!(
        text.contains("  ok      index: `ix_rv` returns rows in order of `rv`, `id`\n"),
        "{text}"
    );
    assert!(text.trim_end().ends_with(" ok") && text.contains("0 errors, "), "{text}");
    let output = run(&["--poller", "orders"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("  ok ") && text.contains(" checks passed (`--verbose`)\n"), "{text}");
    let written = std::fs::read_dir(folder.join("state")).unwrap().count();
    assert_eq!(written, 0, "something was written into the state folder");

    let output = run(&["--output", "jsonl"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let found: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(found.iter().all(|finding| finding["poller"] == "orders"), "{lines}");
    let document = found.iter().find(|finding| finding["check"] == "state document").unwrap();
    assert_eq!(document["level"], "ok");
    let order = ["error", "warning", "unknown", "ok"];
    let place = |finding: &serde_json::Value| order.iter().position(|it| finding["level"] == *it);
    assert!(found.is_sorted_by_key(place), "problems come first: {lines}");

    world.execute("DROP TABLE dbo.orders").await;
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(1));
    let output = run(&["--poller", "customers"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("the settings have `orders`"));
    if world.is_named() {
        return say("skipped the rest: needs a server that can be stopped");
    }
    drop(world);
    let output = run(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(6), "{text}");
    assert!(text.contains("error   connection: connect to "), "{text}");
}

#[tokio::test]
async fn a_statement_of_the_poller_that_the_server_rejects_is_an_error() {
    let world = World::start(ORDERS).await;
    let source = Mssql::new(world.settings("orders", TimestampPk, "at")).unwrap();
    let current = StoredPosition { fingerprint: None, after: None, state: &SourceState::new() };
    for (number, severity, level) in
        [(33_557_097, 16, Level::Error), (1205, 13, Level::Warning), (8645, 17, Level::Warning)]
    {
        let error = SqlError::new(number, severity, "the server's own words");
        world.server.faults().arm_matching("SELECT TOP (@P1)", 1, Fault::Error(error));
        let found = Findings(source.examine(current, &SystemClock).await);
        found.expect("read", level, "the server's own words");
    }
}
