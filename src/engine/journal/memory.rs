use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;

use super::store::length;
use super::{Appended, JournalStore, Part};
use crate::store::StoreError;

/// Keeps journals in memory, for tests and examples; they end with the process.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    parts: Mutex<BTreeMap<Part, Vec<u8>>>,
    appends: AtomicU64,
}

impl MemoryJournal {
    /// Returns the number of append requests since the last call.
    pub fn take_appends(&self) -> u64 {
        self.appends.swap(0, Ordering::Relaxed)
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<Part, Vec<u8>>> {
        self.parts.lock().expect("no holder of this lock panics")
    }
}

#[async_trait]
impl JournalStore for MemoryJournal {
    async fn append(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError> {
        self.appends.fetch_add(1, Ordering::Relaxed);
        let mut parts = self.parts();
        if parts.get(part).map_or(0, |bytes| length(bytes)) != position {
            return Err(StoreError::Conflict { key: part.to_string() });
        }
        let content = parts.entry(part.clone()).or_default();
        content.extend(bytes);
        Ok(Appended::UpTo(length(content)))
    }

    async fn length(&self, part: &Part) -> Result<u64, StoreError> {
        Ok(self.parts().get(part).map_or(0, |bytes| length(bytes)))
    }

    async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
        let parts = self.parts();
        let bytes = parts.get(part).map(Vec::as_slice).unwrap_or_default();
        let from = usize::try_from(position).unwrap_or(usize::MAX);
        Ok(bytes.get(from..).unwrap_or_default().to_vec())
    }

    async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
        Ok(self.parts().keys().filter(|part| part.poller == poller).cloned().collect())
    }

    async fn remove(&self, part: &Part, wanted: Option<u64>) -> Result<(), StoreError> {
        let mut parts = self.parts();
        if wanted.is_some_and(|wanted| parts.get(part).map(|bytes| length(bytes)) != Some(wanted)) {
            return Err(StoreError::Conflict { key: part.to_string() });
        }
        parts.remove(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_conforms() {
        crate::journal::conformance::run(&|| async { MemoryJournal::default() }).await;
    }
}
