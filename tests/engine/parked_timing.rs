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

/// A fiftieth of 10,000 keys and of 100 rows per second, so that a debug build takes seconds.
const KEYS: u64 = 200;
const ROWS_PER_SECOND: u64 = 2;
const HOUR: u64 = 3_600;
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
    refuses: bool,
    done: Mutex<BTreeMap<Row, Vec<Duration>>>,
    /// When calls failed, and how many rows they had.
    failed: Mutex<Vec<(Duration, usize)>>,
}

impl Clocked {
    fn new(refuses: bool) -> Self {
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
        let refused = self.refuses && self.began_at.elapsed() < Duration::from_secs(HOUR);
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
fn keys_of(second: u64) -> impl Iterator<Item = i64> {
    (0..ROWS_PER_SECOND).map(move |row| {
        let number = (second * ROWS_PER_SECOND + row) * 7_919 % KEYS;
        i64::try_from(number + 1).unwrap()
    })
}

/// Runs an hour of ticks, then until nothing is parked; returns the entry as it is after the hour.
async fn run(refuses: bool) -> (Arc<Clocked>, Option<Entry>) {
    let park = ParkPolicy::default();
    let policy = FailurePolicy { on_failure: OnFailure::Park, park, ..FailurePolicy::default() };
    let policy = FailurePolicy { bisect_on_error: true, ..policy };
    let mut limits = limits();
    limits.batch_rows_max = 100;
    let world = World::with(limits).with_policy(policy);
    let poller = world.started_poller("a").await;
    drop(poller);
    let handler = Arc::new(Clocked::new(refuses));
    let world = world.with_handler(handler.clone());
    let poller = world.instance("a");
    for second in 0..HOUR {
        sleep_until(handler.began_at + Duration::from_secs(second)).await;
        for key in keys_of(second) {
            world.source.put(key, &format!("second {second}"));
        }
        if second % INTERVAL == 0 {
            tick(&poller).await.unwrap();
        }
    }
    sleep_until(handler.began_at + Duration::from_secs(HOUR)).await;
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
    let (healthy, none) = run(false).await;
    assert!(none.is_none());
    let (parked, entry) = run(true).await;
    let (healthy, delivered) = (healthy.done(), parked.done());

    // All rows of the other keys were accepted, once each.
    let of_others = |rows: &BTreeMap<Row, Vec<Duration>>| {
        let others = rows.iter().filter(|((id, _), _)| *id != REFUSED && *id != FIRST);
        others.map(|(row, at)| (row.clone(), at.clone())).collect::<BTreeMap<_, _>>()
    };
    let (expected, found) = (of_others(&healthy), of_others(&delivered));
    assert!(found.keys().eq(expected.keys()));
    assert!(found.values().all(|at| at.len() == 1), "no row is accepted twice");
    assert!(found.len() > 7_000, "{}", found.len());

    // Calls that failed: those with several rows isolate the row, the others isolate or retry it.
    let failed = parked.failed.lock().unwrap().clone();
    let second = |at: &Duration| at.as_secs();
    let isolating: BTreeSet<u64> =
        failed.iter().filter(|(_, rows)| *rows > 1).map(|(at, _)| second(at)).collect();
    assert_eq!(isolating.len(), 1, "{failed:?}");
    let retrying: BTreeSet<u64> = failed.iter().map(|(at, _)| second(at)).collect();
    let retrying: BTreeSet<u64> = retrying.difference(&isolating).copied().collect();
    assert!((8..=13).contains(&retrying.len()), "{retrying:?}");

    // No other row is later than in the healthy run, except in the tick that isolates the row, and by one call in the
    // ticks that retry it.
    let mut late = 0;
    for (row, at) in &found {
        let (at, in_healthy_run) = (at[0], expected[row][0]);
        if at <= in_healthy_run || isolating.contains(&second(&at)) {
            continue;
        }
        late += 1;
        assert!(retrying.contains(&second(&at)), "{row:?}: {at:?}, not {in_healthy_run:?}");
        assert!(at <= in_healthy_run + WORK, "{row:?}: {at:?}, not {in_healthy_run:?}");
    }
    println!("{late} of {} rows were late, by one retry of 5 ms", found.len());
    assert!(late <= retrying.len() * 10, "{late}");

    // The key is delivered within one retry interval after the target accepts again, in its last version.
    let of_key: Vec<_> = delivered.iter().filter(|((id, _), _)| *id == REFUSED).collect();
    let last = (0..HOUR).rev().find(|second| keys_of(*second).any(|key| key == REFUSED)).unwrap();
    assert_eq!(of_key.len(), 1, "{of_key:?}");
    let ((_, value), at) = of_key[0];
    assert_eq!(*value, format!("second {last}"));
    let entry = entry.unwrap();
    assert!(entry.versions > 30, "later versions waited with it: {}", entry.versions);
    let last_failure = failed.last().unwrap().0;
    let (waited, interval) = (at[0], ParkPolicy::default().backoff.max);
    assert!(waited <= Duration::from_secs(HOUR) + interval + Duration::from_secs(INTERVAL));
    let backoff = ParkPolicy::default().backoff;
    let doubled = backoff.first * 2_u32.pow(entry.retries);
    assert!(
        waited.saturating_sub(last_failure)
            <= doubled.min(backoff.max) + Duration::from_secs(INTERVAL + 1)
    );
}
