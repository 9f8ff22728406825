//! From a position to a batch: fetch, normalise, cut to size, identify.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::ahead::Found;
use super::deliver::Hand;
use super::events::Events;
use super::observe::Observation;
use super::suspicion::{Suspicion, Tried};
use super::{Poller, TickError};
use crate::cursor::{Cursor, SourceState};
use crate::error::ErrorKind;
use crate::event::{BatchId, BatchIdentity, ChangeEvent, Digested};
use crate::lease::{Lease, Snapshot};
use crate::normalize::{fitting, normalize};
use crate::source::{FetchError, FetchWindow, Remember, Rows};
use crate::state::{InFlight, Standing, StateDocument};

/// Rows on their way to the handler.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "none of these facts excludes another")]
pub(super) struct Batch {
    pub(super) id: BatchId,
    pub(super) after: Option<Cursor>,
    pub(super) upto: Cursor,
    pub(super) digest: Digested,
    pub(super) events: Events,
    /// Whether more rows were waiting behind these.
    pub(super) more: bool,
    /// How old the oldest row was, where the mode can tell.
    pub(super) lag: Option<Duration>,
    /// What the source wants kept once the last of these rows is committed.
    pub(super) remember: Option<SourceState>,
    /// What is added to that before the first row is delivered.
    pub(super) anchor: SourceState,
    /// Set where one of these rows is known to be at fault.
    pub(super) suspicion: Option<Box<Suspicion>>,
    /// Whether a holder had these rows in hand, and no others, when it ended.
    pub(super) died_alone: bool,
    /// Whether the rows were set aside instead of taken.
    pub(super) quarantined: bool,
    /// Whether the rows were found in a closed window: the checkpoint lies behind them already.
    pub(super) late: bool,
}

/// Where a fetch begins, and what else makes a batch what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) generation: u64,
    pub(super) replay_id: Option<String>,
    pub(super) after: Option<Cursor>,
    /// Where rows end, in a range that is delivered again.
    pub(super) end: Option<Cursor>,
}

impl Position {
    /// Returns the place behind `after`, under what else `document` says.
    pub(super) fn under(document: &StateDocument, after: Option<Cursor>) -> Self {
        let end = document.range.as_ref().map(|range| range.upto.clone());
        let replay_id = document.replay_id.clone();
        Self { generation: document.generation.0, replay_id, after, end }
    }
}

/// Why rows are read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading<'a> {
    /// They are the first of the tick, or after work that is committed.
    First,
    /// They were in flight: exactly these are wanted.
    Again(&'a InFlight),
    /// They lie behind a batch that is not committed yet.
    Behind,
}

/// Whoever is told of a read.
pub(super) trait Noting {
    /// Notes what was found, and how long that took.
    fn fetched(&mut self, found: &Rows, took: Duration);
}

/// Rows as they were read, of which a batch is to be made.
pub(super) struct RowsRead {
    pub(super) rows: Rows,
    pub(super) position: Position,
    /// Whether they are a range that is read again.
    again: bool,
}

/// What a fetch found.
pub(super) enum Fetched {
    /// Rows.
    Batch(Box<Batch>),
    /// None, and what the source wants kept all the same.
    Nothing(Option<Remember>),
}

/// What follows a batch within the same tick.
pub(super) enum Next {
    /// Another one.
    Batch(Box<Batch>),
    /// The source has no more rows now, and may want something kept with the batch in hand.
    Nothing(Option<SourceState>),
    /// Rows are waiting, but a limit is met.
    NotNow,
    /// The same, and one of these is known to be at fault: that is not to be forgotten.
    Later(Box<Batch>),
}

impl Next {
    /// Returns what follows late rows: what had been put off for them.
    pub(super) fn behind_late(batch: &Batch) -> Self {
        if batch.more { Self::NotNow } else { Self::Nothing(None) }
    }
}

impl Poller {
    /// Reads the batch at the checkpoint of `base`.
    ///
    /// A batch that was in flight is read again as exactly its range, so that unchanged rows make the
    /// same batch with the same id; rows that have moved on since leave that range empty.
    ///
    /// A database that does not answer is given up at the tick's end of time, before the host kills
    /// this process and all its pollers.
    pub(super) async fn first_batch(
        &self,
        base: &Snapshot,
        seen: &mut Observation<'_>,
    ) -> Result<Fetched, TickError> {
        let end_of_time = seen.began_at() + self.limits.handler_stop_after;
        let stop = seen.request().stop.clone();
        let read = Box::pin(timeout_at(end_of_time, self.read_first_batch(base, seen)));
        let read = stop.unless_aborted(read).await.ok_or(TickError::Aborted)?;
        read.unwrap_or_else(|_| Err(took_too_long()))
    }

