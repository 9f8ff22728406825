//! Columns that are added, removed or retyped while a poller runs, and between two of its processes.

use highwater::admin::ResetTo;
use highwater::config::OnSchemaChange;
use highwater::cursor::CursorMode::{self, ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::poller::{Operator, Poller, TickOutcome, outcome_row};
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::tick::TickRequest;
use highwater_devdb::{Fault, SqlError};
use serde_json::Value as Json;

use crate::any_server::{AnyServer, say};
use crate::sql::{World, events, fetch, logged};
use crate::ticks::Ticks;

const TABLE: &str = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, \
     a nvarchar(9) NULL, b int NULL, at datetime2(7) NOT NULL DEFAULT '2026-01-01T09:00:00'); INSERT INTO dbo.t (id, a, b) VALUES (1, N'one', 1)";

const MODES: [CursorMode; 4] = [RowVersion, IntegerPk, TimestampPk, ChangeTracking];

/// The cursor column of a mode, if it has one.
fn cursor(mode: CursorMode) -> &'static str {
    match mode {
        RowVersion => "rv",
        TimestampPk => "at",
        IntegerPk | ChangeTracking => "id",
    }
}

async fn world() -> AnyServer {
    AnyServer::start(TABLE).await
}

/// Reads the rows after `after`, as events.
async fn after(source: &Mssql, after: Option<&highwater::cursor::Cursor>) -> Vec<Json> {
    let (events, _) = events(source, after, 9).await;
    let read = |json: &str| serde_json::from_str::<Json>(json).unwrap()["after"].clone();
    events.iter().map(|event| read(&event.json)).collect()
}

/// Recreates the view, so that its columns change like those of a table.
async fn view(world: &AnyServer, columns: &str) {
    world.execute("DROP VIEW dbo.v").await;
    world.execute(&format!("CREATE VIEW dbo.v AS SELECT {columns} FROM dbo.t")).await;
}

#[tokio::test]
async fn an_added_column_is_in_the_first_row_after_it() {
    let world = world().await;
    world.track("dbo.t").await;
    for (number, mode) in MODES.into_iter().enumerate() {
        let settings = world.settings("t", mode, cursor(mode));
        let settings = SourceSettings { settle: std::time::Duration::ZERO, ..settings };
        let source = Mssql::new(settings).unwrap();
        let (all, _) = events(&source, None, 9).await;
        let at = &all.last().unwrap().cursor;
        let (id, column) = (number + 2, format!("new{number}"));
        world.execute(&format!("ALTER TABLE dbo.t ADD {column} int NULL")).await;
        world.execute(&format!("INSERT INTO dbo.t (id, {column}) VALUES ({id}, 7)")).await;
        // Filling the added column is an update too.
        let rows = after(&source, Some(at)).await;
        assert_eq!(rows.last().unwrap()[&column], 7, "{mode}: {rows:?}");
    }
}

