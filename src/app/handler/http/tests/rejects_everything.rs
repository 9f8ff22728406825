//! A receiver that gives one reply to every request, called by real ticks.
//!
//! It must not empty a table into the quarantine, whatever its reply blames.

use highwater_engine::policy::{FailurePolicy, OnFailure, ParkPolicy};
use highwater_engine::store::{StateKey, StateStore as _};
use highwater_engine::testing::{World, limits, tick};

use super::*;
use crate::poller::{Limits, Poller, TickOutcome};

const ROWS: i64 = 60;
const BREAKER_ROWS: u32 = 10;

/// Returns a poller with [`ROWS`] rows for `url`, which retries without a delay.
fn world(url: &str, park: ParkPolicy) -> (World, Poller) {
    let pause = Duration::from_millis(1);
    let limits =
        Limits { batch_rows_max: 25, retry_delay_min: pause, retry_delay_max: pause, ..limits() };
    let policy = FailurePolicy {
        on_failure: OnFailure::Park,
        bisect_on_error: true,
        attempts_max: 3,
        breaker_rows: BREAKER_ROWS,
        park,
        ..FailurePolicy::default()
    };
    let world = World::with(limits).with_policy(policy).with_handler(Arc::new(handler(url, 1)));
    world.source.fill(ROWS);
    let poller = world.instance("a");
    (world, poller)
}

async fn quarantined(world: &World) -> usize {
    let keys = world.memory.list().await.unwrap();
    keys.iter().filter(|key| matches!(key, StateKey::Quarantined { .. })).count()
}

/// Ticks until `is_done`, with a moment for the backoff in between.
async fn tick_until(poller: &Poller, ticks_max: u32, is_done: impl Fn(&TickOutcome) -> bool) {
    for _ in 0..ticks_max {
        tokio::time::sleep(Duration::from_millis(2)).await;
        if tick(poller).await.is_ok_and(|outcome| is_done(&outcome)) {
            return;
        }
    }
}

/// Returns how many of [`ROWS`] rows a receiver puts into quarantine that answers everything with `refusal`, and
/// checks that every other row is delivered after it accepts rows again.
async fn quarantined_by(refusal: u16) -> usize {
    let (receiver, url) = Receiver::start(&[status(refusal)]).await;
    let (world, poller) = world(&url, ParkPolicy::NO_RETRIES);
    tick_until(&poller, 100, |_| false).await;
    let kept = quarantined(&world).await;
    let document = world.document().await;
    assert!(document.in_flight.is_some(), "{refusal}: the rest waits for the receiver");
    assert!(document.paused.is_none(), "{refusal}: the poller resumes by itself");

    let before = receiver.requests().len();
    *receiver.replies.lock().unwrap() = VecDeque::from([status(200)]);
    tick_until(&poller, 20, |outcome| *outcome == TickOutcome::Idle).await;
    assert_eq!(quarantined(&world).await, kept, "{refusal}: nothing more once rows are accepted");
    let delivered: usize = receiver.requests().split_off(before).iter().map(rows_of).sum();
    assert_eq!(delivered, usize::try_from(ROWS).unwrap() - kept, "{refusal}: every other row once");
    kept
}

/// Keys that are retried do not get more rows parked, and they recover once the receiver accepts rows.
#[tokio::test]
async fn a_receiver_that_rejects_everything_parks_no_more_rows_if_they_are_retried() {
    for (refusal, parked) in [(400, BREAKER_ROWS), (413, BREAKER_ROWS), (403, 0), (500, 0)] {
        let (receiver, url) = Receiver::start(&[status(refusal)]).await;
        let moment = Backoff { first: Duration::from_millis(1), max: Duration::from_millis(5) };
        let park = ParkPolicy { retries_max: 10_000, backoff: moment, ..ParkPolicy::default() };
        let (world, poller) = world(&url, park);
        tick_until(&poller, 100, |_| false).await;
        assert_eq!(quarantined(&world).await, usize::try_from(parked).unwrap(), "{refusal}");
        *receiver.replies.lock().unwrap() = VecDeque::from([status(200)]);
        for _ in 0..200 {
            tick_until(&poller, 1, |_| true).await;
            if quarantined(&world).await == 0
                && tick(&poller).await.is_ok_and(|it| it == TickOutcome::Idle)
            {
                break;
            }
        }
        assert_eq!(quarantined(&world).await, 0, "{refusal}");
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle, "{refusal}");
    }
}

fn rows_of((_, body): &(HeaderMap, Bytes)) -> usize {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    body["events"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_receiver_that_answers_400_or_422_to_everything_quarantines_no_more_than_the_breaker_allows()
 {
    for refusal in [400, 422] {
        assert_eq!(quarantined_by(refusal).await, usize::try_from(BREAKER_ROWS).unwrap());
    }
}

/// 413 also means that single rows are too large.
#[tokio::test]
async fn a_receiver_that_answers_413_to_everything_quarantines_no_more_than_the_breaker_allows() {
    assert_eq!(quarantined_by(413).await, usize::try_from(BREAKER_ROWS).unwrap());
}

/// These replies blame the address or the credentials, so no number of attempts quarantines a row.
#[tokio::test]
async fn a_receiver_that_answers_403_to_everything_quarantines_nothing() {
    for refusal in [401, 403, 404] {
        assert_eq!(quarantined_by(refusal).await, 0);
    }
}

/// A receiver that is down loses no row to the quarantine either.
#[tokio::test]
async fn a_receiver_that_answers_500_to_everything_quarantines_nothing() {
    for refusal in [500, 503] {
        assert_eq!(quarantined_by(refusal).await, 0);
    }
}
