//! The rules: pure functions from one document to the next.
//!
//! Each returns the complete next document, or why there is none. None of them reads a clock or does I/O. After a
//! lost compare-and-swap, most are applied to the document that won. Acquiring is not: the round starts over, because
//! its rows were read after another position. A note of an idle or failing tick is not either: it can wait.

mod failure;
mod recovery;
mod restore;

use std::time::Duration;

use thiserror::Error;
use time::OffsetDateTime;

pub use self::failure::Failure;
use super::audit::{Audit, AuditStep};
use super::fence::StaleWrite;
use super::state_document::{
    Activity, BacklogObservation, Checkpoint, FailureRecord, FirstLoad, InFlight, LastFailure,
    Paused, RECENT_MAX, RecentTick, StateDocument,
};
use crate::cursor::Cursor;
use crate::event::BatchId;
use crate::grant::{FencingToken, Holder};

/// The highest token: the largest integer that every JSON reader represents exactly (2^53 − 1).
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// Added to a lease's ttl, in addition to two grains of the store's clock, before a takeover: allows for the time of
/// a renewal in progress.
const LAPSE_MARGIN: Duration = Duration::from_secs(2);

/// The age of a document, by the service's own clock alone.
#[derive(Clone, Copy, Debug)]
pub struct DocumentAge {
    /// `Date` of the read minus `Last-Modified` of what was read.
    pub since_write: Duration,
    /// Granularity of that clock.
    pub grain: Duration,
}

/// The state of a lease, from the view of an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseState {
    /// It is free.
    Free,
    /// This instance holds it.
    Own,
    /// Its holder has not written for longer than its ttl.
    Lapsed,
    /// Another instance holds it.
    Held {
        /// The holder.
        owner_id: String,
    },
}

/// Why a transition is not allowed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Refusal {
    /// Another instance holds the lease.
    #[error("lease is held by `{owner_id}`")]
    Held {
        /// The holder.
        owner_id: String,
    },
    /// The poller is paused.
    #[error("poller is paused by `{by}`: {reason}")]
    Paused {
        /// Who.
        by: String,
        /// Why.
        reason: String,
        /// Since when.
        since: OffsetDateTime,
    },
    /// The failed batch must not be retried yet.
    #[error("batch failed and is not retried before {until}")]
    BackingOff {
        /// Storage time of the next attempt.
        until: OffsetDateTime,
        /// What failed.
        failing: Option<FailureRecord>,
    },
    /// A newer lease has been granted, or the document was created again.
    #[error(
        "lease superseded: held token {} of generation {}, document has {current} owned by `{owner_id}`",
        held.token, held.generation
    )]
    Superseded {
        /// The grant of the caller.
        held: Holder,
        /// The newest grant.
        current: FencingToken,
        /// Its owner, or `nobody`.
        owner_id: String,
    },
    /// The checkpoint would move backwards.
    #[error("checkpoint would move back from `{from}` to `{to}`")]
    Backwards {
        /// Leading part of the checkpoint.
        from: String,
        /// Leading part of the new position.
        to: String,
    },
    /// The target has accepted a higher grant than the newest one.
    #[error(
        "target has accepted grant {}, but the newest grant of the state document is {}",
        .0.current, .0.stale
    )]
    FenceAhead(StaleWrite),
    /// No higher token is represented exactly by every JSON reader.
    #[error(
        "fencing token has reached {TOKEN_MAX}, the highest that JSON readers represent exactly; continue \
         under another name: `highwater clone {poller} {poller}_2 --reason \"tokens used up\"`"
    )]
    TokensExhausted {
        /// The poller.
        poller: String,
    },
}

/// A request for the lease.
#[derive(Clone, Debug)]
pub struct Acquire<'a> {
    /// The instance.
    pub owner_id: &'a str,
    /// How long the lease lives without a write.
    pub ttl: Duration,
    /// How old the document is.
    pub age: DocumentAge,
    /// The service's clock.
    pub now: OffsetDateTime,
    /// The batch that will be delivered under it; `None` if not known yet.
    pub in_flight: Option<InFlight>,
}

/// A delivered batch.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The batch.
    pub batch_id: BatchId,
    /// Position of the last accepted row.
    pub upto: Cursor,
    /// Accepted rows.
    pub rows: u64,
    /// Whether the rows wait with their parked keys, so that they say nothing about the target.
    pub is_diverted: bool,
    /// Unreadable rows after the last accepted one, whose keys were parked.
    pub unreadable_last: u32,
    /// The service's clock.
    pub now: OffsetDateTime,
    /// How it affects the windows to read again.
    pub audit: AuditStep,
    /// What comes next, in the same write.
    pub then: AfterCommit,
}

