//! The invariants of parked keys: their entries, which versions they hold, and what the document says about them.
//!
//! The entries are followed by the requests that landed, and compared with the rows that the target has written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use highwater_engine::policy::{FailurePolicy, OnFailure, ParkPolicy};
use highwater_engine::quarantine::{Entry, EntryState, Reason, decode};
use highwater_engine::store::{Precondition, StateKey, StateStore as _};
use serde_json::Value;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::time::Instant;

use crate::invariants::Judge;
use crate::script::Plan;
use crate::world::{POLLER, TickId, World};

/// Whether a policy writes entries.
pub(crate) fn writes_entries(policy: &FailurePolicy) -> bool {
    policy.on_failure == OnFailure::Park
}

/// Why the handler is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// With rows in the order of the source.
    Regular,
    /// With the row of a parked key, by a tick.
    Retry,
    /// With the row of a parked key, by an operator.
    Redrive,
}

/// The start of the ids of an operator's redrives.
pub(crate) const REDRIVE: &str = "redrive-";

/// A stored entry.
#[derive(Clone, Debug)]
struct Live {
    key_id: String,
    version: u64,
    generation: u64,
    state: EntryState,
    /// Whether it landed when its writer had lost or released the lease. No process has to know it.
    is_late: bool,
}

/// What is known about parked keys.
#[derive(Debug)]
pub(crate) struct Parked {
    policy: FailurePolicy,
    /// By how much the clocks of a store and its users may differ.
    slack: Duration,
    began_at: Instant,
    /// By key.
    entries: BTreeMap<i64, Live>,
    /// Row states that an operator dropped on purpose, or left under an earlier name of the application.
    dropped: BTreeSet<(i64, u64)>,
    /// Row states that the target rejected because of their key.
    refused: BTreeSet<u64>,
    /// The newest version of each key that the target has written.
    newest: BTreeMap<i64, u64>,
    /// What the document says: whether keys are parked, and how many.
    is_required: bool,
    counts: (u64, u64),
    /// Whether the newest grant is one for retries.
    pub(crate) is_retrying: bool,
    /// Ticks whose newest grant is one for retries.
    retrying: BTreeSet<TickId>,
    /// Whether the document was lost, so that it may not know of entries.
    is_orphaned: bool,
}

impl Default for Parked {
    fn default() -> Self {
        Self {
            policy: FailurePolicy::default(),
            slack: Duration::ZERO,
            began_at: Instant::now(),
            entries: BTreeMap::new(),
            dropped: BTreeSet::new(),
            refused: BTreeSet::new(),
            newest: BTreeMap::new(),
            is_required: false,
            counts: (0, 0),
            is_retrying: false,
            retrying: BTreeSet::new(),
            is_orphaned: false,
        }
    }
}

impl Parked {
    pub(crate) fn of(plan: &Plan) -> Self {
        let slack = plan.terms.ttl + Duration::from_secs(3);
        Self { policy: plan.policy, slack, ..Self::default() }
    }

    /// Whether later versions of a failing key wait with it.
    pub(crate) fn is_on(&self) -> bool {
        self.policy.on_failure == OnFailure::Park
    }

    /// Returns the time of the store's clock.
    fn now(&self) -> OffsetDateTime {
        datetime!(2026-01-01 0:00 UTC) + self.began_at.elapsed()
    }

    /// Returns why a tick calls the handler.
    pub(crate) fn purpose_of(&self, tick: TickId, replay_id: Option<&str>) -> Purpose {
        if replay_id.is_some_and(|id| id.starts_with(REDRIVE)) {
            Purpose::Redrive
        } else if self.retrying.contains(&tick) {
            Purpose::Retry
        } else {
            Purpose::Regular
        }
    }

    /// Records what a document that landed says about parked keys.
    pub(crate) fn document_landed(&mut self, writer: Option<TickId>, bytes: &[u8]) {
        let document: Value = serde_json::from_slice(bytes).expect("a document is JSON");
        let parked = &document["parked"];
        let number = |name: &str| parked[name].as_u64().unwrap_or(0);
        self.counts = (number("keys"), number("quarantined"));
        self.is_retrying = parked["is_retrying"].as_bool().unwrap_or(false);
        if let Some(tick) = writer {
            self.retrying.remove(&tick);
            self.retrying.extend(self.is_retrying.then_some(tick));
        }
        let required = document["requires"].as_array();
        self.is_required = required.is_some_and(|all| all.iter().any(|name| name == "park"));
    }

    /// Records that the document no longer says which keys are parked.
    pub(crate) fn document_lost(&mut self) {
        (self.is_orphaned, self.is_required, self.is_retrying) = (true, false, false);
        self.counts = (0, 0);
    }

    /// Records that the entries stay under an earlier name of the application.
    pub(crate) fn app_renamed(&mut self) {
        for (key, live) in std::mem::take(&mut self.entries) {
            self.dropped.insert((key, live.version));
        }
        self.document_lost();
    }

