//! Retries of a delivery within one tick, for targets that accept or fail a request as a whole.

use std::fmt::Display;
use std::time::Duration;

use super::{Delivery, HandlerError};
use crate::backoff::{Backoff, seed_of};

/// Delays between attempts within one tick, for every handler.
pub const DELAYS: Backoff =
    Backoff { first: Duration::from_millis(200), max: Duration::from_secs(5) };

/// Counts the attempts of one request, and waits between them.
#[derive(Debug)]
pub struct Tries {
    made: u32,
    max: u32,
}

impl Tries {
    /// Allows `max` attempts in total.
    pub fn up_to(max: u32) -> Self {
        Self { made: 0, max }
    }

    /// Waits until the next attempt.
    ///
    /// # Errors
    ///
    /// `error`, if a retry cannot help or no attempt is left.
    pub async fn after(
        &mut self,
        error: HandlerError,
        delivery: &Delivery<'_>,
    ) -> Result<(), HandlerError> {
        self.made += 1;
        let HandlerError::Retryable(reason) = error else { return Err(error) };
        let tries = self.made;
        if tries >= self.max {
            let counted = format!("{reason} (after {tries} tries)");
            return Err(HandlerError::Retryable(if tries > 1 { counted } else { reason }));
        }
        log_retry(delivery.poller, &delivery.batch_id, tries, self.max, &reason);
        let seed = seed_of((delivery.poller, delivery.batch_id.as_str()));
        tokio::time::sleep(DELAYS.delay(tries, seed)).await;
        Ok(())
    }
}

/// Logs that a batch is delivered again within its tick, after `tries` of at most `max` attempts.
pub fn log_retry(poller: &str, batch_id: &dyn Display, tries: u32, max: u32, error: &dyn Display) {
    let next = tries.saturating_add(1);
    tracing::info!(
        event = "delivery_retried",
        poller.name = %poller,
        %batch_id,
        tries,
        %error,
        "Retrying the handler of poller `{poller}` (attempt {next} of {max})"
    );
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::handler::testing::Sample;

    #[tokio::test(start_paused = true)]
    async fn delays_double_up_to_five_seconds_and_the_last_error_counts_the_attempts() {
        let (sample, mut began_at) = (Sample::new(1), Instant::now());
        let mut tries = Tries::up_to(8);
        let mut waited = Vec::new();
        let error = loop {
            let error = HandlerError::Retryable("no answer".to_owned());
            if let Err(error) = tries.after(error, &sample.delivery()).await {
                break error;
            }
            waited.push(began_at.elapsed().as_millis());
            began_at = Instant::now();
        };
        let longest = [200, 400, 800, 1_600, 3_200, 5_000, 5_000];
        assert_eq!(waited.len(), longest.len());
        let in_bounds =
            |(waited, longest): (&u128, u128)| (longest / 2..=longest + 1).contains(waited);
        assert!(waited.iter().zip(longest).all(in_bounds), "{waited:?}");
        assert_eq!(error.to_string(), "no answer (after 8 tries)");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_a_retry_cannot_fix_is_not_retried() {
        let (sample, began_at) = (Sample::new(1), Instant::now());
        for error in [
            HandlerError::Rejected("no".to_owned()),
            HandlerError::Misconfigured("no".to_owned()),
            HandlerError::Throttled { reason: "no".to_owned(), retry_after: None },
        ] {
            let ended = Tries::up_to(3).after(error, &sample.delivery()).await;
            assert_eq!(ended.unwrap_err().to_string(), "no");
        }
        assert_eq!(began_at.elapsed(), Duration::ZERO);
        let error = HandlerError::Retryable("no".to_owned());
        let ended = Tries::up_to(1).after(error, &sample.delivery()).await;
        assert_eq!(ended.unwrap_err().to_string(), "no");
    }
}
