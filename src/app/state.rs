//! Stores of state documents, which implement the port [`highwater_engine::store`] for
//! [`highwater_engine::document`].

mod file;
pub(crate) mod local;

pub use highwater_azure::BlobStore;
pub use highwater_engine::document::*;
pub use highwater_engine::store::*;
pub use highwater_mssql::state as sql;

pub use self::file::FileStore;
pub use self::sql::{SqlStore, SqlStoreSettings};
