//! What a poller remembers about its state between ticks, and how it reloads it.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::warn;

use super::outcome::{refused_outcome, rfc3339};
use super::{Poller, TickError, TickOutcome};
use crate::cursor::{Cursor, SourceFingerprint, SourceState};
use crate::document::{
    BacklogObservation, FencingToken, Generation, LeaseState, LoadError, Marker, OnMissingState,
    PositionTime, Snapshot, StateDocument, decode_marker, encode_marker,
};
use crate::error::chain;
use crate::journal::EventKind;
use crate::lease::Lease;
use crate::policy::OnFailure;
use crate::poller::Skipped;
use crate::quarantine::KnownKeys;
use crate::range::mismatch;
use crate::source::{Lag, RetainedState, SourceShape};
use crate::status::health::FailureClass;
use crate::store::{Precondition, StateKey};

/// Pause between two counts, as a multiple of the duration of the last one.
const COUNT_SHARE: u32 = 10;

/// What the last tick knew.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    snapshot: Option<Snapshot>,
    /// Whether the snapshot has changes that are not written yet.
    has_news: bool,
    idle_ticks: u64,
    /// The lag of the last read.
    lag: Lag,
    /// The checkpoint with which the last tick started, and the retained state of its source.
    began: (Option<Cursor>, SourceState),
    /// When waiting rows were last counted, and how long that took.
    counted: Option<(Instant, Duration)>,
    /// Waiting rows at the end of the last tick that knew.
    rows_behind: Option<u64>,
    /// The parked keys.
    pub(crate) keys: KnownKeys,
}

impl Memory {
    pub(crate) fn note_lag(&mut self, lag: Lag) {
        self.lag = lag;
    }

    pub(crate) fn forget(&mut self) {
        self.know(None);
    }

    pub(crate) fn remember(&mut self, lease: Lease<'_>) {
        self.idle_ticks = 0;
        self.know(Some(lease.into_snapshot()));
    }

    /// Remembers a document as it is stored.
    fn know(&mut self, stored: Option<Snapshot>) {
        self.snapshot = stored;
        self.has_news = false;
    }

    /// Remembers a document with the results of an idle tick.
    fn keep(&mut self, found: Snapshot) {
        let StateDocument { source_state, audit, .. } = &*found.document;
        let is_known = self.snapshot.as_ref().is_some_and(|known| {
            known.document.source_state == *source_state && known.document.audit == *audit
        });
        self.has_news |= !is_known;
        self.snapshot = Some(found);
    }

    /// Returns the document as last known to this process.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// Records where a tick starts.
    pub(crate) fn begin(&mut self, base: &Snapshot) {
        let document = &base.document;
        self.began = (document.checkpoint.cursor.clone(), document.source_state.clone());
    }

    /// Returns the last known checkpoint and the source state stored with it.
    pub(crate) fn behind(&self) -> (Option<Cursor>, SourceState) {
        let Some(snapshot) = &self.snapshot else { return self.began.clone() };
        let document = &snapshot.document;
        (document.checkpoint.cursor.clone(), document.source_state.clone())
    }

    /// Whether rows may be counted again: once ten times the duration of the last count has passed.
    pub(crate) fn may_count(&self) -> bool {
        self.counted.is_none_or(|(at, took)| at.elapsed() >= took * COUNT_SHARE)
    }

    /// Records that a count has just finished, and how long it took.
    pub(crate) fn note_count(&mut self, took: Duration) {
        self.counted = Some((Instant::now(), took));
    }

    /// Records the number of waiting rows.
    pub(crate) fn note_backlog(&mut self, rows: u64) {
        self.rows_behind = Some(rows);
    }

    /// Returns the number of waiting rows at the end of the last tick that knew.
    pub(crate) fn rows_behind(&self) -> Option<u64> {
        self.rows_behind
    }

    /// Undoes the count of an idle tick, because the tick continues or has delivered before.
    pub(crate) fn uncount_idle_tick(&mut self) {
        self.idle_ticks = self.idle_ticks.saturating_sub(1);
    }

    /// Returns the number of idle ticks since the last delivery, and resets it.
    pub(crate) fn take_idle_ticks(&mut self) -> u64 {
        std::mem::take(&mut self.idle_ticks)
    }
}

/// Returns the backlog that the state document records.
pub(crate) fn observed(
    at: OffsetDateTime,
    lag: Lag,
    rows: Option<u64>,
    idle_ticks: u64,
    reads: Vec<PositionTime>,
) -> BacklogObservation {
    BacklogObservation {
        at,
        lag: lag.time.map(|time| time.as_secs_f64()),
        positions: lag.positions,
        rows,
        held_back: lag.held_back,
        retention_left: lag.retention_left,
        idle_ticks,
        reads,
        extra: serde_json::Map::new(),
    }
}

