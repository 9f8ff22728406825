//! Why a row was or was not delivered: `highwater trace`.
//!
//! [`explain`] is pure: it turns [`Facts`] into an [`Explanation`]. [`StatusReader::trace`] gathers the facts, in one
//! read of the store and two requests to the source, with few exceptions. The store is read again only where that decides the
//! answer: for the entry of the key if any key is parked, for the marker of a poller without a document, and
//! once for each day of a journal.
//!
//! # Order
//!
//! Reasons that lie in the row come first: whatever the poller does, it does not deliver a row that is filtered out.
//! Then comes what has already happened to the row, then what stops the poller, and last what the row waits for. The
//! first reason is the verdict, and the others follow in [`Explanation::also`].
//!
//! [`StatusReader::trace`]: crate::status::StatusReader::trace

mod deliveries;
mod gather;
mod key;
mod reasons;

use serde::Serialize;
use time::{Date, OffsetDateTime};

pub use self::deliveries::{Delivery, Doubt, JournalFacts, Move};
pub use self::gather::{SEARCH_DAYS, TraceError, TraceRequest};
pub use self::key::{key_text, parse_key};
use self::reasons::Case;
use crate::cursor::{Cursor, CursorMode, KeyId, KeyValues};
use crate::document::StateDocument;
use crate::quarantine::EntryState;
use crate::source::{Predicate, RowReport, Session};
use crate::status::health::Health;

/// Everything known about a row and its poller.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Name of the poller.
    pub poller: &'a str,
    /// The key, as written by a person.
    pub key: &'a KeyValues,
    /// How the source orders its rows.
    pub mode: CursorMode,
    /// What the source knows about the row.
    pub row: &'a RowReport,
    /// The state document; `None` if there is none.
    pub document: Option<&'a StateDocument>,
    /// Whether the document belongs to the source of the settings.
    pub is_same_source: bool,
    /// The state of the poller.
    pub health: &'a Health,
    /// The next tick, if known.
    pub next_tick_at: Option<OffsetDateTime>,
    /// The entry of the row's key, if it holds the row back.
    pub parked: Option<ParkedKey>,
    /// Whether the key may have been parked when the checkpoint moved past the row.
    pub may_have_parked: bool,
    /// What the journal says.
    pub journal: JournalFacts,
}

/// The entry of a parked key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParkedKey {
    /// Id of the key.
    pub key_id: KeyId,
    /// Whether it is retried automatically.
    pub state: EntryState,
    /// Why it was parked.
    pub reason: &'static str,
    /// Since when; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// Automatic retries so far.
    pub retries: u32,
    /// When the next one is due; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub next_retry_at: Option<OffsetDateTime>,
    /// Counted attempts.
    pub attempts: u32,
    /// The last error.
    pub error: String,
    /// Whether later versions of the row wait with it, so that no batch delivers them.
    #[serde(skip)]
    pub is_held: bool,
    /// Whether the parked version is a delete.
    #[serde(skip)]
    pub is_delete: bool,
}

/// What became of a row, or why it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Another transaction has locked the row.
    Locked,
    /// No row has the key.
    NotInTable,
    /// Another partition delivers it.
    OtherPartition,
    /// Its cursor column is NULL.
    NullCursor,
    /// The filter excludes it.
    FilteredOut,
    /// Its operation is not delivered.
    NotSelected,
    /// The state document belongs to another source.
    OtherSource,
    /// Its key is parked, and is retried automatically.
    Parked,
    /// Its key is quarantined: it waits for an operator.
    Quarantined,
    /// It was quarantined, and its entry is gone.
    NoLongerQuarantined,
    /// Its entry was removed, and it was not delivered.
    Dropped,
    /// The checkpoint is past it. It is not known whether it was delivered, or parked and dropped.
    Passed,
    /// It was delivered.
    Delivered,
    /// It is before the position at which the poller started, or was reset to.
    Skipped,
    /// The state document is gone.
    Vanished,
    /// Other partitions have replaced the poller.
    TakenOver,
    /// No function runs the poller.
    Disabled,
    /// The poller is stopped until an operator decides.
    Stopped,
    /// The poller is paused.
    Paused,
    /// No tick runs.
    Silent,
    /// A batch failed, and is retried later.
    BackingOff,
    /// Ticks fail.
    Failing,
    /// No tick has run yet.
    NeverRan,
    /// An open transaction holds it back.
    HeldBack,
    /// It has not settled yet.
    Settling,
    /// It is part of the batch in flight.
    InFlight,
    /// A tick delivers it.
    Due,
}

