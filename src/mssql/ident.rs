//! Names in SQL text: the only place that converts a name to SQL.

use std::fmt;

use thiserror::Error;

/// Longest name of an object or a column.
/// <https://learn.microsoft.com/sql/relational-databases/databases/database-identifiers>
const NAME_CHARS_MAX: usize = 128;
/// Schema of a table name without one.
const SCHEMA_DEFAULT: &str = "dbo";

/// A name that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// Empty, or with an empty part.
    #[error("name `{0}` has an empty part")]
    Empty(String),
    /// A part is longer than SQL Server allows.
    #[error("name `{0}` has a part of more than 128 characters")]
    Long(String),
    /// A bracket or quotation mark is not closed, or is followed by text.
    #[error(
        "name `{0}` has a bracket or quotation mark out of place; write `[a.b]`, with `]]` for `]`"
    )]
    Quotes(String),
    /// More parts than database, schema and object.
    #[error("name `{0}` must be like `table`, `schema.table` or `database.schema.table`")]
    Parts(String),
}

/// Returns `name` in brackets, as SQL text.
pub fn quote(name: &str) -> String {
    format!("[{}]", name.replace(']', "]]"))
}

/// Returns `text` as a string constant, as SQL text.
pub fn literal(text: &str) -> String {
    format!("N'{}'", text.replace('\'', "''"))
}

/// Returns the name of a collation as SQL text; `None` if it is not a valid name.
///
/// Collation names cannot be quoted; they consist of letters, digits and `_`.
pub fn collation(name: &str) -> Option<&str> {
    let is_name = |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    Some(name).filter(is_name).filter(|name| !name.is_empty())
}

/// The name of a table or view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QualifiedName {
    /// Database, if the name includes one.
    pub database: Option<String>,
    /// Schema.
    pub schema: String,
    /// Table or view.
    pub object: String,
}

impl QualifiedName {
    /// Parses `orders`, `dbo.orders`, `[dbo].[My Table]`, `"dbo"."t"` or `db.dbo.orders`.
    ///
    /// # Errors
    ///
    /// [`NameError`] if the text is not such a name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let mut parts = parts(text)?.into_iter().rev();
        let object = parts.next().ok_or_else(|| NameError::Empty(text.to_owned()))?;
        let schema = parts.next().unwrap_or_else(|| SCHEMA_DEFAULT.to_owned());
        let database = parts.next();
        if parts.next().is_some() {
            return Err(NameError::Parts(text.to_owned()));
        }
        Ok(Self { database, schema, object })
    }

    /// Returns the name as SQL text, each part in brackets.
    pub fn quoted(&self) -> String {
        let database = self.database.as_ref().map(|name| quote(name) + ".").unwrap_or_default();
        format!("{database}{}.{}", quote(&self.schema), quote(&self.object))
    }

    /// Returns the name as a shell argument.
    pub(crate) fn as_argument(&self) -> String {
        let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if plain(&self.schema) && plain(&self.object) {
            return self.to_string();
        }
        format!("'{}'", self.quoted())
    }
}

/// The name for display, without brackets.
impl fmt::Display for QualifiedName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(database) = &self.database {
            write!(formatter, "{database}.")?;
        }
        write!(formatter, "{}.{}", self.schema, self.object)
    }
}

fn parts(text: &str) -> Result<Vec<String>, NameError> {
    let quotes = || NameError::Quotes(text.to_owned());
    let mut parts = Vec::new();
    let mut chars = text.trim().chars().peekable();
    loop {
        let mut part = String::new();
        let closing = match chars.peek() {
            Some('[') => Some(']'),
            Some('"') => Some('"'),
            _ => None,
        };
        if let Some(closing) = closing {
            chars.next();
            loop {
                let c = chars.next().ok_or_else(quotes)?;
                if c == closing && chars.next_if_eq(&closing).is_none() {
                    break;
                }
                part.push(c);
            }
        } else {
            while let Some(c) = chars.next_if(|c| *c != '.') {
                if matches!(c, '[' | ']' | '"') {
                    return Err(quotes());
                }
                part.push(c);
            }
            part.truncate(part.trim_end().len());
            part.drain(..part.len() - part.trim_start().len());
        }
        match part.chars().count() {
            0 => return Err(NameError::Empty(text.to_owned())),
            1..=NAME_CHARS_MAX => parts.push(part),
            _ => return Err(NameError::Long(text.to_owned())),
        }
        match chars.next() {
            None => return Ok(parts),
            Some('.') => {}
            Some(_) => return Err(quotes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_parsed_in_every_form() {
        for (text, quoted) in [
            ("orders", "[dbo].[orders]"),
            ("sales.orders", "[sales].[orders]"),
            (" [dbo].[My Table] ", "[dbo].[My Table]"),
            ("\"a\"\"b\".[c]]d]", "[a\"b].[c]]d]"),
            ("[a.b]", "[dbo].[a.b]"),
            ("shop.dbo.t", "[shop].[dbo].[t]"),
            ("Bestellüngen 2", "[dbo].[Bestellüngen 2]"),
        ] {
            assert_eq!(QualifiedName::parse(text).unwrap().quoted(), quoted, "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in ["", "a..b", ".a", "a.", "[a", "[a]b", "a]b", "a.b.c.d", "[]", "a\"b"] {
            assert!(QualifiedName::parse(text).is_err(), "{text}");
        }
        assert!(QualifiedName::parse(&"x".repeat(129)).is_err());
    }

    proptest! {
        #[test]
        fn quoting_never_leaves_its_brackets(name in "[\\]\\[\"';.a-c\\PC]{1,128}") {
            let quoted = quote(&name);
            let inside = quoted.strip_prefix('[').unwrap().strip_suffix(']').unwrap();
            // Apart from doubled ones, no bracket is left that could end the name.
            prop_assert!(!inside.replace("]]", "").contains(']'));
            let name = QualifiedName { database: None, schema: "s".into(), object: name };
            prop_assert_eq!(QualifiedName::parse(&name.quoted()), Ok(name));
        }
    }
}
