//! Mode `change_tracking`: rows first, then changes including deletes, and never past changes that were
//! cleaned up.

use highwater::admin::ResetTo;
use highwater::config::Relation;
use highwater::cursor::CursorMode::ChangeTracking;
use highwater::event::Operation;
use highwater::poller::outcome_row;
use highwater::source::mssql::Mssql;
use highwater::source::{FetchWindow, Rows, Source as _};

use crate::ticks::{Ticks, commit};

const TRACKED: &str = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, note nvarchar(9) NULL); \
                       ALTER TABLE dbo.t ENABLE CHANGE_TRACKING";

async fn tracked(rows: &str) -> Ticks {
    let ticks = Ticks::concurrent(TRACKED, ChangeTracking).await;
    ticks.at(0).await.run(rows).await;
    ticks
}

/// Changes that can be cleaned up on demand.
async fn forgetful(rows: &str) -> Ticks {
    let needs = "a clean-up of changes on demand";
    let ticks = Ticks::embedded(TRACKED, ChangeTracking, needs).await;
    ticks.at(0).await.run(rows).await;
    ticks
}

impl Ticks {
    /// The keys delivered since `from`, with `-2` for a delete of key 2.
    fn signed(&self, from: usize) -> Vec<i64> {
        let received = self.handler.received();
        received[from..]
            .iter()
            .flat_map(|delivery| delivery.ids.iter().copied().zip(delivery.ops.clone()))
            .map(|(id, op)| if op == Operation::Delete { -id } else { id })
            .collect()
    }

    /// The operations and keys that the next tick delivers, like `insert 1`.
    async fn operations(&mut self) -> Vec<String> {
        let from = self.handler.received().len();
        self.tick().await;
        let received = self.handler.received();
        let pairs = received[from..]
            .iter()
            .flat_map(|delivery| delivery.ops.clone().into_iter().zip(delivery.ids.clone()));
        pairs.map(|(op, id)| format!("{op} {id}")).collect()
    }

    async fn changes(&mut self) -> Vec<i64> {
        let from = self.handler.received().len();
        self.tick().await;
        self.signed(from)
    }
}

#[tokio::test]
async fn existing_rows_come_first_then_changes_with_deletes() {
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (1, 'a'), (2, 'b'), (3, 'c')").await;
    assert_eq!(ticks.changes().await, [1, 2, 3]);
    assert_eq!(ticks.document().await.checkpoint.cursor.unwrap().value, "snapshot@1");
    ticks.run("UPDATE dbo.t SET note = 'z' WHERE id = 2; DELETE FROM dbo.t WHERE id = 1").await;
    ticks.run("INSERT INTO dbo.t VALUES (4, 'd')").await;
    // The new row is after the last one read, and is a change all the same: it is delivered once.
    assert_eq!(ticks.changes().await, [2, -1, 4]);
    assert_eq!(ticks.document().await.checkpoint.cursor.unwrap().value, "4");
    assert_eq!(ticks.changes().await, [0; 0]);
}

#[tokio::test]
async fn changes_carry_the_operation_since_the_position() {
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (1, 'a'), (2, 'b'), (3, 'c')").await;
    assert_eq!(ticks.operations().await, ["upsert 1", "upsert 2", "upsert 3"], "existing rows");
    ticks.run("UPDATE dbo.t SET note = 'z' WHERE id = 2; DELETE FROM dbo.t WHERE id = 1").await;
    ticks.run("INSERT INTO dbo.t VALUES (4, 'd')").await;
    assert_eq!(ticks.operations().await, ["update 2", "delete 1", "insert 4"]);
    // Several changes of a row between two ticks are one.
    ticks.run("INSERT INTO dbo.t VALUES (5, 'e'), (6, 'f')").await;
    ticks.run("UPDATE dbo.t SET note = 'y' WHERE id IN (4, 5)").await;
    ticks.run("DELETE FROM dbo.t WHERE id = 6").await;
    assert_eq!(ticks.operations().await, ["update 4", "insert 5", "delete 6"]);
    ticks.run("UPDATE dbo.t SET note = 'x' WHERE id = 5").await;
    assert_eq!(ticks.operations().await, ["update 5"]);
}

