//! From a position to a batch: fetch, normalise, cut to size, identify.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::batch::{Batch, Position, Work};
use super::prefetch::Prefetched;
use super::report::Report;
use super::{LeasedTick, Tick};
use crate::cursor::SourceState;
use crate::document::{InFlight, LeaseState, Snapshot};
use crate::error::ErrorKind;
use crate::event::ChangeEvent;
use crate::normalize::{NormalizeError, fitting, normalize};
use crate::policy::OnFailure;
use crate::poller::{Poller, TickError};
use crate::source::{FetchError, FetchWindow, Lag, RetainedState, Rows};

/// Which rows to read.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadKind<'a> {
    /// The rows after the checkpoint: first of the tick, or after committed work.
    First,
    /// The batch that was in flight: exactly its range.
    InFlight(&'a InFlight),
    /// The rows after accepted ones that are not committed yet.
    Next,
    /// The rows after ones that may not be accepted, to find out what the target accepts.
    Probe,
    /// A part of a closed window.
    Audit { under_lease: bool },
}

impl ReadKind<'_> {
    /// Whether the rows are read again until the source is less busy.
    fn may_wait(self) -> bool {
        matches!(self, Self::First | Self::InFlight(_) | Self::Audit { under_lease: false })
    }

    /// Whether the rows are the next ones to deliver, so that the first one is the oldest that waits.
    fn finds_lag(self) -> bool {
        matches!(self, Self::First | Self::InFlight(_) | Self::Next)
    }

    fn is_after_checkpoint(self) -> bool {
        matches!(self, Self::First | Self::InFlight(_))
    }
}

/// Statistics of a fetch.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchStats {
    pub(super) rows: usize,
    /// The lag at the start of the read, if the rows are the next ones to deliver.
    pub(super) lag: Option<Lag>,
    pub(super) started_at: Instant,
    pub(super) took: Duration,
}

/// Receives the statistics of each fetch.
pub(super) trait FetchObserver {
    /// Notes what a fetch returned, and how long it took.
    fn fetched(&mut self, stats: FetchStats);
}

/// Rows as the source returned them, before they become a batch.
pub(super) struct FetchedRows {
    pub(super) rows: Rows,
    pub(super) position: Position,
    /// Whether the fetch repeats the range of a batch in flight.
    again: bool,
}

/// What a fetch found.
pub(super) enum Fetched {
    /// Rows.
    Batch(Box<Batch>),
    /// No rows. The source may still want a new state of its own kept.
    Nothing(Option<RetainedState>),
}

/// What follows a settled batch within the same tick.
pub(super) enum Next {
    /// More rows.
    Work(Box<Work>),
    /// No more rows for now. The source may want a new state of its own kept with the current batch.
    Nothing(Option<SourceState>),
    /// Rows are waiting, but a limit of the tick is reached.
    LimitReached,
    /// As [`Self::LimitReached`], and one of these rows is known to fail: the commit must keep that knowledge.
    Deferred(Box<Work>),
}

impl Next {
    /// After late rows comes whatever was deferred for them.
    fn after_late(batch: &Batch) -> Self {
        if batch.more { Self::LimitReached } else { Self::Nothing(None) }
    }
}

impl Tick<'_> {
    /// Reads the batch after the checkpoint of `base`.
    ///
    /// A batch that was in flight is read again as exactly its range. Unchanged rows then make the same batch with
    /// the same id; rows that have changed since leave that range empty.
    ///
    /// A database that does not answer is abandoned when the tick's time is up, before the host kills this process
    /// and all its pollers.
    pub(super) async fn read_first(&mut self, base: &Snapshot) -> Result<Fetched, TickError> {
        let Self { poller, report, .. } = self;
        let end_of_time = report.started_at() + poller.limits.handler_stop_after;
        let stop = report.request().stop.clone();
        let read = Box::pin(timeout_at(end_of_time, poller.read_first(base, report)));
        let read = stop.unless_aborted(read).await.ok_or(TickError::Aborted)?;
        read.unwrap_or_else(|_| Err(fetch_timeout()))
    }
}

impl LeasedTick<'_, '_> {
    /// Returns what follows a settled batch: rows of the same fetch that still wait, else new rows, else late ones.
    pub(super) async fn next(&mut self) -> Result<Next, TickError> {
        if let Some(next) = self.work.next(self.poller) {
            return Ok(match next {
                next if self.may_continue() => Next::Work(Box::new(next)),
                next if next.isolation.is_suspected() => Next::Deferred(Box::new(next)),
                _ => Next::LimitReached,
            });
        }
        let next = if self.work.batch.is_late() {
            Next::after_late(&self.work.batch)
        } else {
            self.next_from_source().await?
        };
        self.or_late_rows(next).await
    }

