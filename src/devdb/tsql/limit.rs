//! How many rows of a query are wanted: TOP, and OFFSET with FETCH.

use super::{lexer::Token, parser::Parser, query::Scope};
use crate::devdb::types::SqlError;

impl Parser<'_> {
    pub(crate) fn top(&mut self, outer: Option<&Scope<'_>>) -> Result<String, SqlError> {
        if !self.eat("TOP") {
            return Ok(String::new());
        }
        let scope = Scope { tables: Vec::new(), outer };
        let count = if self.eat_symbol("(") {
            let count = self.expression(&scope)?;
            self.expect_symbol(")")?;
            count.sql
        } else {
            match self.next() {
                Some(Token::Number(number)) => number.clone(),
                _ => return Err(self.unexpected()),
            }
        };
        if self.is_word("PERCENT") || self.is_word_at(1, "TIES") {
            return Err(SqlError::unsupported("TOP with PERCENT or TIES"));
        }
        Ok(format!(" LIMIT {count}"))
    }

    pub(crate) fn offset(&mut self, scope: &Scope<'_>) -> Result<String, SqlError> {
        let offset = self.expression(scope)?.sql;
        if !self.eat("ROWS") {
            self.expect("ROW")?;
        }
        if !self.eat("FETCH") {
            return Ok(format!(" LIMIT -1 OFFSET {offset}"));
        }
        self.name()?;
        let count = self.expression(scope)?.sql;
        if !self.eat("ROWS") {
            self.expect("ROW")?;
        }
        self.expect("ONLY")?;
        Ok(format!(" LIMIT {count} OFFSET {offset}"))
    }
}
