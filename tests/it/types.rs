//! `docs/reference/types.md`, row by row over the wire: each value is read, and round-trips to the same
//! value.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use highwater::config::{SqlConnection, SqlHandlerConfig};
use highwater::cursor::{Cursor, CursorMode};
use highwater::event::{ChangeEvent, Operation};
use highwater::handler::sql::Sql;
use highwater::mssql::{Connection, Param};
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater_devdb::Value as Stored;
use highwater_test_support::json_schema::Validator;
use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;

use crate::any_server::AnyServer;
use crate::sql::{World, events, failure};
use crate::sql_handler::{config, deliver, tables};

const DOCUMENT: &str = include_str!("../../docs/reference/types.md");
const CYRILLIC: &str = "Cyrillic_General_CI_AS";

/// Values of one declared type: as T-SQL, and in their JSON form.
struct Case {
    declared: &'static str,
    collation: Option<&'static str>,
    values: &'static [(&'static str, &'static str)],
}

const fn case(declared: &'static str, values: &'static [(&'static str, &'static str)]) -> Case {
    Case { declared, collation: None, values }
}

const fn collated(
    declared: &'static str,
    collation: &'static str,
    values: &'static [(&'static str, &'static str)],
) -> Case {
    Case { declared, collation: Some(collation), values }
}

/// Types without an order.
const UNORDERED: [&str; 4] = ["text", "ntext", "xml", "image"];

