//! Delivering a part of a poller's past again, beside the poller.
//!
//! It is a poller like any other, with a document, a lease and a fence of its own; what differs is that
//! its document says where it ends, and that the rows keep the ids they have as rows of the poller. The
//! poller's own document is only read, so whatever becomes of a range, its checkpoint does not move.

mod plan;

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

pub use self::plan::RangeSize;
use super::batch::Batch;
use super::{
    LoadError, Poller, Skipped, StopSignal, TickError, TickOutcome, TickReport, TickRequest,
};
use crate::cursor::Cursor;
use crate::error::chain;
use crate::event::Digested;
use crate::handler::{Beside, HandlerError, Reread};
use crate::lease::Snapshot;
use crate::normalize::normalize;
use crate::source::{FetchError, FetchWindow};
use crate::state::{LeaseAge, Precondition, RangeRecord, StateDocument, StoreError, encode};

/// How often a change of the document is tried, where others write too.
const TRIES_MAX: u32 = 6;
/// So many ticks in a row that fail and deliver nothing end a range, beyond those that a failure policy
/// counts: whoever asked for it can ask again.
const FAILURES_MAX: u32 = 5;
/// Longest pause before a document that backs off is looked at again.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// First pause after a tick that failed; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// How often a stop is looked for during a pause.
const STOP_INTERVAL: Duration = Duration::from_millis(200);

/// What became of a request to begin a range.
#[derive(Clone, Debug, PartialEq)]
pub enum RangeBegun {
    /// Its document was made.
    Begun,
    /// It has a document, which stays as it is.
    BegunBefore(Box<RangeRecord>),
}

/// How the delivery of a range ended.
#[derive(Clone, Debug, PartialEq)]
pub enum RangeEnd {
    /// Nothing is left of it.
    Done,
    /// It was asked to stop.
    Stopped,
    /// Somebody has given the range up.
    Cancelled,
    /// Another process delivers it.
    Held {
        /// Which.
        owner_id: String,
    },
    /// It was paused, by its failure policy or because the target is gone.
    Paused {
        /// By whom.
        by: String,
        /// Why.
        reason: String,
    },
}

impl Poller {
    /// Makes it one that delivers again what `poller` has delivered: rows that are set aside belong to
    /// that one, and no tick begins without a document that [`Self::begin_range`] made.
    #[must_use]
    pub fn again_for(self, poller: &str) -> Self {
        Self { range_of: Some(poller.to_owned()), start_now: true, ..self }
    }

    /// Returns the name of the poller whose rows these are.
    pub(super) fn of(&self) -> &str {
        self.range_of.as_deref().unwrap_or(&self.name)
    }

    /// Returns the committed position of a poller, which is only read; `None` before the first commit.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read its state or open its source.
    pub async fn checkpoint(&self) -> Result<Option<Cursor>, TickError> {
        Ok(self.read().await?.into_document().checkpoint.cursor)
    }

    /// Returns what is stored of the range; `None` where it was not begun.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read its state or open its source.
    pub async fn range(&self) -> Result<Option<RangeRecord>, TickError> {
        let found = self.look().await?;
        self.same_source(&found.document)?;
        Ok(found.into_document().range)
    }

    /// Makes the document of a range, unless there is one.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read or write its state.
    pub async fn begin_range(
        &self,
        range: &RangeRecord,
        replay_id: &str,
    ) -> Result<RangeBegun, TickError> {
        for _ in 0..TRIES_MAX {
            let blank = self.look().await?;
            if let Some(range) = &blank.document.range {
                return Ok(RangeBegun::BegunBefore(Box::new(range.clone())));
            }
            // As with a first grant: what is created is blank, and begins under its tag.
            let Some(etag) = blank.etag.clone() else {
                self.create_blank().await?;
                continue;
            };
            let begun_at = blank.now();
            let range = RangeRecord { begun_at, ..range.clone() };
            let mut document = self.begun(blank, None).document.of_range(range, replay_id);
            document.write_id = self.instance.next_write_id();
            let precondition = Precondition::Matches(etag);
            match self.store.store(&self.key, encode(&document), precondition).await {
                Ok(_) => return Ok(RangeBegun::Begun),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(LoadError::Store(error).into()),
            }
        }
        Err(self.not_started())
    }

    /// Marks the range as delivered; of one with windows whoever has seen that all of them are.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read or write its state.
    pub async fn end_range(&self) -> Result<(), TickError> {
        self.change_range(|base, age| base.document.end_range(base.now(), age)).await
    }

    /// Gives the range up: whoever delivers it stops after the batch in hand.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read or write its state.
    pub async fn cancel_range(&self) -> Result<(), TickError> {
        self.change_range(|base, age| base.document.cancel_range(base.now(), age)).await
    }

