//! Tokens that authenticate an identity to a service outside of Azure.

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::TokenCredential;

use super::failure::describe;
use super::{ConnectError, IdentitySource};

/// The tokens of one identity for one audience.
#[derive(Clone)]
pub struct Tokens {
    credential: Arc<dyn TokenCredential>,
    audience: String,
}

impl Tokens {
    /// Returns the tokens of `source` for `audience`; requests none yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the settings of the identity are incomplete.
    pub fn new(
        source: IdentitySource,
        client_id: Option<&str>,
        audience: &str,
    ) -> Result<Self, ConnectError> {
        Ok(Self::of(super::credential(source, client_id)?, audience))
    }

    /// Returns the tokens of `credential` for `audience`.
    pub fn of(credential: Arc<dyn TokenCredential>, audience: &str) -> Self {
        Self { credential, audience: audience.to_owned() }
    }

    /// Returns a valid token; the credential caches it.
    ///
    /// # Errors
    ///
    /// Why there is no token, and what to check.
    pub async fn get(&self) -> Result<String, String> {
        // The format of version 2 of the identity platform.
        // <https://learn.microsoft.com/entra/identity-platform/scopes-oidc#the-default-scope>
        let scope = format!("{}/.default", self.audience.trim_end_matches('/'));
        let token = self.credential.get_token(&[&scope], None).await;
        token.map(|token| token.token.secret().to_owned()).map_err(|error| {
            let (audience, why) = (&self.audience, describe(&error));
            format!(
                "get a token for audience `{audience}`: {why}; check that the app has an identity \
                 and that the audience is correct"
            )
        })
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tokens").field("audience", &self.audience).finish_non_exhaustive()
    }
}
