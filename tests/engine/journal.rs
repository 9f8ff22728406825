//! What a journal records about ticks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::admin::CompactResult;
use highwater_engine::document::{Fence, FencingToken, Generation, StaleWrite};
use highwater_engine::handler::chain::Chain;
use highwater_engine::handler::{HandlerError, Step};
use highwater_engine::journal::{
    Appended, EventKind, JournalMode, JournalStore, MemoryJournal, Part, Verdict,
};
use highwater_engine::policy::{FailurePolicy, OnFailure};
use highwater_engine::poller::{Limits, Operator, TickOutcome};
use highwater_engine::store::StoreError;
use highwater_engine::testing::{
    Call, Fault, JournaledWorld, SteadyHandler, TableSource, WatchedWorld, World, admin,
    break_lease, calls, limits, sleep, tick,
};
use tokio::time::Instant;

use EventKind::{
    BatchComplete, ExecutionStarted, HandlerFailed, LeaseAcquired, LeaseReleased, RowQuarantined,
    StaleWriteBlocked,
};

#[tokio::test(start_paused = true)]
async fn a_tick_that_delivered_appends_once_and_an_idle_tick_does_not() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = journaled.instance("a");
    journaled.world.source.fill(25);
    tick(&poller).await.unwrap();
    let recorded = [
        LeaseAcquired,
        ExecutionStarted,
        BatchComplete,
        ExecutionStarted,
        BatchComplete,
        ExecutionStarted,
        BatchComplete,
    ];
    assert_eq!(journaled.events().await, recorded);
    journaled.assert_complete().await;
    tick(&poller).await.unwrap();
    assert_eq!(journaled.events().await.len(), recorded.len(), "an idle tick records nothing");
    let batches = journaled.entries().await;
    let ranges: Vec<_> = batches.iter().filter(|entry| entry.event == BatchComplete).collect();
    assert_eq!(ranges[1].details.after, ranges[0].details.upto);
    assert_eq!(ranges[1].details.rows, Some(10));
    assert!(ranges.iter().all(|entry| entry.details.digest.is_some()));
    assert_eq!(ranges[2].details.outcome.as_deref(), Some("tick_complete"));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_with_a_journal_add_one_append_per_active_tick() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let (world, journal) = (&journaled.world, &journaled.journal);
    let poller = journaled.of(world.started_poller("a").await);
    world.source.fill(25);
    tick(&poller).await.unwrap();
    assert_eq!((world.store.take_calls(), journal.take_appends()), (calls(0, 4, 0), 1), "batches");
    tick(&poller).await.unwrap();
    assert_eq!((world.store.take_calls(), journal.take_appends()), (calls(0, 0, 0), 0), "idle");
    world.source.fill(1);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    assert_eq!((world.store.take_calls(), journal.take_appends()), (calls(0, 2, 0), 1), "failure");
    sleep(5).await;
    tick(&poller).await.unwrap();
    world.store.take_calls();
    journal.take_appends();

    let step = |name: &str| Step { name: name.to_owned(), handler: world.handler.clone() };
    let chain = Chain::new(vec![step("first"), step("second"), step("third")]);
    let poller = journaled.of(world.with_handler(Arc::new(chain)).instance("a"));
    tick(&poller).await.unwrap();
    world.store.take_calls();
    world.source.fill(3);
    tick(&poller).await.unwrap();
    assert_eq!(
        (world.store.take_calls(), journal.take_appends()),
        (calls(1, 4, 0), 1),
        "chain, and its first lease"
    );
    assert!(journaled.events().await.contains(&EventKind::StepComplete));
    journaled.assert_complete().await;
}

