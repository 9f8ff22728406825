//! The next batch is read while the handler runs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::cursor::SourceState;
use highwater_engine::document::{Paused, StateDocument, encode};
use highwater_engine::error::ErrorKind;
use highwater_engine::handler::HandlerError;
use highwater_engine::policy::{FailurePolicy, Flow, OnFailure};
use highwater_engine::poller::{Limits, Poller, StopSignal, TickOutcome};
use highwater_engine::source::{FetchError, FetchWindow, RetainedState, Rows, Source, SourceShape};
use highwater_engine::store::MemoryStore;
use highwater_engine::testing::{
    TableSource, World, admin, calls, limits, rewrite, sleep, tick, timed_tick,
};
use highwater_engine::tick::TickRequest;
use highwater_engine::value::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

const READ: Duration = Duration::from_secs(3);
const WORK: Duration = Duration::from_secs(5);

fn without(poller: Poller) -> Poller {
    poller.with_flow(Flow { prefetch: false, ..Flow::default() })
}

/// A source with one connection, like the SQL Server source: a read waits for the previous one.
#[derive(Debug)]
struct OneConnection {
    table: Arc<TableSource>,
    connection: Mutex<()>,
}

impl OneConnection {
    fn of(world: &World) -> Arc<Self> {
        Arc::new(Self { table: world.source.clone(), connection: Mutex::default() })
    }
}

/// A source whose rows have keys, except the first ten, that are so long that fewer rows fit than expected.
#[derive(Debug)]
struct LongKeys {
    table: Arc<TableSource>,
    shape: SourceShape,
}

impl LongKeys {
    fn of(world: &World) -> Arc<Self> {
        let table = world.source.clone();
        let key = vec!["id".to_owned(), "long".to_owned()];
        Arc::new(Self { shape: SourceShape { key, ..table.shape().clone() }, table })
    }
}

#[async_trait]
impl Source for LongKeys {
    fn shape(&self) -> &SourceShape {
        &self.shape
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let mut rows = self.table.fetch(window).await?;
        for row in &mut rows.rows {
            let is_long = matches!(row.key[0], Value::Int(id) if id > 10);
            row.key.push(Value::Text("x".repeat(if is_long { 400 } else { 1 })));
        }
        Ok(rows)
    }
}

/// A source whose read times out unless it is polled in time.
#[derive(Debug)]
struct Impatient(Arc<TableSource>);

#[async_trait]
impl Source for Impatient {
    fn shape(&self) -> &SourceShape {
        self.0.shape()
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let began_at = Instant::now();
        let rows = self.0.fetch(window).await?;
        if began_at.elapsed() > READ {
            return Err(FetchError::new(ErrorKind::Transient, "timed out"));
        }
        Ok(rows)
    }
}

/// A source that returns state to store with every other fetch, and records the state it gets back.
#[derive(Debug)]
struct Forgetful {
    table: Arc<TableSource>,
    returned_states: std::sync::Mutex<Vec<i64>>,
}

#[async_trait]
impl Source for Forgetful {
    fn shape(&self) -> &SourceShape {
        self.table.shape()
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let number = {
            let mut returned_states = self.returned_states.lock().unwrap();
            returned_states
                .push(window.state.get("fetch").and_then(serde_json::Value::as_i64).unwrap_or(-1));
            returned_states.len() - 1
        };
        let mut rows = self.table.fetch(window).await?;
        let state = SourceState::from_iter([("fetch".to_owned(), number.into())]);
        rows.remember = (number % 2 == 0).then_some(RetainedState { state, at_once: false });
        Ok(rows)
    }
}

#[async_trait]
impl Source for OneConnection {
    fn shape(&self) -> &SourceShape {
        self.table.shape()
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let _connection = self.connection.lock().await;
        self.table.fetch(window).await
    }
}

async fn pause(memory: &MemoryStore) {
    let paused = Paused {
        by: "operator".to_owned(),
        reason: "maintenance".to_owned(),
        at: time::OffsetDateTime::UNIX_EPOCH,
        extra: serde_json::Map::new(),
    };
    rewrite(memory, |document| document.with_pause(paused)).await;
}

async fn resume(world: &World) {
    let resumed = StateDocument { paused: None, ..world.document().await };
    world.overwrite(&encode(&resumed)).await;
}

