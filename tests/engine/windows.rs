//! The seeds' failure windows, by name: what happens, which error, log event and metric show it, and what is
//! redelivered.
//!
//! W1–W7 and 5.1–5.10 are of seed 001 §4 and §5, `seed_000_…` of seed 000 §11, `seed_003_…` of the failure
//! modes and orphans of seed 003. `docs/contributing/failure-windows.md` maps each to its test here.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_engine::document::{Fence, FencingToken};
use highwater_engine::error::chain;
use highwater_engine::handler::HandlerError;
use highwater_engine::lease::LeaseError;
use highwater_engine::policy::{FailurePolicy, OnFailure};
use highwater_engine::poller::{
    Limits, Operator, Poller, Skipped, TickError, TickOutcome, outcome_row,
};
use highwater_engine::store::{StateKey, StateStore};
use highwater_engine::testing::{
    Call, Calls, Fault, TTL, WatchedWorld, World, admin, break_lease, killed_after, limits, sleep,
    take_over, tick,
};
use tokio::time::Instant;

/// Makes the store unreachable for writes during the handler call, so that the commit and the release fail.
fn break_commits(world: &World) {
    let store = world.store.clone();
    world.handler.then(async move {
        for _ in 0..1000 {
            store.break_next(Call::Store, Fault::Unreachable);
        }
        Ok(())
    });
}

/// Checks that a failed tick is one ERROR or WARN line and one failure, by these names.
fn assert_failed_once(watched: &WatchedWorld, event: &str, level: &str, error: &str) {
    assert_eq!(watched.count_of(event), 1, "one log event");
    let logged = watched.logged(event);
    assert_eq!(logged["level"], level);
    assert_eq!(logged["error.type"], error);
    assert_eq!(watched.failures(error), 1, "one failure");
    let poller = Some(("poller.name", logged["poller.name"].as_str()));
    assert_eq!(
        watched.counted("highwater.tick.failures", poller),
        1,
        "one name in logs and metrics"
    );
    assert_eq!(watched.counted("highwater.tick.failures", None), 1, "and no other");
}

/// Another process on the same state, with a working store.
fn elsewhere(world: &World, owner_id: &str) -> Poller {
    world.with_working_store().instance(owner_id)
}

/// The last two deliveries were of the same batch, and so of the same events.
fn assert_batch_redelivered(world: &World) {
    let received = world.handler.received();
    let [.., first, again] = &received[..] else { panic!("{received:?}") };
    assert_eq!(first.batch_id, again.batch_id);
    assert_eq!(first.event_ids, again.event_ids);
    assert!(again.fence > first.fence, "under a newer token");
}

/// A holder vanished, and another took over its lease: logged and counted, and not a failure of any tick.
fn assert_taken_over(watched: &WatchedWorld, rows_again: u64) {
    let line = watched.logged("lease_acquired");
    assert_eq!((&*line["taken_over"], &*line["level"]), ("true", "WARN"));
    assert_eq!(watched.counted("highwater.recovery.takeovers", None), 1);
    assert_eq!(watched.counted("highwater.rows.redelivered", None), rows_again);
    assert_eq!(watched.counted("highwater.tick.failures", None), 0);
}

/// Redeliveries according to the metrics: takeovers from dead holders, and rows that the document identifies
/// as another attempt. A lease broken by an operator counts as neither.
fn assert_redelivered(watched: &WatchedWorld, takeovers: u64, rows_again: u64) {
    assert_eq!(watched.counted("highwater.recovery.takeovers", None), takeovers);
    assert_eq!(watched.counted("highwater.rows.redelivered", None), rows_again);
}

/// Rejected writes under a stale token: by the target, and by the state document.
fn assert_rejected(watched: &WatchedWorld, by_target: u64, by_state: u64) {
    for (by, count) in [("target", by_target), ("state", by_state)] {
        assert_eq!(watched.counted("highwater.fence.rejections", Some(("by", by))), count, "{by}");
    }
}

/// Nothing failed, so nothing is logged above INFO.
fn assert_quiet(watched: &WatchedWorld) {
    assert_eq!(watched.counted("highwater.tick.failures", None), 0);
    let logged = watched.lines();
    let loud: Vec<_> = logged
        .iter()
        .filter(|logged| logged.contains_key("event"))
        .filter(|logged| ["WARN", "ERROR"].contains(&logged["level"].as_str()))
        .collect();
    assert!(loud.is_empty(), "{loud:#?}");
}

