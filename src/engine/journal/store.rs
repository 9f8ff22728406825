//! The port for journal stores.

use std::fmt;

use async_trait::async_trait;
use time::Date;
use time::macros::format_description;

use crate::store::StoreError;

/// A part of a poller's journal: it is appended to, and dropped as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The poller.
    pub poller: String,
    /// The day it covers; storage time, UTC.
    pub day: Date,
    /// Its number within the day, from 0: a service may limit how often a blob is appended to.
    pub number: u32,
}

impl Part {
    /// Returns the first part of a day.
    pub fn of_day(poller: &str, day: Date) -> Self {
        Self { poller: poller.to_owned(), day, number: 0 }
    }

    /// Returns the part to use when this one is full.
    #[must_use]
    pub fn next(&self) -> Self {
        Self { number: self.number.saturating_add(1), ..self.clone() }
    }

    /// Returns the name within the poller's folder, such as `2026-04-07.0000.ndjson`; names sort in the order of
    /// parts.
    pub fn file_name(&self) -> String {
        let day = self.day.format(format_description!("[year]-[month]-[day]"));
        format!("{}.{:04}.ndjson", day.unwrap_or_default(), self.number)
    }

    /// Parses a name written by [`Self::file_name`]; `None` for a foreign name.
    pub fn parse(poller: &str, file_name: &str) -> Option<Self> {
        let (day, number) = file_name.strip_suffix(".ndjson")?.split_once('.')?;
        let day = Date::parse(day, format_description!("[year]-[month]-[day]")).ok()?;
        let part = Self { poller: poller.to_owned(), day, number: number.parse().ok()? };
        (part.file_name() == file_name).then_some(part)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.poller, self.file_name())
    }
}

/// Result of an append that was not rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It happened; the new length of the part in bytes.
    UpTo(u64),
    /// The part is full; nothing was written.
    Full,
}

/// Stores the parts of journals.
///
/// # Contract
///
/// An append is atomic, and happens only if the part has the length that the writer expects: so a retried append is
/// stored once. Appended content never changes. No method retries. The suite in `journal::conformance` tests this
/// contract.
#[async_trait]
pub trait JournalStore: fmt::Debug + Send + Sync {
    /// Appends `bytes`, which are complete lines, at `position`; the first append creates a part.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if the part has another length; `Conflict`, `Unreachable` and `Refused` prove that
    /// nothing was appended.
    async fn append(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError>;

    /// Returns the length of a part in bytes; 0 if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn length(&self, part: &Part) -> Result<u64, StoreError>;

    /// Returns the bytes of a part from `position` on; empty if the part does not exist, or ends before.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError>;

    /// Returns the parts of a poller, oldest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError>;

    /// Drops a part; if `length` is given, atomically and only if the part has that length. Without a length, a
    /// missing part is not an error.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; `Conflict` only if the part has another length than the given one.
    async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError>;
}

/// Returns the length of these bytes as a `u64`.
pub fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use time::macros::date;

    use super::*;

    #[test]
    fn names_of_parts_read_back_and_sort_as_parts_do() {
        let first = Part::of_day("orders", date!(2026 - 04 - 07));
        assert_eq!(first.to_string(), "orders/2026-04-07.0000.ndjson");
        let parts = [first.clone(), first.next(), Part::of_day("orders", date!(2026 - 04 - 08))];
        assert!(parts.is_sorted() && parts.map(|part| part.file_name()).is_sorted());
        assert_eq!(Part::parse("orders", &first.next().file_name()), Some(first.next()));
        for foreign in [
            "2026-04-07.ndjson",
            "2026-04-07.0.ndjson",
            "a.0000.ndjson",
            "x",
            "2026-04-07.0000.ndjson.tmp",
        ] {
            assert_eq!(Part::parse("orders", foreign), None, "{foreign}");
        }
    }
}
