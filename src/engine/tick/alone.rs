//! Delivering the row of an entry alone, outside the order of the source.

use std::time::Duration;

use tokio::time::timeout;

use crate::error::chain;
use crate::event::{BatchId, BatchIdentity, ChangeEvent, EventsDigest, Operation};
use crate::handler::{CallTries, Delivery, HandlerError, Progress};
use crate::lease::{Lease, LeaseError};
use crate::normalize::normalize;
use crate::poller::{Poller, StopSignal, TickError};
use crate::quarantine::Entry;

/// What is delivered for an entry.
pub(crate) enum EventToDeliver {
    Event(Box<ChangeEvent>),
    /// No row has the key any more, or none that the poller delivers.
    Gone,
    /// Nothing can be, for this reason.
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
    /// Reads the row of an entry as it is now.
    pub(crate) async fn current_row(&self, entry: &Entry) -> Result<EventToDeliver, TickError> {
        let stored = match entry.event() {
            Ok(event) => event,
            Err(error) => return Ok(EventToDeliver::Nothing(chain(&error))),
        };
        let rows = self.source.current(&stored.cursor).await.map_err(TickError::Fetch)?;
        if rows.is_unselected {
            return Ok(EventToDeliver::Gone);
        }
        Ok(match normalize(self.source.shape(), &rows).map(|mut events| events.pop()) {
            Ok(Some(event)) => EventToDeliver::Event(Box::new(event)),
            // That it is deleted is what the row's present state is.
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
            progress: &Progress::default(),
        };
        let called = Box::pin(timeout(limit, self.guarded(&*self.handler, delivery)));
        Ok(match lease.hold_while(stop.unless_aborted(called)).await? {
            Some(Ok(Ok(()))) => CallResult::Accepted,
            Some(Ok(Err(error))) => CallResult::Failed(error),
            Some(Err(_late)) => CallResult::Failed(HandlerError::Stalled(limit)),
            None => {
                // What it would still do must not follow the release.
                self.handler.settle().await;
                CallResult::Aborted
            }
        })
    }
}
