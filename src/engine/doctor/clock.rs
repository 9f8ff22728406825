//! Clocks against each other. Pure.
//!
//! No decision of a poller rests on this machine's clock; a difference still matters to an operator who
//! compares logs, to signatures that storage checks, and to writers that stamp rows themselves.

use std::time::Duration;

use time::OffsetDateTime;

use super::Finding;

/// Above this, logs of different places cannot be compared any more.
const DIFFERENCE_MAX: Duration = Duration::from_secs(60);

/// The time of another clock, and this machine's times around the question.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// The other clock's time.
    pub reported: OffsetDateTime,
    /// Before it was asked.
    pub asked_at: OffsetDateTime,
    /// When the answer was there.
    pub answered_at: OffsetDateTime,
    /// How coarse it is.
    pub grain: Duration,
}

impl ClockReading {
    /// Returns by how much at least the clocks differ: what the round trip and the grain may hide is
    /// left out.
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

/// Judges the clock of `whose` against this machine's; `settle` is given where rows may be stamped by
/// clocks like this one.
pub fn judge(
    check: &'static str,
    whose: &str,
    reading: ClockReading,
    settle: Option<Duration>,
) -> Finding {
    let difference = reading.difference();
    let round_trip = (reading.answered_at - reading.asked_at).unsigned_abs();
    let found = format!(
        "the clock of {whose} and this machine's differ by at least {} ms (the answer took {} ms)",
        difference.as_millis(),
        round_trip.as_millis()
    );
    let direction = if reading.reported < reading.asked_at { "behind" } else { "ahead" };
    match settle {
        Some(settle) if difference >= settle && difference > Duration::ZERO => Finding::warning(
            check,
            format!("{found}; {whose} is {direction}, by no less than the settle window"),
            "set both clocks by NTP; if an application stamps rows with its own clock, let the database \
             stamp them (`SYSUTCDATETIME()`), or raise `SOURCE__SETTLE` above the difference",
        ),
        _ if difference >= DIFFERENCE_MAX => {
            Finding::warning(check, format!("{found}; {whose} is {direction}"), "set both by NTP")
        }
        _ => Finding::ok(check, found),
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::doctor::Level;

    fn judged(told_ms: i64, grain_ms: u64, settle: Option<u64>) -> Finding {
        let asked_at = datetime!(2026-01-01 10:00 UTC);
        let reading = ClockReading {
            reported: asked_at + time::Duration::milliseconds(told_ms),
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
        // Where no clock stamps rows, only what spoils comparing logs is worth a word.
        assert_eq!(judged(-59_000, 0, None).level, Level::Ok);
        assert_eq!(judged(-60_000, 0, None).level, Level::Warning);
    }
}
