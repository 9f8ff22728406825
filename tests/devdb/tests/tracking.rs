//! Change tracking: versions are assigned at commits, and each changed key appears once.

use crate::{Database, Engine, Reply, Session, Value};

const TABLE: &str = "CREATE TABLE dbo.T (a int NOT NULL, b nvarchar(9) NOT NULL, x int NULL, \
                     PRIMARY KEY (b, a)); ALTER TABLE dbo.T ENABLE CHANGE_TRACKING";

fn databases() -> [Database; 2] {
    let databases = [Database::in_memory().unwrap(), Database::concurrent().unwrap()];
    for database in &databases {
        let switch = "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 2 DAYS)";
        database.execute(&format!("{switch}; {TABLE}")).unwrap();
    }
    databases
}

fn session(database: &Database) -> Box<dyn Session> {
    database.connect("Shop").unwrap()
}

/// Rows of the last result, as text.
fn ask(session: &mut dyn Session, sql: &str) -> Vec<String> {
    let mut found = Vec::new();
    for reply in session.run(sql, &[]) {
        match reply {
            Reply::Rows { rows, .. } => {
                let cell = |value: &Value| {
                    if let Value::Int(number) = value {
                        number.to_string()
                    } else if let Value::Text(text) = value {
                        text.clone()
                    } else {
                        format!("{value:?}")
                    }
                };
                let row = |row: Vec<Value>| row.iter().map(cell).collect::<Vec<_>>().join(" ");
                found = rows.into_iter().map(row).collect();
            }
            Reply::Error(error) => panic!("`{sql}`: {error}"),
            Reply::Done(_) => {}
        }
    }
    found
}

fn changes(session: &mut dyn Session, since: &str) -> Vec<String> {
    ask(
        session,
        &format!(
            "DECLARE @v BIGINT = {since}; SELECT c.SYS_CHANGE_VERSION, c.SYS_CHANGE_OPERATION, c.a, \
             c.b, t.x FROM CHANGETABLE(CHANGES dbo.T, @v) AS c LEFT JOIN dbo.T AS t \
             ON t.a = c.a AND t.b = c.b ORDER BY c.SYS_CHANGE_VERSION, c.b, c.a"
        ),
    )
}

fn versions(session: &mut dyn Session) -> String {
    let sql = "SELECT CHANGE_TRACKING_CURRENT_VERSION(), \
               CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(N'dbo.T'))";
    ask(session, sql).remove(0)
}

#[test]
fn reenabled_tracking_starts_at_the_current_version() {
    for database in databases() {
        let mut one = session(&database);
        let begin = |one: &mut dyn Session| {
            ask(
                one,
                "SELECT k.begin_version, k.min_valid_version, i.object_id \
                 FROM sys.change_tracking_tables AS k JOIN sys.internal_tables AS i \
                 ON i.parent_object_id = k.object_id AND i.internal_type = 209",
            )
            .remove(0)
        };
        let first = begin(&mut *one);
        assert!(first.starts_with("0 0 "), "{first}");
        ask(&mut *one, "INSERT INTO dbo.T VALUES (1, 'k', 10)");
        ask(&mut *one, "ALTER TABLE dbo.T DISABLE CHANGE_TRACKING");
        ask(&mut *one, "INSERT INTO dbo.T VALUES (2, 'k', 20)");
        ask(&mut *one, "ALTER TABLE dbo.T ENABLE CHANGE_TRACKING");
        let second = begin(&mut *one);
        assert!(second.starts_with("1 1 "), "{second}");
        let object = |text: &str| text.rsplit(' ').next().map(str::to_owned);
        assert_ne!(object(&first), object(&second));
        ask(&mut *one, "INSERT INTO dbo.T VALUES (3, 'k', 30); TRUNCATE TABLE dbo.T");
        assert_eq!(changes(&mut *one, "0"), [""; 0]);
        let after = begin(&mut *one);
        assert!(after.starts_with("3 3 "), "{after}");
    }
}

