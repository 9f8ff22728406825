//! Redelivers a range of a poller's past, alongside the poller.
//!
//! A range is a poller like any other, with its own document, lease and fence. The differences: its document says
//! where it ends, and its rows keep the ids that they have as rows of the poller. The poller's own document is only
//! read, so whatever happens to a range, the poller's checkpoint does not move.

mod plan;

use std::time::Duration;

pub use self::plan::RangeSize;
use super::pause::CHANGE_TIME_MAX;
use crate::admin::Admin;
use crate::backoff::{Backoff, seed_of};
use crate::cursor::Cursor;
use crate::document::{DocumentAge, LoadError, RangeRecord, Snapshot, StateDocument};
use crate::handler::HandlerError;
use crate::poller::stop_signal::STOP_INTERVAL;
use crate::poller::{Skipped, StopSignal, TickError, TickOutcome};
use crate::store::StoreError;
use crate::tick::{TickReport, TickRequest};

/// Consecutive ticks that fail without delivering anything before the delivery of a range ends, in addition to those
/// that a failure policy counts. The operator can run the command again.
const FAILURES_MAX: u32 = 5;
/// Longest pause before a document that is backing off is read again.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Pause while another tick runs.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Delays after failed ticks.
const DELAYS: Backoff = Backoff { first: PAUSE_MIN, max: PAUSE_MAX };

/// Result of starting a range.
#[derive(Clone, Debug, PartialEq)]
pub enum RangeStart {
    /// Its document was created.
    Started,
    /// It already has a document, which is unchanged.
    AlreadyStarted(Box<RangeRecord>),
}

/// How the delivery of a range ended.
#[derive(Clone, Debug, PartialEq)]
pub enum RangeEnd {
    /// Nothing is left of it.
    Done,
    /// It was stopped on request.
    Stopped,
    /// The range was cancelled.
    Cancelled,
    /// Another process is delivering it.
    Held {
        /// That process.
        owner_id: String,
    },
    /// It was paused by its failure policy, or because the target is gone.
    Paused {
        /// By whom.
        by: String,
        /// Why.
        reason: String,
    },
}

