//! The position in a batch, and helpers of every statement: names, types, the schema.

use super::{lexer::Token, sizes::sized_type};
use crate::types::{SqlError, Type};

/// A table's column as seen by statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableColumn {
    pub(crate) name: String,
    pub(crate) ty: Type,
    pub(crate) nullable: bool,
    pub(crate) identity: bool,
    /// T-SQL text of its default.
    pub(crate) default: Option<String>,
    /// For text, if it is not the server's.
    pub(crate) collation: Option<String>,
}

/// What the translator needs from the engine.
pub(crate) trait Schema {
    /// Columns of a table by its physical name; [`None`] if there is no such table.
    fn columns(&self, table: &str) -> Result<Option<Vec<TableColumn>>, SqlError>;

    /// Columns of a table's primary key, in key order.
    fn key(&self, table: &str) -> Result<Vec<String>, SqlError>;

    /// Whether the changes of a table are tracked.
    fn is_tracked(&self, table: &str) -> Result<bool, SqlError>;

    /// Type of a variable or parameter, by its name in lower case.
    fn variable(&self, name: &str) -> Option<Type>;

    /// Name of the database.
    fn database(&self) -> &str;

    /// Whether explicit values are allowed for the identity column of a table.
    fn identity_insert(&self, table: &str) -> bool;
}

/// Deepest nesting of expressions, queries and blocks.
const DEPTH_MAX: usize = 100;

/// Reads tokens of one batch.
pub(crate) struct Parser<'a> {
    pub(crate) schema: &'a dyn Schema,
    /// Named columns, each with the level of its query. In a grouped query only those inside aggregates are
    /// unrestricted.
    pub(crate) uses: Vec<(usize, String)>,
    /// Number of aggregates so far in the current query.
    pub(crate) aggregates: usize,
    tokens: &'a [Token],
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    /// Starts at a token of the batch.
    pub(crate) fn new(tokens: &'a [Token], at: usize, schema: &'a dyn Schema) -> Self {
        Self { schema, uses: Vec::new(), aggregates: 0, tokens, at, depth: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Goes back, or forward again, to a position.
    pub(crate) fn rewind(&mut self, position: usize) {
        self.at = position;
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub(crate) fn peek(&self) -> Option<&'a Token> {
        self.peek_at(0)
    }

    pub(crate) fn peek_at(&self, ahead: usize) -> Option<&'a Token> {
        self.tokens.get(self.at + ahead)
    }

    pub(crate) fn next(&mut self) -> Option<&'a Token> {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// The tokens since a position, as T-SQL text.
    pub(crate) fn text_since(&self, start: usize) -> String {
        let tokens = self.tokens.get(start..self.at).unwrap_or_default();
        tokens.iter().map(written).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.is_word_at(0, word)
    }

    pub(crate) fn is_word_at(&self, ahead: usize, word: &str) -> bool {
        matches!(self.peek_at(ahead), Some(Token::Word(w)) if w.eq_ignore_ascii_case(word))
    }

    /// Consumes a keyword if it comes next.
    pub(crate) fn eat(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Some(Token::Symbol(s)) if *s == symbol)
    }

    pub(crate) fn eat_symbol(&mut self, symbol: &str) -> bool {
        let found = self.is_symbol(symbol);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, word: &str) -> Result<(), SqlError> {
        if self.eat(word) { Ok(()) } else { Err(self.unexpected()) }
    }

    pub(crate) fn expect_symbol(&mut self, symbol: &str) -> Result<(), SqlError> {
        if self.eat_symbol(symbol) { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Error 102 at the next token.
    pub(crate) fn unexpected(&self) -> SqlError {
        SqlError::syntax(self.peek().or(self.tokens.last()).map_or("", Token::shown))
    }

    /// Runs a part one level deeper.
    pub(crate) fn nested<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        if self.depth >= DEPTH_MAX {
            return Err(SqlError::new(
                191,
                15,
                "Some part of your statement is nested too deeply.",
            ));
        }
        self.depth += 1;
        let result = part(self);
        self.depth -= 1;
        result
    }

    /// A name, bare or quoted.
    pub(crate) fn name(&mut self) -> Result<String, SqlError> {
        let Some(Token::Word(name) | Token::Name(name)) = self.peek() else {
            return Err(self.unexpected());
        };
        self.next();
        Ok(name.clone())
    }

    /// `[database.][schema.]table` as a physical name: bare in `dbo`, prefixed with the schema otherwise.
    ///
    /// # Errors
    ///
    /// 208: it is a table of another database.
    pub(crate) fn table_name(&mut self) -> Result<String, SqlError> {
        let parts = self.name_parts()?;
        if parts.last().is_some_and(|name| name.starts_with('#')) {
            return Err(SqlError::unsupported("A temporary table"));
        }
        physical(&parts, self.schema.database()).ok_or_else(|| elsewhere(&parts))
    }

    /// The parts of a name, with the default schema for an empty part between two dots.
    pub(super) fn name_parts(&mut self) -> Result<Vec<String>, SqlError> {
        let mut parts = vec![self.name()?];
        while self.eat_symbol(".") {
            parts.push(if self.is_symbol(".") { "dbo".into() } else { self.name()? });
        }
        Ok(parts)
    }

    /// A type with its arguments.
    pub(crate) fn data_type(&mut self) -> Result<Type, SqlError> {
        let mut name = self.name()?;
        if self.eat_symbol(".") {
            name = self.name()?;
        }
        let mut arguments = Vec::new();
        if self.eat_symbol("(") {
            loop {
                arguments.push(match self.next() {
                    Some(Token::Word(word)) if word.eq_ignore_ascii_case("max") => u16::MAX,
                    Some(Token::Number(number)) => {
                        number.parse().map_err(|_error| SqlError::syntax(number))?
                    }
                    _ => return Err(self.unexpected()),
                });
                if !self.eat_symbol(",") {
                    break;
                }
            }
            self.expect_symbol(")")?;
        }
        sized_type(&name, &arguments)
    }

    /// Columns of a table that must exist.
    pub(crate) fn table_columns(&self, table: &str) -> Result<Vec<TableColumn>, SqlError> {
        self.schema.columns(table)?.ok_or_else(|| invalid_object(table))
    }
}

