//! The claims, judged by a witness that sees everything and numbers the grants itself.

use std::collections::BTreeMap;

use highwater_engine::document::{Fence, FencingToken, Generation};

use crate::documents::{Batch, Change, Grant, What, rows_upto};
use crate::steps::Model;
use crate::world::{Kind, Owner, Request, World};

/// What must always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    NothingIsSkipped,
    TheCheckpointNeverGoesBack,
    TheTokenNeverGoesBack,
    EachGrantHasATokenOfItsOwn,
    TheFenceHolds,
    OnlyTheNewestHolderWrites,
    AVersionIsReplacedOnlyByWhoSawIt,
    ALoneSuccessorCanFinish,
    TwoBatchesAtMostComeAgain,
}

impl Claim {
    pub(crate) const ALL: [Self; 9] = [
        Self::NothingIsSkipped,
        Self::TheCheckpointNeverGoesBack,
        Self::TheTokenNeverGoesBack,
        Self::EachGrantHasATokenOfItsOwn,
        Self::TheFenceHolds,
        Self::OnlyTheNewestHolderWrites,
        Self::AVersionIsReplacedOnlyByWhoSawIt,
        Self::ALoneSuccessorCanFinish,
        Self::TwoBatchesAtMostComeAgain,
    ];
}

/// An event that must be met somewhere, or the search shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sight {
    TwoHoldersAtOnce,
    ZombieWriteLanded,
    StaleDeliveryRefused,
    LandedByWriteId,
    LandedByBatchId,
    /// Only the writer releases its grant.
    LandedSinceGivenUp,
    /// A grant was released, and its holder learns so after another was granted.
    LandedBeforeATakeover,
    /// An abandoned renewal with a prefix has landed after all, and the commit is made from there.
    MovedByOwnRenewal,
    ChangeAppliedToAnothersVersion,
    LeaseLost,
    AllCommitted,
    CreationLandedLate,
    /// A process crashed while it held the lease.
    HolderDied,
    PauseLanded,
    ResetLanded,
    /// A document under which leases had been granted.
    DocumentLost,
    /// A handler has finished while the commit of the previous batch had no response.
    NextHandledBesideCommit,
    /// And that commit was lost.
    NextHandledInVain,
}

/// The events met, and in how many steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sights(BTreeMap<Sight, u64>);

impl Sights {
    pub(crate) fn insert(&mut self, sight: Sight) {
        *self.0.entry(sight).or_default() += 1;
    }

    /// Returns the number of steps that have met it.
    pub(crate) fn count(&self, sight: Sight) -> u64 {
        self.0.get(&sight).copied().unwrap_or(0)
    }
}

impl Sight {
    /// The last of them takes two faults: a lost response, and another writer on top.
    pub(crate) const ALL: [Self; 18] = [
        Self::TwoHoldersAtOnce,
        Self::ZombieWriteLanded,
        Self::StaleDeliveryRefused,
        Self::LandedByWriteId,
        Self::LandedByBatchId,
        Self::MovedByOwnRenewal,
        Self::ChangeAppliedToAnothersVersion,
        Self::LeaseLost,
        Self::AllCommitted,
        Self::CreationLandedLate,
        Self::HolderDied,
        Self::PauseLanded,
        Self::ResetLanded,
        Self::DocumentLost,
        Self::NextHandledBesideCommit,
        Self::NextHandledInVain,
        Self::LandedBeforeATakeover,
        Self::LandedSinceGivenUp,
    ];

    /// The events for which a single fault is enough.
    pub(crate) const OF_ONE_FAULT: &[Self] = {
        let [of_one @ .., _] = &Self::ALL;
        of_one
    };
}

