//! The port for handlers: where changes go.

pub mod chain;
pub mod paced;
pub mod prefix;
#[doc(hidden)]
pub mod spans;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
#[doc(hidden)]
pub mod tries;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;
use time::OffsetDateTime;

use crate::document::{FencingToken, Generation, StaleWrite};
use crate::event::{BatchId, ChangeEvent, SourceLabel};

/// A batch to be delivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The name to which the grants of generation and token belong: the poller, or the range that is redelivered
    /// alongside it.
    pub poller: &'a str,
    /// Where the events came from.
    pub source: &'a SourceLabel,
    /// Content identity: the same id always means the same bytes, for the same step.
    pub batch_id: &'a BatchId,
    /// The step of a handler chain, if any; `batch_id` is then specific to the step.
    pub step: Option<ChainStep<'a>>,
    /// When the batch was first announced, by the storage service's clock. It is the same at each attempt, so a
    /// handler that uses it as "now" is deterministic.
    pub started_at: OffsetDateTime,
    /// Generation of the state document; orders tokens if a document was created again.
    pub generation: Generation,
    /// Token of the lease under which the batch is delivered.
    pub fencing_token: FencingToken,
    /// 1 for the first delivery at this position, as far as the state document knows. Rows may have changed between
    /// attempts.
    pub attempt: u32,
    /// How often the handler may try the batch in this call.
    pub tries: CallTries,
    /// Set while a range is redelivered on request.
    pub replay_id: Option<&'a str>,
    /// Set if a poller may deliver newer states of the same rows at the same time.
    pub replay_guard: Option<ReplayGuard<'a>>,
    /// The events, oldest first; never empty.
    pub events: &'a [ChangeEvent],
    /// W3C trace context to pass on.
    pub traceparent: Option<&'a str>,
    /// The `tracestate` that belongs to it, if any.
    pub tracestate: Option<&'a str>,
    /// Where the handler reports its progress; see [`Progress`].
    pub progress: &'a Progress,
}

impl Delivery<'_> {
    /// Returns how often a handler tries the batch in this call that may try one `configured` times.
    pub fn tries_max(&self, configured: u32) -> u32 {
        match self.tries {
            CallTries::One => 1,
            CallTries::Several => configured,
        }
    }
}

/// How often a handler may try a batch within one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTries {
    /// Once: the engine retries a failed batch itself, with fewer rows.
    One,
    /// As often as the handler's settings say.
    Several,
}

/// The poller alongside which a range is redelivered.
///
/// The range has its own lease, so only the target can order the two. A target that locks the fence of `poller`
/// until it has written, and then finds the rows unchanged since they were read, cannot replace a newer state
/// with an older one.
#[derive(Clone, Copy, Debug)]
pub struct ReplayGuard<'a> {
    /// The poller.
    pub poller: &'a str,
    /// The rows of the batch.
    pub rows: &'a dyn Reread,
}

/// Rows that can be read again.
#[async_trait]
pub trait Reread: fmt::Debug + Send + Sync {
    /// Whether the rows are unchanged since they were read.
    ///
    /// # Errors
    ///
    /// [`HandlerError::Throttled`] if the source cannot be read now.
    async fn are_unchanged(&self) -> Result<bool, HandlerError>;
}

/// The step of a handler chain that a delivery is for.
#[derive(Clone, Copy, Debug)]
pub struct ChainStep<'a> {
    /// Name of the step.
    pub name: &'a str,
    /// Id of the batch, shared by all steps of the chain.
    pub of_batch: &'a BatchId,
}

/// One handler of a chain.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name, unique in the chain; results are stored under it.
    pub name: String,
    /// The handler to call.
    pub handler: Arc<dyn Handler>,
}

/// The progress of a handler with a batch.
///
/// A call that reports none for `HANDLER__STALL_MAX` is stopped: a stuck process still renews its lease and would keep
/// the batch forever. So every handler reports each step that it makes, such as a reply or a statement.
#[derive(Debug, Default)]
pub struct Progress {
    steps: Arc<AtomicU64>,
    accepted: AtomicUsize,
}

