//! The real client against the server.

mod concurrent;
mod faults;
mod polling;
mod statements;
mod tracking;
mod wire;

use tiberius::{AuthMethod, Client, Config, EncryptionLevel, Row};
use tokio::net::TcpStream;
use tokio_util::compat::{Compat, TokioAsyncWriteCompatExt};

use super::{Database, Options, Server};

type Connection = Client<Compat<TcpStream>>;

/// A server without TLS over an empty database.
async fn plain() -> (Server, Database) {
    let database = Database::in_memory().unwrap();
    let options = Options { tls: false, ..Options::default() };
    (Server::start(database.clone(), options).await.unwrap(), database)
}

fn config(server: &Server, encryption: EncryptionLevel) -> Config {
    let options = Options::default();
    let mut config = Config::new();
    config.host("127.0.0.1");
    config.port(server.port());
    config.database("Shop");
    config.authentication(AuthMethod::sql_server(options.user, options.password));
    config.encryption(encryption);
    if let Some(pem) = server.ca_pem() {
        config.trust_cert_ca_bundle(pem.as_bytes().to_vec());
    }
    config
}

async fn connect_with(config: Config) -> tiberius::Result<Connection> {
    let tcp = TcpStream::connect(config.get_addr()).await?;
    tcp.set_nodelay(true)?;
    // Boxed: the client's future is too large for the stack of a test.
    Box::pin(Client::connect(config, tcp.compat_write())).await
}

async fn connect(server: &Server) -> Connection {
    let level = if server.ca_pem().is_some() {
        EncryptionLevel::Required
    } else {
        EncryptionLevel::NotSupported
    };
    connect_with(config(server, level)).await.unwrap()
}

async fn rows(client: &mut Connection, sql: &str, parameters: &[&dyn tiberius::ToSql]) -> Vec<Row> {
    client.query(sql, parameters).await.unwrap().into_first_result().await.unwrap()
}

/// Number of the error that a statement fails with.
async fn error_number(client: &mut Connection, sql: &str) -> u32 {
    let result = match client.query(sql, &[]).await {
        Ok(stream) => stream.into_results().await.map(drop),
        Err(error) => Err(error),
    };
    match result {
        Err(tiberius::error::Error::Server(token)) => token.code(),
        other => panic!("`{sql}` ended with {other:?}"),
    }
}
