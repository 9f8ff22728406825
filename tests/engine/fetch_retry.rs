//! A read after finished work within a tick: the work is committed before anything waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::document::decode;
use highwater_engine::error::ErrorKind;
use highwater_engine::poller::{Limits, TickError, TickOutcome};
use highwater_engine::source::{FetchError, FetchWindow, Rows, Source, SourceShape};
use highwater_engine::store::{MemoryStore, StateKey, StateStore};
use highwater_engine::testing::{TableSource, World, limits};
use highwater_engine::tick::TickRequest;

/// How long the source waits before it retries.
const PAUSE: Duration = Duration::from_secs(8);

/// Retries a failed fetch, as the SQL Server source does.
#[derive(Debug)]
struct Retrying {
    table: Arc<TableSource>,
    memory: Arc<MemoryStore>,
    /// The number of committed rows each time it started to wait.
    committed_when_waiting: Mutex<Vec<u64>>,
}

impl Retrying {
    fn of(world: &World) -> Arc<Self> {
        let (table, memory) = (world.source.clone(), world.memory.clone());
        Arc::new(Self { table, memory, committed_when_waiting: Mutex::default() })
    }

    fn committed_when_waiting(&self) -> Vec<u64> {
        self.committed_when_waiting.lock().unwrap().clone()
    }
}

#[async_trait]
impl Source for Retrying {
    fn shape(&self) -> &SourceShape {
        self.table.shape()
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        for _ in 0..3 {
            let rows = self.table.fetch(window).await;
            if rows.is_ok() {
                return rows;
            }
            let key = StateKey::Document("p".to_owned());
            let stored = self.memory.load(&key).await.unwrap().stored.unwrap();
            let document = decode("p", &stored.bytes).unwrap();
            self.committed_when_waiting
                .lock()
                .unwrap()
                .push(document.checkpoint.metadata.row_count);
            tokio::time::sleep(PAUSE).await;
        }
        self.table.fetch(window).await
    }

    async fn fetch_at_once(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        self.table.fetch(window).await
    }
}

fn failing_after_the_first_batch(world: &World, failures: usize) {
    let source = world.source.clone();
    world.handler.then(async move {
        (0..failures).for_each(|_| source.fail_next("connection reset"));
        Ok(())
    });
}

#[tokio::test(start_paused = true)]
async fn finished_work_is_committed_before_waiting_for_a_read() {
    let world = World::new();
    world.source.fill(20);
    let source = Retrying::of(&world);
    let poller = world.instance_of("a", source.clone());
    failing_after_the_first_batch(&world, 3);
    let report = poller.tick(&TickRequest::default()).await;
    let outcome = report.result.unwrap();
    assert_eq!(outcome, TickOutcome::Committed { more: false });
    assert_eq!(
        source.committed_when_waiting(),
        [10, 10],
        "the first batch stood before each pause"
    );
    assert_eq!((report.rows, report.batches), (20, 2));
    assert_eq!(world.handler.ids(), (1..=20).collect::<Vec<_>>());
    assert!(world.is_released().await);
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_source_fails_the_tick_within_its_limits() {
    let world = World::new();
    world.source.fill(20);
    let source = Retrying::of(&world);
    let poller = world.instance_of("a", source.clone());
    failing_after_the_first_batch(&world, 9);
    let report = poller.tick(&TickRequest::default()).await;
    assert!(matches!(report.result, Err(TickError::Fetch(_))), "{report:?}");
    assert_eq!((report.rows, source.committed_when_waiting()), (10, vec![10, 10, 10]));

    // The tick has exactly as many batches as its limit.
    let world = World::with(Limits { batches_max: Some(2), ..limits() });
    world.source.fill(40);
    let poller = world.instance_of("a", Retrying::of(&world));
    failing_after_the_first_batch(&world, 1);
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(report.batches, 2);
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_not_retried() {
    let world = World::new();
    world.source.fill(20);
    let source = world.source.clone();
    world.handler.then(async move {
        source.fail_with(FetchError::new(ErrorKind::Configuration, "no right to read"));
        Ok(())
    });
    let report = world.instance("a").tick(&TickRequest::default()).await;
    assert!(matches!(report.result, Err(TickError::Fetch(_))));
    // The first batch is read again once its document is started.
    assert_eq!((report.rows, world.source.fetches()), (10, 3));
}
