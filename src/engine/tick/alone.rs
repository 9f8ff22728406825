//! Delivering the row of an entry alone, outside the order of the source.

use std::time::Duration;

use tokio::time::timeout;

use crate::error::chain;
use crate::event::{BatchId, BatchIdentity, ChangeEvent, EventsDigest, Operation};
use crate::handler::{CallTries, Delivery, HandlerError, Progress};
use crate::lease::{Lease, LeaseError};
use crate::normalize::{fitting, normalize};
use crate::poller::{Poller, StopSignal, TickError};
use crate::quarantine::Entry;

/// The event to deliver for an entry.
pub(crate) enum EventToDeliver {
    Event(Box<ChangeEvent>),
    /// No row has the key any more, or none that the poller delivers.
    Gone,
    /// No event can be delivered, for this reason.
    Nothing(String),
}

/// How a handler call ended.
pub(crate) enum CallResult {
    Accepted,
    Failed(HandlerError),
    Aborted,
}

/// A handler call with the row of an entry.
#[derive(Clone, Copy)]
pub(crate) struct AloneCall<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) event: &'a ChangeEvent,
    /// Part of the batch id, so that a target does not take this batch for a known one.
    pub(crate) id: &'a str,
    /// The replay that the delivery belongs to, as a target sees it: a target that knows an event of the same replay may
    /// skip it.
    pub(crate) replay_id: Option<&'a str>,
    pub(crate) stop: &'a StopSignal,
    /// How long the call may take.
    pub(crate) limit: Duration,
}

impl Poller {
    /// Reads the current state of an entry's row.
    pub(crate) async fn current_row(&self, entry: &Entry) -> Result<EventToDeliver, TickError> {
        let stored = match entry.event() {
            Ok(event) => event,
            Err(error) => return Ok(EventToDeliver::Nothing(chain(&error))),
        };
        let rows = self.source.current(&stored.cursor).await.map_err(TickError::Fetch)?;
        if rows.is_unselected {
            return Ok(EventToDeliver::Gone);
        }
        let events = normalize(self.source.shape(), &rows).map(|mut events| {
            fitting(self.source.shape(), &rows, &mut events, self.limits.batch_bytes_max);
            events.pop()
        });
        Ok(match events {
            Ok(Some(ChangeEvent { unreadable: Some(why), .. })) => {
                EventToDeliver::Nothing(why.as_ref().to_owned())
            }
            Ok(Some(event)) => EventToDeliver::Event(Box::new(event)),
            // The row is deleted, and the stored event says so: it is the current state.
            Ok(None) if stored.op == Operation::Delete => EventToDeliver::Event(Box::new(stored)),
            Ok(None) => EventToDeliver::Gone,
            Err(error) => EventToDeliver::Nothing(chain(&error)),
        })
    }

    /// Calls the handler with one row.
    pub(crate) async fn deliver_alone(
        &self,
        lease: &mut Lease<'_>,
        call: AloneCall<'_>,
    ) -> Result<CallResult, LeaseError> {
        let AloneCall { entry, event, id, replay_id, stop, limit } = call;
        let progress = Progress::default();
        let events = std::slice::from_ref(event);
        let batch_id = BatchId::of(&BatchIdentity {
            poller: &self.name,
            generation: lease.generation().0,
            replay_id: Some(id),
            after: None,
            upto: &event.cursor,
            digest: &EventsDigest::of(events),
        });
        let delivery = Delivery {
            poller: &self.name,
            source: &self.source.shape().label,
            batch_id: &batch_id,
            step: None,
            started_at: lease.now(),
            generation: lease.generation(),
            fencing_token: lease.token(),
            attempt: entry.attempts.saturating_add(1),
            tries: CallTries::Several,
            replay_id,
            replay_guard: None,
            events,
            traceparent: None,
            tracestate: None,
            progress: &progress,
        };
        let called = Box::pin(timeout(limit, self.guarded(&*self.handler, delivery)));
        let Some(ended) = lease.hold_while(stop.unless_aborted(called)).await? else {
            // Wait for it to settle: its remaining effects must not come after the release.
            self.handler.settle().await;
            return Ok(CallResult::Aborted);
        };
        let handled = ended.unwrap_or(Err(HandlerError::Stalled(limit)));
        Ok(match handled.or_else(|error| error.after(progress.accepted(), events.len())) {
            Ok(()) => CallResult::Accepted,
            Err(error) => CallResult::Failed(error),
        })
    }
}
