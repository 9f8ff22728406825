//! The state document: one JSON object that holds a poller's checkpoint and its lease.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use super::audit::Audit;
use super::format::VERSION;
use super::lease_record::LeaseRecord;
use super::partition::RepartitionRecord;
use super::range::RangeRecord;
use super::step_results::StepResult;
use crate::cursor::{Cursor, SourceDefinition, SourceFingerprint};
use crate::event::{BatchId, Digested};
use crate::grant::{FencingToken, Generation, Holder};
use crate::partition::Partition;

/// Everything that a poller remembers between ticks.
///
/// Fields that this version does not know are kept in `extra` and written back. A field that *must*
/// be obeyed is also named in `requires`; a reader that does not know such a name refuses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateDocument {
    /// Version of the format; see [`VERSION`].
    pub version: u32,
    /// The poller this document belongs to.
    pub poller_name: String,
    /// Hash of the source definition that gives the checkpoint its meaning.
    pub source_fingerprint: SourceFingerprint,
    /// The source definition in plain text, for messages; absent in documents made before the field existed.
    #[serde(default, skip_serializing_if = "SourceDefinition::is_empty")]
    pub source_definition: SourceDefinition,
    /// When the document was created; 0 in blank ones, and in those made before the field existed.
    #[serde(default)]
    pub generation: Generation,
    /// Unique per logical write: shows, after a lost response, whether the write landed.
    #[serde(default)]
    pub write_id: String,
    /// Names of features that a reader must know.
    #[serde(default)]
    pub requires: Vec<String>,
    /// What has been delivered.
    pub checkpoint: Checkpoint,
    /// Who may deliver.
    pub lease: LeaseRecord,
    /// The batch being handled, and what has happened to it so far.
    #[serde(default)]
    pub in_flight: Option<InFlight>,
    /// Rows that were quarantined since a row was last accepted: the count of the breaker.
    #[serde(default, skip_serializing_if = "super::lease_record::is_zero")]
    pub quarantined_in_a_row: u32,
    /// Set while no tick may run.
    #[serde(default)]
    pub paused: Option<Paused>,
    /// What the last tick saw that wrote.
    #[serde(default)]
    pub observed: Option<Observed>,
    /// When a tick succeeded last: with each commit, and with each note of an idle tick.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_success_at: Option<OffsetDateTime>,
    /// Failed ticks since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
    /// The last [`RECENT_MAX`] ticks that wrote, newest last.
    #[serde(default)]
    pub recent: Vec<RecentTick>,
    /// Small histograms by step, for percentiles.
    #[serde(default)]
    pub timings: BTreeMap<String, Histogram>,
    /// What the source's mode must remember between ticks.
    #[serde(default)]
    pub source_state: Map<String, Json>,
    /// What has been delivered and will be read again, in the modes that go by time.
    #[serde(default, skip_serializing_if = "Audit::is_empty")]
    pub audit: Audit,
    /// Number of the last journal entry.
    #[serde(default)]
    pub journal_seq: u64,
    /// Whether the journal is known to have had entries: noted with the first write after an append.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub journal_told: bool,
    /// Whether the marker that outlives this document has been written.
    #[serde(default)]
    pub marked: bool,
    /// Generation of the last reset, or of the start where there was none. Only these end a loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_generation: Option<Generation>,
    /// Set while a range is delivered again on purpose; part of every batch id.
    #[serde(default)]
    pub replay_id: Option<String>,
    /// The range, where this is the document of one and not of a poller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<RangeRecord>,
    /// Which part of the keys it is of, where they are divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    /// How many parts deliver its rows now, where those are others than it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_over_by: Option<u16>,
    /// Progress of a repartition; in the document of the first partition only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repartition: Option<RepartitionRecord>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl StateDocument {
    /// Returns the document of a poller that has never run.
    pub fn new(poller: &str, fingerprint: SourceFingerprint, generation: Generation) -> Self {
        Self {
            version: VERSION,
            poller_name: poller.to_owned(),
            source_fingerprint: fingerprint,
            source_definition: SourceDefinition::default(),
            generation,
            write_id: String::new(),
            requires: Vec::new(),
            checkpoint: Checkpoint::default(),
            lease: LeaseRecord::default(),
            in_flight: None,
            quarantined_in_a_row: 0,
            paused: None,
            observed: None,
            last_success_at: None,
            last_failure: None,
            recent: Vec::new(),
            timings: BTreeMap::new(),
            source_state: Map::new(),
            audit: Audit::default(),
            journal_seq: 0,
            journal_told: false,
            marked: false,
            reset_generation: None,
            replay_id: None,
            range: None,
            partition: None,
            taken_over_by: None,
            repartition: None,
            extra: Map::new(),
        }
    }

    /// Returns the place kept for a document: it grants nothing and is there to be replaced.
    ///
    /// A request to create can only be conditional on nothing being there, which holds again after a
    /// deletion. So one that was given up may land minutes later, on the ruins of what came after it.
    /// That is why nothing but a blank document is ever created: the first grant, its generation and
    /// its token ride on a write under the blank one's tag, and that can land only once.
    pub fn blank(poller: &str, fingerprint: SourceFingerprint) -> Self {
        Self::new(poller, fingerprint, Generation(0))
    }

    /// Whether it has no generation yet, so that none of our grants can have been made of it.
    pub fn is_blank(&self) -> bool {
        self.generation == Generation(0)
    }

    /// Returns a blank document under its generation.
    ///
    /// What an operator has written into it meanwhile stays, as does the checkpoint of a document
    /// made before generations existed. Without a checkpoint any source may be begun with.
    #[must_use]
    pub fn begun(&self, generation: Generation, fingerprint: &SourceFingerprint) -> Self {
        let reset_generation = Some(generation);
        let mut next = Self { generation, reset_generation, ..self.clone() };
        if next.checkpoint.cursor.is_none() {
            next.source_fingerprint = fingerprint.clone();
        }
        next
    }

    /// Returns how the source with the fingerprint and definition given differs from the one of this document.
    pub fn source_differences(
        &self,
        fingerprint: &SourceFingerprint,
        definition: &SourceDefinition,
    ) -> String {
        self.source_definition.differences(definition).unwrap_or_else(|| {
            format!("its fingerprint was `{}`, is now `{fingerprint}`", self.source_fingerprint)
        })
    }

    /// Returns the newest grant as one of `owner_id`.
    pub fn holder(&self, owner_id: &str) -> Holder {
        Holder {
            generation: self.generation,
            owner_id: owner_id.to_owned(),
            token: self.lease.fencing_token,
        }
    }
}

