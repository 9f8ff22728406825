//! Settings of the `http` handler.

use super::*;

const HTTP: &str = "
    HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = http
    HIGHWATER__POLLERS__ORDERS__HANDLER__URL = https://contoso.com/hook
";

#[test]
fn unset_settings_have_the_defaults_of_the_handler() {
    let http = read_http(&[]);
    assert_eq!(format!("{http:?}"), format!("{:?}", HttpConfig::new(http.url)));
}

#[test]
fn signing_secrets_are_references_to_valid_secrets() {
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
          hint: `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` refers to this setting
        setting `PLAIN` is `(not shown)`, expected `whsec_` and the base64 of 24 to 64 random bytes
          hint: `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` refers to this setting
        setting `SHORT` is `(not shown)`, expected `whsec_` and the base64 of 24 to 64 random bytes
          hint: `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` refers to this setting
    "#]],
    );
    let expected = expect![[r#"
        1 mistake in the settings
        setting `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` is `(not shown)`, expected the name of a setting, of at most 40 characters
          hint: put the secret into another setting, and the name of that setting here
          see docs/reference/settings.md#handler-signing_secrets
    "#]];
    for secret in ["whsec_aHVudGVyMg", "aHVudGVyMg==", &"hunter2".repeat(6)] {
        let secret =
            format!("HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS = NEW, {secret}");
        check_mistakes(&[MINIMAL, HTTP, &secret], &expected);
    }
    let many = "HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS = A,B,C,D,E,F";
    check_mistakes(
        &[MINIMAL, HTTP, many],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS` is `A,B,C,D,E,F`, expected at most 5 names of settings
              see docs/reference/settings.md#handler-signing_secrets
        "#]],
    );
}

/// Reads settings of the handler, given by the last part of their names, together with `KEY`.
fn read_http(lines: &[&str]) -> HttpConfig {
    let lines = lines.iter().map(|line| format!("HIGHWATER__POLLERS__ORDERS__HANDLER__{line}\n"));
    let lines = lines.collect::<String>() + "KEY = hunter2==";
    let handler = read(&[MINIMAL, HTTP, &lines]).pollers["orders"].handler.clone();
    let HandlerConfig::Http(http) = handler else { panic!("{handler:?}") };
    *http
}

#[test]
fn each_kind_of_authentication_reads_its_settings() {
    let auth = |lines: &[&str]| format!("{:?}", read_http(lines).auth);
    assert_eq!(auth(&["AUTH = none", "AUTH_SECRET = not there"]), "None");
    assert_eq!(
        auth(&["AUTH = function_key", "AUTH_SECRET = KEY"]),
        "FunctionKey(SecretBox<str>([REDACTED]))"
    );
    assert_eq!(
        auth(&["AUTH = identity", "AUTH_AUDIENCE = api://orders", "AUTH_CLIENT_ID = c"]),
        r#"Identity { audience: "api://orders", client_id: Some("c") }"#
    );
    assert_eq!(
        auth(&["AUTH = header", "AUTH_HEADER = Authorization", "AUTH_SECRET = KEY"]),
        r#"Header { name: "authorization", value: SecretBox<str>([REDACTED]) }"#
    );
}

#[test]
fn missing_settings_of_an_authentication_are_reported() {
    let of = |line: &str| format!("HIGHWATER__POLLERS__ORDERS__HANDLER__{line}");
    check_mistakes(
        &[MINIMAL, HTTP, &of("AUTH = function_key")],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH_SECRET` is not set, expected name of the setting with the key, or the header's value
              see docs/reference/settings.md#handler-auth_secret
        "#]],
    );
    check_mistakes(
        &[MINIMAL, HTTP, &of("AUTH = identity")],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH_AUDIENCE` is not set, expected application that the token is issued for, such as `api://11111111-2222-3333-4444-555555555555`
              see docs/reference/settings.md#handler-auth_audience
        "#]],
    );
    check_mistakes(
        &[MINIMAL, HTTP, &of("AUTH = oauth")],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH` is `oauth`, expected `none`, `function_key`, `identity` or `header`
              see docs/reference/settings.md#handler-auth
        "#]],
    );
    let bad = ["AUTH = header", "AUTH_HEADER = Webhook-Id", "AUTH_SECRET = KEY"].map(of).join("\n");
    check_mistakes(
        &[MINIMAL, HTTP, &bad, "KEY = hunter2é"],
        &expect![[r#"
            2 mistakes in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH_HEADER` is `Webhook-Id`, expected the name of a header that Highwater and HTTP do not set themselves
              see docs/reference/settings.md#handler-auth_header
            setting `KEY` is `(not shown)`, expected printable ASCII characters
              hint: `HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH_SECRET` refers to this setting
        "#]],
    );
    let scope = [of("AUTH = identity"), of("AUTH_AUDIENCE = api://orders/.default")].join("\n");
    check_mistakes(
        &[MINIMAL, HTTP, &scope],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH_AUDIENCE` is `api://orders/.default`, expected an application id URI such as `api://my-app`, without `/.default`
              see docs/reference/settings.md#handler-auth_audience
        "#]],
    );
}

#[test]
fn authorities_are_a_text_or_a_file_and_never_a_key() {
    let pem = "-----BEGIN CERTIFICATE-----\\nMII=\\n-----END CERTIFICATE-----";
    assert_eq!(
        read_http(&[&format!("CA = {pem}")]).authorities,
        Some(Authorities::Pem(pem.replace("\\n", "\n")))
    );
    assert_eq!(
        read_http(&["CA = certificates/company.pem"]).authorities,
        Some(Authorities::File("certificates/company.pem".into()))
    );
    let key = "HIGHWATER__POLLERS__ORDERS__HANDLER__CA = -----BEGIN PRIVATE KEY-----\\nhunter2";
    check_mistakes(
        &[MINIMAL, HTTP, key],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__CA` is `(not shown)`, expected certificates without a private key
              see docs/reference/settings.md#handler-ca
        "#]],
    );
}
