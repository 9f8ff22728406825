//! One tick of one poller, from its position to the last commit.
//!
//! [`Tick::round`] tells the story from top to bottom, and says at each step what it may write. The modules hold what
//! the steps do; [`rounds`] repeats the story in follow mode and after failures that a repetition may cure. While a
//! tick holds the lease it is a [`LeasedTick`]: the lease, and the current batch.

mod alone;
mod audit;
mod backlog;
mod batch;
mod batch_size;
mod call;
mod commit;
mod deliver;
mod event_range;
mod failure;
mod fetch;
mod isolate;
mod park;
mod prefetch;
mod report;
mod retry;
mod rounds;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::MutexGuard;
use tracing::Level;

pub(crate) use self::alone::{AloneCall, CallResult, EventToDeliver};
use self::batch::{Batch, Work};
#[cfg(test)]
pub(crate) use self::failure::breaker_text;
pub(crate) use self::failure::{blame, reject_if_single_row};
use self::fetch::{Fetched, Next};
use self::prefetch::Prefetch;
use self::report::Report;
pub use self::report::{FailedBatch, TickLine};
use self::retry::{Retried, When};
use crate::document::Snapshot;
use crate::lease::{AcquireResult, Lease, LeaseContext, LeaseError};
use crate::notification::Change;
use crate::poller::memory::Memory;
use crate::poller::outcome::refused_outcome;
use crate::poller::{Poller, Skipped, StopSignal, TickError, TickOutcome};
use crate::quarantine::KnownKeys;

/// How often a round is tried, if the document changes before the lease is acquired.
const ACQUIRE_TRIES_MAX: u32 = 2;

/// What the caller asks of a tick.
#[derive(Clone, Debug, Default)]
pub struct TickRequest {
    /// Id of the invocation, for logs.
    pub invocation_id: String,
    /// W3C trace context to pass on to the handler.
    pub traceparent: Option<String>,
    /// Vendor-specific part of the trace context.
    pub tracestate: Option<String>,
    /// Set when the tick is to stop after the current batch.
    pub stop: StopSignal,
    /// Whether the host retries soon if the tick fails. Such a tick waits for the end of a backoff, because that may
    /// outlast all of the host's retries.
    pub is_retried: bool,
}

/// How a tick ended, and what it did until then.
#[derive(Debug)]
pub struct TickReport {
    /// The outcome.
    pub result: Result<TickOutcome, TickError>,
    /// Rows committed.
    pub rows: u64,
    /// Batches committed.
    pub batches: u64,
    /// How long it took.
    pub duration: Duration,
    /// One line for people.
    pub summary: String,
    /// Level of its last log event.
    pub level: Level,
    /// Fields of that event.
    pub line: TickLine,
    /// What changed that an operator wants to hear about.
    pub changes: Vec<Change>,
}

/// One run of a poller.
struct Tick<'p> {
    poller: &'p Poller,
    /// Locked while a tick runs, which is how a second one notices it.
    memory: MutexGuard<'p, Memory>,
    report: Report<'p>,
}

/// A tick while it holds the lease.
struct LeasedTick<'t, 'p> {
    poller: &'p Poller,
    report: &'t mut Report<'p>,
    /// The parked keys, as this process knows them.
    keys: &'t mut KnownKeys,
    lease: Lease<'p>,
    /// The current batch, and rows of the same fetch that wait after it.
    work: Work,
    /// The read of the next batch, on the assumption that the current one is accepted whole.
    prefetch: Option<Prefetch<'p>>,
    /// Whether rows are read after a failing one, to test the target.
    is_probing: bool,
    /// The previous batch, while its commit is made alongside the handler.
    uncommitted: Option<Arc<Batch>>,
}

impl Poller {
    /// Delivers what changed since the last commit.
    ///
    /// A process never runs two ticks of one poller at once: the second is skipped.
    pub async fn tick(&self, request: &TickRequest) -> TickReport {
        let report = Report::start(self, request);
        let report = match self.memory.try_lock() {
            Ok(memory) => {
                let _running = self.running_tick();
                Box::pin(Tick { poller: self, memory, report }.run()).await
            }
            Err(_) => report.finish(Ok(TickOutcome::Skipped(Skipped::AlreadyRunning))),
        };
        // The lease is released, and the next tick of this process may start. A process that aborts does not wait.
        if let Some(notifier) = &self.notifier {
            let notified = notifier.tick_ended(&self.name, &report.changes);
            Box::pin(request.stop.unless_aborted(notified)).await;
        }
        report
    }
}

