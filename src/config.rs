//! Settings: what users write, checked and turned into what the program needs.

mod storage_connection;

pub use self::storage_connection::StorageConnection;
pub(crate) use self::storage_connection::{DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY};
