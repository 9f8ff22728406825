//! Pure: combines the documents of one replay or backfill, and decides whether it was abandoned.
//!
//! A range in windows has its own document, and one for each window that was started. While one window is being
//! delivered, the other documents are not written, so only all of them together show whether an instance works on it.

use std::time::Duration;

use super::judge::{MetCondition, Subject, Thresholds};
use super::table::{Action, Condition};
use crate::document::LeaseState;

/// What is known about a range after some of its documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenRange {
    /// The command that continues it.
    command: String,
    /// Whether its own document was seen, and it has neither ended nor is paused.
    is_open: bool,
    /// Whether the lease of each of its documents is free.
    is_free: bool,
    /// Time since the latest write.
    idle: Duration,
    rows_planned: u64,
    rows: u64,
}

impl SeenRange {
    /// Returns the name of the range to which a document belongs, and what the document says about it.
    pub(super) fn of(subject: &Subject<'_>) -> Option<(String, Self)> {
        let Subject { name, document, age, .. } = subject;
        let range = document.range.as_ref()?;
        let (purpose, id) = document.replay_id.as_deref()?.split_once('-')?;
        let of = &range.of;
        let range_name = format!("{of}.{purpose}.{id}");
        let is_whole = *name == range_name;
        let seen = Self {
            command: format!("`highwater {purpose} {of} --resume {id}`"),
            is_open: is_whole && !range.has_ended() && document.paused.is_none(),
            is_free: document.lease_state_for_others(*age) == LeaseState::Free,
            idle: document.idle(*age),
            rows_planned: if is_whole { range.rows_planned } else { 0 },
            rows: range.rows,
        };
        Some((range_name, seen))
    }

    /// Combines two of these.
    pub(super) fn and(self, other: &Self) -> Self {
        Self {
            command: self.command,
            is_open: self.is_open || other.is_open,
            is_free: self.is_free && other.is_free,
            idle: self.idle.min(other.idle),
            rows_planned: self.rows_planned.max(other.rows_planned),
            rows: self.rows.saturating_add(other.rows),
        }
    }

    /// Returns the condition that no instance continues it, if so.
    pub(super) fn judge(&self, thresholds: &Thresholds) -> Option<MetCondition> {
        let is_left = self.is_open && self.is_free && self.idle >= thresholds.stuck_after;
        is_left.then(|| {
            let Self { command, rows, rows_planned, idle, .. } = self;
            let found = format!(
                "{rows} of {rows_planned} rows are delivered, and no instance has continued for {} s: \
                 {command} continues it; with `--cancel` instead of `--resume` it is cancelled",
                idle.as_secs()
            );
            MetCondition::new(Condition::RangeLeft, Action::Report, found)
        })
    }
}