    async fn read_first_batch(
        &self,
        base: &Snapshot,
        seen: &mut Observation<'_>,
    ) -> Result<Fetched, TickError> {
        let document = &base.document;
        let position = || Position::under(document, document.checkpoint.cursor.clone());
        let state = &document.source_state;
        if let Some(in_flight) = &document.in_flight
            && !in_flight.late
            && in_flight.after == document.checkpoint.cursor
        {
            let again = self.fetch(position(), Reading::Again(in_flight), state, seen).await?;
            if let Fetched::Batch(mut batch) = again {
                let same = in_flight.rows == 1 && in_flight.batch_id == batch.id;
                batch.died_alone = same && self.is_left_behind(base);
                return Ok(Fetched::Batch(batch));
            }
        }
        self.fetch(position(), Reading::First, state, seen).await
    }

    /// Whether whoever holds the lease has let it lapse, so that whoever takes it counts a death.
    fn is_left_behind(&self, base: &Snapshot) -> bool {
        let age = base.age(self.store.grain());
        base.document.standing(self.instance.owner_id(), age) == Standing::Lapsed
    }

    /// Whether limits allow another batch after the one in hand.
    pub(super) fn may_go_on(&self, lease: &Lease<'_>, seen: &Observation<'_>) -> bool {
        self.may_go_on_by(1, lease, seen)
    }

    /// Whether they allow two more.
    pub(super) fn may_go_on_twice(&self, lease: &Lease<'_>, seen: &Observation<'_>) -> bool {
        self.may_go_on_by(2, lease, seen)
    }

    fn may_go_on_by(&self, batches: u64, lease: &Lease<'_>, seen: &Observation<'_>) -> bool {
        let in_hand = seen.batches() + u64::from(lease.is_committing());
        !seen.request().stop.is_set()
            && !lease.document().is_held_up()
            && seen.began_at().elapsed() < self.limits.tick_time_max
            && self.limits.batches_max.is_none_or(|max| in_hand + batches < max)
    }

    /// Reads the batch after the one in hand, where limits allow another one, or takes what was read ahead.
    pub(super) async fn next_batch<'a>(
        &'a self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'a>,
        seen: &mut Observation<'_>,
    ) -> Result<Next, TickError> {
        // Whatever else is read meanwhile must not wait for it.
        let ahead = hand.ahead.take();
        if !hand.batch.more {
            return Ok(Next::Nothing(None));
        }
        if !self.may_go_on(lease, seen) {
            return Ok(Next::NotNow);
        }
        let read = self.what_was_read_ahead(lease, (ahead, &hand.batch), seen).await;
        let read = if let Some(read) = read {
            read
        } else {
            let read = Box::pin(self.read_rows_behind(lease, &hand.batch, seen)).await;
            read.map(|rows| Found::Rows(Box::new(rows)))
        };
        let next = match read {
            Ok(found) => self.make_and_read_on(lease, hand, found, seen).await,
            Err(error) => Err(error),
        };
        match next {
            Ok(Fetched::Batch(next)) => Ok(Next::Batch(next)),
            Ok(Fetched::Nothing(remember)) => {
                Ok(Next::Nothing(remember.map(|remember| remember.state)))
            }
            // The batch in hand was taken; whether it can still be committed is the commit's to find.
            Err(TickError::LeaseLost(_) | TickError::Aborted) => Ok(Next::NotNow),
            Err(error) => Err(error),
        }
    }

    /// Reads the batch behind `batch`, which waits to be written down: so nothing is waited for.
    pub(super) async fn read_behind(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        seen: &mut Observation<'_>,
    ) -> Result<Fetched, TickError> {
        self.batch_of(Box::pin(self.read_rows_behind(lease, batch, seen)).await?)
    }

    async fn read_rows_behind(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        seen: &mut Observation<'_>,
    ) -> Result<RowsRead, TickError> {
        let (position, state) = behind(batch, lease.document());
        let stop = seen.request().stop.clone();
        let read = Box::pin(self.read_rows(position, Reading::Behind, &state, seen));
        let read = lease.hold_while(stop.unless_aborted(read)).await;
        read.map_err(TickError::LeaseLost)?.unwrap_or(Err(TickError::Aborted))
    }

    async fn fetch(
        &self,
        position: Position,
        reading: Reading<'_>,
        state: &SourceState,
        seen: &mut (impl Noting + Send),
    ) -> Result<Fetched, TickError> {
        self.batch_of(self.read_rows(position, reading, state, seen).await?)
    }

    /// Reads the rows of one batch.
    pub(super) async fn read_rows(
        &self,
        position: Position,
        reading: Reading<'_>,
        state: &SourceState,
        seen: &mut (impl Noting + Send),
    ) -> Result<RowsRead, TickError> {
        let again = if let Reading::Again(batch) = reading { Some(batch) } else { None };
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
        let mut rows = self.read_window(window, reading, seen).await?;
        // Of what lies behind a range that is read again, that read says nothing.
        rows.more |= again.is_some();
        Ok(RowsRead { rows, position, again: again.is_some() })
    }

    /// Makes a batch of rows, or of as many of them as fit.
    pub(super) fn batch_of(&self, read: RowsRead) -> Result<Fetched, TickError> {
        let RowsRead { mut rows, position, again } = read;
        let mut events = self.events_of(&mut rows)?;
        let shape = self.source.shape();
        let cut = fitting(shape, &rows, &events, self.limits.batch_bytes_max);
        let cut = cut.map_err(TickError::Normalize)?;
        let whole = cut == events.len() && !again;
        let more = rows.more || cut < events.len();
        events.truncate(cut);
        Ok(match Batch::of(&self.name, position, events.into(), more, rows.lag.time) {
            // What is remembered may say that all rows of the fetch were delivered.
            Some(mut batch) => {
                batch.remember = rows.remember.filter(|_| whole).map(|remember| remember.state);
                batch.anchor = rows.anchor;
                Fetched::Batch(Box::new(batch))
            }
            None => Fetched::Nothing(rows.remember),
        })
    }

    /// Reads the rows of a window.
    pub(super) async fn read_window(
        &self,
        window: FetchWindow<'_>,
        reading: Reading<'_>,
        seen: &mut (impl Noting + Send),
    ) -> Result<Rows, TickError> {
        let began_at = Instant::now();
        let rows = match reading {
            Reading::First | Reading::Again(_) => self.source.fetch(window).await,
            Reading::Behind => self.source.fetch_at_once(window).await,
        };
        let rows = rows.map_err(TickError::Fetch)?;
        seen.fetched(&rows, began_at.elapsed());
        Ok(rows)
    }

    /// Makes events of rows, whose JSON is gone then.
    pub(super) fn events_of(&self, rows: &mut Rows) -> Result<Vec<ChangeEvent>, TickError> {
        let events = normalize(self.source.shape(), rows).map_err(TickError::Normalize)?;
        self.source.reuse(std::mem::take(&mut rows.json));
        Ok(events)
    }
}

