//! Documents that replace others, and journals that restart.

use std::sync::Arc;

use async_trait::async_trait;
use highwater_engine::admin::{CompactResult, RestoreError};
use highwater_engine::document::{Generation, Marker, encode, encode_marker};
use highwater_engine::journal::{
    Appended, EventKind, History, JournalMode, JournalStore, MemoryJournal, Part, Verdict,
};
use highwater_engine::poller::{Operator, Poller};
use highwater_engine::store::{Precondition, StateKey, StateStore, StoreError};
use highwater_engine::testing::{Call, Fault, JournaledWorld, admin, tick};

const EVE: Operator<'_> = Operator { by: "eve", reason: "it broke" };
const REBUILT: (EventKind, Operator<'_>) = (EventKind::Rebuilt, EVE);

async fn delivered(journaled: &JournaledWorld) -> Poller {
    let poller = journaled.instance("a");
    journaled.world.source.fill(12);
    tick(&poller).await.unwrap();
    poller
}

#[tokio::test(start_paused = true)]
async fn the_holder_of_a_replaced_document_cannot_write() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let copy = journaled.world.document().await;
    let other = journaled.instance("b");
    let (store, key) = (journaled.world.memory.clone(), StateKey::Document("p".to_owned()));
    journaled.world.source.fill(1);
    // While it runs its lease is held: only a damaged document can be replaced.
    journaled.world.handler.then(async move {
        let present = admin(&other).present().await.unwrap();
        let held = admin(&other).restore(&copy, &present, REBUILT).await.unwrap_err();
        assert!(matches!(held, RestoreError::Held { .. }), "{held}");
        let etag = store.load(&key).await.unwrap().stored.unwrap().etag;
        store.store(&key, b"{".to_vec(), Precondition::Matches(etag)).await.unwrap();
        let present = admin(&other).present().await.unwrap();
        admin(&other).restore(&copy, &present, REBUILT).await.unwrap();
        Ok(())
    });
    tick(&poller).await.unwrap_err();
    let after = journaled.world.document().await;
    assert_eq!(after.lease.owner_id, None);
    tick(&journaled.instance("c")).await.unwrap();
    let received = journaled.world.handler.received();
    let [.., stale, new] = received.as_slice() else { panic!("{received:?}") };
    assert!(new.fence.0 > stale.fence.0 && new.fence.1 > stale.fence.1);
    assert_ne!(new.batch_id, stale.batch_id);
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
}

#[tokio::test(start_paused = true)]
async fn the_generation_is_above_all_known_generations() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let copy = journaled.world.document().await;
    let far = u64::MAX >> 12;
    for known in ["marker", "damaged", "copy"] {
        let mut copy = copy.clone();
        let mut marker = Marker {
            poller_name: "p".to_owned(),
            generation: Generation(1),
            created_at: time::OffsetDateTime::UNIX_EPOCH,
        };
        let mut damaged = "{".to_owned();
        match known {
            "marker" => marker.generation = Generation(far),
            "copy" => copy.generation = Generation(far),
            _ => {
                damaged = format!(
                    "{{\"version\": 9, \"generation\": {far}, \"lease\": {{\"fencing_token\": 77}}}}"
                );
            }
        }
        journaled.world.overwrite(damaged.as_bytes()).await;
        let key = StateKey::Marker("p".to_owned());
        let stored = journaled.world.stored(&key).await.unwrap();
        let precondition = Precondition::Matches(stored.etag);
        journaled.world.memory.store(&key, encode_marker(&marker), precondition).await.unwrap();
        let present = admin(&poller).present().await.unwrap();
        let restored = admin(&poller).restore(&copy, &present, REBUILT).await.unwrap();
        assert!(restored.document.generation.0 > far, "{known}");
        let least = if known == "damaged" { 78 } else { copy.lease.fencing_token.0 + 1 };
        assert_eq!(restored.document.lease.fencing_token.0, least, "{known}");
        let saved = journaled.world.memory.load(&restored.saved.unwrap()).await.unwrap();
        assert_eq!(saved.stored.unwrap().bytes, damaged.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn writes_since_the_plan_are_kept_and_a_lost_response_is_detected() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let copy = journaled.world.document().await;
    let present = admin(&poller).present().await.unwrap();
    admin(&poller).pause(EVE).await.unwrap();
    let moved = admin(&poller).restore(&copy, &present, REBUILT).await.unwrap_err();
    assert!(matches!(moved, RestoreError::Moved), "{moved}");
    assert!(journaled.world.is_paused().await);

    let present = admin(&poller).present().await.unwrap();
    // The first write saves the current document.
    let store = &journaled.world.store;
    store.break_next(Call::Store, Fault::Unreachable);
    let failed = admin(&poller).restore(&copy, &present, REBUILT).await.unwrap_err();
    assert!(matches!(failed, RestoreError::Load(_)), "{failed}");
    assert!(journaled.world.is_paused().await, "nothing is replaced unsaved");
}

#[tokio::test(start_paused = true)]
async fn a_missing_document_is_rebuilt_but_not_over_one_started_meanwhile() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let gone = journaled.world.document().await;
    let key = StateKey::Document("p".to_owned());
    journaled.world.memory.lose(&key);
    let examined = admin(&poller).examine().await.unwrap();
    assert_eq!(examined.verdict, Verdict::NoDocument);
    let leads_to = examined.history().unwrap().clone();
    assert_eq!(leads_to, gone);
    journaled.world.overwrite(&encode(&gone)).await;
    let moved = admin(&poller).restore(&leads_to, &examined.present, REBUILT).await.unwrap_err();
    assert!(matches!(moved, RestoreError::Moved), "{moved}");
    journaled.world.memory.lose(&key);
    let restored = admin(&poller).restore(&leads_to, &examined.present, REBUILT).await.unwrap();
    assert_eq!((restored.saved, restored.document.checkpoint), (None, gone.checkpoint));
    assert_eq!(admin(&poller).examine().await.unwrap().verdict, Verdict::Agrees);
}

