//! The `http` handler against third-party receiver libraries, and the receivers of `docs/receivers`.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic; `allow-*-in-tests` does not reach helper functions"
)]

mod child;
mod cloud_events;
mod page;
mod receivers;
mod recipes;
mod sample;
mod standard;
