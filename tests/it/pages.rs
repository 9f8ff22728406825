//! Property: pages of any size, concatenated, equal one large ordered read.
//!
//! The server orders in both cases: the poller never compares keys.

use std::time::Duration;

use highwater::cursor::{Cursor, CursorMode};
use highwater::source::mssql::{Mssql, SourceSettings};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRng, TestRunner};

use crate::any_server::AnyServer;
use crate::sql::events;

/// Tables read per mode.
const CASES: u32 = 40;
const ROWS_MAX: usize = 48;
/// Values of a column; few, so that there are ties.
const VALUES: usize = 8;
/// How far a poller by time stays behind the server's clock.
const SETTLE: Duration = Duration::from_secs(5);
/// Maximum number of columns of a key.
const KEY_MAX: usize = 3;

/// Types of a key, with values that are easily misordered.
const KEYS: &[(&str, [&str; VALUES])] = &[
    ("int", ["-2147483648", "-10", "-9", "-1", "0", "9", "10", "2147483647"]),
    (
        "bigint",
        [
            "-9223372036854775808",
            "-9007199254740993",
            "-9007199254740992",
            "0",
            "9",
            "10",
            "9007199254740993",
            "9223372036854775807",
        ],
    ),
    ("smallint", ["-32768", "-10", "-9", "-1", "0", "9", "10", "32767"]),
    ("tinyint", ["0", "1", "2", "9", "10", "99", "100", "255"]),
    ("bit", ["0", "1", "0", "1", "0", "1", "0", "1"]),
    ("decimal(9, 2)", ["-10.00", "-9.99", "-0.01", "0", "0.01", "9.99", "10", "9999999.99"]),
    (
        "decimal(38, 10)",
        [
            "-9999999999999999999999999999.9999999999",
            "-10.0000000001",
            "-10",
            "-0.0000000001",
            "0",
            "0.0000000001",
            "9",
            "9999999999999999999999999999.9999999999",
        ],
    ),
    (
        "money",
        [
            "-922337203685477.5808",
            "-10.0001",
            "-10",
            "-0.0001",
            "0",
            "9.9999",
            "10",
            "922337203685477.5807",
        ],
    ),
    ("float", ["-1e300", "-10.5", "-0.1", "0", "1e-300", "0.1", "0.3", "1e300"]),
    ("real", ["-1e30", "-10.5", "-0.1", "0", "1e-30", "0.1", "0.3", "1e30"]),
    ("nvarchar(12)", ["N''", "N'a'", "N'B'", "N'b c'", "N'ä'", "N'Z'", "N'10'", "N'9'"]),
    ("nvarchar(12)", ["N'a'", "N'A'", "N'a '", "N'O''Brien'", "N'%'", "N'_'", "N'[x]'", "N'😀'"]),
    (
        "nvarchar(12) COLLATE Latin1_General_100_BIN2",
        ["N'a'", "N'A'", "N'b'", "N'B'", "N'ä'", "N'_'", "N'10'", "N'9'"],
    ),
    ("varchar(12)", ["''", "'a'", "'B'", "'b c'", "'-'", "'Z'", "'10'", "'9'"]),
    ("char(3)", ["''", "'a'", "'B'", "'b c'", "'-'", "'Z'", "'10'", "'9'"]),
    (
        "uniqueidentifier",
        [
            "'01000000-0000-0000-0000-000000000000'",
            "'00000001-0000-0000-0000-000000000000'",
            "'00000000-0100-0000-0000-000000000000'",
            "'00000000-0001-0000-0000-000000000000'",
            "'00000000-0000-0000-0100-000000000000'",
            "'00000000-0000-0000-0000-000000000001'",
            "'FFFFFFFF-FFFF-FFFF-FFFF-010000000000'",
            "'00000000-0000-0000-0000-FF0000000000'",
        ],
    ),
    ("varbinary(4)", ["0x", "0x0001", "0x01", "0x0101", "0x7F", "0x80", "0x8001", "0xFFFFFFFF"]),
    (
        "datetime2(3)",
        [
            "'0001-01-01'",
            "'2019-12-31T23:59:59.999'",
            "'2020-01-01T00:00:00'",
            "'2020-01-01T00:00:00.001'",
            "'2020-01-01T00:00:00.01'",
            "'2020-01-01T00:00:00.1'",
            "'2020-01-01T10:00:00'",
            "'9999-12-31T23:59:59.999'",
        ],
    ),
    (
        "datetime",
        [
            "'1753-01-01'",
            "'2019-12-31T23:59:59.997'",
            "'2020-01-01T00:00:00'",
            "'2020-01-01T00:00:00.003'",
            "'2020-01-01T00:00:00.007'",
            "'2020-01-01T00:00:00.010'",
            "'2020-01-01T10:00:00'",
            "'9999-12-31T23:59:59.997'",
        ],
    ),
    (
        "datetimeoffset(7)",
        [
            "'2020-01-01T00:00:00+00:00'",
            "'2020-01-01T01:00:00+01:00'",
            "'2020-01-01T00:00:00-01:00'",
            "'2020-01-01T00:00:00+14:00'",
            "'2020-01-01T00:00:00-14:00'",
            "'2020-01-01T00:00:00.0000001+00:00'",
            "'0001-01-02T00:00:00+00:00'",
            "'9999-12-30T00:00:00+00:00'",
        ],
    ),
    (
        "date",
        [
            "'0001-01-01'",
            "'1999-12-31'",
            "'2000-01-01'",
            "'2000-02-29'",
            "'2000-03-01'",
            "'2020-01-09'",
            "'2020-01-10'",
            "'9999-12-31'",
        ],
    ),
    (
        "time(7)",
        [
            "'00:00:00'",
            "'00:00:00.0000001'",
            "'00:00:00.1'",
            "'01:00:00'",
            "'09:00:00'",
            "'10:00:00'",
            "'12:00:00'",
            "'23:59:59.9999999'",
        ],
    ),
    // Of each family; numbers and texts that are equal in several types; times and bytes.
    (
        VARIANT,
        [
            "CAST(N'-1.50' AS decimal(9, 2))",
            "CAST(3 AS tinyint)",
            "CAST(N'0.1' AS float)",
            "CAST(N'b' AS nvarchar(9))",
            "CAST('A' AS varchar(9))",
            "CAST(0x00FF AS varbinary(4))",
            "CAST('00000000-0000-0000-0000-000000000001' AS uniqueidentifier)",
            "CAST('2020-01-01' AS date)",
        ],
    ),
    (
        VARIANT,
        [
            "CAST(1 AS bit)",
            "CAST(1 AS int)",
            "CAST(N'1.5' AS money)",
            "CAST(N'9223372036854775807' AS bigint)",
            "CAST(N'-0.5' AS smallmoney)",
            "CAST(N'0.1' AS real)",
            "CAST(N'-1e300' AS float)",
            "CAST(N'99999999999999999999999999999999999999' AS decimal(38, 0))",
        ],
    ),
    (
        VARIANT,
        [
            "CAST('10:00:00' AS time(3))",
            "CAST('2020-01-01T10:00:00.003' AS datetime)",
            "CAST('2020-01-01T10:00:00.0033334' AS datetime2(7))",
            "CAST('2020-01-01T10:01:00' AS smalldatetime)",
            "CAST(N'a' AS nchar(3))",
            "CAST('A' AS char(2))",
            "CAST(N'O''Brien:x' AS nvarchar(20))",
            "CAST(0xFF AS binary(1))",
        ],
    ),
];

