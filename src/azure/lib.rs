//! Azure for Highwater: identities, clients of Azure Storage, the stores of states and journals in blobs, and
//! the handlers that write blobs and send messages.
//!
//! This module defines how requests are authenticated, timed and reported.
//!
//! # Design
//!
//! No client here retries a request. If the answer to a conditional write is lost and the write is sent
//! again, it conflicts with the version that it wrote itself, which looks exactly like another writer's
//! work. The owner of the write retries it, since only the owner can tell the two cases apart.
//!
//! The errors of the Azure crates contain the full address of a request, including a shared access signature.
//! So no such error leaves this module: [`Failure`] has its own text.

pub mod handler;
mod journal;
mod state;

mod bounded;
mod cached_token;
mod container;
mod failure;
mod request_pause;
mod shared_key;
mod storage_connection;
mod token_client;
mod tokens;
mod user_password;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::{Secret, TokenCredential};
use azure_core::http::{ClientOptions, RetryOptions, Transport};
use azure_identity::{
    ClientSecretCredential, ClientSecretCredentialOptions, DeveloperToolsCredential,
    ManagedIdentityCredential, ManagedIdentityCredentialOptions, UserAssignedId,
    WorkloadIdentityCredential, WorkloadIdentityCredentialOptions,
};
use azure_storage_blob::{BlobContainerClient, BlobContainerClientOptions};
use azure_storage_queue::{QueueClient, QueueClientOptions};
use secrecy::{ExposeSecret as _, SecretString};
use thiserror::Error;
use url::Url;

use self::bounded::BoundedClient;
pub use self::cached_token::CachedToken;
pub(crate) use self::failure::{Answer, Failure, date};
pub use self::journal::BlobJournal;
use self::shared_key::SharedKey;
pub use self::state::BlobStore;
use self::token_client::TokenClient;
use highwater_engine::clock::{Clock, SystemClock};

#[doc(hidden)]
pub use self::storage_connection::{DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY};
pub use self::storage_connection::{IdentityParts, StorageConnection, StorageService};
pub use self::tokens::Tokens;
pub use self::user_password::User;
use self::user_password::UserPassword;

/// Where the tokens of an identity come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentitySource {
    /// The managed identity of the Azure host.
    ManagedIdentity,
    /// A Kubernetes service account.
    WorkloadIdentity,
    /// The user who is logged in to the Azure CLI or the Azure Developer CLI.
    DeveloperTools,
}

impl IdentitySource {
    /// Chooses by the environment of the process.
    ///
    /// `managed_identity`: the host offers one (`IDENTITY_ENDPOINT` is set, or the process runs in Azure).
    /// `federated_token`: Kubernetes has mounted a token (`AZURE_FEDERATED_TOKEN_FILE`).
    pub fn choose(managed_identity: bool, federated_token: bool) -> Self {
        match (managed_identity, federated_token) {
            (true, _) => Self::ManagedIdentity,
            (false, true) => Self::WorkloadIdentity,
            (false, false) => Self::DeveloperTools,
        }
    }
}

/// Why a client cannot be created.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ConnectError(String);

/// Options shared by all clients of a process.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Time limit of one request, including the answer; see [`request_timeout`].
    pub timeout: Duration,
    /// Dates requests that are signed with an account key.
    pub clock: Arc<dyn Clock>,
    /// Where the tokens of an identity come from.
    pub identity: IdentitySource,
}

/// Returns the time limit of storage requests for a lease of `ttl`.
///
/// Several attempts must fit between two heartbeats; otherwise one slow answer would cost the lease.
pub fn request_timeout(ttl: Duration) -> Duration {
    (ttl / 6).clamp(Duration::from_secs(2), Duration::from_secs(20))
}

/// Time limit for connecting; a machine that is up answers much faster.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long an unused connection is kept: shorter than the limits of the service and the network in between.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of one token request.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);

