//! A held lease: the right to run one poller, kept alive while work is done.
//!
//! Safety rests on compare-and-swap and the fencing token alone; time only decides how much work is
//! done twice. Every write goes through `&mut self` in the task of the tick, so a renewal and a commit
//! of one holder cannot race. Nothing here reads a wall clock: the holder's deadline runs on tokio's
//! monotonic clock from *before* the first try of the request that took or renewed the lease, and all
//! times that are written are the storage service's.
//!
//! What a refused or unanswered write means is judged in `lease/write.rs`.

mod by_hand;
mod error;
mod hold;
mod measure;
mod snapshot;
mod steps;
mod terms;
mod write;

use std::fmt;
use std::sync::MutexGuard;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

pub use self::error::LeaseError;
pub use self::hold::Accepted;
use self::hold::Beside;
use self::measure::Active;
pub use self::snapshot::Snapshot;
pub use self::terms::{Instance, LeaseContext, LeaseTerms};
pub(crate) use self::write::swap;
use self::write::{Change, LogicalWrite, Writer};
use crate::cursor::{Cursor, SourceState};
use crate::event::BatchId;
use crate::journal::{Details, Happened, Recorder, Seen};
use crate::state::{
    Acquire, ClosedWindow, Commit, EndOfTick, Failure, Fence, FencingToken, Generation, Holder,
    InFlight, Refusal, StateDocument,
};

/// The right to run one poller, until it lapses or is given up.
pub struct Lease<'a> {
    context: LeaseContext<'a>,
    holder: Holder,
    snapshot: Snapshot,
    /// When the newest renewal was asked for; the lease lives `ttl` from here.
    renewed_at: Instant,
    /// Set once the marker exists; rides on every write from then on.
    marked: bool,
    /// What the source wants kept; rides on the next write.
    remember: Option<SourceState>,
    /// Set once closed windows up to this one were read again; rides on every write from then on.
    audited: Option<ClosedWindow>,
    /// Where a prefix would put the checkpoint whose commit is not known to have landed.
    in_the_air: Option<Cursor>,
    /// A commit that is left to the next work.
    beside: Beside,
    /// How late the slowest renewal landed.
    heartbeat_delay: Option<Duration>,
    /// Counts the lease as held until it is dropped.
    _active: Active,
}

impl fmt::Debug for Lease<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lease").field("holder", &self.holder).finish_non_exhaustive()
    }
}

/// How asking for a lease ended.
#[derive(Debug)]
pub enum Acquired<'a> {
    /// It is held.
    Held(Box<Lease<'a>>),
    /// The document has changed since it was read, or was missing and is there now, blank; no lease
    /// was granted, and it is to be read again.
    Conflict,
    /// The document does not allow it; nothing was written.
    Refused(Refusal),
}

/// How long a commit whose lease has ended may still look for an answer.
const COMMIT_GRACE: Duration = Duration::from_secs(5);

/// How long after a tick's end of time its last write may look for an answer.
const LAST_WRITE_GRACE: Duration = Duration::from_secs(10);