/// The type whose values have their own types.
const VARIANT: &str = "sql_variant";

/// Types of a time cursor. `NULL` means a row that no poller sees.
const TIMES: [&str; 7] = [
    "datetime2(7)",
    "datetime2(3)",
    "datetime2(0)",
    "datetime",
    "smalldatetime",
    "date",
    "datetimeoffset(7)",
];

const STAMPS: [&str; VALUES] = [
    "NULL",
    "'2020-01-01T10:00:00'",
    "'2020-01-01T10:00:00.003'",
    "'2020-01-01T10:00:00.003'",
    "'2020-01-01T10:00:00.997'",
    "'2020-01-01T10:00:29'",
    "'2020-01-02'",
    "'2020-01-10'",
];

/// Values of a numeric cursor.
const NUMBERS: [i64; VALUES] = [i64::MIN, -10, -9, 0, 9, 10, 100, i64::MAX];

#[derive(Clone, Debug)]
struct Table {
    /// Types of the key, as indexes into [`KEYS`].
    key: Vec<usize>,
    stamp: &'static str,
    /// Index of the time, and of each value of the key.
    rows: Vec<(usize, Vec<usize>)>,
    page: usize,
}

/// Tables whose key has the `types`, as indexes into [`KEYS`].
fn tables(types: Vec<usize>) -> impl Strategy<Value = Table> {
    let row = (0..VALUES, vec(0..VALUES, KEY_MAX));
    (vec(select(types), 1..=KEY_MAX), select(&TIMES[..]), vec(row, 0..ROWS_MAX), 1..ROWS_MAX / 3)
        .prop_map(|(key, stamp, rows, page)| Table { key, stamp, rows, page })
}

