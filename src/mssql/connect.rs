//! Making a connection: network, TLS, login, redirects, session settings.

use azure_core::credentials::TokenCredential;
use secrecy::ExposeSecret as _;
use tiberius::error::{Error as DriverError, IoErrorKind};
use tiberius::{AuthMethod, Config, EncryptionLevel};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::compat::{Compat, TokioAsyncWriteCompatExt as _};

use crate::config::{Encrypt, SqlAuth, SqlConnection};
use crate::error::ErrorKind;

use super::SqlError;

pub(super) type Client = tiberius::Client<Compat<TcpStream>>;

/// Most redirects followed: Azure sends a login from its gateway to the node, once.
const REDIRECTS_MAX: usize = 2;
/// What a token for the database is asked for.
const TOKEN_SCOPE: &str = "https://database.windows.net/.default";
/// A poller gives way to the work of others, and never waits long for a lock. Where a server's
/// `user options` begin transactions by themselves, a single statement would never be committed.
const SESSION: &str = "SET LOCK_TIMEOUT 5000; SET DEADLOCK_PRIORITY LOW; \
                       SET IMPLICIT_TRANSACTIONS OFF; \
                       SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET XACT_ABORT ON;";

/// Connects, logs in and sets the session up, all within the connect time-out.
///
/// # Errors
///
/// [`SqlError`] if any of it fails.
pub(super) async fn connect(
    settings: &SqlConnection,
    credential: Option<&dyn TokenCredential>,
) -> Result<Client, SqlError> {
    let action = format!("connect to {}:{}", settings.host, settings.port);
    let limit = settings.connect_timeout;
    timeout(limit, async {
        let config = config(settings, auth(settings, credential).await?);
        let place = Place { host: settings.host.clone(), port: settings.port };
        let mut client = open(config, place, &action).await?;
        let session = |error| SqlError::of("set the session up", error);
        client
            .simple_query(SESSION)
            .await
            .map_err(session)?
            .into_results()
            .await
            .map_err(session)?;
        Ok(client)
    })
    .await
    .unwrap_or_else(|elapsed| Err(SqlError::timeout(&action, limit, elapsed)))
}

struct Place {
    host: String,
    port: u16,
}

async fn open(config: Config, mut place: Place, action: &str) -> Result<Client, SqlError> {
    let mut config = config;
    let mut roots_are_the_systems = true;
    let mut redirects = 0;
    // One more try for a machine without certificates of its own.
    for _ in 0..=REDIRECTS_MAX + 1 {
        match attempt(&config, &place, action).await? {
            Ok(client) => return Ok(client),
            Err(DriverError::Routing { host, port }) if redirects < REDIRECTS_MAX => {
                redirects += 1;
                tracing::debug!(%host, port, "Following a redirect");
                // The rest of the configuration stays: the database above all.
                let (name, instance) = host.split_once('\\').unwrap_or((&host, ""));
                config.host(name);
                config.port(port);
                if !instance.is_empty() {
                    config.instance_name(instance);
                }
                place = Place { host: name.to_owned(), port };
            }
            Err(error) if roots_are_the_systems && has_no_roots(&error) => {
                tracing::debug!("No certificates in the system's store, using Mozilla's");
                roots_are_the_systems = false;
                config.trust_webpki_roots();
            }
            Err(error) => return Err(SqlError::of(action, error)),
        }
    }
    Err(SqlError::new(ErrorKind::Transient, format!("{action}: redirected too often")))
}

/// Tries once; the outer error is of the network, the inner one of the driver.
async fn attempt(
    config: &Config,
    place: &Place,
    action: &str,
) -> Result<Result<Client, DriverError>, SqlError> {
    let network = |error| SqlError::network(action, error);
    let tcp = TcpStream::connect((place.host.as_str(), place.port)).await.map_err(network)?;
    tcp.set_nodelay(true).map_err(network)?;
    Ok(Box::pin(Client::connect(config.clone(), tcp.compat_write())).await)
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
    // The credential keeps its token until shortly before it expires.
    let token = credential.get_token(&[TOKEN_SCOPE], None).await.map_err(SqlError::token)?;
    Ok(AuthMethod::aad_token(token.token.secret()))
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
    // The driver panics where both are set; one excludes the other.
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
    config.handshake_timeout(Some(settings.connect_timeout));
    config.command_timeout(Some(settings.command_timeout));
    // A lone surrogate in a string must not stop a poller.
    config.lossy_utf16_decoding(true);
    config
}
