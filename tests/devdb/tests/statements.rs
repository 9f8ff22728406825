//! Statements, types, catalog and errors.

use tiberius::{ColumnData, ToSql, numeric::Numeric};

use super::{Connection, connect, error_number, plain, rows};
use crate::{Database, Engine as _, Reply, Value};

async fn text(client: &mut Connection, sql: &str) -> Option<String> {
    let found = rows(client, sql, &[]).await;
    found[0].get::<&str, _>(0).map(str::to_owned)
}

#[tokio::test]
async fn settings_and_probes_are_answered() {
    let (server, _database) = plain().await;
    let mut client = connect(&server).await;
    let settings = "SET LOCK_TIMEOUT 5000; SET DEADLOCK_PRIORITY LOW; \
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET XACT_ABORT ON; SET NOCOUNT ON; \
        SET ANSI_NULLS, QUOTED_IDENTIFIER ON; SET TEXTSIZE -1";
    let results = client.simple_query(settings).await.unwrap().into_results().await.unwrap();
    assert!(results.iter().all(Vec::is_empty));
    assert!(text(&mut client, "SELECT @@VERSION").await.unwrap().contains("not Microsoft"));
    assert_eq!(text(&mut client, "SELECT DB_NAME()").await.as_deref(), Some("Shop"));
    assert_eq!(text(&mut client, "SELECT @@SERVERNAME").await.as_deref(), Some("HIGHWATER-DEVDB"));
    let now = rows(&mut client, "SELECT SYSUTCDATETIME()", &[]).await;
    assert!(matches!(now[0].cells().next(), Some((_, ColumnData::DateTime2(Some(_))))));
}

#[tokio::test]
async fn errors_have_the_numbers_and_texts_of_sql_server() {
    let (server, database) = plain().await;
    database
        .execute(
            "CREATE TABLE dbo.T (id int NOT NULL PRIMARY KEY, n nvarchar(3), u int, \
        rv rowversion, i int IDENTITY(1,1)); CREATE UNIQUE INDEX ix ON dbo.T (u)",
        )
        .unwrap();
    database.execute("INSERT INTO dbo.T (id, u) VALUES (1, 1)").unwrap();
    let mut client = connect(&server).await;
    let cases = [
        ("SELECT * FROM dbo.x", 208),
        ("SELECT x FROM dbo.T", 207),
        ("SELECT q.id FROM dbo.T AS t", 4104),
        ("SELECT FROM dbo.T", 102),
        ("SELECT @nothing", 137),
        ("SELECT nothing(1)", 195),
        ("SELECT id FROM dbo.T ORDER BY u, id, u DESC", 169),
        ("MERGE dbo.T", 40515),
        ("INSERT INTO dbo.T (id, u) VALUES (1, 2)", 2627),
        ("INSERT INTO dbo.T (id, u) VALUES (2, 1)", 2601),
        ("INSERT INTO dbo.T (n) VALUES ('a')", 515),
        ("INSERT INTO dbo.T (id, n) VALUES (2, 'long')", 2628),
        ("INSERT INTO dbo.T (id, rv) VALUES (2, 0x00)", 273),
        ("INSERT INTO dbo.T (id, i) VALUES (2, 1)", 544),
        ("INSERT INTO dbo.T (id, u) VALUES ('a', 2)", 245),
        ("UPDATE dbo.T SET rv = 0x00", 272),
        ("CREATE TABLE dbo.T (id int)", 2714),
        ("CREATE TABLE dbo.U (id nonsense)", 2715),
        ("DROP TABLE dbo.U", 3701),
        ("SELECT CAST('x' AS datetime2(7))", 241),
        ("COMMIT", 3902),
        ("ROLLBACK", 3903),
    ];
    for (sql, number) in cases {
        assert_eq!(error_number(&mut client, sql).await, number, "{sql}");
    }
    let error = database.execute("SELECT * FROM [dbo].[x]").unwrap_err();
    assert_eq!(error.message, "Invalid object name 'dbo.x'.");
    let error = database.execute("SELECT t.[c d] FROM dbo.T t").unwrap_err();
    assert_eq!(error.message, "Invalid column name 'c d'.");
}