/// One service of one storage account, from the perspective of its clients.
#[derive(Clone)]
struct Account {
    /// Includes the query of a shared access signature, if there is one.
    endpoint: Url,
    credential: Option<Arc<dyn TokenCredential>>,
    options: ClientOptions,
    timeout: Duration,
    is_development: bool,
}

impl fmt::Debug for Account {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut endpoint = self.endpoint.clone();
        endpoint.set_query(None);
        formatter
            .debug_struct("Account")
            .field("endpoint", &endpoint.as_str())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Account {
    fn connect(
        connection: &StorageConnection,
        options: &ServiceOptions,
    ) -> Result<Self, ConnectError> {
        let http = storage_client(connection.endpoint(), options.timeout)?;
        let transport = Transport::new(Arc::new(BoundedClient(http)));
        let mut endpoint = connection.endpoint().clone();
        let mut client = ClientOptions {
            retry: RetryOptions::none(),
            transport: Some(transport),
            ..ClientOptions::default()
        };
        let sign = |account: &str, key: Secret| {
            Arc::new(SharedKey::new(account, key, Arc::clone(&options.clock)))
        };
        let mut credential = None;
        match connection {
            StorageConnection::Development { .. } => {
                client.per_try_policies.push(sign(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY.into()));
            }
            StorageConnection::Key { account, key, .. } => {
                let key = Secret::new(key.expose_secret().to_owned());
                client.per_try_policies.push(sign(account, key));
            }
            StorageConnection::Sas { sas, .. } => endpoint.set_query(Some(sas.expose_secret())),
            StorageConnection::Identity { client_id, .. } => {
                credential = Some(self::credential(options.identity, client_id.as_deref())?);
            }
            StorageConnection::Principal { tenant_id, client_id, secret, .. } => {
                credential = Some(service_principal(tenant_id, client_id, secret)?);
            }
        }
        Ok(Self {
            endpoint,
            credential,
            options: client,
            timeout: options.timeout,
            is_development: connection.is_development(),
        })
    }

    /// Returns the address of `path`. Its first segment must follow the naming rules of containers, which
    /// also apply to queues.
    fn address(&self, what: &str, path: &[&str]) -> Result<Url, ConnectError> {
        let name = path.first().copied().unwrap_or_default();
        if !is_container_name(name) {
            let wanted = "must be 3 to 63 lower-case letters, digits and single `-`";
            return Err(ConnectError(format!("{what} name `{name}` {wanted}")));
        }
        let mut url = self.endpoint.clone();
        url.path_segments_mut()
            .map_err(|()| ConnectError("the storage address cannot have a path".to_owned()))?
            .pop_if_empty()
            .extend(path);
        Ok(url)
    }
}

/// The blobs of one storage account.
///
/// Its clients share connections and tokens, and send every request exactly once.
#[derive(Clone, Debug)]
pub struct BlobService(Account);

/// The queues of one storage account; like [`BlobService`].
#[derive(Clone, Debug)]
pub struct QueueService(Account);

impl QueueService {
    /// Creates the clients' shared parts; sends nothing.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the settings of the identity are incomplete or TLS cannot be set up.
    pub fn connect(
        connection: &StorageConnection,
        options: &ServiceOptions,
    ) -> Result<Self, ConnectError> {
        Account::connect(connection, options).map(Self)
    }

    /// Returns the time limit of one request.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Returns whether this is development storage: see [`StorageConnection::is_development`].
    pub fn is_development(&self) -> bool {
        self.0.is_development
    }

    /// Returns a client of a queue.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the queue name is invalid, or tokens would be sent without https.
    pub(crate) fn queue(&self, name: &str) -> Result<QueueClient, ConnectError> {
        let options = QueueClientOptions {
            client_options: self.0.options.clone(),
            ..QueueClientOptions::default()
        };
        let url = self.0.address("queue", &[name])?;
        QueueClient::new(url, self.0.credential.clone(), Some(options))
            .map_err(|error| ConnectError(failure::describe(&error)))
    }
}

impl BlobService {
    /// Creates the clients' shared parts; sends nothing.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the settings of the identity are incomplete or TLS cannot be set up.
    pub fn connect(
        connection: &StorageConnection,
        options: &ServiceOptions,
    ) -> Result<Self, ConnectError> {
        Account::connect(connection, options).map(Self)
    }

