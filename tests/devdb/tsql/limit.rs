//! The number of rows of a query: TOP, and OFFSET with FETCH.

use super::{lexer::Token, parser::Parser, query::Scope};
use crate::types::SqlError;

/// The selected rows, as SQLite texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(super) top: Option<String>,
    pub(super) offset: Option<String>,
    pub(super) fetch: Option<String>,
}

impl Limit {
    /// The text after the query.
    pub(super) fn sql(&self) -> String {
        match (self.top.as_ref().or(self.fetch.as_ref()), &self.offset) {
            (None, None) => String::new(),
            (Some(count), None) => format!(" LIMIT {count}"),
            (count, Some(offset)) => {
                let count = count.map_or("-1", String::as_str);
                format!(" LIMIT {count} OFFSET {offset}")
            }
        }
    }

    /// Whether it is one row.
    pub(super) fn is_one(&self) -> bool {
        self.top.as_deref() == Some("hw_count('TOP', 1)")
    }
}

impl Parser<'_> {
    /// `TOP (n)`
    pub(crate) fn top(&mut self, outer: Option<&Scope<'_>>) -> Result<Option<String>, SqlError> {
        if !self.eat("TOP") {
            return Ok(None);
        }
        let scope = Scope { tables: Vec::new(), outer };
        let count = if self.eat_symbol("(") {
            let count = self.row_count("TOP", &scope)?;
            self.expect_symbol(")")?;
            count
        } else {
            match self.next() {
                Some(Token::Number(number)) => format!("hw_count('TOP', {number})"),
                _ => return Err(self.unexpected()),
            }
        };
        if self.is_word("PERCENT") || self.is_word("WITH") && self.is_word_at(1, "TIES") {
            return Err(SqlError::unsupported("TOP with PERCENT or TIES"));
        }
        Ok(Some(count))
    }

    /// `OFFSET n ROWS [FETCH NEXT n ROWS ONLY]`
    pub(super) fn offset(
        &mut self,
        scope: &Scope<'_>,
        is_ordered: bool,
        limit: &mut Limit,
    ) -> Result<(), SqlError> {
        if !self.is_word("OFFSET") {
            return Ok(());
        }
        if !is_ordered {
            return Err(self.unexpected());
        }
        if limit.top.is_some() {
            let text = "A TOP can not be used in the same query or sub-query as a OFFSET.";
            return Err(SqlError::new(10741, 15, text));
        }
        self.next();
        limit.offset = Some(self.row_count("OFFSET", scope)?);
        self.rows_word()?;
        if self.eat("FETCH") {
            if !self.eat("NEXT") {
                self.expect("FIRST")?;
            }
            limit.fetch = Some(self.row_count("FETCH", scope)?);
            self.rows_word()?;
            self.expect("ONLY")?;
        }
        Ok(())
    }

    /// A number of rows, which the engine checks.
    fn row_count(&mut self, clause: &str, scope: &Scope<'_>) -> Result<String, SqlError> {
        let count = self.expression(scope)?;
        if count.ty.is_some() && !count.is_whole() {
            let text = format!("The number of rows of a {clause} clause must be an integer.");
            return Err(SqlError::new(1060, 15, text));
        }
        Ok(format!("hw_count('{clause}', {})", count.sql))
    }

    fn rows_word(&mut self) -> Result<(), SqlError> {
        if self.eat("ROWS") { Ok(()) } else { self.expect("ROW") }
    }
}
