//! Highwater: a polling trigger for Microsoft SQL Server on Azure Functions.

// Vocabulary: no async, no I/O.
pub mod clock;
pub mod cursor;
pub mod error;
pub mod event;
pub mod value;

// Pure rules and ports.
pub mod config;
pub mod handler;
pub mod normalize;
pub mod source;
pub mod state;
