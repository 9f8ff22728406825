//! Splits the text of a connection string into keys and values.
//!
//! Quoting follows ADO.NET: `'…'` or `"…"`, with the quote doubled inside. ADO.NET treats braces as part of a
//! value and ODBC as quotes, so a value that starts with `{` is rejected rather than guessed at. No message
//! from here contains any part of a value: it could be a password.

use std::iter::Peekable;
use std::str::Chars;

/// The portal's placeholder for the password.
const PLACEHOLDER: &str = "{your_password";

/// One `key=value` of a connection string.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// The key as written, trimmed.
    pub(super) key: String,
    /// The value without its quotes.
    pub(super) value: String,
    /// Whether the value was quoted.
    pub(super) quoted: bool,
    /// Why the value is invalid, without the value.
    pub(super) flaw: Option<String>,
}

/// Whether a text starts like a URL, `jdbc:sqlserver://…` or `mssql://…`, with no key before it.
pub(super) fn is_address(text: &str) -> bool {
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '+' | '-' | '.');
    text.split_once("://").is_some_and(|(scheme, _)| scheme.trim().chars().all(is_scheme))
}

/// Splits a connection string; invalid parts are reported and left out.
pub(super) fn split(text: &str) -> (Vec<Pair>, Vec<String>) {
    let mut pairs = Vec::new();
    let mut mistakes = Vec::new();
    let mut chars = text.chars().peekable();
    let mut part = 0;
    loop {
        while chars.next_if(|c| *c == ';' || c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return (pairs, mistakes);
        }
        part += 1;
        match pair(&mut chars) {
            Ok((pair, flaw)) => {
                let flaw = flaw.map(|flaw| format!("part {part} {flaw}"));
                pairs.push(Pair { flaw, ..pair });
            }
            Err(mistake) => mistakes.push(format!("part {part} {mistake}")),
        }
    }
}

/// Parses one pair, and returns any flaw of its value.
fn pair(chars: &mut Peekable<Chars<'_>>) -> Result<(Pair, Option<&'static str>), &'static str> {
    let key = until(chars, |c| c == '=' || c == ';').trim().to_owned();
    if chars.next_if_eq(&'=').is_none() {
        return Err("has no `=`; quote a value that contains `;`");
    }
    if key.is_empty() {
        return Err("has no key before its `=`");
    }
    while chars.next_if(|c| c.is_whitespace()).is_some() {}
    let Some(quote) = chars.next_if(|c| matches!(c, '\'' | '"')) else {
        let value = until(chars, |c| c == ';').trim().to_owned();
        let flaw = check_bare(&value).err();
        return Ok((Pair { key, value, quoted: false, flaw: None }, flaw));
    };
    let value = quoted(chars, quote).ok_or("has a quoted value without a closing quote")?;
    if !until(chars, |c| c == ';').trim().is_empty() {
        return Err("has text after its quoted value; double any quote inside the value");
    }
    Ok((Pair { key, value, quoted: true, flaw: None }, None))
}

/// Rejects an unquoted value that was probably meant to be quoted.
fn check_bare(value: &str) -> Result<(), &'static str> {
    if value.contains(PLACEHOLDER) {
        return Err("still contains the placeholder of the portal: replace it with the password");
    }
    if value.starts_with('{') {
        return Err("has a value in braces: use quotes, '…' or \"…\", and keep the braces inside \
                    only if they are part of it");
    }
    if value.ends_with(['\'', '"']) {
        return Err("has a value that ends with a quote but does not start with one");
    }
    Ok(())
}

fn until(chars: &mut Peekable<Chars<'_>>, end: impl Fn(char) -> bool) -> String {
    let mut text = String::new();
    while let Some(c) = chars.next_if(|c| !end(*c)) {
        text.push(c);
    }
    text
}

