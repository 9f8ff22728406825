//! The status of one poller, from its state document. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use super::health::{self, Failure, Health, LeaseStatus, PollerState, Severity};
use crate::admin::StoredEntry;
use crate::cursor::{Cursor, CursorMode, KeyId};
use crate::doctor::sizing::Sizing;
use crate::document::{
    Activity, BacklogObservation, DocumentAge, FencingToken, InFlight, LeaseState, ParkedKeys,
    Paused, RECENT_MAX, RecentTick, StaleWrite, StateDocument,
};
use crate::error::{Loss, chain, end_loss};
use crate::explain::key_text;
use crate::journal::Entry;
use crate::partition::Partition;
use crate::poller::TickError;
use crate::quarantine::EntryState;

/// The period over which the row rate is averaged, as far back as the document remembers.
pub const RATE_WINDOW: Duration = Duration::from_secs(10 * 60);

/// Most parked keys to show.
pub const KEYS_MAX: usize = 20;

/// What is known in addition to the document.
#[derive(Clone, Copy, Debug)]
pub struct StatusInputs<'a> {
    /// The age of the document.
    pub age: DocumentAge,
    /// The storage service's time.
    pub now: OffsetDateTime,
    /// Quarantined rows.
    pub quarantined: u64,
    /// The ttl of the settings; `None` if the poller is not in the settings.
    pub ttl: Option<Duration>,
    /// Its name.
    pub poller: &'a str,
}

/// The status of a poller.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// Its name.
    pub poller: String,
    /// Its state, and why.
    #[serde(flatten)]
    pub health: Health,
    /// Whether it is in the settings.
    pub configured: bool,
    /// Its partition, if the poller is partitioned.
    pub partition: Option<Partition>,
    /// Leading part of the checkpoint.
    pub checkpoint: Option<String>,
    /// The checkpoint with its key.
    pub cursor: Option<Cursor>,
    /// When the checkpoint moved; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub checkpoint_at: Option<OffsetDateTime>,
    /// Seconds since the checkpoint moved.
    pub checkpoint_age_seconds: Option<i64>,
    /// The batch that moved it.
    pub last_batch_id: Option<String>,
    /// Age of the oldest undelivered row now; 0 if none is waiting, `None` if that is unknown.
    pub lag_seconds: Option<f64>,
    /// Age of the oldest row of the last batch when it was read.
    pub lag_ms: Option<u64>,
    /// Progress of the first load, until it reaches the end of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_load: Option<LoadProgress>,
    /// What the last tick that wrote saw; `None` if there was none.
    pub observed: Option<BacklogStatus>,
    /// Rows committed per minute, over the last [`RATE_WINDOW`] or as far back as remembered.
    pub rows_per_minute: f64,
    /// The holder of the lease, or the last holder that did not release it.
    pub owner: Option<String>,
    /// Newest fencing token.
    pub token: u64,
    /// Orders tokens if a document was created again; 0 before the first grant.
    pub generation: u64,
    /// The held lease, if any.
    pub lease: Option<Lease>,
    /// When its functions run, as configured; `None` if unknown.
    pub schedule: Option<String>,
    /// The time zone of the schedules; `None` if unknown.
    pub time_zone: Option<String>,
    /// When the next function is due, with the offset of that zone; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub next_tick_at: Option<OffsetDateTime>,
    /// Why no tick may run.
    pub paused: Option<Pause>,
    /// Keys that have an entry, by a listing.
    pub quarantined: u64,
    /// The same as the document says, in more detail; `None` if no key was ever parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<ParkedStatus>,
    /// Failed attempts at the batch in flight.
    pub attempts: u32,
    /// Why the batch was not accepted, or why the document cannot be used.
    pub last_error: Option<String>,
    /// The batch in flight, or waiting for a retry.
    pub in_flight: Option<Batch>,
    /// The last ticks that wrote, newest last; at most [`RECENT_MAX`].
    pub recent: Vec<Tick>,
    /// What ticks did in the last hours, by half an hour, newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub activity: Vec<Activity>,
    /// The parked keys, sorted by id, at most [`KEYS_MAX`]; absent if not requested, or if none is parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<ParkedEntry>>,
    /// The newest events of its journal, newest first; absent if not requested, or no journal is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<Vec<Event>>,
    /// What recent ticks suggest; `None` if there are too few.
    pub sizing: Option<Sizing>,
    /// Settings that violate the sizing rules.
    pub warnings: Vec<String>,
}

