//! Tests of the engine from outside: ticks and an operator's commands, over doubles of its ports.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic; `allow-*-in-tests` does not reach helper functions"
)]

mod aborts;
mod accepted;
mod ahead;
mod audit;
mod failures;
mod first_run;
mod follow;
mod follow_up;
mod init;
mod journal;
mod kin;
mod last_failure;
mod leases;
mod operate;
mod overlap;
mod parts;
mod range;
mod redrive;
mod remember;
mod reset;
mod restore;
mod retried;
mod rules;
mod size;
mod standing;
mod steps;
mod ticks;
mod time_over;
mod windows;
