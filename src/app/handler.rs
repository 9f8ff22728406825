//! Handlers that implement the port [`highwater_engine::handler`].

pub mod durable;
mod envelope;
pub mod exec;
pub mod http;
#[doc(hidden)]
pub mod schema;
pub mod stdout;

pub use highwater_azure::handler::{blob, queue};
pub use highwater_engine::handler::*;
pub use highwater_mssql::handler as sql;
