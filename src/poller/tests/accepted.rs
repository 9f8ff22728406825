//! Handlers that say while they run what they have accepted for good.

use std::sync::Mutex;

use super::*;
use crate::cursor::SourceState;
use crate::source::Remember;

/// Takes four seconds for each row, says that it is accepted, and fails after so many where told.
#[derive(Debug, Default)]
pub(super) struct Steady {
    fails_after: Mutex<Option<usize>>,
    received: Mutex<Vec<Vec<i64>>>,
}

#[async_trait::async_trait]
impl Handler for Steady {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let id = |cursor: &Cursor| cursor.key.get("id").and_then(serde_json::Value::as_i64);
        let ids = delivery.events.iter().filter_map(|event| id(&event.cursor)).collect();
        self.received.lock().unwrap().push(ids);
        let fails_after = self.fails_after.lock().unwrap().take();
        for number in 0..delivery.events.len() {
            if fails_after == Some(number) {
                return Err(HandlerError::Retryable("503".to_owned()));
            }
            sleep(4).await;
            delivery.progress.accept(number + 1);
        }
        Ok(())
    }
}

async fn steady() -> (World, Arc<Steady>, Poller) {
    let world = World::new();
    drop(world.seasoned("z").await);
    world.source.fill(10);
    let handler = Arc::new(Steady::default());
    let poller = accepting(&world, "a", &handler);
    (world, handler, poller)
}

pub(super) fn accepting(world: &World, owner_id: &str, handler: &Arc<Steady>) -> Poller {
    let mut poller = world.instance(owner_id);
    poller.handler = handler.clone();
    poller
}

fn received(handler: &Steady) -> Vec<Vec<i64>> {
    handler.received.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn what_is_accepted_rides_on_the_next_renewal_and_survives_a_crash() {
    let (world, handler, poller) = steady().await;
    let killed = tokio::time::timeout(Duration::from_secs(25), tick(&poller)).await;
    assert!(killed.is_err());
    // Renewals at 10 s and 20 s, with two and then five rows accepted.
    assert_eq!(world.store.take_calls(), calls(1, 3, 0), "none is added");
    let in_flight = world.document().await.in_flight.unwrap();
    assert_eq!(in_flight.rows, 5, "the rest is what a successor finds in flight");
    sleep(40).await;
    let b = accepting(&world, "b", &handler);
    assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(received(&handler), [(1..=10).collect::<Vec<_>>(), (6..=10).collect()]);
}

#[tokio::test(start_paused = true)]
async fn what_is_accepted_so_far_is_committed_without_what_the_source_wants_kept() {
    let (world, _, poller) = steady().await;
    let kept = SourceState::from_iter([("mark".to_owned(), "1".into())]);
    world.source.ask_to_remember(Some(Remember { state: kept.clone(), at_once: true }));
    let killed = tokio::time::timeout(Duration::from_secs(25), tick(&poller)).await;
    assert!(killed.is_err());
    assert_eq!(world.document().await.in_flight.unwrap().rows, 5);
    assert_eq!(world.document().await.source_state, SourceState::new());
    sleep(40).await;
    tick(&world.instance("b")).await.unwrap();
    assert_eq!(world.document().await.source_state, kept, "with the last row");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_accepted_bit_by_bit_is_one_batch_in_the_end() {
    let (world, handler, poller) = steady().await;
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!((report.rows, report.batches), (10, 1));
    let document = world.document().await;
    assert_eq!((document.in_flight, document.checkpoint.metadata.row_count), (None, 10));
    assert_eq!(received(&handler).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_accepted_before_a_failure_is_committed_with_it() {
    for accepted in [1, 3, 9] {
        let (world, handler, poller) = steady().await;
        *handler.fails_after.lock().unwrap() = Some(accepted);
        let report = poller.tick(&TickRequest::default()).await;
        assert!(matches!(report.result, Err(TickError::Handler(_))), "{accepted}");
        assert_eq!(report.rows, u64::try_from(accepted).unwrap());
        assert_eq!(world.document().await.in_flight.unwrap().attempt, 1, "of the rest");
        sleep(2).await;
        tick(&poller).await.unwrap();
        let rest: Vec<i64> = (1..=10).skip(accepted).collect();
        assert_eq!(received(&handler)[1], rest, "{accepted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_what_was_accepted_whose_answer_is_lost_costs_nothing() {
    for fault in [Fault::LostAnswer, Fault::LostRequest, Fault::Unreachable] {
        let (world, handler, poller) = steady().await;
        let (outcome, ()) = tokio::join!(tick(&poller), async {
            sleep(9).await;
            world.store.break_next(Call::Store, fault);
        });
        assert_eq!(outcome.unwrap(), TickOutcome::Committed { more: false }, "{fault:?}");
        assert_eq!(received(&handler).len(), 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_given_up_and_lands_late_does_not_cost_the_holder_its_batch() {
    let (world, handler, poller) = steady().await;
    let (outcome, ()) = tokio::join!(tick(&poller), async {
        sleep(29).await;
        // At 30 s, seven rows; the write lands at 44 s, and what became of it cannot be read before.
        world.store.break_next(Call::Store, Fault::Late(Duration::from_secs(14)));
        world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(21)));
    });
    assert_eq!(outcome.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(received(&handler).len(), 1);
    assert_eq!(world.document().await.checkpoint.metadata.row_count, 10);
}

#[tokio::test(start_paused = true)]
async fn rows_that_may_have_killed_a_process_are_not_accepted_in_part() {
    let (world, handler, mut poller) = steady().await;
    poller.policy.crashes_max = 0;
    let killed = tokio::time::timeout(Duration::from_secs(25), tick(&poller)).await;
    assert!(killed.is_err());
    assert_eq!(world.document().await.in_flight.unwrap().rows, 10);
    assert_eq!(received(&handler).len(), 1);
}
