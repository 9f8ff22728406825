//! How text compares: a model of SQL Server's collations.
//!
//! As in every collation there, blanks at the end count for nothing. `HW_FOLDED` makes no difference
//! between upper and lower case and otherwise goes letter by letter, where SQL Server goes by the
//! weights of a language; `HW_BINARY` goes by UTF-16 code units. `HW_INSTANT` is for stored times with
//! an offset, which is part of the value and not of its order.

use std::cmp::Ordering;

use rusqlite::Connection;

/// Makes the collations known to a connection.
pub(crate) fn register(connection: &Connection) -> rusqlite::Result<()> {
    connection.create_collation("HW_FOLDED", folded)?;
    connection.create_collation("HW_BINARY", binary)?;
    connection.create_collation("HW_INSTANT", |a, b| instant(a).cmp(instant(b)))
}

fn folded(a: &str, b: &str) -> Ordering {
    let letters = |text: &'_ str| -> Vec<char> {
        without_blanks(text).chars().flat_map(char::to_lowercase).collect()
    };
    letters(a).cmp(&letters(b))
}

fn binary(a: &str, b: &str) -> Ordering {
    without_blanks(a).encode_utf16().cmp(without_blanks(b).encode_utf16())
}

/// The time in UTC, which comes first.
fn instant(stored: &str) -> &str {
    stored.get(.."0001-01-01T00:00:00.0000000".len()).unwrap_or(stored)
}

fn without_blanks(text: &str) -> &str {
    text.trim_end_matches(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_at_the_end_and_case_count_for_nothing() {
        for (a, b) in [("a", "A"), ("a", "a  "), ("Ärger", "äRGER "), ("", " ")] {
            assert_eq!(folded(a, b), Ordering::Equal, "`{a}` and `{b}`");
        }
        assert_eq!(folded("a", " a"), Ordering::Greater);
        assert_eq!(folded("a", "ä"), Ordering::Less);
        assert_eq!(folded("aa", "B"), Ordering::Less);
    }

    #[test]
    fn an_offset_counts_for_nothing() {
        let (a, b) = ("2020-01-01T00:00:00.0000001+00:00", "2020-01-01T00:00:00.0000001-14:00");
        assert_eq!(instant(a), instant(b));
        assert_eq!(instant(a), "2020-01-01T00:00:00.0000001");
    }

    #[test]
    fn a_binary_collation_goes_by_code_units() {
        assert_eq!(binary("B", "a"), Ordering::Less);
        assert_eq!(binary("a", "a "), Ordering::Equal);
        // Higher as a character, lower as a pair of surrogates.
        assert_eq!(binary("😀", "｡"), Ordering::Less);
    }
}
