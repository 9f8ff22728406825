//! Finds the secrets in the settings and in the rest of the environment, for redaction.
//!
//! They are taken from the text of the variables, not from a [`super::Config`], so that they are found even if
//! settings are invalid or a secret is in the wrong setting.

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::{Position, Url};

use super::settings;
use super::source::PORTAL_PREFIXES;
use super::vars::Vars;
use crate::redaction::{SECRET_BYTES_MIN, is_guid, is_random};
use highwater_mssql::pairs;

/// A secret of the environment.
pub struct FoundSecret {
    /// Name of the setting that contains it.
    pub setting: String,
    /// Whether Highwater itself uses it, rather than the platform or another program.
    pub is_ours: bool,
    /// The secret.
    pub value: String,
}

impl fmt::Debug for FoundSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FoundSecret")
            .field("setting", &self.setting)
            .finish_non_exhaustive()
    }
}

impl FoundSecret {
    /// Whether it is too short for redaction.
    pub fn is_short(&self) -> bool {
        self.value.trim().len() < SECRET_BYTES_MIN
    }
}

/// Returns every secret that can be found in the environment.
pub fn secrets(vars: &dyn Vars) -> Vec<FoundSecret> {
    let named = Named::of(vars);
    let all: BTreeSet<String> = vars.names().into_iter().collect();
    let mut found = Vec::new();
    for setting in &all {
        let text = vars.get(setting).unwrap_or_default();
        let text = text.trim();
        let is_highwater = setting.starts_with("HIGHWATER__");
        let mut plain = PORTAL_PREFIXES.iter().filter_map(|prefix| setting.strip_prefix(prefix));
        let is_of_portal = plain.any(|plain| named.connections.contains(plain));
        let is_named =
            named.secrets.contains(setting) || named.connections.contains(setting) || is_of_portal;
        let mut values = Vec::new();
        let is_passed_on = named.passed_on.contains(setting) && is_like_a_token(text);
        if named.secrets.contains(setting) || is_passed_on {
            add_secret(text, &mut values);
        } else if is_highwater {
            of_setting(setting, text, &all, &named.public, &mut values);
        } else if is_secret_variable(setting, text) {
            add_secret(text, &mut values);
        }
        parts(text, is_highwater || is_named, &mut values);
        values.retain(|value: &String| !value.trim().is_empty());
        values.sort();
        values.dedup();
        let is_ours = is_highwater || is_named;
        found.extend(values.into_iter().map(|value| FoundSecret {
            setting: setting.clone(),
            is_ours,
            value,
        }));
    }
    found
}

/// Variables that settings name.
#[derive(Default)]
struct Named {
    /// Variables that are secret as a whole.
    secrets: BTreeSet<String>,
    /// Variables that contain a connection string.
    connections: BTreeSet<String>,
    /// Variables that are passed to `exec` processes: a value that looks like a key is secret.
    passed_on: BTreeSet<String>,
    /// Names and values of our settings except URLs and keys, in lower case: what output has anyway, such as the name of a
    /// table.
    public: String,
}

impl Named {
    fn of(vars: &dyn Vars) -> Self {
        let mut named = Self::default();
        named.connections.insert("AzureWebJobsStorage".to_owned());
        for setting in vars.names().iter().filter(|name| name.starts_with("HIGHWATER__")) {
            let text = vars.get(setting).unwrap_or_default();
            let others = text.split(',').map(|name| name.trim().to_owned());
            named.add_public(setting);
            if !is_url(setting) && !is_key(setting) && !is_command(setting) {
                named.add_public(&text);
            }
            if is_for(setting, &settings::HANDLER_AUTH_SECRET)
                || is_for(setting, &settings::SOURCE_MASK_SECRET)
                || is_for(setting, &settings::HANDLER_SIGNING_SECRETS)
            {
                named.secrets.extend(others);
            } else if setting.ends_with("__CONNECTION") {
                named.connections.extend(others);
            } else if is_for(setting, &settings::HANDLER_ENV) {
                named.passed_on.extend(others);
            }
        }
        named
    }

    fn add_public(&mut self, text: &str) {
        self.public.push_str(&text.to_lowercase());
        self.public.push('\n');
    }
}

