//! Where changes go: the port.

pub mod chain;
pub mod paced;
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
use crate::redaction::redact;

/// One batch on its way to a handler.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// Under which name the grants of generation and token count: the poller's, or that of a range
    /// which is redelivered alongside it.
    pub poller: &'a str,
    /// Where the events came from.
    pub source: &'a SourceLabel,
    /// Content identity: the same id always means the same bytes, for the same step.
    pub batch_id: &'a BatchId,
    /// The step of a handler chain that it is for; its `batch_id` is one of its own then.
    pub step: Option<ChainStep<'a>>,
    /// When the batch was first announced, by the storage service's clock. The same at each attempt, so
    /// that a handler which takes it for "now" does the same each time.
    pub started_at: OffsetDateTime,
    /// Generation of the state document; orders tokens across a document that was made again.
    pub generation: Generation,
    /// Token of the lease under which the batch is delivered.
    pub fencing_token: FencingToken,
    /// 1 for the first delivery at this position, as far as the state document knows; rows may have
    /// changed since.
    pub attempt: u32,
    /// How often the handler may try the batch in this call.
    pub tries: CallTries,
    /// Set while a range is delivered again on purpose.
    pub replay_id: Option<&'a str>,
    /// Set while a poller delivers newer states of the same rows meanwhile.
    pub replay_guard: Option<ReplayGuard<'a>>,
    /// The events, oldest first; never empty.
    pub events: &'a [ChangeEvent],
    /// W3C trace context to hand on.
    pub traceparent: Option<&'a str>,
    /// What other systems add to that; `None` without one.
    pub tracestate: Option<&'a str>,
    /// Where the handler says that it gets on; see [`Progress`].
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
/// Its lease is another one, so nothing orders the two but the target: one that locks the fence of
/// `poller` until it has written, and then finds the rows as they were read, cannot write an older state
/// over a newer one.
#[derive(Clone, Copy, Debug)]
pub struct ReplayGuard<'a> {
    /// The poller.
    pub poller: &'a str,
    /// The rows of the batch.
    pub rows: &'a dyn Reread,
}

/// Rows that can be read once more.
#[async_trait]
pub trait Reread: fmt::Debug + Send + Sync {
    /// Whether they still are as they were when they were read.
    ///
    /// # Errors
    ///
    /// [`HandlerError::Throttled`] if the source cannot be read now.
    async fn are_unchanged(&self) -> Result<bool, HandlerError>;
}

/// Which step of a handler chain a delivery is for.
#[derive(Clone, Copy, Debug)]
pub struct ChainStep<'a> {
    /// Name of the step.
    pub name: &'a str,
    /// Id of the batch that all steps of the chain get.
    pub of_batch: &'a BatchId,
}

/// One handler of a chain.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name, unique in the chain: results are kept under it.
    pub name: String,
    /// What is called.
    pub handler: Arc<dyn Handler>,
}

/// How far a handler has come with a batch.
///
/// A handler that reports progress is stopped when it reports none for `HANDLER__STALL_MAX`: a
/// process that is stuck still renews its lease, and would keep the batch for ever. A handler that
/// never reports is not judged by this; it needs a time-out of its own.
#[derive(Debug, Default)]
pub struct Progress {
    steps: AtomicU64,
    accepted: AtomicUsize,
}

impl Progress {
    /// Says that `steps` more steps are done: events, bytes, whatever the handler counts.
    pub fn report(&self, steps: u64) {
        self.steps.fetch_add(steps.max(1), Ordering::Relaxed);
    }

    /// Reports that the first `events` events of the batch are permanently accepted; a step, too.
    ///
    /// The checkpoint moves past them with the next renewal of the lease, so that they do not come
    /// again whatever becomes of the rest. A batch that is accepted whole is taken, also where the
    /// handler fails then.
    pub fn accept(&self, events: usize) {
        self.accepted.fetch_max(events, Ordering::Relaxed);
        self.report(1);
    }

