//! Several transactions that write concurrently, each in its own session.

use crate::{Database, Engine, Reply, Session, Value};

fn database() -> Database {
    let database = Database::concurrent().unwrap();
    database
        .execute(
            "CREATE TABLE dbo.T (id int IDENTITY PRIMARY KEY, x int NULL, \
             at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(), rv rowversion NOT NULL)",
        )
        .unwrap();
    database
}

fn session(database: &Database) -> Box<dyn Session> {
    database.connect("Shop").unwrap()
}

/// Rows of the last result.
fn ask(session: &mut dyn Session, sql: &str) -> Vec<Vec<Value>> {
    let mut found = Vec::new();
    for reply in session.run(sql, &[]) {
        match reply {
            Reply::Rows { rows, .. } => found = rows,
            Reply::Error(error) => panic!("`{sql}`: {error}"),
            Reply::Done(_) => {}
        }
    }
    found
}

fn numbers(session: &mut dyn Session, sql: &str) -> Vec<i64> {
    let number = |row: Vec<Value>| match row.first() {
        Some(Value::Int(number)) => *number,
        other => panic!("{other:?} is no number"),
    };
    ask(session, sql).into_iter().map(number).collect()
}

/// Number of the error that ends a batch.
fn error(session: &mut dyn Session, sql: &str) -> i32 {
    match session.run(sql, &[]).pop() {
        Some(Reply::Error(error)) => error.number,
        other => panic!("`{sql}` ended with {other:?}"),
    }
}

const IDS: &str = "SELECT id FROM dbo.T ORDER BY id";
const BOUNDS: &str = "SELECT CAST(MIN_ACTIVE_ROWVERSION() AS BIGINT) UNION ALL \
                      SELECT CAST(@@DBTS AS BIGINT)";

#[test]
fn a_row_is_visible_to_its_writer_at_once_and_to_others_after_the_commit() {
    let database = database();
    let (mut first, mut second, mut reader) =
        (session(&database), session(&database), session(&database));
    ask(&mut *first, "BEGIN TRAN; INSERT INTO dbo.T (x) VALUES (1)");
    ask(&mut *second, "BEGIN TRAN; INSERT INTO dbo.T (x) VALUES (2), (3)");
    assert_eq!(numbers(&mut *first, IDS), [1]);
    assert_eq!(numbers(&mut *second, IDS), [2, 3]);
    assert_eq!(numbers(&mut *reader, IDS), [0_i64; 0]);
    second.commit().unwrap();
    assert_eq!(numbers(&mut *reader, IDS), [2, 3]);
    assert_eq!(numbers(&mut *first, IDS), [1, 2, 3]);
    first.commit().unwrap();
    assert_eq!(numbers(&mut *reader, IDS), [1, 2, 3]);
}

#[test]
fn versions_and_identities_are_assigned_by_statements_and_never_reused() {
    let database = database();
    let (mut first, mut second, mut reader) =
        (session(&database), session(&database), session(&database));
    let [start, last] = numbers(&mut *reader, BOUNDS)[..] else { panic!() };
    assert_eq!(start, last + 1);
    ask(&mut *first, "BEGIN TRAN; INSERT INTO dbo.T (x) VALUES (1)");
    ask(&mut *second, "BEGIN TRAN; INSERT INTO dbo.T (x) VALUES (2)");
    ask(&mut *reader, "INSERT INTO dbo.T (x) VALUES (3)");
    assert_eq!(numbers(&mut *reader, BOUNDS), [start, last + 3], "the first one holds it back");
    first.rollback().unwrap();
    assert_eq!(numbers(&mut *reader, BOUNDS), [start + 1, last + 3]);
    second.commit().unwrap();
    assert_eq!(numbers(&mut *reader, BOUNDS), [start + 3, last + 3]);
    let versions = "SELECT CAST(rv AS BIGINT) FROM dbo.T ORDER BY id";
    assert_eq!(numbers(&mut *reader, versions), [start + 1, start + 2]);
    assert_eq!(numbers(&mut *reader, IDS), [2, 3], "the first number is gone");
}

#[test]
fn timestamps_are_assigned_per_statement_and_may_tie() {
    let database = database();
    let (mut writer, mut reader) = (session(&database), session(&database));
    database.set_now("2026-01-01T00:00:01").unwrap();
    ask(&mut *writer, "BEGIN TRAN; INSERT INTO dbo.T (x) VALUES (1)");
    database.set_now("2026-01-01T00:00:02").unwrap();
    ask(&mut *reader, "INSERT INTO dbo.T (x) VALUES (2), (3)");
    writer.commit().unwrap();
    let sql = "SELECT DATEDIFF(second, '2026-01-01', at) FROM dbo.T ORDER BY id";
    assert_eq!(numbers(&mut *reader, sql), [1, 2, 2]);
}

