//! How long the steps of a tick took, how far behind it leaves the poller, and what its last write notes of it.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::super::memory::observed;
use super::{Batch, Lag, Lease, Observation, ms};
use crate::state::{EndOfTick, Observed, RecentTick};

/// What a tick that goes on has noted of itself.
pub(super) struct Noted {
    rows: u64,
    batches: u64,
    since: Instant,
}

impl Noted {
    pub(super) fn now() -> Self {
        Self { rows: 0, batches: 0, since: Instant::now() }
    }
}

impl Observation<'_> {
    /// Begins to note what comes now as an entry of its own.
    pub(in crate::poller) fn begin_round(&mut self) {
        self.noted = Noted { rows: self.rows, batches: self.batches, ..Noted::now() };
        self.longest_ms.clear();
        if self.all_read {
            // It was true of rows that are delivered since.
            self.rows_counted = None;
        }
        self.all_read = false;
    }

    pub(super) fn took(&mut self, step: &'static str, duration: Duration) {
        self.timings.push((step, duration));
        let longest = self.longest_ms.entry(step.to_owned()).or_default();
        *longest = (*longest).max(ms(duration));
    }

    /// Notes how many rows waited when they were counted last.
    pub(in crate::poller) fn recall_rows_behind(&mut self, rows: Option<u64>) {
        self.rows_counted = rows;
    }

    /// Notes how many rows wait, where that is known.
    pub(in crate::poller) fn note_rows_behind(&mut self, rows: Option<u64>) {
        self.rows_behind = rows;
    }

    /// Returns how far behind the last read found the poller.
    pub(in crate::poller) fn lag(&self) -> Lag {
        self.lag
    }

    /// Returns what the tick's last write notes of it; `batch` is the one that write commits.
    pub(in crate::poller) fn end_of_tick(
        &mut self,
        outcome: &str,
        batch: Option<&Batch>,
        lease: &Lease<'_>,
    ) -> EndOfTick {
        self.service_time = Some(lease.now());
        if let Some(delay) = lease.heartbeat_delay() {
            self.longest_ms.insert("heartbeat".to_owned(), ms(delay));
        }
        if let Some(lag) = batch.and_then(|batch| batch.lag).or(self.lag.time) {
            self.longest_ms.insert("lag".to_owned(), ms(lag));
        }
        let recent = RecentTick {
            at: lease.now(),
            outcome: outcome.to_owned(),
            rows: self.rows - self.noted.rows + batch.map_or(0, Batch::rows_taken),
            batches: self.batches - self.noted.batches + u64::from(batch.is_some()),
            duration_ms: ms(self.noted.since.elapsed()),
            idle_before: self.idle_before,
            longest_ms: self.longest_ms.clone(),
            extra: serde_json::Map::new(),
        };
        let timings = std::mem::take(&mut self.timings);
        EndOfTick { recent, timings, observed: self.observed(lease.now()) }
    }

    /// Returns how far behind the tick leaves the poller: as its last read found it, or not at all where that came to the
    /// end.
    fn observed(&self, at: OffsetDateTime) -> Observed {
        if self.all_read {
            return observed(at, self.lag.at_the_end(), Some(0), 0);
        }
        // None was true of the tick before only.
        let rows = self.rows_counted.filter(|rows| *rows > 0);
        observed(at, self.lag, rows, 0)
    }
}
