//! Calling the handler with a batch, or the handlers of a chain one after the other, and for how long.
//!
//! The result of each step but the last is stored in the in-flight record before the next step is called; the last
//! step's result is the commit. A redelivered batch therefore continues at the first step without a result, and a
//! chain of *n* steps costs *n* − 1 more writes per batch.

use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument as _;

use super::LeasedTick;
use super::batch::Batch;
use super::isolate::Rows;
use super::prefetch::alongside;
use crate::document::{Commit, StateDocument};
use crate::error::chain;
use crate::event::EventsDigest;
use crate::handler::{
    CallTries, ChainStep, Delivery, Handler, HandlerError, Progress, ReplayGuard, Reread, Step,
};
use crate::journal::{Details, EventKind};
use crate::lease::LeaseError;
use crate::normalize::{fitting, normalize};
use crate::poller::{Poller, TickError};
use crate::source::{FetchError, FetchWindow};
use crate::trace::context_of;

/// Why a call counts as failed.
pub(super) enum CallFailure {
    Handler(HandlerFailure),
    /// A step of a chain, not the last one, accepted only that many rows from the front.
    AcceptedFrontByStep(usize, HandlerFailure),
    /// The handler was stopped because the tick's time is up.
    OutOfTime {
        /// Whether an earlier step of the chain accepted the rows in this tick, or the handler some of them.
        progressed: bool,
        /// As [`HandlerFailure::accepted`].
        accepted: usize,
    },
    /// The lease is no longer held, so nothing is recorded.
    Lost(TickError),
}

/// An error of a handler, and the step of the chain that it comes from.
pub(super) struct HandlerFailure {
    pub(super) error: HandlerError,
    /// `None` if there is no chain, or no step failed.
    pub(super) step: Option<String>,
    /// How many rows, from the first one on, the handler accepted before an error that says nothing about the rows. They
    /// are committed with the failure.
    pub(super) accepted: usize,
}

impl HandlerFailure {
    /// Returns how many rows, from the first one on, are committed with the failure.
    pub(super) fn front(&self) -> usize {
        match &self.error {
            HandlerError::Partial { accepted, .. } => *accepted,
            HandlerError::Retryable(_)
            | HandlerError::Throttled { .. }
            | HandlerError::Rejected(_)
            | HandlerError::TooLarge(_)
            | HandlerError::Misconfigured(_)
            | HandlerError::Gone(_)
            | HandlerError::Stalled(_)
            | HandlerError::Fenced(_) => self.accepted,
        }
    }
}

impl From<HandlerError> for HandlerFailure {
    fn from(error: HandlerError) -> Self {
        Self { error, step: None, accepted: 0 }
    }
}

/// One call of a handler.
#[derive(Clone, Copy)]
struct Call<'a> {
    handler: &'a dyn Handler,
    /// The step of the chain; `None` if there is no chain.
    step: Option<&'a str>,
    /// Whether no other step was called before it in this delivery.
    is_first: bool,
    /// Whether no step follows it.
    is_last: bool,
    limit: Option<Duration>,
    tries: CallTries,
}

impl LeasedTick<'_, '_> {
    /// Delivers these rows, and prefetches the next ones meanwhile if [`Self::start_prefetch`] set that up.
    pub(super) async fn call(
        &mut self,
        batch: &Batch,
        rows: &Rows,
        tries: CallTries,
    ) -> Result<(), CallFailure> {
        let handler = &*self.poller.handler;
        let steps = handler.steps();
        if steps.is_empty() {
            let limit = self.time_for(rows);
            let whole = Call { handler, step: None, is_first: true, is_last: true, limit, tries };
            return self.call_one(batch, whole).await;
        }
        let done = steps_done(self.lease.expected(), batch, steps);
        let stop_after = self.poller.limits.handler_stop_after;
        for (index, step) in steps.iter().enumerate().skip(done) {
            // The step before it may have accepted all rows, and then run out of time.
            if index > done && self.report.started_at().elapsed() >= stop_after {
                return Err(CallFailure::OutOfTime { progressed: true, accepted: 0 });
            }
            let is_last = index + 1 == steps.len();
            let call = Call {
                handler: &*step.handler,
                step: Some(&step.name),
                is_first: index == done,
                is_last,
                limit: self.time_for_step(rows, steps.get(index + 1..).unwrap_or_default()),
                tries,
            };
            self.call_one(batch, call).await?;
            if !is_last {
                self.store_result(batch, index, &step.name).await?;
            }
        }
        Ok(())
    }