/// Progress of a poller that delivers the rows that existed before it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadProgress {
    /// When it started; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub started_at: OffsetDateTime,
    /// Rows delivered so far.
    pub rows: u64,
    /// The same per second, up to the last commit.
    pub rows_per_second: f64,
}

/// A lease that is held, or was held by a crashed process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// How long it lives without a write of its holder.
    pub ttl_seconds: u64,
    /// How much of that is left; 0 also during the margin before a takeover.
    pub left_seconds: u64,
    /// When it was granted; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub acquired_at: Option<OffsetDateTime>,
}

/// The backlog of the poller, as seen by a tick.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BacklogStatus {
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Lag behind the source in seconds; `None` in modes without times.
    pub lag_seconds: Option<f64>,
    /// Positions from the start of the last read to the newest readable one; 0 if no row waits.
    pub positions: Option<u64>,
    /// Rows after the checkpoint as of the last count, up to a limit; 0 if no row waits.
    pub rows: Option<u64>,
    /// Positions that cannot be read yet.
    pub held_back: Option<u64>,
    /// Positions until change tracking clean-up loses changes.
    pub retention_left: Option<u64>,
    /// Idle ticks of that process since its last delivery.
    pub idle_ticks: u64,
}

/// Keys whose rows fail, as the document says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParkedStatus {
    /// Keys that are retried automatically.
    pub retrying: u64,
    /// Keys that wait for an operator.
    pub quarantined: u64,
    /// When the next key is retried; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub next_retry_at: Option<OffsetDateTime>,
}

impl ParkedStatus {
    fn of(parked: &ParkedKeys) -> Option<Self> {
        let ParkedKeys { quarantined, next_retry_at, .. } = *parked;
        let retrying = parked.retrying();
        (!parked.is_unused()).then_some(Self { retrying, quarantined, next_retry_at })
    }
}

/// A parked key, with its row that is waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParkedEntry {
    /// Id of the key, which commands take.
    pub key_id: String,
    /// The key, or why the entry cannot be read.
    pub key: String,
    /// Whether it is retried automatically; `None` if the entry cannot be read.
    pub state: Option<EntryState>,
    /// Why it was parked.
    pub reason: Option<&'static str>,
    /// Since when; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// Versions of the row that were parked.
    pub versions: u64,
    /// Automatic retries so far.
    pub retries: u32,
    /// When the next one is due; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub next_retry_at: Option<OffsetDateTime>,
    /// The last error.
    pub error: Option<String>,
}

impl ParkedEntry {
    /// Returns the view of a stored entry.
    pub fn of(stored: &StoredEntry) -> Self {
        match &stored.entry {
            Ok(entry) => Self {
                key_id: stored.key.to_string(),
                key: key_text(&entry.row_key().unwrap_or_default()),
                state: Some(entry.state),
                reason: Some(entry.reason.as_str()),
                since: Some(entry.first_failed_at),
                versions: entry.versions,
                retries: entry.retries,
                next_retry_at: entry.next_retry_at,
                error: Some(entry.error.clone()),
            },
            Err(error) => Self::unreadable(&stored.key, error),
        }
    }

    /// Returns the view of an entry that cannot be read.
    pub(super) fn unreadable(key: &KeyId, error: &dyn std::error::Error) -> Self {
        Self {
            key_id: key.to_string(),
            key: chain(error),
            state: None,
            reason: None,
            since: None,
            versions: 0,
            retries: 0,
            next_retry_at: None,
            error: None,
        }
    }
}

/// Why no tick may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// Who paused it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

/// The batch in flight, or waiting for a retry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Batch {
    /// Its content identity.
    pub batch_id: String,
    /// Rows in it.
    pub rows: u64,
    /// Position before its first row.
    pub after: Option<Cursor>,
    /// Position of its last row.
    pub upto: Cursor,
    /// Whether its rows were found late.
    pub late: bool,
    /// Failed attempts so far.
    pub attempt: u32,
    /// Crashes while handling it.
    pub crashes: u32,
    /// When it was first announced; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    /// When it first failed; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub first_failed_at: Option<OffsetDateTime>,
    /// Earliest time of the next attempt; storage time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub next_attempt_at: Option<OffsetDateTime>,
    /// The first error.
    pub first_error: Option<String>,
    /// The last error.
    pub last_error: Option<String>,
    /// Steps of a handler chain whose result is stored.
    pub steps_done: Vec<String>,
}

/// What the outcome of a tick means to an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    /// It did what it should.
    Good,
    /// Part of the protocol; worth a look if it happens often.
    Warning,
    /// It failed.
    Bad,
    /// An action of an operator or the recovery controller.
    Note,
}