/// What a commit does in the same write, besides moving the checkpoint.
#[derive(Clone, Debug)]
pub enum AfterCommit {
    /// The lease is released.
    Release(Option<EndOfTick>),
    /// The next batch is announced, and the lease stays held.
    Announce(Box<InFlight>),
    /// The lease is released, and the history of the rows that come next is kept.
    ReleaseAndKeep(Box<InFlight>, Option<EndOfTick>),
}

/// What the last write of a tick records about it.
#[derive(Clone, Debug)]
pub struct EndOfTick {
    /// The entry for the ring of recent ticks.
    pub recent: RecentTick,
    /// How long each step took.
    pub timings: Vec<(&'static str, Duration)>,
    /// The backlog it left.
    pub observed: BacklogObservation,
}

impl StateDocument {
    /// Returns the state of the lease for `owner_id`.
    ///
    /// A lease has expired when `idle_before + since_write ≥ ttl + 2 × grain + 2 s`. Both durations are measured by
    /// the service's clock, so no instance's clock matters.
    pub fn lease_state(&self, owner_id: &str, age: DocumentAge) -> LeaseState {
        let lease = &self.lease;
        let Some(holder) = lease.owner_id.as_deref().filter(|_| lease.released_at.is_none()) else {
            return LeaseState::Free;
        };
        if holder == owner_id {
            return LeaseState::Own;
        }
        if self.lapses_in(age).is_zero() {
            LeaseState::Lapsed
        } else {
            LeaseState::Held { owner_id: holder.to_owned() }
        }
    }

    /// Returns how long until the lease expires if its holder does not write again.
    pub fn lapses_in(&self, age: DocumentAge) -> Duration {
        let ttl = Duration::from_secs(self.lease.ttl_seconds);
        (ttl + age.grain * 2 + LAPSE_MARGIN).saturating_sub(self.idle(age))
    }

    /// Returns why no tick may run now, apart from the lease.
    ///
    /// The store's clock is truncated to whole grains, so `now` may be up to one grain too early. A backoff that may
    /// be over counts as over: otherwise a tick could be refused at the due time and wait for another timer interval.
    pub fn block_reason(&self, now: OffsetDateTime, grain: Duration) -> Option<Refusal> {
        if let Some(paused) = &self.paused {
            let (by, reason) = (paused.by.clone(), paused.reason.clone());
            return Some(Refusal::Paused { by, reason, since: paused.at });
        }
        let batch = self.in_flight.as_ref()?;
        let until = batch.next_attempt_at?;
        (now + grain < until).then(|| Refusal::BackingOff { until, failing: batch.failing() })
    }

    /// Grants the lease with the next fencing token.
    ///
    /// Crashes of holders are counted here: if the lease expired without a release, the batch in flight gets one more
    /// crash.
    ///
    /// # Errors
    ///
    /// [`Refusal::Held`], [`Refusal::Paused`], [`Refusal::BackingOff`], [`Refusal::FenceAhead`] or
    /// [`Refusal::TokensExhausted`].
    pub fn acquire(&self, request: Acquire<'_>) -> Result<Self, Refusal> {
        match self.block_reason(request.now, request.age.grain) {
            Some(block_reason) => Err(block_reason),
            None => self.grant(request),
        }
    }

    /// Grants the lease even if ticks may not run: for what an operator does under it.
    ///
    /// # Errors
    ///
    /// [`Refusal::Held`], [`Refusal::FenceAhead`] or [`Refusal::TokensExhausted`].
    pub fn grant(&self, request: Acquire<'_>) -> Result<Self, Refusal> {
        if let Some(refused) = self.fence_ahead() {
            return Err(Refusal::FenceAhead(refused));
        }
        let has_lapsed = match self.lease_state(request.owner_id, request.age) {
            LeaseState::Held { owner_id } => return Err(Refusal::Held { owner_id }),
            LeaseState::Lapsed => true,
            LeaseState::Free | LeaseState::Own => false,
        };
        let mut next = self.clone();
        // The earlier holder crashed with its batch, unless its lease was for retries of parked keys. A process that
        // finds its own lease did not crash.
        let crashed_with_batch = has_lapsed && !self.parked.is_retrying;
        next.parked.is_retrying = false;
        if let Some(in_flight) = next.in_flight.as_mut().filter(|_| crashed_with_batch) {
            in_flight.crashes = in_flight.crashes.saturating_add(1);
        }
        // In this order: the crash is counted for the old batch, whose late rows go back to their window, and a new
        // batch of the same rows then inherits the count.
        next.put_late_rows_back();
        if let Some(batch) = request.in_flight {
            next.start_batch(batch, request.now);
        }
        let token = self.next_token()?;
        let lease = &mut next.lease;
        lease.owner_id = Some(request.owner_id.to_owned());
        lease.fencing_token = token;
        lease.acquired_at = Some(request.now);
        lease.ttl_seconds = request.ttl.as_secs();
        lease.released_at = None;
        next.touch(request.now);
        Ok(next)
    }

