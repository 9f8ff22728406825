//! The rules: pure functions from one document to the next.
//!
//! Each returns the whole next document or says why there is none; none reads a clock or does I/O. A
//! lost compare-and-swap is handled by applying the same function to the document that won.

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
    Checkpoint, FailureRecord, InFlight, LastFailure, Observed, Paused, RECENT_MAX, RecentTick,
    StateDocument,
};
use crate::cursor::Cursor;
use crate::event::BatchId;
use crate::grant::{FencingToken, Holder};

/// The highest token: the largest integer that every JSON reader keeps exact (2^53 − 1).
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// Added to a lease's ttl, besides two grains of the store's clock, before a takeover: room
/// for the time a renewal spends on its way.
const LAPSE_MARGIN: Duration = Duration::from_secs(2);

/// How old a document is, by the service's own clock alone.
#[derive(Clone, Copy, Debug)]
pub struct LeaseAge {
    /// `Date` of the read minus `Last-Modified` of what was read.
    pub since_write: Duration,
    /// Granularity of that clock.
    pub grain: Duration,
}

/// What an instance may do with a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseState {
    /// It is free.
    Free,
    /// This very instance holds it.
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
    /// Somebody paused the poller.
    #[error("poller is paused by `{by}`: {reason}")]
    Paused {
        /// Who.
        by: String,
        /// Why.
        reason: String,
        /// Since when.
        since: OffsetDateTime,
    },
    /// The failed batch is not to be tried yet.
    #[error("batch failed before and is not tried again until {until}")]
    BackingOff {
        /// Storage time of the next attempt.
        until: OffsetDateTime,
        /// What failed.
        failing: Option<FailureRecord>,
    },
    /// A newer lease has been granted, or the document was made again.
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
        /// Leading part of what was to replace it.
        to: String,
    },
    /// The target has accepted a higher grant than the newest one.
    #[error(
        "target has accepted grant {}, and the newest grant of the state document is {}",
        .0.current, .0.stale
    )]
    FenceAhead(StaleWrite),
    /// There is no higher token that every JSON reader keeps exact.
    #[error(
        "fencing token has reached {TOKEN_MAX}, the highest that JSON readers keep exact: let a poller of \
         another name continue from here, with `highwater clone {poller} {poller}_2 --reason \"tokens used up\"`"
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
    /// How long the lease is to live without a write.
    pub ttl: Duration,
    /// How old the document is.
    pub age: LeaseAge,
    /// The service's clock.
    pub now: OffsetDateTime,
    /// The batch that will be handled under it; `None` where it is not known yet.
    pub in_flight: Option<InFlight>,
}

/// A delivered batch.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The batch.
    pub batch_id: BatchId,
    /// Position of the last row that was taken.
    pub upto: Cursor,
    /// Rows that were taken.
    pub rows: u64,
    /// The service's clock.
    pub now: OffsetDateTime,
    /// What it means for the windows that are read again.
    pub audit: AuditStep,
    /// What comes next, in the same write.
    pub then: AfterCommit,
}

/// What a commit's write does besides moving the checkpoint.
#[derive(Clone, Debug)]
pub enum AfterCommit {
    /// The lease is given up.
    Release(Option<EndOfTick>),
    /// The next batch is announced, and the lease stays held.
    Handle(Box<InFlight>),
    /// The lease is given up, and what is known of the rows that come next is kept.
    Leave(Box<InFlight>, Option<EndOfTick>),
}