/// One past tick, or an action between two ticks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tick {
    /// When it ended; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// How it ended, as the name of its log event.
    pub outcome: String,
    /// What that means.
    pub tone: Tone,
    /// Rows committed.
    pub rows: u64,
    /// Batches committed.
    pub batches: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// Idle ticks of the same process just before it.
    pub idle_before: u64,
    /// Longest of each step in it.
    pub longest_ms: BTreeMap<String, u64>,
    /// Who did it and why, if it was not a tick.
    pub note: Option<String>,
}

/// One event of a journal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Number of the write it records.
    pub seq: u64,
    /// The kind, as the name of its log event.
    pub event: &'static str,
    /// Token of the grant.
    pub token: u64,
    /// The batch.
    pub batch_id: Option<String>,
    /// Rows in it.
    pub rows: Option<u64>,
    /// The error, or the reason.
    pub text: Option<String>,
    /// Who caused it.
    pub who: Option<String>,
}

impl Status {
    /// Returns the status according to a document.
    pub fn of(document: &StateDocument, inputs: StatusInputs<'_>) -> Self {
        let StatusInputs { age, now, quarantined, ttl, poller } = inputs;
        let checkpoint = &document.checkpoint;
        let batch = document.in_flight.as_ref();
        let ttl_of_lease = Duration::from_secs(document.lease.ttl_seconds);
        let sizing = Sizing::of(document, ttl.unwrap_or(ttl_of_lease));
        let mut last = document.recent.iter().rev();
        let released = document.lease.released_at.is_some();
        let batch_id = checkpoint.last_successful_batch_id.as_ref();
        Self {
            poller: poller.to_owned(),
            configured: ttl.is_some(),
            partition: document.partition,
            checkpoint: checkpoint.cursor.as_ref().map(|cursor| cursor.value.clone()),
            cursor: checkpoint.cursor.clone(),
            checkpoint_at: checkpoint.updated_at,
            checkpoint_age_seconds: checkpoint.updated_at.map(|at| (now - at).whole_seconds()),
            last_batch_id: batch_id.map(|id| id.as_str().to_owned()),
            lag_ms: last.find_map(|tick| tick.longest_ms.get("lag")).copied(),
            observed: document.observed.as_ref().map(BacklogStatus::of),
            first_load: first_load(document),
            rows_per_minute: rows_per_minute(&document.recent, now),
            owner: document.lease.owner_id.clone().filter(|_| !released),
            token: document.lease.fencing_token.0,
            generation: document.generation.0,
            lease: Lease::of(document, age),
            paused: document.paused.as_ref().map(Pause::of),
            quarantined,
            parked: ParkedStatus::of(&document.parked),
            attempts: batch.map_or(0, |batch| batch.attempt),
            last_error: document
                .fence_ahead()
                .map(|refused| fence_ahead(&document.poller_name, refused))
                .or_else(|| batch.and_then(|batch| batch.last_error.clone())),
            in_flight: batch.map(Batch::of),
            recent: document.recent.iter().map(Tick::of).collect(),
            activity: document.activity.clone(),
            warnings: sizing.as_ref().map(Sizing::warnings).unwrap_or_default(),
            sizing,
            ..Self::default()
        }
    }

    /// Adds the health of the poller, and its current lag, which depends on that.
    #[must_use]
    pub fn with_health(self, health: Health, now: OffsetDateTime) -> Self {
        let reads = matches!(health.state, PollerState::Idle | PollerState::Running);
        let lag_seconds = self.observed.as_ref().and_then(|seen| seen.lag_at(now, reads));
        Self { health, lag_seconds, ..self }
    }

    /// Whether it is a range of which nothing more will be delivered.
    pub fn has_ended(&self) -> bool {
        matches!(self.health.state, PollerState::Done | PollerState::Cancelled)
    }

    /// Whether it needs attention.
    pub fn needs_attention(&self) -> bool {
        self.health.severity > Severity::Ok
    }
}

/// Returns why no tick delivers, in the words of the tick's error.
fn fence_ahead(poller: &str, refused: StaleWrite) -> String {
    let StaleWrite { stale, current } = refused;
    chain(&TickError::FenceAhead { poller: poller.to_owned(), stale, current })
}

