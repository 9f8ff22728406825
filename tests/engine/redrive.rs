//! Redriving quarantined rows.

use std::sync::Arc;
use std::time::Duration;

use highwater_engine::admin::{Redrive, RedriveEnd, RedriveError, RedriveOutcome};
use highwater_engine::cursor::KeyId;
use highwater_engine::document::{Fence, FencingToken, LeaseState, encode};
use highwater_engine::handler::HandlerError;
use highwater_engine::policy::{FailurePolicy, OnFailure};
use highwater_engine::poller::{Operator, Poller, Skipped, StopSignal, TickError, TickOutcome};
use highwater_engine::store::{Precondition, StateKey, StateStore};
use highwater_engine::testing::{Call, Fault, SteadyHandler, World, admin, sleep, take_over, tick};
use tokio::time::Instant;

fn rejected() -> HandlerError {
    HandlerError::Rejected("422".to_owned())
}

/// A poller whose rows 1 to `bad` were rejected and quarantined, and whose handler accepts everything again.
async fn quarantined_rows(bad: i64) -> (World, Poller) {
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let policy = FailurePolicy { bisect_on_error: true, ..policy };
    let world = World::new().with_policy(policy);
    let poller = world.started_poller("a").await;
    world.source.fill(bad);
    world.handler.judge_by(|_| Err(rejected()));
    while world.document().await.checkpoint.cursor.unwrap().key["id"] != bad {
        sleep(600).await;
        tick(&poller).await.unwrap();
    }
    world.handler.judge_by(|_| Ok(()));
    assert_eq!(admin(&poller).quarantined().await.unwrap().len(), usize::try_from(bad).unwrap());
    (world, poller)
}

fn redrive(keys: &[KeyId]) -> Redrive<'_> {
    let stop = StopSignal::new();
    let interval = Duration::ZERO;
    Redrive { id: "replay-1", keys, as_stored: false, drop_gone: false, interval, stop }
}

/// Redrives in a separate process.
async fn run(
    world: &World,
    redrive: &Redrive<'_>,
) -> (Result<RedriveEnd, RedriveError>, Vec<RedriveOutcome>) {
    let mut outcomes = Vec::new();
    let cli = world.instance("cli");
    let ended = admin(&cli).redrive(redrive, &mut |_, redriven| outcomes.push(redriven)).await;
    (ended, outcomes)
}

