//! Reads an app's content of its store: one listing, then each document.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use time::OffsetDateTime;

use super::DOCUMENT;
use crate::cursor::KeyId;
use crate::document::Snapshot;
use crate::error::chain;
use crate::status::KEYS_MAX;
use crate::store::{StateKey, StateStore, StoreError};

/// Documents read at a time: as many as a SQL store has connections.
const READS_AT_ONCE: usize = 8;

/// The names that a store holds.
#[derive(Clone, Debug, Default)]
pub struct StoredNames {
    /// Pollers that have a document, sorted; without the controller's own.
    pub documents: Vec<String>,
    /// Quarantined rows of each poller that has any.
    pub quarantined: BTreeMap<String, u64>,
    /// The ids of their keys, up to [`KEYS_MAX`] for each poller.
    pub keys: BTreeMap<String, Vec<KeyId>>,
    /// Pollers that have a marker.
    pub marked: BTreeSet<String>,
}

impl StoredNames {
    /// Reads the names: one request per 5,000 names, or one scan.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn read(store: &dyn StateStore) -> Result<Self, StoreError> {
        let mut listing = Self::default();
        for key in store.list().await? {
            match key {
                StateKey::Document(poller) if poller == DOCUMENT => {}
                StateKey::Document(poller) => listing.documents.push(poller),
                StateKey::Marker(poller) => {
                    listing.marked.insert(poller);
                }
                StateKey::Quarantined { poller, key } => {
                    let keys = listing.keys.entry(poller.clone()).or_default();
                    if keys.len() < KEYS_MAX {
                        keys.push(key);
                    }
                    *listing.quarantined.entry(poller).or_default() += 1;
                }
                StateKey::Saved { .. } => {}
            }
        }
        Ok(listing)
    }

    /// Whether a poller has a document.
    pub fn has_document(&self, poller: &str) -> bool {
        self.documents.binary_search_by(|name| name.as_str().cmp(poller)).is_ok()
    }
}

/// What is stored under a document's name.
#[derive(Debug)]
pub enum StoredDocument {
    /// The document.
    Document(Box<Snapshot>),
    /// Content that cannot be used, and why.
    Unreadable(String),
    /// It is gone; the service's time of that answer.
    Nothing(OffsetDateTime),
}

/// Reads documents concurrently, and returns them in the order of `names`.
pub fn documents(
    store: Arc<dyn StateStore>,
    names: Vec<String>,
) -> impl Stream<Item = Result<(String, StoredDocument), StoreError>> + Send {
    let read = move |name: String| {
        let store = Arc::clone(&store);
        async move {
            let key = StateKey::Document(name);
            let found = match store.load(&key).await {
                Ok(loaded) => match loaded.stored {
                    Some(stored) => match Snapshot::read(&key, stored, loaded.date) {
                        Ok(snapshot) => StoredDocument::Document(Box::new(snapshot)),
                        Err(error) => StoredDocument::Unreadable(chain(&error)),
                    },
                    None => StoredDocument::Nothing(loaded.date),
                },
                // Only this document is affected; any other rejection affects all, and ends the scan.
                Err(error @ StoreError::Refused { .. }) => {
                    StoredDocument::Unreadable(chain(&error))
                }
                Err(error) => return Err(error),
            };
            Ok((key.poller().to_owned(), found))
        }
    };
    futures_util::stream::iter(names).map(read).buffered(READS_AT_ONCE)
}
