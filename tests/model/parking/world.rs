//! The world: a table, the document, the entries, the processes that change them, an operator, and a fenced target.
//!
//! As in `../world.rs`, a version that is stored is either the current one or one that never returns, so every reader
//! only remembers whether what it has read is still current.

use super::records::{Counted, EntryFacts, KEYS, Number, Records, Row, Settled};

pub(crate) const PROCESSES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct World {
    pub(crate) document: Number,
    pub(crate) entries: [Option<Stored>; KEYS],
    /// The position of the current version of each key; 0 if it has none.
    pub(crate) table: [u8; KEYS],
    pub(crate) processes: [Process; PROCESSES],
    pub(crate) operator: Operator,
    /// A write of an entry that nobody waits for any more.
    pub(crate) late: Option<LateWrite>,
    pub(crate) target: Target,
    /// The last version of each key that an operator dropped.
    pub(crate) dropped: [u8; KEYS],
    /// Documents written.
    pub(crate) writes: u8,
    /// Crashes and lost responses.
    pub(crate) faults: u8,
    /// Whether the operator has dropped or redriven entries.
    pub(crate) has_intervened: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Stored {
    pub(crate) entry: Number,
    /// Whether the checkpoint has passed a row because of it. Otherwise its writer lost the lease before it could commit, and
    /// the row is delivered again: no other process has to know the entry. Known to the witness only.
    pub(crate) is_relied_on: bool,
}

/// The fenced target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Target {
    /// The highest token that it has seen.
    pub(crate) token: u8,
    /// The newest version of each key that it has accepted, and the last one.
    pub(crate) newest: [u8; KEYS],
    pub(crate) last: [u8; KEYS],
    /// The last row that it has accepted in the order of the table.
    pub(crate) regular: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Operator {
    Idle,
    /// Has read the entry of a key, to drop it.
    Dropping {
        key: u8,
        is_current: bool,
    },
    /// Has removed it, and not written so to the document yet.
    Dropped,
}

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Next {
    Nothing,
    /// A tick without a lease: lists the keys.
    List,
    Acquire,
    /// A tick with a lease: reads the entry of a row to divert, then writes it.
    Divert,
    DivertWrite,
    Deliver,
    ListForEntry,
    Announce,
    /// Creates the entry of a row, or reads the one that is there, then writes it.
    Record,
    RecordWrite,
    Commit(Settled),
    /// Releases the lease.
    Release,
    /// A retry or a redrive.
    ListForRetries,
    ChooseKey,
    CountRetry,
    QuarantineKey,
    Call,
    Remove,
    /// Writes the entry of a retry that does not count.
    RecordFailure,
    ListForRelease,
}

/// Why a process holds the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Task {
    Tick,
    Retries,
    Redrive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Process {
    /// What it knows of parked keys, which it keeps between ticks.
    pub(crate) known: Number,
    pub(crate) next: Next,
    pub(crate) task: Task,
    /// The document as it was last read or written, and whether that is still the stored one.
    pub(crate) document: Number,
    pub(crate) is_current: bool,
    pub(crate) token: u8,
    /// Whether a process with an earlier grant was still at work when this one read its rows, or got the lease. Known to the
    /// witness only.
    pub(crate) has_rival: bool,
    /// The position of each key in its fetch; 0 if it has none.
    pub(crate) rows: [u8; KEYS],
    /// Keys to divert, those whose entries have the row, and those without an entry; one bit each.
    pub(crate) diverted: u8,
    pub(crate) written: u8,
    pub(crate) gone: u8,
    /// Keys whose rows are committed, or that were retried.
    pub(crate) done: u8,
    /// Goes into every write of the document.
    pub(crate) counted: Option<Counted>,
    /// The entry that it works on, as it was last read or written.
    pub(crate) loaded: Option<Loaded>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Loaded {
    pub(crate) key: u8,
    pub(crate) entry: Number,
    pub(crate) is_current: bool,
    /// The row to deliver or to record.
    pub(crate) row: Row,
}

/// A conditional write of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LateWrite {
    pub(crate) key: u8,
    /// The entry; `None` removes it.
    pub(crate) entry: Option<Number>,
    pub(crate) condition: Condition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Condition {
    Absent,
    /// The tag that was read; `true` while it is the stored one.
    Tag(bool),
    /// For variants.
    None,
}

impl Process {
    pub(crate) fn idle(known: Number) -> Self {
        Self {
            known,
            next: Next::Nothing,
            task: Task::Tick,
            document: 0,
            is_current: false,
            token: 0,
            has_rival: false,
            rows: [0; KEYS],
            diverted: 0,
            written: 0,
            gone: 0,
            done: 0,
            counted: None,
            loaded: None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.next == Next::Nothing
    }

    /// Returns the rows that are left to deliver.
    pub(crate) fn rows_left(&self) -> impl Iterator<Item = Row> {
        let out = self.diverted | self.done;
        let rows = (0..).zip(self.rows);
        let rows = rows.filter(move |(key, position)| *position > 0 && out & (1 << key) == 0);
        rows.map(|(key, position)| Row { key, position })
    }

    /// Returns the next row to divert.
    pub(crate) fn row_to_divert(&self) -> Option<Row> {
        let left = self.diverted & !self.written & !self.gone;
        let key = (0..).take(KEYS).find(|key| left & (1 << key) != 0)?;
        Some(Row { key, position: self.rows[usize::from(key)] })
    }

    /// Returns the position of the last row of the fetch.
    pub(crate) fn upto(&self) -> u8 {
        self.rows.into_iter().max().unwrap_or(0)
    }
}

impl World {
    /// Returns a world with one row for each of so many keys, in which nothing has happened.
    pub(crate) fn new(records: &mut Records, keys: u8) -> Self {
        let idle = Process::idle(records.nothing_known());
        Self {
            document: records.first_document(),
            entries: [None; KEYS],
            table: [1, 2, 3].map(|position| if position > keys { 0 } else { position }),
            processes: [idle; PROCESSES],
            operator: Operator::Idle,
            late: None,
            target: Target::default(),
            dropped: [0; KEYS],
            writes: 0,
            faults: 0,
            has_intervened: false,
        }
    }

    pub(crate) fn process(&mut self, slot: u8) -> &mut Process {
        &mut self.processes[usize::from(slot)]
    }

    pub(crate) fn stored(&self, key: u8) -> Option<Stored> {
        self.entries[usize::from(key)]
    }

    /// Returns the keys with an entry, one bit each.
    pub(crate) fn listed(&self) -> u8 {
        (0..).zip(self.entries).filter(|(_, entry)| entry.is_some()).map(|(key, _)| 1 << key).sum()
    }

    /// Returns the current version of a key.
    pub(crate) fn current(&self, key: u8) -> Row {
        Row { key, position: self.table[usize::from(key)] }
    }

    pub(crate) fn last_position(&self) -> u8 {
        self.table.into_iter().max().unwrap_or(0)
    }

    /// Stores a document. What others have read of it is out of date.
    pub(crate) fn store_document(&mut self, document: Number) {
        self.document = document;
        self.writes += 1;
        for process in &mut self.processes {
            process.is_current = false;
        }
    }

    /// Notes that the checkpoint has passed rows of these keys, one bit each, because their entries have them.
    pub(crate) fn rely_on(&mut self, keys: u8) {
        for (key, stored) in (0..).zip(&mut self.entries) {
            if let Some(stored) = stored {
                stored.is_relied_on |= keys & (1 << key) != 0;
            }
        }
    }

    /// Stores or removes the entry of a key. What others have read of it is out of date.
    pub(crate) fn store_entry(&mut self, key: u8, stored: Option<Stored>) {
        self.entries[usize::from(key)] = stored;
        for loaded in self.processes.iter_mut().filter_map(|process| process.loaded.as_mut()) {
            loaded.is_current &= loaded.key != key;
        }
        if let Operator::Dropping { key: of, is_current } = &mut self.operator {
            *is_current &= *of != key;
        }
        if let Some(LateWrite { key: of, condition: Condition::Tag(is_current), .. }) =
            &mut self.late
        {
            *is_current &= *of != key;
        }
    }

    /// Returns the representative of all worlds that differ only in which process is which.
    pub(crate) fn canonical(mut self) -> Self {
        self.processes.sort_unstable();
        self
    }

    /// Returns the entries that every process has to know.
    pub(crate) fn entries_relied_on<'a>(
        &self,
        records: &'a Records,
    ) -> impl Iterator<Item = EntryFacts> + use<'a> {
        let known = self.entries.into_iter().flatten().filter(|stored| stored.is_relied_on);
        known.map(|stored| records.entry(stored.entry))
    }
}
