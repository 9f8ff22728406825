//! The blob store and the storage account handlers against Azurite, also over breaking connections.
//!
//! The first run installs Azurite from `package-lock.json` in this folder.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
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
