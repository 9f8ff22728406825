//! When positions were allocated, as far as reads of the source show.
//!
//! A mode that counts positions has no time of a row. But each read also returns the newest position that the source
//! had allocated, so a position was allocated between the last read that did not know it and the first one that did.
//! [`PositionTimes::age`] returns its age by the later of these two: at most one interval between reads too short,
//! and never too long. A row that is delivered by the first read after it was written has no age.
//!
//! Only delivered positions are forgotten. A read that starts after rows which may not be accepted says nothing about
//! the age of these.

use std::sync::MutexGuard;
use std::time::Duration;

use time::OffsetDateTime;

use super::Poller;
use crate::cursor::{Cursor, CursorMode};
use crate::document::{Generation, PositionTime, StateDocument};
use crate::source::{Lag, PositionRange};

/// Most reads to remember. More would make the document larger, which each write sends.
const READS_MAX: usize = 16;

/// The newest position of recent reads, oldest read first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PositionTimes {
    reads: Vec<PositionTime>,
    /// The generation of the state document that the positions belong to.
    generation: Generation,
}

impl PositionTimes {
    /// Starts a tick at `now` with the reads that the document recorded, if they are newer. An operator who moves the
    /// checkpoint or accepts another source changes the generation; the same numbers may mean other rows then.
    fn recall(&mut self, generation: Generation, stored: &[PositionTime], now: OffsetDateTime) {
        if self.generation != generation {
            *self = Self { reads: Vec::new(), generation };
        }
        // Later ones were recorded while the clock was wrong.
        self.reads.retain(|read| read.at <= now);
        let stored = stored.iter().filter(|read| read.at <= now);
        if stored.clone().next_back().map(|read| read.at) > self.reads.last().map(|read| read.at) {
            self.reads = stored.copied().collect();
            self.limit();
        }
    }

    /// Records the newest position that a read in this mode found.
    fn note_newest(&mut self, at: OffsetDateTime, newest: i64, mode: CursorMode) {
        let last = self.reads.last().map_or(newest, |last| last.newest);
        if mode == CursorMode::IntegerPk {
            // The newest row may have been deleted; its number is not used again.
            self.note(at, newest.max(last));
            return;
        }
        if newest < last {
            // The database was restored or replaced: the same numbers mean other rows now.
            self.reads.clear();
        }
        self.note(at, newest);
    }

    /// Records a read that started at `at`.
    fn note(&mut self, at: OffsetDateTime, newest: i64) {
        if self.reads.last().is_none_or(|last| last.at < at) {
            self.reads.push(PositionTime { at, newest });
            self.limit();
        }
    }

    /// Forgets the reads that knew only positions up to `done`, which are delivered. The first one that is left dates
    /// the oldest row that waits, so it stays.
    fn forget_upto(&mut self, done: i64) {
        self.reads.retain(|read| read.newest > done);
    }

    fn limit(&mut self) {
        while self.reads.len() > READS_MAX {
            self.reads.remove(self.least_useful());
        }
    }

    /// Returns the least age that a position can have at `now`; `None` without any read.
    fn age(&self, position: i64, now: OffsetDateTime) -> Option<Duration> {
        self.reads.first()?;
        let read = self.reads.iter().find(|read| read.newest >= position);
        Some(read.and_then(|read| Duration::try_from(now - read.at).ok()).unwrap_or_default())
    }

    /// Returns the index of the read without which the ages of the others' positions grow least, in proportion. The
    /// first and the last one stay.
    fn least_useful(&self) -> usize {
        let Some(last) = self.reads.last() else { return 0 };
        let growth = |(index, around): (usize, &[PositionTime])| {
            let [before, _, after] = around else { return None };
            let (gap, age) = (after.at - before.at, last.at - before.at);
            Some((gap.as_seconds_f64() / age.as_seconds_f64(), index + 1))
        };
        let growths = self.reads.windows(3).enumerate().filter_map(growth);
        growths.min_by(|(one, _), (other, _)| one.total_cmp(other)).map_or(0, |(_, index)| index)
    }
}