impl<'a> health::Document<'a> {
    /// Returns what a document says about the health of its poller.
    pub fn of(document: &'a StateDocument, age: DocumentAge) -> Self {
        let lease = &document.lease;
        let batch = document.in_flight.as_ref();
        let last_success_at = document.last_success_at.or(document.checkpoint.updated_at);
        let failure = document.last_failure.as_ref().map(|last| Failure {
            at: last.at,
            since: last.since,
            count: last.count,
            kind: last.kind.clone(),
            error: last.error.clone(),
        });
        let traces = [
            lease.acquired_at,
            lease.heartbeat_at,
            lease.released_at,
            document.observed.as_ref().map(|observed| observed.at),
            failure.as_ref().map(|failure| failure.at),
            last_success_at,
        ];
        Self {
            ended: ended(document),
            has_run: lease.fencing_token > FencingToken(0),
            lease: match document.lease_state_for_others(age) {
                LeaseState::Free => LeaseStatus::Free,
                LeaseState::Held { .. } | LeaseState::Own => LeaseStatus::Held,
                LeaseState::Lapsed => {
                    LeaseStatus::Lapsed { owner_id: lease.owner_id.as_deref().unwrap_or_default() }
                }
            },
            paused: document.paused.as_ref().map(|paused| health::Pause {
                by: &paused.by,
                reason: &paused.reason,
                at: paused.at,
                is_by_rule: Paused::is_by_rule(&paused.by),
            }),
            stopped: stopped(document),
            failure: failure.or_else(|| failure_of_batch(document)),
            last_success_at,
            last_tick_at: traces.into_iter().flatten().max(),
            next_attempt_at: batch.and_then(|batch| batch.next_attempt_at),
            quarantined: document.parked.quarantined,
        }
    }
}

fn ended(document: &StateDocument) -> Option<PollerState> {
    if document.taken_over_by.is_some() {
        return Some(PollerState::TakenOver);
    }
    let range = document.range.as_ref().filter(|range| range.has_ended())?;
    Some(if range.done_at.is_some() { PollerState::Done } else { PollerState::Cancelled })
}

/// Returns why each tick stops before it reads, and the command that resolves it.
fn stopped(document: &StateDocument) -> Option<String> {
    if let Some(refused) = document.fence_ahead() {
        return Some(fence_ahead(&document.poller_name, refused));
    }
    let reason = document.lost_position()?;
    let cursor = document.checkpoint.cursor.as_ref();
    let is_tracked = cursor.is_some_and(|cursor| cursor.mode == CursorMode::ChangeTracking);
    // Only a final loss is stored.
    let loss = Loss { is_tracked, is_final: true, is_new_source: false };
    Some(format!("{reason}; {}", end_loss(&document.poller_name, loss)))
}

/// Returns how the batch in flight failed, for documents written before `last_failure` existed.
fn failure_of_batch(document: &StateDocument) -> Option<Failure> {
    let failing = document.in_flight.as_ref()?.failing()?;
    let at = document.lease.released_at?;
    let (since, count) = (failing.since.unwrap_or(at), failing.attempts.max(1).into());
    Some(Failure { at, since, count, kind: "handler_failed".to_owned(), error: failing.error })
}

fn first_load(document: &StateDocument) -> Option<LoadProgress> {
    let load = document.checkpoint.metadata.first_load.as_ref();
    let load = load.filter(|_| !document.has_no_backlog())?;
    let until = document.checkpoint.updated_at.unwrap_or(load.started_at);
    let seconds = (until - load.started_at).as_seconds_f64().max(1.0);
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a rate for people")]
    let rows_per_second = load.rows as f64 / seconds;
    let rows_per_second = (rows_per_second * 100.0).round() / 100.0;
    Some(LoadProgress { started_at: load.started_at, rows: load.rows, rows_per_second })
}

/// Returns the rows per minute of the ticks in the last [`RATE_WINDOW`]. If the ring is full and does not reach back
/// that far, the period that it covers is used.
fn rows_per_minute(recent: &[RecentTick], now: OffsetDateTime) -> f64 {
    let since = now - RATE_WINDOW;
    let within: Vec<&RecentTick> = recent.iter().filter(|tick| tick.at > since).collect();
    let rows: u64 = within.iter().map(|tick| tick.rows).sum();
    let is_cut = recent.len() >= RECENT_MAX && within.len() == recent.len();
    let from = within.first().filter(|_| is_cut).map_or(since, |tick| tick.at);
    let minutes = (now - from).as_seconds_f64() / 60.0;
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = rows as f64 / minutes.max(1.0 / 60.0);
    // The ring does not support more than two digits.
    (rate * 100.0).round() / 100.0
}

