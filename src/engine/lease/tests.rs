use std::sync::{Arc, Mutex};

use super::*;
use crate::cursor::{KeyValues, RowVersion, SourceFingerprint};
use crate::document::{AfterCommit, AuditStep, DocumentAge, decode, encode};
use crate::journal::JournalMode;
use crate::store::{MemoryStore, Precondition, StateKey, StateStore, StoreError};
use crate::testing::{Call, Fault, FaultyStore};

mod hold;
mod judging;
mod limits;

const TTL: Duration = Duration::from_secs(30);

struct World {
    memory: Arc<MemoryStore>,
    store: FaultyStore,
    key: StateKey,
    a: Instance,
    b: Instance,
    journal: Mutex<Recorder>,
}

impl World {
    fn new() -> Self {
        let memory = Arc::new(MemoryStore::default());
        Self {
            store: FaultyStore::new(memory.clone()),
            memory,
            key: StateKey::Document("p".to_owned()),
            a: Instance::new("a"),
            b: Instance::new("b"),
            journal: Mutex::new(Recorder::new(JournalMode::Full)),
        }
    }

    fn context<'a>(&'a self, instance: &'a Instance) -> LeaseContext<'a> {
        LeaseContext {
            store: &self.store,
            key: &self.key,
            instance,
            terms: LeaseTerms::of(TTL),
            stop_at: Instant::now() + Duration::from_secs(600),
            journal: &self.journal,
        }
    }

    async fn base(&self) -> Snapshot {
        let loaded = self.memory.load(&self.key).await.unwrap();
        if let Some(stored) = loaded.stored {
            return Snapshot::read(&self.key, stored, loaded.date).unwrap();
        }
        let fingerprint = SourceFingerprint::of(&[]);
        let blank = StateDocument::blank("p", fingerprint.clone());
        let written = self.memory.store(&self.key, encode(&blank), Precondition::Absent).await;
        let begun = StateDocument::new("p", fingerprint, Generation(1));
        Snapshot::written(blank, written.unwrap(), 0).with(begun)
    }

    async fn try_acquire<'a>(&'a self, instance: &'a Instance) -> AcquireResult<'a> {
        Lease::acquire(self.context(instance), &self.base().await, None).await.unwrap()
    }

    async fn acquire<'a>(&'a self, instance: &'a Instance) -> Lease<'a> {
        match self.try_acquire(instance).await {
            AcquireResult::Held(lease) => *lease,
            other @ (AcquireResult::Conflict | AcquireResult::Refused(_)) => panic!("{other:?}"),
        }
    }

    async fn document(&self) -> StateDocument {
        let stored = self.memory.load(&self.key).await.unwrap().stored.unwrap();
        decode("p", &stored.bytes).unwrap()
    }

    /// Writes as somebody else, past the faults.
    async fn meddle(&self, change: impl Fn(&StateDocument) -> StateDocument) {
        let base = self.base().await;
        let mut next = change(&base.document);
        next.write_id = "somebody else".to_owned();
        let bytes = encode(&next);
        self.memory
            .store(&self.key, bytes, Precondition::Matches(base.etag.unwrap()))
            .await
            .unwrap();
    }
}

fn at(version: u64) -> Cursor {
    Cursor::row_version(RowVersion(version), KeyValues::new())
}

fn commit(version: u64, now: OffsetDateTime) -> Commit {
    Commit {
        batch_id: serde_json::from_str("\"batch_1\"").unwrap(),
        upto: at(version),
        rows: 1,
        is_diverted: false,
        unreadable_last: 0,
        now,
        audit: AuditStep::Off,
        then: AfterCommit::Release(None),
    }
}

fn pause(document: &StateDocument) -> StateDocument {
    let paused = Paused {
        by: "eve".to_owned(),
        reason: "r".to_owned(),
        at: OffsetDateTime::UNIX_EPOCH,
        extra: serde_json::Map::new(),
    };
    document.pause(paused, DocumentAge { since_write: Duration::ZERO, grain: Duration::ZERO })
}

