//! What breaks, and how that is told.

use async_trait::async_trait;

use super::Fault;
use crate::handler::{Delivery, Handler, HandlerError};
use crate::state::{StateKey, StoreError};

/// Panics at every call, to show what that does to a process.
#[derive(Debug)]
pub struct PanickingHandler;

#[async_trait]
impl Handler for PanickingHandler {
    #[expect(clippy::panic, reason = "that is what it is for")]
    async fn handle(&self, _: Delivery<'_>) -> Result<(), HandlerError> {
        panic!("a handler panics on purpose");
    }
}

pub(super) fn broken(key: &StateKey, fault: Fault) -> StoreError {
    let (key, reason) = (key.path(), "injected".to_owned());
    match fault {
        Fault::Unreachable => StoreError::Unreachable { key, reason },
        Fault::Refused => StoreError::Refused { key, reason },
        Fault::LostRequest | Fault::LostAnswer | Fault::Late(_) | Fault::Slow(_) => {
            StoreError::Unknown { key, reason }
        }
    }
}
