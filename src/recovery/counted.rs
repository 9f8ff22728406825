//! A store that counts what it was asked for, so that a run can say what it cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::state::{ETag, Loaded, Precondition, StateKey, StateStore, StoreError, Written};

/// Requests for documents, refused and unanswered ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Reads of one document.
    pub reads: u64,
    /// Writes of one document.
    pub writes: u64,
}

#[derive(Debug)]
pub(super) struct CountedStore {
    below: Arc<dyn StateStore>,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl CountedStore {
    pub(super) fn new(below: Arc<dyn StateStore>) -> Self {
        Self { below, reads: AtomicU64::new(0), writes: AtomicU64::new(0) }
    }

    /// Returns the calls since this was last asked.
    pub(super) fn take(&self) -> Calls {
        let taken = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        Calls { reads: taken(&self.reads), writes: taken(&self.writes) }
    }
}

#[async_trait]
impl StateStore for CountedStore {
    fn grain(&self) -> Duration {
        self.below.grain()
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.below.prepare().await
    }

    async fn load(&self, key: &StateKey) -> Result<Loaded, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.below.load(key).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<Written, StoreError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.below.store(key, bytes, precondition).await
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        self.below.list().await
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.below.remove(key, etag).await
    }
}
