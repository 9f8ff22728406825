//! Settings, as the operator writes them.

mod sql_connection;

pub use sql_connection::{Encrypt, SqlAuth, SqlConnection};