impl Lease {
    fn of(document: &StateDocument, age: DocumentAge) -> Option<Self> {
        let lease = &document.lease;
        if document.lease_state_for_others(age) == LeaseState::Free {
            return None;
        }
        let idle = document.idle(age).as_secs();
        Some(Self {
            ttl_seconds: lease.ttl_seconds,
            left_seconds: lease.ttl_seconds.saturating_sub(idle),
            acquired_at: lease.acquired_at,
        })
    }
}

impl BacklogStatus {
    /// Returns the age of the oldest undelivered row at `now`. If no row was waiting, it is 0 as long as the poller
    /// `reads` its source, and otherwise unknown.
    fn lag_at(&self, now: OffsetDateTime, reads: bool) -> Option<f64> {
        let lag = self.lag_seconds?;
        // Earlier versions did not say that no row is waiting.
        let waits = match (self.rows, self.positions) {
            (Some(rows), _) => rows > 0,
            (None, Some(positions)) => positions > 0,
            (None, None) => lag > 0.0,
        };
        if !waits {
            return reads.then_some(0.0);
        }
        Some(lag + (now - self.at).as_seconds_f64().max(0.0))
    }

    fn of(observed: &BacklogObservation) -> Self {
        Self {
            at: observed.at,
            lag_seconds: observed.lag,
            positions: observed.positions,
            rows: observed.rows,
            held_back: observed.held_back,
            retention_left: observed.retention_left,
            idle_ticks: observed.idle_ticks,
        }
    }
}

impl Pause {
    fn of(paused: &Paused) -> Self {
        Self { by: paused.by.clone(), reason: paused.reason.clone(), at: paused.at }
    }
}

impl Batch {
    fn of(batch: &InFlight) -> Self {
        Self {
            batch_id: batch.batch_id.as_str().to_owned(),
            rows: batch.rows,
            after: batch.after.clone(),
            upto: batch.upto.clone(),
            late: batch.late,
            attempt: batch.attempt,
            crashes: batch.crashes,
            started_at: batch.started_at,
            first_failed_at: batch.first_failed_at,
            next_attempt_at: batch.next_attempt_at,
            first_error: batch.first_error.clone(),
            last_error: batch.last_error.clone(),
            steps_done: batch.steps.iter().map(|step| step.step.clone()).collect(),
        }
    }
}

impl Tick {
    fn of(tick: &RecentTick) -> Self {
        let text = |name: &str| tick.extra.get(name).and_then(|value| value.as_str());
        let note = match (text("by"), text("reason"), text("condition")) {
            (Some(by), Some(reason), _) if !reason.is_empty() => Some(format!("{by}: {reason}")),
            (Some(by), ..) => Some(by.to_owned()),
            (None, _, condition) => condition.map(str::to_owned),
        };
        Self {
            at: tick.at,
            outcome: tick.outcome.clone(),
            tone: tone(&tick.outcome),
            rows: tick.rows,
            batches: tick.batches,
            duration_ms: tick.duration_ms,
            idle_before: tick.idle_before,
            longest_ms: tick.longest_ms.clone(),
            note,
        }
    }
}

impl Event {
    /// Returns the view of an entry.
    pub fn of(entry: &Entry) -> Self {
        let Entry { at, seq, event, fencing_token, details, owner_id, .. } = entry;
        let texts = [&details.error, &details.reason, &details.outcome];
        Self {
            at: *at,
            seq: *seq,
            event: event.as_str(),
            token: fencing_token.0,
            batch_id: details.batch_id.as_ref().map(|id| id.as_str().to_owned()),
            rows: details.rows,
            text: texts.into_iter().flatten().next().cloned(),
            who: details.by.clone().or_else(|| owner_id.clone()),
        }
    }
}

/// Returns what the outcome of a tick means, by the names of the table at
/// [`outcome_row`](crate::poller::outcome_row).
pub fn tone(outcome: &str) -> Tone {
    match outcome {
        "tick_complete" | "fetch_empty" => Tone::Good,
        "lease_lost"
        | "stale_write_blocked"
        | "lease_acquire_skipped"
        | "tick_backing_off"
        | "tick_aborted"
        | "tick_paused" => Tone::Warning,
        "fingerprint_mismatch"
        | "state_vanished"
        | "not_started"
        | "first_run_elsewhere"
        | "position_lost"
        | "schema_changed"
        | "fence_ahead" => Tone::Bad,
        failed if failed.ends_with("_failed") => Tone::Bad,
        _ => Tone::Note,
    }
}

#[cfg(test)]
mod tests;
