//! Delivering a batch, or as much of it as can be: the answer to a handler that does not take it.
//!
//! What is to be done is said by [`crate::policy`]; here it is done. Everything happens in order: what
//! is taken is committed before what follows it is tried, except for one probe behind a row that is
//! about to be set aside.

use std::time::Duration;

use super::ahead::Ahead;
use super::batch::Batch;
use super::observe::Observation;
use super::quarantine::Proof;
use super::suspicion::Tried;
use super::{NotTaken, Poller, TickError};
use crate::handler::HandlerError;
use crate::lease::Lease;
use crate::policy::{Attempt, Blame, Verdict};
use crate::quarantine::Reason;

/// Why a target is asked to take a smaller batch, and what is done where there is none.
const SINGLE_ROW: &str = "a single row is too large for the target, and smaller than that it gets \
                          not: raise the target's limit, or leave out columns";

/// The rows in hand, and those of the same fetch that wait behind them.
pub(super) struct Hand<'a> {
    /// The next to be handed over; once that is done with, what was taken or set aside.
    pub(super) batch: Batch,
    /// What follows, the next part last.
    pub(super) waiting: Vec<Batch>,
    /// What is read meanwhile, as if all of the batch were taken.
    pub(super) ahead: Option<Ahead<'a>>,
    /// The batch before it, whose commit goes on beside the handler.
    pub(super) uncommitted: Option<Batch>,
}

impl Hand<'_> {
    pub(super) fn of(batch: Batch) -> Self {
        Self { batch, waiting: Vec::new(), ahead: None, uncommitted: None }
    }

    /// Keeps `front` in hand and lets `behind` wait, with the fault known to be there.
    fn take_front(&mut self, front: Batch, mut behind: Batch) {
        behind.suspicion = self.batch.suspicion.take();
        self.waiting.push(behind);
        self.batch = front;
    }
}

impl Hand<'_> {
    /// Keeps half of a batch that there is no time to halve now: what a later tick begins with is at
    /// least smaller.
    fn shrink_for_later(
        &mut self,
        verdict: Verdict,
        lease: &Lease<'_>,
        error: &HandlerError,
        poller: &Poller,
    ) {
        if verdict == Verdict::Bisect
            && let Some(front) = front_of(&self.batch, lease, error, poller)
        {
            self.batch = front;
        }
    }
}

/// How a batch ends that is not taken.
struct End {
    error: HandlerError,
    /// Whether the poller is paused with it.
    stop: bool,
}

