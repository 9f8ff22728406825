//! A poller's environment in memory: its table, its target, its storage, and the processes that run it.

use std::sync::{Arc, Once};
use std::time::Duration;

use time::OffsetDateTime;

use crate::admin::Admin;
use crate::cursor::SourceState;
use crate::document::{
    Acquire, DocumentAge, Generation, InFlight, OnMissingState, Paused, StateDocument, decode,
    encode,
};
use crate::handler::Handler;
use crate::lease::{Instance, LeaseTerms};
use crate::metrics::Metrics;
use crate::policy::FailurePolicy;
use crate::poller::{Limits, Poller, PollerParts, TickError, TickOutcome};
use crate::quarantine::{self, Entry};
use crate::source::Source;
use crate::store::{MemoryStore, Precondition, StateKey, StateStore, StoredValue};
use crate::testing::{Calls, FaultyStore, RecordingHandler, TableSource};
use crate::tick::{TickReport, TickRequest};

/// How long a lease lives in a [`World`].
pub const TTL: Duration = Duration::from_secs(30);

/// Name of the poller of a [`World`].
const NAME: &str = "p";

/// Returns the limits of a [`World`]: batches of ten rows, and no status writes by idle ticks.
pub fn limits() -> Limits {
    Limits {
        batch_rows_max: 10,
        batch_bytes_max: 1 << 20,
        batches_max: None,
        tick_time_max: Duration::from_secs(240),
        handler_stop_after: Duration::from_secs(285),
        handler_stall_max: None,
        state_refresh: Duration::from_secs(300),
        status_interval: Duration::ZERO,
        retry_delay_min: Duration::from_secs(1),
        retry_delay_max: Duration::from_secs(300),
        retry_after_max: Duration::from_secs(3_600),
        on_missing_state: OnMissingState::Stop,
    }
}

/// Runs one tick.
///
/// # Errors
///
/// As [`Poller::tick`] reports.
pub async fn tick(poller: &Poller) -> Result<TickOutcome, TickError> {
    poller.tick(&TickRequest::default()).await.result
}

/// Runs one tick, and returns its report and how long it took.
pub async fn timed_tick(poller: &Poller) -> (TickReport, Duration) {
    let began_at = tokio::time::Instant::now();
    let report = poller.tick(&TickRequest::default()).await;
    (report, began_at.elapsed())
}

/// Runs a tick and drops it after some seconds, like a kill.
///
/// # Panics
///
/// If the tick ends earlier.
pub async fn killed_after(seconds: u64, poller: &Poller) {
    let killed = tokio::time::timeout(Duration::from_secs(seconds), tick(poller)).await;
    assert!(killed.is_err(), "the tick ended before it was killed: {killed:?}");
}

/// Returns the operations of operators on a poller: pause, reset, restore and so on.
pub fn admin(poller: &Poller) -> Admin<'_> {
    poller.admin()
}

