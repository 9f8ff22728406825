//! One poller, and what it does when its timer ticks.
//!
//! ```text
//! 1 load       the state document, from memory where that is fresh enough
//! 2 skip?      lease held by another, paused, backing off
//! 3 fetch      one query, no rows: look back; nothing late: idle, nothing written
//! 4 normalise  rows to change events
//! 5 acquire    one write under the tag of the document that gave the position
//! 6 handle     while the lease is renewed; what is accepted for good rides on a renewal; the next batch
//!              is read meanwhile
//! 7 commit     one write; it also releases, or announces the next batch and goes back to 6, where that is asked
//!              for before there is an answer; what follows that batch is asked for before
//! 8 follow?    out of rows: wait, and back to 1, where that is asked for
//! ```
//!
//! It reads before it locks, which makes idle ticks free; acquiring under the tag of the document that
//! gave the position proves that the position still stood. This module knows the ports and the lease,
//! and never names a driver, a web framework or a cloud.

mod ahead;
mod anew;
mod audit;
mod batch;
mod behind;
mod call;
mod deliver;
mod divide;
mod duplicate;
mod entries;
mod events;
mod examine;
mod failure;
mod first_run;
mod handle;
mod history;
mod init;
mod journal;
mod kin;
mod known;
mod loss;
mod memory;
mod observe;
mod operate;
mod outcome;
mod overlap;
mod part;
mod peek;
mod quarantine;
mod range;
mod redrive;
mod reset;
mod restore;
mod size;
mod spans;
mod stop;
mod suspicion;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::Level;

use self::audit::Auditor;
use self::batch::{Batch, Fetched, Next, Position};
use self::deliver::Hand;
pub use self::divide::SeedError;
pub use self::duplicate::CloneError;
pub use self::entries::Found;
pub use self::history::{Compacting, Examined};
pub use self::init::Init;
use self::journal::Journal;
use self::loss::FoundLoss;
use self::memory::Memory;
use self::observe::Observation;
pub use self::observe::TickLine;
pub use self::operate::{Operator, Pausing, Resuming};
use self::outcome::refused_outcome;
pub use self::outcome::{LoadError, OutcomeRow, Skipped, TickError, TickOutcome, outcome_row};
pub use self::peek::{HeldBack, Peek};
pub use self::range::{RangeBegun, RangeEnd, RangeSize};
pub use self::redrive::{Redrive, RedriveEnd, RedriveError, Redriven};
pub use self::reset::{Counted, ResetError, ResetPlan, ResetTo, Weight};
pub use self::restore::{Present, RestoreError, Restored};
pub use self::stop::StopSignal;
use crate::handler::{Handler, HandlerError};
use crate::lease::{Acquired, Instance, Lease, LeaseContext, LeaseError, LeaseTerms, Snapshot};
use crate::metrics::Metrics;
use crate::partition::Partition;
use crate::policy::{FailurePolicy, Flow};
use crate::repeats::Repeats;
use crate::source::Source;
use crate::state::{AfterCommit, OnMissingState, StateKey, StateStore};

/// Limits of one tick, and how failures are spaced.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most rows in one batch.
    pub batch_rows_max: usize,
    /// Most bytes of encoded events in one batch; a single larger event fails the tick.
    pub batch_bytes_max: usize,
    /// Most batches in one tick; `None` for no limit but time.
    pub batches_max: Option<u64>,
    /// No new batch begins later than this after the tick began.
    pub tick_time_max: Duration,
    /// A handler is stopped this long after the tick began.
    pub handler_stop_after: Duration,
    /// A handler that reports progress is stopped after this long without any; `None` for never.
    pub handler_stall_max: Option<Duration>,
    /// How long a document in memory may be used without reading it again.
    pub state_refresh: Duration,
    /// How often idle ticks note that they ran; zero for never.
    pub status_interval: Duration,
    /// Pause after the first failure of a batch; doubled after each further one.
    pub retry_delay_min: Duration,
    /// Longest pause between two attempts.
    pub retry_delay_max: Duration,
    /// What to do when a poller that has run before has no state.
    pub on_missing_state: OnMissingState,
}

