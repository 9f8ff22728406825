//! Handler calls that are aborted because the process stops and they take too long.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use highwater_engine::policy::{FailurePolicy, OnFailure};
use highwater_engine::poller::{Poller, StopSignal, TickError, TickOutcome};
use highwater_engine::testing::{SteadyHandler, WatchedWorld, World, sleep, tick};
use highwater_engine::tick::{TickReport, TickRequest};

/// Runs a tick that is requested to stop after some seconds, and aborted some seconds later.
async fn aborted(poller: &Poller, stop_after: u64, abort_after: u64) -> TickReport {
    let stop = StopSignal::new();
    let request = TickRequest { stop: stop.child(), ..TickRequest::default() };
    let ask = async {
        sleep(stop_after).await;
        stop.set();
        sleep(abort_after).await;
        stop.abort();
    };
    tokio::join!(poller.tick(&request), ask).0
}

#[tokio::test(start_paused = true)]
async fn an_aborted_call_releases_the_lease_and_counts_no_attempt_and_no_crash() {
    let watched = WatchedWorld::of(World::new());
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    world.handler.then_take(Duration::from_secs(1000));
    let finished = world.handler.finished();
    let report = aborted(&poller, 5, 8).await;
    assert!(matches!(report.result, Err(TickError::Aborted)), "{report:?}");
    assert_eq!(report.duration, Duration::from_secs(13), "not earlier, and then at once");
    assert_eq!(world.handler.finished(), finished, "the call was dropped");
    let document = world.document().await;
    assert!(document.lease.released_at.is_some());
    assert_eq!(document.recent.last().unwrap().outcome, "tick_aborted");
    let in_flight = document.in_flight.unwrap();
    assert_eq!((in_flight.attempt, in_flight.crashes, in_flight.next_attempt_at), (0, 0, None));
    assert_eq!(watched.logged("tick_aborted")["level"], "WARN");
    assert_eq!(watched.counted("highwater.tick.failures", None), 0);
    // The lease is free at once.
    let next = tick(&world.instance("b")).await.unwrap();
    assert_eq!(next, TickOutcome::Committed { more: false });
    let received = world.handler.received();
    let [.., first, again] = &received[..] else { panic!("{received:?}") };
    assert_eq!((&first.batch_id, again.attempt), (&again.batch_id, 1));
    assert_eq!(watched.counted("highwater.recovery.takeovers", None), 0);
}

/// Calls that never return, and that leave work running for a moment when they are dropped.
#[derive(Debug)]
struct Lingering {
    world: World,
    /// Whether the lease was released when the last of this work had ended.
    released: OnceLock<bool>,
}

#[async_trait]
impl Handler for Lingering {
    async fn handle(&self, _: Delivery<'_>) -> Result<(), HandlerError> {
        std::future::pending().await
    }

    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(400)).await;
        self.released.set(self.world.is_released().await).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_released_only_after_an_aborted_call_has_settled() {
    let world = World::new();
    drop(world.started_poller("z").await);
    world.source.put(1, "new");
    let handler = Arc::new(Lingering { world: world.clone(), released: OnceLock::new() });
    let poller = world.with_handler(handler.clone()).instance("a");
    let report = aborted(&poller, 5, 8).await;
    assert!(matches!(report.result, Err(TickError::Aborted)), "{report:?}");
    assert_eq!(handler.released.get(), Some(&false), "no work runs under a released lease");
    assert!(world.is_released().await);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finishes_within_the_grace_period_is_committed() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(50);
    world.handler.then_take(Duration::from_secs(10));
    let report = aborted(&poller, 5, 8).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: true });
}

#[tokio::test(start_paused = true)]
async fn rows_accepted_by_an_aborted_call_are_committed() {
    let world = World::new();
    drop(world.started_poller("z").await);
    world.source.fill(10);
    let handler = Arc::new(SteadyHandler::default());
    let poller = world.with_handler(handler.clone()).instance("a");
    // Four seconds for each row: two are committed by a renewal at 10 s, the third with the abort.
    let report = aborted(&poller, 5, 8).await;
    assert!(matches!(report.result, Err(TickError::Aborted)), "{report:?}");
    assert_eq!((report.rows, report.batches), (3, 1));
    let in_flight = world.in_flight().await.unwrap();
    assert_eq!((in_flight.rows, in_flight.attempt), (7, 0));
    tick(&world.instance("b")).await.unwrap();
    assert_eq!(world.handler.ids()[1..], (4..=10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_read_is_aborted_too_and_rows_accepted_before_it_are_committed() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    world.source.delay(Duration::from_secs(60));
    let report = aborted(&poller, 1, 2).await;
    assert!(matches!(report.result, Err(TickError::Aborted)), "{report:?}");
    assert_eq!(report.duration, Duration::from_secs(3));
    assert!(world.in_flight().await.is_none(), "no lease was requested");
    // The first read takes a minute, the read after the first batch is aborted.
    let report = aborted(&poller, 1, 62).await;
    assert!(matches!(report.result, Ok(TickOutcome::Committed { more: true })), "{report:?}");
    assert!(world.is_released().await);
}

#[tokio::test(start_paused = true)]
async fn the_pause_before_a_retry_is_aborted_without_another_call() {
    let on_failure = OnFailure::Park;
    let policy = FailurePolicy { on_failure, bisect_on_error: true, ..FailurePolicy::default() };
    let world = World::new().with_policy(policy);
    let poller = world.started_poller("a").await;
    world.source.fill(4);
    // The pause before the first retry is 100 to 200 ms long.
    world.handler.then(async {
        tokio::time::sleep(Duration::from_millis(4_950)).await;
        Err(HandlerError::Retryable("500".to_owned()))
    });
    let calls = world.handler.received().len();
    let report = aborted(&poller, 5, 0).await;
    assert!(matches!(report.result, Err(TickError::Aborted)), "{report:?}");
    assert_eq!(world.handler.received().len(), calls + 1);
    assert!(world.is_released().await);
}
