//! How a tick can end, and the table of what each outcome means for logs, metrics and replies.

use thiserror::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::Level;

use crate::document::{FailureRecord, Fence, LoadError, Paused, Refusal};
use crate::error::{
    ErrorKind, accept_source, raise_above, restart_in_source, restart_range, restore_state,
};
use crate::handler::HandlerError;
use crate::lease::LeaseError;
use crate::metrics::{FAILURES, RefusedBy};
use crate::normalize::NormalizeError;
use crate::partition::Partition;
use crate::quarantine::{EntryError, RecordError};
use crate::source::FetchError;
use crate::store::StoreError;

/// A tick that did what it could.
#[derive(Clone, Debug, PartialEq)]
pub enum TickOutcome {
    /// At least one batch was delivered and committed.
    Committed {
        /// Whether rows are known to be waiting.
        more: bool,
    },
    /// There were no new rows.
    Idle,
    /// Another tick is in progress.
    Skipped(Skipped),
    /// The batch failed and is not retried yet.
    BackingOff {
        /// Storage time of the next attempt.
        until: OffsetDateTime,
        /// What failed.
        failing: Option<FailureRecord>,
    },
    /// The poller is paused.
    Paused {
        /// Who paused it.
        by: String,
        /// Why.
        reason: String,
        /// Since when.
        since: OffsetDateTime,
    },
}

/// Why a tick was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// This process runs a tick of the same poller.
    AlreadyRunning,
    /// Another instance holds the lease.
    Held {
        /// The holder.
        owner_id: String,
        /// Storage time at which the lease expires if it is not renewed.
        until: OffsetDateTime,
    },
    /// Another instance wrote first, twice.
    Conflict,
}