#[tokio::test]
async fn the_catalog_lists_types_as_sql_server_does() {
    let (server, database) = plain().await;
    database
        .execute(
            "CREATE TABLE [dbo].[T] (a int NOT NULL, b nvarchar(50), c \
        nvarchar(max), d datetime2(3), e decimal(38,10), f rowversion, g varbinary(8), h \
        char(3), i datetimeoffset, j bit, [k ]] ü] money)",
        )
        .unwrap();
    let mut client = connect(&server).await;
    let sql =
        "SELECT c.name, t.name AS type_name, c.max_length, c.precision, c.scale, c.is_nullable
        FROM sys.columns AS c JOIN sys.types AS t ON t.user_type_id = c.system_type_id
        WHERE c.object_id = OBJECT_ID(@P1) ORDER BY c.column_id";
    let found = rows(&mut client, sql, &[&"[dbo].[T]"]).await;
    let received: Vec<_> = found
        .iter()
        .map(|row| {
            (
                row.get::<&str, _>("name").unwrap(),
                row.get::<&str, _>("type_name").unwrap(),
                row.get::<i16, _>("max_length").unwrap(),
                row.get::<u8, _>("precision").unwrap(),
                row.get::<u8, _>("scale").unwrap(),
                row.get::<bool, _>("is_nullable").unwrap(),
            )
        })
        .collect();
    assert_eq!(
        received,
        [
            ("a", "int", 4, 10, 0, false),
            ("b", "nvarchar", 100, 0, 0, true),
            ("c", "nvarchar", -1, 0, 0, true),
            ("d", "datetime2", 7, 23, 3, true),
            ("e", "decimal", 17, 38, 10, true),
            ("f", "timestamp", 8, 0, 0, false),
            ("g", "varbinary", 8, 0, 0, true),
            ("h", "char", 3, 0, 0, true),
            ("i", "datetimeoffset", 10, 34, 7, true),
            ("j", "bit", 1, 1, 0, true),
            ("k ] ü", "money", 8, 19, 4, true),
        ]
    );
    assert!(rows(&mut client, sql, &[&"[dbo].[missing]"]).await.is_empty());
    let sql = "SELECT COUNT_BIG(*) AS [n] FROM [dbo].[T] AS t WHERE t.[k ]] ü] IS NULL";
    assert_eq!(rows(&mut client, sql, &[]).await[0].get::<i64, _>("n"), Some(0));
}

/// Type, T-SQL constant, and how the client sees it.
fn every_type() -> Vec<(&'static str, &'static str, ColumnData<'static>)> {
    let text = |text: &'static str| ColumnData::String(Some(text.into()));
    let numeric = |n, scale| ColumnData::Numeric(Some(Numeric::new_with_scale(n, scale)));
    let binary = |bytes: &'static [u8]| ColumnData::Binary(Some(bytes.into()));
    vec![
        ("bit", "1", ColumnData::Bit(Some(true))),
        ("tinyint", "255", ColumnData::U8(Some(255))),
        ("smallint", "-32768", ColumnData::I16(Some(-32768))),
        ("int", "-2147483648", ColumnData::I32(Some(i32::MIN))),
        ("bigint", "9223372036854775807", ColumnData::I64(Some(i64::MAX))),
        ("real", "1.5", ColumnData::F32(Some(1.5))),
        ("float", "-0.1", ColumnData::F64(Some(-0.1))),
        ("decimal(9,2)", "-12.50", numeric(-1250, 2)),
        (
            "decimal(38,10)",
            "1234567890123456789012345678.0123456789",
            numeric(12_345_678_901_234_567_890_123_456_780_123_456_789, 10),
        ),
        ("money", "-1.2345", ColumnData::F64(Some(-1.2345))),
        ("smallmoney", "214748.3647", ColumnData::F64(Some(214_748.364_7))),
        ("nvarchar(20)", "N'Zoë 😀'", text("Zoë 😀")),
        ("nvarchar(max)", "N''", text("")),
        ("varchar(20)", "'é'", text("é")),
        ("nchar(3)", "N'a'", text("a  ")),
        ("char(3)", "'b'", text("b  ")),
        ("varbinary(9)", "0xAB01", binary(&[0xAB, 1])),
        ("varbinary(max)", "0x", binary(&[])),
        ("binary(3)", "0x0102", binary(&[1, 2, 0])),
    ]
}

