//! Parked and quarantined keys: keys whose rows the handler rejects, and the format in which they are stored.
//!
//! One JSON object per key, stored alongside the state document and named by the id of the key. It has the last version
//! of the row, and what is known of all its versions. A row that is parked twice, because its checkpoint was not
//! committed, changes nothing the second time.

mod entries;
mod known_keys;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;
use time::OffsetDateTime;

pub(crate) use self::entries::{
    DamagedRead, Diversion, RecordError, Recorded, divert, keys_of, record,
};
pub use self::known_keys::KnownKeys;
use crate::cursor::{Cursor, KeyId, KeyValues};
use crate::document::{Generation, Holder};
use crate::event::{BatchId, ChangeEvent, EventId, Operation};
use crate::policy::ParkPolicy;
use crate::store::StateKey;

/// Version of the format. Version 1 had one entry per version of a row.
pub const VERSION: u32 = 2;

/// Largest event that is stored in full; a larger one is stored without its columns. Stores accept
/// documents of up to 4 MiB.
const EVENT_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Why a key was parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The target permanently rejected the row on its own.
    Refused,
    /// The row failed too often or for too long, and the target has accepted another row since.
    Attempts,
    /// Processes crashed while handling only this row.
    Crashes,
    /// The row cannot be delivered to any target: a value or its event is larger than the settings allow. Or what was known
    /// about its key could not be read any more.
    Unreadable,
}

impl Reason {
    /// Returns the name used in entries, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Attempts => "attempts",
            Self::Crashes => "crashes",
            Self::Unreadable => "unreadable",
        }
    }
}

/// What happens to a parked key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryState {
    /// It is retried automatically.
    Retrying,
    /// It waits for an operator.
    #[default]
    Quarantined,
}

impl EntryState {
    /// Returns the name used in entries and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retrying => "retrying",
            Self::Quarantined => "quarantined",
        }
    }
}

/// What is known about a row whose key is being parked.
#[derive(Clone, Debug)]
pub struct QuarantinedRow<'a> {
    /// The poller.
    pub poller: &'a str,
    /// The last batch in which it was tried.
    pub batch_id: &'a BatchId,
    /// The lease holder that parks it.
    pub holder: &'a Holder,
    /// Why it is parked.
    pub reason: Reason,
    /// Counted attempts.
    pub attempts: u32,
    /// Crashes while handling it.
    pub crashes: u32,
    /// When it first failed; storage time.
    pub first_failed_at: OffsetDateTime,
    /// When it is parked; storage time.
    pub quarantined_at: OffsetDateTime,
    /// The first error.
    pub first_error: &'a str,
    /// The last error.
    pub last_error: &'a str,
}

/// A later version of a parked key, as a holder of the lease has read it.
#[derive(Clone, Copy, Debug)]
pub struct VersionRead<'a> {
    /// The event of the row.
    pub event: &'a ChangeEvent,
    /// The holder.
    pub holder: &'a Holder,
    /// When; storage time.
    pub at: OffsetDateTime,
}

/// The entry of a key, as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Version of the format; see [`VERSION`].
    pub version: u32,
    /// The poller.
    pub poller_name: String,
    /// Id of the key.
    pub key_id: KeyId,
    /// Id of the event of the last version.
    pub event_id: EventId,
    /// The last batch in which the row was tried.
    pub batch_id: BatchId,
    /// Why it was parked last.
    pub reason: Reason,
    /// The last error.
    pub error: String,
    /// The first error.
    pub first_error: String,
    /// Counted attempts at the last version.
    pub attempts: u32,
    /// Crashes while handling the last version.
    pub crashes: u32,
    /// Number of versions of the row that were parked.
    pub versions: u64,
    /// Whether the key is retried automatically.
    #[serde(default)]
    pub state: EntryState,
    /// Automatic retries so far.
    #[serde(default)]
    pub retries: u32,
    /// When the next one is due; storage time.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub next_retry_at: Option<OffsetDateTime>,
    /// When the first of them first failed; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub first_failed_at: OffsetDateTime,
    /// When the last of them was parked; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub quarantined_at: OffsetDateTime,
    /// When the last version was read; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub last_version_at: OffsetDateTime,
    /// Whether later versions of the key wait with it. Not those of a row that a range quarantined: a range delivers rows
    /// of the past.
    pub holds_back: bool,
    /// The lease holder that parked it.
    pub quarantined_by: String,
    /// Generation of the state document.
    pub generation: u64,
    /// Token of the lease.
    pub fencing_token: u64,
    /// Whether the row's columns were left out because they are too large to store.
    #[serde(default)]
    pub without_columns: bool,
    /// The event of the last version as it was delivered; exactly one.
    pub events: Vec<Box<RawValue>>,
}

