//! Delivering the current batch, or as much of it as the target accepts: one loop that does what [`super::isolate`]
//! decides.

use super::LeasedTick;
use super::batch::Batch;
use super::call::{CallFailure, HandlerFailure};
use super::failure::{blame, reject_if_single_row};
use super::fetch::Fetched;
use super::isolate::{
    Announced, Announcement, CallContext, CrashedWith, Decision, End, NextCall, Outcome,
    PROBE_ROWS_MAX, PriorAttempts, Settlement, Step, TimeGiven,
};
use super::park::NotRecorded;
use crate::backoff::seed_of;
use crate::document::InFlight;
use crate::error::chain;
use crate::event::{BatchId, ChangeEvent};
use crate::handler::tries::DELAYS;
use crate::handler::{CallTries, HandlerError};
use crate::journal::{Details, EventKind};
use crate::lease::LeaseError;
use crate::policy::ParkPolicy;
use crate::poller::TickError;
use crate::quarantine::{Entry, QuarantinedRow, Reason};

/// How often rows are read to find one that shows whether the target is down.
const PROBE_READS_MAX: u32 = 4;

/// Why the current rows were not accepted.
struct Failure {
    of_handler: HandlerFailure,
    /// Whether the only reason is that the tick's time is up.
    is_out_of_time: bool,
}

impl LeasedTick<'_, '_> {
    /// Delivers the current rows, or as much of their front as the target accepts, until they are settled.
    ///
    /// # Errors
    ///
    /// [`TickError`] if the tick ends with them. Their failure is recorded then, and the lease released.
    pub(super) async fn deliver(&mut self) -> Result<(), TickError> {
        self.divert().await?;
        if self.work.batch.events.is_empty() {
            self.work.settlement = Settlement::Diverted;
            return Ok(());
        }
        let mut failure = self.judge_crashes();
        self.prepare();
        loop {
            match self.work.isolation.next_step() {
                Step::Wait(retry) => {
                    self.wait_before(retry).await?;
                    self.work.isolation.step_done();
                }
                Step::Announce(announcement) => {
                    self.announce(announcement).await?;
                    self.work.isolation.step_done();
                }
                Step::Deliver { rows, tries } => {
                    let tried = self.work.part(self.poller, &rows);
                    self.start_prefetch();
                    let handled = self.call(&tried, &rows, tries).await;
                    self.note_commit_alongside();
                    let Err(not_taken) = handled else {
                        self.record(Outcome::Accepted, None, &tried);
                        continue;
                    };
                    // The prefetch starts after rows that may not be accepted now. Further reads may follow to find
                    // out more about these rows, and must not wait for it.
                    self.prefetch = None;
                    let (outcome, failed) = self.outcome_of(not_taken, &tried)?;
                    self.record(outcome, Some(&failed), &tried);
                    failure = Some(failed);
                }
                Step::Probe(rows) => {
                    let tried = self.work.part(self.poller, &rows);
                    let outcome = match self.call(&tried, &rows, CallTries::One).await {
                        Ok(()) => Outcome::Accepted,
                        Err(not_taken) => self.outcome_of(not_taken, &tried)?.0,
                    };
                    self.record(outcome, None, &tried);
                }
                Step::ReadMore => {
                    let rows = Box::pin(self.read_probe_rows()).await?;
                    self.work.isolation.rows_read(rows);
                }
                Step::Park(reason) => {
                    self.park(reason, failure.as_ref()).await?;
                    let before = self.work.isolation.rows();
                    self.work.isolation.parked();
                    self.work.follow(self.poller, &before);
                }
                Step::Settle(settlement) => {
                    self.work.settlement = settlement;
                    return Ok(());
                }
                Step::GiveUp(end) => return Err(self.give_up(end, failure).await),
            }
        }
    }

    /// Reports the outcome of a call with `tried` to the state machine, and logs its decision.
    fn record(&mut self, outcome: Outcome, failure: Option<&Failure>, tried: &Batch) {
        let error = failure.map(|failure| &failure.of_handler.error);
        let when = self.call_context(error);
        let before = self.work.isolation.rows();
        let decision = self.work.isolation.record(outcome, &when);
        self.work.follow(self.poller, &before);
        if let (Some(decision), Some(error)) = (decision, error) {
            self.log_decision(&decision, tried, error);
        }
    }

    fn log_decision(&self, decision: &Decision, tried: &Batch, error: &HandlerError) {
        match decision {
            Decision::Halved { to } => self.report.batch_halved(tried, *to, error),
            Decision::Bisect => self.report.bisecting(tried, error),
            Decision::FrontOfChain { to } => self.report.accepted_in_part(tried, *to, error),
        }
    }

