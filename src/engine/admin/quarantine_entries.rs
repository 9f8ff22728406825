//! The quarantined rows of a poller, as operators see them.

use crate::admin::Admin;
use crate::event::EventId;
use crate::quarantine::{Entry, EntryError, decode};
use crate::store::{ETag, StateKey, StoreError};

/// What is stored under the name of an entry.
#[derive(Debug)]
pub struct StoredEntry {
    /// The event that the name says.
    pub event: EventId,
    /// The entry, or why it cannot be read.
    pub entry: Result<Entry, EntryError>,
    /// The stored version.
    pub etag: ETag,
}

impl Admin<'_> {
    /// Returns the ids of the quarantined events, sorted.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn quarantined(self) -> Result<Vec<EventId>, StoreError> {
        let keys = self.poller.store.list().await?;
        let of_ours = keys.into_iter().filter_map(|key| match key {
            StateKey::Quarantined { poller, event } if poller == self.poller.of() => Some(event),
            StateKey::Quarantined { .. }
            | StateKey::Document(_)
            | StateKey::Marker(_)
            | StateKey::Saved { .. } => None,
        });
        Ok(of_ours.collect())
    }

    /// Reads the stored entry of a quarantined event, if any.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn entry(self, event: &EventId) -> Result<Option<StoredEntry>, StoreError> {
        let key = self.poller.entry_key(event);
        let Some(stored) = self.poller.store.load(&key).await?.stored else { return Ok(None) };
        let entry = decode(&key, &stored.bytes);
        Ok(Some(StoredEntry { event: event.clone(), entry, etag: stored.etag }))
    }

    /// Removes an entry, unless it has changed since it was read.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; `Conflict` if the entry was changed or removed in the meantime.
    pub async fn remove_entry(self, event: &EventId, etag: &ETag) -> Result<(), StoreError> {
        self.poller.store.remove(&self.poller.entry_key(event), etag).await
    }
}
