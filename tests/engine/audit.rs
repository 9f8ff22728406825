//! Auditing closed windows: late rows are delivered, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use highwater_engine::document::{StateDocument, encode};
use highwater_engine::handler::HandlerError;
use highwater_engine::policy::{FailurePolicy, OnFailure};
use highwater_engine::poller::{Limits, Poller, StopSignal, TickError, TickOutcome};
use highwater_engine::testing::{
    Call, Fault, SteadyHandler, TableSource, WatchedWorld, World, calls, killed_after, limits,
    sleep, tick,
};
use highwater_engine::tick::TickRequest;

/// How long after its commit a window is read again.
const WAIT: u64 = 120;

fn timed() -> World {
    timed_with(limits())
}

fn timed_with(limits: Limits) -> World {
    World::with(limits).with_source(TableSource::new("p").by_time())
}

fn auditing(world: &World, owner_id: &str) -> Poller {
    world.instance(owner_id).with_audit_after(Duration::from_secs(WAIT))
}

/// Delivers row 1, and row 2 whose transaction started after that of row 7, which is still open.
async fn with_open_transaction(world: &World) -> (Poller, u64) {
    let poller = auditing(world, "a");
    world.source.put(1, "first");
    let open = world.source.reserve();
    world.source.put(2, "second");
    tick(&poller).await.unwrap();
    world.store.take_calls();
    (poller, open)
}

fn checkpoint(document: &StateDocument) -> i64 {
    document.checkpoint.cursor.as_ref().unwrap().integer_value().unwrap()
}

#[tokio::test(start_paused = true)]
async fn exactly_the_late_rows_are_delivered_with_two_writes_and_the_checkpoint_stays() {
    let world = timed();
    let (poller, open) = with_open_transaction(&world).await;
    world.source.put_late(7, open);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle, "not due yet");
    sleep(WAIT).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids(), [1, 2, 7]);
    assert_eq!(world.store.take_calls(), calls(0, 2, 0));
    let document = world.document().await;
    assert_eq!(checkpoint(&document), 3);
    assert_eq!(document.checkpoint.metadata.row_count, 2, "of the batch that moved the checkpoint");
    assert!(document.audit.windows.is_empty() && document.in_flight.is_none());
    sleep(WAIT).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle, "once");
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_window_is_read_once_and_makes_no_call() {
    let world = timed_with(Limits { state_refresh: Duration::from_secs(9000), ..limits() });
    let (poller, _) = with_open_transaction(&world).await;
    let fetches = world.source.fetches();
    sleep(WAIT).await;
    for _ in 0..3 {
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    }
    assert_eq!(world.source.fetches() - fetches, 4, "three for new rows, one to look back");
    assert_eq!(world.store.take_calls(), calls(0, 0, 0));
    // The next write drops the window.
    world.source.put(3, "third");
    tick(&poller).await.unwrap();
    assert_eq!(world.store.take_calls(), calls(0, 2, 0));
    assert_eq!(world.document().await.audit.windows.len(), 1, "that of row 3");
}

#[tokio::test(start_paused = true)]
async fn a_window_found_complete_is_not_read_again_after_a_reload() {
    let world = timed();
    let (poller, _) = with_open_transaction(&world).await;
    sleep(WAIT).await;
    tick(&poller).await.unwrap();
    let fetches = world.source.fetches();
    for _ in 0..3 {
        sleep(301).await;
        tick(&poller).await.unwrap();
    }
    assert_eq!(world.source.fetches() - fetches, 3);
}