#[tokio::test]
async fn an_insert_that_changes_while_a_backlog_is_read_is_not_lost() {
    use Operation::{Insert, Update};
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (0, 'a')").await;
    ticks.settings.operations = Some(vec![Insert, Update]);
    ticks.changes().await;
    // The changes must be between two reads, and batches are of two rows.
    ticks.flow.prefetch = false;
    ticks.run("INSERT INTO dbo.t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')").await;
    let mut writer = ticks.world.session().await;
    ticks.handler.then(async move {
        writer.run("UPDATE dbo.t SET note = 'z' WHERE id IN (1, 4)").await;
        Ok::<(), highwater::handler::HandlerError>(())
    });
    // The position has passed the insert of row 4, which was not delivered.
    let expected = ["insert 1", "insert 2", "insert 3", "insert 1", "update 4"];
    assert_eq!(ticks.operations().await, expected);
    assert_eq!(ticks.operations().await, [""; 0]);
}

#[tokio::test]
async fn only_selected_operations_are_delivered_and_the_position_passes_the_others() {
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (1, 'a'), (2, 'b')").await;
    ticks.settings.operations = Some(vec![Operation::Delete]);
    assert_eq!(ticks.operations().await, ["upsert 1", "upsert 2"], "existing rows are no changes");
    ticks.run("UPDATE dbo.t SET note = 'z' WHERE id = 2").await;
    assert_eq!(ticks.operations().await, [""; 0]);
    ticks.run("UPDATE dbo.t SET note = 'y' WHERE id = 1; INSERT INTO dbo.t VALUES (3, 'c')").await;
    ticks.run("DELETE FROM dbo.t WHERE id = 2; UPDATE dbo.t SET note = 'x' WHERE id = 1").await;
    assert_eq!(ticks.operations().await, ["delete 2"]);
    // With other operations the poller continues after the changes that it has passed.
    ticks.settings.operations = Some(vec![Operation::Insert, Operation::Update]);
    assert_eq!(ticks.operations().await, [""; 0]);
    ticks.run("UPDATE dbo.t SET note = 'w' WHERE id = 3; DELETE FROM dbo.t WHERE id = 1").await;
    ticks.run("INSERT INTO dbo.t VALUES (4, 'd')").await;
    assert_eq!(ticks.operations().await, ["update 3", "insert 4"]);
}

#[tokio::test]
async fn changes_of_one_transaction_may_be_split_across_batches_without_loss() {
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (0, 'a')").await;
    ticks.changes().await;
    ticks.run("INSERT INTO dbo.t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e')").await;
    ticks.run("DELETE FROM dbo.t WHERE id IN (2, 4)").await;
    // Batches are of two; all but the deletes share a version.
    assert_eq!(ticks.changes().await, [1, 3, 5, -2, -4]);
    assert_eq!(ticks.changes().await, [0; 0]);
}

#[tokio::test]
async fn changes_during_the_initial_read_are_delivered_again() {
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (1, 'a'), (2, 'b'), (3, 'c')").await;
    // The changes must be between two reads.
    ticks.flow.prefetch = false;
    let mut writer = ticks.world.session().await;
    ticks.handler.then(async move {
        writer.run("UPDATE dbo.t SET note = 'z' WHERE id = 1").await;
        writer.run("DELETE FROM dbo.t WHERE id = 3").await;
        Ok::<(), highwater::handler::HandlerError>(())
    });
    assert_eq!(ticks.changes().await, [1, 2, 1, -3], "row 3 was gone before it was read");
}

#[tokio::test]
async fn late_commits_get_later_versions_and_are_not_skipped() {
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (9, 'a')").await;
    ticks.changes().await;
    let late = ticks.begin("INSERT INTO dbo.t VALUES (1, 'late')").await;
    ticks.run("INSERT INTO dbo.t VALUES (2, 'early')").await;
    assert_eq!(ticks.changes().await, [2]);
    commit(late).await;
    assert_eq!(ticks.changes().await, [1]);
}