    /// Records that the holder is alive; the token stays.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if another instance has taken over the lease.
    pub fn renew(&self, holder: &Holder, now: OffsetDateTime) -> Result<Self, Refusal> {
        let mut next = self.held_by(holder)?;
        next.touch(now);
        Ok(next)
    }

    /// Moves the checkpoint forward, or the progress in the window that is read again.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if another instance has taken over the lease, [`Refusal::Backwards`] if the position
    /// is before the checkpoint.
    pub fn commit(&self, holder: &Holder, commit: Commit) -> Result<Self, Refusal> {
        let mut next = self.held_by(holder)?;
        if commit.audit == AuditStep::ReadAgain {
            let after = self.in_flight.as_ref().and_then(|batch| batch.after.as_ref());
            next.audit.deliver_again(after, &commit.upto);
        } else {
            next.refuse_backwards(&commit.upto)?;
            next.close_window(&commit);
            let checkpoint = &mut next.checkpoint;
            checkpoint.cursor = Some(commit.upto);
            checkpoint.last_successful_batch_id = Some(commit.batch_id);
            checkpoint.fencing_token = Some(holder.token);
            checkpoint.updated_at = Some(commit.now);
            checkpoint.metadata.row_count = commit.rows;
            next.count_in_range(commit.rows);
            next.count_in_first_load(self, commit.rows, commit.now);
        }
        if commit.rows > 0 {
            next.quarantined_in_a_row = 0;
            next.parked.unreadable_in_a_row = 0;
        } else if !commit.is_diverted {
            // It moves the checkpoint past a quarantined row.
            next.quarantined_in_a_row = self.quarantined_in_a_row.saturating_add(1);
        }
        let unreadable = &mut next.parked.unreadable_in_a_row;
        *unreadable = unreadable.saturating_add(commit.unreadable_last);
        next.touch(commit.now);
        next.last_failure = None;
        // Rows that were only parked were not delivered.
        if commit.rows > 0 {
            next.last_success_at = Some(commit.now);
        }
        match commit.then {
            AfterCommit::Announce(batch) if batch.late => next.start_batch(*batch, commit.now),
            AfterCommit::Announce(batch) => next.in_flight = Some(batch.announced(commit.now)),
            AfterCommit::Release(tick) => {
                next.in_flight = None;
                next.release_lease(commit.now, tick);
            }
            AfterCommit::ReleaseAndKeep(batch, tick) => {
                next.in_flight = Some(batch.announced(commit.now));
                next.put_late_rows_back();
                next.release_lease(commit.now, tick);
            }
        }
        Ok(next)
    }

    /// Releases the lease.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if another instance has taken over the lease.
    pub fn release(
        &self,
        holder: &Holder,
        now: OffsetDateTime,
        tick: Option<EndOfTick>,
    ) -> Result<Self, Refusal> {
        let mut next = self.held_by(holder)?;
        next.touch(now);
        next.release_lease(now, tick);
        Ok(next)
    }

    /// Pauses the poller. Owner and token stay, so a holder may finish its batch.
    #[must_use]
    pub fn pause(&self, paused: Paused, age: DocumentAge) -> Self {
        self.written_by_other(age).with_pause(paused)
    }

    /// Pauses the poller, in a write of the holder itself.
    #[must_use]
    pub fn with_pause(&self, paused: Paused) -> Self {
        let mut next = self.clone();
        next.require("paused");
        next.paused = Some(paused);
        next
    }

    /// Prevents builds that do not know the feature `name` from using the document.
    pub(super) fn require(&mut self, name: &str) {
        if !self.requires.iter().any(|known| known == name) {
            self.requires.push(name.to_owned());
        }
    }

