//! A chain of handlers: which steps run again, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use highwater_engine::document::encode;
use highwater_engine::handler::chain::Chain;
use highwater_engine::handler::{Delivery, Handler, HandlerError, Step};
use highwater_engine::journal::{
    Entry, JournalMode, JournalStore, MemoryJournal, Verdict, fold, read_lines, verify,
};
use highwater_engine::policy::{FailurePolicy, OnFailure, ParkPolicy};
use highwater_engine::poller::{Poller, TickError, TickOutcome};
use highwater_engine::store::{StateKey, StateStore};
use highwater_engine::testing::{
    Call, Fault, Received, RecordingHandler, SteadyHandler, World, admin, calls, killed_after,
    sleep, tick,
};

const NAMES: [&str; 3] = ["first", "second", "third"];
/// Longer than any test lets a tick live.
const NEVER: Duration = Duration::from_secs(3600);

/// A world whose poller has a chain of three steps.
struct Chained {
    world: World,
    steps: [Arc<RecordingHandler>; 3],
}

impl Chained {
    fn new() -> Self {
        Self::of(World::new())
    }

    fn of(world: World) -> Self {
        Self { world, steps: [Arc::default(), Arc::default(), Arc::default()] }
    }

    fn instance(&self, owner_id: &str) -> Poller {
        self.instance_of(owner_id, &NAMES)
    }

    /// Returns a process whose chain has the named steps of `first`, `second` and `third`.
    fn instance_of(&self, owner_id: &str, names: &[&str]) -> Poller {
        let step = |name: &&str| {
            let index = NAMES.iter().position(|known| known == name).unwrap();
            Step { name: (*name).to_owned(), handler: self.steps[index].clone() }
        };
        let handler = Arc::new(Chain::new(names.iter().map(step).collect()));
        self.world.with_handler(handler).instance(owner_id)
    }

    /// Returns how often each step was called.
    fn calls(&self) -> [usize; 3] {
        self.steps.each_ref().map(|step| step.received().len())
    }

    /// Returns the keys of the rows of each call of a step.
    fn ids(&self, step: usize) -> Vec<Vec<i64>> {
        self.steps[step].received().into_iter().map(|call| call.ids).collect()
    }

    /// Creates document and marker, so that a tick makes no extra writes.
    async fn begin(&self) -> Poller {
        let poller = self.instance("z");
        self.world.source.put(0, "first");
        tick(&poller).await.unwrap();
        self.world.store.take_calls();
        poller
    }

    /// Lets this many writes through, and breaks the next.
    fn break_write(&self, writes: usize, fault: Fault) {
        for _ in 0..writes {
            self.world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
        }
        self.world.store.break_next(Call::Store, fault);
    }

    async fn steps_kept(&self) -> Vec<String> {
        let in_flight = self.world.in_flight().await;
        in_flight.into_iter().flat_map(|batch| batch.steps).map(|kept| kept.step).collect()
    }
}

fn failed() -> HandlerError {
    HandlerError::Retryable("503".to_owned())
}

/// Where a process crashes. Write 0 is the acquisition; steps and their results are counted from 0.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// The step has had its effect, and has not returned.
    InStep(usize),
    /// The step has returned, and its result has not been written; for the last step that is the commit.
    BeforeWrite(usize),
    /// Its result has been written, and the response is lost.
    AfterWrite(usize),
}

/// Crash points; calls of the steps until then; calls by the process that takes over the batch.
const DEATHS: [(Death, [usize; 3], [usize; 3]); 10] = [
    (Death::AfterWrite(0), [0, 0, 0], [1, 1, 1]),
    (Death::InStep(0), [1, 0, 0], [1, 1, 1]),
    (Death::BeforeWrite(1), [1, 0, 0], [1, 1, 1]),
    (Death::AfterWrite(1), [1, 0, 0], [0, 1, 1]),
    (Death::InStep(1), [1, 1, 0], [0, 1, 1]),
    (Death::BeforeWrite(2), [1, 1, 0], [0, 1, 1]),
    (Death::AfterWrite(2), [1, 1, 0], [0, 0, 1]),
    (Death::InStep(2), [1, 1, 1], [0, 0, 1]),
    (Death::BeforeWrite(3), [1, 1, 1], [0, 0, 1]),
    (Death::AfterWrite(3), [1, 1, 1], [0, 0, 0]),
];

