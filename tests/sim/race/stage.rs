//! The stage: two workers, a table of one row, a fenced target, and the barriers between them.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::info;

use super::faults::{Chance, Luck, RaceStore};
use highwater_engine::cursor::{CursorMode, SourceDefinition, SourceFingerprint};
use highwater_engine::document::{Fence, StaleWrite};
use highwater_engine::error::ErrorKind;
use highwater_engine::event::{Operation, SourceLabel};
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use highwater_engine::lease::{Instance, LeaseTerms};
use highwater_engine::poller::{Limits, Poller, PollerParts, TickError};
use highwater_engine::source::{FetchError, FetchWindow, Rows, Source, SourceShape};
use highwater_engine::store::MemoryStore;
use highwater_engine::testing;
use highwater_engine::tick::TickRequest;
use highwater_engine::value::Value;

/// The poller that both run; the trace calls it a job.
pub(super) const POLLER: &str = "orders";

/// As in the seed. The heartbeat is as late as possible, so that none is due when the handler is called, not
/// even after an acquisition that needed three attempts. Otherwise a renewal that is pending at the freeze
/// could report the loss to the first worker before the fence does.
const TERMS: LeaseTerms = LeaseTerms {
    ttl: Duration::from_secs(1),
    heartbeat_interval: Duration::from_millis(450),
    margin: Duration::from_millis(100),
};
const FROZEN_PAST_LEASE: Duration = Duration::from_millis(2_500);

/// How often a worker's timer fires.
const TIMER: Duration = Duration::from_millis(100);

/// Ticks after which a worker gives up: ten times the number that the takeover needs.
const TICKS_MAX: u32 = 400;

/// Barriers and the target.
#[derive(Debug, Default)]
struct Stage {
    /// The first worker has its write pending.
    pending: Notify,
    /// The second worker has written.
    written: Notify,
    /// The first worker has left.
    left: Notify,
    first: Freezer,
    /// The highest grant of which the target has accepted a write.
    fence: Mutex<Fence>,
}

impl Stage {
    /// A write to the target: the fence decides and is raised in the same step.
    fn write(&self, delivery: &Delivery<'_>) -> Result<(), StaleWrite> {
        let mut fence = self.fence.lock().unwrap_or_else(PoisonError::into_inner);
        *fence = fence.admit(delivery.generation, delivery.fencing_token)?;
        Ok(())
    }
}

/// Plays the race once.
pub(super) async fn play(chance: Arc<Chance>) {
    let stage = Arc::new(Stage::default());
    let memory = Arc::new(MemoryStore::default());
    let worker = |role| Worker::new(role, &stage, &memory, &chance);
    let (first, second) = (worker(Role::First), worker(Role::Second));
    let frozen = Freezable { freezer: Arc::clone(&stage), work: Box::pin(first.run()) };
    let first = tokio::spawn(frozen);
    stage.pending.notified().await;
    let lease_ends = Instant::now() + TERMS.ttl;
    let second = tokio::spawn(second.run());
    stage.written.notified().await;
    sleep_until(lease_ends + FROZEN_PAST_LEASE).await;
    stage.first.thaw();
    for worker in [first, second] {
        // A worker that panics leaves a trace that differs.
        drop(worker.await);
    }
}

/// Stops a future from being polled, which stops its timers too.
#[derive(Debug, Default)]
struct Freezer {
    is_frozen: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Freezer {
    fn freeze(&self) {
        self.is_frozen.store(true, Ordering::Relaxed);
    }

    fn thaw(&self) {
        self.is_frozen.store(false, Ordering::Relaxed);
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }
}

/// The first worker's task.
struct Freezable<F> {
    freezer: Arc<Stage>,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Freezable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let freezer = &self.freezer.first;
        if freezer.is_frozen.load(Ordering::Relaxed) {
            let waker = Some(context.waker().clone());
            *freezer.waker.lock().unwrap_or_else(PoisonError::into_inner) = waker;
            return Poll::Pending;
        }
        self.work.as_mut().poll(context)
    }
}

