//! Text of others as it may be printed: names, errors of databases and handlers, and stored documents.
//!
//! A control character can move the cursor of a terminal, recolour it, or end a log line. A character that sets the
//! writing direction can make a line read as another one ("Trojan Source"), and an invisible one hides a difference.
//! Every output passes here: log lines, replies to the Functions host, the status page, and what commands print. Text
//! that is shortened or stored passes here too.
//!
//! Rows that handlers receive and exported documents are data, and remain as they are.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns what is printed for a character: itself, a space for a control character, and `U+FFFD` for one that changes
/// how others are shown.
pub fn printable_char(c: char) -> char {
    match c {
        c if c.is_control() => ' ',
        '\u{2028}' | '\u{2029}' => ' ',
        c if is_format(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// Whether a character is invisible and changes how others are shown: direction marks, embeddings, overrides and
/// isolates, zero-width characters, annotations and tags.
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

/// Returns a text on one line.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    mapped(text, printable_char)
}

/// Returns a text with its line feeds and tabs.
pub fn printable(text: &str) -> Cow<'_, str> {
    mapped(text, |c| if matches!(c, '\n' | '\t') { c } else { printable_char(c) })
}

fn mapped(text: &str, map: impl Fn(char) -> char) -> Cow<'_, str> {
    if text.chars().all(|c| map(c) == c) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(map).collect())
}

/// Returns JSON text, one document or several, with such characters of its strings escaped: the values stay the same.
pub fn printable_json(text: &str) -> Cow<'_, str> {
    // ASCII control characters are escaped in valid JSON, except for spaces between tokens.
    let is_escaped = |c: char| !matches!(c, '\n' | '\r' | '\t') && printable_char(c) != c;
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')) || !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if !is_escaped(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            write!(out, "\\u{unit:04x}").unwrap_or_default();
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_moves_a_cursor_or_reorders_text_is_replaced() {
        for (text, line, lines) in [
            ("two\nlines\tand\r", "two lines and ", "two\nlines\tand "),
            ("a\u{1b}[2J\u{7f}\u{9b}1m\u{0}", "a [2J  1m ", "a [2J  1m "),
            ("a\u{2028}b\u{2029}c", "a b c", "a b c"),
            (
                "a\u{202e}b\u{2066}c\u{200f}",
                "a\u{fffd}b\u{fffd}c\u{fffd}",
                "a\u{fffd}b\u{fffd}c\u{fffd}",
            ),
            ("\u{feff}\u{200b}\u{e0041}", "\u{fffd}\u{fffd}\u{fffd}", "\u{fffd}\u{fffd}\u{fffd}"),
            ("Zoë 日本 שלום 🎉", "Zoë 日本 שלום 🎉", "Zoë 日本 שלום 🎉"),
        ] {
            assert_eq!(printable_line(text), line, "{text:?}");
            assert_eq!(printable(text), lines, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn escaped_json_has_the_same_value(text in r"(\PC|[\x00-\xff]|[\u{2000}-\u{206f}]|\u{e0001}){0,40}") {
            let json = serde_json::json!({ text.clone(): [text] });
            for written in [json.to_string(), format!("{json:#}")] {
                let shown = printable_json(&written);
                prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&shown).unwrap(), &json);
                prop_assert!(shown.chars().all(|c| c == '\n' || printable_char(c) == c), "{}", shown);
            }
        }
    }
}
