//! Work under a lease: what is written beside it, one write at a time.
//!
//! A renewal goes on beside the work, and so does the commit of the batch before it where that was left to
//! it. Both are writes of one document under one chain of tags, made by one task: while the commit has no
//! answer nothing else is written, no renewal either, so the work has no longer than the lease as it was
//! confirmed last.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until, timeout};

use super::measure::Heartbeat;
use super::{COMMIT_GRACE, Lease, LeaseError};
use crate::cursor::SourceState;
use crate::journal::{Details, Happened};
use crate::state::{Commit, Holder, StateDocument};

/// Says what work has done for good since it was asked last, given the document and the time.
pub type Accepted<'a> = dyn FnMut(&StateDocument, OffsetDateTime) -> Option<Commit> + Send + 'a;

/// A commit that is left to the next work, and what became of it.
#[derive(Debug, Default)]
pub(super) struct Beside {
    waiting: Option<Box<Waiting>>,
    /// How long it took, once it was confirmed.
    confirmed: Option<Duration>,
}

/// A commit that is not sent yet.
#[derive(Debug)]
struct Waiting {
    commit: Commit,
    /// What the source wants kept with it.
    remember: Option<SourceState>,
    /// The document as it will be, unless somebody else writes between.
    hoped: StateDocument,
    /// What the journal is to be told of the work, behind the commit.
    started: Option<Details>,
}

impl Beside {
    /// Returns the document as it will be once what waits is committed.
    pub(super) fn hoped(&self) -> Option<&StateDocument> {
        self.waiting.as_ref().map(|waiting| &waiting.hoped)
    }
}

impl Lease<'_> {
    /// Leaves `commit` to the next work that is held: it is sent as that begins, and goes on beside it. Until
    /// then [`Self::document`] is the document as it will be.
    ///
    /// Returns `false`, and leaves nothing, where no work may begin under the lease any more.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`], as far as the document that was written last tells.
    pub fn commit_beside(&mut self, commit: Commit) -> Result<bool, LeaseError> {
        if Instant::now() >= self.deadline() {
            return Ok(false);
        }
        let mut hoped = self.document().commit(&self.holder, commit.clone())?;
        let remember = self.remember.take();
        if let Some(state) = &remember {
            hoped.remember(state);
        }
        self.beside.waiting = Some(Box::new(Waiting { commit, remember, hoped, started: None }));
        Ok(true)
    }

    /// Whether a commit is left to the next work.
    pub fn is_committing(&self) -> bool {
        self.beside.waiting.is_some()
    }

    /// Returns how long the commit took that was left to work, where it was confirmed since this was asked
    /// last.
    pub fn take_confirmed(&mut self) -> Option<Duration> {
        self.beside.confirmed.take()
    }

    /// Tells the journal that a handler is called; behind the commit that goes on beside it, if one does.
    pub fn note_started(&mut self, details: impl FnOnce() -> Details) {
        match &mut self.beside.waiting {
            Some(waiting) => waiting.started = Some(details()),
            None => self.note(Happened::ExecutionStarted, details),
        }
    }

    /// Runs `work` while renewing the lease, and drops it when the lease is lost, has lapsed, or the
    /// tick's time is over. Work does not begin under a lease that has lapsed already.
    ///
    /// # Errors
    ///
    /// [`LeaseError`] if `work` was dropped before it ended; its outcome is then unknown;
    /// [`LeaseError::Uncommitted`] if that was for the commit that went on beside it.
    pub async fn hold_while<T>(&mut self, work: impl Future<Output = T>) -> Result<T, LeaseError> {
        self.hold_while_accepting(work, &mut |_, _| None).await
    }

    /// Runs `work` as [`Self::hold_while`] does; what `accepted` returns rides on the next renewal.
    ///
    /// It is asked before each renewal, with the document and the service's time, for the commit of
    /// what `work` has done for good since it was asked last.
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
            // The renewal and the work go on side by side: a slow store must not stall the work.
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
                    // A renewal in the air is waited for, so that the commit finds its tag. One that
                    // hangs is let go; if it lands late, the commit's judging recognises it.
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

    /// Makes the commit that was left to `work`, if one was, and goes on with `work` meanwhile: `None` where the
    /// work goes on behind it. Work that was done first waits for it: its outcome is worth nothing without.
    ///
    /// Work is dropped at once where the commit did not come to be, and at the end of its time as ever; the
    /// commit is waited for then.
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
                done = unless_dropped(work.as_mut()) => Ok(Some(done)),
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

    /// Makes the commit that waits, if one does.
    pub(super) async fn settle(&mut self) -> Result<(), LeaseError> {
        let Some(waiting) = self.beside.waiting.take() else { return Ok(()) };
        let began_at = Instant::now();
        // The tick may be stopped meanwhile, and has a failure to write down then.
        let end = self.context.stop_at.max(began_at) + COMMIT_GRACE;
        let until = self.committing().min(end);
        let for_another = std::mem::replace(&mut self.remember, waiting.remember);
        let committed = Box::pin(self.commit_until(waiting.commit, until)).await;
        self.remember = for_another;
        if let Some(details) = waiting.started {
            self.note(Happened::ExecutionStarted, || details);
        }
        committed.map_err(|error| LeaseError::Uncommitted(Box::new(error)))?;
        self.beside.confirmed = Some(began_at.elapsed());
        Ok(())
    }

    /// Renews as [`Self::renew`] does, and measures it; it was due at `due`.
    async fn beat(
        &mut self,
        prefix: Option<Commit>,
        until: Instant,
        due: Instant,
    ) -> Result<(), LeaseError> {
        let heartbeat = Heartbeat::begin(self.context);
        self.renew(prefix, until).await?;
        self.heartbeat_delay = self.heartbeat_delay.max(Some(due.elapsed()));
        heartbeat.landed();
        Ok(())
    }

    /// Says that the holder is alive, and commits `prefix` in the same write.
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
        // If this is given up, it may land all the same, and nobody but us will have moved it there.
        self.in_the_air = Some(prefix.upto.clone());
        let batch_id = prefix.batch_id.clone();
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.commit(holder, prefix.clone())
        };
        self.write(Some(Happened::BatchComplete), &apply, Some(&batch_id), until).await
    }
}

/// Goes on with work; what was dropped never ends.
async fn unless_dropped<T>(mut work: Pin<&mut Option<impl Future<Output = T>>>) -> T {
    poll_fn(|context| match work.as_mut().as_pin_mut() {
        Some(work) => work.poll(context),
        None => Poll::Pending,
    })
    .await
}
