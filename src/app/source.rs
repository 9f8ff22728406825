//! Sources that implement the port [`highwater_engine::source`].

pub use highwater_engine::source::*;
pub use highwater_mssql::source as mssql;