impl Admin<'_> {
    /// Returns the committed position of a poller, which is only read; `None` before the first commit.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read its state or open its source.
    pub async fn checkpoint(self) -> Result<Option<Cursor>, TickError> {
        Ok(self.poller.read().await?.into_document().checkpoint.cursor)
    }

    /// Returns the stored record of the range; `None` if it was not started.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read its state or open its source.
    pub async fn range(self) -> Result<Option<RangeRecord>, TickError> {
        let found = self.poller.look().await?;
        self.same_source(&found.document)?;
        Ok(found.into_document().range)
    }

    /// Creates the document of a range, unless it exists.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read or write its state.
    pub async fn begin_range(
        self,
        range: &RangeRecord,
        replay_id: &str,
    ) -> Result<RangeStart, TickError> {
        // Opens the source, because the document needs its fingerprint.
        self.poller.look().await?;
        let mut changing = self.poller.documents(CHANGE_TIME_MAX).change();
        loop {
            let base = changing.read(|| self.poller.blank()).await?;
            if let Some(range) = &base.document.range {
                return Ok(RangeStart::AlreadyStarted(Box::new(range.clone())));
            }
            let range = RangeRecord { begun_at: base.now(), ..range.clone() };
            let begun = self.poller.started(base.clone(), None);
            let mut next = Box::new(begun.document.of_range(range, replay_id));
            next.write_id = self.poller.instance.next_write_id();
            if changing.write(&base, next).await?.is_some() {
                return Ok(RangeStart::Started);
            }
        }
    }

    /// Marks the range as delivered; with windows, after all of them are.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read or write its state.
    pub async fn end_range(self) -> Result<(), TickError> {
        self.change_range(|base, age| base.document.end_range(base.now(), age)).await
    }

    /// Cancels the range: its delivery stops after the batch in flight.
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that cannot read or write its state.
    pub async fn cancel_range(self) -> Result<(), TickError> {
        self.change_range(|base, age| base.document.cancel_range(base.now(), age)).await
    }

    /// Delivers the whole range and marks it as done; calls `on_report` after each tick.
    ///
    /// It continues where it stopped, in whichever process that was.
    ///
    /// # Errors
    ///
    /// The last [`TickError`], if several ticks failed in a row or a retry cannot help.
    pub async fn deliver_range(
        self,
        stop: &StopSignal,
        on_report: &mut (dyn FnMut(&TickReport) + Send),
    ) -> Result<RangeEnd, TickError> {
        let request = TickRequest { stop: stop.clone(), ..TickRequest::default() };
        let failures_max = self.poller.policy.attempts_max.saturating_add(FAILURES_MAX);
        let mut failures = 0;
        loop {
            match self.range().await? {
                None => return Err(self.poller.not_started()),
                Some(range) if range.cancelled_at.is_some() => return Ok(RangeEnd::Cancelled),
                Some(range) if range.done_at.is_some() => return Ok(RangeEnd::Done),
                Some(_) if stop.is_set() => return Ok(RangeEnd::Stopped),
                Some(_) => {}
            }
            let report = self.poller.tick(&request).await;
            on_report(&report);
            if report.rows > 0 {
                failures = 0;
            }
            match report.result {
                // Only a read that finds nothing proves that nothing is left.
                Ok(TickOutcome::Idle) => self.end_range().await?,
                Ok(TickOutcome::Skipped(Skipped::Held { owner_id, .. })) => {
                    return Ok(RangeEnd::Held { owner_id });
                }
                Ok(TickOutcome::Skipped(Skipped::AlreadyRunning | Skipped::Conflict)) => {
                    stop.rest(PAUSE_MIN).await;
                }
                Ok(TickOutcome::Paused { by, reason, .. }) => {
                    return Ok(RangeEnd::Paused { by, reason });
                }
                Ok(TickOutcome::BackingOff { until, .. }) => {
                    let wait = Duration::try_from(until - self.poller.read().await?.now());
                    stop.rest(wait.unwrap_or_default().clamp(STOP_INTERVAL, PAUSE_MAX)).await;
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
                    stop.rest(DELAYS.delay(failures, seed_of(&self.poller.name))).await;
                }
            }
        }
    }

    fn same_source(self, document: &StateDocument) -> Result<(), TickError> {
        if document.source_fingerprint == self.poller.source.shape().fingerprint {
            return Ok(());
        }
        Err(self.poller.other_source(document))
    }

    async fn change_range(
        self,
        change: impl Fn(&Snapshot, DocumentAge) -> StateDocument,
    ) -> Result<(), TickError> {
        let mut changing = self.poller.documents(CHANGE_TIME_MAX).change();
        loop {
            let base = changing.read(|| self.poller.blank()).await?;
            if base.etag.is_none() {
                return Err(self.poller.not_started());
            }
            let mut next = Box::new(change(&base, base.age(self.poller.store.grain())));
            if next.range == base.document.range {
                return Ok(());
            }
            next.write_id = self.poller.instance.next_write_id();
            if changing.write(&base, next).await?.is_some() {
                return Ok(());
            }
        }
    }
}

/// Whether every further tick fails until an operator fixes something.
fn is_in_vain(error: &TickError) -> bool {
    match error {
        TickError::Fingerprint { .. }
        | TickError::OtherPartitionCount { .. }
        | TickError::StateVanished { .. }
        | TickError::NotStarted { .. }
        | TickError::FirstRunElsewhere { .. }
        | TickError::OtherPartitionCountElsewhere { .. }
        | TickError::Load(LoadError::Format(_))
        | TickError::Entry(_)
        | TickError::Normalize(_)
        | TickError::FenceAhead { .. }
        | TickError::Handler(HandlerError::Misconfigured(_)) => true,
        TickError::Fetch(error) => error.is_position_lost() || error.schema_changed,
        TickError::Load(LoadError::Store(error)) => matches!(error, StoreError::Refused { .. }),
        TickError::Acquire(_)
        | TickError::Handler(_)
        | TickError::OutOfTime
        | TickError::Aborted
        | TickError::LeaseLost(_)
        | TickError::Commit(_) => false,
    }
}
