//! How long the steps of a tick took, and what its last write notes of it.

use std::time::Duration;

use tokio::time::Instant;

use super::{Batch, Lease, Observation, ms};
use crate::state::{EndOfTick, RecentTick};

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
    }

    pub(super) fn took(&mut self, step: &'static str, duration: Duration) {
        self.timings.push((step, duration));
        let longest = self.longest_ms.entry(step.to_owned()).or_default();
        *longest = (*longest).max(ms(duration));
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
        EndOfTick { recent, timings: std::mem::take(&mut self.timings) }
    }
}
