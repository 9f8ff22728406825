//! Where a database is and how to log in: a strict parser for ADO.NET connection strings.
//!
//! # Design
//!
//! The driver's own parser skips unknown keys, and connects to `localhost` if the server is missing. A poller
//! that reads from the wrong place must not start, so every key must be known, and all errors are reported at
//! once. Errors never quote a value that could be a secret.

mod keys;
mod text;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use secrecy::SecretString;

use keys::{Entry, Key, plain};
use text::Pair;

/// Default port of SQL Server.
const PORT_DEFAULT: u16 = 1433;
/// ADO.NET's default for `Connect Timeout`.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);
/// ADO.NET's default for `Command Timeout`.
const COMMAND_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Stands for the tenant of the user's name.
/// <https://learn.microsoft.com/entra/identity-platform/v2-oauth-ropc#authorization-request>
const TENANT_OF_THE_USER: &str = "organizations";
/// Longest accepted time-out, one hour; a longer one is probably a mistake.
const TIMEOUT_MAX_SECONDS: u32 = 3600;

/// A server, a database, and how to log in.
#[derive(Clone, Debug)]
pub struct SqlConnection {
    /// Name or address of the server.
    pub host: String,
    /// Named instance, sent to the server; the port alone decides where to connect.
    pub instance: Option<String>,
    /// TCP port.
    pub port: u16,
    /// The database; the login's default database if absent.
    pub database: Option<String>,
    /// How to log in.
    pub auth: SqlAuth,
    /// How much is encrypted.
    pub encrypt: Encrypt,
    /// Accepts any certificate. Not for production.
    pub trust_server_certificate: bool,
    /// Name to expect in the certificate instead of the host.
    pub host_name_in_certificate: Option<String>,
    /// File with the certificate of the authority that signed the server's.
    pub server_certificate: Option<String>,
    /// Time limit for connecting, including the login.
    pub connect_timeout: Duration,
    /// Time limit for one statement, including its rows.
    pub command_timeout: Duration,
    /// Value of `APP_NAME()` on the server.
    pub application_name: String,
    /// Asks an availability group for a readable secondary.
    pub application_intent_read_only: bool,
    /// Tries all addresses of the server at once.
    pub multi_subnet_failover: bool,
    /// TDS packet size to ask for.
    pub packet_size: Option<u16>,
}

/// How to log in.
#[derive(Clone, Debug)]
pub enum SqlAuth {
    /// With a server login, or a contained user.
    Password {
        /// Its name.
        user: String,
        /// Its password.
        password: SecretString,
    },
    /// With a token of the app's managed identity.
    ManagedIdentity {
        /// Client id of a user-assigned identity, from `User ID`.
        client_id: Option<String>,
    },
    /// With a token of a Kubernetes service account.
    WorkloadIdentity {
        /// Client id of the identity, from `User ID`.
        client_id: Option<String>,
    },
    /// With a token of an application that has a secret.
    ServicePrincipal {
        /// Tenant of the application.
        tenant: String,
        /// Client id of the application.
        client_id: String,
        /// Secret of the application, from `Password`.
        secret: SecretString,
    },
    /// With a token of a Microsoft Entra user who has a password.
    EntraUser {
        /// Such as `ada@acme.example`.
        user: String,
        /// The user's password.
        password: SecretString,
        /// Tenant of the process, or a placeholder for the tenant of the user's name.
        tenant: String,
    },
    /// With a token from any source that the environment offers.
    Default {
        /// Client id of a user-assigned identity, from `User ID`.
        client_id: Option<String>,
    },
}

/// How much of a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encrypt {
    /// Everything, or no connection: the default.
    Mandatory,
    /// The login; the rest too if the server requires it.
    Optional,
    /// TDS 8.0: TLS from the first byte, and a valid certificate.
    Strict,
    /// Nothing, not even the password: `Encrypt=DANGER_PLAINTEXT`, for development.
    Plain,
}

impl SqlConnection {
    /// Whether the server is on this machine.
    pub fn is_local(&self) -> bool {
        matches!(self.host.as_str(), "localhost" | "127.0.0.1" | "::1")
    }

