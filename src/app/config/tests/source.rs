//! Settings of sources.

use secrecy::ExposeSecret as _;

use super::*;

const PREFIX: &str = "HIGHWATER__POLLERS__ORDERS__SOURCE__";

/// The minimal settings with these settings of the source; blank ones count as not set.
fn source(settings: &[(&str, &str)]) -> Result<SourceSettings, String> {
    let mut vars = vars(&[MINIMAL]);
    for (name, value) in settings {
        vars.insert(format!("{PREFIX}{name}"), (*value).to_owned());
    }
    let config = Config::from_vars(&vars).map_err(|errors| errors.to_string());
    config.map(|mut config| config.pollers.remove("orders").unwrap().source)
}

#[test]
fn a_query_replaces_a_table() {
    let text = "SELECT id, version FROM dbo.orders";
    let read = source(&[("TABLE", ""), ("QUERY", text)]).unwrap();
    assert_eq!(read.relation, Relation::Query(text.to_owned()));
    let auto = source(&[("TABLE", ""), ("QUERY", text), ("MODE", "auto")]).unwrap();
    assert_eq!((auto.mode, auto.cursor_column.as_deref()), (None, Some("version")));
    for (settings, expected) in [
        (
            &[("QUERY", text)][..],
            "SOURCE__QUERY` is `SELECT id, version FROM dbo.orders`, expected nothing, since `SOURCE__TABLE` is set",
        ),
        (&[("TABLE", "")], "SOURCE__TABLE` is not set, expected table or view"),
        (&[("TABLE", ""), ("QUERY", "SELECT 1; SELECT 2")], "hint: it is more than one statement"),
        (&[("TABLE", ""), ("QUERY", "SELECT a FROM t ORDER BY a")], "hint: it contains `ORDER BY`"),
        (
            &[("TABLE", ""), ("QUERY", text), ("MODE", "change_tracking")],
            "hint: change tracking works only for a table",
        ),
        (
            &[("TABLE", ""), ("QUERY", text), ("MODE", "auto"), ("CURSOR", "")],
            "SOURCE__CURSOR` is not set",
        ),
    ] {
        let errors = source(settings).unwrap_err();
        assert!(errors.contains(expected) && errors.starts_with("1 mistake"), "{errors}");
    }
}

#[test]
fn a_query_on_another_database_needs_a_time_based_mode() {
    let text = "SELECT id, version FROM elsewhere.dbo.orders";
    let read = |mode| source(&[("TABLE", ""), ("QUERY", text), ("MODE", mode)]);
    for mode in ["rowversion", "auto"] {
        let errors = read(mode).unwrap_err();
        assert!(errors.contains("hint: it reads `elsewhere.dbo.orders`"), "{errors}");
        assert!(errors.starts_with("1 mistake"), "{errors}");
    }
    for mode in ["timestamp+pk", "integer+pk"] {
        assert!(read(mode).is_ok(), "{mode}");
    }
}

#[test]
fn columns_are_listed_or_excluded() {
    let read = source(&[("COLUMNS_EXCLUDED", "note, [odd, name]")]).unwrap();
    assert_eq!(read.columns_excluded, ["note", "odd, name"]);
    for (settings, expected) in [
        (&[("COLUMNS", "a"), ("COLUMNS_EXCLUDED", "b")][..], "since `SOURCE__COLUMNS` is set"),
        (&[("COLUMNS_EXCLUDED", "a,,b")], "each once"),
        (&[("COLUMNS_EXCLUDED", "a,Version")], "hint: remove `Version` from the list"),
        (&[("COLUMNS_EXCLUDED", "ID")], "hint: remove `ID` from the list"),
    ] {
        let errors = source(settings).unwrap_err();
        assert!(errors.contains(expected) && errors.starts_with("1 mistake"), "{errors}");
    }
}

