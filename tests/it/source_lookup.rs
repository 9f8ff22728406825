//! One row by its key, with what decides its delivery: in each mode what a read would find.

use std::time::Duration;

use highwater::cursor::{Cursor, CursorMode, KeyValues, SourceState};
use highwater::error::chain;
use highwater::event::Operation;
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::source::{LookupError, RowLookup, RowReport, Source as _};
use highwater_devdb::{Fault, SqlError};
use serde_json::json;

use crate::any_server::AnyServer;
use crate::sql::{World, events};

const TABLE: &str = "CREATE TABLE dbo.t (id int NOT NULL, code nvarchar(9) NOT NULL, \
                     at datetime2(3) NULL, n bigint NOT NULL, rv rowversion NOT NULL, \
                     CONSTRAINT pk PRIMARY KEY (id, code)); \
                     INSERT INTO dbo.t (id, code, at, n) VALUES \
                     (1, N'a', '2020-01-01T10:00:00', 10), (1, N'Ö', '2020-01-01T10:00:00.003', 11), \
                     (2, N'a', '2020-01-02T10:00:00', 12)";

const MODES: [(CursorMode, &str); 3] =
    [(CursorMode::RowVersion, "rv"), (CursorMode::TimestampPk, "at"), (CursorMode::IntegerPk, "n")];

fn settings(settings: SourceSettings) -> SourceSettings {
    let key = ["id", "code"].map(str::to_owned).to_vec();
    SourceSettings { key, settle: Duration::ZERO, ..settings }
}

fn key(id: &str, code: &str) -> KeyValues {
    KeyValues::from_iter([("id", json!(id)), ("code", json!(code))])
}

