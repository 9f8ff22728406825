//! The journal: an append-only history from which a state document can be rebuilt.
//!
//! One line per thing that happened; one append per tick, and one per heartbeat interval of a longer
//! tick. A write of the document that is recorded raises its `journal_seq` by one, so the writes of a
//! poller, which compare-and-swap puts in a row, are numbered without gaps; an entry has the number of the
//! write it records, or, if it records none, of the last one before it.
//!
//! The append comes after the write and may fail or never happen: a tick never fails for it. What is
//! missing then is found by its numbers, and the next entry of a write is a snapshot. So a document that is
//! folded from the journal can be behind the true one, which delivers rows again, but never ahead of it,
//! which would skip some.
//!
//! # Why so
//!
//! Entries are put in order by (generation, number) alone. The fencing token adds nothing: compare-and-swap
//! puts all writes of a document in one row, and the number is part of each, so two grants can never have
//! the same one, and a token between generation and number could only disagree with it where somebody
//! raises the token in a write of his own. For the same reason it is not each grant that begins with a
//! snapshot, but each process, each day, and whoever follows a gap: with a grant for each tick that
//! delivers, nearly every append would else hold the whole document, of which its ring is the most and
//! changes the least. A day's part still folds by itself, and no gap outlives the next entry of a write.
//!
//! The rules read no clock and do no I/O; a [`JournalStore`] only appends bytes, and the [`Appender`]
//! judges what its answers mean.

mod appender;
mod changes;
#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
mod entry;
mod fold;
mod history;
mod memory;
mod record;
mod store;
mod verify;

pub use self::appender::Appender;
pub use self::changes::{ApplyError, Changes};
pub use self::entry::{Details, Entry, EventKind, JournalMode, VERSION};
pub use self::fold::{Finding, Folded, fold, read_lines};
pub use self::history::{Filter, History, Line};
pub use self::memory::MemoryJournal;
pub use self::record::{Append, HolderEvent, Numbering, Recorder};
pub use self::store::{Appended, JournalStore, Part, length};
pub use self::verify::{Difference, Verdict, verify};

#[cfg(test)]
mod tests;
