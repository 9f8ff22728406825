//! Results of the steps of a handler chain for the batch in flight, and since when it is in flight.
//!
//! A result belongs to exactly one batch: the same rows after the same position, byte for byte. It is
//! written after its step has taken the batch and before the next one is called, by the holder of the
//! lease; so whoever finds the batch in flight knows which steps need not be called again, and calls at
//! most the one again whose result was not written in time.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use super::state_document::{InFlight, StateDocument};
use super::transitions::Refusal;
use crate::event::Digested;
use crate::grant::Holder;

/// The outcome of a step that has taken the batch; any other means that it is called again.
pub const STEP_TAKEN: &str = "taken";

/// Result of one step of a handler chain for the batch in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Name of the step.
    pub step: String,
    /// Digest of the batch's encoded rows.
    pub digest: Digested,
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
    /// Returns the result of a step that has taken the batch with this digest.
    pub fn accepted(step: &str, digest: Digested, at: OffsetDateTime) -> Self {
        let (step, outcome) = (step.to_owned(), STEP_TAKEN.to_owned());
        Self { step, digest, at, outcome, extra: Map::new() }
    }

    /// Whether it says that `step` has taken the bytes with this digest.
    fn says_taken(&self, step: &str, digest: &Digested) -> bool {
        self.step == step && self.digest == *digest && self.outcome == STEP_TAKEN
    }
}

impl StateDocument {
    /// Keeps the result of a step for the batch in flight, or for a part of it, which then replaces it.
    ///
    /// `steps_before` is how many steps have taken the same bytes before it; what else was kept, of a chain
    /// that has other steps now, is dropped.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if the lease has passed to another.
    pub fn complete_step(
        &self,
        holder: &Holder,
        batch: InFlight,
        (steps_before, result): (usize, StepResult),
    ) -> Result<Self, Refusal> {
        let mut next = self.renew(holder, result.at)?;
        let before = self.in_flight.as_ref();
        let mut batch = batch.continuing(before).being_part_of(before, result.at);
        batch.steps.truncate(steps_before);
        batch.steps.push(result);
        next.in_flight = Some(batch);
        Ok(next)
    }
}

impl InFlight {
    /// Returns how many of the `steps`, from the first one on, have taken the bytes with this digest.
    pub fn steps_done(&self, steps: &[&str], digest: &Digested) -> usize {
        let results = self.steps.iter().zip(steps);
        results.take_while(|(result, step)| result.says_taken(step, digest)).count()
    }

    /// Takes over what belongs to the bytes, where `previous` is of the very same.
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

    /// Notes when the batch was announced, unless that is known already.
    pub(super) fn announced(mut self, now: OffsetDateTime) -> Self {
        self.started_at.get_or_insert(now);
        self
    }

    /// Takes over what holds for a part of `whole` too: since when it is in hand, but no results.
    pub(super) fn being_part_of(self, whole: Option<&Self>, now: OffsetDateTime) -> Self {
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
