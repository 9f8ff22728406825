//! Metrics of a poller's state.

use std::sync::Arc;
use std::time::Duration;

use highwater_engine::handler::HandlerError;
use highwater_engine::policy::Flow;
use highwater_engine::poller::{Limits, Skipped, TickOutcome};
use highwater_engine::store::StateKey;
use highwater_engine::testing::{WatchedWorld, World, limits, sleep, tick};
use highwater_engine::tick::TickRequest;

#[tokio::test(start_paused = true)]
async fn a_tick_records_size_position_and_age() {
    let watched = WatchedWorld::of(World::new());
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    let key = StateKey::Document("p".to_owned());
    let stored = world.stored(&key).await.unwrap();
    let number = |n: usize| f64::from(u32::try_from(n).unwrap());
    assert_eq!(watched.gauge("highwater.state.bytes"), Some(number(stored.bytes.len())));
    let first = watched.gauge("highwater.checkpoint.position").unwrap();
    world.source.put(1, "second");
    tick(&poller).await.unwrap();
    assert_eq!(watched.gauge("highwater.checkpoint.position"), Some(first + 1.0));
    assert_eq!(watched.measured("highwater.lease.remaining").0, 2, "one for each commit");
    sleep(100).await;
    tick(&poller).await.unwrap();
    // The exporter's thread has another clock, so the time since the tick is not included.
    let age = watched.gauge("highwater.checkpoint.age").unwrap();
    assert!((99.0..102.0).contains(&age), "idle ticks do not move it: {age}");
}

#[tokio::test(start_paused = true)]
async fn pending_rows_are_counted_if_a_tick_leaves_any() {
    let one_batch = Limits { batches_max: Some(1), ..limits() };
    let watched = WatchedWorld::of(World::with(one_batch));
    let world = &watched.world;
    let poller = world.instance("a").with_backlog_count_max(7);
    let pending_rows = || watched.gauge("highwater.rows.behind");
    for id in 0..13 {
        world.source.put(id, "new");
    }
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(pending_rows(), Some(3.0));
    assert!(report.summary.contains(", more to do: 3 rows ("), "{}", report.summary);
    assert!(!watched.logged("tick_complete").contains_key("rows_behind_at_least"));
    for id in 13..40 {
        world.source.put(id, "new");
    }
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(pending_rows(), Some(7.0), "counting stops there");
    assert!(report.summary.contains(", more to do: at least 7 rows ("), "{}", report.summary);
    assert_eq!(watched.logged("tick_complete")["rows_behind_at_least"], "true");
    tick(&poller).await.unwrap();
    tick(&poller).await.unwrap();
    assert_eq!(pending_rows(), Some(0.0), "the end is known without a count");
    world.source.put(41, "new");
    world.handler.then(async { Err(HandlerError::Retryable("HTTP 503".to_owned())) });
    tick(&poller).await.unwrap_err();
    assert_eq!(pending_rows(), Some(1.0), "rejected rows are pending");
    assert_eq!(watched.logged("handler_failed")["rows_behind"], "1");
}

