//! The table of conditions: what the controller looks for, how it detects that, what it does and what it never does.
//!
//! `docs/reference/recovery.md` shows [`conditions_table`]; a test checks that.

use std::fmt;

use serde::Serialize;

/// Something that prevents a poller from working, or may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// A holder crashed, or can no longer write.
    LeaseExpired,
    /// A batch is in flight, and no instance holds or acquires the lease.
    InFlightOrphaned,
    /// A batch waits because its target asked for a long pause.
    TargetAsksForPause,
    /// Rows wait, and the checkpoint does not move.
    CheckpointStuck,
    /// A document whose poller is not in the settings.
    StateWithoutConfiguration,
    /// A poller in the settings without a document.
    ConfigurationWithoutState,
    /// More rows are quarantined than at the last run.
    QuarantineGrowing,
    /// A poller that an operator may have forgotten to resume.
    PausedTooLong,
    /// The document of a partition, a replay or a backfill whose poller is gone or paused.
    ParentGone,
    /// A replay or backfill that has not ended, and that no instance continues.
    RangeLeft,
    /// Another instance always runs the poller.
    LeaseHeldElsewhere,
    /// The history grows, but nothing is committed.
    JournalWithoutCommits,
    /// The journal does not lead to the document.
    JournalDiffers,
    /// The checkpoint belongs to another source than the one in the settings.
    FingerprintDiffers,
    /// A document that cannot be used.
    StateUnreadable,
    /// A document whose marker is gone.
    MarkerMissing,
}

/// What to do about a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Reported at WARN.
    Report,
    /// The lease is released from its crashed holder.
    Release,
    /// The same, or a backoff is ended: the next tick can deliver the batch in flight.
    Requeue,
    /// The marker is written again.
    Rewrite,
    /// Logged at ERROR: an operator is needed.
    Alarm,
}

