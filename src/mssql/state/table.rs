//! A table owned by this program: its name, and what an operator does to create it.

use thiserror::Error;

use crate::ident::{NameError, QualifiedName, quote};

/// A table that is never created here: a command prints its DDL.
#[derive(Clone, Debug)]
pub(crate) struct OwnTable {
    /// Its name.
    pub(crate) name: QualifiedName,
    /// The subcommand of `ddl` that prints it, such as `state`.
    pub(crate) command: &'static str,
    /// The permissions that the user of the connection needs.
    pub(crate) rights: &'static [&'static str],
}

impl OwnTable {
    /// Returns the statements that grant a database user the permissions.
    pub(crate) fn grant(&self, user: &str) -> String {
        let (table, user) = (self.name.quoted(), quote(user));
        let grants = self.rights.iter().map(|right| format!("GRANT {right} ON {table} TO {user};"));
        grants.collect::<Vec<_>>().join("\n")
    }

    /// Returns the command that prints the DDL.
    pub(super) fn ddl(&self) -> String {
        let (command, table) = (self.command, self.name.as_argument());
        format!("`highwater ddl {command} --table {table}`")
    }

    /// Returns the permissions as a list in words.
    pub(super) fn rights_text(&self) -> String {
        match self.rights {
            [front @ .., last] if !front.is_empty() => format!("{} and {last}", front.join(", ")),
            rights => rights.concat(),
        }
    }
}

/// An invalid name for one of our tables.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TableNameError {
    /// Not a table name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name includes a database, which belongs in the connection string.
    #[error("table `{0}` names a database: name it in the connection string instead")]
    Database(String),
}

/// Parses the name of one of our tables.
///
/// # Errors
///
/// [`TableNameError`] if the text is not a table name, or names a database.
pub fn table_name(text: &str) -> Result<QualifiedName, TableNameError> {
    let table = QualifiedName::parse(text)?;
    if table.database.is_some() {
        return Err(TableNameError::Database(text.to_owned()));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_database_and_an_empty_name_are_rejected() {
        for (text, expected) in [
            ("other.dbo.state", "table `other.dbo.state` names a database"),
            ("a.b.c.d", "must be like `table`"),
            ("", "has an empty part"),
        ] {
            let error = table_name(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
