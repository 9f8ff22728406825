//! The next handler call overlaps the pending commit of the previous batch.

use std::sync::Arc;
use std::time::Duration;

use highwater_engine::document::decode;
use highwater_engine::handler::HandlerError;
use highwater_engine::journal::{EventKind, JournalMode, Verdict};
use highwater_engine::lease::LeaseError;
use highwater_engine::policy::{FailurePolicy, Flow, OnFailure};
use highwater_engine::poller::{Limits, Poller, StopSignal, TickError, TickOutcome};
use highwater_engine::store::{StateKey, StateStore};
use highwater_engine::testing::{
    Call, Fault, FaultyStore, JournaledWorld, World, break_lease, calls, killed_after, limits,
    sleep, tick, timed_tick,
};
use highwater_engine::tick::TickRequest;
use tokio::time::Instant;

/// How long each commit takes here.
const COMMIT: Duration = Duration::from_secs(4);
const WORK: Duration = Duration::from_secs(5);

fn overlapping(poller: Poller) -> Poller {
    poller.with_flow(Flow { overlap_commit: true, ..Flow::default() })
}

/// Lets the next handler call run `before`, and take a second.
fn then_first(world: &World, before: impl FnOnce(&FaultyStore) + Send + 'static) {
    let store = world.store.clone();
    world.handler.then(async move {
        before(&store);
        sleep(1).await;
        Ok(())
    });
}

/// Returns the ids of all deliveries except the warm-up one.
fn calls_of(world: &World) -> Vec<Vec<i64>> {
    world.handler.received().into_iter().skip(1).map(|call| call.ids).collect()
}

fn ids(range: std::ops::RangeInclusive<i64>) -> Vec<i64> {
    range.collect()
}

