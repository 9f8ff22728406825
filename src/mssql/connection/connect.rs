//! Opening a connection: network, TLS, login, redirects, session settings.

use std::sync::Once;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use highwater_engine::error::ErrorKind;
use secrecy::ExposeSecret as _;
use tiberius::error::{Error as DriverError, IoErrorKind};
use tiberius::{AuthMethod, Config, EncryptionLevel, Row};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::compat::{Compat, TokioAsyncWriteCompatExt as _};

use crate::connection_string::{Encrypt, SqlAuth, SqlConnection};

use super::dial::{DialError, dial};
use super::error::{Limit, STRICT, SqlError};

pub(super) type Client = tiberius::Client<Compat<TcpStream>>;

/// Most redirects to follow: Azure redirects a login once, from its gateway to the node.
const REDIRECTS_MAX: usize = 2;
/// Scope of a token for the database.
const TOKEN_SCOPE: &str = "https://database.windows.net/.default";
/// Longest wait for a lock. A lock time-out keeps the connection; a statement time-out costs it.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);

/// Text that has different bytes in every encoding: characters of one, two, three and four bytes in UTF-8.
const SAMPLE: &str = "Aé€😀";

/// A connection that is ready for statements.
pub(super) struct Connected {
    pub(super) client: Client,
    /// The bytes to which the server converts `nvarchar`, if they are not UTF-16.
    pub(super) foreign_text: Option<ForeignText>,
}

/// How a server that is not SQL Server converts `nvarchar` to bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignText(Vec<u8>);

impl std::fmt::Display for ForeignText {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "`N'{SAMPLE}'` cast to bytes is 0x")?;
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02X}"))
    }
}

impl ForeignText {
    /// Reads the server's answer to the sample; `None` if it is UTF-16.
    fn read(results: &[Vec<Row>]) -> Option<Self> {
        let row = results.last().and_then(|rows| rows.first());
        Self::of(row.and_then(|row| row.try_get(0).ok().flatten()).unwrap_or_default())
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let expected: Vec<u8> = SAMPLE.encode_utf16().flat_map(u16::to_le_bytes).collect();
        (bytes != expected).then(|| Self(bytes.to_vec()))
    }
}

/// Returns the settings of each session, followed by a query for the server's text encoding.
///
/// A poller yields to other work, and never waits long for a lock. If the server's `user options` start
/// transactions implicitly, a single statement would never be committed, so that is turned off.
fn session(command_timeout: Duration) -> String {
    let lock_wait = LOCK_WAIT_MAX.min(command_timeout / 2).as_millis();
    format!(
        "SET LOCK_TIMEOUT {lock_wait}; SET DEADLOCK_PRIORITY LOW; SET IMPLICIT_TRANSACTIONS OFF; \
         SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET XACT_ABORT ON; \
         SELECT CAST(N'{SAMPLE}' AS varbinary(20)) AS [__text];"
    )
}

/// Connects, logs in and sets up the session, all within the connect time-out.
///
/// # Errors
///
/// [`SqlError`] if any of it fails.
pub(super) async fn connect(
    settings: &SqlConnection,
    credential: Option<&dyn TokenCredential>,
) -> Result<Connected, SqlError> {
    let action = format!("connect to {}:{}", settings.host, settings.port);
    let limit = settings.connect_timeout;
    let deadline = Instant::now() + limit;
    // Separate from a silent server: without an identity, the token request has no answer at all.
    let auth =
        timeout_at(deadline, auth(settings, credential)).await.unwrap_or_else(|elapsed| {
            let limit = Limit::Connect(limit);
            Err(SqlError::timeout(token_action(&settings.auth), limit, elapsed).about_token())
        })?;
    timeout_at(deadline, async {
        let config = config(settings, auth);
        let mut client = open(settings, config, &action).await?;
        let failed = |error| SqlError::of("set up the session", error);
        let session = client.simple_query(session(settings.command_timeout)).await;
        let results = session.map_err(failed)?.into_results().await.map_err(failed)?;
        Ok(Connected { client, foreign_text: ForeignText::read(&results) })
    })
    .await
    .unwrap_or_else(|elapsed| {
        let action = match settings.encrypt {
            Encrypt::Strict => format!("{action}: {STRICT}"),
            Encrypt::Mandatory | Encrypt::Optional | Encrypt::Plain => action,
        };
        Err(SqlError::timeout(&action, Limit::Connect(limit), elapsed))
    })
}

