//! The pause that an endpoint asked for.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The end of the pause, if there is one.
#[derive(Debug, Default)]
pub(super) struct RequestPause(Mutex<Option<Instant>>);

impl RequestPause {
    /// Returns the remaining pause.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until?.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())
    }

    /// Starts a pause now; one longer than the clock can represent is ignored.
    pub(super) fn start(&self, pause: Duration) {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Instant::now().checked_add(pause);
    }
}
