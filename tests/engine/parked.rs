//! Parked keys: what the document says about them, and what operators do to their entries.

use std::collections::BTreeSet;
use std::time::Duration;

use highwater_engine::admin::{Redrive, ResetTo};
use highwater_engine::backoff::Backoff;
use highwater_engine::cursor::KeyId;
use highwater_engine::document::{OnMissingState, ParkedKeys};
use highwater_engine::error::chain;
use highwater_engine::handler::HandlerError;
use highwater_engine::journal::{EventKind, JournalMode, Verdict};
use highwater_engine::partition::Partition;
use highwater_engine::policy::{FailurePolicy, Flow, Follow, OnFailure, ParkPolicy};
use highwater_engine::poller::{Limits, Operator, Poller, StopSignal, TickError, TickOutcome};
use highwater_engine::quarantine::{EntryState, Reason};
use highwater_engine::repartition::{Repartition, RepartitionError};
use highwater_engine::source::FetchError;
use highwater_engine::store::{ETag, Precondition, StateKey, StateStore, StoreError};
use highwater_engine::testing::{
    Call, Fault, JournaledWorld, TableSource, WatchedWorld, World, admin, killed_after, limits,
    sleep, tick,
};
use highwater_engine::tick::TickRequest;

fn rejected() -> HandlerError {
    HandlerError::Rejected("422".to_owned())
}

/// The policy of a poller that quarantines keys at once.
fn policy() -> FailurePolicy {
    let park = ParkPolicy { retries_max: 0, ..ParkPolicy::default() };
    let policy = FailurePolicy { on_failure: OnFailure::Park, park, ..FailurePolicy::default() };
    FailurePolicy { bisect_on_error: true, attempts_max: 2, ..policy }
}

/// Makes the target reject these rows.
fn reject(world: &World, bad: &'static [i64]) {
    let is_bad = move |ids: &[i64]| ids.iter().any(|id| bad.contains(id));
    world.handler.judge_by(move |ids| if is_bad(ids) { Err(rejected()) } else { Ok(()) });
}

/// A poller that has parked the first rows of its table.
async fn parked(bad: &'static [i64], rows: i64) -> (World, Poller) {
    parked_by(policy(), bad, rows).await
}

async fn parked_by(policy: FailurePolicy, bad: &'static [i64], rows: i64) -> (World, Poller) {
    let world = World::new().with_policy(policy);
    let poller = world.started_poller("a").await;
    world.source.fill(rows);
    reject(&world, bad);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.quarantined().await, bad);
    (world, poller)
}

/// Returns the entries as an operator's plan has them.
async fn plan(poller: &Poller) -> Vec<(KeyId, ETag)> {
    let mut entries = Vec::new();
    for key in admin(poller).quarantined().await.unwrap() {
        let found = admin(poller).entry(&key).await.unwrap().unwrap();
        entries.push((found.key, found.etag));
    }
    entries
}

/// Drops entries as an operator does; returns the result of each.
async fn drop_entries(world: &World, entries: Vec<(KeyId, ETag)>) -> Vec<Result<(), StoreError>> {
    let mut results = Vec::new();
    let cli = world.instance("cli");
    let noted = admin(&cli).drop_entries(entries, &mut |_, result| results.push(result)).await;
    noted.unwrap();
    results
}

/// Number of keys that the document counts, and the epoch.
async fn counted(world: &World) -> (u64, u64) {
    let parked = world.document().await.parked;
    (parked.keys, parked.epoch)
}

fn redrive(keys: &[KeyId]) -> Redrive<'_> {
    let (interval, stop) = (Duration::ZERO, StopSignal::new());
    Redrive { id: "replay-1", keys, as_stored: false, drop_gone: false, interval, stop }
}