impl Table {
    /// Creates the table. Rows whose key already exists, according to the server, are left out.
    async fn make(&self) -> AnyServer {
        let columns: Vec<String> = self
            .key
            .iter()
            .enumerate()
            .map(|(at, place)| format!("k{at} {} NOT NULL", KEYS[*place].0))
            .collect();
        let server = AnyServer::start(&format!(
            "CREATE TABLE dbo.t ({}, n int NOT NULL, c bigint NOT NULL, at {} NULL, \
             rv rowversion NOT NULL, PRIMARY KEY ({}))",
            columns.join(", "),
            self.stamp,
            self.names().join(", ")
        ))
        .await;
        let mut session = server.session().await;
        for (n, (stamp, places)) in self.rows.iter().enumerate() {
            let key: Vec<&str> =
                self.key.iter().zip(places).map(|(column, at)| KEYS[*column].1[*at]).collect();
            let sql = format!(
                "INSERT INTO dbo.t ({}, n, c, at) VALUES ({}, {n}, {}, {})",
                self.names().join(", "),
                key.join(", "),
                NUMBERS[*stamp],
                STAMPS[*stamp]
            );
            match session.try_run(&sql).await {
                Ok(_) => {}
                Err(tiberius::error::Error::Server(error)) if error.code() == 2627 => {}
                Err(error) => panic!("`{sql}`: {error}"),
            }
        }
        // So that the order of the versions differs from that of the rows.
        session.run("UPDATE dbo.t SET at = at WHERE n % 3 = 0").await;
        server
    }

    fn names(&self) -> Vec<String> {
        (0..self.key.len()).map(|at| format!("k{at}")).collect()
    }

    /// One large ordered read; without a cursor, in key order.
    async fn ordered(&self, server: &AnyServer, cursor: &str) -> Vec<i64> {
        let (names, mut filter, mut order) =
            (self.names().join(", "), String::new(), String::new());
        if !cursor.is_empty() {
            filter = format!("WHERE {cursor} IS NOT NULL ");
            order = format!("{cursor}, ");
        }
        let sql = format!("SELECT n FROM dbo.t {filter}ORDER BY {order}{names}");
        let rows = server.session().await.run(&sql).await;
        rows.iter().map(|row| row.get::<i32, _>(0).unwrap().into()).collect()
    }

    /// Page after page.
    async fn paged(&self, server: &AnyServer, mode: CursorMode, cursor: &str) -> Vec<i64> {
        self.paged_after(server, mode, cursor, None).await.0
    }

    /// The same after a position; also returns where it ended.
    async fn paged_after(
        &self,
        server: &AnyServer,
        mode: CursorMode,
        cursor: &str,
        mut after: Option<Cursor>,
    ) -> (Vec<i64>, Option<Cursor>) {
        let settings = SourceSettings {
            key: self.names(),
            columns: Some(vec!["n".to_owned()]),
            settle: if mode == CursorMode::IntegerPk { Duration::ZERO } else { SETTLE },
            ..server.settings("t", mode, cursor)
        };
        let source = Mssql::new(settings).unwrap();
        let mut found = Vec::new();
        // More pages than possible: a poller that repeats one must not hang the test.
        for _ in 0..ROWS_MAX + 2 {
            let (read, has_rest) = events(&source, after.as_ref(), self.page).await;
            found.extend(read.iter().map(|event| {
                let json: serde_json::Value = serde_json::from_str(event.json.as_ref()).unwrap();
                json["after"]["n"].as_i64().unwrap()
            }));
            after = read.into_iter().last().map(|event| event.cursor).or(after);
            if !has_rest {
                return (found, after);
            }
        }
        panic!("{} rows and no end: {found:?}", self.rows.len());
    }
}

