//! The explicit first start of a poller.
//!
//! A poller that is to start from now has to be told so once, by somebody: if a tick did it, a state
//! that was lost whole would be taken for a first start, and what came meanwhile would be skipped.

use super::pause::CHANGE_TIME_MAX;
use crate::admin::Admin;
use crate::cursor::Cursor;
use crate::poller::TickError;
use crate::poller::memory::never_ran;

/// What became of an explicit first start.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// The state was made.
    Started {
        /// Rows after it will be delivered; `None` for all.
        after: Option<Cursor>,
    },
    /// The poller has a state, which stays as it is.
    StartedBefore,
}

impl Admin<'_> {
    /// Makes the state of a poller that never ran: behind all that its source has now, where that was
    /// asked for, else at the beginning. Makes the container of a blob store, too, if there is none.
    ///
    /// # Errors
    ///
    /// [`TickError`] if the source or the store cannot be reached, or the poller has run before and its
    /// state is gone.
    pub async fn init(self) -> Result<Init, TickError> {
        // Whoever may not make the place may still use the one there is; the read says which it is.
        drop(self.poller.store.prepare().await);
        let found = Box::pin(self.poller.look()).await?.document;
        if !never_ran(&found) {
            return Ok(Init::StartedBefore);
        }
        self.poller.reject_partition_count_of(&found)?;
        self.poller.reject_other_partition_count(true).await?;
        if let Some(marker) = self.poller.read_marker().await? {
            return Err(self.poller.state_vanished(&self.poller.name, marker.created_at).await);
        }
        let (mut after, mut source_state) = (None, None);
        if self.poller.start_now {
            after = self.poller.source.present().await.map_err(TickError::Fetch)?;
            // A table that is replaced before the first delivery is another one, too.
            source_state =
                Some(self.poller.source.anchor(None).await.map_err(TickError::Fetch)?.state);
        }
        let mut changing = self.poller.documents(CHANGE_TIME_MAX).changing();
        loop {
            let base = changing.read(|| self.poller.blank()).await?;
            if !never_ran(&base.document) {
                return Ok(Init::StartedBefore);
            }
            let mut next = Box::new(self.poller.begun(base.clone(), None).into_document());
            if let Some(state) = &source_state {
                next.source_state.clone_from(state);
            }
            next.checkpoint.cursor.clone_from(&after);
            next.write_id = self.poller.instance.next_write_id();
            if changing.write(&base, next).await?.is_some() {
                return Ok(Init::Started { after });
            }
        }
    }
}
