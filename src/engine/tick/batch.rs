//! Batches: rows on their way to the handler, under an id derived from their content.
//!
//! A part of a batch equals what a fetch of its range would return: the same events with the same ids. So a part
//! needs no record of its own before it is delivered. An instance that finds the whole batch in flight redelivers
//! all of it, and the target recognises the events.

use std::sync::Arc;
use std::time::Duration;

use super::event_range::Events;
use super::isolate::{Halving, Isolation, PriorAttempts, Rows, RowsAfter, Settlement};
use crate::backoff::seed_of;
use crate::cursor::{Cursor, SourceState};
use crate::document::{InFlight, StateDocument};
use crate::event::{BatchId, BatchIdentity, ChangeEvent, EventId, EventsDigest};
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
    /// Rows of parked keys and unreadable rows between and after the events, in order. They are not delivered: they are
    /// added to the entries of their keys before anything of this batch is committed.
    pub(super) diverted: Vec<Diverted>,
    /// Whether more rows were waiting after these.
    pub(super) more: bool,
    /// How old the oldest row was, in modes that know times.
    pub(super) lag: Option<Duration>,
    /// The state that the source wants kept once the last of these rows is committed.
    pub(super) remember: Option<SourceState>,
    /// Added to that state before the first row is delivered.
    pub(super) anchor: SourceState,
    pub(super) origin: Origin,
    /// The batch of a single row that was in flight when a process crashed.
    pub(super) crashed_with: Option<BatchId>,
}

