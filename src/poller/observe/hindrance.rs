//! What keeps a poller from running: said in full, and not at each tick.

use time::OffsetDateTime;
use tracing::Level;

use super::super::outcome::rfc3339;
use super::super::{OutcomeRow, Skipped, TickError, TickOutcome};
use super::Observation;
use crate::state::Failing;

/// Subject of the line with which a tick ends.
const END: &str = "tick";

impl Observation<'_> {
    /// Returns cause, time and command of a backoff.
    pub(super) fn backing_off(&self, until: OffsetDateTime, failing: Option<&Failing>) -> String {
        let (until, resume) = (rfc3339(until), self.resume("retries now"));
        let Some(Failing { attempts, since, error }) = failing else {
            return format!("backing off until {until}{resume}");
        };
        let since = since.map_or(String::new(), |at| format!(" since {}", rfc3339(at)));
        let attempts = match attempts {
            0 | 1 => String::new(),
            attempts => format!(", {attempts} attempts"),
        };
        format!("backing off until {until}, failing{since}{attempts}: {error}{resume}")
    }

    /// Returns cause, time and command of a pause.
    pub(super) fn paused(&self, by: &str, reason: &str, since: OffsetDateTime) -> String {
        let (since, resume) = (rfc3339(since), self.resume("lets it run"));
        format!("paused by {by} since {since}: {reason}{resume}")
    }

    /// Returns the level of the line with which the tick ends: what keeps a poller from running stays the same for
    /// many ticks, and is told when it changes and each hour.
    pub(super) fn level(
        &self,
        result: &Result<TickOutcome, TickError>,
        row: OutcomeRow,
        what: &str,
    ) -> Level {
        let told = &self.poller.told;
        match result {
            Ok(TickOutcome::BackingOff { .. } | TickOutcome::Paused { .. }) => {
                if told.are_due(END, what) { row.level } else { Level::DEBUG }
            }
            // The tick that runs meanwhile will tell.
            Ok(TickOutcome::Skipped(Skipped::AlreadyRunning)) => row.level,
            Ok(TickOutcome::Committed { .. } | TickOutcome::Idle | TickOutcome::Skipped(_))
            | Err(_) => {
                told.forget(END);
                row.level
            }
        }
    }
}
