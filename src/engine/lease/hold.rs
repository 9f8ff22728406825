//! Work under a lease: what is written alongside it, one write at a time.
//!
//! Renewals are made alongside the work, and so is an overlapped commit of the previous batch. Both write the same
//! document under one chain of tags, in one task. While the commit is pending nothing else is written, not even a
//! renewal, so the work has only as much time as the last confirmed write of the lease gives it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until, timeout};

use super::metrics::Heartbeat;
use super::{COMMIT_GRACE, Lease, LeaseError};
use crate::cursor::SourceState;
use crate::document::{Commit, Holder, StateDocument};
use crate::journal::{Details, EventKind};

/// Returns the commit of what the work has accepted since the last call, given the document and the time.
pub type Accepted<'a> = dyn FnMut(&StateDocument, OffsetDateTime) -> Option<Commit> + Send + 'a;

/// A commit made alongside the next work, and its result.
#[derive(Debug, Default)]
pub(super) struct OverlappedCommit {
    pending: Option<Box<PendingCommit>>,
    /// How long it took, once it was confirmed.
    confirmed: Option<Duration>,
}

/// A commit that is not sent yet.
#[derive(Debug)]
struct PendingCommit {
    commit: Commit,
    /// The state that the source wants kept with it.
    remember: Option<SourceState>,
    /// The document after the commit, unless another writer comes first.
    expected: StateDocument,
    /// The journal's event for the start of the work; recorded after the commit.
    started: Option<Details>,
}

impl OverlappedCommit {
    /// Returns the document as it will be after the pending commit; `None` if none is pending.
    pub(super) fn expected(&self) -> Option<&StateDocument> {
        self.pending.as_ref().map(|pending| &pending.expected)
    }
}