#[tokio::test(start_paused = true)]
async fn a_redrive_starts_an_epoch_and_counts_the_entries_that_are_left() {
    let (world, poller) = parked(&[1, 2, 3], 3).await;
    assert_eq!(counted(&world).await, (3, 3));
    reject(&world, &[2]);
    let keys = admin(&poller).quarantined().await.unwrap();
    let redrive = redrive(&keys);
    admin(&world.instance("cli")).redrive(&redrive, &mut |_, _| {}).await.unwrap();
    assert_eq!(world.quarantined().await, [2]);
    assert_eq!(counted(&world).await, (1, 5));
    reject(&world, &[]);
    admin(&world.instance("cli")).redrive(&redrive, &mut |_, _| {}).await.unwrap();
    assert_eq!(counted(&world).await, (0, 7));
    assert!(world.document().await.requires.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failing_row_is_parked_although_only_rows_of_parked_keys_follow_in_its_batch_and_the_next()
 {
    let bad: &[i64] = &[1, 2, 5];
    let (world, _) = parked(bad, 6).await;
    let poller = world.with_limits(Limits { batch_rows_max: 2, ..limits() }).instance("a");
    for id in [9, 1, 2, 5, 4] {
        world.source.put(id, "again");
    }
    world.handler.judge_by(|ids| match ids {
        [9, ..] => Err(HandlerError::Retryable("503".to_owned())),
        _ => Ok(()),
    });
    for _ in 0..3 {
        drop(tick(&poller).await);
        sleep(600).await;
    }
    assert_eq!(world.quarantined().await, [1, 2, 5, 9]);
    assert_eq!(world.handler.accepted().last().unwrap()["id"], 4);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
}

#[tokio::test(start_paused = true)]
async fn entries_are_dropped_while_a_tick_runs_whose_commit_lands() {
    let (world, poller) = parked(&[1, 2], 3).await;
    world.source.put(4, "new");
    world.handler.then_take(Duration::from_secs(5));
    let (outcome, dropped) = tokio::join!(tick(&poller), async {
        sleep(1).await;
        let entries = plan(&world.instance("cli")).await;
        drop_entries(&world, entries).await
    });
    assert_eq!(outcome.unwrap(), TickOutcome::Committed { more: false });
    assert!(dropped.iter().all(Result::is_ok), "{dropped:?}");
    assert_eq!(counted(&world).await, (0, 3));
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    // The process knew two keys, of another epoch: it lists them again before it counts.
    reject(&world, &[5]);
    world.source.put(5, "bad");
    tick(&poller).await.unwrap();
    assert_eq!(counted(&world).await, (1, 4));
    assert_eq!(world.quarantined().await, [5]);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_was_changed_since_the_plan_is_not_dropped() {
    let (world, poller) = parked(&[1, 2], 2).await;
    let entries = plan(&poller).await;
    world.source.put(1, "still bad");
    tick(&poller).await.unwrap();
    let dropped = drop_entries(&world, entries).await;
    assert_eq!(dropped.iter().filter(|dropped| dropped.is_ok()).count(), 1, "{dropped:?}");
    assert_eq!(world.quarantined().await, [1]);
    assert_eq!(counted(&world).await.0, 1);
    let entry = world.quarantine().await.remove(0).1;
    assert_eq!(entry.versions, 2, "the operator did not see the later one");
}

/// Keys of the rows of each call since the last time.
fn calls_made(world: &World, before: &mut usize) -> Vec<Vec<i64>> {
    let calls = world.handler.received().into_iter().map(|call| call.ids).skip(*before);
    let calls: Vec<_> = calls.collect();
    *before += calls.len();
    calls
}

#[tokio::test(start_paused = true)]
async fn later_versions_of_a_parked_key_wait_with_it_and_all_other_keys_flow_in_order() {
    let (world, poller) = parked(&[3], 6).await;
    let mut seen = 0;
    calls_made(&world, &mut seen);
    for id in [1, 2, 3, 4, 5] {
        world.source.put(id, "later");
    }
    // The key would be accepted now, but an earlier version of it waits.
    reject(&world, &[]);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(calls_made(&world, &mut seen), [[1, 2, 4, 5]], "one call, as without it");
    let entry = world.quarantine().await.remove(0).1;
    assert_eq!((entry.versions, entry.attempts), (2, 1));
    assert!(entry.events[0].get().contains("later"), "{}", entry.events[0]);
    let document = world.document().await;
    assert_eq!(document.checkpoint.cursor.unwrap().key["id"], 5);
    assert_eq!(counted(&world).await, (1, 1), "no further key");
    // As the first, the last and the only row; a deletion, too.
    for rows in [&[3, 1][..], &[1, 3], &[3]] {
        for id in rows {
            world.source.put(*id, "again");
        }
        tick(&poller).await.unwrap();
        let others: Vec<i64> = rows.iter().copied().filter(|id| *id != 3).collect();
        assert_eq!(calls_made(&world, &mut seen).concat(), others);
    }
    assert_eq!(world.quarantine().await.remove(0).1.versions, 5);
    let rejected_in_a_row = world.document().await.quarantined_in_a_row;
    assert_eq!(rejected_in_a_row, 0, "diverted rows say nothing about the target");
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_know_the_parked_keys_lists_them_once() {
    let (world, _) = parked(&[3], 4).await;
    reject(&world, &[]);
    let other = world.instance("b");
    let mut seen = 0;
    calls_made(&world, &mut seen);
    for expected_reads in [4, 1, 1] {
        world.source.put(3, "later");
        world.source.put(4, "later");
        world.store.take_calls();
        sleep(1).await;
        tick(&other).await.unwrap();
        assert_eq!(calls_made(&world, &mut seen), [[4]]);
        // The document, the marker and a listing the first time; the entry each time.
        assert_eq!(world.store.take_calls().gets, expected_reads);
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_whose_entry_was_dropped_is_delivered_in_its_turn() {
    let (world, poller) = parked(&[1, 2, 3], 5).await;
    reject(&world, &[]);
    let mut seen = 0;
    calls_made(&world, &mut seen);
    for id in 1..=5 {
        world.source.put(id, "later");
    }
    let mut entries = Vec::new();
    for (id, entry) in world.quarantine().await {
        if id != 1 {
            let found = admin(&poller).entry(&entry.key_id).await.unwrap().unwrap();
            entries.push((found.key, found.etag));
        }
    }
    // As between the removal and the next epoch of an operator who drops them.
    for (key, etag) in entries {
        let key = StateKey::Quarantined { poller: "p".to_owned(), key };
        world.memory.remove(&key, &etag).await.unwrap();
    }
    tick(&poller).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen).concat(), [2, 3, 4, 5]);
    assert_eq!(world.quarantined().await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_row_is_parked_over_a_parked_one_that_shows_nothing_about_the_target() {
    let failed = || HandlerError::Retryable("500".to_owned());
    let (world, poller) = parked(&[2], 2).await;
    world.handler.judge_by(move |ids| if ids.contains(&1) { Err(failed()) } else { Ok(()) });
    for id in [1, 2, 3, 4] {
        world.source.put(id, "later");
    }
    let mut seen = 0;
    calls_made(&world, &mut seen);
    tick(&poller).await.unwrap_err();
    sleep(600).await;
    while tick(&poller).await.is_err() {
        sleep(600).await;
    }
    assert_eq!(world.quarantined().await, [1, 2]);
    let calls = calls_made(&world, &mut seen);
    assert!(calls.iter().all(|ids| !ids.contains(&2)), "{calls:?}");
    assert!(calls.contains(&vec![3, 4]), "{calls:?}");
    assert_eq!(world.document().await.checkpoint.cursor.unwrap().key["id"], 4);
}

#[tokio::test(start_paused = true)]
async fn the_checkpoint_passes_a_diverted_row_only_after_its_entry_has_it() {
    let (world, poller) = parked(&[1], 2).await;
    reject(&world, &[]);
    world.source.put(1, "later");
    let before = world.document().await.checkpoint;
    // Lease, then the entry.
    world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
    world.store.break_next(Call::Store, Fault::Refused);
    let error = tick(&poller).await.unwrap_err();
    assert!(matches!(error, TickError::Load(_)), "{error:?}");
    assert!(world.is_released().await);
    assert_eq!(world.document().await.checkpoint, before);
    sleep(600).await;
    // The process dies between the entry and the commit.
    for delay in [0, 0, 3600] {
        world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(delay)));
    }
    killed_after(5, &poller).await;
    assert_eq!(world.document().await.checkpoint, before);
    sleep(600).await;
    tick(&world.instance("b")).await.unwrap();
    assert_eq!(world.document().await.checkpoint.cursor.unwrap().key["id"], 1);
    assert_eq!(world.quarantine().await.remove(0).1.versions, 2, "recorded once");
}

#[tokio::test(start_paused = true)]
async fn without_park_later_versions_of_a_parked_row_are_delivered() {
    let (world, _) = parked(&[1], 2).await;
    reject(&world, &[]);
    let policy = FailurePolicy { on_failure: OnFailure::Retry, ..world.policy };
    let other = world.with_policy(policy).instance("b");
    world.source.put(1, "later");
    let mut seen = 0;
    calls_made(&world, &mut seen);
    tick(&other).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen), [[1]]);
}

#[tokio::test(start_paused = true)]
async fn a_drop_between_an_entry_and_its_commit_loses_no_count() {
    let (world, poller) = parked(&[1], 1).await;
    world.source.put(2, "bad");
    reject(&world, &[1, 2]);
    // Lease, announcement, the entry, and the commit after another process has dropped all entries.
    for delay in [0, 0, 0, 10] {
        world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(delay)));
    }
    let (outcome, ()) = tokio::join!(tick(&poller), async {
        sleep(5).await;
        let other = world.with_working_store();
        let entries = plan(&other.instance("cli")).await;
        assert_eq!(drop_entries(&other, entries).await.len(), 2);
    });
    assert_eq!(outcome.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(counted(&world).await.0, 0, "the tick's own count is of an earlier epoch");
    assert_eq!(world.document().await.checkpoint.cursor.unwrap().key["id"], 2);
}

#[tokio::test(start_paused = true)]
async fn entries_can_be_dropped_without_a_state_document() {
    let (world, poller) = parked(&[1], 1).await;
    let entries = plan(&poller).await;
    let key = StateKey::Document("p".to_owned());
    let etag = world.stored(&key).await.unwrap().etag;
    world.memory.remove(&key, &etag).await.unwrap();
    assert!(drop_entries(&world, entries).await.iter().all(Result::is_ok));
    assert!(world.stored(&key).await.is_none(), "no document hides the loss");
}

#[tokio::test(start_paused = true)]
async fn a_document_that_is_put_back_keeps_what_is_known_of_the_entries() {
    let (world, poller) = parked(&[1], 1).await;
    let earlier = {
        let mut earlier = world.document().await;
        earlier.parked = ParkedKeys::default();
        earlier.requires.clear();
        earlier
    };
    let present = admin(&poller).present().await.unwrap();
    let operator = Operator { by: "ann", reason: "r" };
    let action = (EventKind::Imported, operator);
    let restored = admin(&poller).restore(&earlier, &present, action).await.unwrap();
    assert_eq!(
        (restored.document.parked.keys, restored.document.requires),
        (1, vec!["park".to_owned()])
    );
}

/// A poller that has parked rows and retries them, up to ten times.
async fn retrying(bad: &'static [i64], rows: i64) -> (World, Poller) {
    let park = ParkPolicy { retries_max: 10, ..ParkPolicy::default() };
    parked_by(FailurePolicy { park, ..policy() }, bad, rows).await
}

#[tokio::test(start_paused = true)]
async fn a_parked_key_recovers_by_itself_with_the_row_as_it_is_now() {
    let (world, poller) = retrying(&[2], 3).await;
    let parked = world.document().await.parked;
    assert_eq!((parked.retrying(), parked.quarantined), (1, 0));
    assert!(parked.next_retry_at.is_some());
    let mut seen = 0;
    calls_made(&world, &mut seen);
    // Not due yet; a later version waits with it.
    world.source.put(2, "fixed");
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(calls_made(&world, &mut seen), Vec::<Vec<i64>>::new());
    reject(&world, &[]);
    sleep(2).await;
    // An idle tick finds it.
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    assert_eq!(calls_made(&world, &mut seen), [[2]]);
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    let document = world.document().await;
    assert_eq!((document.parked.keys, document.parked.next_retry_at), (0, None));
    assert!(document.requires.is_empty() && document.lease.released_at.is_some());
    world.assert_all_delivered();
    // The key flows again.
    world.source.put(2, "later");
    tick(&poller).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen), [[2]]);
}