impl Poller {
    /// Returns the state document: from memory if it is fresh and would let a tick run, otherwise from the store.
    pub(crate) async fn load(&self, memory: &mut Memory) -> Result<Snapshot, TickError> {
        if let Some(snapshot) = &memory.snapshot
            && snapshot.since_read() < self.limits.state_refresh
            && self.block_reason(snapshot).is_none()
        {
            return Ok(snapshot.clone());
        }
        let snapshot = Box::pin(self.read()).await?;
        memory.know(Some(snapshot.clone()));
        Ok(snapshot)
    }

    pub(crate) async fn read(&self) -> Result<Snapshot, TickError> {
        self.read_to(true).await
    }

    /// Reads the state document like a tick. If `begins`, starts a poller without state; otherwise writes nothing.
    pub(crate) async fn read_to(&self, begins: bool) -> Result<Snapshot, TickError> {
        // Boxed: the result is large, and all other futures contain this one.
        let mut snapshot = Box::pin(self.look()).await?;
        if snapshot.document.is_blank() {
            snapshot = Box::pin(self.begin(snapshot, begins)).await?;
        }
        self.reject_partition_count_of(&snapshot.document)?;
        let shape = self.source.shape();
        if snapshot.document.source_fingerprint != shape.fingerprint {
            return Err(self.other_source(&snapshot.document));
        }
        // Documents written before the field existed get it with their next write.
        if snapshot.document.source_definition != shape.definition {
            snapshot.document_mut().source_definition.clone_from(&shape.definition);
        }
        Ok(snapshot)
    }

    pub(crate) fn differences_from(&self, document: &StateDocument) -> String {
        let SourceShape { fingerprint, definition, .. } = self.source.shape();
        document.source_differences(fingerprint, definition)
    }

    /// Returns the error of a document that belongs to another source than the settings.
    pub(crate) fn other_source(&self, document: &StateDocument) -> TickError {
        let poller = self.range_of.as_ref().unwrap_or(&self.name).clone();
        let shape = self.source.shape();
        let cursor = document.checkpoint.cursor.as_ref();
        let keeps = cursor.is_none_or(|cursor| mismatch(cursor, shape.mode, &shape.key).is_none());
        TickError::Fingerprint { poller, differences: self.differences_from(document), keeps }
    }

    /// Lets the source choose what its settings leave open; it keeps an earlier choice.
    async fn open(&self, stored: Option<&SourceFingerprint>) -> Result<(), TickError> {
        self.source.open(stored).await.map_err(TickError::Fetch)
    }

    /// Returns what is stored, or a blank document without a tag. Opens the source.
    pub(crate) async fn look(&self) -> Result<Snapshot, TickError> {
        let (found, date) = self.documents(Duration::ZERO).load().await?;
        let Some(found) = found else {
            self.open(None).await?;
            return Ok(Snapshot::absent(self.blank(), date));
        };
        if found.document.marked || found.document.lease.fencing_token > FencingToken(0) {
            self.ran_since.get_or_init(|| date);
        }
        self.open(Some(&found.document.source_fingerprint)).await?;
        Ok(found)
    }

    /// Returns `blank` as the first document of a poller, unless its marker says that it already had one.
    ///
    /// The generation is above that of the marker. The marker is read after the blank document, whose tag the first
    /// grant will use. So no two documents of a poller share a generation, if the earlier one was marked before it
    /// was lost; otherwise only the clock distinguishes them.
    async fn begin(&self, blank: Snapshot, writes: bool) -> Result<Snapshot, TickError> {
        let marker = self.read_marker().await?;
        self.reject_partition_count_of(&blank.document)?;
        if !has_position(&blank.document) {
            self.reject_other_partition_count(writes).await?;
        }
        let marked_at = marker.as_ref().map(|marker| marker.created_at);
        let ran_since = marked_at.or_else(|| self.ran_since.get().copied());
        // A first start, according to marker and memory.
        if ran_since.is_none() && self.start_now && !has_position(&blank.document) {
            // `init` would start after rows that another app has not delivered yet. Ranges have their poller's app.
            if writes && self.range_of.is_none() {
                self.refuse_elsewhere().await?;
            }
            return Err(self.not_started());
        }
        if let Some(ran_since) = ran_since {
            // Another instance may have started meanwhile, and marked its document.
            let now = self.look().await?;
            if !now.document.is_blank() {
                return Ok(now);
            }
            // An operator who has set its position meanwhile did so on purpose.
            if !has_position(&now.document) {
                self.refuse_vanished(&self.name, ran_since).await?;
            }
        }
        // With an existing blank document, right before the first grant: listing costs a request.
        let is_first = ran_since.is_none() && !has_position(&blank.document);
        if is_first && writes && blank.etag.is_some() {
            self.refuse_elsewhere().await?;
        }
        Ok(self.started(blank, marker.as_ref()))
    }

