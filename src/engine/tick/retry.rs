//! Retrying parked keys, before the regular batch and under a grant of its own.
//!
//! A retry reads the row as it is now and delivers it alone. Each is counted in the entry before the handler is called, so
//! a row that crashes the process is not retried at once by the next one. The grant is not one for the batch in
//! flight, so such a crash does not count against that either.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info, warn};

use super::alone::{AloneCall, CallResult, EventToDeliver};
use super::report::Report;
use super::{ACQUIRE_TRIES_MAX, Tick, blame, reject_if_single_row};
use crate::backoff::seed_of;
use crate::cursor::{Cursor, KeyId};
use crate::document::{Paused, Snapshot};
use crate::error::chain;
use crate::event::ChangeEvent;
use crate::handler::HandlerError;
use crate::journal::{Details, EventKind};
use crate::lease::{AcquireResult, Lease, LeaseContext, LeaseError};
use crate::policy::Blame;
use crate::poller::{Poller, StopSignal, TickError};
use crate::quarantine::{Entry, EntryState, KnownKeys, decode, keys_of};
use crate::source::FetchWindow;
use crate::store::{ETag, Precondition, StoreError};

/// So many keys are retried before a tick decides whether to retry more. They end with a share of its time in any case, so
/// that other rows do not wait for long.
const RETRIES_AT_ONCE: usize = 50;
/// Most keys that one tick retries while the breaker is open: the target seems to reject everything.
const RETRIES_WITH_BREAKER_MAX: usize = 1;
/// Most entries that are read in between to learn when their keys are due.
const READS_MAX: usize = 100;
/// So long after it has read some entries, a tick reads more of them.
const READ_INTERVAL: Duration = Duration::from_secs(60);
/// So many retries in a row that fail for no known reason end the retries of a tick: most likely it is the target.
const UNKNOWN_FAILURES_MAX: u32 = 3;
/// A retry that says nothing about the row, such as one without a connection to the database, is repeated after this time.
const UNCOUNTED_DELAY: Duration = Duration::from_secs(60);
/// The share of a tick's time after which no further key is retried.
const TIME_SHARE: u32 = 4;
/// The share of a tick's time that one retry may take.
const CALL_TIME_SHARE: u32 = 2;
/// So long after its last version was read, a row that is not there is taken to be deleted. Before, a replica of the database may not
/// have it yet.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// The retries of one tick.
struct Retries<'t, 'p> {
    poller: &'p Poller,
    lease: Lease<'p>,
    keys: &'t mut KnownKeys,
    report: &'t mut Report<'p>,
    stop: StopSignal,
    until: Instant,
    /// Failures in a row that may be those of the target or the source.
    unknown_failures: u32,
    /// Keys that continue.
    recovered: usize,
}

/// When a tick retries parked keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before the regular batch, so that a poller with a long backlog retries them, too.
    BeforeTheBatch,
    /// Once no row is left. If a process crashed during a retry, the regular batch comes first: otherwise a parked row that
    /// crashes each process would hold back all other rows.
    WithoutBatch,
}

/// What became of the retries of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retried {
    /// Those that are due were made, or none is to be made now.
    Done,
    /// The regular batch comes first; see [`When::WithoutBatch`].
    AfterTheBatch,
}

/// Why a key has nothing left to deliver.
#[derive(Clone, Copy, Debug)]
enum Settled<'a> {
    /// The target accepted its row, at this position.
    Accepted(&'a Cursor),
    /// Its row is gone.
    RowGone,
}

/// Whether another key is retried.
#[derive(PartialEq, Eq)]
enum Then {
    NextKey,
    /// The target, the source or the store fails.
    End,
}

