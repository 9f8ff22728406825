//! The engine of Highwater: what a tick does, behind ports for sources, handlers and stores.
//!
//! It knows no driver, no web framework and no cloud: its manifest names none.
//!
//! # One tick
//!
//! ```text
//! 0 retry      parked keys that are due, under a grant of their own
//! 1 load       the state document: from memory, or one read
//! 2 blocked?   another instance's lease, a pause, a backoff ─► skipped, nothing written
//! 3 fetch      one query, rows become events; no rows, none late ─► idle
//! 4 acquire    ONE write under the tag of the document from step 1; it also records the batch in flight
//! 5 deliver    the handler runs while the lease is renewed and the next batch is prefetched;
//!              rows that it has accepted early are committed with a renewal
//! 6 next       rows of the same fetch, the prefetched batch, or late rows
//! 7 commit     ONE write: the checkpoint moves, and the next batch is announced (back to 5)
//!              or the lease is released
//! 8 follow?    in follow mode: wait, then back to 1
//! ```
//!
//! It fetches before it acquires, so an idle tick needs no lease. It writes nothing but a note every `STATUS_INTERVAL`,
//! state that the source wants kept at once, and the end of a recorded failure. The lease is acquired under the tag of
//! the document that gave the position, which proves that the position is still current.
//!
//! # The path of one batch
//!
//! These files decide what happens to a batch that is accepted at once, in this order:
//!
//! | step | file | function |
//! |---|---|---|
//! | all | `tick.rs` | `Tick::round`: the story, top to bottom |
//! | load | `poller/memory.rs` | `Poller::load` |
//! | fetch | `tick/fetch.rs` | `Tick::read_first`, `Poller::batch_of` |
//! | acquire | `lease.rs` | `Lease::acquire` |
//! | deliver | `tick/deliver.rs` | `LeasedTick::deliver`: one loop, one handler call per step |
//! | | `tick/call.rs` | `LeasedTick::call` |
//! | | `lease/hold.rs` | `Lease::hold_while_accepting` |
//! | commit | `tick/commit.rs` | `LeasedTick::commit`, then `Lease::commit` |
//!
//! What they call is pure, reports, or returns at once. `tick/isolate.rs` (which rows are delivered next),
//! `document/transitions.rs` (who may write what) and `tick/batch.rs` are pure. `tick/report.rs` logs, counts, and
//! knows how much time the tick has left. `tick/retry.rs`, `tick/park.rs` and `tick/audit.rs` return at once unless
//! keys are parked or rows came late.
//!
//! # Modules
//!
//! | layer | modules | uses |
//! |---|---|---|
//! | engine | [`tick`], [`admin`], [`poller`], [`lease`], [`document::DocumentStore`], [`journal::Appender`], [`journal::History`], [`metrics`], [`doctor`], [`recovery`], [`repartition`], [`status`], [`explain`] | everything below, and each other |
//! | ports | [`source`], [`handler`], [`store::StateStore`], [`journal::JournalStore`], [`notification::Notifier`] | vocabulary; a handler also reports a [`document::StaleWrite`] |
//! | pure rules | [`document`], [`journal`], [`normalize`], [`policy`], [`quarantine`], [`range`], [`schedule`] | vocabulary, each other, and the data types of the ports: [`normalize`] reads [`source::Rows`]; [`document::Snapshot`] and [`quarantine`] name what is stored by a [`store::StateKey`] |
//! | vocabulary | [`backoff`], [`clock`], [`cursor`], [`error`], [`event`], [`grant`], [`partition`], [`printable`], [`redaction`], [`repeats`], [`trace`], [`value`] | each other |
//!
//! Only the engine and the adapters behind ports do I/O. Two modules have a part in two layers: [`document`] and
//! [`journal`] are rules, except for the types named above. The vocabulary is synchronous, except that a retry in
//! [`backoff`] sleeps. The module that holds a port also holds what every adapter of it needs, such as
//! [`store::DateCheckedStore`] and [`handler::chain::Chain`].

// Vocabulary: no I/O.
pub mod backoff;
pub mod model;
pub mod printable;
pub mod redaction;
pub mod repeats;
pub mod trace;

pub use self::model::{clock, cursor, error, event, grant, partition, value};

// Pure rules and ports.
pub mod handler;
pub mod journal;
pub mod normalize;
pub mod notification;
pub mod policy;
pub mod quarantine;
pub mod range;
pub mod schedule;
pub mod source;
pub mod store;

// Engine.
pub mod admin;
pub mod doctor;
pub mod document;
pub mod explain;
pub mod lease;
pub mod metrics;
pub mod poller;
pub mod recovery;
pub mod repartition;
pub mod status;
pub mod tick;

#[cfg(any(test, feature = "test-util"))]
pub mod testing;
