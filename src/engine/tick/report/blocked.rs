//! What blocks a poller: logged in full when it changes, not on every tick.

use time::OffsetDateTime;
use tracing::Level;

use super::Report;
use crate::document::FailureRecord;
use crate::poller::outcome::{rfc3339, whole_second_after};
use crate::poller::{OutcomeRow, Skipped, TickError, TickOutcome};

/// Subject of the last log line of a tick.
const END: &str = "tick";

impl Report<'_> {
    /// Returns cause, time and command of a backoff.
    pub(super) fn backing_off(
        &self,
        until: OffsetDateTime,
        failing: Option<&FailureRecord>,
    ) -> String {
        let (until, resume) = (rfc3339(whole_second_after(until)), self.resume("retries now"));
        let Some(FailureRecord { attempts, since, error }) = failing else {
            return format!("backing off until {until}{resume}");
        };
        let since = since.map(OffsetDateTime::truncate_to_second);
        let since = since.map_or(String::new(), |at| format!(" since {}", rfc3339(at)));
        let attempts = match attempts {
            0 | 1 => String::new(),
            attempts => format!(", {attempts} attempts"),
        };
        format!("backing off until {until}, failing{since}{attempts}: {error}{resume}")
    }

    /// Returns cause, time and command of a pause.
    pub(super) fn paused(&self, by: &str, reason: &str, since: OffsetDateTime) -> String {
        let (since, resume) = (rfc3339(since.truncate_to_second()), self.resume("lets it run"));
        format!("paused by {by} since {since}: {reason}{resume}")
    }

    /// Returns the level of the last log line. What blocks a poller stays the same for many ticks, so it is logged
    /// when it changes and every hour.
    pub(super) fn level(
        &self,
        result: &Result<TickOutcome, TickError>,
        row: OutcomeRow,
        what: &str,
    ) -> Level {
        let log_throttle = &self.poller.log_throttle;
        match result {
            Ok(TickOutcome::BackingOff { .. } | TickOutcome::Paused { .. }) => {
                if log_throttle.are_due(END, what) { row.level } else { Level::DEBUG }
            }
            // The tick that is running will log its own outcome.
            Ok(TickOutcome::Skipped(Skipped::AlreadyRunning)) => row.level,
            Ok(TickOutcome::Committed { .. } | TickOutcome::Idle | TickOutcome::Skipped(_))
            | Err(_) => {
                log_throttle.forget(END);
                row.level
            }
        }
    }
}
