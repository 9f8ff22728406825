//! Folds lines of the journal into the document as of the last line.

use std::fmt;

use super::history::read_part;
use super::{Entry, EventKind, History};
use crate::document::{Generation, StateDocument};

/// A problem of a history; folding continues after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A line that cannot be read, usually the last line of a file that a crash truncated.
    Unreadable {
        /// Its location.
        part: String,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Writes without an entry: an append failed, or the process crashed before it.
    Missing {
        /// Generation of the document.
        generation: Generation,
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// An entry that builds on a missing one; the next snapshot resolves this.
    Unreachable {
        /// Generation of the document.
        generation: Generation,
        /// Its number.
        seq: u64,
    },
    /// Two writes with the same number: two documents, or a document that an operator restored.
    Forked {
        /// Generation of the document.
        generation: Generation,
        /// Their number.
        seq: u64,
        /// Id of the write that was not used.
        write_id: String,
    },
    /// A write that decreased a value that only grows.
    WentBack {
        /// Generation of the document.
        generation: Generation,
        /// Its number.
        seq: u64,
        /// What decreased.
        what: &'static str,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { part, line, reason } => {
                write!(formatter, "line {line} of `{part}` cannot be read: {reason}")
            }
            Self::Missing { generation, from, to } if from == to => {
                write!(formatter, "write {from} of generation {generation} has no entry")
            }
            Self::Missing { generation, from, to } => {
                write!(
                    formatter,
                    "writes {from} to {to} of generation {generation} have no entries"
                )
            }
            Self::Unreachable { generation, seq } => write!(
                formatter,
                "entry {seq} of generation {generation} builds on one that is missing"
            ),
            Self::Forked { generation, seq, write_id } => write!(
                formatter,
                "entry {seq} of generation {generation} exists twice; `{write_id}` was not used"
            ),
            Self::WentBack { generation, seq, what } => {
                write!(formatter, "entry {seq} of generation {generation} moves the {what} back")
            }
        }
    }
}

/// The document as of the last entry, and the problems of the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoldResult {
    /// The document; `None` if there is no snapshot.
    pub document: Option<StateDocument>,
    /// Id of the last write.
    write_id: Option<String>,
    /// The problems, in the order of the history.
    pub findings: Vec<Finding>,
}

/// Reads the lines of `part`; unreadable lines are reported and skipped.
pub fn read_lines(part: &str, bytes: &[u8]) -> (Vec<Entry>, Vec<Finding>) {
    let history = History { lines: read_part(part, bytes), parts: Vec::new() };
    let findings = history.unreadable().collect();
    (history.lines.into_iter().filter_map(|line| line.entry.ok()).collect(), findings)
}

/// Returns the document as of the last of `entries`, which may come in any order.
///
/// It is as old as the last entry that can be reached from a snapshot: never ahead of the true document, but
/// possibly behind it.
pub fn fold(mut entries: Vec<Entry>) -> FoldResult {
    entries.retain(Entry::wrote);
    entries.sort_by_key(Entry::place);
    let compacted = |entry: &Entry| entry.event == EventKind::Compacted && entry.document.is_some();
    if let Some(begin) = entries.iter().rposition(compacted) {
        // Late appends of a history that was dropped.
        entries.drain(..begin);
    }
    let mut folded = FoldResult::default();
    for entry in entries {
        folded.add(entry);
    }
    folded
}

impl FoldResult {
    fn add(&mut self, entry: Entry) {
        let (generation, seq) = entry.place();
        let place = self.document.as_ref().map(|last| (last.generation, last.journal_seq));
        if place == Some((generation, seq)) {
            // An append that was retried wrote the same line twice.
            if entry.write_id != self.write_id {
                let write_id = entry.write_id.unwrap_or_default();
                self.findings.push(Finding::Forked { generation, seq, write_id });
            }
            return;
        }
        let follows = place == Some((generation, seq.saturating_sub(1)));
        if let Some((last_generation, last_seq)) = place
            && last_generation == generation
            && !follows
        {
            let (from, to) = (last_seq + 1, seq.saturating_sub(1));
            // An unreachable entry was already reported.
            if !matches!(self.findings.last(), Some(Finding::Unreachable { seq: reported, .. }) if *reported == to)
            {
                self.findings.push(Finding::Missing { generation, from, to });
            }
        }
        let next = match (entry.document, &self.document, entry.changes) {
            (Some(document), _, _) => Some(*document),
            (None, Some(last), Some(changes)) if follows => changes.apply(last).ok(),
            (None, _, _) => None,
        };
        // The number is part of the entry: a different one would combine two histories.
        let Some(next) =
            next.filter(|next| (next.generation, next.journal_seq) == (generation, seq))
        else {
            self.findings.push(Finding::Unreachable { generation, seq });
            return;
        };
        if let Some(last) = self.document.as_ref().filter(|last| last.generation == generation) {
            let what = if next.lease.fencing_token < last.lease.fencing_token {
                Some("fencing token")
            } else if !entry.event.may_move_back() && is_back(last, &next) {
                Some("checkpoint")
            } else {
                None
            };
            if let Some(what) = what {
                self.findings.push(Finding::WentBack { generation, seq, what });
            }
        }
        self.document = Some(next);
        self.write_id = entry.write_id;
    }
}

/// Whether the checkpoint of `next` is before that of `last`.
fn is_back(last: &StateDocument, next: &StateDocument) -> bool {
    match (&last.checkpoint.cursor, &next.checkpoint.cursor) {
        (Some(last), Some(next)) => next.compare_leading(last) == Some(std::cmp::Ordering::Less),
        (Some(_), None) => true,
        (None, _) => false,
    }
}