    /// Versions of a table that replaces another one may be lower.
    pub(crate) fn table_replaced(&mut self) {
        self.newest.clear();
    }

    /// Whether this state of a row need not be delivered in its turn.
    pub(crate) fn excuses(&self, key: i64, version: u64) -> bool {
        self.entries.get(&key).is_some_and(|live| live.version >= version)
            || self.dropped.contains(&(key, version))
    }

    /// Whether a request adds a later version to a stored entry.
    pub(crate) fn is_later_version(&self, at: &StateKey, bytes: &[u8]) -> bool {
        if !matches!(at, StateKey::Quarantined { .. }) {
            return false;
        }
        let (_, key, version) = read(bytes);
        self.entries.get(&key).is_some_and(|live| live.version < version)
    }

    /// Records that the target rejects a row because of its key.
    pub(crate) fn refuses(&mut self, version: u64) {
        self.refused.insert(version);
    }

    pub(crate) fn was_refused(&self, version: u64) -> bool {
        self.refused.contains(&version)
    }

    /// Returns the first of these rows whose key is parked, as the holder of the lease must know.
    pub(crate) fn must_be_diverted(&self, rows: &[(i64, u64)]) -> Option<(i64, u64)> {
        let is_parked =
            |(key, _): &&(i64, u64)| self.entries.get(key).is_some_and(|live| !live.is_late);
        rows.iter().find(is_parked).filter(|_| self.is_on() && self.is_required).copied()
    }

    /// Returns how many keys are parked, and how many of them are retried.
    pub(crate) fn entry_counts(&self) -> (usize, usize) {
        let retried = self.entries.values().filter(|live| live.state == EntryState::Retrying);
        (self.entries.len(), retried.count())
    }

    /// Whether the document says nothing of the entries, because it was lost after they were written.
    fn is_unaware(&self) -> bool {
        !self.is_required && (self.is_orphaned || self.entries.values().all(|live| live.is_late))
    }
}

/// Reads an entry and the key and version of its row.
fn read(bytes: &[u8]) -> (Entry, i64, u64) {
    let json: Value = serde_json::from_slice(bytes).expect("an entry is JSON");
    let row = &json["events"][0]["cursor"];
    let key = json["events"][0]["pk"]["id"].as_i64().expect("a key");
    let version = row["value"].as_str().expect("a cursor");
    let version = u64::from_str_radix(&version[2..], 16).expect("a rowversion");
    let of = highwater_engine::cursor::KeyId::parse(json["key_id"].as_str().expect("an id"));
    let at = StateKey::Quarantined { poller: POLLER.to_owned(), key: of.expect("an id") };
    (decode(&at, bytes).expect("our own entry"), key, version)
}

impl Judge {
    /// Judges a change of an entry when it is sent.
    pub(crate) fn changes_entry(&mut self, tick: TickId, bytes: &[u8]) {
        let (entry, key, _) = read(bytes);
        let ParkPolicy { retries_max, age_max, backoff } = self.parked.policy.park;
        let parks = self.parked.is_on();
        self.require(!parks || entry.retries <= retries_max, || {
            let retries = entry.retries;
            format!("tick {} retries key {key} for the {retries}. time of {retries_max}", tick.0)
        });
        let now = self.parked.now();
        let is_retried = entry.state == EntryState::Retrying;
        self.require(entry.next_retry_at.is_some() == is_retried, || {
            format!("key {key} is {:?}, next retry {:?}", entry.state, entry.next_retry_at)
        });
        if let Some(at) = entry.next_retry_at {
            let latest = now + backoff.max + self.parked.slack;
            self.require(at <= latest, || {
                format!("tick {} retries key {key} at {at}, after {latest}", tick.0)
            });
        }
        let slack = self.parked.slack;
        let is_old = now - entry.first_failed_at + slack >= age_max;
        let was_retried = self.parked.entries.get(&key).map(|live| live.state);
        if parks && !is_retried && was_retried != Some(EntryState::Quarantined) {
            let is_allowed =
                entry.retries >= retries_max || is_old || entry.reason == Reason::Crashes;
            self.require(is_allowed, || {
                format!("tick {} quarantines key {key} after {} retries", tick.0, entry.retries)
            });
            self.saw.push(if retries_max == 0 {
                "parking: key quarantined at once"
            } else {
                "parking: key quarantined after retries"
            });
        }
    }

