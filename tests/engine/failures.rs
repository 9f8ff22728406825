//! Rows that the handler does not accept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use highwater_engine::admin::ResumeOutcome;
use highwater_engine::document::encode;
use highwater_engine::error::chain;
use highwater_engine::event::ChangeEvent;
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use highwater_engine::policy::{FailurePolicy, OnFailure, ParkPolicy};
use highwater_engine::poller::{Limits, Operator, Poller, TickError, TickOutcome};
use highwater_engine::quarantine::{EntryState, Reason};
use highwater_engine::store::{StateKey, StateStore};
use highwater_engine::testing::{
    Call, Fault, RecordingHandler, WatchedWorld, World, admin, killed_after, limits, sleep, tick,
};
use tokio::sync::Notify;

fn rejected() -> HandlerError {
    HandlerError::Rejected("422".to_owned())
}

fn failed() -> HandlerError {
    HandlerError::Retryable("500".to_owned())
}

fn policy(on_failure: OnFailure, bisect_on_error: bool) -> FailurePolicy {
    FailurePolicy {
        on_failure,
        bisect_on_error,
        attempts_max: 3,
        crashes_max: 2,
        record_age_max: None,
        breaker_rows: 10,
        park: ParkPolicy::NO_RETRIES,
    }
}

fn world(policy: FailurePolicy, rows: usize) -> World {
    let limits = Limits { batch_rows_max: rows, batch_bytes_max: 8 << 20, ..limits() };
    World::with(limits).with_policy(policy)
}

/// Makes the handler fail each call that contains one of `bad`.
fn fail_on(world: &World, bad: &'static [i64], error: fn() -> HandlerError) {
    let is_bad = move |ids: &[i64]| ids.iter().any(|id| bad.contains(id));
    world.handler.judge_by(move |ids| if is_bad(ids) { Err(error()) } else { Ok(()) });
}

/// Keys of the rows of each call after the first one, which only warms up.
fn calls_made(world: &World) -> Vec<Vec<i64>> {
    world.handler.received().into_iter().skip(1).map(|call| call.ids).collect()
}

/// Keys of the rows of the calls without a bad row, in order.
fn accepted_keys(world: &World, bad: &[i64]) -> Vec<i64> {
    let good = |ids: &Vec<i64>| !ids.iter().any(|id| bad.contains(id));
    calls_made(world).into_iter().filter(good).flatten().collect()
}

/// Ticks until nothing is left, past every backoff.
async fn drain(poller: &Poller, ticks_max: u32) -> u32 {
    for ticks in 1..=ticks_max {
        sleep(600).await;
        let outcome = tick(poller).await;
        if matches!(outcome, Ok(TickOutcome::Committed { more: false } | TickOutcome::Idle)) {
            return ticks;
        }
    }
    panic!("not drained after {ticks_max} ticks");
}

#[tokio::test(start_paused = true)]
async fn one_rejected_row_in_ten_thousand_costs_fourteen_calls_plus_one() {
    for bad in [1, 2, 4_999, 5_000, 5_001, 7_777, 9_999, 10_000_i64] {
        let world = world(policy(OnFailure::Park, true), 10_000);
        let poller = world.started_poller("a").await;
        world.source.fill(10_000);
        world
            .handler
            .judge_by(move |ids| if ids.contains(&bad) { Err(rejected()) } else { Ok(()) });
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
        let calls = calls_made(&world);
        let with_it = calls.iter().filter(|ids| ids.contains(&bad)).count();
        assert!(with_it <= 14, "row {bad}: {with_it} calls");
        let behind = calls.iter().filter(|ids| ids[0] > bad).count();
        assert_eq!(behind, usize::from(bad < 10_000), "row {bad}: one call for the rest");
        let expected: Vec<i64> = (1..=10_000).filter(|id| *id != bad).collect();
        assert_eq!(
            accepted_keys(&world, &[bad]),
            expected,
            "row {bad}: every other row once, in order"
        );
        assert_eq!(world.quarantined().await, [bad]);
    }
}

