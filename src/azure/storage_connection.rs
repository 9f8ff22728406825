//! Connections to a storage account: a connection string, or an identity and an address.
//!
//! Both forms are those of `AzureWebJobsStorage` in Functions. Errors never repeat a value, since any part of
//! a connection string may be a misplaced secret.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use secrecy::SecretString;
use url::Url;

/// A service of a storage account; each has its own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageService {
    /// Blobs.
    Blob,
    /// Queues.
    Queue,
}

impl StorageService {
    /// Returns the last part of the setting with the service's address for an identity.
    pub fn uri_key(self) -> &'static str {
        match self {
            Self::Blob => "blobServiceUri",
            Self::Queue => "queueServiceUri",
        }
    }

    /// Returns the key of a connection string with the service's address.
    fn endpoint_key(self) -> &'static str {
        match self {
            Self::Blob => "BlobEndpoint",
            Self::Queue => "QueueEndpoint",
        }
    }

    /// Returns the part of the host name that follows the account.
    fn label(self) -> &'static str {
        match self {
            Self::Blob => "blob",
            Self::Queue => "queue",
        }
    }

    /// Returns the port of the service in the storage emulator.
    fn development_port(self) -> u16 {
        match self {
            Self::Blob => 10_000,
            Self::Queue => 10_001,
        }
    }
}

/// The address of a storage service, and how to authenticate.
#[derive(Clone, Debug)]
pub enum StorageConnection {
    /// The storage emulator on a developer's machine.
    Development {
        /// Address of the service.
        endpoint: Url,
    },
    /// An account with one of its keys.
    Key {
        /// Name of the account.
        account: String,
        /// The key, in base64.
        key: SecretString,
        /// Address of the service.
        endpoint: Url,
    },
    /// An account with a shared access signature.
    Sas {
        /// The signature's query, without a leading `?`.
        sas: SecretString,
        /// Address of the service.
        endpoint: Url,
    },
    /// An account with a Microsoft Entra identity.
    Identity {
        /// Address of the service.
        endpoint: Url,
        /// Client id of a user-assigned identity; `None` for the system-assigned one.
        client_id: Option<String>,
    },
    /// An account with an application that has a secret, for machines without an identity.
    Principal {
        /// Address of the service.
        endpoint: Url,
        /// The application's tenant.
        tenant_id: String,
        /// The application.
        client_id: String,
        /// Its secret.
        secret: SecretString,
    },
}

/// The identity in the settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentityParts<'a> {
    /// Client id of a user-assigned identity, or of an application.
    pub client_id: Option<&'a str>,
    /// Tenant of an application.
    pub tenant_id: Option<&'a str>,
    /// Secret of an application.
    pub client_secret: Option<&'a SecretString>,
}

/// Name of the storage emulator's account.
/// <https://learn.microsoft.com/azure/storage/common/storage-connect-azurite>
pub const DEVELOPMENT_ACCOUNT: &str = "devstoreaccount1";

/// Key of the storage emulator's account: public, the same everywhere, and not a secret.
/// <https://learn.microsoft.com/azure/storage/common/storage-connect-azurite>
pub const DEVELOPMENT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