    /// Parses an ADO.NET connection string.
    ///
    /// As in ADO.NET, the last of several equal keys counts, and an empty value means the default.
    ///
    /// # Errors
    ///
    /// All errors of the text, each in words for the operator and without secrets.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        Self::parse_for_tenant(text, None)
    }

    /// Parses an ADO.NET connection string. Its service principal or user belongs to `tenant` unless the
    /// string says otherwise.
    ///
    /// # Errors
    ///
    /// As [`SqlConnection::parse`].
    pub fn parse_for_tenant(text: &str, tenant: Option<&str>) -> Result<Self, Vec<String>> {
        if text::is_address(text) {
            return Err(vec![
                "this is a URL, as used by JDBC: use the ADO.NET form, `Server=tcp:host,1433;\
                 Database=…;User ID=…;Password=…`"
                    .to_owned(),
            ]);
        }
        let (pairs, mut mistakes) = text::split(text);
        let mut reader = Reader { values: known(&pairs, &mut mistakes), tenant, mistakes };
        let server = reader.server();
        let encrypt = reader.encrypt();
        let auth = reader.auth();
        reader.reject_unsupported_values();
        let connection = Self {
            host: server.host,
            instance: server.instance,
            port: server.port,
            database: reader.text(Key::Database),
            auth,
            encrypt,
            trust_server_certificate: reader.flag(Key::TrustServerCertificate),
            host_name_in_certificate: reader.text(Key::HostNameInCertificate),
            server_certificate: reader.text(Key::ServerCertificate),
            connect_timeout: reader.seconds(Key::ConnectTimeout, CONNECT_TIMEOUT_DEFAULT),
            command_timeout: reader.seconds(Key::CommandTimeout, COMMAND_TIMEOUT_DEFAULT),
            application_name: reader
                .text(Key::ApplicationName)
                .unwrap_or_else(|| "highwater".to_owned()),
            application_intent_read_only: reader.read_only(),
            multi_subnet_failover: reader.flag(Key::MultiSubnetFailover),
            packet_size: reader.packet_size(),
        };
        connection.check_trust(&mut reader.mistakes);
        if reader.mistakes.is_empty() { Ok(connection) } else { Err(reader.mistakes) }
    }

    fn check_trust(&self, mistakes: &mut Vec<String>) {
        if self.trust_server_certificate && self.server_certificate.is_some() {
            mistakes.push(
                "`TrustServerCertificate` accepts any certificate, `ServerCertificate` only some: \
                 set only one of them"
                    .to_owned(),
            );
        }
        if self.trust_server_certificate && self.encrypt == Encrypt::Strict {
            mistakes.push(
                "`Encrypt=Strict` always checks the certificate: remove `TrustServerCertificate`, \
                 or name the authority's file in `ServerCertificate`"
                    .to_owned(),
            );
        }
    }
}

/// Returns the keys of a connection string with their values, as far as it can be parsed.
pub fn pairs(text: &str) -> impl Iterator<Item = (String, String)> + use<> {
    text::split(text).0.into_iter().map(|pair| (pair.key, pair.value))
}

/// Returns the keys of connection strings and their effects, as a Markdown table.
pub fn connection_keys_table() -> String {
    keys::table()
}

/// Keeps the last value of each key that has an effect here, and reports the others.
fn known<'a>(pairs: &'a [Pair], mistakes: &mut Vec<String>) -> BTreeMap<Key, &'a Pair> {
    let mut values = BTreeMap::new();
    let mut after_open_password = false;
    for pair in pairs {
        let Some(Entry { key, effect, .. }) = keys::find(&pair.key) else {
            mistakes.push(unknown(&pair.key, after_open_password));
            continue;
        };
        if *key == Key::Refused {
            mistakes.push(format!("`{}`: {effect}", pair.key));
        } else if *key != Key::Ignored {
            match &pair.flaw {
                Some(flaw) => mistakes.push(flaw.clone()),
                None => {
                    values.insert(*key, pair);
                }
            }
        }
        after_open_password = *key == Key::Password && !pair.quoted;
    }
    values
}

fn unknown(key: &str, after_open_password: bool) -> String {
    let meant =
        keys::suggestion(key).map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"));
    if after_open_password {
        // This may be the rest of a password that contains `;`.
        return format!(
            "unknown key after the password{meant}; quote a password that contains `;`"
        );
    }
    format!("unknown key `{key}`{meant}")
}

struct Server {
    host: String,
    instance: Option<String>,
    port: u16,
}

