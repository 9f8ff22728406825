//! Integration tests over real protocols and the embedded servers.

#![cfg(feature = "demo")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops where it is surprised"
)]

mod source;
mod source_connection;
mod sql;