#[tokio::test]
async fn every_type_and_null_round_trip() {
    let (server, _database) = plain().await;
    let mut client = connect(&server).await;
    for (ty, constant, expected) in every_type() {
        let sql = format!(
            "CREATE TABLE dbo.V (id int PRIMARY KEY, v {ty} NULL);
            INSERT INTO dbo.V VALUES (1, {constant}), (2, NULL)"
        );
        client.simple_query(sql).await.unwrap().into_results().await.unwrap();
        let sql = format!("SELECT v, CAST({constant} AS {ty}) FROM dbo.V ORDER BY id");
        let found = rows(&mut client, &sql, &[]).await;
        let cells: Vec<_> = found[0].cells().map(|(_, data)| data.clone()).collect();
        assert_eq!(cells, [expected.clone(), expected], "{ty}");
        let null = format!("{:?}", found[1].cells().next().unwrap().1);
        assert!(null.ends_with("(None)"), "{ty}: {null}");
        client.simple_query("DROP TABLE dbo.V").await.unwrap().into_results().await.unwrap();
    }
}

#[tokio::test]
async fn dates_round_trip() {
    let (server, _database) = plain().await;
    let mut client = connect(&server).await;
    let cases = [
        ("date", "2026-11-20", "2026-11-20"),
        ("time(3)", "10:11:12.1234", "10:11:12.123"),
        ("smalldatetime", "2026-11-20T10:11:31", "2026-11-20T10:12:00"),
        ("datetime", "2026-11-20T10:11:12.998", "2026-11-20T10:11:12.997"),
        ("datetime2(7)", "2026-11-20T10:11:12.1234567", "2026-11-20T10:11:12.1234567"),
        ("datetime2(0)", "9999-12-31T23:59:59", "9999-12-31T23:59:59"),
        ("datetimeoffset(7)", "2026-11-20T10:11:12.5+05:30", "2026-11-20T10:11:12.5000000+05:30"),
        (
            "uniqueidentifier",
            "6f9619ff-8b86-d011-b42d-00c04fc964ff",
            "6F9619FF-8B86-D011-B42D-00C04FC964FF",
        ),
    ];
    for (ty, constant, expected) in cases {
        let sql = format!(
            "CREATE TABLE dbo.V (v {ty} NULL); INSERT INTO dbo.V VALUES ('{constant}'), (NULL)"
        );
        client.simple_query(sql).await.unwrap().into_results().await.unwrap();
        let sql = "SELECT v, CONVERT(nvarchar(40), v, 126) FROM dbo.V";
        let found = rows(&mut client, sql, &[]).await;
        assert_eq!(found[0].get::<&str, _>(1), Some(expected), "{ty}");
        // The binary form is sent back as a parameter and finds its row.
        let data = found[0].cells().next().unwrap().1.clone();
        let parameter: &dyn ToSql = &Sent(data);
        let found = rows(&mut client, "SELECT v FROM dbo.V WHERE v = @P1", &[parameter]).await;
        assert_eq!(found.len(), 1, "{ty}");
        let null = rows(&mut client, "SELECT v FROM dbo.V WHERE v IS NULL", &[]).await;
        assert_eq!(null.len(), 1, "{ty}");
        client.simple_query("DROP TABLE dbo.V").await.unwrap().into_results().await.unwrap();
    }
}

/// A received value, to be sent back.
struct Sent(ColumnData<'static>);

impl ToSql for Sent {
    fn to_sql(&self) -> ColumnData<'_> {
        self.0.clone()
    }
}

