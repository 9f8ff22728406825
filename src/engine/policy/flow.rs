//! How batches follow each other.

use std::time::Duration;

/// Fewest rows that a slow handler makes of a batch, where nothing else is asked for.
pub const BATCH_ROWS_MIN: usize = 100;

/// Fewest crashes at which a batch may be suspected where commits are overlapped: the first may have been the
/// doing of the batch behind it, which was in hand too.
pub const OVERLAP_CRASHES_MIN: u32 = 2;

/// How batches follow each other within a tick, and how large they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Whether the next batch is read while the handler has the one before it. Costs the memory of one
    /// batch more.
    pub prefetch: bool,
    /// Whether the next handler is called before the commit of the batch before it is confirmed. Two batches may
    /// come again after a crash then, instead of one.
    pub overlap_commit: bool,
    /// Rows below which a slow handler makes no batch smaller; not above the most rows of a batch.
    pub batch_rows_min: usize,
    /// Whether a tick that has run out of rows looks for new ones; `None` where it ends.
    pub follow: Option<Follow>,
}

impl Default for Flow {
    fn default() -> Self {
        Self { prefetch: true, overlap_commit: false, batch_rows_min: BATCH_ROWS_MIN, follow: None }
    }
}

/// How a tick that has run out of rows looks for new ones.
///
/// It holds no lease meanwhile: each look costs the one round trip of an idle tick, and what it finds the
/// storage calls of a tick that finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follow {
    /// No poll starts later than this after the start of the tick.
    pub time: Duration,
    /// Pause between two looks.
    pub interval: Duration,
}

impl Follow {
    /// Returns how long to wait for the next look, so long after the tick began; `None` where it would be
    /// too late for it, or for a batch: the tick begins none after `tick_time_max`.
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
