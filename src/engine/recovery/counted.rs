//! A store that counts its calls, so that a run can report its cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::store::{ETag, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult};

/// Requests to the store, including rejected and unanswered ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// List requests: one for each page.
    pub listings: u64,
    /// Reads of one document.
    pub reads: u64,
    /// Writes of one document.
    pub writes: u64,
}

#[derive(Debug)]
pub(super) struct CountedStore {
    below: Arc<dyn StateStore>,
    listings: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl CountedStore {
    pub(super) fn new(below: Arc<dyn StateStore>) -> Self {
        let none = AtomicU64::default;
        Self { below, listings: none(), reads: none(), writes: none() }
    }

    /// Returns the calls since the last call of this method.
    pub(super) fn take(&self) -> Calls {
        let reset = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        Calls {
            listings: reset(&self.listings),
            reads: reset(&self.reads),
            writes: reset(&self.writes),
        }
    }
}

#[async_trait]
impl StateStore for CountedStore {
    fn grain(&self) -> Duration {
        self.below.grain()
    }

    fn location(&self, key: &StateKey) -> String {
        self.below.location(key)
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.below.prepare().await
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.below.load(key).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.below.store(key, bytes, precondition).await
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        Ok(self.list_counted().await?.0)
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        let (keys, requests) = self.below.list_counted().await?;
        self.listings.fetch_add(requests, Ordering::Relaxed);
        Ok((keys, requests))
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        self.listings.fetch_add(1, Ordering::Relaxed);
        self.below.apps_with(key).await
    }

    fn making_place(&self) -> Option<Arc<dyn StateStore>> {
        self.below.making_place()
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        self.below.of_app(app)
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.below.remove(key, etag).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// A store that answers with one name at a time.
    #[derive(Debug, Default)]
    struct Paged(MemoryStore);

    #[async_trait]
    impl StateStore for Paged {
        fn grain(&self) -> Duration {
            self.0.grain()
        }

        async fn prepare(&self) -> Result<(), StoreError> {
            self.0.prepare().await
        }

        async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
            self.0.load(key).await
        }

        async fn store(
            &self,
            key: &StateKey,
            bytes: Vec<u8>,
            precondition: Precondition,
        ) -> Result<WriteResult, StoreError> {
            self.0.store(key, bytes, precondition).await
        }

        async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
            self.0.list().await
        }

        async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
            let keys = self.list().await?;
            let pages = u64::try_from(keys.len()).unwrap_or(u64::MAX);
            Ok((keys, pages))
        }

        fn location(&self, key: &StateKey) -> String {
            self.0.location(key)
        }

        async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
            self.0.apps_with(key).await
        }

        fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
            self.0.of_app(app)
        }

        async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
            self.0.remove(key, etag).await
        }
    }

    #[tokio::test]
    async fn each_page_of_a_listing_is_a_request() {
        let store = CountedStore::new(Arc::new(Paged::default()));
        for name in ["a", "b", "c"] {
            let key = StateKey::Document(name.to_owned());
            store.store(&key, Vec::new(), Precondition::Absent).await.unwrap();
        }
        store.take();
        assert_eq!(store.list().await.unwrap().len(), 3);
        assert_eq!(store.take(), Calls { listings: 3, reads: 0, writes: 0 });
        let one = CountedStore::new(Arc::new(MemoryStore::default()));
        one.list().await.unwrap();
        assert_eq!(one.take().listings, 1);
    }
}