#[tokio::test]
async fn writes_use_parameters_defaults_and_identities_and_report_changes() {
    let (server, database) = plain().await;
    database.set_now("2026-01-02T03:04:05.6").unwrap();
    database
        .execute(
            "CREATE TABLE dbo.T (id int IDENTITY(1,1) PRIMARY KEY, n nvarchar(50) \
        NOT NULL DEFAULT N'none', at datetime2(7) NOT NULL CONSTRAINT d DEFAULT \
        (SYSUTCDATETIME()), amount decimal(10,2) NULL)",
        )
        .unwrap();
    let mut client = connect(&server).await;
    let sql = "INSERT INTO dbo.T (n, amount) OUTPUT INSERTED.id, INSERTED.[at] VALUES (@P1, \
        @P2), (@P3, NULL)";
    let found = rows(&mut client, sql, &[&"a", &Numeric::new_with_scale(1050, 2), &"b"]).await;
    assert_eq!(found[1].get::<i32, _>("id"), Some(2));
    let done = client.execute("INSERT INTO dbo.T DEFAULT VALUES", &[]).await.unwrap();
    assert_eq!(done.total(), 1);
    let sql = "UPDATE t SET t.amount = t.amount + @P1, n += N'!' FROM dbo.T AS t WHERE t.id = @P2";
    let done = client.execute(sql, &[&1_i32, &1_i32]).await.unwrap();
    assert_eq!(done.total(), 1);
    let found = rows(
        &mut client,
        "SELECT n, amount, CONVERT(nvarchar(33), at, 126) FROM dbo.T ORDER BY id",
        &[],
    )
    .await;
    assert_eq!(found[0].get::<&str, _>(0), Some("a!"));
    assert_eq!(found[0].get::<Numeric, _>(1), Some(Numeric::new_with_scale(1150, 2)));
    assert_eq!(found[2].get::<&str, _>(0), Some("none"));
    assert_eq!(found[2].get::<&str, _>(2), Some("2026-01-02T03:04:05.6000000"));
    let done = client.execute("DELETE TOP (2) FROM dbo.T WHERE id > @P1", &[&0_i32]).await.unwrap();
    assert_eq!(done.total(), 2);
    let null: Option<i32> = None;
    let found = rows(&mut client, "SELECT CAST(@P1 AS int), ISNULL(@P1, 7)", &[&null]).await;
    assert_eq!(found[0].get::<i32, _>(0), None);
}

#[tokio::test]
async fn transactions_of_both_kinds_commit_and_roll_back() {
    let (server, database) = plain().await;
    database.execute("CREATE TABLE dbo.T (id int)").unwrap();
    let mut client = connect(&server).await;
    for (end, count) in [("ROLLBACK TRANSACTION", 0), ("COMMIT TRAN", 1)] {
        let sql = format!("BEGIN TRANSACTION; INSERT INTO dbo.T VALUES (1); {end}");
        client.simple_query(sql).await.unwrap().into_results().await.unwrap();
        assert_eq!(database.execute("SELECT * FROM dbo.T").unwrap(), count);
    }
    client.begin_transaction().await.unwrap();
    client.execute("INSERT INTO dbo.T VALUES (2)", &[]).await.unwrap();
    client.rollback_transaction().await.unwrap();
    client.begin_transaction().await.unwrap();
    client.execute("INSERT INTO dbo.T VALUES (3)", &[]).await.unwrap();
    client.commit_transaction().await.unwrap();
    assert_eq!(database.execute("SELECT * FROM dbo.T").unwrap(), 2);
}

#[tokio::test]
async fn a_second_writer_waits_no_longer_than_its_lock_timeout() {
    let (server, database) = plain().await;
    database.execute("CREATE TABLE dbo.T (id int)").unwrap();
    let (mut first, mut second) = (connect(&server).await, connect(&server).await);
    first
        .simple_query("BEGIN TRAN; INSERT INTO dbo.T VALUES (1)")
        .await
        .unwrap()
        .into_results()
        .await
        .unwrap();
    second.simple_query("SET LOCK_TIMEOUT 10").await.unwrap().into_results().await.unwrap();
    assert_eq!(error_number(&mut second, "INSERT INTO dbo.T VALUES (2)").await, 1222);
}

#[tokio::test]
async fn a_reopened_database_file_keeps_its_versions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    let database = Database::open(&path).unwrap();
    database
        .execute("CREATE TABLE dbo.T (id int, rv rowversion); INSERT INTO dbo.T (id) VALUES (1)")
        .unwrap();
    drop(database);
    let database = Database::open(&path).unwrap();
    assert_eq!(
        database.execute("SELECT id FROM dbo.T WHERE rv < MIN_ACTIVE_ROWVERSION()").unwrap(),
        1
    );
    database.execute("INSERT INTO dbo.T (id) VALUES (2)").unwrap();
    assert_eq!(database.execute("SELECT id FROM dbo.T WHERE rv = @@DBTS").unwrap(), 1);
}

