//! What a step does to the world, and how the witness judges it.

use std::collections::BTreeMap;

use crate::documents::{Batch, Change, Doc, Documents, Grant, What, Who};
use crate::variants::Variant;
use crate::witness::{Claim, Sight, Sights, admit, begin_era};
use crate::world::{
    Answer, Asking, Condition, Delivery, Holding, Kind, Owner, Request, Role, Target, View, World,
    Write,
};

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) owners: u8,
    pub(crate) rows: u8,
    /// Versions stored.
    pub(crate) writes: u8,
    /// Lost responses, crashes, late deliveries, interventions and losses of the document together.
    pub(crate) faults: u8,
}

/// The fate of a request that a step sends.
///
/// If it lands and its sender learns so, that is one step with its sending, since nobody can observe the time
/// between. The same holds for a request that is rejected and whose sender then reads the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// It lands; its sender does not learn this.
    AnswerLost,
    /// Its sender no longer waits for it; it may land at any time.
    InTheAir,
    /// It is pending, for variants whose requests are made at one moment and land at another.
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Ask {
        slot: u8,
        upto: u8,
        fate: Fate,
    },
    Start {
        slot: u8,
        what: What,
        fate: Fate,
    },
    Land {
        request: Request,
        told: bool,
    },
    Timeout {
        slot: u8,
    },
    Read {
        slot: u8,
        fate: Fate,
    },
    GiveUp {
        slot: u8,
    },
    Handle {
        slot: u8,
    },
    /// The handler of the batch that the pending commit announces.
    HandleNext {
        slot: u8,
    },
    /// A mutation: the result of that handler is committed although the previous commit has no response.
    CommitUnconfirmed {
        slot: u8,
        next: Option<Batch>,
    },
    HandlePrefix {
        slot: u8,
        fate: Fate,
    },
    /// The handler reports the first row as permanently accepted, and a renewal commits it.
    AcceptPrefix {
        slot: u8,
        fate: Fate,
    },
    Duplicate {
        slot: u8,
    },
    Arrive,
    Crash {
        slot: u8,
    },
    Intervene {
        kind: Kind,
    },
    LoseDocument,
    /// A process that finds nothing creates a blank document, or sends the request and stops waiting for it.
    Create {
        late: bool,
    },
}

/// The protocol within bounds, with the real documents.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) variant: Variant,
    pub(crate) bounds: Bounds,
    pub(crate) documents: Documents,
    /// Claims broken by the last step.
    pub(crate) broken: Vec<Claim>,
    /// Events met so far.
    pub(crate) sights: Sights,
    /// Whether a successor that runs alone finishes, by the state it depends on.
    pub(crate) finishing: BTreeMap<(Option<Doc>, Grant, u8), bool>,
}

impl Model {
    pub(crate) fn new(variant: Variant, bounds: Bounds) -> Self {
        let tokens_stay = variant == Variant::TokenStays;
        Self {
            variant,
            bounds,
            documents: Documents::new(tokens_stay),
            broken: Vec::new(),
            sights: Sights::default(),
            finishing: BTreeMap::new(),
        }
    }

