//! Changing the stored entry of a key: read, decide, write under the tag that was read.
//!
//! A damaged entry is replaced by a quarantined one of the version at hand, once two reads returned the same: one
//! answer may come from something other than the store. The caller proves in between that it still holds the lease.
//! So no later holder has written what is replaced, and nothing is lost that could be delivered: an entry covers only
//! the last version of a row, and this one is later. An entry that holds rows is left alone, even if this build cannot
//! read it: another build may.

use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;

use super::{Entry, EntryError, EntryState, VersionRead, decode};
use crate::cursor::KeyId;
use crate::store::{ETag, Precondition, StateKey, StateStore, StoreError, StoredValue};

/// How often an entry is read again because another process changed it. Only an operator, a range and one holder of
/// the lease write entries, so the second try usually succeeds.
const TRIES_MAX: u32 = 5;

/// Why an entry is not known to be stored.
#[derive(Debug, Error)]
pub(crate) enum RecordError {
    /// The store failed, or the entry changed before every try.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another build may be able to read the entry, so it must not be overwritten.
    #[error(transparent)]
    Entry(#[from] EntryError),
}

/// What was stored, and could not be read.
pub(crate) type Replaced = Option<EntryError>;

/// What one read of a damaged entry returned.
#[derive(Debug)]
pub(crate) struct DamagedRead {
    bytes: Vec<u8>,
    etag: ETag,
    error: EntryError,
}

impl From<DamagedRead> for RecordError {
    fn from(read: DamagedRead) -> Self {
        Self::Entry(read.error)
    }
}

/// What became of an entry to record.
#[derive(Debug)]
pub(crate) enum Recorded {
    /// It is stored.
    Done(Replaced),
    /// As [`Diversion::Damaged`].
    Damaged(DamagedRead),
}

/// What became of a later version of a parked key.
#[derive(Debug)]
pub(crate) enum Diversion {
    /// Its entry has it.
    Kept { replaced: Replaced },
    /// The entry is gone.
    Gone,
    /// The entry is of a range, and holds nothing back.
    HoldsNothing,
    /// The entry seems to be damaged. It is replaced if it is passed in again by a caller that still holds the lease.
    Damaged(DamagedRead),
}

/// What a read of an entry returned.
enum Reading {
    Intact(Entry),
    /// It may be replaced.
    Damaged(EntryError),
    /// It seems to be damaged, and must be read again to know that.
    Suspicious(DamagedRead),
}

/// Decodes an entry, and compares a damaged one with the read before.
fn read(
    key: &StateKey,
    stored: StoredValue,
    before: Option<&DamagedRead>,
) -> Result<Reading, EntryError> {
    let StoredValue { bytes, etag, .. } = stored;
    let error = match decode(key, &bytes) {
        Ok(entry) => return Ok(Reading::Intact(entry)),
        Err(damaged @ EntryError::Earlier { .. }) => damaged,
        Err(damaged @ EntryError::Form { .. }) if !holds_rows(&bytes) => damaged,
        Err(intact) => return Err(intact),
    };
    if before.is_some_and(|before| before.bytes == bytes && before.etag == etag) {
        return Ok(Reading::Damaged(error));
    }
    Ok(Reading::Suspicious(DamagedRead { bytes, etag, error }))
}

/// Whether these bytes are an entry with rows, perhaps with values that this build does not know.
fn holds_rows(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Rows {
        events: Vec<IgnoredAny>,
    }
    serde_json::from_slice::<Rows>(bytes).is_ok_and(|rows| !rows.events.is_empty())
}

/// Makes the stored entry of a key cover `entry`: creates it, adds this version to the one that is there, or replaces it
/// if it is damaged as it was in the read `before`.
///
/// # Errors
///
/// [`RecordError`]; the entry may then be stored or not, and it does no harm to record it again.
pub(crate) async fn record(
    store: &dyn StateStore,
    entry: &Entry,
    before: Option<&DamagedRead>,
) -> Result<Recorded, RecordError> {
    let key = entry.state_key();
    for _ in 0..TRIES_MAX {
        match store.store(&key, entry.encode(), Precondition::Absent).await {
            Err(StoreError::Conflict { .. }) => {}
            written => return Ok(written.map(|_| Recorded::Done(None))?),
        }
        // A tick that never got to its commit recorded this version, or the entry is of an earlier one.
        let Some(stored) = store.load(&key).await?.stored else { continue };
        let etag = stored.etag.clone();
        let (joined, replaced) = match read(&key, stored, before)? {
            Reading::Intact(known) => (known.joined_by(entry)?, None),
            Reading::Damaged(damaged) => (Some(instead_of_damaged(entry)), Some(damaged)),
            Reading::Suspicious(damaged) => return Ok(Recorded::Damaged(damaged)),
        };
        let Some(joined) = joined else { return Ok(Recorded::Done(None)) };
        match store.store(&key, joined.encode(), Precondition::Matches(etag)).await {
            Err(StoreError::Conflict { .. }) => {}
            written => return Ok(written.map(|_| Recorded::Done(replaced))?),
        }
    }
    Err(StoreError::Conflict { key: key.path() }.into())
}

/// The damaged entry may have been of a row that crashes processes, and have held back later versions.
fn instead_of_damaged(entry: &Entry) -> Entry {
    let state = EntryState::Quarantined;
    Entry { state, next_retry_at: None, holds_back: true, ..entry.clone() }
}

/// Adds a later version of a parked key to its entry. If that is damaged as it was in the read `before`, `new` takes its
/// place.
///
/// # Errors
///
/// [`RecordError`]; the entry may then have the version or not.
pub(crate) async fn divert(
    store: &dyn StateStore,
    key: &StateKey,
    version: &VersionRead<'_>,
    before: Option<&DamagedRead>,
    new: impl Fn(&EntryError) -> Entry,
) -> Result<Diversion, RecordError> {
    for _ in 0..TRIES_MAX {
        let Some(stored) = store.load(key).await?.stored else { return Ok(Diversion::Gone) };
        let etag = stored.etag.clone();
        let (joined, replaced) = match read(key, stored, before)? {
            Reading::Intact(entry) if !entry.holds_back => return Ok(Diversion::HoldsNothing),
            Reading::Intact(entry) => (entry.with_version(version)?, None),
            Reading::Damaged(damaged) => (Some(new(&damaged)), Some(damaged)),
            Reading::Suspicious(damaged) => return Ok(Diversion::Damaged(damaged)),
        };
        let Some(joined) = joined else { return Ok(Diversion::Kept { replaced: None }) };
        match store.store(key, joined.encode(), Precondition::Matches(etag)).await {
            Err(StoreError::Conflict { .. }) => {}
            written => return Ok(written.map(|_| Diversion::Kept { replaced })?),
        }
    }
    Err(StoreError::Conflict { key: key.path() }.into())
}

/// Lists the keys of a poller that have an entry, sorted.
///
/// # Errors
///
/// [`StoreError`] of any kind but `Conflict`.
pub(crate) async fn keys_of(
    store: &dyn StateStore,
    poller: &str,
) -> Result<Vec<KeyId>, StoreError> {
    let of_poller = |key| match key {
        StateKey::Quarantined { poller: of, key } if of == poller => Some(key),
        StateKey::Quarantined { .. }
        | StateKey::Document(_)
        | StateKey::Marker(_)
        | StateKey::Saved { .. } => None,
    };
    Ok(store.list().await?.into_iter().filter_map(of_poller).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[tokio::test]
    async fn an_entry_counts_as_damaged_once_two_reads_return_the_same() {
        let store = MemoryStore::default();
        let key = StateKey::Quarantined {
            poller: "orders".to_owned(),
            key: KeyId::parse(&"0".repeat(32)).unwrap(),
        };
        let mut before = None;
        let mut precondition = Precondition::Absent;
        // The last one has other bytes than before, then the same ones in another write.
        for bytes in [&b"<html>Sign in"[..], b"{", b"{"] {
            let written = store.store(&key, bytes.to_vec(), precondition).await.unwrap();
            precondition = Precondition::Matches(written.etag);
            let stored = store.load(&key).await.unwrap().stored.unwrap();
            let Reading::Suspicious(damaged) = read(&key, stored, before.as_ref()).unwrap() else {
                panic!("{bytes:?}");
            };
            before = Some(damaged);
        }
        let stored = store.load(&key).await.unwrap().stored.unwrap();
        assert!(matches!(read(&key, stored, before.as_ref()), Ok(Reading::Damaged(_))));
    }
}
