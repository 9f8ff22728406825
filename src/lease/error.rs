//! Why there is no lease, or none any more.

use thiserror::Error;

use crate::state::{FormatError, Refusal, StoreError};

/// Why a lease could not be taken, kept or used.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// The lease has passed to another. Nothing may be written any more.
    #[error("lease lost")]
    Lost(#[source] Refusal),
    /// The document is gone.
    #[error("state document is gone")]
    Gone,
    /// The lease could not be renewed before its deadline.
    #[error("lease not renewed within its time")]
    Lapsed,
    /// The tick has used up its time.
    #[error("tick used up its time")]
    OutOfTime,
    /// The commit that went on beside the work did not come to be, or is not known to: the work was dropped.
    #[error("commit of the batch before")]
    Uncommitted(#[source] Box<Self>),
    /// The transition is not allowed for a reason that is not the lease.
    #[error("transition refused")]
    Refused(#[source] Refusal),
    /// The store gave no usable answer in time: whether the write happened is not known.
    #[error("state store")]
    Store(#[from] StoreError),
    /// Somebody replaced the document by one that cannot be read.
    #[error("read back the state document")]
    Format(#[from] FormatError),
}

impl LeaseError {
    /// Returns what this means of a renewal: one that found no answer until the deadline has lapsed.
    pub(super) fn or_lapsed(self) -> Self {
        match self {
            Self::Store(StoreError::Unknown { .. } | StoreError::Unreachable { .. }) => {
                Self::Lapsed
            }
            Self::Store(StoreError::Conflict { .. } | StoreError::Refused { .. })
            | Self::Lost(_)
            | Self::Gone
            | Self::Lapsed
            | Self::OutOfTime
            | Self::Uncommitted(_)
            | Self::Refused(_)
            | Self::Format(_) => self,
        }
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