/// Logs in, following redirects.
async fn open(settings: &SqlConnection, config: Config, action: &str) -> Result<Client, SqlError> {
    let mut config = config;
    let (mut host, mut port) = (settings.host.clone(), settings.port);
    let mut action = action.to_owned();
    for _ in 0..=REDIRECTS_MAX {
        let place = (host.as_str(), port, settings.multi_subnet_failover);
        match log_in(&mut config, place, settings, &action).await? {
            LogIn::Done(client) => {
                note_security(settings);
                return Ok(*client);
            }
            LogIn::Elsewhere(elsewhere, its_port) => (host, port) = (elsewhere, its_port),
        }
        action = format!("{action}, redirected to {host}:{port}");
        tracing::debug!(%host, port, "Following a redirect");
        // Keep the rest of the configuration, above all the database.
        if let Some((name, instance)) = host.clone().split_once('\\') {
            config.instance_name(instance);
            name.clone_into(&mut host);
        }
        config.host(&host);
        config.port(port);
    }
    let reason = format!("{action}: at most {REDIRECTS_MAX} redirects are followed");
    Err(SqlError::new(ErrorKind::Transient, reason))
}

/// Logs once per process that the connection to another machine is not secure. The driver warns of each connection, and its
/// warnings are not logged.
fn note_security(settings: &SqlConnection) {
    static PLAIN: Once = Once::new();
    static UNCHECKED: Once = Once::new();
    if settings.is_local() {
        return;
    }
    let server = settings.host.as_str();
    if settings.encrypt == Encrypt::Plain {
        PLAIN.call_once(|| {
            tracing::warn!(
                event = "connection_not_encrypted",
                server,
                "Nothing sent to `{server}` is encrypted, not even the password: remove `Encrypt=DANGER_PLAINTEXT` from \
                 the connection string"
            );
        });
    } else if settings.trust_server_certificate {
        UNCHECKED.call_once(|| {
            tracing::warn!(
                event = "certificate_not_checked",
                server,
                "The certificate of `{server}` is not checked, so another server could take its place: remove \
                 `TrustServerCertificate=true` from the connection string, or name the authority's file as \
                 `ServerCertificate`"
            );
        });
    }
}

enum LogIn {
    Done(Box<Client>),
    /// The server redirects to another host and port.
    Elsewhere(String, u16),
}

/// Fraction of the connect time-out after which a server counts as not supporting TLS from the first byte.
const STRICT_ANSWER_PART: u32 = 3;

/// Returns a connection twice: one handle to use, and one to watch for incoming data.
fn duplicate(tcp: TcpStream) -> std::io::Result<(TcpStream, TcpStream)> {
    let tcp = tcp.into_std()?;
    let copy = tcp.try_clone()?;
    Ok((TcpStream::from_std(tcp)?, TcpStream::from_std(copy)?))
}