/// Whether a variable sets `setting` for a poller or a step of its handler.
fn is_for(variable: &str, setting: &settings::Setting) -> bool {
    let tail = setting.name.rsplit("__").next().unwrap_or_default();
    variable.ends_with(&format!("__{tail}"))
}

/// Whether a value passed to an `exec` process may be a token: long enough, with mixed letters and digits.
fn is_like_a_token(text: &str) -> bool {
    const CHARS_MIN: usize = 12;
    let has = |test: fn(&char) -> bool| text.chars().any(|c| test(&c));
    let is_mixed = has(char::is_ascii_lowercase)
        && has(char::is_ascii_uppercase)
        && has(char::is_ascii_digit)
        && !has(|c| c.is_whitespace() || *c == '/');
    is_random(text) || is_guid(text) || (text.len() >= CHARS_MIN && is_mixed)
}

/// Adds a secret, and the parts of it that are just as secret.
fn add_secret(text: &str, values: &mut Vec<String>) {
    values.push(text.to_owned());
    values.extend(text.strip_prefix("whsec_").map(str::to_owned));
    // In a header value, the text after the scheme is the secret.
    if let Some((scheme, proof)) = text.split_once(' ') {
        values.push(proof.to_owned());
        let decoded = STANDARD.decode(proof.trim()).ok().and_then(|it| String::from_utf8(it).ok());
        if let Some(decoded) = decoded.filter(|_| scheme.eq_ignore_ascii_case("basic")) {
            values.extend(decoded.split_once(':').map(|(_, password)| password.to_owned()));
            values.push(decoded);
        }
    }
}

/// Adds possible secrets in one of our own settings.
fn of_setting(
    setting: &str,
    text: &str,
    names: &BTreeSet<String>,
    public: &str,
    values: &mut Vec<String>,
) {
    if is_key(setting) {
        values.push(text.to_owned());
    }
    if is_for(setting, &settings::HANDLER_COMMAND) {
        of_command(text, values);
    }
    if is_url(setting) {
        of_path(text, public, values);
    }
    // A key in the wrong setting.
    for piece in text.split([',', ' ', ';']).map(str::trim) {
        if piece.contains("whsec_") || is_random(piece) {
            add_secret(piece, values);
        }
    }
    // A value that should be one of a few words or the name of another variable, and is neither. A misspelt name
    // rarely has a digit, and a key almost always has one.
    let of_keys = [
        &settings::HANDLER_AUTH,
        &settings::HANDLER_AUTH_SECRET,
        &settings::SOURCE_MASK_SECRET,
        &settings::HANDLER_SIGNING_SECRETS,
    ];
    if of_keys.iter().any(|key| is_for(setting, key)) {
        let pieces = text.split(',').map(str::trim);
        let keys = pieces.filter(|piece| !names.contains(*piece) && has_digit(piece));
        values.extend(keys.map(str::to_owned));
    }
}

/// Whether a setting is the URL of a receiver.
pub(super) fn is_url(setting: &str) -> bool {
    setting == settings::NOTIFY_URL.name || is_for(setting, &settings::HANDLER_URL)
}

/// Whether a setting is a command line.
pub(super) fn is_command(setting: &str) -> bool {
    is_for(setting, &settings::HANDLER_COMMAND)
}

/// Whether a setting is a secret as a whole.
pub(super) fn is_key(setting: &str) -> bool {
    is_for(setting, &settings::HANDLER_SYSTEM_KEY)
}

/// Adds the path of a URL, and its parts that may be keys: the URL of a chat service is a secret.
///
/// A path of a single word may be a secret, or the name of a table. A word that other output has anyway is searched for
/// only after its host, because redacting it everywhere would make that output unreadable and hide nothing.
fn of_path(text: &str, public: &str, values: &mut Vec<String>) {
    let Ok(url) = Url::parse(text) else { return };
    let parts = url.path_segments().into_iter().flatten();
    let may_be_secret =
        |part: &&str| may_be_key(part) && has_digit(part) && !is_numbered_name(part);
    values.extend(parts.filter(may_be_secret).map(str::to_owned));
    let path = url.path().trim_matches('/');
    if path.is_empty() {
        return;
    }
    let is_word = !has_digit(path) && !path.contains('/');
    let word = path.to_lowercase();
    let is_known = PATH_WORDS.contains(&word.as_str()) || public.contains(&word);
    // A shorter word is not searched for anyway, and would be reported as a secret that is too short.
    if is_word && (is_known || path.len() < SECRET_BYTES_MIN) {
        values.push(format!("{}/{path}", &url[Position::BeforeHost..Position::AfterPort]));
    } else {
        values.push(path.to_owned());
    }
}

