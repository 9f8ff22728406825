//! Changes that a poller reports to its notifier: each once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::handler::HandlerError;
use highwater_engine::notification::{Change, ChangeEvent, Notifier};
use highwater_engine::policy::{FailurePolicy, OnFailure, ParkPolicy};
use highwater_engine::poller::{Limits, Operator, Poller, StopSignal, TickOutcome};
use highwater_engine::source::FetchError;
use highwater_engine::store::{StateKey, StateStore as _};
use highwater_engine::testing::{Call, Fault, World, admin, limits, sleep, tick};
use highwater_engine::tick::TickRequest;

const ANN: Operator<'_> = Operator { by: "ann@host", reason: "fixed" };

/// Records all changes, and how many ticks ended.
#[derive(Debug, Default)]
struct Recorded {
    changes: Mutex<Vec<Change>>,
    ticks: Mutex<u32>,
}

#[async_trait]
impl Notifier for Recorded {
    async fn tick_ended(&self, poller: &str, changes: &[Change]) {
        assert_eq!(poller, "p");
        *self.ticks.lock().unwrap() += 1;
        self.changes.lock().unwrap().extend(changes.iter().cloned());
    }
}

impl Recorded {
    /// Returns the changes since the last call: event, kind and count.
    fn take(&self) -> Vec<(ChangeEvent, Option<&'static str>, u64)> {
        let changes = std::mem::take(&mut *self.changes.lock().unwrap());
        changes.into_iter().map(|change| (change.event, change.kind, change.count)).collect()
    }
}

fn notified(poller: Poller) -> (Poller, Arc<Recorded>) {
    let recorded = Arc::new(Recorded::default());
    (poller.with_notifier(recorded.clone()), recorded)
}

fn world(on_failure: OnFailure) -> World {
    let policy = FailurePolicy {
        on_failure,
        bisect_on_error: true,
        attempts_max: 1,
        breaker_rows: 3,
        ..FailurePolicy::default()
    };
    World::with(Limits { status_interval: Duration::from_secs(300), ..limits() })
        .with_policy(policy)
}

#[tokio::test(start_paused = true)]
async fn quarantined_rows_and_an_open_breaker_are_reported_once() {
    let world = world(OnFailure::Park);
    let (poller, recorded) = notified(world.started_poller("a").await);
    world.source.fill(9);
    world.handler.judge_by(|_| Err(HandlerError::Rejected("422".to_owned())));
    for _ in 0..4 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    let changes = recorded.changes.lock().unwrap().clone();
    let row = changes.iter().find(|change| change.event == ChangeEvent::RowQuarantined).unwrap();
    assert!(row.reason.contains("422") && row.key_id.is_some(), "{row:?}");
    assert_eq!(
        recorded.take(),
        [(ChangeEvent::RowQuarantined, Some("refused"), 3), (ChangeEvent::BreakerOpened, None, 1)]
    );
    assert_eq!(*recorded.ticks.lock().unwrap(), 4, "also after ticks without a change");
    world.handler.judge_by(|_| Ok(()));
    sleep(600).await;
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(recorded.take(), [], "recovery needs no operator");
}