impl Verdict {
    /// Returns the verdict in words, as part of the first line.
    pub fn label(self) -> &'static str {
        match self {
            Self::Locked => "unknown",
            Self::NotInTable => "not found",
            Self::OtherPartition
            | Self::NullCursor
            | Self::FilteredOut
            | Self::NotSelected
            | Self::Skipped => "not delivered",
            Self::Parked => "parked",
            Self::Quarantined => "quarantined",
            Self::NoLongerQuarantined => "no longer quarantined",
            Self::Dropped => "dropped",
            Self::Passed => "passed",
            Self::Delivered => "delivered",
            Self::OtherSource
            | Self::Vanished
            | Self::TakenOver
            | Self::Disabled
            | Self::Stopped
            | Self::Paused
            | Self::Silent
            | Self::BackingOff
            | Self::Failing
            | Self::NeverRan
            | Self::HeldBack
            | Self::Settling
            | Self::InFlight
            | Self::Due => "not delivered yet",
        }
    }
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The kind.
    pub verdict: Verdict,
    /// Why, in one line.
    pub cause: String,
    /// Since when.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// What to do, with a command that runs as printed.
    pub next: String,
}

/// Why a row was or was not delivered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Name of the poller.
    pub poller: String,
    /// The key of the row.
    pub key: KeyValues,
    /// The reason that decides.
    #[serde(flatten)]
    pub reason: Reason,
    /// Whether the verdict is proven, rather than derived from the position alone.
    pub is_certain: bool,
    /// Further reasons, the most important first.
    pub also: Vec<Reason>,
    /// The row.
    pub row: Row,
    /// The poller's position; `null` at the beginning.
    pub checkpoint: Option<Cursor>,
    /// When it moved there; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub checkpoint_at: Option<OffsetDateTime>,
    /// The entry of the row's key, if it holds the row back.
    pub parked: Option<ParkedKey>,
    /// What happened to the row, oldest first.
    pub deliveries: Vec<Delivery>,
    /// The first day of the journal that was searched; `null` if no journal is kept.
    pub journal_from: Option<Date>,
}

/// The current row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Whether the table has it.
    pub exists: bool,
    /// Whether its last known change is a delete.
    pub is_deleted: bool,
    /// Its position; `null` if unknown.
    pub position: Option<Cursor>,
    /// The upper bound of a read now; `null` if the mode has none.
    pub bound: Option<String>,
    /// The conditions of the filter.
    pub predicates: Vec<Predicate>,
    /// Sessions whose open transactions hold rows back; empty if the login may not see them.
    pub sessions: Vec<Session>,
}

/// Explains why a row was or was not delivered.
pub fn explain(facts: Facts<'_>) -> Explanation {
    let deliveries = facts.deliveries();
    let case = Case { facts: &facts, deliveries: &deliveries };
    let mut reasons = case.reasons().into_iter();
    let reason = reasons.next().unwrap_or_else(|| case.due());
    let is_certain = case.is_certain(reason.verdict);
    let also = reasons.collect();
    let checkpoint = facts.document.map(|document| &document.checkpoint);
    let RowReport { exists, is_deleted, position, bound, predicates, sessions, .. } =
        facts.row.clone();
    Explanation {
        poller: facts.poller.to_owned(),
        key: facts.shown_key().clone(),
        reason,
        is_certain,
        also,
        row: Row { exists, is_deleted, position, bound, predicates, sessions },
        checkpoint: checkpoint.and_then(|checkpoint| checkpoint.cursor.clone()),
        checkpoint_at: checkpoint.and_then(|checkpoint| checkpoint.updated_at),
        parked: facts.parked,
        deliveries,
        journal_from: facts.journal.from,
    }
}

