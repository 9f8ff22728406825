//! Metrics of a poller's state.

use std::sync::Arc;
use std::time::Duration;

use highwater_engine::handler::HandlerError;
use highwater_engine::policy::Flow;
use highwater_engine::poller::{Limits, Skipped, TickOutcome};
use highwater_engine::store::StateKey;
use highwater_engine::testing::{Watched, World, limits, sleep, tick};
use highwater_engine::tick::TickRequest;

#[tokio::test(start_paused = true)]
async fn a_tick_records_size_position_and_age() {
    let watched = Watched::of(World::new());
    let world = &watched.world;
    let poller = world.seasoned("a").await;
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
    // The exporter's thread has another clock: what has passed since the tick is not in it.
    let age = watched.gauge("highwater.checkpoint.age").unwrap();
    assert!((99.0..102.0).contains(&age), "idle ticks do not move it: {age}");
}

#[tokio::test(start_paused = true)]
async fn pending_rows_are_counted_if_a_tick_leaves_some() {
    let one_batch = Limits { batches_max: Some(1), ..limits() };
    let watched = Watched::of(World::with(one_batch));
    let world = &watched.world;
    let poller = world.instance("a").counting_behind(7);
    let behind = || watched.gauge("highwater.rows.behind");
    for id in 0..13 {
        world.source.put(id, "new");
    }
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(behind(), Some(3.0));
    assert!(report.summary.contains(", more to do: 3 rows ("), "{}", report.summary);
    assert!(!watched.logged("tick_complete").contains_key("rows_behind_at_least"));
    for id in 13..40 {
        world.source.put(id, "new");
    }
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(behind(), Some(7.0), "no more than that are counted");
    assert!(report.summary.contains(", more to do: at least 7 rows ("), "{}", report.summary);
    assert_eq!(watched.logged("tick_complete")["rows_behind_at_least"], "true");
    tick(&poller).await.unwrap();
    tick(&poller).await.unwrap();
    assert_eq!(behind(), Some(0.0), "the end is known without a count");
    world.source.put(41, "new");
    world.handler.then(async { Err(HandlerError::Retryable("HTTP 503".to_owned())) });
    tick(&poller).await.unwrap_err();
    assert_eq!(behind(), Some(1.0), "what is not taken waits");
    assert_eq!(watched.logged("handler_failed")["rows_behind"], "1");
}

#[tokio::test(start_paused = true)]
async fn counting_uses_at_most_a_tenth_of_the_time() {
    let one_batch = Limits { batches_max: Some(1), ..limits() };
    let watched = Watched::of(World::with(one_batch));
    let world = &watched.world;
    let poller = world.instance("a").counting_behind(100);
    let behind = || watched.gauge("highwater.rows.behind");
    world.source.fill(50);
    world.source.delay(Duration::from_secs(2));
    tick(&poller).await.unwrap();
    assert_eq!(behind(), Some(40.0));
    world.source.delay(Duration::ZERO);
    sleep(19).await;
    tick(&poller).await.unwrap();
    assert_eq!(behind(), Some(40.0), "a count of 2 s is not made again within 20 s");
    sleep(1).await;
    tick(&poller).await.unwrap();
    assert_eq!(behind(), Some(20.0));
    tick(&poller).await.unwrap();
    assert_eq!(behind(), Some(10.0), "one that took no time is made each time");
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_delivers_stores_the_backlog_it_leaves() {
    let one_batch = Limits { batches_max: Some(1), ..limits() };
    let world = World::with(one_batch);
    let poller = world.instance("a").counting_behind(100);
    let told = async || {
        let observed = world.document().await.observed.unwrap();
        (observed.positions, observed.rows)
    };
    world.source.fill(25);
    tick(&poller).await.unwrap();
    assert_eq!(told().await, (Some(25), None), "as it was read; nothing was counted before");
    tick(&poller).await.unwrap();
    assert_eq!(told().await, (Some(15), Some(15)), "as the tick before has counted");
    world.handler.then(async { Err(HandlerError::Retryable("HTTP 503".to_owned())) });
    tick(&poller).await.unwrap_err();
    assert_eq!(told().await, (Some(5), Some(5)), "also where the rows were not taken");
    sleep(600).await;
    tick(&poller).await.unwrap();
    world.source.put(26, "new");
    tick(&poller).await.unwrap();
    assert_eq!(told().await, (Some(0), Some(0)), "the end was read");
    assert_eq!(world.document().await.observed.unwrap().idle_ticks, 0);
    world.source.put(27, "new");
    world.handler.then(async { Err(HandlerError::Retryable("HTTP 503".to_owned())) });
    tick(&poller).await.unwrap_err();
    assert_eq!(told().await, (Some(1), None), "none was true before this row only");
}

#[tokio::test(start_paused = true)]
async fn each_way_that_asking_for_a_lease_can_end_is_counted() {
    let watched = Watched::of(World::new());
    let world = &watched.world;
    let asked =
        |outcome| watched.counted("highwater.lease.acquire.attempts", Some(("outcome", outcome)));
    let poller = world.seasoned("a").await;
    let before = (asked("acquired"), asked("conflict"));
    tick(&poller).await.unwrap();
    assert_eq!((asked("acquired"), asked("conflict")), before, "an idle tick asks for none");
    world.source.put(1, "second");
    tick(&poller).await.unwrap();
    assert_eq!((asked("acquired"), asked("busy")), (before.0 + 1, 0));
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
    assert_eq!((asked("busy"), asked("error")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_has_read_everything_has_no_lag_even_if_other_tables_are_written() {
    let status_interval = Duration::from_secs(60);
    let world = World::with(Limits { status_interval, ..limits() });
    let poller = world.seasoned("a").await;
    // As writes to other tables: positions without rows.
    for _ in 0..21 {
        world.source.reserve();
    }
    sleep(60).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    let observed = world.document().await.observed.unwrap();
    assert_eq!((observed.positions, observed.rows), (Some(0), Some(0)));
}

#[tokio::test(start_paused = true)]
async fn rows_that_a_tick_that_follows_could_not_deliver_are_written_down() {
    let world = World::new();
    let follow = highwater_engine::policy::Follow {
        time: Duration::from_secs(100),
        interval: Duration::from_secs(1),
    };
    let flow = Flow { follow: Some(follow), ..Flow::default() };
    let poller = world.seasoned("a").await.flowing(flow);
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
