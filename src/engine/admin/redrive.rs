//! Redrive: deliver quarantined rows again, on request of an operator.
//!
//! A redrive holds the poller's own lease. A target that remembers the highest token must neither reject
//! the redrive nor be written by two instances at once. So no tick runs during a redrive, and a redrive
//! cannot start while a tick runs. The checkpoint and the batch in flight are left as they are. An entry
//! is removed only after the handler has accepted its row: an interruption in between leads to another
//! delivery, never to a loss. The grant starts the
//! next epoch of the entries, and the release records how many are left.

use std::time::Duration;

use thiserror::Error;
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::admin::{Admin, StoredEntry};
use crate::cursor::KeyId;
use crate::document::{EntryCounts, Refusal};
use crate::error::chain;
use crate::event::{ChangeEvent, EventId};
use crate::handler::HandlerError;
use crate::journal::{Details, EventKind};
use crate::lease::{AcquireResult, Lease, LeaseContext, LeaseError};
use crate::policy::Blame;
use crate::poller::{StopSignal, TickError};
use crate::quarantine::{Entry, EntryError};
use crate::store::{ETag, Precondition, StoreError};
use crate::tick::{AloneCall, CallResult, EventToDeliver, blame, reject_if_single_row};

/// Longest time that one redrive may hold the lease.
const TIME_MAX: Duration = Duration::from_secs(86_400);
/// Consecutive rows that fail for an unknown reason before a redrive ends: most likely the target is at
/// fault.
const UNKNOWN_FAILURES_MAX: u32 = 3;
/// Attempts to acquire the lease if others write the document in between.
const ACQUIRE_TRIES_MAX: u32 = 5;

/// What to redrive, and how.
#[derive(Clone, Debug)]
pub struct Redrive<'a> {
    /// Part of every batch id, so that a target does not treat these batches as duplicates.
    pub id: &'a str,
    /// Ids of the keys, in the order in which their rows are delivered.
    pub keys: &'a [KeyId],
    /// Deliver the stored event instead of the current state of the row.
    pub as_stored: bool,
    /// Remove entries whose row is gone.
    pub drop_gone: bool,
    /// Least time between the starts of two rows. The lease is held while it passes.
    pub interval: Duration,
    /// Stops the redrive after the row in flight, or aborts that row too.
    pub stop: StopSignal,
}

/// Outcome of one entry.
#[derive(Debug)]
pub enum RedriveOutcome {
    /// The handler accepted the row.
    Delivered {
        /// The delivered event: that of the row's current state.
        event: EventId,
        /// Why the entry is still there; `None` if it was removed.
        stays: Option<String>,
    },
    /// No row has the key any more, or the poller no longer delivers it.
    RowDeleted {
        /// Whether the entry was removed.
        removed: bool,
    },
    /// The handler rejected the row; the rejection is recorded in the entry.
    Refused {
        /// Counted attempts, including this one.
        attempts: u32,
        /// Why.
        error: String,
    },
    /// The row could not be delivered; the entry is unchanged.
    NotAttempted {
        /// Why.
        error: String,
    },
    /// The entry cannot be read, and is unchanged.
    Unreadable(EntryError),
    /// There is no such entry, or it is gone by now.
    Missing,
}

/// How a redrive ended.
#[derive(Debug)]
pub enum RedriveEnd {
    /// Each entry was processed.
    Done,
    /// It was stopped on request; a row whose handler call was aborted is unchanged.
    Stopped,
    /// The target rejects every row.
    TargetAtFault(HandlerError),
}

/// Why the redrive did not start, or was cut short.
#[derive(Debug, Error)]
pub enum RedriveError {
    /// A tick or another redrive is running.
    #[error("lease is held by `{owner_id}`")]
    Held {
        /// The holder.
        owner_id: String,
        /// When the lease expires unless it is renewed.
        until: Option<OffsetDateTime>,
    },
    /// It failed the way a tick fails.
    #[error(transparent)]
    Tick(#[from] TickError),
}

impl From<LeaseError> for RedriveError {
    fn from(error: LeaseError) -> Self {
        Self::Tick(TickError::LeaseLost(error))
    }
}

/// The outcome of one entry, and what it implies about the target.
enum AttemptResult {
    Ended(RedriveOutcome),
    /// It failed for an unknown reason.
    Unknown(RedriveOutcome, HandlerError),
    Target(RedriveOutcome, HandlerError),
    /// The process is stopping, and the handler call was aborted.
    Aborted,
}

impl<'p> Admin<'p> {
    /// Delivers quarantined rows again, one by one; `told` receives the outcome of each.
    ///
    /// # Errors
    ///
    /// [`RedriveError::Held`] while a tick runs elsewhere; [`RedriveError::Tick`] if the state, its lease
    /// or the source fails.
    pub async fn redrive(
        self,
        redrive: &Redrive<'_>,
        told: &mut (dyn FnMut(&KeyId, RedriveOutcome) + Send),
    ) -> Result<RedriveEnd, RedriveError> {
        // A tick of this process would have the same owner id.
        let mut memory = self.poller.memory.lock().await;
        memory.forget();
        let mut lease = Box::pin(self.acquire_operator_lease()).await?;
        let redriving = Box::pin(async {
            let ended = self.redrive_under(&mut lease, redrive, told).await;
            if let Ok(RedriveEnd::TargetAtFault(HandlerError::Fenced(refused))) = &ended
                && lease.is_newest_grant().await.unwrap_or(false)
            {
                // As after a tick. If this write fails, the target rejects the next grant again.
                lease.release_refused(refused.current, None).await.unwrap_or_default();
                return Err(self.poller.fence_ahead(*refused).into());
            }
            if !matches!(&ended, Err(RedriveError::Tick(TickError::LeaseLost(_)))) {
                self.count_entries(&mut lease).await;
                // If the release fails, the lease expires by itself.
                lease.release(None, None).await.unwrap_or_default();
            }
            ended
        });
        self.poller.append_during(redriving).await
    }