/// A world with single-row batches, in which a row that fails once is quarantined if another is accepted.
fn quarantining_at_once() -> World {
    let policy =
        FailurePolicy { on_failure: OnFailure::Park, attempts_max: 1, ..FailurePolicy::default() };
    let limits = Limits { batch_rows_max: 1, ..limits() };
    World::with(limits).with_policy(policy)
}

#[tokio::test(start_paused = true)]
async fn the_next_batch_is_prefetched_without_an_extra_call() {
    for prefetch in [true, false] {
        let world = World::new();
        let poller = world.started_poller("a").await;
        let poller = if prefetch { poller } else { without(poller) };
        world.source.fill(30);
        world.source.delay(READ);
        for _ in 0..3 {
            world.handler.then_take(WORK);
        }
        let before = world.source.fetches();
        let (report, took) = timed_tick(&poller).await;
        assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
        assert_eq!((report.rows, report.batches), (30, 3));
        let reads = if prefetch { READ } else { 3 * READ };
        assert_eq!(took, reads + 3 * WORK, "{prefetch}");
        assert_eq!(world.source.fetches() - before, 3, "{prefetch}");
        assert_eq!(world.store.take_calls(), calls(0, 4, 0), "{prefetch}");
        assert_eq!(world.handler.ids().split_off(1), (1..=30).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_prefetch_is_retried_when_its_batch_is_due() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    world.source.fail_after(1, "connection reset");
    world.handler.then_take(WORK);
    let (report, _) = timed_tick(&poller).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(report.rows, 20);
    assert_eq!(world.store.take_calls(), calls(0, 3, 0), "the lease was not given up for it");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_prefetch_delays_no_heartbeat_and_no_final_commit() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    let (stop, source) = (StopSignal::new(), world.source.clone());
    let stopped = stop.clone();
    source.delay(Duration::ZERO);
    world.handler.then(async move {
        source.delay(Duration::from_secs(10_000));
        sleep(25).await;
        stopped.set();
        Ok(())
    });
    let began_at = Instant::now();
    let report = poller.tick(&TickRequest { stop, ..TickRequest::default() }).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(began_at.elapsed(), Duration::from_secs(25));
    // Acquire, heartbeats after 10 and 20 s, commit with release.
    assert_eq!(world.store.take_calls(), calls(0, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_prefetch_is_awaited_like_any_read() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    world.source.delay(WORK);
    world.handler.then_take(READ);
    let (report, took) = timed_tick(&poller).await;
    assert_eq!(report.rows, 20);
    assert_eq!(took, WORK + WORK, "the second read started with the handler");
}

#[tokio::test(start_paused = true)]
async fn the_prefetch_after_a_failed_batch_is_read_again() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    let source = world.source.clone();
    world.handler.then(async move {
        sleep(1).await;
        source.put(15, "changed");
        Err(HandlerError::Retryable("503".to_owned()))
    });
    tick(&poller).await.unwrap_err();
    sleep(2).await;
    world.handler.then_take(WORK);
    let before = world.source.fetches();
    tick(&poller).await.unwrap();
    let received = world.handler.received().split_off(1);
    let ids: Vec<Vec<i64>> = received.into_iter().map(|call| call.ids).collect();
    let first: Vec<i64> = (1..=10).collect();
    assert_eq!(ids, [first.clone(), first, vec![11, 12, 13, 14, 16, 17, 18, 19, 20, 15]]);
    assert_eq!(world.source.fetches() - before, 2);
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_failed_batch_keep_their_age_although_the_next_batch_was_prefetched() {
    let world = World::new();
    let started = world.started_poller("a").await;
    let one = world.with_limits(Limits { batches_max: Some(1), ..limits() }).instance("a");
    drop(started);
    sleep(1).await;
    world.source.fill(30);
    tick(&one).await.unwrap();
    sleep(600).await;
    world.handler.then(async {
        sleep(5).await;
        Err(HandlerError::Retryable("503".to_owned()))
    });
    let before = world.source.fetches();
    tick(&world.instance("b")).await.unwrap_err();
    assert_eq!(world.source.fetches() - before, 2, "the third batch was prefetched");
    sleep(60).await;
    world.handler.then(async { Err(HandlerError::Retryable("503".to_owned())) });
    tick(&world.instance("c")).await.unwrap_err();
    let observed = world.document().await.observed.unwrap();
    assert!(observed.lag.is_some_and(|lag| lag >= 660.0), "{observed:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_prefetched_while_previously_failed_rows_are_retried() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    sleep(2).await;
    let (source, before) = (world.source.clone(), world.source.fetches());
    world.handler.then(async move {
        sleep(1).await;
        assert_eq!(source.fetches(), before + 1, "the batch itself, and no other");
        Ok(())
    });
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids().len(), 1 + 10 + 20);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_prefetched_if_no_further_batch_may_start() {
    let short = Duration::from_secs(2);
    for limits in
        [Limits { batches_max: Some(1), ..limits() }, Limits { tick_time_max: short, ..limits() }]
    {
        let world = World::with(limits);
        let poller = world.started_poller("a").await;
        world.source.fill(20);
        world.source.delay(READ);
        world.handler.then_take(WORK);
        let before = world.source.fetches();
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
        assert_eq!(world.source.fetches() - before, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn rows_after_a_halved_batch_are_delivered_once_and_in_order() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    world.handler.then(async {
        sleep(1).await;
        Err(HandlerError::TooLarge("413".to_owned()))
    });
    for _ in 0..3 {
        world.handler.then_take(WORK);
    }
    tick(&poller).await.unwrap();
    let expected: Vec<i64> = (1..=10).chain(1..=20).collect();
    assert_eq!(world.handler.ids().split_off(1), expected);
}

#[tokio::test(start_paused = true)]
async fn rows_after_an_accepted_prefix_start_where_it_ends() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    world.handler.then(async {
        sleep(1).await;
        Err(HandlerError::Partial { accepted: 4, reason: "the fifth".to_owned() })
    });
    tick(&poller).await.unwrap_err();
    sleep(2).await;
    tick(&poller).await.unwrap();
    let expected: Vec<i64> = (1..=10).chain(5..=20).collect();
    assert_eq!(world.handler.ids().split_off(1), expected);
}

/// The probed row is read while the prefetch would have the connection.
#[tokio::test(start_paused = true)]
async fn a_row_that_needs_a_probe_does_not_wait_for_the_prefetch() {
    let world = quarantining_at_once();
    world.source.fill(4);
    let poller = world.instance_of("a", OneConnection::of(&world));
    let source = world.source.clone();
    world.handler.then(async move {
        source.delay(READ);
        sleep(1).await;
        Err(HandlerError::Retryable("503".to_owned()))
    });
    world.handler.then_take(WORK);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    let (report, took) = timed_tick(&poller).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids(), [1, 2, 1, 3, 4], "the probe, then the first again");
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_prefetched_batch_is_not_delivered_after_a_pause() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    let memory = world.memory.clone();
    world.handler.then(async move {
        sleep(1).await;
        pause(&memory).await;
        Ok(())
    });
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(world.handler.ids().len(), 1 + 10);
}

/// How long each commit takes where it is slow: longer than a read.
const COMMIT: Duration = Duration::from_secs(4);

#[tokio::test(start_paused = true)]
async fn the_batch_after_next_is_prefetched_during_the_commit() {
    for prefetch in [true, false] {
        let world = World::new();
        let poller = world.started_poller("a").await;
        let poller = if prefetch { poller } else { without(poller) };
        world.source.fill(40);
        world.source.delay(READ);
        world.store.slow_down(5, COMMIT);
        let before = world.source.fetches();
        let (report, took) = timed_tick(&poller).await;
        assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
        // Nothing is prefetched after the first batch before its handler, which finishes at once.
        let reads = if prefetch { 2 * READ } else { 4 * READ };
        assert_eq!(took, reads + 5 * COMMIT, "{prefetch}");
        assert_eq!(world.source.fetches() - before, 4, "{prefetch}");
        assert_eq!(world.handler.ids().split_off(1), (1..=40).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_prefetch_that_timed_out_while_unpolled_is_retried() {
    let world = World::new();
    world.source.fill(40);
    world.source.delay(READ);
    let poller = world.instance_of("a", Arc::new(Impatient(world.source.clone())));
    admin(&poller).init().await.unwrap();
    world.store.slow_down(5, COMMIT);
    let before = world.source.fetches();
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.source.fetches() - before, 4 + 2, "the third and the fourth again");
    assert_eq!(world.handler.ids(), (1..=40).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn time_in_which_a_prefetch_is_not_polled_does_not_count_as_its_duration() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(40);
    world.source.delay(READ);
    world.store.slow_down(5, 4 * READ);
    tick(&poller).await.unwrap();
    let document = world.document().await;
    // Durations are stored in buckets: they may be off by a factor of two.
    let longest = u128::from(document.timings["fetch"].percentile_ms(99).unwrap());
    assert!(longest <= 2 * READ.as_millis(), "{longest}: it was ready when polled");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_prefetched_beyond_the_last_allowed_batch() {
    for (limits, work, batches) in [
        (Limits { batches_max: Some(2), ..limits() }, Duration::ZERO, 2),
        // The third would start after the end of the tick time.
        (Limits { tick_time_max: 2 * WORK, ..limits() }, WORK, 2),
    ] {
        let world = World::with(limits);
        let poller = world.instance("a");
        world.source.fill(20);
        world.source.delay(READ);
        for _ in 0..batches {
            world.handler.then_take(work);
        }
        admin(&poller).init().await.unwrap();
        let before = world.source.fetches();
        let report = poller.tick(&TickRequest::default()).await;
        assert_eq!(report.batches, batches, "{limits:?}");
        assert_eq!(world.source.fetches() - before, batches, "{limits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rows_after_a_shorter_batch_are_delivered_once_and_in_order() {
    // If it is uncertain whether ten rows fit, the end of the batch is not guessed.
    for (bytes_max, guesses) in [(8_000, true), (5_000, false)] {
        let world = World::with(Limits { batch_bytes_max: bytes_max, ..limits() });
        world.source.fill(40);
        world.source.delay(READ);
        let poller = world.instance_of("a", LongKeys::of(&world));
        admin(&poller).init().await.unwrap();
        let before = world.source.fetches();
        let report = poller.tick(&TickRequest::default()).await;
        assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
        assert!(report.batches > 4, "of ten rows not all fit: {}", report.batches);
        let in_vain = world.source.fetches() - before - report.batches;
        assert_eq!(in_vain > 0, guesses, "{in_vain} of {}", report.batches);
        assert_eq!(world.handler.ids(), (1..=40).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_gets_the_source_state_of_all_reads_before_it() {
    for delay in [Duration::ZERO, READ] {
        let world = World::new();
        world.source.fill(50);
        world.source.delay(delay);
        let source = Arc::new(Forgetful {
            table: world.source.clone(),
            returned_states: std::sync::Mutex::default(),
        });
        let poller = world.instance_of("a", source.clone());
        admin(&poller).init().await.unwrap();
        source.returned_states.lock().unwrap().clear();
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
        assert_eq!(*source.returned_states.lock().unwrap(), [-1, 0, 0, 2, 2], "{delay:?}");
    }
}

/// The first batch of a tick is a different case: nothing has been prefetched after it.
#[tokio::test(start_paused = true)]
async fn a_rejected_batch_after_others_does_not_wait_for_a_requested_pause() {
    let world = quarantining_at_once();
    world.source.fill(5);
    world.source.delay(READ);
    let poller = world.instance_of("a", OneConnection::of(&world));
    world.handler.then_take(Duration::ZERO).then_take(Duration::ZERO);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    world.handler.then_take(Duration::ZERO);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    let (report, took) = timed_tick(&poller).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids(), [1, 2, 3, 4, 3, 5], "the probe, then the third again");
    assert!(took < Duration::from_secs(60), "{took:?}");
}

/// A prefetch is dropped at a pause, which the next commit finds.
#[tokio::test(start_paused = true)]
async fn the_rows_requested_during_a_pause_are_read_when_it_ends() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(40);
    world.handler.then_take(Duration::ZERO);
    let memory = world.memory.clone();
    world.handler.then(async move {
        pause(&memory).await;
        Ok(())
    });
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(world.handler.ids().len(), 1 + 20);
    resume(&world).await;
    sleep(300).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids().split_off(1), (1..=40).collect::<Vec<_>>());
}
