//! Tokens, kept until shortly before they expire.
//!
//! # Why so
//!
//! A token is needed whenever a connection is made, and connections are made in a hurry. Some
//! credentials start a program for each token, and none offers the token it has when a new one can't be
//! had for a moment; both are mended here, for every credential alike. So is what they say: their errors hold
//! whatever an endpoint or a program answered.

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

/// How long before its end a token is replaced: as the identity library does it.
const REFRESH_BEFORE: Duration = Duration::minutes(5);
/// Shortest rest of life of a token that is still used where no other can be had: enough to log in.
const REST_MIN: Duration = Duration::seconds(30);

/// A credential that keeps its last token.
pub struct KeptToken {
    credential: Arc<dyn TokenCredential>,
    clock: Arc<dyn Clock>,
    kept: Mutex<Option<Kept>>,
}

struct Kept {
    scopes: Vec<String>,
    token: AccessToken,
}

impl fmt::Debug for KeptToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KeptToken")
            .field("credential", &self.credential)
            .finish_non_exhaustive()
    }
}

impl KeptToken {
    /// Wraps a credential; `clock` judges the ends of its tokens.
    pub fn new(credential: Arc<dyn TokenCredential>, clock: Arc<dyn Clock>) -> Self {
        Self { credential, clock, kept: Mutex::default() }
    }
}

#[async_trait]
impl TokenCredential for KeptToken {
    async fn get_token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        // Whoever else needs one now waits for this one.
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
                tracing::warn!(%error, "No new token could be had, the old one is good for {rest}");
                Ok(token.clone())
            }
            (Err(error), _) => {
                let text = describe(&error);
                // The cause stays, for its status.
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

    /// Hands out what it was given, and then fails.
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
    async fn a_token_is_kept_replaced_before_its_end_and_never_used_beyond_it() {
        let clock = Arc::new(TokioClock::starting_at(time::OffsetDateTime::UNIX_EPOCH));
        let begin = clock.now();
        let token = |name: &'static str, minutes| {
            AccessToken::new(name, begin + Duration::minutes(minutes))
        };
        let script = vec![token("b", 120), token("other", 120), token("a", 60)];
        let kept = KeptToken::new(Arc::new(Script(StdMutex::new(script))), clock.clone());
        let at = async |seconds, scope: &str| {
            let until = begin + Duration::seconds(seconds) - clock.now();
            tokio::time::advance(until.unsigned_abs()).await;
            kept.get_token(&[scope], None).await.map(|token| token.token.secret().to_owned())
        };
        assert_eq!(at(0, "x").await.unwrap(), "a");
        assert_eq!(at(54 * 60, "x").await.unwrap(), "a");
        assert_eq!(at(54 * 60, "y").await.unwrap(), "other", "of another scope");
        assert_eq!(at(55 * 60, "x").await.unwrap(), "b");
        // From here on there is no new one.
        assert_eq!(at(116 * 60, "x").await.unwrap(), "b");
        assert_eq!(at(120 * 60 - 31, "x").await.unwrap(), "b");
        at(120 * 60 - 30, "x").await.unwrap_err();
    }
}
