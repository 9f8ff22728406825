//! A tick that has run out of rows polls for new ones, if it may.

use std::time::Duration;

use highwater_engine::document::{Paused, encode};
use highwater_engine::handler::HandlerError;
use highwater_engine::policy::{Flow, Follow};
use highwater_engine::poller::{Limits, Poller, StopSignal, TickError, TickOutcome};
use highwater_engine::testing::{World, calls, limits, sleep, tick};
use highwater_engine::tick::{TickReport, TickRequest};
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_millis(200);

fn following(poller: Poller, seconds: u64) -> Poller {
    let follow = Follow { time: Duration::from_secs(seconds), interval: INTERVAL };
    poller.with_flow(Flow { follow: Some(follow), ..Flow::default() })
}

async fn report(poller: &Poller) -> TickReport {
    poller.tick(&TickRequest::default()).await
}

#[tokio::test(start_paused = true)]
async fn rows_are_delivered_within_the_interval_and_counted_by_the_tick() {
    let world = World::new();
    let poller = following(world.started_poller("a").await, 30);
    world.source.fill(1);
    let began_at = Instant::now();
    let (report, ()) = tokio::join!(report(&poller), async {
        for id in 2..=4 {
            sleep(5).await;
            world.source.put(id, "new");
            tokio::time::sleep(INTERVAL).await;
            assert_eq!(world.handler.ids().last(), Some(&id), "within the interval");
        }
    });
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!((report.rows, report.batches), (4, 4));
    let took = began_at.elapsed();
    assert!(took > Duration::from_secs(29) && took < Duration::from_secs(30), "{took:?}");
    // Two writes for each burst, and none for polling.
    assert_eq!(world.store.take_calls(), calls(0, 8, 0));
    let recent = world.document().await.recent;
    let rows: Vec<u64> = recent.iter().skip(1).map(|tick| tick.rows).collect();
    assert_eq!(rows, [1, 1, 1, 1], "each write records its own rows");
}

#[tokio::test(start_paused = true)]
async fn a_following_tick_without_rows_counts_as_one_idle_tick() {
    let world = World::new();
    let poller = following(world.started_poller("a").await, 10);
    let before = world.source.fetches();
    for _ in 0..2 {
        assert_eq!(report(&poller).await.result.unwrap(), TickOutcome::Idle);
    }
    assert_eq!(world.source.fetches() - before, 2 * 50, "five looks a second");
    assert_eq!(world.store.take_calls(), calls(0, 0, 0));
    world.source.fill(1);
    tick(&poller).await.unwrap();
    assert_eq!(world.document().await.recent.last().unwrap().idle_before, 2);
    // A tick that delivered before was not idle.
    world.source.fill(1);
    tick(&poller).await.unwrap();
    assert_eq!(world.document().await.recent.last().unwrap().idle_before, 0);
}

#[tokio::test(start_paused = true)]
async fn stopping_a_tick_ends_following() {
    let world = World::new();
    let poller = following(world.started_poller("a").await, 100);
    let stop = StopSignal::new();
    let began_at = Instant::now();
    let request = TickRequest { stop: stop.clone(), ..TickRequest::default() };
    let (report, ()) = tokio::join!(poller.tick(&request), async {
        sleep(3).await;
        world.source.put(1, "new");
        stop.set();
    });
    assert_eq!(report.result.unwrap(), TickOutcome::Idle, "there was no further poll");
    assert_eq!(world.handler.ids(), [0]);
    assert!(began_at.elapsed() <= Duration::from_secs(3) + INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn tick_limits_apply_to_all_polls_of_a_following_tick() {
    let world = World::with(Limits {
        batches_max: Some(2),
        tick_time_max: Duration::from_secs(20),
        ..limits()
    });
    let poller = following(world.started_poller("a").await, 100);
    let began_at = Instant::now();
    let (ended, ()) = tokio::join!(report(&poller), async {
        for id in 1..=5 {
            sleep(1).await;
            world.source.put(id, "new");
        }
    });
    assert_eq!((ended.rows, ended.batches), (2, 2));
    assert!(began_at.elapsed() < Duration::from_secs(6));
    assert_eq!(world.handler.ids().split_off(1), [1, 2]);
    let began_at = Instant::now();
    assert_eq!(report(&poller).await.rows, 3);
    assert!(began_at.elapsed() < Duration::from_secs(20), "no look after the tick's time");
}

#[tokio::test(start_paused = true)]
async fn a_failure_or_a_pause_ends_following() {
    let world = World::new();
    let poller = following(world.started_poller("a").await, 60);
    let began_at = Instant::now();
    let (failed, ()) = tokio::join!(report(&poller), async {
        sleep(2).await;
        world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
        world.source.put(1, "new");
    });
    assert!(matches!(failed.result, Err(TickError::Handler(_))), "{}", failed.summary);
    assert!(began_at.elapsed() < Duration::from_secs(3));
    sleep(2).await;
    let (paused, ()) = tokio::join!(report(&poller), async {
        sleep(2).await;
        let document = world.document().await.with_pause(Paused {
            by: "operator".to_owned(),
            reason: "maintenance".to_owned(),
            at: time::OffsetDateTime::UNIX_EPOCH,
            extra: serde_json::Map::new(),
        });
        world.overwrite(&encode(&document)).await;
        world.source.put(2, "new");
    });
    assert_eq!(paused.result.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(world.handler.ids().last(), Some(&1), "nothing is delivered during a pause");
    let (idle, ()) = tokio::join!(report(&poller), async {});
    assert!(matches!(idle.result, Ok(TickOutcome::Paused { .. })));
}

#[tokio::test(start_paused = true)]
async fn another_instance_may_take_over_between_two_polls() {
    let world = World::new();
    let (a, b) = (following(world.started_poller("a").await, 20), world.instance("b"));
    let (followed, ()) = tokio::join!(report(&a), async {
        sleep(5).await;
        world.source.put(1, "new");
        assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
        sleep(5).await;
        world.source.put(2, "new");
    });
    assert_eq!(followed.rows, 1, "{}", followed.summary);
    assert_eq!(world.handler.ids(), [0, 1, 2]);
}
