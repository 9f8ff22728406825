//! Handing a batch over: to the handler, or to the steps of a chain, one after the other.
//!
//! The result of a step is kept in the in-flight record before the next one is called, and the last one's
//! is the commit. So a batch that comes again goes on at the first step without a result, and a chain of
//! *n* steps costs *n* − 1 writes more for each batch.

use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::ahead::{Ahead, beside};
use super::batch::Batch;
use super::journal::{of_batch, tell_of_loss};
use super::observe::Observation;
use super::{NotTaken, Poller, TickError};
use crate::handler::{ChainStep, Delivery, Handler, HandlerError, Progress, Step};
use crate::journal::Details;
use crate::lease::{Lease, LeaseError};
use crate::state::{Commit, StateDocument};
use crate::trace::context_of;

/// One call of a handler with a batch.
#[derive(Clone, Copy)]
struct Call<'a> {
    handler: &'a dyn Handler,
    /// The step of a chain that it is for.
    step: Option<&'a str>,
    /// Whether no other step is called for this delivery before it.
    is_first: bool,
    /// Whether no step comes behind it.
    is_last: bool,
    limit: Option<Duration>,
}

impl Poller {
    /// Hands one batch over, and reads ahead meanwhile.
    pub(super) async fn handle(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        mut ahead: Option<&mut Ahead<'_>>,
        seen: &mut Observation<'_>,
    ) -> Result<(), NotTaken> {
        let steps = self.handler.steps();
        if steps.is_empty() {
            let limit = self.time_for(lease, batch, seen);
            let handler = &*self.handler;
            let whole = Call { handler, step: None, is_first: true, is_last: true, limit };
            return self.call(lease, batch, (whole, ahead), seen).await;
        }
        let done = steps_done(lease.document(), batch, steps);
        for (index, step) in steps.iter().enumerate().skip(done) {
            let is_last = index + 1 == steps.len();
            let call = Call {
                handler: &*step.handler,
                step: Some(&step.name),
                is_first: index == done,
                is_last,
                limit: self.time_for_step(lease, batch, (steps, index), seen),
            };
            self.call(lease, batch, (call, ahead.as_deref_mut()), seen).await?;
            if !is_last {
                self.keep_result(lease, batch, (index, &step.name), seen).await?;
            }
        }
        Ok(())
    }

    /// Keeps the result of a step, so that it is not called again with these rows.
    async fn keep_result(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        (index, step): (usize, &str),
        seen: &Observation<'_>,
    ) -> Result<(), NotTaken> {
        let in_flight = lease.document().in_flight.as_ref();
        // Rows behind those of the record are tried out of turn: it goes on speaking of the first ones.
        if in_flight.is_none_or(|record| record.after != batch.after || record.late != batch.late) {
            return Ok(());
        }
        let kept = lease.complete_step(batch.in_flight(), (index, step)).await;
        kept.map_err(|error| NotTaken::Lost(TickError::LeaseLost(error)))?;
        seen.step_complete(batch, step);
        Ok(())
    }

