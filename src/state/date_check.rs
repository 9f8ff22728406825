//! A store whose `Date` is checked before a lease is judged by it.
//!
//! A lease has lapsed when the service's `Date` lies a ttl after the document's `Last-Modified`. Behind a
//! proxy that answers with a wrong `Date`, an hour ahead for example, every live lease would look lapsed.
//! So a `Date` counts only if it agrees, within half of the ttl, with one of these:
//!
//! - the last `Date` that counted, plus the monotonic time since;
//! - this machine's clock. It can only veto a `Date`, never make a lease lapse: what is judged is the
//!   `Date` itself.
//!
//! A `Date` that agrees with neither is replaced by the last one that counted, plus the time since. A cold
//! process has none. For it, and as a lower bound in general, a document is as old as this process has seen
//! it unchanged, so the lease of a dead holder lapses one ttl later than usual.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::warn;

use super::{ETag, Loaded, Precondition, StateKey, StateStore, StoreError, Written};
use crate::clock::Clock;

/// Passes every call on, and checks the `Date` of each read.
#[derive(Debug)]
pub struct DateCheckedStore {
    below: Arc<dyn StateStore>,
    clock: Arc<dyn Clock>,
    /// By how much a `Date` may be wrong: a live lease is at most half a ttl from its last write.
    tolerance: Duration,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    /// The last `Date` that counted, and when it arrived.
    date: Option<(OffsetDateTime, Instant)>,
    /// The version of each document, and since when this process has seen it.
    versions: BTreeMap<StateKey, (ETag, Instant)>,
    /// Whether the last `Date` did not count: logged once, not at each read.
    is_off: bool,
}

impl DateCheckedStore {
    /// Checks the dates of `below` for leases that live at least `ttl`.
    pub fn new(below: Arc<dyn StateStore>, ttl: Duration, clock: Arc<dyn Clock>) -> Self {
        Self { below, clock, tolerance: ttl / 2, history: Mutex::default() }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no holder of this lock panics")
    }

    fn agree(&self, one: OffsetDateTime, other: OffsetDateTime) -> bool {
        (one - other).unsigned_abs() <= self.tolerance
    }

    fn checked(&self, key: &StateKey, mut loaded: Loaded) -> Loaded {
        let now = Instant::now();
        let mut history = self.history();
        let seen_for = history.seen_for(key, &loaded, now);
        let expected = history.date.map(|(date, at)| date + (now - at));
        let agrees = expected.is_some_and(|expected| self.agree(loaded.date, expected));
        if agrees || self.agree(loaded.date, self.clock.now()) {
            history.date = Some((loaded.date, now));
            history.is_off = false;
            return loaded;
        }
        let was_off = std::mem::replace(&mut history.is_off, true);
        // Before the log line: it may wait, and no other read should.
        drop(history);
        if !was_off {
            self.report(key, loaded.date);
        }
        loaded.date = expected.unwrap_or(loaded.date);
        if let Some(stored) = &mut loaded.stored {
            let unchanged_since = loaded.date - seen_for;
            // With a `Date` that counted, `Last-Modified` tells the age; it is too old only by a wrong `Date`.
            stored.last_modified = match expected {
                Some(_) => stored.last_modified.min(unchanged_since),
                None => unchanged_since,
            };
        }
        loaded
    }

    fn report(&self, key: &StateKey, date: OffsetDateTime) {
        let ahead = date - self.clock.now();
        warn!(
            event = "storage_date_off",
            ahead_seconds = ahead.whole_seconds(),
            "The `Date` of {} differs from this machine's clock by {} s, so leases are not judged by it: a crashed \
             holder's lease is taken over one ttl later than usual; synchronise this machine's clock, or fix the proxy \
             that answers in the storage service's place",
            self.below.location(key),
            ahead.whole_seconds()
        );
    }
}

