//! Microsoft SQL Server for Highwater: a source, a handler, and the stores of states and journals.
//!
//! | module | what it is |
//! |---|---|
//! | [`connection_string`] | where a server is and how to log in: ADO.NET's connection strings |
//! | [`connection`] | one connection, one statement at a time, and what an error means |
//! | [`tsql`], [`filter`] | checks of T-SQL in settings, without a server |
//! | [`source`], [`handler`], [`state`], [`journal`] | the adapters, each for a port of the engine |

pub mod connection;
pub mod connection_string;
pub mod ident;

pub mod filter;
pub mod tsql;

pub mod handler;
pub mod journal;
pub mod source;
pub mod state;

mod closest;

#[doc(hidden)]
pub use closest::closest;
pub use connection::{
    Connection, ForeignText, Param, ReadRetry, Retries, RetryTerms, SqlError, Transaction,
    errors_table,
};
#[doc(hidden)]
pub use connection_string::pairs;
pub use connection_string::{Encrypt, SqlAuth, SqlConnection, connection_keys_table};
#[doc(hidden)]
pub use filter::{Filter, FilterProblem};
#[doc(hidden)]
pub use tsql::{check_database, check_query};
