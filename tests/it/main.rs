//! Integration tests, one binary.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test may panic; `allow-*-in-tests` does not reach helper functions"
)]

mod tidy;
