//! The state document: one JSON object that holds a poller's checkpoint and its lease.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use super::audit::Audit;
use super::format::VERSION;
use super::lease_record::LeaseRecord;
use super::parked::ParkedKeys;
use super::partition::RepartitionRecord;
use super::range::RangeRecord;
use super::step_results::StepResult;
use crate::cursor::{Cursor, SourceDefinition, SourceFingerprint};
use crate::event::{BatchId, EventsDigest};
use crate::grant::{FencingToken, Generation, Holder};
use crate::partition::Partition;

/// Everything that a poller remembers between ticks.
///
/// Unknown fields are kept in `extra` and written back. A field that *must* be supported is also listed in
/// `requires`; a reader that does not know a listed name rejects the document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateDocument {
    /// Version of the format; see [`VERSION`].
    pub version: u32,
    /// The poller this document belongs to.
    pub poller_name: String,
    /// Hash of the source definition that the checkpoint refers to.
    pub source_fingerprint: SourceFingerprint,
    /// The source definition in plain text, for messages; absent in documents written before the field existed.
    #[serde(default, skip_serializing_if = "SourceDefinition::is_empty")]
    pub source_definition: SourceDefinition,
    /// When the document was created; 0 in blank documents, and in those written before the field existed.
    #[serde(default)]
    pub generation: Generation,
    /// Unique per logical write: shows, after a lost response, whether the write succeeded.
    #[serde(default)]
    pub write_id: String,
    /// Names of features that a reader must support.
    #[serde(default)]
    pub requires: Vec<String>,
    /// What has been delivered.
    pub checkpoint: Checkpoint,
    /// Who may deliver.
    pub lease: LeaseRecord,
    /// The batch in flight, and its history so far.
    #[serde(default)]
    pub in_flight: Option<InFlight>,
    /// Rows quarantined since a row was last accepted: the counter of the breaker.
    #[serde(default, skip_serializing_if = "super::lease_record::is_zero")]
    pub quarantined_in_a_row: u32,
    /// How many keys are parked. Their entries are stored next to the document.
    #[serde(default, skip_serializing_if = "ParkedKeys::is_unused")]
    pub parked: ParkedKeys,
    /// Set while no tick may run.
    #[serde(default)]
    pub paused: Option<Paused>,
    /// What the last tick that wrote saw.
    #[serde(default)]
    pub observed: Option<BacklogObservation>,
    /// When a tick last succeeded: written with each commit, and by idle ticks that record their status.
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
    /// What ticks did in the last [`ACTIVITY_PERIODS`] periods in which one wrote, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activity: Vec<Activity>,
    /// Small histograms by step, for percentiles.
    #[serde(default)]
    pub timings: BTreeMap<String, Histogram>,
    /// What the source retains between ticks.
    #[serde(default)]
    pub source_state: Map<String, Json>,
    /// What has been delivered and will be read again, in modes based on time.
    #[serde(default, skip_serializing_if = "Audit::is_empty")]
    pub audit: Audit,
    /// Number of the last journal entry.
    #[serde(default)]
    pub journal_seq: u64,
    /// Whether the journal is known to have had entries of writes: set by the first write after such an append.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub journal_told: bool,
    /// Whether the marker that outlives this document has been written.
    #[serde(default)]
    pub marked: bool,
    /// Generation of the last reset, or of the start if there was none. Only these end a loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_generation: Option<Generation>,
    /// Set while a range is redelivered on request; part of every batch id.
    #[serde(default)]
    pub replay_id: Option<String>,
    /// The range, if this is the document of a range and not of a poller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<RangeRecord>,
    /// The partition of the keys that it belongs to, if the poller is partitioned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    /// The number of partitions that have taken over its rows, if they have.
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
            parked: ParkedKeys::default(),
            paused: None,
            observed: None,
            last_success_at: None,
            last_failure: None,
            recent: Vec::new(),
            activity: Vec::new(),
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

    /// Returns a blank document: it grants nothing, and exists only to be replaced.
    ///
    /// A request to create can only be conditional on absence, which holds again after a deletion. An abandoned
    /// request may therefore succeed minutes later, after everything that followed it was lost. So only blank
    /// documents are ever created: the first grant, its generation and its token are written under the blank
    /// document's tag, and that write can succeed only once.
    pub fn blank(poller: &str, fingerprint: SourceFingerprint) -> Self {
        Self::new(poller, fingerprint, Generation(0))
    }

    /// Whether it has no generation yet, so no grant of ours can be based on it.
    pub fn is_blank(&self) -> bool {
        self.generation == Generation(0)
    }

    /// Returns a blank document with its generation.
    ///
    /// What an operator has written into it meanwhile stays, as does the checkpoint of a document written before
    /// generations existed. Without a checkpoint, any source is acceptable.
    #[must_use]
    pub fn started(&self, generation: Generation, fingerprint: &SourceFingerprint) -> Self {
        let reset_generation = Some(generation);
        let mut next = Self { generation, reset_generation, ..self.clone() };
        if next.checkpoint.cursor.is_none() {
            next.source_fingerprint = fingerprint.clone();
        }
        next
    }

    /// Returns how the given source differs from the one of this document.
    pub fn source_differences(
        &self,
        fingerprint: &SourceFingerprint,
        definition: &SourceDefinition,
    ) -> String {
        self.source_definition.differences(definition).unwrap_or_else(|| {
            format!("its fingerprint was `{}`, is now `{fingerprint}`", self.source_fingerprint)
        })
    }

    /// Returns the newest grant as held by `owner_id`.
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
    /// Stop and report it: the state may come back, and a silent restart would redeliver everything.
    #[default]
    Stop,
    /// Start at the beginning, under a higher generation.
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
    /// The grant under which it was delivered, since two holders may deliver the same batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<FencingToken>,
    /// When that was.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub updated_at: Option<OffsetDateTime>,
    /// Details of that batch.
    #[serde(default)]
    pub metadata: CheckpointMetadata,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// Details of the batch that moved the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointMetadata {
    /// Rows in it.
    #[serde(default)]
    pub row_count: u64,
    /// Set from the first batch ever until a tick reaches the end of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_load: Option<FirstLoad>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// The batch in flight: what a successor needs to know about it.
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
    pub digest: EventsDigest,
    /// Whether its rows were found late, in the oldest window of [`StateDocument::audit`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// Whether its first row had failed alone, and the others are delivered to test if the target accepts any row.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probing: bool,
    /// Failed attempts at this position so far; a change of the rows does not reset the count.
    #[serde(default)]
    pub attempt: u32,
    /// Crashes of holders at this position.
    #[serde(default)]
    pub crashes: u32,
    /// Crashes before the last cleanly reported failure.
    #[serde(default)]
    pub crashes_survived: u32,
    /// When the first attempt at this position failed.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub first_failed_at: Option<OffsetDateTime>,
    /// Earliest time of the next attempt; storage time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub next_attempt_at: Option<OffsetDateTime>,
    /// The first error.
    #[serde(default)]
    pub first_error: Option<String>,
    /// The last error.
    #[serde(default)]
    pub last_error: Option<String>,
    /// The step of a handler chain that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_step: Option<String>,
    /// When this batch was first announced; storage time. Handlers get it at each attempt.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub started_at: Option<OffsetDateTime>,
    /// Results of the steps of a handler chain, in order; empty for other handlers.
    #[serde(default)]
    pub steps: Vec<StepResult>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// How a batch has been failing so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureRecord {
    /// Attempts.
    pub attempts: u32,
    /// Since when.
    pub since: Option<OffsetDateTime>,
    /// The last error.
    pub error: String,
}