/// Waits for some seconds.
pub async fn sleep(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Returns counts of storage calls, to compare with [`FaultyStore::take_calls`].
pub fn calls(gets: u64, puts: u64, refused: u64) -> Calls {
    Calls { gets, puts, refused }
}

/// Reads the poller's document, bypassing all faults.
pub async fn document_in(memory: &MemoryStore) -> StateDocument {
    let (document, _) = stored_in(memory).await;
    document
}

/// Changes the poller's document like another process, bypassing all faults.
pub async fn rewrite(memory: &MemoryStore, change: impl FnOnce(StateDocument) -> StateDocument) {
    let (document, stored) = stored_in(memory).await;
    let (key, bytes) = (StateKey::Document(NAME.to_owned()), encode(&change(document)));
    let written = memory.store(&key, bytes, Precondition::Matches(stored.etag)).await;
    written.expect("nothing was written in between");
}

/// Breaks the lease like another process, bypassing all faults: a later grant has a newer token.
pub async fn break_lease(memory: &MemoryStore) {
    rewrite(memory, |document| document.break_lease().expect("tokens are left")).await;
}

/// Grants an expired-looking lease to another instance, which crashes with it.
pub async fn take_over(memory: &MemoryStore) {
    let key = StateKey::Document(NAME.to_owned());
    let now = memory.load(&key).await.expect("memory answers").date;
    let grant = |document: StateDocument| {
        let request = Acquire {
            owner_id: "dead",
            ttl: TTL,
            age: DocumentAge { since_write: 10 * TTL, grain: Duration::ZERO },
            now,
            in_flight: None,
        };
        document.acquire(request).expect("the lease has lapsed")
    };
    rewrite(memory, grant).await;
}

async fn stored_in(memory: &MemoryStore) -> (StateDocument, StoredValue) {
    let key = StateKey::Document(NAME.to_owned());
    let stored = memory.load(&key).await.expect("memory answers").stored;
    let stored = stored.expect("the poller has a document");
    (decode(NAME, &stored.bytes).expect("the document is one"), stored)
}

/// Makes every test's subscriber receive all log events.
///
/// If a thread without a subscriber is the first to reach a log call, that call is registered without interest, and a
/// subscriber created at that moment never receives it (`tracing_core::callsite` computes the interest before it
/// lists the event). With a subscriber of the process, every call is registered with interest.
fn hear_everywhere() {
    static EVERYWHERE: Once = Once::new();
    EVERYWHERE.call_once(|| {
        tracing::subscriber::set_global_default(tracing_subscriber::registry())
            .expect("no other test of this process sets its subscriber");
    });
}

/// All that a poller needs, in memory, and any number of processes that run it.
#[derive(Clone, Debug)]
pub struct World {
    /// What is stored, bypassing all faults.
    pub memory: Arc<MemoryStore>,
    /// The storage as pollers reach it.
    pub store: Arc<FaultyStore>,
    /// The table.
    pub source: Arc<TableSource>,
    /// The target, unless [`Self::with_handler`] chose another one.
    pub handler: Arc<RecordingHandler>,
    /// Limits of each tick.
    pub limits: Limits,
    /// What happens to failing rows.
    pub policy: FailurePolicy,
    /// Where measurements go.
    pub metrics: Arc<Metrics>,
    pub(super) called: Option<Arc<dyn Handler>>,
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// Returns a world with an empty table, a target that accepts everything, and no state.
    pub fn new() -> Self {
        hear_everywhere();
        let memory = Arc::new(MemoryStore::default());
        Self {
            store: Arc::new(FaultyStore::new(memory.clone())),
            memory,
            source: Arc::new(TableSource::new(NAME)),
            handler: Arc::default(),
            limits: limits(),
            policy: FailurePolicy::default(),
            metrics: Arc::default(),
            called: None,
        }
    }

    /// Returns a new world with these limits.
    pub fn with(limits: Limits) -> Self {
        Self { limits, ..Self::new() }
    }

    /// Returns the same world with other limits.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        Self { limits, ..self.clone() }
    }

    /// Returns the same world with another failure policy.
    #[must_use]
    pub fn with_policy(&self, policy: FailurePolicy) -> Self {
        Self { policy, ..self.clone() }
    }

    /// Returns the same world with another handler instead of the recording one.
    #[must_use]
    pub fn with_handler(&self, handler: Arc<dyn Handler>) -> Self {
        Self { called: Some(handler), ..self.clone() }
    }

    /// Returns the same world with another table.
    #[must_use]
    pub fn with_source(&self, source: TableSource) -> Self {
        Self { source: Arc::new(source), ..self.clone() }
    }

    /// Returns the same world, reached through another store.
    #[must_use]
    pub fn behind(&self, store: FaultyStore) -> Self {
        Self { store: Arc::new(store), ..self.clone() }
    }

    /// Returns the same world with a working store: planned faults do not occur.
    #[must_use]
    pub fn with_working_store(&self) -> Self {
        self.behind(FaultyStore::new(self.memory.clone()))
    }

    /// Returns the poller in another process, with its own memory and owner id.
    pub fn instance(&self, owner_id: &str) -> Poller {
        self.instance_of(owner_id, self.source.clone())
    }

    /// Returns the poller in another process that reads another source.
    pub fn instance_of(&self, owner_id: &str, source: Arc<dyn Source>) -> Poller {
        self.poller(NAME, owner_id, source)
    }

    /// Returns a poller of any name in its own process.
    pub fn poller(&self, name: &str, owner_id: &str, source: Arc<dyn Source>) -> Poller {
        Poller::new(PollerParts {
            name: name.to_owned(),
            source,
            handler: self.called.clone().unwrap_or_else(|| self.handler.clone()),
            store: self.store.clone(),
            instance: Arc::new(Instance::new(owner_id).measured(Arc::clone(&self.metrics))),
            terms: LeaseTerms::of(TTL),
            limits: self.limits,
            policy: self.policy,
            metrics: self.metrics.clone(),
        })
    }

    /// Returns a poller that has already delivered one row, so that document and marker exist.
    ///
    /// # Panics
    ///
    /// If that row is not delivered.
    pub async fn started_poller(&self, owner_id: &str) -> Poller {
        let poller = self.instance(owner_id);
        self.source.put(0, "first");
        let outcome = tick(&poller).await.expect("the first row is delivered");
        assert_eq!(outcome, TickOutcome::Committed { more: false });
        self.store.take_calls();
        poller
    }

    /// Pauses the poller like another process, while the handler has the next batch.
    pub fn pause_in_the_next_call(&self) {
        let memory = self.memory.clone();
        self.handler.then(async move {
            let paused = Paused {
                by: "an operator".to_owned(),
                reason: "maintenance".to_owned(),
                at: OffsetDateTime::UNIX_EPOCH,
                extra: serde_json::Map::new(),
            };
            let age = DocumentAge { since_write: Duration::ZERO, grain: Duration::ZERO };
            rewrite(&memory, |document| document.pause(paused, age)).await;
            Ok(())
        });
    }

    /// Checks that the current state of each row of the table was accepted.
    ///
    /// # Panics
    ///
    /// If one was not.
    pub fn assert_all_delivered(&self) {
        assert_eq!(self.source.undelivered(&self.handler), []);
    }

    /// Returns what is stored under a key, bypassing all faults.
    pub async fn stored(&self, key: &StateKey) -> Option<StoredValue> {
        self.memory.load(key).await.expect("memory answers").stored
    }

    /// Returns what is stored as the poller's marker.
    pub async fn marker(&self) -> Option<StoredValue> {
        self.stored(&StateKey::Marker(NAME.to_owned())).await
    }

    /// Returns the poller's document.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub async fn document(&self) -> StateDocument {
        document_in(&self.memory).await
    }

    /// Returns the document of a poller of any name.
    ///
    /// # Panics
    ///
    /// If the stored content is not a document.
    pub async fn document_of(&self, name: &str) -> Option<StateDocument> {
        let stored = self.stored(&StateKey::Document(name.to_owned())).await;
        stored.map(|stored| decode(name, &stored.bytes).expect("the document is one"))
    }

    /// Stores `bytes` as the poller's document, replacing any content.
    ///
    /// # Panics
    ///
    /// If another process writes at the same time.
    pub async fn overwrite(&self, bytes: &[u8]) {
        let key = StateKey::Document(NAME.to_owned());
        let precondition = match self.stored(&key).await {
            Some(stored) => Precondition::Matches(stored.etag),
            None => Precondition::Absent,
        };
        let written = self.memory.store(&key, bytes.to_vec(), precondition).await;
        written.expect("nothing was written in between");
    }

    /// Changes the poller's document like another process, bypassing all faults.
    pub async fn rewrite(&self, change: impl FnOnce(StateDocument) -> StateDocument) {
        rewrite(&self.memory, change).await;
    }

    /// Returns whether no process holds the lease.
    pub async fn is_released(&self) -> bool {
        self.document().await.lease.released_at.is_some()
    }

    /// Returns whether the document says that its marker is written.
    pub async fn is_marked(&self) -> bool {
        self.document().await.marked
    }

    /// Returns whether the poller is paused.
    pub async fn is_paused(&self) -> bool {
        self.document().await.paused.is_some()
    }

    /// Returns the generation of the state.
    pub async fn generation(&self) -> Generation {
        self.document().await.generation
    }

    /// Returns what the source retains in the state.
    pub async fn source_state(&self) -> SourceState {
        self.document().await.source_state
    }

    /// Returns how many rows the last commit moved the checkpoint past.
    pub async fn rows_committed_last(&self) -> u64 {
        self.document().await.checkpoint.metadata.row_count
    }

    /// Returns the batch that was announced but not committed.
    pub async fn in_flight(&self) -> Option<InFlight> {
        self.document().await.in_flight
    }

    /// Returns the entries of quarantined keys, by the value of the key column.
    ///
    /// # Panics
    ///
    /// If an entry cannot be read.
    pub async fn quarantine(&self) -> Vec<(i64, Entry)> {
        let mut entries = Vec::new();
        for key in self.memory.list().await.expect("memory answers") {
            if matches!(key, StateKey::Quarantined { .. })
                && let Some(stored) = self.stored(&key).await
            {
                let entry = quarantine::decode(&key, &stored.bytes).expect("an entry");
                let row_key = entry.row_key().expect("an entry holds its event");
                let id = row_key.get("id").and_then(serde_json::Value::as_i64);
                entries.push((id.expect("a number"), entry));
            }
        }
        entries.sort_unstable_by_key(|(id, _)| *id);
        entries
    }

    /// Returns the quarantined keys, like [`Self::quarantine`].
    pub async fn quarantined(&self) -> Vec<i64> {
        self.quarantine().await.into_iter().map(|(id, _)| id).collect()
    }
}
