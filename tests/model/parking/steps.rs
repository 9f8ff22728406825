//! The possible next steps, and what they do to the world.

use std::collections::BTreeMap;

use super::judge::{Claim, Sight};
use super::records::{
    DocumentChange, EntryChange, KEYS, KnownChange, Records, Row, Settled, Write,
};
use super::world::{
    Condition, LateWrite, Loaded, Next, Operator, PROCESSES, Process, Stored, Task, World,
};

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Documents written.
    pub(crate) writes: u8,
    /// Crashes and lost responses.
    pub(crate) faults: u8,
    /// Keys, at most three.
    pub(crate) keys: u8,
    /// The position of the last version.
    pub(crate) positions: u8,
    /// Keys that the target may reject, one bit each.
    pub(crate) rejected: u8,
    /// Retries after which a key is quarantined.
    pub(crate) retries: u32,
    /// Whether an operator redrives or drops entries.
    pub(crate) operator: bool,
}

/// A protocol to explore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// As in the code.
    Faithful,
    /// The checkpoint moves before the entry is written.
    CheckpointBeforeEntry,
    /// The entry of a recovered key is removed whatever it holds by now.
    RemovalWithoutTag,
    /// A later version is written over whatever the entry holds by now.
    VersionWithoutTag,
    /// A version counts as the newest although its reader has lost the lease.
    StaleVersionCounts,
    /// A process lists the parked keys once, and never again.
    KeysWithoutEpoch,
    /// A process takes the keys that it has listed for all keys, although the document counts another number.
    KeysNotCompared,
    /// The target does not compare tokens.
    NoFence,
    /// Rows are delivered in reverse order.
    LastRowFirst,
    /// No document announces an entry.
    EntryNotAnnounced,
    /// A row whose entry is gone counts as diverted.
    GoneCountsAsDiverted,
}

impl Variant {
    /// The variants that must be found unsafe, and a claim that each breaks.
    pub(crate) const UNSAFE: [(Self, Claim); 12] = [
        (Self::CheckpointBeforeEntry, Claim::NoRowIsLost),
        (Self::RemovalWithoutTag, Claim::NoRowIsLost),
        (Self::VersionWithoutTag, Claim::NoRowIsLost),
        (Self::StaleVersionCounts, Claim::NoRowIsLost),
        (Self::GoneCountsAsDiverted, Claim::NoRowIsLost),
        (Self::NoFence, Claim::AKeyStaysInOrder),
        (Self::LastRowFirst, Claim::OtherKeysStayInOrder),
        (Self::KeysWithoutEpoch, Claim::AParkedKeyWaits),
        (Self::KeysNotCompared, Claim::ARetryIsDue),
        (Self::EntryNotAnnounced, Claim::ARetryIsDue),
        (Self::EntryNotAnnounced, Claim::CountsAreRight),
        (Self::EntryNotAnnounced, Claim::AProcessAloneFinishes),
    ];

