//! Reading the next batch while the handler has the one before it.
//!
//! What is read ahead is a guess that the batch in hand will be taken whole: it begins behind the last row
//! of that batch. It is announced and handed over only after that batch is committed, as if it had been
//! read between handler and commit; where the guess was wrong, it is dropped. Whatever is wrong with the
//! read itself is wrong with nothing else: the rows are read anew then, at the time at which they would
//! have been without it.

use std::fmt;
use std::pin::{Pin, pin};
use std::time::Duration;

use super::batch::{Batch, Fetched, Noting, Position, Reading};
use super::deliver::Hand;
use super::observe::Observation;
use super::{Poller, TickError};
use crate::cursor::{Cursor, SourceState};
use crate::lease::Lease;
use crate::source::{Lag, Rows};
use crate::state::StateDocument;

type ReadingAhead<'a> = Pin<Box<dyn Future<Output = Result<Read, TickError>> + Send + 'a>>;

/// A read of rows behind a batch that is not committed yet.
pub(super) struct Ahead<'a> {
    after: Cursor,
    progress: Progress<'a>,
}

enum Progress<'a> {
    Reading(ReadingAhead<'a>),
    Found(Result<Read, TickError>),
}

/// What a read has found, and what is to be told of it.
struct Read {
    fetched: Fetched,
    told: Told,
}

/// What is told of a read once its rows are of use.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    rows: usize,
    lag: Lag,
    took: Duration,
}

impl Noting for Told {
    fn fetched(&mut self, found: &Rows, took: Duration) {
        *self = Self { rows: found.rows.len(), lag: found.lag, took };
    }
}

impl fmt::Debug for Ahead<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Ahead").field("after", &self.after).finish_non_exhaustive()
    }
}

impl Ahead<'_> {
    /// Whether what is read follows `batch` without a gap.
    fn is_behind(&self, batch: &Batch) -> bool {
        self.after == batch.upto
    }

    /// Whether the read has failed already, so that there is time for another.
    fn has_failed(&self) -> bool {
        matches!(self.progress, Progress::Found(Err(_)))
    }

    /// Runs `work`, and reads on meanwhile; returns as soon as `work` is done.
    async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if let Progress::Reading(reading) = &mut self.progress {
            let found = tokio::select! {
                biased;
                done = &mut work => return done,
                found = reading => found,
            };
            self.progress = Progress::Found(found);
        }
        work.await
    }

    async fn end(self) -> Result<Read, TickError> {
        match self.progress {
            Progress::Reading(reading) => reading.await,
            Progress::Found(found) => found,
        }
    }
}

/// Runs `work`, and reads on meanwhile where there is something to read. The work should be boxed, since it is
/// moved twice here, within futures that lie within all others.
pub(super) async fn beside<T>(ahead: Option<&mut Ahead<'_>>, work: impl Future<Output = T>) -> T {
    match ahead {
        Some(ahead) => ahead.beside(work).await,
        None => work.await,
    }
}

impl Poller {
    /// Returns the read of what follows the batch in hand, where that batch is likely to be taken whole and
    /// limits allow another one. Nothing is asked of the source before it is awaited.
    pub(super) fn ahead_of<'a>(
        &'a self,
        lease: &Lease<'_>,
        hand: &Hand<'_>,
        seen: &Observation<'_>,
    ) -> Option<Ahead<'a>> {
        let batch = &hand.batch;
        let is_last = !batch.more || batch.late || !hand.waiting.is_empty();
        // The handler of a range reads rows once more while it runs: it must not wait for these.
        let is_range = self.range_of.is_some();
        if !self.flow.prefetch
            || is_range
            || is_last
            || has_troubled(batch, lease.document())
            || !self.may_go_on(lease, seen)
        {
            return None;
        }
        let position = Position::under(lease.document(), Some(batch.upto.clone()));
        // What goes with the batch in hand is not written yet, and holds for the next one already.
        let known = batch.remember.clone();
        let state = known.unwrap_or_else(|| lease.document().source_state.clone());
        let progress = Progress::Reading(Box::pin(self.read_ahead(position, state)));
        Some(Ahead { after: batch.upto.clone(), progress })
    }

    async fn read_ahead(&self, position: Position, state: SourceState) -> Result<Read, TickError> {
        let mut told = Told::default();
        let fetched = self.fetch(position, Reading::Behind, &state, &mut told).await?;
        Ok(Read { fetched, told })
    }

    /// Returns what was read ahead while `batch` was in hand, now that it is taken; `None` where that is of
    /// no use.
    ///
    /// A read that is not done yet is waited for as one would be that began now, and no longer.
    pub(super) async fn what_was_read_ahead(
        &self,
        lease: &mut Lease<'_>,
        (ahead, batch): (Option<Ahead<'_>>, &Batch),
        seen: &mut Observation<'_>,
    ) -> Option<Result<Fetched, TickError>> {
        let ahead = ahead.filter(|ahead| ahead.is_behind(batch))?;
        if ahead.has_failed() {
            return None;
        }
        let read = lease.hold_while(ahead.end()).await;
        Some(match read.map_err(TickError::LeaseLost) {
            Ok(Ok(Read { fetched, told })) => {
                seen.rows_read(told.rows, told.lag, told.took);
                Ok(fetched)
            }
            Ok(Err(error)) | Err(error) => Err(error),
        })
    }
}

/// Whether there is reason to think that `batch` will not be taken whole: its rows failed before, or are not
/// those that the document speaks of.
pub(super) fn has_troubled(batch: &Batch, document: &StateDocument) -> bool {
    let untroubled = document.in_flight.as_ref().is_some_and(|in_flight| {
        in_flight.batch_id == batch.id
            && in_flight.attempt == 0
            && in_flight.crashes == 0
            && in_flight.last_error.is_none()
    });
    batch.suspicion.is_some() || !untroubled
}
