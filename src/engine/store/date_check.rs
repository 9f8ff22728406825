//! A store that checks the service's `Date` before a lease is judged by it.
//!
//! A lease has expired when the service's `Date` is one ttl after the document's `Last-Modified`. Behind a
//! proxy that answers with a wrong `Date`, for example an hour ahead, every live lease would look expired.
//! So a `Date` is trusted only if it agrees, within half of the ttl, with
//!
//! - the last trusted `Date` plus the monotonic time since then, in a process that has one;
//! - this machine's clock, in a cold process. The clock can only veto a `Date`. It cannot make a lease expire,
//!   because the lease is judged by the `Date` itself.
//!
//! Any other `Date` is replaced by the last trusted one plus the time since then. A cold process has none. For it,
//! and as a lower bound in general, a document is as old as the time for which this process has seen it unchanged.
//! The lease of a crashed holder then expires one ttl later than usual. The `Date` of a write is checked likewise.
//!
//! # When history and clock disagree
//!
//! Monotonic time does not advance while a host is suspended. Afterwards the service's `Date` and the machine's
//! clock are right, and the history stays behind. But a clock that jumps together with a wrong `Date` looks the
//! same, and trusting it at once would take over live leases. So the history is trusted first. A `Date` that
//! contradicts it starts a new history once all dates of a whole ttl have agreed with it and with the clock. A
//! takeover is late by at most that ttl.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::warn;

use super::{ETag, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult};
use crate::clock::Clock;

/// Forwards every call, and checks the `Date` of each answer.
#[derive(Debug)]
pub struct DateCheckedStore {
    below: Arc<dyn StateStore>,
    clock: Arc<dyn Clock>,
    /// By how much a `Date` may be wrong: a live lease was written at most half a ttl ago.
    tolerance: Duration,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    /// The last trusted `Date`, and when it arrived.
    date: Option<(OffsetDateTime, Instant)>,
    /// The first of the dates that contradict the history but agree with each other and with the clock.
    other: Option<(OffsetDateTime, Instant)>,
    /// The version of each document, and since when this process has seen that version.
    versions: BTreeMap<StateKey, (ETag, Instant)>,
    /// Whether the last `Date` was not trusted. Logged on the change, not at each read.
    is_off: bool,
}

impl DateCheckedStore {
    /// Checks the dates of `below` for leases with a ttl of at least `ttl`.
    pub fn new(below: Arc<dyn StateStore>, ttl: Duration, clock: Arc<dyn Clock>) -> Self {
        Self { below, clock, tolerance: ttl / 2, history: Mutex::default() }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no holder of this lock panics")
    }

    fn agree(&self, one: OffsetDateTime, other: OffsetDateTime) -> bool {
        (one - other).unsigned_abs() <= self.tolerance
    }

    fn checked(&self, key: &StateKey, mut loaded: ReadResult) -> ReadResult {
        let now = Instant::now();
        let mut history = self.history();
        let seen_for = history.seen_for(key, &loaded, now);
        let expected = history.date.map(|(date, at)| date + (now - at));
        if self.counts(&mut history, loaded.date, now) {
            return loaded;
        }
        let was_off = std::mem::replace(&mut history.is_off, true);
        // Before the log line, which may block: other reads should not wait for it.
        drop(history);
        if !was_off {
            self.report(key, loaded.date);
        }
        loaded.date = expected.unwrap_or(loaded.date);
        if let Some(stored) = &mut loaded.stored {
            let unchanged_since = loaded.date - seen_for;
            // With a trusted `Date`, `Last-Modified` gives the age. Only a wrong `Date` makes that too old.
            stored.last_modified = match expected {
                Some(_) => stored.last_modified.min(unchanged_since),
                None => unchanged_since,
            };
        }
        loaded
    }

