//! The status of an app's pollers, as shown by `highwater status`, the status page and its JSON.
//!
//! It is built from the state documents, so any replica can build it, and so can a laptop with read access. A process
//! that runs ticks adds how they ended ([`health`]). Only the events of a poller's journal come from the journal
//! store. Nothing is ever written.
//!
//! One type serves all: [`Status`] is an element of the output of `highwater status --output json`, and of `pollers`
//! in the [`Report`] of `/api/status`. `docs/reference/status.md` lists its fields.

pub mod health;
mod poller;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use thiserror::Error;
use time::OffsetDateTime;

use self::health::{Evidence, Health, PollerState, Severity, StoredState, Trigger};
pub use self::poller::{
    BacklogStatus, Batch, Event, KEYS_MAX, Lease, LoadProgress, ParkedEntry, ParkedStatus, Pause,
    RATE_WINDOW, Status, StatusInputs, Tick, Tone, tone,
};
use crate::clock::{Clock as _, SystemClock};
use crate::cursor::KeyId;
pub use crate::document::{ACTIVITY_PERIOD, ACTIVITY_PERIODS, Activity};
use crate::error::chain;
use crate::journal::{Filter, JournalMode};
use crate::partition::poller_of_partition;
use crate::poller::Poller;
use crate::poller::tick_history::LastSeen;
use crate::recovery::scan::{StoredDocument, StoredNames, documents};
use crate::schedule::Schedule;
use crate::store::{StateKey, StateStore, StoreError};

/// Most events of a journal to show; the newest.
pub const EVENTS_MAX: usize = 50;

/// Most entries of parked keys that are read at once.
const ENTRY_READS_MAX: usize = 8;

/// How late a tick may be before the poller counts as not ticking in this process.
const TICK_GRACE: Duration = Duration::from_secs(60);

/// The status of the pollers of an app.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the app.
    pub app: String,
    /// Version of this program.
    pub version: &'static str,
    /// The storage service's time; `None` if no document was read.
    #[serde(with = "time::serde::rfc3339::option")]
    pub at: Option<OffsetDateTime>,
    /// The pollers, by name.
    pub pollers: Vec<Status>,
}

