//! The protocol, and its broken variants.

use crate::witness::Claim;

/// A protocol to explore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// As in the code.
    Faithful,
    /// Every write is unconditional.
    NoIfMatch,
    /// The document is read and checked, then written without a condition.
    VerifyThenBlindWrite,
    /// After a conflict the etag is read again, but not the content.
    FreshTagOldContent,
    /// The checkpoint is committed, then the handler is called.
    CheckpointFirst,
    /// The target rejects rows that it has, and knows no token.
    UniqueOnlyFence,
    /// A grant does not raise the token.
    TokenStays,
    /// A lost document is created again under the same generation, so tokens start at 1 again.
    GenerationRestarts,
    /// A write without a response counts as a lost lease: nothing is judged.
    NoJudging,
    /// No blank document is created first: the request to create carries the first grant.
    GrantRidesOnCreation,
    /// The commit of a batch is sent although the commit of the previous batch has no response.
    NextCommitUnconfirmed,
    /// The handler that overlaps a rejected commit is not dropped, and its batch is committed.
    NextGoesOn,
}

impl Variant {
    /// The variants that a test of this binary must find unsafe.
    pub(crate) const UNSAFE: [Self; 10] = [
        Self::NoIfMatch,
        Self::VerifyThenBlindWrite,
        Self::FreshTagOldContent,
        Self::CheckpointFirst,
        Self::UniqueOnlyFence,
        Self::TokenStays,
        Self::GenerationRestarts,
        Self::GrantRidesOnCreation,
        Self::NextCommitUnconfirmed,
        Self::NextGoesOn,
    ];

    /// Returns the claims that this variant must be found to break; none if it is safe.
    pub(crate) fn breaks(self) -> &'static [Claim] {
        match self {
            Self::Faithful | Self::NoJudging => &[],
            Self::NoIfMatch | Self::VerifyThenBlindWrite | Self::FreshTagOldContent => &[
                Claim::AVersionIsReplacedOnlyByWhoSawIt,
                Claim::OnlyTheNewestHolderWrites,
                Claim::TheTokenNeverGoesBack,
                Claim::TheCheckpointNeverGoesBack,
            ],
            Self::CheckpointFirst => &[Claim::NothingIsSkipped],
            Self::UniqueOnlyFence => &[Claim::TheFenceHolds],
            Self::TokenStays => &[Claim::EachGrantHasATokenOfItsOwn, Claim::TheFenceHolds],
            Self::GenerationRestarts => &[
                Claim::EachGrantHasATokenOfItsOwn,
                Claim::TheFenceHolds,
                Claim::ALoneSuccessorCanFinish,
            ],
            Self::GrantRidesOnCreation => &[Claim::EachGrantHasATokenOfItsOwn],
            Self::NextCommitUnconfirmed => &[
                Claim::TwoBatchesAtMostComeAgain,
                Claim::AVersionIsReplacedOnlyByWhoSawIt,
                Claim::OnlyTheNewestHolderWrites,
                Claim::TheTokenNeverGoesBack,
            ],
            Self::NextGoesOn => &[
                Claim::AVersionIsReplacedOnlyByWhoSawIt,
                Claim::OnlyTheNewestHolderWrites,
                Claim::TheTokenNeverGoesBack,
            ],
        }
    }

    /// Returns how many faults it takes. Fewer faults give a simpler path.
    pub(crate) fn faults(self) -> u8 {
        match self {
            Self::Faithful | Self::GrantRidesOnCreation => 2,
            Self::NoJudging | Self::GenerationRestarts => 1,
            Self::NoIfMatch
            | Self::VerifyThenBlindWrite
            | Self::FreshTagOldContent
            | Self::CheckpointFirst
            | Self::UniqueOnlyFence
            | Self::TokenStays
            | Self::NextCommitUnconfirmed
            | Self::NextGoesOn => 0,
        }
    }

    /// Returns how many rows it takes.
    pub(crate) fn rows(self) -> u8 {
        if self == Self::NextCommitUnconfirmed { 3 } else { 2 }
    }
}
