//! `sp_rename`, the only procedure that a batch can execute.

use super::{
    Definition,
    lexer::{self, Token},
    parser::{Parser, physical},
};
use crate::types::SqlError;

impl Parser<'_> {
    /// `EXEC sp_rename 'table', 'name' [, 'OBJECT']` or `EXEC sp_rename 'table.column', 'name', 'COLUMN'`.
    pub(super) fn execute(&mut self) -> Result<Definition, SqlError> {
        self.next();
        if !self.eat("sp_rename") {
            return Err(SqlError::unsupported("A procedure other than sp_rename"));
        }
        let name = self.string()?;
        self.expect_symbol(",")?;
        let to = self.string()?;
        let kind = if self.eat_symbol(",") { self.string()? } else { "OBJECT".to_owned() };
        let tokens = lexer::tokens(&name)?;
        let mut parts = Parser::new(&tokens, 0, self.schema).name_parts()?;
        let column = match kind.to_ascii_uppercase().as_str() {
            "OBJECT" => None,
            "COLUMN" => parts.pop(),
            other => return Err(SqlError::unsupported(&format!("sp_rename of an {other}"))),
        };
        let text = format!("The item '{name}' could not be found, or is not of type {kind}.");
        let missing = || SqlError::new(15248, 11, text.clone());
        let table = physical(&parts, self.schema.database()).ok_or_else(missing)?;
        self.schema.columns(&table)?.ok_or_else(missing)?;
        Ok(match column {
            Some(column) => Definition::RenameColumn { table, column, to },
            None => Definition::Rename { table, to },
        })
    }

    fn string(&mut self) -> Result<String, SqlError> {
        let Some(Token::Text(text) | Token::Coded(text)) = self.peek() else {
            return Err(self.unexpected());
        };
        self.next();
        Ok(text.clone())
    }
}
