//! Gathers the facts about a row: reads the document, the source, and only what else decides the answer.

use thiserror::Error;
use time::{Date, OffsetDateTime, UtcOffset};

use super::deliveries::{deliveries, is_move, moved_past};
use super::{Explanation, Facts, JournalFacts, ParkedKey, explain, parse_key};
use crate::cursor::{Cursor, KeyId, KeyValues, SourceState};
use crate::document::{LoadError, Snapshot, StateDocument};
use crate::event::Operation;
use crate::journal::{self, Days, EventKind};
use crate::policy::OnFailure;
use crate::poller::Poller;
use crate::quarantine::Entry;
use crate::source::{FetchError, LookupError, RowLookup};
use crate::status::StatusReader;
use crate::status::health::{Document, StoredState};
use crate::store::{StateKey, StoreError};

/// Days of a journal that are searched, newest first, if no first day is given.
pub const SEARCH_DAYS: u16 = 7;

/// Which row to explain.
#[derive(Clone, Debug, Default)]
pub struct TraceRequest {
    /// The key, as for [`parse_key`].
    pub key: Vec<String>,
    /// The first day of the journal to search; if unset, the search ends with the newest delivery, or after
    /// [`SEARCH_DAYS`].
    pub since: Option<Date>,
}

/// Why a row cannot be explained.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The poller is not in the settings.
    #[error("no poller `{0}` in the settings")]
    NoPoller(String),
    /// The key does not fit the source.
    #[error("{0}")]
    Key(String),
    /// The state document cannot be read.
    #[error("read state")]
    Load(#[from] LoadError),
    /// Another row of the poller is being explained.
    #[error("another row is being explained; try again in a few seconds")]
    Busy,
    /// The source cannot be read.
    #[error(transparent)]
    Fetch(FetchError),
}

impl From<StoreError> for TraceError {
    fn from(error: StoreError) -> Self {
        Self::Load(error.into())
    }
}

impl From<LookupError> for TraceError {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::Fetch(error) => Self::Fetch(error),
            error @ LookupError::Value { .. } => Self::Key(error.to_string()),
        }
    }
}

impl StatusReader {
    /// Explains why a row was or was not delivered by the poller `name`. One at a time, so that requests to a page cannot
    /// load the database.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if the key is invalid, or state or source cannot be read.
    pub async fn trace(
        &self,
        name: &str,
        request: &TraceRequest,
    ) -> Result<Explanation, TraceError> {
        let missing = || TraceError::NoPoller(name.to_owned());
        let poller = self.pollers.get(name).ok_or_else(missing)?;
        let key = parse_key(&request.key, &poller.source.shape().key).map_err(TraceError::Key)?;
        let _only = poller.trace_lock.try_lock().map_err(|_locked| TraceError::Busy)?;
        let (snapshot, now) = poller.documents(std::time::Duration::ZERO).load().await?;
        let nothing = SourceState::new();
        let document = snapshot.as_ref().map(|snapshot| &*snapshot.document);
        let lookup = RowLookup {
            key: &key,
            stored: document.map(|document| &document.source_fingerprint),
            after: document.and_then(|document| document.checkpoint.cursor.as_ref()),
            state: document.map_or(&nothing, |document| &document.source_state),
        };
        let row = poller.source.look_up(lookup).await?;
        let shape = poller.source.shape();
        let is_same_source = document.is_none_or(|document| {
            document.checkpoint.cursor.is_none() || document.source_fingerprint == shape.fingerprint
        });
        let health = if let Some(found) = &snapshot {
            let age = found.age(self.state.grain());
            let stored = StoredState::Found(Box::new(Document::of(&found.document, age)));
            self.health(name, Some(found.now()), stored)
        } else {
            let marker = self.state.load(&StateKey::Marker(name.to_owned())).await?;
            let ran_before = marker.stored.is_some();
            self.health(name, Some(now), StoredState::Missing { ran_before })
        };
        let mut facts = Facts {
            poller: name,
            key: &key,
            mode: shape.mode,
            row: &row,
            document,
            is_same_source,
            health: &health,
            next_tick_at: self.next_tick(name, now),
            parked: None,
            may_have_parked: document.is_some_and(may_have_parked),
            journal: JournalFacts::default(),
        };
        if document.is_some_and(StateDocument::may_have_entries) {
            let key = facts.shown_key();
            let mut entry = poller.admin().entry(&KeyId::of(key)).await?;
            // Only a position has the types of the key. Under change tracking, a row that has not changed since the first
            // load has none.
            let is_typed = row.position.is_some();
            if let Some(key) = with_numbers(key).filter(|_| entry.is_none() && !is_typed) {
                entry = poller.admin().entry(&KeyId::of(&key)).await?;
            }
            let entry = entry.and_then(|found| found.entry.ok());
            facts.parked = entry.and_then(|entry| holding(poller, &facts, entry));
        }
        if let (Some(snapshot), Some(position)) = (&snapshot, &row.position) {
            facts.journal = history(poller, snapshot, position, request.since).await?;
        }
        Ok(explain(facts))
    }
}

