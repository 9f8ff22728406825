//! The port: where journals are kept.

use std::fmt;

use async_trait::async_trait;
use time::Date;
use time::macros::format_description;

use crate::store::StoreError;

/// A piece of a poller's journal that is appended to, and dropped as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The poller.
    pub poller: String,
    /// The day it covers; storage time, UTC.
    pub day: Date,
    /// Which of the day's, from 0: a service may limit how often one is appended to.
    pub number: u32,
}

impl Part {
    /// Returns the first part of a day.
    pub fn of_day(poller: &str, day: Date) -> Self {
        Self { poller: poller.to_owned(), day, number: 0 }
    }

    /// Returns the part that follows when this one is full.
    #[must_use]
    pub fn next(&self) -> Self {
        Self { number: self.number.saturating_add(1), ..self.clone() }
    }

    /// Returns the name within the poller's folder, such as `2026-04-07.0000.ndjson`; names sort as
    /// parts do.
    pub fn file_name(&self) -> String {
        let day = self.day.format(format_description!("[year]-[month]-[day]"));
        format!("{}.{:04}.ndjson", day.unwrap_or_default(), self.number)
    }

    /// Reads a name that [`Self::file_name`] gave; `None` for a foreign name.
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

/// How an append ended that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It happened, and the part has so many bytes now.
    UpTo(u64),
    /// The part takes no more; nothing was written.
    Full,
}

/// Keeps the parts of journals.
///
/// # Contract
///
/// An append happens as a whole or not at all, and only where the part has the length that the writer
/// believes it has: so one that was tried twice is there once. What was appended never changes. No
/// method retries. The suite in `journal::conformance` is this contract as tests.
#[async_trait]
pub trait JournalStore: fmt::Debug + Send + Sync {
    /// Appends `bytes`, whole lines, at `position`; the first append creates a part.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] where the part has another length; `Conflict`, `Unreachable` and
    /// `Refused` prove that nothing was appended.
    async fn append(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError>;

    /// Returns how many bytes a part has; 0 where there is none.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn length(&self, part: &Part) -> Result<u64, StoreError>;

    /// Returns the bytes of a part from `position` on; none where there is no part, or none left.
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

    /// Drops a part: where `length` is given, only if it has so many bytes, in one step with the look.
    /// Without one it is no error where there is no part.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; `Conflict` only where the part has another length than the one given.
    async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError>;
}

/// Returns how many bytes these are, as stores count.
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