/// Which worker does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Acquires the lease, and is frozen before its write.
    First,
    /// Takes the lease over, writes, and stops after the first one has.
    Second,
}

/// A process that ticks until it has delivered, or has learned that it is stale.
struct Worker {
    role: Role,
    stage: Arc<Stage>,
    poller: Poller,
}

impl Worker {
    fn new(
        role: Role,
        stage: &Arc<Stage>,
        memory: &Arc<MemoryStore>,
        chance: &Arc<Chance>,
    ) -> Self {
        let luck = Arc::new(Luck::new(Arc::clone(chance)));
        let owner_id = match role {
            Role::First => "worker-a",
            Role::Second => "worker-b",
        };
        let poller = Poller::new(PollerParts {
            name: POLLER.to_owned(),
            source: Arc::new(OneRow::new(Arc::clone(&luck))),
            handler: Arc::new(FencedWrite { role, stage: Arc::clone(stage) }),
            store: Arc::new(RaceStore { memory: Arc::clone(memory), luck }),
            instance: Arc::new(Instance::new(owner_id)),
            terms: TERMS,
            limits: limits(),
            policy: highwater_engine::policy::FailurePolicy::default(),
            metrics: Arc::default(),
        });
        Self { role, stage: Arc::clone(stage), poller }
    }

    async fn run(self) {
        for _ in 0..TICKS_MAX {
            let report = self.poller.tick(&TickRequest::default()).await;
            let reason = match report.result {
                // Committed; the poll for more rows may still have failed.
                _ if report.batches > 0 => "success",
                Err(TickError::Handler(HandlerError::Fenced(_)) | TickError::LeaseLost(_)) => {
                    "stale"
                }
                Ok(_) | Err(_) => {
                    sleep(TIMER).await;
                    continue;
                }
            };
            info!(event = "worker_exit", reason, "Worker leaves: {reason}");
            break;
        }
        if self.role == Role::First {
            self.stage.left.notify_one();
        }
    }
}

fn limits() -> Limits {
    Limits {
        retry_delay_min: TIMER,
        retry_delay_max: TIMER,
        retry_after_max: TIMER,
        ..testing::limits()
    }
}

/// Writes to the fenced target at the moment that the race needs.
#[derive(Debug)]
struct FencedWrite {
    role: Role,
    stage: Arc<Stage>,
}

#[async_trait]
impl Handler for FencedWrite {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        match self.role {
            Role::First => {
                self.stage.first.freeze();
                self.stage.pending.notify_one();
                // Frozen here for longer than the lease lives; it cannot know.
                yield_now().await;
                Ok(self.stage.write(&delivery)?)
            }
            Role::Second => {
                self.stage.write(&delivery)?;
                self.stage.written.notify_one();
                self.stage.left.notified().await;
                Ok(())
            }
        }
    }
}

/// A table of one row.
#[derive(Debug)]
struct OneRow {
    shape: SourceShape,
    luck: Arc<Luck>,
}

impl OneRow {
    fn new(luck: Arc<Luck>) -> Self {
        let label = SourceLabel {
            poller: POLLER.to_owned(),
            object: "dbo.orders".to_owned(),
            mode: CursorMode::RowVersion.as_str(),
        };
        let fingerprint = SourceFingerprint::of(&[("object", "dbo.orders")]);
        let key = vec!["id".to_owned()];
        let (mode, definition) = (CursorMode::RowVersion, SourceDefinition::default());
        Self { shape: SourceShape { label, mode, key, fingerprint, definition }, luck }
    }
}

#[async_trait]
impl Source for OneRow {
    fn shape(&self) -> &SourceShape {
        &self.shape
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        self.luck.latency().await;
        if self.luck.fails() {
            return Err(FetchError::new(ErrorKind::Transient, "injected"));
        }
        let mut rows = Rows::of(["id"]);
        if window.after.is_none() {
            let id = Value::Int(1);
            rows.push(Operation::Upsert, Value::Int(1), vec![id.clone()], &[id]);
        }
        Ok(rows)
    }
}
