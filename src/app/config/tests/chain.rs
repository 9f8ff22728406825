//! Settings of a handler chain.

use super::*;

const CHAIN: &str = "
    HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = chain
    HIGHWATER__POLLERS__ORDERS__HANDLER__STEPS = warehouse, notify
    HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__WAREHOUSE__KIND = sql
    HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__WAREHOUSE__CONNECTION = TARGET
    HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__WAREHOUSE__TABLE = ops.copies
    HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__KIND = http
    HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__URL = https://contoso.com/changes
    HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__TIMEOUT = 7s
    TARGET = Server=other;Database=reports;User Id=me;Password=hunter2
";

#[test]
fn steps_keep_the_order_of_the_list_and_have_their_own_settings() {
    let handler = read(&[MINIMAL, CHAIN]).pollers["orders"].handler.clone();
    let HandlerConfig::Chain(steps) = handler else { panic!("{handler:?}") };
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["warehouse", "notify"]);
    let HandlerConfig::Sql(sql) = &steps[0].handler else { panic!("{steps:?}") };
    assert_eq!((sql.table.as_str(), sql.timeout.as_secs()), ("ops.copies", 60));
    let HandlerConfig::Http(http) = &steps[1].handler else { panic!("{steps:?}") };
    assert_eq!((http.url.path(), http.timeout.as_secs()), ("/changes", 7));
}

#[test]
fn mistakes_in_a_chain_name_its_settings() {
    let bad = "
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__WAREHOUSE__TABLE =
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__TIMEOUT = 1h
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__TRIES_MAXX = 3
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__STALL_MAX = 3m
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFI__URL = https://contoso.com
    ";
    check_mistakes(
        &[MINIMAL, CHAIN, bad],
        &expect![[r#"
            5 mistakes in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFI__URL` is unknown, expected a step that `HIGHWATER__POLLERS__ORDERS__HANDLER__STEPS` names: `warehouse`, `notify`
              see docs/reference/settings.md#handler-url
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__STALL_MAX` is unknown
              hint: remove it
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__TIMEOUT` is `1h`, expected a duration below `285s` (`HIGHWATER__FUNCTION_TIMEOUT` minus 15 seconds)
              hint: raise that setting and `functionTimeout`
              see docs/reference/settings.md#handler-timeout
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__TRIES_MAXX` is unknown
              hint: did you mean `HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__TRIES_MAX`? Rename or remove this setting
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__WAREHOUSE__TABLE` is not set, expected table that rows are written to
              see docs/reference/settings.md#handler-table
        "#]],
    );
    let nested = "
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__KIND = chain
    ";
    check_mistakes(
        &[MINIMAL, CHAIN, nested],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__KIND` is `chain`, expected `http`, `sql`, `queue`, `blob`, `durable`, `exec` or `stdout`
              see docs/reference/settings.md#handler-kind
        "#]],
    );
    let none = "
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEPS =
    ";
    check_mistakes(
        &[MINIMAL, CHAIN, none],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__STEPS` is not set, expected names of 2 to 10 steps, separated by commas, in the order in which they receive each batch
              see docs/reference/settings.md#handler-steps
        "#]],
    );
    let one = "
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEPS = notify
    ";
    check_mistakes(
        &[MINIMAL, CHAIN, one],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__STEPS` is `notify`, expected names of 2 to 10 steps such as `warehouse, notify`: lowercase letters, digits and single `_`, each once
              see docs/reference/settings.md#handler-steps
        "#]],
    );
}

#[test]
fn a_chain_and_its_steps_accept_only_settings_of_their_kind() {
    let bad = "
        HIGHWATER__POLLERS__ORDERS__HANDLER__URL = https://contoso.com/changes
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__WAREHOUSE__URL = https://contoso.com/changes
    ";
    let errors = Config::from_vars(&vars(&[MINIMAL, CHAIN, bad])).unwrap_err().to_string();
    for (setting, kind) in [("", "chain"), ("STEP__WAREHOUSE__", "sql")] {
        let of = format!("`HIGHWATER__POLLERS__ORDERS__HANDLER__{setting}");
        let expected =
            format!("{of}URL` is `(not shown)`, expected nothing, since {of}KIND` is `{kind}`");
        assert!(errors.contains(&expected), "{errors}");
    }
}

#[test]
fn the_old_name_of_a_chain_suggests_the_new_one() {
    let old = "HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = fanout";
    let errors = Config::from_vars(&vars(&[MINIMAL, old])).unwrap_err().to_string();
    assert!(
        errors.contains("is `fanout`, expected") && errors.contains("it is now called `chain`")
    );
}
