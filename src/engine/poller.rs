//! A poller: its configuration, and what this process remembers between ticks.
//!
//! One run of it is a `Tick`, shown from top to bottom in `tick.rs`; the [crate documentation](crate) has the
//! diagram. Operators change it through [`Admin`](crate::admin::Admin).

mod bounded_source;
pub(crate) mod delivered_ids;
mod first_run;
mod journal;
pub(crate) mod memory;
pub(crate) mod outcome;
mod partition_check;
pub(crate) mod position_loss;
mod position_times;
pub(crate) mod stop_signal;
pub(crate) mod tick_history;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use self::delivered_ids::Auditor;
use self::journal::Journal;
pub use self::journal::Operator;
use self::memory::Memory;
pub(crate) use self::memory::has_position;
pub use self::outcome::{OutcomeRow, Skipped, TickError, TickOutcome, outcome_row};
use self::position_loss::FoundLoss;
use self::position_times::PositionTimes;
pub use self::stop_signal::StopSignal;
use self::tick_history::TickHistory;
use crate::cursor::KeyId;
use crate::document::{DocumentStore, OnMissingState, StateDocument};
use crate::handler::{Handler, HandlerError};
use crate::journal::JournalMode;
use crate::lease::{Instance, LeaseTerms};
use crate::metrics::Metrics;
use crate::notification::Notifier;
use crate::partition::Partition;
use crate::policy::{FailurePolicy, Flow};
use crate::repeats::LogThrottle;
use crate::source::Source;
use crate::store::{StateKey, StateStore};

/// Limits of one tick, and backoff after failures.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most rows in one batch.
    pub batch_rows_max: usize,
    /// Most bytes of encoded events in one batch; a single larger event fails the tick.
    pub batch_bytes_max: usize,
    /// Most batches in one tick; `None` for no limit but time.
    pub batches_max: Option<u64>,
    /// No batch starts later than this after the start of the tick.
    pub tick_time_max: Duration,
    /// The handler is stopped this long after the start of the tick.
    pub handler_stop_after: Duration,
    /// A handler that reports progress is stopped after this long without any; `None` for never.
    pub handler_stall_max: Option<Duration>,
    /// How long a document in memory may be used without reading it again.
    pub state_refresh: Duration,
    /// How often idle ticks record that they ran, and failing ones that they failed; zero for never.
    pub status_interval: Duration,
    /// Backoff after the first failure of a batch; doubled after each further one.
    pub retry_delay_min: Duration,
    /// Longest backoff.
    pub retry_delay_max: Duration,
    /// Longest backoff that a target may ask for.
    pub retry_after_max: Duration,
    /// What to do if a poller that has run before has no state.
    pub on_missing_state: OnMissingState,
}

/// A source, a handler and the state between them, with settings.
pub struct Poller {
    pub(crate) name: String,
    pub(crate) key: StateKey,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) instance: Arc<Instance>,
    pub(crate) terms: LeaseTerms,
    pub(crate) limits: Limits,
    pub(crate) policy: FailurePolicy,
    /// How batches follow each other within a tick.
    pub(crate) flow: Flow,
    /// Most rows of the next batch, as the previous ones suggest.
    pub(crate) batch_rows: AtomicUsize,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether a poller without state waits for `init`, and then starts after the rows that exist.
    pub(crate) start_now: bool,
    /// Reports changes to operators.
    pub(crate) notifier: Option<Arc<dyn Notifier>>,
    /// What ticks did, and where it is recorded.
    pub(crate) journal: Journal,
    /// The poller whose past rows this one replays; `None` for an ordinary poller.
    pub(crate) range_of: Option<String>,
    /// Which partition of the keys it delivers; `None` for all.
    pub(crate) partition: Option<Partition>,
    /// Whether the documents of its other partitions are read before one is created.
    pub(crate) checks_siblings: bool,
    /// Whether it delivers while paused: for operators' own work under that pause.
    pub(crate) through_pause: bool,
    /// Set if closed windows are audited.
    pub(crate) audit: Option<Auditor>,
    /// Most rows to count if some wait; 0 disables counting.
    pub(crate) rows_counted_max: usize,
    /// Since when every tick of this process found the lease held. Not in `memory`, which a tick keeps locked.
    pub(crate) skipped_since: std::sync::Mutex<Option<time::OffsetDateTime>>,
    /// How long the last commit took, plus one; 0 for none.
    pub(crate) last_commit_ms: AtomicU64,
    /// Log lines that stay true for many ticks.
    pub(crate) log_throttle: LogThrottle,
    /// When this process first saw that the poller has run; survives a loss of both document and marker.
    pub(crate) ran_since: OnceLock<time::OffsetDateTime>,
    /// Set once this process has seen or written the marker.
    pub(crate) saw_marker: OnceLock<()>,
    /// The last permanent loss of rows that this process found; it may not be stored.
    pub(crate) loss: std::sync::Mutex<Option<FoundLoss>>,
    /// How the ticks of this process ended. Not in `memory`, which a tick keeps locked.
    pub(crate) history: std::sync::Mutex<TickHistory>,
    /// The newest positions of recent reads. Not in `memory`: a prefetch runs while a tick keeps that locked.
    /// Held while a row is explained, which asks the database.
    pub(crate) trace_lock: Mutex<()>,
    pub(crate) position_times: std::sync::Mutex<PositionTimes>,
    /// What the last tick knew. A running tick keeps it locked, which is how a second tick notices it.
    pub(crate) memory: Mutex<Memory>,
}

