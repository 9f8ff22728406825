//! Stores of journals, which implement the port in [`highwater_engine::journal`].

mod file;

pub use highwater_azure::BlobJournal;
pub use highwater_engine::journal::*;
pub use highwater_mssql::journal as sql;

pub use self::file::FileJournal;
pub use self::sql::SqlJournal;
