//! A store that counts its calls and injects scripted faults.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::broken::{Fault, broken};
use super::locked;
use crate::store::{ETag, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult};

/// Kinds of store calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// A read.
    Load,
    /// A write.
    Store,
    /// A listing of the applications that have a key.
    List,
    /// A removal; any fault loses it, and the caller cannot know.
    Remove,
}

/// Counts the calls of a store, and injects scripted faults.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn StateStore>,
    faults: Mutex<VecDeque<(Call, Fault)>>,
    calls: Mutex<Calls>,
}

/// Counts of store calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Reads.
    pub gets: u64,
    /// Successful writes.
    pub puts: u64,
    /// Writes rejected by their precondition.
    pub refused: u64,
}

impl FaultyStore {
    /// Wraps `inner`, without faults.
    pub fn new(inner: Arc<dyn StateStore>) -> Self {
        Self { inner, faults: Mutex::default(), calls: Mutex::default() }
    }

    /// Breaks the next call of a kind that has no fault yet.
    pub fn break_next(&self, call: Call, fault: Fault) -> &Self {
        locked(&self.faults).push_back((call, fault));
        self
    }

    /// Makes each of the next `writes` writes take this long.
    pub fn slow_down(&self, writes: usize, each: Duration) {
        for _ in 0..writes {
            self.break_next(Call::Store, Fault::Slow(each));
        }
    }

    /// Removes all planned faults.
    pub fn clear_faults(&self) {
        locked(&self.faults).clear();
    }

    /// Returns the calls since the last call of this method.
    pub fn take_calls(&self) -> Calls {
        std::mem::take(&mut *locked(&self.calls))
    }

    fn fault(&self, call: Call) -> Option<Fault> {
        let mut faults = locked(&self.faults);
        let index = faults.iter().position(|(kind, _)| *kind == call)?;
        faults.remove(index).map(|(_, fault)| fault)
    }

    fn count(&self, result: &Result<WriteResult, StoreError>) {
        let mut calls = locked(&self.calls);
        match result {
            Ok(_) => calls.puts += 1,
            Err(_) => calls.refused += 1,
        }
    }
}

#[async_trait]
impl StateStore for FaultyStore {
    fn grain(&self) -> Duration {
        self.inner.grain()
    }

    fn location(&self, key: &StateKey) -> String {
        self.inner.location(key)
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        let number = {
            let mut calls = locked(&self.calls);
            calls.gets += 1;
            calls.gets
        };
        match self.fault(Call::Load) {
            None => self.inner.load(key).await,
            Some(Fault::Slow(delay)) => {
                tokio::time::sleep(delay).await;
                self.inner.load(key).await
            }
            Some(fault @ (Fault::Garbled | Fault::EtagMoved | Fault::Date(_))) => {
                Ok(fault.on_loaded(self.inner.load(key).await?, number))
            }
            Some(fault) => Err(broken(key, fault)),
        }
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        match self.fault(Call::Store) {
            None => {
                let written = self.inner.store(key, bytes, precondition).await;
                self.count(&written);
                written
            }
            Some(Fault::Slow(delay)) => {
                tokio::time::sleep(delay).await;
                let written = self.inner.store(key, bytes, precondition).await;
                self.count(&written);
                written
            }
            Some(
                fault @ (Fault::Unreachable | Fault::Refused | Fault::LostRequest | Fault::Garbled),
            ) => Err(broken(key, fault)),
            Some(fault @ (Fault::EtagMoved | Fault::Date(_))) => {
                let written = self.inner.store(key, bytes, precondition).await;
                self.count(&written);
                written.map(|written| fault.on_written(written))
            }
            Some(fault @ Fault::LostAnswer) => {
                let written = self.inner.store(key, bytes, precondition).await;
                self.count(&written);
                Err(broken(key, fault))
            }
            Some(fault @ Fault::Late(delay)) => {
                let (inner, key_later) = (Arc::clone(&self.inner), key.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    // The test decides whether it still succeeds.
                    drop(inner.store(&key_later, bytes, precondition).await);
                });
                Err(broken(key, fault))
            }
        }
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        locked(&self.calls).gets += 1;
        self.inner.list().await
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        locked(&self.calls).gets += 1;
        match self.fault(Call::List) {
            None => self.inner.apps_with(key).await,
            Some(fault) => Err(broken(key, fault)),
        }
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        self.inner.of_app(app)
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare().await
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        self.inner.list_counted().await
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        match self.fault(Call::Remove) {
            None => self.inner.remove(key, etag).await,
            Some(fault) => Err(broken(key, fault)),
        }
    }
}