/// What a tick is told by whoever asks for it.
#[derive(Clone, Debug, Default)]
pub struct TickRequest {
    /// Id of the invocation, for logs.
    pub invocation_id: String,
    /// W3C trace context to hand on to the handler.
    pub traceparent: Option<String>,
    /// What other systems add to that.
    pub tracestate: Option<String>,
    /// Set when the tick is to stop after the batch in hand.
    pub stop: StopSignal,
    /// Whether the host calls again soon if the tick fails. Such a tick waits for the end of a back-off, since that
    /// may outlast all of the host's retries.
    pub is_retried: bool,
}

/// How a tick ended, and what it did until then.
#[derive(Debug)]
pub struct TickReport {
    /// The end.
    pub result: Result<TickOutcome, TickError>,
    /// Rows committed.
    pub rows: u64,
    /// Batches committed.
    pub batches: u64,
    /// How long it took.
    pub duration: Duration,
    /// One line for people.
    pub summary: String,
    /// Level of the log event with which it ended.
    pub level: Level,
    /// What that event says beside its text.
    pub line: TickLine,
}

/// The parts of a poller.
pub struct Poller {
    name: String,
    key: StateKey,
    source: Arc<dyn Source>,
    handler: Arc<dyn Handler>,
    store: Arc<dyn StateStore>,
    instance: Arc<Instance>,
    terms: LeaseTerms,
    limits: Limits,
    policy: FailurePolicy,
    /// How batches follow each other within a tick.
    flow: Flow,
    /// Most rows of the next batch, as far as its predecessors tell.
    batch_rows: AtomicUsize,
    metrics: Arc<Metrics>,
    /// Whether a poller without state waits to be started explicitly, behind what there is then.
    start_now: bool,
    /// What ticks did, and where it is told.
    journal: Journal,
    /// The poller whose past is delivered again, where this is not a poller of its own.
    range_of: Option<String>,
    /// Which part of the keys it delivers; `None` for all.
    partition: Option<Partition>,
    /// Whether documents of its other parts are asked before one is begun.
    asks_kin: bool,
    /// Whether it delivers while it is paused: an operator's own work under that pause.
    through_pause: bool,
    /// Set where closed windows are read again.
    audit: Option<Auditor>,
    /// Most rows that are counted where some wait; 0 for none.
    rows_counted_max: usize,
    /// Since when every tick of this process found the lease held; not in `memory`, which a tick keeps locked.
    skipped_since: std::sync::Mutex<Option<time::OffsetDateTime>>,
    /// How long the last commit took, plus one; 0 for none.
    last_commit_ms: AtomicU64,
    /// Lines that stay true for many ticks.
    told: Repeats,
    /// When this process first saw that the poller has run; holds even if document and marker are both lost.
    ran_since: OnceLock<time::OffsetDateTime>,
    /// Set once this process has seen the marker or written it.
    saw_marker: OnceLock<()>,
    /// The final loss that this process found last; it may not be written.
    loss: std::sync::Mutex<Option<FoundLoss>>,
    /// What the last tick knew; locked while a tick runs, so a second one sees that.
    memory: Mutex<Memory>,
}

/// What a poller is made of.
#[derive(Debug)]
pub struct PollerParts {
    /// Name of the poller.
    pub name: String,
    /// Where changes come from.
    pub source: Arc<dyn Source>,
    /// Where changes go.
    pub handler: Arc<dyn Handler>,
    /// Where the state document is kept.
    pub store: Arc<dyn StateStore>,
    /// This process.
    pub instance: Arc<Instance>,
    /// Terms of the lease.
    pub terms: LeaseTerms,
    /// Limits of one tick.
    pub limits: Limits,
    /// What becomes of rows that are not taken.
    pub policy: FailurePolicy,
    /// Where measurements go.
    pub metrics: Arc<Metrics>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Poller").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How often a tick begins anew because the document had changed under it.
const ACQUIRE_TRIES_MAX: u32 = 2;

impl Poller {
    /// Puts a poller together.
    pub fn new(parts: PollerParts) -> Self {
        Self {
            key: StateKey::Document(parts.name.clone()),
            name: parts.name,
            source: parts.source,
            handler: parts.handler,
            store: parts.store,
            instance: parts.instance,
            terms: parts.terms,
            limits: parts.limits,
            policy: parts.policy,
            flow: Flow::default(),
            batch_rows: AtomicUsize::new(parts.limits.batch_rows_max),
            metrics: parts.metrics,
            start_now: false,
            journal: Journal::off(),
            range_of: None,
            partition: None,
            asks_kin: false,
            through_pause: false,
            audit: None,
            rows_counted_max: 0,
            skipped_since: std::sync::Mutex::default(),
            last_commit_ms: AtomicU64::new(0),
            told: Repeats::default(),
            ran_since: OnceLock::new(),
            saw_marker: OnceLock::new(),
            loss: std::sync::Mutex::default(),
            memory: Mutex::default(),
        }
    }

