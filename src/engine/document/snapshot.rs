use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::format::{FormatError, decode};
use super::state_document::StateDocument;
use super::transitions::DocumentAge;
use crate::store::{ETag, StateKey, StoredValue, WriteResult};

/// A document as read or written, with what is needed to change it and to know the time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The document. Copies of a snapshot share it: an idle tick makes two copies, and changes neither.
    pub document: Arc<StateDocument>,
    /// Its tag; `None` if nothing is stored yet.
    pub etag: Option<ETag>,
    /// When it was written, by the service's clock.
    last_modified: OffsetDateTime,
    /// The service's clock when it answered.
    date: OffsetDateTime,
    /// When that answer arrived, on our monotonic clock.
    read_at: Instant,
    /// Size of the stored document in bytes; 0 if nothing is stored.
    bytes: usize,
}

impl Snapshot {
    /// Returns the snapshot of a document that is not stored.
    pub fn absent(blank: StateDocument, date: OffsetDateTime) -> Self {
        let (document, read_at) = (Arc::new(blank), Instant::now());
        Self { document, etag: None, last_modified: date, date, read_at, bytes: 0 }
    }

    /// Reads the answer of a store, given at `date`.
    ///
    /// # Errors
    ///
    /// [`FormatError`] if the document cannot be used.
    pub fn read(
        key: &StateKey,
        stored: StoredValue,
        date: OffsetDateTime,
    ) -> Result<Self, FormatError> {
        let document = Arc::new(decode(key.poller(), &stored.bytes)?);
        let StoredValue { etag, last_modified, bytes } = stored;
        let (etag, bytes) = (Some(etag), bytes.len());
        Ok(Self { document, etag, last_modified, date, read_at: Instant::now(), bytes })
    }

    /// Returns a snapshot with `document`, to replace this one.
    pub(crate) fn with(self, document: StateDocument) -> Self {
        Self { document: Arc::new(document), ..self }
    }

    /// Returns the document as just written, of `bytes` bytes.
    pub(crate) fn written(document: StateDocument, written: WriteResult, bytes: usize) -> Self {
        Self {
            document: Arc::new(document),
            etag: Some(written.etag),
            last_modified: written.date,
            date: written.date,
            read_at: Instant::now(),
            bytes,
        }
    }

    /// Returns the document to change; other copies of the snapshot are not affected.
    pub(crate) fn document_mut(&mut self) -> &mut StateDocument {
        Arc::make_mut(&mut self.document)
    }

    /// Returns the document alone.
    pub(crate) fn into_document(self) -> StateDocument {
        Arc::unwrap_or_clone(self.document)
    }

    /// Returns the size of the stored document in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the service's time: its last answer plus our monotonic time since.
    pub fn now(&self) -> OffsetDateTime {
        self.date + self.read_at.elapsed()
    }

    /// Returns when the document was written, by the service's clock.
    pub(crate) fn written_at(&self) -> OffsetDateTime {
        self.last_modified
    }

    /// Returns how old the document is.
    ///
    /// The time since the read is included. That is safe because a caller acts on it with a write under the tag: if
    /// the holder has written meanwhile, that write is rejected.
    pub fn age(&self, grain: Duration) -> DocumentAge {
        let at_read = Duration::try_from(self.date - self.last_modified).unwrap_or_default();
        DocumentAge { since_write: at_read + self.read_at.elapsed(), grain }
    }

    /// Returns the service's time when it answered, and when that answer arrived.
    pub(crate) fn clock(&self) -> (OffsetDateTime, Instant) {
        (self.date, self.read_at)
    }

    /// Returns how long ago the document was read.
    pub fn since_read(&self) -> Duration {
        self.read_at.elapsed()
    }
}
