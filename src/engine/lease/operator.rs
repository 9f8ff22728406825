//! The lease for an operator who has paused the poller, or works alongside its ticks, and for retries of parked keys.

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

    /// Requests the lease for retries of parked keys, and keeps the batch in flight as it is. The same write starts the
    /// next epoch of the entries.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub async fn acquire_for_retries(
        context: LeaseContext<'a>,
        base: &Snapshot,
    ) -> Result<AcquireResult<'a>, LeaseError> {
        let granted = base.document.acquire(asked(context, base, None));
        let granted = granted.map(|document| document.with_next_entries().for_retries());
        Box::pin(Self::acquire_measured(context, base, granted)).await
    }

    /// Requests the lease for an operator who changes entries, even while ticks are paused, and keeps the batch in flight
    /// as it is. The same write starts the next epoch of the entries, and lets the next tick count them, in case this
    /// process stops before it does.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub async fn acquire_for_operator(
        context: LeaseContext<'a>,
        base: &Snapshot,
    ) -> Result<AcquireResult<'a>, LeaseError> {
        let granted = base.document.grant(asked(context, base, None));
        let granted =
            granted.map(|document| document.with_next_entries().with_possible_entries(base.now()));
        Box::pin(Self::acquire_measured(context, base, granted)).await
    }
}