#[tokio::test(start_paused = true)]
async fn w1_handler_success_commit_failure() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    break_commits(world);
    assert!(matches!(tick(&poller).await, Err(TickError::Commit(_))));
    assert_failed_once(&watched, "commit_failed", "ERROR", "CommitError");
    assert_eq!(world.rows_committed_last().await, 1, "not advanced");
    sleep(40).await;
    tick(&elsewhere(world, "b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 1, 3);
}

#[tokio::test(start_paused = true)]
async fn w2_crash_after_fetch_before_handler_returns() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    world.handler.then_take(Duration::from_secs(1000));
    killed_after(5, &poller).await;
    sleep(40).await;
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_taken_over(&watched, 3);
}

#[tokio::test(start_paused = true)]
async fn w3_crash_with_partial_side_effects() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let effects = Arc::new(Mutex::new(Vec::new()));
    let half = effects.clone();
    world.handler.then(async move {
        half.lock().unwrap().extend([1, 2]);
        tokio::time::sleep(Duration::from_secs(1000)).await;
        Ok(())
    });
    killed_after(5, &poller).await;
    sleep(40).await;
    let whole = effects.clone();
    world.handler.then(async move {
        whole.lock().unwrap().extend([1, 2, 3]);
        Ok(())
    });
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_eq!(*effects.lock().unwrap(), [1, 2, 1, 2, 3], "what was done is done again");
    assert_taken_over(&watched, 3);
}

#[tokio::test(start_paused = true)]
async fn w4_lease_lost_during_processing() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let memory = world.memory.clone();
    world.handler.then(async move {
        break_lease(&memory).await;
        tokio::time::sleep(Duration::from_secs(1000)).await;
        Ok(())
    });
    assert!(matches!(tick(&poller).await, Err(TickError::LeaseLost(LeaseError::Lost(_)))));
    assert_failed_once(&watched, "lease_lost", "WARN", "LostLeaseError");
    assert_eq!(
        world.handler.finished(),
        1,
        "the handler was stopped; only the first tick's finished"
    );
    assert_eq!(world.rows_committed_last().await, 1);
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 0, 0);
    assert_rejected(&watched, 0, 1);
}

#[tokio::test(start_paused = true)]
async fn w5_commit_response_timeout() {
    // If the commit persisted, nothing is redelivered. If it did not, and cannot, the whole batch is.
    for persisted in [true, false] {
        let watched = WatchedWorld::new();
        let world = &watched.world;
        let poller = world.started_poller("a").await;
        world.source.fill(3);
        let store = world.store.clone();
        world.handler.then(async move {
            let fault = if persisted { Fault::LostAnswer } else { Fault::LostRequest };
            store.break_next(Call::Store, fault);
            for _ in 0..1000 {
                store.break_next(Call::Load, Fault::LostAnswer);
            }
            Ok(())
        });
        assert!(matches!(tick(&poller).await, Err(TickError::Commit(_))));
        assert_failed_once(&watched, "commit_failed", "ERROR", "CommitError");
        sleep(40).await;
        let outcome = tick(&elsewhere(world, "b")).await.unwrap();
        let deliveries = world.handler.received().len();
        if persisted {
            assert_eq!((outcome, deliveries), (TickOutcome::Idle, 2), "resolved by the reload");
            assert_redelivered(&watched, 0, 0);
        } else {
            assert_eq!((outcome, deliveries), (TickOutcome::Committed { more: false }, 3));
            assert_batch_redelivered(world);
            assert_redelivered(&watched, 1, 3);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn w6_redeploy_or_restart() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.instance("a");
    world.source.fill(30);
    world.handler.then_take(Duration::ZERO).then_take(Duration::from_secs(1000));
    killed_after(5, &poller).await;
    sleep(40).await;
    tick(&world.instance("b")).await.unwrap();
    let ids = world.handler.ids();
    assert_eq!(ids.len(), 40, "the in-flight batch is redelivered, committed ones are not");
    assert_eq!(ids[10..20], ids[20..30]);
    assert_taken_over(&watched, 10);
}

#[tokio::test(start_paused = true)]
async fn w7_cursor_precision_collapse() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.instance("a");
    for value in ["one", "two", "three"] {
        world.source.put(1, value);
    }
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [1], "the latest state only");
    assert_eq!(watched.counted("highwater.rows.committed", None), 1);
    assert_eq!(watched.logged("batch_complete")["rows"], "1");
    assert_quiet(&watched);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle, "nothing is redelivered");
}

#[tokio::test(start_paused = true)]
async fn s5_1_lease_cannot_be_acquired() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let (a, b) = (world.started_poller("a").await, world.instance("b"));
    world.source.fill(1);
    world.handler.then_take(Duration::from_secs(5));
    let (_, outcome) = tokio::join!(tick(&a), async {
        sleep(1).await;
        tick(&b).await.unwrap()
    });
    assert!(matches!(outcome, TickOutcome::Skipped(Skipped::Held { .. })));
    assert_eq!(watched.logged("lease_acquire_skipped")["level"], "DEBUG");
    let skipped = outcome_row(&Ok(outcome));
    assert_eq!((skipped.error, skipped.status), (Some("LeaseAcquireError"), 200));
    assert_quiet(&watched);
    assert_eq!(world.handler.ids(), [0, 1], "nothing is redelivered");
}