impl Poller {
    fn position_times(&self) -> MutexGuard<'_, PositionTimes> {
        self.position_times.lock().expect("no holder of this lock panics")
    }

    /// Returns the newest positions of recent reads.
    pub(crate) fn reads(&self) -> Vec<PositionTime> {
        self.position_times().reads.clone()
    }

    /// Adopts the reads that a document recorded if they are newer than those of this process.
    pub(crate) fn recall_reads(&self, document: &StateDocument, now: OffsetDateTime) {
        let stored = document.observed.as_ref().map_or(&[][..], |observed| &observed.reads);
        self.position_times().recall(document.generation, stored, now);
    }

    /// Records a read that started at `at`.
    pub(crate) fn note_read(&self, lag: Lag, at: OffsetDateTime) {
        let Some(PositionRange { newest, .. }) = lag.range else { return };
        self.position_times().note_newest(at, newest, self.source.shape().mode);
    }

    /// Forgets positions before those that a read after the checkpoint found. `is_bounded` reads say nothing about the
    /// end of the source.
    pub(crate) fn forget_delivered(&self, lag: Lag, is_bounded: bool) {
        let Some(PositionRange { first, readable, .. }) = lag.range else { return };
        match first {
            Some(first) => self.position_times().forget_upto(first.saturating_sub(1)),
            None if !is_bounded => self.position_times().forget_upto(readable),
            None => {}
        }
    }

    /// Forgets positions before a checkpoint. Other rows may have the same position.
    pub(crate) fn forget_committed(&self, upto: &Cursor) {
        if let Some(number) = upto.number() {
            self.position_times().forget_upto(number.saturating_sub(1));
        }
    }

    /// Adds the age of the first row of a read to its lag if the source does not know it.
    pub(crate) fn date_rows(&self, lag: Lag, started_at: OffsetDateTime) -> Lag {
        let Some(range) = lag.range else { return lag };
        let age = match range.first {
            Some(first) => self.position_times().age(first, started_at),
            None => Some(Duration::ZERO),
        };
        Lag { time: lag.time.or(age), ..lag }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const START: OffsetDateTime = datetime!(2026-01-01 12:00 UTC);

    fn at(second: i64) -> OffsetDateTime {
        START + time::Duration::seconds(second)
    }

    /// Reads, each with its second and the newest position.
    fn reads(reads: &[(i64, i64)]) -> PositionTimes {
        let mut times = PositionTimes::default();
        for (second, newest) in reads {
            times.note(at(*second), *newest);
        }
        times
    }

    fn age(times: &PositionTimes, position: i64, second: i64) -> Option<u64> {
        times.age(position, at(second)).map(|age| age.as_secs())
    }

    #[test]
    fn a_row_is_as_old_as_the_first_read_that_knew_it() {
        let mut times = reads(&[(0, 10), (5, 10), (10, 20), (15, 25)]);
        times.forget_upto(20);
        // Delivered by the first read after it was written.
        assert_eq!(age(&times, 21, 15), Some(0));
        // It fails for an hour, while other rows arrive.
        for second in (20..3_600).step_by(5) {
            times.note(at(second), second * 100);
        }
        assert_eq!(age(&times, 21, 3_600), Some(3_585));
        // Delivered: the next row is as old as the first read that knew it, or a little younger.
        times.note(at(3_600), 360_000);
        times.forget_upto(179_999);
        let found = age(&times, 180_000, 3_600).unwrap();
        assert!((1_200..=1_800).contains(&found), "{found}");
    }

    #[test]
    fn rows_from_before_the_first_read_are_as_old_as_that() {
        let mut times = PositionTimes::default();
        assert_eq!(age(&times, 1, 0), None);
        times.note(at(0), 1_000);
        assert_eq!(age(&times, 1, 0), Some(0));
        times.note(at(60), 1_000);
        assert_eq!(age(&times, 500, 60), Some(60));
    }

    #[test]
    fn a_row_that_an_open_transaction_holds_back_keeps_its_age() {
        let mut times = reads(&[(0, 10)]);
        // Position 11 is written and not committed; 12 is.
        for second in [5, 10, 15, 20] {
            times.note(at(second), 12);
            times.forget_upto(10);
        }
        assert_eq!(age(&times, 11, 20), Some(15));
    }

    #[test]
    fn delivered_positions_leave_no_read() {
        let mut times = reads(&[(0, 10), (5, 11), (10, 11)]);
        times.forget_upto(10);
        assert_eq!(times.reads.len(), 2);
        times.forget_upto(11);
        assert_eq!(times.reads, []);
    }

    #[test]
    fn lower_positions_mean_a_restored_database_or_deleted_rows() {
        let mut times = reads(&[(0, 10), (5, 20)]);
        times.note_newest(at(10), 15, CursorMode::IntegerPk);
        assert_eq!(age(&times, 20, 10), Some(5), "the newest row was deleted");
        times.note_newest(at(15), 3, CursorMode::RowVersion);
        assert_eq!(times.reads, [PositionTime { at: at(15), newest: 3 }]);
    }

    #[test]
    fn another_generation_starts_without_reads() {
        let mut times = reads(&[(0, 10), (5, 20)]);
        times.recall(Generation(0), &[], at(6));
        assert_eq!(times.reads.len(), 2);
        times.recall(Generation(1), &[], at(6));
        assert_eq!(times.reads, []);
    }

    #[test]
    fn reads_of_a_clock_that_was_ahead_are_dropped() {
        const DAYS: i64 = 3 * 86_400;
        let mut times = reads(&[(0, 10), (DAYS, 20)]);
        let ahead = times.reads.clone();
        times.recall(Generation(0), &ahead, at(5));
        times.note(at(5), 20);
        times.note(at(65), 20);
        assert_eq!(age(&times, 20, 65), Some(60));
        // So are those of a document.
        let mut restarted = PositionTimes::default();
        restarted.recall(Generation(0), &ahead, at(5));
        assert_eq!(restarted.reads, [PositionTime { at: at(0), newest: 10 }]);
    }

    #[test]
    fn reads_of_a_document_are_limited() {
        let many = reads(&[(0, 0)]).reads.repeat(3 * READS_MAX);
        let mut times = PositionTimes::default();
        times.recall(Generation(0), &many, at(5));
        assert_eq!(times.reads.len(), READS_MAX);
    }

    #[test]
    fn the_number_of_reads_is_limited_and_what_is_left_is_spread_over_the_time() {
        let mut times = reads(&[(0, 0)]);
        for second in 1..=100_000 {
            times.note(at(second), second);
        }
        assert_eq!(times.reads.len(), READS_MAX);
        for position in [1, 10_000, 50_000, 90_000, 99_000] {
            let (found, exact) = (age(&times, position, 100_000).unwrap(), 100_000 - position);
            let exact = u64::try_from(exact).unwrap();
            assert!(found <= exact && found * 4 >= exact, "{position}: {found} for {exact}");
        }
    }
}