    /// Returns the world after `action`; claims broken by the step are left in `broken`.
    pub(crate) fn step(&mut self, world: &World, action: Action) -> World {
        self.broken.clear();
        let mut next = *world;
        match action {
            Action::Ask { slot, upto, fate } => {
                self.ask(&mut next, slot, upto);
                self.meet(&mut next, slot, fate);
            }
            Action::Start { slot, what, fate } => {
                self.start(&mut next, slot, what);
                self.meet(&mut next, slot, fate);
            }
            Action::Land { request, told } => self.land(&mut next, request, told),
            Action::Timeout { slot } => time_out(&mut next, slot),
            Action::Read { slot, fate } => {
                self.read(&mut next, slot);
                self.meet(&mut next, slot, fate);
            }
            Action::GiveUp { slot } => give_up(&mut next, slot),
            Action::Handle { slot } => self.handle(&mut next, slot),
            Action::HandleNext { slot } => self.handle_next(&mut next, slot),
            Action::CommitUnconfirmed { slot, next: batch } => {
                self.commit_unconfirmed(&mut next, slot, batch);
            }
            Action::HandlePrefix { slot, fate } => {
                self.handle_first_row(&mut next, slot, |batch| What::CommitPrefix { batch });
                self.meet(&mut next, slot, fate);
            }
            Action::AcceptPrefix { slot, fate } => {
                self.handle_first_row(&mut next, slot, |batch| What::RenewPrefix { batch });
                self.meet(&mut next, slot, fate);
            }
            Action::Duplicate { slot } => duplicate(&mut next, slot),
            Action::Arrive => {
                let late = next.late.take().expect("only what is late arrives");
                self.deliver(&mut next.target, late);
            }
            Action::Crash { slot } => {
                next.faults += 1;
                if matches!(world.owner(slot), Owner::Holding(_)) {
                    self.sights.insert(Sight::HolderDied);
                }
                next.end_tick(slot);
                // It restarts under another id, or not at all.
                next = next.rename(|name| if name == slot { Who::Gone } else { Who::Slot(name) });
            }
            Action::Intervene { kind } => self.intervene(&mut next, kind),
            Action::LoseDocument => {
                let lost = world.stored.map(|doc| self.documents.facts(doc).grant);
                if lost.is_some_and(|grant| grant.token > 0) {
                    self.sights.insert(Sight::DocumentLost);
                }
                lose_document(&mut next);
            }
            Action::Create { late } => self.create(&mut next, late),
        }
        self.forget_differences(&mut next);
        if !self.can_finish(&next) {
            self.broken.push(Claim::ALoneSuccessorCanFinish);
        }
        next
    }

    /// Of a version that is no longer stored, its holder only uses the grant, the checkpoint and the name of
    /// the last batch.
    fn forget_differences(&self, world: &mut World) {
        for owner in &mut world.owners {
            if let Owner::Holding(Holding { snapshot, .. }) = owner
                && !snapshot.current
                && !self.is_blind()
            {
                snapshot.doc = self.documents.alike(snapshot.doc);
            }
        }
    }

    /// Decides the fate of the request that `slot` has just sent, if it has sent one.
    fn meet(&mut self, world: &mut World, slot: u8, fate: Fate) {
        let mut requests = world.requests.into_iter().flatten();
        let Some(request) = requests.find(|request| request.role == Role::Awaited(slot)) else {
            return;
        };
        match fate {
            Fate::Open => {}
            Fate::InTheAir => time_out(world, slot),
            Fate::Answered => self.land(world, request, true),
            Fate::AnswerLost => self.land(world, request, false),
        }
    }

    // What processes do.

    fn ask(&mut self, world: &mut World, slot: u8, upto: u8) {
        let base = self.base(world);
        let facts = self.documents.facts(base);
        let (generation, after) = (facts.grant.generation, facts.checkpoint);
        let batch = Batch { generation, replay: facts.replay, after, upto };
        world.set(
            slot,
            Owner::Asking(Asking {
                batch,
                current: true,
                ambiguous: false,
                answer: Answer::Awaited,
            }),
        );
        self.request_lease(world, slot, batch);
    }

    /// Requests the lease, based on the stored document.
    fn request_lease(&mut self, world: &mut World, slot: u8, batch: Batch) {
        let base = self.base(world);
        let granted = self.documents.apply(base, Change::Acquire { slot, batch });
        let Some(doc) = granted.filter(|_| self.may_write(world)) else {
            return world.end_tick(slot);
        };
        let condition = match world.stored {
            _ if self.is_blind() => Condition::None,
            Some(_) => Condition::Tag,
            None => Condition::Absent,
        };
        let (role, kind) = (Role::Awaited(slot), Kind::Grant);
        world.send(Request { doc, role, kind, condition, made_from_stored: true });
    }

