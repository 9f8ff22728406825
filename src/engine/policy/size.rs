//! The size of the next batch: one pure rule.

use std::time::Duration;

/// Limits of the batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Slow handlers do not shrink a batch below this number of rows.
    pub rows_min: usize,
    /// Most rows.
    pub rows_max: usize,
    /// Most bytes of encoded events.
    pub bytes_max: usize,
}

/// A batch that a handler has processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandledBatch {
    /// Its rows.
    pub rows: usize,
    /// Bytes of its encoded events.
    pub bytes: usize,
    /// How long the handler took.
    pub took: Duration,
    /// How long the handler was allowed to take.
    pub limit: Duration,
    /// Whether the batch was accepted.
    pub accepted: bool,
}

impl BatchLimits {
    /// Returns the row limit of the next batch, given the current limit `now` and the outcome `last`.
    ///
    /// A handler that took more than half of its time gets as many rows as it can process in that half, but at least
    /// [`Self::rows_min`]. The limit is also at most the rows whose average size fits into nine tenths of the bytes,
    /// because the rest would be read and thrown away; that may be fewer than `rows_min`. A full batch that was
    /// accepted in time raises the limit by a quarter.
    pub fn next_rows(&self, now: usize, last: HandledBatch) -> usize {
        let half = last.limit / 2;
        let wanted = if last.took > half {
            let in_time = proportion(last.rows, half, last.took);
            in_time.max(self.rows_min).min(now)
        } else if last.accepted && last.rows >= now {
            now.saturating_add(now / 4 + 1)
        } else {
            now
        };
        wanted.min(self.rows_that_fit(last)).clamp(1, self.rows_max.max(1))
    }

    fn rows_that_fit(&self, last: HandledBatch) -> usize {
        let average = last.bytes.checked_div(last.rows).unwrap_or(0).max(1);
        self.bytes_max / 10 * 9 / average
    }
}

/// Scales `rows` by `part` divided by `whole`.
fn proportion(rows: usize, part: Duration, whole: Duration) -> usize {
    let rows = u128::try_from(rows).unwrap_or(u128::MAX);
    let done = rows.saturating_mul(part.as_nanos()).checked_div(whole.as_nanos());
    done.and_then(|rows| usize::try_from(rows).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BatchLimits = BatchLimits { rows_min: 100, rows_max: 1_000, bytes_max: 100_000 };
    const LIMIT: Duration = Duration::from_secs(60);

    /// An accepted batch of rows of ten bytes that took `seconds`.
    fn accepted(rows: usize, seconds: u64) -> HandledBatch {
        let took = Duration::from_secs(seconds);
        HandledBatch { rows, bytes: rows * 10, took, limit: LIMIT, accepted: true }
    }

    #[test]
    fn batches_stay_at_the_largest_size_without_a_reason_to_shrink() {
        for (rows, seconds) in [(1_000, 30), (1, 0), (1_000, 0)] {
            assert_eq!(LIMITS.next_rows(1_000, accepted(rows, seconds)), 1_000);
        }
    }

    #[test]
    fn a_slow_handler_gets_as_many_rows_as_it_handles_in_half_of_its_time() {
        for (rows, seconds, next) in [
            (1_000, 31, 967),
            (1_000, 60, 500),
            (1_000, 120, 250),
            // Never below the minimum, even if few rows were slow.
            (1_000, 3_600, 100),
            (3, 59, 100),
        ] {
            assert_eq!(LIMITS.next_rows(1_000, accepted(rows, seconds)), next, "{rows} {seconds}");
        }
        let stopped = HandledBatch { accepted: false, ..accepted(1_000, 60) };
        assert_eq!(LIMITS.next_rows(1_000, stopped), 500);
    }

    #[test]
    fn a_slow_handler_never_increases_the_batch_size() {
        assert_eq!(LIMITS.next_rows(50, accepted(50, 40)), 50);
    }

    #[test]
    fn batches_grow_by_a_quarter_if_they_were_full_and_accepted_in_time() {
        assert_eq!(LIMITS.next_rows(100, accepted(100, 30)), 126);
        assert_eq!(LIMITS.next_rows(1, accepted(1, 0)), 2);
        assert_eq!(LIMITS.next_rows(900, accepted(900, 1)), 1_000, "up to the maximum");
        assert_eq!(LIMITS.next_rows(100, accepted(99, 1)), 100, "larger batches are untested");
        let failed = HandledBatch { accepted: false, ..accepted(100, 1) };
        assert_eq!(LIMITS.next_rows(100, failed), 100, "a failure does not count as fast");
    }

    #[test]
    fn no_more_rows_are_requested_than_fit_even_below_the_minimum() {
        let large = |bytes: usize| HandledBatch { bytes: 10 * bytes, ..accepted(10, 1) };
        assert_eq!(LIMITS.next_rows(1_000, large(1_000)), 90);
        assert_eq!(LIMITS.next_rows(1_000, large(99_000)), 1, "a single row is always tried");
        assert_eq!(LIMITS.next_rows(1, HandledBatch { rows: 1, ..large(1) }), 2);
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        let nothing = HandledBatch { rows: 0, bytes: 0, limit: Duration::ZERO, ..accepted(0, 0) };
        assert_eq!(LIMITS.next_rows(1_000, nothing), 1_000);
        let endless = HandledBatch {
            rows: usize::MAX,
            bytes: usize::MAX,
            took: Duration::MAX,
            limit: Duration::MAX,
            accepted: true,
        };
        assert_eq!(LIMITS.next_rows(usize::MAX, endless), 1_000);
    }
}
