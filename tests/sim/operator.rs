//! An operator who replaces the document: resets the poller, or restores an older copy.
//!
//! The operator's own requests never fail. The judge learns of a replaced document in the step in which
//! it lands, so that no tick comes in between.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater::error::chain;
use highwater::journal::{Happened, JournalMode};
use highwater::lease::Instance;
use highwater::poller::{Operator, Poller, PollerParts, ResetTo};
use highwater::state::{
    ETag, Loaded, OnMissingState, Precondition, StateKey, StateStore, StoreError, Written, decode,
};

use crate::journal::SimJournal;
use crate::source::SimSource;
use crate::world::{POLLER, World, handler};

const OPERATOR: Operator<'_> = Operator { by: "operator", reason: "a remedy" };

/// The operator's way to the store.
#[derive(Debug)]
struct OperatorStore(Arc<World>);

#[async_trait]
impl StateStore for OperatorStore {
    fn grain(&self) -> Duration {
        self.0.plan.grain
    }

    async fn load(&self, key: &StateKey) -> Result<Loaded, StoreError> {
        self.0.memory.load(key).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<Written, StoreError> {
        let written = self.0.memory.store(key, bytes.clone(), precondition).await?;
        if matches!(key, StateKey::Document(_)) {
            self.0.with(|state| {
                state.judge.document_replaced(&bytes);
                state.document_landed(None, &bytes);
            });
        }
        Ok(written)
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        self.0.memory.list().await
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        self.0.memory.remove(key, etag).await
    }
}

/// Returns the poller of a process that runs one command.
fn command(world: &Arc<World>) -> Poller {
    let number = world.with(|state| state.random.next());
    let poller = Poller::new(PollerParts {
        name: POLLER.to_owned(),
        source: Arc::new(SimSource::new(Arc::clone(world), 0)),
        handler: handler(world, 0),
        store: Arc::new(OperatorStore(Arc::clone(world))),
        instance: Arc::new(Instance::new(format!("command-{number}"))),
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
    let poller = command(world);
    let plan = poller.plan_reset(ResetTo::Beginning, false).await;
    let plan = plan.map_err(|error| chain(&error))?;
    let id = format!("replay-{}", world.with(|state| state.random.next()));
    poller.reset(&plan, id, OPERATOR).await.map_err(|error| chain(&error))?;
    world.with(|state| state.coverage.saw("operator: reset to the beginning"));
    Ok(())
}

/// Keeps a copy of the document.
pub(crate) async fn copy(world: &Arc<World>) {
    let loaded = world.memory.load(&StateKey::Document(POLLER.to_owned())).await;
    let stored = loaded.expect("memory answers").stored.map(|stored| stored.bytes);
    let begun = |bytes: &Vec<u8>| decode(POLLER, bytes).is_ok_and(|found| found.generation.0 > 0);
    world.with(|state| state.copy = stored.filter(begun).or(state.copy.take()));
}

/// Puts the copy in the place of the document, unless its lease is held.
pub(crate) async fn restore(world: &Arc<World>) {
    let Some(bytes) = world.with(|state| state.copy.clone()) else { return };
    let copy = decode(POLLER, &bytes).expect("a copy of our own document");
    let poller = command(world);
    let present = poller.present().await.expect("memory answers");
    if poller.restore(&copy, &present, (Happened::Imported, OPERATOR)).await.is_ok() {
        world.with(|state| state.coverage.saw("operator: restored an older copy"));
    }
}

/// Deletes a document that is not to be created again: ticks must fail until an operator acts.
pub(crate) async fn lose_for_good(world: &Arc<World>) {
    let key = StateKey::Document(POLLER.to_owned());
    let loaded = world.memory.load(&StateKey::Marker(POLLER.to_owned())).await;
    let marked = loaded.expect("memory answers").stored.is_some();
    let stored = world.memory.load(&key).await.expect("memory answers").stored.is_some();
    if world.plan.limits.on_missing_state == OnMissingState::Stop && marked && stored {
        world.memory.lose(&key);
        world.with(|state| {
            state.coverage.saw("operator: deleted a document that is not created again");
            state.judge.document_vanished();
        });
    }
}