#[test]
fn a_recreated_table_is_a_new_object_and_a_truncated_one_is_not() {
    let database = Database::in_memory().unwrap();
    let table = "CREATE TABLE dbo.T (id int IDENTITY PRIMARY KEY, x int)";
    let count = |condition: &str| {
        let sql = format!("SELECT 1 FROM sys.objects AS o WHERE {condition}");
        database.execute(&sql).unwrap()
    };
    let now = |second: u32| database.set_now(&format!("2026-01-01T10:00:0{second}")).unwrap();
    now(1);
    database.execute(&format!("{table}; INSERT INTO dbo.T (x) VALUES (1), (2)")).unwrap();
    let first = "o.object_id = 1000000001 AND o.object_id = OBJECT_ID(N'dbo.T') \
                 AND CONVERT(nvarchar(33), o.create_date, 126) = N'2026-01-01T10:00:01'";
    assert_eq!(count(first), 1);
    now(2);
    database.execute("TRUNCATE TABLE dbo.T; INSERT INTO dbo.T (x) VALUES (3)").unwrap();
    assert_eq!(count(first), 1);
    assert_eq!(database.execute("SELECT id FROM dbo.T WHERE id = 1 AND x = 3").unwrap(), 1);
    database.execute(&format!("DROP TABLE dbo.T; {table}")).unwrap();
    assert_eq!(count("o.object_id = OBJECT_ID(N'dbo.T') AND o.object_id > 1000000001"), 1);
    assert_eq!(count("CONVERT(nvarchar(33), o.create_date, 126) = N'2026-01-01T10:00:02'"), 2);
}

#[test]
fn the_last_identity_is_the_highest_assigned_or_the_seed_of_an_empty_table() {
    for database in [Database::in_memory().unwrap(), Database::concurrent().unwrap()] {
        let says = |last: i64| {
            let sql = format!(
                "SELECT 1 FROM sys.objects AS o WHERE o.object_id = OBJECT_ID(N'dbo.T') \
                 AND IDENT_CURRENT(N'dbo.T') = {last}"
            );
            assert_eq!(database.execute(&sql).unwrap(), 1, "{last}");
        };
        let run = |sql: &str| database.execute(sql).unwrap();
        run("CREATE TABLE dbo.T (id int IDENTITY, x int)");
        says(1);
        run("INSERT INTO dbo.T (x) VALUES (1), (2)");
        says(2);
        let given = |id: i64| {
            let insert = format!("INSERT INTO dbo.T (id, x) VALUES ({id}, 3)");
            run(&format!("SET IDENTITY_INSERT dbo.T ON; {insert}; SET IDENTITY_INSERT dbo.T OFF"));
        };
        given(10);
        says(10);
        given(4);
        says(10);
        run("DELETE FROM dbo.T WHERE id = 10; INSERT INTO dbo.T (x) VALUES (4)");
        says(11);
        run("TRUNCATE TABLE dbo.T");
        says(1);
        run("INSERT INTO dbo.T (x) VALUES (5)");
        says(1);
        assert_eq!(run("SELECT id FROM dbo.T WHERE id = 1"), 1);
    }
}

#[test]
fn a_bulk_insert_keeps_all_rows_or_none() {
    let database = Database::in_memory().unwrap();
    database.execute("CREATE SCHEMA sales").unwrap();
    database
        .execute("CREATE TABLE [sales].[T] (id tinyint PRIMARY KEY, n nvarchar(5), rv rowversion)")
        .unwrap();
    let row = |id: i64| vec![Value::Int(id), Value::Text("x".into())];
    let inserted = database.insert_rows("[sales].[T]", &["id", "n"], (1..=200).map(row));
    assert_eq!(inserted, Ok(200));
    let error = database.insert_rows("sales.T", &["id", "n"], (201..=300).map(row)).unwrap_err();
    assert_eq!(error.number, 8115);
    assert_eq!(database.execute("SELECT * FROM sales.T").unwrap(), 200);
    let missing = database.insert_rows("dbo.T", &["id"], []).unwrap_err();
    assert_eq!(missing.number, 208);
    let missing = database.insert_rows("sales.T", &["q"], []).unwrap_err();
    assert_eq!(missing.number, 207);
}