    /// Returns the time limit of one request.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Returns whether this is development storage: see [`StorageConnection::is_development`].
    pub fn is_development(&self) -> bool {
        self.0.is_development
    }

    /// Returns a client of a container, or of a folder in it if `path` has more segments: its blob names then
    /// start with the folder.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the container name is invalid, or tokens would be sent without https.
    pub(crate) fn folder(&self, path: &[&str]) -> Result<BlobContainerClient, ConnectError> {
        let url = self.0.address("container", path)?;
        let options = BlobContainerClientOptions {
            client_options: self.0.options.clone(),
            ..BlobContainerClientOptions::default()
        };
        BlobContainerClient::new(url, self.0.credential.clone(), Some(options))
            .map_err(|error| ConnectError(failure::describe(&error)))
    }
}

/// <https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata>
fn is_container_name(name: &str) -> bool {
    (3..=63).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

fn storage_client(endpoint: &Url, timeout: Duration) -> Result<reqwest::Client, ConnectError> {
    let mut builder = client_builder(timeout);
    if matches!(endpoint.host_str(), Some("127.0.0.1" | "localhost" | "[::1]")) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| ConnectError(failure::describe(&error)))
}

fn http_client(timeout: Duration) -> Result<reqwest::Client, ConnectError> {
    client_builder(timeout).build().map_err(|error| ConnectError(failure::describe(&error)))
}

fn client_builder(timeout: Duration) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(timeout)
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        // Ranges and lengths refer to the stored bytes, so nothing may be decompressed in transit.
        .no_gzip()
        .no_deflate()
}

/// Returns the credential of an identity, which caches its tokens.
///
/// # Errors
///
/// [`ConnectError`] if the settings of the identity are incomplete, or TLS cannot be set up.
pub fn credential(
    source: IdentitySource,
    client_id: Option<&str>,
) -> Result<Arc<dyn TokenCredential>, ConnectError> {
    token_credential(source, client_id).map(cached)
}

/// Returns the credential of an application with a secret.
///
/// # Errors
///
/// [`ConnectError`] if the tenant name is invalid, or TLS cannot be set up.
pub fn service_principal(
    tenant: &str,
    client_id: &str,
    secret: &SecretString,
) -> Result<Arc<dyn TokenCredential>, ConnectError> {
    let secret = Secret::new(secret.expose_secret().to_owned());
    let client_options = token_client(client_builder(TOKEN_TIMEOUT))?;
    let options = Some(ClientSecretCredentialOptions { client_options });
    let credential = ClientSecretCredential::new(tenant, client_id.to_owned(), secret, options)
        .map_err(|error| ConnectError(failure::describe(&error)))?;
    Ok(cached(credential))
}

/// Returns the credential of a user with a password.
///
/// # Errors
///
/// [`ConnectError`] if the tenant name or the login address is invalid, or TLS cannot be set up.
pub fn user_password(user: User) -> Result<Arc<dyn TokenCredential>, ConnectError> {
    let http = http_client(TOKEN_TIMEOUT)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let credential = UserPassword::new(user, Arc::new(BoundedClient(http)), clock)?;
    Ok(cached(Arc::new(credential)))
}

fn cached(credential: Arc<dyn TokenCredential>) -> Arc<dyn TokenCredential> {
    Arc::new(CachedToken::new(credential, Arc::new(SystemClock)))
}

