//! Reading the next batch while the handler has the one before it.
//!
//! What is read ahead is a guess that the batch in hand will be taken whole: it begins behind the last row
//! of that batch. It is announced and handed over only after that batch is committed, as if it had been
//! read between handler and commit; where the guess was wrong, it is dropped. Whatever is wrong with the
//! read itself is wrong with nothing else: the rows are read anew then, at the time at which they would
//! have been without it.
//!
//! Once a batch is taken and its successor's rows are there, what follows those is asked for before they are made
//! a batch and before the commit: so the source is at work while both are done. It is not listened to
//! until the handler has that successor, and a tick never holds the rows of more than two batches for it. Where it
//! fails after that, which may be for the wait, the rows are read anew too.

use std::fmt;
use std::future::ready;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::time::Instant;

use super::batch::{Batch, Fetched, Noting, Position, Reading, RowsRead, behind};
use super::deliver::Hand;
use super::observe::Observation;
use super::{Poller, TickError};
use crate::cursor::{Cursor, SourceState};
use crate::lease::Lease;
use crate::normalize::{end_of, is_sure_to_fit};
use crate::source::{Lag, Rows};
use crate::state::StateDocument;

type ReadingAhead<'a> = Pin<Box<dyn Future<Output = Result<Read, TickError>> + Send + 'a>>;

/// A read of rows behind a batch that is not committed yet.
pub(super) struct Ahead<'a> {
    poller: &'a Poller,
    position: Position,
    progress: Progress<'a>,
    wait: Wait,
}

enum Progress<'a> {
    Reading(ReadingAhead<'a>),
    Found(Result<Read, TickError>),
}

/// What a read has found, and what is to be told of it.
struct Read {
    found: Found,
    told: Told,
}

/// Rows that were read ahead, or what was made of them while there was time.
pub(super) enum Found {
    Rows(Box<RowsRead>),
    Made(Fetched),
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
        formatter.debug_struct("Ahead").field("position", &self.position).finish_non_exhaustive()
    }
}

impl Ahead<'_> {
    /// Whether what is read follows `batch` without a gap, and under the same terms.
    fn is_behind(&self, batch: &Batch, document: &StateDocument) -> bool {
        self.position == behind(batch, document).0
    }

    /// Runs `work`, and reads on meanwhile; returns as soon as `work` is done.
    async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let Self { poller, progress, wait, .. } = self;
        if let Progress::Reading(reading) = progress {
            let read = tokio::select! {
                biased;
                done = &mut work => return done,
                read = wait.until_heard(reading) => read,
            };
            let made = read.and_then(|Read { found, told }| {
                Ok(Read { found: Found::Made(found.made(poller)?), told })
            });
            *progress = Progress::Found(made);
        }
        work.await
    }

    /// Asks the source, and waits for nothing.
    async fn begin(&mut self) {
        if let Progress::Reading(reading) = &mut self.progress {
            tokio::select! {
                biased;
                read = reading => self.progress = Progress::Found(read),
                () = ready(()) => self.wait.begun_at = Some(Instant::now()),
            }
        }
    }

    /// Returns what was read; `None` where the rows are to be read anew: the read has failed already, so that there
    /// is time for another, or it was begun long before and may have failed for that.
    async fn end(mut self) -> Option<Result<Read, TickError>> {
        let mut reading = match self.progress {
            Progress::Reading(reading) => reading,
            Progress::Found(read) => return read.ok().map(Ok),
        };
        let read = self.wait.until_heard(&mut reading).await;
        let was_left = self.wait.begun_at.is_some();
        Some(read).filter(|read| !was_left || !matches!(read, Err(TickError::Fetch(_))))
    }
}

/// The time in which nobody listened to a read that was begun: the source is not to be blamed for it.
#[derive(Default)]
struct Wait {
    begun_at: Option<Instant>,
    unheard: Option<Duration>,
}

impl Wait {
    /// Listens to a read from the first time on that this is polled.
    async fn until_heard(&mut self, reading: &mut ReadingAhead<'_>) -> Result<Read, TickError> {
        let begun_at = self.begun_at;
        let unheard = || begun_at.map(|at| at.elapsed()).unwrap_or_default();
        let unheard = *self.unheard.get_or_insert_with(unheard);
        let Read { found, told } = reading.await?;
        Ok(Read { found, told: Told { took: told.took.saturating_sub(unheard), ..told } })
    }
}

