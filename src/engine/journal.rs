//! The journal: an append-only history from which a state document can be rebuilt.
//!
//! There is one line per event. A tick appends once, and a longer tick once per heartbeat interval. A recorded write
//! raises the document's `journal_seq` by one. Compare-and-swap serialises the writes of a poller, so they are
//! numbered without gaps. An entry has the number of the write it records or, if it records none, of the last write
//! before it.
//!
//! The append follows the write and may fail or never happen, without failing the tick. Missing entries are detected
//! by their numbers, and the next entry of a write is a snapshot. So a document folded from the journal may be behind
//! the true one, which redelivers rows, but is never ahead of it, which would skip rows.
//!
//! # Reason
//!
//! Entries are ordered by (generation, number) alone. The fencing token adds nothing: compare-and-swap serialises all
//! writes of a document and each write contains its number, so two grants never share a number. A token between
//! generation and number could only contradict it if a write of an operator raises the token. For the same reason,
//! not every grant starts with a snapshot, but every process, every day, and every writer that follows a gap. With
//! one grant per delivering tick, nearly every append would otherwise contain the whole document, mostly its ring,
//! which changes least. The part of a day still folds by itself, and no gap outlives the next entry of a write.
//!
//! The rules read no clock and do no I/O. A [`JournalStore`] only appends bytes, and the [`Appender`] interprets its
//! answers.

mod appender;
mod changes;
#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
mod days;
mod entry;
mod fold;
mod history;
mod memory;
mod record;
mod store;
mod verify;

pub use self::appender::Appender;
pub use self::changes::{ApplyError, Changes};
pub use self::days::Days;
pub use self::entry::{Details, Entry, EventKind, JournalMode, VERSION};
pub use self::fold::{Finding, FoldResult, fold, read_lines};
pub use self::history::{Filter, History, Line};
pub use self::memory::MemoryJournal;
pub use self::record::{Append, HolderEvent, Numbering, Recorder};
pub use self::store::{Appended, JournalStore, Part, length};
pub use self::verify::{Difference, Verdict, verify};

#[cfg(test)]
mod tests;