#[tokio::test(start_paused = true)]
async fn the_line_of_a_tick_counts_rows_that_are_parked_and_delivered_from_parking() {
    let park = ParkPolicy { retries_max: 10, ..ParkPolicy::default() };
    let world = World::new().with_policy(FailurePolicy { park, breaker_rows: 2, ..policy() });
    let poller = world.instance("a");
    let line = async || poller.tick(&TickRequest::default()).await.summary;
    world.source.fill(3);
    reject(&world, &[2]);
    let of_tick = line().await;
    assert!(
        of_tick.contains("committed 2 rows in ") && of_tick.contains(", parked 1 ("),
        "{of_tick}"
    );
    reject(&world, &[]);
    sleep(60).await;
    let of_tick = line().await;
    assert!(of_tick.contains("nothing new, delivered from parking 1 ("), "{of_tick}");
    let of_tick = line().await;
    assert!(of_tick.contains("nothing new ("), "{of_tick}");
    reject(&world, &[4, 5, 6]);
    for id in [4, 5, 6] {
        world.source.put(id, "bad");
    }
    let of_tick = line().await;
    assert!(of_tick.contains("parked 2, breaker open"), "{of_tick}");
}

#[tokio::test(start_paused = true)]
async fn retries_are_further_and_further_apart_and_end_in_quarantine() {
    let (world, poller) = retrying(&[2], 3).await;
    let mut seen = 0;
    calls_made(&world, &mut seen);
    let mut at = Vec::new();
    for second in 0..2_000 {
        sleep(1).await;
        tick(&poller).await.unwrap();
        if !calls_made(&world, &mut seen).is_empty() {
            at.push(second);
        }
    }
    assert_eq!(at.len(), 10, "{at:?}");
    let pauses: Vec<i32> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[8] > 100 && pauses[8] <= 513, "{pauses:?}");
    let entry = world.quarantine().await.remove(0).1;
    assert_eq!((entry.state, entry.retries), (EntryState::Quarantined, 10));
    let parked = world.document().await.parked;
    assert_eq!((parked.keys, parked.quarantined, parked.next_retry_at), (1, 1, None));
    // An operator redrives it.
    reject(&world, &[]);
    let keys = admin(&poller).quarantined().await.unwrap();
    let redrive = redrive(&keys);
    admin(&world.instance("cli")).redrive(&redrive, &mut |_, _| {}).await.unwrap();
    assert_eq!(counted(&world).await.0, 0);
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn another_process_retries_the_keys_that_it_finds_in_the_document() {
    let (world, _) = retrying(&[1, 2], 3).await;
    reject(&world, &[]);
    sleep(60).await;
    assert_eq!(tick(&world.instance("b")).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_crashes_the_process_is_counted_and_blames_no_batch() {
    let (world, a) = retrying(&[1], 1).await;
    // A batch that fails, and waits for its next attempt.
    world.source.put(5, "new");
    world.handler.judge_by(|_| Err(HandlerError::Retryable("500".to_owned())));
    tick(&a).await.unwrap_err();
    sleep(10).await;
    world.handler.then_take(Duration::from_secs(3_600));
    killed_after(5, &a).await;
    let entry = world.quarantine().await.remove(0).1;
    assert_eq!(entry.retries, 1, "before the call");
    assert!(!world.is_released().await);
    sleep(600).await;
    world.handler.judge_by(|_| Ok(()));
    world.handler.then_fail(HandlerError::Retryable("500".to_owned()));
    let crashes = |document: highwater_engine::document::StateDocument| {
        document.in_flight.map(|batch| batch.crashes)
    };
    // The batch comes first, and fails once more.
    tick(&world.instance("b")).await.unwrap_err();
    assert_eq!(world.quarantine().await.remove(0).1.retries, 1);
    assert_eq!(crashes(world.document().await), Some(0));
    sleep(600).await;
    tick(&world.instance("b")).await.unwrap();
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_busy_ends_the_retries_of_a_tick_and_counts_none() {
    let (world, poller) = retrying(&[1, 2, 3], 4).await;
    let mut seen = 0;
    calls_made(&world, &mut seen);
    world
        .handler
        .judge_by(|_| Err(HandlerError::Throttled { reason: "429".to_owned(), retry_after: None }));
    for _ in 0..3 {
        sleep(60).await;
        tick(&poller).await.unwrap();
        assert_eq!(calls_made(&world, &mut seen).len(), 1);
    }
    assert!(world.quarantine().await.iter().all(|(_, entry)| entry.retries == 0));
    reject(&world, &[]);
    sleep(60).await;
    tick(&poller).await.unwrap();
    world.assert_all_delivered();
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
}

#[tokio::test(start_paused = true)]
async fn a_parked_row_that_is_deleted_leaves_no_entry() {
    let (world, poller) = retrying(&[2], 3).await;
    world.source.delete(2);
    sleep(60).await;
    tick(&poller).await.unwrap();
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    assert_eq!(counted(&world).await.0, 0);
}

#[tokio::test(start_paused = true)]
async fn no_key_is_retried_while_the_poller_is_paused_or_another_process_has_the_lease() {
    let (world, poller) = retrying(&[1], 1).await;
    reject(&world, &[]);
    sleep(60).await;
    let operator = Operator { by: "ann", reason: "r" };
    admin(&world.instance("cli")).pause(operator).await.unwrap();
    let other = world.instance("b");
    tick(&other).await.unwrap();
    assert_eq!(world.quarantined().await, [1]);
    admin(&world.instance("cli")).resume(operator).await.unwrap();
    tick(&world.instance("c")).await.unwrap();
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    drop(poller);
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_last_retry_crashed_the_process_is_quarantined() {
    let park = ParkPolicy { retries_max: 1, ..ParkPolicy::default() };
    let (world, a) = parked_by(FailurePolicy { park, ..policy() }, &[1], 1).await;
    sleep(60).await;
    world.handler.then_take(Duration::from_secs(3_600));
    killed_after(5, &a).await;
    sleep(7_200).await;
    let mut seen = 0;
    calls_made(&world, &mut seen);
    tick(&world.instance("b")).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen), Vec::<Vec<i64>>::new());
    let entry = world.quarantine().await.remove(0).1;
    assert_eq!((entry.state, entry.retries), (EntryState::Quarantined, 1));
}

#[tokio::test(start_paused = true)]
async fn retries_wait_as_long_as_the_target_asks() {
    let (world, poller) = retrying(&[1, 2], 2).await;
    let mut seen = 0;
    calls_made(&world, &mut seen);
    let retry_after = Some(Duration::from_secs(900));
    let busy = HandlerError::Throttled { reason: "429".to_owned(), retry_after };
    sleep(60).await;
    world.handler.then_fail(busy);
    tick(&poller).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen).len(), 1);
    reject(&world, &[]);
    sleep(600).await;
    tick(&poller).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen).len(), 0, "too early");
    sleep(400).await;
    tick(&poller).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_is_told_gone_pauses_the_poller() {
    let (world, poller) = retrying(&[1], 1).await;
    sleep(60).await;
    world.handler.then_fail(HandlerError::Gone("410".to_owned()));
    let error = tick(&poller).await.unwrap_err();
    assert!(matches!(error, TickError::Handler(HandlerError::Gone(_))), "{error:?}");
    let document = world.document().await;
    assert_eq!(document.paused.map(|paused| paused.reason), Some("410".to_owned()));
    assert!(world.is_released().await);
}

