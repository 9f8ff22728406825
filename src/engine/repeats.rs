//! Throttling of repeated log lines: a line is logged once, then at an interval, by default hourly.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How often a line that stays true is logged again, unless another interval is set.
const INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Most subjects to remember: callers may pass arbitrary names.
const SUBJECTS_MAX: usize = 1000;

/// The last text logged for each subject, and when; for the life of the process.
#[derive(Debug)]
pub struct LogThrottle {
    logged: Mutex<BTreeMap<String, (String, Instant)>>,
    interval: Duration,
}

impl Default for LogThrottle {
    fn default() -> Self {
        Self::each(INTERVAL)
    }
}

impl LogThrottle {
    /// Returns a throttle that logs repeated lines every `interval`.
    pub fn each(interval: Duration) -> Self {
        Self { logged: Mutex::default(), interval }
    }

    /// Whether to log `text` for `subject`: it has changed, or the interval has passed. If so, it counts as logged.
    pub fn are_due(&self, subject: &str, text: &str) -> bool {
        let mut logged = self.lock();
        if logged
            .get(subject)
            .is_some_and(|(last, at)| last == text && at.elapsed() < self.interval)
        {
            return false;
        }
        if logged.len() >= SUBJECTS_MAX {
            logged.clear();
        }
        logged.insert(subject.to_owned(), (text.to_owned(), Instant::now()));
        true
    }

    /// Logs the next text for `subject` immediately.
    pub fn forget(&self, subject: &str) {
        self.lock().remove(subject);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (String, Instant)>> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_line_is_logged_once_for_each_change_and_each_hour() {
        let repeats = LogThrottle::default();
        assert!(repeats.are_due("a", "x") && repeats.are_due("b", "x"));
        assert!(!repeats.are_due("a", "x") && repeats.are_due("a", "y"));
        tokio::time::advance(Duration::from_secs(3599)).await;
        assert!(!repeats.are_due("a", "y"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(repeats.are_due("a", "y") && !repeats.are_due("a", "y"));
        repeats.forget("a");
        assert!(repeats.are_due("a", "y"));
        for n in 0..2 * SUBJECTS_MAX {
            repeats.are_due(&n.to_string(), "");
        }
        assert!(repeats.lock().len() <= SUBJECTS_MAX);
    }
}
