//! SET: of variables and of session options.

use super::{Statement, lexer::Token, parser::Parser, query::Scope};
use crate::types::SqlError;

/// Whether a setting is supported: it has an effect, describes the fixed behaviour, or changes nothing here.
fn is_setting(name: &str, value: &str) -> bool {
    match name {
        "XACT_ABORT" | "NOCOUNT" => matches!(value, "ON" | "OFF"),
        "LOCK_TIMEOUT" => value.parse::<i32>().is_ok_and(|wait| wait >= -1),
        "DEADLOCK_PRIORITY" => {
            matches!(value, "LOW" | "NORMAL" | "HIGH")
                || value.parse().is_ok_and(|level: i32| (-10..=10).contains(&level))
        }
        "TEXTSIZE" => matches!(value, "-1" | "2147483647"),
        "ARITHABORT"
        | "ANSI_NULLS"
        | "ANSI_PADDING"
        | "ANSI_WARNINGS"
        | "ANSI_NULL_DFLT_ON"
        | "ANSI_DEFAULTS"
        | "CONCAT_NULL_YIELDS_NULL"
        | "QUOTED_IDENTIFIER" => value == "ON",
        "IMPLICIT_TRANSACTIONS"
        | "CURSOR_CLOSE_ON_COMMIT"
        | "NUMERIC_ROUNDABORT"
        | "FMTONLY"
        | "NOEXEC"
        | "PARSEONLY" => value == "OFF",
        "ROWCOUNT" => value == "0",
        _ => false,
    }
}

impl Parser<'_> {
    /// `SET @variable = …` or `SET option[, option] value`.
    pub(super) fn set(&mut self) -> Result<Statement, SqlError> {
        self.expect("SET")?;
        if let Some(Token::Variable(name)) = self.peek() {
            self.next();
            self.expect_symbol("=")?;
            let value = self.expression(&Scope::default())?;
            let text = format!("Must declare the scalar variable \"{name}\".");
            let ty = self.schema.variable(name).ok_or_else(|| SqlError::new(137, 15, text))?;
            return Ok(Statement::Assign { name: name.clone(), value: value.cast(ty).sql });
        }
        let name = self.name()?.to_ascii_uppercase();
        match name.as_str() {
            "IDENTITY_INSERT" => self.identity_setting(name),
            "TRANSACTION" => self.isolation(),
            _ => self.options(name),
        }
    }

    fn identity_setting(&mut self, name: String) -> Result<Statement, SqlError> {
        let table = self.table_name()?;
        if !self.table_columns(&table)?.iter().any(|column| column.identity) {
            let text = format!("Table '{table}' does not have the identity property.");
            return Err(SqlError::new(8106, 16, text));
        }
        let value = if self.eat("OFF") {
            String::new()
        } else {
            self.expect("ON")?;
            table
        };
        Ok(Statement::Setting { name, value })
    }

    /// Every level reads its own snapshot.
    fn isolation(&mut self) -> Result<Statement, SqlError> {
        self.expect("ISOLATION")?;
        self.expect("LEVEL")?;
        if self.eat("READ") {
            if !self.eat("COMMITTED") {
                self.expect("UNCOMMITTED")?;
            }
        } else if self.eat("REPEATABLE") {
            self.expect("READ")?;
        } else if !self.eat("SNAPSHOT") {
            self.expect("SERIALIZABLE")?;
        }
        Ok(Statement::Nothing)
    }

    fn options(&mut self, first: String) -> Result<Statement, SqlError> {
        let mut names = vec![first];
        while self.eat_symbol(",") {
            names.push(self.name()?.to_ascii_uppercase());
        }
        let negative = if self.eat_symbol("-") { "-" } else { "" };
        let Some(Token::Word(value) | Token::Number(value)) = self.next() else {
            return Err(self.unexpected());
        };
        let value = format!("{negative}{}", value.to_ascii_uppercase());
        if let Some(name) = names.iter().find(|name| !is_setting(name, &value)) {
            return Err(SqlError::unsupported(&format!("SET {name} {value}")));
        }
        let settings = names.into_iter();
        let settings = settings.map(|name| Statement::Setting { name, value: value.clone() });
        Ok(Statement::Block(settings.collect()))
    }
}