    /// Returns the batch after the current one if limits allow: the prefetched one, or one read now.
    async fn next_from_source(&mut self) -> Result<Next, TickError> {
        // Taken out first: a prefetch in progress must not delay any other read.
        let prefetch = self.prefetch.take();
        if !self.work.batch.more {
            return Ok(Next::Nothing(None));
        }
        if !self.may_continue() {
            return Ok(Next::LimitReached);
        }
        let read = if let Some(read) = self.take_prefetched(prefetch).await {
            read
        } else {
            let end = self.work.end(self.lease.expected());
            let rows = Box::pin(self.read_rows_after(end, ReadKind::Next)).await;
            rows.map(|rows| Prefetched::Rows(Box::new(rows)))
        };
        let next = match read {
            Ok(found) => self.build_batch_and_prefetch(found).await,
            Err(error) => Err(error),
        };
        match next {
            Ok(Fetched::Batch(next)) => Ok(Next::Work(Box::new(self.work_of(next).await?))),
            Ok(Fetched::Nothing(remember)) => {
                Ok(Next::Nothing(remember.map(|remember| remember.state)))
            }
            // The current batch was accepted. Whether it can still be committed, the commit finds out.
            Err(TickError::LeaseLost(_) | TickError::Aborted) => Ok(Next::LimitReached),
            Err(error) => Err(error),
        }
    }

    /// Reads the batch after all rows of the fetch without waiting for a busy source: the current batch is not committed
    /// yet.
    pub(super) async fn read_batch_after_fetch(&mut self) -> Result<Fetched, TickError> {
        let end = self.work.end_of_fetch(self.lease.expected());
        let rows = Box::pin(self.read_rows_after(end, ReadKind::Probe)).await?;
        self.poller.batch_of(rows)
    }

    async fn read_rows_after(
        &mut self,
        (position, state): (Position, SourceState),
        kind: ReadKind<'_>,
    ) -> Result<FetchedRows, TickError> {
        let stop = self.report.request().stop.clone();
        let read = self.poller.read_rows(position, kind, &state, self.report);
        let read = self.lease.hold_while(stop.unless_aborted(Box::pin(read))).await;
        read.map_err(TickError::LeaseLost)?.unwrap_or(Err(TickError::Aborted))
    }

    /// Whether limits allow another batch after the current one.
    pub(super) fn may_continue(&self) -> bool {
        self.may_continue_by(1)
    }

    /// Whether limits allow that many more batches.
    pub(super) fn may_continue_by(&self, batches: u64) -> bool {
        let limits = &self.poller.limits;
        let committed = self.report.batches() + u64::from(self.lease.is_committing());
        self.has_time()
            && !self.lease.document().is_blocked()
            && limits.batches_max.is_none_or(|max| committed + batches < max)
    }

    /// Whether the tick may start anything new.
    pub(super) fn has_time(&self) -> bool {
        self.report.has_time()
    }
}

impl Poller {
    async fn read_first(
        &self,
        base: &Snapshot,
        report: &mut Report<'_>,
    ) -> Result<Fetched, TickError> {
        let document = &base.document;
        let position = || Position::under(document, document.checkpoint.cursor.clone());
        let state = &document.source_state;
        if let Some(in_flight) = &document.in_flight
            && !in_flight.late
            && in_flight.after == document.checkpoint.cursor
        {
            let kind = ReadKind::InFlight(in_flight);
            let found = self.batch_of(self.read_rows(position(), kind, state, report).await?)?;
            if let Fetched::Batch(mut batch) = found {
                let crashed = in_flight.rows == 1 && self.is_abandoned(base);
                batch.crashed_with = crashed.then(|| in_flight.batch_id.clone());
                return Ok(Fetched::Batch(batch));
            }
        }
        self.batch_of(self.read_rows(position(), ReadKind::First, state, report).await?)
    }

    /// Whether the holder has let its lease lapse, so that taking the lease over counts a crash.
    pub(super) fn is_abandoned(&self, base: &Snapshot) -> bool {
        let age = base.age(self.store.grain());
        base.document.lease_state(self.instance.owner_id(), age) == LeaseState::Lapsed
    }

