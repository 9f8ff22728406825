//! Why there is no lease, or no longer one.

use thiserror::Error;

use crate::document::{FormatError, LoadError, Refusal};
use crate::store::StoreError;

/// Why a lease could not be acquired, kept or used.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// Another instance has the lease. Nothing may be written any more.
    #[error("lease lost")]
    Lost(#[source] Refusal),
    /// The document is gone.
    #[error("state document is gone")]
    Gone,
    /// The lease was not renewed before its deadline.
    #[error("lease not renewed within its time")]
    Lapsed,
    /// The tick has used up its time.
    #[error("tick used up its time")]
    OutOfTime,
    /// The commit made alongside the work failed, or its outcome is unknown: the work was dropped.
    #[error("commit of the batch before")]
    Uncommitted(#[source] Box<Self>),
    /// The transition is refused for a reason other than the lease.
    #[error("transition refused")]
    Refused(#[source] Refusal),
    /// The outcome of a write was not known in time.
    #[error("state store")]
    Store(#[from] StoreError),
    /// The document was replaced by one that cannot be read.
    #[error("read back the state document")]
    Format(#[from] FormatError),
}

impl LeaseError {
    /// Whether the write may have happened. Its last attempt, or the read after it, got no usable reply.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Store(error) => error.is_unanswered(),
            Self::Format(_) => true,
            Self::Lost(_)
            | Self::Gone
            | Self::Lapsed
            | Self::OutOfTime
            | Self::Uncommitted(_)
            | Self::Refused(_) => false,
        }
    }

    /// Returns what this means for a renewal: without an outcome before the deadline the lease has lapsed.
    pub(super) fn or_lapsed(self) -> Self {
        let is_unanswered = matches!(&self, Self::Store(error) if error.is_unanswered());
        if is_unanswered { Self::Lapsed } else { self }
    }
}

impl From<Refusal> for LeaseError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Superseded { .. } => Self::Lost(refusal),
            Refusal::Held { .. }
            | Refusal::Paused { .. }
            | Refusal::BackingOff { .. }
            | Refusal::Backwards { .. }
            | Refusal::FenceAhead(_)
            | Refusal::TokensExhausted { .. } => Self::Refused(refusal),
        }
    }
}

impl From<LoadError> for LeaseError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Store(error) => Self::Store(error),
            LoadError::Format(error) => Self::Format(error),
        }
    }
}
