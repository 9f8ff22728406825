//! Ends without a commit: writing down that a handler did not take a batch, giving the lease up.

use super::batch::Batch;
use super::observe::Observation;
use super::{Poller, TickError};
use crate::error::chain;
use crate::handler::HandlerError;
use crate::lease::{Lease, LeaseError};
use crate::state::{AfterCommit, EndOfTick, Failure, Paused, StaleWrite, StateDocument};

impl Poller {
    /// Records why the handler did not take the batch, and gives the lease up; `pause` keeps the
    /// poller from trying again.
    ///
    /// What cannot be recorded is logged: the next tick delivers the batch again all the same.
    pub(super) async fn write_down(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        (error, pause): (&HandlerError, Option<Paused>),
        seen: &mut Observation<'_>,
    ) {
        let mut tick = seen.end_of_tick("handler_failed", None, lease);
        let written = match error {
            HandlerError::Gone(reason) => {
                let paused = Paused {
                    by: Paused::by_handler_of(&self.name),
                    reason: reason.clone(),
                    at: lease.now(),
                    extra: serde_json::Map::new(),
                };
                lease.release(Some(tick), Some(paused)).await
            }
            // A newer holder has written the target: nothing is written any more.
            HandlerError::Fenced(_) => return,
            HandlerError::Partial { accepted, .. } if pause.is_none() => {
                match batch.split(&self.name, lease, *accepted) {
                    Some((front, rest)) => {
                        let then = AfterCommit::Handle(Box::new(rest.in_flight()));
                        let before = lease.document().checkpoint.cursor.clone();
                        let commit = self.commit_of(&front, lease.document(), lease.now(), then);
                        let rows = commit.rows;
                        tick.recent.rows += rows;
                        tick.recent.batches += 1;
                        let failure = self.failure(lease, error, 0, tick);
                        let written = lease.commit_prefix(commit, failure).await;
                        if written.is_ok() {
                            self.keep_ids(&front, before.as_ref());
                            seen.prefix_committed(&front);
                        }
                        written
                    }
                    None => self.fail(lease, batch, (error, pause), tick).await,
                }
            }
            HandlerError::Partial { .. }
            | HandlerError::Retryable(_)
            | HandlerError::Throttled { .. }
            | HandlerError::Rejected(_)
            | HandlerError::TooLarge(_)
            | HandlerError::Stalled(_)
            | HandlerError::Misconfigured(_) => self.fail(lease, batch, (error, pause), tick).await,
        };
        if let Err(error) = written {
            seen.front_committed(batch, lease.document());
            seen.could_not_release(&error);
        }
    }

    /// Finds out why a target refused this grant. Most of the time a newer owner is at work. Where the state
    /// document knows of none, it is an older copy: the lease is released, and the target's fence kept, so that
    /// no later tick takes another grant. Their tokens would catch up with the target's, and a copy would then
    /// replace the live owner.
    pub(super) async fn fenced(
        &self,
        lease: &mut Lease<'_>,
        refused: StaleWrite,
        seen: &mut Observation<'_>,
    ) -> TickError {
        // Whatever cannot be read proves nothing, and a newer owner is the usual case.
        if !lease.is_newest_grant().await.unwrap_or(false) {
            return TickError::Handler(refused.into());
        }
        let tick = seen.end_of_tick("fence_ahead", None, lease);
        if let Err(error) = lease.release_refused(refused.current, Some(tick)).await {
            seen.could_not_release(&error);
        }
        self.fence_ahead(refused)
    }

    /// Fails if the target has refused the newest grant of `document`: the next one would come closer to its
    /// fence, and only an operator may pass that.
    pub(super) fn refuse_fence_ahead(&self, document: &StateDocument) -> Result<(), TickError> {
        document.fence_ahead().map_or(Ok(()), |refused| Err(self.fence_ahead(refused)))
    }

    pub(super) fn fence_ahead(&self, refused: StaleWrite) -> TickError {
        let StaleWrite { stale, current } = refused;
        TickError::FenceAhead { poller: self.name.clone(), stale, current }
    }

    async fn fail(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        (error, pause): (&HandlerError, Option<Paused>),
        tick: EndOfTick,
    ) -> Result<(), LeaseError> {
        let narrowed = batch.suspicion.as_ref().map(|_| Box::new(batch.in_flight()));
        let in_flight = narrowed.as_deref().or(lease.document().in_flight.as_ref());
        let earlier = in_flight.map_or(0, |batch| batch.attempt);
        let failure = self.failure(lease, error, earlier, tick);
        lease.fail(Failure { narrowed, pause, ..failure }).await
    }

    fn failure(
        &self,
        lease: &Lease<'_>,
        error: &HandlerError,
        earlier: u32,
        tick: EndOfTick,
    ) -> Failure {
        let counted =
            !matches!(error, HandlerError::Throttled { .. } | HandlerError::Misconfigured(_));
        let asked = match error {
            HandlerError::Throttled { retry_after, .. } => *retry_after,
            HandlerError::Retryable(_)
            | HandlerError::Rejected(_)
            | HandlerError::TooLarge(_)
            | HandlerError::Misconfigured(_)
            | HandlerError::Gone(_)
            | HandlerError::Stalled(_)
            | HandlerError::Partial { .. }
            | HandlerError::Fenced(_) => None,
        };
        let doubled = self.limits.retry_delay_min.saturating_mul(1 << earlier.min(20));
        let delay = asked.unwrap_or(doubled.min(self.limits.retry_delay_max));
        let now = lease.now();
        Failure {
            error: chain(error),
            counted,
            next_attempt_at: Some(now + delay),
            now,
            tick: Some(tick),
            narrowed: None,
            pause: None,
        }
    }

    /// Gives the lease up; what cannot be is logged, and lapses by itself.
    pub(super) async fn release(&self, lease: &mut Lease<'_>, seen: &mut Observation<'_>) {
        let tick = seen.end_of_tick("tick_complete", None, lease);
        if let Err(error) = lease.release(Some(tick), None).await {
            seen.could_not_release(&error);
        }
    }
}