/// Ordinary words in the path of a receiver that also occur in our own output, or in that of receivers.
const PATH_WORDS: [&str; 44] = [
    "accept",
    "actions",
    "batches",
    "callback",
    "change",
    "changed",
    "changes",
    "consume",
    "consumer",
    "deliver",
    "delivery",
    "deliveries",
    "endpoint",
    "events",
    "export",
    "function",
    "handle",
    "handler",
    "highwater",
    "import",
    "ingest",
    "invoke",
    "listen",
    "listener",
    "message",
    "messages",
    "notification",
    "notifications",
    "notify",
    "poller",
    "process",
    "publish",
    "receive",
    "receiver",
    "record",
    "records",
    "request",
    "service",
    "services",
    "status",
    "stream",
    "submit",
    "webhook",
    "webhooks",
];

/// Whether a part of a path is a name in lower case with a number at its end, as of a table or a version: `orders_v2`.
fn is_numbered_name(part: &str) -> bool {
    let name = part.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = part.len() - name.len();
    digits <= 3 && name.chars().all(|c| c.is_ascii_lowercase() || "_-".contains(c))
}

fn has_digit(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit())
}

/// Adds the arguments of a command that are keys: `--token=x`, `--token x`, and arguments that look like one.
fn of_command(text: &str, values: &mut Vec<String>) {
    let words: Vec<String> = serde_json::from_str(text)
        .unwrap_or_else(|_| text.split_ascii_whitespace().map(str::to_owned).collect());
    let mut is_value = false;
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((&word, ""));
        let is_option = name.starts_with('-') && is_secret_name(name);
        if is_value || is_random(&word) || is_guid(&word) {
            values.push(word.clone());
        } else if is_option && !value.is_empty() {
            values.push(value.to_owned());
        }
        is_value = is_option && value.is_empty();
    }
}

/// Adds the secret parts of any text: a connection string, a list of headers, or a URL.
fn parts(text: &str, is_ours: bool, values: &mut Vec<String>) {
    if text.contains('=') {
        of_pairs(text, values);
    }
    if text.contains("://") {
        let texts = text.split([';', ',', ' ']).filter(|part| part.contains("://"));
        for part in texts.chain([text]) {
            // Find the URL in `BlobEndpoint=https://…`.
            let scheme = part.find("://").unwrap_or_default();
            let is_name = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
            let before = part.get(..scheme).unwrap_or_default();
            let begin = before.trim_end_matches(is_name).len();
            of_url(part.get(begin..).unwrap_or_default(), is_ours, values);
        }
    }
}

fn of_pairs(text: &str, values: &mut Vec<String>) {
    // By the rules of ADO.NET, with quotes.
    for (key, value) in pairs(text) {
        if is_secret_name(&key) {
            values.push(value);
        }
    }
    // By plain splitting, for other formats and for missing or unclosed quotes.
    let mut is_after_secret = false;
    for piece in text.split([';', ',']) {
        let Some((key, value)) = piece.split_once('=') else {
            // The rest of a password that lacks quotes.
            if is_after_secret {
                values.push(piece.trim().to_owned());
            }
            continue;
        };
        is_after_secret = is_secret_name(key);
        if is_after_secret {
            let value = value.trim();
            values.push(value.to_owned());
            values.push(value.trim_matches(['\'', '"']).to_owned());
            add_secret(value, values);
        }
    }
    // A signature inside another value.
    let lower = text.to_ascii_lowercase();
    for (at, _) in lower.match_indices("sig=") {
        let rest = text.get(at + "sig=".len()..).unwrap_or_default();
        let end = rest.find(['&', ';', ' ', '"', '\'', ',']).unwrap_or(rest.len());
        values.push(rest.get(..end).unwrap_or_default().to_owned());
    }
}

