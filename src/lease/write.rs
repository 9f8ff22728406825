//! The conditional write, and how a refused or unanswered one is judged.
//!
//! A store's "refused" is definite for one request only. When an earlier try of the same write got no
//! answer, that try may have landed and made the later one fail; taking this for a lost lease is the
//! fault that every storage client with automatic retries has. So, after anything but a plain yes, the
//! document is read and asked:
//!
//! | the document | meaning |
//! |---|---|
//! | has our `write_id`, or says that our grant committed our batch last | the write landed |
//! | lists our grant as released, under whichever grant it is now | the write landed: a holder writes nothing after its release |
//! | has the tag that we wrote under | it did not land (yet): the same write again, only one can win |
//! | is still our grant at our checkpoint | somebody wrote between: our change, applied to theirs |
//! | is still our grant at a prefix that we gave up committing | that landed late: our change, applied to it |
//! | anything else, such as our batch committed by another grant | lost: nothing is written any more |
//! | cannot be read, or is no state document | not known: read again until the deadline |
//!
//! A request that was given up may still land minutes later. That is why every write is conditional.
//!
//! Applying a change to another writer's document costs no pause the first time. From the second time
//! on it does: behind a proxy that changes `ETag`s no write ever matches, and the loop would otherwise
//! send requests as fast as they are answered.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{LeaseError, Snapshot};
use crate::cursor::Cursor;
use crate::event::BatchId;
use crate::state::{
    ETag, Holder, Precondition, Refusal, StateDocument, StateKey, StateStore, StoreError, encode,
};

/// Writes `document` once, over what has the tag given, for somebody who holds no lease; `None` if
/// another writer was first. The answer is looked for until the time given.
///
/// # Errors
///
/// [`LeaseError::Store`] if it is not known whether the write happened, or it cannot be made.
pub(crate) async fn swap(
    store: &dyn StateStore,
    key: &StateKey,
    document: StateDocument,
    (etag, until): (&ETag, Instant),
) -> Result<Option<Snapshot>, LeaseError> {
    Writer { store, key, until }.replace(document, etag).await
}

/// One change of a document by the holder of its lease.
pub(super) type Change<'a> =
    dyn Fn(&StateDocument, &Holder) -> Result<StateDocument, Refusal> + Send + Sync + 'a;

/// Pause before the first repetition; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Writes one document, conditionally, and judges what the answers mean.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub(super) store: &'a dyn StateStore,
    pub(super) key: &'a StateKey,
    /// No try and no read begins after this.
    pub(super) until: Instant,
}

/// One write of a holder, however many tries it takes.
#[derive(Clone, Copy)]
pub(super) struct LogicalWrite<'a> {
    pub(super) holder: &'a Holder,
    /// The same for all its tries, and no other write's.
    pub(super) write_id: &'a str,
    /// The batch it commits, if it commits one.
    pub(super) batch_id: Option<&'a BatchId>,
    /// Where an earlier write of the holder, given up, may put the checkpoint.
    pub(super) in_the_air: Option<&'a Cursor>,
}

/// What a read says of a write that was not plainly accepted.
enum Found {
    /// The document is there.
    Document(Box<Snapshot>),
    /// Nothing is stored.
    Nothing,
}

