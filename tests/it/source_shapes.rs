//! Which parts of a table are read: filters with values, lists of columns, names of every kind.

use std::collections::BTreeMap;

use highwater::cursor::CursorMode::{self, ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::error::ErrorKind;
use highwater::source::Source as _;
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::value::Value;

use crate::any_server::AnyServer;
use crate::sql::{drain, events, failure, fetch};

fn filtered(base: &SourceSettings, filter: &str, values: &[(&str, &str)]) -> SourceSettings {
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let filter = Some(filter.to_owned());
    SourceSettings { filter, filter_params: values.collect(), ..base.clone() }
}

#[tokio::test]
async fn values_of_a_filter_are_parameters_in_every_mode() {
    let world = AnyServer::with_flights(40).await;
    world.track("dbo.flights").await;
    for mode in [RowVersion, TimestampPk, IntegerPk, ChangeTracking] {
        let column = match mode {
            RowVersion => "rv",
            TimestampPk => "time_hour",
            IntegerPk | ChangeTracking => "id",
        };
        let base = world.settings("flights", mode, column);
        let base = SourceSettings { settle: std::time::Duration::ZERO, ..base };
        let filter = "carrier = @carrier AND id < @below OR id = @below OR carrier = @it";
        let values =
            [("CARRIER", "UA"), ("BELOW", "int:9"), ("IT", "'); DROP TABLE dbo.flights --")];
        let source = Mssql::new(filtered(&base, filter, &values)).unwrap();
        let mut ids = drain(&source, 2).await;
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 6, 9], "{mode}");
    }
}

#[tokio::test]
async fn values_are_of_their_type() {
    let world = AnyServer::start(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL, a varchar(9), \
         b decimal(9, 2), c date, d uniqueidentifier, e varbinary(4), f float, g nvarchar(9)); \
         INSERT INTO dbo.t (id, a, b, c, d, e, f, g) VALUES (1, 'x', 1.50, '2020-02-29', \
         'ABCDEF00-0000-0000-0000-000000000001', 0x00FF, 0.1, N'int:5'), \
         (2, 'y', 2.5, '2021-01-01', NEWID(), 0x01, 2, N'5')",
    )
    .await;
    let base = world.settings("t", RowVersion, "rv");
    for (column, value) in [
        ("a", "x"),
        ("a", "varchar(9):x"),
        ("b", "1.5"),
        ("b", "decimal(9, 2):1.50"),
        ("c", "2020-02-29"),
        ("c", "date:2020-02-29"),
        ("d", "abcdef00-0000-0000-0000-000000000001"),
        ("e", "varbinary(4):0x00FF"),
        ("f", "float:0.1"),
        ("g", "nvarchar(9):int:5"),
    ] {
        let filter = format!("t.{column} = @value");
        let source = Mssql::new(filtered(&base, &filter, &[("value", value)])).unwrap();
        assert_eq!(drain(&source, 9).await, [1], "{column} = {value}");
    }
}

#[tokio::test]
async fn a_filter_and_its_values_are_fingerprinted_and_must_match() {
    let world = AnyServer::with_flights(0).await;
    let base = world.flights(RowVersion);
    let of = |filter, values: &[(&str, &str)]| {
        Mssql::new(filtered(&base, filter, values)).unwrap().shape().fingerprint.clone()
    };
    assert_eq!(of(" id > @a ", &[("A", "5")]), of("id > @a", &[("A", "5")]));
    assert_ne!(of("id > @a", &[("A", "5")]), of("id > @a", &[("A", "6")]));
    for (filter, values, expected) in [
        ("id > @a", &[][..], "it uses `@a`, which has no value"),
        ("id > @a", &[("A", "5"), ("B", "5")], "it does not use `@B`"),
        ("id > @a", &[("A", "decimal:5")], "the value of `@A`: `decimal` is not a valid type"),
        ("id > 5) OR (1 = 1", &[], "a closing parenthesis has no opening one"),
        ("id > @hi", &[], "it uses `@hi`, which has no value"),
    ] {
        let error = Mssql::new(filtered(&base, filter, values)).unwrap_err();
        assert!(error.reason.contains(expected), "{error}");
        assert_eq!(error.kind, ErrorKind::Configuration);
    }
}

