//! Reads driver rows without a server, for tests that measure the cost of reading them.

use tiberius::TokenRow;

use highwater_engine::cursor::SourceState;
use highwater_engine::source::{FetchError, FetchWindow, Rows};

use super::SourceSettings;
use super::choice::Choice;
use super::describe::Column;
use super::origin::{self, Origin};
use super::plan::{FetchProgress, Plan, ReadSpec};

/// A described table whose rows come from the caller.
#[derive(Debug)]
pub struct SampleTable(Plan);

impl SampleTable {
    /// Returns a table with these columns: name, type, and length in bytes.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the settings do not match the columns, or leave the mode open.
    pub fn new(
        settings: &SourceSettings,
        columns: &[(&str, &str, i64)],
    ) -> Result<Self, FetchError> {
        let configuration =
            |reason| FetchError::new(highwater_engine::error::ErrorKind::Configuration, reason);
        let origin = Origin::of(settings).map_err(configuration)?;
        let filter = origin::filter(settings).map_err(configuration)?;
        let choice = Choice::of(settings)?;
        let choice = choice.ok_or_else(|| configuration("set the mode".to_owned()))?;
        let reading = ReadSpec { origin: &origin, filter: filter.as_ref(), choice: &choice };
        let column = |(name, type_name, max_length): &(&str, &str, i64)| Column {
            name: (*name).to_owned(),
            type_name: (*type_name).to_owned(),
            max_length: *max_length,
            precision: 0,
            scale: 0,
            nullable: true,
            collation: None,
            identity: false,
            primary: false,
        };
        let described: Vec<Column> = columns.iter().map(column).collect();
        Ok(Self(Plan::new(settings, reading, &described)?))
    }

    /// Reads rows like a fetch; each has the delivered columns, then the cursor.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if a row does not have the expected cells.
    pub fn read(&self, rows: Vec<TokenRow<'static>>) -> Result<Rows, FetchError> {
        let mut answer = FetchProgress::new(rows.len());
        for row in rows {
            self.0.read_cells(&row, &mut answer)?;
        }
        let state = SourceState::new();
        let window = FetchWindow { after: None, upto: None, rows_max: usize::MAX, state: &state };
        self.0.finish(answer, window)
    }
}
