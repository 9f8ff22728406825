//! How many rows wait behind the checkpoint, and where that stands.
//!
//! # Why so
//!
//! A tick that came to the end of its source knows that no row waits, for nothing. Only where one ended with rows
//! waiting are they counted: after the lease is given up, up to a limit, and in a time of its own; counts that take
//! long come seldom. So idle ticks, and all that keep up, make no request for it.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::memory::Memory;
use super::{Poller, Skipped, TickError, TickOutcome};
use crate::cursor::Cursor;
use crate::error::chain;
use crate::lease::Snapshot;
use crate::metrics::Standing;
use crate::source::FetchWindow;

/// Longest time that a count may take: a tick waits for it.
const COUNT_TIME_MAX: Duration = Duration::from_secs(5);

/// Returns whether rows wait, as far as the end of a tick tells it.
fn rows_wait(result: &Result<TickOutcome, TickError>) -> Option<bool> {
    match result {
        Ok(TickOutcome::Idle) => Some(false),
        Ok(TickOutcome::Committed { more }) => Some(*more),
        Err(TickError::Handler(_) | TickError::OutOfTime | TickError::Aborted) => Some(true),
        Ok(
            TickOutcome::Skipped(_) | TickOutcome::BackingOff { .. } | TickOutcome::Paused { .. },
        )
        | Err(_) => None,
    }
}

impl Poller {
    /// Counts the rows that wait where a tick leaves some, up to `rows_max`; none with 0.
    #[must_use]
    pub fn counting_behind(self, rows_max: usize) -> Self {
        Self { rows_counted_max: rows_max, ..self }
    }

    /// Tells where the poller stands at the end of a tick; returns how many rows wait, where that is known
    /// anew.
    pub(super) async fn tell_standing(
        &self,
        memory: &mut Memory,
        result: &Result<TickOutcome, TickError>,
        began_at: Instant,
    ) -> Option<u64> {
        let is_held = matches!(result, Ok(TickOutcome::Skipped(Skipped::Held { .. })));
        if is_held {
            self.metrics.lease_asked(&self.name, "busy");
        }
        self.note_skipped(if is_held { memory.snapshot().map(Snapshot::now) } else { None });
        if let Some(snapshot) = memory.snapshot() {
            let checkpoint = &snapshot.document.checkpoint;
            let age = checkpoint.updated_at.map(|at| snapshot.now() - at);
            let standing = Standing {
                bytes: u64::try_from(snapshot.bytes()).unwrap_or(u64::MAX),
                position: checkpoint.cursor.as_ref().and_then(Cursor::number),
                checkpoint_age: age.map(|age| Duration::try_from(age).unwrap_or_default()),
            };
            self.metrics.stands(&self.name, &standing);
        }
        if self.rows_counted_max == 0 {
            return None;
        }
        let rows = if rows_wait(result)? {
            Box::pin(self.count_behind(memory, began_at)).await?
        } else {
            0
        };
        memory.note_rows_behind(rows);
        self.metrics.rows_behind(&self.name, rows);
        Some(rows)
    }

    /// Returns since when every tick of this process was skipped because somebody else held the lease.
    pub(crate) fn skipped_since(&self) -> Option<OffsetDateTime> {
        *self.skipped_since.lock().expect("no holder of this lock panics")
    }

    /// Remembers when the first of the latest ticks was skipped; `None` for one that was not.
    fn note_skipped(&self, at: Option<OffsetDateTime>) {
        let mut since = self.skipped_since.lock().expect("no holder of this lock panics");
        *since = at.map(|at| since.unwrap_or(at));
    }

    async fn count_behind(&self, memory: &mut Memory, began_at: Instant) -> Option<u64> {
        let in_time = began_at.elapsed() + COUNT_TIME_MAX < self.limits.handler_stop_after;
        if !in_time || !memory.may_count() {
            return None;
        }
        let asked_at = Instant::now();
        let (after, state) = memory.behind();
        let window = FetchWindow {
            after: after.as_ref(),
            upto: None,
            rows_max: self.rows_counted_max,
            state: &state,
        };
        let counted = timeout(COUNT_TIME_MAX, self.source.count(window)).await;
        memory.note_count(asked_at.elapsed());
        let reason = match counted {
            Ok(Ok(rows)) => return Some(rows),
            Ok(Err(error)) => chain(&error),
            Err(_elapsed) => format!("not counted within {COUNT_TIME_MAX:?}"),
        };
        debug!(
            event = "rows_not_counted",
            poller.name = self.name,
            error = reason,
            "Rows that wait for poller `{}` could not be counted: {reason}",
            self.name
        );
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::HandlerError;
    use crate::source::FetchError;

    #[test]
    fn only_ends_that_know_of_rows_say_so() {
        let refused = || HandlerError::Retryable("HTTP 503".to_owned());
        let fetch = || FetchError::new(crate::error::ErrorKind::Transient, "gone");
        for (result, expected) in [
            (Ok(TickOutcome::Idle), Some(false)),
            (Ok(TickOutcome::Committed { more: false }), Some(false)),
            (Ok(TickOutcome::Committed { more: true }), Some(true)),
            (Ok(TickOutcome::Skipped(Skipped::AlreadyRunning)), None),
            (Err(TickError::Handler(refused())), Some(true)),
            (Err(TickError::OutOfTime), Some(true)),
            (Err(TickError::Fetch(fetch())), None),
        ] {
            assert_eq!(rows_wait(&result), expected, "{result:?}");
        }
    }
}