/// Whether the checkpoint may have moved past rows of parked keys.
fn may_have_parked(document: &StateDocument) -> bool {
    document.may_have_entries() || !document.parked.is_unused()
}

/// Returns the key with whole numbers in place of texts that are some; `None` if there is none.
fn with_numbers(key: &KeyValues) -> Option<KeyValues> {
    let number = |value: &serde_json::Value| value.as_str()?.parse::<i64>().ok();
    let typed = key.iter().map(|(name, value)| {
        let value = number(value).map_or_else(|| value.clone(), serde_json::Value::from);
        (name.to_owned(), value)
    });
    key.iter().any(|(_, value)| number(value).is_some()).then(|| typed.collect())
}

/// Returns the entry of the row's key, if it holds back the current version of the row.
fn holding(poller: &Poller, facts: &Facts<'_>, entry: Entry) -> Option<ParkedKey> {
    // The entry of a range says nothing about what the poller itself delivered.
    if !entry.holds_back {
        return None;
    }
    // Later versions wait only with `park`.
    let is_held = poller.policy.on_failure == OnFailure::Park;
    let is_later = || {
        let position = facts.row.position.as_ref();
        let event = entry.event().ok();
        position.zip(event).is_some_and(|(position, event)| event.cursor.is_before(position))
    };
    if !is_held && (!facts.is_passed() || is_later()) {
        return None;
    }
    Some(parked_key(entry, is_held))
}

fn parked_key(entry: Entry, is_held: bool) -> ParkedKey {
    let is_delete = entry.event().is_ok_and(|event| event.op == Operation::Delete);
    ParkedKey {
        is_held,
        is_delete,
        key_id: entry.key_id,
        state: entry.state,
        reason: entry.reason.as_str(),
        since: entry.quarantined_at,
        retries: entry.retries,
        next_retry_at: entry.next_retry_at,
        attempts: entry.attempts,
        error: entry.error,
    }
}

/// Searches the journal for a row, newest day first.
async fn history(
    poller: &Poller,
    snapshot: &Snapshot,
    position: &Cursor,
    since: Option<Date>,
) -> Result<JournalFacts, StoreError> {
    let Some(store) = poller.journal.store.as_ref().filter(|_| poller.keeps_journal()) else {
        return Ok(JournalFacts::default());
    };
    let last = snapshot.document.journal_seq;
    let mut days = Days::new(&**store, poller.name(), last);
    let mut entries: Vec<journal::Entry> = Vec::new();
    let mut day = day_of(snapshot.now());
    let first = since.or_else(|| day.checked_sub(time::Duration::days((SEARCH_DAYS - 1).into())));
    let mut facts = JournalFacts { from: Some(day), ..JournalFacts::default() };
    loop {
        let lines = days.read(day).await?;
        entries.extend(lines.into_iter().filter_map(|line| line.entry.ok()));
        facts.from = Some(day);
        facts.is_complete = days.is_at_start();
        facts.deliveries = deliveries(&entries, position);
        let is_found = since.is_none() && facts.deliveries.iter().any(|it| it.is_current);
        match day.previous_day() {
            Some(before)
                if !is_found && !facts.is_complete && first.is_none_or(|first| before >= first) =>
            {
                day = before;
            }
            Some(_) | None => break,
        }
    }
    facts.moved_past = moved_past(&entries, position);
    facts.has_moves = entries.iter().any(is_move);
    let is_set_aside = |it: &journal::Entry| {
        matches!(it.event, EventKind::RowQuarantined | EventKind::RowDiverted)
            || it.event.settles_parked_row()
    };
    facts.has_quarantined = entries.iter().any(is_set_aside);
    Ok(facts)
}