#[test]
fn the_rest_of_the_documented_statements_run() {
    let database = Database::in_memory().unwrap();
    let script = "CREATE TABLE dbo.T (id int PRIMARY KEY, g nvarchar(9) NOT NULL, v decimal(9,2));
        INSERT INTO dbo.T VALUES (1, 'a', 1.5), (2, 'a', 2.5), (3, 'b', NULL);
        ALTER TABLE dbo.T ADD rv ROWVERSION;
        CREATE UNIQUE INDEX ix_T_rv ON dbo.T (rv);
        CREATE VIEW dbo.V AS SELECT t.id, t.g, t.rv FROM dbo.T AS t WHERE t.g = N'a';
        IF OBJECT_ID(N'[dbo].[T]') IS NULL BEGIN DELETE FROM dbo.T END ELSE PRINT 'kept'";
    database.execute(script).unwrap();
    let cases = [
        ("SELECT g, COUNT(*) AS n, SUM(v) FROM dbo.T GROUP BY g HAVING COUNT(*) > 1", 1),
        ("SELECT id FROM dbo.T ORDER BY id OFFSET 1 ROWS FETCH NEXT 5 ROWS ONLY", 2),
        ("SELECT TOP (1) q.id FROM (SELECT * FROM dbo.T WHERE id < 3) AS q ORDER BY q.id DESC", 1),
        ("SELECT v.id FROM dbo.V AS v WHERE v.rv < MIN_ACTIVE_ROWVERSION()", 2),
        ("SELECT a.id FROM dbo.T AS a LEFT JOIN dbo.V AS b ON b.id = a.id WHERE b.id IS NULL", 1),
        ("SELECT id FROM dbo.T UNION ALL SELECT id FROM dbo.V", 5),
        ("SELECT id FROM dbo.T WITH (NOLOCK) WHERE g LIKE N'A%' AND id NOT IN (2, 3)", 1),
        ("SELECT id FROM dbo.T WHERE EXISTS (SELECT 1 FROM dbo.V AS v WHERE v.id = T.id)", 2),
        ("SELECT id FROM dbo.T WHERE id BETWEEN 2 AND 3 OR v IS NOT NULL AND id = 1", 3),
        ("DECLARE @m int; SELECT @m = MAX(id) FROM dbo.T; SELECT 1 FROM dbo.T WHERE id = @m", 1),
        ("SELECT CASE WHEN MAX(v) = 2.5 THEN 1 ELSE 0 END AS fits FROM dbo.T", 1),
        ("SELECT id FROM dbo.T WHERE DATEDIFF(day, '2026-01-01', '2026-01-03') = 2", 3),
        ("SELECT ISNULL(MAX(id), 0) FROM dbo.T WHERE id > 9", 1),
        ("DELETE t FROM dbo.T AS t WHERE t.id = 3", 1),
        ("TRUNCATE TABLE dbo.T", 0),
        ("DROP VIEW dbo.V; DROP TABLE IF EXISTS dbo.T; DROP TABLE IF EXISTS dbo.T", 0),
    ];
    for (sql, count) in cases {
        assert_eq!(database.execute(sql), Ok(count), "{sql}");
    }
}

#[tokio::test]
async fn binary_collations_distinguish_upper_and_lower_case() {
    let (server, database) = plain().await;
    database
        .execute(
            "CREATE TABLE dbo.T (a nvarchar(9) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, \
             b nvarchar(9) COLLATE Latin1_General_CI_AS NOT NULL UNIQUE); \
             INSERT INTO dbo.T VALUES ('x', 'y'), ('X', 'z')",
        )
        .unwrap();
    let mut client = connect(&server).await;
    assert_eq!(rows(&mut client, "SELECT b FROM dbo.T WHERE a = @P1", &[&"X"]).await.len(), 1);
    assert_eq!(rows(&mut client, "SELECT b FROM dbo.T WHERE b = @P1", &[&"Y"]).await.len(), 1);
    assert_eq!(error_number(&mut client, "INSERT INTO dbo.T VALUES ('w', 'Z')").await, 2601);
}

