use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use time::macros::datetime;

use super::{
    ETag, Precondition, ReadResult, StateKey, StateStore, StoreError, StoredValue, WriteResult,
};
use crate::clock::{Clock, TokioClock};

/// Keeps state in memory, for tests and examples; it ends with the process.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    app: String,
    entries: Arc<Mutex<Entries>>,
}

#[derive(Debug, Default)]
struct Entries {
    writes: u64,
    /// By application and key.
    by_key: BTreeMap<(String, StateKey), StoredValue>,
}

impl Default for MemoryStore {
    /// Returns an empty store whose clock starts at a fixed time and moves with tokio's.
    fn default() -> Self {
        Self::with_clock(Arc::new(TokioClock::starting_at(datetime!(2026-01-01 0:00 UTC))))
    }
}

impl MemoryStore {
    /// Returns an empty store with `clock`.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { clock, app: "app".to_owned(), entries: Arc::default() }
    }

    /// Returns the same storage as seen by another application.
    #[must_use]
    pub fn under_app(&self, app: &str) -> Self {
        let (clock, entries) = (Arc::clone(&self.clock), Arc::clone(&self.entries));
        Self { clock, app: app.to_owned(), entries }
    }

    /// Deletes what is stored under `key`, like a disaster would.
    pub fn lose(&self, key: &StateKey) {
        self.entries.lock().expect("no holder of this lock panics").by_key.remove(&self.at(key));
    }

    fn at(&self, key: &StateKey) -> (String, StateKey) {
        (self.app.clone(), key.clone())
    }
}

#[async_trait]
impl StateStore for MemoryStore {
    fn grain(&self) -> Duration {
        Duration::ZERO
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        let entries = self.entries.lock().expect("no holder of this lock panics");
        Ok(ReadResult {
            stored: entries.by_key.get(&self.at(key)).cloned(),
            date: self.clock.now(),
        })
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        let mut entries = self.entries.lock().expect("no holder of this lock panics");
        let holds = match (&precondition, entries.by_key.get(&self.at(key))) {
            (Precondition::Absent, None) => true,
            (Precondition::Matches(etag), Some(stored)) => *etag == stored.etag,
            (Precondition::Absent, Some(_)) | (Precondition::Matches(_), None) => false,
        };
        if !holds {
            return Err(StoreError::Conflict { key: key.path() });
        }
        entries.writes += 1;
        let etag = ETag(entries.writes.to_string());
        let date = self.clock.now();
        let stored = StoredValue { bytes, etag: etag.clone(), last_modified: date };
        entries.by_key.insert(self.at(key), stored);
        Ok(WriteResult { etag, date })
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        let entries = self.entries.lock().expect("no holder of this lock panics");
        let own = entries.by_key.keys().filter(|(app, _)| *app == self.app);
        let mut keys: Vec<_> = own.map(|(_, key)| key.clone()).collect();
        keys.sort();
        Ok(keys)
    }

    fn location(&self, key: &StateKey) -> String {
        format!("{}/{key}", self.app)
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        let entries = self.entries.lock().expect("no holder of this lock panics");
        let apps = entries.by_key.keys().filter(|(app, found)| *app != self.app && found == key);
        Ok(Some(apps.map(|(app, _)| app.clone()).collect()))
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        Some(Arc::new(self.under_app(app)))
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        Ok((self.list().await?, 1))
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        let mut entries = self.entries.lock().expect("no holder of this lock panics");
        if entries.by_key.get(&self.at(key)).is_none_or(|stored| stored.etag != *etag) {
            return Err(StoreError::Conflict { key: key.path() });
        }
        entries.by_key.remove(&self.at(key));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn conforms() {
        crate::store::conformance::run(&|| async { MemoryStore::default() }).await;
    }
}
