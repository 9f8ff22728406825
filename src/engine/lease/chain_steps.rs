//! Storing the results of a chain's steps, under the lease.

use super::{Lease, LeaseError};
use crate::document::{Holder, InFlight, StateDocument, StepResult};
use crate::journal::EventKind;

impl Lease<'_> {
    /// Stores the result of `step`, which accepted `batch` after `steps_before` other steps had: the current batch,
    /// or a part of it that starts where it does. One write, which also renews the lease.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`]; the next step must not start then.
    pub async fn complete_step(
        &mut self,
        batch: InFlight,
        (steps_before, step): (usize, &str),
    ) -> Result<(), LeaseError> {
        let result = StepResult::accepted(step, batch.digest.clone(), self.now());
        let apply = move |document: &StateDocument, holder: &Holder| {
            document.complete_step(holder, batch.clone(), (steps_before, result.clone()))
        };
        let deadline = self.deadline();
        self.write(Some(EventKind::StepComplete), &apply, None, deadline).await
    }
}