/// Returns the client options of token requests; [`TokenClient`] does the retries.
fn token_client(builder: reqwest::ClientBuilder) -> Result<ClientOptions, ConnectError> {
    let http = builder.build().map_err(|error| ConnectError(failure::describe(&error)))?;
    Ok(ClientOptions {
        retry: RetryOptions::none(),
        transport: Some(Transport::new(Arc::new(TokenClient::new(Arc::new(BoundedClient(http)))))),
        ..ClientOptions::default()
    })
}

fn token_credential(
    source: IdentitySource,
    client_id: Option<&str>,
) -> Result<Arc<dyn TokenCredential>, ConnectError> {
    let client_id = client_id.map(str::to_owned);
    let failed = |error: azure_core::Error| ConnectError(failure::describe(&error));
    let builder = client_builder(TOKEN_TIMEOUT);
    let credential: Arc<dyn TokenCredential> = match source {
        IdentitySource::ManagedIdentity => {
            let user_assigned_id = client_id.map(UserAssignedId::ClientId);
            // The endpoint is on this machine, and the header that authenticates us must not leave it.
            let client_options = token_client(builder.no_proxy())?;
            let options = ManagedIdentityCredentialOptions { user_assigned_id, client_options };
            ManagedIdentityCredential::new(Some(options)).map_err(failed)?
        }
        IdentitySource::WorkloadIdentity => {
            let mut options = WorkloadIdentityCredentialOptions::default();
            options.credential_options.client_options = token_client(builder)?;
            options.client_id = client_id;
            WorkloadIdentityCredential::new(Some(options)).map_err(failed)?
        }
        IdentitySource::DeveloperTools => DeveloperToolsCredential::new(None).map_err(failed)?,
    };
    Ok(credential)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(connection: &str) -> BlobService {
        let options = ServiceOptions {
            timeout: Duration::from_secs(2),
            clock: Arc::new(SystemClock),
            identity: IdentitySource::DeveloperTools,
        };
        BlobService::connect(&StorageConnection::parse(connection).unwrap(), &options).unwrap()
    }

    #[test]
    fn the_request_timeout_is_a_sixth_of_the_lease_within_bounds() {
        for (ttl, timeout) in [(1, 2), (12, 2), (60, 10), (120, 20), (3600, 20)] {
            assert_eq!(request_timeout(Duration::from_secs(ttl)).as_secs(), timeout, "{ttl}");
        }
    }

    #[test]
    fn a_managed_identity_precedes_kubernetes_and_the_developers_login() {
        use IdentitySource::{DeveloperTools, ManagedIdentity, WorkloadIdentity};
        let cases = [
            (true, true, ManagedIdentity),
            (true, false, ManagedIdentity),
            (false, true, WorkloadIdentity),
            (false, false, DeveloperTools),
        ];
        for (managed, federated, source) in cases {
            assert_eq!(IdentitySource::choose(managed, federated), source);
        }
    }

    #[test]
    fn folders_are_below_the_endpoint_with_or_without_a_trailing_slash() {
        for end in ["", "/"] {
            let service = service(&format!(
                "BlobEndpoint=http://127.0.0.1:10000/acme{end};SharedAccessSignature=sv=1&sig=a%2B"
            ));
            let url = service.folder(&["db-state", "state", "a%b"]).unwrap().url().clone();
            let expected = "http://127.0.0.1:10000/acme/db-state/state/a%25b?sv=1&sig=a%2B";
            assert_eq!(url.as_str(), expected);
            assert!(!format!("{service:?}").contains("sig"));
        }
    }

    #[test]
    fn container_names_follow_the_services_rules() {
        for (name, valid) in [
            ("db-state", true),
            ("abc", true),
            ("ab", false),
            ("-ab", false),
            ("ab-", false),
            ("a--b", false),
            ("Db-State", false),
            ("a/b", false),
            (&"a".repeat(64), false),
        ] {
            assert_eq!(service("UseDevelopmentStorage=true").folder(&[name]).is_ok(), valid);
        }
    }
}
