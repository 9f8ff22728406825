//! The explicit first start of a poller.
//!
//! A poller that is to start from now has to be told so once, by somebody: if a tick did it, a state
//! that was lost whole would be taken for a first start, and what came meanwhile would be skipped.

use super::outcome::rfc3339;
use super::{LoadError, Poller, TickError};
use crate::cursor::Cursor;
use crate::state::{Generation, Precondition, StateDocument, StateKey, decode_marker, encode};

/// What became of an explicit first start.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// The state was made.
    Started {
        /// Rows behind it will be delivered; `None` for all.
        after: Option<Cursor>,
    },
    /// The poller has a state, which stays as it is.
    StartedBefore,
}

impl Poller {
    /// Makes the state of a poller that never ran: behind all that its source has now, where that was
    /// asked for, else at the beginning.
    ///
    /// # Errors
    ///
    /// [`TickError`] if the source or the store cannot be reached, or the poller has run before and its
    /// state is gone.
    pub async fn init(&self) -> Result<Init, TickError> {
        let loaded = self.store.load(&self.key).await.map_err(LoadError::Store)?;
        if loaded.stored.is_some() {
            return Ok(Init::StartedBefore);
        }
        let marker = StateKey::Marker(self.name.clone());
        let marker = self.store.load(&marker).await.map_err(LoadError::Store)?;
        if let Some(stored) = marker.stored {
            let marker = decode_marker(&self.name, &stored.bytes).map_err(LoadError::Format)?;
            return Err(TickError::StateVanished { created_at: rfc3339(marker.created_at) });
        }
        self.source.open(None).await.map_err(TickError::Fetch)?;
        let mut after = None;
        if self.start_now {
            after = self.source.present().await.map_err(TickError::Fetch)?;
        }
        let milliseconds = loaded.date.unix_timestamp_nanos() / 1_000_000;
        let generation = Generation(u64::try_from(milliseconds).unwrap_or(0));
        let fingerprint = self.source.shape().fingerprint.clone();
        let mut document = StateDocument::new(&self.name, fingerprint, generation);
        document.checkpoint.cursor.clone_from(&after);
        document.write_id = self.instance.next_write_id();
        let written = self.store.store(&self.key, encode(&document), Precondition::Absent).await;
        written.map_err(LoadError::Store)?;
        Ok(Init::Started { after })
    }
}