/// Physical name of a table from the parts of its name; [`None`] if they start with another database.
pub(crate) fn physical(parts: &[String], database: &str) -> Option<String> {
    let (schema, table) = match parts {
        [table] => return Some(table.clone()),
        [schema, table] => (schema, table),
        [name, schema, table] if name.to_lowercase() == database.to_lowercase() => (schema, table),
        _ => return None,
    };
    let is_default = schema.eq_ignore_ascii_case("dbo");
    Some(if is_default { table.clone() } else { format!("{}.{table}", schema.to_lowercase()) })
}

fn elsewhere(parts: &[String]) -> SqlError {
    let name = parts.join(".");
    let text = format!("Invalid object name '{name}': the development server sees one database.");
    SqlError::new(208, 16, text)
}

/// A table's name as messages show it.
pub(crate) fn shown(table: &str) -> String {
    if table.contains('.') { table.into() } else { format!("dbo.{table}") }
}

pub(crate) fn invalid_object(table: &str) -> SqlError {
    SqlError::new(208, 16, format!("Invalid object name '{}'.", shown(table)))
}

pub(crate) fn invalid_column(column: &str) -> SqlError {
    SqlError::new(207, 16, format!("Invalid column name '{column}'."))
}

/// An SQLite name in quotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// An SQLite string constant.
pub(crate) fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn written(token: &Token) -> String {
    match token {
        Token::Word(text) | Token::Variable(text) | Token::Number(text) => text.clone(),
        Token::Name(name) => format!("[{}]", name.replace(']', "]]")),
        Token::Text(string) => format!("N{}", text(string)),
        Token::Coded(string) => text(string),
        Token::Binary(digits) => format!("0x{digits}"),
        Token::Symbol(symbol) => (*symbol).into(),
    }
}