#[tokio::test(start_paused = true)]
async fn s5_2_checkpoint_blob_load_fails() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    world.source.fill(1);
    world.store.break_next(Call::Load, Fault::Refused);
    assert!(matches!(tick(&world.instance("a")).await, Err(TickError::Load(_))));
    // In this design 5.2 and 5.10 coincide: one read serves lease and checkpoint.
    assert_failed_once(&watched, "lease_acquire_failed", "ERROR", "LeaseAcquireError");
    assert_eq!(world.handler.received(), []);
    tick(&world.instance("a")).await.unwrap();
    assert_eq!(world.handler.ids(), [1], "the next tick retries, without duplicates");
}

#[tokio::test(start_paused = true)]
async fn s5_3_source_fetch_fails() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(1);
    world.source.fail_next("database unreachable");
    assert!(matches!(tick(&poller).await, Err(TickError::Fetch(_))));
    assert_failed_once(&watched, "fetch_failed", "ERROR", "FetchError");
    assert_eq!(world.handler.received().len(), 1);
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [0, 1], "the next tick reads from the same position");
}

#[tokio::test(start_paused = true)]
async fn s5_4_record_normalization_fails() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.instance("a");
    world.source.fill(1);
    world.source.break_keys();
    assert!(matches!(tick(&poller).await, Err(TickError::Normalize(_))));
    assert_failed_once(&watched, "normalize_failed", "ERROR", "SerializationError");
    assert_eq!(world.handler.received(), []);
    assert!(matches!(tick(&poller).await, Err(TickError::Normalize(_))), "and so does the next");
    assert_eq!(watched.failures("SerializationError"), 2);
    assert_eq!(world.handler.received(), [], "no row has got through");
}

#[tokio::test(start_paused = true)]
async fn s5_5_handler_raises() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    world.handler.then_fail(HandlerError::Retryable("sink is down".to_owned()));
    assert!(matches!(tick(&poller).await, Err(TickError::Handler(_))));
    assert_failed_once(&watched, "handler_failed", "ERROR", "HandlerError");
    let document = world.document().await;
    assert_eq!(document.checkpoint.metadata.row_count, 1, "not advanced");
    assert!(document.lease.released_at.is_some(), "released");
    sleep(2).await;
    tick(&poller).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 0, 3);
}

#[tokio::test(start_paused = true)]
async fn s5_6_checkpoint_commit_fails_lease_lost() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let memory = world.memory.clone();
    world.handler.then(async move {
        break_lease(&memory).await;
        Ok(())
    });
    assert!(matches!(tick(&poller).await, Err(TickError::LeaseLost(LeaseError::Lost(_)))));
    assert_failed_once(&watched, "lease_lost", "WARN", "LostLeaseError");
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 0, 0);
    assert_rejected(&watched, 0, 1);
}

#[tokio::test(start_paused = true)]
async fn s5_7_checkpoint_commit_fails_other() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let store = world.store.clone();
    world.handler.then(async move {
        store.break_next(Call::Store, Fault::Refused);
        Ok(())
    });
    assert!(matches!(tick(&poller).await, Err(TickError::Commit(_))));
    assert_failed_once(&watched, "commit_failed", "ERROR", "CommitError");
    // This process reclaims its own lease at once.
    tick(&poller).await.unwrap();
    assert_batch_redelivered(world);
    // It reclaims its own lease, not that of a dead holder, and no attempt was counted.
    assert_redelivered(&watched, 0, 0);
}

#[tokio::test(start_paused = true)]
async fn s5_8_heartbeat_mid_handler() {
    // Seed 001 has no heartbeat and loses the lease here; ours keeps it.
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let (a, b) = (world.started_poller("a").await, world.instance("b"));
    world.source.fill(3);
    world.handler.then_take(TTL * 5);
    let (first, skipped) = tokio::join!(tick(&a), async {
        sleep(100).await;
        tick(&b).await.unwrap()
    });
    assert_eq!(first.unwrap(), TickOutcome::Committed { more: false });
    assert!(matches!(skipped, TickOutcome::Skipped(Skipped::Held { .. })));
    assert_eq!(world.handler.ids(), [0, 1, 2, 3]);
    assert_quiet(&watched);
}

