//! Ends without a commit: recording that the handler failed, and releasing the lease.

use super::LeasedTick;
use super::batch::Batch;
use super::call::HandlerFailure;
use crate::backoff::{Backoff, seed_of};
use crate::cursor::Cursor;
use crate::document::{AfterCommit, Commit, EndOfTick, Failure, Paused, StaleWrite, StateDocument};
use crate::error::chain;
use crate::event::counted;
use crate::handler::HandlerError;
use crate::lease::LeaseError;
use crate::policy::Blame;
use crate::poller::tick_history::handler_failure_kind;
use crate::poller::{Poller, TickError};
use crate::status::health::BREAKER_TEXT;

/// Why a single row fails that is too large for the target.
const SINGLE_ROW: &str = "a single row exceeds the target's size limit and cannot be split further: raise the limit, \
                          or exclude columns";

/// The first current rows, which were accepted, and their commit.
struct Front {
    rows: Batch,
    /// The checkpoint before it.
    before: Option<Cursor>,
    commit: Commit,
    tick: EndOfTick,
}

impl LeasedTick<'_, '_> {
    /// Records why the handler did not accept the current rows, and releases the lease; `pause` also pauses the
    /// poller.
    ///
    /// If the write fails, that is logged; the next tick delivers the rows again either way.
    pub(super) async fn record_failure(&mut self, failure: &HandlerFailure, pause: Option<Paused>) {
        let tick = self.report.end_of_tick("handler_failed", None, &self.lease);
        let mut stopped = pause.clone().map(|paused| ("on_failure_stop", paused));
        let written = match &failure.error {
            HandlerError::Gone(reason) => {
                let paused = Paused {
                    by: Paused::by_handler_of(&self.poller.name),
                    reason: reason.clone(),
                    at: self.lease.now(),
                    extra: serde_json::Map::new(),
                };
                stopped = Some(("target_gone", paused.clone()));
                self.commit_front_and_pause(failure.front(), tick, paused).await
            }
            // A newer holder has written the target, so this one writes nothing more.
            HandlerError::Fenced(_) => return,
            HandlerError::Partial { .. }
            | HandlerError::Retryable(_)
            | HandlerError::Throttled { .. }
            | HandlerError::Rejected(_)
            | HandlerError::TooLarge(_)
            | HandlerError::Stalled(_)
            | HandlerError::Misconfigured(_) => {
                self.commit_front_and_fail(failure, pause, tick).await
            }
        };
        match written {
            Ok(()) => {
                self.report.note_failure_recorded();
                if let Some((kind, paused)) = stopped {
                    self.report.paused_by_rule(kind, &paused);
                }
            }
            Err(error) => {
                // If the pause was written, later ticks only find the poller paused, so none of them reports it.
                if let Some((kind, paused)) = stopped
                    && error.is_outcome_unknown()
                {
                    self.report.paused_by_rule(kind, &paused);
                }
                self.report.front_committed(&self.work.batch, self.lease.document());
                self.report.could_not_release(&error);
            }
        }
    }

    /// Commits the current rows that were accepted before the failure, and records the failure of the rest.
    async fn commit_front_and_fail(
        &mut self,
        failure: &HandlerFailure,
        pause: Option<Paused>,
        tick: EndOfTick,
    ) -> Result<(), LeaseError> {
        let Some(front) = self.front(failure.front(), tick.clone()) else {
            return self.fail(failure, pause, tick).await;
        };
        let failure = Failure { pause, ..self.failure(failure, 0, front.tick.clone()) };
        self.lease.commit_prefix(front.commit.clone(), failure).await?;
        self.front_committed(&front);
        Ok(())
    }

    /// Commits the first `rows` current rows, and pauses the poller before the rest.
    async fn commit_front_and_pause(
        &mut self,
        rows: usize,
        tick: EndOfTick,
        pause: Paused,
    ) -> Result<(), LeaseError> {
        let Some(front) = self.front(rows, tick.clone()) else {
            return self.lease.release(Some(tick), Some(pause)).await;
        };
        self.lease.commit_prefix_and_pause(front.commit.clone(), front.tick.clone(), pause).await?;
        self.front_committed(&front);
        Ok(())
    }

    /// Returns the commit of the first `rows` current rows, in which the rest stays in flight; `None` if either part would
    /// be empty.
    fn front(&self, rows: usize, mut tick: EndOfTick) -> Option<Front> {
        let (poller, batch) = (self.poller, &self.work.batch);
        let front = batch.part(&poller.name, 0..rows)?;
        let rest = batch.part(&poller.name, rows..batch.events.len())?;
        let then = AfterCommit::Announce(Box::new(rest.in_flight()));
        let document = self.lease.expected();
        let before = document.checkpoint.cursor.clone();
        let commit = poller.commit_of(&front, front.rows(), document, self.lease.now(), then);
        tick.recent.rows += commit.rows;
        tick.recent.batches += 1;
        Some(Front { rows: front, before, commit, tick })
    }

    /// Notes that the commit of a front has landed.
    fn front_committed(&mut self, front: &Front) {
        self.poller.keep_ids(&front.rows, front.before.as_ref());
        self.report.prefix_committed(&front.rows);
    }

    async fn fail(
        &mut self,
        failure: &HandlerFailure,
        pause: Option<Paused>,
        tick: EndOfTick,
    ) -> Result<(), LeaseError> {
        // Once the front of these rows is committed, the document describes the rest of them.
        let checkpoint = &self.lease.expected().checkpoint.cursor;
        let starts_here = self.work.batch.is_late() || self.work.batch.at.after == *checkpoint;
        let is_suspected = self.work.isolation.is_suspected() && starts_here;
        let narrowed = is_suspected.then(|| Box::new(self.work.in_flight()));
        let in_flight = narrowed.as_deref().or(self.lease.expected().in_flight.as_ref());
        let earlier = in_flight.map_or(0, |batch| batch.attempt);
        let failure = self.failure(failure, earlier, tick);
        self.lease.fail(Failure { narrowed, pause, ..failure }).await
    }

