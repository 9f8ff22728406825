//! Handlers that report accepted rows while they run.

use std::sync::Arc;
use std::time::Duration;

use highwater_engine::cursor::SourceState;
use highwater_engine::document::{Fence, FencingToken, Generation, StaleWrite, encode};
use highwater_engine::handler::HandlerError;
use highwater_engine::policy::FailurePolicy;
use highwater_engine::poller::{Poller, TickError, TickOutcome, outcome_row};
use highwater_engine::source::RetainedState;
use highwater_engine::testing::{
    Call, Fault, SteadyHandler, World, calls, killed_after, sleep, tick,
};
use highwater_engine::tick::TickRequest;

async fn steady() -> (World, Arc<SteadyHandler>, Poller) {
    let world = World::new();
    drop(world.started_poller("z").await);
    world.source.fill(10);
    let handler = Arc::new(SteadyHandler::default());
    let poller = world.with_handler(handler.clone()).instance("a");
    (world, handler, poller)
}

#[tokio::test(start_paused = true)]
async fn accepted_rows_are_committed_with_the_next_renewal_and_survive_a_crash() {
    let (world, handler, poller) = steady().await;
    killed_after(25, &poller).await;
    // Renewals at 10 s and 20 s, with two and then five rows accepted; document and marker are read.
    assert_eq!(world.store.take_calls(), calls(2, 3, 0), "no write is added");
    let in_flight = world.in_flight().await.unwrap();
    assert_eq!(in_flight.rows, 5, "a successor finds the rest in flight");
    sleep(40).await;
    let b = world.with_handler(handler.clone()).instance("b");
    assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(handler.received(), [(1..=10).collect::<Vec<_>>(), (6..=10).collect()]);
}

#[tokio::test(start_paused = true)]
async fn rows_accepted_so_far_are_committed_without_the_source_state() {
    let (world, _, poller) = steady().await;
    let kept = SourceState::from_iter([("mark".to_owned(), "1".into())]);
    world.source.ask_to_remember(Some(RetainedState { state: kept.clone(), at_once: true }));
    killed_after(25, &poller).await;
    assert_eq!(world.in_flight().await.unwrap().rows, 5);
    assert_eq!(world.source_state().await, SourceState::new());
    sleep(40).await;
    tick(&world.instance("b")).await.unwrap();
    assert_eq!(world.source_state().await, kept, "with the last row");
}

