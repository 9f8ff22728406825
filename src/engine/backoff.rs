//! Delays between attempts: the one formula for retries of the engine and of its adapters.

use std::hash::{BuildHasher as _, DefaultHasher, Hash, Hasher as _, RandomState};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Delays that double from `first` up to `max`, with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Longest delay after the first attempt.
    pub first: Duration,
    /// Longest delay overall.
    pub max: Duration,
}

impl Backoff {
    /// Returns the delay after `attempt`, the first being 1: between half of the doubled delay and all of it.
    ///
    /// `seed` decides where in between. Callers that fail together need different seeds so as not to retry together.
    pub fn delay(self, attempt: u32, seed: u64) -> Duration {
        let doubled = 1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let longest = self.first.saturating_mul(doubled).min(self.max);
        let [high, low, ..] = mixed(seed, attempt).to_be_bytes();
        let share = u32::from(u16::from_be_bytes([high, low]));
        let half = longest / 2;
        half + longest.saturating_sub(half) / u32::from(u16::MAX) * share
    }
}

/// One step of `SplitMix64` (Steele, Lea and Flood, 2014), so that each attempt has different jitter.
fn mixed(seed: u64, attempt: u32) -> u64 {
    let sum = seed.wrapping_add(u64::from(attempt).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let sum = (sum ^ (sum >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let sum = (sum ^ (sum >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    sum ^ (sum >> 31)
}

/// Derives a seed from an identity, such as a poller and a batch: the same in each run.
pub fn seed_of(identity: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    identity.hash(&mut hasher);
    hasher.finish()
}

/// Returns a seed that differs between processes, for retries without an identity of their own.
pub fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Delays between requests to the stores of state and journal.
pub(crate) const STORE: Backoff =
    Backoff { first: Duration::from_millis(100), max: Duration::from_secs(2) };

/// Growing delays that end at a deadline.
pub(crate) struct Pause {
    attempt: u32,
    seed: u64,
    until: Instant,
}

impl Pause {
    pub(crate) fn new(until: Instant, seed: u64) -> Self {
        Self { attempt: 0, seed, until }
    }

    /// Waits, or returns `error` if the deadline has passed.
    pub(crate) async fn or_give_up<E>(&mut self, error: E) -> Result<(), E> {
        let now = Instant::now();
        if now >= self.until {
            return Err(error);
        }
        self.attempt = self.attempt.saturating_add(1);
        // Cut the last delay short, to use the time until the deadline.
        sleep_until(self.until.min(now + STORE.delay(self.attempt, self.seed))).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_delay_is_between_half_and_all_of_the_doubled_delay(
            first in 0_u64..10_000_000,
            max in 0_u64..10_000_000_000,
            attempt in 0_u32..200,
            seed: u64,
        ) {
            let (first, max) = (Duration::from_micros(first), Duration::from_micros(max));
            let delay = Backoff { first, max }.delay(attempt, seed);
            let doublings = i32::try_from(attempt.saturating_sub(1)).unwrap();
            let longest = (first.as_secs_f64() * 2_f64.powi(doublings)).min(max.as_secs_f64());
            prop_assert!(delay <= max);
            prop_assert!(delay.as_secs_f64() <= longest + 1e-6, "{delay:?} > {longest} s");
            prop_assert!(delay.as_secs_f64() >= longest / 2.0 - 1e-6, "{delay:?} < {longest} / 2 s");
        }

        #[test]
        fn the_same_seed_gives_the_same_delay(attempt in 0_u32..200, seed: u64) {
            prop_assert_eq!(STORE.delay(attempt, seed), STORE.delay(attempt, seed));
        }
    }

    #[test]
    fn delays_reach_from_half_to_all_over_the_seeds() {
        let delays = (0..10_000).map(|seed| STORE.delay(1, seed).as_micros());
        let delays: Vec<_> = delays.collect();
        let (least, most) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
        assert!(*least < 51_000 && *most > 99_000, "{least} to {most} µs");
    }

    #[test]
    fn two_pollers_that_fail_together_do_not_retry_together() {
        let delays =
            |poller: &str| [1, 2, 3, 9].map(|attempt| STORE.delay(attempt, seed_of(poller)));
        let (orders, stock) = (delays("orders"), delays("stock"));
        assert!(orders.iter().zip(stock).all(|(one, other)| *one != other), "{orders:?} {stock:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_delay_ends_at_the_deadline() {
        let until = Instant::now() + Duration::from_secs(10);
        let mut pause = Pause::new(until, 7);
        let mut attempts = 0;
        while pause.or_give_up(()).await.is_ok() {
            attempts += 1;
        }
        assert_eq!(Instant::now(), until);
        assert!((8..=16).contains(&attempts), "{attempts} attempts");
    }
}