const CASES: &[Case] = &[
    case("bit", &[("0", "false"), ("1", "true")]),
    case("tinyint", &[("0", "0"), ("255", "255")]),
    case("smallint", &[("-32768", "-32768"), ("32767", "32767")]),
    case("int", &[("-2147483648", "-2147483648"), ("2147483647", "2147483647")]),
    case(
        "bigint",
        &[
            ("N'-9223372036854775808'", "-9223372036854775808"),
            ("9223372036854775807", "9223372036854775807"),
            ("9007199254740993", "9007199254740993"),
        ],
    ),
    case(
        "real",
        &[
            ("N'0.1'", "0.1"),
            ("N'3.4028235e38'", "3.4028235e+38"),
            ("N'-1e-45'", "-1e-45"),
            ("N'16777216'", "16777216.0"),
        ],
    ),
    case(
        "float",
        &[
            ("N'0.1'", "0.1"),
            ("N'1.7976931348623157e308'", "1.7976931348623157e+308"),
            ("N'-2.2250738585072014e-308'", "-2.2250738585072014e-308"),
            ("N'5e-324'", "5e-324"),
            ("N'100'", "100.0"),
        ],
    ),
    case("decimal(9, 4)", &[("-12.34", "\"-12.3400\""), ("0", "\"0.0000\"")]),
    case(
        "decimal(38, 38)",
        &[
            (
                "N'0.99999999999999999999999999999999999999'",
                "\"0.99999999999999999999999999999999999999\"",
            ),
            (
                "N'-0.00000000000000000000000000000000000001'",
                "\"-0.00000000000000000000000000000000000001\"",
            ),
        ],
    ),
    case(
        "numeric(38, 0)",
        &[
            (
                "N'99999999999999999999999999999999999999'",
                "\"99999999999999999999999999999999999999\"",
            ),
            (
                "N'-99999999999999999999999999999999999999'",
                "\"-99999999999999999999999999999999999999\"",
            ),
        ],
    ),
    case(
        "money",
        &[
            ("N'922337203685477.5807'", "\"922337203685477.5807\""),
            ("N'-922337203685477.5808'", "\"-922337203685477.5808\""),
        ],
    ),
    case(
        "smallmoney",
        &[("N'214748.3647'", "\"214748.3647\""), ("N'-214748.3648'", "\"-214748.3648\"")],
    ),
    case("date", &[("'0001-01-01'", "\"0001-01-01\""), ("'9999-12-31'", "\"9999-12-31\"")]),
    case(
        "time(7)",
        &[("'23:59:59.9999999'", "\"23:59:59.9999999\""), ("'00:00'", "\"00:00:00.0000000\"")],
    ),
    case("time(0)", &[("'23:59:59'", "\"23:59:59\"")]),
    case(
        "smalldatetime",
        &[
            ("'1900-01-01T00:00:00'", "\"1900-01-01T00:00:00\""),
            ("'2079-06-06T23:59:00'", "\"2079-06-06T23:59:00\""),
        ],
    ),
    case(
        "datetime",
        &[
            ("'1753-01-01T00:00:00.003'", "\"1753-01-01T00:00:00.003\""),
            ("'9999-12-31T23:59:59.997'", "\"9999-12-31T23:59:59.997\""),
        ],
    ),
    case(
        "datetime2(7)",
        &[
            ("'0001-01-01T00:00:00'", "\"0001-01-01T00:00:00.0000000\""),
            ("'9999-12-31T23:59:59.9999999'", "\"9999-12-31T23:59:59.9999999\""),
        ],
    ),
    case("datetime2(0)", &[("'2020-02-29T12:00:00'", "\"2020-02-29T12:00:00\"")]),
    case(
        "datetimeoffset(7)",
        &[
            ("'2020-02-29T12:00:00.1234567+14:00'", "\"2020-02-29T12:00:00.1234567+14:00\""),
            ("'9999-12-31T09:59:59.9999999-14:00'", "\"9999-12-31T09:59:59.9999999-14:00\""),
            ("'0001-01-01T00:00:00-14:00'", "\"0001-01-01T00:00:00.0000000-14:00\""),
            ("'0001-01-01T14:00:00+14:00'", "\"0001-01-01T14:00:00.0000000+14:00\""),
        ],
    ),
    collated("char(5)", CYRILLIC, &[("N'Жук'", "\"Жук  \""), ("N''", "\"     \"")]),
    collated("varchar(9)", CYRILLIC, &[("N'Жук'", "\"Жук\""), ("N''", "\"\"")]),
    collated("varchar(99)", "Latin1_General_100_CI_AS_SC_UTF8", &[("N'日本 €'", "\"日本 €\"")]),
    case("varchar(max)", &[("N'é€'", "\"é€\"")]),
    collated("text", CYRILLIC, &[("N'Жук'", "\"Жук\""), ("N''", "\"\"")]),
    case("nchar(3)", &[("N'ж'", "\"ж  \"")]),
    case(
        "nvarchar(9)",
        &[("N'ä😀'", "\"ä😀\""), ("N''", "\"\""), ("N'\"\n\\'", "\"\\\"\\n\\\\\"")],
    ),
    case("nvarchar(max)", &[("N'日本'", "\"日本\"")]),
    case("ntext", &[("N'日本'", "\"日本\""), ("N''", "\"\"")]),
    case("xml", &[("N'<a b=\"1\"> </a>'", "\"<a b=\\\"1\\\"> </a>\""), ("N''", "\"\"")]),
    case("binary(2)", &[("0x00FF", "\"AP8=\""), ("0x", "\"AAA=\"")]),
    case("varbinary(9)", &[("0x00FF", "\"AP8=\""), ("0x", "\"\"")]),
    case("varbinary(max)", &[("0x00FF", "\"AP8=\""), ("0x", "\"\"")]),
    case("image", &[("0x00FF", "\"AP8=\""), ("0x", "\"\"")]),
    case("rowversion", &[("DEFAULT", "\"AAAAAAAAB9E=\"")]),
    case(
        "uniqueidentifier",
        &[
            ("'ABCDEF00-0000-0000-0000-000000000001'", "\"abcdef00-0000-0000-0000-000000000001\""),
            ("'FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF'", "\"ffffffff-ffff-ffff-ffff-ffffffffffff\""),
        ],
    ),
    case(
        "sql_variant",
        &[
            ("CAST(1 AS bit)", "\"bit:1\""),
            ("CAST(255 AS tinyint)", "\"tinyint:255\""),
            ("CAST(N'-9223372036854775808' AS bigint)", "\"bigint:-9223372036854775808\""),
            ("CAST(N'-1.50' AS decimal(9, 2))", "\"decimal(9, 2):-1.50\""),
            (
                "CAST(N'99999999999999999999999999999999999999' AS decimal(38, 0))",
                "\"decimal(38, 0):99999999999999999999999999999999999999\"",
            ),
            ("CAST(N'922337203685477.5807' AS money)", "\"money:922337203685477.5807\""),
            ("CAST(N'-214748.3648' AS smallmoney)", "\"smallmoney:-214748.3648\""),
            ("CAST(N'0.1' AS real)", "\"real:0.1\""),
            ("CAST(N'5e-324' AS float)", "\"float:5e-324\""),
            ("CAST(N'1.7976931348623157e308' AS float)", "\"float:1.7976931348623157e+308\""),
            ("CAST('0001-01-01' AS date)", "\"date:0001-01-01\""),
            ("CAST('23:59:59.9999999' AS time(7))", "\"time(7):23:59:59.9999999\""),
            ("CAST('1753-01-01T00:00:00.003' AS datetime)", "\"datetime:1753-01-01T00:00:00.003\""),
            (
                "CAST('9999-12-31T23:59:59.9999999' AS datetime2(7))",
                "\"datetime2(7):9999-12-31T23:59:59.9999999\"",
            ),
            (
                "CAST('2020-02-29T12:00:00.1234567-14:00' AS datetimeoffset(7))",
                "\"datetimeoffset(7):2020-02-29T12:00:00.1234567-14:00\"",
            ),
            (
                "CAST('ABCDEF00-0000-0000-0000-000000000001' AS uniqueidentifier)",
                "\"uniqueidentifier:abcdef00-0000-0000-0000-000000000001\"",
            ),
            ("CAST(0x00FF AS varbinary(4))", "\"varbinary(4):0x00FF\""),
            (
                "CAST(N'a:b 日本' AS nvarchar(9))",
                "\"nvarchar(9) COLLATE SQL_Latin1_General_CP1_CI_AS:a:b 日本\"",
            ),
            ("CAST(N'' AS nvarchar(9))", "\"nvarchar(9) COLLATE SQL_Latin1_General_CP1_CI_AS:\""),
            ("CAST(N'é' AS char(3))", "\"char(3) COLLATE SQL_Latin1_General_CP1_CI_AS:é  \""),
        ],
    ),
    case("hierarchyid", &[("N'/1/2.1/'", "\"/1/2.1/\""), ("N'/'", "\"/\"")]),
];

