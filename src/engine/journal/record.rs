//! From what a tick does to lines of the journal.

use time::{Date, OffsetDateTime};

use super::{Changes, Details, Entry, EventKind, JournalMode, VERSION};
use crate::document::{Holder, StateDocument};

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
    recorded_before: bool,
}

impl Numbering {
    /// Numbers a write of this kind, where such are recorded, and notes that the journal has entries where
    /// this process has appended some.
    pub fn number(self, event: EventKind, document: &mut StateDocument) {
        if self.mode.number(event, document) {
            document.journal_told |= self.recorded_before;
        }
    }
}

/// Collects what one process does with one poller until it is appended.
///
/// Its first entry of a day is a snapshot, and so is one that follows another writer or an append that
/// failed: every day's part can be folded by itself, and no gap outlives the next entry of a write.
///
/// Entries are recorded while an append is in progress, too. They build on entries whose end is not
/// known yet; [`Self::lost`] cuts them loose where that append fails.
#[derive(Debug)]
pub struct Recorder {
    mode: JournalMode,
    /// The document as it was recorded last, and for which day.
    recorded: Option<Box<(StateDocument, Date)>>,
    pending: Option<Pending>,
    /// Whether entries were taken to be appended, and how that ended is not known.
    is_appending: bool,
    /// Whether an append was taken.
    recorded_before: bool,
}

/// Entries that wait for the next append.
#[derive(Debug)]
struct Pending {
    day: Date,
    entries: Vec<Entry>,
}

/// Something that a holder did or found.
#[derive(Clone, Debug)]
pub struct HolderEvent<'a> {
    /// What.
    pub event: EventKind,
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
        Self { mode, recorded: None, pending: None, is_appending: false, recorded_before: false }
    }

    /// Returns how much is recorded.
    pub fn mode(&self) -> JournalMode {
        self.mode
    }

    /// Returns how writes are numbered from now on.
    pub fn numbering(&self) -> Numbering {
        Numbering { mode: self.mode, recorded_before: self.recorded_before }
    }

    /// Adds an entry to what will be appended, where the mode records such.
    pub fn record(&mut self, seen: HolderEvent<'_>) {
        if !self.mode.records(seen.event) {
            return;
        }
        let HolderEvent { event, at, holder, document, details } = seen;
        let day = self.pending(at).day;
        // A lost answer may have been found landed under a newer grant: that document is not ours to record.
        // A note is told of by who wrote it, who holds nothing where the tick was idle.
        let is_ours = event.needs_no_lease() || document.is_held_by(holder);
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
        self.pending(at).entries.push(entry);
    }

    /// Adds an entry of an operator's; it is a snapshot, so what follows builds on it.
    pub fn record_entry(&mut self, entry: &Entry) {
        if !self.mode.records(entry.event) {
            return;
        }
        let pending = self.pending(entry.at);
        pending.entries.push(entry.clone());
        let day = pending.day;
        self.recorded = entry.document.as_deref().map(|document| Box::new((document.clone(), day)));
    }

    fn pending(&mut self, at: OffsetDateTime) -> &mut Pending {
        self.pending.get_or_insert_with(|| Pending {
            day: at.to_offset(time::UtcOffset::UTC).date(),
            entries: Vec::new(),
        })
    }

    /// Returns what is to be appended now, if anything; [`Self::recorded_before`] or [`Self::lost`] has to follow.
    pub fn take(&mut self) -> Option<Append> {
        if self.is_appending {
            // Whoever appended was dropped before the append ended.
            self.lost();
        }
        let Pending { day, entries } = self.pending.take()?;
        self.is_appending = true;
        let mut bytes = Vec::new();
        for entry in &entries {
            entry.write_to(&mut bytes);
        }
        Some(Append { day, bytes, entries: entries.len() })
    }

    /// Notes that an append was taken.
    pub fn mark_recorded(&mut self) {
        self.is_appending = false;
        self.recorded_before = true;
    }

    /// Notes that an append failed, or may have.
    ///
    /// The next entry of a write is a snapshot. Where writes were recorded since, their changes cannot be
    /// applied any more and are dropped, and the last one becomes that snapshot.
    pub fn lost(&mut self) {
        self.is_appending = false;
        let entries = self.pending.iter_mut().flat_map(|pending| &mut pending.entries);
        let mut last = None;
        for entry in entries {
            if entry.document.is_some() {
                // From here on they build on a snapshot of their own.
                return;
            }
            if entry.changes.take().is_some() {
                last = Some(entry);
            }
        }
        match (last, self.recorded.as_deref()) {
            (Some(entry), Some((document, _))) => entry.document = Some(Box::new(document.clone())),
            (Some(_) | None, _) => self.recorded = None,
        }
    }
}

/// Whether `next` is the very next recorded write after `base`.
fn follows(base: &StateDocument, next: &StateDocument) -> bool {
    base.generation == next.generation && base.journal_seq.checked_add(1) == Some(next.journal_seq)
}
