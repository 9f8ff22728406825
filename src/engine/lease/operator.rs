//! The lease for an operator who has paused the poller, or works alongside its ticks.

use super::{AcquireResult, Lease, LeaseContext, LeaseError, asked};
use crate::document::{InFlight, Snapshot};

impl<'a> Lease<'a> {
    /// Requests the lease as [`Self::acquire`] does, even while ticks are paused.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub async fn acquire_under_pause(
        context: LeaseContext<'a>,
        base: &Snapshot,
        batch: Option<InFlight>,
    ) -> Result<AcquireResult<'a>, LeaseError> {
        let granted = base.document.grant(asked(context, base, batch));
        Box::pin(Self::acquire_measured(context, base, granted)).await
    }

    /// Requests the lease even while ticks are paused, and keeps the batch in flight as it is.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub async fn acquire_for_operator(
        context: LeaseContext<'a>,
        base: &Snapshot,
    ) -> Result<AcquireResult<'a>, LeaseError> {
        let granted = base.document.grant(asked(context, base, None));
        Box::pin(Self::acquire_measured(context, base, granted)).await
    }
}
