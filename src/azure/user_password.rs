//! Tokens for a Microsoft Entra user with a password: the OAuth 2.0 resource owner password grant.
//! <https://learn.microsoft.com/entra/identity-platform/v2-oauth-ropc>
//!
//! # Design
//!
//! The identity library deliberately has no such credential: a password cannot satisfy a second factor, and
//! an app with the password cannot be distinguished from the user. But connection strings with
//! `Authentication=Active Directory Password` exist, and can be used here unchanged. If the login is refused,
//! the error says what to use instead.
//!
//! Errors never contain the password, nor the service's own message unredacted, since that might repeat it.

mod refusal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::error::{Error, ErrorKind};
use azure_core::http::headers::{CONTENT_TYPE, Headers, RETRY_AFTER};
use azure_core::http::{HttpClient, Method, Request, StatusCode};
use highwater_engine::backoff::{Backoff, random_seed};
use highwater_engine::clock::Clock;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::time::sleep;
use url::{Url, form_urlencoded};

use super::ConnectError;
use super::request_pause::RequestPause;

/// Login service of the public cloud.
/// <https://learn.microsoft.com/entra/identity-platform/authentication-national-cloud>
const AUTHORITY: &str = "https://login.microsoftonline.com";
/// The public client that logs in: Microsoft.Data.SqlClient, which is already known in every tenant.
/// `ActiveDirectoryAuthentication.AdoClientId` in <https://github.com/dotnet/SqlClient>
const CLIENT_ID: &str = "2fd908ad-0664-4344-b9be-cd3e8b574c38";
/// Longest pause to wait for while a connection is being made.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Pauses if the service is busy and does not specify one.
const DELAYS: Backoff = Backoff { first: Duration::from_secs(1), max: PAUSE_MAX };
/// Most requests for one token.
const TRIES_MAX: u32 = 3;

/// A user, and where to log in.
#[derive(Clone, Debug)]
pub struct User {
    /// Such as `ada@acme.example`.
    pub name: String,
    /// The user's password.
    pub password: SecretString,
    /// The tenant's id or domain, or `organizations` for the tenant of the name.
    pub tenant: String,
    /// Address of the cloud's login service, https only; the public cloud's if absent.
    pub authority: Option<String>,
}

/// The credential of one user.
pub(super) struct UserPassword {
    user: User,
    endpoint: Url,
    http: Arc<dyn HttpClient>,
    clock: Arc<dyn Clock>,
    pause: RequestPause,
}

impl fmt::Debug for UserPassword {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UserPassword")
            .field("endpoint", &self.endpoint.as_str())
            .finish_non_exhaustive()
    }
}

/// The outcome of one request.
enum Answer {
    Token(AccessToken),
    /// May be retried, but not before this pause.
    Busy(Option<Duration>, Error),
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    /// Seconds.
    expires_in: i64,
}

impl UserPassword {
    /// Returns the credential of `user`, which sends requests through `http`; sends nothing yet.
    pub(super) fn new(
        user: User,
        http: Arc<dyn HttpClient>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ConnectError> {
        let endpoint = endpoint(&user)?;
        Ok(Self { user, endpoint, http, clock, pause: RequestPause::default() })
    }

    async fn ask(&self, scopes: &[&str]) -> azure_core::Result<Answer> {
        let mut request = Request::new(self.endpoint.clone(), Method::Post);
        request.insert_header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("client_id", CLIENT_ID)
            .append_pair("grant_type", "password")
            .append_pair("username", &self.user.name)
            .append_pair("password", self.user.password.expose_secret())
            .append_pair("scope", &scopes.join(" "))
            .finish();
        request.set_body(form);
        let response = self.http.execute_request(&request).await?;
        let (status, headers, body) = response.deconstruct();
        let body = body.collect().await?;
        if status.is_success() {
            return self.granted(&body).map(Answer::Token);
        }
        let error = refusal::error(status, &body, &self.user);
        if is_busy(status) { Ok(Answer::Busy(retry_after(&headers), error)) } else { Err(error) }
    }

    fn granted(&self, body: &[u8]) -> azure_core::Result<AccessToken> {
        // The error does not describe the answer, which may contain the token.
        let unreadable = "Microsoft Entra returned an invalid token response";
        let granted: Granted = serde_json::from_slice(body)
            .ok()
            .ok_or_else(|| Error::with_message(ErrorKind::DataConversion, unreadable))?;
        let expires_on = self.clock.now() + time::Duration::seconds(granted.expires_in);
        Ok(AccessToken::new(granted.access_token, expires_on))
    }
}

#[async_trait]
impl TokenCredential for UserPassword {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let mut tries = 0;
        loop {
            if let Some(rest) = self.pause.remaining() {
                return Err(refusal::pause_requested(rest));
            }
            let (requested_pause, error) = match self.ask(scopes).await? {
                Answer::Token(token) => return Ok(token),
                Answer::Busy(requested_pause, error) => (requested_pause, error),
            };
            tries += 1;
            let pause = requested_pause.unwrap_or_else(|| DELAYS.delay(tries, random_seed()));
            if pause > PAUSE_MAX {
                self.pause.start(pause);
                return Err(error);
            }
            if tries == TRIES_MAX {
                return Err(error);
            }
            sleep(pause).await;
        }
    }
}

/// Whether the service is too busy now.
fn is_busy(status: StatusCode) -> bool {
    [StatusCode::TooManyRequests, StatusCode::ServiceUnavailable].contains(&status)
}

fn retry_after(headers: &Headers) -> Option<Duration> {
    headers.get_optional_str(&RETRY_AFTER)?.trim().parse().ok().map(Duration::from_secs)
}

fn endpoint(user: &User) -> Result<Url, ConnectError> {
    let authority = user.authority.as_deref().unwrap_or(AUTHORITY);
    let tenant = user.tenant.as_str();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    if tenant.is_empty() || !tenant.chars().all(is_name) {
        return Err(ConnectError(format!(
            "tenant `{tenant}` must be an id or a domain of Microsoft Entra: check `AZURE_TENANT_ID`"
        )));
    }
    Url::parse(authority)
        .ok()
        .filter(|url| url.scheme() == "https")
        .and_then(|url| url.join(&format!("/{tenant}/oauth2/v2.0/token")).ok())
        .ok_or_else(|| {
            ConnectError(format!(
                "`AZURE_AUTHORITY_HOST` is `{authority}`, must be like `{AUTHORITY}`"
            ))
        })
}
