//! Where a database is and how to log in: an ADO.NET connection string, read strictly.
//!
//! # Why so
//!
//! The driver's own reader skips keys it does not know and connects to `localhost` where a server is
//! missing. A poller that reads from the wrong place must not start, so every key has to be known, and
//! all mistakes are reported at once. Mistakes never quote a value that could be a secret.

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
/// Stands for the tenant that a user's name belongs to.
/// <https://learn.microsoft.com/entra/identity-platform/v2-oauth-ropc#authorization-request>
const TENANT_OF_THE_USER: &str = "organizations";
/// Longest time-out that is believed to be meant: an hour.
const TIMEOUT_MAX_SECONDS: u32 = 3600;

/// A server, a database, and how to log in.
#[derive(Clone, Debug)]
pub struct SqlConnection {
    /// Name or address of the server.
    pub host: String,
    /// Named instance, told to the server; the port alone decides where to connect.
    pub instance: Option<String>,
    /// TCP port.
    pub port: u16,
    /// The database; the login's default one when absent.
    pub database: Option<String>,
    /// How to log in.
    pub auth: SqlAuth,
    /// How much is encrypted.
    pub encrypt: Encrypt,
    /// Take any certificate. Not for production.
    pub trust_server_certificate: bool,
    /// Name to look for in the certificate instead of the host.
    pub host_name_in_certificate: Option<String>,
    /// File with the certificate of the authority that signed the server's.
    pub server_certificate: Option<String>,
    /// Limit for connecting, logging in included.
    pub connect_timeout: Duration,
    /// Limit for one statement, its rows included.
    pub command_timeout: Duration,
    /// What `APP_NAME()` says on the server.
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
    /// With a login of the server, or a contained user.
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
    /// With a token of a user of Microsoft Entra who has a password.
    EntraUser {
        /// Such as `ada@acme.example`.
        user: String,
        /// The user's password.
        password: SecretString,
        /// Tenant of the process, or what stands for that of the user's name.
        tenant: String,
    },
    /// With a token from wherever the environment offers one.
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
    /// The login; the rest too where the server insists.
    Optional,
    /// TDS 8.0: TLS before the first byte of the protocol, and a valid certificate.
    Strict,
    /// Nothing, not even the password: `Encrypt=DANGER_PLAINTEXT`, for development.
    Plain,
}

impl SqlConnection {
    /// Reads an ADO.NET connection string.
    ///
    /// As in ADO.NET the last of several equal keys counts, and an empty value means the default.
    ///
    /// # Errors
    ///
    /// Every mistake of the text, each in words for the operator and without secrets.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        Self::parse_for_tenant(text, None)
    }

    /// Reads an ADO.NET connection string, whose service principal or user is one of `tenant` unless
    /// it says otherwise.
    ///
    /// # Errors
    ///
    /// As [`SqlConnection::parse`].
    pub fn parse_for_tenant(text: &str, tenant: Option<&str>) -> Result<Self, Vec<String>> {
        if text::is_address(text) {
            return Err(vec![
                "this is an address, as of JDBC: write it as ADO.NET does, `Server=tcp:host,1433;\
                 Database=…;User ID=…;Password=…`"
                    .to_owned(),
            ]);
        }
        let (pairs, mut mistakes) = text::split(text);
        let mut reader = Reader { values: known(&pairs, &mut mistakes), tenant, mistakes };
        let server = reader.server();
        let encrypt = reader.encrypt();
        let auth = reader.auth();
        reader.refuse_what_is_not_supported();
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
                "`TrustServerCertificate` takes any certificate, `ServerCertificate` only some: \
                 give one of them"
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

/// Returns the keys of a connection string with their values, as far as it can be read.
pub fn pairs(text: &str) -> impl Iterator<Item = (String, String)> + use<> {
    text::split(text).0.into_iter().map(|pair| (pair.key, pair.value))
}

/// Returns the keys of connection strings and what each does, as a table in Markdown.
pub fn connection_keys_table() -> String {
    keys::table()
}

/// Keeps the last value of each key that means something here, and reports the others.
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
        // It may be the rest of a password that holds `;`.
        return format!(
            "the key after the password is not known{meant}; a password that holds `;` needs quotes"
        );
    }
    format!("key `{key}` is not known{meant}")
}

struct Server {
    host: String,
    instance: Option<String>,
    port: u16,
}

/// Takes values out of the pairs, and collects what is wrong with them.
struct Reader<'a> {
    values: BTreeMap<Key, &'a Pair>,
    /// Tenant of a service principal or a user that names none.
    tenant: Option<&'a str>,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    /// Returns the value of a key; `None` where it is absent or empty.
    fn value(&self, key: Key) -> Option<&str> {
        self.values.get(&key).map(|pair| pair.value.as_str()).filter(|value| !value.is_empty())
    }

    fn text(&self, key: Key) -> Option<String> {
        self.value(key).map(str::to_owned)
    }

    /// Reports a value of a key that holds no secret.
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
                let advice = for_people(kind);
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

    /// Returns the client id of an identity, which needs no password.
    fn client_id(&mut self) -> Option<String> {
        if self.value(Key::Password).is_some() {
            self.mistakes
                .push("`Password` has no use with this `Authentication`: remove it".into());
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

    /// Returns a value that must be there; empty, and reported, where it is not.
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

    fn refuse_what_is_not_supported(&mut self) {
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

/// Says what to use instead of a kind of login that takes a person or a Windows domain.
fn for_people(kind: &str) -> &'static str {
    match kind {
        "activedirectoryintegrated" => {
            "`Active Directory Managed Identity`, say: Highwater runs in no Windows domain"
        }
        _ => "`Active Directory Managed Identity`, say: nobody is there to log in by hand",
    }
}

/// Reads `[tcp:]host[\instance][,port]`.
fn server(text: &str) -> Result<Server, &'static str> {
    let lower = text.to_lowercase();
    if ["np:", "lpc:", "admin:", "(localdb)"].iter().any(|prefix| lower.starts_with(prefix)) {
        return Err("like `tcp:host,1433`: only TCP is supported");
    }
    let address = lower.strip_prefix("tcp:").and_then(|rest| text.get(text.len() - rest.len()..));
    let (place, port) = match address.unwrap_or(text).split_once(',') {
        Some((place, port)) => {
            let port = port.trim().parse().ok().filter(|port| *port != 0);
            (place, Some(port.ok_or("like `tcp:host,1433`, with a port from 1 to 65535")?))
        }
        None => (address.unwrap_or(text), None),
    };
    let (host, instance) = match place.trim().split_once('\\') {
        Some((host, instance)) => (host.trim(), Some(instance.trim().to_owned())),
        None => (place.trim(), None),
    };
    if instance.is_some() && port.is_none() {
        return Err(
            "with the port of the instance, like `host\\instance,1434`: the browser service is \
                    not asked",
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