/// What the last write of a tick notes of it.
#[derive(Clone, Debug)]
pub struct EndOfTick {
    /// The entry for the ring of recent ticks.
    pub recent: RecentTick,
    /// How long each step took.
    pub timings: Vec<(&'static str, Duration)>,
    /// The backlog it left.
    pub observed: Observed,
}

impl StateDocument {
    /// Returns the state of the lease for `owner_id`.
    ///
    /// A lease has lapsed when `idle_before + since_write ≥ ttl + 2 × grain + 2 s`: both readings are
    /// the service's, so no instance's clock takes part.
    pub fn lease_state(&self, owner_id: &str, age: LeaseAge) -> LeaseState {
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

    /// Returns how long until the lease lapses if its holder does not write again.
    pub fn lapses_in(&self, age: LeaseAge) -> Duration {
        let ttl = Duration::from_secs(self.lease.ttl_seconds);
        (ttl + age.grain * 2 + LAPSE_MARGIN).saturating_sub(self.idle(age))
    }

    /// Returns why no tick may run now, apart from the lease.
    ///
    /// A store's clock is cut to whole grains, so `now` may be up to one grain too early. A back-off that may be over
    /// is over: a tick that was refused for that would cost a whole interval of its timer.
    pub fn hindrance(&self, now: OffsetDateTime, grain: Duration) -> Option<Refusal> {
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
    /// A holder that died is counted here: over a lapsed, unreleased lease the batch it had in hand
    /// gets one more crash.
    ///
    /// # Errors
    ///
    /// [`Refusal::Held`], [`Refusal::Paused`], [`Refusal::BackingOff`], [`Refusal::FenceAhead`] or
    /// [`Refusal::TokensExhausted`].
    pub fn acquire(&self, request: Acquire<'_>) -> Result<Self, Refusal> {
        match self.hindrance(request.now, request.age.grain) {
            Some(hindrance) => Err(hindrance),
            None => self.grant(request),
        }
    }

    /// Grants the lease whether ticks may run or not: for what an operator does under it by hand.
    ///
    /// # Errors
    ///
    /// [`Refusal::Held`], [`Refusal::FenceAhead`] or [`Refusal::TokensExhausted`].
    pub fn grant(&self, request: Acquire<'_>) -> Result<Self, Refusal> {
        if let Some(refused) = self.fence_ahead() {
            return Err(Refusal::FenceAhead(refused));
        }
        let died = match self.lease_state(request.owner_id, request.age) {
            LeaseState::Held { owner_id } => return Err(Refusal::Held { owner_id }),
            LeaseState::Lapsed => true,
            LeaseState::Free | LeaseState::Own => false,
        };
        let mut next = self.clone();
        if let Some(in_flight) = next.in_flight.as_mut().filter(|_| died) {
            in_flight.crashes = in_flight.crashes.saturating_add(1);
        }
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

    /// Says that the holder is alive; the token stays.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if the lease has passed to another.
    pub fn renew(&self, holder: &Holder, now: OffsetDateTime) -> Result<Self, Refusal> {
        let mut next = self.held_by(holder)?;
        next.touch(now);
        Ok(next)
    }

    /// Moves the checkpoint forward, or on in the window that is read again.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if the lease has passed to another, [`Refusal::Backwards`] if the
    /// position lies before the checkpoint.
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
        }
        // A commit without accepted rows moves the checkpoint past a quarantined one.
        next.quarantined_in_a_row =
            if commit.rows > 0 { 0 } else { self.quarantined_in_a_row.saturating_add(1) };
        next.touch(commit.now);
        next.succeed(commit.now);
        match commit.then {
            AfterCommit::Handle(batch) if batch.late => next.start_batch(*batch, commit.now),
            AfterCommit::Handle(batch) => next.in_flight = Some(batch.announced(commit.now)),
            AfterCommit::Release(tick) => {
                next.in_flight = None;
                next.give_up(commit.now, tick);
            }
            AfterCommit::Leave(batch, tick) => {
                next.in_flight = Some(batch.announced(commit.now));
                next.put_late_rows_back();
                next.give_up(commit.now, tick);
            }
        }
        Ok(next)
    }

    /// Gives the lease up.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if the lease has passed to another.
    pub fn release(
        &self,
        holder: &Holder,
        now: OffsetDateTime,
        tick: Option<EndOfTick>,
    ) -> Result<Self, Refusal> {
        let mut next = self.held_by(holder)?;
        next.touch(now);
        next.give_up(now, tick);
        Ok(next)
    }

    /// Keeps ticks from running; owner and token stay, so a holder may finish its batch.
    #[must_use]
    pub fn pause(&self, paused: Paused, age: LeaseAge) -> Self {
        self.written_by_other(age).paused_by_holder(paused)
    }

    /// Keeps ticks from running, in a write of the holder itself.
    #[must_use]
    pub fn paused_by_holder(&self, paused: Paused) -> Self {
        let mut next = self.clone();
        next.require("paused");
        next.paused = Some(paused);
        next
    }

    /// Keeps builds that do not know the feature `name` from using the document.
    pub(super) fn require(&mut self, name: &str) {
        if !self.requires.iter().any(|known| known == name) {
            self.requires.push(name.to_owned());
        }
    }

    /// Lets ticks run again, at once even where the batch was backing off, and counts its attempts
    /// anew: whoever resumes has mended something.
    #[must_use]
    pub fn resume(&self, age: LeaseAge) -> Self {
        let mut next = self.written_by_other(age);
        next.requires.retain(|name| name != "paused");
        next.paused = None;
        if let Some(in_flight) = &mut next.in_flight {
            in_flight.next_attempt_at = None;
            in_flight.first_failed_at = None;
            in_flight.attempt = 0;
            in_flight.crashes = 0;
            in_flight.crashes_survived = 0;
        }
        next.audit.forgive();
        next
    }

    /// Moves the checkpoint anywhere, as an operator asked: clears the owner and raises the token,
    /// so that nothing a former holder writes can land.
    ///
    /// # Errors
    ///
    /// [`Refusal::TokensExhausted`].
    pub fn reset(&self, to: Option<Cursor>, replay_id: String) -> Result<Self, Refusal> {
        let mut next = self.break_lease()?;
        next.checkpoint = Checkpoint { cursor: to, ..Checkpoint::default() };
        next.in_flight = None;
        // It speaks of what came before the position, and that is another one now.
        next.source_state.clear();
        next.observed = None;
        next.last_failure = None;
        next.audit = Audit::default();
        next.replay_id = Some(replay_id);
        Ok(next)
    }

    /// Keeps the position while an operator accepts another source for it: clears the owner and raises the
    /// token, so that nothing a former holder read from the old source can be committed.
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

    /// Takes the lease from its holder, and raises the token.
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

    /// Notes that ticks failed, in a write without a lease. Owner and token stay.
    #[must_use]
    pub fn failing(&self, failure: LastFailure, age: LeaseAge) -> Self {
        let mut next = self.written_by_other(age);
        next.count_failure(failure);
        next
    }

    fn succeed(&mut self, now: OffsetDateTime) {
        self.last_success_at = Some(now);
        self.last_failure = None;
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

    /// Notes what idle ticks saw. Owner and token stay, so a holder continues as before.
    #[must_use]
    pub fn observe(&self, observed: Observed, age: LeaseAge) -> Self {
        let mut next = self.written_by_other(age);
        next.succeed(observed.at);
        next.observed = Some(observed);
        next
    }

    /// Whether the lease is still `holder`'s.
    pub fn is_held_by(&self, holder: &Holder) -> bool {
        self.lease.owner_id.as_deref() == Some(&holder.owner_id)
            && self.lease.fencing_token == holder.token
            && self.generation == holder.generation
    }

    /// Whether `holder` released its grant, even if another holder has been granted the lease since.
    pub fn was_released_by(&self, holder: &Holder) -> bool {
        self.generation == holder.generation && self.lease.released.contains(holder.token)
    }

    /// Whether `batch_id` was committed last, and under the grant of `holder`: a successor of a stale
    /// holder delivers the same batch under the same id.
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

    /// Says that this document's newest grant is not `holder`'s.
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

    fn give_up(&mut self, now: OffsetDateTime, tick: Option<EndOfTick>) {
        self.lease.released_at = Some(now);
        self.lease.released.note(self.lease.fencing_token);
        self.lease.expires_at = Some(now);
        let Some(tick) = tick else { return };
        for (step, duration) in tick.timings {
            self.timings.entry(step.to_owned()).or_default().record(duration);
        }
        self.note(tick.recent);
        self.observed = Some(tick.observed);
    }

    /// Adds an entry to the ring of what was done last.
    pub(crate) fn note(&mut self, recent: RecentTick) {
        self.recent.push(recent);
        let surplus = self.recent.len().saturating_sub(RECENT_MAX);
        self.recent.drain(..surplus);
    }

    /// A write of another writer must not make the holder look alive.
    pub(super) fn written_by_other(&self, age: LeaseAge) -> Self {
        let mut next = self.clone();
        next.lease.set_idle_before(self.idle(age));
        next
    }
}

impl InFlight {
    /// Returns how many holders in a row have died with it.
    pub fn crashes_in_a_row(&self) -> u32 {
        self.crashes.saturating_sub(self.crashes_survived)
    }

    /// Takes over what is known of earlier tries at the same position.
    ///
    /// The counts belong to the position at which the poller is stuck, not to the batch: its last row
    /// may have changed meanwhile and so left it, and a row that changes all the time must not keep one
    /// beside it, which is never taken, from being counted. They end when the checkpoint moves. What
    /// belongs to the bytes stays only where the batch id is the same.
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
                ..same
            },
            Some(_) | None => same,
        }
    }
}

#[cfg(test)]
mod tests;