async fn look_up(
    source: &Mssql,
    key: &KeyValues,
    after: Option<&Cursor>,
    state: &SourceState,
) -> RowReport {
    let stored = source.is_decided().then(|| source.shape().fingerprint.clone());
    let lookup = RowLookup { key, stored: stored.as_ref(), after, state };
    let found = source.look_up(lookup).await;
    found.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

#[tokio::test]
async fn a_row_has_the_position_of_its_event_and_the_side_of_a_checkpoint() {
    for (mode, column) in MODES {
        let world = AnyServer::start(TABLE).await;
        let source = Mssql::new(settings(world.settings("t", mode, column))).unwrap();
        let (read, _) = events(&source, None, 9).await;
        let nothing = SourceState::new();
        let wanted = key("1", "Ö");
        let found = look_up(&source, &wanted, None, &nothing).await;
        assert_eq!(found.position.as_ref(), Some(&read[1].cursor), "{mode}");
        assert!(found.exists && found.is_after && found.is_readable && found.is_selected);
        for (checkpoint, is_after) in
            read.iter().map(|event| &event.cursor).zip([true, false, false])
        {
            let found = look_up(&source, &wanted, Some(checkpoint), &nothing).await;
            assert_eq!(found.is_after, is_after, "{mode} {checkpoint:?}");
        }
        let missing = look_up(&source, &key("9", "a"), None, &nothing).await;
        assert_eq!(missing, RowReport::default(), "{mode}");
    }
}

#[tokio::test]
async fn a_lookup_is_two_requests() {
    for (mode, column) in MODES {
        let world = World::start(TABLE).await;
        let source = Mssql::new(settings(world.settings("t", mode, column))).unwrap();
        let (wanted, nothing) = (key("1", "a"), SourceState::new());
        look_up(&source, &wanted, None, &nothing).await;
        // Connecting is one more.
        assert_eq!(world.server.faults().statements(), 3, "{mode}");
        look_up(&source, &wanted, None, &nothing).await;
        assert_eq!(world.server.faults().statements(), 5, "{mode}");
    }
    // The mode is chosen without a further request, even if it depends on change tracking.
    let world = World::start("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, x int NULL)").await;
    world.database.execute("INSERT INTO dbo.t (id, x) VALUES (1, 1)").unwrap();
    world.database.execute("ALTER TABLE dbo.t ENABLE CHANGE_TRACKING").unwrap();
    let open = world.settings("t", CursorMode::RowVersion, "");
    let source = Mssql::new(SourceSettings { mode: None, cursor_column: None, ..open }).unwrap();
    let wanted = KeyValues::from_iter([("id", json!("1"))]);
    assert!(look_up(&source, &wanted, None, &SourceState::new()).await.exists);
    assert_eq!(source.shape().mode, CursorMode::ChangeTracking);
    assert_eq!(world.server.faults().statements(), 3);
}

#[tokio::test]
async fn a_filter_is_reported_condition_by_condition() {
    for (mode, column) in MODES {
        let world = AnyServer::start(TABLE).await;
        let base = settings(world.settings("t", mode, column));
        let filter = Some("n < 12 AND code = @code -- only these".to_owned());
        let filter_params = [("CODE".to_owned(), "nvarchar:a".to_owned())].into();
        let source = Mssql::new(SourceSettings { filter, filter_params, ..base }).unwrap();
        for (id, code, expected) in
            [("1", "a", [true, true]), ("1", "Ö", [true, false]), ("2", "a", [false, true])]
        {
            let found = look_up(&source, &key(id, code), None, &SourceState::new()).await;
            let holds: Vec<bool> = found.predicates.iter().map(|it| it.holds).collect();
            assert_eq!(holds, expected, "{mode} {id} {code}");
            assert_eq!(found.predicates[0].text, "n < 12");
        }
    }
}

#[tokio::test]
async fn rows_above_the_upper_bound_are_not_readable() {
    let world = AnyServer::start(TABLE).await;
    let nothing = SourceState::new();
    let settle = Duration::from_secs(3_600);
    let of =
        |mode, column| SourceSettings { settle, ..settings(world.settings("t", mode, column)) };
    let by_time = Mssql::new(of(CursorMode::TimestampPk, "at")).unwrap();
    assert!(look_up(&by_time, &key("1", "a"), None, &nothing).await.is_readable);
    world.execute("UPDATE dbo.t SET at = SYSUTCDATETIME() WHERE id = 2").await;
    let found = look_up(&by_time, &key("2", "a"), None, &nothing).await;
    let left = found.settles_in.unwrap();
    // The window includes the rounding of the column.
    assert!(left.abs_diff(settle) < Duration::from_secs(60), "{found:?}");
    assert!(!found.is_readable);
    world.execute("UPDATE dbo.t SET at = NULL WHERE id = 2").await;
    let found = look_up(&by_time, &key("2", "a"), None, &nothing).await;
    assert_eq!((found.null_cursor.as_deref(), found.position), (Some("at"), None));
    let by_number = Mssql::new(of(CursorMode::IntegerPk, "n")).unwrap();
    assert!(!look_up(&by_number, &key("2", "a"), None, &nothing).await.is_readable, "never seen");
    let settled = SourceState::from_iter([("settled".to_owned(), json!("11"))]);
    assert!(look_up(&by_number, &key("1", "Ö"), None, &settled).await.is_readable);
    assert!(!look_up(&by_number, &key("2", "a"), None, &settled).await.is_readable);
}

#[tokio::test]
async fn a_row_held_back_by_an_open_transaction_is_not_readable() {
    let world = AnyServer::start(TABLE).await;
    let of = settings(world.settings("t", CursorMode::RowVersion, "rv"));
    let source = Mssql::new(of).unwrap();
    let mut writer = world.session().await;
    writer.run("BEGIN TRAN; UPDATE dbo.t SET n = n WHERE id = 2").await;
    world.execute("INSERT INTO dbo.t (id, code, n) VALUES (3, N'a', 13)").await;
    let nothing = SourceState::new();
    let found = look_up(&source, &key("3", "a"), None, &nothing).await;
    assert!(found.exists && !found.is_readable, "{found:?}");
    assert!(look_up(&source, &key("1", "a"), None, &nothing).await.is_readable);
    writer.run("COMMIT").await;
    assert!(look_up(&source, &key("3", "a"), None, &nothing).await.is_readable);
}

#[tokio::test]
async fn a_tracked_row_has_the_position_of_its_last_change() {
    let world = AnyServer::start(TABLE).await;
    world.track("dbo.t").await;
    let open = settings(world.settings("t", CursorMode::ChangeTracking, ""));
    let source = Mssql::new(SourceSettings { cursor_column: None, ..open }).unwrap();
    let nothing = SourceState::new();
    let (read, _) = events(&source, None, 9).await;
    let last = &read[2].cursor;
    let unchanged = look_up(&source, &key("1", "Ö"), Some(&read[0].cursor), &nothing).await;
    assert!(unchanged.is_after && unchanged.exists);
    assert_eq!(unchanged.position.as_ref(), Some(&read[1].cursor));
    assert!(!look_up(&source, &key("1", "Ö"), Some(last), &nothing).await.is_after);

    world.execute("UPDATE dbo.t SET n = 20 WHERE code = N'Ö'").await;
    world.execute("DELETE FROM dbo.t WHERE id = 2").await;
    let (changes, _) = events(&source, Some(last), 9).await;
    assert_eq!(changes.len(), 2);
    let updated = look_up(&source, &key("1", "Ö"), Some(last), &nothing).await;
    assert!(updated.is_after && updated.exists && !updated.is_deleted);
    assert_eq!(updated.position.as_ref(), Some(&changes[0].cursor));
    let deleted = look_up(&source, &key("2", "a"), Some(last), &nothing).await;
    assert!(deleted.is_after && !deleted.exists && deleted.is_deleted && deleted.is_selected);
    assert_eq!(deleted.position.as_ref(), Some(&changes[1].cursor));
    assert_eq!(changes[1].op, Operation::Delete);
    let end = &changes[1].cursor;
    for key in [key("1", "Ö"), key("2", "a"), key("1", "a")] {
        assert!(!look_up(&source, &key, Some(end), &nothing).await.is_after, "{key:?}");
    }
    let missing = look_up(&source, &key("9", "a"), Some(end), &nothing).await;
    assert!(!missing.exists && !missing.is_deleted && missing.position.is_none());
}

#[tokio::test]
async fn a_key_of_the_wrong_type_is_an_error_about_the_key() {
    let world = AnyServer::start(
        "CREATE TABLE dbo.t (at date NOT NULL PRIMARY KEY, rv rowversion NOT NULL)",
    )
    .await;
    let of = world.settings("t", CursorMode::RowVersion, "rv");
    let source = Mssql::new(SourceSettings { key: vec!["at".to_owned()], ..of }).unwrap();
    let (key, state) = (KeyValues::from_iter([("at", json!("soon"))]), SourceState::new());
    let lookup = RowLookup { key: &key, stored: None, after: None, state: &state };
    let error = source.look_up(lookup).await.unwrap_err();
    assert!(matches!(error, LookupError::Value { .. }), "{error:?}");
    assert!(error.to_string().starts_with("invalid value for key column `at`"), "{error}");
}

#[tokio::test]
async fn a_locked_row_is_reported_and_any_other_failure_is_an_error() {
    let world = World::start(TABLE).await;
    let source = Mssql::new(settings(world.settings("t", CursorMode::RowVersion, "rv"))).unwrap();
    let (wanted, nothing) = (key("1", "a"), SourceState::new());
    let lookup = RowLookup { key: &wanted, stored: None, after: None, state: &nothing };
    let fail = |number| {
        let error = SqlError::new(number, 16, "scripted");
        world.server.faults().arm_matching("__done", 1, Fault::Error(error));
    };
    fail(1222);
    let found = source.look_up(lookup).await.unwrap();
    assert!(found.is_locked && found.position.is_none(), "{found:?}");
    fail(229);
    let error = source.look_up(lookup).await.unwrap_err();
    assert!(chain(&error).contains("scripted"), "{error:?}");
    // An answer that breaks off is no answer; the request is not sent again after its first row.
    world.server.faults().arm_matching("__done", 1, Fault::DropAfterRows(2));
    assert!(source.look_up(lookup).await.is_err());
    assert!(source.look_up(lookup).await.unwrap().exists);
}