    /// Returns the stored document; if that is blank or missing, the document that a poller starts with.
    pub(crate) fn base(&mut self, world: &World) -> Doc {
        let restarts = self.variant == Variant::GenerationRestarts;
        let generation = if restarts { 1 } else { world.losses + 1 };
        let stored = world.stored.unwrap_or_else(|| self.documents.blank());
        self.documents.started(stored, generation)
    }

    fn start(&mut self, world: &mut World, slot: u8, what: What) {
        let Owner::Holding(mut holding) = world.owner(slot) else { return };
        let mut base = holding.snapshot;
        match (self.variant, world.stored) {
            (Variant::VerifyThenBlindWrite, Some(doc)) => base = View { doc, current: true },
            (Variant::FreshTagOldContent, Some(_)) => base.current = true,
            (Variant::VerifyThenBlindWrite | Variant::FreshTagOldContent, None) => {
                return world.end_tick(slot);
            }
            (_, _) => {}
        }
        if what == What::Fail {
            // They are equivalent in the protocol, so the search follows only one.
            let (slot, grant) = (slot, holding.grant);
            let mut made_by =
                |what| self.documents.apply(base.doc, Change::Held { slot, grant, what });
            assert_eq!(made_by(What::Fail), made_by(What::Release));
        }
        holding.in_the_air |= matches!(what, What::RenewPrefix { .. });
        holding.write = Some(Write { what, current: base.current, answer: Answer::Awaited });
        world.set(slot, Owner::Holding(holding));
        self.request_change(world, slot, base);
    }

    /// Sends the current write, made from `base`. A write whose version is gone is rejected, and judged.
    fn request_change(&mut self, world: &mut World, slot: u8, base: View) {
        let Owner::Holding(mut holding) = world.owner(slot) else { return };
        let Some(write) = &mut holding.write else { return };
        let what = write.what;
        let change = Change::Held { slot, grant: holding.grant, what };
        let Some(doc) = self.documents.apply(base.doc, change) else {
            self.sights.insert(Sight::LeaseLost);
            return world.end_tick(slot);
        };
        if !self.may_write(world) {
            return world.end_tick(slot);
        }
        let is_refused = !base.current && !self.is_blind();
        write.current = base.current;
        write.answer = if is_refused { Answer::Judging } else { Answer::Awaited };
        world.set(slot, Owner::Holding(holding));
        if is_refused {
            if self.variant == Variant::NoJudging {
                return give_up(world, slot);
            }
            return self.judge(world, slot, &holding);
        }
        let condition = if self.is_blind() { Condition::None } else { Condition::Tag };
        let kind = Kind::Held { number: holding.number, what };
        let made_from_stored = base.current && Some(base.doc) == world.stored;
        let role = Role::Awaited(slot);
        world.send(Request { doc, role, kind, condition, made_from_stored });
    }

    /// Reads the document and judges a write that was not plainly accepted, by the rules and in the order of
    /// `src/engine/lease/judge.rs`.
    fn read(&mut self, world: &mut World, slot: u8) {
        match world.owner(slot) {
            Owner::Idle => {}
            Owner::Asking(asking) if world.written_by == Some(slot) => {
                self.sights.insert(Sight::LandedByWriteId);
                self.hold(world, slot, asking.batch);
            }
            Owner::Asking(asking) if asking.current => {
                let answer = Answer::Awaited;
                world.set(slot, Owner::Asking(Asking { answer, ambiguous: true, ..asking }));
                self.request_lease(world, slot, asking.batch);
            }
            Owner::Asking(_) => world.end_tick(slot),
            Owner::Holding(holding) => self.judge(world, slot, &holding),
        }
    }

