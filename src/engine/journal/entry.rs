//! One line of the journal.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::Changes;
use crate::cursor::Cursor;
use crate::document::{FencingToken, Generation, RecentTick, StateDocument};
use crate::event::{BatchId, EventsDigest};

/// Version of the format of a line.
pub const VERSION: u32 = 1;

/// How much is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalMode {
    /// Nothing.
    #[default]
    Off,
    /// Writes that moved the checkpoint, operators' actions, what became of parked rows, and lost positions.
    Commits,
    /// Everything except renewals and idle status writes that change nothing else.
    Full,
}

impl JournalMode {
    /// Whether entries of this kind are recorded.
    pub fn records(self, event: EventKind) -> bool {
        match self {
            Self::Off => false,
            Self::Commits => {
                let stops = event == EventKind::PositionLost;
                event.moves_checkpoint()
                    || event.is_operator_event()
                    || event.settles_parked_row()
                    || stops
            }
            Self::Full => true,
        }
    }

    /// Numbers a write of this kind, if the mode records it, as part of the write itself. Returns whether it does.
    pub fn number(self, event: EventKind, document: &mut StateDocument) -> bool {
        let is_recorded = self.records(event) && event.writes();
        if is_recorded {
            document.journal_seq = document.journal_seq.saturating_add(1);
        }
        is_recorded
    }
}

/// The kind of an event, named after its log event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The lease was granted.
    LeaseAcquired,
    /// A batch was announced under a lease that was already held.
    BatchAnnounced,
    /// A batch was handed to the handler.
    ExecutionStarted,
    /// A batch, or its first rows, was committed.
    BatchComplete,
    /// The failure of a batch was recorded.
    HandlerFailed,
    /// A row was quarantined, or its key parked.
    RowQuarantined,
    /// A row waits with its parked key.
    RowDiverted,
    /// A retry delivered the row of a parked key.
    RowRecovered,
    /// An operator redelivered the row of a parked key.
    RowRedriven,
    /// The entry of a parked key was removed, and its row not delivered: an operator dropped it, or the row is gone.
    RowDropped,
    /// The target rejected a write of a stale owner.
    StaleWriteBlocked,
    /// The lease was found lost.
    LeaseLost,
    /// The lease was released; the checkpoint did not move.
    LeaseReleased,
    /// The result of a step of a handler chain was stored.
    StepComplete,
    /// Retained source state, or the progress of re-reading closed windows, was written separately.
    Noted,
    /// Rows after the checkpoint were found to be lost; only a reset ends that.
    PositionLost,
    /// An operator, or the handler, paused the poller.
    Paused,
    /// An operator resumed the poller.
    Resumed,
    /// An operator moved the checkpoint.
    Reset,
    /// An operator removed the lease from its holder.
    LeaseBroken,
    /// An operator replaced the document.
    Imported,
    /// An operator created the document, at the position of another poller.
    Cloned,
    /// The document was rebuilt from the journal.
    Rebuilt,
    /// The history before this entry was dropped.
    Compacted,
    /// The recovery controller acted.
    Recovered,
    /// An operator changed the number of partitions.
    Repartitioned,
    /// An event kind of a newer version.
    #[serde(other)]
    Unknown,
}

impl EventKind {
    /// Returns the name used in entries and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeaseAcquired => "lease_acquired",
            Self::BatchAnnounced => "batch_announced",
            Self::ExecutionStarted => "execution_started",
            Self::BatchComplete => "batch_complete",
            Self::HandlerFailed => "handler_failed",
            Self::RowQuarantined => "row_quarantined",
            Self::RowDiverted => "row_diverted",
            Self::RowRecovered => "row_recovered",
            Self::RowRedriven => "row_redriven",
            Self::RowDropped => "row_dropped",
            Self::StaleWriteBlocked => "stale_write_blocked",
            Self::LeaseLost => "lease_lost",
            Self::LeaseReleased => "lease_released",
            Self::StepComplete => "step_complete",
            Self::Noted => "noted",
            Self::PositionLost => "position_lost",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::Reset => "reset",
            Self::LeaseBroken => "lease_broken",
            Self::Imported => "imported",
            Self::Cloned => "cloned",
            Self::Rebuilt => "rebuilt",
            Self::Compacted => "compacted",
            Self::Recovered => "recovered",
            Self::Repartitioned => "repartitioned",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the kind under which a write of `next` over `base` is recorded, if at all: `event` or, for a write
    /// without one such as a renewal, what else it contained.
    pub fn recorded_by(
        event: Option<Self>,
        base: &StateDocument,
        next: &StateDocument,
    ) -> Option<Self> {
        let rode = base.marked != next.marked
            || base.source_state != next.source_state
            || base.audit != next.audit
            || base.parked != next.parked;
        event.or_else(|| rode.then_some(Self::Noted))
    }

    /// Whether an entry of this kind records a write that moved the checkpoint forward.
    pub fn moves_checkpoint(self) -> bool {
        matches!(self, Self::BatchComplete)
    }

    /// Whether an entry of this kind records a write of the document.
    pub fn writes(self) -> bool {
        !matches!(
            self,
            Self::ExecutionStarted
                | Self::RowQuarantined
                | Self::RowDiverted
                | Self::RowRecovered
                | Self::RowRedriven
                | Self::RowDropped
                | Self::StaleWriteBlocked
                | Self::LeaseLost
                | Self::Unknown
        )
    }

    /// Whether it says what became of the row of a parked key.
    pub fn settles_parked_row(self) -> bool {
        matches!(self, Self::RowRecovered | Self::RowRedriven | Self::RowDropped)
    }