/// Reads values from the pairs, and collects errors.
struct Reader<'a> {
    values: BTreeMap<Key, &'a Pair>,
    /// Tenant of a service principal or a user that does not name one.
    tenant: Option<&'a str>,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    /// Returns the value of a key; `None` if it is absent or empty.
    fn value(&self, key: Key) -> Option<&str> {
        self.values.get(&key).map(|pair| pair.value.as_str()).filter(|value| !value.is_empty())
    }

    fn text(&self, key: Key) -> Option<String> {
        self.value(key).map(str::to_owned)
    }

    /// Reports an invalid value of a key that holds no secret.
    fn refuse(&mut self, key: Key, expected: impl Display) {
        if let Some(pair) = self.values.get(&key) {
            self.mistakes.push(format!("`{}` is `{}`, must be {expected}", pair.key, pair.value));
        }
    }

    fn flag(&mut self, key: Key) -> bool {
        match self.value(key).map(plain).as_deref() {
            None | Some("false" | "no") => false,
            Some("true" | "yes") => true,
            Some(_) => {
                self.refuse(key, "`true` or `false`");
                false
            }
        }
    }

    fn seconds(&mut self, key: Key, default: Duration) -> Duration {
        let Some(text) = self.value(key) else { return default };
        if let Ok(seconds @ 1..=TIMEOUT_MAX_SECONDS) = text.parse::<u32>() {
            return Duration::from_secs(seconds.into());
        }
        self.refuse(key, format_args!("seconds from 1 to {TIMEOUT_MAX_SECONDS}"));
        default
    }

    fn packet_size(&mut self) -> Option<u16> {
        // <https://learn.microsoft.com/dotnet/api/microsoft.data.sqlclient.sqlconnection.packetsize>
        let size = self.value(Key::PacketSize)?.parse().ok().filter(|n| (512..=32_767).contains(n));
        if size.is_none() {
            self.refuse(Key::PacketSize, "a number of bytes from 512 to 32767");
        }
        size
    }

    fn read_only(&mut self) -> bool {
        match self.value(Key::ApplicationIntent).map(plain).as_deref() {
            None | Some("readwrite") => false,
            Some("readonly") => true,
            Some(_) => {
                self.refuse(Key::ApplicationIntent, "`ReadOnly` or `ReadWrite`");
                false
            }
        }
    }

    fn encrypt(&mut self) -> Encrypt {
        match self.value(Key::Encrypt).map(plain).as_deref() {
            None | Some("true" | "yes" | "mandatory") => Encrypt::Mandatory,
            Some("false" | "no" | "optional") => Encrypt::Optional,
            Some("strict") => Encrypt::Strict,
            Some("danger_plaintext") => Encrypt::Plain,
            Some(_) => {
                self.refuse(Key::Encrypt, "`Mandatory`, `Optional`, `Strict`, `true` or `false`");
                Encrypt::Mandatory
            }
        }
    }

    fn auth(&mut self) -> SqlAuth {
        if let Some(pair) = self.values.get(&Key::IntegratedSecurity)
            && !matches!(plain(&pair.value).as_str(), "" | "false" | "no")
        {
            self.mistakes.push(format!(
                "`{}`: Windows authentication is not supported; use `User ID` and `Password`, or \
                 `Authentication=Active Directory Managed Identity`",
                pair.key
            ));
            return SqlAuth::Default { client_id: None };
        }
        let authentication = self.value(Key::Authentication).map(plain);
        match authentication.as_deref() {
            None | Some("notspecified" | "sqlpassword") => self.password(),
            Some("activedirectorymanagedidentity" | "activedirectorymsi") => {
                SqlAuth::ManagedIdentity { client_id: self.client_id() }
            }
            Some("activedirectoryworkloadidentity") => {
                SqlAuth::WorkloadIdentity { client_id: self.client_id() }
            }
            Some("activedirectorydefault") => SqlAuth::Default { client_id: self.client_id() },
            Some("activedirectoryserviceprincipal") => self.service_principal(),
            Some("activedirectorypassword") => self.entra_user(),
            Some(
                kind @ ("activedirectoryinteractive"
                | "activedirectorydevicecodeflow"
                | "activedirectoryintegrated"),
            ) => {
                let advice = replacement_for(kind);
                self.refuse(Key::Authentication, advice);
                SqlAuth::Default { client_id: None }
            }
            Some(_) => {
                self.refuse(
                    Key::Authentication,
                    "`Sql Password` or `Active Directory` with `Managed Identity`, `Workload \
                     Identity`, `Service Principal`, `Password` or `Default`",
                );
                SqlAuth::Default { client_id: None }
            }
        }
    }

    /// Returns the client id of an identity, which has no password.
    fn client_id(&mut self) -> Option<String> {
        if self.value(Key::Password).is_some() {
            self.mistakes
                .push("`Password` has no effect with this `Authentication`: remove it".into());
        }
        self.text(Key::User)
    }

    fn service_principal(&mut self) -> SqlAuth {
        let user = self.required(Key::User, "`User ID`, the client id of the application,");
        let secret = self.required(Key::Password, "`Password`, the secret of the application,");
        let (client_id, tenant) = match user.split_once('@') {
            Some((client_id, tenant)) => (client_id, tenant),
            None => (user.as_str(), self.tenant.unwrap_or_default()),
        };
        let principal = SqlAuth::ServicePrincipal {
            tenant: tenant.to_owned(),
            client_id: client_id.to_owned(),
            secret: secret.into(),
        };
        if tenant.is_empty() && !user.is_empty() {
            self.mistakes.push(
                "the tenant of the application is missing: set `AZURE_TENANT_ID`, or write \
                 `User ID=<client id>@<tenant id>`"
                    .to_owned(),
            );
        }
        principal
    }

    fn entra_user(&mut self) -> SqlAuth {
        let user = self.required(Key::User, "`User ID`, the user's name like `ada@acme.example`,");
        let password = self.required(Key::Password, "`Password`");
        SqlAuth::EntraUser {
            user,
            password: password.into(),
            tenant: self.tenant.unwrap_or(TENANT_OF_THE_USER).to_owned(),
        }
    }

    /// Returns a required value; if it is missing, reports that and returns an empty string.
    fn required(&mut self, key: Key, what: &str) -> String {
        self.text(key).unwrap_or_else(|| {
            self.mistakes.push(format!("{what} is missing"));
            String::new()
        })
    }

    fn password(&mut self) -> SqlAuth {
        let user = self.required(Key::User, "`User ID`");
        let password = self.required(Key::Password, "`Password`");
        SqlAuth::Password { user, password: password.into() }
    }

    fn reject_unsupported_values(&mut self) {
        let library = self.value(Key::NetworkLibrary).map(plain);
        if library.is_some_and(|name| name != "dbmssocn") {
            self.refuse(Key::NetworkLibrary, "`dbmssocn`: only TCP is supported");
        }
        let encryption = self.value(Key::ColumnEncryption).map(plain);
        if encryption.is_some_and(|setting| setting != "disabled") {
            self.refuse(Key::ColumnEncryption, "`Disabled`: Always Encrypted is not supported");
        }
    }

    fn server(&mut self) -> Server {
        let Some(text) = self.text(Key::Server) else {
            self.mistakes.push("`Server` is missing".to_owned());
            return Server { host: String::new(), instance: None, port: PORT_DEFAULT };
        };
        server(&text).unwrap_or_else(|expected| {
            self.refuse(Key::Server, expected);
            Server { host: String::new(), instance: None, port: PORT_DEFAULT }
        })
    }
}