/// Unsupported types, and the suggested alternatives.
const REFUSED: &[(&str, &str)] = &[
    ("geography", "`[c].AsTextZM()` and `[c].STSrid`"),
    ("geometry", "`[c].AsTextZM()` and `[c].STSrid`"),
];

impl Case {
    fn name(&self) -> &'static str {
        self.declared.split('(').next().unwrap()
    }

    fn column(&self) -> String {
        let collation = self.collation.map(|name| format!(" COLLATE {name}")).unwrap_or_default();
        format!("{}{collation}", self.declared)
    }

    /// No index takes columns of unlimited length.
    fn primary_key(&self) -> &'static str {
        if self.declared.ends_with("(max)") { "" } else { " PRIMARY KEY" }
    }

    /// The expression from the document, with the names of this case.
    fn read_back(&self, row: &DocumentRow) -> String {
        let collation = self.collation.unwrap_or("SQL_Latin1_General_CP1_CI_AS");
        row.read_back
            .replace("AS type", &format!("AS {}", self.declared))
            .replace("COLLATE collation", &format!("COLLATE {collation}"))
            .replace("@v", "@P1")
    }

    /// The condition that two expressions are equal, for which some types need a conversion.
    fn equal(&self, value: &str) -> String {
        let common = match self.name() {
            "text" | "ntext" | "xml" => "nvarchar(max)",
            "image" => "varbinary(max)",
            _ => return format!("t.c = {value}"),
        };
        format!("CAST(t.c AS {common}) = CAST({value} AS {common})")
    }
}

struct DocumentRow {
    types: Vec<&'static str>,
    form: &'static str,
    example: &'static str,
    read_back: &'static str,
}

fn document() -> Vec<DocumentRow> {
    let table = DOCUMENT.split("<!-- types -->").nth(1).unwrap();
    let table = table.split("<!-- /types -->").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let [types, form, example, read_back]: [&str; 4] = line
            .trim_matches('|')
            .split(" | ")
            .map(str::trim)
            .collect::<Vec<_>>()
            .try_into()
            .unwrap_or_else(|cells| panic!("`{line}` has cells {cells:?}"));
        let types = types.split(", ").map(|name| name.trim_matches('`')).collect();
        DocumentRow {
            types,
            form,
            example: example.trim_matches('`'),
            read_back: read_back.trim_matches('`'),
        }
    })
    .collect()
}

fn row_of<'a>(rows: &'a [DocumentRow], name: &str) -> &'a DocumentRow {
    let found = rows.iter().find(|row| row.types.contains(&name));
    found.unwrap_or_else(|| panic!("docs/reference/types.md has no row for `{name}`"))
}

