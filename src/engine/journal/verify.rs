//! Compares a history with a document.

use std::fmt;

use serde_json::Value as Json;

use super::{FoldResult, JournalMode};
use crate::document::{Generation, StateDocument};

/// Result of comparing a journal with a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// They agree.
    Agrees,
    /// The document has had writes without an entry: an append failed, or the process crashed before it.
    Behind {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// The document was recreated, and no entry records that yet.
    RestartedHistory {
        /// Generation of the document.
        generation: Generation,
    },
    /// The journal records writes that the document does not have: an old copy replaced it.
    DocumentIsOlder {
        /// Number of the document's last write.
        document: u64,
        /// Number of the journal's last write.
        journal: u64,
    },
    /// Same history, different state: another writer wrote, or something is broken.
    Differs(Difference),
    /// The journal records no write yet: the first append failed, a crash came before it, or nothing that the journal
    /// records has happened.
    NotBegun {
        /// Number of the document's last write; 0 if it has none.
        writes: u64,
    },
    /// The journal has no entries, although it is known to have had some.
    Removed {
        /// Number of the document's last write.
        writes: u64,
    },
    /// There is no document, but the journal has one.
    NoDocument,
    /// The journal has lines, but no snapshot to start with; or there is no document either.
    NoHistory,
}

/// The first place where two documents differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// JSON pointer to it.
    pub pointer: String,
    /// The value according to the history.
    pub journal: Json,
    /// The value in the document.
    pub document: Json,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pointer, journal, document } = self;
        write!(formatter, "`{pointer}` is {document}, the journal leads to {journal}")
    }
}

impl Verdict {
    /// Whether the difference, if any, can result from a crash or a failed append.
    pub fn is_explained(&self) -> bool {
        matches!(
            self,
            Self::Agrees
                | Self::Behind { .. }
                | Self::RestartedHistory { .. }
                | Self::NotBegun { .. }
        )
    }
}

/// Changed without an entry: by renewals and by idle status writes. Any other change in such a write gives it a
/// number and an entry; otherwise a healthy poller would look as if another writer had written.
const UNRECORDED: &[&str] = &[
    "/write_id",
    "/source_definition",
    "/observed",
    "/last_success_at",
    "/last_failure",
    // Documents of earlier versions have none, but it follows from the ticks in their journals.
    "/activity",
    "/lease/heartbeat_at",
    "/lease/expires_at",
    "/lease/idle_before_seconds",
    "/lease/idle_before_nanos",
];

/// Changed without an entry if only commits are recorded.
const UNRECORDED_BESIDE_COMMITS: &[&str] = &[
    "/lease",
    "/in_flight",
    "/recent",
    "/timings",
    "/marked",
    "/source_state",
    "/audit",
    "/parked",
    "/requires",
];

/// Compares the result of a journal of this mode with the current document.
pub fn verify(mode: JournalMode, folded: &FoldResult, document: Option<&StateDocument>) -> Verdict {
    let Some(history) = &folded.document else {
        return match document.filter(|_| folded.findings.is_empty()) {
            Some(StateDocument { journal_told: true, journal_seq, .. }) => {
                Verdict::Removed { writes: *journal_seq }
            }
            Some(document) => Verdict::NotBegun { writes: document.journal_seq },
            None => Verdict::NoHistory,
        };
    };
    let Some(document) = document else { return Verdict::NoDocument };
    if document.generation > history.generation {
        return Verdict::RestartedHistory { generation: document.generation };
    }
    let place = |document: &StateDocument| (document.generation, document.journal_seq);
    if place(document) < place(history) {
        let (document, journal) = (document.journal_seq, history.journal_seq);
        return Verdict::DocumentIsOlder { document, journal };
    }
    if document.journal_seq > history.journal_seq {
        return Verdict::Behind { from: history.journal_seq + 1, to: document.journal_seq };
    }
    let [left, right] = [history, document]
        .map(|document| serde_json::to_value(document).expect("a document has only string keys"));
    let is_unrecorded = |pointer: &str| {
        UNRECORDED.contains(&pointer)
            || (mode == JournalMode::Commits && UNRECORDED_BESIDE_COMMITS.contains(&pointer))
    };
    match difference(String::new(), &left, &right, &is_unrecorded) {
        Some(difference) => Verdict::Differs(difference),
        None => Verdict::Agrees,
    }
}

/// Returns the first difference between `journal` and `document`, in the order of names.
fn difference(
    pointer: String,
    journal: &Json,
    document: &Json,
    is_unrecorded: &impl Fn(&str) -> bool,
) -> Option<Difference> {
    if journal == document || is_unrecorded(&pointer) {
        return None;
    }
    if let (Json::Object(left), Json::Object(right)) = (journal, document) {
        let names: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
        return names.into_iter().find_map(|name| {
            let below = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
            let side = |side: &serde_json::Map<String, Json>| {
                side.get(name).cloned().unwrap_or(Json::Null)
            };
            difference(below, &side(left), &side(right), is_unrecorded)
        });
    }
    Some(Difference { pointer, journal: journal.clone(), document: document.clone() })
}
