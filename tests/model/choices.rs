//! The possible next steps.

use crate::documents::{Batch, What};
use crate::steps::{Action, Fate, Model};
use crate::variants::Variant;
use crate::world::{Answer, Condition, Holding, Kind, Owner, Role, World};

impl Model {
    /// Returns every possible action in `world`.
    pub(crate) fn actions(&self, world: &World) -> Vec<Action> {
        let mut actions = Vec::new();
        let may_fail = world.faults < self.bounds.faults;
        for slot in 0..self.bounds.owners {
            match world.owner(slot) {
                Owner::Idle => self.asking(world, slot, &mut actions),
                Owner::Asking(asking) => self.waiting(world, slot, asking.answer, &mut actions),
                Owner::Holding(holding) => self.holding(world, slot, &holding, &mut actions),
            }
            if may_fail && world.owner(slot) != Owner::Idle {
                actions.push(Action::Crash { slot });
            }
        }
        if world.stored.is_none() && self.variant != Variant::GrantRidesOnCreation {
            actions.push(Action::Create { late: false });
            if may_fail {
                actions.push(Action::Create { late: true });
            }
        }
        if self.may_write(world) {
            self.landing(world, &mut actions);
        }
        if world.late.is_some() {
            actions.push(Action::Arrive);
        }
        if may_fail
            && self.may_write(world)
            && let Some(stored) = world.stored
        {
            let is_paused = self.documents.is_paused(stored);
            let kinds = [if is_paused { Kind::Resume } else { Kind::Pause }, Kind::Reset];
            actions.extend(kinds.map(|kind| Action::Intervene { kind }));
            actions.push(Action::LoseDocument);
        }
        actions
    }

    pub(crate) fn may_write(&self, world: &World) -> bool {
        world.writes < self.bounds.writes
    }

    fn fates(&self, world: &World) -> &'static [Fate] {
        if self.variant == Variant::VerifyThenBlindWrite {
            &[Fate::Open]
        } else if world.faults < self.bounds.faults {
            &[Fate::Answered, Fate::AnswerLost, Fate::InTheAir]
        } else {
            &[Fate::Answered]
        }
    }

    /// A challenger reads document and rows in one step with its request. The number of rows it finds is
    /// open, since rows move and the table grows.
    fn asking(&self, world: &World, slot: u8, actions: &mut Vec<Action>) {
        if !self.may_write(world) || world.stored.is_some_and(|doc| self.documents.is_paused(doc)) {
            return;
        }
        if world.stored.is_none() && self.variant != Variant::GrantRidesOnCreation {
            return;
        }
        let checkpoint = world.stored.map_or(0, |doc| self.documents.facts(doc).checkpoint);
        for upto in checkpoint + 1..=self.bounds.rows {
            let fates = self.fates(world).iter();
            actions.extend(fates.map(|fate| Action::Ask { slot, upto, fate: *fate }));
        }
    }

    fn waiting(&self, world: &World, slot: u8, answer: Answer, actions: &mut Vec<Action>) {
        match answer {
            Answer::Awaited => {
                if world.faults < self.bounds.faults {
                    actions.push(Action::Timeout { slot });
                }
            }
            Answer::Judging => {
                if self.variant != Variant::NoJudging {
                    let fates = self.fates(world).iter();
                    actions.extend(fates.map(|fate| Action::Read { slot, fate: *fate }));
                }
                actions.push(Action::GiveUp { slot });
            }
        }
    }

    fn holding(&self, world: &World, slot: u8, holding: &Holding, actions: &mut Vec<Action>) {
        if let Some(write) = holding.write {
            self.waiting(world, slot, write.answer, actions);
        }
        // A renewal runs concurrently with the handler.
        if !holding.handled && holding.write.is_none_or(|write| write.what.is_renewal()) {
            actions.push(Action::Handle { slot });
            if world.faults < self.bounds.faults && world.late.is_none() {
                actions.push(Action::Duplicate { slot });
            }
        }
        // So do the commit of a batch and the handler of the next one.
        if let Some(next) = holding.next() {
            if !holding.next_handled {
                actions.push(Action::HandleNext { slot });
            } else if self.variant == Variant::NextCommitUnconfirmed && self.may_write(world) {
                let ends = next.upto + 1..=self.bounds.rows;
                let third = ends.map(|upto| Some(Batch { after: next.upto, upto, ..next }));
                let nexts = third.chain([None]);
                actions.extend(nexts.map(|next| Action::CommitUnconfirmed { slot, next }));
            }
        }
        if holding.write.is_some() || !self.may_write(world) {
            return;
        }
        let batch = holding.batch;
        let mut writes = vec![What::Renew];
        if holding.handled || self.variant == Variant::CheckpointFirst {
            writes.push(What::Commit { batch, next: None });
            let ends = batch.upto + 1..=self.bounds.rows;
            writes.extend(ends.map(|upto| What::Commit {
                batch,
                next: Some(Batch { after: batch.upto, upto, ..batch }),
            }));
        }
        if !holding.handled {
            writes.push(What::Fail);
        }
        // Work that overlaps it can be seen before it lands.
        let overlapped = writes.iter().filter(|what| what.announces());
        let fate = Fate::Open;
        actions.extend(overlapped.map(|what| Action::Start { slot, what: *what, fate }));
        let is_accepted = self.documents.facts(holding.snapshot.doc).checkpoint > batch.after;
        for fate in self.fates(world) {
            let starts = writes.iter();
            actions.extend(starts.map(|what| Action::Start { slot, what: *what, fate: *fate }));
            if !holding.handled && batch.upto > batch.after + 1 {
                actions.push(Action::HandlePrefix { slot, fate: *fate });
                if !is_accepted {
                    actions.push(Action::AcceptPrefix { slot, fate: *fate });
                }
            }
        }
    }

    fn landing(&self, world: &World, actions: &mut Vec<Action>) {
        for request in world.requests.into_iter().flatten() {
            if request.condition == Condition::Absent && world.stored.is_some() {
                continue;
            }
            let awaited = matches!(request.role, Role::Awaited(_));
            actions.push(Action::Land { request, told: awaited });
            if awaited && world.faults < self.bounds.faults {
                actions.push(Action::Land { request, told: false });
            }
        }
    }
}
