//! An operator who replaces the document: resets the poller, or restores an older copy.
//!
//! The operator's own requests never fail. The invariants learn of a replaced document in the step in which
//! it lands, so that no tick comes in between.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::admin::{Redrive, ResetTo};
use highwater_engine::document::{OnMissingState, decode};
use highwater_engine::error::chain;
use highwater_engine::journal::{EventKind, JournalMode};
use highwater_engine::lease::Instance;
use highwater_engine::poller::{Operator, Poller, PollerParts, StopSignal};
use highwater_engine::store::{
    ETag, MemoryStore, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult,
};

use crate::journal::SimJournal;
use crate::parked::REDRIVE;
use crate::source::SimSource;
use crate::store::{By, Removal, Way};
use crate::world::{LeftApp, POLLER, World, handler, store};

const OPERATOR: Operator<'_> = Operator { by: "operator", reason: "a remedy" };

/// The operator's connection to the store.
#[derive(Debug)]
struct OperatorStore {
    world: Arc<World>,
    memory: Arc<MemoryStore>,
    /// The table that written checkpoints belong to; `None` for the current one.
    checkpoint_of: Option<u64>,
    /// Whether it replaces the document; else it adds a note to it.
    replaces: bool,
}

#[async_trait]
impl Way for OperatorStore {
    fn world(&self) -> &World {
        &self.world
    }

    fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        self.memory.load(key).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        let written = self.memory.store(key, bytes.clone(), precondition).await?;
        if matches!(key, StateKey::Document(_)) {
            self.world.with(|state| {
                if self.replaces {
                    let checkpoint_of = self.checkpoint_of.unwrap_or(state.table.identity);
                    state.judge.document_replaced(&bytes, checkpoint_of);
                }
                state.document_landed(None, &bytes);
            });
        }
        Ok(written)
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        let removal = Removal {
            world: Arc::clone(&self.world),
            memory: Arc::clone(&self.memory),
            by: None,
            key: key.clone(),
            etag: etag.clone(),
        };
        removal.arrive(Duration::ZERO).await
    }
}

/// Returns the poller of a process that runs one command.
fn command(world: &Arc<World>, checkpoint_of: Option<u64>) -> Poller {
    let number = world.with(|state| state.random.next());
    let memory = world.memory();
    let world_of = Arc::clone(world);
    let store = OperatorStore { world: world_of, memory, checkpoint_of, replaces: true };
    process(world, 0, &format!("command-{number}"), Arc::new(By(store)))
}

/// Returns the poller of a process that reaches the state through this store.
fn process(world: &Arc<World>, slot: usize, owner_id: &str, store: Arc<dyn StateStore>) -> Poller {
    let poller = Poller::new(PollerParts {
        name: POLLER.to_owned(),
        source: Arc::new(SimSource::new(Arc::clone(world), slot)),
        handler: handler(world, slot),
        store,
        instance: Arc::new(Instance::new(owner_id)),
        terms: world.plan.terms,
        limits: world.plan.limits,
        policy: world.plan.policy,
        metrics: Arc::default(),
    });
    match world.plan.journal {
        JournalMode::Off => poller,
        mode @ (JournalMode::Commits | JournalMode::Full) => {
            poller.with_journal(mode, Arc::new(SimJournal { world: Arc::clone(world) }), None)
        }
    }
}

/// Resets the poller to the beginning. Fails if, for example, its lease is held.
pub(crate) async fn reset(world: &Arc<World>) -> Result<(), String> {
    Box::pin(reset_to(world, ResetTo::Beginning)).await?;
    world.with(|state| state.coverage.saw("operator: reset to the beginning"));
    Ok(())
}

/// Accepts the current source name of the settings and keeps the position.
pub(crate) async fn accept_name(world: &Arc<World>) -> Result<(), String> {
    Box::pin(reset_to(world, ResetTo::Keep)).await?;
    world.with(|state| state.coverage.saw("operator: accepted another name, position kept"));
    Ok(())
}

async fn reset_to(world: &Arc<World>, to: ResetTo<'_>) -> Result<(), String> {
    let poller = command(world, None);
    let plan = poller.admin().plan_reset(to, true).await.map_err(|error| chain(&error))?;
    let id = format!("replay-{}", world.with(|state| state.random.next()));
    poller.admin().reset(&plan, id, OPERATOR).await.map_err(|error| chain(&error))?;
    Ok(())
}

/// Keeps a copy of the document.
pub(crate) async fn copy(world: &Arc<World>) {
    let loaded = world.memory().load(&StateKey::Document(POLLER.to_owned())).await;
    let stored = loaded.expect("memory answers").stored.map(|stored| stored.bytes);
    let begun = |bytes: &Vec<u8>| decode(POLLER, bytes).is_ok_and(|found| found.generation.0 > 0);
    world.with(|state| {
        let checkpoint_of = state.judge.checkpoint_of();
        let copy = stored.filter(begun).map(|bytes| (bytes, checkpoint_of));
        state.copy = copy.or(state.copy.take());
    });
}

/// Replaces the document by the copy, unless its lease is held.
pub(crate) async fn restore(world: &Arc<World>) {
    let Some((bytes, checkpoint_of)) = world.with(|state| state.copy.clone()) else { return };
    let copy = decode(POLLER, &bytes).expect("a copy of our own document");
    let poller = command(world, Some(checkpoint_of));
    let present = poller.admin().present().await.expect("memory answers");
    if poller.admin().restore(&copy, &present, (EventKind::Imported, OPERATOR)).await.is_ok() {
        world.with(|state| state.coverage.saw("operator: restored an older copy"));
    }
}

