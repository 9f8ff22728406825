//! State shared by the sessions of one database: clock, row versions, identities.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI16, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use crate::dates::{self, DAYS_1970, SECOND, Stamp};

/// State of a database besides its file. All sessions of a database are in one process.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    /// Whether the file is deleted with the last handle.
    pub(crate) temporary: bool,
    /// Whether several transactions write concurrently.
    pub(crate) concurrent: bool,
    now: Mutex<Option<Stamp>>,
    /// How far the zone is ahead of UTC, in minutes.
    zone: AtomicI16,
    counters: Mutex<Counters>,
    sessions: AtomicU64,
}

#[derive(Debug, Default)]
struct Counters {
    last_version: u64,
    /// First version that each open transaction was assigned, by session.
    active: BTreeMap<u64, u64>,
    identities: BTreeMap<String, i64>,
    /// Sessions whose open transaction has written a row, by table and row.
    rows: BTreeMap<(String, i64), u64>,
    /// Last row id, in a database with concurrent writers.
    last_row: i64,
}

impl Shared {
    pub(crate) fn new(path: PathBuf, temporary: bool, concurrent: bool) -> Self {
        Self {
            path,
            temporary,
            concurrent,
            now: Mutex::new(None),
            zone: AtomicI16::new(0),
            counters: Mutex::default(),
            sessions: AtomicU64::new(1),
        }
    }

    /// Sets the clock; [`None`] resets it to the system's.
    pub(crate) fn set_now(&self, now: Option<Stamp>) {
        *lock(&self.now) = now;
    }

    /// Sets how far the zone is ahead of UTC.
    pub(crate) fn set_zone(&self, minutes: i16) {
        self.zone.store(minutes, Ordering::Relaxed);
    }

    /// The local time of the zone.
    pub(crate) fn local_now(&self) -> Stamp {
        let minutes = i128::from(self.zone.load(Ordering::Relaxed));
        let now = self.now();
        dates::shift(now, minutes * 60 * i128::from(SECOND)).unwrap_or(now)
    }

    pub(crate) fn now(&self) -> Stamp {
        if let Some(now) = *lock(&self.now) {
            return now;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the server's clock, for which a test can set another time"
        )]
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let since_1970 = since_1970.unwrap_or(Duration::ZERO);
        let (days, seconds) = (since_1970.as_secs() / 86_400, since_1970.as_secs() % 86_400);
        let ticks = seconds * SECOND + u64::from(since_1970.subsec_nanos() / 100);
        (DAYS_1970.saturating_add(u32::try_from(days).unwrap_or(0)), ticks)
    }

    pub(crate) fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// The last assigned version, committed or not.
    pub(crate) fn last_version(&self) -> u64 {
        self.counters().last_version
    }

    /// The first version that an open transaction was assigned, or the next version.
    pub(crate) fn min_active_version(&self) -> u64 {
        let counters = self.counters();
        counters.active.values().min().copied().unwrap_or(counters.last_version + 1)
    }

    /// Assigns a version to a session's transaction.
    pub(crate) fn next_version(&self, session: u64) -> u64 {
        let mut counters = self.counters();
        counters.last_version += 1;
        let version = counters.last_version;
        counters.active.entry(session).or_insert(version);
        version
    }

    /// Continues after the version stored in the file.
    pub(crate) fn continue_after(&self, version: u64) {
        let mut counters = self.counters();
        counters.last_version = counters.last_version.max(version);
    }

    /// Records that a session's transaction is over.
    pub(crate) fn transaction_ended(&self, session: u64) {
        let mut counters = self.counters();
        counters.active.remove(&session);
        counters.rows.retain(|_, holder| *holder != session);
    }

    /// Locks a row until the transaction ends; `false` if another session has it.
    pub(crate) fn lock_row(&self, table: &str, row: i64, session: u64) -> bool {
        *self.counters().rows.entry((table.to_lowercase(), row)).or_insert(session) == session
    }

    /// Assigns an id to a new row that no other open transaction uses. `free` is above the ids of all
    /// committed rows.
    pub(crate) fn next_row(&self, table: &str, session: u64, free: i64) -> i64 {
        let mut counters = self.counters();
        // Increasing, since SQLite reads rows in this order.
        counters.last_row = free.max(counters.last_row + 1);
        let row = counters.last_row;
        counters.rows.insert((table.to_lowercase(), row), session);
        row
    }

    /// Whether open transactions have written rows.
    pub(crate) fn has_locked_rows(&self) -> bool {
        !self.counters().rows.is_empty()
    }

    pub(crate) fn knows_identity(&self, table: &str) -> bool {
        self.counters().identities.contains_key(&table.to_lowercase())
    }

    /// The last assigned identity, if one was assigned since the database was opened.
    pub(crate) fn last_identity(&self, table: &str) -> Option<i64> {
        self.counters().identities.get(&table.to_lowercase()).copied()
    }

    /// Sets the last identity of a table; [`None`] removes it.
    pub(crate) fn set_identity(&self, table: &str, last: Option<i64>) {
        let table = table.to_lowercase();
        let mut counters = self.counters();
        match last {
            Some(last) => counters.identities.insert(table, last),
            None => counters.identities.remove(&table),
        };
    }

    /// Assigns the next identity of a table; as in SQL Server, a rollback does not return it.
    pub(crate) fn next_identity(&self, table: &str) -> i64 {
        let mut counters = self.counters();
        let last = counters.identities.entry(table.to_lowercase()).or_default();
        *last += 1;
        *last
    }

    fn counters(&self) -> MutexGuard<'_, Counters> {
        lock(&self.counters)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.temporary {
            return;
        }
        for suffix in ["", "-wal", "-shm"] {
            let mut path = self.path.clone().into_os_string();
            path.push(suffix);
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::debug!(%error, "Could not delete temporary database");
            }
        }
    }
}

/// State that a session's functions can read.
#[derive(Debug)]
pub(crate) struct SessionState {
    pub(crate) id: u64,
    pub(crate) database: String,
    facts: Mutex<Facts>,
}

/// Values of the global variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) identity: Option<i64>,
    pub(crate) row_count: u64,
    pub(crate) transactions: u32,
    pub(crate) lock_timeout_ms: i64,
}

impl SessionState {
    pub(crate) fn new(id: u64, database: &str) -> Self {
        let facts = Facts { identity: None, row_count: 0, transactions: 0, lock_timeout_ms: -1 };
        Self { id, database: database.into(), facts: Mutex::new(facts) }
    }

    pub(crate) fn facts(&self) -> Facts {
        *lock(&self.facts)
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut lock(&self.facts));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
