//! Reading the next batch while the handler has the current one.
//!
//! A prefetch assumes that the current batch will be accepted whole: it starts after the last row of that batch. The
//! prefetched batch is announced and delivered only after the current one is committed, as if it had been read then.
//! If the assumption was wrong, it is dropped. A prefetch that fails affects nothing else: its rows are read again
//! at the time at which they would have been read without it.
//!
//! Once a batch is accepted and the rows of its successor are there, the prefetch after those starts, before they
//! are made a batch and before the commit, so the source works during both. It is not polled until the handler has
//! the successor, and a tick never holds the rows of more than two batches for it. If it fails after that, possibly
//! because it was not polled, the rows are read again too.

use std::fmt;
use std::future::ready;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::time::Instant;

use super::LeasedTick;
use super::batch::{Position, Work};
use super::fetch::{FetchObserver, FetchStats, Fetched, FetchedRows, ReadKind};
use crate::cursor::{Cursor, SourceState};
use crate::document::StateDocument;
use crate::normalize::{end_of, is_sure_to_fit};
use crate::poller::{Poller, TickError};

type PrefetchFuture<'a> =
    Pin<Box<dyn Future<Output = Result<PrefetchResult, TickError>> + Send + 'a>>;

/// A read of the rows after a batch that is not committed yet.
pub(super) struct Prefetch<'a> {
    poller: &'a Poller,
    position: Position,
    progress: Progress<'a>,
    unpolled: UnpolledTime,
}

enum Progress<'a> {
    Reading(PrefetchFuture<'a>),
    Found(Result<PrefetchResult, TickError>),
}

/// What a prefetch found, and its statistics.
struct PrefetchResult {
    found: Prefetched,
    stats: Option<FetchStats>,
}

/// Prefetched rows, or the batch that was built of them while the handler ran.
pub(super) enum Prefetched {
    Rows(Box<FetchedRows>),
    Batch(Fetched),
}

/// Keeps the statistics of a prefetch until its rows are used.
impl FetchObserver for Option<FetchStats> {
    fn fetched(&mut self, stats: FetchStats) {
        *self = Some(stats);
    }
}

impl fmt::Debug for Prefetch<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Prefetch").field("position", &self.position).finish_non_exhaustive()
    }
}

impl Prefetch<'_> {
    /// Whether the prefetched rows follow the current ones without a gap, in the same generation and range.
    fn continues(&self, work: &Work, document: &StateDocument) -> bool {
        self.position == work.end(document).0
    }

    /// Runs `work` with the prefetch alongside; returns as soon as `work` is done.
    async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let Self { poller, progress, unpolled, .. } = self;
        if let Progress::Reading(reading) = progress {
            let read = tokio::select! {
                biased;
                done = &mut work => return done,
                read = unpolled.poll(reading) => read,
            };
            let made = read.and_then(|PrefetchResult { found, stats }| {
                Ok(PrefetchResult { found: Prefetched::Batch(found.made(poller)?), stats })
            });
            *progress = Progress::Found(made);
        }
        work.await
    }

    /// Sends the query without waiting for its result.
    async fn start(&mut self) {
        if let Progress::Reading(reading) = &mut self.progress {
            tokio::select! {
                biased;
                read = reading => self.progress = Progress::Found(read),
                () = ready(()) => self.unpolled.started_at = Some(Instant::now()),
            }
        }
    }

    /// Returns what was read. `None` if the rows are to be read again: the prefetch failed while there still was
    /// time for another read, or it may have failed only because it was not polled for so long.
    async fn finish(mut self) -> Option<Result<PrefetchResult, TickError>> {
        let mut reading = match self.progress {
            Progress::Reading(reading) => reading,
            Progress::Found(read) => return read.ok().map(Ok),
        };
        let read = self.unpolled.poll(&mut reading).await;
        let was_unpolled = self.unpolled.started_at.is_some();
        Some(read).filter(|read| !was_unpolled || !matches!(read, Err(TickError::Fetch(_))))
    }
}

/// The time during which a started prefetch was not polled. It does not count as time that the source took.
#[derive(Default)]
struct UnpolledTime {
    started_at: Option<Instant>,
    unpolled: Option<Duration>,
}

impl UnpolledTime {
    /// Polls a prefetch, from the first call on.
    async fn poll(
        &mut self,
        reading: &mut PrefetchFuture<'_>,
    ) -> Result<PrefetchResult, TickError> {
        let started_at = self.started_at;
        let unpolled = || started_at.map(|at| at.elapsed()).unwrap_or_default();
        let unpolled = *self.unpolled.get_or_insert_with(unpolled);
        let PrefetchResult { found, stats } = reading.await?;
        Ok(PrefetchResult {
            found,
            stats: stats
                .map(|stats| FetchStats { took: stats.took.saturating_sub(unpolled), ..stats }),
        })
    }
}

impl Prefetched {
    fn made(self, poller: &Poller) -> Result<Fetched, TickError> {
        match self {
            Self::Rows(read) => poller.batch_of(*read),
            Self::Batch(fetched) => Ok(fetched),
        }
    }