#[tokio::test(start_paused = true)]
async fn s5_9_poison_batch() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.instance("a");
    world.source.fill(3);
    for _ in 0..3 {
        world.handler.then_fail(HandlerError::Rejected("422".to_owned()));
        assert!(matches!(tick(&poller).await, Err(TickError::Handler(_))));
        sleep(10).await;
    }
    // Nothing is skipped automatically; the count and the reason are in the document.
    let in_flight = world.in_flight().await.unwrap();
    assert_eq!((in_flight.attempt, in_flight.last_error.as_deref()), (3, Some("422")));
    assert_eq!(watched.failures("HandlerError"), 3);
    assert_eq!(
        watched.counted("highwater.tick.failures", None),
        3,
        "one each attempt, and no other"
    );
    assert_redelivered(&watched, 0, 6);
    assert_eq!(watched.count_of("handler_failed"), 3);
    let logged = watched.logged("handler_failed");
    assert_eq!(
        (logged["level"].as_str(), logged["error.type"].as_str()),
        ("ERROR", "HandlerError")
    );
    let received = world.handler.received();
    assert!(received.iter().all(|call| call.batch_id == received[0].batch_id), "{received:?}");
    let lines = watched.lines();
    let commits =
        lines.iter().filter(|logged| logged.get("event").is_some_and(|e| e == "batch_complete"));
    assert_eq!(commits.count(), 0, "the position has not moved");
}

/// A world in which row 2 of 3 is rejected, under a policy with this final action.
async fn poisoned(on_failure: OnFailure) -> (WatchedWorld, Poller) {
    let mut watched = WatchedWorld::new();
    watched.world.policy =
        FailurePolicy { on_failure, bisect_on_error: true, ..FailurePolicy::default() };
    let poller = watched.world.started_poller("a").await;
    watched.world.source.fill(3);
    let refused = || HandlerError::Rejected("422".to_owned());
    watched.world.handler.judge_by(move |ids| ids.contains(&2).then(refused).map_or(Ok(()), Err));
    (watched, poller)
}

#[tokio::test(start_paused = true)]
async fn s5_9_poison_batch_that_is_quarantined() {
    let (watched, poller) = poisoned(OnFailure::Park).await;
    let world = &watched.world;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    let logged = watched.logged("row_quarantined");
    assert_eq!((logged["level"].as_str(), logged["reason"].as_str()), ("ERROR", "refused"));
    assert_eq!(watched.count_of("row_quarantined"), 1);
    assert_eq!(watched.counted("highwater.tick.failures", None), 0, "the tick has not failed");
    assert_redelivered(&watched, 0, 0);
    assert_eq!(watched.counted("highwater.rows.quarantined", Some(("reason", "refused"))), 1);
    let keys = world.memory.list().await.unwrap();
    assert_eq!(keys.iter().filter(|key| matches!(key, StateKey::Quarantined { .. })).count(), 1);
    let calls: Vec<_> = world.handler.received().into_iter().map(|call| call.ids).collect();
    assert_eq!(calls[1..], [vec![1, 2, 3], vec![1], vec![2], vec![3]], "all but the row, in order");
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle, "the position is past all of them");
}

#[tokio::test(start_paused = true)]
async fn s5_9_poison_batch_that_stops_the_poller() {
    let (watched, poller) = poisoned(OnFailure::Stop).await;
    let world = &watched.world;
    assert!(matches!(tick(&poller).await, Err(TickError::Handler(_))));
    assert_failed_once(&watched, "handler_failed", "ERROR", "HandlerError");
    let document = world.document().await;
    assert!(document.paused.unwrap().reason.contains("422"));
    assert_eq!(document.in_flight.unwrap().rows, 1, "the row at fault");
    let calls_before = world.handler.received().len();
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::Paused { .. }));
    assert_eq!(watched.logged("tick_paused")["level"], "WARN");
    assert_eq!(
        world.handler.received().len(),
        calls_before,
        "nothing is delivered until it is resumed"
    );
    world.handler.judge_by(|_| Ok(()));
    let operator = Operator { by: "ann@host", reason: "mended" };
    admin(&world.instance("cli")).resume(operator).await.unwrap();
    tick(&world.instance("b")).await.unwrap();
    let received = world.handler.received();
    assert_eq!(received[calls_before].ids, [2], "then the row is redelivered");
    assert_redelivered(&watched, 0, 0);
}

#[tokio::test(start_paused = true)]
async fn s5_10_storage_unavailability() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    for _ in 0..1000 {
        world.store.break_next(Call::Store, Fault::Unreachable);
    }
    assert!(matches!(tick(&poller).await, Err(TickError::Acquire(_))));
    assert_failed_once(&watched, "lease_acquire_failed", "ERROR", "LeaseAcquireError");
    assert_eq!(world.handler.received().len(), 1, "no handler call");
    world.store.clear_faults();
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [0, 1, 2, 3], "resumes by itself, without duplicates");
}

