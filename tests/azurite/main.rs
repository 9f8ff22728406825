//! The blob store and the handlers of storage accounts against Azurite, also over connections that
//! break.
//!
//! Azurite is installed from `package-lock.json` beside this file by the first run.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test ends where its expectation does"
)]

mod batch;
mod blob_handler;
mod emulator;
mod identity;
mod journal;
mod lease_faults;
mod proxy;
mod queue_handler;
mod store;
mod store_faults;
