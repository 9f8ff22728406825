//! How many rows wait after the checkpoint.
//!
//! # When they are counted
//!
//! A tick that reached the end of its source knows without a query that no row waits. Rows are counted only if a
//! tick ended with rows waiting: after the lease is released, up to a limit, and within a time limit of its own.
//! Counts that take long are made rarely. Idle ticks, and all ticks that keep up, send no query for it.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, timeout};
use tracing::debug;

use crate::cursor::Cursor;
use crate::document::{Snapshot, StateDocument};
use crate::error::chain;
use crate::metrics::DocumentStats;
use crate::poller::memory::Memory;
use crate::poller::{Poller, Skipped, TickError, TickOutcome};
use crate::source::FetchWindow;

/// Time limit of one count; the tick waits for it.
const COUNT_TIME_MAX: Duration = Duration::from_secs(5);

/// Whether rows wait, judged by the outcome of a tick.
fn has_backlog(result: &Result<TickOutcome, TickError>) -> Option<bool> {
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
    /// Counts the rows that wait after a tick, up to `rows_max`; 0 turns counting off.
    #[must_use]
    pub fn with_backlog_count_max(self, rows_max: usize) -> Self {
        Self { rows_counted_max: rows_max, ..self }
    }

    /// Reports the backlog at the end of a tick. Returns how many rows wait, if that was found out.
    pub(super) async fn report_backlog(
        &self,
        memory: &mut Memory,
        result: &Result<TickOutcome, TickError>,
        started_at: Instant,
    ) -> Option<u64> {
        let is_held = matches!(result, Ok(TickOutcome::Skipped(Skipped::Held { .. })));
        if is_held {
            self.metrics.lease_asked(&self.name, "busy");
        }
        self.note_skipped(if is_held { memory.snapshot().map(Snapshot::now) } else { None });
        self.note_document(memory.snapshot(), result);
        if let Some(snapshot) = memory.snapshot() {
            let checkpoint = &snapshot.document.checkpoint;
            let age = checkpoint.updated_at.map(|at| snapshot.now() - at);
            let parked = &snapshot.document.parked;
            let standing = DocumentStats {
                bytes: u64::try_from(snapshot.bytes()).unwrap_or(u64::MAX),
                position: checkpoint.cursor.as_ref().and_then(Cursor::number),
                checkpoint_age: age.map(|age| Duration::try_from(age).unwrap_or_default()),
                generation: snapshot.document.generation.0,
                breaker_is_open: self
                    .policy
                    .breaker_is_open(snapshot.document.quarantined_in_a_row),
                parked: (!parked.is_unused()).then(|| (parked.retrying(), parked.quarantined)),
            };
            self.metrics.record_state(&self.name, &standing);
        }
        let has_backlog = has_backlog(result);
        if is_held {
            self.metrics.forget_lag(&self.name);
        } else if has_backlog == Some(false) {
            self.metrics.end_lag(&self.name);
        } else if !matches!(result, Ok(TickOutcome::Skipped(_) | TickOutcome::Committed { .. })) {
            self.metrics.doubt_lag(&self.name);
        }
        if self.rows_counted_max == 0 {
            return None;
        }
        let rows =
            if has_backlog? { Box::pin(self.count_backlog(memory, started_at)).await? } else { 0 };
        memory.note_backlog(rows);
        self.metrics.rows_behind(&self.name, rows);
        Some(rows)
    }

    /// Whether the newest lease was granted to this instance.
    pub(crate) fn had_newest_grant(&self, document: &StateDocument) -> bool {
        document.lease.owner_id.as_deref() == Some(self.instance.owner_id())
    }

    /// Returns since when every tick of this process was skipped because another instance held the lease.
    pub(crate) fn skipped_since(&self) -> Option<OffsetDateTime> {
        *self.skipped_since.lock().expect("no holder of this lock panics")
    }

    /// Remembers when the first of the latest ticks was skipped; `None` for one that was not.
    fn note_skipped(&self, at: Option<OffsetDateTime>) {
        let mut since = self.skipped_since.lock().expect("no holder of this lock panics");
        *since = at.map(|at| since.unwrap_or(at));
    }

    async fn count_backlog(&self, memory: &mut Memory, started_at: Instant) -> Option<u64> {
        let in_time = started_at.elapsed() + COUNT_TIME_MAX < self.limits.handler_stop_after;
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
            assert_eq!(has_backlog(&result), expected, "{result:?}");
        }
    }
}
