//! Tests of the engine from outside: ticks and operator commands, over test doubles of its ports.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic; `allow-*-in-tests` does not reach helper functions"
)]

mod aborts;
mod accepted;
mod audit;
mod backlog;
mod backoff_wait;
mod failures;
mod fetch_retry;
mod first_run;
mod follow;
mod halving;
mod init;
mod journal;
mod last_failure;
mod leases;
mod notifications;
mod operate;
mod overlap;
mod parked;
mod parked_timing;
mod partition_count;
mod prefetch;
mod range;
mod redrive;
mod reset;
mod restore;
mod rules;
mod size;
mod source_state;
mod states;
mod steps;
mod tick_timeouts;
mod ticks;
mod windows;
