//! Highwater.

/// Embedded development server, a stand-in for SQL Server.
#[cfg(feature = "demo")]
pub mod devdb;