fn of_url(text: &str, is_ours: bool, values: &mut Vec<String>) {
    if let Ok(url) = Url::parse(text) {
        if let Some(password) = url.password() {
            values.push(format!("{}:{password}", decoded(url.username())));
            values.push(format!("{}:{}", decoded(url.username()), decoded(password)));
            values.extend([password.to_owned(), decoded(password)]);
            // Some services accept the key as the user, with any password.
            let user = decoded(url.username());
            values.extend(Some(user).filter(|user| is_ours && may_be_key(user)));
        } else if is_ours {
            // A token as the user.
            values.extend([url.username().to_owned(), decoded(url.username())]);
        }
        for (name, value) in url.query_pairs() {
            if is_secret_name(&name) || (is_ours && may_be_key(&value)) {
                values.push(value.into_owned());
            }
        }
        let segments = url.path_segments().into_iter().flatten();
        let is_key = |part: &&str| is_random(part) || (is_ours && is_guid(part));
        values.extend(segments.filter(is_key).map(str::to_owned));
        if let Some(fragment) = url.fragment().filter(|text| is_ours && may_be_key(text)) {
            values.extend([fragment.to_owned(), decoded(fragment)]);
        }
    }
    // For an invalid URL, or one that parses in an unintended way: everything before the last `@` may be user and
    // password.
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let is_parsed = Url::parse(text).is_ok_and(|url| url.fragment().is_none());
    if let Some((user, _)) = rest.rsplit_once('@').filter(|_| !is_parsed) {
        values.push(user.to_owned());
        values.extend(user.split_once(':').map(|(_, password)| password.to_owned()));
    }
    if !is_parsed && let Some((_, query)) = rest.split_once('?') {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let keys = pairs.filter(|(name, value)| is_secret_name(name) || may_be_key(value));
        values.extend(keys.map(|(_, value)| value.to_owned()));
    }
}

/// Decodes a percent-encoded text.
fn decoded(text: &str) -> String {
    // In this part of a URL, `+`, `=` and `&` are literal.
    let text = text.replace('+', "%2B").replace('=', "%3D").replace('&', "%26");
    let mut names = url::form_urlencoded::parse(text.as_bytes()).map(|(name, _)| name.into_owned());
    names.next().unwrap_or_default()
}

/// Whether the form of a parameter's value allows a key: it is not a word, a number or a date.
fn may_be_key(value: &str) -> bool {
    /// Longer than most words in parameters.
    const WORD_CHARS_MAX: usize = 12;
    let has_capitals_within =
        value.chars().skip(1).any(char::is_uppercase) && value.chars().any(char::is_lowercase);
    let is_word = value.chars().all(char::is_alphabetic)
        && value.chars().count() <= WORD_CHARS_MAX
        && !has_capitals_within;
    let is_number = value.chars().all(|c| c.is_ascii_digit() || ".:-+TZ".contains(c));
    value.len() >= 8 && !is_word && !is_number
}

/// Whether a key of a connection string, a parameter or a header names a secret.
fn is_secret_name(name: &str) -> bool {
    const WITHIN: [&str; 10] = [
        "password",
        "passwd",
        "pwd",
        "secret",
        "token",
        "apikey",
        "signature",
        "credential",
        "assertion",
        "authorization",
    ];
    const WHOLE: [&str; 6] = ["sig", "code", "pass", "auth", "sas", "identityheader"];
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    WITHIN.iter().any(|part| plain.contains(part))
        || WHOLE.contains(&plain.as_str())
        || plain.ends_with("key")
}

