//! Changes of a poller that an operator wants to hear about, and the port that reports them.
//!
//! A tick collects its changes in [`TickReport::changes`](crate::tick::TickReport::changes), and hands them to the
//! [`Notifier`] of its poller after it has ended: neither the lease nor the checkpoint waits for a notification.

use std::fmt;

use async_trait::async_trait;

use crate::cursor::KeyId;
use crate::error::shortened;

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeEvent {
    /// Rows were parked, and are retried automatically.
    RowParked,
    /// Rows were quarantined.
    RowQuarantined,
    /// The breaker opened: the target is assumed to reject every row.
    BreakerOpened,
    /// Ticks deliver nothing until an operator decides.
    PollerStopped,
}

impl ChangeEvent {
    /// Returns its name in notifications.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RowParked => "row_parked",
            Self::RowQuarantined => "row_quarantined",
            Self::BreakerOpened => "breaker_opened",
            Self::PollerStopped => "poller_stopped",
        }
    }
}

/// One or more changes of the same sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What changed.
    pub event: ChangeEvent,
    /// The reason in one word, as in quarantine entries and in `last_failure`; `None` if the event has only one.
    pub kind: Option<&'static str>,
    /// The reason in one line.
    pub reason: String,
    /// The key of the row; the first one of several.
    pub key_id: Option<KeyId>,
    /// Number of merged changes: more than 1 only for rows.
    pub count: u64,
}

impl Change {
    /// Returns a change.
    pub fn new(event: ChangeEvent, kind: Option<&'static str>, reason: String) -> Self {
        Self { event, kind, reason: shortened(reason), key_id: None, count: 1 }
    }

    /// Adds a change to a list that has one element for each event and kind.
    pub fn add_to(self, changes: &mut Vec<Self>) {
        let same = |known: &&mut Self| (known.event, known.kind) == (self.event, self.kind);
        match changes.iter_mut().find(same) {
            Some(known) => {
                known.count = known.count.saturating_add(self.count);
                known.reason = self.reason;
            }
            None => changes.push(self),
        }
    }
}

/// Reports changes to operators.
///
/// Implementations limit how long they take, since the caller waits, and handle their own failures.
#[async_trait]
pub trait Notifier: fmt::Debug + Send + Sync {
    /// Called after each tick of `poller`, usually without any changes.
    async fn tick_ended(&self, poller: &str, changes: &[Change]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_sort_become_one_with_a_count() {
        let row = |kind, reason: &str| {
            Change::new(ChangeEvent::RowQuarantined, Some(kind), reason.to_owned())
        };
        let mut changes = Vec::new();
        for change in [row("refused", "a"), row("attempts", "b"), row("refused", "c")] {
            change.add_to(&mut changes);
        }
        assert_eq!(changes, [Change { count: 2, ..row("refused", "c") }, row("attempts", "b")]);
    }
}