    /// Returns where rows after these begin, and the state that the source wants kept with them. `None` if there are
    /// no more rows, or if these may be too many for one batch.
    fn end(&self, poller: &Poller) -> Option<(Cursor, Option<SourceState>)> {
        match self {
            Self::Batch(Fetched::Batch(batch)) if batch.more => {
                Some((batch.upto.clone(), batch.remember.clone()))
            }
            Self::Rows(read) if read.rows.more => {
                let (shape, rows) = (poller.source.shape(), &read.rows);
                let end = end_of(shape, rows)?;
                let kept = rows.remember.as_ref().map(|remember| remember.state.clone());
                is_sure_to_fit(shape, rows, poller.limits.batch_bytes_max).then_some((end, kept))
            }
            Self::Batch(_) | Self::Rows(_) => None,
        }
    }
}

/// Runs `work` with the prefetch alongside, if there is one. Box the work: it is moved twice here, inside futures
/// that all others contain.
pub(super) async fn alongside<T>(
    prefetch: Option<&mut Prefetch<'_>>,
    work: impl Future<Output = T>,
) -> T {
    match prefetch {
        Some(prefetch) => prefetch.alongside(work).await,
        None => work.await,
    }
}

impl<'p> LeasedTick<'_, 'p> {
    /// Sets up a prefetch to run alongside the next call, if the current rows are likely to be accepted whole and
    /// limits allow another batch. Continues a prefetch that has started; a new one asks nothing before it is
    /// awaited.
    pub(super) fn start_prefetch(&mut self) {
        let started = self.prefetch.take();
        let work = &self.work;
        let is_last = !work.batch.more || work.batch.is_late() || work.isolation.has_waiting();
        if is_last
            || !self.poller.prefetches()
            || has_failed_before(work, self.lease.expected())
            || !self.may_continue()
        {
            return;
        }
        self.prefetch = Some(started.unwrap_or_else(|| {
            let (position, state) = work.end(self.lease.expected());
            self.poller.prefetch_from(position, state)
        }));
    }

    /// Returns what was prefetched, now that the current rows are accepted; `None` if it is of no use.
    ///
    /// An unfinished prefetch is awaited as long as a read that starts now would be, and no longer.
    pub(super) async fn take_prefetched(
        &mut self,
        prefetch: Option<Prefetch<'p>>,
    ) -> Option<Result<Prefetched, TickError>> {
        let prefetch =
            prefetch.filter(|prefetch| prefetch.continues(&self.work, self.lease.expected()))?;
        let stop = &self.report.request().stop;
        let read =
            match self.lease.hold_while(stop.unless_aborted(Box::pin(prefetch.finish()))).await {
                Ok(Some(read)) => read?,
                Ok(None) => Err(TickError::Aborted),
                Err(error) => Err(TickError::LeaseLost(error)),
            };
        Some(read.map(|PrefetchResult { found, stats }| {
            if let Some(stats) = stats {
                self.report.rows_read(stats);
            }
            found
        }))
    }

    /// Builds the next batch of what was found, and starts the prefetch after it before that.
    pub(super) async fn build_batch_and_prefetch(
        &mut self,
        found: Prefetched,
    ) -> Result<Fetched, TickError> {
        let poller = self.poller;
        let may_prefetch = poller.prefetches() && self.may_continue_by(2);
        let end = found.end(poller).filter(|_| may_prefetch);
        let mut prefetch = end.map(|(upto, kept)| {
            let document = self.lease.expected();
            let state = kept.unwrap_or_else(|| self.work.end(document).1);
            poller.prefetch_from(Position::under(document, Some(upto)), state)
        });
        if let Some(prefetch) = &mut prefetch {
            prefetch.start().await;
        }
        let made = found.made(poller)?;
        // A prefetch in progress must not delay any other read.
        self.prefetch = prefetch.filter(|_| matches!(made, Fetched::Batch(_)));
        Ok(made)
    }
}

impl Poller {
    /// Whether this poller prefetches. The handler of a range reads rows again while it runs, and must not wait for
    /// a prefetch.
    fn prefetches(&self) -> bool {
        self.flow.prefetch && self.range_of.is_none()
    }

    fn prefetch_from(&self, position: Position, state: SourceState) -> Prefetch<'_> {
        let reading = Box::pin(self.prefetch_rows(position.clone(), state));
        Prefetch {
            poller: self,
            position,
            progress: Progress::Reading(reading),
            unpolled: UnpolledTime::default(),
        }
    }

    async fn prefetch_rows(
        &self,
        position: Position,
        state: SourceState,
    ) -> Result<PrefetchResult, TickError> {
        let mut kept = None;
        let rows = self.read_rows(position, ReadKind::Next, &state, &mut kept).await?;
        Ok(PrefetchResult { found: Prefetched::Rows(Box::new(rows)), stats: kept })
    }
}

/// Whether the current rows are unlikely to be accepted whole: they failed before, or are not those that the
/// document describes.
pub(super) fn has_failed_before(work: &Work, document: &StateDocument) -> bool {
    let untroubled = document.in_flight.as_ref().is_some_and(|in_flight| {
        in_flight.batch_id == work.batch.id
            && in_flight.attempt == 0
            && in_flight.crashes == 0
            && in_flight.last_error.is_none()
    });
    work.isolation.is_suspected() || !untroubled
}