#[test]
fn each_changed_key_appears_once_with_its_last_version() {
    for database in databases() {
        let mut one = session(&database);
        assert_eq!(versions(&mut *one), "0 0");
        ask(&mut *one, "INSERT INTO dbo.T VALUES (1, 'k', 10), (2, 'k', 20)");
        ask(&mut *one, "BEGIN TRAN; UPDATE dbo.T SET x = 11 WHERE a = 1");
        ask(&mut *one, "INSERT INTO dbo.T VALUES (3, 'k', 30); COMMIT");
        assert_eq!(versions(&mut *one), "2 0");
        let expected = ["1 I 2 k 20", "2 I 1 k 11", "2 I 3 k 30"];
        assert_eq!(changes(&mut *one, "NULL"), expected);
        assert_eq!(changes(&mut *one, "1"), ["2 U 1 k 11", "2 I 3 k 30"]);
        ask(&mut *one, "DELETE FROM dbo.T WHERE a = 2; UPDATE dbo.T SET a = 4 WHERE a = 3");
        let expected = ["3 D 2 k Null", "4 D 3 k Null", "4 I 4 k 30"];
        assert_eq!(changes(&mut *one, "2"), expected, "a key that moves is deleted and inserted");
        ask(&mut *one, "BEGIN TRAN; DELETE FROM dbo.T; ROLLBACK");
        assert_eq!((versions(&mut *one).as_str(), changes(&mut *one, "4")), ("4 0", vec![]));
    }
}

#[test]
fn a_change_has_the_net_operation_since_the_requested_version() {
    for database in databases() {
        let mut one = session(&database);
        let mut created = |since: i64| {
            let sql = format!(
                "SELECT c.SYS_CHANGE_OPERATION, c.SYS_CHANGE_VERSION, c.SYS_CHANGE_CREATION_VERSION \
                 FROM CHANGETABLE(CHANGES dbo.T, {since}) AS c"
            );
            ask(&mut *one, &sql)
        };
        for (write, expected) in [
            ("INSERT INTO dbo.T VALUES (1, 'k', 10)", "I 1 1"),
            ("UPDATE dbo.T SET x = 11", "I 2 1"),
            ("DELETE FROM dbo.T", "D 3 1"),
            ("INSERT INTO dbo.T VALUES (1, 'k', 12)", "I 4 4"),
            ("UPDATE dbo.T SET x = 13", "I 5 4"),
            (
                "BEGIN TRAN; DELETE FROM dbo.T; INSERT INTO dbo.T VALUES (1, 'k', 14); COMMIT",
                "I 6 6",
            ),
        ] {
            database.execute(write).unwrap();
            assert_eq!(created(0), [expected], "{write}");
        }
        assert_eq!(created(4), ["I 6 6"]);
        database.execute("UPDATE dbo.T SET x = 15").unwrap();
        assert_eq!(created(6), ["U 7 Null"], "it existed before");
    }
}

#[test]
fn versions_follow_the_order_of_commits() {
    let [_, database] = databases();
    let (mut first, mut second) = (session(&database), session(&database));
    ask(&mut *first, "BEGIN TRAN; INSERT INTO dbo.T VALUES (1, 'k', 10)");
    ask(&mut *second, "BEGIN TRAN; INSERT INTO dbo.T VALUES (2, 'k', 20)");
    assert_eq!(changes(&mut *first, "0"), [""; 0], "not even one's own before the commit");
    ask(&mut *second, "COMMIT");
    assert_eq!(changes(&mut *first, "0"), ["1 I 2 k 20"]);
    ask(&mut *first, "COMMIT");
    assert_eq!(changes(&mut *first, "0"), ["1 I 2 k 20", "2 I 1 k 10"]);
}

