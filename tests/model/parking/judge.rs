//! The claims about parked keys, judged by a witness that sees everything.

use super::records::{KEYS, Row};
use super::steps::{Action, Model, Rows};
use super::world::{Next, Operator, Process, Target, Task, World};

/// What must always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    NoRowIsLost,
    AKeyStaysInOrder,
    OtherKeysStayInOrder,
    AParkedKeyWaits,
    ARetryIsDue,
    CountsAreRight,
    AProcessAloneFinishes,
}

impl Claim {
    pub(crate) const ALL: [Self; 7] = [
        Self::NoRowIsLost,
        Self::AKeyStaysInOrder,
        Self::OtherKeysStayInOrder,
        Self::AParkedKeyWaits,
        Self::ARetryIsDue,
        Self::CountsAreRight,
        Self::AProcessAloneFinishes,
    ];
}

/// An event that must be met somewhere, or the search shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sight {
    TakenOver,
    LeaseLost,
    StaleDeliveryRefused,
    LaterVersionDiverted,
    /// A parked row had an entry already.
    EntryFound,
    /// By a process that had lost its lease.
    EntryCreatedLate,
    /// Its condition did not hold.
    EntryWriteRefused,
    KeyRecovered,
    KeyQuarantined,
    HolderCrashed,
    LateWriteArrived,
    /// The entry of a row to divert was gone.
    RowPutBack,
    EntryDropped,
    KeyRedriven,
}

impl Sight {
    /// Without faults and operators.
    pub(crate) const OF_TICKS: &[Self] = &[
        Self::TakenOver,
        Self::LeaseLost,
        Self::StaleDeliveryRefused,
        Self::LaterVersionDiverted,
        Self::EntryFound,
        Self::EntryCreatedLate,
        Self::EntryWriteRefused,
        Self::KeyRecovered,
        Self::RowPutBack,
    ];
}

impl Model {
    pub(crate) fn see(&mut self, sight: Sight) {
        *self.sights.entry(sight).or_default() += 1;
    }

    /// Judges a row that the target accepts.
    pub(crate) fn judge_delivery(&mut self, world: &mut World, slot: u8, row: Row) {
        let Process { task, has_rival, .. } = world.processes[usize::from(slot)];
        let is_newest = self.is_newest(world, slot);
        let parked = world.stored(row.key).filter(|stored| stored.is_relied_on);
        if task == Task::Tick && is_newest && parked.is_some() {
            self.broken.push(Claim::AParkedKeyWaits);
        }
        let target = &mut world.target;
        let newest = &mut target.newest[usize::from(row.key)];
        if row.position < *newest && !has_rival {
            self.broken.push(Claim::AKeyStaysInOrder);
        }
        let may_be_parked = self.bounds.rejected & (1 << row.key) != 0;
        if task == Task::Tick && row.position > *newest && !may_be_parked {
            if row.position < target.regular {
                self.broken.push(Claim::OtherKeysStayInOrder);
            }
            target.regular = target.regular.max(row.position);
        }
        *newest = (*newest).max(row.position);
        target.last[usize::from(row.key)] = row.position;
    }

    /// Judges the world after a step.
    pub(crate) fn judge(&mut self, before: &World, world: &mut World) {
        if (0..).take(KEYS).any(|key| self.is_lost(world, key)) {
            self.broken.push(Claim::NoRowIsLost);
        }
        let facts = self.records.facts(world.document);
        let retried = world.entries_relied_on(&self.records).any(|entry| entry.is_retrying);
        let is_noted = world.operator != Operator::Dropped;
        if is_noted && retried && !(facts.may_have_entries && facts.has_next_retry) {
            self.broken.push(Claim::ARetryIsDue);
        }
        if !self.counts_are_right(world) {
            self.broken.push(Claim::CountsAreRight);
        }
        let is_news = (world.document, world.entries, world.table, world.target)
            != (before.document, before.entries, before.table, before.target);
        if is_news && !self.can_finish(world) {
            self.broken.push(Claim::AProcessAloneFinishes);
        }
    }

    /// Whether the checkpoint is after the current version of a key, the target has accepted another one last, and no entry
    /// has it.
    fn is_lost(&self, world: &World, key: u8) -> bool {
        let Row { position, .. } = world.current(key);
        let is_passed = position <= self.records.facts(world.document).checkpoint;
        let at = usize::from(key);
        let entry =
            world.stored(key).map_or(0, |stored| self.records.entry(stored.entry).row.position);
        is_passed && world.target.last[at].max(world.dropped[at]).max(entry) < position
    }

    fn counts_are_right(&self, world: &World) -> bool {
        let known = u8::try_from(world.entries_relied_on(&self.records).count()).expect("few");
        let counted = self.records.facts(world.document).keys;
        // An operator may remove an entry that a process has counted as removed.
        counted >= known || world.has_intervened
    }

    /// Whether a process that runs alone from here, without faults, delivers everything and retries every key that it has to
    /// know.
    fn can_finish(&mut self, world: &World) -> bool {
        let idle = Process::idle(self.records.nothing_known());
        let mut alone = *world;
        if alone.operator == Operator::Dropped {
            alone = self.act(&alone, Action::NoteDrop);
        }
        alone.processes = [idle; super::world::PROCESSES];
        (alone.operator, alone.late) = (Operator::Idle, None);
        (alone.writes, alone.faults) = (0, 0);
        alone.target = Target { regular: 0, ..alone.target };
        if let Some(known) = self.finishing.get(&alone) {
            return *known;
        }
        let (sights, broken) = (self.sights.clone(), self.broken.clone());
        let finishes = self.finishes(alone);
        (self.sights, self.broken) = (sights, broken);
        self.finishing.insert(alone, finishes);
        finishes
    }

    fn finishes(&mut self, mut world: World) -> bool {
        let slot = 0;
        for _ in 0..6 {
            if self.has_rows(&world) {
                world = self.act(&world, Action::Tick { slot, rows: Rows::All });
                world = self.run_alone(world);
            }
            let facts = self.records.facts(world.document);
            if facts.has_next_retry && facts.may_have_entries {
                world = self.act(&world, Action::Retry { slot });
                world = self.run_alone(world);
            }
        }
        let has_retries = world.entries_relied_on(&self.records).any(|entry| entry.is_retrying);
        let lost = (0..).take(KEYS).any(|key| self.is_lost(&world, key));
        let entries = world.listed().count_ones();
        let known = world.entries_relied_on(&self.records).count();
        let counted = u32::from(self.records.facts(world.document).keys);
        let counts = u32::try_from(known).expect("few")..=entries;
        // Of quarantined keys, only a process that has something to deliver or to retry counts.
        let counts_are_right = counts.contains(&counted) || world.has_intervened;
        !self.has_rows(&world) && !has_retries && !lost && counts_are_right
    }

    fn has_rows(&self, world: &World) -> bool {
        world.last_position() > self.records.facts(world.document).checkpoint
    }

    fn run_alone(&mut self, mut world: World) -> World {
        let slot = 0;
        for _ in 0..40 {
            let process = world.processes[0];
            let action = match process.next {
                Next::Nothing => return world,
                Next::Deliver | Next::Call => Action::Handle { slot, is_accepted: true },
                Next::ChooseKey => {
                    let left = self.records.keys(process.known) & !process.done;
                    let key = (0..).take(KEYS).find(|key| left & (1 << key) != 0);
                    key.map_or(Action::End { slot }, |key| Action::Choose { slot, key })
                }
                _ => Action::Continue { slot },
            };
            world = self.act(&world, action);
        }
        world
    }
}