/// The parts of a poller.
#[derive(Debug)]
pub struct PollerParts {
    /// Name of the poller.
    pub name: String,
    /// Where changes come from.
    pub source: Arc<dyn Source>,
    /// Where changes go.
    pub handler: Arc<dyn Handler>,
    /// Where the state document is stored.
    pub store: Arc<dyn StateStore>,
    /// This process.
    pub instance: Arc<Instance>,
    /// Terms of the lease.
    pub terms: LeaseTerms,
    /// Limits of one tick.
    pub limits: Limits,
    /// What happens to rows that are not accepted.
    pub policy: FailurePolicy,
    /// Where measurements go.
    pub metrics: Arc<Metrics>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Poller").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Poller {
    /// Builds a poller.
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
            notifier: None,
            journal: Journal::off(),
            range_of: None,
            partition: None,
            checks_siblings: false,
            through_pause: false,
            audit: None,
            rows_counted_max: 0,
            skipped_since: std::sync::Mutex::default(),
            last_commit_ms: AtomicU64::new(0),
            log_throttle: LogThrottle::default(),
            ran_since: OnceLock::new(),
            saw_marker: OnceLock::new(),
            loss: std::sync::Mutex::default(),
            history: std::sync::Mutex::default(),
            trace_lock: Mutex::default(),
            position_times: std::sync::Mutex::default(),
            memory: Mutex::default(),
        }
    }

    /// Lets a poller that never ran start after the rows that exist at its
    /// [`Admin::init`](crate::admin::Admin::init), instead of with all rows of its source.
    #[must_use]
    pub fn starting_now(self) -> Self {
        Self { start_now: true, ..self }
    }

    /// Sets how batches follow each other.
    #[must_use]
    pub fn with_flow(self, flow: Flow) -> Self {
        Self { flow, ..self }
    }

    /// Returns access to its document; retries end after `patience`.
    pub(crate) fn documents(&self, patience: Duration) -> DocumentStore<'_> {
        DocumentStore { store: &*self.store, key: &self.key, until: Instant::now() + patience }
    }

    /// Returns a document that has only the poller's identity.
    pub(crate) fn blank(&self) -> StateDocument {
        let fingerprint = self.source.shape().fingerprint.clone();
        let mut blank = StateDocument::blank(&self.name, fingerprint);
        blank.partition = self.partition;
        blank
    }

    /// Makes it a replay of what `poller` has delivered. Rows that it quarantines belong to that poller, and no tick
    /// starts without a document that [`Admin::begin_range`](crate::admin::Admin::begin_range) created.
    #[must_use]
    pub fn with_replay_of(self, poller: &str) -> Self {
        Self { range_of: Some(poller.to_owned()), start_now: true, ..self }
    }

    /// Returns the same poller under another name, for a poller that is not in the settings yet.
    #[must_use]
    pub fn under_name(&self, name: &str) -> Self {
        let other = Self::new(PollerParts {
            name: name.to_owned(),
            source: self.source.clone(),
            handler: self.handler.clone(),
            store: self.store.clone(),
            instance: self.instance.clone(),
            terms: self.terms,
            limits: self.limits,
            policy: self.policy,
            metrics: self.metrics.clone(),
        });
        let mode = self.recorder().mode();
        match &self.journal.store {
            Some(store) => other.with_journal(mode, store.clone(), None),
            None => other,
        }
    }

    /// Returns the poller as it is under another application in the same store, for reading only; `None` if the
    /// store does not separate applications.
    #[must_use]
    pub fn under_app(&self, app: &str) -> Option<Self> {
        let store = self.store.of_app(app)?;
        Some(Self { store, ..self.under_name(&self.name) })
    }

    /// Returns the name of the poller that the rows belong to.
    pub(crate) fn of(&self) -> &str {
        self.range_of.as_deref().unwrap_or(&self.name)
    }

    /// Returns how many partitions the keys are divided into.
    pub(crate) fn partition_count(&self) -> u16 {
        self.partition.map_or(1, |partition| partition.count)
    }

    pub(crate) fn entry_key(&self, key: &KeyId) -> StateKey {
        StateKey::Quarantined { poller: self.of().to_owned(), key: key.clone() }
    }

    /// Returns how much the journal records.
    pub fn journal_mode(&self) -> JournalMode {
        self.recorder().mode()
    }

    /// Reports changes through `notifier`.
    #[must_use]
    pub fn with_notifier(self, notifier: Arc<dyn Notifier>) -> Self {
        Self { notifier: Some(notifier), ..self }
    }

    /// Returns how long its lease lives without a write.
    pub fn lease_ttl(&self) -> Duration {
        self.terms.ttl
    }

    /// Returns how often idle and failing ticks record that they ran; zero for never.
    pub fn status_interval(&self) -> Duration {
        self.limits.status_interval
    }

    /// Whether it keeps a journal.
    pub fn keeps_journal(&self) -> bool {
        self.recorder().mode() != JournalMode::Off
    }

    /// Remembers how long the last commit took; the next tick records it.
    pub(crate) fn keep_commit(&self, milliseconds: u64) {
        self.last_commit_ms.store(milliseconds.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns how long the last commit of this process took, in milliseconds, with the name of the step.
    pub(crate) fn last_commit(&self) -> Option<(String, u64)> {
        let kept = self.last_commit_ms.load(Ordering::Relaxed).checked_sub(1)?;
        Some(("commit".to_owned(), kept))
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
}