/// Returns where rows behind `batch` begin, and what their source asked to keep until then.
pub(super) fn behind(batch: &Batch, document: &StateDocument) -> (Position, SourceState) {
    let position = Position::under(document, Some(batch.upto.clone()));
    // What goes with the batch in hand is not written yet, and holds for the next one already.
    let state = batch.remember.clone().unwrap_or_else(|| document.source_state.clone());
    (position, state)
}

pub(super) fn took_too_long() -> TickError {
    let reason = "the source did not answer within the tick's time";
    TickError::Fetch(FetchError::new(ErrorKind::Transient, reason))
}

impl Batch {
    /// Identifies `events`; `None` where there are none.
    pub(super) fn of(
        poller: &str,
        position: Position,
        events: Events,
        more: bool,
        lag: Option<Duration>,
    ) -> Option<Self> {
        let upto = events.last()?.cursor.clone();
        let digest = Digested::of(&*events);
        let id = BatchId::of(&BatchIdentity {
            poller,
            generation: position.generation,
            replay_id: position.replay_id.as_deref(),
            after: position.after.as_ref(),
            upto: &upto,
            digest: &digest,
        });
        Some(Self {
            id,
            after: position.after,
            upto,
            digest,
            events,
            more,
            lag,
            remember: None,
            anchor: SourceState::new(),
            suspicion: None,
            died_alone: false,
            quarantined: false,
            late: false,
        })
    }

    /// Returns what has to be remembered before the first row is delivered; `None` where `state` says it already.
    pub(super) fn anchored(&mut self, state: &SourceState) -> Option<SourceState> {
        let anchor = std::mem::take(&mut self.anchor);
        let is_news = !anchor.is_empty();
        is_news.then(|| state.clone().into_iter().chain(anchor).collect())
    }

    /// Lets what the source wants kept ride on the acquisition of late rows.
    pub(super) fn with(
        self: Box<Self>,
        remember: Option<Remember>,
        base: &mut Snapshot,
    ) -> Box<Self> {
        if let Some(remember) = remember {
            base.document_mut().source_state = remember.state;
        }
        self
    }

    pub(super) fn rows(&self) -> u64 {
        u64::try_from(self.events.len()).unwrap_or(u64::MAX)
    }

    /// Returns how many of the rows a handler took.
    pub(super) fn rows_taken(&self) -> u64 {
        if self.quarantined { 0 } else { self.rows() }
    }

    /// Returns the record that travels with the lease.
    pub(super) fn in_flight(&self) -> InFlight {
        let tried = self.suspicion.as_ref().map(|suspicion| suspicion.tried.clone());
        self.in_flight_after(tried.unwrap_or_default())
    }

    /// Returns the record of rows to which this has happened before.
    pub(super) fn in_flight_after(&self, tried: Tried) -> InFlight {
        InFlight {
            batch_id: self.id.clone(),
            after: self.after.clone(),
            upto: self.upto.clone(),
            rows: self.rows(),
            digest: self.digest.clone(),
            late: self.late,
            probing: false,
            attempt: tried.attempt,
            crashes: tried.crashes,
            crashes_survived: tried.crashes_survived,
            first_failed_at: tried.first_failed_at,
            next_attempt_at: None,
            first_error: tried.first_error,
            last_error: tried.last_error,
            started_at: None,
            steps: Vec::new(),
            extra: serde_json::Map::new(),
        }
    }
}
