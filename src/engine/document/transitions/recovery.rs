//! What the recovery controller may change in a document that no instance works on.
//!
//! Both functions leave the checkpoint, the settings of others and a lease that is held alone; a
//! successor reads the same rows that it would have read without them.

use std::time::Duration;

use time::OffsetDateTime;

use super::{LeaseAge, LeaseState, Refusal};
use crate::document::{LeaseRecord, RecentTick, StateDocument};

/// Owner id for judging a lease without ever holding one.
const NOBODY: &str = "";

/// How the notes of the controller are named among the recent ticks.
const RECOVERED: &str = "recovered";

impl StateDocument {
    /// Returns how long the holder has not written, by the service's clock alone.
    pub fn idle(&self, age: LeaseAge) -> Duration {
        self.lease.idle_before().saturating_add(age.since_write)
    }

    /// Returns the state of the lease for an observer that does not acquire it.
    pub fn lease_state_for_others(&self, age: LeaseAge) -> LeaseState {
        match self.lease_state(NOBODY, age) {
            LeaseState::Own => LeaseState::Held { owner_id: NOBODY.to_owned() },
            standing @ (LeaseState::Free | LeaseState::Lapsed | LeaseState::Held { .. }) => {
                standing
            }
        }
    }

    /// Takes a lapsed lease from the holder that died with it; `None` where there is none.
    ///
    /// The owner is cleared **and** the token raised, as by whoever else takes a lease over: were only
    /// `released_at` written, a holder that lives would take that for its own release, and so for the
    /// proof that its commit landed. The batch in hand stays for the next tick, and is counted as one
    /// that a holder died with: no grant over a lease that is free can tell any more.
    ///
    /// # Errors
    ///
    /// [`Refusal::Held`] while the lease has not lapsed by the rule of [`Self::lease_state`], or
    /// [`Refusal::TokensExhausted`].
    pub fn release_lapsed(
        &self,
        age: LeaseAge,
        now: OffsetDateTime,
    ) -> Result<Option<Self>, Refusal> {
        match self.lease_state_for_others(age) {
            LeaseState::Held { owner_id } => return Err(Refusal::Held { owner_id }),
            LeaseState::Free | LeaseState::Own => return Ok(None),
            LeaseState::Lapsed => {}
        }
        let mut next = self.break_lease()?;
        if let Some(batch) = &mut next.in_flight {
            batch.crashes = batch.crashes.saturating_add(1);
        }
        next.note(recovered("lease_expired", now));
        Ok(Some(next))
    }

    /// Lets the batch in flight be tried at once, where it waits until later than `latest`; `None` where
    /// it does not, or where that is not for the controller to end: under a lease, or paused.
    #[must_use]
    pub fn end_back_off(
        &self,
        age: LeaseAge,
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

    /// Notes it to the nanosecond: of many writes that follow each other fast, each would lose a part.
    pub(super) fn set_idle_before(&mut self, idle: Duration) {
        self.idle_before_seconds = idle.as_secs();
        self.idle_before_nanos = idle.subsec_nanos();
    }
}

impl RecentTick {
    /// Returns an entry without a tick: what an operator or the recovery controller did.
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