/// The text of each delivered value of column `c`, as seen by handlers.
async fn delivered(settings: SourceSettings) -> Vec<String> {
    #[derive(Deserialize)]
    struct Event {
        after: After,
    }
    #[derive(Deserialize)]
    struct After {
        c: Box<RawValue>,
    }
    let source = Mssql::new(settings).unwrap();
    let (events, _) = events(&source, None, 100).await;
    let values = events.iter().map(|event| serde_json::from_str::<Event>(&event.json).unwrap());
    values.map(|event| event.after.c.get().to_owned()).collect()
}

/// Checks delivered values of column `c` by the schema that the source gives of it.
async fn check_schema(settings: SourceSettings, found: &[String]) {
    let rows = Mssql::new(settings).unwrap().row_schema().await.unwrap();
    let validator = Validator::strict(rows.row.clone());
    let with = |json: &str| serde_json::from_str(&format!("{{\"c\":{json}}}")).unwrap();
    for json in found {
        validator.check(&with(json)).unwrap_or_else(|error| panic!("{json}: {error} {rows:?}"));
    }
    // A schema that accepts anything would be of no use.
    let has_null = found.iter().any(|json| json == "null");
    assert_eq!(validator.check(&with("null")).is_ok(), has_null, "{rows:?}");
    for json in ["{}", "[]", "[1]"] {
        assert!(validator.check(&with(json)).is_err(), "{json} {rows:?}");
    }
}

/// The parameter for a JSON value according to the document.
fn param(row: &DocumentRow, json: &Json) -> Param {
    match json {
        Json::Bool(value) => Param::Bool(*value),
        Json::Number(number) => {
            number.as_i64().map_or_else(|| Param::Float(number.as_f64().unwrap()), Param::BigInt)
        }
        Json::String(text) if row.form.contains("base64") => {
            Param::Bytes(STANDARD.decode(text).unwrap())
        }
        Json::String(text) => Param::Text(text.clone()),
        Json::Null | Json::Array(_) | Json::Object(_) => panic!("`{json}` is no form"),
    }
}

/// The expression from the document for a value with its type as a prefix.
fn read_back_variant(row: &DocumentRow, variant: &str) -> (String, Param) {
    let (base, value) = variant.split_once(':').unwrap();
    let (base, collate) = base
        .split_once(" COLLATE ")
        .map_or((base, String::new()), |(base, of)| (base, format!("@v COLLATE {of}")));
    let read_back = if base.contains("binary") {
        assert!(DOCUMENT.contains("`CONVERT(base, @v, 1)` for binary types"));
        format!("CONVERT({base}, @v, 1)")
    } else {
        row.read_back.replace("AS base", &format!("AS {base}"))
    };
    let read_back = if collate.is_empty() { read_back } else { read_back.replace("@v", &collate) };
    (read_back.replace("@v", "@P1"), Param::Text(value.to_owned()))
}

async fn count(connection: SqlConnection, condition: &str, params: &[Param]) -> String {
    let mut connection = Connection::new(connection, None);
    let sql = format!("SELECT COUNT_BIG(*) FROM dbo.t AS t WHERE {condition}");
    let rows = connection
        .query(&sql, params, |row| Ok(format!("{:?}", row.into_token_row().into_iter().next())))
        .await;
    rows.unwrap_or_else(|error| panic!("{sql}: {error:?}")).concat()
}

#[test]
fn the_newest_types_are_rejected_with_an_alternative() {
    let advice = DOCUMENT.lines().skip_while(|line| !line.contains("`json` and `vector`"));
    let advice: Vec<&str> = advice.take(2).collect();
    assert!(advice.concat().contains("read `CONVERT(nvarchar(max), [c])` in a view"), "{advice:?}");
}

#[test]
fn every_type_of_the_page_is_tested_with_its_example() {
    let rows = document();
    for row in &rows {
        for name in &row.types {
            let cases: Vec<_> = CASES.iter().filter(|case| case.name() == *name).collect();
            let refused = REFUSED.iter().any(|(refused, _)| refused == name);
            assert_eq!(refused, cases.is_empty(), "`{name}` is refused, or has cases");
            assert_eq!(refused, row.form.starts_with("refused"), "{name}");
        }
        let mut values = CASES.iter().filter(|case| row.types.contains(&case.name()));
        let is_shown = values.any(|case| case.values.iter().any(|(_, json)| *json == row.example));
        assert!(is_shown || row.example == "–", "example `{}` is of no case", row.example);
    }
    for case in CASES {
        assert!(row_of(&rows, case.name()).read_back.contains("@v"), "{}", case.declared);
    }
}