impl Death {
    fn prepare(self, chain: &Chained) {
        match self {
            Self::InStep(step) => {
                chain.steps[step].then_take(NEVER);
            }
            Self::BeforeWrite(writes) => chain.break_write(writes, Fault::Slow(NEVER)),
            Self::AfterWrite(writes) => {
                chain.break_write(writes, Fault::LostAnswer);
                // A first lease is followed by a read of the marker.
                if writes > 0 {
                    chain.world.store.break_next(Call::Load, Fault::Slow(Duration::ZERO));
                }
                chain.world.store.break_next(Call::Load, Fault::Slow(NEVER));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_the_chain_continues_at_the_first_step_without_a_result() {
    for (death, before, after) in DEATHS {
        for heir in ["a", "b"] {
            let chain = Chained::new();
            let started_poller = chain.begin().await;
            drop(started_poller);
            let a = chain.instance("a");
            // Read before, so that the tick's own reads are those after a lost response.
            assert_eq!(tick(&a).await.unwrap(), TickOutcome::Idle);
            chain.world.source.fill(3);
            death.prepare(&chain);
            let killed = tokio::time::timeout(Duration::from_secs(5), tick(&a)).await;
            assert!(killed.is_err(), "{death:?}");
            let so_far = chain.calls().map(|calls| calls - 1);
            assert_eq!(so_far, before, "{death:?}");
            sleep(40).await;
            let b = chain.instance("b");
            let end = tick(if heir == "a" { &a } else { &b }).await.unwrap();
            assert_eq!(end == TickOutcome::Idle, after == [0, 0, 0], "{death:?} {heir}: {end:?}");
            let calls: Vec<usize> =
                chain.calls().iter().zip(so_far).map(|(all, n)| all - 1 - n).collect();
            assert_eq!(calls, after, "{death:?} {heir}");
            for step in 0..3 {
                let calls = chain.steps[step].received().split_off(1);
                assert!(calls.iter().all(|call| call.ids == [1, 2, 3]), "{death:?} {heir}");
                let same = |call: &&Received| {
                    call.batch_id == calls[0].batch_id && call.started_at == calls[0].started_at
                };
                assert_eq!(calls.iter().filter(same).count(), calls.len(), "{death:?} {heir}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn storage_calls_of_a_chain_add_one_write_per_step_except_the_last() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    for (rows, batches) in [(3, 1), (25, 3)] {
        chain.world.source.fill(rows);
        tick(&poller).await.unwrap();
        let writes = batches + 1 + batches * (3 - 1);
        assert_eq!(chain.world.store.take_calls(), calls(0, writes, 0), "{rows}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_is_called_only_after_the_one_before_it_and_its_record() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    chain.world.source.fill(1);
    // The outcome of the write is unknown, and the document cannot be read either.
    chain.break_write(1, Fault::LostRequest);
    for _ in 0..100 {
        chain.world.store.break_next(Call::Load, Fault::Unreachable);
    }
    let error = tick(&poller).await.unwrap_err();
    assert!(matches!(error, TickError::LeaseLost(_)), "{error:?}");
    assert_eq!(chain.calls(), [2, 1, 1]);
    assert_eq!(chain.steps_kept().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_step_that_lost_its_lease_is_not_followed_by_another() {
    let chain = Chained::new();
    chain.begin().await;
    let (a, b) = (chain.instance("a"), chain.instance("b"));
    chain.world.source.fill(1);
    chain.steps[0].then_take(Duration::from_secs(2));
    let (lost, ()) = tokio::join!(tick(&a), async {
        sleep(1).await;
        let broken = chain.world.document().await.break_lease().unwrap();
        chain.world.overwrite(&encode(&broken)).await;
        assert_eq!(tick(&b).await.unwrap(), TickOutcome::Committed { more: false });
    });
    assert!(matches!(lost, Err(TickError::LeaseLost(_))), "{lost:?}");
    assert_eq!(chain.calls(), [3, 2, 2], "the stale owner called the first step only");
}

#[tokio::test(start_paused = true)]
async fn a_failed_step_is_retried_without_the_steps_before_it() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    chain.world.source.fill(3);
    chain.steps[1].then_fail(failed()).then_fail(failed());
    for attempt in 1..=2 {
        tick(&poller).await.unwrap_err();
        let in_flight = chain.world.in_flight().await.unwrap();
        assert_eq!(in_flight.last_error.as_deref(), Some("step `second`: 503"));
        assert_eq!(in_flight.failed_step.as_deref(), Some("second"));
        assert_eq!((in_flight.attempt, in_flight.steps.len()), (attempt, 1));
        sleep(10).await;
    }
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(chain.calls(), [2, 4, 2]);
    let calls = chain.steps[1].received().split_off(1);
    assert!(calls.iter().all(|call| call.started_at == calls[0].started_at));
    assert!(chain.world.in_flight().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_failed_step_does_not_depend_on_what_the_target_says() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    chain.world.source.fill(1);
    chain.steps[0].then_fail(HandlerError::Retryable("step `second`: says the first".to_owned()));
    tick(&poller).await.unwrap_err();
    assert_eq!(chain.world.in_flight().await.unwrap().failed_step.as_deref(), Some("first"));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_hit_the_deadline_runs_first_in_the_next_tick() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    chain.world.source.fill(4);
    chain.steps[0].then_take(Duration::from_secs(200));
    for seconds in [200, 3600, 200] {
        chain.steps[1].then_take(Duration::from_secs(seconds));
    }
    for rows in [4, 2] {
        assert!(matches!(tick(&poller).await, Err(TickError::OutOfTime)));
        assert_eq!(chain.world.in_flight().await.unwrap().rows, rows);
        sleep(10).await;
    }
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(chain.ids(0)[1..], [vec![1, 2, 3, 4], vec![1, 2], vec![3, 4]]);
    assert_eq!(chain.ids(1)[1..3], [vec![1, 2, 3, 4], vec![1, 2, 3, 4]], "not halved at first");
    assert_eq!(chain.ids(2)[1..], [vec![1, 2], vec![3, 4]]);
}

#[tokio::test(start_paused = true)]
async fn rows_that_changed_meanwhile_start_over_at_the_first_step() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    chain.world.source.fill(3);
    chain.steps[1].then_fail(failed());
    tick(&poller).await.unwrap_err();
    chain.world.source.put(3, "changed");
    sleep(10).await;
    tick(&poller).await.unwrap();
    assert_eq!(chain.ids(0)[1..], [vec![1, 2, 3], vec![1, 2], vec![3]]);
    assert_eq!(chain.ids(2)[1..], [vec![1, 2], vec![3]]);
    let calls = chain.steps[0].received();
    assert!(calls[1].started_at < calls[2].started_at, "other bytes, another beginning");
}

#[tokio::test(start_paused = true)]
async fn step_results_apply_to_their_own_batch_only() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    chain.world.source.fill(20);
    chain.steps[1].then(async { Ok(()) }).then_fail(failed());
    tick(&poller).await.unwrap_err();
    assert_eq!(chain.calls(), [3, 3, 2]);
    assert_eq!(chain.steps_kept().await, ["first"]);
    sleep(10).await;
    tick(&poller).await.unwrap();
    assert_eq!(chain.calls(), [3, 4, 3]);
}

#[tokio::test(start_paused = true)]
async fn steps_have_ids_of_their_own_and_one_start_time() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    sleep(60).await;
    chain.world.source.fill(1);
    tick(&poller).await.unwrap();
    let calls: Vec<_> = chain.steps.iter().map(|step| step.received().remove(1)).collect();
    for (call, name) in calls.iter().zip(NAMES) {
        assert_eq!(call.step.as_deref(), Some(name));
        assert_eq!(call.started_at, calls[0].started_at);
    }
    let whole = chain.world.document().await.checkpoint.last_successful_batch_id.unwrap();
    let ids: Vec<_> = calls.into_iter().map(|call| call.batch_id).collect();
    assert_eq!(ids, NAMES.map(|name| whole.of_step(name)));
}

#[tokio::test(start_paused = true)]
async fn rows_that_one_step_partly_accepted_reach_all_steps_first() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    chain.world.source.fill(5);
    chain.steps[1].judge_by(|ids| match ids.iter().position(|id| *id == 4) {
        Some(accepted) => Err(HandlerError::Partial { accepted, reason: "no 4".to_owned() }),
        None => Ok(()),
    });
    tick(&poller).await.unwrap_err();
    assert_eq!(chain.ids(0)[1..], [vec![1, 2, 3, 4, 5], vec![1, 2, 3], vec![4, 5]]);
    assert_eq!(chain.ids(1)[1..], [vec![1, 2, 3, 4, 5], vec![1, 2, 3], vec![4, 5]]);
    assert_eq!(chain.ids(2)[1..], [vec![1, 2, 3]], "nothing that another step rejected");
    let document = chain.world.document().await;
    assert_eq!(document.checkpoint.metadata.row_count, 3);
    assert_eq!(document.in_flight.unwrap().last_error.as_deref(), Some("step `second`: no 4"));
}

#[tokio::test(start_paused = true)]
async fn rows_partly_accepted_by_the_last_step_are_committed() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    chain.world.source.fill(5);
    let reason = "no 3".to_owned();
    chain.steps[2].then_fail(HandlerError::Partial { accepted: 2, reason });
    tick(&poller).await.unwrap_err();
    assert_eq!(chain.world.rows_committed_last().await, 2);
    sleep(10).await;
    tick(&poller).await.unwrap();
    for step in 0..3 {
        assert_eq!(chain.ids(step)[1..], [vec![1, 2, 3, 4, 5], vec![3, 4, 5]], "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn progress_of_a_step_is_not_committed_before_the_chain_ends() {
    let chain = Chained::new();
    let steady = Arc::new(SteadyHandler::default());
    let steps = vec![
        Step { name: "first".to_owned(), handler: steady },
        Step { name: "third".to_owned(), handler: chain.steps[2].clone() },
    ];
    let poller = chain.world.with_handler(Arc::new(Chain::new(steps))).instance("a");
    chain.world.source.fill(10);
    let killed = tokio::time::timeout(Duration::from_secs(25), tick(&poller)).await;
    assert!(killed.is_err(), "it is renewed meanwhile, and accepts two rows");
    assert_eq!(chain.world.document().await.checkpoint.cursor, None);
}

/// Reports the first rows of its first call as accepted, and then fails.
#[derive(Debug)]
struct Reporting {
    accepts: usize,
    failed: AtomicBool,
    calls: Arc<RecordingHandler>,
}

#[async_trait::async_trait]
impl Handler for Reporting {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        self.calls.handle(delivery).await?;
        if self.failed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        delivery.progress.accept(self.accepts);
        Err(failed())
    }
}

/// Delivers four rows to a chain of which the steps with a number report accepted rows, and fail once.
async fn with_reporting_steps(accepts: [Option<usize>; 3]) -> Chained {
    let chain = Chained::new();
    let step = |index: usize| {
        let calls = chain.steps[index].clone();
        let handler: Arc<dyn Handler> = match accepts[index] {
            Some(accepts) => Arc::new(Reporting { accepts, failed: AtomicBool::default(), calls }),
            None => calls,
        };
        Step { name: NAMES[index].to_owned(), handler }
    };
    let handler = Arc::new(Chain::new((0..3).map(step).collect()));
    let poller = chain.world.with_handler(handler).instance("a");
    chain.world.source.fill(4);
    for _ in 0..4 {
        drop(tick(&poller).await);
        sleep(60).await;
    }
    assert_eq!(chain.world.in_flight().await, None);
    chain
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_after_it_accepted_some_rows_gets_the_whole_batch_again() {
    let chain = with_reporting_steps([None, Some(2), Some(2)]).await;
    assert_eq!(chain.calls(), [1, 2, 2]);
    for step in &chain.steps {
        let received = step.received();
        assert!(received.iter().all(|call| call.ids == [1, 2, 3, 4]), "{received:?}");
        assert!(received.iter().all(|call| call.batch_id == received[0].batch_id), "{received:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_after_it_accepted_all_rows_is_done() {
    let chain = with_reporting_steps([Some(4), Some(4), Some(4)]).await;
    assert_eq!(chain.calls(), [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_accepts_all_rows_and_then_runs_out_of_time_is_not_called_again() {
    let mut world = World::new();
    world.limits.handler_stop_after = Duration::from_secs(45);
    let chain = Chained::of(world);
    let steady = Arc::new(SteadyHandler::default());
    let steps = vec![
        Step { name: "first".to_owned(), handler: steady.clone() },
        Step { name: "third".to_owned(), handler: chain.steps[2].clone() },
    ];
    let poller = chain.world.with_handler(Arc::new(Chain::new(steps))).instance("a");
    chain.world.source.fill(10);
    steady.hang_at_the_end();
    assert!(matches!(tick(&poller).await, Err(TickError::OutOfTime)));
    assert_eq!(chain.calls(), [0; 3], "no time is left for the next step");
    sleep(60).await;
    tick(&poller).await.unwrap();
    assert_eq!((steady.received().len(), chain.calls()), (1, [0, 0, 1]));
}

#[tokio::test(start_paused = true)]
async fn the_halves_of_a_batch_have_separate_step_results() {
    let chain = Chained::new();
    let poller = chain.begin().await;
    chain.world.source.fill(4);
    chain.steps[1].judge_by(|ids| match ids.len() {
        ..=2 => Ok(()),
        _ => Err(HandlerError::TooLarge("413".to_owned())),
    });
    chain.steps[2].then_fail(failed());
    tick(&poller).await.unwrap_err();
    assert_eq!(chain.ids(0)[1..], [vec![1, 2, 3, 4], vec![1, 2]], "once in full, and once in part");
    assert_eq!(chain.steps_kept().await, ["first", "second"]);
    assert_eq!(chain.world.in_flight().await.unwrap().rows, 2, "what they speak of");
    sleep(10).await;
    tick(&poller).await.unwrap();
    assert_eq!(chain.ids(0)[1..], [vec![1, 2, 3, 4], vec![1, 2], vec![3, 4]]);
    assert_eq!(chain.ids(1)[1..], [vec![1, 2, 3, 4], vec![1, 2], vec![3, 4]]);
    assert_eq!(chain.ids(2)[1..], [vec![1, 2], vec![1, 2], vec![3, 4]]);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_a_step_rejects_is_quarantined_and_the_rest_reaches_all_steps() {
    for bad_step in 0..3 {
        let policy = FailurePolicy {
            on_failure: OnFailure::Park,
            bisect_on_error: true,
            ..FailurePolicy::default()
        };
        let chain = Chained::of(World::new().with_policy(policy));
        let poller = chain.begin().await;
        chain.world.source.fill(8);
        let rejected = || HandlerError::Rejected("422".to_owned());
        chain.steps[bad_step]
            .judge_by(move |ids| if ids.contains(&5) { Err(rejected()) } else { Ok(()) });
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
        for step in 0..3 {
            let accepted_ids: std::collections::BTreeSet<i64> =
                chain.ids(step).concat().into_iter().collect();
            let all: std::collections::BTreeSet<i64> = (0..=8).filter(|id| *id != 5).collect();
            assert!(accepted_ids.is_superset(&all), "{bad_step} {step}: {accepted_ids:?}");
        }
        assert_eq!(admin(&poller).quarantined().await.unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_a_parked_key_runs_all_steps_for_its_row() {
    let policy = FailurePolicy {
        on_failure: OnFailure::Park,
        bisect_on_error: true,
        park: ParkPolicy::default(),
        ..FailurePolicy::default()
    };
    let chain = Chained::of(World::new().with_policy(policy));
    let poller = chain.begin().await;
    chain.world.source.fill(4);
    let rejected = || HandlerError::Rejected("422".to_owned());
    chain.steps[1].judge_by(move |ids| if ids.contains(&3) { Err(rejected()) } else { Ok(()) });
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(admin(&poller).quarantined().await.unwrap().len(), 1);
    chain.steps[1].judge_by(|_| Ok(()));
    let before = chain.calls();
    sleep(10).await;
    tick(&poller).await.unwrap();
    for (step, before) in before.into_iter().enumerate() {
        assert_eq!(chain.ids(step)[before..], [[3]], "{step}");
    }
    assert_eq!(admin(&poller).quarantined().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_changed_chain_restarts_at_its_first_changed_step() {
    for (names, called) in [
        (&["first", "second", "third"][..], [0, 1, 1]),
        (&["first", "third"], [0, 0, 1]),
        (&["second", "first"], [1, 1, 0]),
        (&["third"], [0, 0, 1]),
    ] {
        let chain = Chained::new();
        let poller = chain.begin().await;
        chain.world.source.fill(3);
        chain.steps[1].then_fail(failed());
        tick(&poller).await.unwrap_err();
        let before = chain.calls();
        sleep(10).await;
        tick(&chain.instance_of("b", names)).await.unwrap();
        let calls: Vec<usize> = chain.calls().iter().zip(before).map(|(all, n)| all - n).collect();
        assert_eq!(calls, called, "{names:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_keeps_its_start_time_across_attempts() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    sleep(60).await;
    let began = world.memory.load(&StateKey::Document("p".to_owned())).await.unwrap().date;
    world.source.fill(2);
    world.handler.then_fail(failed()).then_take(NEVER);
    tick(&poller).await.unwrap_err();
    sleep(10).await;
    killed_after(5, &poller).await;
    sleep(60).await;
    tick(&world.instance("b")).await.unwrap();
    world.source.put(3, "new");
    tick(&world.instance("b")).await.unwrap();
    let calls = world.handler.received();
    let [_, first, second, third, next] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!(first.started_at, began);
    assert_eq!((second.started_at, third.started_at), (began, began));
    assert!(next.started_at > began);
    assert_eq!((&first.step, &first.batch_id), (&None, &third.batch_id));
}

#[tokio::test(start_paused = true)]
async fn the_journal_records_each_call_and_result_and_rebuilds_the_document() {
    let (chain, journal) = (Chained::new(), Arc::new(MemoryJournal::default()));
    let poller = chain.instance("a").with_journal(JournalMode::Full, journal.clone(), None);
    chain.world.source.fill(3);
    chain.steps[2].then_fail(failed());
    tick(&poller).await.unwrap_err();
    sleep(10).await;
    tick(&poller).await.unwrap();
    let mut entries: Vec<Entry> = Vec::new();
    for part in journal.list("p").await.unwrap() {
        let bytes = journal.read(&part, 0).await.unwrap();
        entries.extend(read_lines(&part.to_string(), &bytes).0);
    }
    let recorded: Vec<String> = entries
        .iter()
        .map(|entry| {
            let step = entry.details.step.as_deref().unwrap_or_default();
            format!("{} {step}", entry.event.as_str()).trim_end().to_owned()
        })
        .collect();
    assert_eq!(
        recorded,
        [
            "lease_acquired",
            "execution_started first",
            "step_complete first",
            "execution_started second",
            "step_complete second",
            "execution_started third",
            "handler_failed",
            "lease_acquired",
            "execution_started third",
            "batch_complete",
        ]
    );
    let folded = fold(entries);
    assert_eq!(folded.findings, []);
    let document = chain.world.document().await;
    assert_eq!(verify(JournalMode::Full, &folded, Some(&document)), Verdict::Agrees);
    assert_eq!(folded.document, Some(document));
}

#[tokio::test(start_paused = true)]
async fn a_row_is_not_quarantined_because_of_a_slow_step_before_the_failed_one() {
    let policy = FailurePolicy {
        on_failure: OnFailure::Park,
        attempts_max: 3,
        bisect_on_error: true,
        ..FailurePolicy::default()
    };
    let chain = Chained::of(World::new().with_policy(policy));
    let poller = chain.begin().await;
    chain.world.source.fill(2);
    // More than half of a tick, which is the most that a row gets before it is quarantined.
    chain.steps[0].take_by(|ids| Duration::from_secs(if ids == [1] { 130 } else { 0 }));
    chain.steps[1].judge_by(|ids| if ids == [1, 2] { Err(failed()) } else { Ok(()) });
    for _ in 0..10 {
        sleep(600).await;
        drop(tick(&poller).await);
    }
    assert_eq!(admin(&poller).quarantined().await.unwrap(), []);
    assert_eq!(chain.world.document().await.checkpoint.cursor.unwrap().key["id"], 2);
}