impl History {
    /// Notes the version of a document, and returns for how long it has been seen unchanged.
    fn seen_for(&mut self, key: &StateKey, loaded: &Loaded, now: Instant) -> Duration {
        let Some(stored) = &loaded.stored else {
            self.versions.remove(key);
            return Duration::ZERO;
        };
        match self.versions.get(key) {
            Some((etag, since)) if *etag == stored.etag => now - *since,
            Some(_) | None => {
                self.versions.insert(key.clone(), (stored.etag.clone(), now));
                Duration::ZERO
            }
        }
    }
}

#[async_trait]
impl StateStore for DateCheckedStore {
    fn grain(&self) -> Duration {
        self.below.grain()
    }

    fn location(&self, key: &StateKey) -> String {
        self.below.location(key)
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.below.prepare().await
    }

    async fn load(&self, key: &StateKey) -> Result<Loaded, StoreError> {
        let loaded = self.below.load(key).await?;
        Ok(self.checked(key, loaded))
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<Written, StoreError> {
        self.below.store(key, bytes, precondition).await
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        self.below.list().await
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        self.below.list_counted().await
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        self.below.apps_with(key).await
    }

    fn making_place(&self) -> Option<Arc<dyn StateStore>> {
        let below = self.below.making_place()?;
        Some(Arc::new(Self::new(below, 2 * self.tolerance, Arc::clone(&self.clock))))
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        let below = self.below.of_app(app)?;
        Some(Arc::new(Self::new(below, 2 * self.tolerance, Arc::clone(&self.clock))))
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        self.below.remove(key, etag).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use time::macros::datetime;

    use super::*;
    use crate::clock::TokioClock;
    use crate::cursor::SourceFingerprint;
    use crate::lease::Snapshot;
    use crate::state::{Generation, MemoryStore, Standing, StateDocument, encode};
    use crate::testing::{Call, Fault, FaultyStore};

    const TTL: Duration = Duration::from_secs(60);
    const HOUR: time::Duration = time::Duration::HOUR;

    /// A machine's clock, and by how many seconds it is ahead.
    #[derive(Debug)]
    struct MachineClock(TokioClock, AtomicI64);

    impl Clock for MachineClock {
        fn now(&self) -> OffsetDateTime {
            self.0.now() + time::Duration::seconds(self.1.load(Ordering::SeqCst))
        }
    }

    /// A document that `a` holds the lease of, and a process that looks at it.
    struct World {
        machine: Arc<MachineClock>,
        faulty: Arc<FaultyStore>,
        store: DateCheckedStore,
        key: StateKey,
        etag: ETag,
    }

    impl World {
        /// `clock_off` is how far this machine's clock is ahead of the service's.
        async fn new(clock_off: time::Duration) -> Self {
            let service = TokioClock::starting_at(datetime!(2026-01-01 0:00 UTC));
            let machine = Arc::new(MachineClock(service, clock_off.whole_seconds().into()));
            let memory = Arc::new(MemoryStore::with_clock(Arc::new(service)));
            let faulty = Arc::new(FaultyStore::new(memory));
            let store = DateCheckedStore::new(faulty.clone(), TTL, machine.clone());
            let key = StateKey::Document("orders".to_owned());
            let bytes = encode(&held(0));
            let etag = store.store(&key, bytes, Precondition::Absent).await.unwrap().etag;
            Self { machine, faulty, store, key, etag }
        }

        async fn is_taken_for_lapsed(&self) -> bool {
            let loaded = self.store.load(&self.key).await.unwrap();
            let read = Snapshot::read(&self.key, loaded.stored.unwrap(), loaded.date).unwrap();
            read.document.standing("b", read.age(self.store.grain())) == Standing::Lapsed
        }

        /// Reads with a `Date` that is wrong by so much.
        async fn is_taken_for_lapsed_with(&self, off: time::Duration) -> bool {
            self.faulty.break_next(Call::Load, Fault::Date(off));
            self.is_taken_for_lapsed().await
        }

        async fn renew(&mut self, number: u64) {
            let precondition = Precondition::Matches(self.etag.clone());
            let written = self.faulty.store(&self.key, encode(&held(number)), precondition).await;
            self.etag = written.unwrap().etag;
        }
    }

    fn held(write: u64) -> StateDocument {
        let fingerprint = SourceFingerprint::of(&[]);
        let mut document = StateDocument::new("orders", fingerprint, Generation(1));
        document.lease.owner_id = Some("a".to_owned());
        document.lease.ttl_seconds = TTL.as_secs();
        document.write_id = format!("a#{write}");
        document
    }

    async fn sleep(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn conforms_as_the_store_below_it_does() {
        crate::state::conformance::run(&|| async {
            let clock = TokioClock::starting_at(datetime!(2026-01-01 0:00 UTC));
            let store = DateCheckedStore::new(Arc::<MemoryStore>::default(), TTL, Arc::new(clock));
            assert!(store.of_app("other").is_some(), "applications are asked for too");
            store
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_cold_process_whose_clock_agrees_takes_a_lapsed_lease_over_at_once() {
        for off in [time::Duration::ZERO, time::Duration::seconds(29), time::Duration::seconds(-29)]
        {
            let world = World::new(off).await;
            sleep(61).await;
            assert!(!world.is_taken_for_lapsed().await);
            sleep(1).await;
            assert!(world.is_taken_for_lapsed().await, "clock off by {off}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cold_process_takes_no_live_lease_by_a_date_that_is_an_hour_ahead() {
        let mut world = World::new(time::Duration::ZERO).await;
        for renewal in 1..20 {
            assert!(!world.is_taken_for_lapsed_with(HOUR).await, "renewal {renewal}");
            sleep(20).await;
            world.renew(renewal).await;
        }
        // The holder is dead now. It takes one ttl, and room for a renewal on its way, to know.
        assert!(!world.is_taken_for_lapsed_with(HOUR).await);
        sleep(61).await;
        assert!(!world.is_taken_for_lapsed_with(HOUR).await);
        sleep(1).await;
        assert!(world.is_taken_for_lapsed_with(HOUR).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_has_read_before_judges_by_its_last_date_and_monotonic_time() {
        for off in [HOUR, -HOUR] {
            let mut world = World::new(time::Duration::ZERO).await;
            assert!(!world.is_taken_for_lapsed().await);
            sleep(20).await;
            world.renew(1).await;
            sleep(10).await;
            // Not seen before, so only the dates can tell how old it is.
            assert!(!world.is_taken_for_lapsed_with(off).await, "{off}");
            sleep(51).await;
            assert!(!world.is_taken_for_lapsed_with(off).await, "{off}: 61 s old");
            sleep(1).await;
            assert!(world.is_taken_for_lapsed_with(off).await, "{off}: 62 s old");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_machine_clock_delays_a_takeover_by_one_ttl_and_forces_none() {
        for off in [HOUR, -HOUR] {
            let world = World::new(off).await;
            sleep(1000).await;
            assert!(!world.is_taken_for_lapsed().await, "{off}");
            sleep(62).await;
            assert!(world.is_taken_for_lapsed().await, "{off}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_clock_that_goes_wrong_later_delays_no_takeover() {
        let mut world = World::new(time::Duration::ZERO).await;
        assert!(!world.is_taken_for_lapsed().await);
        world.machine.1.store(3600, Ordering::SeqCst);
        sleep(10).await;
        world.renew(1).await;
        sleep(62).await;
        assert!(world.is_taken_for_lapsed().await, "the dates agree with one another");
    }

    #[tokio::test(start_paused = true)]
    async fn one_wrong_date_does_not_taint_those_after_it() {
        let world = World::new(time::Duration::ZERO).await;
        sleep(62).await;
        assert!(!world.is_taken_for_lapsed_with(HOUR).await, "cold");
        assert!(world.is_taken_for_lapsed().await, "the next answer is right");
    }
}