impl<'p> Tick<'p> {
    async fn run(mut self) -> TickReport {
        let poller = self.poller;
        self.report.recall_backlog(self.memory.rows_behind());
        let result = poller.append_during(Box::pin(self.rounds_recorded())).await;
        let started_at = self.report.started_at();
        let behind = poller.report_backlog(&mut self.memory, &result, started_at).await;
        self.report.note_backlog(behind);
        // An operator may change the document to fix the failure, so the next tick must read it.
        if result.is_err() {
            self.memory.forget();
        }
        self.report.finish(result)
    }

    /// Runs the rounds, and records in the document that they failed.
    async fn rounds_recorded(&mut self) -> Result<TickOutcome, TickError> {
        let result = Box::pin(self.rounds()).await;
        let poller = self.poller;
        let (rows, is_recorded) = (self.report.rows(), self.report.is_failure_recorded());
        if let Some(kind) = poller.note_end_of_tick(&result, rows, is_recorded) {
            self.report.failed_in_new_way(kind, &result);
        }
        if let Err(error) = &result
            && error.leaves_store_usable()
            && !self.report.request().stop.is_set()
        {
            Box::pin(poller.record_failure(&mut self.memory)).await;
        }
        result
    }

    /// Delivers from the position in the state document on, until no row is left or a limit is reached.
    async fn round(&mut self) -> Result<TickOutcome, TickError> {
        let poller = self.poller;
        // Parked keys that are due are retried first, under a grant of their own: it writes that grant, what becomes of
        // the keys' entries, and the release.
        let retries = Box::pin(self.retry_parked_keys(When::BeforeTheBatch)).await?;
        for _ in 0..ACQUIRE_TRIES_MAX {
            // Load the state document, from memory if that is fresh enough. A poller that never ran is first looked
            // for under other names. Writes nothing, except that the first start of a partition creates the document of
            // the first one, which fixes their number.
            let mut base = poller.load(&mut self.memory).await?;
            self.memory.begin(&base);
            poller.note_time(base.now());
            poller.recall_reads(&base.document, base.now());
            self.report.note_known_failure(&base.document);

            // Blocked? By another instance's lease, a pause, a backoff, lost rows or a fence that is ahead. Writes
            // nothing.
            if let Some(outcome) = poller.block_reason(&base) {
                return Ok(outcome);
            }
            poller.refuse_lost(&base.document)?;
            poller.refuse_fence_ahead(&base.document)?;

            // Fetch the rows after the checkpoint, or late rows. Without any the tick is idle: it
            // writes that it ran every `STATUS_INTERVAL`, source state that must not wait, and the end of a failure.
            let Some(batch) = self.fetch(&mut base).await? else {
                if retries == Retried::AfterTheBatch {
                    Box::pin(self.retry_parked_keys(When::WithoutBatch)).await?;
                }
                return Ok(TickOutcome::Idle);
            };

            // Acquire the lease: one write, under the tag of the document that gave the position, which proves that
            // the position still was current. The first lease of a process also checks, and if need be writes, the
            // poller's marker.
            let lease = match self.acquire(&base, &batch).await? {
                TickLease::Held(lease) => *lease,
                TickLease::Refused(outcome) => return Ok(outcome),
                TickLease::Conflict => {
                    self.memory.forget();
                    continue;
                }
            };
            self.memory.forget();
            self.report.note_idle_ticks(self.memory.take_idle_ticks());
            let mut held =
                LeasedTick::start(poller, &mut self.report, &mut self.memory.keys, lease, batch);
            let end = loop {
                // Deliver the current batch. Meanwhile the lease is renewed; a renewal also commits rows that the
                // handler has accepted early, and the commit of the batch before this one may still be running. Writes
                // the entries of rows that are parked or belong to parked keys, rows that are announced while a failing
                // one is searched for, and each step of a chain. A failure is recorded with the release, and ends the
                // tick.
                Box::pin(held.deliver()).await?;

                // Next: rows of the same fetch that wait, the prefetched batch, or one read now. Writes only renewals.
                let next = Box::pin(held.next()).await;

                // Commit: one write, which moves the checkpoint and either announces the next batch or releases the
                // lease.
                held.commit(&next).await?;
                match next {
                    Ok(Next::Work(next)) if !held.is_blocked() => held.continue_with(*next),
                    // The commit found the poller paused, the range cancelled, or rows lost. It announced the next
                    // batch; one more write releases the lease.
                    Ok(Next::Work(_)) => {
                        held.release().await;
                        break Ok(TickOutcome::Committed { more: true });
                    }
                    Ok(end) => {
                        let more = !matches!(end, Next::Nothing(_));
                        break Ok(TickOutcome::Committed { more });
                    }
                    Err(error) => break Err(error),
                }
            };
            let lease = held.lease;
            self.memory.remember(lease);
            return end;
        }
        Ok(TickOutcome::Skipped(Skipped::Conflict))
    }

