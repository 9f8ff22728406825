#![expect(clippy::format_collect, reason = "texts of a test are short")]

use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;

use super::*;

fn holding(secrets: &[&str]) -> Secrets {
    let mut held = Secrets::default();
    held.add(secrets);
    held
}

/// A way to write a text, and its name.
type Encoding = (&'static str, fn(&str) -> String);

/// Encodings that other programs may use; implemented independently here, so that the code under test is not compared
/// with itself.
fn encodings() -> Vec<Encoding> {
    fn percent(text: &str) -> String {
        text.bytes().map(|byte| format!("%{byte:02x}")).collect()
    }
    fn form(text: &str) -> String {
        url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
    }
    fn json(text: &str) -> String {
        serde_json::to_string(text).unwrap()
    }
    fn json_ascii(text: &str) -> String {
        text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect()
    }
    fn xml(text: &str) -> String {
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('"', "&quot;")
            .replace('\'', "&#x27;")
    }
    fn numbers(text: &str) -> String {
        text.chars().map(|c| format!("&#{};", u32::from(c))).collect()
    }
    fn ado(text: &str) -> String {
        format!("Password=\"{}\";", text.replace('"', "\"\""))
    }
    fn sql(text: &str) -> String {
        format!("N'{}'", text.replace('\'', "''"))
    }
    fn hex(text: &str) -> String {
        text.bytes().map(|byte| format!("{byte:02X}")).collect()
    }
    fn basic(text: &str) -> String {
        STANDARD.encode(format!("svc:{text}"))
    }
    fn in_url(text: &str) -> String {
        URL_SAFE_NO_PAD.encode(format!("{text}!"))
    }
    fn basic_in_json(text: &str) -> String {
        STANDARD.encode(format!("{{\"p\":{}}}", json(text)))
    }
    vec![
        ("plain", str::to_owned),
        ("percent", percent),
        ("form", form),
        ("json", json),
        ("json in json", |text| json(&json(text))),
        ("json, ascii only", json_ascii),
        ("xml", xml),
        ("numeric entities", numbers),
        ("json in xml", |text| xml(&json(text))),
        ("form in json", |text| json(&form(text))),
        ("ADO.NET", ado),
        ("SQL", sql),
        ("hex", hex),
        ("base64", |text| STANDARD.encode(text)),
        ("Basic", basic),
        ("base64 of JSON", basic_in_json),
        ("base64 for URLs", in_url),
        ("base64, percent-encoded", |text| form(&basic(text))),
        ("upper case", str::to_ascii_uppercase),
    ]
}

#[test]
fn a_secret_that_reads_like_another_escape_is_found_in_json_in_json() {
    let secret = "a%5c\t0a0";
    let text = serde_json::to_string(&serde_json::to_string(secret).unwrap()).unwrap();
    assert!(!holding(&[secret]).redact(&text).contains("0a0"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_secret_is_found_in_each_encoding_anywhere(
        // A letter or digit at both ends, because settings are trimmed.
        secret in "[A-Za-z0-9][ -~é\u{1F511}\n\t]{6,40}[A-Za-z0-9]",
        before in "( |[a-z ]{0,12}[:= ])", after in "( |[,; ][a-z ]{0,12})",
    ) {
        let held = holding(&[&secret]);
        for (name, encode) in encodings() {
            let encoded = encode(&secret);
            let text = format!("{before}{encoded}{after}");
            let clean = held.redact(&text);
            prop_assert!(clean.contains(MARK), "{name}: {text:?} became {clean:?}");
            // At most the surrounding text is left; a base64 text is removed completely.
            let rest = clean.replace(MARK, "");
            let kept = format!("{before}{after}");
            prop_assert!(
                rest.len() <= kept.len() + "Password=\"\";{\"p\":}\\\"svc:!".len() + 12,
                "{name}: {text:?} became {clean:?}"
            );
            let lower = secret.to_lowercase();
            prop_assert!(!clean.to_lowercase().contains(&lower), "{name}: {clean:?}");
        }
    }

    #[test]
    fn a_secret_cut_by_a_limit_is_not_shown(
        secret in "[A-Za-z0-9][!-~]{14,40}[A-Za-z0-9]", part in 0_usize..1_000, text in "[a-z]{0,8} ",
    ) {
        let held = holding(&[&secret]);
        for (name, encode) in encodings() {
            // For nested escapes the parts are not known, nor is anything written around a secret.
            if !["plain", "form", "json", "hex", "base64", "upper case"].contains(&name) {
                continue;
            }
            let encoded = encode(&secret).trim_matches(['"', '=']).to_owned();
            let room = encoded.len() - 2 * SECRET_BYTES_MIN;
            let at = SECRET_BYTES_MIN + room * part / 1_000;
            let (first, last) = encoded.split_at(at);
            // The end of the base64 of a secret depends on what follows it.
            for (cut, rest) in [(format!("{text}{first}"), first), (format!("{last} {text}"), last)] {
                let clean = held.redact_cut(&cut).to_lowercase();
                // Up to three characters encode one of the secret.
                let length_min = if name == "form" { 3 } else { 2 } * (SECRET_BYTES_MIN + 2);
                let shown = rest.len() >= length_min
                    && clean.contains(&rest.get(..rest.len() - 2).unwrap().to_lowercase());
                prop_assert!(!shown, "{name}: {cut:?} became {clean:?}");
            }
        }
    }

    #[test]
    fn json_stays_json_and_only_secrets_are_redacted(
        secret in "[A-Za-z0-9][A-Za-z0-9\"\\\\{}:,\n]{5,20}[A-Za-z0-9]", other in "[ -~]{0,20}", number in any::<u32>(),
    ) {
        let held = holding(&[&secret, &number.to_string()]);
        let line = serde_json::json!({
            "secret": format!("{other} {secret}"), "level": "INFO", "n": number, "at": [1.5, null],
        });
        let clean = held.redact_json(&line.to_string()).into_owned();
        let read: serde_json::Value = serde_json::from_str(&clean).unwrap();
        prop_assert!(!read["secret"].as_str().unwrap().contains(secret.trim()), "{clean}");
        prop_assert_eq!(&read["n"], &line["n"]);
        prop_assert_eq!(read.as_object().unwrap().len(), 4);
    }

    #[test]
    fn any_text_is_accepted_and_text_without_a_secret_is_not_copied(text in "\\PC{0,80}|[ -~\0]{0,80}") {
        let held = holding(&["W3lcome, \"Stranger\" & friends%41\\u0041"]);
        let clean = held.redact(&text);
        prop_assert!(matches!(clean, Cow::Borrowed(same) if same == text), "{text:?} became {clean:?}");
    }
}

#[test]
fn only_the_secret_is_replaced() {
    let held = holding(&["hunter22", "hunter22/more", "short"]);
    for (text, clean) in [
        ("user ada, password hunter22.", "user ada, password [redacted]."),
        ("HUNTER22", "[redacted]"),
        ("GET /x?code=hunter22%2Fmore&v=1", "GET /x?code=[redacted]&v=1"),
        ("hunter22hunter22", "[redacted]"),
        ("Authorization: Basic c3ZjOmh1bnRlcjIy, x", "Authorization: Basic [redacted], x"),
        ("h\0u\0n\0t\0e\0r\x002\x002\0", "[redacted]\0"),
        ("a short hunter", "a short hunter"),
        ("100% of a+b \"\" \\ & so on", "100% of a+b \"\" \\ & so on"),
    ] {
        assert_eq!(held.redact(text), clean, "{text}");
    }
    let line = r#"{"hunter22":"hunter22","a":"x\"hunter22\\","b":123}"#;
    let clean = r#"{"hunter22":"[redacted]","a":"x\"[redacted]\\","b":123}"#;
    assert_eq!(held.redact_json(line), clean);
}

#[test]
fn only_the_last_tokens_are_remembered() {
    let mut held = holding(&["lasting-secret"]);
    for n in 0..=TOKENS_MAX {
        held.add_token(&format!("token-number-{n:04}"));
    }
    let first = "token-number-0000";
    assert_eq!(held.redact(first), first, "it has been replaced long ago");
    assert_eq!(held.redact("token-number-0001 lasting-secret"), "[redacted] [redacted]");
}

#[test]
fn an_excerpt_is_redacted_before_it_is_cut() {
    hold(["excerpt-5ecret-of-this-test"]);
    let text = "  at\nexcerpt-5ecret-of-this-test and more ";
    assert_eq!(excerpt(text.as_bytes(), 10), "at [redact");
    assert_eq!(excerpt_tail(text.as_bytes(), 10), "…] and more");
    assert_eq!(excerpt_tail(b"all", 10), "all");
}

#[test]
fn addresses_and_tokens_are_cut() {
    for (text, expected) in [
        ("no host", "no host"),
        ("what? yes", "what? yes"),
        (
            "for url (https://a.example/b?sv=1&sig=s3cret)",
            "for url (https://a.example/b[redacted])",
        ),
        ("with Sig=s3cret&se=1 given", "with [redacted] given"),
        (r#"string "eyJhbGciOiJub25lIn0.e30.x", expected"#, r#"string "[redacted] expected"#),
        ("eyJ is how one begins", "eyJ is how one begins"),
    ] {
        assert_eq!(scrub(text), expected);
    }
}

#[test]
fn a_misplaced_secret_is_distinguished_from_a_typo() {
    for (text, kind) in [
        ("Server=db;Password=x", "a connection string or an address with a key"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "a signing secret"),
        ("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq", "a key"),
        ("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "a key"),
        ("aBc8Q~dEf1gHi2jKl3mNo4pQr5sTu6vWx7yZ0aB", "a key"),
        ("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.x", "a token"),
        ("Bearer abc", "a token"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "a key"),
        ("Sup3rSecret#1", "a password"),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", "a GUID, which may be a key"),
    ] {
        assert_eq!(looks_like(text), Some(kind), "{text}");
    }
    for text in [
        "5 min",
        "ten",
        "dbo.CustomerOrderLineHistoryArchive2024",
        "id, name, Updated_At",
        "HIGHWATER__POLLERS__ORDERS__HANDLER__URL",
        "/var/lib/highwater/state-2024",
        "orders",
        "every 15 seconds",
        "https://example.org/changes",
        "warn,highwater=debug",
        "SELECT * FROM dbo.Orders WHERE Id > 7",
    ] {
        assert_eq!(looks_like(text), None, "{text}");
    }
}
