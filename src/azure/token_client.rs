//! An HTTP client for token requests: retries a busy endpoint, and sends nothing while the endpoint asks for
//! a pause.
//!
//! # Design
//!
//! The identity library waits as long as an endpoint asks, even an hour, while a tick holds its lease. Or it
//! sends a new request each time, which keeps a throttled endpoint throttled. It also repeats an endpoint's
//! complete answer in its errors, and reports an answer that is not JSON as an internal error. So it is given
//! this client, with its own retries turned off.
//!
//! An endpoint's answer may repeat what it was sent. Only its human-readable fields are reported, truncated
//! and without the secrets of the request.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::error::{Error, ErrorKind};
use azure_core::http::headers::{HeaderName, Headers, RETRY_AFTER};
use azure_core::http::{AsyncRawResponse, Body, HttpClient, Request, StatusCode};
use futures_util::StreamExt as _;
use highwater_engine::backoff::{Backoff, random_seed};
use highwater_engine::redaction::{hold_token, scrub};
use serde::Deserialize;
use serde_json::Value as Json;
use tokio::time::sleep;
use url::form_urlencoded;

use super::request_pause::RequestPause;

/// Longest pause to wait for while a connection is being made.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Pauses if the endpoint does not specify one.
const DELAYS: Backoff = Backoff { first: Duration::from_secs(1), max: PAUSE_MAX };
/// Most requests for one token.
const TRIES_MAX: u32 = 3;
/// Longest answer; a token has a few thousand bytes.
const ANSWER_BYTES_MAX: usize = 1 << 18;
/// Most characters of an endpoint's message to report.
const WORDS_MAX: usize = 200;

/// Fields of a token request that authenticate the client.
const SECRETS: [&str; 3] = ["client_secret", "client_assertion", "password"];
/// Proves to App Service that this process runs in the app.
/// <https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference>
const IDENTITY_HEADER: HeaderName = HeaderName::from_static("x-identity-header");

/// An HTTP client for one token endpoint.
#[derive(Debug)]
pub(super) struct TokenClient {
    http: Arc<dyn HttpClient>,
    pause: RequestPause,
}

/// The outcome of one request.
enum TokenReply {
    Granted(AsyncRawResponse),
    /// May be retried, but not before this pause.
    Busy(Option<Duration>, Error),
}

impl TokenClient {
    pub(super) fn new(http: Arc<dyn HttpClient>) -> Self {
        Self { http, pause: RequestPause::default() }
    }

    async fn ask(&self, request: &Request) -> azure_core::Result<TokenReply> {
        let response = match self.http.execute_request(request).await {
            Ok(response) => response,
            Err(error) if matches!(error.kind(), ErrorKind::Connection | ErrorKind::Io) => {
                return Ok(TokenReply::Busy(None, error));
            }
            Err(error) => return Err(error),
        };
        let (status, headers, mut stream) = response.deconstruct();
        let mut body = Vec::new();
        while let Some(chunk) = stream.next().await {
            body.extend_from_slice(&chunk?);
            if body.len() > ANSWER_BYTES_MAX {
                return Err(no_token(request));
            }
        }
        if status.is_success() {
            if !is_grant(&body) {
                return Err(no_token(request));
            }
            return Ok(TokenReply::Granted(AsyncRawResponse::from_bytes(status, headers, body)));
        }
        let error = refused(request, status, &body);
        if is_busy(status) {
            Ok(TokenReply::Busy(retry_after(&headers), error))
        } else {
            Err(error)
        }
    }
}

#[async_trait]
impl HttpClient for TokenClient {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let mut tries = 0;
        loop {
            // An earlier caller may have been dropped during its pause.
            match self.pause.remaining() {
                Some(rest) if rest > PAUSE_MAX => return Err(pause_requested(request, rest)),
                Some(rest) => sleep(rest).await,
                None => {}
            }
            let (requested_pause, error) = match self.ask(request).await? {
                TokenReply::Granted(response) => return Ok(response),
                TokenReply::Busy(requested_pause, error) => (requested_pause, error),
            };
            tries += 1;
            let pause = requested_pause.unwrap_or_else(|| DELAYS.delay(tries, random_seed()));
            self.pause.start(pause);
            if tries == TRIES_MAX || pause > PAUSE_MAX {
                return Err(error);
            }
        }
    }
}

/// Whether the endpoint cannot answer now.
///
/// The metadata service of a virtual machine answers 410 while it is updated.
/// <https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token#error-handling>
fn is_busy(status: StatusCode) -> bool {
    matches!(u16::from(status), 408 | 410 | 429 | 500..=599)
}

fn retry_after(headers: &Headers) -> Option<Duration> {
    headers.get_optional_str(&RETRY_AFTER)?.trim().parse().ok().map(Duration::from_secs)
}

fn is_grant(body: &[u8]) -> bool {
    let Ok(Json::Object(granted)) = serde_json::from_slice(body) else { return false };
    let has_expiry = granted.get("expires_in").is_some_and(Json::is_i64)
        || granted.get("expires_on").is_some_and(|end| end.is_string() || end.is_i64());
    let token = granted.get("access_token").and_then(Json::as_str);
    has_expiry && token.is_some_and(|token| !token.is_empty())
}

/// Fields of a refusal: Microsoft Entra and virtual machines use the first three, App Service the last.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    error: String,
    error_description: String,
    error_codes: Vec<u32>,
    message: String,
}

fn refused(request: &Request, status: StatusCode, body: &[u8]) -> Error {
    let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
    let code = refusal.error_codes.first();
    let code = code.map_or_else(|| refusal.error.clone(), |code| format!("AADSTS{code}"));
    let words = [refusal.error_description, refusal.message].concat();
    let words = words.split(" Trace ID:").next().unwrap_or_default();
    let words = words.lines().next().unwrap_or_default();
    let words = words.strip_prefix(&code).unwrap_or(words).trim_start_matches([':', ' ']);
    let text = if code.is_empty() { words.to_owned() } else { format!("{code}: {words}") };
    hold_secrets(request);
    let text: String = scrub(&text).chars().take(WORDS_MAX).collect();
    let (host, number) = (host(request), u16::from(status));
    let text = format!("`{host}` answered HTTP {number} {text}");
    answered(status, text.trim_end_matches([':', ' ', '.']).to_owned())
}

/// Registers the secrets of the request: an answer may repeat them, and not all come from a setting.
fn hold_secrets(request: &Request) {
    if let Body::Bytes(form) = request.body() {
        let fields = form_urlencoded::parse(form);
        let fields = fields.filter(|(name, _)| SECRETS.contains(&name.as_ref()));
        fields.for_each(|(_, value)| hold_token(&value));
    }
    request.headers().get_optional_str(&IDENTITY_HEADER).into_iter().for_each(hold_token);
}

/// The error does not describe the answer, which may contain the token.
fn no_token(request: &Request) -> Error {
    let text = format!("`{}` returned an invalid token response", host(request));
    Error::with_message(ErrorKind::DataConversion, text)
}

fn pause_requested(request: &Request, rest: Duration) -> Error {
    let (host, seconds) = (host(request), rest.as_secs());
    let text = format!("`{host}` asked for a pause; {seconds} s are left");
    answered(StatusCode::TooManyRequests, text)
}

fn answered(status: StatusCode, text: String) -> Error {
    let kind = ErrorKind::HttpResponse { status, error_code: None, raw_response: None };
    Error::with_message(kind, text)
}

fn host(request: &Request) -> String {
    let host = request.url().host_str().unwrap_or_default();
    request.url().port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