/// Suggests a replacement for a login that needs a person or a Windows domain.
fn replacement_for(kind: &str) -> &'static str {
    match kind {
        "activedirectoryintegrated" => {
            "for example `Active Directory Managed Identity`: Highwater does not run in a Windows domain"
        }
        _ => {
            "for example `Active Directory Managed Identity`: there is no user to log in interactively"
        }
    }
}

/// Parses `[tcp:]host[\instance][,port]`.
fn server(text: &str) -> Result<Server, &'static str> {
    let lower = text.to_lowercase();
    if ["np:", "lpc:", "admin:", "(localdb)"].iter().any(|prefix| lower.starts_with(prefix)) {
        return Err("like `tcp:host,1433`: only TCP is supported");
    }
    let address = lower.strip_prefix("tcp:").and_then(|rest| text.get(text.len() - rest.len()..));
    let (host_part, port) = match address.unwrap_or(text).split_once(',') {
        Some((host_part, port)) => {
            let port = port.trim().parse().ok().filter(|port| *port != 0);
            (host_part, Some(port.ok_or("like `tcp:host,1433`, with a port from 1 to 65535")?))
        }
        None => (address.unwrap_or(text), None),
    };
    let (host, instance) = match host_part.trim().split_once('\\') {
        Some((host, instance)) => (host.trim(), Some(instance.trim().to_owned())),
        None => (host_part.trim(), None),
    };
    if instance.is_some() && port.is_none() {
        return Err(
            "with the port of the instance, like `host\\instance,1434`: the SQL Server Browser is \
                    not used",
        );
    }
    if host.matches(':').count() == 1 {
        return Err("with a comma before the port, like `tcp:host,1433`");
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = match host {
        "." | "(local)" => "localhost",
        "" => return Err("like `tcp:host,1433`"),
        host if host.contains(['/', ' ', ';', '=']) => return Err("like `tcp:host,1433`"),
        host => host,
    };
    Ok(Server { host: host.to_owned(), instance, port: port.unwrap_or(PORT_DEFAULT) })
}

#[cfg(test)]
#[expect(clippy::needless_raw_string_hashes, reason = "as expect-test writes them")]
mod tests;