#[tokio::test(start_paused = true)]
async fn seed_000_cas_write_succeeds_then_function_exits() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    tick(&poller).await.unwrap();
    drop(poller);
    assert_eq!(tick(&world.instance("b")).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.handler.ids(), [0, 1, 2, 3], "the next tick starts from the new checkpoint");
    assert_eq!(watched.logged("fetch_empty")["level"], "DEBUG");
    assert_quiet(&watched);
}

#[tokio::test(start_paused = true)]
async fn seed_000_handler_succeeds_cas_write_fails() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let store = world.store.clone();
    world.handler.then(async move {
        store.break_next(Call::Store, Fault::Refused);
        Ok(())
    });
    assert!(matches!(tick(&poller).await, Err(TickError::Commit(_))));
    assert_failed_once(&watched, "commit_failed", "ERROR", "CommitError");
    assert_eq!(world.rows_committed_last().await, 1, "unconfirmed");
    drop(poller);
    sleep(40).await;
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 1, 3);
}

#[tokio::test(start_paused = true)]
async fn seed_000_cas_write_response_timeout() {
    // Unknown for as long as the document cannot be read; then resolved, within the tick or in the next one,
    // and never reported as a lost lease.
    for (reads_lost, resolved_within_the_tick) in [(3, true), (1000, false)] {
        let watched = WatchedWorld::new();
        let world = &watched.world;
        let poller = world.started_poller("a").await;
        world.source.fill(3);
        let store = world.store.clone();
        world.handler.then(async move {
            store.break_next(Call::Store, Fault::LostAnswer);
            for _ in 0..reads_lost {
                store.break_next(Call::Load, Fault::LostAnswer);
            }
            Ok(())
        });
        let first = tick(&poller).await;
        if resolved_within_the_tick {
            assert_eq!(first.unwrap(), TickOutcome::Committed { more: false });
            assert_quiet(&watched);
        } else {
            assert!(matches!(first, Err(TickError::Commit(LeaseError::Store(_)))));
            assert_failed_once(&watched, "commit_failed", "ERROR", "CommitError");
        }
        assert_eq!(tick(&elsewhere(world, "b")).await.unwrap(), TickOutcome::Idle);
        assert_eq!(world.handler.ids(), [0, 1, 2, 3], "it had persisted: nothing is redelivered");
        assert_redelivered(&watched, 0, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn seed_000_lease_expires_and_another_instance_takes_over() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let other = elsewhere(world, "b");
    let store = world.store.clone();
    // The handler finishes in time, and the commit is pending for so long that the lease expires and passes
    // on.
    world.handler.then(async move {
        store.break_next(Call::Store, Fault::Slow(Duration::from_secs(60)));
        Ok(())
    });
    world.handler.then_take(Duration::from_secs(60));
    world.store.take_calls();
    let (stale, ()) = tokio::join!(tick(&poller), async {
        sleep(40).await;
        tick(&other).await.unwrap();
    });
    assert!(matches!(stale, Err(TickError::LeaseLost(LeaseError::Lost(_)))), "{stale:?}");
    let Calls { puts, refused, .. } = world.store.take_calls();
    assert_eq!((puts, refused), (1, 1), "it was granted the lease, and its commit was rejected");
    assert_failed_once(&watched, "lease_lost", "WARN", "LostLeaseError");
    assert_rejected(&watched, 0, 1);
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 1, 3);
    let document = world.document().await;
    assert_eq!(document.lease.owner_id.as_deref(), Some("b"), "no write of the stale owner landed");
    assert_eq!(document.checkpoint.metadata.row_count, 3, "the new owner's");
}

#[tokio::test(start_paused = true)]
async fn seed_000_lease_expires_while_its_holder_is_cut_off() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    // No renewal gets through: the handler is stopped at the deadline, before the lease passes on.
    let other = elsewhere(world, "b");
    let store = world.store.clone();
    world.handler.then(async move {
        for _ in 0..1000 {
            store.break_next(Call::Store, Fault::Unreachable);
        }
        tokio::time::sleep(Duration::from_secs(1000)).await;
        Ok(())
    });
    let (stale, ()) = tokio::join!(tick(&poller), async {
        sleep(40).await;
        tick(&other).await.unwrap();
    });
    assert!(matches!(stale, Err(TickError::LeaseLost(LeaseError::Lapsed))), "{stale:?}");
    assert_failed_once(&watched, "lease_lost", "WARN", "LostLeaseError");
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 1, 3);
    assert_rejected(&watched, 0, 0);
    assert_eq!(world.rows_committed_last().await, 3, "the new owner's");
}

