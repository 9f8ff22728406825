//! Turns the actions of a tick into lines of the journal.

use time::{Date, OffsetDateTime};

use super::{Changes, Details, Entry, EventKind, JournalMode, VERSION};
use crate::document::{Holder, StateDocument};

/// Lines to append together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// The day whose part of the journal they belong to; storage time, UTC.
    pub day: Date,
    /// The lines.
    pub bytes: Vec<u8>,
    /// The number of lines.
    pub entries: usize,
}

/// How a write is numbered, as part of the write itself.
#[derive(Clone, Copy, Debug)]
pub struct Numbering {
    mode: JournalMode,
    recorded_before: bool,
}

impl Numbering {
    /// Numbers a write of this kind, if it is recorded, and marks in the document that the journal has entries of
    /// writes, if this process has appended some.
    pub fn number(self, event: EventKind, document: &mut StateDocument) {
        if self.mode.number(event, document) {
            document.journal_told |= self.recorded_before;
        }
    }
}

/// Collects entries of one process and one poller until they are appended.
///
/// Its first entry of a day is a snapshot, and so is an entry that follows another writer or a failed append. So the
/// part of every day can be folded by itself, and no gap outlives the next entry of a write.
///
/// Entries are also recorded while an append is in progress. They build on entries whose outcome is unknown; if that
/// append fails, [`Self::lost`] detaches them.
#[derive(Debug)]
pub struct Recorder {
    mode: JournalMode,
    /// The last recorded document, and its day.
    recorded: Option<Box<(StateDocument, Date)>>,
    pending: Option<Pending>,
    /// Whether an append with unknown outcome is in progress.
    is_appending: bool,
    /// Whether the append in progress has an entry of a write.
    appends_write: bool,
    /// Whether an append with an entry of a write has succeeded. Notes alone do not lead to a document.
    recorded_before: bool,
}

/// Entries for the next append.
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
    /// The document as last read or written.
    pub document: &'a StateDocument,
    /// Details of the batch.
    pub details: Details,
}

impl Recorder {
    /// Returns a recorder without a known entry.
    pub fn new(mode: JournalMode) -> Self {
        Self {
            mode,
            recorded: None,
            pending: None,
            is_appending: false,
            appends_write: false,
            recorded_before: false,
        }
    }

    /// Returns how much is recorded.
    pub fn mode(&self) -> JournalMode {
        self.mode
    }

    /// Returns how writes are numbered from now on.
    pub fn numbering(&self) -> Numbering {
        Numbering { mode: self.mode, recorded_before: self.recorded_before }
    }

    /// Adds an entry for the next append, if the mode records its kind.
    pub fn record(&mut self, seen: HolderEvent<'_>) {
        if !self.mode.records(seen.event) {
            return;
        }
        let HolderEvent { event, at, holder, document, details } = seen;
        let day = self.pending(at).day;
        // After a lost response, the write may have been found under a newer grant: that document is not ours to
        // record. Notes are recorded by their writer, which holds no lease in an idle tick.
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

    /// Adds an operator's entry; it is a snapshot, so later entries build on it.
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

    /// Returns what to append now, if anything; call [`Self::mark_recorded`] or [`Self::lost`] afterwards.
    pub fn take(&mut self) -> Option<Append> {
        if self.is_appending {
            // The previous append was dropped before it finished.
            self.lost();
        }
        let Pending { day, entries } = self.pending.take()?;
        self.is_appending = true;
        self.appends_write = entries.iter().any(Entry::wrote);
        let mut bytes = Vec::new();
        for entry in &entries {
            entry.write_to(&mut bytes);
        }
        Some(Append { day, bytes, entries: entries.len() })
    }

    /// Records that an append succeeded.
    pub fn mark_recorded(&mut self) {
        self.is_appending = false;
        self.recorded_before |= self.appends_write;
    }

    /// Records that an append failed, or may have.
    ///
    /// The next entry of a write is a snapshot. Changes of writes recorded since can no longer be applied, so they
    /// are dropped, and the last write becomes that snapshot.
    pub fn lost(&mut self) {
        self.is_appending = false;
        let entries = self.pending.iter_mut().flat_map(|pending| &mut pending.entries);
        let mut last = None;
        for entry in entries {
            if entry.document.is_some() {
                // From here on they build on their own snapshot.
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

/// Whether `next` is the recorded write immediately after `base`.
fn follows(base: &StateDocument, next: &StateDocument) -> bool {
    base.generation == next.generation && base.journal_seq.checked_add(1) == Some(next.journal_seq)
}
