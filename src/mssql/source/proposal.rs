//! Proposes a key, a mode and a cursor for a new poller of a table, with reasons.

use highwater_engine::cursor::CursorMode;
use highwater_engine::error::ErrorKind;
use highwater_engine::source::FetchError;

use super::choice::ReasonedChoice;
use super::describe::Column;
use super::{Mssql, SourceSettings};

/// How a table can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceProposal {
    /// How its rows are ordered.
    pub mode: CursorMode,
    /// The cursor column; change tracking has none.
    pub cursor: Option<String>,
    /// Why this mode and cursor.
    pub reason: String,
    /// Key columns.
    pub key: Vec<String>,
    /// Why this key.
    pub key_reason: String,
}

impl Mssql {
    /// Queries the catalogue for the best way to read the table: the cursor of the settings, or the best
    /// available one; the key of the settings if `key_is_named`, else the primary key. Read-only.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the table cannot be described, or cannot be read in any mode.
    pub async fn propose(&self, key_is_named: bool) -> Result<SourceProposal, FetchError> {
        let mut state = self.state.lock().await;
        let columns = self.describe_or_suggest(&mut state.connection).await?;
        let (key, key_reason) = if key_is_named {
            (self.settings.key.clone(), "named by you".to_owned())
        } else {
            (primary_key(&columns).map_err(configuration)?, "the primary key".to_owned())
        };
        let settings = SourceSettings { key: key.clone(), ..self.settings.clone() };
        let chosen = self.choose(&mut state.connection, &settings, &columns, |_| false).await;
        let ReasonedChoice { choice, reason } =
            chosen.map_err(|error| match time_columns(&columns) {
                Some(columns) => configuration(format!(
                    "{error}; it has time columns: `{columns}`; set one with `--cursor`"
                )),
                None => error,
            })?;
        Ok(SourceProposal { mode: choice.mode, cursor: choice.cursor, reason, key, key_reason })
    }
}

fn primary_key(columns: &[Column]) -> Result<Vec<String>, String> {
    let primary = columns.iter().filter(|column| column.primary);
    let primary: Vec<String> = primary.map(|column| column.name.clone()).collect();
    if primary.is_empty() {
        let reason =
            "it has no primary key: set columns with `--key` that are unique and never NULL";
        return Err(reason.to_owned());
    }
    Ok(primary)
}

/// Returns the columns that could order rows if the operator confirms it.
fn time_columns(columns: &[Column]) -> Option<String> {
    let times = columns.iter().filter(|column| column.fits(CursorMode::TimestampPk).is_ok());
    let names: Vec<&str> = times.map(|column| column.name.as_str()).collect();
    (!names.is_empty()).then(|| names.join("`, `"))
}

fn configuration(reason: String) -> FetchError {
    FetchError::new(ErrorKind::Configuration, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, type_name: &str, primary: bool) -> Column {
        let plain = crate::source::describe::tests::column(type_name, 8, 0, 7);
        Column { name: name.to_owned(), primary, ..plain }
    }

    #[test]
    fn the_key_is_the_primary_key_and_is_not_guessed_without_one() {
        let columns =
            [column("a", "int", true), column("x", "datetime2", false), column("b", "int", true)];
        assert_eq!(primary_key(&columns), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert!(primary_key(&columns[1..2]).unwrap_err().contains("`--key`"));
        assert_eq!(time_columns(&columns).as_deref(), Some("x"));
        assert_eq!(time_columns(&columns[..1]), None);
    }
}