    async fn redrive_under(
        self,
        lease: &mut Lease<'_>,
        redrive: &Redrive<'_>,
        told: &mut (dyn FnMut(&KeyId, RedriveOutcome) + Send),
    ) -> Result<RedriveEnd, RedriveError> {
        let mut unknown = 0;
        let mut next_at = Instant::now();
        for key in redrive.keys {
            let wait = next_at.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                lease.hold_while(redrive.stop.rest(wait)).await?;
            }
            if redrive.stop.is_set() {
                return Ok(RedriveEnd::Stopped);
            }
            next_at = Instant::now() + redrive.interval;
            match self.redrive_one(lease, key, redrive).await? {
                AttemptResult::Ended(redriven) => {
                    unknown = 0;
                    told(key, redriven);
                }
                AttemptResult::Unknown(redriven, error) => {
                    unknown += 1;
                    told(key, redriven);
                    if unknown == UNKNOWN_FAILURES_MAX {
                        return Ok(RedriveEnd::TargetAtFault(error));
                    }
                }
                AttemptResult::Target(redriven, error) => {
                    told(key, redriven);
                    return Ok(RedriveEnd::TargetAtFault(error));
                }
                AttemptResult::Aborted => return Ok(RedriveEnd::Stopped),
            }
        }
        Ok(RedriveEnd::Done)
    }

    /// Lets the release record how many entries are left. Without a listing the next tick counts them.
    async fn count_entries(self, lease: &mut Lease<'_>) {
        let listed = lease.hold_while(self.quarantined()).await;
        if let Ok(Ok(keys)) = listed {
            let epoch = lease.document().parked.epoch;
            let keys = u64::try_from(keys.len()).unwrap_or(u64::MAX);
            let quarantined = lease.document().parked.quarantined;
            // Which of them are retried, and when, is found out by whoever retries them.
            let next_retry_at = (keys > 0).then(|| lease.now());
            lease.count_entries(EntryCounts { epoch, keys, quarantined, next_retry_at });
        }
    }