    /// Stores the result of a step, so that it is not called again with these rows.
    async fn store_result(
        &mut self,
        batch: &Batch,
        steps_before: usize,
        step: &str,
    ) -> Result<(), CallFailure> {
        let in_flight = self.lease.expected().in_flight.as_ref();
        // Rows delivered out of turn are not those of the record, which keeps describing the first ones.
        let is_of_record = in_flight
            .is_some_and(|record| record.after == batch.at.after && record.late == batch.is_late());
        if !is_of_record {
            return Ok(());
        }
        let record =
            if batch.id == self.work.batch.id { self.work.in_flight() } else { batch.in_flight() };
        let kept = self.lease.complete_step(record, (steps_before, step)).await;
        kept.map_err(|error| CallFailure::Lost(TickError::LeaseLost(error)))?;
        self.report.step_complete(batch, step);
        Ok(())
    }

    async fn call_one(&mut self, batch: &Batch, call: Call<'_>) -> Result<(), CallFailure> {
        let poller = self.poller;
        let document = self.lease.expected();
        let in_flight = document.in_flight.as_ref();
        let earlier = in_flight.map_or(0, |f| f.attempt.saturating_add(f.crashes));
        let replay_id = document.replay_id.clone();
        // What one step accepts is not yet accepted by the chain.
        let in_part = call.step.is_none() && poller.may_commit_front_early(batch, document);
        let step_batch_id = call.step.map(|step| batch.id.of_step(step));
        let progress = Progress::default();
        let span = self.report.delivery_span(batch, call.step);
        let traceparent = context_of(&span).map(|context| context.to_string());
        let request = self.report.request();
        let reread = BatchRows { poller, batch };
        let delivery = Delivery {
            poller: &poller.name,
            source: &poller.source.shape().label,
            batch_id: step_batch_id.as_ref().unwrap_or(&batch.id),
            step: call.step.map(|name| ChainStep { name, of_batch: &batch.id }),
            // Parts of a batch, and rows delivered out of turn, inherit it from the record.
            started_at: in_flight.and_then(|f| f.started_at).unwrap_or_else(|| self.lease.now()),
            generation: self.lease.generation(),
            fencing_token: self.lease.token(),
            attempt: earlier.saturating_add(1),
            tries: call.tries,
            replay_id: replay_id.as_deref(),
            replay_guard: poller
                .range_of
                .as_deref()
                .map(|poller| ReplayGuard { poller, rows: &reread }),
            events: &batch.events,
            traceparent: traceparent.as_deref().or(request.traceparent.as_deref()),
            tracestate: request.tracestate.as_deref(),
            progress: &progress,
        };
        self.report.execution_started(&delivery, call.is_first);
        let attempt = delivery.attempt;
        self.lease.note_started(|| Details {
            step: call.step.map(str::to_owned),
            ..batch.details(Some(attempt))
        });
        let (started_at, mut stale, mut took) = (Instant::now(), None, None);
        let prefetch = self.prefetch.as_mut();
        let work = async {
            let handled = poller.within(call.limit, call.handler, delivery);
            let handled = alongside(prefetch, Box::pin(handled.instrument(span.clone())));
            // An aborted call is dropped before anything is written: whatever it would still do must not follow the
            // release.
            let handled = request.stop.unless_aborted(handled).await?;
            took = Some(started_at.elapsed());
            if let Err(error) = &handled {
                span.record("error.type", error.name());
            }
            if let Err(HandlerError::Fenced(refused)) = &handled {
                stale = Some(HandlerError::from(*refused));
            }
            Some(handled)
        };
        let mut front = |document: &StateDocument, now| {
            let accepted = Some(progress.accepted()).filter(|accepted| in_part && *accepted > 0);
            accepted.and_then(|rows| poller.commit_of_front(batch, document, rows, now))
        };
        let handled = self.lease.hold_while_accepting(work, &mut front).await;
        // The work may have waited for a commit or a renewal in flight since it was done.
        let took = took.unwrap_or_else(|| started_at.elapsed());
        self.report.handler_ran(took);
        let is_accepted = matches!(handled, Ok(Some(Ok(()))));
        poller.learn_size(batch, call.handler, took, is_accepted);
        let rows = batch.events.len();
        let accepted = if in_part { progress.accepted() } else { 0 };
        let handled = match handled {
            Ok(None) => {
                let front = front(self.lease.expected(), self.lease.now());
                Err(CallFailure::Lost(self.abort(call.handler, front).await))
            }
            Ok(Some(handled)) => handled
                .or_else(|error| match call.step {
                    Some(_) => error.after_step(&progress, rows),
                    None => error.after(progress.accepted(), rows),
                })
                .map_err(|error| call.judged(error, accepted)),
            Err(LeaseError::OutOfTime) if progress.accepted() >= rows => Ok(()),
            Err(LeaseError::OutOfTime) => {
                let progressed = !call.is_first || accepted > 0;
                Err(CallFailure::OutOfTime { progressed, accepted })
            }
            // A renewal in flight found the lease lost as well, but only the target says to whom.
            Err(error) => {
                let lost = stale.map_or_else(|| TickError::of_loss(error), TickError::Handler);
                Err(CallFailure::Lost(lost))
            }
        };
        if let Err(failure) = &handled
            && !failure.is_front()
        {
            self.report.front_committed(batch, self.lease.document());
            self.record_loss(batch, failure);
        }
        handled
    }