    /// Returns the first batch, which may be of late rows; `None` if there is none. State that the source wants kept is
    /// put into `base`, and written with the lease.
    async fn fetch(&mut self, base: &mut Snapshot) -> Result<Option<Box<Batch>>, TickError> {
        let remember = match self.read_first(base).await? {
            Fetched::Batch(batch) => {
                let mut batch = self.without_parked(base, batch).await?;
                if let Some(state) = batch.anchored(&base.document.source_state) {
                    base.document_mut().source_state = state;
                }
                return Ok(Some(batch));
            }
            Fetched::Nothing(remember) => remember,
        };
        let late = self.late(base).await;
        if let Ok(Some(late)) = late {
            // The new state of the source is written with the lease.
            if let Some(remember) = remember {
                base.document_mut().source_state = remember.state;
            }
            return self.without_parked(base, late).await.map(Some);
        }
        // The tick was idle even if late rows could not be looked for: that failure ends it.
        self.report.note_time(base.now());
        self.memory.note_lag(self.report.lag());
        self.poller.idle(&mut self.memory, base.clone(), remember).await;
        late
    }

    /// Requests the lease.
    async fn acquire(
        &mut self,
        base: &Snapshot,
        batch: &Batch,
    ) -> Result<TickLease<'p>, TickError> {
        let poller = self.poller;
        let context = LeaseContext {
            store: &*poller.store,
            key: &poller.key,
            instance: &poller.instance,
            terms: poller.terms,
            stop_at: self.report.started_at() + poller.limits.handler_stop_after,
            journal: &poller.journal.recorder,
        };
        let in_flight = Some(batch.in_flight());
        let asked = if poller.through_pause {
            Lease::acquire_under_pause(context, base, in_flight).await
        } else {
            Lease::acquire(context, base, in_flight).await
        };
        match asked.map_err(TickError::Acquire)? {
            AcquireResult::Held(mut lease) => {
                self.count_listed_keys(&mut lease);
                self.report.lease_acquired(&lease, base);
                poller.log_first_run(&lease, base);
                poller.mark(&mut lease).await;
                Ok(TickLease::Held(lease))
            }
            AcquireResult::Conflict => Ok(TickLease::Conflict),
            AcquireResult::Refused(refusal) => {
                match refused_outcome(&refusal, poller.lapses_at(base)) {
                    Some(outcome) => Ok(TickLease::Refused(outcome)),
                    None => Err(TickError::Acquire(LeaseError::Refused(refusal))),
                }
            }
        }
    }
}

/// The result of requesting the lease.
enum TickLease<'p> {
    Held(Box<Lease<'p>>),
    /// The tick ends with this outcome.
    Refused(TickOutcome),
    /// Another writer was first: the tick may start again with that document.
    Conflict,
}

impl<'t, 'p> LeasedTick<'t, 'p> {
    fn start(
        poller: &'p Poller,
        report: &'t mut Report<'p>,
        keys: &'t mut KnownKeys,
        lease: Lease<'p>,
        batch: Box<Batch>,
    ) -> Self {
        let work = Work::of(batch, poller, &lease);
        let (prefetch, uncommitted, is_probing) = (None, None, false);
        Self { poller, report, keys, lease, work, prefetch, is_probing, uncommitted }
    }

    /// Whether the poller was paused, the range cancelled, or rows after the checkpoint are lost.
    fn is_blocked(&self) -> bool {
        self.lease.document().is_blocked()
    }
}
