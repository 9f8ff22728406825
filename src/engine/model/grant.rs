//! Which grant of a lease a writer acts under.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number that grows by one each time a lease is granted.
///
/// A target that remembers the highest one it has accepted can refuse a late write of an earlier
/// holder: see [`Fence`](crate::document::Fence).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct FencingToken(pub u64);

impl fmt::Display for FencingToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// When a document was created, in milliseconds of the storage service's clock, or one more than its
/// predecessor's, whichever is greater; 0 as long as it is blank.
///
/// Orders (generation, token) across a document that was lost and made again. The predecessor's is
/// known from the marker: of a document that is lost before it was marked only the clock tells the next
/// one apart, which then needs to be begun later by more than the clock's grain and skew.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Which grant of which document a writer acts under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Generation of the document.
    pub generation: Generation,
    /// The instance.
    pub owner_id: String,
    /// The grant.
    pub token: FencingToken,
}
