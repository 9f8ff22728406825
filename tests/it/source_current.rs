//! The current row of a key: in each mode the same event as in a regular read.

use std::time::Duration;

use highwater::cursor::{Cursor, CursorMode};
use highwater::error::{ErrorKind, chain};
use highwater::event::{ChangeEvent, Operation};
use highwater::normalize::normalize;
use highwater::source::Source as _;
use highwater::source::mssql::{Mssql, SizeLimits, SourceSettings};

use crate::any_server::AnyServer;
use crate::sql::{World, events};

const TABLE: &str = "CREATE TABLE dbo.t (id int NOT NULL, code nvarchar(9) NOT NULL, \
                     at datetime2(3) NOT NULL, n bigint NOT NULL, rv rowversion NOT NULL, \
                     CONSTRAINT pk PRIMARY KEY (id, code)); \
                     INSERT INTO dbo.t (id, code, at, n) VALUES \
                     (1, N'a', '2020-01-01T10:00:00', 10), (1, N'Ö', '2020-01-01T10:00:00.003', 11), \
                     (2, N'a', '2020-01-02T10:00:00', 12)";

/// Each mode, its cursor column, and how a row is changed in it.
const MODES: [(CursorMode, &str, &str); 3] = [
    (CursorMode::RowVersion, "rv", "n = n"),
    (CursorMode::TimestampPk, "at", "at = '2020-01-03T10:00:00'"),
    (CursorMode::IntegerPk, "n", "n = 20"),
];

fn settings(settings: SourceSettings) -> SourceSettings {
    let key = ["id", "code"].map(str::to_owned).to_vec();
    SourceSettings { key, settle: Duration::ZERO, ..settings }
}

async fn current(source: &Mssql, at: &Cursor) -> Option<ChangeEvent> {
    let rows = source.current(at).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let mut events = normalize(source.shape(), &rows).unwrap();
    assert!(events.len() < 2 && !rows.more && rows.remember.is_none());
    events.pop()
}

#[tokio::test]
async fn an_unchanged_row_produces_the_same_event() {
    for (mode, column, change) in MODES {
        let world = AnyServer::start(TABLE).await;
        let source = Mssql::new(settings(world.settings("t", mode, column))).unwrap();
        let (read, _) = events(&source, None, 9).await;
        assert_eq!(read.len(), 3);
        for event in &read {
            assert_eq!(current(&source, &event.cursor).await.as_ref(), Some(event), "{mode}");
        }
        world.execute(&format!("UPDATE dbo.t SET {change} WHERE id = 1 AND code = N'Ö'")).await;
        let before = &read[1].cursor;
        let now = current(&source, before).await.unwrap();
        let (in_turn, _) = events(&source, Some(&read[2].cursor), 9).await;
        assert_eq!([&now], in_turn.iter().collect::<Vec<_>>().as_slice(), "{mode}");
        assert_ne!(now.id, read[1].id);
        world.execute("DELETE FROM dbo.t WHERE id = 1").await;
        assert_eq!(current(&source, before).await, None);
        assert!(current(&source, &read[2].cursor).await.is_some());
    }
}

#[tokio::test]
async fn a_row_excluded_by_the_filter_is_not_found() {
    for (mode, column, _) in MODES {
        let world = AnyServer::start(TABLE).await;
        let base = settings(world.settings("t", mode, column));
        let (read, _) = events(&Mssql::new(base.clone()).unwrap(), None, 9).await;
        let filter = Some("id = 2 OR id = 3 -- the rest is elsewhere".to_owned());
        let source = Mssql::new(SourceSettings { filter, ..base }).unwrap();
        assert_eq!(current(&source, &read[0].cursor).await, None);
        assert!(current(&source, &read[2].cursor).await.is_some());
    }
}

