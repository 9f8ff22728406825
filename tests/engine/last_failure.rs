//! What a failing tick writes to the state document, and how a success clears it.

use std::time::Duration;

use highwater_engine::document::LastFailure;
use highwater_engine::error::ErrorKind;
use highwater_engine::handler::HandlerError;
use highwater_engine::poller::{Limits, Poller, TickOutcome};
use highwater_engine::redaction;
use highwater_engine::source::FetchError;
use highwater_engine::store::{StateKey, StateStore};
use highwater_engine::testing::{Call, Fault, World, calls, killed_after, limits, sleep, tick};
use time::OffsetDateTime;

const STATUS_INTERVAL: Duration = Duration::from_secs(300);

fn world() -> World {
    World::with(Limits { status_interval: STATUS_INTERVAL, ..limits() })
}

async fn failing_tick(world: &World, poller: &Poller) {
    world.source.fail_next("connection refused");
    tick(poller).await.unwrap_err();
}

async fn last_failure(world: &World) -> Option<LastFailure> {
    world.document().await.last_failure
}

async fn now(world: &World) -> OffsetDateTime {
    world.memory.load(&StateKey::Document("p".to_owned())).await.unwrap().date
}

#[tokio::test(start_paused = true)]
async fn storage_calls_of_a_tick_failing_without_a_lease_are_one_per_status_interval() {
    let world = world();
    let poller = world.started_poller("a").await;
    let lease = world.document().await.lease;
    failing_tick(&world, &poller).await;
    assert_eq!(world.store.take_calls(), calls(0, 1, 0), "the first failure is written at once");
    let first = last_failure(&world).await.unwrap();
    assert_eq!((first.count, first.kind.as_str()), (1, "fetch_failed"));
    assert!(first.error.contains("connection refused"), "{}", first.error);
    assert_eq!(world.document().await.lease.fencing_token, lease.fencing_token);

    for _ in 0..4 {
        sleep(60).await;
        failing_tick(&world, &poller).await;
    }
    assert_eq!(world.store.take_calls(), calls(4, 0, 0), "reads only within the interval");
    assert_eq!(last_failure(&world).await.unwrap(), first);

    sleep(60).await;
    failing_tick(&world, &poller).await;
    assert_eq!(world.store.take_calls(), calls(1, 1, 0));
    let later = last_failure(&world).await.unwrap();
    assert_eq!((later.count, later.since), (6, first.since));
    assert_eq!(later.at - first.at, STATUS_INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn storage_calls_of_an_idle_tick_after_a_failure_are_one_write() {
    let world = world();
    let poller = world.started_poller("a").await;
    failing_tick(&world, &poller).await;
    sleep(1).await;
    world.store.take_calls();
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.store.take_calls(), calls(1, 1, 0));
    let document = world.document().await;
    assert_eq!(document.last_failure, None);
    assert_eq!(document.last_success_at, Some(now(&world).await));
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.store.take_calls(), calls(0, 0, 0), "once");
    // The next failure counts as the first one again.
    failing_tick(&world, &poller).await;
    assert_eq!(last_failure(&world).await.unwrap().count, 1);
}

#[tokio::test(start_paused = true)]
async fn a_commit_clears_the_failure_and_records_the_last_success() {
    let world = world();
    let poller = world.started_poller("a").await;
    failing_tick(&world, &poller).await;
    sleep(7).await;
    world.source.put(1, "new");
    world.store.take_calls();
    tick(&poller).await.unwrap();
    assert_eq!(world.store.take_calls(), calls(1, 2, 0), "as without a failure");
    let document = world.document().await;
    assert_eq!(document.last_failure, None);
    assert_eq!(document.last_success_at, document.checkpoint.updated_at);
}

