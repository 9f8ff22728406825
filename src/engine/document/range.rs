//! The document of a range that is redelivered: what the range is, and how it ends.
//!
//! It is a state document like a poller's, with its own name, so lease, token, attempts and checkpoint work the same.
//! In addition, it has an end.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use super::state_document::StateDocument;
use super::transitions::DocumentAge;
use crate::cursor::Cursor;

/// Name in `requires`: a reader of such a document must support it.
pub(super) const REQUIREMENT: &str = "range";

/// A range of a poller's past that is redelivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangeRecord {
    /// The poller that the rows belong to.
    pub of: String,
    /// The position before its first row; `None` for the beginning.
    #[serde(default)]
    pub after: Option<Cursor>,
    /// The position of its last row.
    pub upto: Cursor,
    /// Where its windows end, in order; each is delivered under its own document. Empty if the range is delivered
    /// under this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Cursor>,
    /// Rows that were counted when it was planned.
    #[serde(default)]
    pub rows_planned: u64,
    /// Rows that were committed so far.
    #[serde(default)]
    pub rows: u64,
    /// When it was started; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub begun_at: OffsetDateTime,
    /// When all of it was delivered; storage time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub done_at: Option<OffsetDateTime>,
    /// When it was cancelled; storage time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub cancelled_at: Option<OffsetDateTime>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl RangeRecord {
    /// Whether nothing more of it will be delivered.
    pub fn has_ended(&self) -> bool {
        self.done_at.is_some() || self.cancelled_at.is_some()
    }
}

impl StateDocument {
    /// Returns this unused document as that of a range.
    ///
    /// It needs no marker: a range with a lost document is not restarted by itself.
    #[must_use]
    pub fn of_range(&self, range: RangeRecord, replay_id: &str) -> Self {
        let mut next = self.clone();
        next.checkpoint.cursor.clone_from(&range.after);
        next.requires.push(REQUIREMENT.to_owned());
        next.replay_id = Some(replay_id.to_owned());
        next.marked = true;
        next.range = Some(range);
        next
    }

    /// Marks the range as delivered.
    #[must_use]
    pub fn end_range(&self, now: OffsetDateTime, age: DocumentAge) -> Self {
        let mut next = self.written_by_other(age);
        // Rows that were in flight are outside the range, or it would not have reached its end.
        next.in_flight = None;
        if let Some(range) = &mut next.range {
            range.done_at.get_or_insert(now);
        }
        next
    }

    /// Marks the range as cancelled; its delivery stops.
    #[must_use]
    pub fn cancel_range(&self, now: OffsetDateTime, age: DocumentAge) -> Self {
        let mut next = self.written_by_other(age);
        if let Some(range) = next.range.as_mut().filter(|range| range.done_at.is_none()) {
            range.cancelled_at.get_or_insert(now);
        }
        next
    }

    /// Whether no further batch may start: the poller is paused, the range is cancelled, or rows after the checkpoint
    /// are lost.
    pub fn is_blocked(&self) -> bool {
        let cancelled = |range: &RangeRecord| range.cancelled_at.is_some();
        self.paused.is_some()
            || self.lost_position().is_some()
            || self.range.as_ref().is_some_and(cancelled)
    }

    /// Counts the rows that a commit has moved past.
    pub(super) fn count_in_range(&mut self, rows: u64) {
        if let Some(range) = &mut self.range {
            range.rows = range.rows.saturating_add(rows);
        }
    }
}
