//! The embedded development server: a stand-in for SQL Server where none can be installed.
//!
//! `demo` and the tests need a server that speaks TDS. This one has a front end that the real
//! client connects to over TCP, with TLS, and an engine over SQLite that understands a written
//! list of statements (see `tsql.rs`), not T-SQL at large.
//!
//! It is a development stand-in. It has no permissions, no locks but one writer at a time, no query
//! plans; what it only models must be verified against a real server. `Database::concurrent` makes
//! one in which several transactions write at once, each row visible from its commit on: what a
//! poller has to live with, in an order that a test decides.
//!
//! It stands alone: it knows nothing of Highwater.
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
