//! Test doubles that fail.

use std::time::Duration;

use async_trait::async_trait;

use crate::handler::{Delivery, Handler, HandlerError};
use crate::store::{ETag, Loaded, StateKey, StoreError, Stored, Written};

/// How a store breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request never reaches the store.
    Unreachable,
    /// The request is lost on its way, and the caller cannot know.
    LostRequest,
    /// The request is carried out, and the answer is lost.
    LostAnswer,
    /// The request is carried out this much later, long after the caller got "unknown".
    Late(Duration),
    /// The answer takes this long.
    Slow(Duration),
    /// The store refuses permanently.
    Refused,
    /// Something else answers in the store's place, such as a captive portal: a read finds foreign content,
    /// a write does not arrive.
    Garbled,
    /// The answer carries a version that the store does not know, as behind a proxy that rewrites `ETag`.
    EtagMoved,
    /// The answer's `Date` is wrong by this much.
    Date(time::Duration),
}

impl Fault {
    /// Does to the answer of a read what the fault does, where it is one of answers.
    /// `number` makes a version that moves another one each time.
    pub(super) fn on_loaded(self, mut loaded: Loaded, number: u64) -> Loaded {
        match self {
            Self::Garbled => {
                let bytes = b"<html><title>Sign in to the network</title></html>".to_vec();
                let (etag, last_modified) = (ETag("portal".to_owned()), loaded.date);
                loaded.stored = Some(Stored { bytes, etag, last_modified });
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

    /// Does the same to the answer of a write.
    pub(super) fn on_written(self, mut written: Written) -> Written {
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
        Fault::LostRequest
        | Fault::LostAnswer
        | Fault::Late(_)
        | Fault::Slow(_)
        | Fault::Garbled
        | Fault::EtagMoved
        | Fault::Date(_) => StoreError::Unknown { key, reason },
    }
}
