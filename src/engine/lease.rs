//! A held lease: the right to run one poller, renewed while work is in progress.
//!
//! Safety rests on compare-and-swap and the fencing token alone; time only decides how much work is done twice.
//! Every write goes through `&mut self` in the task of the tick, so a renewal and a commit of one holder cannot
//! race. Nothing here reads a wall clock: the holder's deadline runs on tokio's monotonic clock from *before* the
//! first attempt of the request that acquired or renewed the lease, and all times that are written are the storage
//! service's.
//!
//! `lease/judge.rs` decides what a rejected or unanswered write means.

mod chain_steps;
mod error;
mod hold;
mod judge;
mod metrics;
mod operator;
mod terms;

use std::fmt;
use std::sync::MutexGuard;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

pub use self::error::LeaseError;
pub use self::hold::Accepted;
use self::hold::OverlappedCommit;
use self::judge::{Change, LogicalWrite};
use self::metrics::Active;
pub use self::terms::{Instance, LeaseContext, LeaseTerms};
use crate::cursor::{Cursor, SourceState};
use crate::document::{
    Acquire, AnnouncedEntry, ClosedWindow, Commit, DocumentStore, EndOfTick, EntryCounts, Failure,
    Fence, FencingToken, Generation, Holder, InFlight, Paused, Refusal, Snapshot, StateDocument,
};
use crate::event::BatchId;
use crate::journal::{Details, EventKind, HolderEvent, Recorder};

/// The right to run one poller, until it lapses or is released.
pub struct Lease<'a> {
    context: LeaseContext<'a>,
    holder: Holder,
    snapshot: Snapshot,
    /// When the newest renewal was requested; the lease lives `ttl` from here.
    renewed_at: Instant,
    /// Set once the marker exists; goes into every write from then on.
    marked: bool,
    /// The state that the source wants kept; goes into the next write.
    remember: Option<SourceState>,
    /// Set once entries were counted; goes into every write from then on.
    counted: Option<EntryCounts>,
    /// Unreadable rows whose entries were written; goes into the next write only.
    unreadable: u32,
    /// Set once closed windows up to this one were audited; goes into every write from then on.
    audited: Option<ClosedWindow>,
    /// Where the checkpoint would be after the commit of a front whose outcome is unknown.
    unconfirmed_front: Option<Cursor>,
    /// A commit that is made alongside the next work.
    overlapped: OverlappedCommit,
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

/// The result of requesting a lease.
#[derive(Debug)]
pub enum AcquireResult<'a> {
    /// It was granted.
    Held(Box<Lease<'a>>),
    /// The document has changed since it was read, or was missing and is blank now. No lease was granted; read the
    /// document again.
    Conflict,
    /// The document does not allow it; nothing was written.
    Refused(Refusal),
}

/// How long a commit may look for its outcome after its lease has ended.
const COMMIT_GRACE: Duration = Duration::from_secs(5);

/// How long the last write of a tick may look for its outcome after the tick's time is up.
const LAST_WRITE_GRACE: Duration = Duration::from_secs(10);