#[tokio::test]
async fn each_value_has_its_documented_form_and_round_trips() {
    let rows = document();
    for case in CASES {
        let version = if case.name() == "rowversion" { "c" } else { "rv" };
        let other = if version == "c" { "" } else { "rv rowversion NOT NULL, " };
        let mut tsql = format!(
            "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, {other}c {}{})",
            case.column(),
            if version == "c" { " NOT NULL" } else { " NULL" },
        );
        for (id, (literal, _)) in case.values.iter().enumerate() {
            let (columns, value) = match *literal {
                "DEFAULT" => ("id", String::new()),
                literal => ("id, c", format!(", {literal}")),
            };
            write!(tsql, "; INSERT INTO dbo.t ({columns}) VALUES ({id}{value})").unwrap();
        }
        if version != "c" {
            tsql += "; INSERT INTO dbo.t (id, c) VALUES (99, NULL)";
        }
        let world = AnyServer::start(&tsql).await;
        let columns = Some(vec!["c".to_owned()]);
        let settings = world.settings("t", CursorMode::RowVersion, version);
        let settings = SourceSettings { columns, ..settings };
        let mut found = delivered(settings.clone()).await;
        check_schema(settings, &found).await;
        if version != "c" {
            assert_eq!(found.pop().as_deref(), Some("null"), "{}", case.declared);
        }
        let expected: Vec<_> = case.values.iter().map(|(_, json)| *json).collect();
        assert_eq!(found, expected, "{}", case.declared);

        let row = row_of(&rows, case.name());
        for (id, json) in found.iter().enumerate() {
            let value: Json = serde_json::from_str(json).unwrap();
            let (read_back, value) = match value.as_str().filter(|_| case.name() == "sql_variant") {
                Some(variant) => read_back_variant(row, variant),
                None => (case.read_back(row), param(row, &value)),
            };
            let condition = format!("t.id = {id} AND {}", case.equal(&read_back));
            let equal = count(world.connection(), &condition, &[value]).await;
            assert_eq!(equal, "Some(I64(Some(1)))", "{} {json}: {condition}", case.declared);
        }
    }
}

/// Values in a checkpoint are converted back by the source itself.
#[tokio::test]
async fn a_key_of_each_type_pages_through_its_values() {
    for case in CASES.iter().filter(|case| !UNORDERED.contains(&case.name())) {
        let mut tsql = format!(
            "CREATE TABLE dbo.t (c {} NOT NULL{}, at datetime2(7) NOT NULL)",
            case.column(),
            case.primary_key()
        );
        for (literal, _) in case.values {
            let (columns, values) = match case.name() {
                "rowversion" => ("at", "'2020-01-01'".to_owned()),
                _ => ("c, at", format!("{literal}, '2020-01-01'")),
            };
            write!(tsql, "; INSERT INTO dbo.t ({columns}) VALUES ({values})").unwrap();
        }
        let world = AnyServer::start(&tsql).await;
        let settings = world.settings("t", CursorMode::TimestampPk, "at");
        let source = Mssql::new(SourceSettings { key: vec!["c".to_owned()], ..settings }).unwrap();
        let mut after: Option<Cursor> = None;
        let mut found = Vec::new();
        for _ in 0..=case.values.len() {
            let (events, _) = events(&source, after.as_ref(), 1).await;
            let Some(event) = events.into_iter().next() else { break };
            found.push(event.cursor.key["c"].to_string());
            after = Some(event.cursor);
        }
        found.sort();
        let mut expected: Vec<_> = case.values.iter().map(|(_, json)| (*json).to_owned()).collect();
        expected.sort();
        assert_eq!(found, expected, "{}", case.declared);
    }
}

