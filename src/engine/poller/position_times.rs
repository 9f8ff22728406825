//! When positions were allocated, as far as reads of the source show.
//!
//! A mode that counts positions has no time of a row. But each read also returns the newest position that the source
//! had allocated, so a position was allocated between the last read that did not know it and the first one that did.
//! [`PositionTimes::age`] returns its age by the earlier of these two: at most one interval between reads too long,
//! and never too short.

use std::sync::MutexGuard;
use std::time::Duration;

use time::OffsetDateTime;

use super::Poller;
use crate::document::{PositionTime, StateDocument};
use crate::source::{Lag, PositionRange};

/// Most reads to remember. More would make the document larger, which each write sends.
const READS_MAX: usize = 16;

/// The newest position of recent reads, oldest read first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PositionTimes(Vec<PositionTime>);

impl PositionTimes {
    /// Records a read that started at `at`.
    fn note(&mut self, at: OffsetDateTime, found: PositionRange) {
        let PositionRange { first, readable, newest } = found;
        if self.0.last().is_some_and(|last| newest < last.newest) {
            // The database was restored or replaced: the same numbers mean other rows now.
            self.0.clear();
        }
        if self.0.last().is_none_or(|last| last.at < at) {
            self.0.push(PositionTime { at, newest });
        }
        let done = first.map_or(readable, |first| first.saturating_sub(1));
        // Of the reads that knew only delivered positions, the last one says the most.
        let known = self.0.iter().rposition(|read| read.newest <= done).unwrap_or(0);
        self.0.drain(..known);
        if self.0.len() > READS_MAX {
            self.0.remove(self.least_useful());
        }
    }

    /// Returns the age of a position at `now`; `None` without any read. If no read is older than the position, the
    /// age is at least that.
    fn age(&self, position: i64, now: OffsetDateTime) -> Option<Duration> {
        let before = self.0.iter().rfind(|read| read.newest < position);
        let read = before.or_else(|| self.0.first())?;
        Some(Duration::try_from(now - read.at).unwrap_or_default())
    }

    /// Returns the index of the read without which the ages of the others' positions grow least, in proportion. The
    /// first and the last one stay.
    fn least_useful(&self) -> usize {
        let Some(last) = self.0.last() else { return 0 };
        let growth = |(index, around): (usize, &[PositionTime])| {
            let [before, _, after] = around else { return None };
            let (gap, age) = (after.at - before.at, last.at - before.at);
            Some((gap.as_seconds_f64() / age.as_seconds_f64(), index + 1))
        };
        let growths = self.0.windows(3).enumerate().filter_map(growth);
        growths.min_by(|(one, _), (other, _)| one.total_cmp(other)).map_or(0, |(_, index)| index)
    }
}

impl Poller {
    fn position_times(&self) -> MutexGuard<'_, PositionTimes> {
        self.position_times.lock().expect("no holder of this lock panics")
    }

    /// Returns the newest positions of recent reads.
    pub(crate) fn reads(&self) -> Vec<PositionTime> {
        self.position_times().0.clone()
    }

    /// Adopts the reads that a document recorded if they are newer than those of this process.
    pub(crate) fn recall_reads(&self, document: &StateDocument) {
        let Some(observed) = &document.observed else { return };
        let mut known = self.position_times();
        if observed.reads.last().map(|read| read.at) > known.0.last().map(|read| read.at) {
            known.0.clone_from(&observed.reads);
        }
    }

    /// Records what a read found, and adds the age of its first row to its lag if the source does not know it.
    /// `is_bounded` reads say nothing about the end of the source.
    pub(crate) fn date_rows(&self, lag: Lag, started_at: OffsetDateTime, is_bounded: bool) -> Lag {
        let Some(range) = lag.range else { return lag };
        let mut known = self.position_times();
        if range.first.is_some() || !is_bounded {
            known.note(started_at, range);
        }
        let age = match range.first {
            Some(first) => known.age(first, started_at),
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

    /// Reads that found no row, each with its second and the newest position.
    fn idle(reads: &[(i64, i64)]) -> PositionTimes {
        let mut times = PositionTimes::default();
        for (second, newest) in reads {
            times.note(at(*second), range(None, *newest));
        }
        times
    }

    fn range(first: Option<i64>, newest: i64) -> PositionRange {
        PositionRange { first, readable: newest, newest }
    }

    fn age(times: &PositionTimes, position: i64, second: i64) -> Option<u64> {
        times.age(position, at(second)).map(|age| age.as_secs())
    }

    #[test]
    fn a_row_is_as_old_as_the_last_read_that_did_not_know_it() {
        let mut times = idle(&[(0, 10), (5, 10), (10, 20)]);
        times.note(at(15), range(Some(21), 25));
        assert_eq!(age(&times, 21, 15), Some(5));
        // It fails for an hour, while other rows arrive.
        for second in (20..3_600).step_by(5) {
            times.note(at(second), range(Some(21), second * 100));
        }
        assert_eq!(age(&times, 21, 3_600), Some(3_590));
        // Delivered: the next row is as old as the first read after its predecessor shows, or a little older.
        times.note(at(3_600), range(Some(180_000), 360_000));
        let found = age(&times, 180_000, 3_600).unwrap();
        assert!((1_800..3_600).contains(&found), "{found}");
    }

    #[test]
    fn rows_from_before_the_first_read_are_at_least_as_old_as_that() {
        let mut times = PositionTimes::default();
        assert_eq!(age(&times, 1, 0), None);
        times.note(at(0), range(Some(1), 1_000));
        assert_eq!(age(&times, 1, 0), Some(0));
        times.note(at(60), range(Some(500), 1_000));
        assert_eq!(age(&times, 500, 60), Some(60));
    }

    #[test]
    fn a_row_that_an_open_transaction_holds_back_keeps_its_age() {
        let mut times = idle(&[(0, 10)]);
        // Position 11 is written and not committed; 12 is.
        for second in [5, 10, 15] {
            times.note(at(second), PositionRange { first: None, readable: 10, newest: 12 });
        }
        times.note(at(20), range(Some(11), 12));
        assert_eq!(age(&times, 11, 20), Some(20));
    }

    #[test]
    fn idle_reads_leave_one_and_a_restored_database_leaves_none() {
        let mut times = idle(&[(0, 10), (5, 11), (10, 11)]);
        assert_eq!(times.0, [PositionTime { at: at(10), newest: 11 }]);
        times.note(at(15), range(None, 3));
        assert_eq!(times.0, [PositionTime { at: at(15), newest: 3 }]);
    }

    #[test]
    fn the_number_of_reads_is_limited_and_what_is_left_is_spread_over_the_time() {
        let mut times = idle(&[(0, 0)]);
        for second in 1..=100_000 {
            times.note(at(second), range(Some(1), second));
        }
        assert_eq!(times.0.len(), READS_MAX);
        for position in [1, 10_000, 50_000, 90_000, 99_000] {
            let (found, exact) = (age(&times, position, 100_000).unwrap(), 100_001 - position);
            let exact = u64::try_from(exact).unwrap();
            assert!(found >= exact && found <= exact * 4, "{position}: {found} for {exact}");
        }
    }
}
