//! A failed batch, and a batch that is made smaller to find the cause.

use serde_json::Map;
use time::OffsetDateTime;

use super::{EndOfTick, Refusal};
use crate::document::{Holder, InFlight, LastFailure, Paused, StateDocument};
use crate::error::shortened;

/// A failed batch.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Why, in one line.
    pub error: String,
    /// The step of a handler chain that failed.
    pub step: Option<String>,
    /// What failed, as [`LastFailure::kind`] names it.
    pub kind: &'static str,
    /// Whether it counts as an attempt; back-pressure and wrong settings do not.
    pub counted: bool,
    /// Earliest time of the next attempt.
    pub next_attempt_at: Option<OffsetDateTime>,
    /// The service's clock.
    pub now: OffsetDateTime,
    /// The tick that it ends.
    pub tick: Option<EndOfTick>,
    /// The part known to be at fault; the next attempt is limited to these rows.
    pub narrowed: Option<Box<InFlight>>,
    /// Pauses the poller until an operator resumes it.
    pub pause: Option<Paused>,
}

impl StateDocument {
    /// Records that the batch in flight failed, and releases the lease.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if another instance has taken over the lease.
    pub fn fail(&self, holder: &Holder, failure: Failure) -> Result<Self, Refusal> {
        let mut next = self.held_by(holder)?;
        next.count_failure(LastFailure {
            at: failure.now,
            since: failure.now,
            count: 1,
            kind: failure.kind.to_owned(),
            error: shortened(failure.error.clone()),
            extra: Map::new(),
        });
        if let Some(narrowed) = failure.narrowed {
            next.in_flight = Some(narrowed.part_of(self.in_flight.as_ref(), failure.now));
        }
        if let Some(in_flight) = &mut next.in_flight {
            if failure.counted {
                in_flight.attempt = in_flight.attempt.saturating_add(1);
                in_flight.first_failed_at = in_flight.first_failed_at.or(Some(failure.now));
            }
            // A holder that reports a failure was not crashed by the rows.
            in_flight.crashes_survived = in_flight.crashes;
            in_flight.next_attempt_at = failure.next_attempt_at;
            in_flight.first_error.get_or_insert_with(|| failure.error.clone());
            in_flight.last_error = Some(failure.error);
            in_flight.failed_step = failure.step;
        }
        next.put_late_rows_back();
        next.touch(failure.now);
        next.release_lease(failure.now, failure.tick);
        Ok(match failure.pause {
            Some(pause) => next.with_pause(pause),
            None => next,
        })
    }

    /// Replaces the batch in flight with a part of it, with the counts of that part.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if another instance has taken over the lease.
    pub fn narrow(
        &self,
        holder: &Holder,
        part: InFlight,
        now: OffsetDateTime,
    ) -> Result<Self, Refusal> {
        let mut next = self.renew(holder, now)?;
        next.in_flight = Some(part.part_of(self.in_flight.as_ref(), now));
        Ok(next)
    }
}
