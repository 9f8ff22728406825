//! Shows what a tick would deliver, without a lease, a handler call or a write.

use std::sync::Arc;

use crate::admin::Admin;
use crate::cursor::Cursor;
use crate::document::Snapshot;
use crate::event::ChangeEvent;
use crate::normalize::{NormalizeError, normalize};
use crate::policy::OnFailure;
use crate::poller::TickError;
use crate::poller::outcome::TickOutcome;
use crate::source::FetchWindow;

/// Most rows to read.
const ROWS_MAX: u64 = 100_000;

/// The waiting rows of a poller.
#[derive(Debug)]
pub struct Peek {
    /// How a tick would end before reading anything; `None` if it would deliver.
    pub block_reason: Option<TickOutcome>,
    /// The poller's position; `None` for the beginning.
    pub after: Option<Cursor>,
    /// Waiting rows, as far as they were read.
    pub rows: u64,
    /// Whether there are more than were read.
    pub more: bool,
    /// Position of the first one.
    pub first: Option<Cursor>,
    /// Position of the last one.
    pub last: Option<Cursor>,
    /// The first events, as a handler would get them.
    pub events: Vec<ChangeEvent>,
}

/// Most held-back rows to count.
const COUNTED_MAX: usize = 1_000;

/// Committed rows after the checkpoint that no tick may deliver yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBackRows {
    /// How many there are, as far as they were counted.
    pub rows: u64,
    /// Whether there may be more than were counted.
    pub more: bool,
    /// Whether they wait for time to pass, rather than for a transaction to end.
    pub settling: bool,
}

impl Admin<'_> {
    /// Reads the state, and writes nothing.
    async fn base(self) -> Result<Snapshot, TickError> {
        let base = Box::pin(self.poller.read_to(false)).await?;
        self.poller
            .refuse_lost(&base.document)
            .map_err(|error| self.poller.add_loss_remedy(error))?;
        Ok(base)
    }

    /// Counts the rows after the checkpoint. After an idle tick, these are the ones that are held back.
    ///
    /// # Errors
    ///
    /// [`TickError`] if the state or the source cannot be read, or the source cannot count.
    pub async fn held_back(self) -> Result<HeldBackRows, TickError> {
        let base = self.base().await?;
        let window = FetchWindow {
            after: base.document.checkpoint.cursor.as_ref(),
            upto: None,
            rows_max: COUNTED_MAX,
            state: &base.document.source_state,
        };
        let rows = self.poller.source.count(window).await.map_err(TickError::Fetch)?;
        let more = usize::try_from(rows).is_ok_and(|rows| rows >= COUNTED_MAX);
        Ok(HeldBackRows { rows, more, settling: self.poller.source.shape().mode.is_time_based() })
    }

    /// Reads the rows after the checkpoint, and keeps the first `events_max` events. Writes nothing, even if the
    /// poller has no state yet.
    ///
    /// In modes that wait for late commits a tick may deliver less, because only ticks retain what they have seen of
    /// the source.
    ///
    /// # Errors
    ///
    /// [`TickError`] like a tick that cannot read its state or its source.
    pub async fn peek(self, events_max: usize) -> Result<Peek, TickError> {
        let base = self.base().await?;
        let mut peek = Peek {
            block_reason: self.poller.block_reason(&base),
            after: base.document.checkpoint.cursor.clone(),
            rows: 0,
            more: true,
            first: None,
            last: None,
            events: Vec::new(),
        };
        while peek.more && peek.rows < ROWS_MAX {
            let window = FetchWindow {
                after: peek.last.as_ref().or(peek.after.as_ref()),
                upto: None,
                rows_max: self.poller.limits.batch_rows_max,
                state: &base.document.source_state,
            };
            let rows = self.poller.source.fetch(window).await.map_err(TickError::Fetch);
            let rows = rows.map_err(|error| self.poller.add_loss_remedy(error))?;
            let events =
                normalize(self.poller.source.shape(), &rows).map_err(TickError::Normalize)?;
            peek.more = rows.more && !events.is_empty();
            peek.rows += u64::try_from(events.len()).unwrap_or(u64::MAX);
            peek.last = events.last().map(|event| event.cursor.clone()).or(peek.last);
            if let Some(why) = events.iter().find_map(|event| event.unreadable.as_ref())
                && self.poller.policy.on_failure != OnFailure::Park
            {
                return Err(TickError::Normalize(NormalizeError::Unreadable(Arc::clone(why))));
            }
            for event in events {
                peek.first.get_or_insert_with(|| event.cursor.clone());
                if peek.events.len() < events_max {
                    peek.events.push(event);
                }
            }
        }
        Ok(peek)
    }
}
