//! The explicit first start of a poller.
//!
//! A poller that is to start from now has to be told so once, by somebody: if a tick did it, a state
//! that was lost whole would be taken for a first start, and what came meanwhile would be skipped.

use super::memory::was_placed;
use super::{LoadError, Poller, TickError};
use crate::cursor::Cursor;
use crate::state::{Precondition, StoreError, encode};

/// How often it is begun anew: after the blank document was created, and where others write too.
const TRIES_MAX: u32 = 3;

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
    /// asked for, else at the beginning. Makes the container of a blob store, too, if there is none.
    ///
    /// # Errors
    ///
    /// [`TickError`] if the source or the store cannot be reached, or the poller has run before and its
    /// state is gone.
    pub async fn init(&self) -> Result<Init, TickError> {
        // Whoever may not make the place may still use the one there is; the read says which it is.
        drop(self.store.prepare().await);
        for _ in 0..TRIES_MAX {
            let blank = self.look().await?;
            if !blank.document.is_blank() || was_placed(&blank.document) {
                return Ok(Init::StartedBefore);
            }
            self.refuse_division_of(&blank.document)?;
            self.refuse_other_division(true).await?;
            if let Some(marker) = self.read_marker().await? {
                return Err(self.state_vanished(marker.created_at).await);
            }
            // As with a first grant: what is created is blank, and begins under its tag.
            let Some(etag) = blank.etag.clone() else {
                self.create_blank().await?;
                continue;
            };
            let mut document = self.begun(blank, None).into_document();
            let mut after = None;
            if self.start_now {
                after = self.source.present().await.map_err(TickError::Fetch)?;
                // A table that is replaced before the first delivery is another one, too.
                let anchor = self.source.anchor(None).await.map_err(TickError::Fetch)?;
                document.source_state = anchor.state;
            }
            document.checkpoint.cursor.clone_from(&after);
            document.write_id = self.instance.next_write_id();
            let begun = encode(&document);
            match self.store.store(&self.key, begun, Precondition::Matches(etag)).await {
                Ok(_) => return Ok(Init::Started { after }),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(LoadError::Store(error).into()),
            }
        }
        Err(self.not_started())
    }
}