#[test]
fn the_catalog_lists_indexes_as_declared() {
    let database = Database::in_memory().unwrap();
    let made = database.execute(
        "CREATE TABLE dbo.t (a int NOT NULL, b int NOT NULL UNIQUE, c int NOT NULL, \
         CONSTRAINT pk_t PRIMARY KEY NONCLUSTERED (a, c DESC)); \
         CREATE CLUSTERED INDEX ix_b ON dbo.t (b DESC); \
         CREATE UNIQUE INDEX ix_c ON dbo.t (c, a DESC) INCLUDE (b); \
         CREATE INDEX ix_gone ON dbo.t (c); DROP INDEX ix_gone ON dbo.t; \
         CREATE VIEW dbo.v AS SELECT t.a FROM dbo.t AS t",
    );
    made.unwrap();
    let answer = |sql: &str| match database.connect("Shop").unwrap().run(sql, &[]).pop() {
        Some(Reply::Rows { rows, .. }) => rows,
        other => panic!("{other:?}"),
    };
    let sql = "SELECT x.name, x.type, x.is_unique, x.is_primary_key, x.is_unique_constraint, \
               c.name AS column_name, i.key_ordinal, i.is_descending_key, i.is_included_column \
               FROM sys.indexes AS x JOIN sys.index_columns AS i \
               ON i.object_id = x.object_id AND i.index_id = x.index_id \
               JOIN sys.columns AS c ON c.object_id = i.object_id AND c.column_id = i.column_id \
               WHERE x.object_id = OBJECT_ID(N'dbo.t') ORDER BY x.name, i.index_column_id";
    let received = answer(sql);
    let plain = |value: &Value| {
        if let Value::Text(text) = value {
            return text.clone();
        }
        let bit = if let Value::Bool(bit) = value { Some(i64::from(*bit)) } else { None };
        let number = if let Value::Int(number) = value { Some(*number) } else { bit };
        number.map_or_else(|| format!("{value:?}"), |number| number.to_string())
    };
    let received: Vec<String> =
        received.iter().map(|row| row.iter().map(plain).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        received,
        [
            "ix_b 1 0 0 0 b 1 1 0",
            "ix_c 2 1 0 0 c 1 0 0",
            "ix_c 2 1 0 0 a 2 1 0",
            "ix_c 2 1 0 0 b 0 0 1",
            "pk_t 2 1 1 0 a 1 0 0",
            "pk_t 2 1 1 0 c 2 1 0",
            "UQ 3 of t 2 1 0 1 b 1 0 0",
        ]
    );
    let views = answer("SELECT o.name FROM sys.objects AS o WHERE o.type = N'V'");
    assert_eq!(views, [[Value::Text("v".to_owned())]]);
    let schemas = answer(
        "SELECT s.name FROM sys.objects AS o JOIN sys.schemas AS s ON s.schema_id = o.schema_id \
         WHERE o.type = N'V' OR o.type = N'PK'",
    );
    assert_eq!(schemas, [[Value::Text("dbo".to_owned())], [Value::Text("dbo".to_owned())]]);
    let rights = "SELECT HAS_PERMS_BY_NAME(N'[dbo].[t]', N'OBJECT', N'SELECT') AS a, \
                  HAS_PERMS_BY_NAME(N'[dbo].[none]', N'OBJECT', N'SELECT') AS b";
    assert_eq!(answer(rights), [[Value::Int(1), Value::Null]]);
}

#[tokio::test]
async fn value_lists_update_insert_and_delete_the_named_rows() {
    let (server, database) = plain().await;
    let tables = "CREATE TABLE dbo.T (id int NOT NULL PRIMARY KEY, n nvarchar(9)); \
        CREATE TABLE dbo.U (id int NOT NULL PRIMARY KEY, n nvarchar(9)); \
        INSERT INTO dbo.T VALUES (1, N'a'), (2, N'b'); INSERT INTO dbo.U VALUES (1, N'other')";
    database.execute(tables).unwrap();
    let mut client = connect(&server).await;
    let values = "(VALUES (CAST(1 AS int), CAST(N'x' AS nvarchar(9))), \
        (CAST(3 AS int), CAST(N'y' AS nvarchar(9)))) AS v ([id], [n])";
    // The alias wins, although there is a table of its name.
    let update = format!("UPDATE u SET u.n = v.n FROM dbo.T AS u JOIN {values} ON u.id = v.id");
    let insert = format!(
        "INSERT INTO dbo.T (id, n) SELECT v.id, v.n FROM {values} WHERE NOT EXISTS \
         (SELECT 1 FROM dbo.T AS t WHERE t.id = v.id)"
    );
    let delete =
        format!("DELETE u FROM dbo.T AS u WHERE EXISTS (SELECT 1 FROM {values} WHERE v.id = u.id)");
    let all = |table: &str| format!("SELECT CONCAT(id, n) FROM dbo.{table} ORDER BY id");
    for (sql, expected) in
        [(update, &["1x", "2b"][..]), (insert, &["1x", "2b", "3y"]), (delete, &["2b"])]
    {
        client.simple_query(sql.as_str()).await.unwrap().into_results().await.unwrap();
        let found = rows(&mut client, &all("T"), &[]).await;
        let found: Vec<&str> = found.iter().map(|row| row.get(0).unwrap()).collect();
        assert_eq!(found, expected, "{sql}");
        assert_eq!(text(&mut client, &all("U")).await.as_deref(), Some("1other"), "{sql}");
    }
}

