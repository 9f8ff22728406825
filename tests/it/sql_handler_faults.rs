//! The handler `sql` when the database or the connection fails; needs the embedded server's faults.

use std::time::Duration;

use highwater::config::SqlHandlerConfig;
use highwater::handler::HandlerError;
use highwater::handler::sql::Sql;
use highwater_devdb::{Engine as _, Fault, Reply, SqlError, Value};

use crate::sql::{World, dropped_at_fault};
use crate::sql_handler::{
    COPIES, FENCE, GRANT, LEDGER, config, deliver, deliver_under, event, event_of, tables,
    with_ledger,
};

async fn world() -> World {
    World::start(&format!("{COPIES}; {}", tables())).await
}

fn settings(world: &World) -> SqlHandlerConfig {
    with_ledger(config(world.connection()))
}

fn handler(world: &World) -> Sql {
    Sql::new("shop", &settings(world)).unwrap()
}

/// Ids and items of the target, and how many events the ledger has.
fn found(world: &World) -> (Vec<String>, usize) {
    let mut session = world.database.connect("Highwater").unwrap();
    let mut rows = |sql: &str| match session.run(sql, &[]).into_iter().next() {
        Some(Reply::Rows { rows, .. }) => rows,
        reply => panic!("{sql}: {reply:?}"),
    };
    let text = |row: Vec<Value>| match &row[..] {
        [Value::Text(text)] => text.clone(),
        other => panic!("{other:?}"),
    };
    let copies = rows("SELECT CONCAT(id, item) FROM dbo.copies ORDER BY id");
    let noted = rows(&format!("SELECT app FROM {LEDGER}")).len();
    (copies.into_iter().map(text).collect(), noted)
}