    fn judge(&mut self, world: &mut World, slot: u8, holding: &Holding) {
        let (Some(write), Some(found)) = (holding.write, world.stored) else {
            return world.end_tick(slot);
        };
        let documents = &mut self.documents;
        let (base, found_at) = (holding.snapshot.doc, documents.facts(found).checkpoint);
        let moved_by_us = holding.in_the_air && found_at == holding.batch.after + 1;
        let mine = world.written_by == Some(slot);
        let by_batch = write.what.committed().is_some_and(|batch| {
            // A renewal may have committed the same prefix before.
            let mine = (slot, holding.grant);
            !moved_by_us
                && !documents.has_landed(base, batch)
                && documents.was_committed_by(found, mine, batch)
        });
        let held = documents.is_held_by(found, slot, holding.grant);
        let given_up = !write.current && documents.was_released_by(found, slot, holding.grant);
        if given_up && !held {
            self.sights.insert(Sight::LandedBeforeATakeover);
        }
        if mine || by_batch || given_up {
            self.sights.insert(match (mine, by_batch) {
                (true, _) => Sight::LandedByWriteId,
                (false, true) => Sight::LandedByBatchId,
                (false, false) => Sight::LandedSinceGivenUp,
            });
            return succeed(world, slot, found);
        }
        let still_ours = held && (found_at == documents.facts(base).checkpoint || moved_by_us);
        if !write.current && moved_by_us {
            self.sights.insert(Sight::MovedByOwnRenewal);
        }
        if !write.current && !still_ours {
            self.sights.insert(Sight::LeaseLost);
            if holding.next_handled {
                self.sights.insert(Sight::NextHandledInVain);
            }
            if self.variant == Variant::NextGoesOn && holding.next_handled {
                return self.go_on_with_next(world, slot, holding);
            }
            return world.end_tick(slot);
        }
        if !write.current {
            self.sights.insert(Sight::ChangeAppliedToAnothersVersion);
        }
        self.request_change(world, slot, View { doc: found, current: true });
    }

    fn hold(&mut self, world: &mut World, slot: u8, batch: Batch) {
        let Some(doc) = world.stored else { return };
        world.end_write(slot);
        let is_holder = |owner: &Owner| matches!(owner, Owner::Holding(_));
        if world.owners.iter().any(is_holder) {
            self.sights.insert(Sight::TwoHoldersAtOnce);
        }
        world.set(
            slot,
            Owner::Holding(Holding {
                grant: self.documents.facts(doc).grant,
                snapshot: View { doc, current: true },
                batch,
                handled: false,
                next_handled: false,
                ends: 0,
                write: None,
                in_the_air: false,
                number: world.seen.grants,
                in_era: true,
            }),
        );
    }

    // What the handler and its target do.

    fn handle(&mut self, world: &mut World, slot: u8) {
        let Owner::Holding(holding) = world.owner(slot) else { return };
        self.handled(world, &holding, holding.batch.rows());
        let ends = holding.ends | end_of(holding.batch);
        world.set(slot, Owner::Holding(Holding { handled: true, ends, ..holding }));
        self.witness_window(world, slot);
    }

    fn handle_next(&mut self, world: &mut World, slot: u8) {
        let Owner::Holding(holding) = world.owner(slot) else { return };
        let Some(next) = holding.next() else { return };
        self.sights.insert(Sight::NextHandledBesideCommit);
        self.handled(world, &holding, next.rows());
        let ends = holding.ends | end_of(next);
        world.set(slot, Owner::Holding(Holding { next_handled: true, ends, ..holding }));
        self.witness_window(world, slot);
    }

    /// The state of a holder that treats an unanswered commit as landed.
    fn hoped(&mut self, slot: u8, holding: &Holding) -> Option<Holding> {
        let (what, batch) = (holding.write?.what, holding.next()?);
        let change = Change::Held { slot, grant: holding.grant, what };
        let doc = self.documents.apply(holding.snapshot.doc, change)?;
        let snapshot = View { doc, current: true };
        let (handled, next_handled) = (holding.next_handled, false);
        Some(Holding { snapshot, batch, handled, next_handled, write: None, ..*holding })
    }

