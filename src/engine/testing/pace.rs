//! Slow handlers.

use std::time::Duration;

use super::{RecordingHandler, locked};
use crate::handler::HandlerError;

/// The duration of a call, by the keys of its rows.
pub(super) type Pace = Box<dyn FnMut(&[i64]) -> Duration + Send>;

impl RecordingHandler {
    /// Makes unscripted calls take a while first.
    pub fn take_by(&self, pace: impl FnMut(&[i64]) -> Duration + Send + 'static) {
        *locked(&self.pace) = Some(Box::new(pace));
    }

    pub(super) async fn judged(&self, ids: &[i64]) -> Result<(), HandlerError> {
        let pause = locked(&self.pace).as_mut().map(|pace| pace(ids));
        tokio::time::sleep(pause.unwrap_or_default()).await;
        locked(&self.judge).as_mut().map_or(Ok(()), |judge| judge(ids))
    }
}
