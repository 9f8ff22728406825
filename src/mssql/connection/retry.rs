//! Rules for retrying a failed read. Pure.
//!
//! A failover takes seconds, and a deadlock resolves at once. A tick that waits them out delivers now instead
//! of at the next timer. Only reads are retried, and only after errors that may resolve by themselves. A
//! time-out is not retried, since it has used up its time already.

use std::time::Duration;

use highwater_engine::backoff::{Backoff, random_seed};
use tokio::time::Instant;

use super::{ReadRetry, SqlError};

/// Most attempts per read, including the first.
const TRIES_MAX: u32 = 8;
/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// How much sooner a read is retried after it lost to other work.
const SOONER: u32 = 10;

/// Limits of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryTerms {
    /// No attempt starts later than this after the first one; zero disables retries.
    pub time_max: Duration,
    /// Longest first delay if the database is unavailable; it doubles with each further attempt.
    pub pause_min: Duration,
}

impl RetryTerms {
    /// No retries.
    pub const NEVER: Self = Self { time_max: Duration::ZERO, pause_min: Duration::ZERO };

    /// Returns the limits for a read in a tick of at most `tick_time_max`: an eighth of it, and at most ten
    /// seconds.
    pub fn within(tick_time_max: Duration) -> Self {
        let time_max = (tick_time_max / 8).min(Duration::from_secs(10));
        Self { time_max, pause_min: Duration::from_secs(1) }
    }
}

/// The attempts of one read.
#[derive(Debug)]
pub struct Retries {
    terms: RetryTerms,
    began: Instant,
    tries: u32,
    seed: u64,
}

impl Retries {
    /// Starts counting, with a first attempt that starts now.
    pub fn begin(terms: RetryTerms) -> Self {
        Self { terms, began: Instant::now(), tries: 1, seed: random_seed() }
    }

    /// Returns how long to wait before the next try; `None` to give up.
    pub fn pause_after(&mut self, error: &SqlError) -> Option<Duration> {
        let pause = backoff(self.terms, error.read_retry()?).delay(self.tries, self.seed);
        if self.tries >= TRIES_MAX || self.began.elapsed() + pause >= self.terms.time_max {
            return None;
        }
        self.tries += 1;
        Some(pause)
    }
}

fn backoff(terms: RetryTerms, read_retry: ReadRetry) -> Backoff {
    let first = match read_retry {
        ReadRetry::SameConnection => terms.pause_min / SOONER,
        ReadRetry::NewConnection => terms.pause_min,
    };
    Backoff { first, max: PAUSE_MAX }
}

#[cfg(test)]
mod tests {
    use highwater_engine::error::ErrorKind;

    use super::*;

    fn error(read_retry: Option<ReadRetry>) -> SqlError {
        SqlError::new(ErrorKind::Transient, "x").with_read_retry(read_retry)
    }

    #[test]
    fn delays_start_ten_times_shorter_after_a_deadlock() {
        let second = Duration::from_secs(1);
        let terms = RetryTerms { time_max: Duration::MAX, pause_min: second };
        let of = |first| Backoff { first, max: Duration::from_secs(8) };
        assert_eq!(backoff(terms, ReadRetry::NewConnection), of(second));
        assert_eq!(backoff(terms, ReadRetry::SameConnection), of(second / 10));
    }

    #[test]
    fn two_reads_that_fail_together_do_not_retry_together() {
        let terms = RetryTerms { time_max: Duration::MAX, pause_min: Duration::from_secs(1) };
        let delays = || {
            let mut retries = Retries::begin(terms);
            std::iter::from_fn(|| retries.pause_after(&error(Some(ReadRetry::NewConnection))))
                .collect::<Vec<_>>()
        };
        assert_ne!(delays(), delays());
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_errors_are_not_retried_and_transient_ones_not_forever() {
        let terms = RetryTerms::within(Duration::from_secs(240));
        assert_eq!(terms.time_max, Duration::from_secs(10));
        assert_eq!(RetryTerms::within(Duration::from_secs(16)).time_max, Duration::from_secs(2));
        assert_eq!(Retries::begin(terms).pause_after(&error(None)), None);
        let never =
            Retries::begin(RetryTerms::NEVER).pause_after(&error(Some(ReadRetry::NewConnection)));
        assert_eq!(never, None);
        for (retry, tries) in
            [(ReadRetry::NewConnection, 4..=5), (ReadRetry::SameConnection, 7..=8)]
        {
            let mut retries = Retries::begin(terms);
            let began = Instant::now();
            while let Some(pause) = retries.pause_after(&error(Some(retry))) {
                tokio::time::sleep(pause).await;
            }
            assert!(began.elapsed() <= terms.time_max);
            assert!(tries.contains(&retries.tries), "{retry:?}: {} tries", retries.tries);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tries_are_limited_even_where_they_take_no_time() {
        let terms = RetryTerms { time_max: Duration::MAX, pause_min: Duration::ZERO };
        let mut retries = Retries::begin(terms);
        let error = error(Some(ReadRetry::SameConnection));
        let pauses = std::iter::from_fn(|| retries.pause_after(&error)).take(100).count();
        assert_eq!(pauses, 7);
    }
}
