//! Settings of the `sql` handler.

use super::*;

const SQL: &str = "
    HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = sql
    HIGHWATER__POLLERS__ORDERS__HANDLER__CONNECTION = TARGET
    HIGHWATER__POLLERS__ORDERS__HANDLER__TABLE = ops.copies
    TARGET = Server=other;Database=reports;User Id=me;Password=hunter2
";

fn read_sql(texts: &[&str]) -> SqlHandlerConfig {
    let texts = [&[MINIMAL, SQL], texts].concat();
    let handler = read(&texts).pollers["orders"].handler.clone();
    let HandlerConfig::Sql(sql) = handler else { panic!("{handler:?}") };
    *sql
}

#[test]
fn settings_have_defaults_and_can_be_set() {
    let sql = read_sql(&[]);
    assert_eq!(sql.connection.database.as_deref(), Some("reports"));
    assert_eq!((sql.key, sql.columns, sql.deletes), (None, None, true));
    assert_eq!((sql.fence_table.as_str(), sql.ledger), ("dbo.highwater_fence", None));
    assert_eq!((sql.timeout.as_secs(), sql.tries_max), (60, 3));
    let sql = read_sql(&["
        HIGHWATER__POLLERS__ORDERS__HANDLER__KEY = shop, number
        HIGHWATER__POLLERS__ORDERS__HANDLER__COLUMNS = shop, id:number
        HIGHWATER__POLLERS__ORDERS__HANDLER__DELETES = ignore
        HIGHWATER__POLLERS__ORDERS__HANDLER__FENCE_TABLE = ops.fence
        HIGHWATER__POLLERS__ORDERS__HANDLER__LEDGER = on
        HIGHWATER__POLLERS__ORDERS__HANDLER__LEDGER_TABLE = ops.events
        HIGHWATER__POLLERS__ORDERS__HANDLER__LEDGER_DAYS = 30
    "]);
    assert_eq!(sql.key.unwrap(), ["shop", "number"]);
    let pairs = sql.columns.unwrap();
    assert_eq!(pairs[1], ("id".to_owned(), "number".to_owned()));
    assert_eq!((sql.deletes, sql.fence_table.as_str()), (false, "ops.fence"));
    assert_eq!(sql.ledger, Some(LedgerConfig { table: "ops.events".to_owned(), days: 30 }));
}

#[test]
fn a_target_needs_a_table_and_a_writable_connection() {
    check_mistakes(
        &[MINIMAL, "HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = sql"],
        &expect![[r#"
            2 mistakes in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__CONNECTION` is not set, expected the name of a setting with an ADO.NET connection string
              hint: `HIGHWATER__POLLERS__ORDERS__HANDLER__KIND` is `sql`, which has no default for this
              see docs/reference/settings.md#handler-connection
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__TABLE` is not set, expected table that rows are written to
              see docs/reference/settings.md#handler-table
        "#]],
    );
    let bad = "
        TARGET = Server=other;Database=reports;User Id=me;Password=hunter2;ApplicationIntent=ReadOnly
        HIGHWATER__POLLERS__ORDERS__HANDLER__COLUMNS = id:a, name:A
        HIGHWATER__POLLERS__ORDERS__HANDLER__DELETES = soft
        HIGHWATER__POLLERS__ORDERS__HANDLER__LEDGER = on
        HIGHWATER__POLLERS__ORDERS__HANDLER__LEDGER_DAYS = 0
    ";
    check_mistakes(
        &[MINIMAL, SQL, bad],
        &expect![[r#"
            4 mistakes in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__COLUMNS` is `id:a, name:A`, expected columns such as `id, total:amount`, each target column once
              see docs/reference/settings.md#handler-columns
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__DELETES` is `soft`, expected `delete` or `ignore`
              see docs/reference/settings.md#handler-deletes
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__LEDGER_DAYS` is `0`, expected a whole number from 1 to 3650
              see docs/reference/settings.md#handler-ledger_days
            setting `TARGET` is `(not shown)`, expected a valid connection string: `ApplicationIntent` must not be `ReadOnly`, since rows are written
        "#]],
    );
}
