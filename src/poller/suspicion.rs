//! Rows of which one is known to be at fault, and how they are narrowed down to it.

use time::OffsetDateTime;

use super::batch::Batch;
use super::{Poller, Position};
use crate::error::chain;
use crate::handler::HandlerError;
use crate::lease::Lease;
use crate::state::InFlight;

/// What is known of rows that failed as part of a larger batch.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    /// What has happened to them so far.
    pub(super) tried: Tried,
    /// The rows behind them in the same batch, which go in one call once the fault is found.
    pub(super) rest: Option<Batch>,
    /// Whether processes died with them. What is handed over is written down first then, since
    /// nobody can do so afterwards.
    pub(super) deadly: bool,
}

/// What has happened to rows in earlier ticks.
#[derive(Clone, Debug, Default)]
pub(super) struct Tried {
    pub(super) attempt: u32,
    pub(super) crashes: u32,
    pub(super) crashes_survived: u32,
    pub(super) first_failed_at: Option<OffsetDateTime>,
    pub(super) first_error: Option<String>,
    pub(super) last_error: Option<String>,
}

impl Tried {
    /// Returns what the document knows of the batch in hand.
    pub(super) fn of(in_flight: Option<&InFlight>) -> Self {
        let Some(batch) = in_flight else { return Self::default() };
        Self {
            attempt: batch.attempt,
            crashes: batch.crashes,
            crashes_survived: batch.crashes_survived,
            first_failed_at: batch.first_failed_at,
            first_error: batch.first_error.clone(),
            last_error: batch.last_error.clone(),
        }
    }

    /// Returns the first error, which is `error` where there was none before.
    pub(super) fn first_error(&self, error: &HandlerError) -> String {
        self.first_error.clone().unwrap_or_else(|| chain(error))
    }
}

impl Batch {
    /// Marks the rows as holding the fault, with what is known of them.
    pub(super) fn suspect(&mut self, lease: &Lease<'_>, error: Option<&HandlerError>) {
        if self.suspicion.is_some() {
            return;
        }
        let mut tried = Tried::of(lease.document().in_flight.as_ref());
        if let Some(error) = error {
            tried.first_failed_at.get_or_insert(lease.now());
            tried.first_error.get_or_insert_with(|| chain(error));
        }
        self.suspicion = Some(Box::new(Suspicion { tried, rest: None, deadly: false }));
    }

    /// Splits the rows that hold the fault: what is tried next, and what follows it.
    ///
    /// The front is the smaller half, so that the fault is found in at most ⌊log2 n⌋ + 1 calls that
    /// hold it: where the front is taken, the fault is known to be behind it, without a call.
    pub(super) fn halves(&self, poller: &Poller, lease: &Lease<'_>) -> Option<(Self, Self)> {
        self.suspicion.as_ref()?;
        self.split(&poller.name, lease, self.events.len() / 2)
    }

    /// Follows the fault into `front`: what is behind it can wait.
    pub(super) fn narrow_to(
        &mut self,
        mut front: Self,
        behind: Self,
        poller: &Poller,
        lease: &Lease<'_>,
    ) {
        front.suspicion = self.suspicion.take().map(|mut suspicion| {
            suspicion.rest = Some(behind.joined(suspicion.rest.take(), &poller.name, lease));
            suspicion
        });
        *self = front;
    }

    /// Returns these rows and those of `behind` as one batch.
    pub(super) fn joined(self, behind: Option<Self>, poller: &str, lease: &Lease<'_>) -> Self {
        let Some(behind) = behind else { return self };
        let (position, late) = (Position::under(lease.document(), self.after.clone()), self.late);
        let events = self.events.joined(&behind.events);
        let joined = Self::of(poller, position, events, behind.more, self.lag);
        // What the source wants kept goes with the last row.
        joined.map_or(self, |joined| Self { remember: behind.remember, late, ..joined })
    }
}
