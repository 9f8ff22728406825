//! Measures in virtual time what a parked key costs the other keys: nothing, except while its row is isolated or
//! retried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use highwater_engine::policy::{FailurePolicy, OnFailure, ParkPolicy};
use highwater_engine::quarantine::Entry;
use highwater_engine::testing::{World, limits, tick};
use tokio::time::{Instant, sleep, sleep_until};

/// A table that changes while one of its keys is refused.
#[derive(Clone, Copy)]
struct Load {
    keys: u64,
    rows_per_second: u64,
    /// How long the key is refused.
    seconds: u64,
}

/// A fiftieth of 10,000 keys and of 100 rows per second for an hour, so that a debug build takes seconds.
const AN_HOUR: Load = Load { keys: 200, rows_per_second: 2, seconds: 3_600 };
/// The real rates, for as long as a debug build takes seconds. The retries are denser than in the rest of an hour: eight of
/// the twelve in an hour are made within the first five minutes.
const FULL_RATE: Load = Load { keys: 10_000, rows_per_second: 100, seconds: 300 };
/// Seconds from one tick to the next.
const INTERVAL: u64 = 5;
/// How long the handler works on a row.
const WORK: Duration = Duration::from_millis(5);
/// The key that is refused in one of two runs.
const REFUSED: i64 = 7;
/// The warm-up row of [`World::started_poller`].
const FIRST: i64 = 0;

type Row = (i64, String);

/// Works on its rows one by one, and notes when it is done with each. Rejects calls with the refused key for an hour.
#[derive(Debug)]
struct Clocked {
    began_at: Instant,
    /// How long.
    refuses: Duration,
    done: Mutex<BTreeMap<Row, Vec<Duration>>>,
    /// When calls failed, and how many rows they had.
    failed: Mutex<Vec<(Duration, usize)>>,
}

impl Clocked {
    fn new(refuses: Duration) -> Self {
        let began_at = Instant::now();
        Self { began_at, refuses, done: Mutex::default(), failed: Mutex::default() }
    }

    fn done(&self) -> BTreeMap<Row, Vec<Duration>> {
        self.done.lock().unwrap().clone()
    }
}

#[async_trait]
impl Handler for Clocked {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let row_of = |json: &str| {
            let event: serde_json::Value = serde_json::from_str(json).unwrap();
            let row = &event["after"];
            (row["id"].as_i64().unwrap(), row["value"].as_str().unwrap().to_owned())
        };
        let rows: Vec<Row> = delivery.events.iter().map(|event| row_of(&event.json)).collect();
        let refused = self.began_at.elapsed() < self.refuses;
        if refused && rows.iter().any(|(id, _)| *id == REFUSED) {
            sleep(WORK).await;
            self.failed.lock().unwrap().push((self.began_at.elapsed(), rows.len()));
            return Err(HandlerError::Rejected("422".to_owned()));
        }
        for row in rows {
            sleep(WORK).await;
            self.done.lock().unwrap().entry(row).or_default().push(self.began_at.elapsed());
        }
        Ok(())
    }
}

/// Returns the keys that change in a second. Those of both runs are the same.
fn keys_of(load: Load, second: u64) -> impl Iterator<Item = i64> {
    (0..load.rows_per_second).map(move |row| {
        let number = (second * load.rows_per_second + row) * 7_919 % load.keys;
        i64::try_from(number + 1).unwrap()
    })
}