    /// Returns the bounds within which it is found. Fewer keys give a simpler path.
    pub(crate) fn bounds(self, bounds: Bounds) -> Bounds {
        match self {
            Self::LastRowFirst => Bounds { keys: 3, ..bounds },
            Self::GoneCountsAsDiverted => Bounds { keys: 1, operator: true, ..bounds },
            Self::KeysWithoutEpoch => Bounds { writes: 7, rejected: 3, ..bounds },
            _ => Bounds { keys: 1, writes: 7, ..bounds },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Update {
        key: u8,
    },
    /// Reads the document and rows: all, or the first.
    Tick {
        slot: u8,
        rows: Rows,
    },
    Retry {
        slot: u8,
    },
    Redrive {
        slot: u8,
    },
    /// The only thing that a process can do now.
    Continue {
        slot: u8,
    },
    /// The handler of a process accepts or rejects its row.
    Handle {
        slot: u8,
        is_accepted: bool,
    },
    Choose {
        slot: u8,
        key: u8,
    },
    /// Retries or redrives no further key.
    End {
        slot: u8,
    },
    /// The process gets no response to its write of an entry.
    NoResponse {
        slot: u8,
        lands: Lands,
    },
    Crash {
        slot: u8,
    },
    /// The process crashes, and its write of an entry is on its way.
    CrashWriting {
        slot: u8,
    },
    LateWriteArrives,
    PlanDrop {
        key: u8,
    },
    Drop,
    NoteDrop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    All,
    First,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lands {
    Now,
    Later,
}

/// The protocol within bounds, with the real records.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) variant: Variant,
    pub(crate) bounds: Bounds,
    pub(crate) records: Records,
    /// Claims broken by the last step.
    pub(crate) broken: Vec<Claim>,
    /// Events met so far, and in how many steps.
    pub(crate) sights: BTreeMap<Sight, u64>,
    /// Whether a process that runs alone finishes, by what that depends on.
    pub(crate) finishing: BTreeMap<World, bool>,
}

impl Model {
    pub(crate) fn new(variant: Variant, bounds: Bounds) -> Self {
        Self {
            variant,
            bounds,
            records: Records::new(bounds.retries),
            broken: Vec::new(),
            sights: BTreeMap::new(),
            finishing: BTreeMap::new(),
        }
    }

    /// Returns every possible action in `world`.
    pub(crate) fn actions(&self, world: &World) -> Vec<Action> {
        let mut actions = Vec::new();
        let may_fail = world.faults < self.bounds.faults;
        let may_write = world.writes < self.bounds.writes;
        for slot in (0..).take(PROCESSES) {
            let process = world.processes[usize::from(slot)];
            if process.is_idle() {
                if may_write {
                    self.starts(world, slot, &mut actions);
                }
                continue;
            }
            self.continues(&process, slot, may_write, &mut actions);
            if !may_fail {
                continue;
            }
            actions.push(Action::Crash { slot });
            if process.next.writes_entry() && world.late.is_none() {
                let lands = [Lands::Now, Lands::Later];
                actions.extend(lands.map(|lands| Action::NoResponse { slot, lands }));
                actions.push(Action::CrashWriting { slot });
            }
        }
        if world.last_position() < self.bounds.positions {
            actions.extend((0..self.bounds.keys).map(|key| Action::Update { key }));
        }
        if world.late.is_some() {
            actions.push(Action::LateWriteArrives);
        }
        match world.operator {
            Operator::Idle if self.bounds.operator && !world.has_intervened => {
                let keys = (0..).take(KEYS).filter(|key| world.stored(*key).is_some());
                actions.extend(keys.map(|key| Action::PlanDrop { key }));
            }
            Operator::Dropping { .. } => actions.push(Action::Drop),
            Operator::Dropped if may_write => actions.push(Action::NoteDrop),
            Operator::Idle | Operator::Dropped => {}
        }
        actions
    }

    fn starts(&self, world: &World, slot: u8, actions: &mut Vec<Action>) {
        let facts = self.records.facts(world.document);
        let rows = world.table.into_iter().filter(|position| *position > facts.checkpoint).count();
        if rows > 0 {
            actions.push(Action::Tick { slot, rows: Rows::All });
        }
        if rows > 1 {
            actions.push(Action::Tick { slot, rows: Rows::First });
        }
        if facts.has_next_retry && facts.may_have_entries {
            actions.push(Action::Retry { slot });
        }
        if self.bounds.operator && !world.has_intervened && world.listed() > 0 {
            actions.push(Action::Redrive { slot });
        }
    }

    fn continues(&self, process: &Process, slot: u8, may_write: bool, actions: &mut Vec<Action>) {
        match process.next {
            Next::Deliver | Next::Call => {
                actions.push(Action::Handle { slot, is_accepted: true });
                let row = process.loaded.map(|loaded| loaded.row).or(self.row(process));
                if row.is_some_and(|row| self.bounds.rejected & (1 << row.key) != 0) {
                    actions.push(Action::Handle { slot, is_accepted: false });
                }
            }
            Next::ChooseKey => {
                let known = self.records.keys(process.known);
                let keys = if process.task == Task::Redrive { u8::MAX } else { known };
                let left = (0..).take(KEYS).filter(|key| keys & !process.done & (1 << key) != 0);
                actions.extend(left.map(|key| Action::Choose { slot, key }));
                actions.push(Action::End { slot });
            }
            next if next.writes_document() && !may_write => {}
            _ => actions.push(Action::Continue { slot }),
        }
    }

    /// Returns the world after `action`; claims broken by the step are left in `broken`.
    pub(crate) fn step(&mut self, world: &World, action: Action) -> World {
        self.broken.clear();
        let mut next = self.act(world, action);
        self.judge(world, &mut next);
        next
    }

    pub(crate) fn act(&mut self, world: &World, action: Action) -> World {
        let mut next = *world;
        let world = &mut next;
        match action {
            Action::Update { key } => world.table[usize::from(key)] = world.last_position() + 1,
            Action::Tick { slot, rows } => self.start_tick(world, slot, rows),
            Action::Retry { slot } => self.start_retries(world, slot),
            Action::Redrive { slot } => self.start_redrive(world, slot),
            Action::Continue { slot } => self.go_on(world, slot),
            Action::Handle { slot, is_accepted } => self.handle(world, slot, is_accepted),
            Action::Choose { slot, key } => self.choose(world, slot, key),
            Action::End { slot } => self.end_retries(world, slot),
            Action::NoResponse { slot, lands } => self.no_response(world, slot, lands),
            Action::Crash { slot } => self.crash(world, slot),
            Action::CrashWriting { slot } => {
                world.late = self.entry_write(world, slot);
                self.crash(world, slot);
            }
            Action::LateWriteArrives => {
                if let Some(late) = world.late.take() {
                    self.see(Sight::LateWriteArrived);
                    self.land(world, late);
                }
            }
            Action::PlanDrop { key } => {
                world.has_intervened = true;
                world.operator = Operator::Dropping { key, is_current: true };
            }
            Action::Drop => self.drop_entry(world),
            Action::NoteDrop => {
                if let Some(noted) = self.records.change(world.document, DocumentChange::Dropped) {
                    world.store_document(noted);
                }
                world.operator = Operator::Idle;
            }
        }
        next
    }

    // Ticks.

    fn start_tick(&mut self, world: &mut World, slot: u8, rows: Rows) {
        let facts = self.records.facts(world.document);
        let (document, table) = (world.document, world.table);
        meet_rivals(world, slot);
        let process = world.process(slot);
        process.document = document;
        process.is_current = true;
        process.rows = table.map(|position| if position > facts.checkpoint { position } else { 0 });
        if rows == Rows::First {
            let first = process.rows.into_iter().filter(|position| *position > 0).min();
            process.rows =
                process.rows.map(|position| if Some(position) == first { position } else { 0 });
        }
        let read = *process;
        let is_current = !facts.may_have_entries || self.are_current(&read);
        world.process(slot).next = if is_current { Next::Acquire } else { Next::List };
        self.find_parked(world, slot);
    }

    /// Returns the next row that a process delivers.
    fn row(&self, process: &Process) -> Option<Row> {
        let (rows, order) = (process.rows_left(), |row: &Row| row.position);
        match self.variant {
            Variant::LastRowFirst => rows.max_by_key(order),
            _ => rows.min_by_key(order),
        }
    }

    fn are_current(&mut self, process: &Process) -> bool {
        let Process { known, document, .. } = *process;
        match self.variant {
            Variant::KeysWithoutEpoch if self.records.keys(known) != 0 => true,
            Variant::KeysNotCompared => self.records.counts(known, document).is_some(),
            _ => self.records.are_current(known, document),
        }
    }

    /// Takes the rows of known keys out of the fetch.
    fn find_parked(&self, world: &mut World, slot: u8) {
        let process = world.process(slot);
        if self.records.facts(process.document).may_have_entries {
            let rows = (0..).zip(process.rows).filter(|(_, position)| *position > 0);
            let fetched: u8 = rows.map(|(key, _)| 1 << key).sum();
            process.diverted = self.records.keys(process.known) & fetched;
        }
    }

    /// Lists the keys.
    fn list(&mut self, world: &mut World, slot: u8) {
        let keys = world.listed();
        let process = world.process(slot);
        let listed = KnownChange::Listed { document: process.document, keys };
        process.known = self.records.change_known(process.known, listed);
    }

    /// Lets the next write record how many keys are parked.
    fn count(&mut self, world: &mut World, slot: u8) {
        let process = world.process(slot);
        let counted = self.records.counts(process.known, process.document);
        process.counted = counted.or(process.counted);
    }

    fn go_on(&mut self, world: &mut World, slot: u8) {
        let process = *world.process(slot);
        match process.next {
            Next::List => {
                self.list(world, slot);
                self.find_parked(world, slot);
                world.process(slot).next = Next::Acquire;
            }
            Next::Acquire => self.acquire(world, slot),
            Next::Divert => self.divert(world, slot),
            Next::ListForEntry => {
                self.list(world, slot);
                self.count(world, slot);
                world.process(slot).next = Next::Announce;
            }
            Next::Announce => self.announce(world, slot),
            Next::Record => self.record(world, slot),
            Next::Commit(settled) => self.commit(world, slot, settled),
            Next::Release => {
                if self.write_document(world, slot, Write::Release) {
                    if process.task == Task::Retries {
                        let document = world.document;
                        self.learn(world, slot, KnownChange::Followed { document });
                    }
                    end_task(world, slot);
                }
            }
            Next::ListForRetries => {
                self.list(world, slot);
                world.process(slot).next = Next::ChooseKey;
            }
            Next::ListForRelease => {
                let listed = world.listed().count_ones();
                let counted = self.records.counts_of_redrive(process.document, listed);
                let process = world.process(slot);
                process.counted = Some(counted);
                process.next = Next::Release;
            }
            Next::DivertWrite
            | Next::RecordWrite
            | Next::CountRetry
            | Next::QuarantineKey
            | Next::Remove
            | Next::RecordFailure => {
                let Some(write) = self.entry_write(world, slot) else { return };
                let has_landed = self.land(world, write);
                self.entry_written(world, slot, write, has_landed);
            }
            Next::Nothing | Next::Deliver | Next::Call | Next::ChooseKey => {}
        }
    }

    /// Whether a process holds the newest grant.
    pub(crate) fn is_newest(&self, world: &World, slot: u8) -> bool {
        let token = world.processes[usize::from(slot)].token;
        self.records.is_held_by(world.document, token)
    }

    fn acquire(&mut self, world: &mut World, slot: u8) {
        if !world.process(slot).is_current {
            return end_task(world, slot);
        }
        self.take_lease(world, slot, DocumentChange::Acquire);
        let process = world.process(slot);
        if process.token > 0 {
            process.next = if process.diverted == 0 { Next::Deliver } else { Next::Divert };
            let granted = *world.process(slot);
            if !self.are_current(&granted) {
                self.count(world, slot);
            }
        }
    }

    fn take_lease(&mut self, world: &mut World, slot: u8, change: DocumentChange) {
        let Some(granted) = self.records.change(world.document, change) else {
            return end_task(world, slot);
        };
        let before = self.records.facts(world.document);
        if !before.is_released {
            self.see(Sight::TakenOver);
        }
        world.store_document(granted);
        meet_rivals(world, slot);
        let process = world.process(slot);
        process.document = granted;
        process.is_current = true;
        process.token = self.records.facts(granted).token;
    }

    /// Writes the document as the holder of the lease, on top of what others wrote meanwhile. Ends the tick and returns
    /// `false` if the lease is lost.
    fn write_document(&mut self, world: &mut World, slot: u8, write: Write) -> bool {
        let process = *world.process(slot);
        let Process { token, counted, .. } = process;
        let change = DocumentChange::Held { token, write, counted };
        let Some(written) = self.records.change(world.document, change) else {
            self.see(Sight::LeaseLost);
            end_task(world, slot);
            return false;
        };
        world.store_document(written);
        let process = world.process(slot);
        process.document = written;
        process.is_current = true;
        true
    }

    fn divert(&mut self, world: &mut World, slot: u8) {
        let process = *world.process(slot);
        let Some(row) = process.row_to_divert() else { return };
        match world.stored(row.key) {
            None => {
                let known = KnownChange::Forgotten { key: row.key };
                let known = self.records.change_known(process.known, known);
                self.see(Sight::RowPutBack);
                let process = world.process(slot);
                process.known = known;
                process.gone |= 1 << row.key;
                self.diverted(world, slot);
            }
            Some(Stored { entry, .. }) => {
                let of_entry = self.records.entry(entry).row.position;
                if of_entry < row.position {
                    self.see(Sight::LaterVersionDiverted);
                }
                let loaded = Loaded { key: row.key, entry, is_current: true, row };
                world.process(slot).loaded = Some(loaded);
                world.process(slot).next = Next::DivertWrite;
                // The entry has the version already.
                if self.entry_write(world, slot).is_none() {
                    self.row_diverted(world, slot, row.key);
                }
            }
        }
    }

    fn row_diverted(&mut self, world: &mut World, slot: u8, key: u8) {
        world.process(slot).written |= 1 << key;
        self.diverted(world, slot);
    }

    /// Decides what follows a row that was diverted, or whose entry is gone.
    fn diverted(&mut self, world: &mut World, slot: u8) {
        let process = world.process(slot);
        process.loaded = None;
        process.next = Next::Divert;
        if process.row_to_divert().is_some() {
            return;
        }
        if process.gone != 0 {
            if self.variant != Variant::GoneCountsAsDiverted {
                process.diverted &= !process.gone;
            }
            (process.gone, process.written) = (0, 0);
            self.count(world, slot);
        }
        let is_gone_variant = self.variant == Variant::GoneCountsAsDiverted;
        let process = world.process(slot);
        if process.diverted != process.written && !is_gone_variant {
            // The others are diverted again.
            return;
        }
        process.next = if self.row(process).is_none() {
            Next::Commit(Settled::Diverted)
        } else {
            Next::Deliver
        };
    }

    fn announce(&mut self, world: &mut World, slot: u8) {
        let process = *world.process(slot);
        let Some(Loaded { entry, .. }) = process.loaded else { return };
        let is_retried = self.records.entry(entry).is_retrying;
        let is_announced = self.variant == Variant::EntryNotAnnounced
            || self.write_document(world, slot, Write::Announce { is_retried });
        if is_announced {
            world.process(slot).next = Next::Record;
        }
    }

    fn record(&mut self, world: &mut World, slot: u8) {
        let process = *world.process(slot);
        let Some(loaded) = process.loaded else { return };
        let Some(found) = world.stored(loaded.key) else {
            if !self.is_newest(world, slot) {
                self.see(Sight::EntryCreatedLate);
            }
            let created = Stored { entry: loaded.entry, is_relied_on: false };
            world.store_entry(loaded.key, Some(created));
            return self.recorded(world, slot);
        };
        self.see(Sight::EntryFound);
        let joined = EntryChange::Joined { by: loaded.entry };
        if self.records.change_entry(found.entry, joined).is_none() {
            return self.recorded(world, slot);
        }
        let process = world.process(slot);
        process.loaded = Some(Loaded { entry: found.entry, is_current: true, ..loaded });
        process.next = Next::RecordWrite;
    }

    fn recorded(&mut self, world: &mut World, slot: u8) {
        let process = *world.process(slot);
        let Some(Loaded { row, .. }) = process.loaded else { return };
        let entry = self.records.parked(row, process.token);
        let parked = KnownChange::Parked { document: process.document, entry };
        world.process(slot).known = self.records.change_known(process.known, parked);
        self.count(world, slot);
        let process = world.process(slot);
        process.loaded = None;
        process.next = if self.variant == Variant::CheckpointBeforeEntry {
            if self.row(process).is_some() { Next::Deliver } else { Next::Release }
        } else {
            Next::Commit(Settled::Parked)
        };
    }

    fn commit(&mut self, world: &mut World, slot: u8, settled: Settled) {
        let mut after = *world.process(slot);
        let row = self.row(&after);
        after.done |= row.map_or(0, |row| 1 << row.key);
        let has_more = self.row(&after).is_some();
        let is_early = self.variant == Variant::CheckpointBeforeEntry && settled == Settled::Parked;
        let upto = row.filter(|_| has_more).map_or_else(|| after.upto(), |row| row.position);
        let is_last = !has_more && !is_early;
        if !self.write_document(world, slot, Write::Commit { upto, settled, is_last }) {
            return;
        }
        let process = world.process(slot);
        process.done = after.done;
        let parked = row.filter(|_| settled == Settled::Parked).map_or(0, |row| 1 << row.key);
        let passed = (0..).zip(after.rows).filter(|(_, position)| *position <= upto);
        let passed: u8 = passed.map(|(key, _)| 1 << key).sum();
        let is_relied_on = parked | (after.diverted & passed);
        process.next = match (is_early, is_last) {
            (true, _) => Next::Announce,
            (false, false) => Next::Deliver,
            (false, true) => Next::Nothing,
        };
        if is_last {
            end_task(world, slot);
        }
        world.rely_on(is_relied_on);
    }

    // The handler.

    fn handle(&mut self, world: &mut World, slot: u8, is_accepted: bool) {
        let process = *world.process(slot);
        let row = process.loaded.map(|loaded| loaded.row).or(self.row(&process));
        let Some(row) = row else { return };
        if process.token < world.target.token && self.variant != Variant::NoFence {
            self.see(Sight::StaleDeliveryRefused);
            return end_task(world, slot);
        }
        world.target.token = world.target.token.max(process.token);
        if is_accepted {
            self.judge_delivery(world, slot, row);
        }
        match (process.task, is_accepted) {
            (Task::Tick, true) => world.process(slot).next = Next::Commit(Settled::Accepted),
            (Task::Tick, false) => self.park(world, slot, row),
            (Task::Retries | Task::Redrive, true) => {
                let Some(loaded) = process.loaded else { return };
                let is_older = self.records.is_newer_than(loaded.entry, row);
                world.process(slot).next =
                    if is_older { Next::RecordFailure } else { Next::Remove };
            }
            (Task::Retries | Task::Redrive, false) => {
                world.process(slot).next = Next::RecordFailure;
            }
        }
    }

    fn park(&mut self, world: &mut World, slot: u8, row: Row) {
        let process = *world.process(slot);
        let entry = self.records.parked(row, process.token);
        let is_current = self.are_current(&process);
        let process = world.process(slot);
        process.loaded = Some(Loaded { key: row.key, entry, is_current: false, row });
        process.next = match (self.variant, is_current) {
            (Variant::CheckpointBeforeEntry, _) => Next::Commit(Settled::Parked),
            (_, true) => Next::Announce,
            (_, false) => Next::ListForEntry,
        };
    }

    // Retries and redrives.

    fn start_retries(&mut self, world: &mut World, slot: u8) {
        self.take_lease(world, slot, DocumentChange::AcquireForRetries);
        let process = *world.process(slot);
        let followed = KnownChange::Followed { document: process.document };
        let known = self.records.change_known(process.known, followed);
        let process = world.process(slot);
        process.known = known;
        process.task = Task::Retries;
        let granted = *world.process(slot);
        let is_current = self.are_current(&granted);
        world.process(slot).next = if is_current { Next::ChooseKey } else { Next::ListForRetries };
    }

    fn start_redrive(&mut self, world: &mut World, slot: u8) {
        world.has_intervened = true;
        self.take_lease(world, slot, DocumentChange::AcquireForOperator);
        let process = world.process(slot);
        process.task = Task::Redrive;
        process.next = Next::ChooseKey;
    }

    /// Reads the entry of a key and its row.
    fn choose(&mut self, world: &mut World, slot: u8, key: u8) {
        let (stored, row) = (world.stored(key), world.current(key));
        let process = *world.process(slot);
        let is_redrive = process.task == Task::Redrive;
        let Some(Stored { entry, .. }) = stored else {
            if !is_redrive {
                self.learn(world, slot, KnownChange::Forgotten { key });
            }
            world.process(slot).done |= 1 << key;
            return;
        };
        if !is_redrive {
            self.learn(world, slot, KnownChange::Learned { entry });
        }
        let facts = self.records.entry(entry);
        let process = world.process(slot);
        if !is_redrive && !facts.is_retrying {
            process.done |= 1 << key;
            return;
        }
        process.loaded = Some(Loaded { key, entry, is_current: true, row });
        process.next = match (is_redrive, facts.may_be_retried) {
            (true, _) => Next::Call,
            (false, true) => Next::CountRetry,
            (false, false) => Next::QuarantineKey,
        };
    }

    fn learn(&mut self, world: &mut World, slot: u8, change: KnownChange) {
        let known = world.process(slot).known;
        world.process(slot).known = self.records.change_known(known, change);
    }

    fn key_done(world: &mut World, slot: u8) {
        let process = world.process(slot);
        if let Some(loaded) = process.loaded.take() {
            process.done |= 1 << loaded.key;
        }
        process.next = Next::ChooseKey;
    }

    fn end_retries(&mut self, world: &mut World, slot: u8) {
        if world.process(slot).task == Task::Redrive {
            world.process(slot).next = Next::ListForRelease;
            return;
        }
        self.count(world, slot);
        world.process(slot).next = Next::Release;
    }

    // Writes of entries.

    /// Returns the write of an entry that a process makes now; `None` if it has nothing to write.
    fn entry_write(&mut self, world: &World, slot: u8) -> Option<LateWrite> {
        let process = world.processes[usize::from(slot)];
        let Loaded { key, entry, is_current, row } = process.loaded?;
        let (token, variant) = (process.token, self.variant);
        let change = match process.next {
            Next::DivertWrite => {
                let token = if variant == Variant::StaleVersionCounts { u8::MAX } else { token };
                EntryChange::Version { row, token }
            }
            Next::RecordWrite => {
                EntryChange::Joined { by: self.records.parked(row, process.token) }
            }
            Next::CountRetry => EntryChange::Retried,
            Next::QuarantineKey => EntryChange::Quarantined,
            Next::RecordFailure if process.task == Task::Redrive => EntryChange::RefusedAgain,
            Next::RecordFailure => EntryChange::FailedAgain,
            Next::Remove => {
                let is_blind = variant == Variant::RemovalWithoutTag;
                let condition = if is_blind { Condition::None } else { Condition::Tag(is_current) };
                return Some(LateWrite { key, entry: None, condition });
            }
            Next::Record => {
                let condition = Condition::Absent;
                return Some(LateWrite { key, entry: Some(entry), condition });
            }
            _ => return None,
        };
        let entry = self.records.change_entry(entry, change)?;
        let is_blind = variant == Variant::VersionWithoutTag && process.next == Next::DivertWrite;
        let condition = if is_blind { Condition::None } else { Condition::Tag(is_current) };
        Some(LateWrite { key, entry: Some(entry), condition })
    }

    /// Applies a write of an entry, if its condition holds.
    fn land(&mut self, world: &mut World, write: LateWrite) -> bool {
        let LateWrite { key, entry, condition } = write;
        let stored = world.stored(key);
        let holds = match condition {
            Condition::Absent => stored.is_none(),
            Condition::Tag(is_current) => is_current,
            Condition::None => true,
        };
        if !holds {
            self.see(Sight::EntryWriteRefused);
            return false;
        }
        let is_relied_on = stored.is_some_and(|stored| stored.is_relied_on);
        if entry.is_none() {
            self.see(Sight::KeyRecovered);
        }
        world.store_entry(key, entry.map(|entry| Stored { entry, is_relied_on }));
        true
    }

    /// Continues after the response to a write of an entry.
    fn entry_written(&mut self, world: &mut World, slot: u8, write: LateWrite, has_landed: bool) {
        let process = *world.process(slot);
        let Some(loaded) = process.loaded else { return };
        if let (true, Some(entry), Task::Retries) = (has_landed, write.entry, process.task) {
            self.learn(world, slot, KnownChange::Learned { entry });
            if !self.records.entry(entry).is_retrying {
                self.see(Sight::KeyQuarantined);
            }
        }
        match (process.next, has_landed) {
            (Next::DivertWrite, true) => self.row_diverted(world, slot, loaded.key),
            (Next::DivertWrite, false) => {
                let process = world.process(slot);
                process.loaded = None;
                process.next = Next::Divert;
            }
            (Next::RecordWrite, true) => self.recorded(world, slot),
            (Next::RecordWrite, false) => {
                let entry = self.records.parked(loaded.row, process.token);
                let process = world.process(slot);
                process.loaded = Some(Loaded { entry, is_current: false, ..loaded });
                process.next = Next::Record;
            }
            (Next::CountRetry, true) => {
                let entry = write.entry.unwrap_or(loaded.entry);
                let process = world.process(slot);
                process.loaded = Some(Loaded { entry, is_current: true, ..loaded });
                process.next = Next::Call;
            }
            (Next::CountRetry, false) => {
                world.process(slot).loaded = None;
                self.end_retries(world, slot);
            }
            (Next::Remove, true) if process.task == Task::Retries => {
                self.learn(world, slot, KnownChange::Forgotten { key: loaded.key });
                Self::key_done(world, slot);
            }
            _ => {
                if process.task == Task::Redrive && has_landed && write.entry.is_none() {
                    self.see(Sight::KeyRedriven);
                }
                Self::key_done(world, slot);
            }
        }
    }

    /// A process gets no response to the write of an entry, which lands now, or maybe later.
    fn no_response(&mut self, world: &mut World, slot: u8, lands: Lands) {
        world.faults += 1;
        let Some(write) = self.entry_write(world, slot) else { return };
        match lands {
            Lands::Now => {
                self.land(world, write);
            }
            Lands::Later => world.late = Some(write),
        }
        let process = world.process(slot);
        match process.next {
            // The tick fails.
            Next::DivertWrite | Next::Record | Next::RecordWrite => {
                process.loaded = None;
                process.next = Next::Release;
            }
            Next::CountRetry => {
                process.loaded = None;
                self.end_retries(world, slot);
            }
            _ => Self::key_done(world, slot),
        }
    }

    fn crash(&mut self, world: &mut World, slot: u8) {
        world.faults += 1;
        if self.is_newest(world, slot) {
            self.see(Sight::HolderCrashed);
        }
        *world.process(slot) = Process::idle(self.records.nothing_known());
    }

    fn drop_entry(&mut self, world: &mut World) {
        let Operator::Dropping { key, is_current } = world.operator else { return };
        world.operator = Operator::Idle;
        let Some(stored) = world.stored(key).filter(|_| is_current) else { return };
        world.dropped[usize::from(key)] = self.records.entry(stored.entry).row.position;
        world.store_entry(key, None);
        self.see(Sight::EntryDropped);
        world.operator = Operator::Dropped;
    }
}

/// Notes whether another process is at work although this one may take the lease.
fn meet_rivals(world: &mut World, slot: u8) {
    let mut others = (0..).zip(world.processes).filter(|(of, _)| *of != slot);
    let has_rival = others.any(|(_, other)| other.token > 0);
    world.process(slot).has_rival |= has_rival;
}

/// Ends what a process does. It keeps what it knows of keys.
fn end_task(world: &mut World, slot: u8) {
    let known = world.process(slot).known;
    *world.process(slot) = Process::idle(known);
}

impl Next {
    fn writes_entry(self) -> bool {
        matches!(
            self,
            Self::DivertWrite
                | Self::Record
                | Self::RecordWrite
                | Self::CountRetry
                | Self::QuarantineKey
                | Self::Remove
                | Self::RecordFailure
        )
    }

    fn writes_document(self) -> bool {
        matches!(self, Self::Acquire | Self::Announce | Self::Commit(_) | Self::Release)
    }
}