#[tokio::test]
async fn a_statement_is_limited_to_the_servers_parameter_maximum() {
    let (server, _database) = plain().await;
    let mut client = connect(&server).await;
    for (count, expected) in [(2_098_usize, None), (2_099, Some(8003))] {
        let mut query = tiberius::Query::new("SELECT @P1");
        (0..count).for_each(|_| query.bind(1_i32));
        let error = match query.query(&mut client).await {
            Ok(stream) => stream.into_results().await.err(),
            Err(error) => Some(error),
        };
        assert_eq!(error.map(|error| error.code()), expected.map(Some), "{count}");
    }
}

#[test]
fn dropped_and_renamed_columns_are_visible_to_sessions_at_once() {
    for database in [Database::in_memory().unwrap(), Database::concurrent().unwrap()] {
        let tables = "CREATE TABLE dbo.T (id int NOT NULL PRIMARY KEY, a int, b nvarchar(9), c int DEFAULT 1); \
            CREATE VIEW dbo.V AS SELECT t.a FROM dbo.T AS t; CREATE INDEX ix ON dbo.T (b)";
        database.execute(tables).unwrap();
        let mut other = database.connect("Shop").unwrap();
        let count = |replies: &[Reply]| match replies {
            [Reply::Rows { columns, rows, .. }] => {
                let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
                (names.join(" "), rows.last().cloned().unwrap_or_default())
            }
            other => panic!("{other:?}"),
        };
        // This session has statements prepared with the old columns.
        other.run("INSERT INTO dbo.T (id, a) VALUES (1, 10)", &[]);
        database.execute("ALTER TABLE dbo.T ADD d int; ALTER TABLE dbo.T ADD e int").unwrap();
        database.execute("ALTER TABLE dbo.T DROP COLUMN D").unwrap();
        database.execute("ALTER TABLE dbo.T ADD f int").unwrap();
        database.execute("EXEC sp_rename N'dbo.T.f', N'a b', N'COLUMN'").unwrap();
        other.run("INSERT INTO dbo.T (id, e, [a b]) VALUES (2, 7, 8)", &[]);
        let (names, row) = count(&other.run("SELECT * FROM dbo.T ORDER BY id", &[]));
        assert_eq!(names, "id a b c e a b");
        assert_eq!(row[4..], [Value::Int(7), Value::Int(8)]);
        for (sql, number) in [
            ("ALTER TABLE dbo.T DROP COLUMN d", 4924),
            ("ALTER TABLE dbo.T DROP COLUMN b", 4922),
            ("ALTER TABLE dbo.T DROP COLUMN c", 4922),
            ("ALTER TABLE dbo.T DROP COLUMN a", 40515),
            ("EXEC sp_rename N'dbo.T.a', N'x', N'COLUMN'", 40515),
            ("EXEC sp_rename N'dbo.T', N'U'", 40515),
        ] {
            let error = database.execute(sql).unwrap_err();
            assert_eq!(error.number, number, "{sql}: {error}");
        }
        database.execute("DROP VIEW dbo.V; DROP INDEX ix ON dbo.T").unwrap();
        let id = "SELECT OBJECT_ID(N'dbo.U') AS u, OBJECT_ID(N'dbo.T') AS t";
        let (_, before) = count(&other.run(id, &[]));
        database.execute("EXEC sp_rename N'dbo.T', N'U'; CREATE TABLE dbo.T (id int)").unwrap();
        let (_, after) = count(&other.run(id, &[]));
        assert!(after[0] == before[1] && after[1] != before[1], "{before:?} {after:?}");
        assert_eq!(
            count(&other.run("SELECT a FROM dbo.U ORDER BY id DESC", &[])).1,
            [Value::Int(10)]
        );
    }
}