#[test]
fn columns_are_masked_with_a_method_each() {
    use highwater_mssql::source::MaskMethod::{Drop, HmacSha256, Sha256};
    let read = source(&[("MASK", "email:sha256, [odd:name]:drop")]).unwrap().mask;
    assert_eq!(read.columns(), [("email".to_owned(), Sha256), ("odd:name".to_owned(), Drop)]);
    assert!(read.secret().is_none());
    let secret = [("MASK", "email:hmac-sha256"), ("MASK_SECRET", "MASK_KEY")];
    let mut vars = vars(&[MINIMAL, "MASK_KEY = hunter2hunter2hunter2"]);
    vars.extend(secret.map(|(name, value)| (format!("{PREFIX}{name}"), value.to_owned())));
    let config = Config::from_vars(&vars).unwrap();
    let mask = &config.pollers["orders"].source.mask;
    assert_eq!(mask.columns(), [("email".to_owned(), HmacSha256)]);
    assert_eq!(mask.secret().unwrap().expose_secret(), b"hunter2hunter2hunter2");
    assert!(!format!("{config:?}").contains("hunter2hunter2"));
    assert!(secrets(&vars).iter().any(|found| found.setting == "MASK_KEY"));
    vars.insert("MASK_KEY".to_owned(), "hunter2".to_owned());
    let errors = Config::from_vars(&vars).unwrap_err().to_string();
    let expected = "setting `MASK_KEY` is `(not shown)`, expected at least 16 random characters";
    assert!(errors.contains(expected), "{errors}");
    for (settings, expected) in [
        (&[("MASK", "email")][..], "expected columns with a method each"),
        (&[("MASK", "email:sha265")], "hint: did you mean `sha256`?"),
        (&[("MASK", "email:drop,email:sha256")], "every column once"),
        (&[("MASK", "ID:drop")], "hint: remove `ID` from the list"),
        (&[("MASK", "Version:sha256")], "hint: remove `Version` from the list"),
        (
            &[("MASK", "gone:sha256"), ("SOFT_DELETE", "gone")],
            "expected columns that are neither key, cursor nor soft-delete column",
        ),
        (
            &[("MASK", "email:drop"), ("COLUMNS", "Email")],
            "expected no `email:drop`, since `SOURCE__COLUMNS` lists that column",
        ),
        (&[secret[0]], "SOURCE__MASK_SECRET` is not set"),
        (&secret, "setting `MASK_KEY` is not set, expected a value"),
        (
            &[("MASK", "email:sha256"), secret[1]],
            "expected nothing, since no column of `SOURCE__MASK` has the method `hmac-sha256`",
        ),
        (&[secret[1]], "expected nothing, since no column"),
    ] {
        let errors = source(settings).unwrap_err();
        assert!(errors.contains(expected) && errors.starts_with("1 mistake"), "{errors}");
    }
}

#[test]
fn a_column_of_any_name_can_be_named() {
    let read = source(&[
        ("KEY", "id, [a,b], \"c,\"\"d\""),
        ("CURSOR", "[row,version]"),
        ("COLUMNS", "[a,b],[e]]f]"),
        ("SOFT_DELETE", "\"gone, or not\""),
    ])
    .unwrap();
    assert_eq!(read.key, ["id", "a,b", "c,\"d"]);
    assert_eq!(read.cursor_column.as_deref(), Some("row,version"));
    assert_eq!(read.columns.unwrap(), ["a,b", "e]f"]);
    assert_eq!(read.soft_delete.as_deref(), Some("gone, or not"));
    for name in ["KEY", "CURSOR", "COLUMNS", "COLUMNS_EXCLUDED", "SOFT_DELETE"] {
        let errors = source(&[(name, "[a,b")]).unwrap_err();
        assert!(errors.contains(&format!("SOURCE__{name}` is `[a,b`, expected")), "{errors}");
        assert!(errors.contains("hint: write `[a,b]` or"), "{errors}");
    }
}

#[test]
fn a_mode_without_updates_has_no_soft_deletes() {
    assert_eq!(source(&[("SOFT_DELETE", "gone")]).unwrap().soft_delete.as_deref(), Some("gone"));
    let errors = source(&[("MODE", "integer+pk"), ("SOFT_DELETE", "gone")]).unwrap_err();
    assert!(errors.contains("since mode `integer+pk` sees inserted rows only"), "{errors}");
}