impl Progress {
    /// Returns the progress of one step of a handler chain. Its steps count for the chain. What it accepts does not,
    /// because the other steps of the chain have not accepted it.
    #[must_use]
    pub fn of_step(&self) -> Self {
        Self { steps: Arc::clone(&self.steps), accepted: AtomicUsize::default() }
    }

    /// Reports that `steps` more steps are done: replies, statements, bytes, or whatever the handler counts.
    pub fn report(&self, steps: u64) {
        self.steps.fetch_add(steps.max(1), Ordering::Relaxed);
    }

    /// Reports that the first `events` events of the batch are permanently accepted. This also counts as a step.
    ///
    /// The next renewal of the lease moves the checkpoint past them, so they are not redelivered whatever happens to
    /// the rest. A batch whose events are all accepted counts as accepted, even if the handler then fails, unless it was
    /// fenced off.
    pub fn accept(&self, events: usize) {
        self.accepted.fetch_max(events, Ordering::Relaxed);
        self.report(1);
    }

    /// Returns how many events, from the first one on, are permanently accepted.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the steps done so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

/// Why the handler did not accept the batch, or not all of it.
#[derive(Debug, Error)]
pub enum HandlerError {
    /// Worth a retry: timeout, connection error, 5xx.
    #[error("{0}")]
    Retryable(String),
    /// The target asks to wait; no attempt is counted.
    #[error("{reason}")]
    Throttled {
        /// What the target said.
        reason: String,
        /// How long to wait, if the target said so.
        retry_after: Option<Duration>,
    },
    /// The target permanently rejects this content: 400, 422.
    #[error("{0}")]
    Rejected(String),
    /// The batch is too large for the target: 413.
    #[error("{0}")]
    TooLarge(String),
    /// The address or the credentials are wrong: 401, 403, 404. No attempt is counted.
    #[error("{0}")]
    Misconfigured(String),
    /// The target is permanently gone: 410. The poller is paused.
    #[error("{0}")]
    Gone(String),
    /// The first `accepted` events were accepted; the next one was not.
    #[error("{reason}")]
    Partial {
        /// Accepted events, from the first one on; fewer than all.
        accepted: usize,
        /// Why the next one was not accepted.
        reason: String,
    },
    /// The handler reported no progress for too long, and was stopped.
    #[error("no progress for {0:?}")]
    Stalled(Duration),
    /// The target has accepted a write under a newer lease.
    #[error(transparent)]
    Fenced(#[from] StaleWrite),
}

impl HandlerError {
    /// Returns the name of the error; a small fixed set, suitable for metric attributes.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Retryable(_) => "retryable",
            Self::Throttled { .. } => "throttled",
            Self::Rejected(_) => "rejected",
            Self::TooLarge(_) => "too_large",
            Self::Misconfigured(_) => "misconfigured",
            Self::Gone(_) => "gone",
            Self::Partial { .. } => "partial",
            Self::Stalled(_) => "stalled",
            Self::Fenced(_) => "fenced",
        }
    }

    /// Orders errors by scope: the poller, then all of its requests, then some rows. Of several errors of one batch, the one
    /// with the lowest number decides.
    pub fn scope(&self) -> u8 {
        match self {
            Self::Fenced(_) => 0,
            Self::Gone(_) => 1,
            Self::Misconfigured(_) => 2,
            Self::Throttled { .. } => 3,
            Self::TooLarge(_) => 4,
            Self::Stalled(_) | Self::Retryable(_) | Self::Rejected(_) | Self::Partial { .. } => 5,
        }
    }

