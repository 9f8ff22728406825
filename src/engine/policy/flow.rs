//! How batches follow each other.

use std::time::Duration;

/// Default for the smallest batch that a slow handler gets, in rows.
pub const BATCH_ROWS_MIN: usize = 100;

/// Fewest crashes at which a batch may be suspected if commits overlap: the first crash may have been caused by the
/// following batch, which was in flight too.
pub const OVERLAP_CRASHES_MIN: u32 = 2;

/// How batches follow each other within a tick, and how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Whether the next batch is read while the handler processes the current one. Costs the memory of one more
    /// batch.
    pub prefetch: bool,
    /// Whether the handler gets the next batch before the commit of the previous one is confirmed. After a crash, two
    /// batches may be redelivered instead of one.
    pub overlap_commit: bool,
    /// Slow handlers do not shrink a batch below this number of rows; at most the largest batch size.
    pub batch_rows_min: usize,
    /// Whether a tick polls for new rows when it has run out; `None` if it ends instead.
    pub follow: Option<Follow>,
}

impl Default for Flow {
    fn default() -> Self {
        Self { prefetch: true, overlap_commit: false, batch_rows_min: BATCH_ROWS_MIN, follow: None }
    }
}

/// How a tick that has run out of rows polls for new ones.
///
/// It holds no lease meanwhile: an empty poll costs the one round trip of an idle tick, and a poll that finds rows
/// costs the storage calls of an ordinary tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follow {
    /// No poll starts later than this after the start of the tick.
    pub time: Duration,
    /// Pause between two polls.
    pub interval: Duration,
}

impl Follow {
    /// Returns how long to wait for the next poll, given the time since the tick started; `None` if that would be too
    /// late for a poll, or for a batch: the tick starts no batch after `tick_time_max`.
    pub fn pause(&self, elapsed: Duration, tick_time_max: Duration) -> Option<Duration> {
        let at = elapsed.saturating_add(self.interval);
        (at < self.time.min(tick_time_max)).then_some(self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_starts_within_the_follow_time_and_the_tick_time() {
        let second = Duration::from_secs(1);
        let follow = Follow { time: 10 * second, interval: second };
        for (elapsed, tick_time_max, pause) in [
            (0, 60, Some(second)),
            (8, 60, Some(second)),
            (9, 60, None),
            (3, 5, Some(second)),
            (4, 5, None),
            (100, 60, None),
        ] {
            let found = follow.pause(elapsed * second, tick_time_max * second);
            assert_eq!(found, pause, "{elapsed} {tick_time_max}");
        }
        assert_eq!(follow.pause(Duration::MAX, Duration::MAX), None);
    }
}