#[test]
fn operations_must_be_ones_that_the_mode_reports() {
    use crate::event::Operation::{Delete, Insert, Update, Upsert};
    let tracked = [("MODE", "change_tracking"), ("CURSOR", "")];
    let read = source(&[&tracked[..], &[("OPERATIONS", "insert, update")]].concat()).unwrap();
    assert_eq!(read.operations, Some(vec![Insert, Update]));
    assert_eq!(source(&[]).unwrap().operations, None);
    let soft = source(&[("SOFT_DELETE", "gone"), ("OPERATIONS", "delete,upsert")]).unwrap();
    assert_eq!(soft.operations, Some(vec![Delete, Upsert]));
    let auto = source(&[("MODE", "auto"), ("OPERATIONS", "insert")]).unwrap();
    assert_eq!(auto.operations, Some(vec![Insert]), "the source checks it");
    for (settings, expected) in [
        (
            &[("OPERATIONS", "insert,delete")][..],
            "expected `upsert`, since mode `rowversion` does not",
        ),
        (
            &[("OPERATIONS", "insert")],
            "hint: mode `change_tracking` reports `insert`, `update` and",
        ),
        (
            &[("SOFT_DELETE", "gone"), ("OPERATIONS", "update")],
            "expected `upsert` or `delete`, since",
        ),
        (&[("OPERATIONS", "upsert,upsert")], "each once"),
        (&[("OPERATIONS", "inserts")], "did you mean `insert`?"),
        (&[("OPERATIONS", "upsert,")], "expected `insert`, `update`, `upsert` or `delete`"),
        (
            &[tracked[0], tracked[1], ("OPERATIONS", "upsert")],
            "which mode `change_tracking` distinguishes",
        ),
        (
            &[tracked[0], tracked[1], ("OPERATIONS", "insert,delete")],
            "changed before it is read can count as an update and would be lost\n  \
             hint: select `insert,update`, and ignore updates of known rows in the receiver",
        ),
        (
            &[tracked[0], tracked[1], ("OPERATIONS", "update")],
            "expected `update` together with `insert`",
        ),
    ] {
        let errors = source(settings).unwrap_err();
        assert!(errors.contains(expected) && errors.starts_with("1 mistake"), "{errors}");
    }
}

#[test]
fn a_filter_and_its_parameters_must_match() {
    let read = source(&[("FILTER", "region = @region"), ("FILTER_PARAMS__REGION", "EU")]).unwrap();
    assert_eq!(read.filter_params["REGION"], "EU");
    let check = |settings: &[(&str, &str)], expected: &Expect| {
        expected.assert_eq(&source(settings).unwrap_err());
    };
    check(
        &[("FILTER", "region = @region"), ("FILTER_PARAMS__REGOIN", "EU")],
        &expect![[r#"
            2 mistakes in the settings
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER_PARAMS__REGION` is not set, expected the value of `@region`
              hint: `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER` uses it
              see docs/reference/settings.md#source-filter_params-param
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER_PARAMS__REGOIN` is unknown, expected a parameter used in `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER`
              hint: use `@regoin` there, or remove this setting
              see docs/reference/settings.md#source-filter_params-param"#]],
    );
    check(
        &[("FILTER_PARAMS__REGION", "EU")],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER_PARAMS__REGION` is unknown, expected a parameter used in `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER`
              hint: use `@region` there, or remove this setting
              see docs/reference/settings.md#source-filter_params-param"#]],
    );
    check(
        &[("FILTER", "a = @a"), ("FILTER_PARAMS__A", "int(5):secret"), ("FILTER_PARAMS__a", "1")],
        &expect![[r#"
            2 mistakes in the settings
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER_PARAMS__A` is `(not shown)`, expected a value, optionally with a type prefix
              hint: `int(5)` is not a valid type; write `int`
              see docs/reference/settings.md#source-filter_params-param
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER_PARAMS__a` is `(not shown)`, expected a unique name; `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER_PARAMS__A` is the same parameter
              see docs/reference/settings.md#source-filter_params-param"#]],
    );
    check(
        &[("FILTER", "a = 1) OR (1 = 1")],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER` is `a = 1) OR (1 = 1`, expected a condition that is valid between parentheses
              hint: a closing parenthesis has no opening one
              see docs/reference/settings.md#source-filter"#]],
    );
}
