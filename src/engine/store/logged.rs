//! A store that logs each of its calls.
//!
//! Reads and writes of documents are also spans, if those are exported.
//!
//! One line per call, written with the answer, at level DEBUG: it costs nothing unless the filter enables
//! `highwater::state=debug`. The lines are per call because a process that is killed cannot log a total per
//! tick. `demo` counts its storage calls by these lines.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, debug};

use super::{ETag, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult};
use crate::trace::span;

/// Target of the lines, as log filters name it.
const TARGET: &str = "highwater::state";

/// Forwards every call, and logs it.
#[derive(Debug)]
pub struct LoggedStore(Arc<dyn StateStore>);

impl LoggedStore {
    /// Log event of a read.
    pub const READ: &str = "state_read";
    /// Log event of a write, including rejected ones.
    pub const WRITE: &str = "state_written";

    /// Logs the calls of `store`.
    pub fn new(store: Arc<dyn StateStore>) -> Self {
        Self(store)
    }
}

#[async_trait]
impl StateStore for LoggedStore {
    fn grain(&self) -> Duration {
        self.0.grain()
    }

    fn location(&self, key: &StateKey) -> String {
        self.0.location(key)
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.0.prepare().await
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        let began_at = Instant::now();
        let span = span!(
            "state read",
            otel.kind = "client",
            highwater.state.key = %key,
            highwater.state.answer = Empty,
            error.type = Empty,
        );
        let result = self.0.load(key).instrument(span.clone()).await;
        note(&span, &result);
        let (answer, duration_ms) = (answer(&result), ms(began_at.elapsed()));
        debug!(target: TARGET, event = Self::READ, %key, answer, duration_ms, "Read `{key}`: {answer}");
        result
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        let began_at = Instant::now();
        let span = span!(
            "state write",
            otel.kind = "client",
            highwater.state.key = %key,
            highwater.state.answer = Empty,
            error.type = Empty,
        );
        let result = self.0.store(key, bytes, precondition).instrument(span.clone()).await;
        note(&span, &result);
        let (answer, duration_ms) = (answer(&result), ms(began_at.elapsed()));
        debug!(target: TARGET, event = Self::WRITE, %key, answer, duration_ms, "Wrote `{key}`: {answer}");
        result
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        Ok(self.list_counted().await?.0)
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        let began_at = Instant::now();
        let span = span!(
            "state list",
            otel.kind = "client",
            highwater.state.answer = Empty,
            error.type = Empty,
        );
        let result = self.0.list_counted().instrument(span.clone()).await;
        note(&span, &result);
        let (answer, duration_ms) = (answer(&result), ms(began_at.elapsed()));
        debug!(target: TARGET, event = "state_listed", answer, duration_ms, "Listed the keys: {answer}");
        result
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        let began_at = Instant::now();
        let result = self.0.apps_with(key).await;
        let (answer, duration_ms) = (answer(&result), ms(began_at.elapsed()));
        debug!(
            target: TARGET,
            event = "state_listed",
            answer, duration_ms, "Listed the applications that have `{key}`: {answer}"
        );
        result
    }

    fn making_place(&self) -> Option<Arc<dyn StateStore>> {
        Some(Arc::new(Self::new(self.0.making_place()?)))
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        Some(Arc::new(Self::new(self.0.of_app(app)?)))
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        let began_at = Instant::now();
        let span = span!(
            "state remove",
            otel.kind = "client",
            highwater.state.key = %key,
            highwater.state.answer = Empty,
            error.type = Empty,
        );
        let result = self.0.remove(key, etag).instrument(span.clone()).await;
        note(&span, &result);
        let (answer, duration_ms) = (answer(&result), ms(began_at.elapsed()));
        debug!(target: TARGET, event = "state_removed", %key, answer, duration_ms, "Removed `{key}`: {answer}");
        result
    }
}

fn answer<T>(result: &Result<T, StoreError>) -> &'static str {
    match result {
        Ok(_) => "done",
        Err(StoreError::Conflict { .. }) => "conflict",
        Err(StoreError::Unreachable { .. }) => "unreachable",
        Err(StoreError::Unknown { .. }) => "unknown",
        Err(StoreError::Refused { .. }) => "refused",
    }
}

/// Records the result of a call on its span. A conflict is an answer, not a failure.
fn note<T>(span: &Span, result: &Result<T, StoreError>) {
    let answer = answer(result);
    span.record("highwater.state.answer", answer);
    if result.is_err() && answer != "conflict" {
        span.record("error.type", answer);
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, conformance};

    #[tokio::test]
    async fn conforms_like_the_wrapped_store() {
        conformance::run(&|| async { LoggedStore::new(Arc::new(MemoryStore::default())) }).await;
    }
}
