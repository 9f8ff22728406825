//! Batches that are too large for a target.

use highwater_engine::error::chain;
use highwater_engine::handler::HandlerError;
use highwater_engine::poller::{Limits, TickError, TickOutcome};
use highwater_engine::testing::{World, calls, limits, sleep, tick};

fn too_large() -> HandlerError {
    HandlerError::TooLarge("413".to_owned())
}

/// Makes each call with more than `rows_max` rows fail, for as many calls as `sizes` has entries.
fn script(world: &World, sizes: &[usize], rows_max: usize) {
    for rows in sizes {
        if *rows > rows_max {
            world.handler.then_fail(too_large());
        } else {
            world.handler.then(async { Ok(()) });
        }
    }
}

fn sizes(world: &World) -> Vec<usize> {
    world.handler.received().iter().map(|call| call.ids.len()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_is_halved_and_each_half_committed_in_order() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(10);
    script(&world, &[10, 5, 3, 2, 5], 3);
    // The second half of ten is too large again, so it is halved too.
    script(&world, &[3, 2], 3);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    let calls_made = world.handler.received().split_off(1);
    let ids: Vec<&[i64]> = calls_made.iter().map(|call| call.ids.as_slice()).collect();
    let expected: [&[i64]; 7] = [
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        &[1, 2, 3, 4, 5],
        &[1, 2, 3],
        &[4, 5],
        &[6, 7, 8, 9, 10],
        &[6, 7, 8],
        &[9, 10],
    ];
    assert_eq!(ids, expected);
    // Acquire, then one write for each of four commits: halving itself costs no write.
    assert_eq!(world.store.take_calls(), calls(0, 5, 0));
    let mut batch_ids: Vec<_> = calls_made.iter().map(|call| &call.batch_id).collect();
    batch_ids.sort();
    batch_ids.dedup();
    assert_eq!(batch_ids.len(), 7, "each half has its own id");
    assert!(world.in_flight().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn halves_of_the_same_rows_have_the_same_ids() {
    let world = World::new();
    let (a, b) = (world.started_poller("a").await, world.instance("b"));
    world.source.fill(4);
    script(&world, &[4, 2], 2);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&a).await.unwrap_err();
    sleep(2).await;
    script(&world, &[2], 2);
    tick(&b).await.unwrap();
    let received = world.handler.received();
    assert_eq!(sizes(&world), [1, 4, 2, 2, 2]);
    assert_eq!(received[3].batch_id, received[4].batch_id);
    assert_eq!(received[4].ids, [3, 4], "committed rows are not redelivered");
}

#[tokio::test(start_paused = true)]
async fn a_failed_half_is_retried_with_the_whole_in_flight_batch() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(4);
    script(&world, &[4], 2);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    assert_eq!(world.in_flight().await.unwrap().rows, 4);
    sleep(2).await;
    script(&world, &[4, 2, 2], 2);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(sizes(&world), [1, 4, 2, 4, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_single_row_that_is_too_large_is_rejected_and_blocks_the_rows_after_it() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    for _ in 0..3 {
        world.handler.then_fail(too_large());
    }
    let error = tick(&poller).await.unwrap_err();
    assert!(matches!(error, TickError::Handler(HandlerError::Rejected(_))), "{error:?}");
    assert_eq!(error.kind(), highwater_engine::error::ErrorKind::Data);
    assert!(chain(&error).contains("413; a single row exceeds"), "{}", chain(&error));
    assert_eq!(sizes(&world), [1, 3, 2, 1]);
    let document = world.document().await;
    assert_eq!(document.in_flight.unwrap().attempt, 1);
    assert_eq!(document.checkpoint.metadata.row_count, 1, "the checkpoint has not moved");
}

#[tokio::test(start_paused = true)]
async fn tick_limits_apply_to_halves_too() {
    let world = World::with(Limits { batches_max: Some(1), ..limits() });
    let poller = world.started_poller("a").await;
    world.source.fill(4);
    script(&world, &[4, 2], 2);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
    assert_eq!(sizes(&world), [1, 4, 2]);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.received()[3].ids, [3, 4]);
}