#[tokio::test(start_paused = true)]
async fn seed_000_heartbeat_cas_failure() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let memory = world.memory.clone();
    world.handler.then(async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        break_lease(&memory).await;
        tokio::time::sleep(Duration::from_secs(1000)).await;
        Ok(())
    });
    world.store.take_calls();
    assert!(tick(&poller).await.is_err());
    assert_failed_once(&watched, "lease_lost", "WARN", "LostLeaseError");
    let Calls { puts, refused, .. } = world.store.take_calls();
    assert_eq!(
        (puts, refused),
        (1, 1),
        "the acquisition, the rejected heartbeat; no commit was attempted"
    );
    assert_eq!(world.handler.finished(), 1);
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 0, 0);
    assert_rejected(&watched, 0, 1);
}

#[tokio::test(start_paused = true)]
async fn seed_003_split_execution() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    // The target has accepted a newer grant while this holder was away.
    let generation = world.generation().await;
    let memory = world.memory.clone();
    world.handler.then(async move {
        take_over(&memory).await;
        let current = Fence { generation, token: FencingToken(3) };
        current.admit(generation, FencingToken(2))?;
        Ok(())
    });
    let result = tick(&poller).await;
    assert!(matches!(result, Err(TickError::Handler(HandlerError::Fenced(_)))), "{result:?}");
    assert_failed_once(&watched, "stale_write_blocked", "WARN", "LostLeaseError");
    let logged = watched.logged("stale_write_blocked");
    assert_eq!((logged["stale_token"].as_str(), logged["current_token"].as_str()), ("2", "3"));
    assert_eq!(logged["reason"], "token_mismatch");
    sleep(40).await;
    assert_rejected(&watched, 1, 0);
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 1, 3);
}

/// A backup of the state document was restored: the target has seen tokens that the copy has not granted.
#[tokio::test(start_paused = true)]
async fn an_older_copy_of_the_state_is_reported_blocks_no_other_poller_and_is_raised_by_an_operator_only()
 {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let generation = world.generation().await;
    let fence = Fence { generation, token: FencingToken(9) };
    let before = world.document().await.checkpoint;
    world.handler.then(async move {
        fence.admit(generation, FencingToken(2))?;
        Ok(())
    });
    let calls = world.handler.received().len() + 1;
    let command = format!(
        "`highwater lease break p --above {generation}.9 --reason \"state document is an older copy\"`"
    );
    // More ticks than the tokens between the copy's and the target's, by several instances.
    let instances = [poller, world.instance("b"), world.instance("d")];
    for number in 0..12 {
        world.store.take_calls();
        let error = tick(&instances[number % instances.len()]).await.unwrap_err();
        assert!(matches!(error, TickError::FenceAhead { .. }), "{error:?}");
        let Calls { puts, refused, .. } = world.store.take_calls();
        let written = if number == 0 { 2 } else { 0 };
        assert_eq!((puts, refused), (written, 0), "the grant and its release, then nothing");
        assert_eq!(world.handler.received().len(), calls, "the target is called once");
        assert!(chain(&error).contains(&command), "{}", chain(&error));
        let logged = watched.logged("fence_ahead");
        assert_eq!(
            (logged["level"].as_str(), logged["error.type"].as_str()),
            ("ERROR", "HandlerError")
        );
        assert_eq!((&logged["stale_token"], &logged["current_token"]), (&"2".into(), &"9".into()));
        let document = world.document().await;
        assert!(document.lease.released_at.is_some(), "the next tick need not wait for a TTL");
        assert_eq!(document.lease.fencing_token, FencingToken(2), "a tick never raises it");
        assert_eq!(document.checkpoint, before);
        sleep(600).await;
    }
    assert_eq!(watched.failures("LostLeaseError"), 0, "nothing was lost");
    assert_rejected(&watched, 12, 0);

    let cli = world.instance("c");
    let present = admin(&cli).present().await.unwrap();
    let operator = Operator { by: "eve", reason: "restored a backup" };
    let raised = admin(&cli).raise_above(fence, &present, false, operator).await.unwrap().unwrap();
    assert_eq!(raised.document.lease.fencing_token, FencingToken(10));
    assert_eq!((raised.document.generation, &raised.document.checkpoint), (generation, &before));
    assert!(raised.saved.is_some());
    let ring = raised.document.recent.last().unwrap();
    assert_eq!((ring.outcome.as_str(), &ring.extra["by"]), ("lease_broken", &"eve".into()));
    world.handler.then(async move {
        fence.admit(generation, FencingToken(11))?;
        Ok(())
    });
    assert_eq!(tick(&world.instance("d")).await.unwrap(), TickOutcome::Committed { more: false });
    let present = admin(&cli).present().await.unwrap();
    let again = admin(&cli).raise_above(fence, &present, false, operator).await.unwrap();
    assert_eq!(again, None, "the next grant is high enough");
}