    /// Acquires the poller's lease, even if the poller is paused or backing off.
    async fn acquire_operator_lease(self) -> Result<Lease<'p>, RedriveError> {
        for _ in 0..ACQUIRE_TRIES_MAX {
            let base = self.poller.read().await?;
            let context = LeaseContext {
                store: &*self.poller.store,
                key: &self.poller.key,
                instance: &self.poller.instance,
                terms: self.poller.terms,
                stop_at: Instant::now() + TIME_MAX,
                journal: &self.poller.journal.recorder,
            };
            match Lease::acquire_for_operator(context, &base).await.map_err(TickError::Acquire)? {
                AcquireResult::Held(mut lease) => {
                    self.poller.mark(&mut lease).await;
                    return Ok(*lease);
                }
                AcquireResult::Conflict => {}
                AcquireResult::Refused(Refusal::Held { owner_id }) => {
                    let until = base.document.lease.expires_at;
                    return Err(RedriveError::Held { owner_id, until });
                }
                AcquireResult::Refused(Refusal::FenceAhead(refused)) => {
                    return Err(self.poller.fence_ahead(refused).into());
                }
                AcquireResult::Refused(refusal) => {
                    return Err(TickError::Acquire(LeaseError::Refused(refusal)).into());
                }
            }
        }
        let conflict = StoreError::Conflict { key: self.poller.key.path() };
        Err(TickError::Acquire(LeaseError::Store(conflict)).into())
    }

    async fn redrive_one(
        self,
        lease: &mut Lease<'_>,
        key: &KeyId,
        redrive: &Redrive<'_>,
    ) -> Result<AttemptResult, RedriveError> {
        let loaded = lease.hold_while(self.entry(key)).await?;
        let loaded = loaded.map_err(|error| TickError::Load(error.into()))?;
        let Some(StoredEntry { key, entry, etag }) = loaded else {
            return Ok(AttemptResult::Ended(RedriveOutcome::Missing));
        };
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Ok(AttemptResult::Ended(RedriveOutcome::Unreadable(error))),
        };
        let at = EntryVersion { key, etag };
        let picked = if redrive.as_stored {
            stored(&entry)
        } else {
            lease.hold_while(self.poller.current_row(&entry)).await??
        };
        let event = match picked {
            EventToDeliver::Event(event) => event,
            EventToDeliver::Gone => {
                return Ok(AttemptResult::Ended(self.gone(lease, &at, &entry, redrive).await?));
            }
            EventToDeliver::Nothing(error) => {
                return Ok(AttemptResult::Ended(RedriveOutcome::NotAttempted { error }));
            }
        };
        let call = AloneCall {
            entry: &entry,
            event: &event,
            id: redrive.id,
            replay_id: Some(redrive.id),
            stop: &redrive.stop,
            limit: self.poller.limits.handler_stop_after,
        };
        let error = match self.poller.deliver_alone(lease, call).await? {
            CallResult::Accepted => {
                let stays = self.remove_delivered(lease, &at, &entry, &event).await?;
                return Ok(AttemptResult::Ended(RedriveOutcome::Delivered {
                    event: event.id,
                    stays,
                }));
            }
            CallResult::Failed(error) => error,
            CallResult::Aborted => return Ok(AttemptResult::Aborted),
        };
        let error = reject_if_single_row(error, 1);
        let blame = blame(&error);
        if blame == Blame::Target {
            let redriven = RedriveOutcome::NotAttempted { error: chain(&error) };
            return Ok(AttemptResult::Target(redriven, error));
        }
        let redriven = self.count(lease, &at, &entry, &error).await?;
        Ok(match blame {
            Blame::Unknown => AttemptResult::Unknown(redriven, error),
            Blame::Rows | Blame::FirstRow | Blame::Target => AttemptResult::Ended(redriven),
        })
    }

    async fn gone(
        self,
        lease: &mut Lease<'_>,
        at: &EntryVersion,
        entry: &Entry,
        redrive: &Redrive<'_>,
    ) -> Result<RedriveOutcome, RedriveError> {
        if !redrive.drop_gone {
            return Ok(RedriveOutcome::RowDeleted { removed: false });
        }
        Ok(match self.remove_under(lease, at).await? {
            Ok(()) => {
                if let Ok(event) = entry.event() {
                    let why = Some("the row is gone".to_owned());
                    lease.note(EventKind::RowDropped, || Details::of_row(&event.cursor, why));
                }
                RedriveOutcome::RowDeleted { removed: true }
            }
            Err(error) => RedriveOutcome::NotAttempted { error: chain(&error) },
        })
    }

    /// Removes the entry of a delivered row; returns why it stays, if it does.
    async fn remove_delivered(
        self,
        lease: &mut Lease<'_>,
        at: &EntryVersion,
        entry: &Entry,
        delivered: &ChangeEvent,
    ) -> Result<Option<String>, RedriveError> {
        // A replica may lag behind the database that the quarantined version was read from.
        if entry.is_newer_than(delivered, lease.generation()) {
            return Ok(Some("an older version was read than the quarantined one".to_owned()));
        }
        let removed = self.remove_under(lease, at).await?;
        if removed.is_ok() {
            lease.note(EventKind::RowRedriven, || Details::of_row(&delivered.cursor, None));
        }
        Ok(removed.err().map(|error| chain(&error)))
    }

    async fn remove_under(
        self,
        lease: &mut Lease<'_>,
        at: &EntryVersion,
    ) -> Result<Result<(), StoreError>, RedriveError> {
        Ok(lease.hold_while(self.remove_entry(&at.key, &at.etag)).await?)
    }

    /// Records a rejection in the entry. If that write fails, the rejection is only reported.
    async fn count(
        self,
        lease: &mut Lease<'_>,
        at: &EntryVersion,
        entry: &Entry,
        error: &HandlerError,
    ) -> Result<RedriveOutcome, RedriveError> {
        let text = chain(error);
        let counted = entry.refused_again(&text);
        let key = self.poller.entry_key(&at.key);
        let precondition = Precondition::Matches(at.etag.clone());
        let written =
            lease.hold_while(self.poller.store.store(&key, counted.encode(), precondition)).await?;
        Ok(match written {
            Ok(_) => RedriveOutcome::Refused { attempts: counted.attempts, error: text },
            Err(why) => RedriveOutcome::Refused {
                attempts: entry.attempts,
                error: format!("{text}; the attempt could not be recorded: {}", chain(&why)),
            },
        })
    }
}

/// A version of an entry.
struct EntryVersion {
    key: KeyId,
    etag: ETag,
}

fn stored(entry: &Entry) -> EventToDeliver {
    if entry.without_columns {
        let why = "the event was stored without its columns (too large); redrive the current row";
        return EventToDeliver::Nothing(why.to_owned());
    }
    match entry.event() {
        Ok(event) => EventToDeliver::Event(Box::new(event)),
        Err(error) => EventToDeliver::Nothing(chain(&error)),
    }
}