impl Poller {
    /// Hands over the batch in hand, or as much from its front as the target takes.
    pub(super) async fn deliver<'a>(
        &'a self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'a>,
        seen: &mut Observation<'_>,
    ) -> Result<(), TickError> {
        if self.answer_crashes(lease, hand, seen).await? {
            return Ok(());
        }
        // Each round that goes on makes the batch smaller.
        loop {
            let halves = hand.batch.halves(self, lease);
            let tried = halves.as_ref().map_or(&hand.batch, |(front, _)| front);
            self.write_down_what_is_tried(lease, &hand.batch, tried).await?;
            let begun = hand.ahead.take();
            hand.ahead = self.ahead_of(lease, hand, begun, seen);
            let handled = self.handle(lease, tried, hand.ahead.as_mut(), seen).await;
            Self::note_commit_beside(lease, hand, seen);
            match (handled, halves) {
                (Ok(()), Some((front, behind))) => {
                    hand.take_front(front, behind);
                    return Ok(());
                }
                (Ok(()), None) => {
                    let suspicion = hand.batch.suspicion.take();
                    hand.waiting.extend(suspicion.and_then(|suspicion| suspicion.rest));
                    return Ok(());
                }
                (Err(not_taken), halves) => {
                    // Its position is no longer where the next rows begin, and rows may be read to find out
                    // more about these: they must not wait for it.
                    hand.ahead = None;
                    if let Some((front, behind)) = halves {
                        hand.batch.narrow_to(front, behind, self, lease);
                    }
                    if let NotTaken::Front(rows, error) = &not_taken
                        && self.take_what_a_step_took(lease, hand, (*rows, error), seen)
                    {
                        continue;
                    }
                    let error = self.still_held(lease, &hand.batch, not_taken, seen).await?;
                    if self.answer(lease, hand, error, seen).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Ends the tick where the lease or the time is over; else returns the handler's error.
    async fn still_held(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        not_taken: NotTaken,
        seen: &mut Observation<'_>,
    ) -> Result<HandlerError, TickError> {
        match not_taken {
            NotTaken::Handler(error) | NotTaken::Front(_, error) => Ok(error),
            NotTaken::Lost(error) => Err(error),
            NotTaken::OutOfTime { got_on } => {
                let error = HandlerError::Retryable("stopped at the tick's end of time".to_owned());
                let stop = self.judge(lease, batch, &error) == Verdict::Stop;
                let pause = stop.then(|| self.stopped(lease, batch, &error));
                // Rows that had a whole tick, and did not do with it, never would: fewer may.
                let had_all = !stop && !got_on && seen.batches() == 0;
                let front = had_all.then(|| front_of(batch, lease, &error, self)).flatten();
                if let Some(front) = &front {
                    seen.batch_halved(batch, front, "the tick's time was over");
                }
                let tried = front.as_ref().unwrap_or(batch);
                self.write_down(lease, tried, (&error, pause), seen).await;
                Err(TickError::OutOfTime)
            }
        }
    }

    /// Does what the policy says about a failure: `false` to try again with a smaller batch, `true`
    /// where the batch in hand is done with.
    async fn answer(
        &self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'_>,
        error: HandlerError,
        seen: &mut Observation<'_>,
    ) -> Result<bool, TickError> {
        if let HandlerError::TooLarge(reason) = &error
            && hand.batch.suspicion.is_none()
            && self.halve(lease, hand, reason, seen)
        {
            return Ok(false);
        }
        if let HandlerError::Partial { accepted, .. } = &error
            && hand.batch.suspicion.is_some()
            && let Some((front, behind)) = hand.batch.split(&self.name, lease, *accepted)
        {
            hand.take_front(front, behind);
            return Ok(true);
        }
        let error = for_single_row(error, hand.batch.events.len());
        let mut verdict = self.judge(lease, &hand.batch, &error);
        let calls_again = !matches!(verdict, Verdict::Retry | Verdict::Stop);
        if calls_again && !self.may_still_try(lease, seen) {
            hand.shrink_for_later(verdict, lease, &error, self);
            verdict = Verdict::Retry;
        }
        match verdict {
            Verdict::Retry | Verdict::Stop => {
                let end = End { error, stop: verdict == Verdict::Stop };
                return Err(self.give_up(lease, &hand.batch, end, seen).await);
            }
            Verdict::Bisect => {
                hand.batch.suspect(lease, Some(&error));
                seen.bisecting(&hand.batch, &error);
                return Ok(false);
            }
            Verdict::Isolate => {
                hand.batch.suspect(lease, Some(&error));
                if let Some((front, behind)) = hand.batch.split(&self.name, lease, 1) {
                    hand.batch.narrow_to(front, behind, self, lease);
                }
                return Ok(false);
            }
            Verdict::Quarantine => {
                self.set_aside(lease, hand, (&error, Reason::Refused), seen).await?;
            }
            Verdict::Probe => {
                hand.batch.suspect(lease, Some(&error));
                let accepted = match Box::pin(self.probe(lease, hand, seen)).await? {
                    Proof::Next(rows) => Some(*rows),
                    Proof::Elsewhere => None,
                    Proof::None => {
                        let end = End { error, stop: false };
                        return Err(self.give_up(lease, &hand.batch, end, seen).await);
                    }
                };
                // An outage may have ended between its failure and the other row.
                match self.handle(lease, &hand.batch, None, seen).await {
                    Ok(()) => {
                        hand.batch.suspicion = None;
                        hand.waiting.extend(accepted);
                        return Ok(true);
                    }
                    Err(NotTaken::Handler(again)) if blame(&again) != Blame::Target => {}
                    Err(not_taken) => {
                        let error = self.still_held(lease, &hand.batch, not_taken, seen).await?;
                        let end = End { error, stop: false };
                        return Err(self.give_up(lease, &hand.batch, end, seen).await);
                    }
                }
                self.set_aside(lease, hand, (&error, Reason::Attempts), seen).await?;
                // What the target accepted goes into the same commit where it lies next to the row.
                if let Some(accepted) = accepted {
                    hand.batch = accepted;
                }
            }
        }
        Ok(true)
    }

    /// Keeps the left half in hand, since the target takes less at once; `false` for a single row.
    fn halve(
        &self,
        lease: &Lease<'_>,
        hand: &mut Hand<'_>,
        reason: &str,
        seen: &Observation<'_>,
    ) -> bool {
        let half = hand.batch.events.len().div_ceil(2);
        let Some((front, rest)) = hand.batch.split(&self.name, lease, half) else { return false };
        seen.batch_halved(&hand.batch, &front, reason);
        hand.waiting.push(rest);
        hand.batch = front;
        true
    }

    /// Keeps in hand what a step of a chain took of a batch, so that all its steps get that first; `false`
    /// where there is no time for it.
    fn take_what_a_step_took(
        &self,
        lease: &Lease<'_>,
        hand: &mut Hand<'_>,
        (rows, error): (usize, &HandlerError),
        seen: &Observation<'_>,
    ) -> bool {
        if !self.may_still_try(lease, seen) {
            return false;
        }
        let Some((front, behind)) = hand.batch.split(&self.name, lease, rows) else { return false };
        seen.taken_in_part(&hand.batch, &front, error);
        hand.take_front(front, behind);
        true
    }

    fn judge(&self, lease: &Lease<'_>, batch: &Batch, error: &HandlerError) -> Verdict {
        self.judge_as(lease, batch, blame(error))
    }

    /// Judges a failure of `batch` that blames so.
    pub(super) fn judge_as(&self, lease: &Lease<'_>, batch: &Batch, blame: Blame) -> Verdict {
        let in_flight = lease.document().in_flight.as_ref();
        let known = Tried::of(in_flight);
        let tried = batch.suspicion.as_ref().map_or(&known, |suspicion| &suspicion.tried);
        let since = tried.first_failed_at.map(|at| lease.now() - at);
        self.policy.judge(Attempt {
            blame,
            rows: batch.events.len(),
            first_failed_alone: in_flight.is_some_and(|in_flight| in_flight.probing),
            attempts: tried.attempt.saturating_add(1),
            failing_for: since.and_then(|since| Duration::try_from(since).ok()).unwrap_or_default(),
        })
    }

    /// Whether another call may follow a failed one in the same tick.
    pub(super) fn may_still_try(&self, lease: &Lease<'_>, seen: &Observation<'_>) -> bool {
        !seen.request().stop.is_set()
            && lease.document().paused.is_none()
            && seen.began_at().elapsed() < self.limits.tick_time_max
    }

    /// Writes the failure down, and pauses the poller where that is the end.
    async fn give_up(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        end: End,
        seen: &mut Observation<'_>,
    ) -> TickError {
        if let HandlerError::Fenced(stale) = end.error {
            return self.fenced(lease, stale, seen).await;
        }
        let pause = end.stop.then(|| self.stopped(lease, batch, &end.error));
        self.write_down(lease, batch, (&end.error, pause), seen).await;
        TickError::Handler(end.error)
    }
}

/// Returns the front half of rows, with what is known of them; `None` for a single row.
fn front_of(
    batch: &Batch,
    lease: &Lease<'_>,
    error: &HandlerError,
    poller: &Poller,
) -> Option<Batch> {
    let (mut front, _) = batch.split(&poller.name, lease, batch.events.len() / 2)?;
    front.suspicion.clone_from(&batch.suspicion);
    front.suspect(lease, Some(error));
    Some(front)
}

/// A single row that is too large is refused for good.
pub(super) fn for_single_row(error: HandlerError, rows: usize) -> HandlerError {
    if let HandlerError::TooLarge(reason) = &error
        && rows <= 1
    {
        return HandlerError::Rejected(format!("{reason}; {SINGLE_ROW}"));
    }
    error
}

pub(super) fn blame(error: &HandlerError) -> Blame {
    match error {
        HandlerError::Rejected(_) => Blame::Rows,
        HandlerError::Partial { accepted: 0, .. } => Blame::FirstRow,
        HandlerError::Retryable(_) | HandlerError::Stalled(_) | HandlerError::TooLarge(_) => {
            Blame::Unknown
        }
        HandlerError::Throttled { .. }
        | HandlerError::Misconfigured(_)
        | HandlerError::Gone(_)
        | HandlerError::Fenced(_)
        // It got on: what was accepted is committed, and counts begin anew.
        | HandlerError::Partial { .. } => Blame::Target,
    }
}