/// A third of [`TTL`].
const HEARTBEAT: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn a_long_tick_is_one_append_for_each_heartbeat_interval() {
    // One batch of 35 s records nothing after the first interval except its end. With eight batches of 4 s
    // something is recorded in each interval, though the lease is never renewed: commits count as renewals.
    for (batches, each, appends) in [(1, 35, 2), (8, 4, 4)] {
        let journaled = JournaledWorld::new(JournalMode::Full);
        let poller = journaled.of(journaled.world.started_poller("a").await);
        journaled.world.source.fill(batches * 10);
        for _ in 0..batches {
            journaled.world.handler.then_take(Duration::from_secs(each));
        }
        tick(&poller).await.unwrap();
        assert_eq!(journaled.journal.take_appends(), appends, "{batches} batches");
        journaled.assert_complete().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_journal_of_a_killed_tick_rebuilds_everything_committed() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    journaled.world.source.fill(80);
    for _ in 0..8 {
        journaled.world.handler.then_take(Duration::from_secs(4));
    }
    let a = journaled.instance("a");
    // In the eighth batch of its first tick.
    assert!(tokio::time::timeout(HEARTBEAT * 3 + Duration::from_secs(1), tick(&a)).await.is_err());
    drop(a);
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
    let before = journaled.world.document().await;
    journaled.world.overwrite(b"{").await;
    let b = journaled.instance("b");
    let examined = admin(&b).examine().await.unwrap();
    let operator = Operator { by: "eve@laptop", reason: "why" };
    let history = examined.history().unwrap();
    admin(&b).restore(history, &examined.present, (EventKind::Rebuilt, operator)).await.unwrap();
    assert_eq!(journaled.world.document().await.checkpoint, before.checkpoint);
    tick(&b).await.unwrap();
    let ids = journaled.world.handler.ids();
    assert_eq!(
        (ids.len(), &ids[70..80]),
        (90, &ids[80..90]),
        "only the eighth batch is redelivered"
    );
    journaled.assert_complete().await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_append_delays_no_renewal_and_no_commit() {
    let world = World::new();
    let journal = Arc::new(Refusing::default());
    journal.hangs.store(true, Ordering::Relaxed);
    let poller = world.instance("a").with_journal(JournalMode::Full, journal.clone(), None);
    world.source.fill(50);
    for _ in 0..5 {
        world.handler.then_take(Duration::from_secs(4));
    }
    let began_at = Instant::now();
    // Started after 10 s and abandoned after 15 s.
    let answers = async {
        while world.handler.finished() < 4 {
            sleep(1).await;
        }
        journal.hangs.store(false, Ordering::Relaxed);
    };
    let (outcome, ()) = tokio::join!(tick(&poller), answers);
    assert_eq!(outcome.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(began_at.elapsed(), Duration::from_secs(20), "five batches of 4 s");
    // Later entries build on the missing one, so they were appended with a snapshot.
    assert_eq!(admin(&poller).examine().await.unwrap().verdict, Verdict::Agrees);
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_is_dropped_during_an_append_leaves_no_gap_after_the_next_entry() {
    let world = World::new();
    let journal = Arc::new(Refusing::default());
    journal.hangs.store(true, Ordering::Relaxed);
    let poller = world.instance("a").with_journal(JournalMode::Full, journal.clone(), None);
    world.source.fill(1);
    world.handler.then_take(Duration::from_secs(60));
    assert!(tokio::time::timeout(HEARTBEAT + HEARTBEAT / 4, tick(&poller)).await.is_err());
    journal.hangs.store(false, Ordering::Relaxed);
    tick(&poller).await.unwrap();
    assert_eq!(admin(&poller).examine().await.unwrap().verdict, Verdict::Agrees);
}

/// A journal that accepts nothing, or does not respond, for as long as the test requests.
#[derive(Debug, Default)]
struct Refusing {
    memory: MemoryJournal,
    refuses: AtomicBool,
    hangs: AtomicBool,
}

#[async_trait]
impl JournalStore for Refusing {
    async fn append(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError> {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.refuses.load(Ordering::Relaxed) {
            let (key, reason) = (part.to_string(), "403".to_owned());
            return Err(StoreError::Refused { key, reason });
        }
        self.memory.append(part, position, bytes).await
    }

    async fn length(&self, part: &Part) -> Result<u64, StoreError> {
        self.memory.length(part).await
    }

    async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
        self.memory.read(part, position).await
    }

    async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
        self.memory.list(poller).await
    }

    async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError> {
        self.memory.remove(part, length).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_append_does_not_fail_the_tick_and_is_reported() {
    let watched = WatchedWorld::of(World::new());
    let (world, journal) = (&watched.world, Arc::new(Refusing::default()));
    let poller = world.instance("a").with_journal(JournalMode::Full, journal.clone(), None);
    let mut ends = Vec::new();
    for refuses in [false, true, false] {
        journal.refuses.store(refuses, Ordering::Relaxed);
        world.source.fill(1);
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
        ends.push(admin(&poller).examine().await.unwrap());
    }
    let verdicts: Vec<_> = ends.iter().map(|examined| examined.verdict.clone()).collect();
    let behind = Verdict::Behind { from: 3, to: 4 };
    assert_eq!(verdicts, [Verdict::Agrees, behind, Verdict::Agrees]);
    assert_eq!(watched.counted("highwater.journal.append_failures", None), 1);
    assert_eq!(watched.logged("journal_append_failed")["entries"], "3");
    let named: Vec<_> = ends[2].findings().iter().map(ToString::to_string).collect();
    assert!(named.len() == 1 && named[0].starts_with("writes 3 to 4 of generation"), "{named:?}");
    let history = admin(&poller).history(None).await.unwrap();
    let snapshots = history.entries().filter(|entry| entry.document.is_some());
    assert_eq!(snapshots.map(|entry| entry.seq).collect::<Vec<_>>(), [1, 5]);
}

/// An hour in which a status note is due at most every second.
fn noting(mode: JournalMode, source: TableSource) -> JournaledWorld {
    let limits = Limits {
        status_interval: Duration::from_secs(1),
        state_refresh: Duration::from_secs(3_600),
        ..limits()
    };
    JournaledWorld::in_world(World::with(limits).with_source(source), mode)
}

fn ask(world: &World, mark: &str, at_once: bool) {
    let state =
        highwater_engine::cursor::SourceState::from_iter([("mark".to_owned(), mark.into())]);
    world.source.ask_to_remember(Some(highwater_engine::source::RetainedState { state, at_once }));
}

#[tokio::test(start_paused = true)]
async fn source_state_written_by_an_idle_tick_is_recorded() {
    for at_once in [true, false] {
        let journaled = noting(JournalMode::Full, TableSource::new("p"));
        let poller = journaled.instance("a");
        journaled.world.source.fill(1);
        tick(&poller).await.unwrap();
        let recorded = journaled.events().await.len();
        sleep(2).await;
        ask(&journaled.world, "1", at_once);
        tick(&poller).await.unwrap();
        assert!(!journaled.world.source_state().await.is_empty(), "it is written");
        journaled.assert_complete().await;
        assert_eq!(journaled.events().await[recorded..], [EventKind::Noted], "at once: {at_once}");
        // A note without changes has no number and no entry.
        let seq = journaled.world.document().await.journal_seq;
        for _ in 0..3 {
            sleep(2).await;
            tick(&poller).await.unwrap();
        }
        assert_eq!(journaled.world.document().await.journal_seq, seq);
        assert_eq!(journaled.events().await.len(), recorded + 1);
        assert_eq!(journaled.verdict().await, Verdict::Agrees);
    }
}

#[tokio::test(start_paused = true)]
async fn idle_ticks_counted_with_a_note_are_recorded() {
    let journaled = noting(JournalMode::Full, TableSource::new("p"));
    let poller = journaled.instance("a");
    journaled.world.source.fill(1);
    tick(&poller).await.unwrap();
    ask(&journaled.world, "1", false);
    tick(&poller).await.unwrap();
    assert!(journaled.world.source_state().await.is_empty(), "not written yet");
    sleep(2).await;
    tick(&poller).await.unwrap();
    assert!(!journaled.world.source_state().await.is_empty());
    journaled.assert_complete().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_document_that_an_idle_tick_creates_is_recorded() {
    let journaled = noting(JournalMode::Full, TableSource::new("p"));
    ask(&journaled.world, "1", true);
    tick(&journaled.instance("a")).await.unwrap();
    assert_eq!(journaled.events().await, [EventKind::Noted]);
    journaled.assert_complete().await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_window_that_an_idle_tick_drops_is_recorded() {
    let journaled = noting(JournalMode::Full, TableSource::new("p").by_time());
    let poller = journaled.instance("a").with_audit_after(Duration::from_secs(3));
    journaled.world.source.fill(2);
    tick(&poller).await.unwrap();
    assert_eq!(journaled.world.document().await.audit.windows.len(), 1);
    sleep(5).await;
    tick(&poller).await.unwrap();
    assert_eq!(journaled.world.document().await.audit.windows.len(), 0);
    journaled.assert_complete().await;
}

#[tokio::test(start_paused = true)]
async fn notes_have_no_number_if_only_commits_are_recorded() {
    let journaled = noting(JournalMode::Commits, TableSource::new("p"));
    let poller = journaled.instance("a");
    journaled.world.source.fill(1);
    tick(&poller).await.unwrap();
    let recorded = journaled.events().await;
    ask(&journaled.world, "1", true);
    tick(&poller).await.unwrap();
    assert_eq!(journaled.events().await, recorded);
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
}

/// A renewal has no number, but it may record that the marker exists.
#[tokio::test(start_paused = true)]
async fn changes_written_with_a_renewal_are_recorded() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    journaled.world.source.fill(1);
    journaled.world.handler.then_take(Duration::from_secs(100));
    tick(&journaled.instance("a")).await.unwrap();
    let recorded = [LeaseAcquired, ExecutionStarted, EventKind::Noted, BatchComplete];
    assert_eq!(journaled.events().await, recorded);
    journaled.assert_complete().await;
}

#[tokio::test(start_paused = true)]
async fn only_commits_are_recorded_in_mode_commits() {
    let journaled = JournaledWorld::new(JournalMode::Commits);
    let poller = journaled.instance("a");
    journaled.world.source.fill(15);
    tick(&poller).await.unwrap();
    assert_eq!(journaled.events().await, [BatchComplete, BatchComplete]);
    journaled.world.source.fill(1);
    journaled.world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    assert_eq!(journaled.events().await.len(), 2);
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
}

#[tokio::test(start_paused = true)]
async fn a_poller_keeps_no_journal_unless_configured() {
    let journaled = JournaledWorld::new(JournalMode::Off);
    journaled.world.source.fill(1);
    tick(&journaled.instance("a")).await.unwrap();
    tick(&journaled.world.instance("b")).await.unwrap();
    assert_eq!(journaled.events().await, []);
    assert_eq!(journaled.world.document().await.journal_seq, 0);
}

#[tokio::test(start_paused = true)]
async fn a_failure_a_rejection_and_a_pause_are_recorded_with_their_reasons() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = journaled.instance("a");
    journaled.world.source.fill(1);
    journaled.world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    assert_eq!(journaled.events().await, [LeaseAcquired, ExecutionStarted, HandlerFailed]);
    let failed = journaled.entries().await.pop().unwrap().details;
    assert_eq!((failed.attempt, failed.rows), (Some(1), Some(1)));
    assert!(failed.error.unwrap().contains("503"));
    journaled.assert_complete().await;
    sleep(5).await;
    journaled.world.handler.then_fail(HandlerError::Gone("410".to_owned()));
    tick(&poller).await.unwrap_err();
    assert_eq!(journaled.events().await.last(), Some(&LeaseReleased));
    journaled.assert_complete().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_by_a_tick_is_recorded_even_if_failures_are_not() {
    let gone = || HandlerError::Gone("410".to_owned());
    let stops =
        FailurePolicy { on_failure: OnFailure::Stop, attempts_max: 1, ..FailurePolicy::default() };
    for (policy, error) in
        [(FailurePolicy::default(), gone()), (stops, HandlerError::Retryable("503".to_owned()))]
    {
        let mut journaled = JournaledWorld::new(JournalMode::Commits);
        journaled.world.policy = policy;
        let poller = journaled.instance("a");
        journaled.world.source.fill(1);
        journaled.world.handler.then_fail(error);
        tick(&poller).await.unwrap_err();
        assert_eq!(journaled.events().await, [EventKind::Paused]);
        journaled.assert_complete().await;
    }
}

#[tokio::test(start_paused = true)]
async fn rows_committed_by_a_renewal_are_recorded_like_any_commit() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    journaled.world.source.fill(10);
    let handler = Arc::new(SteadyHandler::default());
    let poller = journaled.of(journaled.world.with_handler(handler.clone()).instance("a"));
    tick(&poller).await.unwrap();
    let recorded = journaled.events().await;
    assert!(recorded.iter().filter(|event| **event == BatchComplete).count() > 2, "{recorded:?}");
    journaled.assert_complete().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_leaves_a_gap_that_the_next_owner_closes() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    journaled.world.source.fill(1);
    let a = journaled.instance("a");
    tick(&a).await.unwrap();
    journaled.world.source.fill(1);
    journaled.world.handler.then_take(Duration::from_secs(60));
    let crashed = tokio::time::timeout(Duration::from_secs(5), tick(&a)).await;
    assert!(crashed.is_err());
    drop(a);
    assert_eq!(journaled.verdict().await, Verdict::Behind { from: 3, to: 3 });
    sleep(120).await;
    tick(&journaled.instance("b")).await.unwrap();
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
    let findings = journaled.folded().await.findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].to_string().contains("write 3 of generation"), "{findings:?}");
}

#[tokio::test(start_paused = true)]
async fn verify_explains_what_a_crashed_or_failed_first_tick_leaves() {
    for (mode, writes) in [(JournalMode::Full, 1), (JournalMode::Commits, 0)] {
        let journaled = JournaledWorld::new(mode);
        journaled.world.source.fill(1);
        journaled.world.handler.then_take(Duration::from_secs(60));
        let a = journaled.instance("a");
        assert!(tokio::time::timeout(Duration::from_secs(5), tick(&a)).await.is_err());
        drop(a);
        let b = journaled.instance("b");
        let verdict = admin(&b).examine().await.unwrap().verdict;
        assert_eq!(verdict, Verdict::NotBegun { writes });
        assert!(verdict.is_explained());
        sleep(120).await;
        tick(&b).await.unwrap();
        assert_eq!(admin(&b).examine().await.unwrap().verdict, Verdict::Agrees, "{mode:?}");
    }
    let journaled = JournaledWorld::new(JournalMode::Commits);
    let poller = journaled.instance("a");
    journaled.world.source.fill(1);
    journaled.world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    let verdict = admin(&poller).examine().await.unwrap().verdict;
    assert_eq!(verdict, Verdict::NotBegun { writes: 0 });
}

/// Removes the whole journal.
async fn remove_all(journaled: &JournaledWorld) {
    for part in journaled.journal.list("p").await.unwrap() {
        journaled.journal.remove(&part, None).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_journal_is_distinguished_from_one_that_never_started() {
    for mode in [JournalMode::Full, JournalMode::Commits] {
        let journaled = JournaledWorld::new(mode);
        let poller = journaled.instance("a");
        journaled.world.source.fill(1);
        tick(&poller).await.unwrap();
        assert!(!journaled.world.document().await.journal_told, "nothing was appended before");
        journaled.world.source.fill(1);
        tick(&poller).await.unwrap();
        remove_all(&journaled).await;
        let writes = journaled.world.document().await.journal_seq;
        let verdict = admin(&journaled.instance("b")).examine().await.unwrap().verdict;
        assert_eq!(verdict, Verdict::Removed { writes }, "{mode:?}");
        assert!(!verdict.is_explained());
        // It restarts with the current document.
        let operator = Operator { by: "eve@laptop", reason: "why" };
        let begun = admin(&journaled.instance("b")).compact(operator).await.unwrap();
        assert!(matches!(begun, CompactResult::Compacted { .. }), "{begun:?}");
        assert_eq!(journaled.verdict().await, Verdict::Agrees, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_responses_and_concurrent_writes_leave_no_gap() {
    for fault in [Fault::LostAnswer, Fault::LostRequest, Fault::Unreachable] {
        for put in 0..3 {
            let journaled = JournaledWorld::new(JournalMode::Full);
            let poller = journaled.instance("a");
            journaled.world.source.fill(1);
            tick(&poller).await.unwrap();
            journaled.world.source.fill(25);
            for _ in 0..put {
                journaled.world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
            }
            journaled.world.store.break_next(Call::Store, fault);
            tick(&poller).await.unwrap();
            journaled.assert_complete().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_instances_write_one_journal() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let (a, b) = (journaled.instance("a"), journaled.instance("b"));
    for round in 0..6 {
        journaled.world.source.fill(3);
        let poller = if round % 2 == 0 { &a } else { &b };
        tick(poller).await.unwrap();
        journaled.assert_complete().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_owner_reports_that_it_was_rejected() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = journaled.instance("a");
    journaled.world.source.fill(1);
    tick(&poller).await.unwrap();
    journaled.world.source.fill(1);
    let current = Fence { generation: Generation(9), token: FencingToken(9) };
    let rejected = StaleWrite { stale: Fence::default(), current };
    let memory = journaled.world.memory.clone();
    journaled.world.handler.then(async move {
        break_lease(&memory).await;
        Err(HandlerError::Fenced(rejected))
    });
    tick(&poller).await.unwrap_err();
    assert_eq!(journaled.events().await.last(), Some(&StaleWriteBlocked));
}

#[tokio::test(start_paused = true)]
async fn a_quarantined_row_is_recorded_with_its_reason() {
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let journaled = JournaledWorld::in_world(World::new().with_policy(policy), JournalMode::Full);
    let poller = journaled.instance("a");
    journaled.world.source.fill(1);
    journaled.world.handler.then_fail(HandlerError::Rejected("400".to_owned()));
    tick(&poller).await.unwrap();
    let entries = journaled.entries().await;
    let aside = entries.iter().find(|entry| entry.event == RowQuarantined).unwrap();
    assert_eq!(aside.details.reason.as_deref(), Some("refused"));
    journaled.assert_complete().await;
}

#[tokio::test(start_paused = true)]
async fn operator_actions_are_recorded_between_ticks() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = journaled.instance("a");
    journaled.world.source.fill(1);
    tick(&poller).await.unwrap();
    let by_hand = journaled.instance("operator");
    let operator = Operator { by: "eve@laptop", reason: "why" };
    admin(&by_hand).pause(operator).await.unwrap();
    journaled.assert_complete().await;
    admin(&by_hand).resume(operator).await.unwrap();
    journaled.assert_complete().await;
    journaled.world.source.fill(1);
    tick(&poller).await.unwrap();
    journaled.assert_complete().await;
    let entries = journaled.entries().await;
    let paused = entries.iter().find(|entry| entry.event == EventKind::Paused).unwrap();
    assert_eq!(paused.details.by.as_deref(), Some("eve@laptop"));
}