fn day_of(at: OffsetDateTime) -> Date {
    at.to_offset(UtcOffset::UTC).date()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::admin::Redrive;
    use crate::explain::Verdict;
    use crate::handler::HandlerError;
    use crate::journal::JournalMode;
    use crate::policy::{FailurePolicy, ParkPolicy};
    use crate::poller::StopSignal;
    use crate::source::RowReport;
    use crate::source::{FetchWindow, Rows, Source, SourceShape};
    use crate::testing::{JournaledWorld, World, admin, calls, sleep, tick};

    fn reader(world: &World, poller: Poller) -> StatusReader {
        StatusReader {
            app: "app".to_owned(),
            state: world.store.clone(),
            pollers: BTreeMap::from([("p".to_owned(), Arc::new(poller))]),
            schedules: BTreeMap::new(),
            disabled: BTreeMap::new(),
        }
    }

    async fn trace(reader: &StatusReader, key: &str) -> Explanation {
        let request = TraceRequest { key: vec![key.to_owned()], since: None };
        reader.trace("p", &request).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_costs_one_read_unless_more_decides_the_answer() {
        let world = World::new();
        let reader = reader(&world, world.instance("a"));
        world.source.put(1, "x");
        // The marker decides whether the poller has lost its document.
        assert_eq!(trace(&reader, "1").await.reason.verdict, Verdict::NeverRan);
        assert_eq!(world.store.take_calls(), calls(2, 0, 0));
        tick(&reader.pollers["p"]).await.unwrap();
        world.source.put(2, "y");
        world.store.take_calls();
        for (key, verdict, reads) in
            [("2", Verdict::Due, 1), ("9", Verdict::NotInTable, 1), ("1", Verdict::Delivered, 1)]
        {
            assert_eq!(trace(&reader, key).await.reason.verdict, verdict);
            assert_eq!(world.store.take_calls(), calls(reads, 0, 0), "{key}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_waits_with_its_parked_key() {
        for (retries_max, verdict) in [(10, Verdict::Parked), (0, Verdict::Quarantined)] {
            let park = ParkPolicy { retries_max, ..ParkPolicy::default() };
            let on_failure = OnFailure::Park;
            let policy = FailurePolicy { on_failure, park, ..FailurePolicy::default() };
            let world = World::new().with_policy(policy);
            let reader = reader(&world, world.instance("a"));
            world.source.put(1, "x");
            world.handler.then_fail(HandlerError::Rejected("422".to_owned()));
            tick(&reader.pollers["p"]).await.unwrap();
            world.store.take_calls();
            let found = trace(&reader, "1").await;
            assert_eq!(found.reason.verdict, verdict, "{found:?}");
            assert_eq!(world.store.take_calls(), calls(2, 0, 0));
            assert_eq!(found.parked.unwrap().next_retry_at.is_some(), retries_max > 0);
            // A later version is after the checkpoint, and waits as well.
            world.source.put(1, "y");
            assert_eq!(trace(&reader, "1").await.reason.verdict, verdict);
            assert_ne!(trace(&reader, "2").await.reason.verdict, verdict);
        }
    }

    /// A policy that parks keys, and retries them.
    fn park() -> FailurePolicy {
        let park = ParkPolicy { retries_max: 10, ..ParkPolicy::default() };
        FailurePolicy { on_failure: OnFailure::Park, park, ..FailurePolicy::default() }
    }

    /// Parks row 1, then lets `settle` do something about it; returns what is known of the row.
    async fn settled(
        mode: Option<JournalMode>,
        settle: impl AsyncFn(&World, &Poller, &KeyId),
    ) -> [String; 2] {
        let world = World::new().with_policy(park());
        let (world, poller) = match mode {
            Some(mode) => {
                let journaled = JournaledWorld::in_world(world, mode);
                let poller = journaled.of(journaled.world.instance("a"));
                (journaled.world, poller)
            }
            None => (world.clone(), world.instance("a")),
        };
        let reader = reader(&world, poller);
        let poller = &reader.pollers["p"];
        world.source.put(1, "x");
        world.handler.then_fail(HandlerError::Rejected("422".to_owned()));
        tick(poller).await.unwrap();
        let key = admin(poller).quarantined().await.unwrap().remove(0);
        settle(&world, poller, &key).await;
        assert_eq!(world.quarantined().await, Vec::<i64>::new());
        trace(&reader, "1").await.summary()
    }

    #[tokio::test(start_paused = true)]
    async fn what_became_of_a_parked_row_is_known_from_the_journal() {
        let recover = async |_: &World, poller: &Poller, _: &KeyId| {
            sleep(60).await;
            tick(poller).await.unwrap();
        };
        let redrive = async |_: &World, poller: &Poller, key: &KeyId| {
            let keys = std::slice::from_ref(key);
            let (stop, interval) = (StopSignal::new(), std::time::Duration::ZERO);
            let (as_stored, drop_gone) = (false, false);
            let redrive = Redrive { id: "r", keys, as_stored, drop_gone, interval, stop };
            admin(poller).redrive(&redrive, &mut |_, _| {}).await.unwrap();
        };
        let drop = async |_: &World, poller: &Poller, key: &KeyId| {
            let found = admin(poller).entry(key).await.unwrap().unwrap();
            let entries = vec![(found.key, found.etag)];
            admin(poller).drop_entries(entries, &mut |_, removed| removed.unwrap()).await.unwrap();
        };
        for mode in [JournalMode::Commits, JournalMode::Full] {
            let [line, _] = settled(Some(mode), recover).await;
            assert!(line.starts_with("p, id=1: delivered: at "), "{line}");
            assert!(line.ends_with("a retry of its parked key was accepted"), "{line}");
            let [line, _] = settled(Some(mode), redrive).await;
            assert!(line.starts_with("p, id=1: delivered: at "), "{line}");
            assert!(line.ends_with("a redrive was accepted"), "{line}");
            let [line, _] = settled(Some(mode), drop).await;
            assert!(line.starts_with("p, id=1: dropped: its entry was removed at "), "{line}");
            assert!(line.ends_with("(by an operator), and no batch had it"), "{line}");
        }
        let [line, _] = settled(None, drop).await;
        assert!(
            line.starts_with("p, id=1: passed; it may have been delivered, or parked and dropped:"),
            "{line}"
        );
        assert!(!line.contains("at the latest"), "{line}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_row_whose_key_is_parked_says_what_happens_to_the_entry() {
        for (retries_max, verdict, next) in [
            (10, Verdict::Parked, "the next retry removes the entry"),
            (0, Verdict::Quarantined, "--drop-gone` removes the entry"),
        ] {
            let park = ParkPolicy { retries_max, ..ParkPolicy::default() };
            let world = World::new().with_policy(FailurePolicy { park, ..self::park() });
            let reader = reader(&world, world.instance("a"));
            world.source.put(1, "x");
            world.handler.then_fail(HandlerError::Rejected("422".to_owned()));
            tick(&reader.pollers["p"]).await.unwrap();
            world.source.delete(1);
            let found = trace(&reader, "1").await;
            assert_eq!(found.reason.verdict, verdict, "{found:?}");
            assert!(found.reason.cause.ends_with("no row with this key any more"), "{found:?}");
            assert!(found.reason.next.contains(next), "{found:?}");
            assert_eq!(trace(&reader, "2").await.reason.verdict, Verdict::NotInTable);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_journal_is_searched_from_today_on() {
        let world = JournaledWorld::new(JournalMode::Commits);
        let reader = reader(&world.world, world.instance("a"));
        world.world.source.put(1, "x");
        tick(&reader.pollers["p"]).await.unwrap();
        let found = trace(&reader, "1").await;
        assert_eq!(found.reason.verdict, Verdict::Delivered);
        assert!(found.is_certain && found.journal_from.is_some(), "{found:?}");
        let batch = world.world.handler.received()[0].batch_id.as_str().to_owned();
        assert_eq!(found.deliveries[0].batch_id, Some(batch));
    }

    /// A source that knows the position of no row, like change tracking of rows that have not changed since the first
    /// load.
    #[derive(Debug)]
    struct Unchanged(Arc<dyn Source>);

    #[async_trait::async_trait]
    impl Source for Unchanged {
        fn shape(&self) -> &SourceShape {
            self.0.shape()
        }

        async fn look_up(&self, lookup: RowLookup<'_>) -> Result<RowReport, LookupError> {
            let found = self.0.look_up(lookup).await?;
            Ok(RowReport { position: None, ..found })
        }

        async fn current(&self, at: &Cursor) -> Result<Rows, FetchError> {
            // The server converts texts.
            let id = at.key.get("id").and_then(|id| id.as_str()?.parse::<i64>().ok());
            let key = KeyValues::from_iter([("id", serde_json::json!(id))]);
            self.0.current(&Cursor { key, ..at.clone() }).await
        }

        async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
            self.0.fetch(window).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_entry_of_a_row_without_a_position_is_found_by_its_typed_key() {
        let park = ParkPolicy { retries_max: 0, ..ParkPolicy::default() };
        let policy =
            FailurePolicy { on_failure: OnFailure::Park, park, ..FailurePolicy::default() };
        let world = World::new().with_policy(policy);
        let mut poller = world.instance("a");
        poller.source = Arc::new(Unchanged(Arc::clone(&poller.source)));
        let reader = reader(&world, poller);
        world.source.put(1, "x");
        world.handler.then_fail(HandlerError::Rejected("422".to_owned()));
        tick(&reader.pollers["p"]).await.unwrap();
        let found = trace(&reader, "1").await;
        assert_eq!(found.reason.verdict, Verdict::Quarantined, "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_decides_only_if_it_holds_the_current_version_back() {
        let park = ParkPolicy { retries_max: 0, ..ParkPolicy::default() };
        let policy =
            FailurePolicy { on_failure: OnFailure::Park, park, ..FailurePolicy::default() };
        let world = World::new().with_policy(policy);
        world.source.put(1, "x");
        world.handler.then_fail(HandlerError::Rejected("422".to_owned()));
        tick(&world.instance("a")).await.unwrap();
        // Without `park`, later versions are delivered.
        let mut poller = world.instance("a");
        poller.policy.on_failure = OnFailure::Retry;
        let reader = reader(&world, poller);
        assert_eq!(trace(&reader, "1").await.reason.verdict, Verdict::Quarantined);
        world.source.put(1, "y");
        assert_eq!(trace(&reader, "1").await.reason.verdict, Verdict::Due);
        tick(&reader.pollers["p"]).await.unwrap();
        let found = trace(&reader, "1").await;
        assert_eq!(found.reason.verdict, Verdict::Delivered, "{found:?}");
        assert!(!found.is_certain && found.parked.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn one_row_is_explained_at_a_time() {
        let world = World::new();
        let reader = reader(&world, world.instance("a"));
        let request = TraceRequest { key: vec!["1".to_owned()], since: None };
        let running = reader.pollers["p"].trace_lock.lock().await;
        assert!(matches!(reader.trace("p", &request).await, Err(TraceError::Busy)));
        assert_eq!(world.store.take_calls(), calls(0, 0, 0));
        drop(running);
        assert!(reader.trace("p", &request).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_poller_or_key_costs_no_request() {
        let world = World::new();
        let reader = reader(&world, world.instance("a"));
        let request = TraceRequest { key: vec!["item=1,x=2".to_owned()], since: None };
        assert!(matches!(reader.trace("q", &request).await, Err(TraceError::NoPoller(_))));
        let request = TraceRequest { key: Vec::new(), since: None };
        let error = reader.trace("p", &request).await.unwrap_err();
        assert!(error.to_string().contains("key column `id` has no value"), "{error}");
        assert_eq!(world.store.take_calls(), calls(0, 0, 0));
    }
}