    /// Whether its writer holds no lease.
    pub(super) fn needs_no_lease(self) -> bool {
        matches!(self, Self::Noted | Self::PositionLost)
    }

    /// Whether an operator caused it, outside of ticks.
    pub fn is_operator_event(self) -> bool {
        matches!(
            self,
            Self::Paused
                | Self::Resumed
                | Self::Reset
                | Self::LeaseBroken
                | Self::Imported
                | Self::Cloned
                | Self::Rebuilt
                | Self::Compacted
                | Self::Recovered
                | Self::Repartitioned
        )
    }

    /// Whether the checkpoint may be before that of the previous entry.
    pub(super) fn may_move_back(self) -> bool {
        matches!(
            self,
            Self::Reset
                | Self::Imported
                | Self::Cloned
                | Self::Rebuilt
                | Self::Repartitioned
                | Self::Unknown
        )
    }
}

/// The fields of an entry besides its author, time and number; those that do not apply are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Details {
    /// The batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_id: Option<BatchId>,
    /// Position before its first row; absent at the beginning of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Cursor>,
    /// Position of its last row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upto: Option<Cursor>,
    /// Rows in it, or committed rows of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Digest of its encoded rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<EventsDigest>,
    /// The step of a handler chain that was called, or whose result was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The number of the attempt, or of failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How the tick ended with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// What went wrong, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Who requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Details {
    /// Returns the details of an event about one row.
    pub fn of_row(at: &Cursor, reason: impl Into<Option<String>>) -> Self {
        let upto = Some(at.clone());
        Self { upto, rows: Some(1), reason: reason.into(), ..Self::default() }
    }

    /// Returns the details of a write of this kind, which changed `base` to `next`.
    pub fn of(event: EventKind, base: &StateDocument, next: &StateDocument) -> Self {
        let checkpoint = &next.checkpoint;
        match (event, &next.in_flight) {
            (EventKind::BatchComplete, _) => Self {
                batch_id: checkpoint.last_successful_batch_id.clone(),
                after: base.checkpoint.cursor.clone(),
                upto: checkpoint.cursor.clone(),
                rows: Some(checkpoint.metadata.row_count),
                digest: base.in_flight.as_ref().and_then(|batch| {
                    let same =
                        checkpoint.last_successful_batch_id.as_ref() == Some(&batch.batch_id);
                    same.then(|| batch.digest.clone())
                }),
                outcome: next
                    .recent
                    .last()
                    .filter(|_| next.lease.released_at.is_some())
                    .map(outcome),
                ..Self::default()
            },
            (EventKind::LeaseReleased, _) => {
                Self { outcome: next.recent.last().map(outcome), ..Self::default() }
            }
            (_, Some(batch)) => {
                let has_failed = event == EventKind::HandlerFailed;
                let kept = batch.steps.last().filter(|_| event == EventKind::StepComplete);
                Self {
                    batch_id: Some(batch.batch_id.clone()),
                    after: batch.after.clone(),
                    upto: Some(batch.upto.clone()),
                    rows: Some(batch.rows),
                    digest: Some(batch.digest.clone()),
                    step: kept.map(|result| result.step.clone()),
                    attempt: Some(batch.attempt),
                    error: batch.last_error.clone().filter(|_| has_failed),
                    reason: next.paused.as_ref().map(|paused| paused.reason.clone()),
                    ..Self::default()
                }
            }
            (_, None) => Self::default(),
        }
    }
}

fn outcome(tick: &RecentTick) -> String {
    tick.outcome.clone()
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of the format; see [`VERSION`].
    pub version: u32,
    /// Number of the write it records, or of the last one before it.
    pub seq: u64,
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// What happened.
    pub event: EventKind,
    /// The poller.
    pub poller_name: String,
    /// The instance; absent for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Generation of the document.
    pub generation: Generation,
    /// Token of the grant.
    pub fencing_token: FencingToken,
    /// Id of the write; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_id: Option<String>,
    /// Details of the batch.
    #[serde(flatten)]
    pub details: Details,
    /// The changes of the write; absent in snapshots and if there was no write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
    /// The document as written; only in snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Box<StateDocument>>,
}

impl Entry {
    /// Returns the entry of an operator's action. It is always a snapshot: such entries are rare, and their writers
    /// do not know the previous entry.
    pub fn of_operator(
        event: EventKind,
        document: &StateDocument,
        at: OffsetDateTime,
        by: &str,
        reason: Option<&str>,
    ) -> Self {
        Self {
            version: VERSION,
            seq: document.journal_seq,
            at,
            event,
            poller_name: document.poller_name.clone(),
            owner_id: None,
            generation: document.generation,
            fencing_token: document.lease.fencing_token,
            write_id: Some(document.write_id.clone()),
            details: Details {
                by: Some(by.to_owned()),
                reason: reason.map(str::to_owned),
                ..Details::default()
            },
            changes: None,
            document: Some(Box::new(document.clone())),
        }
    }

    /// Whether it records a write of the document.
    pub fn wrote(&self) -> bool {
        self.changes.is_some() || self.document.is_some()
    }

    /// Returns its place in the poller's history.
    pub fn place(&self) -> (Generation, u64) {
        (self.generation, self.seq)
    }

    /// Appends the line, including its line feed.
    pub fn write_to(&self, bytes: &mut Vec<u8>) {
        serde_json::to_writer(&mut *bytes, self).expect("an entry has only string keys");
        bytes.push(b'\n');
    }
}