    async fn call(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        (call, ahead): (Call<'_>, Option<&mut Ahead<'_>>),
        seen: &mut Observation<'_>,
    ) -> Result<(), NotTaken> {
        let in_flight = lease.document().in_flight.as_ref();
        let earlier = in_flight.map_or(0, |f| f.attempt.saturating_add(f.crashes));
        let replay_id = lease.document().replay_id.clone();
        let step_batch_id = call.step.map(|step| batch.id.of_step(step));
        let progress = Progress::default();
        let span = seen.delivery_span(batch, call.step);
        let traceparent = context_of(&span).map(|context| context.to_string());
        let reread = self.reread(batch);
        let delivery = Delivery {
            poller: &self.name,
            source: &self.source.shape().label,
            batch_id: step_batch_id.as_ref().unwrap_or(&batch.id),
            step: call.step.map(|name| ChainStep { name, of_batch: &batch.id }),
            // Parts, and rows that are tried out of turn, have it from the record.
            started_at: in_flight.and_then(|f| f.started_at).unwrap_or_else(|| lease.now()),
            generation: lease.generation(),
            fencing_token: lease.token(),
            attempt: earlier.saturating_add(1),
            replay_id: replay_id.as_deref(),
            beside: self.beside(&reread),
            events: &batch.events,
            traceparent: traceparent.as_deref().or(seen.request().traceparent.as_deref()),
            tracestate: seen.request().tracestate.as_deref(),
            progress: &progress,
        };
        seen.execution_started(&delivery, call.is_first);
        lease.note_started(|| of_step(batch, call.step, delivery.attempt));
        let (began_at, mut stale, mut took) = (Instant::now(), None, None);
        let stop = seen.request().stop.clone();
        let work = async {
            let handled = self.within(call.limit, call.handler, delivery);
            let handled = beside(ahead, Box::pin(handled.instrument(span.clone())));
            // Dropped before anything is written: what it would still do must not follow the release.
            let handled = stop.unless_aborted(handled).await?;
            took = Some(began_at.elapsed());
            if let Err(error) = &handled {
                span.record("error.type", error.name());
            }
            if let Err(HandlerError::Fenced(refused)) = &handled {
                stale = Some(HandlerError::from(*refused));
            }
            Some(handled)
        };
        // What a step accepts is not accepted by the chain.
        let in_part = call.step.is_none() && self.may_be_accepted_in_part(batch, lease.document());
        let mut committed = 0;
        let mut accepted = |document: &StateDocument, now| {
            let rows = progress.accepted();
            if !in_part || rows <= committed {
                return None;
            }
            committed = rows;
            self.commit_of_front(batch, document, rows, now)
        };
        let handled = lease.hold_while_accepting(work, &mut accepted).await;
        // It may have waited for a commit or a renewal in the air since.
        let took = took.unwrap_or_else(|| began_at.elapsed());
        self.note_end(batch, call.handler, (took, matches!(handled, Ok(Some(Ok(()))))), seen);
        let handled = match handled {
            Ok(None) => {
                let front = accepted(lease.document(), lease.now());
                let aborted = self.abort(lease, call.handler, front, seen).await;
                Err(NotTaken::Lost(aborted))
            }
            Ok(Some(handled)) => handled
                .or_else(|error| error.after(progress.accepted(), batch.events.len()))
                .map_err(|error| call.judged(error)),
            Err(LeaseError::OutOfTime) => Err(NotTaken::OutOfTime { got_on: !call.is_first }),
            // A renewal in the air has found the lease lost too, but the target says who took it.
            Err(error) => {
                let lost = stale.map_or_else(|| TickError::of_loss(error), TickError::Handler);
                Err(NotTaken::Lost(lost))
            }
        };
        if let Err(not_taken) = &handled
            && !is_front(not_taken)
        {
            seen.front_committed(batch, lease.document());
            tell_of_loss(lease, batch, not_taken);
        }
        handled
    }

    /// Gives the lease up after a call was dropped because the process stops: no attempt is counted, and no crash.
    async fn abort(
        &self,
        lease: &mut Lease<'_>,
        handler: &dyn Handler,
        front: Option<Commit>,
        seen: &mut Observation<'_>,
    ) -> TickError {
        handler.settle().await;
        let committed = match front {
            Some(front) => lease.commit(front).await,
            None => Ok(()),
        };
        let tick = seen.end_of_tick("tick_aborted", None, lease);
        let released = match committed {
            Ok(()) => lease.release(Some(tick), None).await,
            error => error,
        };
        if let Err(error) = released {
            seen.could_not_release(&error);
        }
        TickError::Aborted
    }

    /// Notes that a call has ended after so long, and whether the batch was taken.
    fn note_end(
        &self,
        batch: &Batch,
        handler: &dyn Handler,
        (took, taken): (Duration, bool),
        seen: &mut Observation<'_>,
    ) {
        seen.handler_ran(took);
        self.learn_size(batch, handler, (took, taken));
    }
}

/// Returns what an entry says of a call of the handler, or of a step.
fn of_step(batch: &Batch, step: Option<&str>, attempt: u32) -> Details {
    Details { step: step.map(str::to_owned), ..of_batch(batch, Some(attempt)) }
}

/// Says whether a whole front is taken, which is committed at once, and counted then.
fn is_front(not_taken: &NotTaken) -> bool {
    matches!(not_taken, NotTaken::Handler(HandlerError::Partial { .. }) | NotTaken::Front(..))
}

impl Call<'_> {
    /// Returns what an error of this call means for the batch: a front that one step took counts only once
    /// the others have taken it too.
    fn judged(&self, error: HandlerError) -> NotTaken {
        let error = match self.step {
            Some(step) => error.in_step(step),
            None => error,
        };
        if let HandlerError::Partial { accepted, .. } = &error
            && *accepted > 0
            && !self.is_last
        {
            return NotTaken::Front(*accepted, HandlerError::Retryable(error.to_string()));
        }
        NotTaken::Handler(error)
    }
}

/// Returns how many steps of a chain have taken these very rows.
fn steps_done(document: &StateDocument, batch: &Batch, steps: &[Step]) -> usize {
    let record = document.in_flight.as_ref().filter(|record| record.batch_id == batch.id);
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    record.map_or(0, |record| record.steps_done(&names, &batch.digest))
}