#[test]
fn cleanup_raises_the_minimum_valid_version() {
    for database in databases() {
        let mut one = session(&database);
        ask(&mut *one, "INSERT INTO dbo.T VALUES (1, 'k', 10)");
        database.forget_changes("[dbo].[t]").unwrap();
        assert_eq!(versions(&mut *one), "1 1");
        assert_eq!(changes(&mut *one, "0"), [""; 0]);
        assert_eq!(database.forget_changes("dbo.U").unwrap_err().number, 4998);
    }
}

#[test]
fn truncation_makes_every_version_too_old() {
    for database in databases() {
        let mut one = session(&database);
        ask(&mut *one, "INSERT INTO dbo.T VALUES (1, 'k', 10)");
        database.execute("TRUNCATE TABLE dbo.T").unwrap();
        // Also that of a reader who is up to date.
        assert_eq!((versions(&mut *one).as_str(), changes(&mut *one, "0")), ("2 2", vec![]));
        ask(&mut *one, "INSERT INTO dbo.T VALUES (1, 'k', 20)");
        assert_eq!(changes(&mut *one, "2"), ["3 I 1 k 20"]);
    }
}

#[test]
fn a_renamed_table_keeps_its_changes() {
    for database in databases() {
        let mut one = session(&database);
        ask(&mut *one, "INSERT INTO dbo.T VALUES (1, 'k', 10)");
        let error = database.execute("EXEC sp_rename N'dbo.T.a', N'z', N'COLUMN'").unwrap_err();
        assert_eq!(error.number, 40515);
        let away = "EXEC sp_rename N'dbo.T', N'U'; UPDATE dbo.U SET x = 11";
        database.execute(away).unwrap();
        database.execute("EXEC sp_rename N'dbo.U', N'T'").unwrap();
        ask(&mut *one, "INSERT INTO dbo.T VALUES (2, 'k', 20)");
        assert_eq!(changes(&mut *one, "0"), ["2 I 1 k 11", "3 I 2 k 20"]);
    }
}

#[test]
fn tables_are_tracked_on_request_and_only_with_a_key() {
    for database in databases() {
        let number = |sql: &str| database.execute(sql).unwrap_err().number;
        assert_eq!(number("ALTER TABLE dbo.T ENABLE CHANGE_TRACKING"), 4996);
        database.execute("CREATE TABLE dbo.U (a int)").unwrap();
        assert_eq!(number("ALTER TABLE dbo.U ENABLE CHANGE_TRACKING"), 4997);
        assert_eq!(number("ALTER TABLE dbo.U DISABLE CHANGE_TRACKING"), 4998);
        assert_eq!(number("ALTER TABLE dbo.V ENABLE CHANGE_TRACKING"), 208);
        assert_eq!(number("SELECT * FROM CHANGETABLE(CHANGES dbo.U, 0) AS c"), 22105);
        let expression = "SELECT * FROM CHANGETABLE(CHANGES dbo.T, 0 + 1) AS c";
        assert_eq!(number(expression), 102);
        database.execute("ALTER TABLE dbo.T DISABLE CHANGE_TRACKING").unwrap();
        assert_eq!(versions(&mut *session(&database)), "0 Null");
        database
            .execute("ALTER TABLE dbo.T ENABLE CHANGE_TRACKING WITH (TRACK_COLUMNS_UPDATED = OFF)")
            .unwrap();
        database.execute(&format!("DROP TABLE dbo.T; {TABLE}")).unwrap();
        assert_eq!(versions(&mut *session(&database)), "0 0");
    }
}

#[test]
fn primary_keys_are_in_the_catalog() {
    let [database, _] = databases();
    let sql = "SELECT c.name, i.key_ordinal, x.is_primary_key FROM sys.index_columns AS i \
               JOIN sys.indexes AS x ON x.object_id = i.object_id AND x.index_id = i.index_id \
               JOIN sys.columns AS c ON c.object_id = i.object_id AND c.column_id = i.column_id \
               WHERE i.object_id = OBJECT_ID('dbo.T') ORDER BY i.key_ordinal";
    assert_eq!(ask(&mut *session(&database), sql), ["b 1 Bool(true)", "a 2 Bool(true)"]);
}