#[tokio::test(start_paused = true)]
async fn a_parked_key_is_reported_once_and_again_when_its_retries_end() {
    let world = world(OnFailure::Park);
    let park = ParkPolicy { retries_max: 2, ..ParkPolicy::default() };
    let world = world.with_policy(FailurePolicy { park, ..world.policy });
    let (poller, recorded) = notified(world.started_poller("a").await);
    world.source.fill(3);
    let rejected = || HandlerError::Rejected("422".to_owned());
    world.handler.judge_by(move |ids| if ids.contains(&2) { Err(rejected()) } else { Ok(()) });
    tick(&poller).await.unwrap();
    assert_eq!(recorded.take(), [(ChangeEvent::RowParked, Some("refused"), 1)]);
    // A later version waits with it.
    world.source.put(2, "later");
    tick(&poller).await.unwrap();
    sleep(60).await;
    tick(&poller).await.unwrap();
    assert_eq!(recorded.take(), [], "a retry that fails is not reported");
    sleep(600).await;
    tick(&poller).await.unwrap();
    assert_eq!(recorded.take(), [(ChangeEvent::RowQuarantined, Some("refused"), 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_a_rule_pauses_is_reported_once_by_the_tick_that_paused_it() {
    let gone: fn() -> HandlerError = || HandlerError::Gone("410".to_owned());
    let rejected: fn() -> HandlerError = || HandlerError::Rejected("422".to_owned());
    for (error, on_failure, kind) in
        [(gone, OnFailure::Retry, "target_gone"), (rejected, OnFailure::Stop, "on_failure_stop")]
    {
        let world = world(on_failure);
        let (poller, recorded) = notified(world.started_poller("a").await);
        let (other, of_other) = notified(world.instance("b"));
        world.source.fill(2);
        world.handler.judge_by(move |_| Err(error()));
        let expected = [(ChangeEvent::PollerStopped, Some(kind), 1)];
        for again in [false, true] {
            sleep(600).await;
            tick(&poller).await.unwrap_err();
            assert_eq!(recorded.take(), expected, "again: {again}");
            for process in [&poller, &other] {
                sleep(600).await;
                let outcome = tick(process).await.unwrap();
                assert!(matches!(outcome, TickOutcome::Paused { .. }), "{outcome:?}");
            }
            assert_eq!((recorded.take(), of_other.take()), (vec![], vec![]));
            admin(&poller).resume(ANN).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_whose_write_has_an_unknown_outcome_is_reported() {
    let world = world(OnFailure::Stop);
    let (poller, recorded) = notified(world.started_poller("a").await);
    world.source.fill(2);
    world.handler.judge_by(|_| Err(HandlerError::Rejected("422".to_owned())));
    // The first write is the lease's. The store is down after the second, until the tick gives up.
    world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
    world.store.break_next(Call::Store, Fault::LostAnswer);
    for _ in 0..1_000 {
        world.store.break_next(Call::Load, Fault::Unreachable);
    }
    tick(&poller).await.unwrap_err();
    world.store.clear_faults();
    assert!(world.is_paused().await);
    let expected = [(ChangeEvent::PollerStopped, Some("on_failure_stop"), 1)];
    assert_eq!(recorded.take(), expected);
    sleep(600).await;
    let outcome = tick(&poller).await.unwrap();
    assert!(matches!(outcome, TickOutcome::Paused { .. }), "{outcome:?}");
    assert_eq!(recorded.take(), []);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_was_not_written_is_not_reported() {
    let world = world(OnFailure::Stop);
    let (poller, recorded) = notified(world.started_poller("a").await);
    world.source.fill(2);
    world.handler.judge_by(|_| Err(HandlerError::Rejected("422".to_owned())));
    world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
    world.store.break_next(Call::Store, Fault::Refused);
    tick(&poller).await.unwrap_err();
    assert!(!world.is_paused().await);
    assert_eq!(recorded.take(), []);
}

#[tokio::test(start_paused = true)]
async fn a_pause_by_an_operator_is_not_reported() {
    let world = world(OnFailure::Park);
    let (poller, recorded) = notified(world.started_poller("a").await);
    world.pause_in_the_next_call();
    world.source.fill(2);
    for _ in 0..2 {
        tick(&poller).await.unwrap();
    }
    assert!(world.is_paused().await);
    assert_eq!(recorded.take(), []);
}

#[tokio::test(start_paused = true)]
async fn lost_rows_are_reported_once_by_all_processes_together() {
    let world = world(OnFailure::Park);
    let (poller, recorded) = notified(world.started_poller("a").await);
    world.source.put(1, "new");
    world.source.fail_with(FetchError::rows_lost("numbers were taken back"));
    let expected = [(ChangeEvent::PollerStopped, Some("position_lost"), 1)];
    for ticks in 0..3 {
        tick(&poller).await.unwrap_err();
        let found = recorded.take();
        assert_eq!(found, if ticks == 0 { expected.to_vec() } else { Vec::new() });
        let (other, of_other) = notified(world.instance("b"));
        tick(&other).await.unwrap_err();
        assert_eq!(of_other.take(), [], "another process");
        sleep(400).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_after_another_failure_is_reported_once_by_all_processes_together() {
    let world = world(OnFailure::Park);
    let (poller, recorded) = notified(world.started_poller("a").await);
    let (other, of_other) = notified(world.instance("b"));
    world.source.put(1, "new");
    // The document records the first failure; `STATUS_INTERVAL` has not passed when the kind changes.
    world.source.fail_next("connection refused");
    tick(&poller).await.unwrap_err();
    let change = || world.source.fail_with(FetchError::schema_changed("a column is new"));
    sleep(10).await;
    change();
    tick(&poller).await.unwrap_err();
    assert_eq!(recorded.take(), [(ChangeEvent::PollerStopped, Some("schema_changed"), 1)]);
    for _ in 0..3 {
        sleep(10).await;
        for process in [&poller, &other] {
            change();
            tick(process).await.unwrap_err();
        }
        assert_eq!((recorded.take(), of_other.take()), (vec![], vec![]));
    }
}

/// A notifier whose endpoint never answers.
#[derive(Debug)]
struct Hanging;

#[async_trait]
impl Notifier for Hanging {
    async fn tick_ended(&self, _: &str, _: &[Change]) {
        std::future::pending::<()>().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_abort_ends_the_wait_for_a_notification() {
    let world = world(OnFailure::Park);
    let poller = world.started_poller("a").await.with_notifier(Arc::new(Hanging));
    world.source.fill(1);
    let stop = StopSignal::new();
    let request = TickRequest { stop: stop.clone(), ..TickRequest::default() };
    let abort = async {
        sleep(3).await;
        stop.abort();
    };
    let ended = async { tokio::join!(poller.tick(&request), abort).0 };
    let report = tokio::time::timeout(Duration::from_secs(4), ended).await.unwrap();
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
}

#[tokio::test(start_paused = true)]
async fn a_vanished_state_document_is_reported_once() {
    let world = world(OnFailure::Park);
    world.started_poller("a").await;
    let key = StateKey::Document("p".to_owned());
    let etag = world.stored(&key).await.unwrap().etag;
    world.memory.remove(&key, &etag).await.unwrap();
    let (poller, recorded) = notified(world.instance("b"));
    for _ in 0..3 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    assert_eq!(recorded.take(), [(ChangeEvent::PollerStopped, Some("state_vanished"), 1)]);
}

#[tokio::test(start_paused = true)]
async fn failures_that_ticks_retry_are_not_reported() {
    let world = world(OnFailure::Retry);
    let (poller, recorded) = notified(world.started_poller("a").await);
    world.source.fill(2);
    world.handler.judge_by(|_| Err(HandlerError::Misconfigured("403".to_owned())));
    for _ in 0..3 {
        sleep(600).await;
        tick(&poller).await.unwrap_err();
    }
    world.source.fail_after(0, "the database is down");
    sleep(600).await;
    tick(&poller).await.unwrap_err();
    assert_eq!(recorded.take(), []);
}