    /// Resumes the poller, at once even if the batch was backing off.
    ///
    /// Attempts and crashes belong to the rows: they stay, or a failing row would never be parked while operators
    /// resume in between. Only if they paused the poller, they are counted from zero: otherwise the next failure would
    /// pause it again.
    #[must_use]
    pub fn resume(&self, age: DocumentAge) -> Self {
        let mut next = self.written_by_other(age);
        next.requires.retain(|name| name != "paused");
        let is_exhausted = next.paused.take().is_some_and(|paused| paused.is_by_policy());
        if let Some(in_flight) = &mut next.in_flight {
            in_flight.next_attempt_at = None;
            if is_exhausted {
                in_flight.reset_attempts();
            }
        }
        next.audit.end_backoffs(is_exhausted);
        next
    }

    /// Moves the checkpoint to any position, on request of an operator. Clears the owner and raises the token, so
    /// that no write of a former holder can succeed.
    ///
    /// # Errors
    ///
    /// [`Refusal::TokensExhausted`].
    pub fn reset(&self, to: Option<Cursor>, replay_id: String) -> Result<Self, Refusal> {
        let mut next = self.break_lease()?;
        next.checkpoint = Checkpoint { cursor: to, ..Checkpoint::default() };
        next.in_flight = None;
        // It belongs to the old position.
        next.source_state.clear();
        next.observed = None;
        next.last_failure = None;
        next.audit = Audit::default();
        next.replay_id = Some(replay_id);
        Ok(next)
    }

    /// Keeps the position while an operator accepts another source for it. Clears the owner and raises the token, so
    /// that nothing a former holder read from the old source can be committed.
    ///
    /// # Errors
    ///
    /// [`Refusal::TokensExhausted`].
    pub fn keep_position(&self) -> Result<Self, Refusal> {
        let mut next = self.break_lease()?;
        next.observed = None;
        next.last_failure = None;
        Ok(next)
    }

    /// Removes the lease from its holder, and raises the token.
    ///
    /// # Errors
    ///
    /// [`Refusal::TokensExhausted`].
    pub fn break_lease(&self) -> Result<Self, Refusal> {
        let mut next = self.clone();
        next.lease.fencing_token = self.next_token()?;
        next.lease.owner_id = None;
        next.lease.released_at = None;
        next.lease.set_idle_before(Duration::ZERO);
        Ok(next)
    }

    /// Records failed ticks, in a write without a lease. Owner and token stay.
    #[must_use]
    pub fn failing(&self, failure: LastFailure, age: DocumentAge) -> Self {
        let mut next = self.written_by_other(age);
        next.count_failure(failure);
        next
    }

    /// Adds failed ticks to those since the last success.
    fn count_failure(&mut self, failure: LastFailure) {
        let (since, count) = match &self.last_failure {
            Some(known) => (known.since.min(failure.since), known.count),
            None => (failure.since, 0),
        };
        let count = count.saturating_add(failure.count);
        self.last_failure = Some(LastFailure { since, count, ..failure });
    }

    /// Records what idle ticks saw. Owner and token stay, so a holder continues as before.
    #[must_use]
    pub fn observe(&self, observed: BacklogObservation, age: DocumentAge) -> Self {
        let mut next = self.written_by_other(age);
        next.last_success_at = Some(observed.at);
        next.last_failure = None;
        next.observed = Some(observed);
        next
    }

    /// Whether `holder` still holds the lease.
    pub fn is_held_by(&self, holder: &Holder) -> bool {
        self.lease.owner_id.as_deref() == Some(&holder.owner_id)
            && self.lease.fencing_token == holder.token
            && self.generation == holder.generation
    }

    /// Whether `holder` released its grant, even if another holder has been granted the lease since.
    pub fn was_released_by(&self, holder: &Holder) -> bool {
        self.generation == holder.generation && self.lease.released.contains(holder.token)
    }

    /// Whether `batch_id` was committed last, under the grant of `holder`: the successor of a stale holder delivers
    /// the same batch under the same id.
    pub fn was_committed_by(&self, holder: &Holder, batch_id: &BatchId) -> bool {
        self.generation == holder.generation
            && self.checkpoint.fencing_token == Some(holder.token)
            && self.checkpoint.last_successful_batch_id.as_ref() == Some(batch_id)
    }

    fn held_by(&self, holder: &Holder) -> Result<Self, Refusal> {
        if self.is_held_by(holder) {
            return Ok(self.clone());
        }
        Err(self.superseded(holder))
    }

    /// Returns the refusal for a grant of `holder` that is not this document's newest.
    pub fn superseded(&self, holder: &Holder) -> Refusal {
        Refusal::Superseded {
            held: holder.clone(),
            current: self.lease.fencing_token,
            owner_id: self.lease.owner_id.clone().unwrap_or_else(|| "nobody".to_owned()),
        }
    }