/// The handler `sql` writes each form back: once as a new row, once over an existing one.
#[tokio::test]
async fn each_value_arrives_in_a_column_of_its_own_type() {
    // A value that names its own type can only be stored as text.
    for case in CASES.iter().filter(|case| case.name() != "sql_variant") {
        let (version, target) = match case.name() {
            "rowversion" => ("c", "binary(8)".to_owned()),
            _ => ("rv", case.column()),
        };
        let other = if version == "c" { "" } else { "rv rowversion NOT NULL, " };
        let mut tsql = format!(
            "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, {other}c {}); \
             CREATE TABLE dbo.copies (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, \
             c {target} NULL); {}",
            if version == "c" { "rowversion NOT NULL".to_owned() } else { case.column() },
            tables()
        );
        for (id, (literal, _)) in case.values.iter().enumerate() {
            match *literal {
                "DEFAULT" => write!(tsql, "; INSERT INTO dbo.t (id) VALUES ({id})").unwrap(),
                text => write!(tsql, "; INSERT INTO dbo.t (id, c) VALUES ({id}, {text})").unwrap(),
            }
        }
        if version != "c" {
            tsql += "; INSERT INTO dbo.t (id, c) VALUES (99, NULL)";
        }
        let world = AnyServer::start(&tsql).await;
        let settings = world.settings("t", CursorMode::RowVersion, version);
        let source = Mssql::new(settings.clone()).unwrap();
        let (rows, _) = events(&source, None, 100).await;
        let sql = Sql::new("shop", &config(world.connection())).unwrap();
        let columns = Some(vec!["c".to_owned()]);
        let sent = delivered(SourceSettings { columns: columns.clone(), ..settings }).await;
        for round in 0..2 {
            let delivery = deliver(&sql, &rows).await;
            delivery.unwrap_or_else(|error| panic!("{}: {error}", case.declared));
            let settings = world.settings("copies", CursorMode::RowVersion, "rv");
            let found = delivered(SourceSettings { columns: columns.clone(), ..settings }).await;
            assert_eq!(found, sent, "{} in round {round}", case.declared);
        }
    }
}