#[tokio::test(start_paused = true)]
async fn a_redrive_of_a_quarantined_key_leaves_another_one_retrying_on_an_idle_table() {
    let park = ParkPolicy { retries_max: 1, ..ParkPolicy::default() };
    let (world, poller) = parked_by(FailurePolicy { park, ..policy() }, &[1], 1).await;
    sleep(60).await;
    tick(&poller).await.unwrap();
    let parked = world.document().await.parked;
    assert_eq!((parked.quarantined, parked.next_retry_at), (1, None));
    reject(&world, &[2]);
    world.source.put(2, "bad");
    tick(&poller).await.unwrap();
    let keys = vec![world.quarantine().await.remove(0).1.key_id];
    let redrive = redrive(&keys);
    admin(&world.instance("cli")).redrive(&redrive, &mut |_, _| {}).await.unwrap();
    assert_eq!(world.quarantined().await, [2]);
    reject(&world, &[]);
    sleep(60).await;
    // The first tick finds that its document is out of date.
    tick(&poller).await.unwrap();
    tick(&poller).await.unwrap();
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
}

#[tokio::test(start_paused = true)]
async fn a_later_version_of_the_failing_row_proves_nothing_and_is_not_delivered_before_it() {
    let (world, poller) = parked(&[], 1).await;
    world.handler.judge_by(|_| Err(HandlerError::Retryable("500".to_owned())));
    world.source.put(1, "bad");
    for _ in 0..2 {
        tick(&poller).await.unwrap_err();
        sleep(600).await;
    }
    let mut seen = 0;
    calls_made(&world, &mut seen);
    // It is updated while it is delivered, so the rows after it are a later version of itself.
    world.handler.take_by(|_| Duration::from_secs(5));
    let (failed, ()) = tokio::join!(tick(&poller), async {
        sleep(1).await;
        world.source.put(1, "good");
    });
    failed.unwrap_err();
    let calls = world.handler.received().into_iter().skip(seen);
    let calls: Vec<_> = calls.collect();
    let versions: BTreeSet<_> = calls.into_iter().flat_map(|call| call.event_ids).collect();
    assert_eq!(versions.len(), 1, "no probe: {versions:?}");
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
}

