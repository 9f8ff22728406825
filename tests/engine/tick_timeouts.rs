//! Rows that take longer than a tick.

use std::time::Duration;

use highwater_engine::handler::HandlerError;
use highwater_engine::policy::{FailurePolicy, OnFailure};
use highwater_engine::poller::{Limits, Poller, TickError};
use highwater_engine::testing::{World, admin, limits, sleep, tick};

/// Longer than any tick.
const FOR_EVER: Duration = Duration::from_secs(10_000);

fn world(on_failure: OnFailure, rows: usize) -> World {
    let limits = Limits { batch_rows_max: rows, ..limits() };
    let policy = FailurePolicy {
        on_failure,
        attempts_max: 3,
        bisect_on_error: on_failure == OnFailure::Park,
        ..FailurePolicy::default()
    };
    World::with(limits).with_policy(policy)
}

/// Ticks until the checkpoint has passed the rows up to `last`; returns the number of ticks.
async fn until(world: &World, poller: &Poller, last: i64) -> u32 {
    for ticks in 1..=60 {
        sleep(600).await;
        drop(tick(poller).await);
        if world.document().await.checkpoint.cursor.unwrap().key["id"] == last {
            return ticks;
        }
    }
    panic!("row {last} is not reached: {:?}", world.in_flight().await);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_takes_longer_than_a_tick_is_halved_next() {
    let world = world(OnFailure::Retry, 400);
    let poller = world.started_poller("a").await;
    world.source.fill(800);
    world.handler.take_by(|ids| Duration::from_secs(1) * u32::try_from(ids.len()).unwrap());
    let ticks = until(&world, &poller, 800).await;
    assert!(ticks <= 12, "{ticks} ticks");
    let mut accepted = world.handler.ids();
    accepted.sort_unstable();
    accepted.dedup();
    assert_eq!(accepted, (0..=800).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_started_late_is_not_halved() {
    let world = world(OnFailure::Retry, 100);
    let poller = world.started_poller("a").await;
    world.source.fill(200);
    world.handler.take_by(|ids| Duration::from_secs(2) * u32::try_from(ids.len()).unwrap());
    assert!(matches!(tick(&poller).await, Err(TickError::OutOfTime)));
    let document = world.document().await;
    let in_flight = document.in_flight.unwrap();
    assert_eq!((in_flight.rows, in_flight.attempt), (100, 1), "it had only 85 s");
    assert_eq!(until(&world, &poller, 200).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_row_whose_call_never_returns_is_quarantined_once_another_is_accepted() {
    let world = world(OnFailure::Park, 10);
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    world.handler.take_by(|ids| if ids.contains(&5) { FOR_EVER } else { Duration::ZERO });
    until(&world, &poller, 20).await;
    let keys = admin(&poller).quarantined().await.unwrap();
    assert_eq!(keys.len(), 1);
    let entry = admin(&poller).entry(&keys[0]).await.unwrap().unwrap().entry.unwrap();
    assert_eq!(entry.row_key().unwrap()["id"], 5);
    assert!(entry.attempts >= 3, "{}", entry.attempts);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_never_responds_quarantines_nothing() {
    let world = world(OnFailure::Park, 10);
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    world.handler.take_by(|_| FOR_EVER);
    for _ in 0..30 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    assert_eq!(admin(&poller).quarantined().await.unwrap(), []);
    world.handler.take_by(|_| Duration::ZERO);
    until(&world, &poller, 20).await;
    assert_eq!(admin(&poller).quarantined().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_fault_is_narrowed_down_even_if_each_call_lasts_nearly_the_whole_tick() {
    let world = world(OnFailure::Park, 8);
    let poller = world.started_poller("a").await;
    world.source.fill(16);
    world.handler.take_by(|ids| Duration::from_secs(if ids.contains(&6) { 250 } else { 1 }));
    world.handler.judge_by(|ids| {
        let failed = || HandlerError::Retryable("500".to_owned());
        if ids.contains(&6) { Err(failed()) } else { Ok(()) }
    });
    until(&world, &poller, 16).await;
    assert_eq!(admin(&poller).quarantined().await.unwrap().len(), 1);
}