/// Where a tick failed. The next tick reads again what was not committed.
#[derive(Debug, Error)]
pub enum TickError {
    /// The state document could not be read; the handler was not called.
    #[error("load state document")]
    Load(#[from] LoadError),
    /// The entry of a parked key cannot be read, so the key's rows cannot be added to it.
    #[error("add a row to the entry of its parked key")]
    Entry(#[source] EntryError),
    /// The checkpoint belongs to another source.
    #[error(
        "source no longer matches the checkpoint: {differences}; revert the setting, or {}",
        if *keeps { accept_source(poller) } else { restart_in_source(poller) }
    )]
    Fingerprint {
        /// The poller.
        poller: String,
        /// How the settings differ from the source of the checkpoint.
        differences: String,
        /// Whether the position can be kept in the source of the settings.
        keeps: bool,
    },
    /// The number of partitions differs from that of the partitions that have run.
    #[error(
        "state of poller `{poller}` has {stored} partitions, but the settings have {configured}: set \
         `HIGHWATER__POLLERS__{}__PARTITIONS` to `{stored}`, or run `highwater repartition {poller} --to \
         {configured} --reason \"other partitions\"`",
        poller.to_ascii_uppercase()
    )]
    OtherPartitionCount {
        /// The poller, without partition.
        poller: String,
        /// The number of partitions in its state.
        stored: u16,
        /// The number in the settings.
        configured: u16,
    },
    /// The poller has run before, but its state is gone.
    #[error(
        "state document of `{poller}` is gone, but the poller has run since {ran_since}: {}",
        restore_state(poller, Some(*has_journal))
    )]
    StateVanished {
        /// The poller.
        poller: String,
        /// When its marker was written, or this process first saw its document; RFC 3339.
        ran_since: String,
        /// Whether there is a journal to rebuild it from.
        has_journal: bool,
    },
    /// The poller has no state here, but a poller of the same name has delivered under another application.
    #[error(
        "poller `{poller}` has never run as `{here}`, but app `{app}` has delivered the same source (`{there}`{}): the \
         app was renamed, or this is another slot. Continue from there with `highwater clone {poller} --from-app \
         {app} --reason \"app renamed\"`, or start here on purpose with `highwater init {poller}`",
        earlier(*others)
    )]
    FirstRunElsewhere {
        /// The poller.
        poller: String,
        /// Where its document would be stored.
        here: String,
        /// The other application; the one whose document was written last.
        app: String,
        /// Where its document is stored.
        there: String,
        /// How many more applications have delivered it before that one.
        others: usize,
    },
    /// As above, and the other application has another number of partitions.
    #[error(
        "poller `{poller}` has never run as `{here}`, but app `{app}` has delivered the same source (`{there}`{}) with \
         `PARTITIONS` {stored}, which is {configured} here. Continue from there: set \
         `HIGHWATER__POLLERS__{}__PARTITIONS={stored}`, run {}, and then `highwater repartition {poller} --to \
         {configured} --reason \"other partitions\"`; or start here on purpose with `highwater init {poller}`",
        earlier(*others),
        poller.to_ascii_uppercase(),
        clone_each(poller, app, *stored)
    )]
    OtherPartitionCountElsewhere {
        /// The poller, without partition.
        poller: String,
        /// Where its document would be stored.
        here: String,
        /// The other application; the one whose document was written last.
        app: String,
        /// Where its document is stored.
        there: String,
        /// How many more applications have delivered it before that one.
        others: usize,
        /// The number of partitions there.
        stored: u16,
        /// The number in the settings.
        configured: u16,
    },
    /// The poller has no state, and is configured to start from now.
    #[error("{}", not_started(poller))]
    NotStarted {
        /// The poller.
        poller: String,
    },
    /// The lease could not be acquired.
    #[error("acquire lease")]
    Acquire(#[source] LeaseError),
    /// The source could not be read.
    #[error("fetch rows")]
    Fetch(#[source] FetchError),
    /// A row cannot become an event.
    #[error("normalise rows")]
    Normalize(#[source] NormalizeError),
    /// The handler did not accept the batch.
    #[error("handle batch")]
    Handler(#[source] HandlerError),
    /// The target has accepted a higher grant, but the state document has none: it is an older copy.
    #[error(
        "target has accepted grant {current}, but the newest grant of the state document is {stale}: \
         the document was restored from an older copy, or belongs to a copy of the app; {}",
        raise_above(poller, current)
    )]
    FenceAhead {
        /// The poller.
        poller: String,
        /// The grant that the target rejected.
        stale: Fence,
        /// The highest grant that it has accepted.
        current: Fence,
    },
    /// The handler was stopped before the host's timeout could kill the process.
    #[error("the handler was stopped because the tick ran out of time")]
    OutOfTime,
    /// The process was asked to stop, and the handler took longer than the grace period. Neither an attempt nor a
    /// crash is counted.
    #[error(
        "the process is stopping; the handler call was aborted, and its rows will be redelivered"
    )]
    Aborted,
    /// The lease was lost while the batch was being handled.
    #[error("hold lease")]
    LeaseLost(#[source] LeaseError),
    /// The batch was accepted, but the checkpoint did not move, or may not have.
    #[error("commit checkpoint")]
    Commit(#[source] LeaseError),
}

fn not_started(document: &str) -> String {
    if let Some(restart) = restart_range(document) {
        return format!("the state document of `{document}` is gone: {restart}");
    }
    format!(
        "poller `{document}` has no state and is configured to start from now: run `highwater init {document}` once; \
         ticks do not, because they would mistake a lost state for a first start"
    )
}

/// Returns the command that continues a poller with this number of partitions from another application.
fn clone_each(poller: &str, app: &str, count: u16) -> String {
    let clone =
        |name: &str| format!("`highwater clone {name} --from-app {app} --reason \"app renamed\"`");
    match Partition::all(count).into_iter().flatten().next() {
        Some(first) => {
            format!(
                "{} and the same for each of the {count} partitions",
                clone(&first.name(poller))
            )
        }
        None => clone(poller),
    }
}

fn earlier(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => ", the newest; 1 other app has delivered it earlier".to_owned(),
        others => format!(", the newest; {others} other apps have delivered it earlier"),
    }
}

impl TickError {
    /// Returns who rejected a write for its stale token, if the tick ended that way.
    pub(crate) fn refused_by(&self) -> Option<RefusedBy> {
        if matches!(self, Self::Handler(HandlerError::Fenced(_)) | Self::FenceAhead { .. }) {
            return Some(RefusedBy::Target);
        }
        let lost = matches!(
            self,
            Self::LeaseLost(LeaseError::Lost(_)) | Self::Commit(LeaseError::Lost(_))
        );
        lost.then_some(RefusedBy::State)
    }
}