    /// Records in the journal that the grant was superseded while rows were handled.
    fn record_loss(&self, batch: &Batch, failure: &CallFailure) {
        let (event, error) = match failure {
            CallFailure::Handler(HandlerFailure {
                error: error @ HandlerError::Fenced(_), ..
            })
            | CallFailure::Lost(TickError::Handler(error)) => {
                (EventKind::StaleWriteBlocked, chain(error))
            }
            CallFailure::Lost(error @ TickError::LeaseLost(_)) => {
                (EventKind::LeaseLost, chain(error))
            }
            CallFailure::Handler(_)
            | CallFailure::AcceptedFrontByStep(..)
            | CallFailure::OutOfTime { .. }
            | CallFailure::Lost(_) => return,
        };
        self.lease.note(event, || Details { error: Some(error), ..batch.details(None) });
    }

    /// Releases the lease after a call was aborted because the process stops. Counts neither an attempt nor a crash.
    pub(super) async fn abort(
        &mut self,
        handler: &dyn Handler,
        front: Option<Commit>,
    ) -> TickError {
        handler.settle().await;
        let committed = match front {
            Some(front) => self.lease.commit(front).await,
            None => Ok(()),
        };
        let tick = self.report.end_of_tick("tick_aborted", None, &self.lease);
        let released = match committed {
            Ok(()) => self.lease.release(Some(tick), None).await,
            error => error,
        };
        if let Err(error) = released {
            self.report.could_not_release(&error);
        }
        TickError::Aborted
    }

    /// Returns the time limit of this call, if it is shorter than the rest of the tick.
    ///
    /// A row about to be quarantined is delivered, then another row, then the first again. Each of these calls gets
    /// half of the remaining time, so that there is time for all of them. The row has failed before, so a handler
    /// that is merely slow has already had the time of a whole tick.
    fn time_for(&self, rows: &Rows) -> Option<Duration> {
        let in_flight = self.lease.expected().in_flight.as_ref();
        if in_flight.is_none_or(|tried| tried.attempt == 0) {
            return None;
        }
        let limits = &self.poller.limits;
        let end = limits.tick_time_max.min(limits.handler_stop_after);
        let elapsed = self.report.started_at().elapsed();
        let left = end.checked_sub(elapsed).filter(|left| !left.is_zero())?;
        let is_last_attempt = self.work.isolation.is_last_attempt(rows, &self.call_context(None));
        is_last_attempt.then_some(left / 2)
    }

    /// As [`Self::time_for`], for a step of a chain. A step before the one that failed last has not failed itself
    /// and may be slow. Stopping it would quarantine rows that the failing step never received.
    fn time_for_step(&self, rows: &Rows, later_steps: &[Step]) -> Option<Duration> {
        let in_flight = self.lease.expected().in_flight.as_ref();
        let failed_step = in_flight.and_then(|tried| tried.failed_step.as_deref());
        let fails_later =
            failed_step.is_some_and(|failed| later_steps.iter().any(|step| *step.name == *failed));
        if fails_later { None } else { self.time_for(rows) }
    }
}