impl Facts<'_> {
    /// Returns the key as the source has it, if the row was found.
    fn shown_key(&self) -> &KeyValues {
        self.row.position.as_ref().map_or(self.key, |position| &position.key)
    }

    /// Whether the row is at or before the checkpoint.
    fn is_passed(&self) -> bool {
        let has_checkpoint =
            self.document.is_some_and(|document| document.checkpoint.cursor.is_some());
        has_checkpoint && self.is_same_source && !self.row.is_after
    }

    /// Returns what happened to the row. Without a journal, the checkpoint still names the batch of its last row.
    fn deliveries(&self) -> Vec<Delivery> {
        let may_have_parked = self.may_have_parked || self.journal.has_quarantined;
        let doubted = |it: Delivery| {
            let is_doubted = may_have_parked && it.is_in_batch() && it.is_certain;
            if is_doubted { it.doubted(Doubt::Parked) } else { it }
        };
        let found: Vec<Delivery> = self.journal.deliveries.iter().cloned().map(doubted).collect();
        let is_known = found.iter().any(Delivery::is_outcome);
        if let Some(entry) = &self.parked {
            // Batches that moved the checkpoint past the row: one, or all while the key waits.
            let mut has_passed = false;
            let is_delivery = |it: &Delivery| {
                let is_after = it.is_in_batch() && it.at >= entry.since;
                let moves_past = is_after && (entry.is_held || !has_passed);
                has_passed |= moves_past;
                !moves_past
            };
            return found.into_iter().filter(is_delivery).collect();
        }
        let Some(document) = self.document.filter(|_| !is_known) else { return found };
        let checkpoint = &document.checkpoint;
        let position = self.row.position.as_ref();
        let is_last = position.is_some() && checkpoint.cursor.as_ref() == position;
        let last = checkpoint.last_successful_batch_id.as_ref().zip(checkpoint.updated_at);
        let last = last.zip(position).filter(|_| is_last && checkpoint.metadata.row_count != 0);
        let of_checkpoint = last.map(|((batch_id, at), position)| Delivery {
            at,
            event: crate::journal::EventKind::BatchComplete.as_str(),
            batch_id: Some(batch_id.as_str().to_owned()),
            generation: document.generation.0,
            token: checkpoint.fencing_token.unwrap_or(document.lease.fencing_token).0,
            rows: Some(checkpoint.metadata.row_count),
            reply: "accepted".to_owned(),
            version: position.value.clone(),
            is_current: true,
            is_certain: true,
            doubt: None,
        });
        found.into_iter().chain(of_checkpoint.map(doubted)).collect()
    }
}

impl Explanation {
    /// Returns the verdict with its cause in one line, and the next command in the second.
    pub fn summary(&self) -> [String; 2] {
        let Self { poller, key, reason, .. } = self;
        let label = match (reason.verdict, self.is_certain) {
            (Verdict::Delivered, false) => "probably delivered",
            (Verdict::Skipped, false) => "probably delivered, or skipped by a reset",
            (Verdict::NoLongerQuarantined, false) => "probably no longer quarantined",
            (Verdict::Passed, _) => "passed; it may have been delivered, or parked and dropped",
            (verdict, _) => verdict.label(),
        };
        [
            format!("{poller}, {}: {label}: {}", key_text(key), reason.cause),
            format!("next: {}", reason.next),
        ]
    }
}

#[cfg(test)]
mod tests;