/// What to do when a poller that has run before has no state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissingState {
    /// Stop and say so: the state may come back, and a silent replay would deliver everything again.
    #[default]
    Stop,
    /// Begin at the beginning, under a higher generation.
    Recreate,
}

/// Most entries kept in [`StateDocument::recent`].
pub const RECENT_MAX: usize = 50;

/// How far the source has been delivered, and by which batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Position of the last delivered row; `None` before the first commit.
    #[serde(default)]
    pub cursor: Option<Cursor>,
    /// The batch that moved it here.
    #[serde(default)]
    pub last_successful_batch_id: Option<BatchId>,
    /// The grant that it was delivered under, as two holders may deliver the same batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<FencingToken>,
    /// When that was.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub updated_at: Option<OffsetDateTime>,
    /// About that batch.
    #[serde(default)]
    pub metadata: CheckpointMetadata,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// About the batch that moved the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointMetadata {
    /// Rows in it.
    #[serde(default)]
    pub row_count: u64,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// The batch being handled: what a successor needs to know of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    /// Content identity of the batch.
    pub batch_id: BatchId,
    /// Position before its first row.
    #[serde(default)]
    pub after: Option<Cursor>,
    /// Position of its last row.
    pub upto: Cursor,
    /// Rows in it.
    pub rows: u64,
    /// Digest of its encoded rows.
    pub digest: Digested,
    /// Whether its rows were found late, in the oldest window of [`StateDocument::audit`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// Whether its first row had failed alone, and the others are tried to tell whether the target takes any.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probing: bool,
    /// Failed attempts at this position so far; rows that changed meanwhile do not start it over.
    #[serde(default)]
    pub attempt: u32,
    /// Times a holder died at this position.
    #[serde(default)]
    pub crashes: u32,
    /// Crashes before the last cleanly reported failure.
    #[serde(default)]
    pub crashes_survived: u32,
    /// When the first attempt at this position failed.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub first_failed_at: Option<OffsetDateTime>,
    /// Not to be tried before; storage time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub next_attempt_at: Option<OffsetDateTime>,
    /// Why it failed first.
    #[serde(default)]
    pub first_error: Option<String>,
    /// Why it failed last.
    #[serde(default)]
    pub last_error: Option<String>,
    /// When this batch was first announced; storage time. Handlers get it at each attempt.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub started_at: Option<OffsetDateTime>,
    /// What the steps of a handler chain said of it, in their order; none for other handlers.
    #[serde(default)]
    pub steps: Vec<StepResult>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// How a batch has failed so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureRecord {
    /// Attempts.
    pub attempts: u32,
    /// Since when.
    pub since: Option<OffsetDateTime>,
    /// Why it failed last.
    pub error: String,
}

