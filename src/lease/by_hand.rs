//! The lease for whoever has paused the poller, or works beside its ticks.

use super::{Acquired, Lease, LeaseContext, LeaseError, Snapshot, asked};
use crate::state::InFlight;

impl<'a> Lease<'a> {
    /// Asks for the lease as [`Self::acquire`] does, whether ticks may run or not: for whoever has paused them.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub async fn acquire_under_pause(
        context: LeaseContext<'a>,
        base: &Snapshot,
        batch: Option<InFlight>,
    ) -> Result<Acquired<'a>, LeaseError> {
        let granted = base.document.grant(asked(context, base, batch));
        Box::pin(Self::take(context, base, granted)).await
    }

    /// Asks for the lease whether ticks may run or not, and leaves the batch in flight as it is.
    ///
    /// # Errors
    ///
    /// As [`Self::acquire`].
    pub async fn acquire_by_hand(
        context: LeaseContext<'a>,
        base: &Snapshot,
    ) -> Result<Acquired<'a>, LeaseError> {
        let granted = base.document.grant(asked(context, base, None));
        Box::pin(Self::take(context, base, granted)).await
    }
}