#[tokio::test]
async fn a_position_with_cleaned_up_changes_stops_and_skips_nothing() {
    let mut ticks = forgetful("INSERT INTO dbo.t VALUES (1, 'a')").await;
    ticks.changes().await;
    ticks.run("UPDATE dbo.t SET note = 'b'").await;
    ticks.changes().await;
    ticks.run("DELETE FROM dbo.t").await;
    ticks.world.database().forget_changes("dbo.t").unwrap();
    ticks.run("INSERT INTO dbo.t VALUES (2, 'c')").await;
    let mut error = String::new();
    for _ in 0..2 {
        let report = ticks.report().await;
        let row = outcome_row(&report.result);
        assert_eq!((row.event, row.status), ("position_lost", 500));
        error = highwater::error::chain(&report.result.unwrap_err());
        assert!(error.contains("up to version `2`, and are kept from version `3` on"), "{error}");
        assert_eq!(ticks.document().await.checkpoint.cursor.unwrap().value, "2");
    }
    // Changes that were cleaned up are gone, so the position cannot be kept.
    assert!(!error.contains(" keep "), "{error}");
    let keep = Box::pin(ticks.process().admin().plan_reset(ResetTo::Keep, true)).await;
    let refused = highwater::error::chain(&keep.unwrap_err());
    assert!(refused.contains("the position cannot be kept"), "{refused}");
    assert!(refused.contains("are kept from version `3` on"), "{refused}");
    ticks.recovers(&error).await;
}

/// A source that closes a batch after a few rows.
fn read_into_small_batches(ticks: &mut Ticks) -> Mssql {
    ticks.settings.limits.batch_bytes_max = 80;
    Mssql::new(ticks.settings.clone()).unwrap()
}

#[tokio::test]
async fn a_truncated_response_is_checked_before_delivery() {
    let noted = "'abcdefghi'";
    let mut ticks =
        forgetful(&format!("INSERT INTO dbo.t VALUES (1, {noted}), (2, {noted})")).await;
    ticks.changes().await;
    let at = ticks.document().await.checkpoint.cursor;
    let state = highwater::cursor::SourceState::new();
    let window = FetchWindow { after: at.as_ref(), upto: None, rows_max: 10, state: &state };
    for (id, note) in [(3, "a"), (4, "b"), (5, "c"), (6, "d"), (7, "e"), (8, "f")] {
        ticks.run(&format!("INSERT INTO dbo.t VALUES ({id}, '{note}bcdefghi')")).await;
    }
    let source = read_into_small_batches(&mut ticks);
    let rows = source.fetch(window).await.unwrap();
    assert!((1..6).contains(&rows.rows.len()) && rows.more, "cut: {rows:?}");
    let known = rows.remember.is_some_and(|it| it.state.contains_key("complete_to"));
    assert!(!known, "what lies behind was not read");
    ticks.world.database().forget_changes("dbo.t").unwrap();
    let source = read_into_small_batches(&mut ticks);
    let error = source.fetch(window).await.unwrap_err();
    assert!(error.is_position_lost(), "{error}");
    assert!(
        error.reason.contains("up to version `1`, and are kept from version `7` on"),
        "{error}"
    );
    // Reported before a value over the limit, since raising the limit would be in vain.
    ticks.settings.limits.value_bytes_max = 4;
    let source = read_into_small_batches(&mut ticks);
    let error = source.fetch(window).await.unwrap_err();
    assert!(error.is_position_lost(), "{error}");
}

#[tokio::test]
async fn a_value_over_the_limit_is_named_among_rows_and_among_changes() {
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (1, 'abcdefghi')").await;
    ticks.settings.limits.value_bytes_max = 10;
    let named = "column `note` of `dbo.t` has a value of 18 bytes in the row with key {\"id\":1}";
    let error = ticks.failure().await;
    assert!(error.contains(named), "{error}");
    ticks.run("UPDATE dbo.t SET note = 'a' WHERE id = 1").await;
    assert_eq!(ticks.changes().await, [1]);
    ticks
        .run("INSERT INTO dbo.t VALUES (2, 'b'); UPDATE dbo.t SET note = 'abcdefghi' WHERE id = 1")
        .await;
    ticks.run("DELETE FROM dbo.t WHERE id = 2").await;
    let error = ticks.failure().await;
    assert!(error.contains(named), "{error}");
    ticks.run("DELETE FROM dbo.t WHERE id = 1").await;
    assert_eq!(ticks.changes().await, [-2, -1]);
}

#[tokio::test]
async fn changes_expiring_during_the_initial_read_stop_the_poller_too() {
    let mut ticks = forgetful("INSERT INTO dbo.t VALUES (1, 'a'), (2, 'b'), (3, 'c')").await;
    let database = ticks.world.database().clone();
    ticks.handler.then(async move {
        database.execute("DELETE FROM dbo.t WHERE id = 1").unwrap();
        database.forget_changes("dbo.t").unwrap();
        Ok::<(), highwater::handler::HandlerError>(())
    });
    let error = ticks.failure().await;
    assert!(error.contains("up to version `1`, and are kept from version `2` on"), "{error}");
    ticks.recovers(&error).await;
}