fn all(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn error(number: i32) -> Fault {
    Fault::Error(SqlError::new(number, 13, "injected"))
}

#[tokio::test]
async fn transient_errors_are_retried_and_applied_once() {
    for (statement, fault) in [
        ("UPDATE [dbo].[highwater_fence]", error(1205)),
        ("INSERT INTO [dbo].[highwater_ledger]", error(1205)),
        ("UPDATE hw_t SET", error(1205)),
        ("UPDATE hw_t SET", error(1222)),
        ("UPDATE hw_t SET", Fault::DropBeforeRun),
        ("UPDATE hw_t SET", Fault::DropBeforeAnswer),
        ("BEGIN TRANSACTION", Fault::DropBeforeRun),
        ("COMMIT", error(1205)),
        ("COMMIT", Fault::DropBeforeRun),
        ("COMMIT", Fault::DropBeforeAnswer),
    ] {
        let world = world().await;
        let sql = handler(&world);
        deliver(&sql, &[event(1, 1, Some("a"))]).await.unwrap();
        world.server.faults().arm_matching(statement, 1, fault.clone());
        let batch = [event(2, 1, Some("b")), event(3, 2, Some("c"))];
        deliver(&sql, &batch).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
        assert_eq!(found(&world), (all(&["1b", "2c"]), 3), "{statement}: {fault:?}");
        // The same batch again, as after a lost response of the handler: nothing is written.
        world.database.execute("UPDATE dbo.copies SET item = N'kept'").unwrap();
        deliver(&sql, &batch).await.unwrap();
        assert_eq!(found(&world).0, all(&["1kept", "2kept"]), "{statement}: {fault:?}");
    }
}

#[tokio::test]
async fn exhausted_retries_report_the_last_error() {
    let world = world().await;
    let sql = handler(&world);
    world.server.faults().arm_matching("UPDATE hw_t SET", 3, error(1205));
    let failed = deliver(&sql, &[event(1, 1, Some("a"))]).await.unwrap_err();
    assert!(matches!(failed, HandlerError::Retryable(_)), "{failed:?}");
    assert!(failed.to_string().contains("error 1205"), "{failed}");
    assert_eq!(found(&world), (all(&[]), 0));
    world.server.faults().arm_matching("UPDATE hw_t SET", 1, error(40501));
    let config = SqlHandlerConfig { tries_max: 1, ..settings(&world) };
    let once = Sql::new("shop", &config).unwrap();
    let busy = deliver(&once, &[event(1, 1, Some("a"))]).await.unwrap_err();
    assert!(matches!(busy, HandlerError::Throttled { .. }), "{busy:?}");
    deliver(&sql, &[event(1, 1, Some("a"))]).await.unwrap();
    assert_eq!(found(&world), (all(&["1a"]), 1));
}

#[tokio::test]
async fn a_row_that_violates_a_constraint_is_rejected_with_the_reason() {
    let world = world().await;
    let sql = handler(&world);
    for (row, expected) in [
        (
            event(1, 1, Some("much too long")),
            "`dbo.copies` rejected the rows: error 2628: String or binary",
        ),
        (event(99_999_999, 1, Some("a")), "`dbo.copies` rejected the rows: error 8115"),
        (
            event_of(event(1, 1, None).cursor, 1, "a", "0.125"),
            "row with key {\"id\":1}: column `amount` of the target, of type `decimal(9, 2)`, expects \
             a number with no more decimal places than its scale",
        ),
    ] {
        let refused = deliver(&sql, &[event(5, 5, Some("e")), row]).await.unwrap_err();
        let HandlerError::Rejected(text) = refused else { panic!("{refused:?}") };
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(found(&world), (all(&[]), 0));
}

#[tokio::test]
async fn a_changed_target_is_described_again() {
    let world = world().await;
    let config = config(world.connection());
    let sql = Sql::new("shop", &config).unwrap();
    deliver(&sql, &[event(1, 1, Some("a"))]).await.unwrap();
    world.database.execute("DROP TABLE dbo.copies").unwrap();
    world.database.execute(&COPIES.replace("decimal(9, 2)", "decimal(19, 2)")).unwrap();
    // The amount would not fit the old description.
    deliver(&sql, &[event(99_999_999, 1, Some("b"))]).await.unwrap();
    assert_eq!(found(&world).0, all(&["1b"]));
}

/// The lease is lost while the handler writes: the engine drops it.
#[tokio::test]
async fn a_dropped_delivery_is_rolled_back() {
    let world = world().await;
    let sql = handler(&world);
    deliver(&sql, &[event(1, 1, Some("a"))]).await.unwrap();
    for statement in ["UPDATE hw_t SET", "INSERT INTO [dbo].[highwater_ledger]"] {
        let stall = Fault::Stall(Duration::from_millis(200));
        world.server.faults().arm_matching(statement, 1, stall);
        let batch = [event(2, 1, Some("dropped")), event(3, 2, Some("dropped"))];
        dropped_at_fault(world.server.faults(), deliver(&sql, &batch)).await;
        deliver(&sql, &[event(4, 3, Some("c"))]).await.unwrap();
        assert_eq!(found(&world), (all(&["1a", "3c"]), 2), "{statement}");
    }
}

/// Two owners write at once: the one with the higher token wins, in whichever order they arrive.
#[tokio::test(flavor = "multi_thread")]
async fn the_newer_of_two_concurrent_owners_writes_last() {
    let world = world().await;
    for round in 0..20_u64 {
        let (old, new) = (handler(&world), handler(&world));
        let token = 10 + 2 * round;
        let (stale, fresh) = (
            [event(100 + 2 * round, 1, Some("stale"))],
            [event(101 + 2 * round, 1, Some("fresh"))],
        );
        let grant = |token| (GRANT.0, token);
        let (old, new) = tokio::join!(
            deliver_under(&old, grant(token), None, &stale),
            deliver_under(&new, grant(token + 1), None, &fresh),
        );
        new.unwrap();
        assert!(matches!(old, Ok(()) | Err(HandlerError::Fenced(_))), "{old:?}");
        assert_eq!(found(&world).0, all(&["1fresh"]), "round {round}");
    }
    let mut session = world.database.connect("Highwater").unwrap();
    let replies = session.run(&format!("SELECT token FROM {FENCE}"), &[]);
    let Some(Reply::Rows { rows, .. }) = replies.into_iter().next() else { panic!("no rows") };
    assert_eq!(rows, [[Value::Int(49)]]);
}
