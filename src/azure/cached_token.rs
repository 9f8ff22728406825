//! Caches tokens until shortly before they expire.
//!
//! # Design
//!
//! A token is needed for every new connection, and then it is urgent. Some credentials start a program for
//! each token, and none falls back to its current token if a new one is temporarily unavailable. This wrapper
//! fixes both, for all credentials alike. It also sanitizes their errors, which contain the answer of an
//! endpoint or a program.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::error::{Error, ErrorKind};
use highwater_engine::clock::Clock;
use highwater_engine::redaction::hold_token;
use time::Duration;
use tokio::sync::Mutex;

use super::failure::describe;

/// How long before its expiry a token is replaced: as in the identity library.
const REFRESH_BEFORE: Duration = Duration::minutes(5);
/// Shortest remaining lifetime of a token that is still used if it cannot be renewed: enough to log in.
const REST_MIN: Duration = Duration::seconds(30);

/// A credential that caches its last token.
pub struct CachedToken {
    credential: Arc<dyn TokenCredential>,
    clock: Arc<dyn Clock>,
    kept: Mutex<Option<Kept>>,
}

struct Kept {
    scopes: Vec<String>,
    token: AccessToken,
}

impl fmt::Debug for CachedToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CachedToken")
            .field("credential", &self.credential)
            .finish_non_exhaustive()
    }
}

impl CachedToken {
    /// Wraps a credential; `clock` determines the expiry of its tokens.
    pub fn new(credential: Arc<dyn TokenCredential>, clock: Arc<dyn Clock>) -> Self {
        Self { credential, clock, kept: Mutex::default() }
    }
}

#[async_trait]
impl TokenCredential for CachedToken {
    async fn get_token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        // Concurrent callers wait for this request.
        let mut kept = self.kept.lock().await;
        let old = kept.as_ref().filter(|kept| kept.scopes == scopes).map(|kept| &kept.token);
        let rest = old.map_or(Duration::ZERO, |token| token.expires_on - self.clock.now());
        if let Some(token) = old
            && rest > REFRESH_BEFORE
        {
            return Ok(token.clone());
        }
        match (self.credential.get_token(scopes, options).await, old) {
            (Ok(token), _) => {
                hold_token(token.token.secret());
                let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
                *kept = Some(Kept { scopes, token: token.clone() });
                Ok(token)
            }
            (Err(error), Some(token)) if rest > REST_MIN => {
                let error = describe(&error);
                tracing::warn!(%error, "Failed to renew a token; the current one is valid for {rest}");
                Ok(token.clone())
            }
            (Err(error), _) => {
                let text = describe(&error);
                // The cause is kept for its status.
                Err(Error::with_error(ErrorKind::Credential, error, text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use highwater_engine::clock::TokioClock;

    use super::*;

    /// Returns the given tokens, and then fails.
    #[derive(Debug)]
    struct Script(StdMutex<Vec<AccessToken>>);

    #[async_trait]
    impl TokenCredential for Script {
        async fn get_token(
            &self,
            _: &[&str],
            _: Option<TokenRequestOptions<'_>>,
        ) -> azure_core::Result<AccessToken> {
            let next = self.0.lock().unwrap().pop();
            next.ok_or_else(|| Error::with_message(ErrorKind::Credential, "no"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_cached_replaced_before_its_expiry_and_never_used_after_it() {
        let clock = Arc::new(TokioClock::starting_at(time::OffsetDateTime::UNIX_EPOCH));
        let begin = clock.now();
        let token = |name: &'static str, minutes| {
            AccessToken::new(name, begin + Duration::minutes(minutes))
        };
        let script = vec![token("b", 120), token("other", 120), token("a", 60)];
        let kept = CachedToken::new(Arc::new(Script(StdMutex::new(script))), clock.clone());
        let at = async |seconds, scope: &str| {
            let until = begin + Duration::seconds(seconds) - clock.now();
            tokio::time::advance(until.unsigned_abs()).await;
            kept.get_token(&[scope], None).await.map(|token| token.token.secret().to_owned())
        };
        assert_eq!(at(0, "x").await.unwrap(), "a");
        assert_eq!(at(54 * 60, "x").await.unwrap(), "a");
        assert_eq!(at(54 * 60, "y").await.unwrap(), "other", "of another scope");
        assert_eq!(at(55 * 60, "x").await.unwrap(), "b");
        // From here on no new token is available.
        assert_eq!(at(116 * 60, "x").await.unwrap(), "b");
        assert_eq!(at(120 * 60 - 31, "x").await.unwrap(), "b");
        at(120 * 60 - 30, "x").await.unwrap_err();
    }
}
