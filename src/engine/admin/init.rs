//! The explicit first start of a poller.
//!
//! A poller that starts from now must be started once by an operator. If a tick did that, a completely lost state
//! would look like a first start, and the rows in between would be skipped.

use super::pause::CHANGE_TIME_MAX;
use crate::admin::Admin;
use crate::cursor::Cursor;
use crate::poller::TickError;
use crate::poller::memory::never_ran;

/// Result of an explicit first start.
#[derive(Clone, Debug, PartialEq)]
pub enum InitResult {
    /// The state was created.
    Started {
        /// Rows after it will be delivered; `None` for all.
        after: Option<Cursor>,
    },
    /// The poller already has a state, which is unchanged.
    StartedBefore,
}

impl Admin<'_> {
    /// Creates the state of a poller that never ran: after all rows that its source has now if it is configured to
    /// start from now, otherwise at the beginning. Also creates the container of a blob store if it is missing.
    ///
    /// # Errors
    ///
    /// [`TickError`] if the source or the store cannot be reached, or the poller has run before and its
    /// state is gone.
    pub async fn init(self) -> Result<InitResult, TickError> {
        // Without the right to create the place, an existing one may still be used; the read shows which it is.
        drop(self.poller.store.prepare().await);
        let found = Box::pin(self.poller.look()).await?.document;
        if !never_ran(&found) {
            return Ok(InitResult::StartedBefore);
        }
        self.poller.reject_partition_count_of(&found)?;
        self.poller.reject_other_partition_count(true).await?;
        if let Some(marker) = self.poller.read_marker().await? {
            return Err(self.poller.state_vanished(&self.poller.name, marker.created_at).await);
        }
        let (mut after, mut source_state) = (None, None);
        if self.poller.start_now {
            after = self.poller.source.present().await.map_err(TickError::Fetch)?;
            // A table that is replaced before the first delivery is also another one.
            source_state =
                Some(self.poller.source.anchor(None).await.map_err(TickError::Fetch)?.state);
        }
        let mut changing = self.poller.documents(CHANGE_TIME_MAX).change();
        loop {
            let base = changing.read(|| self.poller.blank()).await?;
            if !never_ran(&base.document) {
                return Ok(InitResult::StartedBefore);
            }
            let mut next = Box::new(self.poller.started(base.clone(), None).into_document());
            if let Some(state) = &source_state {
                next.source_state.clone_from(state);
            }
            next.checkpoint.cursor.clone_from(&after);
            next.write_id = self.poller.instance.next_write_id();
            if changing.write(&base, next).await?.is_some() {
                return Ok(InitResult::Started { after });
            }
        }
    }
}