    /// There is no etag to send with it.
    fn commit_unconfirmed(&mut self, world: &mut World, slot: u8, next: Option<Batch>) {
        let Owner::Holding(holding) = world.owner(slot) else { return };
        let Some(hoped) = self.hoped(slot, &holding) else { return };
        let what = What::Commit { batch: hoped.batch, next };
        let change = Change::Held { slot, grant: hoped.grant, what };
        let Some(doc) = self.documents.apply(hoped.snapshot.doc, change) else { return };
        world.end_write(slot);
        let write = Some(Write { what, current: true, answer: Answer::Awaited });
        world.set(slot, Owner::Holding(Holding { write, ..hoped }));
        world.send(Request {
            doc,
            role: Role::Awaited(slot),
            kind: Kind::Held { number: holding.number, what },
            condition: Condition::None,
            made_from_stored: Some(hoped.snapshot.doc) == world.stored,
        });
    }

    fn go_on_with_next(&mut self, world: &mut World, slot: u8, holding: &Holding) {
        let hoped = self.hoped(slot, holding);
        world.end_tick(slot);
        if let Some(hoped) = hoped {
            world.set(slot, Owner::Holding(hoped));
        }
    }

    fn handle_first_row(&mut self, world: &mut World, slot: u8, then: fn(Batch) -> What) {
        let Owner::Holding(holding) = world.owner(slot) else { return };
        let batch = holding.batch;
        self.handled(world, &holding, batch.first_row().rows());
        self.start(world, slot, then(batch));
    }

    fn handled(&mut self, world: &mut World, holding: &Holding, rows: u8) {
        let delivery = Delivery { grant: holding.grant, number: holding.number, rows };
        self.deliver(&mut world.target, delivery);
        if holding.in_era {
            world.seen.delivered |= rows;
        }
    }

    /// Offers rows to the fenced target. The handler continues either way, as one without a fence would.
    fn deliver(&mut self, target: &mut Target, delivery: Delivery) {
        if self.variant == Variant::UniqueOnlyFence {
            if target.rows | delivery.rows == target.rows {
                return;
            }
            target.rows |= delivery.rows;
        } else {
            let Some(fence) = admit(target.fence, delivery.grant) else {
                self.sights.insert(Sight::StaleDeliveryRefused);
                return;
            };
            target.fence = fence;
        }
        if delivery.number < target.newest {
            self.broken.push(Claim::TheFenceHolds);
        }
        target.newest = target.newest.max(delivery.number);
    }

    // What others do.

    fn intervene(&mut self, world: &mut World, kind: Kind) {
        let Some(stored) = world.stored else { return };
        world.faults += 1;
        let change = match kind {
            Kind::Reset => {
                world.resets += 1;
                Change::Reset { replay: world.resets }
            }
            Kind::Pause => Change::Pause,
            Kind::Resume | Kind::Create | Kind::Grant | Kind::Held { .. } => Change::Resume,
        };
        let Some(doc) = self.documents.apply(stored, change) else { return };
        let condition = if self.is_blind() { Condition::None } else { Condition::Tag };
        world.send(Request { doc, role: Role::Orphan, kind, condition, made_from_stored: true });
    }

    /// A blank document grants nothing, so no process can hold its version.
    fn create(&mut self, world: &mut World, late: bool) {
        let doc = self.documents.blank();
        if !late {
            world.stored = Some(doc);
            return;
        }
        world.faults += 1;
        let (role, kind, condition) = (Role::Orphan, Kind::Create, Condition::Absent);
        world.send(Request { doc, role, kind, condition, made_from_stored: true });
    }

    // What the store does, and how the witness judges it.