#[tokio::test(start_paused = true)]
async fn a_redrive_delivers_the_row_as_it_is_now_under_a_lease_of_its_own() {
    let (world, poller) = quarantined_rows(2).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    let before = world.document().await;
    let earlier = world.handler.received();
    world.source.put(2, "mended");
    let (ended, outcomes) = run(&world, &redrive(&keys)).await;
    assert!(matches!(ended, Ok(RedriveEnd::Done)), "{ended:?}");
    for redriven in &outcomes {
        assert!(matches!(redriven, RedriveOutcome::Delivered { stays: None, .. }), "{redriven:?}");
    }
    assert_eq!(admin(&poller).quarantined().await.unwrap(), []);
    let received = world.handler.received();
    let again = &received[earlier.len()..];
    let mut ids: Vec<i64> = again.iter().flat_map(|call| call.ids.clone()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    for call in again {
        assert_eq!(call.fence.1, before.lease.fencing_token.0 + 1, "no lower than any before");
        assert!(earlier.iter().all(|other| other.batch_id != call.batch_id), "not a known batch");
        let as_before = earlier.iter().any(|other| other.event_ids.contains(&call.event_ids[0]));
        assert_eq!(as_before, call.ids == [1], "a state that it had has the id that it had");
    }
    let after = world.document().await;
    assert_eq!(after.checkpoint, before.checkpoint);
    assert!(after.lease.released_at.is_some());
    // The changed row is also delivered in regular order, under the id that the redrive gave it.
    tick(&poller).await.unwrap();
    let in_turn = world.handler.received().pop().unwrap();
    assert!(again.iter().any(|call| call.event_ids == in_turn.event_ids), "{in_turn:?}");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_the_handler_accepts_before_it_fails_is_redriven() {
    let (world, poller) = quarantined_rows(1).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    let handler = Arc::new(SteadyHandler::default());
    handler.fail_after(1);
    let world = world.with_handler(handler);
    let (_, outcomes) = run(&world, &redrive(&keys)).await;
    let is_delivered = matches!(&outcomes[..], [RedriveOutcome::Delivered { stays: None, .. }]);
    assert!(is_delivered, "{outcomes:?}");
    assert_eq!(admin(&poller).quarantined().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn an_aborted_redrive_releases_the_lease_and_counts_no_attempt() {
    let (world, poller) = quarantined_rows(1).await;
    let keys = poller.admin().quarantined().await.unwrap();
    world.handler.then_take(Duration::from_secs(1000));
    let (began, stop) = (Instant::now(), StopSignal::new());
    let redrive = Redrive { stop: stop.clone(), ..redrive(&keys) };
    let ask = async {
        sleep(5).await;
        stop.set();
        sleep(8).await;
        stop.abort();
    };
    let ((ended, outcomes), ()) = tokio::join!(run(&world, &redrive), ask);
    assert!(
        matches!(ended, Ok(RedriveEnd::Stopped)) && outcomes.is_empty(),
        "{ended:?}, {outcomes:?}"
    );
    assert_eq!(began.elapsed(), Duration::from_secs(13));
    assert!(world.is_released().await);
    let entry = poller.admin().entry(&keys[0]).await.unwrap().unwrap().entry.unwrap();
    assert_eq!((entry.attempts, entry.crashes), (1, 0), "those before it was quarantined");
}

#[tokio::test(start_paused = true)]
async fn an_entry_is_removed_only_after_its_row_was_accepted() {
    let (world, poller) = quarantined_rows(1).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    let attempts = admin(&poller).entry(&keys[0]).await.unwrap().unwrap().entry.unwrap().attempts;
    world.handler.then_fail(rejected());
    let (_, outcomes) = run(&world, &redrive(&keys)).await;
    assert!(
        matches!(&outcomes[..], [RedriveOutcome::Refused { attempts: now, .. }] if *now == attempts + 1),
        "{outcomes:?}"
    );
    let entry = admin(&poller).entry(&keys[0]).await.unwrap().unwrap().entry.unwrap();
    assert_eq!((entry.attempts, entry.error.as_str()), (attempts + 1, "422"));
    // The process crashes while the handler works.
    let cli = world.instance("cli-2");
    world.handler.then_take(Duration::from_secs(20));
    let died = redrive(&keys);
    let mut outcomes = |_: &KeyId, _| {};
    let work = admin(&cli).redrive(&died, &mut outcomes);
    assert!(tokio::time::timeout(Duration::from_secs(10), work).await.is_err());
    assert_eq!(admin(&poller).quarantined().await.unwrap(), keys);
    // The store fails when the entry is to be removed.
    sleep(60).await;
    world.store.break_next(Call::Remove, Fault::LostRequest);
    let (_, outcomes) = run(&world, &redrive(&keys)).await;
    assert!(
        matches!(&outcomes[..], [RedriveOutcome::Delivered { stays: Some(_), .. }]),
        "{outcomes:?}"
    );
    assert_eq!(admin(&poller).quarantined().await.unwrap(), keys);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_row_is_reported_and_its_entry_dropped_only_on_request() {
    let (world, poller) = quarantined_rows(1).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    world.source.delete(1);
    let calls = world.handler.received().len();
    let (_, outcomes) = run(&world, &redrive(&keys)).await;
    assert!(
        matches!(&outcomes[..], [RedriveOutcome::RowDeleted { removed: false }]),
        "{outcomes:?}"
    );
    assert_eq!(admin(&poller).quarantined().await.unwrap(), keys);
    let (_, outcomes) = run(&world, &Redrive { drop_gone: true, ..redrive(&keys) }).await;
    assert!(
        matches!(&outcomes[..], [RedriveOutcome::RowDeleted { removed: true }]),
        "{outcomes:?}"
    );
    assert_eq!(admin(&poller).quarantined().await.unwrap(), []);
    assert_eq!(world.handler.received().len(), calls);
    let (_, outcomes) = run(&world, &redrive(&keys)).await;
    assert!(matches!(&outcomes[..], [RedriveOutcome::Missing]), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stored_delete_is_not_delivered_for_a_restored_row() {
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let policy = FailurePolicy { bisect_on_error: true, ..policy };
    let world = World::new().with_policy(policy);
    let poller = world.started_poller("a").await;
    world.source.soft_delete(1);
    world.handler.judge_by(|_| Err(rejected()));
    while admin(&poller).quarantined().await.unwrap().is_empty() {
        sleep(600).await;
        tick(&poller).await.unwrap();
    }
    world.handler.judge_by(|_| Ok(()));
    let events = admin(&poller).quarantined().await.unwrap();
    // The row lives, but only deletes are delivered.
    world.source.select_deletes();
    world.source.put(1, "restored");
    let calls = world.handler.received().len();
    let (_, outcomes) = run(&world, &redrive(&events)).await;
    assert!(
        matches!(&outcomes[..], [RedriveOutcome::RowDeleted { removed: false }]),
        "{outcomes:?}"
    );
    assert_eq!(world.handler.received().len(), calls);
    world.source.soft_delete(1);
    let (_, outcomes) = run(&world, &redrive(&events)).await;
    assert!(matches!(&outcomes[..], [RedriveOutcome::Delivered { .. }]), "{outcomes:?}");
    assert_eq!(world.handler.received().len(), calls + 1);
}

#[tokio::test(start_paused = true)]
async fn the_stored_event_is_delivered_on_request() {
    let (world, poller) = quarantined_rows(1).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    let stored = world.quarantine().await.remove(0).1.event_id;
    world.source.delete(1);
    let (_, outcomes) = run(&world, &Redrive { as_stored: true, ..redrive(&keys) }).await;
    let [RedriveOutcome::Delivered { event, stays: None }] = &outcomes[..] else {
        panic!("{outcomes:?}")
    };
    assert_eq!(*event, stored);
    let call = world.handler.received().pop().unwrap();
    assert_eq!((call.ids, call.event_ids), (vec![1], vec![stored.to_string()]));
}

#[tokio::test(start_paused = true)]
async fn no_redrive_runs_while_a_tick_does_and_no_tick_while_a_redrive_does() {
    let (world, poller) = quarantined_rows(1).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    world.source.put(9, "new");
    world.handler.then_take(Duration::from_secs(10));
    let (outcome, (ended, outcomes)) = tokio::join!(tick(&poller), async {
        sleep(1).await;
        run(&world, &redrive(&keys)).await
    });
    outcome.unwrap();
    let Err(RedriveError::Held { owner_id, until: Some(until) }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!((owner_id.as_str(), outcomes.len()), ("a", 0));
    assert!(until > world.document().await.checkpoint.updated_at.unwrap());

    world.handler.then_take(Duration::from_secs(100));
    world.source.put(10, "new");
    let mine = redrive(&keys);
    let ((ended, _), outcome) = tokio::join!(run(&world, &mine), async {
        sleep(90).await;
        tick(&poller).await.unwrap()
    });
    assert!(matches!(ended, Ok(RedriveEnd::Done)), "{ended:?}");
    assert!(
        matches!(&outcome, TickOutcome::Skipped(Skipped::Held { owner_id, .. }) if owner_id == "cli"),
        "the redrive renews its lease: {outcome:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_is_paused_or_backing_off_can_be_redriven_and_stays_so() {
    let (world, poller) = quarantined_rows(1).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    world.source.put(9, "new");
    world.handler.then_fail(HandlerError::Retryable("500".to_owned()));
    tick(&poller).await.unwrap_err();
    admin(&world.instance("ann")).pause(Operator { by: "ann", reason: "why" }).await.unwrap();
    let before = world.document().await;
    let (ended, outcomes) = run(&world, &redrive(&keys)).await;
    assert!(matches!(ended, Ok(RedriveEnd::Done)), "{ended:?}");
    assert!(
        matches!(&outcomes[..], [RedriveOutcome::Delivered { stays: None, .. }]),
        "{outcomes:?}"
    );
    let after = world.document().await;
    assert_eq!((&after.paused, &after.in_flight), (&before.paused, &before.in_flight));
    let age = highwater_engine::document::DocumentAge {
        since_write: Duration::ZERO,
        grain: Duration::ZERO,
    };
    assert_eq!(after.lease_state("b", age), LeaseState::Free);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_accepts_nothing_ends_the_redrive_and_blames_no_row() {
    let throttled = HandlerError::Throttled { reason: "429".to_owned(), retry_after: None };
    for error in [throttled, HandlerError::Misconfigured("401".to_owned())] {
        let (world, poller) = quarantined_rows(2).await;
        let keys = admin(&poller).quarantined().await.unwrap();
        let before = admin(&poller).entry(&keys[0]).await.unwrap().unwrap().etag;
        world.handler.then_fail(error);
        let (ended, outcomes) = run(&world, &redrive(&keys)).await;
        assert!(matches!(ended, Ok(RedriveEnd::TargetAtFault(_))), "{ended:?}");
        assert!(matches!(&outcomes[..], [RedriveOutcome::NotAttempted { .. }]), "{outcomes:?}");
        assert_eq!(admin(&poller).entry(&keys[0]).await.unwrap().unwrap().etag, before);
    }
    let (world, poller) = quarantined_rows(5).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    world.handler.judge_by(|_| Err(HandlerError::Retryable("500".to_owned())));
    let (ended, outcomes) = run(&world, &redrive(&keys)).await;
    assert!(matches!(ended, Ok(RedriveEnd::TargetAtFault(_))), "{ended:?}");
    assert_eq!(outcomes.len(), 3, "it is down, most likely");
    assert_eq!(admin(&poller).quarantined().await.unwrap(), keys);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_entry_is_named_and_stays() {
    let (world, poller) = quarantined_rows(1).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    let key = StateKey::Quarantined { poller: "p".to_owned(), key: keys[0].clone() };
    let stored = world.stored(&key).await.unwrap();
    let precondition = Precondition::Matches(stored.etag);
    world.memory.store(&key, b"{}".to_vec(), precondition).await.unwrap();
    for as_stored in [false, true] {
        let request = Redrive { as_stored, drop_gone: true, ..redrive(&keys) };
        let (ended, outcomes) = run(&world, &request).await;
        assert!(matches!(ended, Ok(RedriveEnd::Done)), "{ended:?}");
        assert!(matches!(&outcomes[..], [RedriveOutcome::Unreadable(_)]), "{outcomes:?}");
    }
    assert_eq!(world.stored(&key).await.unwrap().bytes, b"{}");
}

#[tokio::test(start_paused = true)]
async fn a_redrive_stops_after_the_row_in_flight_or_when_its_lease_is_broken() {
    let (world, poller) = quarantined_rows(3).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    let request = redrive(&keys);
    let stop = request.stop.clone();
    world.handler.then(async move {
        stop.set();
        Ok(())
    });
    let (ended, outcomes) = run(&world, &request).await;
    assert!(matches!(ended, Ok(RedriveEnd::Stopped)), "{ended:?}");
    assert_eq!((outcomes.len(), admin(&poller).quarantined().await.unwrap().len()), (1, 2));

    world.handler.then_take(Duration::from_secs(60));
    let mine = redrive(&keys);
    let ((ended, outcomes), ()) = tokio::join!(run(&world, &mine), async {
        sleep(1).await;
        let broken = world.document().await.break_lease().unwrap();
        world.overwrite(&encode(&broken)).await;
    });
    assert!(matches!(ended, Err(RedriveError::Tick(TickError::LeaseLost(_)))), "{ended:?}");
    assert!(outcomes.len() <= 1, "{outcomes:?}");
    assert_eq!(admin(&poller).quarantined().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_redrive_with_a_rate_spaces_its_rows_and_keeps_its_lease() {
    let (world, poller) = quarantined_rows(4).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    // The interval is longer than the lease lasts without renewals.
    let request = Redrive { interval: Duration::from_secs(300), ..redrive(&keys) };
    world.handler.then_take(Duration::from_secs(2));
    let began = Instant::now();
    let mut started = Vec::new();
    let cli = world.instance("cli");
    let mut report = |_: &KeyId, outcome| {
        assert!(matches!(outcome, RedriveOutcome::Delivered { stays: None, .. }), "{outcome:?}");
        started.push(began.elapsed().as_secs());
    };
    let (ended, skipped) = tokio::join!(admin(&cli).redrive(&request, &mut report), async {
        sleep(450).await;
        tick(&poller).await.unwrap()
    });
    assert!(matches!(ended, Ok(RedriveEnd::Done)), "{ended:?}");
    assert_eq!(started, [2, 300, 600, 900], "no wait after the last row, and none adds to a call");
    assert!(
        matches!(&skipped, TickOutcome::Skipped(Skipped::Held { owner_id, .. }) if owner_id == "cli"),
        "{skipped:?}"
    );
    assert_eq!(admin(&poller).quarantined().await.unwrap(), []);

    // A call that takes longer than the interval is followed by the next one at once.
    let (world, poller) = quarantined_rows(2).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    world.handler.then_take(Duration::from_secs(20));
    let began = Instant::now();
    let request = Redrive { interval: Duration::from_secs(10), ..redrive(&keys) };
    let (_, outcomes) = run(&world, &request).await;
    assert_eq!((outcomes.len(), began.elapsed().as_secs()), (2, 20));
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait_between_two_rows() {
    let (world, poller) = quarantined_rows(2).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    let request = Redrive { interval: Duration::from_secs(3600), ..redrive(&keys) };
    let (began, stop) = (Instant::now(), request.stop.clone());
    let ((ended, outcomes), ()) = tokio::join!(run(&world, &request), async {
        sleep(100).await;
        stop.set();
    });
    assert!(matches!(ended, Ok(RedriveEnd::Stopped)), "{ended:?}");
    assert_eq!((outcomes.len(), began.elapsed().as_secs()), (1, 100));
    assert_eq!(admin(&poller).quarantined().await.unwrap().len(), 1);
    assert!(world.is_released().await);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_cannot_be_read_ends_the_redrive() {
    let (world, poller) = quarantined_rows(2).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    world.source.fail_next("database unreachable");
    let (ended, outcomes) = run(&world, &redrive(&keys)).await;
    assert!(matches!(ended, Err(RedriveError::Tick(TickError::Fetch(_)))), "{ended:?}");
    assert_eq!((outcomes.len(), admin(&poller).quarantined().await.unwrap()), (0, keys));
    assert!(world.is_released().await);
}

#[tokio::test(start_paused = true)]
async fn a_redrive_acquires_no_grant_after_the_target_has_rejected_one_of_an_older_copy() {
    let (world, poller) = quarantined_rows(2).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    let document = world.document().await;
    let (generation, token) = (document.generation, document.lease.fencing_token.0);
    let fence = Fence { generation, token: FencingToken(token + 9) };
    world.handler.then(async move {
        fence.admit(generation, FencingToken(token + 1))?;
        Ok(())
    });
    let calls = world.handler.received().len() + 1;
    for _ in 0..12 {
        let (ended, _) = run(&world, &redrive(&keys)).await;
        let rejected = matches!(
            &ended,
            Err(RedriveError::Tick(TickError::FenceAhead { current, .. })) if *current == fence
        );
        assert!(rejected, "{ended:?}");
        assert_eq!(world.handler.received().len(), calls, "the target is called once");
        assert_eq!(world.document().await.lease.fencing_token, FencingToken(token + 1));
    }
    // Neither does a tick, which finds the fence in the document.
    world.source.fill(5);
    let error = tick(&poller).await.unwrap_err();
    assert!(matches!(error, TickError::FenceAhead { .. }), "{error:?}");
    assert_eq!(admin(&poller).quarantined().await.unwrap(), keys);
}

/// Another instance has acquired the lease while the target was called, so the rejection says nothing about
/// the document.
#[tokio::test(start_paused = true)]
async fn a_redrive_that_lost_its_lease_keeps_no_fence() {
    let (world, poller) = quarantined_rows(1).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    let document = world.document().await;
    let (generation, token) = (document.generation, document.lease.fencing_token.0);
    let memory = world.memory.clone();
    world.handler.then(async move {
        take_over(&memory).await;
        Fence { generation, token: FencingToken(token + 2) }
            .admit(generation, FencingToken(token + 1))?;
        Ok(())
    });
    let (ended, _) = run(&world, &redrive(&keys)).await;
    assert!(matches!(ended, Ok(RedriveEnd::TargetAtFault(HandlerError::Fenced(_)))), "{ended:?}");
    assert_eq!(world.document().await.lease.target_fence, None);
}
