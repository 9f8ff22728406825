//! Asking for tokens: again where the endpoint is busy, and not at all while it wants to be left alone.
//!
//! # Why so
//!
//! The identity library waits as long as an endpoint says, be it an hour, while a tick holds its lease; or it asks
//! again at each request, which keeps a throttled endpoint throttled. It also tells an endpoint's answer whole,
//! and one that is no JSON as a mistake of ours. So it is given this client, and told to repeat nothing.
//!
//! What an endpoint says may repeat what it was sent. Only the fields that are meant for people are told, cut to
//! their beginning, and without the secrets of the request.

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

use super::left_alone::LeftAlone;

/// Longest pause that is waited for while somebody wants to connect.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Pauses where the endpoint names none.
const DELAYS: Backoff = Backoff { first: Duration::from_secs(1), max: PAUSE_MAX };
/// How often one token is asked for at most.
const TRIES_MAX: u32 = 3;
/// Longest answer; a token has a few thousand bytes.
const ANSWER_BYTES_MAX: usize = 1 << 18;
/// Longest part of an endpoint's own words that is told, in characters.
const WORDS_MAX: usize = 200;

/// Fields of a request for a token that prove who asks.
const SECRETS: [&str; 3] = ["client_secret", "client_assertion", "password"];
/// What proves to App Service that this process runs in the app.
/// <https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference>
const IDENTITY_HEADER: HeaderName = HeaderName::from_static("x-identity-header");

/// An HTTP client for one endpoint that gives tokens.
#[derive(Debug)]
pub(super) struct Patient {
    http: Arc<dyn HttpClient>,
    left_alone: LeftAlone,
}

/// What one request came to.
enum Asked {
    Granted(AsyncRawResponse),
    /// Worth another request, and not before that.
    Busy(Option<Duration>, Error),
}

impl Patient {
    pub(super) fn new(http: Arc<dyn HttpClient>) -> Self {
        Self { http, left_alone: LeftAlone::default() }
    }

    async fn ask(&self, request: &Request) -> azure_core::Result<Asked> {
        let response = match self.http.execute_request(request).await {
            Ok(response) => response,
            Err(error) if matches!(error.kind(), ErrorKind::Connection | ErrorKind::Io) => {
                return Ok(Asked::Busy(None, error));
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
            return Ok(Asked::Granted(AsyncRawResponse::from_bytes(status, headers, body)));
        }
        let error = refused(request, status, &body);
        if is_busy(status) { Ok(Asked::Busy(retry_after(&headers), error)) } else { Err(error) }
    }
}

#[async_trait]
impl HttpClient for Patient {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let mut tries = 0;
        loop {
            // Whoever asked before may have been dropped in its pause.
            match self.left_alone.rest() {
                Some(rest) if rest > PAUSE_MAX => return Err(left_alone(request, rest)),
                Some(rest) => sleep(rest).await,
                None => {}
            }
            let (asked, error) = match self.ask(request).await? {
                Asked::Granted(response) => return Ok(response),
                Asked::Busy(asked, error) => (asked, error),
            };
            tries += 1;
            let pause = asked.unwrap_or_else(|| DELAYS.delay(tries, random_seed()));
            self.left_alone.keep_for(pause);
            if tries == TRIES_MAX || pause > PAUSE_MAX {
                return Err(error);
            }
        }
    }
}

/// Whether the endpoint says that it cannot answer now.
///
/// 410 is what the metadata service of a virtual machine answers while it is updated.
/// <https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token#error-handling>
fn is_busy(status: StatusCode) -> bool {
    matches!(u16::from(status), 408 | 410 | 429 | 500..=599)
}

fn retry_after(headers: &Headers) -> Option<Duration> {
    headers.get_optional_str(&RETRY_AFTER)?.trim().parse().ok().map(Duration::from_secs)
}

fn is_grant(body: &[u8]) -> bool {
    let Ok(Json::Object(granted)) = serde_json::from_slice(body) else { return false };
    let has_end = granted.get("expires_in").is_some_and(Json::is_i64)
        || granted.get("expires_on").is_some_and(|end| end.is_string() || end.is_i64());
    let token = granted.get("access_token").and_then(Json::as_str);
    has_end && token.is_some_and(|token| !token.is_empty())
}

/// What endpoints say of a refusal: Microsoft Entra and virtual machines in the first three fields, App Service in
/// the last.
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

/// Registers what the request proves itself with: an answer may repeat it, and not all of it is in a setting.
fn hold_secrets(request: &Request) {
    if let Body::Bytes(form) = request.body() {
        let fields = form_urlencoded::parse(form);
        let fields = fields.filter(|(name, _)| SECRETS.contains(&name.as_ref()));
        fields.for_each(|(_, value)| hold_token(&value));
    }
    request.headers().get_optional_str(&IDENTITY_HEADER).into_iter().for_each(hold_token);
}

/// What is wrong with the answer is not told: it may hold the token.
fn no_token(request: &Request) -> Error {
    let text = format!("`{}` granted something that is no token", host(request));
    Error::with_message(ErrorKind::DataConversion, text)
}

fn left_alone(request: &Request, rest: Duration) -> Error {
    let (host, seconds) = (host(request), rest.as_secs());
    let text = format!("`{host}` asked for a pause, of which {seconds} s are left");
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