impl Tick<'_> {
    /// Retries parked keys that are due.
    ///
    /// # Errors
    ///
    /// [`TickError`] if the tick ends with it: the lease is lost, or the process stops. A key that fails again is not an error.
    pub(super) async fn retry_parked_keys(&mut self, when: When) -> Result<Retried, TickError> {
        let poller = self.poller;
        if !poller.holds_keys() {
            return Ok(Retried::Done);
        }
        let started_at = self.report.started_at();
        let context = LeaseContext {
            store: &*poller.store,
            key: &poller.key,
            instance: &poller.instance,
            terms: poller.terms,
            stop_at: started_at + poller.limits.handler_stop_after,
            journal: &poller.journal.recorder,
        };
        let mut held = None;
        for _ in 0..ACQUIRE_TRIES_MAX {
            let base = poller.load(&mut self.memory).await?;
            if !is_due(poller, &base) || !self.report.has_time() {
                return Ok(Retried::Done);
            }
            if when == When::BeforeTheBatch && crashed_in_retry(poller, &base) {
                return Ok(Retried::AfterTheBatch);
            }
            let asked = Lease::acquire_for_retries(context, &base).await;
            self.memory.forget();
            match asked.map_err(TickError::Acquire)? {
                AcquireResult::Held(lease) => {
                    held = Some(lease);
                    break;
                }
                // Another instance wrote since this process read the document.
                AcquireResult::Conflict => {}
                AcquireResult::Refused(_) => return Ok(Retried::Done),
            }
        }
        let Some(lease) = held else { return Ok(Retried::Done) };
        let mut retries = Retries {
            poller,
            lease: *lease,
            keys: &mut self.memory.keys,
            stop: self.report.request().stop.clone(),
            report: &mut self.report,
            until: Instant::now() + poller.limits.tick_time_max / TIME_SHARE,
            unknown_failures: 0,
            recovered: 0,
        };
        let ended = match Box::pin(retries.run()).await {
            // The regular batch finds that out, too.
            Err(TickError::LeaseLost(LeaseError::OutOfTime)) => Ok(()),
            ended => ended,
        };
        let lease = retries.end(&ended).await;
        self.report.note_retries();
        if let Some(lease) = lease.filter(|_| ended.is_ok()) {
            self.memory.remember(lease);
        }
        ended.map(|()| Retried::Done)
    }
}

/// Whether some key is due, and ticks may deliver. A process that crashed with a batch comes first: the next grant must
/// be one for that batch.
fn is_due(poller: &Poller, base: &Snapshot) -> bool {
    let document = &base.document;
    let is_due = document.parked.next_retry_at.is_some_and(|at| at <= base.now());
    let crashed =
        document.in_flight.is_some() && !document.parked.is_retrying && poller.is_abandoned(base);
    is_due
        && !crashed
        && document.may_have_entries()
        && !document.is_blocked()
        && document.fence_ahead().is_none()
        && poller.block_reason(base).is_none()
}

/// Whether a process crashed during a retry, and no grant followed.
fn crashed_in_retry(poller: &Poller, base: &Snapshot) -> bool {
    base.document.parked.is_retrying && poller.is_abandoned(base)
}