impl<'a> Lease<'a> {
    /// Requests the lease on the basis of `base`, the document that also gave the checkpoint.
    ///
    /// Acquiring with that document's tag proves that the rows were read from the current checkpoint. `batch` is
    /// recorded in the same write. If nothing is stored there is no tag: a blank document is created, and nothing is
    /// granted yet. See [`StateDocument::blank`].
    ///
    /// # Errors
    ///
    /// [`LeaseError::Store`] if the outcome is not known in time.
    pub async fn acquire(
        context: LeaseContext<'a>,
        base: &Snapshot,
        batch: Option<InFlight>,
    ) -> Result<AcquireResult<'a>, LeaseError> {
        let granted = base.document.acquire(asked(context, base, batch));
        Box::pin(Self::acquire_measured(context, base, granted)).await
    }

    async fn request(
        context: LeaseContext<'a>,
        base: &Snapshot,
        granted: Result<StateDocument, Refusal>,
    ) -> Result<AcquireResult<'a>, LeaseError> {
        let mut document = match granted {
            Ok(document) => document,
            Err(refusal) => return Ok(AcquireResult::Refused(refusal)),
        };
        document.write_id = context.instance.next_write_id();
        recorder(context).numbering().number(EventKind::LeaseAcquired, &mut document);
        let holder = document.holder(context.instance.owner_id());
        let renewed_at = Instant::now();
        let until = context.stop_at.min(renewed_at + context.terms.ttl / 2);
        let writer = DocumentStore { store: context.store, key: context.key, until };
        // Boxed, as below: a document is large, and all other futures contain these.
        let Some(etag) = &base.etag else {
            let fingerprint = base.document.source_fingerprint.clone();
            let mut blank = StateDocument::blank(&base.document.poller_name, fingerprint);
            blank.partition = base.document.partition;
            writer.create(&blank).await?;
            return Ok(AcquireResult::Conflict);
        };
        let written = Box::pin(writer.replace(document, etag)).await?;
        let Some(snapshot) = written else {
            return Ok(AcquireResult::Conflict);
        };
        let marked = snapshot.document.marked;
        let lease = Self {
            context,
            holder,
            snapshot,
            renewed_at,
            marked,
            remember: None,
            counted: None,
            unreadable: 0,
            audited: None,
            unconfirmed_front: None,
            overlapped: OverlappedCommit::default(),
            heartbeat_delay: None,
            _active: metrics::granted(context, base, renewed_at.elapsed()),
        };
        let event = EventKind::LeaseAcquired;
        lease.note(event, || Details::of(event, &base.document, lease.document()));
        Ok(AcquireResult::Held(Box::new(lease)))
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

    /// Returns the document as it is known to be stored: as it was last read or written.
    pub fn document(&self) -> &StateDocument {
        &self.snapshot.document
    }

    /// Returns the document that the current work builds on: as stored, or as it will be after the commit that is
    /// pending alongside this work. If that commit fails, the work is dropped.
    pub fn expected(&self) -> &StateDocument {
        self.overlapped.expected().unwrap_or(&self.snapshot.document)
    }

    /// Returns the document with its tag, for the next tick.
    pub fn into_snapshot(self) -> Snapshot {
        self.snapshot
    }

    /// Returns the storage service's time, as far as it is known without a request.
    pub fn now(&self) -> OffsetDateTime {
        self.snapshot.now()
    }

    /// Returns how late the slowest renewal landed, if there was one.
    pub fn heartbeat_delay(&self) -> Option<Duration> {
        self.heartbeat_delay
    }

    /// Checks that the document as it was last read or written still grants this lease.
    ///
    /// A commit with an unknown outcome may be found landed under a newer grant: the checkpoint has moved then, and
    /// nothing more may start.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Lost`] if it is granted to another instance.
    pub fn still_held(&self) -> Result<(), LeaseError> {
        if self.document().is_held_by(&self.holder) {
            return Ok(());
        }
        Err(LeaseError::Lost(self.document().superseded(&self.holder)))
    }

    /// Reads the document, and returns whether its newest grant is this one. A failed read is repeated until the
    /// deadline.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Store`] or [`LeaseError::Format`] if it could not be read in time.
    pub async fn is_newest_grant(&self) -> Result<bool, LeaseError> {
        let until = self.write_deadline();
        let writer = DocumentStore { store: self.context.store, key: self.context.key, until };
        let found = Box::pin(writer.read(&mut writer.pause())).await?;
        Ok(found.is_some_and(|found| found.document.is_held_by(&self.holder)))
    }

    /// Notes that the marker exists; the next write records that.
    pub fn mark(&mut self) {
        self.marked = true;
    }

    /// Notes the state that the source wants kept; it goes into the next write only.
    pub fn remember(&mut self, state: Option<SourceState>) {
        self.remember = state;
    }

    /// Notes how many entries there are; the next write records it, unless entries change until then.
    pub fn count_entries(&mut self, counted: EntryCounts) {
        self.counted = Some(counted);
    }

    /// Notes that the entry of an unreadable row is written whose key was not parked before; the next write counts it. If
    /// that write fails, the row is not counted: it is no longer among those whose keys would be parked.
    pub fn count_unreadable(&mut self) {
        self.unreadable = self.unreadable.saturating_add(1);
    }

    /// Notes that closed windows up to this one hold only delivered rows; the next write removes them.
    pub fn finish(&mut self, audited: ClosedWindow) {
        self.audited = Some(audited);
    }

    /// Records an event under this lease in the journal; `details` is called only if the journal records such
    /// events.
    pub fn note(&self, event: EventKind, details: impl FnOnce() -> Details) {
        let mut recorder = recorder(self.context);
        if recorder.mode().records(event) {
            let (at, holder, document) = (self.now(), &self.holder, self.document());
            recorder.record(HolderEvent { event, at, holder, document, details: details() });
        }
    }

    /// Moves the checkpoint forward. The same write releases the lease, or announces the next batch.
    ///
    /// A lease that has lapsed but was not taken over is still ours: the store decides.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Lost`] if another instance has the lease, [`LeaseError::Store`] if it is unknown whether the
    /// commit landed.
    pub async fn commit(&mut self, commit: Commit) -> Result<(), LeaseError> {
        let until = self.committing();
        self.commit_until(commit, until).await
    }

    async fn commit_until(&mut self, commit: Commit, until: Instant) -> Result<(), LeaseError> {
        let batch_id = commit.batch_id.clone();
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.commit(holder, commit.clone())
        };
        self.write(Some(EventKind::BatchComplete), &apply, Some(&batch_id), until).await
    }

    /// Commits the front of a batch, records the failure of the rest and releases the lease, in one write.
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
        let event = self.event_for(EventKind::BatchComplete, failure.pause.is_some());
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.commit(holder, commit.clone())?.fail(holder, failure.clone())
        };
        self.write(Some(event), &apply, Some(&batch_id), self.committing()).await
    }

    /// Commits the front of a batch, releases the lease and pauses the poller, in one write.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub async fn commit_prefix_and_pause(
        &mut self,
        commit: Commit,
        tick: EndOfTick,
        pause: Paused,
    ) -> Result<(), LeaseError> {
        let (batch_id, now) = (commit.batch_id.clone(), self.now());
        let event = self.event_for(EventKind::BatchComplete, true);
        let apply = move |document: &StateDocument, holder: &Holder| {
            let released = document.commit(holder, commit.clone())?.release(
                holder,
                now,
                Some(tick.clone()),
            )?;
            Ok(released.with_pause(pause.clone()))
        };
        self.write(Some(event), &apply, Some(&batch_id), self.committing()).await
    }

    /// Records a part of the current batch in its place, so that a successor starts with that part.
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
        self.write(Some(EventKind::BatchAnnounced), &apply, None, deadline).await
    }

    /// Records that an entry is about to be written.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub async fn announce_entry(&mut self, entry: AnnouncedEntry) -> Result<(), LeaseError> {
        let now = self.now();
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.announce_entry(holder, entry, now)
        };
        let deadline = self.deadline();
        self.write(None, &apply, None, deadline).await
    }

    /// Proves by a write that the lease is held: what was read before is not newer than what its holder knows.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub async fn prove_held(&mut self) -> Result<(), LeaseError> {
        let deadline = self.deadline();
        self.renew(None, deadline).await?;
        self.still_held()
    }

    /// Records that the current batch failed, and releases the lease.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub async fn fail(&mut self, failure: Failure) -> Result<(), LeaseError> {
        let event = self.event_for(EventKind::HandlerFailed, failure.pause.is_some());
        let apply =
            move |document: &StateDocument, holder: &Holder| document.fail(holder, failure.clone());
        self.write(Some(event), &apply, None, self.write_deadline()).await
    }

    /// Releases the lease, and pauses the poller in the same write if there is a `pause`.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`]; the lease then lapses by itself.
    pub async fn release(
        &mut self,
        tick: Option<EndOfTick>,
        pause: Option<Paused>,
    ) -> Result<(), LeaseError> {
        let now = self.now();
        let event = self.event_for(EventKind::LeaseReleased, pause.is_some());
        let apply = move |document: &StateDocument, holder: &Holder| {
            let released = document.release(holder, now, tick.clone())?;
            Ok(match &pause {
                Some(pause) => released.with_pause(pause.clone()),
                None => released,
            })
        };
        self.write(Some(event), &apply, None, self.write_deadline()).await
    }

    /// Releases the lease, and keeps the fence of the target that rejected this grant: see
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
        self.write(Some(EventKind::LeaseReleased), &apply, None, self.write_deadline()).await
    }

    /// Returns the event of a write that may pause the poller. A pause is recorded even if the event that led to it
    /// is not; otherwise a document rebuilt from the journal would not be paused.
    fn event_for(&self, event: EventKind, pauses: bool) -> EventKind {
        let is_recorded = recorder(self.context).mode().records(event);
        if pauses && !is_recorded { EventKind::Paused } else { event }
    }

    /// Writes a change; `event` is the journal's event for it, if any.
    async fn write(
        &mut self,
        event: Option<EventKind>,
        apply: &Change<'_>,
        batch_id: Option<&BatchId>,
        until: Instant,
    ) -> Result<(), LeaseError> {
        // No write of a holder overtakes its commit.
        self.settle().await?;
        let (holder, marked, remember) = (&self.holder, self.marked, self.remember.take());
        let numbering = recorder(self.context).numbering();
        let (audited, counted) = (self.audited.as_ref(), self.counted);
        let unreadable = std::mem::take(&mut self.unreadable);
        let change = |document: &StateDocument| {
            // Before new windows are merged with them.
            let left = audited.map(|window| document.without_window(window));
            // Before a commit, which may follow an accepted row.
            let left = match unreadable {
                0 => left,
                rows => Some(left.as_ref().unwrap_or(document).with_unreadable_rows(rows)),
            };
            let mut next = apply(left.as_ref().unwrap_or(document), holder)?;
            next.marked |= marked;
            if let Some(state) = &remember {
                next.remember(state);
            }
            if let Some(counted) = counted {
                next.count_entries(counted);
            }
            if let Some(event) = EventKind::recorded_by(event, document, &next) {
                numbering.number(event, &mut next);
            }
            Ok(next)
        };
        let asked_at = Instant::now();
        let write_id = self.context.instance.next_write_id();
        let writer = DocumentStore { store: self.context.store, key: self.context.key, until };
        let unconfirmed_front = self.unconfirmed_front.as_ref();
        let logical = LogicalWrite { holder, write_id: &write_id, batch_id, unconfirmed_front };
        let written = Box::pin(writer.change_held(&self.snapshot, logical, &change)).await?;
        let before = std::mem::replace(&mut self.snapshot, written);
        self.renewed_at = asked_at;
        self.unconfirmed_front = None;
        // The write landed, but under a newer grant by now: the document found describes that holder's work, not
        // ours.
        let superseded = !self.document().is_held_by(&self.holder);
        let ours = superseded.then(|| change(&before.document)).transpose()?;
        let written = ours.as_ref().unwrap_or(self.document());
        if let Some(event) = EventKind::recorded_by(event, &before.document, written) {
            self.note(event, || Details::of(event, &before.document, written));
        }
        Ok(())
    }

    /// Until when the holder may rely on the lease.
    fn deadline(&self) -> Instant {
        self.renewed_at + self.context.terms.ttl - self.context.terms.margin
    }

    /// Until when a write that ends a batch may look for its outcome.
    fn write_deadline(&self) -> Instant {
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