/// One row of the table: what an outcome means for logs, metrics and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeRow {
    /// Value of the `outcome` attribute of metrics.
    pub outcome: &'static str,
    /// Name of the error, if it failed.
    pub error: Option<&'static str>,
    /// Name of the log event.
    pub event: &'static str,
    /// Counter that counts it by `error.type`, if it is a failure; the duration of every tick is recorded in
    /// `highwater.tick.duration` by `outcome`.
    pub metric: Option<&'static str>,
    /// Level of that event; `ERROR` means that an operator may be needed.
    pub level: Level,
    /// Status of the reply to the Functions host: anything but 200 marks the invocation as failed.
    pub status: u16,
}

/// Returns the outcome of a tick that may not run; `lapses_at` is when the lease of another holder would expire.
pub(crate) fn refused_outcome(refusal: &Refusal, lapses_at: OffsetDateTime) -> Option<TickOutcome> {
    match refusal {
        Refusal::Held { owner_id } => {
            let owner_id = owner_id.clone();
            Some(TickOutcome::Skipped(Skipped::Held { owner_id, until: lapses_at }))
        }
        Refusal::Paused { by, reason, since } => {
            let (by, reason, since) = (by.clone(), reason.clone(), *since);
            Some(TickOutcome::Paused { by, reason, since })
        }
        Refusal::BackingOff { until, failing } => {
            Some(TickOutcome::BackingOff { until: *until, failing: failing.clone() })
        }
        Refusal::Superseded { .. }
        | Refusal::Backwards { .. }
        | Refusal::FenceAhead(_)
        | Refusal::TokensExhausted { .. } => None,
    }
}

