//! The parked and quarantined keys of a poller, as operators see them.

use super::pause::CHANGE_TIME_MAX;
use crate::admin::Admin;
use crate::cursor::{Cursor, KeyId};
use crate::document::LoadError;
use crate::journal::{Details, EventKind};
use crate::quarantine::{Entry, EntryError, decode, keys_of};
use crate::store::{ETag, StoreError};

/// What is stored under the name of an entry.
#[derive(Debug)]
pub struct StoredEntry {
    /// The key that the name says.
    pub key: KeyId,
    /// The entry, or why it cannot be read.
    pub entry: Result<Entry, EntryError>,
    /// The stored version.
    pub etag: ETag,
}

impl Admin<'_> {
    /// Returns the ids of the keys that have an entry, sorted.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn quarantined(self) -> Result<Vec<KeyId>, StoreError> {
        keys_of(&*self.poller.store, self.poller.of()).await
    }

    /// Reads the stored entry of a key, if any.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn entry(self, key: &KeyId) -> Result<Option<StoredEntry>, StoreError> {
        let at = self.poller.entry_key(key);
        let Some(stored) = self.poller.store.load(&at).await?.stored else { return Ok(None) };
        let entry = decode(&at, &stored.bytes);
        Ok(Some(StoredEntry { key: key.clone(), entry, etag: stored.etag }))
    }

    /// Removes entries that were not changed since they were read, and records that in the document; `report` gets the
    /// result of each.
    ///
    /// This takes no lease, so it works while a tick runs, and while the database is down. A tick that still takes a
    /// dropped key for a parked one cannot lose a row: see [`StateDocument`](crate::document::StateDocument::with_entries_dropped).
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the document could not be read or written. The entries are removed all the same, and the next tick
    /// that lists them counts them.
    pub async fn drop_entries(
        self,
        entries: Vec<(KeyId, ETag)>,
        report: &mut (dyn FnMut(KeyId, Result<(), StoreError>) + Send),
    ) -> Result<(), LoadError> {
        let mut dropped = Vec::new();
        for (key, etag) in entries {
            let position = self.position_for_journal(&key, &etag).await;
            let removed = self.remove_entry(&key, &etag).await;
            if removed.is_ok() {
                dropped.push(position);
            }
            report(key, removed);
        }
        if dropped.is_empty() { Ok(()) } else { Box::pin(self.note_dropped(&dropped)).await }
    }

    /// Returns the position of the row of an entry, if the journal records what becomes of the row.
    async fn position_for_journal(self, key: &KeyId, etag: &ETag) -> Option<Cursor> {
        if !self.poller.recorder().mode().records(EventKind::RowDropped) {
            return None;
        }
        let found = self.entry(key).await.ok()??;
        let entry = found.entry.ok().filter(|_| found.etag == *etag)?;
        Some(entry.event().ok()?.cursor)
    }

    /// Records in the document that entries were dropped, and in the journal which rows they held.
    async fn note_dropped(self, dropped: &[Option<Cursor>]) -> Result<(), LoadError> {
        let poller = self.poller;
        let entries = u64::try_from(dropped.len()).unwrap_or(u64::MAX);
        let mut change = poller.documents(CHANGE_TIME_MAX).change();
        loop {
            let base = change.read(|| poller.blank()).await?;
            // A document without parked keys was made after them, and no process has listed them under it.
            if base.etag.is_none() || base.document.parked.is_unused() {
                return Ok(());
            }
            let age = base.age(poller.store.grain());
            let mut next = base.document.with_entries_dropped(entries, age);
            next.write_id = poller.instance.next_write_id();
            poller.number(EventKind::Noted, &mut next);
            if let Some(written) = change.write(&base, Box::new(next)).await? {
                poller.record_note(EventKind::Noted, &written.document, written.written_at());
                for position in dropped.iter().flatten() {
                    let details = Details::of_row(position, "by an operator".to_owned());
                    poller.record_row(EventKind::RowDropped, details, &written);
                }
                poller.append_to_journal().await;
                return Ok(());
            }
        }
    }

    /// Removes an entry, unless it has changed since it was read.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; `Conflict` if the entry was changed or removed in the meantime.
    pub(super) async fn remove_entry(self, key: &KeyId, etag: &ETag) -> Result<(), StoreError> {
        self.poller.store.remove(&self.poller.entry_key(key), etag).await
    }
}
