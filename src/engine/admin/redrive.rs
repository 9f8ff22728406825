//! Redrive: deliver quarantined rows again, on request of an operator.
//!
//! A redrive holds the poller's own lease. A target that remembers the highest token must neither reject
//! the redrive nor be written by two instances at once. So no tick runs during a redrive, and a redrive
//! cannot start while a tick runs. The checkpoint and the batch in flight are left as they are. An entry
//! is removed only after the handler has accepted its row: an interruption in between leads to another
//! delivery, never to a loss.

use std::time::Duration;

use thiserror::Error;
use time::OffsetDateTime;
use tokio::time::{Instant, timeout};

use crate::admin::{Admin, StoredEntry};
use crate::document::Refusal;
use crate::error::chain;
use crate::event::{BatchId, BatchIdentity, ChangeEvent, EventId, EventsDigest, Operation};
use crate::handler::{CallTries, Delivery, HandlerError, Progress};
use crate::lease::{AcquireResult, Lease, LeaseContext, LeaseError};
use crate::normalize::normalize;
use crate::policy::Blame;
use crate::poller::{StopSignal, TickError};
use crate::quarantine::{Entry, EntryError};
use crate::store::{ETag, Precondition, StoreError};
use crate::tick::{blame, reject_if_single_row};

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
    /// Ids of the events, in the order in which they are delivered.
    pub events: &'a [EventId],
    /// Deliver the stored event instead of the current state of the row.
    pub as_stored: bool,
    /// Remove entries whose row is gone.
    pub drop_gone: bool,
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

