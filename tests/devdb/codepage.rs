//! Which characters `char` and `varchar` can hold, depending on the collation.
//!
//! Text is stored as Unicode throughout; a character outside the code page becomes `?` when it is converted,
//! as in SQL Server.

/// Code page of a collation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CodePage {
    /// Windows 1252, the server's default.
    #[default]
    Latin,
    /// Windows 1251.
    Cyrillic,
    /// All characters.
    Utf8,
}

/// The characters that Windows 1252 adds to ISO 8859-1.
const LATIN_OTHERS: &str = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ";
/// The characters that Windows 1251 adds to ASCII and the letters from Ё to џ.
const CYRILLIC_OTHERS: &str = "‚„…†‡€‰‹‘’“”•–—™›Ґґ§©«¬®°±µ¶·»№¦¤\u{A0}\u{AD}";

impl CodePage {
    /// The code page of a collation; [`None`] for one that the server does not know.
    pub(crate) fn of(collation: &str) -> Option<Self> {
        let name = collation.to_ascii_lowercase();
        if name.ends_with("_utf8") {
            return Some(Self::Utf8);
        }
        [("latin1_general_", Self::Latin), ("sql_latin1_general_cp1_", Self::Latin)]
            .into_iter()
            .chain([("cyrillic_general_", Self::Cyrillic)])
            .find(|(prefix, _)| name.starts_with(prefix))
            .map(|(_, page)| page)
    }

    /// Name of a collation with this code page.
    pub(crate) fn collation(self) -> &'static str {
        match self {
            Self::Latin => "SQL_Latin1_General_CP1_CI_AS",
            Self::Cyrillic => "Cyrillic_General_CI_AS",
            Self::Utf8 => "Latin1_General_100_CI_AS_SC_UTF8",
        }
    }

    /// Replaces each character outside the code page with `?`.
    pub(crate) fn convert(self, text: &str) -> String {
        text.chars().map(|c| if self.has(c) { c } else { '?' }).collect()
    }

    /// The text of bytes in the server's code page.
    pub(crate) fn decode(self, bytes: &[u8]) -> String {
        match self {
            Self::Latin => bytes.iter().map(|byte| latin(*byte)).collect(),
            Self::Cyrillic | Self::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
        }
    }

    fn has(self, character: char) -> bool {
        match self {
            Self::Utf8 => true,
            Self::Latin => character <= '\u{FF}' || LATIN_OTHERS.contains(character),
            Self::Cyrillic => {
                let letters = '\u{401}'..='\u{45F}';
                let missing = ['\u{40D}', '\u{450}', '\u{45D}'];
                character.is_ascii()
                    || letters.contains(&character) && !missing.contains(&character)
                    || CYRILLIC_OTHERS.contains(character)
            }
        }
    }
}

/// The character of a byte in Windows 1252; five bytes mean control characters, as in ISO 8859-1.
fn latin(byte: u8) -> char {
    let others = [0x81, 0x8D, 0x8F, 0x90, 0x9D];
    if !(0x80..0xA0).contains(&byte) || others.contains(&byte) {
        return char::from(byte);
    }
    let before = others.iter().filter(|other| **other < byte).count();
    let place = usize::from(byte - 0x80) - before;
    LATIN_OTHERS.chars().nth(place).unwrap_or('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_outside_the_code_page_are_lost() {
        for (collation, converted) in [
            ("SQL_Latin1_General_CP1_CI_AS", "aé€???"),
            ("Cyrillic_General_CI_AS", "a?€Жџ?"),
            ("Latin1_General_100_CI_AS_SC_UTF8", "aé€Жџ日"),
        ] {
            let page = CodePage::of(collation).unwrap();
            assert_eq!(page.convert("aé€Жџ日"), converted);
            assert_eq!(page.collation(), collation);
        }
        assert_eq!(CodePage::of("Japanese_CI_AS"), None);
    }

    #[test]
    fn bytes_of_windows_1252_are_its_characters() {
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        let text = CodePage::Latin.decode(&bytes);
        assert_eq!(CodePage::Latin.convert(&text), text);
        assert_eq!(CodePage::Latin.decode(b"a\x80\x8e\x9f\xff"), "a€ŽŸÿ");
    }
}