#[tokio::test(start_paused = true)]
async fn a_commit_overlaps_the_next_handler_call_at_no_extra_storage_call() {
    for overlap in [true, false] {
        let world = World::new();
        let poller = world.started_poller("a").await;
        let poller = if overlap { overlapping(poller) } else { poller };
        world.source.fill(30);
        let store = world.store.clone();
        world.handler.then(async move {
            store.slow_down(3, COMMIT);
            tokio::time::sleep(WORK).await;
            Ok(())
        });
        world.handler.then_take(WORK).then_take(WORK);
        let (report, took) = timed_tick(&poller).await;
        assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
        assert_eq!((report.rows, report.batches), (30, 3));
        let commits = if overlap { COMMIT } else { 3 * COMMIT };
        assert_eq!(took, 3 * WORK + commits, "{overlap}");
        assert_eq!(world.store.take_calls(), calls(0, 4, 0), "{overlap}");
        assert_eq!(world.handler.ids().split_off(1), ids(1..=30));
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_sent_only_after_the_previous_one_is_confirmed() {
    let world = World::new();
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(30);
    then_first(&world, |store| store.slow_down(3, COMMIT));
    let (memory, began_at) = (world.memory.clone(), Instant::now());
    world.handler.then_take(Duration::from_secs(1));
    world.handler.then(async move {
        // The second handler call finished three seconds ago.
        assert_eq!(began_at.elapsed(), Duration::from_secs(5));
        let key = StateKey::Document("p".to_owned());
        let stored = memory.load(&key).await.unwrap().stored.unwrap();
        let in_flight = decode("p", &stored.bytes).unwrap().in_flight.unwrap();
        assert_eq!((in_flight.rows, in_flight.attempt), (10, 0), "the second is announced");
        Ok(())
    });
    let (report, took) = timed_tick(&poller).await;
    assert_eq!(report.rows, 30);
    assert_eq!(took, Duration::from_secs(1) + 3 * COMMIT);
    assert_eq!(world.store.take_calls(), calls(0, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_commit_drops_the_next_handler_call_at_once() {
    let world = World::new();
    let (a, b) = (overlapping(world.started_poller("a").await), world.instance("b"));
    world.source.fill(20);
    let (store, memory) = (world.store.clone(), world.memory.clone());
    world.handler.then(async move {
        store.slow_down(1, COMMIT);
        break_lease(&memory).await;
        Ok(())
    });
    world.handler.then_take(Duration::from_secs(10));
    let (report, took) = timed_tick(&a).await;
    assert!(matches!(report.result, Err(TickError::LeaseLost(LeaseError::Lost(_)))), "{report:?}");
    assert_eq!((report.rows, took), (0, COMMIT));
    assert_eq!(world.handler.finished(), 2, "the second batch's call was dropped");
    assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
    let [first, second] = [ids(1..=10), ids(11..=20)];
    assert_eq!(calls_of(&world), [first.clone(), second.clone(), first, second]);
}

#[tokio::test(start_paused = true)]
async fn a_result_is_not_committed_if_the_commit_before_it_failed() {
    let world = World::new();
    let (a, b) = (overlapping(world.started_poller("a").await), world.instance("b"));
    world.source.fill(20);
    then_first(&world, |store| {
        // Its outcome is checked long enough for the second call to end, and is then a rejection.
        store.break_next(Call::Store, Fault::LostRequest);
        store.break_next(Call::Load, Fault::Slow(WORK));
        store.break_next(Call::Store, Fault::Refused);
    });
    let (report, _) = timed_tick(&a).await;
    assert!(matches!(report.result, Err(TickError::Commit(_))), "{report:?}");
    assert_eq!((report.rows, world.handler.finished()), (0, 3), "both were handled");
    sleep(40).await;
    assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
    let [first, second] = [ids(1..=10), ids(11..=20)];
    assert_eq!(calls_of(&world), [first.clone(), second.clone(), first, second]);
}

#[tokio::test(start_paused = true)]
async fn the_next_handler_call_is_bound_by_the_confirmed_lease_not_the_pending_one() {
    let world = World::new();
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(20);
    // 27 s of the 30 are usable, counted from the acquisition.
    then_first(&world, |store| {
        store.break_next(Call::Store, Fault::Slow(Duration::from_secs(28)));
    });
    let (dropped, request) = (Arc::new(()), TickRequest::default());
    let held = Arc::clone(&dropped);
    world.handler.then(async move {
        sleep(100).await;
        drop(held);
        Ok(())
    });
    let watch = async {
        sleep(26).await;
        let before = Arc::strong_count(&dropped);
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        (before, Arc::strong_count(&dropped))
    };
    let (report, counts) = tokio::join!(poller.tick(&request), watch);
    assert_eq!(counts, (2, 1), "the work is dropped after 27 s, the commit continues");
    assert!(matches!(report.result, Err(TickError::LeaseLost(LeaseError::Lapsed))), "{report:?}");
    assert_eq!((report.rows, world.handler.finished()), (10, 2), "the commit landed all the same");
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(calls_of(&world), [ids(1..=10), ids(11..=20), ids(11..=20)]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_response_is_lost_does_not_affect_the_next_handler_call() {
    let world = World::new();
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(20);
    then_first(&world, |store| {
        store.break_next(Call::Store, Fault::LostAnswer);
    });
    world.handler.then_take(WORK);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(calls_of(&world), [ids(1..=10), ids(11..=20)]);
    assert_eq!(world.store.take_calls(), calls(1, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn after_a_commit_found_landed_under_a_newer_lease_the_next_handler_is_dropped() {
    let world = World::new();
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(20);
    then_first(&world, |store| {
        store.break_next(Call::Store, Fault::LostAnswer);
        store.break_next(Call::Load, Fault::Slow(WORK));
    });
    let memory = world.memory.clone();
    world.handler.then(async move {
        sleep(1).await;
        break_lease(&memory).await;
        sleep(100).await;
        Ok(())
    });
    let (report, took) = timed_tick(&poller).await;
    assert!(matches!(report.result, Err(TickError::LeaseLost(LeaseError::Lost(_)))), "{report:?}");
    assert_eq!(report.rows, 10, "the checkpoint did move");
    assert_eq!((took, world.handler.finished()), (Duration::from_secs(1) + WORK, 2));
    assert_eq!(tick(&world.instance("b")).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(calls_of(&world), [ids(1..=10), ids(11..=20), ids(11..=20)]);
}

#[tokio::test(start_paused = true)]
async fn an_overlapping_handler_failure_is_processed_after_the_commit() {
    let world = World::new();
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(20);
    then_first(&world, |store| store.slow_down(1, COMMIT));
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    let (report, took) = timed_tick(&poller).await;
    assert!(matches!(report.result, Err(TickError::Handler(_))), "{report:?}");
    assert_eq!((report.rows, report.batches), (10, 1));
    assert_eq!(took, Duration::from_secs(1) + COMMIT);
    let document = world.document().await;
    let in_flight = document.in_flight.unwrap();
    assert_eq!((in_flight.rows, in_flight.attempt), (10, 1));
    assert_eq!(Some(in_flight.after), Some(document.checkpoint.cursor));
    assert!(document.lease.released_at.is_some());
    sleep(2).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(calls_of(&world), [ids(1..=10), ids(11..=20), ids(11..=20)]);
    let received = world.handler.received();
    let [first, again] = &received[2..] else { unreachable!("{received:?}") };
    assert_eq!(first.batch_id, again.batch_id);
    assert_eq!((first.attempt, again.attempt), (1, 2));
    assert_eq!(first.started_at, again.started_at, "as announced with the commit");
    assert!(first.started_at > received[1].started_at);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_wait_for_the_pending_commit() {
    let world = World::new();
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(20);
    then_first(&world, |store| {
        store.break_next(Call::Store, Fault::Slow(Duration::from_secs(15)));
    });
    world.handler.then_take(Duration::from_secs(24));
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    // Acquire; commit, sent after 1 s and confirmed after 16; renewals then and after 10 s; commit.
    assert_eq!(world.store.take_calls(), calls(0, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_the_commit_and_the_in_flight_batch_finish_and_no_other_starts() {
    let world = World::new();
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(40);
    then_first(&world, |store| store.slow_down(1, COMMIT));
    let stop = StopSignal::new();
    let stopped = stop.clone();
    world.handler.then(async move {
        stopped.set();
        sleep(1).await;
        Ok(())
    });
    let report = poller.tick(&TickRequest { stop, ..TickRequest::default() }).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!((report.rows, report.batches), (20, 2));
    assert!(world.is_released().await);
    assert_eq!(calls_of(&world).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_the_handler_is_dropped_and_the_commit_is_awaited() {
    let seconds = Duration::from_secs;
    let limits = Limits { tick_time_max: seconds(2), handler_stop_after: seconds(3), ..limits() };
    let world = World::with(limits);
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(20);
    then_first(&world, |store| store.slow_down(1, COMMIT));
    world.handler.then_take(seconds(100));
    let (report, took) = timed_tick(&poller).await;
    assert!(matches!(report.result, Err(TickError::OutOfTime)), "{report:?}");
    assert_eq!(took, seconds(1) + COMMIT);
    assert_eq!((report.rows, world.handler.finished()), (10, 2));
    let document = world.document().await;
    let in_flight = document.in_flight.unwrap();
    assert_eq!(
        (in_flight.rows, in_flight.attempt),
        (10, 1),
        "not halved: it did not have a full tick"
    );
    assert!(document.lease.released_at.is_some());
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_at_most_two_batches_are_redelivered_the_first_one_alone() {
    let world = World::new();
    let (a, b) = (world.started_poller("a").await, world.instance("b"));
    world.source.fill(40);
    world.handler.then_take(Duration::from_secs(1));
    then_first(&world, |store| {
        // It never arrives, and no read that would judge it returns before the crash.
        store.break_next(Call::Store, Fault::LostRequest);
        store.break_next(Call::Load, Fault::Slow(Duration::from_secs(100)));
    });
    killed_after(10, &overlapping(a)).await;
    assert_eq!(calls_of(&world), [ids(1..=10), ids(11..=20), ids(21..=30)]);
    sleep(40).await;
    then_first(&world, |store| store.slow_down(1, COMMIT));
    let began_at = Instant::now();
    world.handler.then(async move {
        assert_eq!(
            began_at.elapsed(),
            Duration::from_secs(1) + COMMIT,
            "the first one's commit is awaited"
        );
        Ok(())
    });
    assert_eq!(tick(&overlapping(b)).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(calls_of(&world).split_off(3), [ids(11..=20), ids(21..=30), ids(31..=40)]);
    let received = world.handler.received();
    assert_eq!((received[4].attempt, received[5].attempt), (2, 1), "the crash counts once");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_crashes_the_process_is_quarantined_and_not_the_one_whose_commit_was_pending() {
    let limits = Limits { batch_rows_max: 1, ..limits() };
    let policy =
        FailurePolicy { on_failure: OnFailure::Park, crashes_max: 2, ..FailurePolicy::default() };
    let world = World::with(limits).with_policy(policy);
    world.started_poller("s").await;
    world.source.fill(3);
    // A row that crashes its process: the call never returns, and the process ends.
    let hang = || world.handler.then_take(Duration::from_secs(10_000));
    then_first(&world, |store| {
        store.break_next(Call::Store, Fault::LostRequest);
        store.break_next(Call::Load, Fault::Slow(Duration::from_secs(100)));
    });
    hang();
    killed_after(5, &overlapping(world.instance("a"))).await;
    assert_eq!(calls_of(&world), [[1], [2]]);
    for owner_id in ["b", "c"] {
        sleep(40).await;
        if owner_id == "b" {
            world.handler.then_take(Duration::from_secs(1));
        }
        hang();
        killed_after(5, &overlapping(world.instance(owner_id))).await;
    }
    assert_eq!(calls_of(&world), [[1], [2], [1], [2], [2]]);
    sleep(40).await;
    assert_eq!(
        tick(&overlapping(world.instance("d"))).await.unwrap(),
        TickOutcome::Committed { more: false }
    );
    assert_eq!(calls_of(&world).split_off(5), [[3]], "row 2 is quarantined, row 1 never was");
}

#[tokio::test(start_paused = true)]
async fn no_commit_is_overlapped_if_one_crash_may_quarantine_rows() {
    let policy = FailurePolicy { crashes_max: 1, ..FailurePolicy::default() };
    let world = World::new().with_policy(policy);
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(20);
    then_first(&world, |store| store.slow_down(2, COMMIT));
    world.handler.then_take(WORK);
    let (_, took) = timed_tick(&poller).await;
    assert_eq!(took, Duration::from_secs(1) + COMMIT + WORK + COMMIT);
}

#[tokio::test(start_paused = true)]
async fn the_commit_of_rows_that_failed_before_is_not_overlapped() {
    let world = World::new();
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(20);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    sleep(2).await;
    then_first(&world, |store| store.slow_down(2, COMMIT));
    world.handler.then_take(WORK);
    let (_, took) = timed_tick(&poller).await;
    assert_eq!(took, Duration::from_secs(1) + COMMIT + WORK + COMMIT);
}

#[tokio::test(start_paused = true)]
async fn a_pause_found_by_the_commit_lets_the_batch_in_flight_finish_and_starts_no_other() {
    let world = World::new();
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(40);
    world.pause_in_the_next_call();
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(calls_of(&world), [ids(1..=10), ids(11..=20)]);
    assert!(world.is_released().await);
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::Paused { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_commit_is_pending_counts_towards_the_tick_limit() {
    let world = World::with(Limits { batches_max: Some(2), ..limits() });
    let poller = overlapping(world.started_poller("a").await);
    world.source.fill(40);
    world.handler.then_take(WORK).then_take(WORK);
    let before = world.source.fetches();
    let (report, _) = timed_tick(&poller).await;
    assert_eq!((report.rows, report.batches), (20, 2));
    assert_eq!(world.source.fetches() - before, 2, "and no read was wasted");
}

#[tokio::test(start_paused = true)]
async fn the_journal_records_a_call_after_the_commit_that_it_overlapped() {
    use EventKind::{BatchComplete, ExecutionStarted, LeaseAcquired};
    let tested = JournaledWorld::new(JournalMode::Full);
    let poller = overlapping(tested.instance("a"));
    tested.world.source.fill(20);
    then_first(&tested.world, |store| store.slow_down(1, COMMIT));
    tested.world.handler.then_take(WORK);
    tick(&poller).await.unwrap();
    let recorded =
        [LeaseAcquired, ExecutionStarted, BatchComplete, ExecutionStarted, BatchComplete];
    assert_eq!(tested.events().await, recorded);
    assert_eq!(tested.verdict().await, Verdict::Agrees);
}
