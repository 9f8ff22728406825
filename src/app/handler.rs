//! Handlers that implement the port [`highwater_engine::handler`].
//!
//! # Your own handler
//!
//! A handler accepts a batch, or says why it does not. The error decides what happens next: a retry, a smaller
//! batch, or a pause. A batch may arrive again after a crash, so a handler must be idempotent.
//!
//! ```
//! use std::sync::Arc;
//!
//! use highwater::handler::{Delivery, Handler, HandlerError};
//!
//! #[derive(Debug)]
//! struct Search {
//!     rows_max: usize,
//! }
//!
//! #[async_trait::async_trait]
//! impl Handler for Search {
//!     async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
//!         if delivery.events.len() > self.rows_max {
//!             return Err(HandlerError::TooLarge(format!("more than {} rows", self.rows_max)));
//!         }
//!         for (accepted, event) in (1..).zip(delivery.events) {
//!             // Index the row under a stable id, so that a redelivery replaces it.
//!             println!("{}", event.id);
//!             // It is not redelivered, whatever happens to the rows after it.
//!             delivery.progress.accept(accepted);
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let handler: Arc<dyn Handler> = Arc::new(Search { rows_max: 500 });
//! # let _ = handler;
//! ```
//!
//! Pass it to a poller in [`PollerParts`](crate::poller::PollerParts), by itself or as one step of a
//! [`chain::Chain`].

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