/// A row that is not delivered, because its key is parked or the row is unreadable.
#[derive(Clone, Debug)]
pub(super) struct Diverted {
    /// How many events of the batch come before it.
    before: usize,
    pub(super) event: ChangeEvent,
    /// Whether its key was parked before. Otherwise the key is parked because of this row.
    pub(super) is_parked: bool,
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
        Some(Self::upto(poller, at, upto, events, more, lag))
    }

    /// Identifies `events`, the ones to deliver of all rows up to `upto`.
    fn upto(
        poller: &str,
        at: Position,
        upto: Cursor,
        events: Events,
        more: bool,
        lag: Option<Duration>,
    ) -> Self {
        let digest = EventsDigest::of(&*events);
        let id = BatchId::of(&BatchIdentity {
            poller,
            generation: at.generation,
            replay_id: at.replay_id.as_deref(),
            after: at.after.as_ref(),
            upto: &upto,
            digest: &digest,
        });
        Self {
            id,
            at,
            upto,
            digest,
            events,
            diverted: Vec::new(),
            more,
            lag,
            remember: None,
            anchor: SourceState::new(),
            origin: Origin::New,
            crashed_with: None,
        }
    }

    /// Returns this batch with other events up to the same position.
    fn with(self, poller: &str, events: Vec<ChangeEvent>, diverted: Vec<Diverted>) -> Self {
        let Self { at, upto, more, lag, remember, anchor, origin, crashed_with, .. } = self;
        let other = Self::upto(poller, at, upto, events.into(), more, lag);
        Self { diverted, remember, anchor, origin, crashed_with, ..other }
    }

    /// Takes out the rows of parked keys, and unreadable rows.
    pub(super) fn without(self, poller: &str, is_parked: impl Fn(&ChangeEvent) -> bool) -> Self {
        let is_out = |event: &ChangeEvent| event.unreadable.is_some() || is_parked(event);
        if !self.events.iter().any(is_out) {
            return self;
        }
        let (mut events, mut diverted) = (Vec::with_capacity(self.events.len()), Vec::new());
        for event in self.events.iter().cloned() {
            if is_out(&event) {
                let is_parked = is_parked(&event);
                diverted.push(Diverted { before: events.len(), event, is_parked });
            } else {
                events.push(event);
            }
        }
        self.with(poller, events, diverted)
    }

    /// Returns the rows before the first unreadable one.
    ///
    /// # Errors
    ///
    /// Why the first row is unreadable.
    pub(super) fn before_unreadable(self, poller: &str) -> Result<Self, Arc<str>> {
        let unreadable = self.events.iter().enumerate();
        let mut unreadable = unreadable.filter_map(|(at, row)| Some((at, row.unreadable.clone()?)));
        let Some((at, why)) = unreadable.next() else { return Ok(self) };
        let part = self.part(poller, 0..at).ok_or(why)?;
        Ok(Self { anchor: self.anchor, crashed_with: self.crashed_with, ..part })
    }

    pub(super) fn has_unreadable(&self) -> bool {
        self.events.iter().any(|event| event.unreadable.is_some())
    }

    /// Returns the unreadable rows before the first of `events`, whose keys are not parked yet.
    pub(super) fn unreadable_first(&self) -> impl Iterator<Item = &Arc<str>> {
        self.unreadable_from(0).take_while(|(before, _)| *before == 0).map(|(_, why)| why)
    }

    /// Returns how many unreadable rows follow the last of `events`, whose keys are not parked yet.
    pub(super) fn unreadable_last(&self) -> u32 {
        u32::try_from(self.unreadable_from(self.events.len()).count()).unwrap_or(u32::MAX)
    }

    fn unreadable_from(&self, events: usize) -> impl Iterator<Item = (usize, &Arc<str>)> {
        let new = self.diverted.iter().filter(move |row| !row.is_parked && row.before >= events);
        new.filter_map(|row| Some((row.before, row.event.unreadable.as_ref()?)))
    }

    /// Puts rows whose keys are not parked any more back between the others.
    pub(super) fn with_again(self, poller: &str, is_back: impl Fn(&ChangeEvent) -> bool) -> Self {
        let (mut events, mut diverted) = (Vec::with_capacity(self.events.len()), Vec::new());
        let mut taken_out = self.diverted.clone().into_iter().peekable();
        for row in 0..=self.events.len() {
            while let Some(next) = taken_out.next_if(|next| next.before <= row) {
                let is_back = is_back(&next.event);
                if is_back && next.event.unreadable.is_none() {
                    events.push(next.event);
                } else {
                    // An unreadable row is never delivered: its key is parked anew.
                    let is_parked = next.is_parked && !is_back;
                    diverted.push(Diverted { before: events.len(), is_parked, ..next });
                }
            }
            events.extend(self.events.get(row).cloned());
        }
        self.with(poller, events, diverted)
    }

    /// Returns some of the rows as a batch of their own; `None` if there would be none.
    pub(super) fn part(&self, poller: &str, rows: Rows) -> Option<Self> {
        let is_end = rows.end == self.events.len();
        let before = rows.start.checked_sub(1).and_then(|before| self.events.get(before));
        let after =
            before.map_or_else(|| self.at.after.clone(), |event| Some(event.cursor.clone()));
        let at = Position { after, ..self.at.clone() };
        let is_within = |diverted: &&Diverted| {
            rows.start <= diverted.before && (is_end || diverted.before < rows.end)
        };
        let diverted = self.diverted.iter().filter(is_within);
        let diverted =
            diverted.map(|row| Diverted { before: row.before - rows.start, ..row.clone() });
        let diverted = diverted.collect();
        let events = self.events.part(rows).filter(|events| !events.is_empty())?;
        let upto = if is_end { self.upto.clone() } else { events.last()?.cursor.clone() };
        let part = Self::upto(poller, at, upto, events, self.more || !is_end, self.lag);
        // The new state of the source belongs to the last row.
        let remember = self.remember.clone().filter(|_| is_end);
        Some(Self { diverted, remember, origin: self.origin, ..part })
    }

    /// Returns these rows and those of `next` as one batch.
    fn joined(&self, poller: &str, next: &Self) -> Self {
        let events = self.events.joined(&next.events);
        let (at, upto) = (self.at.clone(), next.upto.clone());
        let joined = Self::upto(poller, at, upto, events, next.more, self.lag);
        let events_before = self.events.len();
        let of_next = next.diverted.iter();
        let of_next =
            of_next.map(|row| Diverted { before: row.before + events_before, ..row.clone() });
        let diverted = self.diverted.iter().cloned().chain(of_next).collect();
        Self { diverted, remember: next.remember.clone(), origin: self.origin, ..joined }
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

    /// Whether a process crashed while exactly these rows were in flight, a single one.
    pub(super) fn crashed_alone(&self) -> bool {
        self.crashed_with.as_ref() == Some(&self.id)
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
            failed_step: tried.failed_step,
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

    /// Returns the ids of the rows after a checkpoint, delivered or diverted. Rows that the handler accepted early may be
    /// committed already.
    pub(super) fn ids_after(&self, checkpoint: Option<&Cursor>) -> impl Iterator<Item = &EventId> {
        let committed = self.events.iter().position(|event| Some(&event.cursor) == checkpoint);
        let first = committed.map_or(0, |last| last + 1);
        let diverted = self.diverted.iter().filter(move |diverted| diverted.before >= first);
        let events = self.events.get(first..).unwrap_or_default().iter();
        events.chain(diverted.map(|diverted| &diverted.event)).map(|event| &event.id)
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
    /// Whether the entries of parked keys have the diverted rows of the fetch.
    is_diverted: bool,
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
        // The tokens of the grants for one batch may all be even.
        let seed = seed_of(lease.token().0);
        let isolation = Isolation::new(poller.policy, halving, rows, rows_after, seed);
        let read = Arc::new(*read);
        Self {
            batch: Arc::clone(&read),
            read,
            isolation,
            settlement: Settlement::Accepted,
            remember: None,
            is_diverted: false,
        }
    }

    /// Returns the rows of the fetch that are to be diverted, if that was not done yet.
    pub(super) fn take_undiverted(&mut self) -> Option<Arc<Batch>> {
        let is_done = std::mem::replace(&mut self.is_diverted, true);
        (!is_done && !self.read.diverted.is_empty()).then(|| Arc::clone(&self.read))
    }

    /// Returns all rows of the fetch that are delivered.
    pub(super) fn fetched(&self) -> impl Iterator<Item = &ChangeEvent> {
        self.read.events.iter()
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
        self.read = Arc::new(self.read.joined(&poller.name, next));
        // Diverted rows after the current ones now belong to the appended ones.
        if let Some(part) = self.read.part(&poller.name, self.isolation.rows()) {
            self.batch = Arc::new(part);
        }
    }

    /// Returns the rows that wait after the settled ones, as work of their own; `None` if there are none.
    pub(super) fn next(&mut self, poller: &Poller) -> Option<Self> {
        let mut isolation = self.isolation.clone();
        if !isolation.start_waiting() {
            return None;
        }
        let read = Arc::clone(&self.read);
        let batch = Arc::new(read.part(&poller.name, isolation.rows())?);
        let (settlement, is_diverted) = (Settlement::Accepted, self.is_diverted);
        Some(Self { batch, read, isolation, settlement, remember: None, is_diverted })
    }

    /// Returns how many of the current rows a handler accepted.
    pub(super) fn rows_accepted(&self) -> u64 {
        match self.settlement {
            Settlement::Accepted => self.batch.rows(),
            Settlement::Parked | Settlement::Diverted => 0,
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

    /// Returns the position after all rows of the fetch, and the state of the source for the next one.
    pub(super) fn end_of_fetch(&self, document: &StateDocument) -> (Position, SourceState) {
        let position = Position::under(document, Some(self.read.upto.clone()));
        let remember = self.remember.clone().or_else(|| self.read.remember.clone());
        (position, remember.unwrap_or_else(|| document.source_state.clone()))
    }

    /// Returns the position after the current rows, and the state of the source for the next fetch.
    pub(super) fn end(&self, document: &StateDocument) -> (Position, SourceState) {
        let position = Position::under(document, Some(self.batch.upto.clone()));
        // The state that comes with the current batch is not written yet, but the next fetch depends on it.
        let state = self.remember().unwrap_or_else(|| document.source_state.clone());
        (position, state)
    }
}