/// Returns once nothing was received for `patience`; never if something is received, or there is no probe.
async fn silence(probe: Option<TcpStream>, patience: Duration) {
    if let Some(probe) = probe
        && timeout(patience, probe.readable()).await.is_err()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// Logs in at one server; a second time if this machine has no root certificates.
async fn log_in(
    config: &mut Config,
    (host, port, all_at_once): (&str, u16, bool),
    settings: &SqlConnection,
    action: &str,
) -> Result<LogIn, SqlError> {
    let encrypt = settings.encrypt;
    for _ in 0..2 {
        let tcp = dial(host, port, all_at_once).await;
        let mut tcp = tcp.map_err(|error| SqlError::dial(action, error))?;
        let mut probe = None;
        if encrypt == Encrypt::Strict {
            let duplicate =
                duplicate(tcp).map_err(|e| SqlError::dial(action, DialError::Connect(e)))?;
            (tcp, probe) = (duplicate.0, Some(duplicate.1));
        }
        let patience = settings.connect_timeout / STRICT_ANSWER_PART;
        let connected = tokio::select! {
            biased;
            connected = Box::pin(Client::connect(config.clone(), tcp.compat_write())) => connected,
            () = silence(probe, patience) => return Err(SqlError::silent(action, patience)),
        };
        match connected {
            Ok(client) => return Ok(LogIn::Done(Box::new(client))),
            Err(DriverError::Routing { host, port }) => return Ok(LogIn::Elsewhere(host, port)),
            Err(error) if has_no_roots(&error) => {
                tracing::debug!("No certificates in the system's store, using Mozilla's");
                config.trust_webpki_roots();
            }
            Err(error) => return Err(SqlError::of_login(action, error, encrypt)),
        }
    }
    Err(SqlError::new(ErrorKind::Internal, format!("{action}: no certificates to trust")))
}

fn has_no_roots(error: &DriverError) -> bool {
    matches!(error, DriverError::Io { kind: IoErrorKind::NotFound, message }
        if message.contains("platform"))
}

async fn auth(
    settings: &SqlConnection,
    credential: Option<&dyn TokenCredential>,
) -> Result<AuthMethod, SqlError> {
    if let SqlAuth::Password { user, password } = &settings.auth {
        return Ok(AuthMethod::sql_server(user, password.expose_secret()));
    }
    let Some(credential) = credential else {
        return Err(SqlError::new(
            ErrorKind::Configuration,
            "the connection string asks for a token of Microsoft Entra, and no identity is set up: \
             use `User ID` and `Password`",
        ));
    };
    // The credential caches its token until shortly before it expires.
    let token = credential.get_token(&[TOKEN_SCOPE], None).await;
    let token = token.map_err(|error| SqlError::token(token_action(&settings.auth), &error))?;
    Ok(AuthMethod::aad_token(token.token.secret()))
}

/// Describes the token request, for error messages.
fn token_action(auth: &SqlAuth) -> &'static str {
    match auth {
        // The identity service's answer says what to check.
        SqlAuth::EntraUser { .. } => "get a token for the database",
        SqlAuth::Password { .. }
        | SqlAuth::ManagedIdentity { .. }
        | SqlAuth::WorkloadIdentity { .. }
        | SqlAuth::ServicePrincipal { .. }
        | SqlAuth::Default { .. } => {
            "get a token for the database: check that the app has the identity that the connection \
             string names"
        }
    }
}

fn config(settings: &SqlConnection, auth: AuthMethod) -> Config {
    let mut config = Config::new();
    config.host(&settings.host);
    config.port(settings.port);
    if let Some(instance) = &settings.instance {
        config.instance_name(instance);
    }
    if let Some(database) = &settings.database {
        config.database(database);
    }
    config.authentication(auth);
    config.application_name(&settings.application_name);
    config.readonly(settings.application_intent_read_only);
    config.encryption(match settings.encrypt {
        Encrypt::Mandatory => EncryptionLevel::Required,
        Encrypt::Optional => EncryptionLevel::Off,
        Encrypt::Strict => EncryptionLevel::Strict,
        Encrypt::Plain => EncryptionLevel::NotSupported,
    });
    // The driver panics if both are set; each excludes the other.
    if let Some(path) = &settings.server_certificate {
        config.trust_cert_ca(path);
    } else if settings.trust_server_certificate {
        config.trust_cert();
    }
    if let Some(name) = &settings.host_name_in_certificate {
        config.hostname_in_certificate(name);
    }
    if let Some(size) = settings.packet_size {
        config.packet_size(size.into());
    }
    // One limit covers the whole connection, so that there is one error.
    config.handshake_timeout(None);
    config.command_timeout(Some(settings.command_timeout));
    // An unpaired surrogate in a string must not stop a poller.
    config.lossy_utf16_decoding(true);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_utf_16_is_the_encoding_of_sql_server() {
        let utf16 = |order: fn(u16) -> [u8; 2]| SAMPLE.encode_utf16().flat_map(order).collect();
        let (expected, swapped): (Vec<u8>, Vec<u8>) =
            (utf16(u16::to_le_bytes), utf16(u16::to_be_bytes));
        assert_eq!(ForeignText::of(&expected), None);
        for other in [&swapped, SAMPLE.as_bytes(), b"A", b""] {
            assert!(ForeignText::of(other).is_some(), "{other:?}");
        }
        let text = ForeignText::of(b"A").unwrap().to_string();
        assert_eq!(text, "`N'Aé€😀'` cast to bytes is 0x41");
    }

    #[test]
    fn the_lock_timeout_is_half_the_statement_timeout_and_at_most_five_seconds() {
        for (timeout, millis) in [(1, 500), (4, 2_000), (10, 5_000), (30, 5_000), (3_600, 5_000)] {
            let text = session(Duration::from_secs(timeout));
            let expected = format!("SET LOCK_TIMEOUT {millis}; SET DEADLOCK_PRIORITY LOW; ");
            assert!(text.starts_with(&expected), "{text}");
        }
    }
}