#[tokio::test(start_paused = true)]
async fn a_row_changed_since_delivery_has_left_its_window_and_is_not_lost() {
    let watched = WatchedWorld::of(timed());
    let world = &watched.world;
    let (poller, _) = with_open_transaction(world).await;
    world.source.put(1, "changed");
    tick(&poller).await.unwrap();
    sleep(WAIT).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.handler.ids(), [1, 2, 1]);
    assert_eq!(watched.counted("highwater.rows.late", None), 0);
    assert_eq!(watched.counted("highwater.windows.audited", None), 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_an_unchanged_window_is_not_redelivered() {
    let watched = WatchedWorld::of(timed());
    let world = &watched.world;
    with_open_transaction(world).await;
    sleep(WAIT).await;
    assert_eq!(tick(&auditing(world, "b")).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.handler.ids(), [1, 2]);
    assert_eq!(watched.counted("highwater.windows.audited", Some(("outcome", "as_delivered"))), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_changed_window_is_redelivered_with_the_same_ids() {
    let watched = WatchedWorld::of(timed());
    let world = &watched.world;
    let (_, open) = with_open_transaction(world).await;
    let before = world.handler.received();
    world.source.put_late(7, open);
    sleep(WAIT).await;
    tick(&auditing(world, "b")).await.unwrap();
    let [.., again] = &world.handler.received()[..] else { panic!("nothing was delivered") };
    assert_eq!(again.ids, [1, 7, 2]);
    assert_eq!(
        [&again.event_ids[0], &again.event_ids[2]],
        [&before[0].event_ids[0], &before[0].event_ids[1]]
    );
    assert_ne!(again.batch_id, before[0].batch_id, "other bytes");
    assert!(again.fence > before[0].fence);
    assert_eq!(checkpoint(&world.document().await), 3);
    let logged = watched.logged("window_differs");
    assert_eq!((logged["delivered"].as_str(), logged["rows"].as_str()), ("2", "3"));
    assert_eq!(watched.count_of("late_commits_found"), 0, "which rows are late is not known");
    let again = Some(("outcome", "delivered_again"));
    assert_eq!(watched.counted("highwater.windows.audited", again), 1);
}

#[tokio::test(start_paused = true)]
async fn late_rows_are_logged_and_counted_once_however_often_they_are_retried() {
    let watched = WatchedWorld::of(timed());
    let world = &watched.world;
    let (poller, open) = with_open_transaction(world).await;
    world.source.put_late(7, open);
    for _ in 0..2 {
        world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    }
    sleep(WAIT).await;
    for _ in 0..2 {
        assert!(matches!(tick(&poller).await, Err(TickError::Handler(_))));
        sleep(10).await;
    }
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [1, 2, 7, 7, 7]);
    assert_eq!(world.handler.received().last().unwrap().attempt, 3);
    let logged = watched.logged("late_commits_found");
    assert_eq!(logged["level"], "WARN");
    assert_eq!((logged["poller.name"].as_str(), logged["rows"].as_str()), ("p", "1"));
    assert_eq!((logged["after"].as_str(), logged["upto"].as_str()), ("", "3"));
    assert_eq!(watched.count_of("late_commits_found"), 1);
    assert_eq!(watched.counted("highwater.rows.late", None), 1);
}

#[tokio::test(start_paused = true)]
async fn rejected_late_rows_do_not_block_other_rows() {
    let world = timed();
    let (poller, open) = with_open_transaction(&world).await;
    world.source.put_late(7, open);
    let busy = || Err(HandlerError::Retryable("503".to_owned()));
    world.handler.judge_by(move |ids| if ids.contains(&7) { busy() } else { Ok(()) });
    sleep(WAIT).await;
    tick(&poller).await.unwrap_err();
    world.source.put(3, "third");
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids(), [1, 2, 7, 3], "the pause is that of the late rows");
    let document = world.document().await;
    assert_eq!(document.audit.windows.len(), 2, "still due");
    sleep(600).await;
    assert!(tick(&poller).await.is_err(), "and tried again");
    assert_eq!(world.handler.ids(), [1, 2, 7, 3, 7]);
}

#[tokio::test(start_paused = true)]
async fn the_window_stays_due_while_its_rows_are_in_flight() {
    let world = timed();
    let (poller, open) = with_open_transaction(&world).await;
    world.source.put_late(7, open);
    world.handler.then_take(Duration::from_secs(3600));
    sleep(WAIT).await;
    killed_after(5, &poller).await;
    let document = world.document().await;
    assert!(document.in_flight.as_ref().is_some_and(|batch| batch.late));
    assert_eq!(document.audit.windows.len(), 1);
    sleep(60).await;
    tick(&auditing(&world, "b")).await.unwrap();
    let received = world.handler.received();
    assert_eq!(received.last().unwrap().ids, [1, 7, 2], "by another process");
    assert_eq!(received.last().unwrap().attempt, 2, "one process crashed with them");
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_late_rows_whose_response_is_lost_is_recognized_as_landed() {
    for fault in [Fault::LostAnswer, Fault::LostRequest, Fault::Unreachable] {
        let world = timed();
        let (poller, open) = with_open_transaction(&world).await;
        world.source.put_late(7, open);
        let store = world.store.clone();
        world.handler.then(async move {
            store.break_next(Call::Store, fault);
            Ok(())
        });
        sleep(WAIT).await;
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
        assert_eq!(world.handler.ids(), [1, 2, 7], "{fault:?}");
        let document = world.document().await;
        assert!(document.audit.windows.is_empty(), "{fault:?}");
        assert_eq!(checkpoint(&document), 3, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_late_row_is_quarantined_by_the_policy() {
    let policy = FailurePolicy {
        on_failure: OnFailure::Park,
        bisect_on_error: true,
        ..FailurePolicy::default()
    };
    let watched = WatchedWorld::of(timed().with_policy(policy));
    let world = &watched.world;
    let poller = auditing(world, "a");
    let open = [7, 8, 9].map(|id| (id, world.source.reserve()));
    world.source.put(1, "first");
    tick(&poller).await.unwrap();
    for (id, position) in open {
        world.source.put_late(id, position);
    }
    let rejected = || Err(HandlerError::Rejected("422".to_owned()));
    world.handler.judge_by(move |ids| if ids.contains(&8) { rejected() } else { Ok(()) });
    sleep(WAIT).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(watched.counted("highwater.rows.quarantined", None), 1);
    let accepted: Vec<_> =
        world.handler.received().into_iter().filter(|r| !r.ids.contains(&8)).collect();
    let accepted: Vec<_> = accepted.into_iter().flat_map(|received| received.ids).collect();
    assert_eq!(accepted, [1, 7, 9]);
    let document = world.document().await;
    assert!(document.audit.windows.is_empty(), "done with");
    assert_eq!(checkpoint(&document), 4);
}

#[tokio::test(start_paused = true)]
async fn reading_a_window_continues_after_rejected_rows_that_no_longer_exist() {
    let policy = FailurePolicy { bisect_on_error: true, ..FailurePolicy::default() };
    let world = timed().with_policy(policy);
    let poller = auditing(&world, "a");
    let open = [7, 8, 9].map(|id| (id, world.source.reserve()));
    world.source.put(1, "first");
    tick(&poller).await.unwrap();
    let [seven, eight, nine] = open;
    world.source.put_late(seven.0, seven.1);
    world.source.put_late(eight.0, eight.1);
    let rejected = || Err(HandlerError::Rejected("422".to_owned()));
    world.handler.judge_by(move |ids| if ids.contains(&8) { rejected() } else { Ok(()) });
    sleep(WAIT).await;
    tick(&poller).await.unwrap_err();
    assert_eq!(world.document().await.audit.windows[0].end().value, eight.1.to_string());
    world.handler.judge_by(|_| Ok(()));
    world.source.put(8, "changed");
    world.source.put_late(nine.0, nine.1);
    let before = world.handler.ids().len();
    sleep(WAIT).await;
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids()[before..], [8, 9], "new rows, then what else was late");
}

#[tokio::test(start_paused = true)]
async fn late_rows_follow_new_ones_in_the_same_lease() {
    let world = timed();
    let (poller, open) = with_open_transaction(&world).await;
    world.source.put_late(7, open);
    sleep(WAIT).await;
    world.source.put(3, "third");
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids(), [1, 2, 3, 7]);
    assert_eq!(world.store.take_calls(), calls(0, 3, 0), "two batches, three writes");
    let fences: Vec<_> = world.handler.received().iter().map(|received| received.fence).collect();
    assert_eq!(fences[1], fences[2]);
    assert_eq!(checkpoint(&world.document().await), 4);
}

#[tokio::test(start_paused = true)]
async fn the_batch_limit_still_allows_one_batch_of_late_rows() {
    let world = timed_with(Limits { batches_max: Some(1), batch_rows_max: 2, ..limits() });
    let (poller, open) = with_open_transaction(&world).await;
    world.source.put_late(7, open);
    sleep(WAIT).await;
    world.source.fill(6);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(world.handler.ids(), [1, 2, 1, 2, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_large_window_is_read_and_delivered_page_by_page() {
    let world = timed_with(Limits { batch_rows_max: 3, ..limits() });
    let poller = auditing(&world, "a");
    let mut open = Vec::new();
    for id in 1..=12 {
        world.source.put(id, "new");
        if id % 4 == 0 {
            open.push((100 + id, world.source.reserve()));
        }
    }
    world.source.put(13, "last");
    tick(&poller).await.unwrap();
    // As many windows as there were batches; the successor finds them merged into one.
    let mut document = world.document().await;
    let windows = std::mem::take(&mut document.audit.windows);
    let mut merged = windows[0].clone();
    for next in &windows[1..] {
        merged.ids = merged.ids.plus(next.ids);
        merged.upto.clone_from(&next.upto);
        merged.closed_at = next.closed_at;
    }
    document.audit.windows = vec![merged];
    world.overwrite(&encode(&document)).await;
    for (id, position) in open {
        world.source.put_late(id, position);
    }
    // Long enough for the document to be read again.
    sleep(301).await;
    world.store.take_calls();
    let knowing = tick(&poller).await.unwrap();
    assert_eq!(knowing, TickOutcome::Committed { more: false });
    let late: Vec<_> = world.handler.received().into_iter().skip(5).map(|r| r.ids).collect();
    assert_eq!(late, [vec![104], vec![108], vec![112]], "ids of merged windows are known");
    assert_eq!(world.store.take_calls().puts, 4);

    document.lease = world.document().await.lease;
    world.overwrite(&encode(&document)).await;
    let known = world.handler.received().len();
    tick(&auditing(&world, "b")).await.unwrap();
    let again: Vec<_> = world.handler.received().into_iter().skip(known).map(|r| r.ids).collect();
    let rows: Vec<_> = again.concat();
    assert_eq!(rows, [1, 2, 3, 4, 104, 5, 6, 7, 8, 108, 9, 10, 11, 12, 112, 13]);
    assert!(again.iter().all(|page| page.len() <= 3), "{again:?}");
    assert!(world.document().await.audit.windows.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_window_does_not_block_new_rows_and_stays_due() {
    let world = timed();
    let (poller, open) = with_open_transaction(&world).await;
    world.source.put_late(7, open);
    sleep(WAIT).await;
    world.source.put(3, "third");
    world.source.fail_after(1, "gone");
    // The source fails once: the new row is committed, and the tick reads the window again.
    tick(&poller).await.unwrap();
    assert_eq!(checkpoint(&world.document().await), 4);
    assert_eq!(world.handler.ids(), [1, 2, 3, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_tick_does_not_audit_windows() {
    let world = timed();
    let (poller, open) = with_open_transaction(&world).await;
    world.source.put_late(7, open);
    sleep(WAIT).await;
    let request = TickRequest { stop: StopSignal::new(), ..TickRequest::default() };
    request.stop.set();
    assert_eq!(poller.tick(&request).await.result.unwrap(), TickOutcome::Idle);
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [1, 2, 7]);
}

#[tokio::test(start_paused = true)]
async fn other_modes_and_pollers_without_auditing_close_no_windows() {
    let world = World::new();
    world.source.fill(3);
    tick(&auditing(&world, "a")).await.unwrap();
    assert!(world.document().await.audit.is_empty(), "with rowversions no row is late");
    let world = timed();
    world.source.fill(3);
    tick(&auditing(&world, "a")).await.unwrap();
    assert_eq!(world.document().await.audit.windows.len(), 1);
    world.source.put(4, "fourth");
    tick(&world.instance("b")).await.unwrap();
    assert!(world.document().await.audit.is_empty(), "dropped by the process without auditing");
}

#[tokio::test(start_paused = true)]
async fn windows_are_exact_after_partially_accepted_batches() {
    let watched = WatchedWorld::of(timed());
    let world = &watched.world;
    let poller = world.with_handler(Arc::new(SteadyHandler::default())).instance("a");
    let poller = poller.with_audit_after(Duration::from_secs(WAIT));
    world.source.fill(6);
    tick(&poller).await.unwrap();
    let document = world.document().await;
    assert!(document.audit.windows.len() > 1, "a renewal has committed some rows");
    assert_eq!(document.audit.windows.iter().map(|window| window.ids.rows).sum::<u64>(), 6);
    sleep(WAIT).await;
    assert_eq!(tick(&auditing(world, "b")).await.unwrap(), TickOutcome::Idle);
    assert_eq!(watched.count_of("window_differs"), 0);
}
