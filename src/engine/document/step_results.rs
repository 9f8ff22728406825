//! Results of the steps of a handler chain for the batch in flight, and since when it has been in flight.
//!
//! A result belongs to exactly one batch: the same rows after the same position, byte for byte. The lease holder
//! writes it after its step has accepted the batch and before it calls the next one. So an instance that finds the
//! batch in flight knows which steps are done, and repeats at most the one whose result was not written in time.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use super::state_document::{InFlight, StateDocument};
use super::transitions::Refusal;
use crate::event::EventsDigest;
use crate::grant::Holder;

/// The outcome of a step that has accepted the batch; a step with any other outcome is called again.
pub const STEP_TAKEN: &str = "taken";

/// Result of one step of a handler chain for the batch in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Name of the step.
    pub step: String,
    /// Digest of the batch's encoded rows.
    pub digest: EventsDigest,
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// [`STEP_TAKEN`].
    pub outcome: String,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl StepResult {
    /// Returns the result of a step that has accepted the batch with this digest.
    pub fn accepted(step: &str, digest: EventsDigest, at: OffsetDateTime) -> Self {
        let (step, outcome) = (step.to_owned(), STEP_TAKEN.to_owned());
        Self { step, digest, at, outcome, extra: Map::new() }
    }

    /// Whether `step` has accepted the bytes with this digest.
    fn says_taken(&self, step: &str, digest: &EventsDigest) -> bool {
        self.step == step && self.digest == *digest && self.outcome == STEP_TAKEN
    }
}

impl StateDocument {
    /// Stores the result of a step for the batch in flight, or for a part of it, which then replaces the batch.
    ///
    /// `steps_before` is the number of steps that have accepted the same bytes before it. Other results, from a chain
    /// with different steps, are dropped.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if another instance has taken over the lease.
    pub fn complete_step(
        &self,
        holder: &Holder,
        batch: InFlight,
        (steps_before, result): (usize, StepResult),
    ) -> Result<Self, Refusal> {
        let mut next = self.renew(holder, result.at)?;
        let before = self.in_flight.as_ref();
        let mut batch = batch.continuing(before).part_of(before, result.at);
        batch.steps.truncate(steps_before);
        batch.steps.push(result);
        next.in_flight = Some(batch);
        Ok(next)
    }
}

impl InFlight {
    /// Returns how many of the `steps`, from the first one on, have accepted the bytes with this digest.
    pub fn steps_done(&self, steps: &[&str], digest: &EventsDigest) -> usize {
        let results = self.steps.iter().zip(steps);
        results.take_while(|(result, step)| result.says_taken(step, digest)).count()
    }

    /// Carries over what belongs to the bytes, if `previous` has the same ones.
    pub(super) fn keeping_results(self, previous: Option<&Self>) -> Self {
        match previous {
            Some(previous) if previous.batch_id == self.batch_id => Self {
                started_at: previous.started_at,
                steps: previous.steps.clone(),
                extra: previous.extra.clone(),
                ..self
            },
            Some(_) | None => self,
        }
    }

    /// Records when the batch was announced, unless already known.
    pub(super) fn announced(mut self, now: OffsetDateTime) -> Self {
        self.started_at.get_or_insert(now);
        self
    }

    /// Carries over what also applies to a part of `whole`: since when it has been in flight, but no results.
    pub(super) fn part_of(self, whole: Option<&Self>, now: OffsetDateTime) -> Self {
        let mut part = self.keeping_results(whole);
        if part.started_at.is_none() {
            let same_place = whole.filter(|whole| whole.after == part.after);
            part.started_at = same_place.and_then(|whole| whole.started_at);
        }
        part.announced(now)
    }
}

#[cfg(test)]
mod tests;
