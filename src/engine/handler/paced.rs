//! A handler with a rate limit, which also counts the accepted rows.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use super::{Delivery, Handler, HandlerError, Progress, Step};

/// How often a handler reports progress while it waits, so that it does not count as stalled.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A rate limit, shared by all handlers that deliver the rows.
#[derive(Debug)]
pub struct RateLimit {
    rows_per_second: Option<NonZeroU32>,
    /// When the rows admitted so far are through.
    free_at: Mutex<Instant>,
    taken: AtomicU64,
}

impl RateLimit {
    /// Returns a limit in rows per second; `None` for no limit.
    pub fn new(rows_per_second: Option<NonZeroU32>) -> Self {
        Self { rows_per_second, free_at: Mutex::new(Instant::now()), taken: AtomicU64::new(0) }
    }

    /// Returns how many rows were accepted so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns how long `rows` have to wait from now; later callers wait for them too.
    fn wait_for(&self, rows: usize) -> Duration {
        let Some(rate) = self.rows_per_second else { return Duration::ZERO };
        let now = Instant::now();
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*free_at).max(now);
        *free_at = begin + Duration::from_secs(rows.into()) / rate.get();
        begin - now
    }

    async fn wait(&self, rows: usize, progress: &Progress) {
        let mut left = self.wait_for(rows);
        while !left.is_zero() {
            let step = left.min(REPORT_INTERVAL);
            sleep(step).await;
            progress.report(1);
            left -= step;
        }
    }
}

/// A handler with a rate limit.
#[derive(Debug)]
pub struct RateLimited {
    handler: Arc<dyn Handler>,
    pace: Arc<RateLimit>,
    /// Whether rows wait here: only once for all steps of a chain.
    waits: bool,
    /// Whether rows accepted here are accepted permanently.
    counts: bool,
    steps: Vec<Step>,
}

impl RateLimited {
    /// Returns `handler` with this rate limit. In a chain, rows wait before the first step and are counted after the
    /// last one.
    pub fn new(handler: Arc<dyn Handler>, pace: Arc<RateLimit>) -> Self {
        let last = handler.steps().len().saturating_sub(1);
        let step = |(index, step): (usize, &Step)| {
            let (handler, pace) = (Arc::clone(&step.handler), Arc::clone(&pace));
            let (waits, counts) = (index == 0, index == last);
            let handler = Arc::new(Self { handler, pace, waits, counts, steps: Vec::new() });
            Step { name: step.name.clone(), handler }
        };
        let steps = handler.steps().iter().enumerate().map(step).collect();
        Self { handler, pace, waits: true, counts: true, steps }
    }
}

#[async_trait]
impl Handler for RateLimited {
    fn recognises_batches(&self) -> bool {
        self.handler.recognises_batches()
    }

    fn steps(&self) -> &[Step] {
        &self.steps
    }

    fn check(&self) -> Result<(), HandlerError> {
        self.handler.check()
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let rows = delivery.events.len();
        if self.waits {
            self.pace.wait(rows, delivery.progress).await;
        }
        self.handler.handle(delivery).await?;
        if self.counts {
            self.pace.taken.fetch_add(u64::try_from(rows).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        Ok(())
    }

    async fn settle(&self) {
        self.handler.settle().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rows_wait_for_earlier_rows_and_unused_time_does_not_accumulate() {
        let pace = RateLimit::new(NonZeroU32::new(10));
        let milliseconds = |rows| pace.wait_for(rows).as_millis();
        assert_eq!([milliseconds(20), milliseconds(5), milliseconds(1)], [0, 2000, 2500]);
        sleep(Duration::from_secs(60)).await;
        assert_eq!([milliseconds(10), milliseconds(10)], [0, 1000]);
        assert_eq!(RateLimit::new(None).wait_for(1_000_000), Duration::ZERO);
    }
}
