//! From what a tick does to lines of the journal.

use time::{Date, OffsetDateTime};

use super::{Changes, Details, Entry, Happened, JournalMode, VERSION};
use crate::state::{Holder, StateDocument};

/// Lines that are to be appended together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// The day whose part of the journal they belong to; storage time, UTC.
    pub day: Date,
    /// The lines.
    pub bytes: Vec<u8>,
    /// How many.
    pub entries: usize,
}

/// How a write is numbered, as part of the write itself.
#[derive(Clone, Copy, Debug)]
pub struct Numbering {
    mode: JournalMode,
    told: bool,
}

impl Numbering {
    /// Numbers a write of this kind, where such are recorded, and notes that the journal has entries where
    /// this process has appended some.
    pub fn number(self, event: Happened, document: &mut StateDocument) {
        if self.mode.number(event, document) {
            document.journal_told |= self.told;
        }
    }
}

/// Collects what one process does with one poller until it is appended.
///
/// Its first entry of a day is a snapshot, and so is one that follows another writer or an append that
/// failed: every day's part can be folded by itself, and no gap outlives the next entry.
#[derive(Debug)]
pub struct Recorder {
    mode: JournalMode,
    /// The document as it was recorded last, and for which day.
    recorded: Option<Box<(StateDocument, Date)>>,
    pending: Option<Append>,
    /// Whether an append was taken.
    told: bool,
}

/// Something that a holder did or found.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// What.
    pub event: Happened,
    /// When; storage time.
    pub at: OffsetDateTime,
    /// Who.
    pub holder: &'a Holder,
    /// The document as it was read or written last.
    pub document: &'a StateDocument,
    /// About the batch.
    pub details: Details,
}

impl Recorder {
    /// Returns a recorder that knows of no entry yet.
    pub fn new(mode: JournalMode) -> Self {
        Self { mode, recorded: None, pending: None, told: false }
    }

    /// Returns how much is recorded.
    pub fn mode(&self) -> JournalMode {
        self.mode
    }

    /// Returns how writes are numbered from now on.
    pub fn numbering(&self) -> Numbering {
        Numbering { mode: self.mode, told: self.told }
    }

    /// Adds an entry to what will be appended, where the mode records such.
    pub fn record(&mut self, seen: Seen<'_>) {
        if !self.mode.records(seen.event) {
            return;
        }
        let Seen { event, at, holder, document, details } = seen;
        let day = self.pending(at).day;
        // A lost answer may have been found landed under a newer grant: that document is not ours to tell.
        // A note is told of by who wrote it, who holds nothing where the tick was idle.
        let is_ours = event == Happened::Noted || document.is_held_by(holder);
        let wrote = event.writes() && is_ours;
        let mut entry = Entry {
            version: VERSION,
            seq: document.journal_seq,
            at,
            event,
            poller_name: document.poller_name.clone(),
            owner_id: Some(holder.owner_id.clone()),
            generation: holder.generation,
            fencing_token: holder.token,
            write_id: wrote.then(|| document.write_id.clone()),
            details,
            changes: None,
            document: None,
        };
        if wrote {
            match self.recorded.as_deref() {
                Some((base, of_day)) if *of_day == day && follows(base, document) => {
                    entry.changes = Some(Changes::between(base, document));
                }
                Some(_) | None => entry.document = Some(Box::new(document.clone())),
            }
            self.recorded = Some(Box::new((document.clone(), day)));
        }
        let pending = self.pending(at);
        entry.write_to(&mut pending.bytes);
        pending.entries += 1;
    }

    /// Adds an entry of an operator's; it is a snapshot, so what follows builds on it.
    pub fn record_entry(&mut self, entry: &Entry) {
        if !self.mode.records(entry.event) {
            return;
        }
        let pending = self.pending(entry.at);
        entry.write_to(&mut pending.bytes);
        pending.entries += 1;
        let day = pending.day;
        self.recorded = entry.document.as_deref().map(|document| Box::new((document.clone(), day)));
    }

    fn pending(&mut self, at: OffsetDateTime) -> &mut Append {
        self.pending.get_or_insert_with(|| Append {
            day: at.to_offset(time::UtcOffset::UTC).date(),
            bytes: Vec::new(),
            entries: 0,
        })
    }

    /// Returns what is to be appended now, if anything.
    pub fn take(&mut self) -> Option<Append> {
        self.pending.take()
    }

    /// Notes that an append was taken.
    pub fn told(&mut self) {
        self.told = true;
    }

    /// Notes that an append failed, or may have: the next entry is a snapshot.
    pub fn lost(&mut self) {
        self.recorded = None;
    }
}

/// Whether `next` is the very next recorded write after `base`.
fn follows(base: &StateDocument, next: &StateDocument) -> bool {
    base.generation == next.generation && base.journal_seq.checked_add(1) == Some(next.journal_seq)
}
