//! Tokens that prove an identity to a service other than Azure's own.

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
    /// Returns the tokens that `source` gives for `audience`; asks for none yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the identity's source is incomplete.
    pub fn new(
        source: IdentitySource,
        client_id: Option<&str>,
        audience: &str,
    ) -> Result<Self, ConnectError> {
        Ok(Self::of(super::credential(source, client_id)?, audience))
    }

    /// Returns the tokens that `credential` gives for `audience`.
    pub fn of(credential: Arc<dyn TokenCredential>, audience: &str) -> Self {
        Self { credential, audience: audience.to_owned() }
    }

    /// Returns a token that is good now; the credential keeps those that still are.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to look at.
    pub async fn get(&self) -> Result<String, String> {
        // The form that version 2 of the identity platform asks for.
        // <https://learn.microsoft.com/entra/identity-platform/scopes-oidc#the-default-scope>
        let scope = format!("{}/.default", self.audience.trim_end_matches('/'));
        let token = self.credential.get_token(&[&scope], None).await;
        token.map(|token| token.token.secret().to_owned()).map_err(|error| {
            let (audience, why) = (&self.audience, describe(&error));
            format!(
                "get a token for audience `{audience}`: {why}; check that the app has an identity \
                 and the audience is right"
            )
        })
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tokens").field("audience", &self.audience).finish_non_exhaustive()
    }
}
