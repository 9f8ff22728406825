//! Reads a journal day by day, newest first: one request for each day that has a single part.

use time::Date;

use super::history::read_part;
use super::{Entry, JournalStore, Line, Part};
use crate::store::StoreError;

/// Reads the days of a poller's journal, from newest to oldest.
///
/// A day is one part unless that was full or the history was restarted. Entries are numbered, so the first part shows
/// whether there are more. The parts are listed only in that case.
#[derive(Debug)]
pub struct Days<'a> {
    store: &'a dyn JournalStore,
    poller: &'a str,
    /// The number of the last entry of the day to be read next; 0 if there is none before it.
    last: u64,
    /// All parts, once they were listed.
    parts: Option<Vec<Part>>,
}

impl<'a> Days<'a> {
    /// Starts after the entry with the number `last`, which is that of the state document.
    pub fn new(store: &'a dyn JournalStore, poller: &'a str, last: u64) -> Self {
        Self { store, poller, last, parts: None }
    }

    /// Whether nothing was recorded before the days that were read.
    pub fn is_at_start(&self) -> bool {
        self.last == 0
    }

    /// Returns the lines of a day, which must be before the last one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn read(&mut self, day: Date) -> Result<Vec<Line>, StoreError> {
        let first = Part::of_day(self.poller, day);
        let mut lines = Vec::new();
        if self.parts.is_none() {
            lines = self.part(&first).await?;
            let newest = entries(&lines).map(|entry| entry.seq).max();
            if newest.is_none_or(|newest| newest < self.last) {
                self.parts = Some(self.store.list(self.poller).await?);
            }
        }
        let is_read = !lines.is_empty();
        let parts = self.parts.iter().flatten();
        let parts = parts.filter(|part| part.day == day && !(is_read && **part == first));
        for part in parts.cloned().collect::<Vec<_>>() {
            lines.extend(self.part(&part).await?);
        }
        if let Some(oldest) = entries(&lines).min_by_key(|entry| entry.place()) {
            // The entry of a write has a new number, others that of the last write.
            self.last = oldest.seq.saturating_sub(u64::from(oldest.wrote()));
        }
        if let Some(parts) = &self.parts
            && !parts.iter().any(|part| part.day < day)
        {
            self.last = 0;
        }
        Ok(lines)
    }

    async fn part(&self, part: &Part) -> Result<Vec<Line>, StoreError> {
        Ok(read_part(&part.to_string(), &self.store.read(part, 0).await?))
    }
}

fn entries(lines: &[Line]) -> impl Iterator<Item = &Entry> {
    lines.iter().filter_map(|line| line.entry.as_ref().ok())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use time::macros::date;

    use super::*;
    use crate::cursor::SourceFingerprint;
    use crate::document::{Generation, StateDocument};
    use crate::journal::{Appended, EventKind, MemoryJournal};

    const DAYS: [Date; 3] = [date!(2026 - 04 - 07), date!(2026 - 04 - 08), date!(2026 - 04 - 10)];

    /// Counts requests.
    #[derive(Debug, Default)]
    struct Counted {
        memory: MemoryJournal,
        reads: AtomicUsize,
        lists: AtomicUsize,
    }

    #[async_trait]
    impl JournalStore for Counted {
        async fn append(
            &self,
            part: &Part,
            at: u64,
            bytes: Vec<u8>,
        ) -> Result<Appended, StoreError> {
            self.memory.append(part, at, bytes).await
        }

        async fn length(&self, part: &Part) -> Result<u64, StoreError> {
            self.memory.length(part).await
        }

        async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.memory.read(part, position).await
        }

        async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
            self.lists.fetch_add(1, Ordering::Relaxed);
            self.memory.list(poller).await
        }

        async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError> {
            self.memory.remove(part, length).await
        }
    }

    impl Counted {
        async fn with(parts: &[(Part, &[u64])]) -> Self {
            let store = Self::default();
            for (part, seqs) in parts {
                let mut bytes = Vec::new();
                for seq in *seqs {
                    let fingerprint = SourceFingerprint::of(&[]);
                    let mut document = StateDocument::new("orders", fingerprint, Generation(7));
                    document.journal_seq = *seq;
                    let at = part.day.midnight().assume_utc();
                    Entry::of_operator(EventKind::Paused, &document, at, "eve", None)
                        .write_to(&mut bytes);
                }
                store.append(part, 0, bytes).await.unwrap();
            }
            store
        }

        fn requests(&self) -> (usize, usize) {
            (self.reads.swap(0, Ordering::Relaxed), self.lists.swap(0, Ordering::Relaxed))
        }
    }

    async fn seqs(days: &mut Days<'_>, day: Date) -> Vec<u64> {
        let lines = days.read(day).await.unwrap();
        entries(&lines).map(|entry| entry.seq).collect()
    }

    #[tokio::test]
    async fn a_day_is_one_read() {
        let [first, second, _] = DAYS.map(|day| Part::of_day("orders", day));
        let store = Counted::with(&[(first, &[1, 2]), (second, &[3, 4])]).await;
        let mut days = Days::new(&store, "orders", 4);
        assert_eq!(seqs(&mut days, DAYS[1]).await, [3, 4]);
        assert!(!days.is_at_start());
        assert_eq!(seqs(&mut days, DAYS[0]).await, [1, 2]);
        assert!(days.is_at_start());
        assert_eq!(store.requests(), (2, 0));
    }

    #[tokio::test]
    async fn parts_are_listed_once_if_entries_are_missing() {
        let [first, second, third] = DAYS.map(|day| Part::of_day("orders", day));
        let more = third.next();
        let store =
            Counted::with(&[(first, &[1]), (second, &[2]), (third, &[3]), (more, &[4, 5])]).await;
        let mut days = Days::new(&store, "orders", 5);
        assert_eq!(seqs(&mut days, DAYS[2]).await, [3, 4, 5]);
        assert_eq!(store.requests(), (2, 1));
        for (day, expected, reads) in
            [(date!(2026 - 04 - 09), &[][..], 0), (DAYS[1], &[2], 1), (DAYS[0], &[1], 1)]
        {
            assert_eq!(seqs(&mut days, day).await, expected);
            assert_eq!(store.requests(), (reads, 0), "{day}");
        }
        assert!(days.is_at_start());
    }
}