#[test]
fn a_transaction_can_change_what_it_wrote_and_what_was_there() {
    let database = database();
    let (mut writer, mut reader) = (session(&database), session(&database));
    ask(&mut *reader, "INSERT INTO dbo.T (x) VALUES (1), (2), (3)");
    let before = ask(&mut *reader, "SELECT id, x, rv FROM dbo.T ORDER BY id");
    ask(
        &mut *writer,
        "BEGIN TRAN; INSERT INTO dbo.T (x) VALUES (4), (5); UPDATE dbo.T SET x = x * 10 WHERE x > 1; \
         DELETE FROM dbo.T WHERE id IN (3, 5)",
    );
    let rows = "SELECT id * 100 + x FROM dbo.T ORDER BY id";
    assert_eq!(numbers(&mut *writer, rows), [101, 220, 440]);
    assert_eq!(ask(&mut *reader, "SELECT id, x, rv FROM dbo.T ORDER BY id"), before);
    let written = ask(&mut *writer, "SELECT id, x, rv FROM dbo.T ORDER BY id");
    writer.commit().unwrap();
    assert_eq!(ask(&mut *reader, "SELECT id, x, rv FROM dbo.T ORDER BY id"), written);
    assert_eq!(ask(&mut *writer, "DELETE FROM dbo.T OUTPUT DELETED.id WHERE id = 1").len(), 1);
    assert_eq!(numbers(&mut *reader, IDS), [2, 4]);
    ask(&mut *writer, "TRUNCATE TABLE dbo.T");
    assert_eq!(numbers(&mut *reader, IDS), [0_i64; 0]);
}

#[test]
fn a_rollback_or_a_lost_session_leaves_no_trace() {
    let database = database();
    let mut reader = session(&database);
    ask(&mut *reader, "INSERT INTO dbo.T (x) VALUES (1)");
    let writes = "BEGIN TRAN; UPDATE dbo.T SET x = 9; INSERT INTO dbo.T (x) VALUES (2)";
    let mut rolled_back = session(&database);
    ask(&mut *rolled_back, writes);
    rolled_back.rollback().unwrap();
    assert_eq!(numbers(&mut *rolled_back, "SELECT x FROM dbo.T"), [1]);
    let mut lost = session(&database);
    ask(&mut *lost, writes);
    drop(lost);
    assert_eq!(numbers(&mut *reader, "SELECT x FROM dbo.T"), [1]);
    let [active, newest] = numbers(&mut *reader, BOUNDS)[..] else { panic!() };
    assert_eq!(active, newest + 1, "nothing is held back any more");
    ask(&mut *reader, "UPDATE dbo.T SET x = 3");
}

#[test]
fn a_row_that_another_transaction_has_written_is_locked() {
    let database = database();
    let (mut first, mut second) = (session(&database), session(&database));
    ask(&mut *first, "INSERT INTO dbo.T (x) VALUES (1), (2)");
    ask(&mut *first, "BEGIN TRAN; UPDATE dbo.T SET x = 5 WHERE id = 1");
    assert_eq!(error(&mut *second, "UPDATE dbo.T SET x = 6"), 1222);
    assert_eq!(error(&mut *second, "DELETE FROM dbo.T WHERE id = 1"), 1222);
    ask(&mut *second, "UPDATE dbo.T SET x = 7 WHERE id = 2");
    first.commit().unwrap();
    assert_eq!(numbers(&mut *second, "SELECT x FROM dbo.T ORDER BY id"), [5, 7]);
    ask(&mut *second, "UPDATE dbo.T SET x = 6");
}

#[test]
fn a_key_inserted_by_two_transactions_fails_the_later_one() {
    let database = Database::concurrent().unwrap();
    database.execute("CREATE TABLE dbo.K (id int PRIMARY KEY)").unwrap();
    let (mut first, mut second) = (session(&database), session(&database));
    for session in [&mut first, &mut second] {
        ask(&mut **session, "BEGIN TRAN; INSERT INTO dbo.K VALUES (1)");
    }
    second.commit().unwrap();
    assert_eq!(first.commit().unwrap_err().number, 2627);
    assert_eq!((first.transaction(), first.rolled_back()), (None, true));
    assert_eq!(error(&mut *first, "INSERT INTO dbo.K VALUES (1)"), 2627);
    assert_eq!(ask(&mut *second, "SELECT id FROM dbo.K").len(), 1);
}

#[test]
fn the_schema_cannot_change_while_a_transaction_is_open() {
    let database = database();
    let mut writer = session(&database);
    ask(&mut *writer, "BEGIN TRAN; INSERT INTO dbo.T (x) VALUES (1)");
    assert_eq!(database.execute("ALTER TABLE dbo.T ADD y int").unwrap_err().number, 40515);
    assert_eq!(error(&mut *writer, "DROP TABLE dbo.T"), 40515);
    writer.commit().unwrap();
    database.execute("ALTER TABLE dbo.T ADD y int").unwrap();
    let rows = [vec![Value::Int(7)], vec![Value::Int(8)]];
    assert_eq!(database.insert_rows("dbo.T", &["x"], rows).unwrap(), 2);
    ask(&mut *writer, "INSERT INTO dbo.T (x, y) VALUES (9, 9)");
    assert_eq!(numbers(&mut *writer, IDS), [1, 2, 3, 4]);
}