    /// Returns the context in which a call ended just now.
    pub(super) fn call_context(&self, error: Option<&HandlerError>) -> CallContext {
        let in_flight = self.lease.expected().in_flight.as_ref();
        CallContext {
            tried: PriorAttempts::of(in_flight),
            announced: match in_flight {
                Some(in_flight) if in_flight.probing => Announced::Probe,
                Some(_) | None => Announced::Batch,
            },
            now: self.lease.now(),
            error: error.map(|error| chain(error)).unwrap_or_default(),
            next_call: if self.has_time() && self.lease.expected().paused.is_none() {
                NextCall::Allowed
            } else {
                NextCall::NotNow
            },
            quarantined_in_a_row: self.lease.expected().quarantined_in_a_row,
        }
    }

    /// Translates a failed call into an outcome for the state machine.
    fn outcome_of(
        &self,
        not_taken: CallFailure,
        tried: &Batch,
    ) -> Result<(Outcome, Failure), TickError> {
        let (outcome, of_handler) = match not_taken {
            CallFailure::Lost(error) => return Err(error),
            CallFailure::OutOfTime { progressed, accepted } => {
                let error = HandlerError::Retryable("stopped at the tick's end of time".to_owned());
                let given = if progressed || self.report.is_late_start() {
                    TimeGiven::RestOfTick
                } else {
                    TimeGiven::WholeTick
                };
                let of_handler = HandlerFailure { accepted, ..error.into() };
                return Ok((
                    Outcome::OutOfTime(given),
                    Failure { of_handler, is_out_of_time: true },
                ));
            }
            CallFailure::AcceptedFrontByStep(rows, failure) => {
                (Outcome::AcceptedFrontByStep(rows), failure)
            }
            CallFailure::Handler(HandlerFailure { error, step, accepted }) => {
                let error = reject_if_single_row(error, tried.events.len());
                let outcome = if let HandlerError::Partial { accepted: accepted @ 1.., .. } = error
                {
                    Outcome::AcceptedFront(accepted)
                } else if matches!(error, HandlerError::TooLarge(_)) {
                    Outcome::TooLarge
                } else {
                    Outcome::Failed(blame(&error))
                };
                (outcome, HandlerFailure { error, step, accepted })
            }
        };
        Ok((outcome, Failure { of_handler, is_out_of_time: false }))
    }

    /// Applies the policy for rows with which processes have crashed. Returns the failure that stands for the
    /// crashes.
    fn judge_crashes(&mut self) -> Option<Failure> {
        let in_flight = self.lease.expected().in_flight.as_ref();
        let crashes = in_flight.map_or(0, InFlight::crashes_in_a_row);
        if crashes == 0 {
            return None;
        }
        let last = if self.work.batch.crashed_alone() {
            CrashedWith::OneRow
        } else {
            CrashedWith::SeveralRows
        };
        let when = self.call_context(None);
        let decision = self.work.isolation.judge_crashes(crashes, last, &when);
        let error = HandlerError::Retryable(format!(
            "the process crashed {crashes} times in a row while these rows were in flight"
        ));
        if let Some(decision) = &decision {
            self.log_decision(decision, &self.work.batch, &error);
        }
        Some(Failure { of_handler: error.into(), is_out_of_time: false })
    }

    /// Lets the state machine decide how to start with the current rows.
    fn prepare(&mut self) {
        let (when, before) = (self.call_context(None), self.work.isolation.rows());
        self.report.breaker(when.quarantined_in_a_row);
        self.work.isolation.prepare(&when);
        self.work.follow(self.poller, &before);
    }

    /// Waits before a retry in this tick.
    async fn wait_before(&mut self, retry: u32) -> Result<(), TickError> {
        let seed = seed_of((&self.poller.name, self.work.batch.id.as_str()));
        let pause = tokio::time::sleep(DELAYS.delay(retry, seed));
        match self.lease.hold_while(self.report.request().stop.unless_aborted(pause)).await {
            Ok(None) => Err(self.abort(&*self.poller.handler, None).await),
            // If the tick's time is up, the next call finds that out.
            Ok(Some(())) | Err(LeaseError::OutOfTime) => Ok(()),
            Err(error) => Err(TickError::LeaseLost(error)),
        }
    }

    /// Reads rows after the last one. Whether the target accepts them shows whether it is down. Reads on while rows of
    /// parked keys, which show nothing, take the place of others. Returns how many rows there are.
    async fn read_probe_rows(&mut self) -> Result<usize, TickError> {
        let mut rows = 0;
        for _ in 0..PROBE_READS_MAX {
            let next = match self.read_batch_after_fetch().await {
                Ok(Fetched::Batch(next)) => Box::pin(self.probe_rows_of(*next)).await,
                Ok(Fetched::Nothing(_)) => Ok(None),
                Err(error) => Err(error),
            };
            match next {
                Ok(Some(next)) => {
                    rows += next.events.len();
                    let is_enough =
                        next.diverted.is_empty() || !next.more || rows >= PROBE_ROWS_MAX;
                    self.work.append(self.poller, &next);
                    if is_enough {
                        break;
                    }
                }
                Err(lost @ TickError::LeaseLost(LeaseError::Lost(_) | LeaseError::Gone)) => {
                    return Err(lost);
                }
                // Without another row there is no proof either way.
                Ok(None) | Err(TickError::LeaseLost(_) | TickError::Aborted) => break,
                Err(error) => {
                    self.report.probe_read_failed(&error);
                    break;
                }
            }
        }
        Ok(rows)
    }

