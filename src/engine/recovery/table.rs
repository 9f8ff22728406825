//! The one table of the controller: what it looks for, how it knows, what it does and what it never does.
//!
//! `docs/reference/recovery.md` shows [`conditions_table`], and a test holds it to that.

use std::fmt;

use serde::Serialize;

/// Something that keeps a poller from its work, or may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// A holder died, or cannot write any more.
    LeaseExpired,
    /// A batch is in flight, and no instance holds or acquires the lease.
    InFlightOrphaned,
    /// A batch waits, since its target asked for a long pause.
    TargetAsksForPause,
    /// Rows wait, and the checkpoint does not move.
    CheckpointStuck,
    /// A document whose poller is in no setting.
    StateWithoutConfiguration,
    /// A poller of the settings that has no document.
    ConfigurationWithoutState,
    /// More rows are quarantined than at the last run.
    QuarantineGrowing,
    /// A poller that an operator may have forgotten to resume.
    PausedTooLong,
    /// The document of a partition, a replay or a backfill whose poller is gone or paused.
    ParentGone,
    /// A replay or backfill that has not ended, and that no instance continues.
    RangeLeft,
    /// Somebody else runs the poller all the time.
    LeaseHeldElsewhere,
    /// The history grows, and nothing is committed.
    JournalWithoutCommits,
    /// The journal does not lead to the document.
    JournalDiffers,
    /// The checkpoint is of another source than the settings describe.
    FingerprintDiffers,
    /// A document that cannot be used.
    StateUnreadable,
    /// A document whose marker is gone.
    MarkerMissing,
}

/// What is done about a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Told at WARN.
    Report,
    /// The lease is taken from its dead holder.
    Release,
    /// The same, or a back-off is ended: the batch in flight is free for the next tick.
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

    /// Whether something is written.
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
    /// Which condition.
    pub condition: Condition,
    /// Its name in logs, metrics and outputs.
    pub name: &'static str,
    /// How it is known.
    pub known_by: &'static str,
    /// What may be done, the usual first.
    pub actions: &'static [Action],
    /// The same in words.
    pub done: &'static str,
    /// What is never done about it.
    pub never: &'static str,
}

