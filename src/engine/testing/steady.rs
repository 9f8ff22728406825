//! A handler that accepts its rows one by one.

use std::sync::Mutex;

use async_trait::async_trait;

use super::locked;
use super::world::sleep;
use crate::cursor::Cursor;
use crate::handler::{Delivery, Handler, HandlerError};

/// Takes four seconds for each row and reports it as accepted; fails on request.
#[derive(Debug, Default)]
pub struct SteadyHandler {
    fails_after: Mutex<Option<usize>>,
    fails_with: Mutex<Option<HandlerError>>,
    hangs: Mutex<bool>,
    received: Mutex<Vec<Vec<i64>>>,
}

impl SteadyHandler {
    /// Makes the next call fail after `rows` rows.
    pub fn fail_after(&self, rows: usize) {
        *locked(&self.fails_after) = Some(rows);
    }

    /// Makes the call of [`Self::fail_after`] fail with this error.
    pub fn fail_with(&self, error: HandlerError) {
        *locked(&self.fails_with) = Some(error);
    }

    /// Makes the next call never return once all of its rows are accepted.
    pub fn hang_at_the_end(&self) {
        *locked(&self.hangs) = true;
    }

    /// Returns the keys of the rows of each call.
    pub fn received(&self) -> Vec<Vec<i64>> {
        locked(&self.received).clone()
    }
}

#[async_trait]
impl Handler for SteadyHandler {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let id = |cursor: &Cursor| cursor.key.get("id").and_then(serde_json::Value::as_i64);
        let ids = delivery.events.iter().filter_map(|event| id(&event.cursor)).collect();
        locked(&self.received).push(ids);
        let fails_after = locked(&self.fails_after).take();
        for number in 0..delivery.events.len() {
            if fails_after == Some(number) {
                let error = locked(&self.fails_with).take();
                return Err(error.unwrap_or(HandlerError::Retryable("503".to_owned())));
            }
            sleep(4).await;
            delivery.progress.accept(number + 1);
        }
        let hangs = std::mem::take(&mut *locked(&self.hangs));
        if hangs {
            std::future::pending::<()>().await;
        }
        let error = locked(&self.fails_with).take();
        match fails_after {
            Some(_) => Err(error.unwrap_or(HandlerError::Retryable("503".to_owned()))),
            None => Ok(()),
        }
    }
}