#[tokio::test(start_paused = true)]
async fn counting_uses_at_most_a_tenth_of_the_time() {
    let one_batch = Limits { batches_max: Some(1), ..limits() };
    let watched = WatchedWorld::of(World::with(one_batch));
    let world = &watched.world;
    let poller = world.instance("a").with_backlog_count_max(100);
    let pending_rows = || watched.gauge("highwater.rows.behind");
    world.source.fill(50);
    world.source.delay(Duration::from_secs(2));
    tick(&poller).await.unwrap();
    assert_eq!(pending_rows(), Some(40.0));
    world.source.delay(Duration::ZERO);
    sleep(19).await;
    tick(&poller).await.unwrap();
    assert_eq!(pending_rows(), Some(40.0), "a count of 2 s is not repeated within 20 s");
    sleep(1).await;
    tick(&poller).await.unwrap();
    assert_eq!(pending_rows(), Some(20.0));
    tick(&poller).await.unwrap();
    assert_eq!(pending_rows(), Some(10.0), "an instant count is repeated each time");
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_delivers_stores_the_backlog_it_leaves() {
    let one_batch = Limits { batches_max: Some(1), ..limits() };
    let world = World::with(one_batch);
    let poller = world.instance("a").with_backlog_count_max(100);
    let reported = async || {
        let observed = world.document().await.observed.unwrap();
        (observed.positions, observed.rows)
    };
    world.source.fill(25);
    tick(&poller).await.unwrap();
    assert_eq!(reported().await, (Some(25), None), "as read; no earlier count");
    tick(&poller).await.unwrap();
    assert_eq!(reported().await, (Some(15), Some(15)), "as counted by the previous tick");
    world.handler.then(async { Err(HandlerError::Retryable("HTTP 503".to_owned())) });
    tick(&poller).await.unwrap_err();
    assert_eq!(reported().await, (Some(5), Some(5)), "also if the rows were not accepted");
    sleep(600).await;
    tick(&poller).await.unwrap();
    world.source.put(26, "new");
    tick(&poller).await.unwrap();
    assert_eq!(reported().await, (Some(0), Some(0)), "the end was read");
    assert_eq!(world.document().await.observed.unwrap().idle_ticks, 0);
    world.source.put(27, "new");
    world.handler.then(async { Err(HandlerError::Retryable("HTTP 503".to_owned())) });
    tick(&poller).await.unwrap_err();
    assert_eq!(reported().await, (Some(1), None), "no earlier count applies to this row");
}

#[tokio::test(start_paused = true)]
async fn lease_requests_are_counted_by_outcome() {
    let watched = WatchedWorld::of(World::new());
    let world = &watched.world;
    let requests =
        |outcome| watched.counted("highwater.lease.acquire.attempts", Some(("outcome", outcome)));
    let poller = world.started_poller("a").await;
    let before = (requests("acquired"), requests("conflict"));
    tick(&poller).await.unwrap();
    assert_eq!(
        (requests("acquired"), requests("conflict")),
        before,
        "an idle tick requests no lease"
    );
    world.source.put(1, "second");
    tick(&poller).await.unwrap();
    assert_eq!((requests("acquired"), requests("busy")), (before.0 + 1, 0));
    let other = world.instance("b");
    world.source.put(2, "third");
    world.handler.then({
        let other = Arc::new(other);
        async move {
            assert!(matches!(tick(&other).await, Ok(TickOutcome::Skipped(Skipped::Held { .. }))));
            Ok(())
        }
    });
    tick(&poller).await.unwrap();
    assert_eq!((requests("busy"), requests("error")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_oldest_row_has_an_age_in_a_mode_without_times() {
    let watched = WatchedWorld::of(World::new());
    let world = &watched.world;
    let lag = || watched.gauge("highwater.lag");
    let poller = world.started_poller("a").await;
    assert_eq!(lag(), Some(0.0), "everything was delivered");
    sleep(10).await;
    tick(&poller).await.unwrap();
    sleep(3).await;
    world.source.put(1, "new");
    sleep(2).await;
    // The row is at least as old as the first read that found it.
    world.handler.then(async {
        sleep(7).await;
        Err(HandlerError::Retryable("HTTP 503".to_owned()))
    });
    tick(&poller).await.unwrap_err();
    let is_about = |lag: f64, seconds: f64| (seconds..seconds + 2.0).contains(&lag);
    assert!(lag().is_some_and(|lag| is_about(lag, 0.0)), "{:?}", lag());
    let recorded = world.document().await.observed.unwrap();
    assert!(recorded.lag.is_some_and(|lag| is_about(lag, 7.0)), "as of the write: {recorded:?}");
    // Another process knows it from the document.
    sleep(60).await;
    let report = world.instance("b").tick(&TickRequest::default()).await;
    assert_eq!(report.rows, 1);
    let document = world.document().await;
    let lag_ms = document.recent.last().unwrap().longest_ms["lag"];
    assert!((67_000..69_000).contains(&lag_ms), "{lag_ms}");
    assert_eq!(document.observed.unwrap().lag, Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn the_lag_is_unknown_while_nothing_is_read() {
    let watched = WatchedWorld::of(World::new());
    let world = &watched.world;
    let lag = || watched.gauge("highwater.lag");
    let poller = world.started_poller("a").await;
    tick(&poller).await.unwrap();
    assert_eq!(lag(), Some(0.0));
    world.source.fail_next("gone");
    tick(&poller).await.unwrap_err();
    assert_eq!(lag(), None, "rows may have been written since");
    tick(&poller).await.unwrap();
    assert_eq!(lag(), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn the_first_load_is_counted_until_a_tick_reaches_the_end() {
    let one_batch = Limits { batches_max: Some(1), ..limits() };
    let world = World::with(one_batch);
    let poller = world.instance("a");
    for id in 0..13 {
        world.source.put(id, "new");
    }
    tick(&poller).await.unwrap();
    let loading =
        || async { world.document().await.checkpoint.metadata.first_load.map(|load| load.rows) };
    assert_eq!(loading().await, Some(10));
    sleep(1).await;
    tick(&poller).await.unwrap();
    assert_eq!(loading().await, None);
    for id in 13..30 {
        world.source.put(id, "new");
    }
    tick(&poller).await.unwrap();
    assert_eq!(loading().await, None, "later rows are no first load");
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_has_read_everything_has_no_lag_even_if_other_tables_are_written() {
    let status_interval = Duration::from_secs(60);
    let world = World::with(Limits { status_interval, ..limits() });
    let poller = world.started_poller("a").await;
    // Like writes to other tables: positions without rows.
    for _ in 0..21 {
        world.source.reserve();
    }
    sleep(60).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    let observed = world.document().await.observed.unwrap();
    assert_eq!((observed.positions, observed.rows), (Some(0), Some(0)));
}

#[tokio::test(start_paused = true)]
async fn a_following_tick_records_the_rows_it_could_not_deliver() {
    let world = World::new();
    let follow = highwater_engine::policy::Follow {
        time: Duration::from_secs(100),
        interval: Duration::from_secs(1),
    };
    let flow = Flow { follow: Some(follow), ..Flow::default() };
    let poller = world.started_poller("a").await.with_flow(flow);
    let (result, ()) = tokio::join!(tick(&poller), async {
        sleep(2).await;
        world.source.put(1, "new");
        sleep(4).await;
        world.handler.then(async { Err(HandlerError::Retryable("HTTP 503".to_owned())) });
        world.source.put(2, "new");
    });
    result.unwrap_err();
    let observed = world.document().await.observed.unwrap();
    assert_eq!((observed.positions, observed.rows), (Some(1), None));
}
