//! Ticks: their storage calls, their deliveries, and how they end.

use std::sync::Arc;
use std::time::Duration;

use highwater_engine::document::{OnMissingState, Paused, StateDocument, encode};
use highwater_engine::error::chain;
use highwater_engine::handler::HandlerError;
use highwater_engine::journal::EventKind;
use highwater_engine::lease::LeaseError;
use highwater_engine::normalize::NormalizeError;
use highwater_engine::policy::{FailurePolicy, OnFailure, ParkPolicy};
use highwater_engine::poller::{
    Limits, Operator, Skipped, StopSignal, TickError, TickOutcome, outcome_row,
};
use highwater_engine::source::Source;
use highwater_engine::store::{Precondition, StateKey, StateStore};
use highwater_engine::testing::{
    Call, Fault, TTL, TableSource, WatchedWorld, World, admin, break_lease, calls, killed_after,
    limits, sleep, tick,
};
use highwater_engine::tick::TickRequest;
use tokio::time::Instant;

// The table of storage calls, row by row.

#[tokio::test(start_paused = true)]
async fn storage_calls_idle_warm_are_none() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.store.take_calls(), calls(0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_idle_cold_are_one_read() {
    let world = World::new();
    world.started_poller("a").await;
    assert_eq!(tick(&world.instance("b")).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.store.take_calls(), calls(1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_of_one_batch_are_two_writes_and_two_reads_when_cold() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(10);
    tick(&poller).await.unwrap();
    assert_eq!(world.store.take_calls(), calls(0, 2, 0), "warm");
    world.source.fill(10);
    let other = world.instance("b");
    tick(&other).await.unwrap();
    // The document, and once per process whether its marker still exists.
    assert_eq!(world.store.take_calls(), calls(2, 2, 0), "cold");
    world.source.fill(10);
    tick(&other).await.unwrap();
    assert_eq!(world.store.take_calls(), calls(0, 2, 0), "warm again");
}

#[tokio::test(start_paused = true)]
async fn storage_calls_of_n_batches_are_n_plus_one_writes() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(70);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.store.take_calls(), calls(0, 8, 0));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_add_one_per_heartbeat_not_replaced_by_a_commit() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(30);
    // Two of 9 s need none, since a commit counts; one of 25 s needs two.
    for seconds in [9, 9, 25] {
        world.handler.then_take(Duration::from_secs(seconds));
    }
    tick(&poller).await.unwrap();
    assert_eq!(world.store.take_calls(), calls(0, 3 + 1 + 2, 0));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_of_a_failed_handler_are_two_writes() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(1);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    assert_eq!(world.store.take_calls(), calls(0, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_of_a_parked_row_are_two_more_writes_and_one_listing_per_process() {
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let world = World::new().with_policy(policy);
    let poller = world.started_poller("a").await;
    for (id, listings) in [(1, 1), (2, 0)] {
        world.source.put(id, "bad");
        world.handler.then_fail(HandlerError::Rejected("422".to_owned()));
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
        // Lease, announcement, entry, commit.
        assert_eq!(world.store.take_calls(), calls(listings, 4, 0), "{id}");
    }
    // A later version is added to the entry of the earlier one, without a call of the handler.
    world.source.put(1, "worse");
    tick(&poller).await.unwrap();
    // Lease, entry, commit.
    assert_eq!(world.store.take_calls(), calls(1, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_of_retries_are_two_writes_and_two_for_each_key() {
    let park = ParkPolicy::default();
    let policy = FailurePolicy { on_failure: OnFailure::Park, park, ..FailurePolicy::default() };
    let world = World::new().with_policy(policy);
    let poller = world.started_poller("a").await;
    for id in [1, 2] {
        world.source.put(id, "bad");
        world.handler.then_fail(HandlerError::Rejected("422".to_owned()));
        tick(&poller).await.unwrap();
    }
    sleep(10).await;
    world.store.take_calls();
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    // Lease and release; each entry is read, counted and removed. Removals are not counted here.
    let entries = 2;
    assert_eq!(world.store.take_calls(), calls(entries, 2 + entries, 0));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_while_another_holds_the_lease_are_one_read() {
    let world = World::new();
    let (a, b) = (world.started_poller("a").await, world.instance("b"));
    world.source.fill(1);
    world.handler.then_take(Duration::from_secs(5));
    let (_, skipped) = tokio::join!(tick(&a), async {
        sleep(1).await;
        world.store.take_calls();
        (tick(&b).await.unwrap(), world.store.take_calls())
    });
    let TickOutcome::Skipped(Skipped::Held { owner_id, until }) = &skipped.0 else {
        panic!("{skipped:?}");
    };
    assert_eq!(owner_id, "a");
    let lapses_after = TTL + 2 * world.memory.grain() + Duration::from_secs(2);
    let granted_at = world.document().await.lease.acquired_at.unwrap();
    let waits = Duration::try_from(*until - granted_at).unwrap();
    assert!((lapses_after..lapses_after + Duration::from_secs(1)).contains(&waits), "{waits:?}");
    assert_eq!(skipped.1, calls(1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_while_paused_or_backing_off_are_at_most_one_read() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(1);
    let retry_after = Some(Duration::from_secs(60));
    world.handler.then_fail(HandlerError::Throttled { reason: "429".to_owned(), retry_after });
    tick(&poller).await.unwrap_err();
    world.store.take_calls();
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::BackingOff { .. }));
    assert_eq!(world.store.take_calls(), calls(1, 0, 0));

    sleep(60).await;
    world.handler.then_fail(HandlerError::Gone("410".to_owned()));
    tick(&poller).await.unwrap_err();
    world.store.take_calls();
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::Paused { .. }));
    assert_eq!(world.store.take_calls(), calls(1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn storage_calls_with_a_stale_cache_add_one_rejected_write_and_one_read() {
    let world = World::new();
    let (a, b) = (world.started_poller("a").await, world.instance("b"));
    tick(&b).await.unwrap();
    world.source.fill(1);
    tick(&b).await.unwrap();
    world.source.fill(1);
    world.store.take_calls();
    assert_eq!(tick(&a).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.store.take_calls(), calls(1, 2, 1));
    assert_eq!(world.handler.ids(), [0, 1, 1], "rows read at the stale position are not delivered");
}

#[tokio::test(start_paused = true)]
async fn storage_calls_of_the_very_first_tick_add_a_blank_document_and_the_marker() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.put(0, "first");
    tick(&poller).await.unwrap();
    // Document and marker are read, and again once there is a blank document, the marker once more before it
    // is written; other applications are listed once; blank document, acquisition, marker and commit are
    // written.
    assert_eq!(world.store.take_calls(), calls(5 + 1, 4, 0));
    assert!(world.is_marked().await);
}

// Delivery.

#[tokio::test(start_paused = true)]
async fn every_row_is_delivered_once_and_in_order_when_nothing_fails() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(95);
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), (1..=95).collect::<Vec<_>>());
    assert_eq!(world.source.fetches(), 11, "one query per batch, one before the document existed");
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn rows_with_equal_cursors_survive_batch_ends_and_failures() {
    for batch_rows_max in [1, 2, 3, 7] {
        let world = World::with(Limits { batch_rows_max, ..limits() });
        let mut poller = world.instance("a");
        for id in 1..=20 {
            let value = format!("row {id}");
            if id % 5 == 1 {
                world.source.put(id, &value);
            } else {
                world.source.put_tied(id, &value);
            }
        }
        for failure in 0..6 {
            world.handler.then(async { Ok(()) });
            world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
            if tick(&poller).await.is_ok() {
                break;
            }
            // A later retry is by another process.
            sleep(600).await;
            poller = world.instance(&format!("retry {failure}"));
        }
        sleep(600).await;
        while tick(&poller).await.unwrap() != TickOutcome::Idle {}
        world.assert_all_delivered();
        let accepted: Vec<_> = world.handler.accepted();
        assert_eq!(accepted.len(), 20, "batches of {batch_rows_max}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_failed_for_rows_with_one_key_continues_once_they_are_fixed() {
    let world = World::with(Limits { batch_rows_max: 2, ..limits() });
    let poller = world.instance("a");
    for id in 1..=3 {
        world.source.put(id, &format!("row {id}"));
    }
    world.source.put_twin(2, "twin");
    for _ in 0..3 {
        assert!(matches!(tick(&poller).await, Err(TickError::Fetch(_))));
    }
    assert!(world.handler.ids().is_empty(), "no row of such a page is delivered");
    world.source.delete_value("twin");
    while tick(&poller).await.unwrap() != TickOutcome::Idle {}
    world.assert_all_delivered();
}

#[tokio::test(start_paused = true)]
async fn a_tick_stops_at_its_batch_limit_and_reports_more_rows() {
    let world = World::with(Limits { batches_max: Some(2), ..limits() });
    let poller = world.instance("a");
    world.source.fill(50);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(world.handler.ids().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn no_batch_starts_after_the_tick_duration() {
    let world = World::with(Limits { tick_time_max: Duration::from_secs(15), ..limits() });
    let poller = world.instance("a");
    world.source.fill(50);
    for _ in 0..5 {
        world.handler.then_take(Duration::from_secs(8));
    }
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(world.handler.ids().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_stop_signal_ends_the_tick_after_the_batch_in_flight() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(50);
    let all = StopSignal::new();
    let request = TickRequest { stop: all.child(), ..TickRequest::default() };
    world.handler.then(async move {
        all.set();
        Ok(())
    });
    let report = poller.tick(&request).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(report.rows, 10);
    assert!(world.is_released().await);
}

#[tokio::test(start_paused = true)]
async fn batches_are_cut_at_the_size_limit_and_a_larger_row_stops_the_poller() {
    let world = World::with(Limits { batch_bytes_max: 600, ..limits() });
    let poller = world.instance("a");
    world.source.fill(10);
    world.source.put(11, &"x".repeat(1000));
    world.source.put(12, "behind it");
    for _ in 0..2 {
        let error = tick(&poller).await.unwrap_err();
        let is_named = matches!(error, TickError::Normalize(NormalizeError::Unreadable(_)));
        assert!(is_named, "{error:?}");
        // Rows before it are delivered once, and nothing is skipped.
        assert_eq!(world.handler.ids(), (1..=10).collect::<Vec<_>>());
        let checkpoint = world.document().await.checkpoint.cursor.unwrap();
        assert_eq!(checkpoint.key["id"], 10);
    }
    let sizes: Vec<_> = world.handler.received().iter().map(|batch| batch.ids.len()).collect();
    assert!(sizes.iter().all(|size| (1..=3).contains(size)), "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_second_tick_of_one_process_is_skipped_as_already_running() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(1);
    world.handler.then_take(Duration::from_secs(5));
    let (first, second) = tokio::join!(tick(&poller), async {
        sleep(1).await;
        tick(&poller).await
    });
    assert_eq!(second.unwrap(), TickOutcome::Skipped(Skipped::AlreadyRunning));
    assert_eq!(first.unwrap(), TickOutcome::Committed { more: false });
}

// Failures.

#[tokio::test(start_paused = true)]
async fn a_failed_batch_is_redelivered_with_the_same_id_and_a_higher_attempt() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(3);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    let error = tick(&poller).await.unwrap_err();
    assert!(matches!(error, TickError::Handler(_)));
    // New rows wait: a retry reads exactly the failed range.
    world.source.put(4, "later");
    sleep(2).await;
    tick(&poller).await.unwrap();
    let received = world.handler.received();
    assert_eq!(received[0].batch_id, received[1].batch_id);
    assert_eq!((received[0].attempt, received[1].attempt), (1, 2));
    assert_eq!(received[0].event_ids, received[1].event_ids);
    assert_eq!(received[2].ids, [4], "in the same tick, after the retry");
}

#[tokio::test(start_paused = true)]
async fn rows_that_changed_before_the_retry_make_a_batch_with_another_id() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(3);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    world.source.put(1, "changed");
    sleep(2).await;
    tick(&poller).await.unwrap();
    let received = world.handler.received();
    assert_ne!(received[0].batch_id, received[1].batch_id);
    assert_eq!(received[1].ids, [2, 3]);
    assert_eq!(received[2].ids, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_keeps_changing_does_not_restart_the_attempts_of_its_neighbours() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.put(1, "never taken");
    for attempt in 1..=5 {
        // The hot row is the last of its batch, so each change removes it from the retry.
        world.source.put(2, "hot");
        world.handler.then_fail(HandlerError::Rejected("422".to_owned()));
        tick(&poller).await.unwrap_err();
        assert_eq!(world.in_flight().await.unwrap().attempt, attempt);
        sleep(300).await;
    }
    let attempts: Vec<_> = world.handler.received().iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    tick(&poller).await.unwrap();
    assert!(world.in_flight().await.is_none(), "ends when the checkpoint moves");
}

#[tokio::test(start_paused = true)]
async fn a_failed_range_that_has_become_empty_does_not_stall_the_poller() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(3);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    world.source.fill(3);
    sleep(2).await;
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [1, 2, 3, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn pauses_between_attempts_double_up_to_their_limit() {
    let world = World::with(Limits { retry_delay_max: Duration::from_secs(5), ..limits() });
    let poller = world.instance("a");
    world.source.fill(1);
    let seconds = time::Duration::seconds_f64;
    for (least, most) in [(1.0, 1.0), (1.0, 2.0), (2.0, 4.0), (2.5, 5.0), (2.5, 5.0)] {
        world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
        tick(&poller).await.unwrap_err();
        let document = world.document().await;
        let until = document.in_flight.unwrap().next_attempt_at.unwrap();
        let delay = until - document.lease.released_at.unwrap();
        assert!(delay >= seconds(least) && delay <= seconds(most), "{delay}, {least} to {most} s");
        tokio::time::sleep(Duration::from_secs_f64(most)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn back_pressure_waits_as_requested_and_counts_no_attempt() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(1);
    let retry_after = Some(Duration::from_secs(7));
    world.handler.then_fail(HandlerError::Throttled { reason: "429".to_owned(), retry_after });
    tick(&poller).await.unwrap_err();
    sleep(6).await;
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::BackingOff { .. }));
    sleep(1).await;
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.received()[1].attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_asks_for_a_day_gets_an_hour() {
    let world = World::with(Limits { retry_after_max: Duration::from_secs(3_600), ..limits() });
    let poller = world.instance("a");
    world.source.fill(1);
    let retry_after = Some(Duration::MAX);
    world.handler.then_fail(HandlerError::Throttled { reason: "429".to_owned(), retry_after });
    tick(&poller).await.unwrap_err();
    sleep(3_599).await;
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::BackingOff { .. }));
    sleep(1).await;
    tick(&poller).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_accepted_prefix_is_a_commit_at_its_last_row() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(5);
    let reason = "row 3 was rejected".to_owned();
    world.handler.then_fail(HandlerError::Partial { accepted: 2, reason });
    let report = poller.tick(&TickRequest::default()).await;
    assert!(matches!(report.result, Err(TickError::Handler(_))));
    assert_eq!(report.rows, 2);
    assert_eq!(world.store.take_calls().puts, 2, "acquire; prefix, failure and release");
    let document = world.document().await;
    assert_eq!(document.checkpoint.metadata.row_count, 2);
    assert_eq!(document.recent.last().map(|tick| (tick.rows, tick.batches)), Some((2, 1)));
    assert_eq!(document.in_flight.unwrap().attempt, 1);
    sleep(2).await;
    tick(&poller).await.unwrap();
    let received = world.handler.received();
    assert_eq!((received[2].ids.clone(), received[2].attempt), (vec![3, 4, 5], 2));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_responds_with_gone_pauses_the_poller() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(1);
    world.handler.then_fail(HandlerError::Gone("410 Gone".to_owned()));
    tick(&poller).await.unwrap_err();
    let outcome = tick(&world.instance("b")).await.unwrap();
    assert!(matches!(outcome, TickOutcome::Paused { .. }), "{outcome:?}");
    assert_eq!(world.handler.received().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_failure_never_reaches_the_handler_and_writes_nothing() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(1);
    world.source.fail_next("connection reset");
    assert!(matches!(tick(&poller).await, Err(TickError::Fetch(_))));
    assert_eq!(world.store.take_calls(), calls(0, 0, 0));
    assert_eq!(world.handler.received().len(), 1);
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_failure_between_batches_still_commits_the_batch_in_flight() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(20);
    let source = world.source.clone();
    world.handler.then(async move {
        // Once after the batch in flight, and once more when that is committed.
        source.fail_next("connection reset");
        source.fail_next("connection reset");
        Ok(())
    });
    let report = poller.tick(&TickRequest::default()).await;
    assert!(matches!(report.result, Err(TickError::Fetch(_))));
    assert_eq!(report.rows, 10);
    assert_eq!(world.rows_committed_last().await, 10);
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), (1..=20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_source_is_abandoned_at_the_deadline() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.delay(Duration::from_secs(10_000));
    let began_at = Instant::now();
    assert!(matches!(tick(&poller).await, Err(TickError::Fetch(_))));
    assert_eq!(began_at.elapsed(), limits().handler_stop_after);
    assert!(world.is_released().await, "no lease is left to expire");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_ordered_never_reaches_the_handler() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(1);
    world.source.break_keys();
    assert!(matches!(tick(&poller).await, Err(TickError::Normalize(_))));
    assert_eq!(world.handler.received(), []);
    assert_eq!(world.store.take_calls().puts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hits_the_deadline_is_stopped_and_its_failure_recorded() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(1);
    world.handler.then_take(Duration::from_secs(10_000));
    let began_at = Instant::now();
    assert!(matches!(tick(&poller).await, Err(TickError::OutOfTime)));
    assert_eq!(began_at.elapsed(), limits().handler_stop_after);
    let document = world.document().await;
    assert!(document.lease.released_at.is_some());
    assert_eq!(document.in_flight.unwrap().attempt, 1);
    assert_eq!(world.handler.finished(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_permanently_redelivers_the_batch() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(2);
    let store = world.store.clone();
    world.handler.then(async move {
        for _ in 0..1000 {
            store.break_next(Call::Store, Fault::Unreachable);
        }
        Ok(())
    });
    assert!(matches!(tick(&poller).await, Err(TickError::Commit(_))));
    let b = world.with_working_store();
    sleep(40).await;
    tick(&b.instance("b")).await.unwrap();
    let received = b.handler.received();
    assert_eq!(received[1].batch_id, received[2].batch_id);
    assert_eq!(received[2].attempt, 2, "the holder that vanished is counted");
}

#[tokio::test(start_paused = true)]
async fn a_crashed_holder_is_taken_over_after_ttl_and_margin() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(2);
    world.handler.then_take(Duration::from_secs(10_000));
    // The future is dropped in the middle of the batch, as by a kill.
    killed_after(5, &poller).await;
    let b = world.instance("b");
    assert!(matches!(tick(&b).await.unwrap(), TickOutcome::Skipped(Skipped::Held { .. })));
    sleep(27).await;
    assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
    let received = world.handler.received();
    assert_eq!(received[1].batch_id, received[2].batch_id);
    assert!(received[2].fence.1 > received[1].fence.1);
    assert_eq!(received[2].attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_tick_was_dropped_reclaims_its_lease_at_once() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(2);
    world.handler.then_take(Duration::from_secs(10_000));
    let dropped = tokio::time::timeout(Duration::from_secs(1), tick(&poller)).await;
    assert!(dropped.is_err());
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
}

#[tokio::test(start_paused = true)]
async fn a_stale_owner_commits_nothing_and_its_rows_are_redelivered() {
    let world = World::new();
    let (a, b) = (world.started_poller("a").await, world.instance("b"));
    world.source.fill(2);
    let memory = world.memory.clone();
    world.handler.then(async move {
        break_lease(&memory).await;
        Ok(())
    });
    assert!(matches!(tick(&a).await, Err(TickError::LeaseLost(_))));
    assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids(), [0, 1, 2, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn no_batch_starts_after_a_commit_found_landed_under_a_newer_lease() {
    let world = World::new();
    let (a, b) = (world.started_poller("a").await, world.instance("b"));
    world.source.fill(20);
    let store = world.store.clone();
    world.handler.then(async move {
        // The commit lands, its response is lost, and its outcome is checked for so long that B takes over.
        store.break_next(Call::Store, Fault::LostAnswer);
        store.break_next(Call::Load, Fault::Slow(Duration::from_secs(60)));
        Ok(())
    });
    world.handler.then_take(Duration::from_secs(100));
    let later = async {
        sleep(45).await;
        tick(&b).await
    };
    let request = TickRequest::default();
    let (first, second) = tokio::join!(a.tick(&request), later);
    assert!(matches!(first.result, Err(TickError::LeaseLost(LeaseError::Lost(_)))), "{first:?}");
    assert_eq!(first.rows, 10, "the checkpoint did move");
    assert_eq!(second.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(
        world.handler.ids()[1..],
        (1..=20).collect::<Vec<_>>(),
        "nothing was delivered twice"
    );
}

#[tokio::test(start_paused = true)]
async fn a_poller_paused_during_a_tick_stops_after_the_batch_in_flight() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(40);
    world.pause_in_the_next_call();
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(world.handler.ids()[1..], (1..=10).collect::<Vec<_>>());
    assert!(world.is_released().await);
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::Paused { .. }));
}

// State that must not be used.

#[tokio::test(start_paused = true)]
async fn unusable_state_stops_the_tick_and_is_not_overwritten() {
    for (bytes, expected) in [
        (&b"{\"version\": 1, "[..], "is not JSON"),
        (b"{\"hello\": \"world\"}", "is not a state document"),
        (b"{\"version\": 2}", "has version `2`"),
        (b"{\"version\": 1, \"requires\": [\"sharding\"]}", "requires `sharding`"),
    ] {
        let world = World::new();
        world.source.fill(1);
        world.overwrite(bytes).await;
        let error = tick(&world.instance("a")).await.unwrap_err();
        assert!(chain(&error).contains(expected), "{}", chain(&error));
        assert_eq!(outcome_row(&Err(error)).error, Some("LeaseAcquireError"));
        let key = StateKey::Document("p".to_owned());
        assert_eq!(world.stored(&key).await.unwrap().bytes, bytes);
        assert_eq!(world.handler.received(), []);
        assert_eq!(world.source.fetches(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_of_another_source_stops_the_tick() {
    let world = World::new();
    world.started_poller("a").await;
    let other = Arc::new(TableSource::with_fingerprint("p", "dbo.other"));
    other.fill(3);
    let error = tick(&world.instance_of("b", other)).await.unwrap_err();
    assert!(matches!(error, TickError::Fingerprint { .. }));
    assert_eq!(world.store.take_calls().puts, 0);
    assert_eq!(world.handler.received().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn vanished_state_is_never_silently_replayed() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    let generation = world.generation().await;
    world.memory.lose(&StateKey::Document("p".to_owned()));
    world.source.put(1, "later");
    let error = tick(&world.instance("b")).await.unwrap_err();
    assert!(matches!(error, TickError::StateVanished { .. }), "{error:?}");
    assert_eq!(world.handler.ids(), [0]);
    drop(poller);
    let again =
        world.with_limits(Limits { on_missing_state: OnMissingState::Recreate, ..limits() });
    tick(&again.instance("c")).await.unwrap();
    assert_eq!(again.handler.ids(), [0, 0, 1]);
    assert!(again.generation().await > generation);
}

#[tokio::test(start_paused = true)]
async fn a_warm_process_stops_if_document_and_marker_are_both_missing() {
    for has_delivered in [true, false] {
        let world = World::new();
        let poller = world.started_poller("z").await;
        // Also a process that has only looked at the document.
        let poller = if has_delivered { poller } else { world.instance("a") };
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
        let copy = world.document().await;
        world.memory.lose(&StateKey::Document("p".to_owned()));
        world.memory.lose(&StateKey::Marker("p".to_owned()));
        world.source.put(1, "later");
        for _ in 0..3 {
            let error = tick(&poller).await.unwrap_err();
            assert!(matches!(error, TickError::StateVanished { .. }), "{error:?}");
            sleep(1).await;
        }
        assert_eq!(world.handler.ids(), [0], "nothing is redelivered");
        // The fix that the error names: a copy is restored by another process.
        let cli = world.instance("cli");
        let present = admin(&cli).present().await.unwrap();
        let operator = Operator { by: "ann", reason: "state was lost" };
        admin(&cli).restore(&copy, &present, (EventKind::Imported, operator)).await.unwrap();
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
        assert_eq!(world.handler.ids(), [0, 1]);
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
        assert!(world.marker().await.is_some(), "marked again");
    }
}

/// A request to create a document has no condition that would fail after a deletion.
#[tokio::test(start_paused = true)]
async fn a_request_to_create_that_lands_after_a_deletion_grants_nothing_and_repeats_no_token() {
    let world = World::with(Limits { on_missing_state: OnMissingState::Recreate, ..limits() });
    world.source.put(0, "first");
    // The first request is abandoned, and the second creates the document.
    world.store.break_next(Call::Store, Fault::Late(Duration::from_secs(60)));
    tick(&world.instance("a")).await.unwrap();
    tick(&world.instance("b")).await.unwrap();
    world.memory.lose(&StateKey::Document("p".to_owned()));
    sleep(61).await;
    assert!(world.document().await.is_blank(), "the late request has landed");
    tick(&world.instance("c")).await.unwrap();
    let grants: Vec<_> = world.handler.received().iter().map(|call| call.fence).collect();
    assert_eq!(grants.len(), 2);
    assert!(grants[1] > grants[0], "{grants:?}");

    let stops = world.with_limits(limits());
    stops.memory.lose(&StateKey::Document("p".to_owned()));
    let blank = StateDocument::blank("p", stops.source.shape().fingerprint.clone());
    stops.overwrite(&encode(&blank)).await;
    let error = tick(&stops.instance("d")).await.unwrap_err();
    assert!(matches!(error, TickError::StateVanished { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_creation_is_retried_until_its_outcome_is_known() {
    for fault in [Fault::LostAnswer, Fault::LostRequest, Fault::Unreachable] {
        let world = World::new();
        world.source.put(0, "first");
        world.store.break_next(Call::Store, fault);
        let outcome = tick(&world.instance("a")).await.unwrap();
        assert_eq!(outcome, TickOutcome::Committed { more: false }, "{fault:?}");
        assert_eq!(world.handler.ids(), [0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_blank_document_can_be_paused() {
    let world = World::new();
    let blank = StateDocument::blank("p", world.source.shape().fingerprint.clone());
    let at = time::OffsetDateTime::UNIX_EPOCH;
    let (by, reason) = ("operator".to_owned(), "maintenance".to_owned());
    let paused = Paused { by, reason, at, extra: serde_json::Map::new() };
    world.overwrite(&encode(&blank.with_pause(paused))).await;
    world.source.put(0, "first");
    let outcome = tick(&world.instance("b")).await.unwrap();
    assert!(matches!(outcome, TickOutcome::Paused { .. }), "{outcome:?}");
    assert_eq!(world.handler.received(), []);
}

#[tokio::test(start_paused = true)]
async fn a_state_created_between_two_reads_has_not_vanished() {
    let world = World::new();
    world.source.put(0, "first");
    // Document, then marker: another instance creates both in between.
    world.store.break_next(Call::Load, Fault::Slow(Duration::ZERO));
    world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(5)));
    let second = world.instance("b");
    let slow = tokio::spawn(async move { tick(&second).await });
    sleep(1).await;
    tick(&world.instance("a")).await.unwrap();
    assert_eq!(slow.await.unwrap().unwrap(), TickOutcome::Idle);
    assert_eq!(world.handler.ids(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_could_not_be_written_is_written_by_the_next_tick() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.put(0, "first");
    // The reads of document and marker, both twice, then the read before the marker is written.
    let slow = Fault::Slow(Duration::ZERO);
    for fault in [slow, slow, slow, slow, Fault::LostAnswer] {
        world.store.break_next(Call::Load, fault);
    }
    tick(&poller).await.unwrap();
    assert!(!world.is_marked().await);
    world.source.put(1, "later");
    tick(&poller).await.unwrap();
    assert!(world.is_marked().await);
    assert!(world.marker().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_cannot_be_written_is_logged_once_and_then_hourly() {
    let watched = WatchedWorld::new();
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.rewrite(|document| StateDocument { marked: false, ..document }).await;
    let key = StateKey::Marker("p".to_owned());
    let marker = world.memory.load(&key).await.unwrap().stored.unwrap();
    let precondition = Precondition::Matches(marker.etag);
    world.memory.store(&key, b"not a marker".to_vec(), precondition).await.unwrap();
    drop(poller);
    let poller = world.instance("b");
    for (id, expected) in [(1, 1), (2, 1), (3, 2)] {
        world.source.put(id, "later");
        tick(&poller).await.unwrap();
        assert_eq!(watched.count_of("marker_failed"), expected, "{id}");
        sleep(40 * 60).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_marker_is_written_again_by_the_first_delivery_of_a_process() {
    let watched = WatchedWorld::of(World::new());
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.memory.lose(&StateKey::Marker("p".to_owned()));
    assert_eq!(tick(&world.instance("b")).await.unwrap(), TickOutcome::Idle);
    assert!(world.marker().await.is_none(), "idle ticks write nothing");
    world.source.put(1, "later");
    // A read that fails is repeated by the next delivery, not before.
    let other = world.instance("c");
    for fault in [Fault::Slow(Duration::ZERO), Fault::LostAnswer] {
        world.store.break_next(Call::Load, fault);
    }
    tick(&other).await.unwrap();
    assert!(world.marker().await.is_none());
    world.source.put(2, "later");
    tick(&other).await.unwrap();
    assert!(world.marker().await.is_some());
    assert_eq!(watched.logged("marker_rewritten")["level"], "WARN");
    for id in 3..5 {
        world.source.put(id, "later");
        tick(&other).await.unwrap();
    }
    assert_eq!(watched.count_of("marker_rewritten"), 1);
    // The purpose of the marker: the document is lost, too.
    world.memory.lose(&StateKey::Document("p".to_owned()));
    for process in [&world.instance("d"), &poller] {
        let error = tick(process).await.unwrap_err();
        assert!(matches!(error, TickError::StateVanished { .. }), "{error:?}");
    }
    assert_eq!(world.handler.ids(), [0, 1, 2, 3, 4], "nothing is redelivered");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_marker_is_not_overwritten() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    let document = StateDocument { marked: false, ..world.document().await };
    world.overwrite(&encode(&document)).await;
    let key = StateKey::Marker("p".to_owned());
    let marker = world.stored(&key).await.unwrap();
    let precondition = Precondition::Matches(marker.etag);
    world.memory.store(&key, b"precious".to_vec(), precondition).await.unwrap();
    drop(poller);
    world.source.put(1, "later");
    tick(&world.instance("b")).await.unwrap();
    assert_eq!(world.stored(&key).await.unwrap().bytes, b"precious");
    assert!(!world.is_marked().await);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_reached_fails_the_tick_and_calls_no_handler() {
    let world = World::new();
    world.source.fill(1);
    world.store.break_next(Call::Load, Fault::Unreachable);
    let error = tick(&world.instance("a")).await.unwrap_err();
    assert!(matches!(error, TickError::Load(_)));
    assert_eq!(world.handler.received(), []);
}

// Bookkeeping.

#[tokio::test(start_paused = true)]
async fn idle_ticks_are_recorded_once_per_status_interval() {
    let status_interval = Duration::from_secs(300);
    let world = World::with(Limits { status_interval, ..limits() });
    let poller = world.started_poller("a").await;
    for _ in 0..10 {
        sleep(60).await;
        tick(&poller).await.unwrap();
    }
    assert_eq!(world.store.take_calls().puts, 2, "once every 5 minutes");
    assert_eq!(world.document().await.observed.unwrap().idle_ticks, 10);
    world.source.put(1, "later");
    tick(&poller).await.unwrap();
    assert_eq!(world.document().await.recent.last().unwrap().idle_before, 10);
    assert_eq!(world.handler.ids(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn recent_ticks_and_timings_are_stored_with_the_last_write() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(15);
    tick(&poller).await.unwrap();
    let document = world.document().await;
    let last = document.recent.last().unwrap();
    assert_eq!((last.rows, last.batches, last.outcome.as_str()), (15, 2, "tick_complete"));
    assert!(document.timings["handler"].percentile_ms(99).is_some());
}
