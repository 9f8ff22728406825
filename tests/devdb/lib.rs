//! The embedded development server: a replacement for SQL Server on machines where it cannot be installed.
//!
//! `demo` and the tests need a server that speaks TDS. This one has a front end that the real client connects
//! to over TCP, with TLS, and an engine over SQLite that supports a documented list of statements (see
//! `tsql.rs`), not all of T-SQL.
//!
//! It is for development only. It has no permissions, no locks except one writer at a time, and no query
//! plans. Behaviour that it only models must be verified against a real server. `Database::concurrent`
//! creates one in which several transactions write concurrently, each row visible after its commit: the
//! situation that a poller must handle, in an order that a test decides.
//!
//! It is independent of Highwater.
//!
//! ```
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! use highwater_devdb::{Database, Options, Server};
//!
//! let database = Database::in_memory()?;
//! database.execute("CREATE TABLE dbo.Orders (id int PRIMARY KEY, rv rowversion)")?;
//! let server = Server::start(database, Options::default()).await?;
//! println!("{}", server.connection_string());
//! # Ok(())
//! # }
//! ```

mod codepage;
mod convert;
mod database;
mod databases;
mod dates;
mod faults;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod tsql;
mod types;
mod variant;
mod wire;

pub use self::{
    database::Database,
    databases::Databases,
    faults::{Fault, Faults, LoginFault, SeenLogin},
    server::{Options, Server},
    session::{Engine, Session},
    types::{Column, Command, Completion, Named, Parameter, Reply, SqlError, Type, Value},
};