impl Writer<'_> {
    /// Creates a blank document, under whose tag a grant can be written then. Whether it was this
    /// request that created it does not matter, so the caller reads what there is.
    pub(super) async fn create(self, blank: &StateDocument) -> Result<(), LeaseError> {
        let mut pause = Pause::new(self.until);
        loop {
            match self.store.store(self.key, encode(blank), Precondition::Absent).await {
                Ok(_) | Err(StoreError::Conflict { .. }) => return Ok(()),
                Err(error @ StoreError::Refused { .. }) => return Err(error.into()),
                Err(error @ (StoreError::Unreachable { .. } | StoreError::Unknown { .. })) => {
                    pause.or_give_up(error).await?;
                }
            }
        }
    }

    /// Writes `document` over what has the tag `etag`; `None` if another writer was first.
    pub(super) async fn replace(
        self,
        document: StateDocument,
        etag: &ETag,
    ) -> Result<Option<Snapshot>, LeaseError> {
        let mut pause = Pause::new(self.until);
        let mut ambiguous = false;
        loop {
            match self.put(&document, etag).await {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(error @ StoreError::Refused { .. }) => return Err(error.into()),
                Err(error @ StoreError::Unreachable { .. }) => {
                    pause.or_give_up(error).await?;
                    continue;
                }
                Err(StoreError::Conflict { .. }) if !ambiguous => return Ok(None),
                Err(StoreError::Conflict { .. }) => {}
                Err(StoreError::Unknown { .. }) => ambiguous = true,
            }
            match self.read(&mut pause).await? {
                Found::Document(found) if found.document.write_id == document.write_id => {
                    return Ok(Some(*found));
                }
                Found::Document(found) if found.etag.as_ref() == Some(etag) => {}
                Found::Document(_) | Found::Nothing => return Ok(None),
            }
            pause.or_give_up(self.unanswered()).await?;
        }
    }

    /// Applies `change` to the document that `holder` wrote last, or to whatever is rightfully
    /// there, and writes the result.
    pub(super) async fn change_held(
        self,
        base: &Snapshot,
        logical: LogicalWrite<'_>,
        change: &(dyn Fn(&StateDocument) -> Result<StateDocument, Refusal> + Send + Sync),
    ) -> Result<Snapshot, LeaseError> {
        let LogicalWrite { holder, write_id, batch_id, in_the_air } = logical;
        let checkpoint = &base.document.checkpoint.cursor;
        // A renewal may have committed the same front before.
        let committed_before = base.document.checkpoint.last_successful_batch_id.as_ref();
        let batch_id = batch_id.filter(|id| committed_before != Some(*id));
        let mut base = base.clone();
        let mut pause = Pause::new(self.until);
        let mut rebased = false;
        loop {
            let mut next = change(&base.document)?;
            write_id.clone_into(&mut next.write_id);
            let Some(etag) = &base.etag else { return Err(LeaseError::Gone) };
            match self.put(&next, etag).await {
                Ok(snapshot) => return Ok(snapshot),
                Err(error @ StoreError::Refused { .. }) => return Err(error.into()),
                Err(error @ StoreError::Unreachable { .. }) => {
                    pause.or_give_up(error).await?;
                    continue;
                }
                Err(StoreError::Conflict { .. } | StoreError::Unknown { .. }) => {}
            }
            let Found::Document(found) = self.read(&mut pause).await? else {
                return Err(LeaseError::Gone);
            };
            let unchanged = found.etag == base.etag;
            let found_at = found.document.checkpoint.cursor.as_ref();
            let moved_by_us = in_the_air.is_some() && found_at == in_the_air;
            let committed = batch_id.is_some_and(|id| found.document.was_committed_by(holder, id));
            if found.document.write_id == write_id
                || (!moved_by_us && committed)
                || (!unchanged && found.document.was_released_by(holder))
            {
                return Ok(*found);
            }
            let still_ours = found.document.is_held_by(holder)
                && (found_at == checkpoint.as_ref() || moved_by_us);
            if !unchanged && !still_ours {
                // The change itself knows best how to say why: a newer grant, most of the time.
                change(&found.document)?;
                return Err(LeaseError::Lost(found.document.superseded(holder)));
            }
            if unchanged {
                pause.or_give_up(self.unanswered()).await?;
            } else if rebased {
                pause.or_give_up(self.outrun()).await?;
            }
            rebased |= !unchanged;
            base = *found;
        }
    }

    /// Reads the document until the deadline; `None` where nothing is stored.
    pub(super) async fn read_until(self) -> Result<Option<Snapshot>, LeaseError> {
        match self.read(&mut Pause::new(self.until)).await? {
            Found::Document(found) => Ok(Some(*found)),
            Found::Nothing => Ok(None),
        }
    }

    async fn put(self, document: &StateDocument, etag: &ETag) -> Result<Snapshot, StoreError> {
        let precondition = Precondition::Matches(etag.clone());
        let encoded = encode(document);
        let bytes = encoded.len();
        let written = self.store.store(self.key, encoded, precondition).await?;
        Ok(Snapshot::written(document.clone(), written, bytes))
    }

    /// Reads the document until it can be read or the deadline comes: a failed read says nothing. Neither
    /// does content that is no state document. Our own write made it one, so a captive portal or a proxy
    /// may have answered in the store's place.
    async fn read(self, pause: &mut Pause) -> Result<Found, LeaseError> {
        loop {
            match self.read_once().await {
                Ok(found) => return Ok(found),
                Err(error) => pause.or_give_up(error).await?,
            }
        }
    }

    async fn read_once(self) -> Result<Found, LeaseError> {
        let loaded = self.store.load(self.key).await?;
        let Some(stored) = loaded.stored else { return Ok(Found::Nothing) };
        let snapshot = Snapshot::read(self.key, stored, loaded.date)?;
        Ok(Found::Document(Box::new(snapshot)))
    }

    /// Why a write is given up that the document shows no trace of.
    fn unanswered(self) -> StoreError {
        let reason = "the write was neither accepted nor refused in time".to_owned();
        StoreError::Unknown { key: self.store.location(self.key), reason }
    }

    /// Why a write is given up whose document never keeps its version.
    fn outrun(self) -> StoreError {
        let reason =
            "another writer, or a proxy that rewrites `ETag`, changed its version before every try";
        StoreError::Unknown { key: self.store.location(self.key), reason: reason.to_owned() }
    }
}

/// Growing pauses that end at a deadline.
struct Pause {
    next: Duration,
    until: Instant,
}

impl Pause {
    fn new(until: Instant) -> Self {
        Self { next: PAUSE_MIN, until }
    }

    /// Pauses, or returns `error` where the deadline comes first.
    async fn or_give_up(&mut self, error: impl Into<LeaseError>) -> Result<(), LeaseError> {
        let now = Instant::now();
        if now >= self.until {
            return Err(error.into());
        }
        // The last one is cut, so that no time is given away before the deadline.
        sleep_until(self.until.min(now + self.next)).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        Ok(())
    }
}