    /// Returns how long the target asks to wait, if it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled { retry_after, reason: _ } => *retry_after,
            Self::Retryable(_)
            | Self::Rejected(_)
            | Self::TooLarge(_)
            | Self::Misconfigured(_)
            | Self::Gone(_)
            | Self::Partial { .. }
            | Self::Stalled(_)
            | Self::Fenced(_) => None,
        }
    }

    /// Returns the error prefixed with the step of a handler chain that it comes from.
    pub(crate) fn in_step(self, step: &str) -> Self {
        let named = |reason: String| format!("step `{step}`: {reason}");
        match self {
            Self::Retryable(reason) => Self::Retryable(named(reason)),
            Self::Throttled { reason, retry_after } => {
                Self::Throttled { reason: named(reason), retry_after }
            }
            Self::Rejected(reason) => Self::Rejected(named(reason)),
            Self::TooLarge(reason) => Self::TooLarge(named(reason)),
            Self::Misconfigured(reason) => Self::Misconfigured(named(reason)),
            Self::Gone(reason) => Self::Gone(named(reason)),
            Self::Partial { accepted, reason } => Self::Partial { accepted, reason: named(reason) },
            // Their texts do not depend on the step.
            Self::Stalled(_) | Self::Fenced(_) => self,
        }
    }

    /// Returns the error of a handler that had already accepted `accepted` events of a batch of `rows`. `Ok` if it
    /// had accepted all of them, unless a newer holder has written the target.
    pub(crate) fn after(self, accepted: usize, rows: usize) -> Result<(), Self> {
        if accepted >= rows && !matches!(self, Self::Fenced(_)) {
            return Ok(());
        }
        Err(match self {
            Self::Partial { accepted: said, reason } => {
                Self::Partial { accepted: said.max(accepted), reason }
            }
            Self::Retryable(_) | Self::Rejected(_) | Self::TooLarge(_) | Self::Stalled(_)
                if accepted > 0 =>
            {
                Self::Partial { accepted, reason: self.to_string() }
            }
            // About the target rather than the rows, or nothing was accepted: pass it on.
            Self::Retryable(_)
            | Self::Rejected(_)
            | Self::TooLarge(_)
            | Self::Stalled(_)
            | Self::Throttled { .. }
            | Self::Misconfigured(_)
            | Self::Gone(_)
            | Self::Fenced(_) => self,
        })
    }

    /// As [`Self::after`], for a step of a chain: what it accepts counts only if it is all rows. Otherwise the
    /// whole batch is redelivered to it, under the same id: the results of the steps before it are those of the whole batch.
    pub(crate) fn after_step(self, progress: &Progress, rows: usize) -> Result<(), Self> {
        if progress.accepted() >= rows { self.after(rows, rows) } else { Err(self) }
    }
}

/// Longest wait of [`Handler::settle`]. After an abort, the process has one second before it is forced to exit, and
/// the remainder is used to release the lease.
pub const SETTLE_TIME_MAX: Duration = Duration::from_millis(500);

/// Receives batches of events, each at least once.
///
/// # Contract
///
/// `Ok` means permanently accepted: the checkpoint moves past the batch. Events may be redelivered with the same
/// ids, so handling must be idempotent. The future may be dropped at any await (the lease was lost, or time ran
/// out), which leaves the outcome unknown. A handler must not block its thread: the same task renews the lease.
/// It reports its [`Progress`], or is stopped as stalled.
#[async_trait]
pub trait Handler: fmt::Debug + Send + Sync {
    /// Returns the handler's own time limit for a call; `None` if only that of the tick applies.
    ///
    /// Batches shrink if calls come close to it.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// Returns the steps of a chain, in order; empty for any other handler.
    ///
    /// The engine calls the steps one by one and stores the result of each before it calls the next, so that a
    /// redelivered batch continues where it stopped.
    fn steps(&self) -> &[Step] {
        &[]
    }

    /// Whether a batch that is redelivered whole is recognised by its id, by this handler or its target: the rows that
    /// were accepted are then not accepted again. Parts of a batch have other ids, so such a batch is halved only once
    /// its attempts are exhausted. True for a chain, whose steps store their results for a whole batch.
    fn recognises_batches(&self) -> bool {
        !self.steps().is_empty()
    }

    /// Checks, without waiting, that the local part of the target exists. Called at the start of a process that runs
    /// ticks; commands that run none do not call it.
    ///
    /// # Errors
    ///
    /// [`HandlerError::Misconfigured`] if every delivery would fail.
    fn check(&self) -> Result<(), HandlerError> {
        self.steps().iter().try_for_each(|step| step.handler.check())
    }

    /// Handles one batch.
    ///
    /// # Errors
    ///
    /// [`HandlerError`]; it decides what the engine does next.
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError>;

    /// Waits until nothing that a dropped call started is running any more, for at most [`SETTLE_TIME_MAX`].
    async fn settle(&self) {}
}
