//! Changing the stored entry of a key: read, decide, write under the tag that was read.

use thiserror::Error;

use super::{Entry, EntryError, VersionRead, decode};
use crate::cursor::KeyId;
use crate::store::{Precondition, StateKey, StateStore, StoreError};

/// How often an entry is read again because another process changed it. Only an operator, a range and one holder of
/// the lease write entries, so the second try usually succeeds.
const TRIES_MAX: u32 = 5;

/// Why an entry is not known to be stored.
#[derive(Debug, Error)]
pub(crate) enum RecordError {
    /// The store failed, or the entry changed before every try.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is stored under the name of the entry cannot be read, so it must not be overwritten.
    #[error(transparent)]
    Entry(#[from] EntryError),
}

/// Makes the stored entry of a key cover `entry`: creates it, or adds this version to the one that is there.
///
/// # Errors
///
/// [`RecordError`]; the entry may then be stored or not, and it does no harm to record it again.
pub(crate) async fn record(store: &dyn StateStore, entry: &Entry) -> Result<(), RecordError> {
    let key = entry.state_key();
    for _ in 0..TRIES_MAX {
        match store.store(&key, entry.encode(), Precondition::Absent).await {
            Err(StoreError::Conflict { .. }) => {}
            written => return Ok(written.map(drop)?),
        }
        // A tick that never got to its commit recorded this version, or the entry is of an earlier one.
        let Some(stored) = store.load(&key).await?.stored else { continue };
        let Some(joined) = decode(&key, &stored.bytes)?.joined_by(entry)? else { return Ok(()) };
        match store.store(&key, joined.encode(), Precondition::Matches(stored.etag)).await {
            Err(StoreError::Conflict { .. }) => {}
            written => return Ok(written.map(drop)?),
        }
    }
    Err(StoreError::Conflict { key: key.path() }.into())
}

/// Adds a later version of a parked key to its entry; `false` if the entry is gone, or holds nothing back.
///
/// # Errors
///
/// [`RecordError`]; the entry may then have the version or not.
pub(crate) async fn divert(
    store: &dyn StateStore,
    key: &StateKey,
    read: &VersionRead<'_>,
) -> Result<bool, RecordError> {
    for _ in 0..TRIES_MAX {
        let Some(stored) = store.load(key).await?.stored else { return Ok(false) };
        let entry = decode(key, &stored.bytes)?;
        if !entry.holds_back {
            return Ok(false);
        }
        let Some(joined) = entry.with_version(read)? else { return Ok(true) };
        match store.store(key, joined.encode(), Precondition::Matches(stored.etag)).await {
            Err(StoreError::Conflict { .. }) => {}
            written => return Ok(written.map(|_| true)?),
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
