//! Keeping the results of a handler chain's steps, under the lease.

use super::{Lease, LeaseError};
use crate::journal::Happened;
use crate::state::{Holder, InFlight, StateDocument, StepResult};

impl Lease<'_> {
    /// Keeps the result of `step`, which took `batch` after `steps_before` others had: the batch in
    /// hand, or a part of it that begins where it does. One write, and a heartbeat.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`]; what follows the step must not begin then.
    pub async fn complete_step(
        &mut self,
        batch: InFlight,
        (steps_before, step): (usize, &str),
    ) -> Result<(), LeaseError> {
        let result = StepResult::taken(step, batch.digest.clone(), self.now());
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.complete_step(holder, batch.clone(), (steps_before, result.clone()))
        };
        let deadline = self.deadline();
        self.write(Some(Happened::StepComplete), &apply, None, deadline).await
    }
}