/// An entry that cannot be read.
#[derive(Debug, Error)]
pub enum EntryError {
    /// The JSON does not have the format of an entry.
    #[error("`{key}` is not a valid quarantine entry")]
    Form {
        /// Key of the entry.
        key: String,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The entry was written by an earlier version.
    #[error(
        "`{key}` has version {found}, older than the supported {VERSION}: update the \
         row, which replaces the entry, then redrive its key"
    )]
    Earlier {
        /// Key of the entry.
        key: String,
        /// Its version.
        found: u32,
    },
    /// The entry was written by a later version.
    #[error(
        "`{key}` has version {found}, newer than the supported {VERSION}; upgrade this program"
    )]
    Version {
        /// Key of the entry.
        key: String,
        /// Its version.
        found: u32,
    },
    /// The entry belongs to another key than its name says.
    #[error("`{key}` contains key `{found}` of poller `{poller}`, which does not match its name")]
    Misplaced {
        /// Key of the entry.
        key: String,
        /// The key in it.
        found: KeyId,
        /// The poller in it.
        poller: String,
    },
    /// The entry does not hold exactly the event that it names.
    #[error("`{key}` does not contain its event: {reason}")]
    Event {
        /// Key of the entry.
        key: String,
        /// What is wrong with its event.
        reason: String,
    },
}

impl QuarantinedRow<'_> {
    /// Returns the entry of `event`, as if it was the first of its key.
    pub fn entry(&self, event: &ChangeEvent) -> Entry {
        let (without_columns, events) = stored_event(event);
        Entry {
            version: VERSION,
            poller_name: self.poller.to_owned(),
            key_id: KeyId::of(&event.cursor.key),
            event_id: event.id.clone(),
            batch_id: self.batch_id.clone(),
            reason: self.reason,
            error: self.last_error.to_owned(),
            first_error: self.first_error.to_owned(),
            attempts: self.attempts,
            crashes: self.crashes,
            versions: 1,
            state: EntryState::Quarantined,
            retries: 0,
            next_retry_at: None,
            first_failed_at: self.first_failed_at,
            quarantined_at: self.quarantined_at,
            last_version_at: self.quarantined_at,
            holds_back: true,
            quarantined_by: self.holder.owner_id.clone(),
            generation: self.holder.generation.0,
            fencing_token: self.holder.token.0,
            without_columns,
            events,
        }
    }
}

/// Returns whether an event is stored without its columns, and its stored form.
fn stored_event(event: &ChangeEvent) -> (bool, Vec<Box<RawValue>>) {
    let without_columns = event.unreadable.is_some() || event.json.len() > EVENT_BYTES_MAX;
    let json = if without_columns { reference(event) } else { event.json.to_string() };
    (without_columns, RawValue::from_string(json).into_iter().collect())
}

/// Returns the event without its columns: only the identity and version of the row.
fn reference(event: &ChangeEvent) -> String {
    serde_json::json!({
        "id": event.id, "op": event.op, "pk": event.cursor.key, "cursor": event.cursor,
        "before": null, "after": null,
    })
    .to_string()
}

