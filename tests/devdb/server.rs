//! The TCP server: listens on the loopback interface and serves each connection in its own task.

mod connection;
mod framing;
mod login;
mod request;
mod tls;

use std::{fmt, io, net::Ipv4Addr, sync::Arc};

use tokio::{
    net::TcpListener,
    task::{AbortHandle, JoinSet},
};

use self::{connection::Terms, tls::Identity};
use super::{faults::Faults, session::Engine};

/// How a [`Server`] listens and which logins it accepts.
#[derive(Clone)]
pub struct Options {
    /// Port on 127.0.0.1; 0, the default, selects a free one.
    pub port: u16,
    /// User name of a login; `sa` by default.
    pub user: String,
    /// Password of a login.
    pub password: String,
    /// Default database of a login, also used in the connection string.
    pub database: String,
    /// Whether the server offers TLS, with a certificate generated at startup; on by default.
    pub tls: bool,
    /// Whether a client that cannot encrypt is accepted although the server offers TLS.
    pub allow_plain: bool,
    /// Faults to inject while the server runs.
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 0,
            user: "sa".into(),
            password: "Highwater-1".into(),
            database: "Highwater".into(),
            tls: true,
            allow_plain: false,
            faults: Faults::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("port", &self.port)
            .field("user", &self.user)
            .field("password", &"…")
            .field("database", &self.database)
            .field("tls", &self.tls)
            .field("allow_plain", &self.allow_plain)
            .field("faults", &self.faults)
            .finish()
    }
}

/// A running server. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub struct Server {
    port: u16,
    options: Options,
    ca_pem: Option<String>,
    task: AbortHandle,
}

impl Server {
    /// Starts a server over an engine.
    ///
    /// # Errors
    ///
    /// Fails if the port is taken or the certificate cannot be generated.
    pub async fn start(engine: impl Engine, options: Options) -> io::Result<Self> {
        let identity = options.tls.then(Identity::generate).transpose()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let port = listener.local_addr()?.port();
        let terms = Terms {
            engine: Arc::new(engine),
            user: options.user.clone(),
            password: options.password.clone(),
            database: options.database.clone(),
            tls: identity.as_ref().map(|identity| identity.config.clone()),
            allow_plain: options.allow_plain,
            faults: options.faults.clone(),
        };
        let task = tokio::spawn(listen(listener, terms)).abort_handle();
        Ok(Self { port, options, ca_pem: identity.map(|identity| identity.ca_pem), task })
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Faults and counters of this server.
    pub fn faults(&self) -> &Faults {
        &self.options.faults
    }

    /// Certificate of the authority that signed the server's, if TLS is on.
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    /// An ADO.NET connection string for this server.
    pub fn connection_string(&self) -> String {
        let Options { database, user, password, tls, .. } = &self.options;
        let encrypt = if *tls {
            "Encrypt=true;TrustServerCertificate=true"
        } else {
            "Encrypt=DANGER_PLAINTEXT"
        };
        format!(
            "Server=tcp:127.0.0.1,{};Database={};User ID={};Password={};{encrypt}",
            self.port,
            quoted(database),
            quoted(user),
            quoted(password),
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(listener: TcpListener, terms: Terms) {
    // Dropped with this task, together with every connection.
    let mut connections = JoinSet::new();
    loop {
        let tcp = match listener.accept().await {
            Ok((tcp, _)) => tcp,
            Err(error) => {
                tracing::warn!(%error, "Development server stopped listening");
                return;
            }
        };
        let terms = terms.clone();
        connections.spawn(async move {
            if let Err(error) = connection::serve(tcp, terms).await {
                tracing::debug!(%error, "Connection to the development server broke");
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Quotes a value of a connection string if necessary.
fn quoted(value: &str) -> String {
    if value.contains([';', '\'', '"', '{', '}', '=', ' ']) {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value.into()
    }
}
