//! How batches follow each other within a tick.

use super::Poller;

/// How batches follow each other within a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Whether the next batch is read while the handler has the one before it. Costs the memory of one
    /// batch more.
    pub prefetch: bool,
}

impl Default for Flow {
    fn default() -> Self {
        Self { prefetch: true }
    }
}

impl Poller {
    /// Lets batches follow each other as `flow` says.
    #[must_use]
    pub fn flowing(self, flow: Flow) -> Self {
        Self { flow, ..self }
    }
}