#[tokio::test(start_paused = true)]
async fn a_failing_row_keeps_its_age_although_no_row_follows_it() {
    let (world, poller) = parked(&[], 1).await;
    world.handler.judge_by(|_| Err(HandlerError::Retryable("500".to_owned())));
    world.source.put(1, "bad");
    for _ in 0..6 {
        let _failed = tick(&poller).await;
        sleep(600).await;
    }
    let observed = world.document().await.observed.unwrap();
    assert!(observed.lag.is_some_and(|lag| lag > 2_000.0), "{observed:?}");
    assert_eq!(observed.positions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_row_that_crashes_processes_is_found_beside_a_parked_one() {
    let policy = FailurePolicy { crashes_max: 2, ..policy() };
    let (world, a) = parked_by(policy, &[2], 4).await;
    drop(a);
    for id in 1..=4 {
        world.source.put(id, "later");
    }
    world.handler.judge_by(|_| Ok(()));
    let hangs = |ids: &[i64]| Duration::from_secs(if ids.contains(&1) { 3_600 } else { 0 });
    world.handler.take_by(hangs);
    for number in 0..8 {
        let poller = world.instance(&format!("p{number}"));
        if world.quarantined().await.contains(&1) {
            break;
        }
        let _killed = tokio::time::timeout(Duration::from_secs(5), tick(&poller)).await;
        sleep(600).await;
    }
    assert_eq!(world.quarantined().await, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_document_that_is_created_again_finds_the_entries() {
    let (world, poller) = retrying(&[1], 2).await;
    let key = StateKey::Document("p".to_owned());
    let etag = world.stored(&key).await.unwrap().etag;
    world.memory.remove(&key, &etag).await.unwrap();
    drop(poller);
    reject(&world, &[]);
    sleep(60).await;
    let limits = Limits { on_missing_state: OnMissingState::Recreate, ..limits() };
    let other = world.with_limits(limits).instance("b");
    for _ in 0..3 {
        tick(&other).await.unwrap();
        sleep(10).await;
    }
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    assert!(world.document().await.requires.is_empty());
}

#[tokio::test(start_paused = true)]
async fn keys_are_retried_although_another_instance_wrote_since_the_document_was_read() {
    let (world, a) = retrying(&[2], 3).await;
    let b = world.instance("b");
    for second in 0..4 {
        // Each tick finds that the document is newer than the one it remembers.
        world.source.put(10 + second, "new");
        tick(if second % 2 == 0 { &b } else { &a }).await.unwrap();
    }
    reject(&world, &[]);
    sleep(60).await;
    tick(&b).await.unwrap();
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn a_following_tick_retries_keys_as_long_as_it_runs() {
    let pause = Duration::from_secs(180);
    let backoff = Backoff { first: pause, max: pause };
    let park = ParkPolicy { retries_max: 10, backoff, ..ParkPolicy::default() };
    let (world, a) = parked_by(FailurePolicy { park, ..policy() }, &[2], 3).await;
    reject(&world, &[]);
    let follow = Follow { time: Duration::from_secs(200), interval: Duration::from_secs(5) };
    let a = a.with_flow(Flow { follow: Some(follow), ..Flow::default() });
    let mut seen = 0;
    calls_made(&world, &mut seen);
    world.store.take_calls();
    // The key is due later than the first quarter of the tick.
    tick(&a).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen), [[2]]);
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    assert_eq!(world.store.take_calls().puts, 3, "grant, entry and release");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_crashes_processes_is_parked_although_another_key_is_due_each_time() {
    let (world, _) = retrying(&[1], 1).await;
    world.source.put(5, "deadly");
    for number in 0..world.policy.crashes_max {
        world.handler.then_take(Duration::from_secs(3_600));
        killed_after(5, &world.instance(&format!("b{number}"))).await;
        sleep(600).await;
    }
    tick(&world.instance("c")).await.unwrap();
    assert_eq!(world.quarantined().await, [1, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_entry_cannot_be_read_once_is_retried_later() {
    let (world, _) = retrying(&[1, 2], 3).await;
    reject(&world, &[]);
    sleep(60).await;
    let entry = world.quarantine().await.remove(0).1;
    let (id, _) = world.quarantine().await.remove(0);
    let key = damage(&world, id, b"<html>Sign in</html>").await;
    let b = world.instance("b");
    tick(&b).await.unwrap();
    let etag = world.stored(&key).await.unwrap().etag;
    world.memory.store(&key, entry.encode(), Precondition::Matches(etag)).await.unwrap();
    assert_eq!(world.quarantined().await, [1]);
    let parked = world.document().await.parked;
    assert_eq!((parked.keys, parked.quarantined), (1, 0));
    tick(&b).await.unwrap();
    assert_eq!(world.quarantined().await, [1], "not each tick");
    sleep(3_600).await;
    tick(&b).await.unwrap();
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn a_key_recovers_after_another_table_took_the_name_of_its_own() {
    let (world, _) = retrying(&[2], 5).await;
    let recorded = world.quarantine().await.remove(0).1.event().unwrap().cursor;
    let world = world.with_source(TableSource::new("p"));
    world.source.put(2, "of the new table");
    let cli = world.instance("cli");
    let plan = admin(&cli).plan_reset(ResetTo::Beginning, true).await.unwrap();
    let operator = Operator { by: "ann", reason: "r" };
    admin(&cli).reset(&plan, "reset-1".to_owned(), operator).await.unwrap();
    let b = world.instance("b");
    tick(&b).await.unwrap();
    let entry = world.quarantine().await.remove(0).1;
    assert!(entry.event().unwrap().cursor.is_before(&recorded), "{entry:?}");
    reject(&world, &[]);
    sleep(60).await;
    tick(&b).await.unwrap();
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn a_tick_retries_at_least_one_key_however_long_it_takes_to_find_it() {
    let (world, _) = retrying(&[1, 2, 3], 3).await;
    reject(&world, &[]);
    // A quarter of it is less than the reads take.
    let limits = Limits { tick_time_max: Duration::from_secs(8), ..world.limits };
    let world = world.with_limits(limits);
    for instance in ["b", "c", "d"] {
        sleep(60).await;
        // The document, and the entries.
        for seconds in [0, 1, 1, 1] {
            world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(seconds)));
        }
        let before = world.quarantined().await.len();
        // Another process each time, which has to find the keys again.
        tick(&world.instance(instance)).await.unwrap();
        world.store.clear_faults();
        assert_eq!(world.quarantined().await.len(), before - 1);
    }
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn a_parked_row_that_crashes_processes_holds_back_no_other_row() {
    let (world, _) = retrying(&[1], 1).await;
    world.handler.judge_by(|_| Ok(()));
    let hangs = |ids: &[i64]| Duration::from_secs(if ids.contains(&1) { 3_600 } else { 0 });
    world.handler.take_by(hangs);
    sleep(10).await;
    killed_after(5, &world.instance("b")).await;
    // The key is due again before each tick. Only every other one retries it, or one that finds no row.
    world.source.put(5, "new");
    sleep(3_600).await;
    assert_eq!(tick(&world.instance("c")).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.quarantine().await.remove(0).1.retries, 1);
    killed_after(5, &world.instance("d")).await;
    assert_eq!(world.quarantine().await.remove(0).1.retries, 2);
    sleep(3_600).await;
    world.handler.take_by(|_| Duration::ZERO);
    assert_eq!(tick(&world.instance("e")).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn an_entry_stays_whose_row_is_read_in_an_older_version() {
    let (world, _) = retrying(&[2], 5).await;
    reject(&world, &[]);
    // As from a replica that lags behind.
    let world = world.with_source(TableSource::new("p"));
    world.source.put(2, "older");
    sleep(60).await;
    tick(&world.instance("b")).await.unwrap();
    assert_eq!(world.quarantined().await, [2]);
    assert_eq!(world.quarantine().await.remove(0).1.retries, 1);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_recorded_while_a_key_is_retried_keeps_its_entry() {
    let (world, a) = retrying(&[2], 3).await;
    reject(&world, &[]);
    sleep(60).await;
    // Another process adds a version while the handler works.
    world.handler.take_by(|_| Duration::from_secs(2));
    let (retried, ()) = tokio::join!(tick(&a), async {
        sleep(1).await;
        let mut entry = world.quarantine().await.remove(0).1;
        let key = entry.state_key();
        let etag = world.stored(&key).await.unwrap().etag;
        entry.versions += 1;
        world.memory.store(&key, entry.encode(), Precondition::Matches(etag)).await.unwrap();
    });
    retried.unwrap();
    assert_eq!(world.quarantined().await, [2]);
    assert_eq!(world.quarantine().await.remove(0).1.versions, 2);
}

/// A poller whose batches have at most 600 bytes.
fn small_batches(world: &World) -> Poller {
    world.with_limits(Limits { batch_bytes_max: 600, ..limits() }).instance("a")
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_row_is_parked_by_reference_and_the_rest_flows() {
    let park = ParkPolicy { retries_max: 10, ..ParkPolicy::default() };
    let world = World::new().with_policy(FailurePolicy { park, ..policy() });
    let poller = small_batches(&world);
    world.source.fill(3);
    world.source.put(11, &"x".repeat(1000));
    world.source.put(12, "behind it");
    while tick(&poller).await.unwrap() == (TickOutcome::Committed { more: true }) {}
    assert_eq!(world.handler.ids(), [1, 2, 3, 12]);
    let (id, entry) = world.quarantine().await.pop().unwrap();
    assert_eq!((id, entry.reason, entry.without_columns), (11, Reason::Unreadable, true));
    assert!(entry.error.contains("`BATCH_BYTES_MAX` allows"), "{}", entry.error);
    assert_eq!(world.document().await.quarantined_in_a_row, 0);
    // A retry finds it as it is now.
    sleep(10).await;
    tick(&poller).await.unwrap();
    assert_eq!((world.quarantined().await, world.handler.ids().len()), (vec![11], 4));
    // A later version waits with the key; the next retry delivers it.
    world.source.put(11, "short");
    tick(&poller).await.unwrap();
    sleep(3_600).await;
    tick(&poller).await.unwrap();
    assert_eq!((world.quarantined().await, world.handler.ids()), (vec![], vec![1, 2, 3, 12, 11]));
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn no_more_unreadable_rows_are_parked_in_a_row_than_the_breaker_allows() {
    let world = World::new().with_policy(FailurePolicy { breaker_rows: 4, ..policy() });
    world.source.fill(2);
    for id in 3..=20 {
        world.source.put(id, &"x".repeat(1000));
    }
    world.source.put(21, "behind them");
    let poller = small_batches(&world);
    let mut errors = Vec::new();
    for _ in 0..5 {
        errors.extend(tick(&poller).await.err().map(|error| chain(&error)));
    }
    assert_eq!((world.quarantined().await, world.handler.ids()), (vec![3, 4, 5, 6], vec![1, 2]));
    let error = errors.last().unwrap();
    assert!(error.contains("nothing after the row is delivered until then"), "{error}");
    // With a larger limit they are delivered, and the rest of the table with them.
    while tick(&world.instance("b")).await.unwrap() != TickOutcome::Idle {}
    assert_eq!(world.handler.ids().into_iter().max(), Some(21));
    assert_eq!(world.document().await.quarantined_in_a_row, 0);
    assert_eq!(world.quarantined().await, [3, 4, 5, 6], "they wait for an operator");
}

#[tokio::test(start_paused = true)]
async fn later_versions_of_an_unreadable_row_do_not_open_the_breaker() {
    let world = World::new().with_policy(FailurePolicy { breaker_rows: 2, ..policy() });
    let poller = small_batches(&world);
    for round in 0..5 {
        world.source.put(1, &"x".repeat(1000 + round));
        tick(&poller).await.unwrap();
    }
    assert_eq!(world.quarantined().await, [1]);
    world.source.put(2, "good");
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [2]);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_row_counts_once_its_key_is_parked() {
    let world = World::new().with_policy(FailurePolicy { breaker_rows: 2, ..policy() });
    let poller = small_batches(&world);
    world.source.put(1, "bad");
    world.handler.judge_by(|_| Err(HandlerError::Retryable("500".to_owned())));
    tick(&poller).await.unwrap_err();
    world.source.put(2, &"x".repeat(1000));
    world.source.put(3, "good");
    let unreadable = async || world.document().await.parked.unreadable_in_a_row;
    for _ in 0..4 {
        // Lease, announcement, the entry.
        for fault in [Fault::Slow(Duration::ZERO), Fault::Slow(Duration::ZERO), Fault::Refused] {
            world.store.break_next(Call::Store, fault);
        }
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    assert_eq!((world.quarantined().await, unreadable().await), (vec![], 0));
    // An operator drops the entry, and the next tick parks the key again.
    for _ in 0..4 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
        assert_eq!((world.quarantined().await, unreadable().await), (vec![2], 1));
        drop_entries(&world, plan(&poller).await).await;
        assert_eq!(unreadable().await, 0);
    }
    world.handler.judge_by(|ids| {
        if ids.contains(&1) { Err(HandlerError::Retryable("500".to_owned())) } else { Ok(()) }
    });
    for _ in 0..3 {
        sleep(600).await;
        let _failed = tick(&poller).await;
    }
    assert_eq!((world.quarantined().await, unreadable().await), (vec![1, 2], 0));
    assert_eq!(world.document().await.checkpoint.cursor.unwrap().key["id"], 3);
}

#[tokio::test(start_paused = true)]
async fn no_key_is_parked_that_several_rows_may_have() {
    let world = World::new().with_policy(policy());
    world.source.share_keys();
    world.source.fill(4);
    reject(&world, &[2]);
    let poller = world.instance("a");
    let error = chain(&tick(&poller).await.unwrap_err());
    assert!(error.contains("no unique index covers `SOURCE__KEY`"), "{error}");
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    assert_eq!(world.document().await.checkpoint.cursor.unwrap().key["id"], 1);
    // Nothing is lost meanwhile.
    reject(&world, &[]);
    sleep(600).await;
    tick(&poller).await.unwrap();
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn a_row_that_another_table_does_not_have_keeps_its_entry() {
    let (world, poller) = retrying(&[2], 3).await;
    sleep(120).await;
    // The table was swapped: the fetch reports it.
    world.source.delete(2);
    world.source.fail_with(FetchError::position_lost("another table has the name"));
    world.source.fail_with(FetchError::position_lost("another table has the name"));
    let error = chain(&tick(&poller).await.unwrap_err());
    assert!(error.contains("another table has the name"), "{error}");
    assert_eq!(world.quarantined().await, [2]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_too_old_is_tried_once_more() {
    let (world, poller) = retrying(&[2], 3).await;
    reject(&world, &[]);
    // Longer than keys are retried: the app did not run.
    sleep(8 * 24 * 3_600).await;
    tick(&poller).await.unwrap();
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_row_whose_entry_was_dropped_is_parked_anew_and_not_delivered() {
    let (world, _) = parked(&[1, 2], 3).await;
    reject(&world, &[]);
    let poller = small_batches(&world);
    // Knows the keys.
    world.source.put(4, "new");
    tick(&poller).await.unwrap();
    let mut seen = 0;
    calls_made(&world, &mut seen);
    world.source.put(2, &"x".repeat(1000));
    world.source.put(5, "behind it");
    let (_, entry) = world.quarantine().await.pop().unwrap();
    let found = admin(&poller).entry(&entry.key_id).await.unwrap().unwrap();
    world.memory.remove(&entry.state_key(), &found.etag).await.unwrap();
    tick(&poller).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen), [[5]]);
    let (id, entry) = world.quarantine().await.pop().unwrap();
    assert_eq!((id, entry.reason), (2, Reason::Unreadable));
}

#[tokio::test(start_paused = true)]
async fn rejected_rows_before_an_unreadable_one_do_not_stop_it() {
    let world = World::new().with_policy(FailurePolicy { breaker_rows: 2, ..policy() });
    world.source.fill(2);
    reject(&world, &[1, 2]);
    let poller = small_batches(&world);
    for _ in 0..3 {
        let _tried = tick(&poller).await;
        sleep(600).await;
    }
    assert_eq!(world.quarantined().await, [1, 2]);
    // The breaker is open, and the next row is unreadable.
    world.source.put(3, &"x".repeat(1000));
    world.source.put(4, "good");
    while tick(&poller).await.unwrap() != TickOutcome::Idle {}
    assert_eq!(world.quarantined().await, [1, 2, 3]);
    assert_eq!(world.handler.ids().last(), Some(&4));
}

#[tokio::test(start_paused = true)]
async fn rows_before_an_unreadable_one_are_delivered_where_no_key_can_be_parked() {
    let world = World::new().with_policy(policy());
    world.source.share_keys();
    world.source.fill(2);
    world.source.put(3, &"x".repeat(1000));
    world.source.put(4, "behind it");
    let poller = small_batches(&world);
    for _ in 0..2 {
        let tried = tick(&poller).await;
        assert_eq!(world.handler.ids(), [1, 2], "{tried:?}");
    }
    let error = chain(&tick(&poller).await.unwrap_err());
    assert!(error.contains("its key could not be parked: no unique index"), "{error}");
}

/// Stores something else in place of an entry.
async fn damage(world: &World, id: i64, bytes: &[u8]) -> StateKey {
    let (_, entry) = world.quarantine().await.into_iter().find(|(of, _)| *of == id).unwrap();
    let key = entry.state_key();
    let etag = world.stored(&key).await.unwrap().etag;
    world.memory.store(&key, bytes.to_vec(), Precondition::Matches(etag)).await.unwrap();
    key
}

#[tokio::test(start_paused = true)]
async fn a_damaged_entry_is_replaced_by_the_next_version_of_its_row_and_delays_no_other_key() {
    for bytes in [&b"<html>Sign in</html>"[..], br#"{"version": 1}"#, b"", b"{\"version\": 2}"] {
        let (world, _) = retrying(&[1, 2], 4).await;
        let watched = WatchedWorld::of(world);
        let world = &watched.world;
        reject(world, &[]);
        let key = damage(world, 2, bytes).await;
        for id in [2, 3, 5] {
            world.source.put(id, "later");
        }
        let b = world.instance("b");
        let mut seen = 0;
        calls_made(world, &mut seen);
        assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
        assert_eq!(calls_made(world, &mut seen), [[3, 5]]);
        let entries = world.quarantine().await;
        let (_, entry) = entries.iter().find(|(id, _)| *id == 2).unwrap();
        assert!(entry.error.contains("could not be read"), "{}", entry.error);
        assert!(entry.events[0].get().contains("later"));
        // It may be a row that crashes processes.
        assert_eq!(entry.state, EntryState::Quarantined);
        let alarm = watched.logged("entry_replaced");
        assert_eq!(alarm["level"], "ERROR");
        let command = format!("`highwater quarantine redrive p {}`", entry.key_id);
        assert!(alarm["message"].contains(&command), "{alarm:?}");
        assert_eq!(key, entry.state_key());
        let keys = [entry.key_id.clone()];
        let redrive = redrive(&keys);
        admin(&world.instance("cli")).redrive(&redrive, &mut |_, _| {}).await.unwrap();
        sleep(60).await;
        tick(&b).await.unwrap();
        tick(&b).await.unwrap();
        assert_eq!(world.quarantined().await, Vec::<i64>::new());
        world.assert_all_delivered();
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_lost_its_lease_does_not_replace_a_damaged_entry() {
    let (world, a) = parked(&[2], 3).await;
    reject(&world, &[]);
    world.source.put(2, "older");
    world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(5)));
    let (stale, key) = tokio::join!(tick(&a), async {
        // The entry has a later version before it is damaged.
        sleep(2).await;
        world.rewrite(|document| document.break_lease().unwrap()).await;
        world.source.put(2, "newer");
        tick(&world.with_working_store().instance("b")).await.unwrap();
        assert!(world.quarantine().await[0].1.events[0].get().contains("newer"));
        damage(&world, 2, b"").await
    });
    assert!(matches!(&stale, Err(TickError::LeaseLost(_))), "{stale:?}");
    assert_eq!(world.stored(&key).await.unwrap().bytes, b"");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_rejected_again_replaces_a_damaged_entry() {
    let (world, _) = parked(&[2], 3).await;
    damage(&world, 2, b"{}").await;
    // Without `park` its later versions are delivered meanwhile, so that this one is parked as the first.
    let key = StateKey::Document("p".to_owned());
    let mut document = world.document().await;
    (document.parked, document.requires) = (ParkedKeys::default(), Vec::new());
    let etag = world.stored(&key).await.unwrap().etag;
    let bytes = highwater_engine::document::encode(&document);
    world.memory.store(&key, bytes, Precondition::Matches(etag)).await.unwrap();
    world.source.put(2, "still bad");
    world.source.put(4, "good");
    tick(&world.instance("b")).await.unwrap();
    assert_eq!(world.quarantined().await, [2]);
    assert_eq!(world.handler.ids().last(), Some(&4));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_another_build_may_read_is_left_alone() {
    for (bytes, says) in [
        (&br#"{"version": 3}"#[..], "newer than the supported 2; upgrade this program"),
        (
            br#"{"version": 2, "state": "of a later build", "events": [{}]}"#,
            "not a valid quarantine entry",
        ),
    ] {
        let (world, _) = parked(&[2], 3).await;
        let key = damage(&world, 2, bytes).await;
        world.source.put(2, "later");
        let error = chain(&tick(&world.instance("b")).await.unwrap_err());
        assert!(error.contains(says), "{error}");
        assert_eq!(world.stored(&key).await.unwrap().bytes, bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn thousands_of_keys_recover_within_a_few_ticks_after_an_outage() {
    const KEYS: i64 = 5_000;
    let backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(600) };
    let park = ParkPolicy { retries_max: 100, backoff, ..ParkPolicy::default() };
    let world = World::new().with_policy(FailurePolicy { park, breaker_rows: 10_000, ..policy() });
    let limits = Limits { batch_rows_max: 20, ..limits() };
    let world = world.with_limits(limits);
    let poller = world.started_poller("a").await;
    world.source.fill(KEYS);
    world.handler.judge_by(|_| Err(rejected()));
    while world.document().await.checkpoint.cursor.is_none_or(|at| at.key["id"] != KEYS) {
        let _halved = tick(&poller).await;
    }
    let parked = world.document().await.parked;
    assert_eq!(parked.keys, u64::try_from(KEYS).unwrap());
    world.handler.judge_by(|_| Ok(()));
    // As long as a call over a network.
    world.handler.take_by(|_| Duration::from_millis(20));
    sleep(600).await;
    // Another process each time, which has to find the keys again.
    let mut ticks = 0;
    while !world.quarantined().await.is_empty() {
        ticks += 1;
        assert!(ticks <= 4, "{} keys left", world.quarantined().await.len());
        tick(&world.instance(&format!("b{ticks}"))).await.unwrap();
        sleep(1).await;
    }
    assert_eq!(world.document().await.parked.keys, 0);
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn retries_of_keys_that_stay_bad_end_soon() {
    let park = ParkPolicy { retries_max: 100, ..ParkPolicy::default() };
    let world = World::new().with_policy(FailurePolicy { park, breaker_rows: 10_000, ..policy() });
    let poller = world.started_poller("a").await;
    world.source.fill(120);
    world.handler.judge_by(|_| Err(rejected()));
    while world.document().await.checkpoint.cursor.is_none_or(|at| at.key["id"] != 120) {
        let _halved = tick(&poller).await;
    }
    let mut seen = 0;
    calls_made(&world, &mut seen);
    sleep(3_600).await;
    tick(&poller).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen).len(), 50);
}

#[tokio::test(start_paused = true)]
async fn keys_are_retried_once_the_backoff_of_the_poller_is_over() {
    let (world, poller) = retrying(&[2], 3).await;
    world.handler.judge_by(|_| Err(HandlerError::Retryable("500".to_owned())));
    world.source.put(4, "new");
    for _ in 0..8 {
        let _failed = tick(&poller).await;
        sleep(300).await;
    }
    let _failed = tick(&poller).await;
    let until = world.in_flight().await.unwrap().next_attempt_at.unwrap();
    reject(&world, &[]);
    let mut seen = 0;
    calls_made(&world, &mut seen);
    sleep(60).await;
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::BackingOff { .. }));
    assert_eq!(calls_made(&world, &mut seen), Vec::<Vec<i64>>::new(), "before {until}");
    // `RETRY_DELAY_MAX` is the longest backoff. The retry does not wait for the batch.
    sleep(300).await;
    let mut ticks = 0;
    while !world.quarantined().await.is_empty() {
        ticks += 1;
        assert!(ticks <= 12);
        let _tried = tick(&poller).await;
        sleep(300).await;
    }
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn an_error_while_rows_are_read_for_a_probe_is_reported() {
    let world = World::new().with_policy(FailurePolicy { breaker_rows: 2, ..policy() });
    let watched = WatchedWorld::of(world);
    let world = &watched.world;
    let poller = small_batches(world);
    world.source.put(1, "bad");
    world.handler.judge_by(|_| Err(HandlerError::Retryable("500".to_owned())));
    let _failed = tick(&poller).await;
    for id in 2..=9 {
        world.source.put(id, &"x".repeat(1000));
    }
    for _ in 0..4 {
        sleep(600).await;
        let _failed = tick(&poller).await;
    }
    let alarm = watched.logged("probe_read_failed");
    assert!(alarm["error"].contains("`BATCH_BYTES_MAX` allows"), "{alarm:?}");
    // As many as the breaker allows in the batch, and once more after it.
    assert!(world.quarantined().await.len() <= 4, "{:?}", world.quarantined().await);
}

#[tokio::test(start_paused = true)]
async fn the_journal_names_rows_that_wait_with_their_parked_key() {
    let park = ParkPolicy { retries_max: 10, ..ParkPolicy::default() };
    let world = World::new().with_policy(FailurePolicy { park, ..policy() });
    let journaled = JournaledWorld::in_world(world, JournalMode::Full);
    let world = &journaled.world;
    let poller = journaled.of(small_batches(world));
    world.source.put(1, &"x".repeat(1000));
    world.source.put(2, "good");
    tick(&poller).await.unwrap();
    world.source.put(1, "short");
    world.source.put(3, "good");
    tick(&poller).await.unwrap();
    let entries = journaled.entries().await;
    let of = |kind| {
        let named = entries.iter().filter(move |entry| entry.event == kind);
        named.map(|entry| entry.details.upto.clone().unwrap().key["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of(EventKind::RowQuarantined), [1]);
    assert_eq!(of(EventKind::RowDiverted), [1]);
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
}

#[tokio::test(start_paused = true)]
async fn a_clone_starts_without_parked_keys() {
    let (world, poller) = retrying(&[2], 3).await;
    let clone = poller.under_name("q");
    let operator = Operator { by: "ann", reason: "r" };
    let done = Box::pin(admin(&poller).clone_to(&clone, true, operator)).await.unwrap();
    assert_eq!(done.document.parked.keys, 0);
    reject(&world, &[]);
    let mut seen = 0;
    calls_made(&world, &mut seen);
    // A later version is delivered by the clone, and waits in the other poller.
    world.source.put(2, "later");
    tick(&clone).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen), [[2]]);
    tick(&poller).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen), Vec::<Vec<i64>>::new());
    assert_eq!(admin(&clone).quarantined().await.unwrap(), []);
    assert!(world.document_of("q").await.unwrap().requires.is_empty());
    assert_eq!(world.quarantined().await, [2]);
}

#[tokio::test(start_paused = true)]
async fn a_reset_redelivers_all_rows_but_those_of_parked_keys() {
    let (world, poller) = retrying(&[2], 3).await;
    let operator = Operator { by: "ann", reason: "r" };
    let plan = admin(&poller).plan_reset(ResetTo::Beginning, false).await.unwrap();
    let mut seen = 0;
    calls_made(&world, &mut seen);
    admin(&poller).reset(&plan, "reset-1".to_owned(), operator).await.unwrap();
    let other = world.instance("b");
    tick(&other).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen), [[0, 1, 3]]);
    assert_eq!(counted(&world).await.0, 1);
    reject(&world, &[]);
    sleep(60).await;
    tick(&other).await.unwrap();
    assert_eq!(calls_made(&world, &mut seen), [[2]]);
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
}

#[tokio::test(start_paused = true)]
async fn a_poller_with_parked_keys_is_not_repartitioned() {
    let (world, _) = retrying(&[2], 3).await;
    let operator = Operator { by: "ann", reason: "r" };
    let parts = || {
        (0..2).map(|index| Partition { index, count: 2 }).map(|partition| {
            let name = partition.name("p");
            let part = world.poller(&name, "cli", world.source.clone());
            part.with_partition(Some(partition))
        })
    };
    let change = Repartition::new(vec![world.instance("cli")], parts().collect());
    let refused = Box::pin(change.run(operator, &|_| {})).await.unwrap_err();
    assert!(matches!(refused, RepartitionError::Parked { keys: 1, .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("`highwater quarantine redrive p --all`"), "{text}");
    assert_eq!(world.document().await.paused, None, "nothing has changed");
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_a_batch_of_its_own_under_another_id() {
    let (world, poller) = retrying(&[2], 3).await;
    reject(&world, &[]);
    sleep(60).await;
    let before = world.handler.received();
    tick(&poller).await.unwrap();
    let after = world.handler.received();
    let [retry] = &after[before.len()..] else { panic!("{after:?}") };
    assert_eq!(retry.ids, [2]);
    // `blob` names its blob after the batch, and a ledger of `sql` compares the event.
    assert!(before.iter().all(|call| call.batch_id != retry.batch_id));
    let of_row = before.iter().find(|call| call.ids == [2]).unwrap();
    assert_eq!(of_row.event_ids, retry.event_ids, "an unchanged row");
}