    /// Returns the write with the time by which it is judged.
    fn checked_written(&self, mut written: WriteResult) -> WriteResult {
        let now = Instant::now();
        let mut history = self.history();
        let expected = history.date.map(|(date, at)| date + (now - at));
        if !self.counts(&mut history, written.date, now) {
            written.date = expected.unwrap_or(written.date);
        }
        written
    }

    /// Whether a `Date` is trusted; updates the history.
    fn counts(&self, history: &mut History, date: OffsetDateTime, now: Instant) -> bool {
        let agrees_with_clock = self.agree(date, self.clock.now());
        let counts = match history.date {
            Some((last, at)) => {
                self.agree(date, last + (now - at))
                    || (agrees_with_clock && self.has_lasted(history, date, now))
            }
            None => agrees_with_clock,
        };
        if counts {
            *history = History {
                date: Some((date, now)),
                other: None,
                is_off: false,
                versions: std::mem::take(&mut history.versions),
            };
        } else if !agrees_with_clock {
            history.other = None;
        }
        counts
    }

    /// Whether dates have agreed with this one for a whole ttl.
    fn has_lasted(&self, history: &mut History, date: OffsetDateTime, now: Instant) -> bool {
        let same = history.other.filter(|(first, at)| self.agree(date, *first + (now - *at)));
        let (_, since) = *history.other.insert(same.unwrap_or((date, now)));
        now - since >= 2 * self.tolerance
    }

    fn report(&self, key: &StateKey, date: OffsetDateTime) {
        let ahead = date - self.clock.now();
        warn!(
            event = "storage_date_off",
            ahead_seconds = ahead.whole_seconds(),
            "The `Date` of {} does not match earlier dates ({} s ahead of this machine's clock), so it is not used to judge \
             leases; taking over a crashed holder's lease takes one ttl longer. Sync this machine's clock with NTP, \
             or fix the proxy in front of the storage service",
            self.below.location(key),
            ahead.whole_seconds()
        );
    }
}

impl History {
    /// Records the version of a document, and returns for how long it has been seen unchanged.
    fn seen_for(&mut self, key: &StateKey, loaded: &ReadResult, now: Instant) -> Duration {
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

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        let loaded = self.below.load(key).await?;
        Ok(self.checked(key, loaded))
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        let written = self.below.store(key, bytes, precondition).await?;
        Ok(self.checked_written(written))
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
    use crate::document::Snapshot;
    use crate::document::{Generation, LeaseState, StateDocument, encode};
    use crate::store::MemoryStore;
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

    /// A document whose lease `a` holds, and a process that reads it.
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
            // Written by another process, so that this one has no history yet.
            let etag = faulty.store(&key, bytes, Precondition::Absent).await.unwrap().etag;
            Self { machine, faulty, store, key, etag }
        }

        async fn judges_expired(&self) -> bool {
            let loaded = self.store.load(&self.key).await.unwrap();
            let read = Snapshot::read(&self.key, loaded.stored.unwrap(), loaded.date).unwrap();
            read.document.lease_state("b", read.age(self.store.grain())) == LeaseState::Lapsed
        }