    /// Returns `blank` under a generation above the one of the marker.
    pub(crate) fn started(&self, blank: Snapshot, marker: Option<&Marker>) -> Snapshot {
        let floor = marker.map_or(1, |marker| marker.generation.0 + 1);
        let milliseconds = u64::try_from(blank.now().unix_timestamp_nanos() / 1_000_000);
        let generation = Generation(milliseconds.unwrap_or(0).max(floor));
        let shape = self.source.shape();
        let mut begun = blank.document.started(generation, &shape.fingerprint);
        if begun.source_fingerprint == shape.fingerprint {
            begun.source_definition.clone_from(&shape.definition);
        }
        begun.partition = self.partition;
        if marker.is_some() && self.policy.on_failure == OnFailure::Park {
            begun = begun.with_possible_entries(blank.now());
        }
        blank.with(begun)
    }

    /// Rejects a run if the document of `poller`, this one or another partition, has vanished.
    pub(crate) async fn refuse_vanished(
        &self,
        poller: &str,
        ran_since: OffsetDateTime,
    ) -> Result<(), TickError> {
        match self.limits.on_missing_state {
            OnMissingState::Recreate => Ok(()),
            OnMissingState::Stop => Err(self.state_vanished(poller, ran_since).await),
        }
    }

    /// Refuses to write if no document is stored, or only a blank one, although the marker says that the poller has
    /// run.
    ///
    /// # Errors
    ///
    /// [`TickError::StateVanished`], or [`TickError::Load`] if the marker cannot be read.
    pub async fn refuse_loss(&self) -> Result<(), TickError> {
        match self.read_marker().await? {
            Some(marker) => self.refuse_vanished(&self.name, marker.created_at).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn state_vanished(
        &self,
        poller: &str,
        ran_since: OffsetDateTime,
    ) -> TickError {
        let has_journal = match &self.journal.store {
            Some(journals) => journals.list(poller).await.is_ok_and(|parts| !parts.is_empty()),
            None => false,
        };
        let (poller, ran_since) = (poller.to_owned(), rfc3339(ran_since));
        TickError::StateVanished { poller, ran_since, has_journal }
    }

    pub(crate) fn not_started(&self) -> TickError {
        TickError::NotStarted { poller: self.name.clone() }
    }

    pub(crate) async fn read_marker(&self) -> Result<Option<Marker>, LoadError> {
        self.read_marker_of(&self.name).await
    }

    pub(crate) async fn read_marker_of(&self, poller: &str) -> Result<Option<Marker>, LoadError> {
        let stored = self.store.load(&StateKey::Marker(poller.to_owned())).await?.stored;
        let decoded = stored.map(|stored| decode_marker(poller, &stored.bytes));
        Ok(decoded.transpose()?)
    }

    /// Writes the marker of a document that has none yet, and remembers that the poller has run.
    ///
    /// The state is created first, then the marker; `marked` is stored by the next write. After a failure in between,
    /// the next tick under a lease retries. The first lease of a process also checks that the marker of a marked
    /// document still exists: without it, a loss of the document would look like a first start.
    pub(crate) async fn mark(&self, lease: &mut Lease<'_>) {
        self.ran_since.get_or_init(|| lease.now());
        let was_marked = lease.document().marked;
        if was_marked && (self.saw_marker.get().is_some() || self.range_of.is_some()) {
            return;
        }
        match self.write_marker(lease).await {
            Ok(written) => {
                if written && was_marked {
                    self.warn_rewritten();
                }
                self.saw_marker.get_or_init(|| ());
                lease.mark();
            }
            Err(error) => self.marker_failed(&chain(&error)),
        }
    }

    fn warn_rewritten(&self) {
        warn!(
            event = "marker_rewritten",
            poller.name = self.name,
            "The marker of poller `{}` was missing or outdated, and has been written again",
            self.name
        );
    }

    /// Logs that the marker is still missing: once for each reason, then hourly.
    fn marker_failed(&self, error: &str) {
        if self.log_throttle.are_due("marker_failed", error) {
            warn!(
                event = "marker_failed",
                poller.name = self.name,
                error,
                "Could not write the marker of poller `{}`; the next tick retries",
                self.name
            );
        }
    }

    /// Returns whether it wrote the marker; `false` if it exists.
    async fn write_marker(&self, lease: &Lease<'_>) -> Result<bool, LoadError> {
        let key = StateKey::Marker(self.name.clone());
        let marker = Marker {
            poller_name: self.name.clone(),
            generation: lease.generation(),
            created_at: lease.now(),
        };
        let precondition = match self.store.load(&key).await?.stored {
            None => Precondition::Absent,
            Some(stored) => {
                // Never overwrite foreign content, or the marker of a later document.
                let found = decode_marker(&self.name, &stored.bytes)?;
                if found.generation >= marker.generation {
                    return Ok(false);
                }
                Precondition::Matches(stored.etag)
            }
        };
        self.store.store(&key, encode_marker(&marker), precondition).await?;
        Ok(true)
    }

    /// Returns what prevents a tick from running, according to `snapshot`.
    pub(crate) fn block_reason(&self, snapshot: &Snapshot) -> Option<TickOutcome> {
        let document = &snapshot.document;
        let block_reason = document.block_reason(snapshot.now(), self.store.grain());
        let block_reason = block_reason.filter(|_| !self.through_pause);
        let until = self.lapses_at(snapshot);
        if let Some(refusal) = block_reason {
            return refused_outcome(&refusal, until);
        }
        match document.lease_state(self.instance.owner_id(), snapshot.age(self.store.grain())) {
            LeaseState::Held { owner_id } => {
                Some(TickOutcome::Skipped(Skipped::Held { owner_id, until }))
            }
            LeaseState::Free | LeaseState::Own | LeaseState::Lapsed => None,
        }
    }

    /// Returns the storage time at which a document's lease expires if it is not renewed.
    pub(crate) fn lapses_at(&self, snapshot: &Snapshot) -> OffsetDateTime {
        snapshot.now() + snapshot.document.lapses_in(snapshot.age(self.store.grain()))
    }

    /// Finishes a tick that found nothing, and records from time to time that it ran.
    ///
    /// Retained source state and finished windows are kept in memory and included in the next write. Source state is
    /// written at once if rows wait for it, since the next tick may run in another process.
    pub(crate) async fn idle(
        &self,
        memory: &mut Memory,
        mut base: Snapshot,
        remember: Option<RetainedState>,
    ) -> TickOutcome {
        memory.idle_ticks += 1;
        let mut at_once = false;
        if let Some(remember) = remember {
            at_once = remember.at_once;
            base.document_mut().source_state = remember.state;
        }
        memory.keep(base.clone());
        if at_once || self.is_status_due(&base) || self.ends_failure(&base) {
            Box::pin(self.observe(memory, base)).await;
        }
        TickOutcome::Idle
    }

    /// Whether to record an idle tick: only while the lease is free, and if nothing has been written for a while.
    fn is_status_due(&self, base: &Snapshot) -> bool {
        let document = &base.document;
        let interval = self.limits.status_interval;
        let last = [
            document.observed.as_ref().map(|observed| observed.at),
            document.lease.released_at,
            document.lease.heartbeat_at,
        ];
        let standing = document.lease_state(self.instance.owner_id(), base.age(self.store.grain()));
        interval > Duration::ZERO
            && document.lease.fencing_token > FencingToken(0)
            && standing == LeaseState::Free
            && last.into_iter().flatten().all(|at| base.now() >= at + interval)
    }

    /// Whether the document records failing ticks although this one succeeded. Only while the lease is free.
    fn ends_failure(&self, base: &Snapshot) -> bool {
        let document = &base.document;
        let age = base.age(self.store.grain());
        document.last_failure.is_some()
            && base.etag.is_some()
            && document.lease_state(self.instance.owner_id(), age) == LeaseState::Free
    }

    /// Records failing ticks in the document: at the first failure, at the first that needs an operator, then every
    /// `STATUS_INTERVAL`. Only while the lease is free, and only if the document has ever granted a lease. One
    /// attempt, as for idle ticks.
    ///
    /// An own lease that could not be released counts as held: a write under its token would look like a grant.
    pub(crate) async fn record_failure(&self, memory: &mut Memory) {
        let interval = self.limits.status_interval;
        if interval.is_zero() || !self.is_failure_due(interval) {
            return;
        }
        let known = memory.snapshot.clone();
        let base = match known {
            Some(known) => known,
            None => match self.documents(Duration::ZERO).load().await {
                Ok((Some(found), _)) => found,
                Ok((None, _)) | Err(_) => return,
            },
        };
        let age = base.age(self.store.grain());
        let document = &base.document;
        let Some(failure) = self.unrecorded_failure(base.now()) else { return };
        // Another process reports a stop again if the document does not have it.
        let is_recorded = document.last_failure.as_ref().is_some_and(|recorded| {
            base.now() < recorded.at + interval
                && !FailureClass::is_new_stop(&recorded.kind, &failure.kind)
        });
        let standing = document.lease_state(self.instance.owner_id(), age);
        if is_recorded
            || standing != LeaseState::Free
            || document.lease.fencing_token == FencingToken(0)
        {
            return;
        }
        let next = document.failing(failure, age);
        if Box::pin(self.write_note(memory, &base, next)).await {
            self.note_failure_recorded();
        }
    }

    /// One attempt: a concurrent writer has newer information. The journal records it if it changes something that
    /// only numbered entries record. A document that is started here gets its marker from the first tick that
    /// acquires the lease.
    async fn observe(&self, memory: &mut Memory, base: Snapshot) {
        let Some(base) = Box::pin(self.with_tag(base)).await else { return memory.forget() };
        let lag = memory.lag.after_full_read();
        let observed = observed(base.now(), lag, Some(0), memory.idle_ticks, self.reads());
        let age = base.age(self.store.grain());
        let next = base.document.observe(observed, age);
        Box::pin(self.write_note(memory, &base, next)).await;
    }

    /// Writes `next` in place of `base` without a lease; returns whether that succeeded. One attempt.
    async fn write_note(
        &self,
        memory: &mut Memory,
        base: &Snapshot,
        mut next: StateDocument,
    ) -> bool {
        next.write_id = self.instance.next_write_id();
        let has_news = memory.has_news;
        if has_news {
            self.number(EventKind::Noted, &mut next);
        }
        memory.forget();
        let Some(etag) = &base.etag else { return false };
        let written = self.documents(Duration::ZERO).replace(next, etag).await;
        let Ok(Some(written)) = written else { return false };
        if has_news {
            self.record_note(EventKind::Noted, &written.document, written.written_at());
        }
        memory.know(Some(written));
        true
    }

    /// Returns `base` with a tag to write under. If nothing is stored, a blank document is created and initialised
    /// first, with the retained source state. `None` if that failed.
    ///
    /// A document is created blank and granted by a second write. A create request that arrives late, after the
    /// document was lost, then grants nothing, so no token is ever granted twice.
    async fn with_tag(&self, base: Snapshot) -> Option<Snapshot> {
        if base.etag.is_some() {
            return Some(base);
        }
        self.documents(Duration::ZERO).create(&self.blank()).await.ok()?;
        let mut begun = Box::pin(self.read()).await.ok()?;
        if begun.etag.is_none() || has_position(&begun.document) {
            return None;
        }
        begun.document_mut().source_state.clone_from(&base.document.source_state);
        Some(begun)
    }
}

/// Whether no tick and no reset has ever written the document.
pub(crate) fn never_ran(document: &StateDocument) -> bool {
    document.is_blank() && !has_position(document)
}

/// Whether a poller or an operator has given the document a position, or acquired its lease.
pub(crate) fn has_position(document: &StateDocument) -> bool {
    document.checkpoint.cursor.is_some()
        || document.replay_id.is_some()
        || document.lease.fencing_token > FencingToken(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::HandlerError;
    use crate::testing::{World, tick};

    #[tokio::test(start_paused = true)]
    async fn a_backing_off_batch_waits_by_the_services_clock() {
        let world = World::new();
        let poller = world.started_poller("a").await;
        world.source.put(1, "new");
        world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
        tick(&poller).await.unwrap_err();
        let key = StateKey::Document("p".to_owned());
        let stored = world.stored(&key).await.unwrap();
        let until = world.document().await.in_flight.unwrap().next_attempt_at.unwrap();
        // By the date of the last answer, plus our monotonic time since.
        let ahead = Snapshot::read(&key, stored.clone(), until).unwrap();
        assert_eq!(poller.block_reason(&ahead), None);
        let just_before = Snapshot::read(&key, stored, until - Duration::from_millis(1)).unwrap();
        assert!(matches!(poller.block_reason(&just_before), Some(TickOutcome::BackingOff { .. })));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(poller.block_reason(&just_before), None);
    }
}