#[tokio::test]
async fn the_position_of_an_idle_table_is_renewed_before_it_expires() {
    let mut ticks = forgetful("INSERT INTO dbo.t VALUES (1, 'a')").await;
    ticks.changes().await;
    ticks.run("UPDATE dbo.t SET note = 'b'").await;
    ticks.changes().await;
    ticks
        .run("CREATE TABLE dbo.u (id int PRIMARY KEY); ALTER TABLE dbo.u ENABLE CHANGE_TRACKING")
        .await;
    ticks.run("INSERT INTO dbo.u VALUES (1)").await;
    assert_eq!(ticks.tick_at(100).await, (vec![], 0), "not each tick writes");
    assert_eq!(ticks.tick_at(301).await, (vec![], 1));
    assert_eq!(ticks.tick_at(700).await, (vec![], 0), "nothing happened since");
    ticks.world.database().forget_changes("dbo.t").unwrap();
    ticks.run("INSERT INTO dbo.t VALUES (2, 'c')").await;
    assert_eq!(ticks.changes().await, [2]);
}

#[tokio::test]
async fn a_failed_batch_is_reread_unchanged() {
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (1, 'a'), (2, 'b')").await;
    let refuse = || highwater::handler::HandlerError::Retryable("503".to_owned());
    ticks.handler.then_fail(refuse());
    ticks.failure().await;
    // One version later, the rows are still those of the first one.
    ticks.run("INSERT INTO dbo.t VALUES (3, 'c')").await;
    assert_eq!(ticks.changes().await, [1, 2, 3, 3]);
    ticks.run("DELETE FROM dbo.t WHERE id = 1; UPDATE dbo.t SET note = 'z'").await;
    ticks.handler.then_fail(refuse());
    ticks.failure().await;
    assert_eq!(ticks.changes().await, [-1, 2, 3]);
    let received = ticks.handler.received();
    let ids: Vec<_> = received.iter().map(|delivery| &delivery.batch_id).collect();
    assert_eq!(ids[0], ids[1], "the rows");
    assert_eq!(ids[3], ids[4], "the changes");
}

#[tokio::test]
async fn tracking_that_is_off_or_was_off_is_an_error() {
    let mut ticks = tracked("ALTER TABLE dbo.t DISABLE CHANGE_TRACKING").await;
    let error = ticks.failure().await;
    assert!(error.contains("run `ALTER TABLE [dbo].[t] ENABLE CHANGE_TRACKING`"), "{error}");
    ticks.run("ALTER TABLE dbo.t ENABLE CHANGE_TRACKING; INSERT INTO dbo.t VALUES (1, 'a')").await;
    assert_eq!(ticks.changes().await, [1]);
    ticks.run("UPDATE dbo.t SET note = 'b'").await;
    assert_eq!(ticks.changes().await, [1]);
    ticks.run("ALTER TABLE dbo.t DISABLE CHANGE_TRACKING").await;
    let error = ticks.failure().await;
    assert!(error.contains("changes made while tracking is off stay unknown"), "{error}");
    assert!(error.contains("Turn tracking on if it is still off"), "{error}");
    // It is rejected, with the right command.
    let refused = ticks.follow(&error).await.unwrap_err();
    assert!(refused.contains("run `ALTER TABLE [dbo].[t] ENABLE CHANGE_TRACKING`"), "{refused}");
    ticks.run("INSERT INTO dbo.t VALUES (2, 'c')").await;
    ticks.run("ALTER TABLE dbo.t ENABLE CHANGE_TRACKING; INSERT INTO dbo.t VALUES (3, 'd')").await;
    // The changes in between remain unknown, however often they are requested.
    ticks.failure().await;
    let error = ticks.failure().await;
    ticks.recovers(&error).await;
}

#[tokio::test]
async fn a_filter_excludes_rows_but_not_deletes() {
    let mut ticks = tracked("INSERT INTO dbo.t VALUES (1, 'eu'), (2, 'us'), (3, 'eu')").await;
    ticks.settings.filter = Some("id > 0 AND note = 'eu' -- only these".to_owned());
    assert_eq!(ticks.changes().await, [1, 3]);
    ticks.run("UPDATE dbo.t SET note = 'us' WHERE id = 1; DELETE FROM dbo.t WHERE id = 2").await;
    ticks.run("UPDATE dbo.t SET note = 'eu' WHERE id = 3").await;
    assert_eq!(ticks.changes().await, [-2, 3]);
}