impl Found {
    fn made(self, poller: &Poller) -> Result<Fetched, TickError> {
        match self {
            Self::Rows(read) => poller.batch_of(*read),
            Self::Made(fetched) => Ok(fetched),
        }
    }

    /// Returns where rows behind these begin, and what the source wants kept of these; `None` where there are no
    /// more, or where these may be too many for one batch.
    fn end(&self, poller: &Poller) -> Option<(Cursor, Option<SourceState>)> {
        match self {
            Self::Made(Fetched::Batch(batch)) if batch.more => {
                Some((batch.upto.clone(), batch.remember.clone()))
            }
            Self::Rows(read) if read.rows.more => {
                let (shape, rows) = (poller.source.shape(), &read.rows);
                let end = end_of(shape, rows)?;
                let kept = rows.remember.as_ref().map(|remember| remember.state.clone());
                is_sure_to_fit(shape, rows, poller.limits.batch_bytes_max).then_some((end, kept))
            }
            Self::Made(_) | Self::Rows(_) => None,
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
    /// limits allow another one: the one that is `begun`, or one of which nothing is asked before it is awaited.
    pub(super) fn ahead_of<'a>(
        &'a self,
        lease: &Lease<'_>,
        hand: &Hand<'_>,
        begun: Option<Ahead<'a>>,
        seen: &Observation<'_>,
    ) -> Option<Ahead<'a>> {
        let batch = &hand.batch;
        let is_last = !batch.more || batch.late || !hand.waiting.is_empty();
        if is_last
            || !self.reads_ahead()
            || has_troubled(batch, lease.document())
            || !self.may_go_on(lease, seen)
        {
            return None;
        }
        Some(begun.unwrap_or_else(|| {
            let (position, state) = behind(batch, lease.document());
            self.ahead_at(position, state)
        }))
    }

    /// Whether rows are read ahead at all. The handler of a range reads rows once more while it runs: it must not
    /// wait for these.
    fn reads_ahead(&self) -> bool {
        self.flow.prefetch && self.range_of.is_none()
    }

    fn ahead_at(&self, position: Position, state: SourceState) -> Ahead<'_> {
        let reading = Box::pin(self.read_ahead(position.clone(), state));
        Ahead {
            poller: self,
            position,
            progress: Progress::Reading(reading),
            wait: Wait::default(),
        }
    }

    async fn read_ahead(&self, position: Position, state: SourceState) -> Result<Read, TickError> {
        let mut told = Told::default();
        let rows = self.read_rows(position, Reading::Behind, &state, &mut told).await?;
        Ok(Read { found: Found::Rows(Box::new(rows)), told })
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
    ) -> Option<Result<Found, TickError>> {
        let ahead = ahead.filter(|ahead| ahead.is_behind(batch, lease.document()))?;
        let stop = &seen.request().stop;
        let read = match lease.hold_while(stop.unless_aborted(Box::pin(ahead.end()))).await {
            Ok(Some(read)) => read?,
            Ok(None) => Err(TickError::Aborted),
            Err(error) => Err(TickError::LeaseLost(error)),
        };
        Some(read.map(|Read { found, told }| {
            seen.rows_read(told.rows, told.lag, told.took);
            found
        }))
    }

    /// Makes a batch of what was found behind the one in hand; what follows it is asked for before.
    pub(super) async fn make_and_read_on<'a>(
        &'a self,
        lease: &Lease<'_>,
        hand: &mut Hand<'a>,
        found: Found,
        seen: &Observation<'_>,
    ) -> Result<Fetched, TickError> {
        let may_read_on = self.reads_ahead() && self.may_go_on_twice(lease, seen);
        let end = found.end(self).filter(|_| may_read_on);
        let mut further = end.map(|(upto, kept)| {
            let state = kept.unwrap_or_else(|| behind(&hand.batch, lease.document()).1);
            self.ahead_at(Position::under(lease.document(), Some(upto)), state)
        });
        if let Some(further) = &mut further {
            further.begin().await;
        }
        let made = found.made(self)?;
        // Whatever else is read then must not wait for it.
        hand.ahead = further.filter(|_| matches!(made, Fetched::Batch(_)));
        Ok(made)
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