#[tokio::test]
async fn columns_are_excluded_by_name_except_key_and_cursor() {
    let world = AnyServer::with_flights(3).await;
    let base = world.flights(RowVersion);
    let without = |names: &[&str]| {
        let columns_excluded = names.iter().map(|name| (*name).to_owned()).collect();
        SourceSettings { columns_excluded, ..base.clone() }
    };
    let source = Mssql::new(without(&["Carrier", "dep_delay"])).unwrap();
    let rows = fetch(&source, None, 9).await.unwrap();
    assert_eq!(rows.columns.names(), ["id", "time_hour", "flight", "rv"]);
    for (settings, expected) in [
        (without(&["carier"]), "excluded column `carier` is not in `dbo.flights`, which has"),
        (without(&["carier"]), "did you mean `carrier`?"),
        (
            without(&["ID"]),
            "column `id` of `dbo.flights` is excluded, but is needed as key or cursor",
        ),
        (without(&["rv"]), "column `rv` of `dbo.flights` is excluded"),
    ] {
        let (error, text) = failure(settings).await;
        assert!(text.contains(expected), "`{expected}` not in `{text}`");
        assert_eq!(error.kind, ErrorKind::Configuration);
    }
    let columns = Some(vec!["id".to_owned()]);
    let error = Mssql::new(SourceSettings { columns, ..without(&["flight"]) }).unwrap_err();
    assert!(error.reason.contains("both a column list and excluded columns"), "{error}");
}

/// Names that break unquoted statements.
const NAMES: [&str; 8] =
    ["a]b", "a[b", "a\"b", "a'b", "a b.c", "; DROP TABLE x --", "Größe 日本 😀", "select"];

#[tokio::test]
async fn unusual_names_work_everywhere_and_in_every_mode() {
    for name in NAMES {
        let bracketed = format!("[{}]", name.replace(']', "]]"));
        let table = format!("[s {}].{bracketed}", name.replace(']', "]]"));
        let world = AnyServer::start("SELECT 1").await;
        world.execute(&format!("CREATE SCHEMA [s {}]", name.replace(']', "]]"))).await;
        let (key, version, at, deleted) = (
            bracketed.clone(),
            format!("[v {}]", name.replace(']', "]]")),
            format!("[t {}]", name.replace(']', "]]")),
            format!("[n {}]", name.replace(']', "]]")),
        );
        world
            .execute(&format!(
                "CREATE TABLE {table} ({key} int NOT NULL PRIMARY KEY, {version} rowversion NOT NULL, \
                 {at} datetime2(7) NOT NULL, {deleted} nvarchar(max) NULL)"
            ))
            .await;
        let insert = format!("INSERT INTO {table} ({key}, {at}, {deleted})");
        world
            .execute(&format!(
                "{insert} VALUES (1, '2020-01-01', N'x'), (2, '2020-01-01', NULL), (3, '2020-01-02', N'z')"
            ))
            .await;
        world.track(&table).await;
        for mode in [RowVersion, TimestampPk, IntegerPk, ChangeTracking] {
            assert_eq!(keys(&world, &table, name, mode).await, [1, 2, 3], "{name} in {mode}");
        }
    }
}

async fn keys(world: &AnyServer, table: &str, name: &str, mode: CursorMode) -> Vec<i64> {
    let cursor = match mode {
        RowVersion => format!("v {name}"),
        TimestampPk => format!("t {name}"),
        IntegerPk | ChangeTracking => name.to_owned(),
    };
    let base = world.settings(table, mode, &cursor);
    let settings = SourceSettings {
        key: vec![name.to_owned()],
        filter: Some(format!("[{}] > @least", name.replace(']', "]]"))),
        filter_params: BTreeMap::from([("LEAST".to_owned(), "int:0".to_owned())]),
        settle: std::time::Duration::ZERO,
        ..base
    };
    let source = Mssql::new(settings).unwrap();
    let mut found = Vec::new();
    let mut after = None;
    for _ in 0..4 {
        let (events, _) = events(&source, after.as_ref(), 1).await;
        for event in events {
            let json: serde_json::Value = serde_json::from_str(&event.json).unwrap();
            assert!(json["after"].get(format!("n {name}")).is_some(), "{json}");
            found.push(event.cursor.key[name].as_i64().unwrap());
            after = Some(event.cursor);
        }
    }
    found
}

#[tokio::test]
async fn a_name_of_three_parts_is_read_in_the_database_of_the_connection_only() {
    let world = AnyServer::with_flights(2).await;
    let database = world.connection().database.unwrap();
    let name = format!("[{}].dbo.flights", database.to_uppercase());
    let source = Mssql::new(world.settings(&name, RowVersion, "rv")).unwrap();
    assert_eq!(drain(&source, 9).await, [1, 2]);
    let rows = fetch(&source, None, 1).await.unwrap();
    assert_eq!(rows.rows[0].key, [Value::Int(1)]);
    let error = Mssql::new(world.settings("other.dbo.flights", RowVersion, "rv")).unwrap_err();
    assert!(error.reason.contains("set `other` in the connection string"), "{error}");
}
