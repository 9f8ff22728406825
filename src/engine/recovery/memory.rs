//! What the controller remembers between runs, stored in its own document with its lease.
//!
//! Times are the storage service's. A loss only costs time: a condition that is found by comparing two runs is then
//! found one run later.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use crate::document::StateDocument;

/// Its key in the source state.
const FIELD: &str = "pollers";

/// Most pollers to remember: at about 200 bytes each, half of the largest document.
const REMEMBERED_MAX: usize = 10_000;

/// What was seen of one poller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PollerMemory {
    /// Where its checkpoint was.
    pub(super) checkpoint: String,
    /// Since when rows wait there.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    pub(super) waiting_since: Option<OffsetDateTime>,
    /// Quarantined rows.
    #[serde(default)]
    pub(super) quarantined: u64,
    /// Number of the last write when the checkpoint was first seen there.
    #[serde(default)]
    pub(super) journal_seq: u64,
}

impl PollerMemory {
    /// Returns what to remember about a document; `None` if there is nothing.
    pub(super) fn of(
        document: &StateDocument,
        waiting_since: Option<OffsetDateTime>,
        quarantined: u64,
        before: Option<&Self>,
    ) -> Option<Self> {
        let is_of_use = waiting_since.is_some() || quarantined > 0;
        let before = before.filter(|before| before.is_at(document));
        is_of_use.then(|| Self {
            checkpoint: place(document),
            waiting_since,
            quarantined,
            journal_seq: before.map_or(document.journal_seq, |before| before.journal_seq),
        })
    }

    /// Whether the checkpoint has not moved.
    pub(super) fn is_at(&self, document: &StateDocument) -> bool {
        self.checkpoint == place(document)
    }
}

/// Identifies a checkpoint: the same until a commit or a reset.
fn place(document: &StateDocument) -> String {
    let checkpoint = &document.checkpoint;
    let cursor = checkpoint.cursor.as_ref().map_or("", |cursor| cursor.value.as_str());
    let batch = checkpoint.last_successful_batch_id.as_ref();
    let generation = document.generation;
    format!("{generation}/{cursor}/{}", batch.map_or("", |batch| batch.as_str()))
}

/// What is remembered, by poller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory(pub(super) BTreeMap<String, PollerMemory>);

impl Memory {
    /// Reads what the last run wrote. Anything foreign, or of another version, is dropped.
    pub(super) fn read(document: &StateDocument) -> Self {
        let stored = document.source_state.get(FIELD).cloned().unwrap_or_default();
        Self(serde_json::from_value(stored).unwrap_or_default())
    }

    /// Returns what to write.
    pub(super) fn write(self) -> Map<String, Json> {
        if let Some(forgotten) = self.0.len().checked_sub(REMEMBERED_MAX).filter(|count| *count > 0)
        {
            tracing::warn!(
                event = "recovery_memory_full",
                "{} pollers have rows that wait or are quarantined; only the first {REMEMBERED_MAX} by name are \
                 remembered. Conditions that need two runs are not detected for the other {forgotten}",
                self.0.len()
            );
        }
        let kept: BTreeMap<_, _> = self.0.into_iter().take(REMEMBERED_MAX).collect();
        let json = serde_json::to_value(kept).expect("names are texts");
        Map::from_iter([(FIELD.to_owned(), json)])
    }
}
