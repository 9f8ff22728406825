//! Highwater: a polling trigger for Microsoft SQL Server on Azure Functions.
//!
//! This library holds everything that the two programs of Highwater share: `handler`, which the Functions host starts and
//! which is all that is deployed, and `highwater`, the command line. Depend on it to run pollers inside a program of your
//! own. Each timer trigger runs one *tick* of a *poller*: read the rows that changed since the last committed position,
//! hand them to a handler, and move the position only after the handler has succeeded.
//!
//! Every committed row is delivered **at least once**, in its current state, in order within a poller, under the one
//! condition that its mode states. An instance that lost its lease cannot move the checkpoint, and cannot write to a fenced
//! target once its successor has. Handlers must be idempotent.
//!
//! # Example
//!
//! Settings are those of `docs/reference/settings.md`, from the environment or any other [`config::Vars`]. One tick,
//! without the Functions host:
//!
//! ```no_run
//! use std::collections::BTreeMap;
//!
//! use highwater::builder::App;
//! use highwater::tick::TickRequest;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = [
//!     ("HIGHWATER__STATE__STORE", "file"),
//!     ("HIGHWATER__STATE__FOLDER", "/var/lib/highwater"),
//!     ("SqlConnection", "Server=db;Database=shop;User ID=highwater;Password=…"),
//!     ("HIGHWATER__POLLERS__ORDERS__SOURCE__CONNECTION", "SqlConnection"),
//!     ("HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE", "dbo.orders"),
//!     ("HIGHWATER__POLLERS__ORDERS__SOURCE__CURSOR", "version"),
//!     ("HIGHWATER__POLLERS__ORDERS__SOURCE__KEY", "id"),
//!     ("HIGHWATER__POLLERS__ORDERS__HANDLER__KIND", "stdout"),
//! ];
//! let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
//! let app = App::build(&BTreeMap::from(settings))?; // connects to nothing yet
//! if let Some(orders) = app.pollers.get("orders") {
//!     let report = orders.tick(&TickRequest::default()).await;
//!     println!("{}", report.summary);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! | you want to | module |
//! |---|---|
//! | read and check settings | [`config`] |
//! | build pollers from settings | [`builder`] |
//! | run a tick and judge its result | [`poller`], [`tick`] |
//! | write a handler or a store of your own | [`handler`], [`state`], [`journal`] |
//! | answer the Functions host | [`host`] |
//! | log, export metrics and traces | [`telemetry`] |
//! | pause, reset, clone, restore, redrive | [`admin`] |
//! | read the state of pollers | [`status`], [`recovery`] |
//!
//! The other public modules are shared with the programs and hidden from this page; they may change at any time.
//!
//! # Layers
//!
//! | layer | modules | may know |
//! |---|---|---|
//! | programs | the packages `highwater-handler` and `highwater-cli` | everything |
//! | composition | [`builder`], `process`, `serve` | the layers below |
//! | edges | [`host`], `page`, `project`, [`telemetry`], `timers` | the layers below |
//! | adapters | `journal::file`, `state::{file, local}`, `handler::{durable, exec, http, stdout}`; the crates [`highwater_mssql`] and [`highwater_azure`] | their port, their crate |
//! | settings | [`config`] | the engine's rules and vocabulary |
//! | engine | the crate [`highwater_engine`], which tells a tick step by step | no driver, no web framework, no cloud |
//!
//! Imports point downwards only. Between crates the manifests enforce it.
//!
//! # Invariants, as absences
//!
//! - The engine never names a driver, a web framework or a cloud: its manifest has none.
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

pub use highwater_engine::{
    admin, clock, cursor, error, event, lease, metrics, partition, policy, poller, recovery,
    status, tick, value,
};
// What the programs share with the engine and the adapters.
#[doc(hidden)]
pub use highwater_azure as azure;
#[doc(hidden)]
pub use highwater_engine::{
    doctor, document, normalize, quarantine, range, redaction, repartition, repeats, schedule,
    trace,
};
#[doc(hidden)]
pub use highwater_mssql as mssql;

pub mod config;
#[doc(hidden)]
pub mod suggestion;

// Adapters; those of one port lie below it.
pub mod handler;
pub mod journal;
pub mod source;
pub mod state;

// Edges.
pub mod host;
#[doc(hidden)]
pub mod page;
#[doc(hidden)]
pub mod project;
pub mod telemetry;
#[doc(hidden)]
pub mod timers;

// Composition, and the process around it.
pub mod builder;
#[doc(hidden)]
pub mod exit;
#[doc(hidden)]
pub mod process;
#[doc(hidden)]
pub mod serve;

#[cfg(any(test, feature = "test-util"))]
pub use highwater_engine::testing;