impl InFlight {
    /// Returns how the batch has failed so far; `None` where it has not.
    pub fn failing(&self) -> Option<FailureRecord> {
        let error = self.last_error.clone()?;
        Some(FailureRecord { attempts: self.attempt, since: self.first_failed_at, error })
    }
}

/// Why no tick may run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paused {
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl Paused {
    /// Name of the handler that a target's 410 pauses its poller under.
    const BY_HANDLER: &str = "handler of `";
    /// Name that a failure policy of `stop` pauses its poller under.
    const BY_POLICY: &str = "failure policy of `";

    /// Returns who pauses a poller whose target is gone.
    pub fn by_handler_of(poller: &str) -> String {
        format!("{}{poller}`", Self::BY_HANDLER)
    }

    /// Returns who pauses a poller whose failure policy says so.
    pub fn by_policy_of(poller: &str) -> String {
        format!("{}{poller}`", Self::BY_POLICY)
    }

    /// Whether a rule paused the poller, and no person.
    pub fn is_by_rule(by: &str) -> bool {
        by.starts_with(Self::BY_HANDLER) || by.starts_with(Self::BY_POLICY)
    }
}

/// The backlog of a poller, as the last tick that wrote saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Lag behind the source in seconds; `None` in modes that know no times.
    #[serde(default)]
    pub lag: Option<f64>,
    /// Positions from where the last read began to the newest one that may be read; 0 where no row waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<u64>,
    /// Rows after the checkpoint, as they were counted last: up to a limit, and after an earlier tick; 0 where no
    /// row waits, `None` where they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Positions that may not be read yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back: Option<u64>,
    /// Positions until changes are lost to the cleaning up of tracked changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_left: Option<u64>,
    /// Idle ticks of this process since its last delivery.
    #[serde(default)]
    pub idle_ticks: u64,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// Failed ticks without a success in between.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastFailure {
    /// The last one; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The first one; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// How many.
    pub count: u64,
    /// What failed: see [`FailureClass::of`](crate::status::health::FailureClass::of).
    pub kind: String,
    /// Why, in one line and without secrets.
    pub error: String,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// One past tick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentTick {
    /// When it ended; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// How it ended, by the name of its log event.
    pub outcome: String,
    /// Rows committed.
    #[serde(default)]
    pub rows: u64,
    /// Batches committed.
    #[serde(default)]
    pub batches: u64,
    /// How long it took.
    #[serde(default)]
    pub duration_ms: u64,
    /// Idle ticks of the same process just before it.
    #[serde(default)]
    pub idle_before: u64,
    /// Longest of each step in it, in milliseconds: `fetch`, `handler`, `commit`, and `heartbeat` for
    /// how late a renewal landed; `lag` is how old the oldest row of the last batch was. The last commit
    /// is told by the next tick of the same process, as it cannot tell of itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub longest_ms: BTreeMap<String, u64>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// Counts of durations in powers of two of a millisecond.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    /// `counts[i]` durations were at most 2^i ms; the last bucket takes the rest.
    counts: Vec<u64>,
}

impl Histogram {
    /// Buckets up to 2^20 ms, about 17 minutes: longer than any tick may run.
    const BUCKETS: usize = 21;

    /// Counts one duration.
    pub fn record(&mut self, duration: std::time::Duration) {
        self.counts.resize(Self::BUCKETS, 0);
        let bound = |bucket: &usize| 1_u128 << *bucket >= duration.as_millis();
        let bucket = (0..Self::BUCKETS).find(bound).unwrap_or(Self::BUCKETS - 1);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
    }

    /// Returns the upper bound in milliseconds of `percent` of the durations.
    pub fn percentile_ms(&self, percent: u64) -> Option<u64> {
        let total: u64 = self.counts.iter().sum();
        let wanted = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(1 << bucket)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_histogram_gives_percentiles_by_bucket_bounds() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile_ms(99), None);
        for ms in [0, 1, 3, 3, 100_000_000] {
            histogram.record(Duration::from_millis(ms));
        }
        assert_eq!(histogram.percentile_ms(50), Some(4));
        assert_eq!(histogram.percentile_ms(100), Some(1 << 20));
    }
}
