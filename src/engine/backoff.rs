//! Pauses between tries: they grow, and end at a deadline.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Pause before the first repetition; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Growing pauses that end at a deadline.
pub(crate) struct Pause {
    next: Duration,
    until: Instant,
}

impl Pause {
    pub(crate) fn new(until: Instant) -> Self {
        Self { next: PAUSE_MIN, until }
    }

    /// Pauses, or returns `error` where the deadline comes first.
    pub(crate) async fn or_give_up<E>(&mut self, error: E) -> Result<(), E> {
        let now = Instant::now();
        if now >= self.until {
            return Err(error);
        }
        // The last one is cut, so that no time is given away before the deadline.
        sleep_until(self.until.min(now + self.next)).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        Ok(())
    }
}