async fn sleep(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_challengers_one_gets_the_lease_and_the_other_a_conflict() {
    let world = World::new();
    let base = world.base().await;
    let first = Lease::acquire(world.context(&world.a), &base, None).await.unwrap();
    let second = Lease::acquire(world.context(&world.b), &base, None).await.unwrap();
    assert!(matches!(first, AcquireResult::Held(_)));
    assert!(matches!(second, AcquireResult::Conflict));
    assert!(matches!(
        world.try_acquire(&world.b).await,
        AcquireResult::Refused(Refusal::Held { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn work_longer_than_the_ttl_keeps_its_lease_by_heartbeats() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    world.store.take_calls();
    lease.hold_while(sleep(100)).await.unwrap();
    assert_eq!(world.store.take_calls().puts, 9, "one each ttl / 3");
    assert!(matches!(world.try_acquire(&world.b).await, AcquireResult::Refused(_)));
    assert_eq!(lease.token().0, 1, "a renewal never changes the token");
}

#[tokio::test(start_paused = true)]
async fn many_short_holds_renew_too() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    for _ in 0..30 {
        lease.hold_while(sleep(3)).await.unwrap();
    }
    assert!(matches!(world.try_acquire(&world.b).await, AcquireResult::Refused(_)));
}

#[tokio::test(start_paused = true)]
async fn work_is_stopped_after_a_takeover() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    world.meddle(|document| document.break_lease().unwrap()).await;
    let began_at = Instant::now();
    let held = lease.hold_while(sleep(100)).await;
    assert!(matches!(held, Err(LeaseError::Lost(_))), "{held:?}");
    assert_eq!(began_at.elapsed(), TTL / 3, "at the first heartbeat");
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again_until_the_deadline() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    for _ in 0..4 {
        world.store.break_next(Call::Store, Fault::Unreachable);
    }
    lease.hold_while(sleep(60)).await.unwrap();
    assert!(world.document().await.is_held_by(&lease.holder));
}

#[tokio::test(start_paused = true)]
async fn work_is_stopped_at_the_deadline_counted_from_before_the_request() {
    let world = World::new();
    // The acquisition itself takes 10 s, which are part of the ttl.
    world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(10)));
    let asked_at = Instant::now();
    let mut lease = world.acquire(&world.a).await;
    for _ in 0..100 {
        world.store.break_next(Call::Store, Fault::Unreachable);
    }
    let held = lease.hold_while(sleep(100)).await;
    assert!(matches!(held, Err(LeaseError::Lapsed)), "{held:?}");
    assert!(asked_at.elapsed() <= TTL * 9 / 10, "{:?}", asked_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn work_is_stopped_at_the_end_of_the_ticks_time() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let held = lease.hold_while(sleep(1000)).await;
    assert!(matches!(held, Err(LeaseError::OutOfTime)), "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_renewal_does_not_stall_the_work() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(4)));
    let began_at = Instant::now();
    lease.hold_while(sleep(12)).await.unwrap();
    // Ends with the renewal in the air at 10 s + 4 s, so that the commit finds its tag.
    assert_eq!(began_at.elapsed(), Duration::from_secs(14));
    let now = lease.now();
    lease.commit(commit(1, now)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_answer_is_lost_is_recognised_as_landed() {
    for fault in [Fault::LostAnswer, Fault::LostRequest, Fault::Unreachable] {
        let world = World::new();
        let mut lease = world.acquire(&world.a).await;
        let now = lease.now();
        world.store.take_calls();
        world.store.break_next(Call::Store, fault);
        lease.commit(commit(1, now)).await.unwrap();
        assert_eq!(world.store.take_calls().puts, 1, "exactly one commit under {fault:?}");
        assert_eq!(world.document().await.checkpoint.cursor, Some(at(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_whose_answer_is_lost_is_recorded_once_and_is_no_lost_lease() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let failure = Failure {
        error: "the handler answered 500".to_owned(),
        step: None,
        kind: "handler_failed",
        counted: true,
        next_attempt_at: None,
        now: lease.now(),
        tick: None,
        narrowed: None,
        pause: None,
    };
    world.store.take_calls();
    world.store.break_next(Call::Store, Fault::LostAnswer);
    lease.fail(failure).await.unwrap();
    assert_eq!(world.store.take_calls().puts, 1);
    assert!(world.document().await.lease.released_at.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_is_not_written_twice() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    world.store.take_calls();
    world.store.break_next(Call::Store, Fault::LostAnswer);
    lease.hold_while(sleep(11)).await.unwrap();
    assert_eq!(world.store.take_calls().puts, 1);
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_answer_is_lost_leaves_no_ghost_lease() {
    for fault in [Fault::LostAnswer, Fault::LostRequest, Fault::Unreachable] {
        let world = World::new();
        world.store.break_next(Call::Store, fault);
        let mut lease = world.acquire(&world.a).await;
        lease.release(None, None).await.unwrap();
        assert!(matches!(world.try_acquire(&world.b).await, AcquireResult::Held(_)), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_after_a_lost_answer_is_unknown_and_read_again() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let now = lease.now();
    world.store.break_next(Call::Store, Fault::LostAnswer);
    for _ in 0..3 {
        world.store.break_next(Call::Load, Fault::LostAnswer);
    }
    lease.commit(commit(1, now)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outcome_unknown_until_the_deadline_is_reported_as_unknown_not_as_lost() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let now = lease.now();
    world.store.break_next(Call::Store, Fault::LostAnswer);
    for _ in 0..100 {
        world.store.break_next(Call::Load, Fault::LostAnswer);
    }
    let began_at = Instant::now();
    let committed = lease.commit(commit(1, now)).await;
    // The lease may be relied on for nine tenths of its life, less the last pause between two reads.
    assert!(began_at.elapsed() > TTL * 2 / 3, "given up after {:?}", began_at.elapsed());
    let is_unknown = matches!(committed, Err(LeaseError::Store(StoreError::Unknown { .. })));
    assert!(is_unknown, "{committed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_between_two_writes_of_the_holder_does_not_cost_it_the_lease() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    world.meddle(pause).await;
    let now = lease.now();
    lease.commit(commit(1, now)).await.unwrap();
    let document = world.document().await;
    assert_eq!(document.checkpoint.cursor, Some(at(1)));
    assert!(document.paused.is_some(), "the pause is kept");
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_landed_before_a_pause_is_still_recognised() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let now = lease.now();
    world.store.break_next(Call::Store, Fault::LostAnswer);
    world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(1)));
    let meddling = async {
        sleep_briefly().await;
        world.meddle(pause).await;
    };
    let (committed, ()) = tokio::join!(lease.commit(commit(1, now)), meddling);
    committed.unwrap();
    assert_eq!(world.document().await.checkpoint.cursor, Some(at(1)));
}

async fn sleep_briefly() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

#[tokio::test(start_paused = true)]
async fn an_own_late_renewal_does_not_cost_the_holder_its_commit() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    // The renewal is given up, and lands only after the work has ended.
    world.store.break_next(Call::Store, Fault::Late(Duration::from_secs(3)));
    for _ in 0..5 {
        world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(15)));
    }
    lease.hold_while(sleep(11)).await.unwrap();
    sleep(5).await;
    let now = lease.now();
    lease.commit(commit(1, now)).await.unwrap();
    assert_eq!(world.document().await.checkpoint.cursor, Some(at(1)));
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_lease_without_a_successor_still_commits() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    sleep(500).await;
    let now = lease.now();
    lease.commit(commit(1, now)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stale_holder_can_never_move_the_checkpoint() {
    let world = World::new();
    let mut stale = world.acquire(&world.a).await;
    sleep(33).await;
    let fresh = world.acquire(&world.b).await;
    let now = stale.now();
    let committed = stale.commit(commit(1, now)).await;
    assert!(matches!(committed, Err(LeaseError::Lost(_))), "{committed:?}");
    assert_eq!(world.document().await.checkpoint.cursor, None);
    assert!(world.document().await.is_held_by(&fresh.holder));
}

#[tokio::test(start_paused = true)]
async fn a_late_write_of_a_former_holder_never_lands() {
    let world = World::new();
    let mut stale = world.acquire(&world.a).await;
    let now = stale.now();
    world.store.break_next(Call::Store, Fault::Late(Duration::from_secs(60)));
    for _ in 0..100 {
        world.store.break_next(Call::Load, Fault::LostAnswer);
    }
    stale.commit(commit(1, now)).await.unwrap_err();
    sleep(33).await;
    let base = world.base().await;
    let taken = Lease::acquire(world.context(&world.b), &base, None).await.unwrap();
    assert!(matches!(taken, AcquireResult::Held(_)));
    sleep(100).await;
    assert_eq!(world.document().await.checkpoint.cursor, None);
}

#[tokio::test(start_paused = true)]
async fn a_removed_document_is_reported_as_gone_and_not_created_again() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    world.memory.lose(&world.key);
    let now = lease.now();
    let committed = lease.commit(commit(1, now)).await;
    assert!(matches!(committed, Err(LeaseError::Gone)), "{committed:?}");
    assert!(world.memory.load(&world.key).await.unwrap().stored.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_marker_rides_on_the_next_write() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    lease.mark();
    assert!(!world.document().await.marked);
    lease.release(None, None).await.unwrap();
    assert!(world.document().await.marked);
}

#[tokio::test(start_paused = true)]
async fn the_storage_clock_is_known_without_a_request() {
    let world = World::new();
    let lease = world.acquire(&world.a).await;
    let before = lease.now();
    sleep(42).await;
    assert_eq!(lease.now() - before, time::Duration::seconds(42));
}

#[test]
fn a_heartbeat_comes_before_half_of_the_ttl_and_the_deadline_after_it() {
    for ttl in [Duration::from_millis(1), Duration::from_secs(2), TTL, Duration::from_secs(86_400)]
    {
        let terms = LeaseTerms::of(ttl);
        assert!(terms.heartbeat_interval < ttl / 2, "{terms:?}");
        assert!(
            terms.heartbeat_interval * 2 + terms.margin < ttl,
            "one renewal may fail: {terms:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_challenger_adds_the_time_since_its_read() {
    let world = World::new();
    world.acquire(&world.a).await;
    let read_once = world.base().await;
    for (seconds, lapsed) in [(31, false), (1, true)] {
        sleep(seconds).await;
        let asked = Lease::acquire(world.context(&world.b), &read_once, None).await.unwrap();
        assert_eq!(matches!(asked, AcquireResult::Held(_)), lapsed, "ttl 30 s and a margin of 2 s");
    }
    // Had the holder written meanwhile, the write under the old tag would have been refused.
    let stale = Lease::acquire(world.context(&world.a), &read_once, None).await.unwrap();
    assert!(matches!(stale, AcquireResult::Conflict));
}

#[tokio::test(start_paused = true)]
async fn work_is_stopped_at_the_deadline_while_a_renewal_hangs() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(10_000)));
    let began_at = Instant::now();
    let held = lease.hold_while(sleep(1_000)).await;
    assert!(matches!(held, Err(LeaseError::Lapsed)), "{held:?}");
    assert_eq!(began_at.elapsed(), Duration::from_secs(27), "ttl 30 s and a margin of 3 s");
}

#[tokio::test(start_paused = true)]
async fn source_state_is_written_once() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let state = |mark: u64| SourceState::from_iter([("mark".to_owned(), serde_json::json!(mark))]);
    let deadline = lease.deadline();
    lease.remember(Some(state(7)));
    lease.renew(None, deadline).await.unwrap();
    assert_eq!(world.document().await.source_state, state(7));
    // An operator's change comes between, and no later write may undo it.
    world.meddle(|found| StateDocument { source_state: state(9), ..found.clone() }).await;
    lease.renew(None, deadline).await.unwrap();
    lease.release(None, None).await.unwrap();
    assert_eq!(world.document().await.source_state, state(9));
}

#[tokio::test(start_paused = true)]
async fn source_state_is_written_without_undoing_a_loss() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let age = DocumentAge { since_write: Duration::ZERO, grain: Duration::ZERO };
    world.meddle(|found| found.losing_position("numbers were taken back", age)).await;
    lease.remember(Some(SourceState::from_iter([("mark".to_owned(), serde_json::json!(7))])));
    lease.release(None, None).await.unwrap();
    let document = world.document().await;
    assert_eq!(document.lost_position(), Some("numbers were taken back"));
    assert_eq!(document.source_state["mark"], 7);
}

#[tokio::test(start_paused = true)]
async fn work_does_not_start_after_the_deadline() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    // As after a freeze, or a write whose answer took its time.
    sleep(TTL.as_secs()).await;
    let mut began = false;
    let held = lease.hold_while(async { began = true }).await;
    assert!(matches!(held, Err(LeaseError::Lapsed)), "{held:?}");
    assert!(!began);
}