    /// Lets a poller that never ran start with what comes after its [`Self::init`], instead of with all
    /// that its source has.
    #[must_use]
    pub fn starting_now(self) -> Self {
        Self { start_now: true, ..self }
    }

    /// Lets batches follow each other as `flow` says.
    #[must_use]
    pub fn flowing(self, flow: Flow) -> Self {
        Self { flow, ..self }
    }

    /// Returns the poller's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks, without waiting, that this process can deliver: see [`Handler::check`].
    ///
    /// # Errors
    ///
    /// [`HandlerError::Misconfigured`].
    pub fn check_handler(&self) -> Result<(), HandlerError> {
        self.handler.check()
    }

    /// Delivers what changed since the last commit.
    ///
    /// One process never runs two ticks of one poller at once: the second is skipped.
    pub async fn tick(&self, request: &TickRequest) -> TickReport {
        let mut seen = Observation::begin(self, request);
        let result = match self.memory.try_lock() {
            Ok(mut memory) => {
                seen.recall_rows_behind(memory.rows_behind());
                let run = Box::pin(self.run(&mut memory, &mut seen));
                let result = self.append_during(run).await;
                let behind = self.tell_standing(&mut memory, &result, seen.began_at()).await;
                seen.note_rows_behind(behind);
                // An operator may change the document to fix what failed: the next tick must see that.
                if result.is_err() {
                    memory.forget();
                }
                result
            }
            Err(_) => Ok(TickOutcome::Skipped(Skipped::AlreadyRunning)),
        };
        seen.finish(result)
    }

    async fn run_once(
        &self,
        memory: &mut Memory,
        seen: &mut Observation<'_>,
    ) -> Result<TickOutcome, TickError> {
        for _ in 0..ACQUIRE_TRIES_MAX {
            let mut base = self.load(memory).await?;
            memory.begin(&base);
            if let Some(outcome) = self.hindrance(&base) {
                return Ok(outcome);
            }
            self.refuse_lost(&base.document)?;
            self.refuse_fence_ahead(&base.document)?;
            let batch = match self.first_batch(&base, seen).await? {
                Fetched::Batch(mut batch) => {
                    if let Some(state) = batch.anchored(&base.document.source_state) {
                        base.document_mut().source_state = state;
                    }
                    batch
                }
                Fetched::Nothing(remember) => match self.late_batch(&mut base, seen).await {
                    Ok(Some(late)) => late.with(remember, &mut base),
                    none => {
                        seen.note_time(base.now());
                        memory.note_lag(seen.lag());
                        let idle = self.idle(memory, base, remember).await;
                        return none.map(|_| idle);
                    }
                },
            };
            match self.acquire(&base, &batch, seen).await? {
                Acquisition::Held(lease) => {
                    return Box::pin(self.drain(memory, *lease, *batch, seen)).await;
                }
                Acquisition::Refused(outcome) => return Ok(outcome),
                Acquisition::Outrun => memory.forget(),
            }
        }
        Ok(TickOutcome::Skipped(Skipped::Conflict))
    }

    /// Asks for the lease.
    async fn acquire(
        &self,
        base: &Snapshot,
        batch: &Batch,
        seen: &mut Observation<'_>,
    ) -> Result<Acquisition<'_>, TickError> {
        let context = LeaseContext {
            store: &*self.store,
            key: &self.key,
            instance: &self.instance,
            terms: self.terms,
            stop_at: seen.began_at() + self.limits.handler_stop_after,
            journal: &self.journal.recorder,
        };
        let batch = Some(batch.in_flight());
        let asked = if self.through_pause {
            Lease::acquire_under_pause(context, base, batch).await
        } else {
            Lease::acquire(context, base, batch).await
        };
        match asked.map_err(TickError::Acquire)? {
            Acquired::Held(mut lease) => {
                seen.lease_acquired(&lease, base);
                self.log_first_run(&lease, base);
                self.mark(&mut lease).await;
                Ok(Acquisition::Held(lease))
            }
            Acquired::Conflict => Ok(Acquisition::Outrun),
            Acquired::Refused(refusal) => match refused_outcome(&refusal, self.lapses_at(base)) {
                Some(outcome) => Ok(Acquisition::Refused(outcome)),
                None => Err(TickError::Acquire(LeaseError::Refused(refusal))),
            },
        }
    }

