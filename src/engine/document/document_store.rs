//! A poller's stored document: reads, and changes by compare-and-swap.
//!
//! A document is written under the tag with which it was read, so only one of two writers wins.
//! [`DocumentStore::replace`] makes one such write, and determines its outcome if there was no response.
//! [`DocumentStore::change`] is the loop around it for writers without a lease: read, decide, write, and repeat
//! with the other writer's document. Writes of a holder need more rules, which are in `lease/judge.rs`.

use thiserror::Error;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::format::{FormatError, encode};
use super::snapshot::Snapshot;
use super::state_document::StateDocument;
use crate::backoff::{Pause, seed_of};
use crate::store::{ETag, Precondition, ReadResult, StateKey, StateStore, StoreError};

/// The state could not be read or written.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The store did not respond, or rejected the request.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored content cannot be used.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Where one document is stored.
#[derive(Clone, Copy, Debug)]
pub struct DocumentStore<'a> {
    /// The store.
    pub store: &'a dyn StateStore,
    /// The key of the document.
    pub key: &'a StateKey,
    /// No attempt and no read starts after this.
    pub until: Instant,
}

impl<'a> DocumentStore<'a> {
    /// Returns the stored document, if any, and the service's time.
    ///
    /// # Errors
    ///
    /// [`LoadError`] after one read.
    pub(crate) async fn load(self) -> Result<(Option<Snapshot>, OffsetDateTime), LoadError> {
        let ReadResult { stored, date } = self.store.load(self.key).await?;
        let found = stored.map(|stored| Snapshot::read(self.key, stored, date)).transpose()?;
        Ok((found, date))
    }

    /// Creates a blank document, under whose tag a lease can then be granted. It does not matter which request
    /// created it, so the caller reads it afterwards.
    pub(crate) async fn create(self, blank: &StateDocument) -> Result<(), LoadError> {
        let mut pause = self.pause();
        loop {
            match self.store.store(self.key, encode(blank), Precondition::Absent).await {
                Ok(_) | Err(StoreError::Conflict { .. }) => return Ok(()),
                Err(error @ StoreError::Refused { .. }) => return Err(error.into()),
                Err(error @ (StoreError::Unreachable { .. } | StoreError::Unknown { .. })) => {
                    pause.or_give_up(error).await?;
                }
            }
        }
    }

    /// Writes `document` in place of the one with the tag `etag`; `None` if another writer was first.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if it was rejected, or the outcome is unknown at the deadline.
    pub(crate) async fn replace(
        self,
        document: StateDocument,
        etag: &ETag,
    ) -> Result<Option<Snapshot>, LoadError> {
        let mut pause = Pause::new(self.until, seed_of(&document.write_id));
        let mut ambiguous = false;
        loop {
            match self.put(&document, etag).await {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(error @ StoreError::Refused { .. }) => return Err(error.into()),
                Err(error @ StoreError::Unreachable { .. }) => {
                    pause.or_give_up(error).await?;
                    continue;
                }
                Err(StoreError::Conflict { .. }) if !ambiguous => return Ok(None),
                Err(StoreError::Conflict { .. }) => {}
                Err(StoreError::Unknown { .. }) => ambiguous = true,
            }
            match self.read(&mut pause).await? {
                Some(found) if found.document.write_id == document.write_id => {
                    return Ok(Some(found));
                }
                Some(found) if found.etag.as_ref() == Some(etag) => {}
                Some(_) | None => return Ok(None),
            }
            pause.or_give_up(self.unknown_outcome()).await?;
        }
    }

    /// Starts a change by a writer without a lease.
    pub(crate) fn change(self) -> DocumentChange<'a> {
        DocumentChange { documents: self, pause: self.pause(), contended: false }
    }

    /// Returns the delays between requests before anything is written.
    pub(crate) fn pause(self) -> Pause {
        Pause::new(self.until, seed_of(self.key.poller()))
    }

    pub(crate) async fn put(
        self,
        document: &StateDocument,
        etag: &ETag,
    ) -> Result<Snapshot, StoreError> {
        let precondition = Precondition::Matches(etag.clone());
        let encoded = encode(document);
        let bytes = encoded.len();
        let written = self.store.store(self.key, encoded, precondition).await?;
        Ok(Snapshot::written(document.clone(), written, bytes))
    }

    /// Reads the document until that succeeds or the deadline passes. A failed read, or content that is not a state
    /// document, proves nothing: a captive portal or a proxy may have answered instead of the store.
    pub(crate) async fn read(self, pause: &mut Pause) -> Result<Option<Snapshot>, LoadError> {
        loop {
            match self.load().await {
                Ok((found, _)) => return Ok(found),
                Err(error) => pause.or_give_up(error).await?,
            }
        }
    }

    /// The error of a write that left no trace in the document.
    pub(crate) fn unknown_outcome(self) -> StoreError {
        let reason = "the write was neither accepted nor rejected in time".to_owned();
        StoreError::Unknown { key: self.store.location(self.key), reason }
    }

    /// The error of a write whose document changes before every attempt.
    pub(crate) fn contended(self) -> StoreError {
        let reason =
            "another writer, or a proxy that rewrites `ETag`, changed it before every attempt";
        StoreError::Unknown { key: self.store.location(self.key), reason: reason.to_owned() }
    }
}

/// A change that is decided on the stored document, and again after each conflict, until it is written.
pub(crate) struct DocumentChange<'a> {
    documents: DocumentStore<'a>,
    pause: Pause,
    /// Whether another writer was first before.
    contended: bool,
}

impl DocumentChange<'_> {
    /// Returns the stored document, or `blank` without a tag.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: at once if the store rejects the request or the document cannot be used, otherwise at the
    /// deadline.
    pub(crate) async fn read(
        &mut self,
        blank: impl FnOnce() -> StateDocument,
    ) -> Result<Snapshot, LoadError> {
        loop {
            match self.documents.load().await {
                Ok((found, date)) => {
                    return Ok(found.unwrap_or_else(|| Snapshot::absent(blank(), date)));
                }
                Err(LoadError::Store(error)) if error.is_unanswered() => {
                    self.pause.or_give_up(LoadError::Store(error)).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes `next` in place of `base`. `None` if the change must be decided again: another writer was first, or
    /// nothing was stored and a blank document was created.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if it was rejected, or the outcome is unknown at the deadline.
    pub(crate) async fn write(
        &mut self,
        base: &Snapshot,
        next: Box<StateDocument>,
    ) -> Result<Option<Snapshot>, LoadError> {
        let Some(etag) = &base.etag else {
            self.documents.create(&base.document).await?;
            return Ok(None);
        };
        // Boxed: a document is large, and the futures of all writers contain this one.
        let written = Box::pin(self.documents.replace(*next, etag)).await?;
        if written.is_none() {
            // The first conflict costs no pause. Behind a proxy that changes `ETag`s no write ever matches.
            if self.contended {
                self.pause.or_give_up(self.documents.contended()).await?;
            }
            self.contended = true;
        }
        Ok(written)
    }
}