fn check(mode: CursorMode, cursor: &'static str) {
    check_keys(mode, cursor, (0..KEYS.len()).collect(), CASES);
}

fn check_keys(mode: CursorMode, cursor: &'static str, types: Vec<usize>, cases: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&tables(types), |table| {
        runtime.block_on(async {
            let server = table.make().await;
            if mode == CursorMode::ChangeTracking {
                server.track("dbo.t").await;
            }
            let expected = table.ordered(&server, cursor).await;
            let found = table.paged(&server, mode, cursor).await;
            prop_assert_eq!(found, expected);
            Ok(())
        })
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn pages_by_time_are_one_ordered_read() {
    check(CursorMode::TimestampPk, "at");
}

#[test]
fn pages_by_rowversion_are_one_ordered_read() {
    check(CursorMode::RowVersion, "rv");
}

#[test]
fn pages_by_number_are_one_ordered_read() {
    check(CursorMode::IntegerPk, "c");
}

#[test]
fn pages_of_a_tracked_tables_initial_read_are_one_ordered_read() {
    check(CursorMode::ChangeTracking, "");
}

/// Keys whose values have their own types, in each part of a composite key.
#[test]
fn pages_by_values_of_several_types_are_one_ordered_read() {
    let of_variants = |place: &usize| KEYS[*place].0 == VARIANT;
    let types: Vec<usize> = (0..KEYS.len()).filter(of_variants).collect();
    assert!(types.len() > 1);
    for (mode, cursor) in [
        (CursorMode::TimestampPk, "at"),
        (CursorMode::IntegerPk, "c"),
        (CursorMode::ChangeTracking, ""),
    ] {
        check_keys(mode, cursor, types.clone(), CASES / 4);
    }
}

/// The rows of a table are ordered by the key alone; none of its changes is missing or doubled.
#[tokio::test]
async fn every_type_of_key_pages_through_a_tables_rows_and_their_changes() {
    for (place, (declared, _)) in KEYS.iter().enumerate() {
        // After another column, so that the last part of the key is compared too.
        let rows = (0..2 * VALUES).map(|n| (1, vec![n % 2, n / 2, 0])).collect();
        let table = Table { key: vec![0, place], stamp: TIMES[0], rows, page: 1 };
        let server = table.make().await;
        server.track("dbo.t").await;
        let expected = table.ordered(&server, "at").await;
        assert!(expected.len() > 2, "{declared}");
        let (found, end) = table.paged_after(&server, CursorMode::ChangeTracking, "", None).await;
        assert_eq!(found, expected, "{declared}");
        server.execute("UPDATE dbo.t SET at = at").await;
        let (mut found, end) =
            table.paged_after(&server, CursorMode::ChangeTracking, "", end).await;
        // The embedded server orders changes of one version by the letters of their keys.
        let mut expected = expected;
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{declared}");
        let (found, _) = table.paged_after(&server, CursorMode::ChangeTracking, "", end).await;
        assert_eq!(found, [0; 0], "{declared}");
    }
}

/// Every type of key on its own, over all its values at one time.
#[tokio::test]
async fn every_type_of_key_pages_through_its_values() {
    for (place, (declared, _)) in KEYS.iter().enumerate() {
        let rows = (0..VALUES).map(|value| (1, vec![value; KEY_MAX])).collect();
        let table = Table { key: vec![place], stamp: TIMES[0], rows, page: 1 };
        let server = table.make().await;
        let expected = table.ordered(&server, "at").await;
        assert!(expected.len() > 1, "{declared}");
        let found = table.paged(&server, CursorMode::TimestampPk, "at").await;
        assert_eq!(found, expected, "{declared}");
    }
}