impl<'a> Lease<'a> {
    /// Asks for the lease on the strength of `base`, the document that also gave the checkpoint.
    ///
    /// Acquiring with that document's tag proves that the rows were read from the checkpoint that
    /// still stands. `batch` rides on the same write. Where nothing is stored there is no tag: a blank
    /// document is created then, and nothing is granted yet. See [`StateDocument::blank`].
    ///
    /// # Errors
    ///
    /// [`LeaseError::Store`] if the store gave no usable answer in time.
    pub async fn acquire(
        context: LeaseContext<'a>,
        base: &Snapshot,
        batch: Option<InFlight>,
    ) -> Result<Acquired<'a>, LeaseError> {
        let granted = base.document.acquire(asked(context, base, batch));
        Box::pin(Self::take(context, base, granted)).await
    }

    async fn ask(
        context: LeaseContext<'a>,
        base: &Snapshot,
        granted: Result<StateDocument, Refusal>,
    ) -> Result<Acquired<'a>, LeaseError> {
        let mut document = match granted {
            Ok(document) => document,
            Err(refusal) => return Ok(Acquired::Refused(refusal)),
        };
        document.write_id = context.instance.next_write_id();
        recorder(context).numbering().number(Happened::LeaseAcquired, &mut document);
        let holder = document.holder(context.instance.owner_id());
        let renewed_at = Instant::now();
        let until = context.stop_at.min(renewed_at + context.terms.ttl / 2);
        let writer = Writer { store: context.store, key: context.key, until };
        // Boxed, as below: a document is large, and these futures lie within all others.
        let Some(etag) = &base.etag else {
            let fingerprint = base.document.source_fingerprint.clone();
            let mut blank = StateDocument::blank(&base.document.poller_name, fingerprint);
            blank.partition = base.document.partition;
            writer.create(&blank).await?;
            return Ok(Acquired::Conflict);
        };
        let written = Box::pin(writer.replace(document, etag)).await?;
        let Some(snapshot) = written else {
            return Ok(Acquired::Conflict);
        };
        let marked = snapshot.document.marked;
        let lease = Self {
            context,
            holder,
            snapshot,
            renewed_at,
            marked,
            remember: None,
            audited: None,
            in_the_air: None,
            beside: Beside::default(),
            heartbeat_delay: None,
            _active: measure::granted(context, base, renewed_at.elapsed()),
        };
        let event = Happened::LeaseAcquired;
        lease.note(event, || Details::of(event, &base.document, lease.document()));
        Ok(Acquired::Held(Box::new(lease)))
    }

    /// Returns which grant of which document this is.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Returns the token of this grant.
    pub fn token(&self) -> FencingToken {
        self.holder.token
    }

    /// Returns the generation of the document.
    pub fn generation(&self) -> Generation {
        self.holder.generation
    }

    /// Returns the document as this holder last wrote it, or as it will once it has made the commit that is
    /// left to the next work.
    pub fn document(&self) -> &StateDocument {
        self.beside.hoped().unwrap_or(&self.snapshot.document)
    }

    /// Returns the document with its tag, for the next tick.
    pub fn into_snapshot(self) -> Snapshot {
        self.snapshot
    }

    /// Returns the storage service's time, as far as it can be told without asking.
    pub fn now(&self) -> OffsetDateTime {
        self.snapshot.now()
    }

    /// Returns how late the slowest renewal landed, if there was one.
    pub fn heartbeat_delay(&self) -> Option<Duration> {
        self.heartbeat_delay
    }

    /// Says whether the document that was read or written last still grants this lease.
    ///
    /// A commit whose answer was lost may be found landed under a newer grant: the checkpoint has
    /// moved then, and nothing more may be begun.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Lost`] if it grants it to another.
    pub fn still_held(&self) -> Result<(), LeaseError> {
        if self.document().is_held_by(&self.holder) {
            return Ok(());
        }
        Err(LeaseError::Lost(self.document().superseded(&self.holder)))
    }

    /// Reads the document, and returns whether its newest grant is this one. A read that fails is repeated
    /// until the lease's deadline.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Store`] or [`LeaseError::Format`] if it could not be read in time.
    pub async fn is_newest_grant(&self) -> Result<bool, LeaseError> {
        let until = self.last_moment();
        let writer = Writer { store: self.context.store, key: self.context.key, until };
        let found = Box::pin(writer.read_until()).await?;
        Ok(found.is_some_and(|found| found.document.is_held_by(&self.holder)))
    }

    /// Notes that the marker exists; `marked` rides on the next write.
    pub fn mark(&mut self) {
        self.marked = true;
    }

    /// Notes what the source wants kept; it rides on the next write, and is for that one only.
    pub fn remember(&mut self, state: Option<SourceState>) {
        self.remember = state;
    }

    /// Notes that closed windows up to this one hold nothing that was not delivered; they are forgotten
    /// with the next write.
    pub fn finish(&mut self, audited: ClosedWindow) {
        self.audited = Some(audited);
    }

    /// Tells the journal of something that was done or found under this lease; `details` is asked only
    /// where the journal records such.
    pub fn note(&self, event: Happened, details: impl FnOnce() -> Details) {
        let mut recorder = recorder(self.context);
        if recorder.mode().records(event) {
            let (at, holder, document) = (self.now(), &self.holder, self.document());
            recorder.record(Seen { event, at, holder, document, details: details() });
        }
    }

    /// Moves the checkpoint forward, and in the same write gives the lease up or goes on to the next
    /// batch.
    ///
    /// A lease that has lapsed but was not taken is still ours: the store decides.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Lost`] if another has taken the lease, [`LeaseError::Store`] if it is not known
    /// whether the commit happened.
    pub async fn commit(&mut self, commit: Commit) -> Result<(), LeaseError> {
        let until = self.committing();
        self.commit_until(commit, until).await
    }

    async fn commit_until(&mut self, commit: Commit, until: Instant) -> Result<(), LeaseError> {
        let batch_id = commit.batch_id.clone();
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.commit(holder, commit.clone())
        };
        self.write(Some(Happened::BatchComplete), &apply, Some(&batch_id), until).await
    }

    /// Commits a prefix and records the failure of the rest, giving the lease up, in one write.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub async fn commit_prefix(
        &mut self,
        commit: Commit,
        failure: Failure,
    ) -> Result<(), LeaseError> {
        let batch_id = commit.batch_id.clone();
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.commit(holder, commit.clone())?.fail(holder, failure.clone())
        };
        self.write(Some(Happened::BatchComplete), &apply, Some(&batch_id), self.committing()).await
    }

    /// Puts a part of the batch in hand in its place, so that a successor begins there.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub async fn narrow(&mut self, part: InFlight) -> Result<(), LeaseError> {
        let now = self.now();
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.narrow(holder, part.clone(), now)
        };
        let deadline = self.deadline();
        self.write(Some(Happened::BatchAnnounced), &apply, None, deadline).await
    }

    /// Records that the batch in hand was not taken, and gives the lease up.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub async fn fail(&mut self, failure: Failure) -> Result<(), LeaseError> {
        let told = self.told_as(Happened::HandlerFailed, failure.pause.is_some());
        let apply =
            move |document: &StateDocument, holder: &Holder| document.fail(holder, failure.clone());
        self.write(Some(told), &apply, None, self.last_moment()).await
    }

    /// Gives the lease up, and pauses the poller with it where `pause` says so.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`]; the lease then lapses by itself.
    pub async fn release(
        &mut self,
        tick: Option<EndOfTick>,
        pause: Option<crate::state::Paused>,
    ) -> Result<(), LeaseError> {
        let now = self.now();
        let told = self.told_as(Happened::LeaseReleased, pause.is_some());
        let apply = move |document: &StateDocument, holder: &Holder| {
            let released = document.release(holder, now, tick.clone())?;
            Ok(match &pause {
                Some(pause) => released.paused_by_holder(pause.clone()),
                None => released,
            })
        };
        self.write(Some(told), &apply, None, self.last_moment()).await
    }

    /// Gives the lease up and keeps the fence of the target that refused this grant: see
    /// [`StateDocument::refused_by_target`].
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub async fn release_refused(
        &mut self,
        fence: Fence,
        tick: Option<EndOfTick>,
    ) -> Result<(), LeaseError> {
        let now = self.now();
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.refused_by_target(holder, fence, now, tick.clone())
        };
        self.write(Some(Happened::LeaseReleased), &apply, None, self.last_moment()).await
    }

    /// Returns the event of a write that may pause the poller: a pause is told of also where what led to
    /// it is not, or a document that is made again from the journal would run on.
    fn told_as(&self, event: Happened, pauses: bool) -> Happened {
        let is_told = recorder(self.context).mode().records(event);
        if pauses && !is_told { Happened::Paused } else { event }
    }

    /// Writes a change; `event` is how the journal tells of it, if it does.
    async fn write(
        &mut self,
        event: Option<Happened>,
        apply: &Change<'_>,
        batch_id: Option<&BatchId>,
        until: Instant,
    ) -> Result<(), LeaseError> {
        // Nothing of a holder overtakes its commit.
        self.settle().await?;
        let (holder, marked, remember) = (&self.holder, self.marked, self.remember.take());
        let numbering = recorder(self.context).numbering();
        let audited = self.audited.as_ref();
        let change = |document: &StateDocument| {
            // Before new windows are merged with them.
            let left = audited.map(|window| document.without_window(window));
            let mut next = apply(left.as_ref().unwrap_or(document), holder)?;
            next.marked |= marked;
            if let Some(state) = &remember {
                next.remember(state);
            }
            if let Some(event) = Happened::told(event, document, &next) {
                numbering.number(event, &mut next);
            }
            Ok(next)
        };
        let asked_at = Instant::now();
        let write_id = self.context.instance.next_write_id();
        let writer = Writer { store: self.context.store, key: self.context.key, until };
        let in_the_air = self.in_the_air.as_ref();
        let logical = LogicalWrite { holder, write_id: &write_id, batch_id, in_the_air };
        let written = Box::pin(writer.change_held(&self.snapshot, logical, &change)).await?;
        let before = std::mem::replace(&mut self.snapshot, written);
        self.renewed_at = asked_at;
        self.in_the_air = None;
        // Found landed under a newer grant: the document found there tells of its holder's work, not of ours.
        let superseded = !self.document().is_held_by(&self.holder);
        let ours = superseded.then(|| change(&before.document)).transpose()?;
        let written = ours.as_ref().unwrap_or(self.document());
        if let Some(event) = Happened::told(event, &before.document, written) {
            self.note(event, || Details::of(event, &before.document, written));
        }
        Ok(())
    }

    /// Until when the holder may rely on the lease.
    fn deadline(&self) -> Instant {
        self.renewed_at + self.context.terms.ttl - self.context.terms.margin
    }

    /// Until when a write that ends a batch may look for an answer.
    fn last_moment(&self) -> Instant {
        let asked_at = Instant::now();
        let end = self.context.stop_at.max(asked_at) + LAST_WRITE_GRACE;
        self.deadline().max(asked_at + COMMIT_GRACE).min(end)
    }
}

fn asked<'a>(context: LeaseContext<'a>, base: &Snapshot, batch: Option<InFlight>) -> Acquire<'a> {
    Acquire {
        owner_id: context.instance.owner_id(),
        ttl: context.terms.ttl,
        age: base.age(context.store.grain()),
        now: base.now(),
        in_flight: batch,
    }
}

fn recorder(context: LeaseContext<'_>) -> MutexGuard<'_, Recorder> {
    context.journal.lock().expect("no holder of this lock panics")
}

#[cfg(test)]
mod tests;
