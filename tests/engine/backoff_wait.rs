//! Ticks that the host's own retry policy repeats when they fail.

use std::time::Duration;

use highwater_engine::handler::HandlerError;
use highwater_engine::poller::{Operator, Poller, StopSignal, TickOutcome, outcome_row};
use highwater_engine::testing::{WatchedWorld, World, admin, limits, sleep, tick};
use highwater_engine::tick::TickRequest;
use tokio::time::Instant;

fn request() -> TickRequest {
    TickRequest { is_retried: true, ..TickRequest::default() }
}

fn throttled(seconds: u64) -> HandlerError {
    let retry_after = Some(Duration::from_secs(seconds));
    HandlerError::Throttled { reason: "429".to_owned(), retry_after }
}

/// Ticks like a host that retries after a pause; returns the results, the last one a success.
async fn retried(poller: &Poller, retries_max: usize, pause: u64) -> Vec<String> {
    let mut results = Vec::new();
    for _ in 0..=retries_max {
        let report = poller.tick(&request()).await;
        let row = outcome_row(&report.result);
        results.push(row.outcome.to_owned());
        if !matches!(report.result, Err(_) | Ok(TickOutcome::BackingOff { .. })) {
            break;
        }
        sleep(pause).await;
    }
    results
}

#[tokio::test(start_paused = true)]
async fn a_tick_waits_for_a_backoff_that_ends_before_its_deadline() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    for _ in 0..3 {
        world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    }
    let results = retried(&poller, 3, 0).await;
    let failed = "handler_failed";
    assert_eq!(results, [failed, failed, failed, "committed"]);
}

#[tokio::test(start_paused = true)]
async fn rows_are_delivered_even_if_every_host_retry_falls_into_the_backoff() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    // Three retries with pauses of 5 s would be over after 15 s; the next tick is a day later.
    let minutes = limits().tick_time_max.as_secs() * 5 / 2;
    world.handler.then_fail(throttled(minutes));
    let results = retried(&poller, 3, 5).await;
    assert_eq!(results, ["handler_failed", "backing_off", "backing_off", "committed"]);
}

#[tokio::test(start_paused = true)]
async fn a_host_with_unlimited_retries_calls_rarely_while_a_poller_backs_off() {
    let watched = WatchedWorld::of(World::new());
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    let hour = 3_600;
    world.handler.then_fail(throttled(hour));
    let results = retried(&poller, usize::MAX, 1).await;
    assert_eq!(results.last().unwrap(), "committed");
    let most = usize::try_from(hour / limits().tick_time_max.as_secs()).unwrap() + 3;
    assert!(results.len() <= most, "{} calls", results.len());
    assert_eq!(watched.count_of("tick_backing_off"), results.len() - 2, "one line for each");
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_waits_sees_a_resume_and_a_stop() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    world.handler.then_fail(throttled(3_600));
    tick(&poller).await.unwrap_err();
    let operator = Operator { by: "eve", reason: "fixed" };
    let other = world.instance("b");
    let (report, resumed) = tokio::join!(
        async {
            let began_at = Instant::now();
            (poller.tick(&request()).await, began_at.elapsed())
        },
        async {
            sleep(40).await;
            admin(&other).resume(operator).await
        }
    );
    resumed.unwrap();
    assert!(matches!(report.0.result, Ok(TickOutcome::Committed { .. })), "{report:?}");
    assert!(report.1 <= Duration::from_secs(40 + 31), "{report:?}");

    world.source.put(2, "new");
    world.handler.then_fail(throttled(3_600));
    tick(&poller).await.unwrap_err();
    let stop = StopSignal::new();
    let request = TickRequest { stop: stop.child(), ..request() };
    let (report, ()) = tokio::join!(poller.tick(&request), async {
        sleep(3).await;
        stop.set();
    });
    assert!(matches!(report.result, Ok(TickOutcome::BackingOff { .. })), "{report:?}");
    assert!(report.duration < Duration::from_secs(10), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_is_not_retried_does_not_wait() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    let report = poller.tick(&TickRequest::default()).await;
    assert!(matches!(report.result, Ok(TickOutcome::BackingOff { .. })), "{report:?}");
    assert_eq!(report.duration, Duration::ZERO);
}