#[tokio::test]
async fn a_row_whose_operation_is_not_selected_is_distinguished_from_a_row_that_is_gone() {
    for (mode, column, _) in MODES.into_iter().filter(|(mode, ..)| *mode != CursorMode::IntegerPk) {
        let world = AnyServer::start(TABLE).await;
        world.execute("ALTER TABLE dbo.t ADD gone bit NULL").await;
        world.execute("UPDATE dbo.t SET gone = 1 WHERE id = 2").await;
        let all = SourceSettings {
            soft_delete: Some("gone".to_owned()),
            ..settings(world.settings("t", mode, column))
        };
        let (read, _) = events(&Mssql::new(all.clone()).unwrap(), None, 9).await;
        let of = |operation| {
            let operations = Some(vec![operation]);
            Mssql::new(SourceSettings { operations, ..all.clone() }).unwrap()
        };
        let (upserts, deletes) = (of(Operation::Upsert), of(Operation::Delete));
        let is_unselected = async |source: &Mssql, event: &ChangeEvent| {
            let rows = source.current(&event.cursor).await.unwrap();
            assert!(rows.rows.is_empty() || !rows.is_unselected);
            (rows.rows.len(), rows.is_unselected)
        };
        for event in &read {
            let is_delete = event.op == Operation::Delete;
            let (yes, no) = ((1, false), (0, true));
            let expected = if is_delete { [no, yes] } else { [yes, no] };
            let found =
                [is_unselected(&upserts, event).await, is_unselected(&deletes, event).await];
            assert_eq!(found, expected, "{mode}");
        }
        world.execute("DELETE FROM dbo.t").await;
        for event in &read {
            assert_eq!(is_unselected(&deletes, event).await, (0, false), "{mode}");
        }
    }
}

#[tokio::test]
async fn an_invalid_key_is_an_error_and_a_row_that_is_too_large_is_unreadable() {
    let world = AnyServer::start(TABLE).await;
    let base = settings(world.settings("t", CursorMode::RowVersion, "rv"));
    let (read, _) = events(&Mssql::new(base.clone()).unwrap(), None, 9).await;
    let wrong = async |settings: SourceSettings, at: &Cursor| {
        let error = Mssql::new(settings).unwrap().current(at).await.unwrap_err();
        (error.kind, chain(&error))
    };
    let no_key = SourceSettings { key: vec!["id".to_owned()], ..base.clone() };
    let (kind, text) = wrong(no_key, &read[0].cursor).await;
    assert_eq!(kind, ErrorKind::Configuration);
    assert!(text.contains("several rows of `dbo.t`"), "{text}");
    let mut keyless = read[0].cursor.clone();
    let others = keyless.key.iter().filter(|(name, _)| *name != "code");
    keyless.key = others.map(|(name, value)| (name.to_owned(), value.clone())).collect();
    let (_, text) = wrong(base.clone(), &keyless).await;
    assert!(text.contains("key column `code`"), "{text}");
    world.execute("ALTER TABLE dbo.t ADD note nvarchar(max) NULL").await;
    world.execute("UPDATE dbo.t SET note = N'long'").await;
    let limits = SizeLimits { value_bytes_max: 1, ..base.limits };
    let source = Mssql::new(SourceSettings { limits, ..base }).unwrap();
    let rows = source.current(&read[0].cursor).await.unwrap();
    assert!(rows.rows[0].unreadable.is_some(), "{rows:?}");
}

#[tokio::test]
async fn a_tracked_row_has_the_same_position_as_in_a_regular_read() {
    let world = World::start(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, note nvarchar(9) NULL); \
         ALTER TABLE dbo.t ENABLE CHANGE_TRACKING; \
         INSERT INTO dbo.t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    )
    .await;
    let settings = world.settings("t", CursorMode::ChangeTracking, "");
    let source = Mssql::new(settings.clone()).unwrap();
    let (rows, _) = events(&source, None, 9).await;
    for event in &rows {
        assert_eq!(current(&source, &event.cursor).await.as_ref(), Some(event));
    }
    let run = |sql: &str| world.database.execute(sql).unwrap();
    run("UPDATE dbo.t SET note = 'z' WHERE id = 2");
    run("DELETE FROM dbo.t WHERE id = 3");
    let (changes, _) = events(&source, Some(&rows[2].cursor), 9).await;
    assert_eq!(changes[0].op, Operation::Update);
    // By its key, a row has no operation. The event and its id are the same otherwise.
    let json = changes[0].json.replace(r#""op":"update""#, r#""op":"upsert""#).into();
    let same = ChangeEvent { op: Operation::Upsert, json, ..changes[0].clone() };
    assert_eq!(current(&source, &rows[1].cursor).await.as_ref(), Some(&same), "by its row");
    assert_eq!(current(&source, &changes[0].cursor).await.as_ref(), Some(&same), "by its change");
    assert_eq!(current(&source, &rows[2].cursor).await, None);
    assert_eq!(current(&source, &changes[1].cursor).await, None, "what was deleted");
    assert_eq!(current(&source, &rows[0].cursor).await.as_ref(), Some(&rows[0]));
}
