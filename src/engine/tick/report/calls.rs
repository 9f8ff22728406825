//! What a tick reports about calls of its handler, and about the steps of a chain.

use super::super::batch::Batch;
use super::Report;
use crate::error::chain;
use crate::event::counted;
use crate::handler::{Delivery, HandlerError};

impl Report<'_> {
    /// Logs a call; counts its rows if it is the first call of this delivery.
    pub(in crate::tick) fn execution_started(&mut self, delivery: &Delivery<'_>, is_first: bool) {
        let rows = u64::try_from(delivery.events.len()).unwrap_or(u64::MAX);
        if delivery.attempt > 1 && is_first {
            self.poller.metrics.redelivered(&self.poller.name, rows);
        }
        let batch_id = delivery.step.map_or(delivery.batch_id, |step| step.of_batch);
        tick_event!(
            self,
            debug,
            event = "execution_started",
            batch_id = batch_id.as_str(),
            step = delivery.step.map(|step| step.name),
            token = self.fencing_token,
            attempt = delivery.attempt,
            rows,
            "Hand {} to the handler, attempt {}",
            counted(rows, "event"),
            delivery.attempt
        );
    }

    /// Logs that the result of a step is stored.
    pub(in crate::tick) fn step_complete(&self, batch: &Batch, step: &str) {
        let rows = batch.rows();
        tick_event!(
            self,
            debug,
            event = "step_complete",
            batch_id = batch.id.as_str(),
            step,
            token = self.fencing_token,
            rows,
            "Step `{step}` of poller `{}` accepted {}",
            self.poller.name,
            counted(rows, "event")
        );
    }

    /// Logs that a step accepted only part of a batch, which all steps get next.
    pub(in crate::tick) fn accepted_in_part(
        &self,
        batch: &Batch,
        taken: usize,
        error: &HandlerError,
    ) {
        let rows = batch.rows();
        tick_event!(
            self,
            info,
            event = "batch_taken_in_part",
            batch_id = batch.id.as_str(),
            token = self.fencing_token,
            rows,
            error = chain(error),
            "A step of poller `{}` accepted {taken} of {}, so all steps get these first",
            self.poller.name,
            counted(rows, "event")
        );
    }
}