impl InFlight {
    /// Returns how the batch has been failing so far; `None` if it has not.
    pub fn failing(&self) -> Option<FailureRecord> {
        let error = self.last_error.clone()?;
        Some(FailureRecord { attempts: self.attempt, since: self.first_failed_at, error })
    }

    /// Counts attempts and crashes from zero.
    pub(super) fn reset_attempts(&mut self) {
        self.first_failed_at = None;
        self.attempt = 0;
        self.crashes = 0;
        self.crashes_survived = 0;
    }
}

/// Why no tick may run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paused {
    /// Who paused it.
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
    /// Name under which a target's 410 pauses its poller.
    const BY_HANDLER: &str = "handler of `";
    /// Name under which the failure policy `stop` pauses its poller.
    const BY_POLICY: &str = "failure policy of `";

    /// Returns the name under which a poller is paused if its target is gone.
    pub fn by_handler_of(poller: &str) -> String {
        format!("{}{poller}`", Self::BY_HANDLER)
    }

    /// Returns the name under which a poller is paused by its failure policy.
    pub fn by_policy_of(poller: &str) -> String {
        format!("{}{poller}`", Self::BY_POLICY)
    }

    /// Whether the failure policy paused the poller: attempts or crashes reached their limit.
    pub(super) fn is_by_policy(&self) -> bool {
        self.by.starts_with(Self::BY_POLICY)
    }

    /// Whether a rule paused the poller, rather than a person.
    pub fn is_by_rule(by: &str) -> bool {
        by.starts_with(Self::BY_HANDLER) || by.starts_with(Self::BY_POLICY)
    }
}