    /// Delivers batch after batch under the lease, until nothing more is to be read or a limit is
    /// met.
    async fn drain(
        &self,
        memory: &mut Memory,
        mut lease: Lease<'_>,
        batch: Batch,
        seen: &mut Observation<'_>,
    ) -> Result<TickOutcome, TickError> {
        memory.forget();
        seen.note_idle_ticks(memory.take_idle_ticks());
        let mut hand = Hand::of(batch);
        loop {
            Box::pin(self.deliver(&mut lease, &mut hand, seen)).await?;
            let next = self.next_after(&mut lease, &mut hand, seen).await;
            seen.note_next(&next);
            if let Ok(Next::Nothing(Some(state))) = &next {
                hand.batch.remember = Some(state.clone());
            }
            self.commit(&mut lease, &mut hand, &next, seen).await?;
            match next {
                // The commit found that somebody has paused the poller meanwhile, or given the range up.
                Ok(Next::Batch(_)) if lease.document().is_held_up() => {
                    self.release(&mut lease, seen).await;
                    memory.remember(lease);
                    return Ok(TickOutcome::Committed { more: true });
                }
                Ok(Next::Batch(next)) => hand.go_on_with(*next, &lease),
                Ok(end @ (Next::Nothing(_) | Next::NotNow | Next::Later(_))) => {
                    memory.remember(lease);
                    return Ok(TickOutcome::Committed { more: !matches!(end, Next::Nothing(_)) });
                }
                Err(error) => {
                    memory.remember(lease);
                    return Err(error);
                }
            }
        }
    }

    async fn commit(
        &self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'_>,
        next: &Result<Next, TickError>,
        seen: &mut Observation<'_>,
    ) -> Result<(), TickError> {
        let (batch, began_at) = (&hand.batch, Instant::now());
        let mut end_of_tick = || Some(seen.end_of_tick(seen.end(), Some(batch), lease));
        let then = match next {
            Ok(Next::Batch(next)) => AfterCommit::Handle(Box::new(next.in_flight())),
            Ok(Next::Later(next)) => AfterCommit::Leave(Box::new(next.in_flight()), end_of_tick()),
            Ok(Next::Nothing(_) | Next::NotNow) | Err(_) => AfterCommit::Release(end_of_tick()),
        };
        let before = lease.document().checkpoint.cursor.clone();
        let skipped = lease.document().audit.rows_skipped;
        let commit = self.commit_of(batch, lease.document(), lease.now(), then);
        lease.remember(batch.remember.clone());
        let Some(commit) = self.left_to_the_next(lease, hand, next, commit)? else { return Ok(()) };
        if let Err(error) = lease.commit(commit).await {
            seen.front_committed(batch, lease.document());
            return Err(TickError::of_commit(error));
        }
        self.keep_ids(batch, before.as_ref());
        seen.rows_not_audited(skipped, lease.document().audit.rows_skipped);
        seen.batch_complete(batch, before.as_ref(), began_at.elapsed(), lease.now());
        match next {
            Ok(Next::Batch(_)) => lease.still_held().map_err(TickError::LeaseLost),
            Ok(Next::Nothing(_) | Next::NotNow | Next::Later(_)) | Err(_) => Ok(()),
        }
    }
}

/// What came of asking for the lease.
enum Acquisition<'a> {
    Held(Box<Lease<'a>>),
    /// The tick ends so.
    Refused(TickOutcome),
    /// Another writer was first: the tick may start again with what it wrote.
    Outrun,
}

/// Why a batch that was handed over counts as not taken.
enum NotTaken {
    Handler(HandlerError),
    /// A step of a chain, and not the last one, took so many rows from the front and no more.
    Front(usize, HandlerError),
    /// The handler was stopped at the tick's end of time.
    OutOfTime {
        /// Whether an earlier step of a chain had taken the rows in this tick.
        got_on: bool,
    },
    /// The lease is not held any more: nothing is written down.
    Lost(TickError),
}