/// Returns the row of the table for a tick's outcome.
///
/// The duration of each tick is recorded in `highwater.tick.duration` with `outcome` as its attribute; the metric
/// counts it by `error.type`. A write under a stale token that the target or the state document rejects is also
/// counted in `highwater.fence.rejections`.
///
/// | end | outcome | error | log event | level | metric | status |
/// |---|---|---|---|---|---|---|
/// | committed | `committed` | – | `tick_complete` | INFO | – | 200 |
/// | nothing new | `idle` | – | `fetch_empty` | DEBUG | – | 200 |
/// | held, running, conflict | `skipped` | `LeaseAcquireError`, kept inside | `lease_acquire_skipped` | DEBUG | – | 200 |
/// | backing off | `backing_off` | – | `tick_backing_off` | INFO | – | 200 |
/// | paused by a person | `paused` | – | `tick_paused` | INFO | – | 200 |
/// | paused by a rule (`ON_FAILURE=stop`, a reply of 410) | `paused` | – | `tick_paused` | WARN | – | 200 |
/// | state cannot be read | `load_failed` | `LeaseAcquireError` | `lease_acquire_failed` | ERROR | `highwater.tick.failures` | 500 |
/// | source or number of its partitions changed | `fingerprint` | `FingerprintMismatchError` | `fingerprint_mismatch` | ERROR | `highwater.tick.failures` | 500 |
/// | state vanished | `state_vanished` | `LeaseAcquireError` | `state_vanished` | ERROR | `highwater.tick.failures` | 500 |
/// | not started explicitly | `not_started` | `LeaseAcquireError` | `not_started` | ERROR | `highwater.tick.failures` | 500 |
/// | first start, and it ran under another app | `first_run_elsewhere` | `LeaseAcquireError` | `first_run_elsewhere` | ERROR | `highwater.tick.failures` | 500 |
/// | lease cannot be asked for | `acquire_failed` | `LeaseAcquireError` | `lease_acquire_failed` | ERROR | `highwater.tick.failures` | 500 |
/// | fetch | `fetch_failed` | `FetchError` | `fetch_failed` | ERROR | `highwater.tick.failures` | 500 |
/// | the source has lost what follows the checkpoint | `position_lost` | `FetchError` | `position_lost` | ERROR | `highwater.tick.failures` | 500 |
/// | the source's columns have changed, and it is to stop then | `schema_changed` | `FetchError` | `schema_changed` | ERROR | `highwater.tick.failures` | 500 |
/// | normalise | `normalize_failed` | `SerializationError` | `normalize_failed` | ERROR | `highwater.tick.failures` | 500 |
/// | handler | `handler_failed` | `HandlerError` | `handler_failed` | ERROR | `highwater.tick.failures` | 500 |
/// | handler ran out of time | `out_of_time` | `HandlerError` | `handler_failed` | ERROR | `highwater.tick.failures` | 500 |
/// | handler aborted, as the process stops | `aborted` | `HandlerError` | `tick_aborted` | WARN | – | 500 |
/// | stale write refused by the target | `fenced` | `LostLeaseError` | `stale_write_blocked` | WARN | `highwater.tick.failures` | 500 |
/// | stale write refused by the target, and no owner is newer | `fence_ahead` | `HandlerError` | `fence_ahead` | ERROR | `highwater.tick.failures` | 500 |
/// | lease lost | `lease_lost` | `LostLeaseError` | `lease_lost` | WARN | `highwater.tick.failures` | 500 |
/// | commit | `commit_failed` | `CommitError` | `commit_failed` | ERROR | `highwater.tick.failures` | 500 |
pub fn outcome_row(result: &Result<TickOutcome, TickError>) -> OutcomeRow {
    match result {
        Ok(TickOutcome::Committed { .. }) => quiet("committed", "tick_complete", Level::INFO),
        Ok(TickOutcome::Idle) => quiet("idle", "fetch_empty", Level::DEBUG),
        Ok(TickOutcome::Skipped(_)) => OutcomeRow {
            error: Some("LeaseAcquireError"),
            ..quiet("skipped", "lease_acquire_skipped", Level::DEBUG)
        },
        Ok(TickOutcome::BackingOff { .. }) => quiet("backing_off", "tick_backing_off", Level::INFO),
        Ok(TickOutcome::Paused { by, .. }) => {
            let level = if Paused::is_by_rule(by) { Level::WARN } else { Level::INFO };
            quiet("paused", "tick_paused", level)
        }
        Err(error) => failed(error),
    }
}

/// Formats a time like the state document does, so that one can be found by the other.
pub(crate) fn rfc3339(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}

/// Rounds up to a whole second, so that a reader who waits until then has waited long enough.
pub(crate) fn whole_second_after(at: OffsetDateTime) -> OffsetDateTime {
    let second = at.truncate_to_second();
    if second == at { at } else { second + time::Duration::SECOND }
}

fn quiet(outcome: &'static str, event: &'static str, level: Level) -> OutcomeRow {
    OutcomeRow { outcome, error: None, event, level, metric: None, status: 200 }
}

pub(super) fn failed(error: &TickError) -> OutcomeRow {
    let (outcome, name, event) = match error {
        TickError::Load(_) | TickError::Entry(_) => {
            ("load_failed", "LeaseAcquireError", "lease_acquire_failed")
        }
        TickError::Acquire(_) => ("acquire_failed", "LeaseAcquireError", "lease_acquire_failed"),
        TickError::Fingerprint { .. } | TickError::OtherPartitionCount { .. } => {
            ("fingerprint", "FingerprintMismatchError", "fingerprint_mismatch")
        }
        TickError::StateVanished { .. } => {
            ("state_vanished", "LeaseAcquireError", "state_vanished")
        }
        TickError::FirstRunElsewhere { .. } | TickError::OtherPartitionCountElsewhere { .. } => {
            ("first_run_elsewhere", "LeaseAcquireError", "first_run_elsewhere")
        }
        TickError::NotStarted { .. } => ("not_started", "LeaseAcquireError", "not_started"),
        TickError::Fetch(error) if error.is_position_lost() => {
            ("position_lost", "FetchError", "position_lost")
        }
        TickError::Fetch(error) if error.schema_changed => {
            ("schema_changed", "FetchError", "schema_changed")
        }
        TickError::Fetch(_) => ("fetch_failed", "FetchError", "fetch_failed"),
        TickError::Normalize(_) => ("normalize_failed", "SerializationError", "normalize_failed"),
        TickError::Handler(HandlerError::Fenced(_)) => {
            ("fenced", "LostLeaseError", "stale_write_blocked")
        }
        TickError::FenceAhead { .. } => ("fence_ahead", "HandlerError", "fence_ahead"),
        TickError::Handler(_) => ("handler_failed", "HandlerError", "handler_failed"),
        TickError::OutOfTime => ("out_of_time", "HandlerError", "handler_failed"),
        TickError::Aborted => {
            let status = 500;
            let row = quiet("aborted", "tick_aborted", Level::WARN);
            return OutcomeRow { error: Some("HandlerError"), status, ..row };
        }
        TickError::LeaseLost(_) => ("lease_lost", "LostLeaseError", "lease_lost"),
        TickError::Commit(_) => ("commit_failed", "CommitError", "commit_failed"),
    };
    // A lost lease is part of the protocol (001 §5.6): no operator is needed.
    let level = if name == "LostLeaseError" { Level::WARN } else { Level::ERROR };
    OutcomeRow { outcome, error: Some(name), event, level, metric: Some(FAILURES), status: 500 }
}