/// Runs ticks as long as the key may be refused, then until nothing is parked; returns the entry as it is in between.
async fn run(load: Load, refuses: bool) -> (Arc<Clocked>, Option<Entry>) {
    let refused_for = Duration::from_secs(load.seconds);
    let park = ParkPolicy::default();
    let policy = FailurePolicy { on_failure: OnFailure::Park, park, ..FailurePolicy::default() };
    let policy = FailurePolicy { bisect_on_error: true, ..policy };
    let mut limits = limits();
    limits.batch_rows_max = 100;
    let world = World::with(limits).with_policy(policy);
    let poller = world.started_poller("a").await;
    drop(poller);
    let handler = Arc::new(Clocked::new(if refuses { refused_for } else { Duration::ZERO }));
    let world = world.with_handler(handler.clone());
    let poller = world.instance("a");
    for second in 0..load.seconds {
        sleep_until(handler.began_at + Duration::from_secs(second)).await;
        for key in keys_of(load, second) {
            world.source.put(key, &format!("second {second}"));
        }
        if second % INTERVAL == 0 {
            tick(&poller).await.unwrap();
        }
    }
    sleep_until(handler.began_at + refused_for).await;
    let entry = world.quarantine().await.pop().map(|(_, entry)| entry);
    tick(&poller).await.unwrap();
    while !world.quarantined().await.is_empty() {
        sleep(Duration::from_secs(INTERVAL)).await;
        tick(&poller).await.unwrap();
    }
    assert_eq!(world.document().await.parked.keys, 0);
    (handler, entry)
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_refused_for_an_hour_delays_no_other_row_and_recovers_within_one_interval() {
    compare(AN_HOUR).await;
}

#[tokio::test(start_paused = true)]
async fn nor_does_it_at_a_hundred_rows_per_second() {
    compare(FULL_RATE).await;
}

/// Compares a run in which the key is refused with a healthy one.
async fn compare(load: Load) {
    let (healthy, none) = run(load, false).await;
    assert!(none.is_none());
    let (parked, entry) = run(load, true).await;
    let (healthy, delivered) = (healthy.done(), parked.done());

    // All rows of the other keys were accepted, once each.
    let of_others = |rows: &BTreeMap<Row, Vec<Duration>>| {
        let others = rows.iter().filter(|((id, _), _)| *id != REFUSED && *id != FIRST);
        others.map(|(row, at)| (row.clone(), at.clone())).collect::<BTreeMap<_, _>>()
    };
    let (expected, found) = (of_others(&healthy), of_others(&delivered));
    assert!(found.keys().eq(expected.keys()));
    assert!(found.values().all(|at| at.len() == 1), "no row is accepted twice");
    let rows = usize::try_from(load.rows_per_second * load.seconds).unwrap();
    assert!(found.len() > rows * 9 / 10, "{} of {rows}", found.len());

    // Calls that failed: those with several rows isolate the row, the others isolate or retry it.
    let failed = parked.failed.lock().unwrap().clone();
    let tick_of = |at: &Duration| at.as_secs() / INTERVAL;
    let isolating: BTreeSet<u64> =
        failed.iter().filter(|(_, rows)| *rows > 1).map(|(at, _)| tick_of(at)).collect();
    assert_eq!(isolating.len(), 1, "{failed:?}");
    let retrying: BTreeSet<u64> = failed.iter().map(|(at, _)| tick_of(at)).collect();
    let retrying: BTreeSet<u64> = retrying.difference(&isolating).copied().collect();
    assert!((5..=13).contains(&retrying.len()), "{retrying:?}");

    // No other row is later than in the healthy run, except in the tick that isolates the row, and by one call in the
    // ticks that retry it.
    let mut late = 0;
    for (row, at) in &found {
        let (at, in_healthy_run) = (at[0], expected[row][0]);
        if at <= in_healthy_run || isolating.contains(&tick_of(&at)) {
            continue;
        }
        late += 1;
        assert!(retrying.contains(&tick_of(&at)), "{row:?}: {at:?}, not {in_healthy_run:?}");
        assert!(at <= in_healthy_run + WORK, "{row:?}: {at:?}, not {in_healthy_run:?}");
    }
    let of_tick = usize::try_from(load.rows_per_second * INTERVAL).unwrap();
    assert!(late <= retrying.len() * of_tick, "{late} of {} rows were late", found.len());

    // The key is delivered within one retry interval after the target accepts again, in its last version.
    let of_key: Vec<_> = delivered.iter().filter(|((id, _), _)| *id == REFUSED).collect();
    let has_it = |second: &u64| keys_of(load, *second).any(|key| key == REFUSED);
    let last = (0..load.seconds).rev().find(has_it).unwrap();
    let versions = u64::try_from((0..load.seconds).filter(has_it).count()).unwrap();
    assert_eq!(of_key.len(), 1, "{of_key:?}");
    let ((_, value), at) = of_key[0];
    assert_eq!(*value, format!("second {last}"));
    let entry = entry.unwrap();
    // Several changes between two ticks are one version.
    assert!(entry.versions > versions * 8 / 10, "{} of {versions} waited", entry.versions);
    let last_failure = failed.last().unwrap().0;
    let (waited, interval) = (at[0], ParkPolicy::default().backoff.max);
    assert!(waited <= Duration::from_secs(load.seconds) + interval + Duration::from_secs(INTERVAL));
    let backoff = ParkPolicy::default().backoff;
    let doubled = backoff.first * 2_u32.pow(entry.retries);
    assert!(
        waited.saturating_sub(last_failure)
            <= doubled.min(backoff.max) + Duration::from_secs(INTERVAL + 1)
    );
}
