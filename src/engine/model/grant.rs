//! The grant of a lease under which a writer acts.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number that grows by one each time a lease is granted.
///
/// A target that remembers the highest accepted token can reject a late write of an earlier holder: see
/// [`Fence`](crate::document::Fence).
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

/// When a document was created, in milliseconds of the storage service's clock, or one more than its predecessor's
/// generation, whichever is greater; 0 while it is blank.
///
/// Orders (generation, token) if a document was lost and created again. The predecessor's generation is known from
/// the marker. If a document is lost before it was marked, only the clock distinguishes the next one, which must then
/// be created later by more than the clock's granularity and skew.
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

/// A grant of a document under which a writer acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Generation of the document.
    pub generation: Generation,
    /// The instance.
    pub owner_id: String,
    /// The grant.
    pub token: FencingToken,
}
