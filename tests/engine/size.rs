//! Batches shrink if the handler is slow or rows are large, and grow again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::handler::HandlerError;
use highwater_engine::policy::Flow;
use highwater_engine::poller::Limits;
use highwater_engine::source::{FetchError, FetchWindow, Rows, Source, SourceShape};
use highwater_engine::testing::{TableSource, World, limits, sleep, tick};

/// A source that records how many rows were requested.
#[derive(Debug)]
struct Asked {
    table: Arc<TableSource>,
    rows_max: std::sync::Mutex<Vec<usize>>,
}

impl Asked {
    fn of(world: &World) -> Arc<Self> {
        Arc::new(Self { table: world.source.clone(), rows_max: std::sync::Mutex::default() })
    }

    fn take(&self) -> Vec<usize> {
        std::mem::take(&mut *self.rows_max.lock().unwrap())
    }
}

#[async_trait]
impl Source for Asked {
    fn shape(&self) -> &SourceShape {
        self.table.shape()
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        self.rows_max.lock().unwrap().push(window.rows_max);
        self.table.fetch(window).await
    }
}

/// Rows are not prefetched, so that the size learned from one batch applies to the next.
fn flow(rows_min: usize) -> Flow {
    Flow { prefetch: false, batch_rows_min: rows_min, ..Flow::default() }
}

fn sizes(world: &World) -> Vec<usize> {
    world.handler.received().iter().map(|call| call.ids.len()).collect()
}

#[tokio::test(start_paused = true)]
async fn batches_shrink_for_a_slow_handler_and_grow_again() {
    let world = World::new();
    let poller = world.instance("a").with_flow(flow(2));
    world.source.fill(30);
    // A batch may use half of the tick's four minutes.
    world.handler.then_take(Duration::from_secs(200));
    tick(&poller).await.unwrap();
    assert_eq!(sizes(&world), [10, 6, 8, 6]);
    assert_eq!(world.handler.ids(), (1..=30).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_minimum_equal_to_the_maximum_disables_shrinking() {
    let world = World::new();
    let poller = world.instance("a").with_flow(flow(10));
    world.source.fill(30);
    world.handler.then_take(Duration::from_secs(200));
    tick(&poller).await.unwrap();
    assert_eq!(sizes(&world), [10, 10, 10]);
}

#[tokio::test(start_paused = true)]
async fn rows_that_would_not_fit_the_batch_are_not_read() {
    let world = World::with(Limits { batch_bytes_max: 600, ..limits() });
    let source = Asked::of(&world);
    let poller = world.instance_of("a", source.clone()).with_flow(flow(10));
    world.source.fill(10);
    tick(&poller).await.unwrap();
    assert_eq!(sizes(&world), [2, 2, 2, 2, 2]);
    // The first batch is read once more when the document has been created.
    assert_eq!(source.take(), [10, 10, 2, 2, 2, 2]);
    assert_eq!(world.handler.ids(), (1..=10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn failed_rows_are_reread_in_full_even_if_batches_have_shrunk() {
    let world = World::new();
    let source = Asked::of(&world);
    let poller = world.instance_of("a", source.clone()).with_flow(flow(1));
    world.source.fill(20);
    world.handler.then(async {
        sleep(200).await;
        Err(HandlerError::Retryable("504".to_owned()))
    });
    tick(&poller).await.unwrap_err();
    sleep(2).await;
    tick(&poller).await.unwrap();
    assert_eq!(sizes(&world)[..3], [10, 10, 8], "six, and a quarter more");
    assert_eq!(source.take()[..2], [10, 10]);
}
