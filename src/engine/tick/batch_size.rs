//! How large the next batch may be, judged by the last ones.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::batch::Batch;
use crate::handler::Handler;
use crate::policy::{BatchLimits, HandledBatch};
use crate::poller::Poller;

impl Poller {
    /// Returns the most rows that the next batch may have. It does not limit a range that is read again.
    pub(super) fn batch_rows(&self) -> usize {
        self.batch_rows.load(Ordering::Relaxed)
    }

    /// Adjusts the batch size by how long `handler` took for `batch`.
    pub(super) fn learn_size(
        &self,
        batch: &Batch,
        handler: &dyn Handler,
        took: Duration,
        accepted: bool,
    ) {
        let limits = BatchLimits {
            rows_min: self.flow.batch_rows_min,
            rows_max: self.limits.batch_rows_max,
            bytes_max: self.limits.batch_bytes_max,
        };
        let tick = self.limits.tick_time_max;
        let last = HandledBatch {
            rows: batch.events.len(),
            bytes: batch.events.iter().map(|event| event.json.len()).sum(),
            took,
            limit: handler.time_limit().map_or(tick, |limit| limit.min(tick)),
            accepted,
        };
        let now = self.batch_rows();
        let next = limits.next_rows(now, last);
        self.batch_rows.store(next, Ordering::Relaxed);
        if next < now {
            tracing::debug!(
                event = "batch_rows_lowered",
                poller.name = self.name,
                rows = last.rows,
                bytes = last.bytes,
                duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                next,
                "The next batch of poller `{}` holds {next} rows at most",
                self.name
            );
        }
    }
}