#[tokio::test]
async fn an_unpaired_surrogate_arrives_unchanged() {
    let world = World::start(&format!(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, c nvarchar(9)); \
         CREATE TABLE dbo.copies (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, \
         c nvarchar(9)); {}",
        tables()
    ))
    .await;
    let half = [&[0x61, 0, 0x3D, 0xD8][..], &[0x62, 0]].concat();
    let row = vec![Stored::Int(1), Stored::Bytes(half)];
    world.database.insert_rows("dbo.t", &["id", "c"], [row]).unwrap();
    let source = Mssql::new(world.settings("t", CursorMode::RowVersion, "rv")).unwrap();
    let sql = Sql::new("shop", &config(world.connection())).unwrap();
    deliver(&sql, &events(&source, None, 10).await.0).await.unwrap();
    let settings = world.settings("copies", CursorMode::RowVersion, "rv");
    let columns = Some(vec!["c".to_owned()]);
    assert_eq!(delivered(SourceSettings { columns, ..settings }).await, [r#""a\ud83db""#]);
}

#[tokio::test]
async fn a_key_of_each_type_finds_its_row_in_the_target() {
    // The server itself sets a rowversion in the target, and no target has a `sql_variant`.
    let keys = CASES.iter().filter(|case| !["rowversion", "sql_variant"].contains(&case.name()));
    for case in keys.filter(|case| !UNORDERED.contains(&case.name())) {
        let (column, key) = (case.column(), case.primary_key());
        let mut tsql = format!(
            "CREATE TABLE dbo.t (c {column} NOT NULL{key}, rv rowversion NOT NULL, n int); \
             CREATE TABLE dbo.copies (c {column} NOT NULL{key}, n int); {}",
            tables()
        );
        for (literal, _) in case.values {
            write!(tsql, "; INSERT INTO dbo.t (c, n) VALUES ({literal}, 1)").unwrap();
        }
        let world = AnyServer::start(&tsql).await;
        let settings = world.settings("t", CursorMode::RowVersion, "rv");
        let source = Mssql::new(SourceSettings { key: vec!["c".to_owned()], ..settings }).unwrap();
        let (rows, _) = events(&source, None, 100).await;
        let pairs = [("c", "c"), ("n", "n")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let settings =
            SqlHandlerConfig { columns: Some(pairs.into()), ..config(world.connection()) };
        let sql = Sql::new("shop", &settings).unwrap();
        deliver(&sql, &rows).await.unwrap();
        // A key that did not find its row would be inserted again, and rejected.
        world.execute("UPDATE dbo.copies SET n = 2").await;
        deliver(&sql, &rows).await.unwrap();
        let equal = "EXISTS (SELECT 1 FROM dbo.copies AS u WHERE u.c = t.c AND u.n = 1)";
        let expected = format!("Some(I64(Some({})))", case.values.len());
        assert_eq!(count(world.connection(), equal, &[]).await, expected, "{}", case.declared);
        let label = &highwater::source::Source::shape(&source).label;
        let gone =
            |event: ChangeEvent| ChangeEvent::encode(label, Operation::Delete, event.cursor, &[]);
        let gone: Vec<ChangeEvent> = rows.into_iter().map(gone).collect();
        deliver(&sql, &gone).await.unwrap();
        assert_eq!(
            count(world.connection(), equal, &[]).await,
            "Some(I64(Some(0)))",
            "{}",
            case.declared
        );
    }
}

#[tokio::test]
async fn an_unsupported_type_is_rejected_with_an_alternative() {
    for (name, expected) in REFUSED {
        let tsql = format!(
            "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, c {name}); \
                     INSERT INTO dbo.t (id) VALUES (1)"
        );
        let world = AnyServer::start(&tsql).await;
        let settings = world.settings("t", CursorMode::RowVersion, "rv");
        let (_, text) = failure(settings.clone()).await;
        assert!(text.contains(expected), "{text}");
        assert!(text.contains(&format!("column `c` is of type `{name}`")), "{text}");
        let columns = Some(vec!["id".to_owned()]);
        let source = Mssql::new(SourceSettings { columns, ..settings }).unwrap();
        assert_eq!(events(&source, None, 10).await.0.len(), 1);
    }
}

#[tokio::test]
async fn an_unpaired_surrogate_is_delivered_as_an_escape() {
    let world = World::start(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, c nvarchar(9)); \
         CREATE TABLE dbo.u (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, c ntext)",
    )
    .await;
    let half = [&[0x61, 0, 0x3D, 0xD8][..], &[0x62, 0]].concat();
    for table in ["t", "u"] {
        let row = vec![Stored::Int(1), Stored::Bytes(half.clone())];
        world.database.insert_rows(&format!("dbo.{table}"), &["id", "c"], [row]).unwrap();
        let settings = world.settings(table, CursorMode::RowVersion, "rv");
        assert_eq!(delivered(settings).await, [r#""a\ud83db""#]);
    }
    let equal =
        count(world.connection(), "t.c = CAST(@P1 AS nvarchar(9))", &[Param::Bytes(half)]).await;
    assert_eq!(equal, "Some(I64(Some(1)))");
    let key = vec!["c".to_owned()];
    let settings = world.settings("t", CursorMode::RowVersion, "rv");
    let source = Mssql::new(SourceSettings { key, ..settings }).unwrap();
    let rows = crate::sql::fetch(&source, None, 1).await.unwrap();
    let error = highwater::normalize::normalize(highwater::source::Source::shape(&source), &rows);
    assert!(error.unwrap_err().to_string().contains("half a surrogate pair in key column `c`"));
}

#[tokio::test]
async fn a_megabyte_of_text_and_of_bytes_arrives_whole() {
    let world = World::start(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, c nvarchar(max)); \
         CREATE TABLE dbo.u (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, c varbinary(max))",
    )
    .await;
    let text = "ä😀z".repeat(1 << 18);
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
    let row = vec![Stored::Int(1), Stored::Text(text.clone())];
    world.database.insert_rows("dbo.t", &["id", "c"], [row]).unwrap();
    let row = vec![Stored::Int(1), Stored::Bytes(bytes.clone())];
    world.database.insert_rows("dbo.u", &["id", "c"], [row]).unwrap();
    for (table, json) in
        [("t", Json::from(text.clone())), ("u", Json::from(STANDARD.encode(&bytes)))]
    {
        let found = delivered(world.settings(table, CursorMode::RowVersion, "rv")).await;
        assert!(found == [json.to_string()], "{} bytes", found[0].len());
    }
    let equal =
        count(world.connection(), "t.c = CAST(@P1 AS nvarchar(max))", &[Param::Text(text)]).await;
    assert_eq!(equal, "Some(I64(Some(1)))");
    let equal = "EXISTS (SELECT 1 FROM dbo.u AS u WHERE u.id = t.id AND u.c = @P1)";
    let equal = count(world.connection(), equal, &[Param::Bytes(bytes)]).await;
    assert_eq!(equal, "Some(I64(Some(1)))");
}