impl CallFailure {
    /// Whether a front was accepted, which is committed and counted together with the failure.
    fn is_front(&self) -> bool {
        match self {
            Self::AcceptedFrontByStep(..) => true,
            Self::Handler(failure) => failure.front() > 0,
            Self::OutOfTime { accepted, .. } => *accepted > 0,
            Self::Lost(_) => false,
        }
    }
}

impl Call<'_> {
    /// Returns what an error of this call means for the batch: a front that one step accepted counts only once all
    /// steps have accepted it. `accepted` rows were accepted before it without a chain.
    fn judged(&self, error: HandlerError, accepted: usize) -> CallFailure {
        let step = self.step.map(str::to_owned);
        let error = match self.step {
            Some(step) => error.in_step(step),
            None => error,
        };
        if let HandlerError::Partial { accepted, .. } = &error
            && *accepted > 0
            && !self.is_last
        {
            let of_step = HandlerError::Retryable(error.to_string());
            return CallFailure::AcceptedFrontByStep(
                *accepted,
                HandlerFailure { error: of_step, step, accepted: 0 },
            );
        }
        // Nothing is written any more for a newer holder's target.
        let accepted = if matches!(error, HandlerError::Fenced(_)) { 0 } else { accepted };
        CallFailure::Handler(HandlerFailure { error, step, accepted })
    }
}

impl Poller {
    /// Calls a handler, and stops it after `limit`.
    async fn within(
        &self,
        limit: Option<Duration>,
        to: &dyn Handler,
        delivery: Delivery<'_>,
    ) -> Result<(), HandlerError> {
        let Some(limit) = limit else { return self.guarded(to, delivery).await };
        let handled = timeout(limit, self.guarded(to, delivery)).await;
        handled.unwrap_or_else(|_| {
            Err(HandlerError::Retryable(format!(
                "no reply within {limit:.0?}, the limit for a row on its last attempt"
            )))
        })
    }

    /// Calls a handler, and stops it if it has made no progress for too long.
    pub(crate) async fn guarded(
        &self,
        to: &dyn Handler,
        delivery: Delivery<'_>,
    ) -> Result<(), HandlerError> {
        let handled = to.handle(delivery);
        let stall_max = self.limits.handler_stall_max;
        let Some(stall_max) = stall_max else { return handled.await };
        let mut handled = pin!(handled);
        let mut steps = 0;
        loop {
            tokio::select! {
                biased;
                done = &mut handled => return done,
                () = sleep(stall_max) => {}
            }
            // Stops between one and two times the limit: precise enough for a limit of minutes.
            if delivery.progress.steps() == steps {
                return Err(HandlerError::Stalled(stall_max));
            }
            steps = delivery.progress.steps();
        }
    }
}

/// The rows of a batch of a range, as the source has them now.
#[derive(Debug)]
struct BatchRows<'a> {
    poller: &'a Poller,
    batch: &'a Batch,
}

#[async_trait]
impl Reread for BatchRows<'_> {
    async fn are_unchanged(&self) -> Result<bool, HandlerError> {
        let (source, batch) = (&self.poller.source, self.batch);
        let window = FetchWindow {
            after: batch.at.after.as_ref(),
            upto: Some(&batch.upto),
            rows_max: batch.events.len() + batch.diverted.len(),
            state: &serde_json::Map::new(),
        };
        let unread = |reason: String| HandlerError::Throttled { reason, retry_after: None };
        let of_fetch = |error: FetchError| {
            unread(format!("the rows could not be read once more: {}", chain(&error)))
        };
        let rows = source.fetch_at_once(window).await.map_err(of_fetch)?;
        let events = normalize(source.shape(), &rows);
        let mut events = events.map_err(|error| unread(chain(&error)))?;
        fitting(source.shape(), &rows, &mut events, self.poller.limits.batch_bytes_max);
        events.retain(|event| event.unreadable.is_none());
        Ok(!rows.more && EventsDigest::of(&events) == batch.digest)
    }
}

/// Returns how many steps of a chain have accepted exactly these rows.
fn steps_done(document: &StateDocument, batch: &Batch, steps: &[Step]) -> usize {
    let record = document.in_flight.as_ref().filter(|record| record.batch_id == batch.id);
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    record.map_or(0, |record| record.steps_done(&names, &batch.digest))
}