    /// Returns how many events, from the front, are permanently accepted.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the steps done so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

/// The handler did not take the batch, or not all of it.
#[derive(Debug, Error)]
pub enum HandlerError {
    /// Worth another attempt: time-out, connection error, 5xx.
    #[error("{0}")]
    Retryable(String),
    /// The target asks for patience; no attempt is counted.
    #[error("{reason}")]
    Throttled {
        /// What the target said.
        reason: String,
        /// How long to wait, where it said so.
        retry_after: Option<Duration>,
    },
    /// The target will never take these bytes: 400, 422.
    #[error("{0}")]
    Rejected(String),
    /// The target takes smaller batches only: 413.
    #[error("{0}")]
    TooLarge(String),
    /// Address or credentials are wrong: 401, 403, 404. No attempt is counted.
    #[error("{0}")]
    Misconfigured(String),
    /// The target is permanently gone: 410. The poller is paused.
    #[error("{0}")]
    Gone(String),
    /// The first `accepted` events were taken; the next one was not.
    #[error("{reason}")]
    Partial {
        /// Events taken, from the front; less than all.
        accepted: usize,
        /// Why the next one was not.
        reason: String,
    },
    /// The handler reported no progress for too long, and was stopped.
    #[error("no progress for {0:?}")]
    Stalled(Duration),
    /// The target has accepted a write of a newer lease.
    #[error(transparent)]
    Fenced(#[from] StaleWrite),
}

fn named_step(step: &str) -> String {
    format!("step `{step}`: ")
}

/// Whether the text of an error says that it comes from this step of a handler chain.
pub(crate) fn is_of_step(error: &str, step: &str) -> bool {
    // The text of the error was redacted too, should a secret be part of the step's name.
    error.contains(redact(&named_step(step)).as_ref())
}

impl HandlerError {
    /// Returns a name for what went wrong, one of few, as attributes want it.
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

    /// Returns how long the target asks to be left alone, where it said so.
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

    /// Returns the same error with the step of a handler chain that it comes from in front.
    pub(crate) fn in_step(self, step: &str) -> Self {
        let named = |reason: String| format!("{}{reason}", named_step(step));
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
            // Their texts do not depend on the sender.
            Self::Stalled(_) | Self::Fenced(_) => self,
        }
    }

    /// Returns the same error of a handler that had accepted events of a batch of `rows` before; `Ok`
    /// where it had accepted all of them, and this does not say that it must stop.
    pub(crate) fn after(self, accepted: usize, rows: usize) -> Result<(), Self> {
        Err(match self {
            Self::Partial { .. }
            | Self::Retryable(_)
            | Self::Rejected(_)
            | Self::TooLarge(_)
            | Self::Stalled(_)
                if accepted >= rows =>
            {
                return Ok(());
            }
            Self::Partial { accepted: said, reason } => {
                Self::Partial { accepted: said.max(accepted), reason }
            }
            Self::Retryable(_) | Self::Rejected(_) | Self::TooLarge(_) | Self::Stalled(_)
                if accepted > 0 =>
            {
                Self::Partial { accepted, reason: self.to_string() }
            }
            // About the target, not the rows, or nothing was accepted: answered as it is.
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
}

/// Longest wait of [`Handler::settle`]. An aborted call has a second until the process is forced to end, and its lease
/// is released in the rest of it.
pub const SETTLE_TIME_MAX: Duration = Duration::from_millis(500);

/// Takes batches of events, each at least once.
///
/// # Contract
///
/// `Ok` means permanently accepted: the checkpoint moves past the batch. The same events may come again,
/// with the same ids, so taking them must be idempotent. Dropping the future is allowed at any await
/// (the lease was lost, or time ran out) and leaves the outcome unknown. A handler must not block its
/// thread: the lease is renewed by the same task.
#[async_trait]
pub trait Handler: fmt::Debug + Send + Sync {
    /// Whether the handler reports [`Progress`].
    fn reports_progress(&self) -> bool {
        false
    }

    /// Returns how long a call may take by the handler's own limit; `None` where that of the tick is all.
    ///
    /// Where calls come near it, batches get smaller.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// Returns the steps of a chain, in order; none of any other handler.
    ///
    /// The engine calls them one by one and keeps the result of each before it calls the next, so that
    /// a redelivered batch continues where it stopped.
    fn steps(&self) -> &[Step] {
        &[]
    }

    /// Checks, without waiting, that what this process itself delivers to is there. A process that runs ticks asks
    /// at its start; commands that run none do not.
    ///
    /// # Errors
    ///
    /// [`HandlerError::Misconfigured`] if every delivery would fail.
    fn check(&self) -> Result<(), HandlerError> {
        self.steps().iter().try_for_each(|step| step.handler.check())
    }

    /// Takes one batch.
    ///
    /// # Errors
    ///
    /// [`HandlerError`] decides what the engine does next.
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError>;

    /// Waits, for half a second at most, until nothing that a dropped call has started is at work any more.
    async fn settle(&self) {}
}