    /// Delivers the range until nothing is left of it, and marks it so; `told` is told of each tick.
    ///
    /// It goes on where it stopped, in whatever process that was.
    ///
    /// # Errors
    ///
    /// The last [`TickError`], where several ticks in a row failed or another one would be in vain.
    pub async fn deliver_range(
        &self,
        stop: &StopSignal,
        told: &mut (dyn FnMut(&TickReport) + Send),
    ) -> Result<RangeEnd, TickError> {
        let request = TickRequest { stop: stop.clone(), ..TickRequest::default() };
        let failures_max = self.policy.attempts_max.saturating_add(FAILURES_MAX);
        let (mut failures, mut pause) = (0, PAUSE_MIN);
        loop {
            match self.range().await? {
                None => return Err(self.not_started()),
                Some(range) if range.cancelled_at.is_some() => return Ok(RangeEnd::Cancelled),
                Some(range) if range.done_at.is_some() => return Ok(RangeEnd::Done),
                Some(_) if stop.is_set() => return Ok(RangeEnd::Stopped),
                Some(_) => {}
            }
            let report = self.tick(&request).await;
            told(&report);
            if report.rows > 0 {
                (failures, pause) = (0, PAUSE_MIN);
            }
            match report.result {
                // Only a read that finds nothing says that nothing is left.
                Ok(TickOutcome::Idle) => self.end_range().await?,
                Ok(TickOutcome::Skipped(Skipped::Held { owner_id, .. })) => {
                    return Ok(RangeEnd::Held { owner_id });
                }
                Ok(TickOutcome::Skipped(Skipped::AlreadyRunning | Skipped::Conflict)) => {
                    rest(PAUSE_MIN, stop).await;
                }
                Ok(TickOutcome::Paused { by, reason, .. }) => {
                    return Ok(RangeEnd::Paused { by, reason });
                }
                Ok(TickOutcome::BackingOff { until, .. }) => {
                    let wait = Duration::try_from(until - self.read().await?.now());
                    rest(wait.unwrap_or_default().clamp(STOP_INTERVAL, PAUSE_MAX), stop).await;
                }
                Err(TickError::Aborted) => return Ok(RangeEnd::Stopped),
                Err(error) if is_in_vain(&error) => return Err(error),
                Ok(TickOutcome::Committed { .. })
                | Err(TickError::Handler(HandlerError::Throttled { .. })) => {}
                Err(error) => {
                    failures += 1;
                    if failures >= failures_max {
                        return Err(error);
                    }
                    rest(pause, stop).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Returns what can read the rows of `batch` once more.
    pub(super) fn reread<'a>(&'a self, batch: &'a Batch) -> RowsOf<'a> {
        RowsOf { poller: self, batch }
    }

    /// Returns what a handler is told of the poller that goes on meanwhile.
    pub(super) fn beside<'a>(&'a self, rows: &'a RowsOf<'a>) -> Option<Beside<'a>> {
        self.range_of.as_deref().map(|poller| Beside { poller, rows })
    }

    fn same_source(&self, document: &StateDocument) -> Result<(), TickError> {
        if document.source_fingerprint == self.source.shape().fingerprint {
            return Ok(());
        }
        Err(self.other_source(document))
    }

    async fn change_range(
        &self,
        change: impl Fn(&Snapshot, LeaseAge) -> StateDocument,
    ) -> Result<(), TickError> {
        let mut last = StoreError::Conflict { key: self.key.path() };
        for _ in 0..TRIES_MAX {
            let base = self.look().await?;
            let Some(etag) = base.etag.clone() else { return Err(self.not_started()) };
            let mut next = change(&base, base.age(self.store.grain()));
            if next.range == base.document.range {
                return Ok(());
            }
            next.write_id = self.instance.next_write_id();
            match self.store.store(&self.key, encode(&next), Precondition::Matches(etag)).await {
                Ok(_) => return Ok(()),
                // What the write made of it is what the next read shows.
                Err(error @ (StoreError::Conflict { .. } | StoreError::Unknown { .. })) => {
                    last = error;
                }
                Err(error) => return Err(LoadError::Store(error).into()),
            }
        }
        Err(LoadError::Store(last).into())
    }
}

/// Whether no further tick would do better before somebody has mended something.
fn is_in_vain(error: &TickError) -> bool {
    match error {
        TickError::Fingerprint { .. }
        | TickError::Divided { .. }
        | TickError::StateVanished { .. }
        | TickError::NotStarted { .. }
        | TickError::FirstRunElsewhere { .. }
        | TickError::DividedElsewhere { .. }
        | TickError::Load(LoadError::Format(_))
        | TickError::Normalize(_)
        | TickError::FenceAhead { .. }
        | TickError::Handler(HandlerError::Misconfigured(_)) => true,
        TickError::Fetch(error) => error.position_lost || error.schema_changed,
        TickError::Load(LoadError::Store(error)) => matches!(error, StoreError::Refused { .. }),
        TickError::Acquire(_)
        | TickError::Handler(_)
        | TickError::OutOfTime
        | TickError::Aborted
        | TickError::LeaseLost(_)
        | TickError::Commit(_) => false,
    }
}

/// Waits, but not on after a stop.
pub(super) async fn rest(mut left: Duration, stop: &StopSignal) {
    while !left.is_zero() && !stop.is_set() {
        let part = left.min(STOP_INTERVAL);
        sleep(part).await;
        left -= part;
    }
}

/// The rows of a batch of a range, as their source has them.
#[derive(Debug)]
pub(super) struct RowsOf<'a> {
    poller: &'a Poller,
    batch: &'a Batch,
}

#[async_trait]
impl Reread for RowsOf<'_> {
    async fn are_unchanged(&self) -> Result<bool, HandlerError> {
        let (source, batch) = (&self.poller.source, self.batch);
        let window = FetchWindow {
            after: batch.after.as_ref(),
            upto: Some(&batch.upto),
            rows_max: batch.events.len(),
            state: &serde_json::Map::new(),
        };
        let unread = |reason: String| HandlerError::Throttled { reason, retry_after: None };
        let of_fetch = |error: FetchError| {
            unread(format!("the rows could not be read once more: {}", chain(&error)))
        };
        let rows = source.fetch_at_once(window).await.map_err(of_fetch)?;
        let events = normalize(source.shape(), &rows);
        let events = events.map_err(|error| unread(chain(&error)))?;
        Ok(!rows.more && Digested::of(&events) == batch.digest)
    }
}
