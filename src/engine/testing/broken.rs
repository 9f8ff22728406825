//! Test doubles that fail.

use std::time::Duration;

use async_trait::async_trait;

use crate::handler::{Delivery, Handler, HandlerError};
use crate::store::{ETag, ReadResult, StateKey, StoreError, StoredValue, WriteResult};

/// The faults of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request never reaches the store.
    Unreachable,
    /// The request is lost on its way; the caller cannot know.
    LostRequest,
    /// The request is executed, but the response is lost.
    LostAnswer,
    /// The request is executed this much later, long after the caller got "unknown".
    Late(Duration),
    /// The response takes this long.
    Slow(Duration),
    /// The store permanently rejects the request.
    Refused,
    /// Something else answers instead of the store, such as a captive portal: a read returns foreign content, a write
    /// does not arrive.
    Garbled,
    /// The response has a version that the store does not know, as behind a proxy that rewrites `ETag`.
    EtagMoved,
    /// The response's `Date` is wrong by this much.
    Date(time::Duration),
}

impl Fault {
    /// Applies the fault to the response of a read, if it affects responses. `number` makes a moved version different
    /// each time.
    pub(super) fn on_loaded(self, mut loaded: ReadResult, number: u64) -> ReadResult {
        match self {
            Self::Garbled => {
                let bytes = b"<html><title>Sign in to the network</title></html>".to_vec();
                let (etag, last_modified) = (ETag("portal".to_owned()), loaded.date);
                loaded.stored = Some(StoredValue { bytes, etag, last_modified });
            }
            Self::EtagMoved => {
                if let Some(stored) = &mut loaded.stored {
                    stored.etag = ETag(format!("{}-moved-{number}", stored.etag.0));
                }
            }
            Self::Date(by) => loaded.date += by,
            Self::Unreachable
            | Self::LostRequest
            | Self::LostAnswer
            | Self::Late(_)
            | Self::Slow(_)
            | Self::Refused => {}
        }
        loaded
    }

    /// Applies the fault to the response of a write.
    pub(super) fn on_written(self, mut written: WriteResult) -> WriteResult {
        match self {
            Self::EtagMoved => written.etag.0.push_str("-moved"),
            Self::Date(by) => written.date += by,
            Self::Garbled
            | Self::Unreachable
            | Self::LostRequest
            | Self::LostAnswer
            | Self::Late(_)
            | Self::Slow(_)
            | Self::Refused => {}
        }
        written
    }
}

/// Panics at every call, to show how a process handles that.
#[derive(Debug)]
pub struct PanickingHandler;

#[async_trait]
impl Handler for PanickingHandler {
    #[expect(clippy::panic, reason = "panicking is its purpose")]
    async fn handle(&self, _: Delivery<'_>) -> Result<(), HandlerError> {
        panic!("a handler panics on purpose");
    }
}

pub(super) fn broken(key: &StateKey, fault: Fault) -> StoreError {
    let (key, reason) = (key.path(), "injected".to_owned());
    match fault {
        Fault::Unreachable => StoreError::Unreachable { key, reason },
        Fault::Refused => StoreError::Refused { key, reason },
        Fault::LostRequest
        | Fault::LostAnswer
        | Fault::Late(_)
        | Fault::Slow(_)
        | Fault::Garbled
        | Fault::EtagMoved
        | Fault::Date(_) => StoreError::Unknown { key, reason },
    }
}
