//! What the recovery controller may change in a document that no instance is using.
//!
//! Both functions leave the checkpoint, the settings of others and a held lease alone; a successor reads the same
//! rows that it would have read anyway.

use std::time::Duration;

use time::OffsetDateTime;

use super::{DocumentAge, LeaseState, Refusal};
use crate::document::{LeaseRecord, RecentTick, StateDocument};

/// Owner id for judging a lease without ever holding one.
const NOBODY: &str = "";

/// The name of the controller's entries among the recent ticks.
const RECOVERED: &str = "recovered";

impl StateDocument {
    /// Returns how long the holder has not written, by the service's clock alone.
    pub fn idle(&self, age: DocumentAge) -> Duration {
        self.lease.idle_before().saturating_add(age.since_write)
    }

    /// Returns the state of the lease for an observer that does not acquire it.
    pub fn lease_state_for_others(&self, age: DocumentAge) -> LeaseState {
        match self.lease_state(NOBODY, age) {
            LeaseState::Own => LeaseState::Held { owner_id: NOBODY.to_owned() },
            standing @ (LeaseState::Free | LeaseState::Lapsed | LeaseState::Held { .. }) => {
                standing
            }
        }
    }

    /// Removes an expired lease from its crashed holder; `None` if there is none.
    ///
    /// The owner is cleared **and** the token raised, as in any other takeover. If only `released_at` were set, a
    /// holder that is alive would mistake it for its own release, and so for proof that its commit succeeded. The
    /// batch in flight stays for the next tick, and its crash is counted here: a later grant over a free lease can no
    /// longer detect it.
    ///
    /// # Errors
    ///
    /// [`Refusal::Held`] while the lease has not expired by [`Self::lease_state`], or [`Refusal::TokensExhausted`].
    pub fn release_lapsed(
        &self,
        age: DocumentAge,
        now: OffsetDateTime,
    ) -> Result<Option<Self>, Refusal> {
        match self.lease_state_for_others(age) {
            LeaseState::Held { owner_id } => return Err(Refusal::Held { owner_id }),
            LeaseState::Free | LeaseState::Own => return Ok(None),
            LeaseState::Lapsed => {}
        }
        let mut next = self.break_lease()?;
        let was_retrying = std::mem::take(&mut next.parked.is_retrying);
        if let Some(batch) = next.in_flight.as_mut().filter(|_| !was_retrying) {
            batch.crashes = batch.crashes.saturating_add(1);
        }
        next.note(recovered("lease_expired", now));
        Ok(Some(next))
    }

    /// Lets the batch in flight be retried at once if it waits until after `latest`; `None` if it does not, or if the
    /// controller may not end the wait because the lease is held or the poller is paused.
    #[must_use]
    pub fn end_back_off(
        &self,
        age: DocumentAge,
        latest: OffsetDateTime,
        now: OffsetDateTime,
    ) -> Option<Self> {
        let until = self.in_flight.as_ref()?.next_attempt_at?;
        let is_free = self.lease_state_for_others(age) == LeaseState::Free;
        if until <= latest || !is_free || self.paused.is_some() {
            return None;
        }
        let mut next = self.written_by_other(age);
        next.in_flight.as_mut()?.next_attempt_at = None;
        next.note(recovered("in_flight_orphaned", now));
        Some(next)
    }
}

impl LeaseRecord {
    /// Returns the age of the holder's last write when another writer wrote.
    pub fn idle_before(&self) -> Duration {
        let rest = Duration::from_nanos(self.idle_before_nanos.into());
        Duration::from_secs(self.idle_before_seconds).saturating_add(rest)
    }

    /// Stored to the nanosecond: otherwise each of many writes in quick succession would lose a fraction.
    pub(super) fn set_idle_before(&mut self, idle: Duration) {
        self.idle_before_seconds = idle.as_secs();
        self.idle_before_nanos = idle.subsec_nanos();
    }
}

impl RecentTick {
    /// Returns an entry that is not a tick: what an operator or the recovery controller did.
    pub(crate) fn note<'a>(
        outcome: &str,
        at: OffsetDateTime,
        facts: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let facts = facts.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        Self {
            at,
            outcome: outcome.to_owned(),
            rows: 0,
            batches: 0,
            duration_ms: 0,
            idle_before: 0,
            longest_ms: std::collections::BTreeMap::new(),
            extra: facts.collect(),
        }
    }
}

fn recovered(condition: &str, at: OffsetDateTime) -> RecentTick {
    RecentTick::note(RECOVERED, at, [("condition", condition)])
}
