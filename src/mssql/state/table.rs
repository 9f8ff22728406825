//! A table that this program keeps things in: its name, and what an operator does for it.

use thiserror::Error;

use crate::ident::{NameError, QualifiedName, quote};

/// A table that is never created here: a command prints the statements.
#[derive(Clone, Debug)]
pub(crate) struct OwnTable {
    /// Its name.
    pub(crate) name: QualifiedName,
    /// The command whose `ddl` prints it, such as `state`.
    pub(crate) command: &'static str,
    /// The rights that the user of the connection needs.
    pub(crate) rights: &'static [&'static str],
}

impl OwnTable {
    /// Returns the statements that give a user of the database the rights.
    pub(crate) fn grant(&self, user: &str) -> String {
        let (table, user) = (self.name.quoted(), quote(user));
        let grants = self.rights.iter().map(|right| format!("GRANT {right} ON {table} TO {user};"));
        grants.collect::<Vec<_>>().join("\n")
    }

    /// Returns the command that prints how it is made.
    pub(super) fn ddl(&self) -> String {
        let (command, table) = (self.command, self.name.as_argument());
        format!("`highwater ddl {command} --table {table}`")
    }

    /// Returns the rights as people list them.
    pub(super) fn rights_text(&self) -> String {
        match self.rights {
            [front @ .., last] if !front.is_empty() => format!("{} and {last}", front.join(", ")),
            rights => rights.concat(),
        }
    }
}

/// A name that a table of ours cannot have.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TableNameError {
    /// It is no name of a table.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It names a database; the connection string is the place for that.
    #[error("table `{0}` names a database: name it in the connection string instead")]
    Database(String),
}

/// Reads the name of a table of ours.
///
/// # Errors
///
/// [`TableNameError`] if the text is none, or names a database.
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
    fn a_name_with_a_database_or_none_at_all_is_refused() {
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