    fn failure(&self, failure: &HandlerFailure, earlier: u32, tick: EndOfTick) -> Failure {
        let HandlerFailure { error, step, accepted: _ } = failure;
        let counted =
            !matches!(error, HandlerError::Throttled { .. } | HandlerError::Misconfigured(_));
        let limits = &self.poller.limits;
        let asked = error.retry_after();
        let (first, max) = (limits.retry_delay_min, limits.retry_delay_max);
        let seed = seed_of((&self.poller.name, self.work.batch.id.as_str()));
        let backoff = Backoff { first, max }.delay(earlier.saturating_add(1), seed);
        let delay = match asked {
            Some(asked) => asked.min(limits.retry_after_max),
            // The setting names a minimum, so jitter starts with the second failure.
            None => backoff.max(first).min(max),
        };
        let in_a_row = self.lease.expected().quarantined_in_a_row;
        let text = match asked.filter(|asked| *asked > delay) {
            Some(asked) => format!(
                "{}; it asked for a pause of {} s, and gets {} s (`RETRY_AFTER_MAX`)",
                chain(error),
                asked.as_secs(),
                delay.as_secs()
            ),
            None if self.poller.policy.breaker_is_open(in_a_row) => {
                format!("{}; {}", chain(error), breaker_text(in_a_row))
            }
            None => chain(error),
        };
        let now = self.lease.now();
        Failure {
            error: text,
            step: step.clone(),
            kind: handler_failure_kind(error),
            counted,
            next_attempt_at: Some(now + delay),
            now,
            tick: Some(tick),
            narrowed: None,
            pause: None,
        }
    }

    /// Returns the pause with which the policy `stop` ends a tick.
    pub(super) fn stop_pause(&self, failure: &HandlerFailure) -> Paused {
        let rows = self.work.batch.events.get(failure.front()..).unwrap_or_default();
        let error = &failure.error;
        Paused {
            by: Paused::by_policy_of(&self.poller.name),
            reason: format!(
                "{} from `{}` on failed: {}",
                counted(u64::try_from(rows.len()).unwrap_or(u64::MAX), "row"),
                rows.first().map_or("", |event| event.cursor.value.as_str()),
                chain(error)
            ),
            at: self.lease.now(),
            extra: serde_json::Map::new(),
        }
    }

    /// Finds out why the target rejected this grant. Usually a newer owner is at work. If the state document knows
    /// of none, it is an older copy: the lease is released and the target's fence is kept, so that no later tick
    /// takes another grant. Its tokens would catch up with the target's, and a copy would then replace the live
    /// owner.
    pub(super) async fn fenced(&mut self, refused: StaleWrite) -> TickError {
        // A failed read proves nothing, and a newer owner is the usual case.
        if !self.lease.is_newest_grant().await.unwrap_or(false) {
            return TickError::Handler(refused.into());
        }
        let tick = self.report.end_of_tick("fence_ahead", None, &self.lease);
        if let Err(error) = self.lease.release_refused(refused.current, Some(tick)).await {
            self.report.could_not_release(&error);
        }
        self.poller.fence_ahead(refused)
    }

    /// Releases the lease. If that fails, it is logged, and the lease lapses by itself.
    pub(super) async fn release(&mut self) {
        let tick = self.report.end_of_tick("tick_complete", None, &self.lease);
        if let Err(error) = self.lease.release(Some(tick), None).await {
            self.report.could_not_release(&error);
        }
    }
}

impl Poller {
    /// Fails if the target has rejected the newest grant of `document`. Another grant would come closer to the
    /// target's fence, which only an operator may pass.
    pub(super) fn refuse_fence_ahead(&self, document: &StateDocument) -> Result<(), TickError> {
        document.fence_ahead().map_or(Ok(()), |refused| Err(self.fence_ahead(refused)))
    }

    pub(crate) fn fence_ahead(&self, refused: StaleWrite) -> TickError {
        let StaleWrite { stale, current } = refused;
        TickError::FenceAhead { poller: self.name.clone(), stale, current }
    }
}

/// Says why rows that are rejected permanently are not parked.
pub(crate) fn breaker_text(quarantined_in_a_row: u32) -> String {
    let rows = match quarantined_in_a_row {
        1 => "the last row was parked".to_owned(),
        rows => format!("{rows} rows in a row were parked"),
    };
    format!(
        "{rows}, {BREAKER_TEXT} (`BREAKER_ROWS`): no further row is parked until it accepts one"
    )
}

/// A single row that is too large is rejected permanently.
pub(crate) fn reject_if_single_row(error: HandlerError, rows: usize) -> HandlerError {
    if let HandlerError::TooLarge(reason) = &error
        && rows <= 1
    {
        return HandlerError::Rejected(format!("{reason}; {SINGLE_ROW}"));
    }
    error
}

/// Returns what an error blames.
pub(crate) fn blame(error: &HandlerError) -> Blame {
    match error {
        HandlerError::Rejected(_) => Blame::Rows,
        HandlerError::Partial { accepted: 0, .. } => Blame::FirstRow,
        HandlerError::Retryable(_) | HandlerError::Stalled(_) | HandlerError::TooLarge(_) => {
            Blame::Unknown
        }
        HandlerError::Throttled { .. }
        | HandlerError::Misconfigured(_)
        | HandlerError::Gone(_)
        | HandlerError::Fenced(_)
        // The handler made progress: the accepted rows are committed, and attempts are counted from the start.
        | HandlerError::Partial { .. } => Blame::Target,
    }
}
