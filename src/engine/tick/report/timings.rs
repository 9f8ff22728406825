//! How long the steps of a tick took, the lag it leaves, and what its last write records of it.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::{Batch, Lag, Lease, Report, ms};
use crate::document::{BacklogObservation, EndOfTick, RecentTick};
use crate::poller::memory::observed;

/// Totals of a tick at the start of a round.
pub(super) struct RoundStart {
    rows: u64,
    batches: u64,
    since: Instant,
}

impl RoundStart {
    pub(super) fn now() -> Self {
        Self { rows: 0, batches: 0, since: Instant::now() }
    }
}

impl Report<'_> {
    /// Starts another round, which the state document lists as an entry of its own.
    pub(in crate::tick) fn start_round(&mut self) {
        self.round_start =
            RoundStart { rows: self.rows, batches: self.batches, ..RoundStart::now() };
        self.longest_ms.clear();
        if self.all_read {
            // It was true of rows that have been delivered since.
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
    pub(in crate::tick) fn recall_backlog(&mut self, rows: Option<u64>) {
        self.rows_counted = rows;
    }

    /// Notes how many rows wait, if that is known.
    pub(in crate::tick) fn note_backlog(&mut self, rows: Option<u64>) {
        self.rows_behind = rows;
    }

    /// Returns the lag that the last fetch found.
    pub(in crate::tick) fn lag(&self) -> Lag {
        self.lag
    }

    /// Returns what the tick's last write records of it; `settled` are the rows that this write commits, and how
    /// many of them were accepted.
    pub(in crate::tick) fn end_of_tick(
        &mut self,
        outcome: &str,
        settled: Option<(&Batch, u64)>,
        lease: &Lease<'_>,
    ) -> EndOfTick {
        self.service_time = Some(lease.now());
        if let Some(delay) = lease.heartbeat_delay() {
            self.longest_ms.insert("heartbeat".to_owned(), ms(delay));
        }
        if let Some(lag) = settled.and_then(|(batch, _)| batch.lag).or(self.lag.time) {
            self.longest_ms.insert("lag".to_owned(), ms(lag));
        }
        let recent = RecentTick {
            at: lease.now(),
            outcome: outcome.to_owned(),
            rows: self.rows - self.round_start.rows + settled.map_or(0, |(_, taken)| taken),
            batches: self.batches - self.round_start.batches + u64::from(settled.is_some()),
            duration_ms: ms(self.round_start.since.elapsed()),
            idle_before: self.idle_before,
            longest_ms: self.longest_ms.clone(),
            extra: serde_json::Map::new(),
        };
        let timings = std::mem::take(&mut self.timings);
        EndOfTick { recent, timings, observed: self.observed(lease.now()) }
    }

    /// Returns the lag that the tick leaves: as its last fetch found it, or none if that reached the end.
    fn observed(&self, at: OffsetDateTime) -> BacklogObservation {
        let reads = self.poller.reads();
        if self.all_read {
            return observed(at, self.lag.after_full_read(), Some(0), 0, reads);
        }
        // Zero was true of the previous tick only.
        let rows = self.rows_counted.filter(|rows| *rows > 0);
        // `at` is the time of this write, and rows have aged since they were read.
        let since = self.waits_since.map(|read_at| read_at.elapsed()).unwrap_or_default();
        let lag = Lag { time: self.lag.time.map(|age| age + since), ..self.lag };
        observed(at, lag, rows, 0, reads)
    }
}