/// The backlog of a poller, as seen by the last tick that wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BacklogObservation {
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Lag behind the source in seconds; `None` in modes without times.
    #[serde(default)]
    pub lag: Option<f64>,
    /// Positions from the start of the last read to the newest readable one; 0 if no row waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<u64>,
    /// Rows after the checkpoint, as of the last count, which has a limit and may be from an earlier tick; 0 if no
    /// row waits, `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Positions that cannot be read yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back: Option<u64>,
    /// Positions until change tracking clean-up loses changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_left: Option<u64>,
    /// Idle ticks of this process since its last delivery.
    #[serde(default)]
    pub idle_ticks: u64,
    /// The newest positions of recent reads, which date later rows in modes that count positions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<PositionTime>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// The newest position in use at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionTime {
    /// When a read started; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The newest position in use then, whether it was readable or not.
    pub newest: i64,
}

/// The delivery of the rows that existed before a poller that starts from the beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstLoad {
    /// When its first batch started; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub started_at: OffsetDateTime,
    /// Rows delivered so far.
    pub rows: u64,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// Consecutive failed ticks.
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

/// Length of a period of [`Activity`].
pub const ACTIVITY_PERIOD: Duration = Duration::from_secs(30 * 60);
/// Most periods to remember: eight hours.
pub const ACTIVITY_PERIODS: usize = 16;

/// What the ticks of a period did, as far as they wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Start of the period.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Number of ticks.
    pub ticks: u64,
    /// Those that failed.
    pub failed: u64,
    /// Rows committed.
    pub rows: u64,
    /// Largest age of the oldest row of a batch when it was read.
    pub lag_ms: u64,
    /// The longest tick.
    pub duration_ms: u64,
}

impl Activity {
    /// Returns the start of the period of a time.
    pub fn start_of(at: OffsetDateTime) -> OffsetDateTime {
        let period = i64::try_from(ACTIVITY_PERIOD.as_secs()).unwrap_or(i64::MAX);
        let seconds = at.unix_timestamp().rem_euclid(period);
        at.truncate_to_second() - Duration::from_secs(seconds.unsigned_abs())
    }

    /// Adds a tick to the periods, which are in order. Actions of operators are not ticks.
    pub(crate) fn add(periods: &mut Vec<Self>, tick: &RecentTick) {
        if !tick.extra.is_empty() {
            return;
        }
        let at = Self::start_of(tick.at);
        // The clock was wrong when these were recorded.
        periods.retain(|period| period.at <= at);
        if periods.last().is_none_or(|last| last.at < at) {
            periods.push(Self { at, ticks: 0, failed: 0, rows: 0, lag_ms: 0, duration_ms: 0 });
            let surplus = periods.len().saturating_sub(ACTIVITY_PERIODS);
            periods.drain(..surplus);
        }
        let Some(period) = periods.last_mut() else { return };
        period.ticks = period.ticks.saturating_add(1);
        period.failed =
            period.failed.saturating_add(u64::from(!SUCCEEDED.contains(&tick.outcome.as_str())));
        period.rows = period.rows.saturating_add(tick.rows);
        let lag = tick.longest_ms.get("lag").copied().unwrap_or(0);
        period.lag_ms = period.lag_ms.max(lag);
        period.duration_ms = period.duration_ms.max(tick.duration_ms);
    }
}

/// Outcomes that are no failures: a tick that ends with its process is continued by the next one.
const SUCCEEDED: [&str; 2] = ["tick_complete", "tick_aborted"];

/// One past tick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentTick {
    /// When it finished; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// How it finished, as the name of its log event.
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
    /// Longest of each step in it, in milliseconds: `fetch`, `handler`, `commit`, and `heartbeat` for the delay of a
    /// renewal; `lag` is the age of the oldest row of the last batch. The last commit is recorded by the next tick of
    /// the same process, because a commit cannot record its own duration.
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
    /// `counts[i]` durations were at most 2^i ms; the last bucket has the rest.
    counts: Vec<u64>,
}

impl Histogram {
    /// Buckets up to 2^20 ms, about 17 minutes: longer than any tick.
    const BUCKETS: usize = 21;

    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        self.counts.resize(Self::BUCKETS, 0);
        let bound = |bucket: &usize| 1_u128 << *bucket >= duration.as_millis();
        let bucket = (0..Self::BUCKETS).find(bound).unwrap_or(Self::BUCKETS - 1);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
    }

    /// Returns an upper bound in milliseconds for `percent` of the durations.
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