impl<'p> Retries<'_, 'p> {
    async fn run(&mut self) -> Result<(), TickError> {
        let poller = self.poller;
        self.keys.follow(self.lease.document());
        if !self.keys.are_current(self.lease.document()) {
            let listed = self.lease.hold_while(keys_of(&*poller.store, poller.of())).await;
            match listed.map_err(TickError::LeaseLost)? {
                Ok(listed) => self.keys.list(self.lease.document(), listed),
                Err(error) => {
                    self.store_failed(&error);
                    return Ok(());
                }
            }
        }
        let rejected = self.lease.document().quarantined_in_a_row;
        let is_open = poller.policy.breaker_is_open(rejected);
        let at_once = if is_open { RETRIES_WITH_BREAKER_MAX } else { RETRIES_AT_ONCE };
        let mut is_first = true;
        loop {
            self.read_unread().await?;
            let due = self.keys.due(self.lease.now(), at_once);
            if due.is_empty() || !self.is_same_source().await? {
                return Ok(());
            }
            let before = self.recovered;
            for key in &due {
                // The first is retried however long it took to find it. Otherwise none would be where each tick has to
                // find them again, because another instance retries, too.
                let is_over = if is_first { self.stop.is_set() } else { self.is_over() };
                is_first = false;
                if is_over || self.retry(key).await? == Then::End {
                    return Ok(());
                }
            }
            // After an outage all of them recover. Otherwise the regular batch comes first.
            if is_open || self.recovered - before < due.len().div_ceil(2) {
                return Ok(());
            }
        }
    }

    /// Reads some entries to learn when their keys are due.
    async fn read_unread(&mut self) -> Result<(), TickError> {
        for key in self.keys.unread(READS_MAX, seed_of(self.lease.token().0)) {
            if self.is_over() {
                break;
            }
            self.entry(&key).await?;
        }
        Ok(())
    }

    /// Whether the source still is the one of the checkpoint: a row that another table does not have is not deleted. Only a
    /// fetch finds that out. The regular batch reports the error.
    async fn is_same_source(&mut self) -> Result<bool, TickError> {
        let document = self.lease.document().clone();
        let window = FetchWindow {
            after: document.checkpoint.cursor.as_ref(),
            upto: None,
            rows_max: 1,
            state: &document.source_state,
        };
        let fetched = self.lease.hold_while(self.poller.source.fetch_at_once(window)).await;
        Ok(fetched.map_err(TickError::LeaseLost)?.is_ok())
    }

    /// Whether no further key is retried in this tick.
    fn is_over(&self) -> bool {
        self.stop.is_set() || Instant::now() >= self.until
    }

    /// Records how many keys are left, and releases the lease; returns it if that is written.
    async fn end(mut self, ended: &Result<(), TickError>) -> Option<Lease<'p>> {
        // Released before, or lost.
        if matches!(
            ended,
            Err(TickError::LeaseLost(_) | TickError::FenceAhead { .. } | TickError::Handler(_))
        ) {
            return None;
        }
        if let Some(counted) =
            self.keys.counts(self.lease.document(), self.lease.now() + READ_INTERVAL)
        {
            self.lease.count_entries(counted);
        }
        // It lapses by itself if it cannot be released.
        self.lease.release(None, None).await.ok()?;
        // If there are fewer keys now, the release has started an epoch.
        self.keys.follow(self.lease.document());
        Some(self.lease)
    }

    /// Reads the entry of a key, and learns when the key is due.
    async fn entry(&mut self, key: &KeyId) -> Result<Option<(Entry, ETag)>, TickError> {
        let at = self.poller.entry_key(key);
        let loaded = self.lease.hold_while(self.poller.store.load(&at)).await;
        let stored = match loaded.map_err(TickError::LeaseLost)? {
            Ok(loaded) => loaded.stored,
            Err(error) => {
                self.store_failed(&error);
                return Ok(None);
            }
        };
        let Some(stored) = stored else {
            self.keys.forget(key);
            return Ok(None);
        };
        match decode(&at, &stored.bytes) {
            Ok(entry) => {
                self.keys.learn(key, &entry);
                Ok(Some((entry, stored.etag)))
            }
            Err(unreadable) => {
                let again_at = self.lease.now() + self.poller.policy.park.backoff.max;
                self.keys.learn_unreadable(key, again_at);
                error!(
                    event = "entry_unreadable",
                    poller.name = self.poller.name,
                    key_id = key.as_str(),
                    error = chain(&unreadable),
                    "An entry of poller `{0}` cannot be read, so its key waits: {1}; `highwater quarantine list {0}` shows it",
                    self.poller.name,
                    chain(&unreadable)
                );
                Ok(None)
            }
        }
    }

    async fn retry(&mut self, key: &KeyId) -> Result<Then, TickError> {
        let (poller, now) = (self.poller, self.lease.now());
        let Some((entry, etag)) = self.entry(key).await? else { return Ok(Then::NextKey) };
        if !entry.is_due(now) {
            return Ok(Then::NextKey);
        }
        let park = &poller.policy.park;
        if entry.may_be_retried(park) {
            self.retry_entry(key, entry, etag).await
        } else {
            // A process crashed during the last retry, or an operator lowered the limits.
            let quarantined = entry.to_be_retried(park, now);
            self.write(key, &quarantined, etag).await?;
            self.report.key_quarantined(&quarantined);
            Ok(Then::NextKey)
        }
    }

    async fn retry_entry(
        &mut self,
        key: &KeyId,
        entry: Entry,
        etag: ETag,
    ) -> Result<Then, TickError> {
        let (poller, now) = (self.poller, self.lease.now());
        let current = self.lease.hold_while(poller.current_row(&entry)).await;
        let counted = entry.retried(&poller.policy.park, now);
        let event = match current.map_err(TickError::LeaseLost)? {
            Ok(EventToDeliver::Event(event)) => event,
            // Nothing is left to deliver. A source that reports deletions does so in its turn.
            Ok(EventToDeliver::Gone) if now - entry.last_version_at >= GONE_AFTER => {
                return self.remove(key, &etag, &entry, Settled::RowGone).await;
            }
            Ok(EventToDeliver::Gone) => {
                self.write(key, &counted, etag).await?;
                return Ok(Then::NextKey);
            }
            Ok(EventToDeliver::Nothing(why)) => {
                return self.failed(key, counted, etag, HandlerError::Rejected(why)).await;
            }
            Err(error) => {
                // It says nothing about the target.
                self.report_failed(&chain(&error));
                self.write(key, &counted.uncounted(now + self.uncounted_delay()), etag).await?;
                return Ok(self.after_unknown_failure());
            }
        };
        let Some(etag) = self.write(key, &counted, etag).await? else { return Ok(Then::End) };
        let failed = match self.call(&counted, &event).await? {
            CallResult::Accepted => {
                self.unknown_failures = 0;
                if !entry.is_newer_than(&event, self.lease.generation()) {
                    let settled = Settled::Accepted(&event.cursor);
                    let then = self.remove(key, &etag, &counted, settled).await?;
                    // Another process may have added a version, which waits for the next retry.
                    self.recovered += usize::from(!self.keys.contains(key));
                    return Ok(then);
                }
                // A replica that lags behind the database that the parked version was read from, or an application that
                // set a column back.
                let why = "an older version was read, and accepted, than the parked one";
                HandlerError::Rejected(why.to_owned())
            }
            CallResult::Failed(failed) => failed,
            CallResult::Aborted => {
                self.write(key, &counted.uncounted(now), etag).await?;
                return Err(TickError::Aborted);
            }
        };
        self.failed(key, counted, etag, failed).await
    }

    /// Records that a counted retry failed.
    async fn failed(
        &mut self,
        key: &KeyId,
        counted: Entry,
        etag: ETag,
        failed: HandlerError,
    ) -> Result<Then, TickError> {
        let (poller, now) = (self.poller, self.lease.now());
        let failed = reject_if_single_row(failed, 1);
        match blame(&failed) {
            Blame::Target => {
                // It says nothing about the row.
                self.write(key, &counted.uncounted(now + self.uncounted_delay()), etag).await?;
                self.report_failed(&chain(&failed));
                let limits = &poller.limits;
                let asked = failed.retry_after().map(|asked| asked.min(limits.retry_after_max));
                self.keys.put_off_until(now + asked.unwrap_or(limits.retry_delay_min));
                if let HandlerError::Gone(reason) = &failed {
                    return Err(self.pause(reason.clone(), failed).await);
                }
                Ok(Then::End)
            }
            blamed @ (Blame::Rows | Blame::FirstRow | Blame::Unknown) => {
                let failed_again = counted.failed_again(&chain(&failed), &poller.policy.park, now);
                self.write(key, &failed_again, etag).await?;
                if failed_again.state == EntryState::Quarantined {
                    self.report.key_quarantined(&failed_again);
                }
                if blamed == Blame::Unknown {
                    return Ok(self.after_unknown_failure());
                }
                self.unknown_failures = 0;
                Ok(Then::NextKey)
            }
        }
    }

    fn uncounted_delay(&self) -> Duration {
        UNCOUNTED_DELAY.min(self.poller.policy.park.backoff.max)
    }

    fn after_unknown_failure(&mut self) -> Then {
        self.unknown_failures += 1;
        if self.unknown_failures >= UNKNOWN_FAILURES_MAX { Then::End } else { Then::NextKey }
    }

    /// Pauses the poller, because its target asked for no more deliveries.
    async fn pause(&mut self, reason: String, failed: HandlerError) -> TickError {
        let paused = Paused {
            by: Paused::by_handler_of(&self.poller.name),
            reason,
            at: self.lease.now(),
            extra: serde_json::Map::new(),
        };
        // If this write fails, the next retry or batch is told the same.
        self.lease.release(None, Some(paused)).await.unwrap_or_default();
        TickError::Handler(failed)
    }

    /// Calls the handler with the row.
    async fn call(&mut self, entry: &Entry, event: &ChangeEvent) -> Result<CallResult, TickError> {
        let poller = self.poller;
        let limit = poller.limits.tick_time_max / CALL_TIME_SHARE;
        let replay_id = self.lease.document().replay_id.clone();
        let id = format!("retry-{}-{}", entry.key_id, entry.retries);
        let stop = self.stop.clone();
        let replay_id = replay_id.as_deref();
        let call = AloneCall { entry, event, id: &id, replay_id, stop: &stop, limit };
        let called = poller.deliver_alone(&mut self.lease, call).await;
        match called.map_err(TickError::LeaseLost)? {
            CallResult::Failed(HandlerError::Fenced(refused)) => {
                if !self.lease.is_newest_grant().await.unwrap_or(false) {
                    return Err(TickError::Handler(refused.into()));
                }
                self.lease.release_refused(refused.current, None).await.unwrap_or_default();
                Err(poller.fence_ahead(refused))
            }
            called @ (CallResult::Accepted | CallResult::Failed(_) | CallResult::Aborted) => {
                Ok(called)
            }
        }
    }

    /// Writes an entry in place of the one that was read; `None` if another process changed it, or the store fails.
    async fn write(
        &mut self,
        key: &KeyId,
        entry: &Entry,
        etag: ETag,
    ) -> Result<Option<ETag>, TickError> {
        let at = self.poller.entry_key(key);
        let precondition = Precondition::Matches(etag);
        let written = self.poller.store.store(&at, entry.encode(), precondition);
        let written = self.lease.hold_while(written).await.map_err(TickError::LeaseLost)?;
        match written {
            Ok(written) => {
                self.keys.learn(key, entry);
                Ok(Some(written.etag))
            }
            Err(error) => {
                self.store_failed(&error);
                Ok(None)
            }
        }
    }

    /// Removes the entry of a key that has nothing left to deliver.
    async fn remove(
        &mut self,
        key: &KeyId,
        etag: &ETag,
        entry: &Entry,
        settled: Settled<'_>,
    ) -> Result<Then, TickError> {
        let at = self.poller.entry_key(key);
        let removed = self.lease.hold_while(self.poller.store.remove(&at, etag)).await;
        match removed.map_err(TickError::LeaseLost)? {
            Ok(()) => {
                self.keys.forget(key);
                match (settled, entry.event()) {
                    (Settled::Accepted(at), _) => {
                        self.report.note_recovered();
                        self.lease.note(EventKind::RowRecovered, || Details::of_row(at, None));
                    }
                    (Settled::RowGone, Ok(event)) => {
                        let why = Some("the row is gone".to_owned());
                        let details = || Details::of_row(&event.cursor, why);
                        self.lease.note(EventKind::RowDropped, details);
                    }
                    (Settled::RowGone, Err(_)) => {}
                }
                info!(
                    event = "key_recovered",
                    poller.name = self.poller.name,
                    key_id = key.as_str(),
                    retries = entry.retries,
                    versions = entry.versions,
                    "A parked key of poller `{}` continues",
                    self.poller.name
                );
            }
            Err(error) => {
                // The target has accepted it, so this was no failed retry.
                self.store_failed(&error);
                self.write(key, &entry.uncounted(self.lease.now()), etag.clone()).await?;
            }
        }
        Ok(Then::NextKey)
    }

    fn store_failed(&self, error: &StoreError) {
        self.report_failed(&chain(error));
    }

    /// Logs a failure that is not one of a parked row.
    fn report_failed(&self, error: &str) {
        warn!(
            event = "retries_failed",
            poller.name = self.poller.name,
            error,
            "A parked key of poller `{}` could not be retried; a later tick tries again",
            self.poller.name
        );
    }
}