#[tokio::test(start_paused = true)]
async fn a_batch_accepted_in_several_steps_counts_as_one_batch() {
    let (world, handler, poller) = steady().await;
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!((report.rows, report.batches), (10, 1));
    let document = world.document().await;
    assert_eq!((document.in_flight, document.checkpoint.metadata.row_count), (None, 10));
    assert_eq!(handler.received().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn rows_accepted_before_a_failure_are_committed_with_it() {
    for accepted in [1, 3, 9] {
        let (world, handler, poller) = steady().await;
        handler.fail_after(accepted);
        let report = poller.tick(&TickRequest::default()).await;
        assert!(matches!(report.result, Err(TickError::Handler(_))), "{accepted}");
        assert_eq!(report.rows, u64::try_from(accepted).unwrap());
        assert_eq!(world.in_flight().await.unwrap().attempt, 1, "of the rest");
        sleep(2).await;
        tick(&poller).await.unwrap();
        let rest: Vec<i64> = (1..=10).skip(accepted).collect();
        assert_eq!(handler.received()[1], rest, "{accepted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_partial_commit_whose_response_is_lost_has_no_effect_on_the_batch() {
    for fault in [Fault::LostAnswer, Fault::LostRequest, Fault::Unreachable] {
        let (world, handler, poller) = steady().await;
        let (outcome, ()) = tokio::join!(tick(&poller), async {
            sleep(9).await;
            world.store.break_next(Call::Store, fault);
        });
        assert_eq!(outcome.unwrap(), TickOutcome::Committed { more: false }, "{fault:?}");
        assert_eq!(handler.received().len(), 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_partial_commit_that_lands_late_does_not_fail_the_batch() {
    let (world, handler, poller) = steady().await;
    let (outcome, ()) = tokio::join!(tick(&poller), async {
        sleep(29).await;
        // At 30 s, seven rows; the write lands at 44 s, and its outcome cannot be read before.
        world.store.break_next(Call::Store, Fault::Late(Duration::from_secs(14)));
        world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(21)));
    });
    assert_eq!(outcome.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(handler.received().len(), 1);
    assert_eq!(world.rows_committed_last().await, 10);
}

#[tokio::test(start_paused = true)]
async fn rows_that_may_have_crashed_a_process_are_not_partially_accepted() {
    let (world, handler, _) = steady().await;
    let policy = FailurePolicy { crashes_max: 0, ..world.policy };
    let poller = world.with_policy(policy).with_handler(handler.clone()).instance("a");
    killed_after(25, &poller).await;
    assert_eq!(world.in_flight().await.unwrap().rows, 10);
    assert_eq!(handler.received().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fully_accepted_batch_stays_accepted_if_the_handler_then_fails() {
    let (world, handler, poller) = steady().await;
    handler.fail_after(10);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.in_flight().await, None);
    assert_eq!(handler.received().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fully_accepted_batch_stays_accepted_whatever_the_handler_returns() {
    let reason = || "no".to_owned();
    for error in [
        HandlerError::Retryable(reason()),
        busy(),
        HandlerError::Rejected(reason()),
        HandlerError::TooLarge(reason()),
        HandlerError::Misconfigured(reason()),
        HandlerError::Gone(reason()),
        HandlerError::Partial { accepted: 3, reason: reason() },
        HandlerError::Stalled(Duration::from_secs(9)),
    ] {
        let name = error.name();
        let (world, handler, poller) = steady().await;
        handler.fail_after(10);
        handler.fail_with(error);
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false }, "{name}");
        let document = world.document().await;
        assert_eq!((document.in_flight, document.paused), (None, None), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fenced_handler_stops_its_process_although_it_had_accepted_all_rows() {
    let (world, handler, poller) = steady().await;
    handler.fail_after(10);
    let grant = |token| Fence { generation: Generation(1), token: FencingToken(token) };
    handler.fail_with(HandlerError::Fenced(StaleWrite { stale: grant(1), current: grant(9) }));
    tick(&poller).await.unwrap_err();
    assert!(world.in_flight().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_accepted_before_the_tick_runs_out_of_time_is_committed() {
    let (mut world, handler, _) = steady().await;
    world.limits.handler_stop_after = Duration::from_secs(45);
    let poller = world.with_handler(handler.clone()).instance("a");
    handler.hang_at_the_end();
    let report = poller.tick(&TickRequest::default()).await;
    assert!(report.result.is_ok(), "{:?}", report.result);
    assert_eq!((report.rows, world.in_flight().await), (10, None));
}

#[tokio::test(start_paused = true)]
async fn the_last_row_of_a_batch_is_committed_with_the_batch_only() {
    let (world, handler, poller) = steady().await;
    handler.hang_at_the_end();
    killed_after(55, &poller).await;
    assert_eq!(world.in_flight().await.unwrap().rows, 1, "nine rows are committed by a renewal");
}

fn busy() -> HandlerError {
    HandlerError::Throttled { reason: "429".to_owned(), retry_after: None }
}

/// Checks that the accepted rows are in report, metric and document: five are committed by renewals, at 10 s and 20 s.
/// The handler is then `stopped`.
async fn check_counted(
    stopped: impl AsyncFnOnce(&World, &SteadyHandler),
    seconds: u64,
    (outcome, rows): (&str, u64),
) {
    let (mut world, handler, _) = steady().await;
    world.limits.handler_stop_after = Duration::from_secs(seconds);
    let poller = world.with_handler(handler.clone()).instance("a");
    let stops = stopped(&world, &handler);
    let request = TickRequest::default();
    let ((), report) = tokio::join!(stops, poller.tick(&request));
    assert_eq!(outcome_row(&report.result).outcome, outcome, "{:?}", report.result);
    assert_eq!((report.rows, report.batches), (rows, 1), "{outcome}");
    let document = world.document().await;
    assert_eq!(document.checkpoint.metadata.row_count, rows, "{outcome}");
    if let Some(recent) = document.recent.last().filter(|recent| recent.outcome != "tick_complete")
    {
        assert_eq!((recent.rows, recent.batches), (rows, 1), "{outcome}");
    }
}

#[tokio::test(start_paused = true)]
async fn rows_accepted_early_are_committed_and_counted_however_the_tick_ends() {
    let fails = |error: fn() -> HandlerError| {
        async move |_: &World, handler: &SteadyHandler| {
            handler.fail_after(6);
            handler.fail_with(error());
        }
    };
    // The sixth row is accepted after the last renewal.
    let failed = ("handler_failed", 6);
    check_counted(fails(busy), 285, failed).await;
    check_counted(fails(|| HandlerError::Misconfigured("401".to_owned())), 285, failed).await;
    check_counted(fails(|| HandlerError::Gone("410".to_owned())), 285, failed).await;
    check_counted(async |_: &World, _: &SteadyHandler| {}, 25, ("out_of_time", 6)).await;
    let taken_away = async |world: &World, _: &SteadyHandler| {
        sleep(25).await;
        let broken = world.document().await.break_lease().unwrap();
        world.overwrite(&encode(&broken)).await;
    };
    check_counted(taken_away, 285, ("lease_lost", 5)).await;
    // From 30 s on seven rows are committed; then the batch's own commit cannot reach the store.
    let (world, _, poller) = steady().await;
    let stops = async {
        sleep(39).await;
        for _ in 0..1000 {
            world.store.break_next(Call::Store, Fault::Unreachable);
        }
    };
    let request = TickRequest::default();
    let ((), report) = tokio::join!(stops, poller.tick(&request));
    assert_eq!(outcome_row(&report.result).outcome, "commit_failed");
    assert_eq!((report.rows, report.batches), (7, 1));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_asks_for_a_pause_does_not_get_accepted_rows_again() {
    let (world, handler, poller) = steady().await;
    handler.fail_after(6);
    handler.fail_with(busy());
    tick(&poller).await.unwrap_err();
    let in_flight = world.in_flight().await.unwrap();
    assert_eq!((in_flight.rows, in_flight.attempt), (4, 0), "the rest; not counted");
    sleep(2).await;
    tick(&poller).await.unwrap();
    assert_eq!(handler.received(), [(1..=10).collect::<Vec<_>>(), (7..=10).collect()]);
}

#[tokio::test(start_paused = true)]
async fn accepted_rows_and_the_failure_after_them_are_one_write() {
    for error in [
        busy(),
        HandlerError::Misconfigured("401".to_owned()),
        HandlerError::Gone("410".to_owned()),
    ] {
        let (world, handler, poller) = steady().await;
        let is_gone = matches!(error, HandlerError::Gone(_));
        handler.fail_after(6);
        handler.fail_with(error);
        tick(&poller).await.unwrap_err();
        // The grant, renewals at 10 s and 20 s, and the end; document and marker are read.
        assert_eq!(world.store.take_calls(), calls(2, 4, 0), "{is_gone}");
        let document = world.document().await;
        assert_eq!((document.in_flight.unwrap().rows, document.paused.is_some()), (4, is_gone));
    }
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_renewal_that_lands_late_does_not_cost_the_failure_after_it() {
    let (world, handler, poller) = steady().await;
    handler.fail_after(8);
    handler.fail_with(busy());
    let (outcome, ()) = tokio::join!(tick(&poller), async {
        sleep(29).await;
        // At 30 s, seven rows; the write lands at 44 s, and its outcome cannot be read before.
        world.store.break_next(Call::Store, Fault::Late(Duration::from_secs(14)));
        world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(21)));
    });
    assert!(
        matches!(outcome, Err(TickError::Handler(HandlerError::Throttled { .. }))),
        "{outcome:?}"
    );
    let document = world.document().await;
    assert_eq!(document.in_flight.unwrap().rows, 2);
    assert!(document.lease.released_at.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_runs_out_of_time_continues_after_the_rows_accepted_so_far() {
    let (mut world, handler, _) = steady().await;
    world.limits.handler_stop_after = Duration::from_secs(25);
    let poller = world.with_handler(handler.clone()).instance("a");
    tick(&poller).await.unwrap_err();
    sleep(2).await;
    tick(&poller).await.unwrap();
    // All of the rest at once: rows that were accepted show that there is enough time for fewer rows.
    assert_eq!(handler.received(), [(1..=10).collect::<Vec<_>>(), (7..=10).collect()]);
}