    /// Reads the rows of one batch.
    pub(super) async fn read_rows(
        &self,
        position: Position,
        reading: ReadKind<'_>,
        state: &SourceState,
        observer: &mut (impl FetchObserver + Send),
    ) -> Result<FetchedRows, TickError> {
        let again = if let ReadKind::InFlight(batch) = reading { Some(batch) } else { None };
        let rows_max = again.map_or_else(
            || self.batch_rows(),
            |batch| usize::try_from(batch.rows).unwrap_or(0).max(self.limits.batch_rows_max),
        );
        let window = FetchWindow {
            after: position.after.as_ref(),
            upto: again.map(|batch| &batch.upto).or(position.end.as_ref()),
            rows_max,
            state,
        };
        let mut rows = self.read_window(window, reading, observer).await?;
        // A bounded re-read cannot tell whether more rows follow, so assume they do.
        rows.more |= again.is_some();
        Ok(FetchedRows { rows, position, again: again.is_some() })
    }

    /// Builds a batch of the rows, or of as many as fit.
    pub(super) fn batch_of(&self, read: FetchedRows) -> Result<Fetched, TickError> {
        let FetchedRows { mut rows, position, again } = read;
        // Most ticks are idle, so this path encodes nothing.
        if rows.rows.is_empty() {
            self.source.reuse(std::mem::take(&mut rows.json));
            return Ok(Fetched::Nothing(rows.remember));
        }
        let mut events = self.events_of(&mut rows)?;
        let cut = self.deliverable(&rows, &mut events)?;
        let whole = cut == events.len() && !again;
        let more = rows.more || cut < events.len();
        events.truncate(cut);
        Ok(match Batch::of(&self.name, position, events.into(), more, rows.lag.time) {
            // The new state of the source may say that all rows of the fetch were delivered.
            Some(mut batch) => {
                batch.remember = rows.remember.filter(|_| whole).map(|remember| remember.state);
                batch.anchor = rows.anchor;
                Fetched::Batch(Box::new(batch))
            }
            None => Fetched::Nothing(rows.remember),
        })
    }

    /// Returns how many of these events make a batch: as many as fit, and none from an unreadable one on, unless its key is
    /// parked instead.
    ///
    /// # Errors
    ///
    /// [`NormalizeError::Unreadable`] if there is none.
    pub(super) fn deliverable(
        &self,
        rows: &Rows,
        events: &mut [ChangeEvent],
    ) -> Result<usize, TickError> {
        let cut = fitting(self.source.shape(), rows, events, self.limits.batch_bytes_max);
        let in_a_row = if self.policy.on_failure == OnFailure::Park {
            usize::try_from(self.policy.breaker_rows).unwrap_or(usize::MAX)
        } else {
            0
        };
        let mut found = 0;
        for (index, event) in events.iter().take(cut).enumerate() {
            let Some(why) = &event.unreadable else {
                found = 0;
                continue;
            };
            found += 1;
            if found > in_a_row {
                return if index > 0 { Ok(index) } else { Err(unreadable(why)) };
            }
        }
        Ok(cut)
    }

    /// Reads the rows of a window.
    pub(super) async fn read_window(
        &self,
        window: FetchWindow<'_>,
        reading: ReadKind<'_>,
        observer: &mut (impl FetchObserver + Send),
    ) -> Result<Rows, TickError> {
        let started_at = Instant::now();
        let storage_time = self.storage_time();
        let is_bounded = window.upto.is_some();
        let rows = if reading.may_wait() {
            self.source.fetch(window).await
        } else {
            self.source.fetch_at_once(window).await
        };
        let mut rows = rows.map_err(TickError::Fetch)?;
        if let Some(at) = storage_time {
            self.note_read(rows.lag, at);
            if reading.is_after_checkpoint() {
                self.forget_delivered(rows.lag, is_bounded);
            }
            rows.lag = self.date_rows(rows.lag, at);
        }
        observer.fetched(FetchStats {
            rows: rows.rows.len(),
            lag: reading.finds_lag().then_some(rows.lag),
            started_at,
            took: started_at.elapsed(),
        });
        Ok(rows)
    }

    /// Turns rows into events; this consumes the rows' JSON.
    pub(super) fn events_of(&self, rows: &mut Rows) -> Result<Vec<ChangeEvent>, TickError> {
        let events = normalize(self.source.shape(), rows).map_err(TickError::Normalize)?;
        self.source.reuse(std::mem::take(&mut rows.json));
        Ok(events)
    }
}

pub(super) fn unreadable(why: &Arc<str>) -> TickError {
    TickError::Normalize(NormalizeError::Unreadable(Arc::clone(why)))
}

pub(super) fn fetch_timeout() -> TickError {
    let reason = "the source did not answer within the tick's time";
    TickError::Fetch(FetchError::new(ErrorKind::Transient, reason))
}