#[tokio::test]
async fn the_key_must_be_the_primary_key() {
    let mut ticks = tracked("CREATE TABLE dbo.u (a int, b int, PRIMARY KEY (a, b))").await;
    ticks.settings.relation = Relation::Table("u".to_owned());
    ticks.settings.key = vec!["a".to_owned()];
    let error = ticks.failure().await;
    assert!(error.contains("needs the primary key of `dbo.u`, `a`, `b`: set"), "{error}");
    ticks.run("CREATE TABLE dbo.v (a int)").await;
    ticks.settings.relation = Relation::Table("v".to_owned());
    let error = ticks.failure().await;
    assert!(error.contains("`dbo.v` has no primary key"), "{error}");
}

#[tokio::test]
async fn a_composite_key_is_read_back_from_a_deleted_row() {
    let mut ticks = tracked(
        "CREATE TABLE dbo.[u v] ([a b] nvarchar(9) NOT NULL, c bigint NOT NULL, x int, \
         PRIMARY KEY (c, [a b])); ALTER TABLE dbo.[u v] ENABLE CHANGE_TRACKING; \
         INSERT INTO dbo.[u v] VALUES ('p', 1, 1), ('q', 1, 2), ('p', 2, 3)",
    )
    .await;
    ticks.settings.relation = Relation::Table("[u v]".to_owned());
    ticks.settings.key = vec!["a b".to_owned(), "c".to_owned()];
    ticks.settings.columns = Some(vec!["x".to_owned()]);
    let source = Mssql::new(ticks.settings.clone()).unwrap();
    let state = highwater::cursor::SourceState::new();
    let fetch = |after: Option<highwater::cursor::Cursor>| {
        let (source, state) = (&source, &state);
        async move {
            let window = FetchWindow { after: after.as_ref(), upto: None, rows_max: 2, state };
            let rows: Rows = source.fetch(window).await.unwrap();
            let events = highwater::normalize::normalize(source.shape(), &rows).unwrap();
            (rows, events)
        }
    };
    let (rows, first) = fetch(None).await;
    assert_eq!(rows.columns.names(), ["x"]);
    let pk = |event: &highwater::event::ChangeEvent| {
        (event.cursor.key["a b"].clone(), event.cursor.key["c"].clone())
    };
    assert_eq!(
        first.iter().map(pk).collect::<Vec<_>>(),
        [("p".into(), 1.into()), ("p".into(), 2.into())]
    );
    ticks.run("DELETE FROM dbo.[u v] WHERE c = 1").await;
    let (rows, second) = fetch(Some(first[1].cursor.clone())).await;
    assert_eq!(
        second.iter().map(pk).collect::<Vec<_>>(),
        [("p".into(), 1.into()), ("q".into(), 1.into())]
    );
    assert!(second.iter().all(|event| event.op == Operation::Delete));
    assert!(second[0].json.contains(r#""after":null"#), "{}", second[0].json);
    assert_eq!(rows.object(&rows.rows[0]), "");
}

crate::ticks::also_cold![
    existing_rows_come_first_then_changes_with_deletes,
    changes_carry_the_operation_since_the_position,
    an_insert_that_changes_while_a_backlog_is_read_is_not_lost,
    only_selected_operations_are_delivered_and_the_position_passes_the_others,
    changes_of_one_transaction_may_be_split_across_batches_without_loss,
    changes_during_the_initial_read_are_delivered_again,
    late_commits_get_later_versions_and_are_not_skipped,
    a_position_with_cleaned_up_changes_stops_and_skips_nothing,
    a_truncated_response_is_checked_before_delivery,
    a_value_over_the_limit_is_named_among_rows_and_among_changes,
    changes_expiring_during_the_initial_read_stop_the_poller_too,
    the_position_of_an_idle_table_is_renewed_before_it_expires,
    a_failed_batch_is_reread_unchanged,
    tracking_that_is_off_or_was_off_is_an_error,
    a_filter_excludes_rows_but_not_deletes,
    the_key_must_be_the_primary_key,
    a_composite_key_is_read_back_from_a_deleted_row,
];