impl Action {
    /// Returns the name used in every output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Release => "release",
            Self::Requeue => "requeue",
            Self::Rewrite => "rewrite",
            Self::Alarm => "alarm",
        }
    }

    /// Whether it writes something.
    pub fn is_repair(self) -> bool {
        matches!(self, Self::Release | Self::Requeue | Self::Rewrite)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl Condition {
    /// Returns the name used in every output.
    pub fn as_str(self) -> &'static str {
        row(self).name
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The condition.
    pub condition: Condition,
    /// Its name in logs, metrics and outputs.
    pub name: &'static str,
    /// How it is detected.
    pub known_by: &'static str,
    /// Possible actions, the usual one first.
    pub actions: &'static [Action],
    /// The same in words.
    pub done: &'static str,
    /// What is never done about it.
    pub never: &'static str,
}

/// The table, one row per condition.
pub const ROWS: &[Row] = &[
    Row {
        condition: Condition::LeaseExpired,
        name: "lease_expired",
        known_by: "the lease is not released, and its owner has not written for ttl + two grains \
                   of the store's clock + 2 s, by that clock alone",
        actions: &[Action::Release, Action::Requeue],
        done: "released under the tag that was judged: owner cleared, token raised. A batch in \
               flight is requeued: it stays for the next tick, with one more crash counted",
        never: "breaks a live lease; moves a checkpoint; delivers a row",
    },
    Row {
        condition: Condition::InFlightOrphaned,
        name: "in_flight_orphaned",
        known_by: "a batch in flight under a free lease that waits for longer than any handler \
                   can ask for (`RETRY_AFTER_MAX`, or `RETRY_DELAY_MAX`), or that has been due \
                   for `STUCK_AFTER` without a tick that delivers it",
        actions: &[Action::Requeue, Action::Alarm],
        done: "the backoff is ended; if the batch is due, an alarm: the timer does not run",
        never: "ends a requested backoff; drops the batch; resets its attempts",
    },
    Row {
        condition: Condition::TargetAsksForPause,
        name: "target_asks_for_pause",
        known_by: "a batch in flight that is not retried for longer than `RETRY_DELAY_MAX`, \
                   which only a target's `Retry-After` can cause",
        actions: &[Action::Report],
        done: "reported, with the end of the pause, the last error and the command that ends it",
        never: "ends the pause",
    },
    Row {
        condition: Condition::CheckpointStuck,
        name: "checkpoint_stuck",
        known_by: "rows wait (a batch in flight or, if nothing has been written for \
                   `STUCK_AFTER`, a row after the checkpoint, which is queried from the source), \
                   and the checkpoint has not moved for `STUCK_AFTER` since the failure or the \
                   run that first saw them",
        actions: &[Action::Alarm],
        done: "an alarm, with the last error",
        never: "skips a row; moves the checkpoint",
    },
    Row {
        condition: Condition::StateWithoutConfiguration,
        name: "state_without_configuration",
        known_by: "a document whose poller is not in the settings of this app",
        actions: &[Action::Report],
        done: "reported; an expired lease is still released",
        never: "removes a document",
    },
    Row {
        condition: Condition::ConfigurationWithoutState,
        name: "configuration_without_state",
        known_by: "a poller in the settings without a document; its marker shows whether it ever \
                   ran",
        actions: &[Action::Report, Action::Alarm],
        done: "reported; an alarm if it has run before",
        never: "creates a document; restarts a poller",
    },
    Row {
        condition: Condition::QuarantineGrowing,
        name: "quarantine_growing",
        known_by: "more quarantined rows than the last run counted",
        actions: &[Action::Alarm],
        done: "an alarm",
        never: "delivers or drops an entry",
    },
    Row {
        condition: Condition::PausedTooLong,
        name: "paused_too_long",
        known_by: "a pause older than `PAUSED_MAX`",
        actions: &[Action::Report],
        done: "reported, with who paused it and why",
        never: "resumes a poller",
    },
    Row {
        condition: Condition::ParentGone,
        name: "parent_gone",
        known_by: "a document named `poller__part`, of a replay or backfill that has not ended, or with \
                   a field `parent`, whose poller has neither a document nor settings, or is paused \
                   while the part is not",
        actions: &[Action::Alarm, Action::Report],
        done: "an alarm if the poller is gone, a report if it is paused",
        never: "pauses, ends or removes the part",
    },
    Row {
        condition: Condition::RangeLeft,
        name: "range_left",
        known_by: "a replay or backfill that has not ended, is not paused, and whose lease is \
                   free; neither its document nor that of a window has been written for \
                   `STUCK_AFTER`",
        actions: &[Action::Report],
        done: "reported, with the remaining rows and the command that continues it",
        never: "continues it; cancels it; removes it",
    },
    Row {
        condition: Condition::LeaseHeldElsewhere,
        name: "lease_held_elsewhere",
        known_by: "a poller of this process whose ticks were all skipped for `STUCK_AFTER` \
                   because another instance held the lease",
        actions: &[Action::Report],
        done: "reported, with the holder: a forgotten slot, app or computer runs the same poller",
        never: "takes the lease",
    },
    Row {
        condition: Condition::JournalWithoutCommits,
        name: "journal_without_commits",
        known_by: "a batch in flight, and at least 20 journaled writes since the checkpoint last \
                   moved",
        actions: &[Action::Alarm],
        done: "an alarm",
        never: "changes a journal",
    },
    Row {
        condition: Condition::JournalDiffers,
        name: "journal_differs",
        known_by: "the journal's last day, folded as by `state verify`, leads to different \
                   content under the same number or to later writes than the document has, or \
                   the journal is gone",
        actions: &[Action::Alarm],
        done: "an alarm, with the first difference",
        never: "changes a document or a journal",
    },
    Row {
        condition: Condition::FingerprintDiffers,
        name: "fingerprint_differs",
        known_by: "the document's fingerprint differs from that of the source in the settings",
        actions: &[Action::Alarm],
        done: "an alarm",
        never: "accepts the other source; resets the poller",
    },
    Row {
        condition: Condition::StateUnreadable,
        name: "state_unreadable",
        known_by: "the stored content is not a state document of this version and this poller",
        actions: &[Action::Alarm],
        done: "an alarm, with what is wrong",
        never: "overwrites it",
    },
    Row {
        condition: Condition::MarkerMissing,
        name: "marker_missing",
        known_by: "the document says that its marker was written, but there is no marker",
        actions: &[Action::Rewrite],
        done: "the marker is written again, unless another writer is faster: without it, a lost \
               document would look like a first start",
        never: "replaces a marker; writes the document",
    },
];

/// Returns the row of a condition.
pub fn row(condition: Condition) -> &'static Row {
    let mut rows = ROWS.iter();
    rows.find(|row| row.condition == condition).expect("the table has every condition")
}

/// Returns [`ROWS`] as a Markdown table with its heading.
pub fn conditions_table() -> String {
    let rows = ROWS.iter().map(|Row { name, known_by, actions, done, never, .. }| {
        let actions = actions.iter().map(|action| action.as_str()).collect::<Vec<_>>().join(", ");
        format!("| `{name}` | {known_by} | {actions} | {done} | {never} |\n")
    });
    let head = "| condition | how it is known | action | what happens | what it never does |\n\
                |---|---|---|---|---|\n";
    head.to_owned() + &rows.collect::<String>()
}