/// Whether a variable that is not ours contains a secret, by its name.
fn is_secret_variable(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let is_place = ["_FILE", "_PATH", "_DIR", "_SOCK"].iter().any(|end| upper.ends_with(end));
    let is_folder = ["PWD", "OLDPWD"].contains(&upper.as_str());
    // Such as `AzureWebJobsSecretStorageType=files`.
    let is_choice = value.len() < 12 && value.chars().all(char::is_alphabetic);
    is_secret_name(name) && !is_place && !is_folder && !is_choice
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn of(set: &[(&str, &str)]) -> Vec<String> {
        let vars: BTreeMap<String, String> =
            set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        secrets(&vars).into_iter().map(|found| found.value).collect()
    }

    fn holds(name: &str, text: &str, expected: &[&str]) {
        let found = of(&[(name, text)]);
        for secret in expected {
            assert!(found.iter().any(|found| found == secret), "`{secret}` of {name} in {found:?}");
        }
    }

    #[test]
    fn variables_of_a_process_that_look_like_a_key_are_secret() {
        let vars = BTreeMap::from(
            [
                ("HIGHWATER__POLLERS__A__HANDLER__ENV", "TOK, PLACE"),
                ("TOK", "Zx9kQv7Lm2Wd8RtY"),
                ("PLACE", "warehouse"),
                ("OTHER", "Zx9kQv7Lm2Wd8RtZ"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let found: Vec<String> = secrets(&vars).into_iter().map(|found| found.value).collect();
        assert_eq!(found, ["Zx9kQv7Lm2Wd8RtY"]);
    }

    #[test]
    fn secrets_of_every_kind_are_found() {
        for (name, text, expected) in [
            ("SqlConnection", "Server=db;User ID=sa;Password=\"a;\"\"b\"", &["a;\"b"][..]),
            ("SqlConnection", "Server=db;Pwd='open", &["open"]),
            ("SqlConnection", "Server=db;Password=first;second;Encrypt=true", &["first", "second"]),
            ("AzureWebJobsStorage", "AccountName=a;AccountKey=abc/+==;X=y", &["abc/+=="]),
            (
                "Sas",
                "BlobEndpoint=https://a.example;SharedAccessSignature=sv=1&sig=a%2Bb",
                &["a%2Bb"],
            ),
            (
                "WEBSITE_RUN_FROM_PACKAGE",
                "https://a.example/x.zip?sv=1&sig=abcdefgh",
                &["abcdefgh"],
            ),
            ("IDENTITY_HEADER", "header-of-the-host", &["header-of-the-host"]),
            ("AZURE_CLIENT_SECRET", "abc~def", &["abc~def"]),
            ("Storage__clientSecret", "abc~def", &["abc~def"]),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "x=1,api-key=abcdef,authorization=Basic%20abc",
                &["abcdef", "Basic%20abc"],
            ),
            ("HIGHWATER__POLLERS__A__HANDLER__SYSTEM_KEY", "abcdef==", &["abcdef=="]),
            ("HIGHWATER__POLLERS__A__HANDLER__STEP__B__SYSTEM_KEY", "abcdef==", &["abcdef=="]),
            (
                "HIGHWATER__POLLERS__A__HANDLER__COMMAND",
                "load --token=a1 --api-key b2 --fast",
                &["a1", "b2"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__COMMAND",
                r#"["load", "--password", "c 3"]"#,
                &["c 3"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__CONCURRENCY",
                "whsec_bm90IGEgbnVtYmVy",
                &["whsec_bm90IGEgbnVtYmVy", "bm90IGEgbnVtYmVy"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__URL",
                "https://svc:p%40ss@a.example/x?code=k%2Fey1",
                &["p%40ss", "p@ss", "svc:p@ss", "k/ey1"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__URL",
                "https://svc:Sup3rSecret#1@host/x",
                &["svc:Sup3rSecret#1", "Sup3rSecret#1"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__URL",
                "https://key_4eC39H:x@a.example/x",
                &["key_4eC39H"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__URL",
                "https://a.example/x?v=1&x=hunter22",
                &["hunter22"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__URL",
                "https://a.example/x?v=1&x=qwertzuiopasd&y=ghLkMnbv",
                &["qwertzuiopasd", "ghLkMnbv"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__URL",
                "https://a.example/hooks/0f8fad5b-d9cb-469f-a165-70867728950e/in",
                &["0f8fad5b-d9cb-469f-a165-70867728950e"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__URL",
                "https://hunter22#x@a.example/x",
                &["hunter22#x"],
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__COMMAND",
                "load 0f8fad5b-d9cb-469f-a165-70867728950e",
                &["0f8fad5b-d9cb-469f-a165-70867728950e"],
            ),
            (
                "AZURE_CLIENT_SECRET",
                "0f8fad5b-d9cb-469f-a165-70867728950e",
                &["0f8fad5b-d9cb-469f-a165-70867728950e"],
            ),
            ("HIGHWATER__POLLERS__A__HANDLER__AUTH", "my_key_17", &["my_key_17"]),
            ("HIGHWATER__POLLERS__A__HANDLER__AUTH_SECRET", "my_key_17", &["my_key_17"]),
        ] {
            holds(name, text, expected);
        }
    }

    #[test]
    fn a_setting_referenced_as_a_secret_is_secret_as_a_whole() {
        let found = of(&[
            ("HIGHWATER__POLLERS__A__HANDLER__AUTH_SECRET", "Hook"),
            ("HIGHWATER__POLLERS__B__HANDLER__SIGNING_SECRETS", "Old, New"),
            ("Hook", "Basic c3ZjOmh1bnRlcjIy"),
            ("Old", "whsec_b2xk"),
            ("New", "plainly"),
        ]);
        for secret in [
            "Basic c3ZjOmh1bnRlcjIy",
            "c3ZjOmh1bnRlcjIy",
            "svc:hunter22",
            "hunter22",
            "b2xk",
            "plainly",
        ] {
            assert!(found.iter().any(|found| found == secret), "`{secret}` in {found:?}");
        }
    }

    #[test]
    fn the_path_of_a_webhook_is_secret() {
        let url = "https://hooks.contoso.com/services/T024F00B4R/B012345678/x1Y2z3A4b5";
        for name in [
            "HIGHWATER__NOTIFY__URL",
            "HIGHWATER__POLLERS__A__HANDLER__URL",
            "HIGHWATER__POLLERS__A__HANDLER__STEP__B__URL",
        ] {
            holds(name, url, &["T024F00B4R", "B012345678", "x1Y2z3A4b5"]);
            holds(name, "https://hooks.contoso.com/catch/abcdefgh", &["catch/abcdefgh"]);
            // A single word, with its escapes as in the URL.
            for word in ["secretword", "SecretWord", "secret-word", "s%C3%A9cret"] {
                for end in ["", "/", "/?"] {
                    let url = format!("https://hooks.contoso.com/{word}{end}");
                    assert_eq!(of(&[(name, &url)]), [word], "{url}");
                }
            }
            let bare = "https://hooks.contoso.com/";
            assert_eq!(of(&[(name, bare)]), Vec::<String>::new());
        }
    }

    /// `orders` would be redacted in each line about the table.
    #[test]
    fn a_path_of_one_word_that_output_has_anyway_is_secret_after_its_host() {
        let name = "HIGHWATER__POLLERS__SALES__HANDLER__URL";
        for (word, other) in [
            ("orders", ("HIGHWATER__POLLERS__SALES__SOURCE__TABLE", "dbo.Orders")),
            ("invoices", ("HIGHWATER__POLLERS__INVOICES__SOURCE__KEY", "id")),
            ("webhook", ("HIGHWATER__APP", "shop")),
            ("hook", ("HIGHWATER__APP", "shop")),
        ] {
            let url = format!("https://a.example:8443/{word}");
            assert_eq!(of(&[(name, &url), other]), [format!("a.example:8443/{word}")]);
        }
        // The same word in another URL is no name.
        let url = "https://a.example/secretword";
        let found = of(&[(name, url), ("HIGHWATER__NOTIFY__URL", url)]);
        assert_eq!(found, ["secretword", "secretword"]);
    }

    #[test]
    fn ordinary_values_stay_readable() {
        let found = of(&[
            ("HIGHWATER__APP", "func-shop-4ag5xkzq2hbz2"),
            ("HIGHWATER__POLLERS__A__SOURCE__KEY", "OrderId"),
            ("HIGHWATER__POLLERS__A__SOURCE__TABLE", "dbo.CustomerOrderLineHistoryArchive2024"),
            ("HIGHWATER__POLLERS__A__HANDLER__URL", "https://a.example/?table=orders&v=2024-05-01"),
            ("HIGHWATER__POLLERS__A__HANDLER__KEY", "id"),
            ("SqlConnection", "Server=db.example;Database=Shop;User ID=reader;Encrypt=true"),
            (
                "WEBSITE_INSTANCE_ID",
                "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            ),
            ("AzureWebJobsSecretStorageType", "files"),
            ("AZURE_FEDERATED_TOKEN_FILE", "/var/run/secrets/token"),
            ("PWD", "/home/me"),
            ("HIGHWATER__POLLERS__A__HANDLER__AUTH", "function_key"),
            ("HIGHWATER__POLLERS__A__HANDLER__AUTH_SECRET", "HookKey"),
            (
                "HIGHWATER__POLLERS__A__HANDLER__AUTH_CLIENT_ID",
                "0f8fad5b-d9cb-469f-a165-70867728950e",
            ),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
