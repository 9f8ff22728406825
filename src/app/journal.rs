//! Stores of journals; [`highwater_engine::journal`] has the entries and the port.

mod file;

pub use highwater_azure::BlobJournal;
pub use highwater_engine::journal::*;
pub use highwater_mssql::journal as sql;

pub use self::file::FileJournal;
pub use self::sql::SqlJournal;
