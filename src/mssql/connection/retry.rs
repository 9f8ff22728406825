//! When a read that failed is tried again: pure rules.
//!
//! A failover takes seconds, and a deadlock is over at once; a tick that waits them out delivers now
//! what else would wait for the next timer. Only reads are tried again, and only what may heal by
//! itself; a time-out is not, since it has used up its time already.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use super::{Again, SqlError};

/// Most tries of one read, the first included.
const TRIES_MAX: u32 = 8;
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// How many times sooner a read is tried again that gave way to the work of others.
const SOONER: u32 = 10;

/// Bounds of trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryTerms {
    /// No try begins later than this after the first one; zero for never.
    pub time_max: Duration,
    /// First pause where the database has to be waited for; it doubles with each further try.
    pub pause_min: Duration,
}

impl RetryTerms {
    /// Nothing is tried again.
    pub const NEVER: Self = Self { time_max: Duration::ZERO, pause_min: Duration::ZERO };

    /// Returns the terms of a read in a tick that may take so long: an eighth of it, and at most ten
    /// seconds.
    pub fn within(tick_time_max: Duration) -> Self {
        let time_max = (tick_time_max / 8).min(Duration::from_secs(10));
        Self { time_max, pause_min: Duration::from_secs(1) }
    }
}

/// The tries of one read.
#[derive(Debug)]
pub struct Retries {
    terms: RetryTerms,
    began: Instant,
    tries: u32,
}

impl Retries {
    /// Begins to count, with a first try that starts now.
    pub fn begin(terms: RetryTerms) -> Self {
        Self { terms, began: Instant::now(), tries: 1 }
    }

    /// Returns how long to wait before the next try; `None` to give up.
    pub fn pause_after(&mut self, error: &SqlError) -> Option<Duration> {
        let pause = jittered(pause(self.terms, self.tries, error.again()?), random());
        if self.tries >= TRIES_MAX || self.began.elapsed() + pause >= self.terms.time_max {
            return None;
        }
        self.tries += 1;
        Some(pause)
    }
}

fn pause(terms: RetryTerms, tries: u32, again: Again) -> Duration {
    let first = match again {
        Again::Soon => terms.pause_min / SOONER,
        Again::Anew => terms.pause_min,
    };
    first.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(PAUSE_MAX)
}

/// Returns a pause between three quarters and five quarters of `pause`, so that many pollers do not
/// come back at once.
fn jittered(pause: Duration, random: u8) -> Duration {
    pause * 3 / 4 + pause * u32::from(random) / 510
}

fn random() -> u8 {
    let [byte, ..] = RandomState::new().build_hasher().finish().to_le_bytes();
    byte
}

#[cfg(test)]
mod tests {
    use highwater_engine::error::ErrorKind;

    use super::*;

    fn error(again: Option<Again>) -> SqlError {
        SqlError::new(ErrorKind::Transient, "x").with_again(again)
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_are_shorter_after_a_deadlock() {
        let terms = RetryTerms { time_max: Duration::MAX, pause_min: Duration::from_secs(1) };
        let millis =
            |again| [1, 2, 3, 4, 5, 40].map(|tries| pause(terms, tries, again).as_millis());
        assert_eq!(millis(Again::Anew), [1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
        assert_eq!(millis(Again::Soon), [100, 200, 400, 800, 1_600, 8_000]);
        let second = Duration::from_secs(1);
        assert_eq!(jittered(second, 0), second * 3 / 4);
        assert_eq!(jittered(second, 255), second * 5 / 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_heal_is_not_tried_again_and_the_rest_not_for_ever() {
        let terms = RetryTerms::within(Duration::from_secs(240));
        assert_eq!(terms.time_max, Duration::from_secs(10));
        assert_eq!(RetryTerms::within(Duration::from_secs(16)).time_max, Duration::from_secs(2));
        assert_eq!(Retries::begin(terms).pause_after(&error(None)), None);
        let never = Retries::begin(RetryTerms::NEVER).pause_after(&error(Some(Again::Anew)));
        assert_eq!(never, None);
        for (again, tries) in [(Again::Anew, 3..=4), (Again::Soon, 7..=8)] {
            let mut retries = Retries::begin(terms);
            let began = Instant::now();
            while let Some(pause) = retries.pause_after(&error(Some(again))) {
                tokio::time::sleep(pause).await;
            }
            assert!(began.elapsed() <= terms.time_max);
            assert!(tries.contains(&retries.tries), "{again:?}: {} tries", retries.tries);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tries_are_limited_even_where_they_take_no_time() {
        let terms = RetryTerms { time_max: Duration::MAX, pause_min: Duration::ZERO };
        let mut retries = Retries::begin(terms);
        let error = error(Some(Again::Soon));
        let pauses = std::iter::from_fn(|| retries.pause_after(&error)).take(100).count();
        assert_eq!(pauses, 7);
    }
}