/// The table, a row for each condition.
pub const ROWS: &[Row] = &[
    Row {
        condition: Condition::LeaseExpired,
        name: "lease_expired",
        known_by: "an owner that has not released the lease, and has not written for ttl, two grains \
                   of the store's clock and 2 s, by that clock alone",
        actions: &[Action::Release, Action::Requeue],
        done: "released under the tag it was judged by: owner cleared, token raised. A batch in flight \
               stays for the next tick, with one more crash counted: requeued",
        never: "breaks a live lease; moves a checkpoint; delivers a row",
    },
    Row {
        condition: Condition::InFlightOrphaned,
        name: "in_flight_orphaned",
        known_by: "a batch in flight under a free lease that waits for a time no handler could have \
                   asked for (`RETRY_AFTER_MAX`, or `RETRY_DELAY_MAX`), or that is due for `STUCK_AFTER` and no \
                   tick takes it",
        actions: &[Action::Requeue, Action::Alarm],
        done: "the back-off is ended; where the batch is due, an alarm: the timer does not run",
        never: "ends a back-off that was asked for; drops the batch; resets its attempts",
    },
    Row {
        condition: Condition::TargetAsksForPause,
        name: "target_asks_for_pause",
        known_by: "a batch in flight that is not retried for longer than `RETRY_DELAY_MAX`, which only \
                   a target's `Retry-After` causes",
        actions: &[Action::Report],
        done: "reported, with the end of the pause, the last error and the command that ends it",
        never: "ends the pause",
    },
    Row {
        condition: Condition::CheckpointStuck,
        name: "checkpoint_stuck",
        known_by: "rows that wait (a batch in flight, or where nothing has written for `STUCK_AFTER` \
                   a row behind the checkpoint, for which the source is asked), and a checkpoint that \
                   stands still for `STUCK_AFTER`, since the failure or the run that saw them first",
        actions: &[Action::Alarm],
        done: "an alarm, with the last error",
        never: "skips a row; moves the checkpoint",
    },
    Row {
        condition: Condition::StateWithoutConfiguration,
        name: "state_without_configuration",
        known_by: "a document whose poller is in no setting of this app",
        actions: &[Action::Report],
        done: "reported; a lease that has expired is released all the same",
        never: "removes a document",
    },
    Row {
        condition: Condition::ConfigurationWithoutState,
        name: "configuration_without_state",
        known_by: "a poller of the settings without a document; its marker shows whether it ever ran",
        actions: &[Action::Report, Action::Alarm],
        done: "reported; where it has run before, an alarm",
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
        known_by: "a pause that is older than `PAUSED_MAX`",
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
        done: "an alarm where the poller is gone, a report where it is paused",
        never: "pauses, ends or removes the part",
    },
    Row {
        condition: Condition::RangeLeft,
        name: "range_left",
        known_by: "a replay or backfill that has not ended and is not paused, whose lease is free, and \
                   of which neither its document nor that of a window was written for `STUCK_AFTER`",
        actions: &[Action::Report],
        done: "reported, with the rows that are left and the command that continues it",
        never: "continues it; cancels it; removes it",
    },
    Row {
        condition: Condition::LeaseHeldElsewhere,
        name: "lease_held_elsewhere",
        known_by: "a poller of this process whose ticks were all skipped for `STUCK_AFTER`, since \
                   another instance held the lease each time",
        actions: &[Action::Report],
        done: "reported, with the holder: a slot, an app or a computer that was forgotten runs the same \
               poller",
        never: "takes the lease",
    },
    Row {
        condition: Condition::JournalWithoutCommits,
        name: "journal_without_commits",
        known_by: "a batch in flight, and at least 20 writes numbered for the journal since the \
                   checkpoint was last seen to move",
        actions: &[Action::Alarm],
        done: "an alarm",
        never: "changes a journal",
    },
    Row {
        condition: Condition::JournalDiffers,
        name: "journal_differs",
        known_by: "the journal's last day, folded as by `state verify`, leads to other content under \
                   the same number or to later writes than the document has, or it is gone",
        actions: &[Action::Alarm],
        done: "an alarm, with the first difference",
        never: "changes a document or a journal",
    },
    Row {
        condition: Condition::FingerprintDiffers,
        name: "fingerprint_differs",
        known_by: "the document's fingerprint is not that of the source in the settings",
        actions: &[Action::Alarm],
        done: "an alarm",
        never: "accepts the other source; resets the poller",
    },
    Row {
        condition: Condition::StateUnreadable,
        name: "state_unreadable",
        known_by: "what is stored is no state document of this version and of this poller",
        actions: &[Action::Alarm],
        done: "an alarm, with what is wrong",
        never: "overwrites it",
    },
    Row {
        condition: Condition::MarkerMissing,
        name: "marker_missing",
        known_by: "a document that says that its marker was written, and no marker",
        actions: &[Action::Rewrite],
        done: "the marker is written again, unless another writer is faster: without it a loss of the \
               document would look like a first start",
        never: "replaces a marker; writes the document",
    },
];

/// Returns the row of a condition.
pub fn row(condition: Condition) -> &'static Row {
    let mut rows = ROWS.iter();
    rows.find(|row| row.condition == condition).expect("the table has every condition")
}

/// Returns [`ROWS`] as a Markdown table, heading included.
pub fn conditions_table() -> String {
    let rows = ROWS.iter().map(|Row { name, known_by, actions, done, never, .. }| {
        let actions = actions.iter().map(|action| action.as_str()).collect::<Vec<_>>().join(", ");
        format!("| `{name}` | {known_by} | {actions} | {done} | {never} |\n")
    });
    let head = "| condition | how it is known | action | what happens | what it never does |\n\
                |---|---|---|---|---|\n";
    head.to_owned() + &rows.collect::<String>()
}
