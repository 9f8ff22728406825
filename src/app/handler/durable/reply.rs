//! Meaning of the extension's replies. Pure.
//!
//! | request | reply | meaning |
//! |---|---|---|
//! | status | JSON with a `runtimeStatus`, with any status code | the instance exists: accepted |
//! | | 404 | the instance does not exist |
//! | start | 202 with the instance's `id` | accepted |
//! | | 409 | the instance exists: accepted, if a second status request confirms it |
//! | | 400, 404 | no such orchestrator, or no such API at this address |
//! | | 413 | too large: send smaller batches |
//! | both | 401, 403, 3xx | wrong key or address |
//! | | 429; 503 with `Retry-After` | throttled |
//! | | anything else | retryable |
//!
//! The extension may report a failed orchestration with 400 or 500, so these codes do not mean that the
//! instance is unknown. A 200 without a `runtimeStatus` comes from another application.

use std::time::Duration;

use serde::Deserialize;

use crate::handler::HandlerError;
use crate::redaction::excerpt;

/// Longest part of a reply's body that is quoted in an error.
const EXCERPT_CHARS_MAX: usize = 200;

/// A received reply.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The request's address, without secrets.
    pub(super) from: String,
    pub(super) status: u16,
    /// Value of `Retry-After` in seconds, if there is one.
    pub(super) retry_after: Option<u64>,
    pub(super) body: Vec<u8>,
    /// Whether the body is truncated.
    pub(super) is_cut: bool,
}

/// Result of a start request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The orchestration was started.
    Started,
    /// The reply says that an instance with this id exists.
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

/// Decides from the reply to a status request whether the instance exists.
pub(super) fn is_known(received: &Received) -> Result<bool, HandlerError> {
    let status = serde_json::from_slice::<Status>(&received.body).ok();
    if status.and_then(|status| status.runtime_status).is_some() || received.begins_as_status() {
        return Ok(true);
    }
    match received.status {
        404 => Ok(false),
        200..=299 => Err(received.foreign()),
        _ => Err(received.refused("status request")),
    }
}

/// Interprets the reply to a start request.
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
            let reason = received.reason("start request");
            let hint = format!(
                "check that the app has an orchestrator `{name}` and the Durable Functions extension"
            );
            Err(HandlerError::Misconfigured(format!("{reason}; {hint}")))
        }
        413 => Err(HandlerError::TooLarge(received.reason("start request"))),
        _ => Err(received.refused("start request")),
    }
}

impl Received {
    /// Whether this is the beginning of a status with a long output.
    fn begins_as_status(&self) -> bool {
        let word = b"\"runtimeStatus\":";
        self.is_cut && self.body.windows(word.len()).any(|window| window == word)
    }

    /// The error of two contradicting replies: the instance exists, and then it does not.
    pub(super) fn contradicted(&self) -> HandlerError {
        HandlerError::Retryable(format!(
            "{}, but then did not find the instance",
            self.reason("start request")
        ))
    }

    /// Interprets a reply that means the same for both requests.
    fn refused(&self, request: &str) -> HandlerError {
        let reason = self.reason(request);
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

    /// The error of a success that did not come from the extension.
    fn foreign(&self) -> HandlerError {
        let (from, status) = (&self.from, self.status);
        HandlerError::Misconfigured(format!(
            "{from} answered {status}, but not in the form of the Durable Functions extension; check the URL"
        ))
    }

    fn reason(&self, request: &str) -> String {
        let excerpt = excerpt(&self.body, EXCERPT_CHARS_MAX);
        let reason = format!("{} answered {} to a {request}", self.from, self.status);
        if excerpt.is_empty() { reason } else { format!("{reason}: {excerpt}") }
    }
}