/// How a handler call ended.
enum CallResult {
    Accepted,
    Failed(HandlerError),
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
        told: &mut (dyn FnMut(&EventId, RedriveOutcome) + Send),
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
        told: &mut (dyn FnMut(&EventId, RedriveOutcome) + Send),
    ) -> Result<RedriveEnd, RedriveError> {
        let mut unknown = 0;
        for event in redrive.events {
            if redrive.stop.is_set() {
                return Ok(RedriveEnd::Stopped);
            }
            match self.redrive_one(lease, event, redrive).await? {
                AttemptResult::Ended(redriven) => {
                    unknown = 0;
                    told(event, redriven);
                }
                AttemptResult::Unknown(redriven, error) => {
                    unknown += 1;
                    told(event, redriven);
                    if unknown == UNKNOWN_FAILURES_MAX {
                        return Ok(RedriveEnd::TargetAtFault(error));
                    }
                }
                AttemptResult::Target(redriven, error) => {
                    told(event, redriven);
                    return Ok(RedriveEnd::TargetAtFault(error));
                }
                AttemptResult::Aborted => return Ok(RedriveEnd::Stopped),
            }
        }
        Ok(RedriveEnd::Done)
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
        event: &EventId,
        redrive: &Redrive<'_>,
    ) -> Result<AttemptResult, RedriveError> {
        let loaded = lease.hold_while(self.entry(event)).await?;
        let loaded = loaded.map_err(|error| TickError::Load(error.into()))?;
        let Some(StoredEntry { event: id, entry, etag }) = loaded else {
            return Ok(AttemptResult::Ended(RedriveOutcome::Missing));
        };
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Ok(AttemptResult::Ended(RedriveOutcome::Unreadable(error))),
        };
        let at = EntryVersion { event: id, etag };
        let picked = if redrive.as_stored {
            stored(&entry)
        } else {
            lease.hold_while(self.current(&entry)).await??
        };
        let event = match picked {
            EventToDeliver::Event(event) => event,
            EventToDeliver::Gone => {
                return Ok(AttemptResult::Ended(self.gone(lease, &at, redrive).await?));
            }
            EventToDeliver::Nothing(error) => {
                return Ok(AttemptResult::Ended(RedriveOutcome::NotAttempted { error }));
            }
        };
        let error = match self.deliver_one(lease, &entry, &event, redrive).await? {
            CallResult::Accepted => {
                let stays = self.remove_under(lease, &at).await?.err().map(|e| chain(&e));
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

    /// Reads the current state of an entry's row.
    async fn current(self, entry: &Entry) -> Result<EventToDeliver, TickError> {
        let stored = match entry.event() {
            Ok(event) => event,
            Err(error) => return Ok(EventToDeliver::Nothing(chain(&error))),
        };
        let rows = self.poller.source.current(&stored.cursor).await.map_err(TickError::Fetch)?;
        if rows.is_unselected {
            return Ok(EventToDeliver::Gone);
        }
        Ok(match normalize(self.poller.source.shape(), &rows).map(|mut events| events.pop()) {
            Ok(Some(event)) => EventToDeliver::Event(Box::new(event)),
            // The row is deleted, and the stored event says so: it is the current state.
            Ok(None) if stored.op == Operation::Delete => EventToDeliver::Event(Box::new(stored)),
            Ok(None) => EventToDeliver::Gone,
            Err(error) => EventToDeliver::Nothing(chain(&error)),
        })
    }

    async fn deliver_one(
        self,
        lease: &mut Lease<'_>,
        entry: &Entry,
        event: &ChangeEvent,
        redrive: &Redrive<'_>,
    ) -> Result<CallResult, RedriveError> {
        let events = std::slice::from_ref(event);
        let batch_id = BatchId::of(&BatchIdentity {
            poller: &self.poller.name,
            generation: lease.generation().0,
            replay_id: Some(redrive.id),
            after: None,
            upto: &event.cursor,
            digest: &EventsDigest::of(events),
        });
        let delivery = Delivery {
            poller: &self.poller.name,
            source: &self.poller.source.shape().label,
            batch_id: &batch_id,
            step: None,
            started_at: lease.now(),
            generation: lease.generation(),
            fencing_token: lease.token(),
            attempt: entry.attempts.saturating_add(1),
            tries: CallTries::Several,
            replay_id: Some(redrive.id),
            replay_guard: None,
            events,
            traceparent: None,
            tracestate: None,
            progress: &Progress::default(),
        };
        let limit = self.poller.limits.handler_stop_after;
        let called = Box::pin(timeout(limit, self.poller.guarded(&*self.poller.handler, delivery)));
        Ok(match lease.hold_while(redrive.stop.unless_aborted(called)).await? {
            Some(Ok(Ok(()))) => CallResult::Accepted,
            Some(Ok(Err(error))) => CallResult::Failed(error),
            Some(Err(_late)) => CallResult::Failed(HandlerError::Stalled(limit)),
            None => {
                // Wait for it to settle: its remaining effects must not come after the release.
                self.poller.handler.settle().await;
                CallResult::Aborted
            }
        })
    }

    async fn gone(
        self,
        lease: &mut Lease<'_>,
        at: &EntryVersion,
        redrive: &Redrive<'_>,
    ) -> Result<RedriveOutcome, RedriveError> {
        if !redrive.drop_gone {
            return Ok(RedriveOutcome::RowDeleted { removed: false });
        }
        Ok(match self.remove_under(lease, at).await? {
            Ok(()) => RedriveOutcome::RowDeleted { removed: true },
            Err(error) => RedriveOutcome::NotAttempted { error: chain(&error) },
        })
    }

    async fn remove_under(
        self,
        lease: &mut Lease<'_>,
        at: &EntryVersion,
    ) -> Result<Result<(), StoreError>, RedriveError> {
        Ok(lease.hold_while(self.remove_entry(&at.event, &at.etag)).await?)
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
        let (counted, bytes) = entry.refused_again(&text);
        let key = self.poller.entry_key(&at.event);
        let precondition = Precondition::Matches(at.etag.clone());
        let written = lease.hold_while(self.poller.store.store(&key, bytes, precondition)).await?;
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
    event: EventId,
    etag: ETag,
}

/// The event to deliver for an entry.
enum EventToDeliver {
    Event(Box<ChangeEvent>),
    Gone,
    /// No event can be delivered, for this reason.
    Nothing(String),
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
