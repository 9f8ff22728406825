//! Compares clocks. Pure.
//!
//! No decision of a poller depends on this machine's clock. A difference still matters to an operator who compares
//! logs, for signatures that storage checks, and for writers that stamp rows themselves.

use std::time::Duration;

use time::OffsetDateTime;

use super::Finding;

/// Above this, logs of different machines cannot be compared.
const DIFFERENCE_MAX: Duration = Duration::from_secs(60);

/// The time of another clock, and this machine's times around the request.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// The other clock's time.
    pub reported: OffsetDateTime,
    /// Before the request.
    pub asked_at: OffsetDateTime,
    /// After the answer.
    pub answered_at: OffsetDateTime,
    /// Its granularity.
    pub grain: Duration,
}

impl ClockReading {
    /// Returns a lower bound of the difference: what the round trip and the granularity may hide is subtracted.
    fn difference(&self) -> Duration {
        let earliest = self.asked_at - self.grain;
        let off = if self.reported < earliest {
            earliest - self.reported
        } else if self.reported > self.answered_at {
            self.reported - self.answered_at
        } else {
            time::Duration::ZERO
        };
        off.unsigned_abs()
    }
}

/// Judges the clock of `whose` against this machine's; `settle` is given if rows may be stamped by clocks like this
/// one.
pub fn judge(
    check: &'static str,
    whose: &str,
    reading: ClockReading,
    settle: Option<Duration>,
) -> Finding {
    let difference = reading.difference();
    let round_trip = (reading.answered_at - reading.asked_at).unsigned_abs();
    let found = format!(
        "the clocks of {whose} and this machine differ by at least {} ms (the answer took {} ms)",
        difference.as_millis(),
        round_trip.as_millis()
    );
    let direction = if reading.reported < reading.asked_at { "behind" } else { "ahead" };
    match settle {
        Some(settle) if difference >= settle && difference > Duration::ZERO => Finding::warning(
            check,
            format!("{found}; {whose} is {direction} by at least the settle window"),
            "sync both clocks with NTP; if an application stamps rows with its own clock, let the database \
             stamp them (`SYSUTCDATETIME()`), or raise `SOURCE__SETTLE` above the difference",
        ),
        _ if difference >= DIFFERENCE_MAX => Finding::warning(
            check,
            format!("{found}; {whose} is {direction}"),
            "sync both clocks with NTP",
        ),
        _ => Finding::ok(check, found),
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::doctor::Level;

    fn judged(reported_ms: i64, grain_ms: u64, settle: Option<u64>) -> Finding {
        let asked_at = datetime!(2026-01-01 10:00 UTC);
        let reading = ClockReading {
            reported: asked_at + time::Duration::milliseconds(reported_ms),
            asked_at,
            answered_at: asked_at + Duration::from_millis(40),
            grain: Duration::from_millis(grain_ms),
        };
        judge("clock", "the database", reading, settle.map(Duration::from_secs))
    }

    #[test]
    fn a_difference_within_round_trip_and_grain_is_ignored() {
        for (reported, grain) in [(0, 0), (40, 0), (-1_000, 1_000)] {
            let finding = judged(reported, grain, Some(5));
            assert!(finding.found.contains("at least 0 ms (the answer took 40 ms)"), "{finding:?}");
            assert_eq!(finding.level, Level::Ok);
        }
        assert!(judged(-1_500, 1_000, None).found.contains("at least 500 ms"));
        assert!(judged(1_040, 0, None).found.contains("at least 1000 ms"));
    }

    #[test]
    fn a_difference_that_the_settle_window_does_not_cover_is_a_warning() {
        assert_eq!(judged(-4_999, 0, Some(5)).level, Level::Ok);
        let behind = judged(-5_000, 0, Some(5));
        assert_eq!(behind.level, Level::Warning);
        assert!(behind.found.contains("the database is behind"), "{behind:?}");
        assert!(judged(5_040, 0, Some(5)).found.contains("the database is ahead"));
        assert_eq!(judged(0, 0, Some(0)).level, Level::Ok);
        // If no clock stamps rows, only a difference that makes logs hard to compare matters.
        assert_eq!(judged(-59_000, 0, None).level, Level::Ok);
        assert_eq!(judged(-60_000, 0, None).level, Level::Warning);
    }
}
