//! Randomness and faults: which calls of the store and the source fail, by seed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use highwater_engine::store::{
    ETag, MemoryStore, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult,
};

/// Most faults of one worker between two writes that got a response. A lease of one second leaves room for
/// three attempts; a race in which the lease is lost for lack of a response is another race.
const FAULTS_MAX: u32 = 2;

/// Longest latency in one direction.
const LATENCY_MAX_MS: u64 = 5;

/// Draws latencies and faults from a seed (`SplitMix64`), and counts the faults.
#[derive(Debug)]
pub(super) struct Chance {
    state: Mutex<u64>,
    percent: u64,
    injected: AtomicU64,
}

impl Chance {
    pub(super) fn new(seed: u64, percent: u8) -> Self {
        let (percent, injected) = (u64::from(percent), AtomicU64::new(0));
        Self { state: Mutex::new(seed), percent, injected }
    }

    pub(super) fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    fn below(&self, bound: u64) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The random draws of one worker.
#[derive(Debug)]
pub(super) struct Luck {
    chance: Arc<Chance>,
    /// Faults since the last write that got a response.
    faults: Mutex<u32>,
}

impl Luck {
    pub(super) fn new(chance: Arc<Chance>) -> Self {
        Self { chance, faults: Mutex::new(0) }
    }

    pub(super) async fn latency(&self) {
        sleep(Duration::from_millis(self.chance.below(LATENCY_MAX_MS + 1))).await;
    }

    pub(super) fn fails(&self) -> bool {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = self.chance.below(100) < self.chance.percent && *faults < FAULTS_MAX;
        if fails {
            *faults += 1;
            self.chance.injected.fetch_add(1, Ordering::Relaxed);
        }
        fails
    }

    fn answered(&self) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }
}

/// One worker's connection to the memory store.
#[derive(Debug)]
pub(super) struct RaceStore {
    pub(super) memory: Arc<MemoryStore>,
    pub(super) luck: Arc<Luck>,
}

fn unknown(key: &StateKey) -> StoreError {
    StoreError::Unknown { key: key.path(), reason: "injected".to_owned() }
}

fn unreachable(key: &StateKey) -> StoreError {
    StoreError::Unreachable { key: key.path(), reason: "injected".to_owned() }
}

#[async_trait]
impl StateStore for RaceStore {
    fn grain(&self) -> Duration {
        self.memory.grain()
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        self.luck.latency().await;
        if self.luck.fails() {
            return Err(unreachable(key));
        }
        let loaded = self.memory.load(key).await;
        self.luck.latency().await;
        loaded
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        self.luck.latency().await;
        let fails = self.luck.fails();
        let kind = self.luck.chance.below(3);
        if fails && kind == 0 {
            return Err(unreachable(key));
        }
        if fails && kind == 1 {
            return Err(unknown(key));
        }
        let written = self.memory.store(key, bytes, precondition).await;
        self.luck.latency().await;
        if fails {
            // The write took effect and its response is lost.
            return Err(unknown(key));
        }
        self.luck.answered();
        written
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        self.memory.list().await
    }

    fn location(&self, key: &StateKey) -> String {
        self.memory.location(key)
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.memory.prepare().await
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        self.memory.list_counted().await
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        self.memory.apps_with(key).await
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        self.memory.of_app(app)
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        self.memory.remove(key, etag).await
    }
}
