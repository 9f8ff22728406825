//! What breaks, and how that is told.

use std::time::Duration;

use async_trait::async_trait;

use crate::handler::{Delivery, Handler, HandlerError};
use crate::state::{StateKey, StoreError};

/// How a store breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request never reaches the store.
    Unreachable,
    /// The request is lost on its way, and the caller cannot know.
    LostRequest,
    /// The request is carried out, and the answer is lost.
    LostAnswer,
    /// The request is carried out this much later, when the caller has long been told "unknown".
    Late(Duration),
    /// The answer takes this long.
    Slow(Duration),
    /// The store refuses for good.
    Refused,
}

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