    /// Records an entry that has just landed. `is_late` if its writer did not hold the lease any more.
    pub(crate) fn entry_landed(&mut self, tick: TickId, bytes: &[u8]) {
        let (entry, key, version) = read(bytes);
        let is_held = self.holder() == Some(tick);
        let before = self.parked.entries.get(&key).cloned();
        if let Some(before) = &before {
            // After a reset, another table may have the name.
            let goes_back = version < before.version && entry.generation <= before.generation;
            self.require(!goes_back, || {
                let at = before.version;
                format!("tick {} put version {version} of key {key} in place of {at}", tick.0)
            });
            if version > before.version && self.parked.is_on() {
                self.saw.push("parking: row diverted");
            }
        }
        if before.is_none() && !is_held {
            self.saw.push("parking: entry landed after its writer lost the lease");
        }
        if entry.retries > 0 && before.as_ref().is_some_and(|live| live.version == version) {
            self.saw.push("parking: key retried");
        }
        let is_late = before.map_or(!is_held, |live| live.is_late);
        let key_id = entry.key_id.as_str().to_owned();
        let Entry { state, generation, .. } = entry;
        let live = Live { key_id, version, generation, state, is_late };
        self.parked.entries.insert(key, live);
    }

    /// Judges the removal of an entry: by a tick or a redrive, its last version must have been written, unless its row is
    /// gone; an operator may drop it on purpose.
    pub(crate) fn entry_removed(
        &mut self,
        by: Option<TickId>,
        key_id: &str,
        table: &BTreeMap<i64, u64>,
    ) {
        let found = self.parked.entries.iter().find(|(_, live)| live.key_id == key_id);
        let Some((&key, live)) = found else { return };
        let version = live.version;
        self.parked.entries.remove(&key);
        let Some(tick) = by else {
            self.parked.dropped.insert((key, version));
            self.saw.push("operator: dropped an entry");
            return;
        };
        // A replacement of the table may have the row at an earlier version.
        let due = table.get(&key).map(|&now| now.min(version));
        let is_written = due.is_none_or(|due| self.was_written_since(key, due));
        self.require(is_written, || {
            format!("tick {} removed key {key} at {version}, which was not written", tick.0)
        });
        self.settled(key, version);
        self.saw.push("parking: key recovered");
    }

    /// Judges a write of the target: no older version of a key is written for the first time after a newer one.
    pub(crate) fn key_written(
        &mut self,
        (key, version): (i64, u64),
        is_first: bool,
        is_fair: bool,
    ) {
        let newest = self.parked.newest.get(&key).copied().unwrap_or(0);
        self.require(!(is_first && is_fair && version < newest), || {
            format!("row {key} at {version} came after its version {newest}")
        });
        self.parked.newest.insert(key, newest.max(version));
    }
}

/// Rounds of ticks that retry at most one key each, besides those that find nothing due.
const ROUNDS_SPARE: usize = 12;

impl World {
    /// Returns how many rounds of ticks all retries may take once their keys are due.
    pub(crate) fn retry_rounds(&self) -> usize {
        self.with(|state| state.judge.parked.entry_counts().0) + ROUNDS_SPARE
    }

    /// Whether a tick has something left to do about parked keys.
    pub(crate) fn has_retries_left(&self) -> bool {
        self.with(|state| {
            let parked = &state.judge.parked;
            parked.entry_counts().1 > 0 && !parked.is_unaware()
        })
    }

    /// Judges the parked keys at the end: the target accepts everything, and each key was due since.
    pub(crate) async fn judge_parked(self: &Arc<Self>) {
        let listed = self.memory().list().await.expect("memory answers");
        let mut stored: Vec<String> = Vec::new();
        for key in listed {
            if let StateKey::Quarantined { key, .. } = key {
                stored.push(key.as_str().to_owned());
            }
        }
        stored.sort_unstable();
        self.with(|state| {
            let parked = &state.judge.parked;
            let mut known: Vec<String> =
                parked.entries.values().map(|live| live.key_id.clone()).collect();
            known.sort_unstable();
            assert_eq!(known, stored, "the simulation itself follows the entries");
            if !parked.is_on() {
                return;
            }
            let (entries, retried) = parked.entry_counts();
            let late = parked.entries.values().filter(|live| live.is_late).count();
            let (is_unaware, counts) = (parked.is_unaware(), parked.counts);
            let counts_are_old = is_unaware || state.judge.ever_put_back;
            let number = |count: usize| u64::try_from(count).expect("few");
            let keys = number(entries - late)..=number(entries);
            let quarantined = entries - retried;
            let waiting = number(quarantined.saturating_sub(late))..=number(quarantined);
            let judge = &mut state.judge;
            judge.require(counts_are_old || keys.contains(&counts.0), || {
                format!("the document counts {} parked keys, and there are {keys:?}", counts.0)
            });
            judge.require(counts_are_old || waiting.contains(&counts.1), || {
                format!("the document counts {} quarantined keys of {waiting:?}", counts.1)
            });
            judge.require(is_unaware || retried <= late, || {
                format!("{retried} keys did not recover in one retry interval")
            });
        });
    }
}

/// Whether a request of an entry changes one that is there, and does not create one.
pub(crate) fn is_change(key: &StateKey, precondition: &Precondition) -> bool {
    matches!(key, StateKey::Quarantined { .. }) && matches!(precondition, Precondition::Matches(_))
}
