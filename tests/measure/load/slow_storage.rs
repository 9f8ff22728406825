//! Storage that responds late and fails, by seed.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use highwater::state::{
    ETag, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult,
};
use tokio::time::sleep;

/// Latency if calls fail, in milliseconds; one in two hundred takes ten times as long.
const LATENCY_MS: Range<u64> = 5..40;
/// Per thousand calls: calls that never arrive, writes that are lost on their way, lost responses.
const FAULTS: [u64; 3] = [5, 5, 10];

#[derive(Debug)]
pub(crate) struct SlowStorage {
    inner: Arc<dyn StateStore>,
    latency_ms: Range<u64>,
    is_fair: bool,
    dice: Mutex<u64>,
    is_calm: AtomicBool,
    calls: AtomicU64,
    faults: AtomicU64,
}

/// The fate of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    Unreachable,
    LostRequest,
    LostAnswer,
}

impl SlowStorage {
    pub(super) fn over(inner: Arc<dyn StateStore>, seed: u64) -> Self {
        let dice = Mutex::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let (calls, faults) = (AtomicU64::new(0), AtomicU64::new(0));
        let is_calm = AtomicBool::new(false);
        Self { inner, latency_ms: LATENCY_MS, is_fair: false, dice, is_calm, calls, faults }
    }

    /// Returns storage that answers each call after `latency_ms`, and never fails.
    pub(crate) fn steady(inner: Arc<dyn StateStore>, latency_ms: u64) -> Self {
        Self { latency_ms: latency_ms..latency_ms + 1, is_fair: true, ..Self::over(inner, 0) }
    }

    /// Stops faults and latency.
    pub(super) fn calm(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
    }

    /// Returns how many calls there were, and how many failed.
    pub(super) fn counted(&self) -> (u64, u64) {
        (self.calls.load(Ordering::Relaxed), self.faults.load(Ordering::Relaxed))
    }

    /// Returns a number below `limit`.
    fn roll(&self, limit: u64) -> u64 {
        let mut state = self.dice.lock().unwrap();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % limit
    }

    /// Waits as long as the call takes, and returns its fate.
    async fn fate(&self) -> Fate {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.is_calm.load(Ordering::Relaxed) {
            return Fate::Answered;
        }
        let latency =
            self.latency_ms.start + self.roll(self.latency_ms.end - self.latency_ms.start);
        if self.is_fair {
            sleep(Duration::from_millis(latency)).await;
            return Fate::Answered;
        }
        let slow = if self.roll(200) == 0 { 10 } else { 1 };
        sleep(Duration::from_millis(latency * slow)).await;
        let roll = self.roll(1000);
        let [never, request, answer] = FAULTS;
        let fate = match roll {
            _ if roll < never => Fate::Unreachable,
            _ if roll < never + request => Fate::LostRequest,
            _ if roll < never + request + answer => Fate::LostAnswer,
            _ => return Fate::Answered,
        };
        self.faults.fetch_add(1, Ordering::Relaxed);
        fate
    }
}

fn broken(key: &StateKey, fate: Fate) -> StoreError {
    let (key, reason) = (key.path(), "injected".to_owned());
    if fate == Fate::Unreachable {
        StoreError::Unreachable { key, reason }
    } else {
        StoreError::Unknown { key, reason }
    }
}

#[async_trait]
impl StateStore for SlowStorage {
    fn grain(&self) -> Duration {
        self.inner.grain()
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        match self.fate().await {
            Fate::Answered => self.inner.load(key).await,
            fate @ (Fate::Unreachable | Fate::LostRequest | Fate::LostAnswer) => {
                Err(broken(key, fate))
            }
        }
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        match self.fate().await {
            Fate::Answered => self.inner.store(key, bytes, precondition).await,
            Fate::LostAnswer => {
                // Whether it was rejected is lost, too.
                drop(self.inner.store(key, bytes, precondition).await);
                Err(broken(key, Fate::LostAnswer))
            }
            fate @ (Fate::Unreachable | Fate::LostRequest) => Err(broken(key, fate)),
        }
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        self.inner.list().await
    }

    fn location(&self, key: &StateKey) -> String {
        self.inner.location(key)
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare().await
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        self.inner.list_counted().await
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        self.inner.apps_with(key).await
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        self.inner.of_app(app)
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        self.inner.remove(key, etag).await
    }
}
