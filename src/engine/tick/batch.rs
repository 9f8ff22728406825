//! Batches: rows on their way to the handler, under an id derived from their content.
//!
//! A part of a batch equals what a fetch of its range would return: the same events with the same ids. So a part
//! needs no record of its own before it is delivered. An instance that finds the whole batch in flight redelivers
//! all of it, and the target recognises the events.

use std::sync::Arc;
use std::time::Duration;

use super::event_range::Events;
use super::isolate::{Halving, Isolation, PriorAttempts, Rows, RowsAfter, Settlement};
use crate::cursor::{Cursor, SourceState};
use crate::document::{InFlight, StateDocument};
use crate::event::{BatchId, BatchIdentity, ChangeEvent, EventsDigest};
use crate::journal::Details;
use crate::lease::Lease;
use crate::poller::Poller;

/// Rows on their way to the handler.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(super) id: BatchId,
    /// Where the rows begin.
    pub(super) at: Position,
    pub(super) upto: Cursor,
    pub(super) digest: EventsDigest,
    pub(super) events: Events,
    /// Whether more rows were waiting after these.
    pub(super) more: bool,
    /// How old the oldest row was, in modes that know times.
    pub(super) lag: Option<Duration>,
    /// The state that the source wants kept once the last of these rows is committed.
    pub(super) remember: Option<SourceState>,
    /// Added to that state before the first row is delivered.
    pub(super) anchor: SourceState,
    pub(super) origin: Origin,
    /// Whether a process crashed while exactly these rows were in flight.
    pub(super) crashed_alone: bool,
}

/// Why rows are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// They come after the checkpoint.
    New,
    /// They were found in a closed window: the checkpoint is past them already.
    Late,
}

/// Where a fetch starts, and what else identifies a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) generation: u64,
    pub(super) replay_id: Option<String>,
    pub(super) after: Option<Cursor>,
    /// Where the rows end, in a range that is replayed.
    pub(super) end: Option<Cursor>,
}

impl Position {
    /// Returns the position after `after` in the generation and range of `document`.
    pub(super) fn under(document: &StateDocument, after: Option<Cursor>) -> Self {
        let end = document.range.as_ref().map(|range| range.upto.clone());
        let replay_id = document.replay_id.clone();
        Self { generation: document.generation.0, replay_id, after, end }
    }
}

impl Batch {
    /// Identifies `events`; `None` if there are none.
    pub(super) fn of(
        poller: &str,
        at: Position,
        events: Events,
        more: bool,
        lag: Option<Duration>,
    ) -> Option<Self> {
        let upto = events.last()?.cursor.clone();
        let digest = EventsDigest::of(&*events);
        let id = BatchId::of(&BatchIdentity {
            poller,
            generation: at.generation,
            replay_id: at.replay_id.as_deref(),
            after: at.after.as_ref(),
            upto: &upto,
            digest: &digest,
        });
        Some(Self {
            id,
            at,
            upto,
            digest,
            events,
            more,
            lag,
            remember: None,
            anchor: SourceState::new(),
            origin: Origin::New,
            crashed_alone: false,
        })
    }

    /// Returns some of the rows as a batch of their own; `None` if there would be none.
    pub(super) fn part(&self, poller: &str, rows: Rows) -> Option<Self> {
        let is_end = rows.end == self.events.len();
        let before = rows.start.checked_sub(1).and_then(|before| self.events.get(before));
        let after =
            before.map_or_else(|| self.at.after.clone(), |event| Some(event.cursor.clone()));
        let at = Position { after, ..self.at.clone() };
        let events = self.events.part(rows)?;
        let part = Self::of(poller, at, events, self.more || !is_end, self.lag)?;
        // The new state of the source belongs to the last row.
        let remember = self.remember.clone().filter(|_| is_end);
        Some(Self { remember, origin: self.origin, ..part })
    }

    /// Returns these rows and those of `next` as one batch.
    fn joined(&self, poller: &str, next: &Self) -> Option<Self> {
        let events = self.events.joined(&next.events);
        let joined = Self::of(poller, self.at.clone(), events, next.more, self.lag)?;
        Some(Self { remember: next.remember.clone(), origin: self.origin, ..joined })
    }

    /// Returns the state to keep before the first row is delivered; `None` if `state` has it already.
    pub(super) fn anchored(&mut self, state: &SourceState) -> Option<SourceState> {
        let anchor = std::mem::take(&mut self.anchor);
        let is_news = !anchor.is_empty();
        is_news.then(|| state.clone().into_iter().chain(anchor).collect())
    }