/// Which pollers to report, and in what detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusQuery<'a> {
    /// All pollers in the settings or the store.
    All,
    /// One poller, or all of its partitions.
    One(&'a str),
    /// One poller, with the newest events of its journal.
    WithJournal(&'a str),
}

/// Why the status is unknown.
#[derive(Debug, Error)]
pub enum StatusError {
    /// The poller is unknown.
    #[error("no poller `{0}` in the settings or in the store")]
    NoPoller(String),
    /// The store does not respond, or rejects the request.
    #[error("read state")]
    Store(#[from] StoreError),
}

/// What the status is built from.
#[derive(Clone, Debug)]
pub struct StatusReader {
    /// Name of the app.
    pub app: String,
    /// Where the documents are stored.
    pub state: Arc<dyn StateStore>,
    /// The pollers of the settings.
    pub pollers: BTreeMap<String, Arc<Poller>>,
    /// When their functions run, if known.
    pub schedules: BTreeMap<String, Vec<Schedule>>,
    /// Why no function runs a poller, if known.
    pub disabled: BTreeMap<String, String>,
}

impl StatusReader {
    /// Reads the status of pollers: one listing, and one document each. Finished ranges are left out unless named.
    ///
    /// # Errors
    ///
    /// [`StatusError::NoPoller`] for an unknown poller; [`StatusError::Store`] of any kind
    /// but `Conflict`.
    pub async fn read(&self, query: StatusQuery<'_>) -> Result<Report, StatusError> {
        let listing = StoredNames::read(&*self.state).await?;
        let stored = listing.documents.iter().cloned();
        let known: BTreeSet<String> = stored.chain(self.pollers.keys().cloned()).collect();
        let names = match query {
            StatusQuery::All => known.into_iter().collect(),
            StatusQuery::WithJournal(name) => {
                known.into_iter().filter(|known| known == name).collect()
            }
            StatusQuery::One(name) => {
                let is_of_it = |known: &String| known == name || poller_of_partition(known) == name;
                known.into_iter().filter(is_of_it).collect::<Vec<String>>()
            }
        };
        if let (StatusQuery::One(name) | StatusQuery::WithJournal(name), true) =
            (query, names.is_empty())
        {
            return Err(StatusError::NoPoller(name.to_owned()));
        }
        let (mut at, mut pollers) = (None, Vec::new());
        let mut found = Box::pin(documents(Arc::clone(&self.state), names));
        while let Some(read) = found.next().await {
            let (name, found) = read?;
            let (status, now) = self.status(&name, &listing, found);
            at = at.max(now);
            if !(matches!(query, StatusQuery::All) && status.has_ended()) {
                pollers.push(status);
            }
        }
        if let (StatusQuery::WithJournal(name), Some(status)) = (query, pollers.first_mut()) {
            status.journal = self.events(name).await?;
            status.keys = self.parked_keys(name, &listing).await;
        }
        Ok(Report { app: self.app.clone(), version: env!("CARGO_PKG_VERSION"), at, pollers })
    }

    fn status(
        &self,
        name: &str,
        listing: &StoredNames,
        found: StoredDocument,
    ) -> (Status, Option<OffsetDateTime>) {
        let quarantined = listing.quarantined.get(name).copied().unwrap_or(0);
        let ttl = self.pollers.get(name).map(|poller| poller.lease_ttl());
        let without = |health| Status {
            poller: name.to_owned(),
            configured: ttl.is_some(),
            health,
            quarantined,
            schedule: self.schedule_text(name),
            time_zone: self.time_zone(name),
            ..Status::default()
        };
        match found {
            StoredDocument::Document(base) => {
                let (age, now) = (base.age(self.state.grain()), base.now());
                let inputs = StatusInputs { age, now, quarantined, ttl, poller: name };
                let stored =
                    StoredState::Found(Box::new(health::Document::of(&base.document, age)));
                let status = Status {
                    schedule: self.schedule_text(name),
                    time_zone: self.time_zone(name),
                    next_tick_at: self.next_tick(name, now),
                    ..Status::of(&base.document, inputs)
                };
                (status.with_health(self.health(name, Some(now), stored), now), Some(now))
            }
            StoredDocument::Unreadable(error) => {
                let health = self.health(name, None, StoredState::Unreadable(&error));
                (Status { last_error: Some(error), ..without(health) }, None)
            }
            StoredDocument::Nothing(date) => {
                let ran_before = listing.marked.contains(name);
                let health = self.health(name, Some(date), StoredState::Missing { ran_before });
                (without(health), None)
            }
        }
    }

    /// Returns the health of a poller. `now` is `None` if the store gave no time; then nothing is judged by time.
    pub(crate) fn health(
        &self,
        name: &str,
        now: Option<OffsetDateTime>,
        stored: StoredState<'_>,
    ) -> Health {
        let poller = self.pollers.get(name);
        let process = now.zip(poller).map(|(now, poller)| poller.process(now));
        Evidence {
            poller: name,
            now: now.unwrap_or(OffsetDateTime::UNIX_EPOCH),
            stored,
            process: process.unwrap_or_default(),
            trigger: self.trigger(name),
            status_interval: poller.map(|poller| poller.status_interval()),
        }
        .health()
    }

    fn trigger(&self, name: &str) -> Trigger<'_> {
        match (self.disabled.get(name), self.schedules.get(name)) {
            (Some(reason), _) => Trigger::Off(reason),
            (None, Some(schedules)) => Trigger::Timer(schedules),
            (None, None) => Trigger::Unknown,
        }
    }

    fn schedule_text(&self, name: &str) -> Option<String> {
        let schedules = self.schedules.get(name)?;
        let texts: Vec<String> = schedules.iter().map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }

    /// Returns the time zone of a poller's schedules: one process has one.
    fn time_zone(&self, name: &str) -> Option<String> {
        Some(self.schedules.get(name)?.first()?.zone().name().to_owned())
    }

    /// Returns when the first of a poller's functions is due, by the storage service's clock.
    pub(crate) fn next_tick(&self, name: &str, now: OffsetDateTime) -> Option<OffsetDateTime> {
        let schedules = self.schedules.get(name)?;
        schedules.iter().filter_map(|schedule| schedule.next_after(now)).min()
    }

    /// Reads the first parked keys of a poller; `None` if there are none, or if the poller is not in the settings.
    async fn parked_keys(&self, name: &str, listing: &StoredNames) -> Option<Vec<ParkedEntry>> {
        let poller = self.pollers.get(name)?;
        // Built before the stream: a closure of the stream would borrow for too long to be `Send`.
        let reads: Vec<_> =
            listing.keys.get(poller.of())?.iter().map(|key| read_entry(poller, key)).collect();
        let entries: Vec<_> = stream::iter(reads).buffered(ENTRY_READS_MAX).collect().await;
        Some(entries.into_iter().flatten().collect())
    }

    /// Reads the newest events of a poller's journal, newest first; `None` if no journal is kept.
    async fn events(&self, name: &str) -> Result<Option<Vec<Event>>, StoreError> {
        let Some(poller) = self.pollers.get(name) else { return Ok(None) };
        let history = poller.admin().latest_history().await?;
        if history.lines.is_empty() && poller.journal_mode() == JournalMode::Off {
            return Ok(None);
        }
        let lines = history.select(&Filter::default());
        let entries = lines.iter().rev().filter_map(|line| line.entry.as_ref().ok());
        Ok(Some(entries.take(EVENTS_MAX).map(Event::of).collect()))
    }
}

/// Reads a parked key; `None` if its entry is gone meanwhile, so that it is not parked any more.
async fn read_entry(poller: &Poller, key: &KeyId) -> Option<ParkedEntry> {
    match poller.admin().entry(key).await {
        Ok(stored) => stored.as_ref().map(ParkedEntry::of),
        Err(error) => Some(ParkedEntry::unreadable(key, &error)),
    }
}

/// Returns the storage service's time as the poller knows it, or this machine's before the first answer.
fn time_of(poller: &Poller) -> OffsetDateTime {
    poller.storage_time().unwrap_or_else(|| SystemClock.now())
}

/// The states of pollers, without a request for most of them.
impl StatusReader {
    /// Returns the states of the pollers in the settings, as this process knows them. Requests nothing.
    ///
    /// A tick knows the document when it ends, so a poller that ticks here has the state that any other view shows.
    /// A poller is left out until its first tick, or until [`Self::refresh`] reads its document.
    pub fn states(&self) -> Vec<(String, PollerState)> {
        let names = self.pollers.keys();
        names.filter_map(|name| Some((name.clone(), self.state_in_memory(name)?))).collect()
    }

    fn state_in_memory(&self, name: &str) -> Option<PollerState> {
        let poller = self.pollers.get(name)?;
        let seen = match (poller.seen(), self.disabled.get(name)) {
            (None, None) => return None,
            (None, Some(_)) => LastSeen::Missing { ran_before: false },
            (Some(seen), _) => seen,
        };
        let now = time_of(poller);
        Some(self.health(name, Some(now), seen.stored()).state)
    }

    /// Whether the last due tick of a poller did not run in this process.
    fn is_overdue(&self, name: &str) -> bool {
        if self.disabled.contains_key(name) {
            return false;
        }
        let Some(poller) = self.pollers.get(name) else { return false };
        let now = time_of(poller);
        let process = poller.process(now);
        if process.running {
            return false;
        }
        let Some(last) = process.last_tick_at else { return true };
        self.next_tick(name, last).is_some_and(|due| now > due + TICK_GRACE)
    }

    /// Reads the documents of the pollers that do not tick here, for [`Self::states`]: another instance may run them.
    ///
    /// Nothing is read of a poller whose last due tick ran here. A document that cannot be read leaves its state
    /// unchanged.
    pub async fn refresh(&self) {
        let overdue = self.pollers.keys().filter(|name| self.is_overdue(name));
        let names: Vec<String> = overdue.cloned().collect();
        let mut found = Box::pin(documents(Arc::clone(&self.state), names));
        while let Some(Ok((name, found))) = found.next().await {
            let Some(poller) = self.pollers.get(&name) else { continue };
            match found {
                StoredDocument::Document(snapshot) => {
                    if !poller.had_newest_grant(&snapshot.document) {
                        poller.metrics.forget_lag(&name);
                    }
                    poller.note_snapshot(&snapshot);
                }
                StoredDocument::Unreadable(error) => poller.note_seen(LastSeen::Unreadable(error)),
                StoredDocument::Nothing(date) => {
                    let marker = self.state.load(&StateKey::Marker(name)).await;
                    let Ok(marker) = marker else { continue };
                    poller.note_time(date);
                    poller.note_seen(LastSeen::Missing { ran_before: marker.stored.is_some() });
                }
            }
        }
    }
}

impl Report {
    /// Returns the most urgent severity of all pollers.
    pub fn severity(&self) -> Severity {
        self.pollers.iter().map(|status| status.health.severity).max().unwrap_or_default()
    }
}

impl StatusError {
    /// Returns the error with all its causes, for people.
    pub fn text(&self) -> String {
        chain(self)
    }
}

#[cfg(test)]
mod tests;