/// The document cannot be read again, so it is unknown whether a newer owner is active.
#[tokio::test(start_paused = true)]
async fn a_rejected_write_is_stale_if_the_state_cannot_be_read_again() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let generation = world.generation().await;
    let store = world.store.clone();
    world.handler.then(async move {
        store.break_next(Call::Load, Fault::Refused);
        for _ in 0..1_000 {
            store.break_next(Call::Load, Fault::Unreachable);
        }
        let fence = Fence { generation, token: FencingToken(9) };
        fence.admit(generation, FencingToken(2))?;
        Ok(())
    });
    let result = tick(&poller).await;
    assert!(matches!(result, Err(TickError::Handler(HandlerError::Fenced(_)))), "{result:?}");
    assert_eq!(world.document().await.lease.released_at, None);
}

/// Another instance has delivered the same batch, under the same id, while this one was away.
#[tokio::test(start_paused = true)]
async fn a_stale_holder_whose_successor_committed_the_same_batch_reports_the_lost_lease() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let successor = world.instance("b");
    let store = world.store.clone();
    world.handler.then(async move {
        // No renewal reaches the store until the lease has expired; the successor's requests do.
        store.break_next(Call::Store, Fault::Slow(Duration::from_secs(10_000)));
        Ok(())
    });
    // The commit itself hangs for longer than the lease lives.
    let (result, ()) = tokio::join!(tick(&poller), async {
        sleep(40).await;
        assert_eq!(tick(&successor).await.unwrap(), TickOutcome::Committed { more: false });
    });
    assert!(matches!(result, Err(TickError::LeaseLost(LeaseError::Lost(_)))), "{result:?}");
    assert_failed_once(&watched, "lease_lost", "WARN", "LostLeaseError");
    assert_batch_redelivered(world);
    assert_rejected(&watched, 0, 1);
    assert_redelivered(&watched, 1, 3);
}

/// The response to the last write is lost, and others have delivered since: nothing failed.
#[tokio::test(start_paused = true)]
async fn a_lost_response_to_the_last_write_is_not_a_lost_lease_after_later_commits() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let store = world.store.clone();
    world.handler.then(async move {
        store.break_next(Call::Store, Fault::LostAnswer);
        store.break_next(Call::Load, Fault::Slow(Duration::from_secs(5)));
        Ok(())
    });
    let successor = world.instance("b");
    let (result, ()) = tokio::join!(tick(&poller), async {
        sleep(2).await;
        world.source.put(7, "one more");
        assert_eq!(tick(&successor).await.unwrap(), TickOutcome::Committed { more: false });
    });
    assert_eq!(result.unwrap(), TickOutcome::Committed { more: false });
    assert_quiet(&watched);
    assert_eq!(world.handler.ids(), [0, 1, 2, 3, 7], "delivered once each");
}

#[tokio::test(start_paused = true)]
async fn seed_003_split_execution_while_a_renewal_is_pending() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let generation = world.generation().await;
    let (memory, store) = (world.memory.clone(), world.store.clone());
    world.handler.then(async move {
        sleep(5).await;
        break_lease(&memory).await;
        // The heartbeat at 10 s is rejected, and learns why only after the target has responded.
        store.break_next(Call::Load, Fault::Slow(Duration::from_secs(3)));
        sleep(6).await;
        let current = Fence { generation, token: FencingToken(3) };
        current.admit(generation, FencingToken(2))?;
        Ok(())
    });
    world.store.take_calls();
    let result = tick(&poller).await;
    assert!(matches!(result, Err(TickError::Handler(HandlerError::Fenced(_)))), "{result:?}");
    assert_failed_once(&watched, "stale_write_blocked", "WARN", "LostLeaseError");
    assert_eq!(watched.count_of("lease_lost"), 0, "the same loss, logged once");
    let Calls { puts, refused, .. } = world.store.take_calls();
    assert_eq!((puts, refused), (1, 1), "nothing is attempted after a loss");
    assert_rejected(&watched, 1, 0);
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 0, 0);
}

#[tokio::test(start_paused = true)]
async fn seed_003_lost_heartbeat() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let store = world.store.clone();
    world.handler.then(async move {
        for _ in 0..4 {
            store.break_next(Call::Store, Fault::Unreachable);
        }
        tokio::time::sleep(Duration::from_secs(25)).await;
        Ok(())
    });
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_quiet(&watched);
    assert_eq!(world.handler.ids(), [0, 1, 2, 3], "a short interruption has no effect");
}

