//! Soft deletes: a column that marks them, in every mode that reads its change.

use highwater::config::Relation;
use highwater::cursor::CursorMode::{self, ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::error::ErrorKind;
use highwater::event::Operation;
use highwater::source::mssql::{Mssql, SourceSettings};

use crate::any_server::AnyServer;
use crate::sql::{events, failure};

const TABLE: &str = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, \
     at datetime2(7) NOT NULL, flag bit NULL, count_of int NOT NULL, gone_at datetime2(3) NULL, \
     gone_by nvarchar(max) NULL, note nvarchar(9) NOT NULL)";

async fn world() -> AnyServer {
    let world = AnyServer::start(TABLE).await;
    world.track("dbo.t").await;
    world
        .execute(
            "INSERT INTO dbo.t (id, at, flag, count_of, gone_at, gone_by, note) VALUES \
             (1, '2020-01-01', 0, 0, NULL, NULL, N'a'), (2, '2020-01-01', 1, 2, '2020-01-01', N'', N'b'), \
             (3, '2020-01-01', NULL, 0, NULL, NULL, N'c'), \
             (4, '2020-01-02', 1, -1, '0001-01-01', N'me', N'd')",
        )
        .await;
    world
}

fn settings(world: &AnyServer, mode: CursorMode, column: &str) -> SourceSettings {
    let cursor = if mode == TimestampPk { "at" } else { "rv" };
    let settings = world.settings("t", mode, cursor);
    SourceSettings { soft_delete: Some(column.to_owned()), ..settings }
}

/// Key, operation and `after` of each event, one by one.
async fn described(settings: SourceSettings, count: usize) -> Vec<String> {
    let source = Mssql::new(settings).unwrap();
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..count {
        let (events, _) = events(&source, after.as_ref(), 1).await;
        let Some(event) = events.into_iter().next() else { break };
        let json: serde_json::Value = serde_json::from_str(&event.json).unwrap();
        let note = &json["after"]["note"];
        found.push(format!("{} {} {note}", json["pk"]["id"], json["op"].as_str().unwrap()));
        after = Some(event.cursor);
    }
    found
}

const EXPECTED: [&str; 4] = ["1 upsert \"a\"", "2 delete null", "3 upsert \"c\"", "4 delete null"];

#[tokio::test]
async fn a_soft_deleted_row_is_a_delete_in_every_mode_that_reads_it() {
    let world = world().await;
    for mode in [RowVersion, TimestampPk, ChangeTracking] {
        for column in ["flag", "Count_Of", "gone_at", "gone_by"] {
            assert_eq!(
                described(settings(&world, mode, column), 9).await,
                EXPECTED,
                "{mode} by {column}"
            );
        }
    }
    let columns = Some(vec!["note".to_owned()]);
    let listed = SourceSettings { columns, ..settings(&world, RowVersion, "flag") };
    assert_eq!(described(listed, 9).await, EXPECTED, "the column need not be delivered");
    let query = Relation::Query("SELECT id, rv, flag, note FROM dbo.t".to_owned());
    let query = SourceSettings { relation: query, ..settings(&world, RowVersion, "flag") };
    assert_eq!(described(query, 9).await, EXPECTED);
}

#[tokio::test]
async fn changes_distinguish_soft_deletes_hard_deletes_and_reinserted_rows() {
    let world = world().await;
    let source = Mssql::new(settings(&world, ChangeTracking, "flag")).unwrap();
    let (all, _) = events(&source, None, 9).await;
    world.execute("UPDATE dbo.t SET flag = 1 WHERE id = 1").await;
    world.execute("DELETE FROM dbo.t WHERE id = 2; UPDATE dbo.t SET flag = 0 WHERE id = 4").await;
    let (changes, _) = events(&source, Some(&all[3].cursor), 9).await;
    let described: Vec<_> = changes
        .iter()
        .map(|event| {
            let json: serde_json::Value = serde_json::from_str(&event.json).unwrap();
            format!(
                "{} {} {}",
                json["pk"]["id"],
                json["op"].as_str().unwrap(),
                json["after"]["note"]
            )
        })
        .collect();
    assert_eq!(described, ["1 delete null", "2 delete null", "4 update \"d\""]);
}

#[tokio::test]
async fn soft_deletes_can_be_selected_and_excluded() {
    let world = world().await;
    for mode in [RowVersion, TimestampPk, ChangeTracking] {
        let of = |operations: &[Operation]| SourceSettings {
            operations: Some(operations.to_vec()),
            ..settings(&world, mode, "flag")
        };
        let (rows, deletes) = if mode == ChangeTracking {
            (of(&[Operation::Insert, Operation::Update]), of(&[Operation::Delete]))
        } else {
            (of(&[Operation::Upsert]), of(&[Operation::Delete]))
        };
        assert_eq!(described(rows, 9).await, [EXPECTED[0], EXPECTED[2]], "{mode}");
        let expected = if mode == ChangeTracking {
            // Existing rows are no changes.
            EXPECTED.to_vec()
        } else {
            vec![EXPECTED[1], EXPECTED[3]]
        };
        assert_eq!(described(deletes, 9).await, expected, "{mode}");
    }
}

#[tokio::test]
async fn operations_that_cannot_be_selected_are_rejected() {
    let world = world().await;
    for (mode, operation, expected) in [
        (RowVersion, Operation::Insert, "has `insert`, expected `upsert` or `delete`"),
        (ChangeTracking, Operation::Upsert, "which mode `change_tracking` distinguishes"),
        (ChangeTracking, Operation::Insert, "expected `insert` together with `update`"),
    ] {
        let operations = Some(vec![operation]);
        let settings = SourceSettings { operations, ..settings(&world, mode, "flag") };
        let (error, text) = failure(settings).await;
        assert!(text.contains(expected), "`{expected}` not in `{text}`");
        assert_eq!(error.kind, ErrorKind::Configuration);
    }
}

#[tokio::test]
async fn an_unsuitable_delete_column_is_rejected() {
    let world = world().await;
    for (settings, expected) in [
        (settings(&world, RowVersion, "note"), "never NULL, so every row would count as deleted"),
        (settings(&world, RowVersion, "at"), "set a flag, or a column that is NULL until deletion"),
        (settings(&world, RowVersion, "flg"), "soft-delete column `flg` is not in `dbo.t`"),
        (
            SourceSettings {
                mode: Some(IntegerPk),
                cursor_column: Some("id".to_owned()),
                ..settings(&world, IntegerPk, "flag")
            },
            "mode `integer+pk` sees inserted rows only",
        ),
    ] {
        let (error, text) = failure(settings).await;
        assert!(text.contains(expected), "`{expected}` not in `{text}`");
        assert_eq!(error.kind, ErrorKind::Configuration);
    }
}