#[tokio::test(start_paused = true)]
async fn no_row_of_any_batch_needs_more_calls_than_its_size_has_bits() {
    for (rows, step) in [(1, 1), (2, 1), (3, 1), (7, 1), (8, 1), (9, 1), (33, 1), (1_000, 111)] {
        for bad in (1..=rows).step_by(step).chain([rows]) {
            let bad = i64::try_from(bad).unwrap();
            let world = world(policy(OnFailure::Park, true), rows);
            let poller = world.started_poller("a").await;
            world.source.fill(i64::try_from(rows).unwrap());
            let holds = move |ids: &[i64]| ids.contains(&bad);
            world.handler.judge_by(move |ids| if holds(ids) { Err(rejected()) } else { Ok(()) });
            drain(&poller, 3).await;
            let calls = calls_made(&world);
            let with_it = calls.iter().filter(|ids| holds(ids)).count();
            let most = usize::try_from(rows.ilog2() + 1).unwrap();
            assert!(with_it <= most, "row {bad} of {rows}: {with_it} calls");
            // The whole batch, one call for each halving, the row alone, the rest.
            assert!(calls.len() <= most + 3, "row {bad} of {rows}: {} calls in all", calls.len());
            assert_eq!(world.quarantined().await, [bad]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn several_rejected_rows_are_each_quarantined_and_the_others_keep_their_order() {
    let bad: &[i64] = &[3, 4, 17, 30];
    let world = world(policy(OnFailure::Park, true), 10);
    let poller = world.started_poller("a").await;
    world.source.fill(30);
    fail_on(&world, bad, rejected);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    let expected: Vec<i64> = (1..=30).filter(|id| !bad.contains(id)).collect();
    assert_eq!(accepted_keys(&world, bad), expected);
    let entries = world.quarantine().await;
    assert_eq!(entries.iter().map(|(id, _)| *id).collect::<Vec<_>>(), bad);
    for (id, entry) in entries {
        assert_eq!((entry.reason, entry.error.as_str()), (Reason::Refused, "422"));
        assert!(entry.events[0].get().contains(&format!(r#""pk":{{"id":{id}}}"#)));
    }
    assert!(world.in_flight().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_target_quarantines_nothing_however_long_it_lasts() {
    let world = world(policy(OnFailure::Park, true), 10);
    let poller = world.started_poller("a").await;
    world.source.fill(30);
    world.handler.judge_by(|_| Err(failed()));
    for _ in 0..50 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    assert_eq!(world.rows_committed_last().await, 1, "nothing is skipped");
    // It terminates: everything arrives, in order.
    let calls_before = calls_made(&world).len();
    world.handler.judge_by(|_| Ok(()));
    drain(&poller, 5).await;
    let rows: Vec<i64> = calls_made(&world).split_off(calls_before).concat();
    assert_eq!(rows, (1..=30).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_rejects_everything_quarantines_ten_rows_and_recovers_by_itself() {
    let errors: [fn() -> HandlerError; 3] = [
        rejected,
        || HandlerError::TooLarge("413".to_owned()),
        || HandlerError::Partial { accepted: 0, reason: "first".to_owned() },
    ];
    for error in errors {
        let world = world(policy(OnFailure::Park, true), 1_000);
        let poller = world.started_poller("a").await;
        world.source.fill(1_000);
        let is_down = Arc::new(AtomicBool::new(true));
        let down = Arc::clone(&is_down);
        world.handler.judge_by(move |_| if down.load(Relaxed) { Err(error()) } else { Ok(()) });
        let mut last_calls = 0;
        for _ in 0..200 {
            sleep(600).await;
            let before = world.handler.received().len();
            tick(&poller).await.unwrap_err();
            last_calls = world.handler.received().len() - before;
        }
        let quarantined = world.quarantined().await;
        assert!(quarantined.len() <= 10, "{} rows of {}", quarantined.len(), error());
        if matches!(error(), HandlerError::Rejected(_) | HandlerError::TooLarge(_)) {
            assert_eq!(quarantined.len(), 10);
            assert_eq!(last_calls, 2, "one row, and one other row");
            let text = world.in_flight().await.unwrap().last_error.unwrap();
            assert!(text.contains("10 rows in a row were parked"), "{text}");
        }
        is_down.store(false, Relaxed);
        drain(&poller, 3).await;
        assert_eq!(world.quarantined().await, quarantined, "no further calls");
        let accepted = world.handler.accepted().len() - 1;
        assert_eq!(accepted, 1_000 - quarantined.len(), "every other row once");
        assert_eq!(world.document().await.quarantined_in_a_row, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_breaker_is_reported_once_when_it_opens_and_once_when_it_closes() {
    let policy = FailurePolicy { breaker_rows: 2, ..policy(OnFailure::Park, true) };
    let mut watched = WatchedWorld::new();
    watched.world.policy = policy;
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.fill(9);
    fail_on(world, &[1, 2, 3, 4, 5, 6, 7, 8, 9], rejected);
    for _ in 0..5 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    assert_eq!(watched.count_of("breaker_opened"), 1);
    assert_eq!(world.quarantined().await, [1, 2]);
    fail_on(world, &[3, 5], rejected);
    drain(&poller, 3).await;
    assert_eq!(watched.count_of("breaker_opened"), 1);
    assert_eq!(watched.count_of("breaker_closed"), 1);
    assert_eq!(watched.counted("highwater.breaker.openings", None), 1);
    assert_ne!(watched.counted("highwater.rows.redelivered", None), 0);
    assert_eq!(world.quarantined().await, [1, 2, 3, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_always_fails_is_quarantined_after_its_attempts_once_another_row_is_accepted() {
    let world = world(policy(OnFailure::Park, true), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    fail_on(&world, &[6], failed);
    for _ in 0..2 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
        assert_eq!(world.quarantined().await, Vec::<i64>::new(), "before the last attempt");
    }
    sleep(600).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    let (id, entry) = world.quarantine().await.remove(0);
    assert_eq!((id, entry.reason, entry.attempts), (6, Reason::Attempts, 3));
    let expected: Vec<i64> = (1..=20).filter(|id| *id != 6).collect();
    assert_eq!(accepted_keys(&world, &[6]), expected);
}

#[tokio::test(start_paused = true)]
async fn a_probe_runs_even_if_the_batch_limit_is_reached() {
    let mut world = world(policy(OnFailure::Park, true), 8);
    world.limits.batches_max = Some(1);
    let poller = world.started_poller("a").await;
    world.source.fill(8);
    fail_on(&world, &[1], failed);
    drain(&poller, 10).await;
    assert_eq!(world.quarantined().await, [1]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_ends_between_a_row_and_its_probe_quarantines_nothing() {
    let world = world(policy(OnFailure::Park, true), 1);
    let poller = world.started_poller("a").await;
    world.source.fill(4);
    world.handler.judge_by(|_| Err(failed()));
    for _ in 0..2 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    // The last attempt still fails, and then the target is back.
    world.handler.then_fail(failed()).judge_by(|_| Ok(()));
    sleep(600).await;
    drain(&poller, 3).await;
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    let calls = calls_made(&world).split_off(2);
    assert_eq!(calls[..4], [[1], [2], [1], [2]], "the row, another, the row again, and on");
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_probe_releases_the_lease_and_counts_no_crash() {
    let world = world(policy(OnFailure::Park, true), 1);
    let poller = world.started_poller("a").await;
    world.source.fill(2);
    world.handler.judge_by(|_| Err(failed()));
    for attempt in 1..=10 {
        sleep(600).await;
        if attempt >= 3 {
            // The first read is that of the failing row.
            world.source.fail_after(1, "gone");
        }
        tick(&poller).await.unwrap_err();
        let document = world.document().await;
        assert!(document.lease.released_at.is_some(), "attempt {attempt}");
        let in_flight = document.in_flight.unwrap();
        assert_eq!((in_flight.attempt, in_flight.crashes, in_flight.rows), (attempt, 0, 1));
    }
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
}

#[tokio::test(start_paused = true)]
async fn crashes_before_a_reported_failure_do_not_count_against_a_row() {
    let world = world(policy(OnFailure::Park, true), 1);
    world.started_poller("a").await;
    world.source.fill(2);
    for owner_id in ["b", "c"] {
        world.handler.then(std::future::pending());
        let poller = world.instance(owner_id);
        killed_after(5, &poller).await;
        sleep(60).await;
        world.handler.then_fail(failed());
        tick(&world.instance("survivor")).await.unwrap_err();
        sleep(60).await;
    }
    assert_eq!(world.in_flight().await.unwrap().crashes, 2, "the limit, in all");
    drain(&world.instance("d"), 3).await;
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
}

#[tokio::test(start_paused = true)]
async fn the_age_of_a_failure_starts_with_the_first_counted_attempt() {
    let record_age_max = Some(Duration::from_secs(3600));
    let policy = FailurePolicy { record_age_max, ..policy(OnFailure::Stop, false) };
    let world = world(policy, 8);
    let poller = world.started_poller("a").await;
    world.source.fill(8);
    let busy = || HandlerError::Throttled { reason: "429".to_owned(), retry_after: None };
    world.handler.judge_by(move |_| Err(busy()));
    for _ in 0..20 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    world.handler.judge_by(|_| Err(failed()));
    sleep(600).await;
    tick(&poller).await.unwrap_err();
    assert!(!world.is_paused().await);
}

#[tokio::test(start_paused = true)]
async fn adjacent_failing_rows_are_distinguished_from_an_outage_by_a_row_after_them() {
    let bad: &[i64] = &[4, 5, 6];
    let world = world(policy(OnFailure::Park, true), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(12);
    fail_on(&world, bad, failed);
    drain(&poller, 40).await;
    assert_eq!(world.quarantined().await, bad);
    let mut others = accepted_keys(&world, bad);
    others.dedup();
    others.sort_unstable();
    others.dedup();
    assert_eq!(others, [1, 2, 3, 7, 8, 9, 10, 11, 12]);
}

#[tokio::test(start_paused = true)]
async fn the_last_row_of_a_table_is_not_quarantined_until_another_row_arrives() {
    let world = world(policy(OnFailure::Park, true), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    fail_on(&world, &[3], failed);
    for _ in 0..10 {
        sleep(600).await;
        drop(tick(&poller).await);
    }
    assert_eq!(
        world.quarantined().await,
        Vec::<i64>::new(),
        "nothing shows that the row is the cause"
    );
    world.source.put(4, "new");
    drain(&poller, 5).await;
    assert_eq!(world.quarantined().await, [3]);
}

#[tokio::test(start_paused = true)]
async fn wrong_settings_and_back_pressure_count_no_attempt() {
    for error in [
        || HandlerError::Misconfigured("401".to_owned()),
        || HandlerError::Throttled { reason: "429".to_owned(), retry_after: None },
    ] {
        let world = world(policy(OnFailure::Park, true), 8);
        let poller = world.started_poller("a").await;
        world.source.fill(3);
        world.handler.judge_by(move |_| Err(error()));
        for _ in 0..20 {
            sleep(600).await;
            tick(&poller).await.unwrap_err();
        }
        assert_eq!(world.in_flight().await.unwrap().attempt, 0);
        assert_eq!(calls_made(&world).len(), 20, "no halving either");
    }
}

#[tokio::test(start_paused = true)]
async fn stop_pauses_the_poller_at_the_row_until_it_is_resumed() {
    let world = world(policy(OnFailure::Stop, true), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(8);
    fail_on(&world, &[5], rejected);
    let error = tick(&poller).await.unwrap_err();
    assert!(matches!(error, TickError::Handler(HandlerError::Rejected(_))), "{error:?}");
    let document = world.document().await;
    let paused = document.paused.clone().unwrap();
    assert!(paused.by.contains("failure policy"), "{paused:?}");
    assert!(
        paused.reason.contains("1 row from `0x") && paused.reason.contains("422"),
        "{paused:?}"
    );
    assert_eq!(document.in_flight.as_ref().unwrap().rows, 1, "narrowed to the row");
    sleep(600).await;
    // Survives a restart.
    let outcome = tick(&world.instance("b")).await.unwrap();
    assert!(matches!(outcome, TickOutcome::Paused { .. }), "{outcome:?}");
    assert_eq!(accepted_keys(&world, &[5]), [1, 2, 3, 4]);
    // Fixed and resumed.
    world.handler.judge_by(|_| Ok(()));
    let age = highwater_engine::document::DocumentAge {
        since_write: Duration::ZERO,
        grain: Duration::ZERO,
    };
    let resumed = world.document().await.resume(age);
    world.overwrite(&encode(&resumed)).await;
    drain(&world.instance("b"), 3).await;
    assert_eq!(
        accepted_keys(&world, &[]).split_off(accepted_keys(&world, &[]).len() - 4),
        [5, 6, 7, 8]
    );
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
}

#[tokio::test(start_paused = true)]
async fn stop_without_halving_pauses_after_the_attempts() {
    let world = world(policy(OnFailure::Stop, false), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(8);
    fail_on(&world, &[5], failed);
    for attempts in 1..=3 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
        assert_eq!(world.is_paused().await, attempts == 3);
    }
    assert_eq!(calls_made(&world).len(), 3);
}

/// An operator, as of any process.
const ANN: Operator<'static> = Operator { by: "ann@host", reason: "fixed" };

#[tokio::test(start_paused = true)]
async fn a_failing_row_is_parked_although_an_operator_resumes_in_between() {
    let world = world(policy(OnFailure::Park, true), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(1);
    fail_on(&world, &[1], failed);
    tick(&poller).await.unwrap_err();
    for id in 2..=8 {
        world.source.put(id, "good");
    }
    for attempts in 2..=3 {
        let resumed = admin(&world.instance("cli")).resume(ANN).await.unwrap();
        assert!(matches!(resumed, ResumeOutcome::BackoffEnded { .. }), "{resumed:?}");
        let in_flight = world.in_flight().await.unwrap();
        assert_eq!((in_flight.attempt, in_flight.next_attempt_at), (attempts - 1, None));
        let outcome = tick(&poller).await;
        assert_eq!(outcome.is_ok(), attempts == 3, "{attempts}: {outcome:?}");
    }
    assert_eq!(world.quarantined().await, [1]);
    assert_eq!(accepted_keys(&world, &[1]), [2, 3, 4, 5, 6, 7, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_attempts_paused_counts_them_from_zero_once_resumed() {
    let world = world(policy(OnFailure::Stop, false), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(1);
    world.handler.judge_by(|_| Err(failed()));
    for round in 0..2 {
        for attempts in 1..=3 {
            sleep(600).await;
            tick(&poller).await.unwrap_err();
            assert_eq!(world.is_paused().await, attempts == 3, "{round} {attempts}");
        }
        admin(&world.instance("cli")).resume(ANN).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn rows_that_fail_for_too_long_count_as_exhausted() {
    let record_age_max = Some(Duration::from_secs(3600));
    let policy =
        FailurePolicy { record_age_max, attempts_max: 1_000, ..policy(OnFailure::Stop, false) };
    let world = world(policy, 8);
    let poller = world.started_poller("a").await;
    world.source.fill(8);
    world.handler.judge_by(|_| Err(failed()));
    for _ in 0..6 {
        tick(&poller).await.unwrap_err();
        assert!(!world.is_paused().await);
        sleep(600).await;
    }
    tick(&poller).await.unwrap_err();
    assert!(world.is_paused().await);
}

#[tokio::test(start_paused = true)]
async fn retry_with_halving_delivers_the_rows_before_the_bad_row_and_waits_there() {
    let world = world(policy(OnFailure::Retry, true), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(16);
    fail_on(&world, &[6], rejected);
    for _ in 0..10 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    assert_eq!(accepted_keys(&world, &[6]), [1, 2, 3, 4, 5]);
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    let calls = calls_made(&world);
    assert_eq!(calls[calls.len() - 1], [6], "later ticks try the row alone");
}

#[tokio::test(start_paused = true)]
async fn a_row_named_by_the_handler_is_quarantined_without_halving() {
    let world = world(policy(OnFailure::Park, false), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(16);
    world.handler.judge_by(|ids| match ids.iter().position(|id| *id == 3) {
        Some(accepted) => Err(HandlerError::Partial { accepted, reason: "row 3".to_owned() }),
        None => Ok(()),
    });
    drain(&poller, 10).await;
    assert_eq!(world.quarantined().await, [3]);
    let mut all: Vec<i64> = calls_made(&world).concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, (1..=16).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn rows_accepted_before_a_named_row_are_never_quarantined() {
    let policy = FailurePolicy { attempts_max: 1, ..policy(OnFailure::Park, false) };
    let world = world(policy, 8);
    let poller = world.started_poller("a").await;
    world.source.fill(8);
    world.handler.then_fail(HandlerError::Partial { accepted: 4, reason: "row 5".to_owned() });
    tick(&poller).await.unwrap_err();
    assert_eq!(world.rows_committed_last().await, 4);
    drain(&poller, 3).await;
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    assert_eq!(calls_made(&world), [vec![1, 2, 3, 4, 5, 6, 7, 8], vec![5, 6, 7, 8]]);
}

#[tokio::test(start_paused = true)]
async fn a_row_whose_quarantine_write_fails_is_not_skipped() {
    let world = world(policy(OnFailure::Park, true), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(1);
    fail_on(&world, &[1], rejected);
    // Lease, announcement, entry.
    for _ in 0..2 {
        world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
    }
    world.store.break_next(Call::Store, Fault::Refused);
    let error = tick(&poller).await.unwrap_err();
    assert!(chain(&error).contains("could not be parked"), "{}", chain(&error));
    assert_eq!(world.in_flight().await.unwrap().attempt, 1);
    drain(&poller, 3).await;
    assert_eq!(world.quarantined().await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_row_quarantined_before_a_crash_is_one_entry() {
    let world = world(policy(OnFailure::Park, true), 8);
    let a = world.started_poller("a").await;
    world.source.fill(3);
    fail_on(&world, &[2], rejected);
    // Lease, commit of row 1, the announcement, the entry; the process is killed while it waits for the next write.
    for delay in [0, 0, 0, 0, 3600] {
        world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(delay)));
    }
    let killed = tokio::time::timeout(Duration::from_secs(5), tick(&a)).await;
    assert!(killed.is_err(), "{killed:?}");
    assert_eq!(world.in_flight().await.unwrap().rows, 2, "the row is not passed");
    assert_eq!(world.quarantined().await, [2]);
    sleep(60).await;
    drain(&world.instance("b"), 3).await;
    let alone = calls_made(&world).iter().filter(|ids| **ids == [2]).count();
    assert_eq!(alone, 1, "the other process finds the entry");
    let entries = world.quarantine().await;
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].0, entries[0].1.quarantined_by.as_str()), (2, "a"));
    let keys = world.memory.list().await.unwrap();
    let is_entry = |key: &&StateKey| matches!(key, StateKey::Quarantined { .. });
    assert_eq!(keys.iter().filter(is_entry).count(), 1, "{keys:?}");
    let document = world.document().await;
    assert_eq!((document.parked.keys, document.parked.quarantined), (1, 1), "counted once");
}

#[tokio::test(start_paused = true)]
async fn the_document_requires_builds_that_know_parked_keys_before_there_is_an_entry() {
    let world = world(policy(OnFailure::Park, true), 8);
    let a = world.started_poller("a").await;
    assert!(world.document().await.requires.is_empty());
    world.source.fill(3);
    fail_on(&world, &[2], rejected);
    // Lease, commit of row 1, the announcement; the process is killed while it writes the entry.
    for delay in [0, 0, 0, 3600] {
        world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(delay)));
    }
    killed_after(5, &a).await;
    let document = world.document().await;
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    assert_eq!((document.requires, document.parked.keys), (vec!["park".to_owned()], 1));
    // The row is accepted meanwhile, so no entry follows; the next one corrects the count.
    sleep(60).await;
    fail_on(&world, &[4], rejected);
    drain(&world.instance("b"), 3).await;
    world.source.fill(4);
    drain(&world.instance("b"), 3).await;
    assert_eq!(world.quarantined().await, [4]);
    assert_eq!(world.document().await.parked.keys, 1);
}

#[tokio::test(start_paused = true)]
async fn versions_of_a_row_that_are_quarantined_one_after_the_other_are_one_entry() {
    let world = world(policy(OnFailure::Park, true), 8);
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    fail_on(&world, &[2], rejected);
    drain(&poller, 3).await;
    let first = world.quarantine().await.remove(0).1;
    world.source.put(2, "still bad");
    drain(&poller, 3).await;
    let [(2, entry)] = &world.quarantine().await[..] else { panic!("one entry of row 2") };
    assert_eq!(entry.versions, 2);
    assert_eq!(entry.first_failed_at, first.first_failed_at);
    assert_ne!(entry.event_id, first.event_id, "the later version");
    assert!(entry.events[0].get().contains("still bad"), "{}", entry.events[0]);
}

/// Crashes the process that handles one of `deadly`: the call never returns, and its tick is dropped.
#[derive(Debug)]
struct Killing {
    inner: Arc<RecordingHandler>,
    deadly: &'static [i64],
    has_killed: Notify,
}

#[async_trait::async_trait]
impl Handler for Killing {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let id =
            |event: &ChangeEvent| event.cursor.key.get("id").and_then(serde_json::Value::as_i64);
        let kills = |id| self.deadly.contains(&id);
        let deadly = delivery.events.iter().filter_map(id).any(kills);
        self.inner.handle(delivery).await?;
        if deadly {
            self.has_killed.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// Runs one tick of a new process; `None` if it crashed.
async fn run_process(
    world: &World,
    owner_id: &str,
    deadly: &'static [i64],
) -> Option<Result<TickOutcome, TickError>> {
    let has_killed = Notify::new();
    let handler = Arc::new(Killing { inner: world.handler.clone(), deadly, has_killed });
    let poller = world.with_handler(handler.clone()).instance(owner_id);
    tokio::select! {
        biased;
        () = handler.has_killed.notified() => None,
        outcome = tick(&poller) => Some(outcome),
    }
}

/// Runs one process after another until nothing is left, and returns how many crashed.
async fn run_processes(world: &World, deadly: &'static [i64], processes_max: u32) -> u32 {
    let mut died = 0;
    for number in 0..processes_max {
        match run_process(world, &format!("process-{number}"), deadly).await {
            None => died += 1,
            Some(Ok(TickOutcome::Committed { more: false })) => return died,
            Some(_) => {}
        }
        // Longer than its lease lives, and than any backoff.
        sleep(600).await;
    }
    panic!("not drained after {processes_max} processes");
}

/// Keys of all delivered rows, once each, in key order.
fn all_delivered_keys(world: &World, but: &[i64]) -> Vec<i64> {
    let mut all = accepted_keys(world, but);
    all.sort_unstable();
    all.dedup();
    all
}

#[tokio::test(start_paused = true)]
async fn a_row_that_crashes_the_process_is_found_by_halving_and_quarantined_alone() {
    let retrying = ParkPolicy::default();
    let policy = FailurePolicy { park: retrying, ..policy(OnFailure::Park, true) };
    let world = world(policy, 16);
    world.started_poller("a").await;
    world.source.fill(16);
    let died = run_processes(&world, &[11], 20).await;
    assert!(died >= 2, "{died} processes crashed: the policy's limit");
    let (id, entry) = world.quarantine().await.remove(0);
    assert_eq!((id, entry.reason), (11, Reason::Crashes));
    assert_eq!(entry.state, EntryState::Quarantined, "no retry ends further processes");
    let alone = calls_made(&world).iter().filter(|ids| **ids == [11]).count();
    assert_eq!(alone, 1, "it was in flight alone before");
    let mut others = accepted_keys(&world, &[11]);
    others.dedup();
    assert_eq!(others, (1..=16).filter(|id| *id != 11).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_row_is_not_quarantined_for_crashes_with_another_row() {
    let policy = FailurePolicy { crashes_max: 1, ..policy(OnFailure::Park, true) };
    let world = world(policy, 1);
    world.started_poller("a").await;
    world.source.fill(2);
    let killed_in_the_call = async |poller: &Poller| {
        world.handler.then(std::future::pending());
        assert!(tokio::time::timeout(Duration::from_secs(5), tick(poller)).await.is_err());
    };
    killed_in_the_call(&world.instance("b")).await;
    // The row it crashed with moves on, so that the next one comes first.
    world.source.put(1, "again");
    sleep(60).await;
    let c = world.instance("c");
    killed_in_the_call(&c).await;
    assert_eq!(calls_made(&world), [[1], [2]]);
    // Its process survives, and continues under its own lease.
    drain(&c, 3).await;
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    assert_eq!(calls_made(&world)[2..], [[2], [1]]);
}

#[tokio::test(start_paused = true)]
async fn a_row_is_not_quarantined_for_a_crash_of_the_row_probed_after_it() {
    let policy =
        FailurePolicy { attempts_max: 1, crashes_max: 1, ..policy(OnFailure::Park, false) };
    let world = world(policy, 1);
    world.started_poller("a").await;
    world.source.fill(2);
    fail_on(&world, &[1], failed);
    assert!(run_process(&world, "b", &[2]).await.is_none(), "the probe has killed it");
    assert_eq!(calls_made(&world), [[1], [2]]);
    world.handler.judge_by(|_| Ok(()));
    sleep(600).await;
    drain(&world.instance("c"), 3).await;
    assert_eq!(world.quarantined().await, Vec::<i64>::new());
    assert_eq!(all_delivered_keys(&world, &[]), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_row_is_quarantined_even_if_a_process_crashed_while_the_row_after_it_was_probed() {
    let policy =
        FailurePolicy { attempts_max: 1, crashes_max: 3, ..policy(OnFailure::Park, false) };
    let world = world(policy, 1);
    world.started_poller("a").await;
    world.source.fill(2);
    fail_on(&world, &[1], failed);
    assert!(run_process(&world, "b", &[2]).await.is_none(), "the probe has killed it");
    sleep(600).await;
    drain(&world.instance("c"), 6).await;
    assert_eq!(world.quarantined().await, [1]);
    assert_eq!(all_delivered_keys(&world, &[1]), [2]);
    // Both rows were in flight when it crashed, so both are redelivered; then the first alone, as it had
    // failed alone.
    assert_eq!(calls_made(&world), [vec![1], vec![2], vec![1, 2], vec![1], vec![2], vec![1]]);
}

#[tokio::test(start_paused = true)]
async fn a_failing_row_is_distinguished_from_an_outage_even_if_a_later_row_crashes_processes() {
    let world = world(policy(OnFailure::Park, true), 16);
    world.started_poller("a").await;
    world.source.fill(16);
    fail_on(&world, &[3], failed);
    run_processes(&world, &[6], 60).await;
    let reasons = world.quarantine().await.into_iter().map(|(id, entry)| (id, entry.reason));
    assert_eq!(reasons.collect::<Vec<_>>(), [(3, Reason::Attempts), (6, Reason::Crashes)]);
    let others: Vec<i64> = (1..=16).filter(|id| ![3, 6].contains(id)).collect();
    assert_eq!(all_delivered_keys(&world, &[3, 6]), others);
}

/// A target that recognises batches by their ids.
#[derive(Debug)]
struct Recognising(Arc<RecordingHandler>);

#[async_trait::async_trait]
impl Handler for Recognising {
    fn recognises_batches(&self) -> bool {
        true
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        self.0.handle(delivery).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_its_target_recognises_is_retried_whole_until_its_attempts_are_exhausted() {
    let world = world(policy(OnFailure::Park, true), 100);
    drop(world.started_poller("z").await);
    let poller = world.with_handler(Arc::new(Recognising(world.handler.clone()))).instance("a");
    world.source.fill(4);
    fail_on(&world, &[3], failed);
    drain(&poller, 20).await;
    assert_eq!(calls_made(&world)[..3], [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]);
    let ids: Vec<_> = world.handler.received().into_iter().map(|call| call.batch_id).collect();
    assert!(ids[1] == ids[2] && ids[2] == ids[3], "{ids:?}");
    let quarantined: Vec<i64> = world.quarantine().await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(quarantined, [3]);
}
