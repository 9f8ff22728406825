//! The reason phrase of a reply: the only part of a failed reply that the Functions host shows.
//!
//! The host reads it as Latin-1, shows more than 60,000 characters of it, and redacts nothing. Our errors may have
//! several lines and any characters.

/// Longest reason phrase. The host accepts 65,536 bytes of headers, but a person reads far less.
const BYTES_MAX: usize = 2000;

/// Suffix of a phrase that was cut.
const CUT: &[u8] = b" ...";

/// Returns a text as a reason phrase: one line of at most [`BYTES_MAX`] characters of Latin-1 without control
/// characters. The text must be redacted already ([`crate::redaction`]).
pub(super) fn reason_phrase(text: &str) -> Vec<u8> {
    let mut phrase = Vec::with_capacity(text.len());
    let is_break =
        |c: char| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    for line in text.split(is_break).map(str::trim).filter(|line| !line.is_empty()) {
        if !phrase.is_empty() {
            phrase.extend_from_slice(b"; ");
        }
        for c in line.chars() {
            match (c, u8::try_from(c)) {
                ('…', _) => phrase.extend_from_slice(b"..."),
                ('\t', _) => phrase.push(b' '),
                (_, Ok(byte @ (b' '..=b'~' | 0xA0..=0xFF))) => phrase.push(byte),
                (_, Ok(_) | Err(_)) => phrase.push(b'?'),
            }
        }
    }
    cut(phrase)
}

/// Shortens a phrase at the end of a statement, so that its last command is complete. If no statement ends in the
/// second half, the phrase is cut after a word.
fn cut(mut phrase: Vec<u8>) -> Vec<u8> {
    if phrase.len() <= BYTES_MAX {
        return phrase;
    }
    let room = BYTES_MAX - CUT.len();
    let (mut statement, mut word, mut is_command) = (0, 0, false);
    for (at, pair) in phrase.windows(2).enumerate().take(room + 1) {
        match pair {
            [b'`', _] => is_command = !is_command,
            [b';' | b'.', b' '] if !is_command => statement = at,
            [b' ', _] if !is_command => word = at,
            _ => {}
        }
    }
    let end = [statement, word].into_iter().find(|end| *end >= room / 2);
    phrase.truncate(end.unwrap_or(room));
    phrase.extend_from_slice(CUT);
    phrase
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        // The host decodes it as Latin-1.
        reason_phrase(text).into_iter().map(char::from).collect()
    }

    #[test]
    fn characters_outside_latin_1_are_replaced() {
        for (text, expected) in [
            ("Größe \"x\" {0} \\ `y` ÿ\u{a0}", "Größe \"x\" {0} \\ `y` ÿ"),
            ("wait … 5 € – 😀", "wait ... 5 ? ? ?"),
            ("a\tb\u{0}\u{1b}\u{7f}\u{80}\u{9f}c", "a b?????c"),
            ("2 mistakes:\r\n  one\n\n two\u{85}three\u{2028}\n", "2 mistakes:; one; two; three"),
            ("", ""),
        ] {
            assert_eq!(shown(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_long_text_is_cut_after_a_remedy() {
        let remedy = "setting `A` is not set, expected `b; c. d`; ";
        let text = remedy.repeat(80);
        let phrase = shown(&text);
        assert!(phrase.len() <= BYTES_MAX && phrase.len() > BYTES_MAX - remedy.len() - CUT.len());
        assert!(phrase.ends_with("`b; c. d` ..."), "{phrase}");
        assert!(text.starts_with(phrase.trim_end_matches(" ...")), "{phrase}");
        // Without the end of a statement it is cut after a word, else anywhere.
        let words = shown(&"word ".repeat(800));
        assert!(words.ends_with("word ...") && words.len() > BYTES_MAX - 10, "{words}");
        assert_eq!(shown(&"x".repeat(5000)).len(), BYTES_MAX);
        let longest = "y".repeat(BYTES_MAX);
        assert_eq!(shown(&longest), longest);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_phrase_has_no_control_characters_and_is_never_too_long(
            text in r"([`;.\n ]|\PC|[\x00-\xff]){0,300}", times in 1_usize..20,
        ) {
            let phrase = reason_phrase(&text.repeat(times));
            prop_assert!(phrase.len() <= BYTES_MAX);
            prop_assert!(phrase.iter().all(|byte| matches!(byte, b' '..=b'~' | 0xA0..=0xFF)));
        }
    }
}
