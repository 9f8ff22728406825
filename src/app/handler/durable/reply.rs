//! What the extension's replies mean. Pure.
//!
//! | question | reply | meaning |
//! |---|---|---|
//! | is it known? | JSON with a `runtimeStatus`, whatever the status code | yes: taken |
//! | | 404 | no |
//! | start it | 202 with the instance's `id` | taken |
//! | | 409 | there is one: taken, if it is known when asked again |
//! | | 400, 404 | no such orchestrator, or no such API there |
//! | | 413 | smaller batches |
//! | both | 401, 403, 3xx | key or address is wrong |
//! | | 429; 503 with `Retry-After` | patience |
//! | | the rest | worth another attempt |
//!
//! A failed orchestration may be reported with 400 or 500, which is why the code does not say that it is
//! not known. A 200 without a `runtimeStatus` is somebody else's.

use std::time::Duration;

use serde::Deserialize;

use crate::handler::HandlerError;
use crate::redaction::excerpt;

/// Longest part of a reply's body that an error repeats.
const EXCERPT_CHARS_MAX: usize = 200;

/// A reply as it came in.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The address that was asked, without secrets.
    pub(super) from: String,
    pub(super) status: u16,
    /// Seconds to wait, where the reply says so.
    pub(super) retry_after: Option<u64>,
    pub(super) body: Vec<u8>,
    /// Whether the body is longer than that.
    pub(super) is_cut: bool,
}

/// What a start came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The orchestration is on its way.
    Started,
    /// The reply says that there is one of this id.
    Exists,
}

#[derive(Deserialize)]
struct Status {
    #[serde(rename = "runtimeStatus")]
    runtime_status: Option<String>,
}

#[derive(Deserialize)]
struct Started {
    id: Option<String>,
}

/// Decides whether an instance is known, by the reply to the question for its status.
pub(super) fn is_known(received: &Received) -> Result<bool, HandlerError> {
    let status = serde_json::from_slice::<Status>(&received.body).ok();
    if status.and_then(|status| status.runtime_status).is_some() || received.begins_as_status() {
        return Ok(true);
    }
    match received.status {
        404 => Ok(false),
        200..=299 => Err(received.foreign()),
        _ => Err(received.refused("asked for a status")),
    }
}

/// Decides what the reply to a start means.
pub(super) fn judge_start(
    received: &Received,
    id: &str,
    name: &str,
) -> Result<Start, HandlerError> {
    match received.status {
        202 => {
            let started = serde_json::from_slice::<Started>(&received.body).ok();
            let is_ours = started.and_then(|started| started.id).as_deref() == Some(id);
            if is_ours { Ok(Start::Started) } else { Err(received.foreign()) }
        }
        409 => Ok(Start::Exists),
        200..=299 => Err(received.foreign()),
        400 | 404 => {
            let said = received.said("asked to start");
            let hint = format!(
                "check that the app has an orchestrator `{name}` and the Durable Functions extension"
            );
            Err(HandlerError::Misconfigured(format!("{said}; {hint}")))
        }
        413 => Err(HandlerError::TooLarge(received.said("asked to start"))),
        _ => Err(received.refused("asked to start")),
    }
}

impl Received {
    /// Whether this is the start of a status that has a long output behind it.
    fn begins_as_status(&self) -> bool {
        let word = b"\"runtimeStatus\":";
        self.is_cut && self.body.windows(word.len()).any(|window| window == word)
    }

    /// There is an instance by one reply, and none by the next.
    pub(super) fn contradicted(&self) -> HandlerError {
        HandlerError::Retryable(format!(
            "{}, and then did not know it",
            self.said("asked to start")
        ))
    }

    /// Judges a reply that means the same to both questions.
    fn refused(&self, asked: &str) -> HandlerError {
        let reason = self.said(asked);
        let retry_after = self.retry_after.map(Duration::from_secs);
        match self.status {
            300..=399 => {
                HandlerError::Misconfigured(format!("{reason}: redirects are not followed"))
            }
            401 | 403 => {
                let hint = "check the system key `durabletask_extension`";
                HandlerError::Misconfigured(format!("{reason}; {hint}"))
            }
            429 => HandlerError::Throttled { reason, retry_after },
            503 if retry_after.is_some() => HandlerError::Throttled { reason, retry_after },
            _ => HandlerError::Retryable(reason),
        }
    }

    /// A success that the extension would not have told like this.
    fn foreign(&self) -> HandlerError {
        let (from, status) = (&self.from, self.status);
        HandlerError::Misconfigured(format!(
            "{from} answered {status}, but not as the Durable Functions extension does: check the address"
        ))
    }

    fn said(&self, asked: &str) -> String {
        let excerpt = excerpt(&self.body, EXCERPT_CHARS_MAX);
        let said = format!("{}, {asked}, answered {}", self.from, self.status);
        if excerpt.is_empty() { said } else { format!("{said}: {excerpt}") }
    }
}