    /// Writes to the document which rows are delivered next.
    async fn announce(&mut self, announcement: Announcement) -> Result<(), TickError> {
        let in_flight = match announcement {
            Announcement::Suspects(rows) => {
                let known = self.work.isolation.prior_attempts().cloned().unwrap_or_default();
                self.work.part(self.poller, &rows).in_flight_after(known)
            }
            Announcement::Probe(rows) => {
                let tried = PriorAttempts::of(self.lease.expected().in_flight.as_ref());
                let probed = self.work.part(self.poller, &rows).in_flight_after(tried);
                InFlight { probing: true, ..probed }
            }
        };
        self.lease.narrow(in_flight).await.map_err(TickError::LeaseLost)
    }

    /// Parks the key of the current row, so that the checkpoint may move past it.
    ///
    /// If that write fails, the checkpoint stays: the failure is recorded instead.
    async fn park(&mut self, reason: Reason, failure: Option<&Failure>) -> Result<(), TickError> {
        // The state machine parks a row only after a failure.
        let Some(Failure { of_handler, .. }) = failure else { return Err(TickError::OutOfTime) };
        let error = &of_handler.error;
        let known = PriorAttempts::of(self.lease.expected().in_flight.as_ref());
        let tried = self.work.isolation.prior_attempts().unwrap_or(&known);
        let text = chain(error);
        let entry = |event| self.entry_of(event, &self.work.batch.id, reason, tried, &text);
        let entries: Vec<_> = self.work.batch.events.iter().map(entry).collect();
        // Only single rows are set aside.
        let state = entries.first().map(|entry| entry.state).unwrap_or_default();
        let mut failed = None;
        for entry in entries {
            match self.record_entry(&entry).await {
                Ok(()) => {}
                Err(NotRecorded::Store(why)) => failed = Some(why),
                Err(NotRecorded::OutOfTime) => failed = Some("the tick's time is over".to_owned()),
                Err(NotRecorded::Lost(error)) => return Err(error),
            }
        }
        if let Some(why) = failed {
            let error =
                HandlerError::Retryable(format!("{text}; and the row could not be parked: {why}"));
            let failure = HandlerFailure { step: of_handler.step.clone(), ..error.into() };
            self.record_failure(&failure, None).await;
            return Err(TickError::Handler(failure.error));
        }
        let batch = &self.work.batch;
        self.report.set_aside(state, &batch.id, &batch.events, reason, &text);
        self.lease.note(EventKind::RowQuarantined, || Details {
            error: Some(text),
            reason: Some(reason.as_str().to_owned()),
            ..self.work.batch.details(None)
        });
        Ok(())
    }

    /// Returns the entry of a row whose key is parked now.
    pub(super) fn entry_of(
        &self,
        event: &ChangeEvent,
        batch_id: &BatchId,
        reason: Reason,
        tried: &PriorAttempts,
        error: &str,
    ) -> Entry {
        let now = self.lease.now();
        let row = QuarantinedRow {
            poller: self.poller.of(),
            batch_id,
            holder: self.lease.holder(),
            reason,
            attempts: tried.attempt.saturating_add(1),
            crashes: tried.crashes,
            first_failed_at: tried.first_failed_at.unwrap_or(now),
            quarantined_at: now,
            first_error: tried.first_error.as_deref().unwrap_or(error),
            last_error: error,
        };
        match self.poller.range_of {
            // Each retry would end the process, and hold back all keys until its lease expires.
            None if reason == Reason::Crashes => row.entry(event),
            None => row.entry(event).to_be_retried(&self.poller.policy.park, now),
            // A range delivers rows of the past, and no tick of the range would come back to them.
            Some(_) => row.entry(event).to_be_retried(&ParkPolicy::NO_RETRIES, now).of_range(),
        }
    }

    /// Records the failure, and pauses the poller if the policy says so.
    async fn give_up(&mut self, end: End, failure: Option<Failure>) -> TickError {
        // The state machine gives up only after a failure.
        let Some(Failure { of_handler: failure, is_out_of_time }) = failure else {
            return TickError::OutOfTime;
        };
        if let HandlerError::Fenced(stale) = failure.error {
            return self.fenced(stale).await;
        }
        let pause = (end == End::Stop).then(|| self.stop_pause(&failure));
        let document = self.lease.expected();
        let attempt =
            document.in_flight.as_ref().map_or(0, |batch| batch.attempt).saturating_add(1);
        let checkpoint = document.checkpoint.cursor.as_ref();
        self.report.note_failed_batch(&self.work.batch, attempt, checkpoint);
        self.record_failure(&failure, pause).await;
        if is_out_of_time { TickError::OutOfTime } else { TickError::Handler(failure.error) }
    }
}