impl StorageConnection {
    /// Parses a connection string, for blobs.
    ///
    /// # Errors
    ///
    /// As [`Self::parse_for`].
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        Self::parse_for(StorageService::Blob, text)
    }

    /// Parses a connection string.
    ///
    /// Keys may have any order and case; unknown ones are ignored, as in the SDKs.
    ///
    /// # Errors
    ///
    /// One text per error, none of which contains a value of the string.
    pub fn parse_for(service: StorageService, text: &str) -> Result<Self, Vec<String>> {
        let mut settings = Settings::split(text)?;
        let connection = match settings.take("UseDevelopmentStorage") {
            Some(value) if value.eq_ignore_ascii_case("true") => settings.development(service),
            Some(_) => Err(vec!["`UseDevelopmentStorage` must be `true` or omitted".to_owned()]),
            None => settings.account(service),
        }?;
        Ok(connection)
    }

    /// Parses the identity-based form, for blobs.
    ///
    /// # Errors
    ///
    /// As [`Self::from_identity_for`].
    pub fn from_identity(
        account_name: Option<&str>,
        blob_service_uri: Option<&str>,
        client_id: Option<&str>,
    ) -> Result<Self, Vec<String>> {
        let identity = IdentityParts { client_id, ..IdentityParts::default() };
        Self::from_identity_for(StorageService::Blob, account_name, blob_service_uri, identity)
    }

    /// Parses the identity-based form: the settings `…__accountName` or, for blobs, `…__blobServiceUri`, and
    /// `…__clientId`; for an application with a secret also `…__tenantId` and `…__clientSecret`.
    ///
    /// If both are set, the address takes precedence, as in Functions.
    ///
    /// # Errors
    ///
    /// One text per error.
    pub fn from_identity_for(
        service: StorageService,
        account_name: Option<&str>,
        service_uri: Option<&str>,
        identity: IdentityParts<'_>,
    ) -> Result<Self, Vec<String>> {
        let given = |value: Option<&str>| {
            value.map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let endpoint = match (given(service_uri), given(account_name)) {
            (Some(uri), _) => endpoint(service.uri_key(), &uri, &["https"]),
            (None, Some(account)) => {
                let host = Host { service, scheme: "https", suffix: SUFFIX };
                host.endpoint("accountName", &account)
            }
            (None, None) => Err(format!("`accountName` or `{}` is missing", service.uri_key())),
        };
        let endpoint = endpoint.map_err(|error| vec![error])?;
        let client_id = given(identity.client_id);
        match (given(identity.tenant_id), client_id, identity.client_secret.cloned()) {
            (None, client_id, None) => Ok(Self::Identity { endpoint, client_id }),
            (Some(tenant_id), Some(client_id), Some(secret)) => {
                Ok(Self::Principal { endpoint, tenant_id, client_id, secret })
            }
            _ => {
                let text = "an application needs all of `tenantId`, `clientId` and `clientSecret`";
                Err(vec![text.to_owned()])
            }
        }
    }

    /// Whether this is development storage, which has relaxed rules: leases may be shorter, and a missing
    /// container is created.
    ///
    /// Only `UseDevelopmentStorage=true` selects it. An account name and key do not, whatever the account:
    /// spelled out, they are treated as a real account.
    pub fn is_development(&self) -> bool {
        matches!(self, Self::Development { .. })
    }

    /// Returns the address of the service, without secrets.
    pub fn endpoint(&self) -> &Url {
        match self {
            Self::Development { endpoint }
            | Self::Key { endpoint, .. }
            | Self::Sas { endpoint, .. }
            | Self::Identity { endpoint, .. }
            | Self::Principal { endpoint, .. } => endpoint,
        }
    }
}

/// Host name suffix of public Azure.
const SUFFIX: &str = "core.windows.net";

