//! Sources; [`highwater_engine::source`] has the port.

pub use highwater_engine::source::*;
pub use highwater_mssql::source as mssql;