#[tokio::test(start_paused = true)]
async fn seed_003_zombie_worker() {
    // Alive by its heartbeats, stuck by its progress.
    let handler_stall_max = Some(Duration::from_secs(20));
    let watched = WatchedWorld::with(Limits { handler_stall_max, ..limits() });
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    world.handler.then_progress(3, Duration::from_secs(15));
    world.handler.then_progress(0, Duration::from_secs(1000));
    let began_at = Instant::now();
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(began_at.elapsed(), Duration::from_secs(45), "slow, but getting on");
    world.source.put(9, "later");
    let began_at = Instant::now();
    assert!(matches!(tick(&poller).await, Err(TickError::Handler(HandlerError::Stalled(_)))));
    assert_eq!(began_at.elapsed(), Duration::from_secs(20));
    assert_failed_once(&watched, "handler_failed", "ERROR", "HandlerError");
    assert!(world.is_released().await, "another instance may take it over at once");
    sleep(2).await;
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 0, 1);
}

#[tokio::test(start_paused = true)]
async fn seed_003_stuck_running_state() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    world.handler.then_take(Duration::from_secs(1000));
    killed_after(5, &poller).await;
    let b = world.instance("b");
    // Held until TTL and margin are over; then any tick repairs it, without an operator.
    sleep(26).await;
    assert!(matches!(tick(&b).await.unwrap(), TickOutcome::Skipped(Skipped::Held { .. })));
    sleep(1).await;
    assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
    assert_taken_over(&watched, 3);
    assert_batch_redelivered(world);
}

#[tokio::test(start_paused = true)]
async fn seed_003_double_completion() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let (a, b) = (world.started_poller("a").await, elsewhere(&watched.world, "b"));
    world.source.fill(3);
    let store = world.store.clone();
    world.handler.then(async move {
        store.break_next(Call::Store, Fault::Late(Duration::from_secs(60)));
        for _ in 0..1000 {
            store.break_next(Call::Load, Fault::LostAnswer);
        }
        Ok(())
    });
    assert!(matches!(tick(&a).await, Err(TickError::Commit(_))));
    sleep(10).await;
    tick(&b).await.unwrap();
    let completed = world.document().await;
    sleep(100).await;
    assert_eq!(world.document().await, completed, "the late commit of the first never lands");
    assert_failed_once(&watched, "commit_failed", "ERROR", "CommitError");
    // The second took over its expired, unreleased lease: both delivered, and one committed.
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 1, 3);
}

#[tokio::test(start_paused = true)]
async fn seed_003_orphan_no_lease_but_running() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    world.handler.then_take(Duration::from_secs(1000));
    killed_after(5, &poller).await;
    // The lease was broken by an operator: a batch in flight without a holder.
    break_lease(&world.memory).await;
    assert!(world.in_flight().await.is_some());
    assert_eq!(tick(&world.instance("b")).await.unwrap(), TickOutcome::Committed { more: false });
    assert!(world.in_flight().await.is_none());
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 0, 0);
    assert_quiet(&watched);
}

#[tokio::test(start_paused = true)]
async fn seed_003_orphan_timer_that_was_never_stored() {
    // The next attempt is part of the write that records the failure, so there is no second write to lose. If
    // even that one is lost, the batch is retried as soon as the lease allows.
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let store = world.store.clone();
    world.handler.then(async move {
        for _ in 0..1000 {
            store.break_next(Call::Store, Fault::Unreachable);
        }
        Err(HandlerError::Retryable("503".to_owned()))
    });
    assert!(tick(&poller).await.is_err());
    assert_failed_once(&watched, "handler_failed", "ERROR", "HandlerError");
    assert_eq!(watched.count_of("lease_release_failed"), 1);
    sleep(40).await;
    tick(&elsewhere(world, "b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_redelivered(&watched, 1, 3);
}

#[tokio::test(start_paused = true)]
async fn seed_003_orphan_completed_but_not_appended() {
    // The handler has accepted the batch, and the process crashes before the commit.
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let store = world.store.clone();
    world.handler.then(async move {
        store.break_next(Call::Store, Fault::Slow(Duration::from_secs(1000)));
        Ok(())
    });
    killed_after(5, &poller).await;
    assert_eq!(world.handler.finished(), 2, "it was completed");
    assert_eq!(world.rows_committed_last().await, 1, "and no process knows");
    sleep(40).await;
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_taken_over(&watched, 3);
}

#[tokio::test(start_paused = true)]
async fn seed_003_orphan_parent_cancelled_but_children_continue() {
    // The handler's work is a future of the tick: it is dropped with the tick, and nothing keeps running.
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let ended = Arc::new(Mutex::new(0));
    let at_end = ended.clone();
    world.handler.then(async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        *at_end.lock().unwrap() += 1;
        Ok(())
    });
    killed_after(5, &poller).await;
    sleep(1000).await;
    assert_eq!(*ended.lock().unwrap(), 0);
    tick(&world.instance("b")).await.unwrap();
    assert_batch_redelivered(world);
    assert_taken_over(&watched, 3);
}