impl TickError {
    /// Returns the error of a tick whose commit failed.
    pub(crate) fn of_commit(error: LeaseError) -> Self {
        match error {
            LeaseError::Lost(_) | LeaseError::Gone => Self::LeaseLost(error),
            LeaseError::Lapsed
            | LeaseError::OutOfTime
            | LeaseError::Uncommitted(_)
            | LeaseError::Refused(_)
            | LeaseError::Store(_)
            | LeaseError::Format(_) => Self::Commit(error),
        }
    }

    /// Returns the error of a tick that could not read or write an entry.
    pub(crate) fn from_entry(error: RecordError) -> Self {
        match error {
            RecordError::Store(error) => Self::Load(error.into()),
            RecordError::Entry(error) => Self::Entry(error),
        }
    }

    /// Returns the error of a tick whose lease was lost during work.
    pub(crate) fn of_loss(error: LeaseError) -> Self {
        match error {
            LeaseError::Uncommitted(error) => Self::of_commit(*error),
            LeaseError::Lost(_)
            | LeaseError::Gone
            | LeaseError::Lapsed
            | LeaseError::OutOfTime
            | LeaseError::Refused(_)
            | LeaseError::Store(_)
            | LeaseError::Format(_) => Self::LeaseLost(error),
        }
    }

    /// Whether the state store works, as far as the tick knows, and has the poller's document.
    pub(crate) fn leaves_store_usable(&self) -> bool {
        !matches!(
            self,
            Self::Load(_)
                | Self::StateVanished { .. }
                | Self::Acquire(LeaseError::Store(_))
                | Self::Commit(LeaseError::Store(_))
        )
    }

    /// Returns what kind of action the error needs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Load(LoadError::Format(_))
            | Self::Entry(_)
            | Self::Acquire(LeaseError::Refused(_))
            | Self::StateVanished { .. }
            | Self::FenceAhead { .. }
            | Self::Normalize(_)
            | Self::Handler(HandlerError::Rejected(_)) => ErrorKind::Data,
            Self::Fetch(error) => error.kind,
            Self::Load(LoadError::Store(StoreError::Refused { .. }))
            | Self::Acquire(LeaseError::Store(StoreError::Refused { .. }))
            | Self::Fingerprint { .. }
            | Self::OtherPartitionCount { .. }
            | Self::NotStarted { .. }
            | Self::FirstRunElsewhere { .. }
            | Self::OtherPartitionCountElsewhere { .. }
            | Self::Handler(HandlerError::Misconfigured(_) | HandlerError::Gone(_)) => {
                ErrorKind::Configuration
            }
            Self::Load(LoadError::Store(_))
            | Self::Acquire(_)
            | Self::Handler(_)
            | Self::OutOfTime
            | Self::Aborted
            | Self::LeaseLost(_)
            | Self::Commit(_) => ErrorKind::Transient,
        }
    }
}