    fn next_token(&self) -> Result<FencingToken, Refusal> {
        let current = self.lease.fencing_token.0;
        if current >= TOKEN_MAX {
            return Err(Refusal::TokensExhausted { poller: self.poller_name.clone() });
        }
        Ok(FencingToken(current + 1))
    }

    fn refuse_backwards(&self, to: &Cursor) -> Result<(), Refusal> {
        match &self.checkpoint.cursor {
            Some(from) if to.compare_leading(from) != Some(std::cmp::Ordering::Less) => Ok(()),
            None => Ok(()),
            Some(from) => {
                Err(Refusal::Backwards { from: from.value.clone(), to: to.value.clone() })
            }
        }
    }

    /// Every write of the holder is a heartbeat.
    fn touch(&mut self, now: OffsetDateTime) {
        self.lease.heartbeat_at = Some(now);
        self.lease.expires_at = Some(now + Duration::from_secs(self.lease.ttl_seconds));
        self.lease.set_idle_before(Duration::ZERO);
    }

    fn release_lease(&mut self, now: OffsetDateTime, tick: Option<EndOfTick>) {
        self.lease.released_at = Some(now);
        self.lease.released.note(self.lease.fencing_token);
        self.lease.expires_at = Some(now);
        self.parked.is_retrying = false;
        let Some(tick) = tick else { return };
        self.note_backlog(tick.observed);
        for (step, duration) in tick.timings {
            self.timings.entry(step.to_owned()).or_default().record(duration);
        }
        self.note(tick.recent);
    }

    fn note_backlog(&mut self, observed: BacklogObservation) {
        self.observed = Some(observed);
        if self.has_no_backlog() {
            self.checkpoint.metadata.first_load = None;
        }
    }

    /// Whether the last tick that wrote reached the end of the source.
    pub(crate) fn has_no_backlog(&self) -> bool {
        self.observed.as_ref().is_some_and(|observed| observed.rows == Some(0))
    }

    /// Counts the rows of a commit if they belong to the first load, which starts with the first commit ever.
    fn count_in_first_load(&mut self, before: &Self, rows: u64, now: OffsetDateTime) {
        let load = &mut self.checkpoint.metadata.first_load;
        if before.has_no_backlog() {
            *load = None;
        }
        if before.checkpoint.cursor.is_none() && before.range.is_none() {
            let started_at = before.lease.acquired_at.unwrap_or(now);
            *load = Some(FirstLoad { started_at, rows: 0, extra: serde_json::Map::new() });
        }
        if let Some(load) = load {
            load.rows = load.rows.saturating_add(rows);
        }
    }

    /// Adds an entry to the ring of recent ticks.
    pub(crate) fn note(&mut self, recent: RecentTick) {
        Activity::add(&mut self.activity, &recent);
        self.recent.push(recent);
        let surplus = self.recent.len().saturating_sub(RECENT_MAX);
        self.recent.drain(..surplus);
    }

    /// A write of another writer must not make the holder look alive.
    pub(super) fn written_by_other(&self, age: DocumentAge) -> Self {
        let mut next = self.clone();
        next.lease.set_idle_before(self.idle(age));
        next
    }
}

impl InFlight {
    /// Returns how many consecutive holders have crashed with it.
    pub fn crashes_in_a_row(&self) -> u32 {
        self.crashes.saturating_sub(self.crashes_survived)
    }

    /// Carries over the history of earlier attempts at the same position.
    ///
    /// The counts belong to the position at which the poller is stuck, not to the batch. The last row may have
    /// changed and thereby left the batch, and a row that changes constantly must not keep the counts of a rejected
    /// row next to it at zero. They are reset when the checkpoint moves. What belongs to the bytes is kept only if
    /// the batch id is the same.
    pub(super) fn continuing(self, previous: Option<&Self>) -> Self {
        let same = self.keeping_results(previous);
        match previous {
            Some(previous) if previous.after == same.after => Self {
                probing: previous.probing,
                attempt: previous.attempt,
                crashes: previous.crashes,
                crashes_survived: previous.crashes_survived,
                first_failed_at: previous.first_failed_at,
                first_error: previous.first_error.clone(),
                last_error: previous.last_error.clone(),
                failed_step: previous.failed_step.clone(),
                ..same
            },
            Some(_) | None => same,
        }
    }
}

#[cfg(test)]
mod tests;