impl Lease<'_> {
    /// Leaves `commit` to the next work: it is sent when that work starts, and completes alongside it. Until then
    /// [`Self::expected`] is ahead of [`Self::document`].
    ///
    /// Returns `false`, and does nothing, if no work may start under the lease any more.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`], judged by the last written document.
    pub fn commit_alongside(&mut self, commit: Commit) -> Result<bool, LeaseError> {
        if Instant::now() >= self.deadline() {
            return Ok(false);
        }
        let mut expected = self.document().commit(&self.holder, commit.clone())?;
        let remember = self.remember.take();
        if let Some(state) = &remember {
            expected.remember(state);
        }
        self.overlapped.pending =
            Some(Box::new(PendingCommit { commit, remember, expected, started: None }));
        Ok(true)
    }

    /// Whether a commit is pending that the next work will make.
    pub fn is_committing(&self) -> bool {
        self.overlapped.pending.is_some()
    }

    /// Returns how long the overlapped commit took, if it was confirmed since the last call.
    pub fn take_confirmed(&mut self) -> Option<Duration> {
        self.overlapped.confirmed.take()
    }

    /// Records in the journal that a handler is called; after the pending commit, if there is one.
    pub fn note_started(&mut self, details: impl FnOnce() -> Details) {
        match &mut self.overlapped.pending {
            Some(pending) => pending.started = Some(details()),
            None => self.note(EventKind::ExecutionStarted, details),
        }
    }

    /// Runs `work` while renewing the lease. Drops it if the lease is lost or lapses, or if the tick's time is up.
    /// Does not start it under a lease that has lapsed already.
    ///
    /// # Errors
    ///
    /// [`LeaseError`] if `work` was dropped before it ended; its outcome is then unknown.
    /// [`LeaseError::Uncommitted`] if that was because of the overlapped commit.
    pub async fn hold_while<T>(&mut self, work: impl Future<Output = T>) -> Result<T, LeaseError> {
        self.hold_while_accepting(work, &mut |_, _| None).await
    }

    /// Runs `work` as [`Self::hold_while`] does; the commit that `accepted` returns is made with the next renewal.
    ///
    /// `accepted` is called before each renewal, with the document and the service's time.
    ///
    /// # Errors
    ///
    /// As [`Self::hold_while`].
    pub async fn hold_while_accepting<T>(
        &mut self,
        work: impl Future<Output = T>,
        accepted: &mut Accepted<'_>,
    ) -> Result<T, LeaseError> {
        let mut work = pin!(Some(work));
        let stop_at = self.context.stop_at;
        if Instant::now() >= self.deadline() {
            work.set(None);
        }
        if let Some(done) = self.commit_while(work.as_mut()).await? {
            return Ok(done);
        }
        let Some(mut work) = work.as_pin_mut() else { return Err(LeaseError::Lapsed) };
        loop {
            // Counted from the last renewal, not from now: a run of short holds must renew too.
            let beat_at = self.renewed_at + self.context.terms.heartbeat_interval;
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = sleep_until(stop_at) => return Err(LeaseError::OutOfTime),
                () = sleep_until(beat_at) => {}
            }
            // The renewal runs alongside the work: a slow store must not stall the work.
            let deadline = self.deadline();
            let heartbeat_interval = self.context.terms.heartbeat_interval;
            let prefix = accepted(self.document(), self.now());
            let mut renewal = pin!(self.beat(prefix, deadline, beat_at));
            tokio::select! {
                biased;
                renewed = &mut renewal => if let Err(error) = renewed {
                    return Err(error.or_lapsed());
                },
                done = &mut work => {
                    // Wait for a renewal in flight, so that the commit finds its tag. Abandon one that hangs; if it
                    // lands late, the commit recognises it.
                    return match timeout(heartbeat_interval, renewal).await {
                        Ok(Err(error @ (LeaseError::Lost(_) | LeaseError::Gone))) => Err(error),
                        Ok(Ok(()) | Err(_)) | Err(_) => Ok(done),
                    };
                }
                () = sleep_until(stop_at) => return Err(LeaseError::OutOfTime),
                () = sleep_until(deadline) => return Err(LeaseError::Lapsed),
            }
        }
    }

    /// Makes the pending commit, if there is one, with `work` alongside. Returns `None` if the work continues after
    /// it. Work that ends first waits for the commit, because its result is worthless without it.
    ///
    /// Work is dropped as soon as the commit fails, and when its time is up; the commit is awaited then.
    async fn commit_while<T>(
        &mut self,
        mut work: Pin<&mut Option<impl Future<Output = T>>>,
    ) -> Result<Option<T>, LeaseError> {
        if !self.is_committing() {
            return Ok(None);
        }
        let (stop_at, deadline) = (self.context.stop_at, self.deadline());
        let ended = {
            let mut commit = pin!(self.settle());
            let ended = tokio::select! {
                biased;
                committed = &mut commit => committed.map(|()| None),
                done = poll_unless_dropped(work.as_mut()) => Ok(Some(done)),
                () = sleep_until(stop_at) => Err(LeaseError::OutOfTime),
                () = sleep_until(deadline) => Err(LeaseError::Lapsed),
            };
            match ended {
                Ok(None) | Err(LeaseError::Uncommitted(_)) => ended,
                Ok(Some(_)) | Err(_) => {
                    work.set(None);
                    commit.await.and(ended)
                }
            }
        }?;
        self.still_held().map(|()| ended)
    }

    /// Makes the pending commit, if there is one.
    pub(super) async fn settle(&mut self) -> Result<(), LeaseError> {
        let Some(pending) = self.overlapped.pending.take() else { return Ok(()) };
        let began_at = Instant::now();
        // The tick may be stopped meanwhile, and still has a failure to record then.
        let end = self.context.stop_at.max(began_at) + COMMIT_GRACE;
        let until = self.committing().min(end);
        let for_another = std::mem::replace(&mut self.remember, pending.remember);
        let committed = Box::pin(self.commit_until(pending.commit, until)).await;
        self.remember = for_another;
        if let Some(details) = pending.started {
            self.note(EventKind::ExecutionStarted, || details);
        }
        committed.map_err(|error| LeaseError::Uncommitted(Box::new(error)))?;
        self.overlapped.confirmed = Some(began_at.elapsed());
        Ok(())
    }

    /// Renews as [`Self::renew`] does, and measures it; the renewal was due at `due`.
    async fn beat(
        &mut self,
        prefix: Option<Commit>,
        until: Instant,
        due: Instant,
    ) -> Result<(), LeaseError> {
        let heartbeat = Heartbeat::begin(self.context);
        self.renew(prefix, until).await?;
        self.heartbeat_delay = self.heartbeat_delay.max(Some(due.elapsed()));
        heartbeat.succeeded();
        Ok(())
    }

    /// Shows that the holder is alive, and commits `prefix` in the same write.
    pub(super) async fn renew(
        &mut self,
        prefix: Option<Commit>,
        until: Instant,
    ) -> Result<(), LeaseError> {
        let now = self.now();
        let Some(prefix) = prefix else {
            let apply =
                move |document: &StateDocument, holder: &Holder| document.renew(holder, now);
            return self.write(None, &apply, None, until).await;
        };
        // If this write is abandoned it may still land, and only we can have moved the checkpoint there.
        self.unconfirmed_front = Some(prefix.upto.clone());
        let batch_id = prefix.batch_id.clone();
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.commit(holder, prefix.clone())
        };
        self.write(Some(EventKind::BatchComplete), &apply, Some(&batch_id), until).await
    }
}

/// Polls work; dropped work never ends.
async fn poll_unless_dropped<T>(mut work: Pin<&mut Option<impl Future<Output = T>>>) -> T {
    poll_fn(|context| match work.as_mut().as_pin_mut() {
        Some(work) => work.poll(context),
        None => Poll::Pending,
    })
    .await
}
