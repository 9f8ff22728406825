//! Highwater: a polling trigger for Microsoft SQL Server on Azure Functions, as one small binary.
//!
//! The Functions host starts the binary as a custom handler. Each timer trigger POSTs to it, and each
//! POST is one *tick* of one *poller*: read the rows that changed since the last committed position,
//! hand them to a handler, and move the position only after the handler has succeeded.
//!
//! **Promise.** Every committed row, in its latest state when read, is delivered at least once (under
//! the condition that its mode states), in cursor order within a poller; rows that a poller finds to have
//! been committed later than that condition allows come when they are found. A stale instance can never
//! move the checkpoint, nor write a fenced target once the newer owner has reached it. Handlers must
//! be idempotent.
//!
//! # One tick
//!
//! ```text
//! timer ─► Functions host ─ POST /{function} ─► host::server ─► Poller::tick
//!  1 load       state document: from memory, or one read; its fingerprint must match
//!  2 skip?      lease held by another, paused, backing off ─► done, nothing written
//!  3 fetch      one query, TOP (batch_rows_max + 1): the extra row says whether there is more
//!  4 normalise  rows ─► change events (pure); no rows ─► a closed window that is due is read again;
//!               nothing came late ─► done, nothing written
//!  5 acquire    ONE write under the tag of what was loaded; the in-flight record rides on it
//!  6 handle     while the lease is renewed; what is accepted for good rides on a renewal; in a chain of
//!               handlers ONE write for each step but the last, before the next is called; meanwhile 3
//!               and 4 for the next batch, of which nothing is announced or handed over before 7
//!  7 commit     ONE write; it releases too, or announces the next batch and goes back to 6: new rows,
//!               and behind them late ones, which never move the checkpoint
//!  8 follow?    where it is asked for: out of rows, it gives the lease up, waits, and goes back to 1
//!  ◄─ TickReport ─► one log line, metrics ─► InvocationResponse (always a JSON object)
//! ```
//!
//! Seed documents order it lock-first; acquiring under the tag of the document that gave the position
//! keeps all their invariants and makes idle ticks free.
//!
//! They also create a document with its first grant. Here it is created blank, and granted by a second
//! write under its tag: a request to create that lands late, after the document was lost, then grants
//! nothing, so no token is ever granted twice.
//!
//! The design lets idle ticks alone write down how far behind a poller is (`observed`). Here it rides on the last
//! write of each tick too, which costs nothing, so that a poller with a steady backlog is seen to have one.
//!
//! # Code map, top to bottom
//!
//! | layer | modules | may know |
//! |---|---|---|
//! | composition | `app` | everything but `cli` |
//! | edges | [`host`], [`page`], `cli`, `package`, [`project`], [`telemetry`], [`timers`], `demo`, `fakehost`, `race` | the layers below |
//! | adapters | `journal::{blob, file, memory, sql}`, `state::{blob, container, date_check, file, local, logged, memory, sql}`, `source::mssql`, `handler::{blob, durable, exec, chain, http, paced, queue, sql, stdout}`, [`mssql`], [`azure`] | their port, their crate |
//! | engine | [`poller`], [`lease`], [`journal::Appender`], [`journal::History`], [`metrics`], [`doctor`], [`recovery`], [`repartition`], [`status`] | ports and rules |
//! | ports | [`source`], [`handler`], [`state::StateStore`], [`journal::JournalStore`] | vocabulary |
//! | pure rules | [`config`], [`policy`], [`quarantine`], [`range`], [`schedule`], [`state`], [`journal`], [`normalize`] | vocabulary |
//! | vocabulary | [`cursor`], [`event`], [`value`], [`error`], [`clock`], [`partition`], [`redaction`], [`trace`] | each other |
//!
//! Imports point downwards only; `tests/it/tidy.rs` enforces the map.
//!
//! # Invariants, as absences
//!
//! - [`poller`] and [`lease`] never name a driver, a web framework or a cloud.
//! - No adapter names another adapter. (`handler::sql`, `source::mssql`, `state::sql` and `journal::sql` use [`mssql`], the blob stores,
//!   `handler::{blob, http, queue}` [`azure`]: the shared halves of adapters of one service.)
//! - Only [`config`] reads the environment, only [`clock`] the wall clock.
//! - Only [`mssql::ident`] turns a name into SQL; values are parameters.
//! - Nothing below the edges prints. No engine module spawns a task.
//! - Safety rests on compare-and-swap and the fencing token; no decision rests on a client's clock.
//!
//! # Words
//!
//! | word | what it is | from |
//! |---|---|---|
//! | poller | a source, a handler and the state between them; it *ticks* | JDBC "poll" |
//! | batch | rows delivered in one handler call | |
//! | cursor | a position in the source's order | Airbyte |
//! | checkpoint | a cursor that has been committed, with when and by which batch | Event Hubs |
//! | state document | checkpoint, lease, fingerprint and more in one JSON object | |
//! | lease, owner, fencing token | a time-bounded right, who has it, a number that grows at each grant | Kleppmann |
//! | generation | orders tokens across a document that was lost and made again | |
//! | in-flight record | the batch being handled and what happened to it so far | |
//! | step | one handler of a chain; its result is kept before the next is called | Durable Functions |
//! | settle window | how far behind "now" a time-based poller stays | |
//! | partition | one of the parts that share a poller's keys; each ticks as a poller of its own | Event Hubs |
//! | replay, backfill | a range of a poller's past that is delivered again beside it, whole or in windows | |
//! | closed window | a range that was delivered, and is read again for what was committed late | |
//! | fingerprint | hash of what gives a checkpoint its meaning | |

// Vocabulary: no async, no I/O.
pub mod clock;
pub mod cursor;
pub mod error;
pub mod event;
pub mod partition;
pub mod redaction;
mod repeats;
mod suggestion;
pub mod trace;
pub mod value;

// Pure rules and ports.
pub mod config;
pub mod handler;
pub mod journal;
pub mod normalize;
pub mod policy;
pub mod quarantine;
pub mod range;
pub mod schedule;
pub mod source;
pub mod state;

// Engine.
pub mod doctor;
pub mod lease;
pub mod metrics;
pub mod poller;
pub mod recovery;
pub mod repartition;
pub mod status;

// Adapters; those of one port lie below it.
pub mod azure;
pub mod mssql;

// Edges.
pub mod host;
pub mod package;
pub mod page;
pub mod project;
pub mod telemetry;
pub mod timers;

// Composition, and the command line above it.
pub mod app;
pub mod cli;
#[cfg(feature = "demo")]
pub mod demo;
#[cfg(feature = "demo")]
pub mod race;

// The development stand-in for SQL Server.
#[cfg(feature = "demo")]
pub mod devdb;

// The stand-in for the Functions host.
#[cfg(feature = "demo")]
pub mod fakehost;

#[cfg(any(test, feature = "test-util"))]
pub mod testing;