/// Parts of a connection string, by lower-case key.
struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Splits at `;`, and each part at its first `=`, since keys in base64 end with `=`.
    fn split(text: &str) -> Result<Self, Vec<String>> {
        let mut settings = BTreeMap::new();
        let mut errors = Vec::new();
        for (index, part) in text.split(';').map(str::trim).enumerate() {
            if part.is_empty() {
                continue;
            }
            let number = index + 1;
            match part.split_once('=') {
                None => errors.push(format!("part {number} is not `key=value`")),
                Some((key, value)) => {
                    let key = key.trim().to_ascii_lowercase();
                    if settings.insert(key, value.trim().to_owned()).is_some() {
                        errors.push(format!("part {number} repeats a key"));
                    }
                }
            }
        }
        if settings.is_empty() && errors.is_empty() {
            errors.push("the connection string is empty".to_owned());
        }
        if errors.is_empty() { Ok(Self(settings)) } else { Err(errors) }
    }

    /// Removes and returns a value; an empty one counts as missing.
    fn take(&mut self, key: &str) -> Option<String> {
        self.0.remove(&key.to_ascii_lowercase()).filter(|value| !value.is_empty())
    }

    fn development(mut self, service: StorageService) -> Result<StorageConnection, Vec<String>> {
        let proxy = self.take("DevelopmentStorageProxyUri");
        let proxy = proxy.as_deref().unwrap_or("http://127.0.0.1");
        let endpoint = endpoint("DevelopmentStorageProxyUri", proxy, &["http", "https"])
            .and_then(|uri| {
                let port = uri.port().unwrap_or(service.development_port());
                let scheme = uri.scheme();
                let host = uri.host_str().unwrap_or_default();
                Url::parse(&format!("{scheme}://{host}:{port}/{DEVELOPMENT_ACCOUNT}"))
                    .map_err(|error| format!("`DevelopmentStorageProxyUri`: {error}"))
            })
            .map_err(|error| vec![error])?;
        Ok(StorageConnection::Development { endpoint })
    }

    fn account(mut self, service: StorageService) -> Result<StorageConnection, Vec<String>> {
        let mut errors = Vec::new();
        let name = self.take("AccountName");
        let endpoint = self.endpoint(service, name.as_deref());
        let endpoint = endpoint.map_err(|error| errors.push(error)).ok();
        let key = self.take("AccountKey");
        let sas = self.take("SharedAccessSignature");
        let proof = proof(name, key, sas).map_err(|mut found| errors.append(&mut found)).ok();
        match (endpoint, proof) {
            (Some(endpoint), Some(Proof::Key { account, key })) => {
                Ok(StorageConnection::Key { account, key, endpoint })
            }
            (Some(endpoint), Some(Proof::Sas(sas))) => Ok(StorageConnection::Sas { sas, endpoint }),
            (None, _) | (_, None) => Err(errors),
        }
    }

    fn endpoint(&mut self, service: StorageService, account: Option<&str>) -> Result<Url, String> {
        let key = service.endpoint_key();
        let scheme = self.take("DefaultEndpointsProtocol").unwrap_or_else(|| "https".to_owned());
        let suffix = self.take("EndpointSuffix").unwrap_or_else(|| SUFFIX.to_owned());
        if let Some(uri) = self.take(key) {
            return endpoint(key, &uri, &["http", "https"]);
        }
        let scheme = scheme.to_ascii_lowercase();
        if scheme != "http" && scheme != "https" {
            return Err("`DefaultEndpointsProtocol` must be `http` or `https`".to_owned());
        }
        match account {
            Some(account) => {
                let host = Host { service, scheme: &scheme, suffix: &suffix };
                host.endpoint("AccountName", account)
            }
            None => Err(format!("`AccountName` or `{key}` is missing")),
        }
    }
}

/// How to authenticate to an account.
enum Proof {
    Key { account: String, key: SecretString },
    Sas(SecretString),
}

fn proof(
    account: Option<String>,
    key: Option<String>,
    sas: Option<String>,
) -> Result<Proof, Vec<String>> {
    let mut errors = Vec::new();
    match (key, sas) {
        (Some(_), Some(_)) => {
            errors.push("set `AccountKey` or `SharedAccessSignature`, not both".to_owned());
        }
        (None, None) => {
            errors.push("`AccountKey` or `SharedAccessSignature` is missing".to_owned());
        }
        (None, Some(sas)) => {
            let sas = sas.strip_prefix('?').unwrap_or(&sas);
            if url::form_urlencoded::parse(sas.as_bytes()).any(|(name, _)| name == "sig") {
                return Ok(Proof::Sas(sas.into()));
            }
            errors.push("`SharedAccessSignature` has no `sig`".to_owned());
        }
        (Some(key), None) => match (account, BASE64.decode(&key).is_ok()) {
            (Some(account), true) => return Ok(Proof::Key { account, key: key.into() }),
            (account, decodes) => {
                if account.is_none() {
                    errors.push("`AccountName` is missing; `AccountKey` needs it".to_owned());
                }
                if !decodes {
                    errors.push("`AccountKey` is not base64; copy all of it".to_owned());
                }
            }
        },
    }
    Err(errors)
}

/// The parts of an account's address besides its name.
struct Host<'a> {
    service: StorageService,
    scheme: &'a str,
    suffix: &'a str,
}

impl Host<'_> {
    /// Returns the address of a service of `account`, the value of `key`.
    fn endpoint(&self, key: &str, account: &str) -> Result<Url, String> {
        // A wrong character could turn the name into another host.
        let plain = |character: char| matches!(character, 'a'..='z' | '0'..='9' | '-');
        if account.is_empty() || !account.chars().all(plain) {
            return Err(format!("`{key}` must be lower-case letters and digits"));
        }
        let Self { service, scheme, suffix } = self;
        Url::parse(&format!("{scheme}://{account}.{}.{suffix}", service.label()))
            .map_err(|error| format!("`EndpointSuffix` does not form an address: {error}"))
    }
}