        /// Reads with a `Date` that is wrong by `off`.
        async fn judges_expired_with(&self, off: time::Duration) -> bool {
            self.faulty.break_next(Call::Load, Fault::Date(off));
            self.judges_expired().await
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
    async fn conforms_like_the_wrapped_store() {
        crate::store::conformance::run(&|| async {
            let clock = TokioClock::starting_at(datetime!(2026-01-01 0:00 UTC));
            let store = DateCheckedStore::new(Arc::<MemoryStore>::default(), TTL, Arc::new(clock));
            assert!(store.of_app("other").is_some(), "applications are forwarded too");
            store
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_cold_process_whose_clock_agrees_takes_over_an_expired_lease_at_once() {
        for off in [time::Duration::ZERO, time::Duration::seconds(29), time::Duration::seconds(-29)]
        {
            let world = World::new(off).await;
            sleep(61).await;
            assert!(!world.judges_expired().await);
            sleep(1).await;
            assert!(world.judges_expired().await, "clock off by {off}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cold_process_takes_over_no_live_lease_by_a_date_an_hour_ahead() {
        let mut world = World::new(time::Duration::ZERO).await;
        for renewal in 1..20 {
            assert!(!world.judges_expired_with(HOUR).await, "renewal {renewal}");
            sleep(20).await;
            world.renew(renewal).await;
        }
        // The holder has crashed. Noticing that takes one ttl, plus the time of a renewal in progress.
        assert!(!world.judges_expired_with(HOUR).await);
        sleep(61).await;
        assert!(!world.judges_expired_with(HOUR).await);
        sleep(1).await;
        assert!(world.judges_expired_with(HOUR).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_warm_process_judges_by_its_last_date_and_monotonic_time() {
        for off in [HOUR, -HOUR] {
            let mut world = World::new(time::Duration::ZERO).await;
            assert!(!world.judges_expired().await);
            sleep(20).await;
            world.renew(1).await;
            sleep(10).await;
            // Not seen before, so only the dates show its age.
            assert!(!world.judges_expired_with(off).await, "{off}");
            sleep(51).await;
            assert!(!world.judges_expired_with(off).await, "{off}: 61 s old");
            sleep(1).await;
            assert!(world.judges_expired_with(off).await, "{off}: 62 s old");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_machine_clock_delays_a_takeover_by_one_ttl_and_never_forces_one() {
        for off in [HOUR, -HOUR] {
            let world = World::new(off).await;
            sleep(1000).await;
            assert!(!world.judges_expired().await, "{off}");
            sleep(62).await;
            assert!(world.judges_expired().await, "{off}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_clock_that_goes_wrong_later_delays_no_takeover() {
        let mut world = World::new(time::Duration::ZERO).await;
        assert!(!world.judges_expired().await);
        world.machine.1.store(3600, Ordering::SeqCst);
        sleep(10).await;
        world.renew(1).await;
        sleep(62).await;
        assert!(world.judges_expired().await, "the dates agree with one another");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_jump_with_a_wrong_date_takes_over_no_live_lease() {
        let mut world = World::new(time::Duration::ZERO).await;
        assert!(!world.judges_expired().await);
        world.machine.1.store(3600, Ordering::SeqCst);
        for renewal in 1..=3 {
            sleep(19).await;
            world.renew(renewal).await;
            assert!(!world.judges_expired_with(HOUR).await, "renewal {renewal}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn dates_that_agree_with_the_clock_for_a_ttl_start_a_new_history_after_a_suspension() {
        let mut world = World::new(time::Duration::ZERO).await;
        assert!(!world.judges_expired().await);
        // The host was suspended for an hour: only monotonic time did not advance.
        world.machine.1.store(3600, Ordering::SeqCst);
        for renewal in 1..=4 {
            sleep(19).await;
            world.renew(renewal).await;
            assert!(!world.judges_expired_with(HOUR).await, "renewal {renewal}");
        }
        sleep(19).await;
        assert!(world.judges_expired_with(HOUR).await, "written an hour ago by that date");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_date_of_a_write_is_replaced_too() {
        let world = World::new(time::Duration::ZERO).await;
        assert!(!world.judges_expired().await);
        sleep(10).await;
        for off in [HOUR, -HOUR] {
            world.faulty.break_next(Call::Store, Fault::Date(off));
            let key = StateKey::Document(format!("other{}", off.whole_seconds()));
            let written = world.store.store(&key, encode(&held(0)), Precondition::Absent).await;
            assert_eq!(written.unwrap().date, world.machine.now(), "{off}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_wrong_date_does_not_affect_later_dates() {
        let world = World::new(time::Duration::ZERO).await;
        sleep(62).await;
        assert!(!world.judges_expired_with(HOUR).await, "cold");
        assert!(world.judges_expired().await, "the next answer is right");
    }
}
