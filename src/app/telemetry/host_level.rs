//! The level that the Functions host gives a line of this process.
//!
//! The host does not read our levels. It records a line on stdout as Information, and a line on stderr as Error, or
//! as Warning if it contains "warn" anywhere in any case: a table `dbo.warnings`, the city Warnemünde. So a WARN line
//! goes to stderr with these letters, which are in `"level":"WARN"`, and an ERROR line goes there without them.

use std::borrow::Cow;

use serde_json::json;

use super::LineForm;

/// Text that makes a line on stderr a warning.
const WARN: &[u8] = b"warn";

/// Returns an ERROR line that the host does not mistake for a warning. Plain text cannot be escaped, so it
/// becomes JSON if it contains the letters.
pub(super) fn escape_error(line: &[u8], form: LineForm) -> Cow<'_, [u8]> {
    match form {
        LineForm::Json => without_letters(line),
        LineForm::Terminal => Cow::Borrowed(line),
        LineForm::Text if places(line).is_empty() => Cow::Borrowed(line),
        LineForm::Text => {
            let text = String::from_utf8_lossy(line);
            let line = json!({ "level": "ERROR", "message": text.trim_end() }).to_string() + "\n";
            Cow::Owned(without_letters(line.as_bytes()).into_owned())
        }
    }
}

/// Returns the positions of the letters.
fn places(line: &[u8]) -> Vec<usize> {
    let letters = line.windows(WARN.len()).enumerate();
    letters.filter(|(_, it)| it.eq_ignore_ascii_case(WARN)).map(|(at, _)| at).collect()
}

/// Returns an equivalent line of JSON that the host does not mistake for a warning.
///
/// The first letter of each "warn" becomes an escape. These letters occur in strings only, since the only other
/// words of JSON are `true`, `false` and `null`. No escape of JSON contains `w`, so a backslash before it belongs
/// to an escaped backslash, and the new escape begins after that.
fn without_letters(line: &[u8]) -> Cow<'_, [u8]> {
    let places = places(line);
    if places.is_empty() {
        return Cow::Borrowed(line);
    }
    let (mut escaped, mut rest) = (Vec::with_capacity(line.len() + 5 * places.len()), 0);
    for at in places {
        escaped.extend_from_slice(line.get(rest..at).unwrap_or_default());
        let letter = line.get(at).copied().unwrap_or_default();
        escaped.extend_from_slice(format!("\\u{letter:04x}").as_bytes());
        rest = at + 1;
    }
    escaped.extend_from_slice(line.get(rest..).unwrap_or_default());
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    use super::*;

    fn kept(line: &str) -> String {
        String::from_utf8(escape_error(line.as_bytes(), LineForm::Json).into_owned()).unwrap()
    }

    #[test]
    fn letter_case_is_kept() {
        let line = json!({ "warn": "Warnemünde WARNs wArN of dbo.warnings", "ok": "war none" });
        let kept = kept(&line.to_string());
        assert_eq!(serde_json::from_str::<Json>(&kept).unwrap(), line);
        for part in [
            "\"\\u0077arn\":",
            "\\u0057arnemünde",
            "\\u0057ARNs",
            "\\u0077ArN",
            "dbo.\\u0077arnings",
        ] {
            assert!(kept.contains(part), "{part}: {kept}");
        }
    }

    #[test]
    fn a_line_without_the_letters_is_not_copied() {
        let line = br#"{"level":"ERROR","message":"war no wa\u0072n"}"#;
        assert!(matches!(escape_error(line, LineForm::Json), Cow::Borrowed(same) if same == line));
        let text = "Error: größe\n".as_bytes();
        assert!(matches!(escape_error(text, LineForm::Text), Cow::Borrowed(same) if same == text));
    }

    #[test]
    fn text_with_the_letters_becomes_json() {
        let kept = escape_error(b"Error: no \"Warning\" \\\n", LineForm::Text);
        let kept = String::from_utf8(kept.into_owned()).unwrap();
        assert!(!kept.contains("Warn") && kept.ends_with("}\n"), "{kept}");
        let read: Json = serde_json::from_str(&kept).unwrap();
        assert_eq!(read["message"], "Error: no \"Warning\" \\");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_line_is_equivalent_json_without_the_letters(
            texts in proptest::collection::vec(
                r#"([wW][aA][rR][nN]|\\u0077arn|\\|\\\\|"|\\u0057|ä|\n|[ -~]|\PC){0,12}"#, 1..6,
            ),
        ) {
            let fields = texts.iter().enumerate().map(|(n, text)| (format!("{text}{n}"), json!(text)));
            let line = Json::Object(fields.collect());
            let kept = kept(&line.to_string());
            prop_assert_eq!(serde_json::from_str::<Json>(&kept).unwrap(), line);
            prop_assert!(!kept.to_ascii_lowercase().contains("warn"), "{}", kept);
        }
    }
}