impl Model {
    /// Compares the write that is about to be stored with everything before it.
    pub(crate) fn witness(&mut self, world: &mut World, request: &Request) {
        let after = self.documents.facts(request.doc);
        let seen = &mut world.seen;
        let mut break_if = |wrong, claim| {
            if wrong {
                self.broken.push(claim);
            }
        };
        let is_begun = after.grant.generation > 0;
        break_if(is_begun && after.grant < seen.highest, Claim::TheTokenNeverGoesBack);
        seen.highest = seen.highest.max(after.grant);
        match request.kind {
            Kind::Grant => {
                break_if(after.grant <= seen.granted, Claim::EachGrantHasATokenOfItsOwn);
                seen.granted = seen.granted.max(after.grant);
                seen.grants += 1;
                seen.revoked = false;
            }
            Kind::Held { number, .. } => {
                let superseded = number != seen.grants || seen.revoked;
                break_if(superseded, Claim::OnlyTheNewestHolderWrites);
            }
            Kind::Pause => self.sights.insert(Sight::PauseLanded),
            Kind::Reset => self.sights.insert(Sight::ResetLanded),
            Kind::Create | Kind::Resume => {}
        }
        break_if(!request.made_from_stored, Claim::AVersionIsReplacedOnlyByWhoSawIt);
        let before = world.stored.map_or(0, |doc| self.documents.facts(doc).checkpoint);
        if request.kind == Kind::Reset {
            begin_era(world);
        } else {
            break_if(after.checkpoint < before, Claim::TheCheckpointNeverGoesBack);
        }
        let skipped = rows_upto(after.checkpoint) & !world.seen.delivered;
        break_if(skipped != 0, Claim::NothingIsSkipped);
        if after.checkpoint == self.bounds.rows {
            self.sights.insert(Sight::AllCommitted);
        }
    }

    /// Counts the batches that would be redelivered if the newest holder crashed now.
    pub(crate) fn witness_window(&mut self, world: &World, slot: u8) {
        let Owner::Holding(holding) = world.owner(slot) else { return };
        let is_newest = holding.number == world.seen.grants && !world.seen.revoked;
        let stored = world.stored.map_or(0, |doc| self.documents.facts(doc).checkpoint);
        let behind = holding.ends & !rows_upto(stored);
        if is_newest && behind.count_ones() > 2 {
            self.broken.push(Claim::TwoBatchesAtMostComeAgain);
        }
    }

    /// Whether a process that runs alone from here, without faults, delivers and commits everything, past the
    /// fence too; an operator ends a pause.
    pub(crate) fn can_finish(&mut self, world: &World) -> bool {
        let key = (world.stored, world.target.fence, world.losses);
        if let Some(known) = self.finishing.get(&key) {
            return *known;
        }
        let finishes = self.finishes(world).unwrap_or(false);
        self.finishing.insert(key, finishes);
        finishes
    }

    fn finishes(&mut self, world: &World) -> Option<bool> {
        let slot = 0;
        let doc = self.base(world);
        let doc = self.documents.apply(doc, Change::Resume)?;
        let facts = self.documents.facts(doc);
        let (after, upto) = (facts.checkpoint, self.bounds.rows);
        if after == upto {
            return Some(true);
        }
        let generation = facts.grant.generation;
        let batch = Batch { generation, replay: facts.replay, after, upto };
        let doc = self.documents.apply(doc, Change::Acquire { slot, batch })?;
        let grant = self.documents.facts(doc).grant;
        admit(world.target.fence, grant)?;
        let what = What::Commit { batch, next: None };
        let doc = self.documents.apply(doc, Change::Held { slot, grant, what })?;
        Some(self.documents.facts(doc).checkpoint == upto)
    }
}

/// Asks the real fence.
pub(crate) fn admit(fence: Grant, asked: Grant) -> Option<Grant> {
    let of = |grant: Grant| (Generation(grant.generation.into()), FencingToken(grant.token.into()));
    let (generation, token) = of(fence);
    let (asked_generation, asked_token) = of(asked);
    Fence { generation, token }.admit(asked_generation, asked_token).ok().map(|_| asked)
}

/// The checkpoint was moved back: earlier deliveries no longer count, and former holders no longer hold the
/// lease.
pub(crate) fn begin_era(world: &mut World) {
    world.seen.delivered = 0;
    world.seen.revoked = true;
    for owner in &mut world.owners {
        if let Owner::Holding(holding) = owner {
            holding.in_era = false;
        }
    }
}
