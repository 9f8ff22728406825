//! The text of a connection string, taken apart into keys and values.
//!
//! Quoting is that of ADO.NET (`'…'`, `"…"`, the quote doubled inside) and of ODBC (`{…}`, with `}}`
//! for `}`). No text made here holds any part of a value: it could be a password.

use std::iter::Peekable;
use std::str::Chars;

/// One `key=value` of a connection string.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// The key as written, trimmed.
    pub(super) key: String,
    /// The value without its quotes.
    pub(super) value: String,
    /// Whether the value was quoted.
    pub(super) quoted: bool,
}

/// Splits a connection string; what cannot be read is reported and left out.
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
            Ok(pair) => pairs.push(pair),
            Err(mistake) => mistakes.push(format!("part {part} {mistake}")),
        }
    }
}

fn pair(chars: &mut Peekable<Chars<'_>>) -> Result<Pair, &'static str> {
    let key = until(chars, |c| c == '=' || c == ';').trim().to_owned();
    if chars.next_if_eq(&'=').is_none() {
        return Err("has no `=`; put a value that holds `;` into quotes");
    }
    if key.is_empty() {
        return Err("has no key before its `=`");
    }
    while chars.next_if(|c| c.is_whitespace()).is_some() {}
    let closing = match chars.peek() {
        Some('\'') => '\'',
        Some('"') => '"',
        Some('{') => '}',
        _ => {
            let value = until(chars, |c| c == ';').trim().to_owned();
            return Ok(Pair { key, value, quoted: false });
        }
    };
    chars.next();
    let value = quoted(chars, closing).ok_or("has a quoted value that does not end")?;
    if !until(chars, |c| c == ';').trim().is_empty() {
        return Err("has text after its quoted value; double a quote that belongs to the value");
    }
    Ok(Pair { key, value, quoted: true })
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
    fn values_are_read_by_the_quoting_rules() {
        for (text, key, value) in [
            ("Password=a=b==", "Password", "a=b=="),
            (" Initial Catalog = my db ;", "Initial Catalog", "my db"),
            ("p='a;b'", "p", "a;b"),
            ("p=\"a'b\"\"c\" ;", "p", "a'b\"c"),
            ("p='it''s'", "p", "it's"),
            ("p={a;}}b}", "p", "a;}b"),
            ("p=a'b", "p", "a'b"),
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
    fn what_cannot_be_read_is_reported_without_its_text() {
        for text in ["a=1;se;cret", "=secret", "p='secret", "p='secret'x;a=1", "p={secret}}"] {
            let (_, mistakes) = split(text);
            assert!(!mistakes.is_empty(), "{text}");
            assert!(!mistakes.join(" ").contains("cret"), "{mistakes:?}");
        }
    }
}