/// The version, which every format has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Decodes an entry.
///
/// # Errors
///
/// [`EntryError`] if it is damaged, belongs to another key, or is of another version.
pub fn decode(key: &StateKey, bytes: &[u8]) -> Result<Entry, EntryError> {
    let form = |source| EntryError::Form { key: key.path(), source };
    let Versioned { version: found } = serde_json::from_slice(bytes).map_err(form)?;
    if found < VERSION {
        return Err(EntryError::Earlier { key: key.path(), found });
    }
    if found > VERSION {
        return Err(EntryError::Version { key: key.path(), found });
    }
    let entry: Entry = serde_json::from_slice(bytes).map_err(form)?;
    if *key != entry.state_key() {
        let Entry { key_id: found, poller_name: poller, .. } = entry;
        return Err(EntryError::Misplaced { key: key.path(), found, poller });
    }
    entry.event()?;
    Ok(entry)
}

/// The fields that are read from a stored event.
#[derive(Deserialize)]
struct StoredEvent {
    id: EventId,
    op: Operation,
    cursor: Cursor,
}

impl Entry {
    /// Returns the key under which the entry is stored.
    pub fn state_key(&self) -> StateKey {
        StateKey::Quarantined { poller: self.poller_name.clone(), key: self.key_id.clone() }
    }

    /// Returns the entry as JSON.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Returns the event of the last version as it was delivered.
    ///
    /// # Errors
    ///
    /// [`EntryError::Event`] if the event is missing or is another one.
    pub fn event(&self) -> Result<ChangeEvent, EntryError> {
        let wrong = |reason: String| EntryError::Event { key: self.state_key().path(), reason };
        let [json] = self.events.as_slice() else {
            return Err(wrong(format!("it holds {} events", self.events.len())));
        };
        let event: StoredEvent =
            serde_json::from_str(json.get()).map_err(|error| wrong(error.to_string()))?;
        if event.id != self.event_id {
            return Err(wrong(format!("it holds event `{}`", event.id)));
        }
        if KeyId::of(&event.cursor.key) != self.key_id {
            return Err(wrong("it holds an event of another key".to_owned()));
        }
        let StoredEvent { id, op, cursor } = event;
        let json = json.get().to_owned().into();
        Ok(ChangeEvent { id, op, cursor, json, unreadable: None })
    }

    /// Returns the entry of the key after `later` failed, too; `None` if this entry covers it already.
    ///
    /// It covers the version that it holds, and all that are older: whoever redrives it delivers the row as it is now.
    /// What is known of the first failure stays.
    ///
    /// # Errors
    ///
    /// [`EntryError::Event`] if one of the two does not hold its event.
    pub fn joined_by(&self, later: &Self) -> Result<Option<Self>, EntryError> {
        let (known, event) = (self.event()?, later.event()?);
        let is_same = known.id == event.id && known.op == event.op && known.json == event.json;
        // The entry of a range does not hold back later versions; from now on it must.
        let holds_back = self.holds_back || !later.holds_back;
        if holds_back && (is_same || event.cursor.is_before(&known.cursor)) {
            return Ok(None);
        }
        Ok(Some(Self {
            first_error: self.first_error.clone(),
            first_failed_at: self.first_failed_at.min(later.first_failed_at),
            versions: self.versions.saturating_add(later.versions),
            ..if self.holds_back { later.clone().in_state_of(self) } else { later.clone() }
        }))
    }

    fn in_state_of(self, known: &Self) -> Self {
        let Self { state, retries, next_retry_at, holds_back, .. } = *known;
        Self { state, retries, next_retry_at, holds_back, ..self }
    }

    /// Returns the entry of a row that a range quarantines.
    #[must_use]
    pub fn of_range(self) -> Self {
        Self { holds_back: false, ..self }
    }

    /// Whether the entry holds a later version of the row than `event`. Positions of another generation do not compare.
    pub fn is_newer_than(&self, event: &ChangeEvent, generation: Generation) -> bool {
        self.generation == generation.0
            && self.event().is_ok_and(|known| event.cursor.is_before(&known.cursor))
    }

