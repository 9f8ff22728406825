//! Settings, as the operator writes them.

mod sql_connection;
mod storage_connection;

pub use sql_connection::{Encrypt, SqlAuth, SqlConnection};
pub use storage_connection::StorageConnection;