/// Parses an address. It must have no query: a signature there would end up in logs.
fn endpoint(key: &str, uri: &str, schemes: &[&str]) -> Result<Url, String> {
    let wanted = schemes.join(" or ");
    let url = Url::parse(uri).map_err(|error| format!("`{key}` is not an address: {error}"))?;
    if !schemes.contains(&url.scheme()) || !url.has_host() {
        return Err(format!("`{key}` must be an {wanted} address"));
    }
    let bare = url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    if bare { Ok(url) } else { Err(format!("`{key}` must have no query and no user name")) }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use secrecy::ExposeSecret as _;

    use super::*;

    /// Describes a connection with its secrets, for comparison.
    fn shown(connection: Result<StorageConnection, Vec<String>>) -> String {
        match connection {
            Ok(StorageConnection::Development { endpoint }) => format!("development {endpoint}"),
            Ok(StorageConnection::Key { account, key, endpoint }) => {
                format!("key {account} {} {endpoint}", key.expose_secret())
            }
            Ok(StorageConnection::Sas { sas, endpoint }) => {
                format!("sas {} {endpoint}", sas.expose_secret())
            }
            Ok(StorageConnection::Identity { endpoint, client_id }) => {
                format!("identity {endpoint} {client_id:?}")
            }
            Ok(StorageConnection::Principal { endpoint, tenant_id, client_id, secret }) => {
                format!("principal {endpoint} {tenant_id} {client_id} {}", secret.expose_secret())
            }
            Err(errors) => format!("error: {}", errors.join("; ")),
        }
    }

    fn check(shown: impl Fn(&str) -> String, texts: &[&str], expected: &Expect) {
        let lines: Vec<_> =
            texts.iter().map(|text| format!("{text}\n  {}\n", shown(text))).collect();
        expected.assert_eq(&lines.concat());
    }

    #[test]
    fn only_the_explicit_setting_selects_development_storage() {
        for (text, expected) in [
            ("UseDevelopmentStorage=true", true),
            ("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite", true),
            ("AccountName=devstoreaccount1;AccountKey=a2V5PT0=", false),
        ] {
            let connection = StorageConnection::parse(text).unwrap();
            assert_eq!(connection.is_development(), expected, "{text}");
        }
    }

    #[test]
    fn connection_strings_are_parsed() {
        check(
            |text| shown(StorageConnection::parse(text)),
            &[
                "UseDevelopmentStorage=true",
                "usedevelopmentstorage=True;",
                "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite",
                "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=https://localhost:7000/",
                "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=a2V5PT0=;EndpointSuffix=core.windows.net",
                "AccountName=acme;AccountKey=a2V5PT0=",
                " accountname = acme ; ACCOUNTKEY = a2V5PT0= ; QueueEndpoint=x ; ;",
                "DefaultEndpointsProtocol=http;AccountName=acme;AccountKey=a2V5PT0=;EndpointSuffix=core.chinacloudapi.cn",
                "AccountName=devstoreaccount1;AccountKey=a2V5PT0=;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1",
                "BlobEndpoint=https://acme.blob.core.windows.net/;SharedAccessSignature=sv=2024-11-04&sig=a%3D",
                "AccountName=acme;SharedAccessSignature=?sv=2024-11-04&sig=a%3D",
            ],
            &expect![[r"
                UseDevelopmentStorage=true
                  development http://127.0.0.1:10000/devstoreaccount1
                usedevelopmentstorage=True;
                  development http://127.0.0.1:10000/devstoreaccount1
                UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite
                  development http://azurite:10000/devstoreaccount1
                UseDevelopmentStorage=true;DevelopmentStorageProxyUri=https://localhost:7000/
                  development https://localhost:7000/devstoreaccount1
                DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=a2V5PT0=;EndpointSuffix=core.windows.net
                  key acme a2V5PT0= https://acme.blob.core.windows.net/
                AccountName=acme;AccountKey=a2V5PT0=
                  key acme a2V5PT0= https://acme.blob.core.windows.net/
                 accountname = acme ; ACCOUNTKEY = a2V5PT0= ; QueueEndpoint=x ; ;
                  key acme a2V5PT0= https://acme.blob.core.windows.net/
                DefaultEndpointsProtocol=http;AccountName=acme;AccountKey=a2V5PT0=;EndpointSuffix=core.chinacloudapi.cn
                  key acme a2V5PT0= http://acme.blob.core.chinacloudapi.cn/
                AccountName=devstoreaccount1;AccountKey=a2V5PT0=;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1
                  key devstoreaccount1 a2V5PT0= http://127.0.0.1:10000/devstoreaccount1
                BlobEndpoint=https://acme.blob.core.windows.net/;SharedAccessSignature=sv=2024-11-04&sig=a%3D
                  sas sv=2024-11-04&sig=a%3D https://acme.blob.core.windows.net/
                AccountName=acme;SharedAccessSignature=?sv=2024-11-04&sig=a%3D
                  sas sv=2024-11-04&sig=a%3D https://acme.blob.core.windows.net/
            "]],
        );
    }

    #[test]
    fn queues_have_their_own_addresses() {
        let key = "AccountName=acme;AccountKey=a2V5PT0=";
        check(
            |text| shown(StorageConnection::parse_for(StorageService::Queue, text)),
            &[
                "UseDevelopmentStorage=true",
                key,
                &format!("{key};BlobEndpoint=x;QueueEndpoint=http://127.0.0.1:10001/acme"),
                "BlobEndpoint=https://acme.blob.core.windows.net/;SharedAccessSignature=sig=a",
            ],
            &expect![[r#"
                UseDevelopmentStorage=true
                  development http://127.0.0.1:10001/devstoreaccount1
                AccountName=acme;AccountKey=a2V5PT0=
                  key acme a2V5PT0= https://acme.queue.core.windows.net/
                AccountName=acme;AccountKey=a2V5PT0=;BlobEndpoint=x;QueueEndpoint=http://127.0.0.1:10001/acme
                  key acme a2V5PT0= http://127.0.0.1:10001/acme
                BlobEndpoint=https://acme.blob.core.windows.net/;SharedAccessSignature=sig=a
                  error: `AccountName` or `QueueEndpoint` is missing
            "#]],
        );
        let identity = |account, uri| {
            let service = StorageService::Queue;
            shown(StorageConnection::from_identity_for(
                service,
                account,
                uri,
                IdentityParts::default(),
            ))
        };
        assert_eq!(
            identity(Some("acme"), None),
            "identity https://acme.queue.core.windows.net/ None"
        );
        let missing = "error: `accountName` or `queueServiceUri` is missing";
        assert_eq!(identity(None, None), missing);
        let plain = "error: `queueServiceUri` must be an https address";
        assert_eq!(identity(None, Some("http://acme")), plain);
    }

    #[test]
    fn all_errors_are_reported_at_once_without_values() {
        check(
            |text| shown(StorageConnection::parse(text)),
            &[
                "",
                " ; ",
                "s3cret",
                "AccountName=acme;s3cret;AccountName=s3cret",
                "UseDevelopmentStorage=s3cret",
                "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=s3cret",
                "AccountName=acme",
                "AccountKey=s3cret",
                "AccountName=acme;AccountKey=",
                "AccountName=acme;AccountKey=a2V5PT0=;SharedAccessSignature=sig=s3cret",
                "AccountName=acme;SharedAccessSignature=sv=s3cret",
                "AccountName=evil.example/s3cret?;AccountKey=a2V5PT0=",
                "DefaultEndpointsProtocol=ftp;AccountName=acme;AccountKey=a2V5PT0=",
                "BlobEndpoint=https://acme.blob.core.windows.net/?sig=s3cret;AccountName=acme;AccountKey=s3cret",
                "BlobEndpoint=acme;SharedAccessSignature=sig=s3cret",
            ],
            &expect![[r"

                  error: the connection string is empty
                 ; 
                  error: the connection string is empty
                s3cret
                  error: part 1 is not `key=value`
                AccountName=acme;s3cret;AccountName=s3cret
                  error: part 2 is not `key=value`; part 3 repeats a key
                UseDevelopmentStorage=s3cret
                  error: `UseDevelopmentStorage` must be `true` or omitted
                UseDevelopmentStorage=true;DevelopmentStorageProxyUri=s3cret
                  error: `DevelopmentStorageProxyUri` is not an address: relative URL without a base
                AccountName=acme
                  error: `AccountKey` or `SharedAccessSignature` is missing
                AccountKey=s3cret
                  error: `AccountName` or `BlobEndpoint` is missing; `AccountName` is missing; `AccountKey` needs it; `AccountKey` is not base64; copy all of it
                AccountName=acme;AccountKey=
                  error: `AccountKey` or `SharedAccessSignature` is missing
                AccountName=acme;AccountKey=a2V5PT0=;SharedAccessSignature=sig=s3cret
                  error: set `AccountKey` or `SharedAccessSignature`, not both
                AccountName=acme;SharedAccessSignature=sv=s3cret
                  error: `SharedAccessSignature` has no `sig`
                AccountName=evil.example/s3cret?;AccountKey=a2V5PT0=
                  error: `AccountName` must be lower-case letters and digits
                DefaultEndpointsProtocol=ftp;AccountName=acme;AccountKey=a2V5PT0=
                  error: `DefaultEndpointsProtocol` must be `http` or `https`
                BlobEndpoint=https://acme.blob.core.windows.net/?sig=s3cret;AccountName=acme;AccountKey=s3cret
                  error: `BlobEndpoint` must have no query and no user name; `AccountKey` is not base64; copy all of it
                BlobEndpoint=acme;SharedAccessSignature=sig=s3cret
                  error: `BlobEndpoint` is not an address: relative URL without a base
            "]],
        );
    }

    #[test]
    fn identities_are_parsed() {
        let cases = [
            (Some("acme"), None, None),
            (Some("acme"), None, Some("11111111-2222-3333-4444-555555555555")),
            (Some("acme"), Some("https://other.blob.core.windows.net"), Some("")),
            (None, Some("http://acme.blob.core.windows.net"), None),
            (None, Some("https://acme.blob.core.windows.net/?sig=s3cret"), None),
            (Some("Acme"), None, None),
            (Some(" "), None, Some("id")),
        ];
        let lines: Vec<_> = cases
            .into_iter()
            .map(|(account, uri, client)| {
                let connection = StorageConnection::from_identity(account, uri, client);
                format!("{account:?} {uri:?} {client:?}\n  {}\n", shown(connection))
            })
            .collect();
        expect![[r#"
            Some("acme") None None
              identity https://acme.blob.core.windows.net/ None
            Some("acme") None Some("11111111-2222-3333-4444-555555555555")
              identity https://acme.blob.core.windows.net/ Some("11111111-2222-3333-4444-555555555555")
            Some("acme") Some("https://other.blob.core.windows.net") Some("")
              identity https://other.blob.core.windows.net/ None
            None Some("http://acme.blob.core.windows.net") None
              error: `blobServiceUri` must be an https address
            None Some("https://acme.blob.core.windows.net/?sig=s3cret") None
              error: `blobServiceUri` must have no query and no user name
            Some("Acme") None None
              error: `accountName` must be lower-case letters and digits
            Some(" ") None Some("id")
              error: `accountName` or `blobServiceUri` is missing
        "#]].assert_eq(&lines.concat());
    }

    #[test]
    fn an_application_needs_all_three_parts() {
        let secret = SecretString::from("s3cret");
        let read = |tenant_id, client_id, secret| {
            let identity = IdentityParts { client_id, tenant_id, client_secret: secret };
            let service = StorageService::Blob;
            StorageConnection::from_identity_for(service, Some("acme"), None, identity)
        };
        let complete = read(Some("tenant"), Some("app"), Some(&secret));
        assert!(!format!("{complete:?}").contains("s3cret"), "{complete:?}");
        let expected = "principal https://acme.blob.core.windows.net/ tenant app s3cret";
        assert_eq!(shown(complete), expected);
        for (tenant, client, secret) in [
            (None, Some("app"), Some(&secret)),
            (Some("tenant"), None, Some(&secret)),
            (Some("tenant"), Some("app"), None),
        ] {
            let text = shown(read(tenant, client, secret));
            assert!(text.contains("`tenantId`, `clientId` and `clientSecret`"), "{text}");
        }
    }

    #[test]
    fn debug_output_holds_no_secret() {
        for text in [
            "AccountName=acme;AccountKey=czNjcmV0",
            "BlobEndpoint=https://a.example;SharedAccessSignature=sv=1&sig=czNjcmV0",
        ] {
            let shown = format!("{:?}", StorageConnection::parse(text).unwrap());
            assert!(!shown.contains("czNjcmV0"), "{shown}");
        }
    }
}
