//! The state that a source stores, and when it is written.

use std::time::Duration;

use highwater_engine::cursor::SourceState;
use highwater_engine::handler::HandlerError;
use highwater_engine::policy::{FailurePolicy, OnFailure};
use highwater_engine::poller::{Limits, Poller, TickOutcome};
use highwater_engine::source::RetainedState;
use highwater_engine::testing::{World, calls, limits, sleep, tick};

fn state(mark: &str) -> SourceState {
    SourceState::from_iter([("mark".to_owned(), mark.into())])
}

fn ask(world: &World, mark: &str, at_once: bool) {
    world.source.ask_to_remember(Some(RetainedState { state: state(mark), at_once }));
}

#[tokio::test(start_paused = true)]
async fn source_state_is_written_with_the_commit() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    ask(&world, "1", true);
    tick(&poller).await.unwrap();
    assert_eq!(world.store.take_calls(), calls(0, 2, 0));
    assert_eq!(world.source_state().await, state("1"));
}

#[tokio::test(start_paused = true)]
async fn source_state_is_written_with_the_last_row_of_its_fetch() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(4);
    ask(&world, "1", false);
    world.handler.then_fail(HandlerError::TooLarge("413".to_owned()));
    world.handler.then(async { Ok(()) });
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    let document = world.document().await;
    assert_eq!(document.checkpoint.metadata.row_count, 2, "the first half is committed");
    assert_eq!(document.source_state, SourceState::new());
    sleep(2).await;
    tick(&poller).await.unwrap();
    assert_eq!(world.source_state().await, state("1"));
}

#[tokio::test(start_paused = true)]
async fn a_truncated_batch_writes_no_source_state() {
    let world = World::with(Limits { batch_bytes_max: 300, batches_max: Some(1), ..limits() });
    let poller = world.instance("a");
    world.source.fill(2);
    ask(&world, "1", false);
    tick(&poller).await.unwrap();
    assert_eq!(world.source_state().await, SourceState::new());
    tick(&poller).await.unwrap();
    assert_eq!(world.source_state().await, state("1"));
}

#[tokio::test(start_paused = true)]
async fn source_state_is_kept_even_if_no_batch_is_fully_delivered() {
    let world = World::with(Limits { batch_bytes_max: 300, ..limits() });
    let poller = world.instance("a");
    world.source.fill(2);
    ask(&world, "1", false);
    world.source.anchor_positions(SourceState::from_iter([("table".to_owned(), 7.into())]));
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    let state = world.source_state().await;
    assert_eq!(serde_json::to_string(&state).unwrap(), r#"{"table":7}"#);
}

fn bisecting(on_failure: OnFailure) -> World {
    let policy = FailurePolicy { on_failure, bisect_on_error: true, ..FailurePolicy::default() };
    World::new().with_policy(policy)
}

fn refuse(world: &World, bad: i64) {
    let refused = || Err(HandlerError::Rejected("422".to_owned()));
    world.handler.judge_by(move |ids| if ids.contains(&bad) { refused() } else { Ok(()) });
}

#[tokio::test(start_paused = true)]
async fn rows_before_a_bad_one_are_committed_without_it() {
    let world = bisecting(OnFailure::Retry);
    let poller = world.started_poller("a").await;
    world.source.fill(8);
    ask(&world, "1", true);
    refuse(&world, 6);
    for _ in 0..3 {
        tick(&poller).await.unwrap_err();
        sleep(600).await;
    }
    let document = world.document().await;
    assert_eq!(document.checkpoint.cursor.unwrap().key["id"], 5);
    assert_eq!(document.source_state, SourceState::new());
    world.handler.judge_by(|_| Ok(()));
    tick(&poller).await.unwrap();
    assert_eq!(world.source_state().await, state("1"));
}

/// Ticks, and checks each written document: only the one with the last row has a mark.
async fn tick_watched(world: &World, poller: &Poller, last: i64) {
    // Slow enough to observe each write separately.
    world.store.slow_down(40, Duration::from_secs(1));
    let watch = async {
        loop {
            let document = world.document().await;
            let at = document.checkpoint.cursor.as_ref();
            let is_last = at.is_some_and(|at| at.key["id"] == last);
            assert!(is_last || document.source_state.is_empty(), "{:?}", document.checkpoint);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    tokio::select! {
        _ = tick(poller) => {}
        () = watch => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_committed_without_its_quarantined_row_unless_that_is_the_last() {
    for bad in 1..=8 {
        let world = bisecting(OnFailure::Park);
        let poller = world.started_poller("a").await;
        world.source.fill(8);
        ask(&world, "1", true);
        refuse(&world, bad);
        tick_watched(&world, &poller, 8).await;
        assert_eq!(world.source_state().await, state("1"), "row {bad}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_is_committed_without_the_rows_probed_after_it() {
    for bad in 1..=7 {
        let world = bisecting(OnFailure::Park);
        let poller = world.started_poller("a").await;
        world.source.fill(8);
        ask(&world, "1", true);
        let failed = || Err(HandlerError::Retryable("500".to_owned()));
        world.handler.judge_by(move |ids| if ids.contains(&bad) { failed() } else { Ok(()) });
        for _ in 0..20 {
            sleep(600).await;
            tick_watched(&world, &poller, 8).await;
        }
        let document = world.document().await;
        assert_eq!(document.checkpoint.cursor.unwrap().key["id"], 8, "row {bad} was quarantined");
        assert_eq!(document.source_state, state("1"), "row {bad}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bounded_reread_writes_no_source_state() {
    let world = World::with(Limits { batches_max: Some(1), ..limits() });
    let poller = world.started_poller("a").await;
    world.source.fill(4);
    ask(&world, "1", true);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    for id in 5..9 {
        world.source.put(id, "new");
    }
    sleep(2).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: true });
    let document = world.document().await;
    assert_eq!(document.checkpoint.cursor.unwrap().key["id"], 4, "no row after the range");
    assert_eq!(document.source_state, SourceState::new());
    tick(&poller).await.unwrap();
    assert_eq!(world.source_state().await, state("1"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_batch_writes_no_source_state() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(2);
    ask(&world, "1", true);
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&poller).await.unwrap_err();
    assert_eq!(world.source_state().await, SourceState::new());
}

#[tokio::test(start_paused = true)]
async fn an_idle_tick_writes_source_state_only_if_rows_depend_on_it() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    ask(&world, "1", false);
    tick(&poller).await.unwrap();
    assert_eq!(world.store.take_calls(), calls(0, 0, 0));
    // It is kept in memory, and the next write includes it.
    world.source.ask_to_remember(None);
    world.source.fill(1);
    tick(&poller).await.unwrap();
    assert_eq!(world.source_state().await, state("1"));
    world.store.take_calls();
    ask(&world, "2", true);
    tick(&poller).await.unwrap();
    assert_eq!(world.store.take_calls(), calls(0, 1, 0));
    assert_eq!(world.source_state().await, state("2"));
}

#[tokio::test(start_paused = true)]
async fn a_new_poller_gets_a_document_for_its_source_state() {
    let world = World::new();
    ask(&world, "1", true);
    tick(&world.instance("a")).await.unwrap();
    assert_eq!(world.source_state().await, state("1"));
    assert!(!world.is_marked().await);
    world.source.fill(1);
    tick(&world.instance("b")).await.unwrap();
    tick(&world.instance("c")).await.unwrap();
    assert!(world.is_marked().await, "the marker comes with the first lease");
}
