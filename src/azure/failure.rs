//! Failures of requests, described without secrets.

use std::error::Error as StdError;

use azure_core::Error as AzureError;
use azure_core::error::ErrorKind;
use azure_core::http::RawResponse;
use azure_core::http::headers::{ERROR_CODE, HeaderName, Headers};
use azure_core::time::parse_rfc7231;
use time::OffsetDateTime;

use highwater_engine::redaction::scrub;

/// Why a request did not succeed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The request was never sent: no connection, or no token.
    NotSent(String),
    /// No usable answer: the operation may have happened, or may still happen.
    NoAnswer(String),
    /// The service answered that it did not do it.
    Answered(Answer),
}

/// An error that the service reports.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Status of the HTTP response.
    pub(crate) status: u16,
    /// The service's code, such as `BlobNotFound`; empty if there is none.
    pub(crate) code: String,
    /// The service's clock at the time of the answer.
    pub(crate) date: Option<OffsetDateTime>,
    /// Status, code and request id, for display.
    pub(crate) text: String,
}

impl Failure {
    /// Returns the service's answer, if there was one.
    pub(crate) fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Answered(answer) => Some(answer),
            Self::NotSent(_) | Self::NoAnswer(_) => None,
        }
    }

    /// Classifies an error of the Azure crates.
    pub(crate) fn of(error: &AzureError) -> Self {
        match error.kind() {
            ErrorKind::HttpResponse { status, error_code, raw_response } => {
                let raw = raw_response.as_deref();
                Self::Answered(answer((*status).into(), error_code.as_deref(), raw))
            }
            ErrorKind::Connection | ErrorKind::Credential => Self::NotSent(describe(error)),
            ErrorKind::Io | ErrorKind::DataConversion | ErrorKind::Other => {
                Self::NoAnswer(describe(error))
            }
        }
    }
}

fn answer(status: u16, code: Option<&str>, raw: Option<&RawResponse>) -> Answer {
    let headers = raw.map(RawResponse::headers);
    let header = |name: &HeaderName| headers.and_then(|headers| headers.get_optional_str(name));
    // Without the header, the crate uses a description of the status as the code.
    let code = header(&ERROR_CODE).or(code).unwrap_or_default();
    let code = if code.chars().all(|c| c.is_ascii_alphanumeric()) { code } else { "" };
    let mut text = format!("HTTP {status}");
    if !code.is_empty() {
        text = format!("{text} {code}");
    }
    if let Some(id) = header(&REQUEST_ID) {
        text = format!("{text}, request {}", scrub(id));
    }
    Answer { status, code: code.to_owned(), date: headers.and_then(date), text }
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");

/// Returns the service's clock at the time of the answer.
pub(crate) fn date(headers: &Headers) -> Option<OffsetDateTime> {
    headers
        .get_optional_str(&HeaderName::from_static("date"))
        .and_then(|value| parse_rfc7231(value).ok())
}

/// Describes an error and its causes, without addresses and secrets.
///
/// The text of a `reqwest` error contains the full address, so it is replaced.
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut current = Some(error);
    // A chain of causes is short; the limit guards against cycles.
    for _ in 0..CAUSES_MAX {
        let Some(error) = current else { break };
        let text = match error.downcast_ref::<reqwest::Error>() {
            Some(http) => kind(http).to_owned(),
            None => scrub(&error.to_string()),
        };
        if !text.is_empty() && parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
        current = error.source();
    }
    parts.retain(|part| part != CRATE_NOISE);
    parts.join(": ")
}

/// Most causes in one description.
const CAUSES_MAX: usize = 10;

/// Context that the HTTP client's adapter adds to every cause.
const CRATE_NOISE: &str = "failed to execute `reqwest` request";

fn kind(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "timed out"
    } else if error.is_connect() {
        "connect"
    } else if error.is_body() || error.is_decode() {
        "read the answer"
    } else {
        "send the request"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn causes_are_described_without_the_address() {
        let error = reqwest::Client::builder()
            .no_proxy()
            .build()
            .unwrap()
            .get("http://127.0.0.1:1/x?sig=s3cret")
            .send()
            .await
            .unwrap_err();
        assert!(format!("{error:?}").contains("s3cret"), "the crate leaks, so this test is needed");
        let error = AzureError::with_error(ErrorKind::Connection, error, CRATE_NOISE);
        let Failure::NotSent(text) = Failure::of(&error) else { panic!("never sent") };
        assert!(text.starts_with("connect: ") && text.contains("refused"), "{text}");
        assert!(!text.contains("sig") && !text.contains("s3cret"), "{text}");
    }
}