    /// Returns the entry with a version that `holder` read, which waits because the key is parked; `None` if it covers
    /// that already. What is known of failures stays.
    ///
    /// The version read last counts, also if its position is an earlier one: an application may set a column back, and
    /// after a reset another table may have the name. Only a holder that has lost its lease may have read it first.
    ///
    /// # Errors
    ///
    /// [`EntryError::Event`] if this entry does not hold its event.
    pub fn with_version(&self, read: &VersionRead<'_>) -> Result<Option<Self>, EntryError> {
        let VersionRead { event, holder, at } = *read;
        let known = self.event()?;
        let (without_columns, events) = stored_event(event);
        let has_same_json = events.first().is_some_and(|json| json.get() == &*known.json);
        let is_same = known.id == event.id && known.op == event.op && has_same_json;
        let (generation, fencing_token) = (holder.generation.0, holder.token.0);
        let is_stale = (generation, fencing_token) < (self.generation, self.fencing_token);
        if is_same || (is_stale && event.cursor.is_before(&known.cursor)) {
            return Ok(None);
        }
        Ok(Some(Self {
            event_id: event.id.clone(),
            versions: self.versions.saturating_add(1),
            without_columns,
            events,
            last_version_at: at,
            generation,
            fencing_token,
            ..self.clone()
        }))
    }

    /// Returns the entry of a key that is retried as the policy says.
    #[must_use]
    pub fn to_be_retried(self, policy: &ParkPolicy, now: OffsetDateTime) -> Self {
        let at = policy.next_retry_at(&self.key_id, self.retries, self.first_failed_at, now);
        let state = if at.is_some() { EntryState::Retrying } else { EntryState::Quarantined };
        Self { state, next_retry_at: at, ..self }
    }

    /// Whether another retry is allowed. One that is too old is tried once more: it may have waited for an outage.
    pub fn may_be_retried(&self, policy: &ParkPolicy) -> bool {
        self.retries < policy.retries_max
    }

    /// Whether a retry is due.
    pub fn is_due(&self, now: OffsetDateTime) -> bool {
        self.state == EntryState::Retrying && self.next_retry_at.is_none_or(|at| at <= now)
    }

    /// Returns the entry before a retry, which is counted first: the process may crash with it.
    #[must_use]
    pub fn retried(&self, policy: &ParkPolicy, now: OffsetDateTime) -> Self {
        let retries = self.retries.saturating_add(1);
        let next = policy.next_retry_at(&self.key_id, retries, self.first_failed_at, now);
        let next_retry_at = Some(next.unwrap_or(now + policy.backoff.max));
        Self { retries, next_retry_at, ..self.clone() }
    }

    /// Returns the entry after a retry that says nothing about the row. The next one is not before `at`.
    #[must_use]
    pub fn uncounted(&self, at: OffsetDateTime) -> Self {
        let next_retry_at = self.next_retry_at.map(|next| next.max(at));
        Self { retries: self.retries.saturating_sub(1), next_retry_at, ..self.clone() }
    }

    /// Returns the entry after a counted retry failed. The last one quarantines the key.
    #[must_use]
    pub fn failed_again(&self, error: &str, policy: &ParkPolicy, now: OffsetDateTime) -> Self {
        self.refused_again(error).to_be_retried(policy, now)
    }

    /// Returns the entry after its row was rejected once more.
    #[must_use]
    pub fn refused_again(&self, error: &str) -> Self {
        let attempts = self.attempts.saturating_add(1);
        Self { attempts, error: error.to_owned(), ..self.clone() }
    }

    /// Returns the key of the row.
    ///
    /// # Errors
    ///
    /// As [`Self::event`].
    pub fn row_key(&self) -> Result<KeyValues, EntryError> {
        Ok(self.event()?.cursor.key)
    }
}

#[cfg(test)]
mod tests;
