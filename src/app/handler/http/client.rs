//! The HTTP client.

use std::time::Duration;

use reqwest::Certificate;
use thiserror::Error;

use crate::config::Authorities;

/// Limit on establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle connections are closed earlier than common load balancers do (60 seconds or more).
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Why an HTTP client could not be built.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Usually, the system has no usable root certificates.
    #[error("build the HTTP client")]
    Make(#[source] reqwest::Error),
    /// The CA certificates cannot be read.
    #[error("read the CA certificates: expected PEM")]
    Pem(#[source] reqwest::Error),
    /// The setting contains no certificate.
    #[error("read the CA certificates: no `-----BEGIN CERTIFICATE-----` found")]
    NoCertificate,
    /// The file with the certificates cannot be read.
    #[error("read the CA certificates from `{path}`")]
    File {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// An HTTP client with its connections; cheap to clone, and shared by all pollers of a process.
#[derive(Clone, Debug)]
pub struct Client(pub(super) reqwest::Client);

impl Client {
    /// Returns a client that keeps connections alive and follows no redirects.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the system has no usable root certificates.
    pub fn new() -> Result<Self, ClientError> {
        Self::make(Vec::new())
    }

    /// Returns a client that also trusts `authorities`.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if their certificates cannot be read.
    pub fn trusting(authorities: &Authorities) -> Result<Self, ClientError> {
        let pem = match authorities {
            Authorities::Pem(text) => text.clone().into_bytes(),
            Authorities::File(path) => std::fs::read(path)
                .map_err(|source| ClientError::File { path: path.display().to_string(), source })?,
        };
        let certificates = Certificate::from_pem_bundle(&pem).map_err(ClientError::Pem)?;
        if certificates.is_empty() {
            return Err(ClientError::NoCertificate);
        }
        Self::make(certificates)
    }

    fn make(authorities: Vec<Certificate>) -> Result<Self, ClientError> {
        let builder = reqwest::Client::builder()
            .user_agent(concat!("highwater/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .tls_certs_merge(authorities);
        builder.build().map(Self).map_err(ClientError::Make)
    }
}