fn quoted(chars: &mut Peekable<Chars<'_>>, closing: char) -> Option<String> {
    let mut text = String::new();
    loop {
        let c = chars.next()?;
        if c == closing && chars.next_if_eq(&closing).is_none() {
            return Some(text);
        }
        text.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_the_quoting_rules() {
        for (text, key, value) in [
            ("Password=a=b==", "Password", "a=b=="),
            (" Initial Catalog = my db ;", "Initial Catalog", "my db"),
            ("p='a;b'", "p", "a;b"),
            ("p=\"a'b\"\"c\" ;", "p", "a'b\"c"),
            ("p='it''s'", "p", "it's"),
            ("p='{a;}}b}'", "p", "{a;}}b}"),
            ("p=a'b", "p", "a'b"),
            ("p=a{b}", "p", "a{b}"),
            ("p=", "p", ""),
            (";; p=pässwörd;;", "p", "pässwörd"),
        ] {
            let (pairs, mistakes) = split(text);
            assert!(mistakes.is_empty(), "{text}: {mistakes:?}");
            assert_eq!(pairs.len(), 1, "{text}");
            assert_eq!((pairs[0].key.as_str(), pairs[0].value.as_str()), (key, value), "{text}");
        }
    }

    #[test]
    fn invalid_parts_are_reported_without_their_text() {
        for (text, expected) in [
            ("a=1;se;cret", "part 2 has no `=`"),
            ("=secret", "part 1 has no key"),
            ("p='secret", "without a closing quote"),
            ("p='secret''", "without a closing quote"),
            ("p='secret'x;a=1", "text after its quoted value"),
            ("p={secret}", "has a value in braces"),
            ("p=secret'", "ends with a quote"),
            ("p={your_password};a=1", "the placeholder of the portal"),
            ("p={your_password_here}", "the placeholder of the portal"),
        ] {
            let (pairs, mut mistakes) = split(text);
            mistakes.extend(pairs.into_iter().filter_map(|pair| pair.flaw));
            let mistakes = mistakes.join(" ");
            assert!(mistakes.contains(expected), "{text}: {mistakes}");
            assert!(!mistakes.contains("cret"), "{mistakes}");
        }
    }

    /// Writes a value like ADO.NET's own writer, or in the other kind of quotes.
    fn written(value: &str, single: bool) -> String {
        let plain = |c: char| !matches!(c, '"' | '\'' | '=' | ';' | '{') && !c.is_whitespace();
        if value.chars().all(plain) {
            return value.to_owned();
        }
        let quote = if single { "'" } else { "\"" };
        format!("{quote}{}{quote}", value.replace(quote, &quote.repeat(2)))
    }

    proptest::proptest! {
        #[test]
        fn every_value_survives_quoting(
            values in proptest::collection::vec(("[;'\"={}a ü\\t]{0,9}|.{0,9}", ".{0,1}"), 1..5),
            space in " {0,2}",
        ) {
            let parts: Vec<String> = values
                .iter()
                .map(|(value, other)| {
                    let value = written(value, other.is_empty());
                    format!("key{space}={space}{value}{space};{space}")
                })
                .collect();
            let text = parts.concat();
            let (pairs, mistakes) = split(&text);
            proptest::prop_assert!(mistakes.is_empty(), "{text}: {mistakes:?}");
            let read: Vec<&str> = pairs.iter().map(|pair| pair.value.as_str()).collect();
            let wanted: Vec<&str> = values.iter().map(|(value, _)| value.as_str()).collect();
            proptest::prop_assert_eq!(read, wanted, "{}", text);
        }

        #[test]
        fn no_text_hangs_the_parser_or_leaks_a_value(text in "[;'\"={} ab\\n]{0,40}") {
            let (pairs, mistakes) = split(&text);
            proptest::prop_assert!(pairs.len() + mistakes.len() <= text.len());
            for pair in pairs {
                let flaw = pair.flaw.unwrap_or_default();
                proptest::prop_assert!(flaw.is_empty() || flaw.starts_with("part "));
                proptest::prop_assert_eq!(pair.key.trim(), pair.key.as_str());
                proptest::prop_assert!(!pair.key.is_empty());
            }
        }
    }
}
