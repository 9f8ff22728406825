//! Hints of a query: read, and ignored.

use super::{lexer::Token, parser::Parser};
use crate::devdb::types::SqlError;

/// Hints behind a table that are ignored, since here they would change nothing.
const HINTS: [&str; 15] = [
    "FORCESEEK",
    "HOLDLOCK",
    "INDEX",
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

impl Parser<'_> {
    /// Skips `WITH (…)` behind a table.
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
            if self.eat_symbol("(") {
                while !self.eat_symbol(")") {
                    self.next().ok_or_else(|| SqlError::syntax("WITH"))?;
                }
            }
            if !self.eat_symbol(",") {
                return self.expect_symbol(")");
            }
        }
    }

    /// Skips `OPTION (…)`.
    pub(crate) fn hints(&mut self) -> Result<(), SqlError> {
        if !self.eat("OPTION") {
            return Ok(());
        }
        self.expect_symbol("(")?;
        while !self.eat_symbol(")") {
            self.next().ok_or_else(|| SqlError::syntax("OPTION"))?;
        }
        Ok(())
    }
}