#[tokio::test(start_paused = true)]
async fn an_old_journal_is_dropped_only_after_the_new_one_is_readable() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let before = journaled.entries().await.len();
    // The other process has no journal: its document is written, and no entry is appended.
    let mute = journaled.world.instance("b");
    let mute = mute.with_journal(JournalMode::Off, journaled.journal.clone(), None);
    assert_eq!(admin(&mute).compact(EVE).await.unwrap(), CompactResult::NotAppended);
    assert_eq!(journaled.entries().await.len(), before);

    let compacted = admin(&poller).compact(EVE).await.unwrap();
    let CompactResult::Compacted { dropped, kept, .. } = compacted else { panic!("{compacted:?}") };
    assert_eq!((dropped.len(), kept.len()), (1, 0));
    assert_eq!(journaled.events().await, [EventKind::Compacted]);
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
    journaled.world.source.fill(1);
    tick(&poller).await.unwrap();
    journaled.assert_complete().await;
    let history = History::read(&*journaled.journal, "p", None).await.unwrap();
    let numbers: Vec<u32> = history.parts.iter().map(|(part, _)| part.number).collect();
    assert_eq!(numbers, [1], "the day continues in the started part");
    assert_eq!(journaled.journal.list("p").await.unwrap().len(), 1);
}

/// A journal in which each part is appended to just before it is dropped.
#[derive(Debug)]
struct Busy(Arc<MemoryJournal>);

#[async_trait]
impl JournalStore for Busy {
    async fn append(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError> {
        self.0.append(part, position, bytes).await
    }

    async fn length(&self, part: &Part) -> Result<u64, StoreError> {
        self.0.length(part).await
    }

    async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
        self.0.read(part, position).await
    }

    async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
        self.0.list(poller).await
    }

    async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError> {
        let position = self.0.length(part).await?;
        let bytes = self.0.read(part, 0).await?;
        self.0.append(part, position, bytes).await?;
        self.0.remove(part, length).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_part_appended_to_meanwhile_is_kept() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    delivered(&journaled).await;
    let busy = Arc::new(Busy(journaled.journal.clone()));
    let poller = journaled.world.instance("b").with_journal(JournalMode::Full, busy, None);
    let compacted = admin(&poller).compact(EVE).await.unwrap();
    let CompactResult::Compacted { dropped, kept, .. } = compacted else { panic!("{compacted:?}") };
    assert_eq!((dropped.len(), kept.len()), (0, 1));
    assert_eq!(journaled.journal.list("p").await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_poller_without_a_document_cannot_start_a_journal() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = journaled.instance("a");
    assert_eq!(admin(&poller).compact(EVE).await.unwrap(), CompactResult::NoDocument);
    let present = admin(&poller).present().await.unwrap();
    assert!(present.bytes.is_none() && present.usable().is_none());
    assert_eq!(admin(&poller).examine().await.unwrap().verdict, Verdict::NoHistory);
}
