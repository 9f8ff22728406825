//! The spans of a tick that are made here; sources, handlers and stores make their own within them.

use tracing::Span;
use tracing::field::Empty;

use super::batch::Batch;
use super::observe::Observation;
use crate::trace::span;

impl Observation<'_> {
    /// Returns the span of one delivery of a batch, whatever the handler does for it.
    pub(super) fn delivery_span(&self, batch: &Batch, step: Option<&str>) -> Span {
        span!(
            "deliver batch",
            highwater.batch.id = batch.id.as_str(),
            highwater.batch.rows = batch.rows(),
            highwater.step = step,
            highwater.fencing_token = self.fencing_token(),
            error.type = Empty,
        )
    }
}