    fn land(&mut self, world: &mut World, request: Request, told: bool) {
        for place in &mut world.requests {
            if *place == Some(request) {
                *place = None;
            }
        }
        if request.kind == Kind::Create {
            self.sights.insert(Sight::CreationLandedLate);
            world.stored = Some(request.doc);
            return;
        }
        self.witness(world, &request);
        let before = world.owners;
        world.writes += 1;
        world.stored = Some(request.doc);
        world.written_by = None;
        world.supersede_version();
        match request.role {
            Role::Awaited(slot) => {
                let sender = before[usize::from(slot)].with_version_gone();
                world.set(slot, sender);
                match sender {
                    Owner::Idle => {}
                    Owner::Asking(asking) if told => self.hold(world, slot, asking.batch),
                    Owner::Holding(_) if told => succeed(world, slot, request.doc),
                    Owner::Asking(_) | Owner::Holding(_) => {
                        world.written_by = Some(slot);
                        time_out(world, slot);
                    }
                }
            }
            Role::Earlier(slot) => {
                self.sights.insert(Sight::ZombieWriteLanded);
                world.written_by = Some(slot);
            }
            Role::Orphan => {
                if matches!(request.kind, Kind::Grant | Kind::Held { .. }) {
                    self.sights.insert(Sight::ZombieWriteLanded);
                }
            }
        }
        if !self.is_blind() {
            world.end_hopeless_ticks();
        }
    }

    fn is_blind(&self) -> bool {
        matches!(self.variant, Variant::NoIfMatch | Variant::VerifyThenBlindWrite)
    }
}

/// Returns the end of a batch, as recorded by the witness.
fn end_of(batch: Batch) -> u8 {
    1 << (batch.upto - 1)
}

/// The current write has landed, as `doc` or in it.
fn succeed(world: &mut World, slot: u8, doc: Doc) {
    let Owner::Holding(holding) = world.owner(slot) else { return };
    let Some(write) = holding.write else { return };
    world.end_write(slot);
    let snapshot = View { doc, current: true };
    let next_handled = false;
    let held = Holding { snapshot, write: None, in_the_air: false, next_handled, ..holding };
    let owner = match write.what {
        What::Renew | What::RenewPrefix { .. } => Owner::Holding(held),
        What::Commit { next: Some(batch), .. } => {
            let ends = held.ends & !end_of(holding.batch);
            Owner::Holding(Holding { batch, handled: holding.next_handled, ends, ..held })
        }
        What::Commit { next: None, .. }
        | What::CommitPrefix { .. }
        | What::Fail
        | What::Release => Owner::Idle,
    };
    world.set(slot, owner);
}

/// No response in time: it is unknown whether the write has landed or will.
fn time_out(world: &mut World, slot: u8) {
    world.faults += 1;
    world.recast(|role| if role == Role::Awaited(slot) { Role::Earlier(slot) } else { role });
    let answer = Answer::Judging;
    let owner = match world.owner(slot) {
        Owner::Idle => Owner::Idle,
        Owner::Asking(asking) => Owner::Asking(Asking { answer, ambiguous: true, ..asking }),
        Owner::Holding(holding) => {
            let write = holding.write.map(|write| Write { answer, ..write });
            Owner::Holding(Holding { write, ..holding })
        }
    };
    world.set(slot, owner);
}

/// The deadline came before a response. If the handler had finished while a renewal was pending, the renewal
/// is abandoned and the commit is tried anyway.
fn give_up(world: &mut World, slot: u8) {
    match world.owner(slot) {
        Owner::Holding(holding)
            if holding.handled && holding.write.is_some_and(|write| write.what.is_renewal()) =>
        {
            world.end_write(slot);
            world.set(slot, Owner::Holding(Holding { write: None, ..holding }));
        }
        Owner::Idle | Owner::Asking(_) | Owner::Holding(_) => world.end_tick(slot),
    }
}

fn duplicate(world: &mut World, slot: u8) {
    let Owner::Holding(holding) = world.owner(slot) else { return };
    let (grant, number, rows) = (holding.grant, holding.number, holding.batch.rows());
    world.faults += 1;
    world.late = Some(Delivery { grant, number, rows });
}

fn lose_document(world: &mut World) {
    world.faults += 1;
    world.losses += 1;
    world.stored = None;
    world.written_by = None;
    world.supersede_version();
    begin_era(world);
}
