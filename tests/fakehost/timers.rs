//! The host's data about its timers, in a storage account that outlives it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::format_description;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

/// The status of a timer as the host stores it.
#[derive(Clone, Debug)]
pub(super) struct TimerStatus {
    pub(super) last: String,
    pub(super) next: String,
    /// Set while an occurrence runs; the host itself sees only that `next` has passed.
    pub(super) pending: bool,
}

/// A storage account with the statuses and locks of all timers; clones are the same one. Hosts that share it
/// are instances of one app, or successive hosts.
#[derive(Clone, Debug, Default)]
pub struct Timers(Arc<Account>);

#[derive(Debug, Default)]
struct Account {
    statuses: Mutex<BTreeMap<String, TimerStatus>>,
    leases: Mutex<BTreeMap<LockName, Lease>>,
    is_away: watch::Sender<bool>,
}

/// Names the lock of a listener: the host's id, and the function.
pub(super) type LockName = (String, String);

#[derive(Debug)]
struct Lease {
    holder: Uuid,
    until: Instant,
}

/// The last time of a timer that never ran.
const NEVER: &str = "0001-01-01T00:00:00+00:00";

impl Timers {
    /// Makes the account unreachable for all hosts, or reachable again.
    pub fn set_away(&self, is_away: bool) {
        self.0.is_away.send_replace(is_away);
    }

    /// Returns a channel with whether the account is unreachable.
    pub(super) fn is_away(&self) -> watch::Receiver<bool> {
        self.0.is_away.subscribe()
    }

    /// Grants or renews a lock for a period; `false` while another holder has it, or the account is unreachable.
    pub(super) fn lock(&self, name: &LockName, holder: Uuid, period: Duration) -> bool {
        if *self.0.is_away.borrow() {
            return false;
        }
        let now = Instant::now();
        let mut leases = lock(&self.0.leases);
        let is_held = leases.get(name).is_some_and(|it| it.holder != holder && it.until > now);
        if !is_held {
            leases.insert(name.clone(), Lease { holder, until: now + period });
        }
        !is_held
    }

    /// Releases a lock.
    pub(super) fn unlock(&self, name: &LockName, holder: Uuid) {
        let mut leases = lock(&self.0.leases);
        if leases.get(name).is_some_and(|lease| lease.holder == holder) {
            leases.remove(name);
        }
    }

    /// Records the start of an occurrence, and returns the previous status.
    pub(super) fn begin(&self, function: &str, now: OffsetDateTime) -> TimerStatus {
        let mut all = lock(&self.0.statuses);
        let fresh = || TimerStatus { last: NEVER.to_owned(), next: timestamp(now), pending: false };
        let status = all.entry(function.to_owned()).or_insert_with(fresh);
        let before = status.clone();
        status.pending = true;
        before
    }

    /// Records that an occurrence has run, successfully or not: the host writes its status after the run.
    pub(super) fn end(&self, function: &str, now: OffsetDateTime) {
        let now = timestamp(now);
        let status = TimerStatus { last: now.clone(), next: now, pending: false };
        lock(&self.0.statuses).insert(function.to_owned(), status);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a time as .NET writes it.
pub(super) fn timestamp(at: OffsetDateTime) -> String {
    let form = format_description!(
        "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:7]+00:00"
    );
    at.format(&form).expect("a date and time has every part of the form")
}