#[tokio::test]
async fn schema_changes_are_followed_and_logged() {
    let world = world().await;
    world.execute("CREATE VIEW dbo.v AS SELECT id, rv, a, b FROM dbo.t").await;
    let source = Mssql::new(world.settings("v", RowVersion, "rv")).unwrap();
    assert_eq!(after(&source, None).await[0]["b"], 1);
    view(&world, "id, rv, CAST(b AS decimal(9, 2)) AS b, N'new' AS c").await;
    let (rows, log) = logged(after(&source, None)).await;
    assert_eq!(rows[0].to_string(), r#"{"id":1,"rv":"AAAAAAAAB9E=","b":"1.00","c":"new"}"#);
    assert!(log.contains("WARN") && log.contains("event=\"schema_changed\""), "{log}");
    assert!(
        log.contains("`b` was `int`, is now `decimal(9, 2)`; added: `c nvarchar(3)")
            && log.contains("removed: `a`"),
        "{log}"
    );
    let (_, log) = logged(after(&source, None)).await;
    assert!(!log.contains("schema_changed"), "it is logged once: {log}");
}

#[tokio::test]
async fn a_table_whose_columns_are_retyped_and_dropped_is_followed() {
    let world = world().await;
    let source = Mssql::new(world.settings("t", RowVersion, "rv")).unwrap();
    assert_eq!(after(&source, None).await[0]["b"], 1);
    let mut session = world.session().await;
    if let Err(error) = session.try_run("ALTER TABLE dbo.t ALTER COLUMN b decimal(9, 2) NULL").await
    {
        assert!(error.to_string().contains("highwater-devdb"), "{error}");
        return say("skipped: the embedded server does not support ALTER COLUMN");
    }
    let (rows, log) = logged(after(&source, None)).await;
    assert_eq!(rows[0]["b"], "1.00");
    assert!(log.contains("`b` is decimal(9, 2), was int"), "{log}");
    session.run("ALTER TABLE dbo.t DROP COLUMN a").await;
    let (rows, log) = logged(after(&source, None)).await;
    assert!(rows[0].get("a").is_none() && log.contains("`a` was removed"), "{rows:?} {log}");
}

#[tokio::test]
async fn columns_that_are_not_read_may_change() {
    let world = world().await;
    world.execute("CREATE VIEW dbo.v AS SELECT id, rv, a, b FROM dbo.t").await;
    let settings = SourceSettings {
        columns: Some(vec!["a".to_owned()]),
        on_schema_change: OnSchemaChange::Stop,
        ..world.settings("v", RowVersion, "rv")
    };
    let source = Mssql::new(settings).unwrap();
    fetch(&source, None, 9).await.unwrap();
    view(&world, "id, rv, N'x' AS b, a, 5 AS more").await;
    let (rows, log) = logged(after(&source, None)).await;
    assert_eq!((rows[0]["a"].as_str(), log.contains("schema_changed")), (Some("one"), false));
}

#[tokio::test]
async fn a_dropped_or_reordered_key_or_cursor_always_stops_the_poller() {
    let world = world().await;
    world.execute("CREATE VIEW dbo.v AS SELECT id, rv, a, b FROM dbo.t").await;
    let settings = world.settings("v", RowVersion, "rv");
    for (columns, expected, lost) in [
        ("rv, a, b", "key column `id` is not in `dbo.v`, which has `rv`, `a`, `b`", false),
        ("id, a, b", "cursor column `rv` is not in", false),
        ("id, CAST(rv AS bigint) AS rv", "mode `rowversion` needs a `rowversion` column", false),
        ("CAST(id AS nvarchar(9)) AS id, rv", "`id` was `int`, is now `nvarchar(9)", true),
    ] {
        view(&world, "id, rv, a, b").await;
        let source = Mssql::new(settings.clone()).unwrap();
        let (all, _) = events(&source, None, 9).await;
        let at = &all.last().unwrap().cursor;
        view(&world, columns).await;
        for _ in 0..2 {
            let error = fetch(&source, Some(at), 9).await.unwrap_err();
            assert!(error.reason.contains(expected), "{columns}: {error}");
            assert_eq!(error.is_position_lost(), lost, "{columns}");
        }
        // It continues once the column has been restored.
        view(&world, "id, rv, a").await;
        assert_eq!(fetch(&source, None, 9).await.unwrap().rows.len(), 1, "{columns}");
    }
    view(&world, "CAST(id AS bigint) AS id, rv").await;
    let source = Mssql::new(settings).unwrap();
    assert_eq!(fetch(&source, None, 9).await.unwrap().rows.len(), 1);
}

#[tokio::test]
async fn with_stop_the_poller_stops_until_the_columns_or_the_setting_change() {
    let world = world().await;
    world.execute("CREATE VIEW dbo.v AS SELECT id, rv, a FROM dbo.t").await;
    let stop = SourceSettings {
        on_schema_change: OnSchemaChange::Stop,
        ..world.settings("v", RowVersion, "rv")
    };
    let source = Mssql::new(stop).unwrap();
    fetch(&source, None, 9).await.unwrap();
    view(&world, "id, rv, a, b").await;
    for _ in 0..2 {
        let error = fetch(&source, None, 9).await.unwrap_err();
        assert!(error.schema_changed && !error.is_position_lost(), "{error}");
        assert!(error.reason.contains("columns of `dbo.v` changed (added: `b int`)"), "{error}");
    }
    view(&world, "id, rv, a").await;
    assert_eq!(fetch(&source, None, 9).await.unwrap().rows.len(), 1);
}

async fn ticks(mode: CursorMode) -> Ticks {
    let world = AnyServer::start(TABLE).await;
    world.track("dbo.t").await;
    let settings = world.settings("t", mode, cursor(mode));
    let settle = std::time::Duration::ZERO;
    let ticks = Ticks::new(world, SourceSettings { settle, ..settings });
    ticks.at(0).await;
    ticks
}

#[tokio::test]
async fn a_change_between_two_processes_is_noticed() {
    for mode in MODES {
        let mut ticks = ticks(mode).await;
        ticks.settings.on_schema_change = OnSchemaChange::Stop;
        let (ids, writes) = ticks.tick().await;
        assert_eq!((ids, writes), (vec![1], 4), "{mode}: no write more than without");
        let fingerprint = ticks.document().await.source_fingerprint;
        ticks.run("INSERT INTO dbo.t (id) VALUES (2)").await;
        assert_eq!(ticks.tick().await.0, [2], "{mode}");
        ticks.run("ALTER TABLE dbo.t ADD c int NULL").await;
        ticks.run("INSERT INTO dbo.t (id, c) VALUES (3, 7)").await;
        for _ in 0..2 {
            let report = ticks.report().await;
            assert_eq!(outcome_row(&report.result).event, "schema_changed", "{mode}");
        }
        assert!(ticks.failure().await.contains("(added: `c int`)"));
        ticks.settings.on_schema_change = OnSchemaChange::Follow;
        let ((ids, _), log) = logged(ticks.tick()).await;
        assert_eq!(ids.last(), Some(&3), "{mode}");
        assert_eq!(log.matches("event=\"schema_changed\"").count(), 1, "{mode}: {log}");
        // Followed changes are known, also to a poller that is set to stop.
        ticks.settings.on_schema_change = OnSchemaChange::Stop;
        ticks.run("INSERT INTO dbo.t (id) VALUES (4)").await;
        let ((ids, _), log) = logged(ticks.tick()).await;
        assert_eq!((ids, log.contains("schema_changed")), (vec![4], false), "{mode}");
        assert_eq!(ticks.document().await.source_fingerprint, fingerprint);
    }
}

#[tokio::test]
async fn a_key_retyped_between_two_processes_stops_the_poller() {
    let mut ticks = ticks(RowVersion).await;
    let note = "CONCAT('row ', id) AS note";
    ticks.run(&format!("CREATE VIEW dbo.v AS SELECT id, rv, {note} FROM dbo.t")).await;
    ticks.settings = ticks.world.settings("v", RowVersion, "rv");
    assert_eq!(ticks.tick().await.0, [1]);
    ticks.run("DROP VIEW dbo.v").await;
    let cast = "CAST(id AS nvarchar(9)) AS id";
    ticks.run(&format!("CREATE VIEW dbo.v AS SELECT {cast}, rv, {note} FROM dbo.t")).await;
    ticks.run("INSERT INTO dbo.t (id) VALUES (2)").await;
    let report = ticks.report().await;
    assert_eq!(outcome_row(&report.result).event, "position_lost");
    let text = highwater::error::chain(&report.result.unwrap_err());
    assert!(
        text.contains("the key or cursor of `dbo.v` changed (`id` was `int`, is now `nvarchar(9)"),
        "{text}"
    );
    assert!(!text.contains(" keep "), "rows after the position may lie before it now: {text}");
    ticks.recovers(&text).await;
}

#[tokio::test]
async fn a_position_in_another_sort_order_cannot_be_kept() {
    let table = |key: &str| {
        format!(
            "CREATE TABLE dbo.t (id {key} NOT NULL PRIMARY KEY, at datetime2(7) NOT NULL, note nvarchar(9))"
        )
    };
    let insert =
        |id: &str, note: &str| format!("INSERT INTO dbo.t VALUES ({id}, '2020-01-01', N'{note}')");
    let mut ticks = Ticks::concurrent(
        &format!("{}; {}; {}", table("int"), insert("2", "two"), insert("3", "three")),
        TimestampPk,
    )
    .await;
    ticks.settings.cursor_column = Some("at".to_owned());
    ticks.at(0).await;
    ticks.until_quiet().await.unwrap();
    // The same rows, and one that follows the position as a number but not as a text.
    ticks.run("DROP TABLE dbo.t").await;
    ticks.run(&table("nvarchar(9)")).await;
    for (id, note) in [("N'2'", "two"), ("N'3'", "three"), ("N'10'", "ten")] {
        ticks.run(&insert(id, note)).await;
    }
    ticks.until_quiet().await.unwrap_err();
    let cli = ticks.process();
    let refused = Box::pin(cli.admin().plan_reset(ResetTo::Keep, true)).await.unwrap_err();
    let refused = highwater::error::chain(&refused);
    let expected =
        "the position cannot be kept: the key or cursor of `dbo.t` changed (`id` was `int`";
    assert!(refused.contains(expected), "{refused}");
    ticks.recovers(&refused).await;
}

crate::ticks::also_cold![
    a_change_between_two_processes_is_noticed,
    a_position_in_another_sort_order_cannot_be_kept,
    a_key_retyped_between_two_processes_stops_the_poller,
];

/// Runs the command that an error names, like an operator in a separate process.
async fn reset_to_beginning(ticks: &mut Ticks) {
    let cli = ticks.process();
    let plan = Box::pin(cli.admin().plan_reset(ResetTo::Beginning, false)).await.unwrap();
    let operator = Operator { by: "ann", reason: "key changed" };
    Box::pin(cli.admin().reset(&plan, "reset-1".to_owned(), operator)).await.unwrap();
}

async fn warm(poller: &Poller) -> Result<TickOutcome, String> {
    let report = poller.tick(&TickRequest::default()).await;
    report.result.map_err(|error| highwater::error::chain(&error))
}

#[tokio::test]
async fn a_warm_process_resumes_after_the_reset_that_a_retyped_key_asks_for() {
    let mut ticks = ticks(RowVersion).await;
    ticks.run("CREATE VIEW dbo.v AS SELECT id, rv FROM dbo.t").await;
    ticks.settings = ticks.world.settings("v", RowVersion, "rv");
    let poller = ticks.process();
    warm(&poller).await.unwrap();
    ticks.run("INSERT INTO dbo.t (id) VALUES (2)").await;
    view(&ticks.world, "CAST(id AS nvarchar(9)) AS id, rv").await;
    for _ in 0..3 {
        let error = warm(&poller).await.unwrap_err();
        let command = "`highwater reset orders to-beginning --reason \"position lost\"`";
        assert!(error.contains("is now `nvarchar(9)") && error.contains(command), "{error}");
    }
    assert_eq!(ticks.handler.received().len(), 1, "nothing is read in the other order");
    Box::pin(reset_to_beginning(&mut ticks)).await;
    assert_eq!(warm(&poller).await, Ok(TickOutcome::Committed { more: false }));
    let delivered = ticks.handler.received().into_iter().flat_map(|batch| batch.event_ids);
    assert_eq!(delivered.count(), 1 + 2, "both rows of the table, from the beginning");
    assert_eq!(warm(&poller).await, Ok(TickOutcome::Idle));
    ticks.run("INSERT INTO dbo.t (id) VALUES (3)").await;
    assert_eq!(warm(&poller).await, Ok(TickOutcome::Committed { more: false }));
}

#[tokio::test]
async fn a_warm_process_resumes_at_its_position_after_an_operator_has_accepted_the_columns() {
    let mut ticks = ticks(RowVersion).await;
    ticks.settings.on_schema_change = OnSchemaChange::Stop;
    let poller = ticks.process();
    warm(&poller).await.unwrap();
    ticks.run("ALTER TABLE dbo.t ADD c int NULL; INSERT INTO dbo.t (id) VALUES (2)").await;
    for _ in 0..2 {
        let error = warm(&poller).await.unwrap_err();
        assert!(error.contains("(added: `c int`)"), "{error}");
    }
    let cli = ticks.process();
    let plan = Box::pin(cli.admin().plan_reset(ResetTo::Keep, true)).await.unwrap();
    let operator = Operator { by: "ann", reason: "the column is expected" };
    Box::pin(cli.admin().reset(&plan, "reset-1".to_owned(), operator)).await.unwrap();
    assert_eq!(warm(&poller).await, Ok(TickOutcome::Committed { more: false }));
    assert_eq!(warm(&poller).await, Ok(TickOutcome::Idle));
    let delivered = ticks.handler.received().into_iter().flat_map(|batch| batch.event_ids);
    assert_eq!(delivered.count(), 1 + 1, "the position was kept");
}

#[tokio::test]
async fn columns_are_described_again_after_any_server_error() {
    let world = World::start(TABLE).await;
    world.database.execute("CREATE VIEW dbo.v AS SELECT id, rv, a, b FROM dbo.t").unwrap();
    let source = Mssql::new(world.settings("v", RowVersion, "rv")).unwrap();
    assert_eq!(after(&source, None).await[0]["b"], 1);
    world.database.execute("DROP VIEW dbo.v").unwrap();
    world.database.execute("CREATE VIEW dbo.v AS SELECT id, rv, a FROM dbo.t").unwrap();
    // The server's error for a view whose table has lost a column.
    let refusal = SqlError::new(
        4413,
        16,
        "Could not use view or function 'dbo.v' because of binding errors.",
    );
    world.server.faults().arm_matching("t.[b]", 9, Fault::Error(refusal));
    let rows = after(&source, None).await;
    assert!(rows[0].get("b").is_none() && rows[0]["a"] == "one", "{rows:?}");
    let before = world.server.faults().statements();
    after(&source, None).await;
    assert_eq!(world.server.faults().statements(), before + 1, "one statement again");
}
