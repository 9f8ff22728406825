//! An endpoint that asked to be left alone for a while, and is.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Until when an endpoint is left alone.
#[derive(Debug, Default)]
pub(super) struct LeftAlone(Mutex<Option<Instant>>);

impl LeftAlone {
    /// Returns how long the endpoint still wants to be left alone.
    pub(super) fn rest(&self) -> Option<Duration> {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until?.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())
    }

    /// Leaves it alone from now on; for longer than any clock tells is for no time.
    pub(super) fn keep_for(&self, pause: Duration) {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Instant::now().checked_add(pause);
    }
}
