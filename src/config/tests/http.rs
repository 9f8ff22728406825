//! Settings of the `http` handler.

use super::*;

const HTTP: &str = "
    HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = http
    HIGHWATER__POLLERS__ORDERS__HANDLER__URL = https://example.org/hook
";

#[test]
fn what_is_not_set_is_as_the_handler_has_it_by_itself() {
    let HandlerConfig::Http(http) = read(&[MINIMAL, HTTP]).pollers["orders"].handler.clone() else {
        panic!("the handler is `http`");
    };
    assert_eq!(format!("{http:?}"), format!("{:?}", HttpConfig::new(http.url.clone())));
}

#[test]
fn signing_secrets_are_named_and_each_must_be_one() {
    let bad = "
        HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS = SHORT, PLAIN, MISSING
        SHORT = whsec_aHVudGVyMg==
        PLAIN = hunter2hunter2hunter2hunter2hunter2
    ";
    check_mistakes(
        &[MINIMAL, HTTP, bad],
        &expect![[r#"
        3 mistakes in the settings
        setting `MISSING` is not set, expected a value
          hint: `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` names this setting
        setting `PLAIN` is `(not shown)`, expected `whsec_` and the base64 of 24 to 64 random bytes
          hint: `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` names this setting
        setting `SHORT` is `(not shown)`, expected `whsec_` and the base64 of 24 to 64 random bytes
          hint: `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` names this setting
    "#]],
    );
    let expected = expect![[r#"
        1 mistake in the settings
        setting `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` is `(not shown)`, expected the name of a setting, of at most 40 characters
          hint: put the secret into a setting of its own, and that setting's name here
    "#]];
    for itself in ["whsec_aHVudGVyMg", "aHVudGVyMg==", &"hunter2".repeat(6)] {
        let itself =
            format!("HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS = NEW, {itself}");
        check_mistakes(&[MINIMAL, HTTP, &itself], &expected);
    }
    let many = "HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS = A,B,C,D,E,F";
    check_mistakes(
        &[MINIMAL, HTTP, many],
        &expect![[r#"
        1 mistake in the settings
        setting `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` is `A,B,C,D,E,F`, expected names of at most 5 settings
    "#]],
    );
}
