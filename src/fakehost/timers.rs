//! What the host keeps about its timers, in a storage account that outlives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use time::OffsetDateTime;
use time::macros::format_description;

/// The status of a timer as the host stores it.
#[derive(Clone, Debug)]
pub(super) struct TimerStatus {
    pub(super) last: String,
    pub(super) next: String,
    /// Set while an occurrence runs; the host itself sees only that `next` has passed.
    pending: bool,
}

/// Statuses of all timers; clones are the same. Give them to the next host to restart it.
#[derive(Clone, Debug, Default)]
pub struct Timers(Arc<Mutex<BTreeMap<String, TimerStatus>>>);

/// What a timer that never ran has for its last time.
const NEVER: &str = "0001-01-01T00:00:00+00:00";

impl Timers {
    /// Returns the functions whose occurrence never came to its end.
    pub(super) fn past_due(&self) -> BTreeSet<String> {
        let all = self.lock();
        all.iter().filter(|(_, status)| status.pending).map(|(name, _)| name.clone()).collect()
    }

    /// Notes that an occurrence begins, and returns the status from before.
    pub(super) fn begin(&self, function: &str, now: OffsetDateTime) -> TimerStatus {
        let mut all = self.lock();
        let fresh = || TimerStatus { last: NEVER.to_owned(), next: timestamp(now), pending: false };
        let status = all.entry(function.to_owned()).or_insert_with(fresh);
        status.pending = true;
        status.clone()
    }

    /// Notes that an occurrence has run, well or not: the host writes its status after the run.
    pub(super) fn end(&self, function: &str, now: OffsetDateTime) {
        let now = timestamp(now);
        let status = TimerStatus { last: now.clone(), next: now, pending: false };
        self.lock().insert(function.to_owned(), status);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, TimerStatus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a time as .NET writes it.
pub(super) fn timestamp(at: OffsetDateTime) -> String {
    let form = format_description!(
        "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:7]+00:00"
    );
    at.format(&form).expect("a date and time has every part of the form")
}
