//! Authentication of requests.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::timeout;

use crate::azure::Tokens;
use crate::config::HttpAuth;
use crate::handler::HandlerError;

/// <https://learn.microsoft.com/azure/azure-functions/function-keys-how-to>
const FUNCTIONS_KEY: HeaderName = HeaderName::from_static("x-functions-key");

/// How requests authenticate.
#[derive(Clone, Debug)]
pub(super) enum Auth {
    None,
    /// The same header for each request.
    Static(HeaderName, SecretString),
    /// A bearer token; `None` if there is no source of tokens.
    Bearer(Option<Tokens>),
}

/// A header that authenticates a request.
pub(super) struct Proof {
    pub(super) name: HeaderName,
    pub(super) value: HeaderValue,
}

impl Auth {
    pub(super) fn of(config: &HttpAuth) -> Self {
        match config {
            HttpAuth::None => Self::None,
            HttpAuth::FunctionKey(key) => Self::Static(FUNCTIONS_KEY, key.clone()),
            HttpAuth::Header { name, value } => {
                // The configuration has checked the name.
                let parsed = HeaderName::from_bytes(name.as_bytes());
                parsed.map_or(Self::None, |name| Self::Static(name, value.clone()))
            }
            HttpAuth::Identity { .. } => Self::Bearer(None),
        }
    }

    /// Returns the header for the next request; waits for a token for at most `limit`.
    pub(super) async fn prove(&self, limit: Duration) -> Result<Option<Proof>, HandlerError> {
        let (name, text) = match self {
            Self::None => return Ok(None),
            Self::Static(name, secret) => (name.clone(), secret.expose_secret().to_owned()),
            Self::Bearer(tokens) => {
                let token = token(tokens.as_ref(), limit).await?;
                (AUTHORIZATION, format!("Bearer {token}"))
            }
        };
        let mut value = HeaderValue::from_str(&text).map_err(|_invalid| {
            HandlerError::Misconfigured(format!(
                "header `{name}` would contain a control character"
            ))
        })?;
        value.set_sensitive(true);
        Ok(Some(Proof { name, value }))
    }
}

/// A missing token is not the target's fault, so it does not count as an attempt.
async fn token(tokens: Option<&Tokens>, limit: Duration) -> Result<String, HandlerError> {
    let Some(tokens) = tokens else {
        let reason = "no identity to get a token from".to_owned();
        return Err(HandlerError::Misconfigured(reason));
    };
    match timeout(limit, tokens.get()).await {
        Ok(token) => token.map_err(HandlerError::Misconfigured),
        Err(_elapsed) => {
            let reason = format!("get a token: no answer from the identity within {limit:?}");
            Err(HandlerError::Misconfigured(reason))
        }
    }
}