    pub(super) fn rows(&self) -> u64 {
        u64::try_from(self.events.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn is_late(&self) -> bool {
        self.origin == Origin::Late
    }

    /// Returns the record that is written with the lease, with the history of earlier attempts.
    pub(super) fn in_flight_after(&self, tried: PriorAttempts) -> InFlight {
        InFlight {
            batch_id: self.id.clone(),
            after: self.at.after.clone(),
            upto: self.upto.clone(),
            rows: self.rows(),
            digest: self.digest.clone(),
            late: self.is_late(),
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

    /// Returns the record of rows without earlier attempts.
    pub(super) fn in_flight(&self) -> InFlight {
        self.in_flight_after(PriorAttempts::default())
    }

    /// Returns the fields of a journal entry about them.
    pub(super) fn details(&self, attempt: Option<u32>) -> Details {
        Details {
            batch_id: Some(self.id.clone()),
            after: self.at.after.clone(),
            upto: Some(self.upto.clone()),
            rows: Some(self.rows()),
            digest: Some(self.digest.clone()),
            attempt,
            ..Details::default()
        }
    }

    /// Returns the rows after a checkpoint. Rows that the handler accepted early may be committed already.
    pub(super) fn rows_after(&self, checkpoint: Option<&Cursor>) -> &[ChangeEvent] {
        let committed = self.events.iter().position(|event| Some(&event.cursor) == checkpoint);
        self.events.get(committed.map_or(0, |last| last + 1)..).unwrap_or_default()
    }
}

/// The rows of one fetch, and how far their delivery has come.
#[derive(Debug)]
pub(super) struct Work {
    /// The current rows: the next to deliver, or those that are settled.
    pub(super) batch: Arc<Batch>,
    /// All rows of the fetch; the isolation refers to them by index.
    read: Arc<Batch>,
    pub(super) isolation: Isolation,
    /// What became of the current rows.
    pub(super) settlement: Settlement,
    /// The state of the source after a later fetch that found no rows.
    pub(super) remember: Option<SourceState>,
}

impl Work {
    /// Starts with what was fetched.
    pub(super) fn of(read: Box<Batch>, poller: &Poller, lease: &Lease<'_>) -> Self {
        let rows = read.events.len();
        let rows_after = if read.is_late() { RowsAfter::Delivered } else { RowsAfter::Readable };
        let halving = if poller.policy.bisect_on_error && !poller.handler.recognises_batches() {
            Halving::FirstRetry
        } else {
            Halving::Exhausted
        };
        let seed = lease.token().0;
        let isolation = Isolation::of(poller.policy, halving, rows, rows_after, seed);
        let read = Arc::new(*read);
        Self {
            batch: Arc::clone(&read),
            read,
            isolation,
            settlement: Settlement::Accepted,
            remember: None,
        }
    }

    /// Returns the rows at these indexes.
    pub(super) fn part(&self, poller: &Poller, rows: &Rows) -> Arc<Batch> {
        if *rows == self.isolation.rows() {
            return Arc::clone(&self.batch);
        }
        let part = self.read.part(&poller.name, rows.clone());
        part.map_or_else(|| Arc::clone(&self.batch), Arc::new)
    }

    /// Makes the rows that the isolation now works on the current ones.
    pub(super) fn follow(&mut self, poller: &Poller, before: &Rows) {
        let rows = self.isolation.rows();
        if rows != *before
            && let Some(part) = self.read.part(&poller.name, rows)
        {
            self.batch = Arc::new(part);
        }
    }

    /// Appends rows that were read after the last one.
    pub(super) fn append(&mut self, poller: &Poller, next: &Batch) {
        if let Some(joined) = self.read.joined(&poller.name, next) {
            self.read = Arc::new(joined);
        }
    }

    /// Returns the rows that wait after the settled ones, as work of their own; `None` if there are none.
    pub(super) fn next(&mut self, poller: &Poller) -> Option<Self> {
        let mut isolation = self.isolation.clone();
        if !isolation.advance() {
            return None;
        }
        let read = Arc::clone(&self.read);
        let batch = Arc::new(read.part(&poller.name, isolation.rows())?);
        Some(Self { batch, read, isolation, settlement: Settlement::Accepted, remember: None })
    }

    /// Returns how many of the current rows a handler accepted.
    pub(super) fn rows_accepted(&self) -> u64 {
        match self.settlement {
            Settlement::Accepted => self.batch.rows(),
            Settlement::Quarantined => 0,
        }
    }

    /// Returns the record that is written with the lease.
    pub(super) fn in_flight(&self) -> InFlight {
        self.batch.in_flight_after(self.isolation.prior_attempts().cloned().unwrap_or_default())
    }

    /// Returns the state that the source wants kept once the current rows are committed.
    pub(super) fn remember(&self) -> Option<SourceState> {
        self.remember.clone().or_else(|| self.batch.remember.clone())
    }

    /// Returns the position after the current rows, and the state of the source for the next fetch.
    pub(super) fn end(&self, document: &StateDocument) -> (Position, SourceState) {
        let position = Position::under(document, Some(self.batch.upto.clone()));
        // The state that comes with the current batch is not written yet, but the next fetch depends on it.
        let state = self.remember().unwrap_or_else(|| document.source_state.clone());
        (position, state)
    }
}
