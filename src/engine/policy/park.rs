//! How long a parked key is retried, and how often.

use std::time::Duration;

use time::OffsetDateTime;

use crate::backoff::{Backoff, seed_of};
use crate::cursor::KeyId;

/// Limits of the automatic retries of a parked key. After the first of them the key is quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkPolicy {
    /// Most retries; 0 quarantines a key at once.
    pub retries_max: u32,
    /// How long after its first failure a key is retried.
    pub age_max: Duration,
    /// Delays between the retries.
    pub backoff: Backoff,
}

impl Default for ParkPolicy {
    fn default() -> Self {
        let (first, max) = (Duration::from_secs(1), Duration::from_secs(3_600));
        let age_max = Duration::from_secs(7 * 86_400);
        Self { retries_max: 200, age_max, backoff: Backoff { first, max } }
    }
}

impl ParkPolicy {
    /// A key is quarantined at once.
    pub const NO_RETRIES: Self = Self {
        retries_max: 0,
        age_max: Duration::ZERO,
        backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(3_600) },
    };

    /// Whether a key is retried at all.
    pub fn retries(&self) -> bool {
        self.retries_max > 0
    }

    /// Returns when a key is retried that failed first at that time, after so many retries; `None` if it is not.
    pub fn next_retry_at(
        &self,
        key: &KeyId,
        retries: u32,
        first_failed_at: OffsetDateTime,
        now: OffsetDateTime,
    ) -> Option<OffsetDateTime> {
        let is_too_old = now - first_failed_at >= self.age_max;
        if retries >= self.retries_max || is_too_old {
            return None;
        }
        Some(now + self.backoff.delay(retries.saturating_add(1), seed_of(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_retried_from_a_second_to_an_hour_apart_until_it_is_too_old_or_was_often_enough() {
        let policy = ParkPolicy::default();
        let key = KeyId::parse(&"a".repeat(32)).unwrap();
        let now = OffsetDateTime::UNIX_EPOCH;
        let after = |retries| policy.next_retry_at(&key, retries, now, now).map(|at| at - now);
        assert!(after(0).unwrap() <= Duration::from_secs(1));
        let longest = after(199).unwrap();
        assert!(longest <= Duration::from_secs(3_600) && longest >= Duration::from_secs(1_800));
        assert_eq!(after(200), None);
        assert_eq!(policy.next_retry_at(&key, 3, now - policy.age_max, now), None);
        let at_once = ParkPolicy { retries_max: 0, ..policy };
        assert_eq!(at_once.next_retry_at(&key, 0, now, now), None);
    }
}
