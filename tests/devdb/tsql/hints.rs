//! Query hints: parsed and ignored.

use super::{lexer::Token, parser::Parser};
use crate::types::SqlError;

/// Hints after a table that are ignored, since they would change nothing here.
const HINTS: [&str; 14] = [
    "FORCESEEK",
    "HOLDLOCK",
    "NOLOCK",
    "NOWAIT",
    "PAGLOCK",
    "READCOMMITTED",
    "READUNCOMMITTED",
    "REPEATABLEREAD",
    "ROWLOCK",
    "SERIALIZABLE",
    "TABLOCK",
    "TABLOCKX",
    "UPDLOCK",
    "XLOCK",
];

/// Hints of a query that are ignored likewise.
const OPTIONS: [&[&str]; 8] = [
    &["RECOMPILE"],
    &["MAXDOP"],
    &["FAST"],
    &["FORCE", "ORDER"],
    &["LOOP", "JOIN"],
    &["HASH", "JOIN"],
    &["MERGE", "JOIN"],
    &["OPTIMIZE", "FOR", "UNKNOWN"],
];

impl Parser<'_> {
    /// Skips `WITH (…)` after a table.
    pub(crate) fn table_hints(&mut self) -> Result<(), SqlError> {
        if !self.is_word("WITH") || self.peek_at(1) != Some(&Token::Symbol("(")) {
            return Ok(());
        }
        self.next();
        self.next();
        loop {
            let hint = self.name()?;
            if !HINTS.iter().any(|known| known.eq_ignore_ascii_case(&hint)) {
                let text = format!("\"{hint}\" is not a recognized table hints option.");
                return Err(SqlError::new(321, 15, text));
            }
            if self.is_symbol("(") {
                return Err(SqlError::unsupported("A table hint that names an index"));
            }
            if !self.eat_symbol(",") {
                return self.expect_symbol(")");
            }
        }
    }

    /// Skips `OPTION (…)` with hints that change no result.
    pub(crate) fn hints(&mut self) -> Result<(), SqlError> {
        if !self.eat("OPTION") {
            return Ok(());
        }
        self.expect_symbol("(")?;
        loop {
            let words = OPTIONS.iter().find(|words| {
                words.iter().enumerate().all(|(ahead, word)| self.is_word_at(ahead, word))
            });
            let words = words.ok_or_else(|| self.unexpected())?;
            words.iter().try_for_each(|word| self.expect(word))?;
            if let ["MAXDOP" | "FAST"] = words {
                match self.peek() {
                    Some(Token::Number(n)) if n.bytes().all(|c| c.is_ascii_digit()) => self.next(),
                    _ => return Err(self.unexpected()),
                };
            }
            if !self.eat_symbol(",") {
                return self.expect_symbol(")");
            }
        }
    }
}
