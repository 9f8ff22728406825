//! The lease metrics of seed 003, each moved by the event it counts; those of the recovery controller move in
//! `recovery::tests`.

use std::sync::Arc;
use std::time::Duration;

use highwater_engine::document::{Fence, encode};
use highwater_engine::poller::{Operator, Poller, TickError};
use highwater_engine::store::{Precondition, StateKey, StateStore};
use highwater_engine::testing::{
    Call, Fault, WatchedWorld, World, admin, break_lease, killed_after, sleep, tick,
};

fn watched() -> WatchedWorld {
    WatchedWorld::of(World::new())
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_active_from_its_grant_until_its_release_or_the_ticks_death() {
    let watched = watched();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    assert_eq!(watched.gauge_value("highwater.lease.active"), 0);
    for end in [Duration::from_secs(5), Duration::from_secs(1000)] {
        world.source.put(1, "new");
        world.handler.then_take(end);
        let killed_after = Duration::from_secs(8);
        let mut running = Box::pin(tokio::time::timeout(killed_after, tick(&poller)));
        let early = tokio::time::timeout(Duration::from_secs(1), running.as_mut()).await;
        assert!(early.is_err(), "the handler runs");
        assert_eq!(watched.gauge_value("highwater.lease.active"), 1);
        assert_eq!(running.as_mut().await.is_ok(), end < killed_after);
        drop(running);
        assert_eq!(watched.gauge_value("highwater.lease.active"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn lease_acquisition_time_is_measured() {
    let watched = watched();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    let (before, sum) = watched.measured("highwater.lease.acquire.duration");
    world.source.put(1, "new");
    world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(2)));
    tick(&poller).await.unwrap();
    let (after, longer) = watched.measured("highwater.lease.acquire.duration");
    assert_eq!((before, after), (1, 2));
    assert!((1.9..2.2).contains(&(longer - sum)), "{sum} {longer}");
}

#[tokio::test(start_paused = true)]
async fn heartbeats_are_counted_by_outcome() {
    let watched = watched();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    world.handler.then_take(Duration::from_secs(25));
    tick(&poller).await.unwrap();
    let beats = |outcome| watched.counted("highwater.lease.heartbeats", Some(("outcome", outcome)));
    assert_eq!((beats("ok"), beats("failed")), (2, 0), "each 10 s of a ttl of 30 s");
    world.source.fill(3);
    world.handler.then_take(Duration::from_secs(25));
    let meddling = async {
        sleep(5).await;
        break_lease(&world.memory).await;
    };
    let (result, ()) = tokio::join!(tick(&poller), meddling);
    assert!(result.is_err());
    assert_eq!((beats("ok"), beats("failed")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_counts_once_with_its_batch_and_the_time_since_its_holder_wrote() {
    let watched = watched();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    world.handler.then_take(Duration::from_secs(1000));
    killed_after(5, &poller).await;
    assert_eq!(watched.counted("highwater.lease.expirations", None), 0);
    sleep(35).await;
    tick(&world.instance("b")).await.unwrap();
    let found_by = Some(("found_by", "tick"));
    assert_eq!(watched.counted("highwater.lease.expirations", found_by), 1);
    assert_eq!(watched.counted("highwater.recovery.requeues", found_by), 1);
    let (count, seconds) = watched.measured("highwater.recovery.requeue.delay");
    assert_eq!(count, 1);
    assert!((40.0..40.5).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_write_under_a_stale_token_is_counted_wherever_it_is_rejected() {
    let watched = watched();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    let rejected = |by| watched.counted("highwater.fence.rejections", Some(("by", by)));
    world.source.put(1, "new");
    let generation = world.generation().await;
    let current = Fence { generation, token: highwater_engine::document::FencingToken(9) };
    world.handler.then(async move {
        current.admit(generation, highwater_engine::document::FencingToken(2))?;
        Ok(())
    });
    tick(&poller).await.unwrap_err();
    assert_eq!((rejected("target"), rejected("state")), (1, 0));
    // No tick acquires a grant before an operator has raised the grants.
    let cli = world.instance("admin");
    let present = admin(&cli).present().await.unwrap();
    let operator = Operator { by: "ann", reason: "older copy" };
    assert!(admin(&cli).raise_above(current, &present, false, operator).await.unwrap().is_some());
    let memory = world.memory.clone();
    world.handler.then(async move {
        break_lease(&memory).await;
        Ok(())
    });
    tick(&world.instance("b")).await.unwrap_err();
    assert_eq!((rejected("target"), rejected("state")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_ring_keeps_the_longest_duration_of_each_step_without_an_extra_write() {
    let watched = watched();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.store.take_calls();
    for seconds in [25, 1] {
        world.source.fill(1);
        world.handler.then_take(Duration::from_secs(seconds));
        world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
        // The first renewal, or the commit if none is due.
        world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(2)));
        tick(&poller).await.unwrap();
    }
    // Acquired, two renewals, committed; acquired, committed.
    assert_eq!(world.store.take_calls().puts, 6);
    let recent = world.document().await.recent;
    let step = |back: usize, name: &str| {
        let tick = &recent[recent.len() - back];
        tick.longest_ms.get(name).copied().map(|ms| ms / 1000)
    };
    assert_eq!((step(2, "handler"), step(2, "heartbeat")), (Some(25), Some(2)));
    assert_eq!((step(1, "handler"), step(1, "heartbeat")), (Some(1), None), "of that tick alone");
    world.source.fill(1);
    tick(&poller).await.unwrap();
    let recent = world.document().await.recent;
    let last = recent.last().unwrap();
    assert_eq!(last.longest_ms["commit"], 2000, "the last commit of the previous tick");
}

/// Two apps with the same poller write to one target, and the second one's state is a copy of the first
/// one's.
#[tokio::test(start_paused = true)]
async fn a_copy_of_an_app_never_replaces_the_live_owner_however_often_it_ticks() {
    let target = Arc::new(std::sync::Mutex::new(Fence::default()));
    let deliver = async |world: &World, poller: &Poller, row: i64| {
        let document = world.document().await;
        let token = highwater_engine::document::FencingToken(document.lease.fencing_token.0 + 1);
        let target = Arc::clone(&target);
        world.source.put(row, "new");
        world.handler.then(async move {
            let mut fence = target.lock().unwrap();
            *fence = fence.admit(document.generation, token)?;
            Ok(())
        });
        tick(poller).await
    };
    let (live, copy) = (World::new(), World::new());
    let owner = live.started_poller("a").await;
    let key = StateKey::Document("p".to_owned());
    let bytes = encode(&live.document().await);
    copy.memory.store(&key, bytes, Precondition::Absent).await.unwrap();
    for row in 1..=32 {
        deliver(&live, &owner, row).await.unwrap();
    }
    let before = copy.document().await.lease.fencing_token.0;
    let copied = copy.instance("b");
    for row in 33..=80 {
        let error = deliver(&copy, &copied, row).await.unwrap_err();
        assert!(matches!(error, TickError::FenceAhead { .. }), "{error:?}");
        assert_eq!(copy.handler.received().len(), 1, "the target is called once");
        assert_eq!(copy.document().await.lease.fencing_token.0, before + 1);
        // The owner never notices.
        deliver(&live, &owner, row).await.unwrap();
    }
}