/// Deletes a document that must not be created again: ticks must fail until an operator acts.
pub(crate) async fn lose_for_good(world: &Arc<World>) {
    let key = StateKey::Document(POLLER.to_owned());
    let loaded = world.memory().load(&StateKey::Marker(POLLER.to_owned())).await;
    let marked = loaded.expect("memory answers").stored.is_some();
    let stored = world.memory().load(&key).await.expect("memory answers").stored.is_some();
    if world.plan.limits.on_missing_state == OnMissingState::Stop && marked && stored {
        world.memory().lose(&key);
        world.with(|state| {
            state.coverage.saw("operator: deleted a document that is not created again");
            state.judge.document_vanished();
        });
    }
}

/// Deletes the marker that records that the poller has run.
pub(crate) async fn lose_marker(world: &Arc<World>) {
    let key = StateKey::Marker(POLLER.to_owned());
    if world.memory().load(&key).await.expect("memory answers").stored.is_some() {
        world.memory().lose(&key);
        world.with(|state| state.coverage.saw("operator: deleted a marker"));
    }
}

/// Replaces the document by the bytes of the copy, grants included, while nothing runs.
pub(crate) async fn put_back(world: &Arc<World>) {
    let Some((bytes, checkpoint_of)) = world.with(|state| state.copy.clone()) else { return };
    let key = StateKey::Document(POLLER.to_owned());
    let stored = world.memory().load(&key).await.expect("memory answers").stored;
    let Some(stored) = stored else { return };
    let precondition = Precondition::Matches(stored.etag);
    let written = world.memory().store(&key, bytes.clone(), precondition).await;
    written.expect("nothing runs");
    world.with(|state| {
        state.judge.document_put_back(&bytes, checkpoint_of);
        state.document_landed(None, &bytes);
        state.coverage.saw("operator: put an older copy back, grants and all");
    });
}

/// Gives the document grants that the target accepts.
pub(crate) async fn raise_above_fence(world: &Arc<World>) -> Result<(), String> {
    let checkpoint_of = world.with(|state| state.judge.checkpoint_of());
    let poller = command(world, Some(checkpoint_of));
    let present = poller.admin().present().await.map_err(|error| chain(&error))?;
    let fence = world.with(|state| state.target.fence());
    let raised = Box::pin(poller.admin().raise_above(fence, &present, false, OPERATOR)).await;
    raised.map_err(|error| chain(&error))?;
    world.with(|state| state.coverage.saw("operator: raised the grants above the fence"));
    Ok(())
}

/// Clones the poller's document from the previous name of the application.
pub(crate) async fn clone_from_before(world: &Arc<World>) -> Result<(), String> {
    let left = world.with(|state| state.left_with_source().cloned());
    let Some(LeftApp { app, checkpoint_of, .. }) = left else {
        return Err("the application never had another name".to_owned());
    };
    let poller = command(world, Some(checkpoint_of));
    let from = poller.under_app(&app).expect("memory knows several");
    Box::pin(from.admin().clone_to(&poller, true, OPERATOR))
        .await
        .map_err(|error| chain(&error))?;
    world.with(|state| state.coverage.saw("operator: cloned the document of another app name"));
    Ok(())
}

/// Drops every second entry, as found some time earlier.
pub(crate) async fn drop_entries(world: &Arc<World>) {
    let number = world.with(|state| state.random.next());
    let memory = world.memory();
    let store =
        OperatorStore { world: Arc::clone(world), memory, checkpoint_of: None, replaces: false };
    let poller = process(world, 0, &format!("command-{number}"), Arc::new(By(store)));
    let mut found = Vec::new();
    for key in poller.admin().quarantined().await.expect("memory answers") {
        if world.with(|state| state.random.chance(50))
            && let Some(entry) = poller.admin().entry(&key).await.expect("memory answers")
        {
            found.push((entry.key, entry.etag));
        }
    }
    let decides_for = world.with(|state| state.latency(false));
    tokio::time::sleep(decides_for).await;
    let noted = poller.admin().drop_entries(found, &mut |_, _| {}).await;
    if let Err(error) = noted {
        let text = chain(&error);
        world.with(|state| state.note(format_args!("a drop is not noted: {text}")));
    }
}

/// Redrives all entries, as a process of its own on this slot.
pub(crate) async fn redrive(world: Arc<World>, slot: usize) {
    let number = world.with(|state| state.random.next());
    let owner_id = format!("redrive-{number}");
    let poller = process(&world, slot, &owner_id, store(&world, slot, &owner_id));
    let Ok(keys) = poller.admin().quarantined().await else { return };
    let (id, stop) = (format!("{REDRIVE}{number}"), StopSignal::new());
    let redrive = Redrive {
        id: &id,
        keys: &keys,
        as_stored: false,
        drop_gone: true,
        interval: Duration::ZERO,
        stop,
    };
    let ended = poller.admin().redrive(&redrive, &mut |_, _| {}).await;
    world.with(|state| {
        let text = match &ended {
            Ok(ended) => format!("{ended:?}"),
            Err(error) => chain(error),
        };
        if ended.is_ok() && !keys.is_empty() {
            state.coverage.saw("operator: redrove entries");
        }
        state.note(format_args!("redrive: {text}"));
    });
}