#[tokio::test(start_paused = true)]
async fn a_failed_handler_is_recorded_with_the_release_and_counted_until_a_success() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    for (attempt, error) in [
        (1, HandlerError::Retryable("503".to_owned())),
        (2, HandlerError::Misconfigured("401".to_owned())),
    ] {
        world.handler.then_fail(error);
        world.store.take_calls();
        tick(&poller).await.unwrap_err();
        assert_eq!(world.store.take_calls().puts, 2);
        assert_eq!(last_failure(&world).await.unwrap().count, attempt);
        sleep(2).await;
    }
    assert_eq!(last_failure(&world).await.unwrap().kind, "handler_misconfigured");
    tick(&poller).await.unwrap();
    assert_eq!(last_failure(&world).await, None);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_recorded_while_another_instance_holds_the_lease() {
    let world = world();
    let poller = world.started_poller("a").await;
    // Its cached document says that the lease is free, until the write is rejected.
    tick(&poller).await.unwrap();
    world.source.put(1, "new");
    world.handler.then_take(Duration::from_secs(1_000));
    killed_after(5, &world.instance("b")).await;
    let held = world.document().await;
    failing_tick(&world, &poller).await;
    assert_eq!(world.document().await, held, "the conflict is ignored");
    // Now it is known to be held, and then to have expired: a foreign write could hide the crash.
    for seconds in [1, 100] {
        sleep(seconds).await;
        world.source.fail_next("connection refused");
        tick(&poller).await.map(drop).unwrap_or_default();
        assert_eq!(world.document().await, held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_neither_creates_nor_starts_a_document() {
    let world = world();
    let poller = world.instance("a");
    failing_tick(&world, &poller).await;
    assert!(world.stored(&StateKey::Document("p".to_owned())).await.is_none());
    let poller = world.started_poller("a").await;
    world.memory.lose(&StateKey::Document("p".to_owned()));
    for _ in 0..2 {
        sleep(300).await;
        tick(&poller).await.unwrap_err();
    }
    assert!(world.stored(&StateKey::Document("p".to_owned())).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_does_not_change_how_a_tick_fails() {
    let world = world();
    let poller = world.started_poller("a").await;
    world.store.break_next(Call::Store, Fault::Unreachable);
    world.source.fail_next("connection refused");
    let error = tick(&poller).await.unwrap_err();
    assert!(error.to_string().contains("fetch"), "{error}");
    assert_eq!(last_failure(&world).await, None);
    // It still counts as the first failure to be written.
    failing_tick(&world, &poller).await;
    assert_eq!(last_failure(&world).await.unwrap().count, 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_status_interval_only_writes_under_the_lease_record_failures() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    failing_tick(&world, &poller).await;
    assert_eq!(world.store.take_calls(), calls(0, 0, 0));
    assert_eq!(last_failure(&world).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_recorded_error_is_bounded_and_contains_no_secrets() {
    redaction::hold(["hunter2hunter2"]);
    let world = world();
    let poller = world.started_poller("a").await;
    let reason = format!("password hunter2hunter2 {}\nsecond line", "x".repeat(5_000));
    world.source.fail_with(FetchError::new(ErrorKind::Transient, reason));
    tick(&poller).await.unwrap_err();
    let error = last_failure(&world).await.unwrap().error;
    assert!(!error.contains("hunter2") && !error.contains('\n'), "{error}");
    assert_eq!(error.chars().count(), 1_000);
    assert!(error.ends_with('…'));
}

#[tokio::test(start_paused = true)]
async fn a_view_reads_what_the_process_saw_while_a_tick_runs() {
    let world = world();
    let poller = world.started_poller("a").await;
    failing_tick(&world, &poller).await;
    sleep(5).await;
    world.source.put(1, "new");
    world.handler.then_take(Duration::from_secs(10));
    let at = now(&world).await;
    let (ended, seen) = tokio::join!(tick(&poller), async {
        sleep(3).await;
        poller.process(at + Duration::from_secs(3))
    });
    ended.unwrap();
    assert!(seen.running);
    let failure = seen.failure.unwrap();
    assert_eq!((failure.count, at - failure.at), (1, time::Duration::seconds(5)));
    let after = poller.process(at);
    assert!(!after.running && after.failure.is_none() && after.last_success_at.is_some());
}
