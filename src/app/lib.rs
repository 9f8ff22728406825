//! Highwater: a polling trigger for Microsoft SQL Server on Azure Functions.
//!
//! This library is shared by the two programs of Highwater: `handler`, the deployed program that the Functions
//! host starts, and `highwater`, the command line. Depend on it to run pollers inside your own program. Each
//! timer trigger runs one *tick* of a *poller*: read the rows that changed since the last committed position,
//! pass them to a handler, and move the position only after the handler has succeeded.
//!
//! Every committed row is delivered **at least once**, in its current state, in order within a poller. Each mode
//! has one precondition. An instance that lost its lease cannot move the checkpoint, and cannot write to a fenced
//! target once its successor has. Handlers must be idempotent.
//!
//! # Example
//!
//! Settings are documented in `docs/reference/settings.md`, and come from the environment or any other
//! [`config::Vars`]. One tick, without the Functions host:
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
//! | write your own handler or store | [`handler`], [`state`], [`journal`] |
//! | serve the Functions host | [`host`] |
//! | log, export metrics and traces | [`telemetry`] |
//! | pause, reset, clone, restore, redrive | [`admin`] |
//! | read the state of pollers | [`status`], [`recovery`] |
//! | explain why a row was or was not delivered | [`explain`] |
//!
//! The other public modules are shared with the programs and hidden here; they may change at any time.
//!
//! # Operating pollers
//!
//! What the command line does, a program can do too:
//!
//! ```no_run
//! use std::collections::BTreeMap;
//!
//! use highwater::admin::Operator;
//! use highwater::builder::App;
//! use highwater::status::{StatusQuery, StatusReader};
//!
//! # async fn example(app: App) -> Result<(), Box<dyn std::error::Error>> {
//! let status = StatusReader {
//!     app: app.name.clone(),
//!     state: app.state.clone(),
//!     pollers: app.pollers.clone(),
//!     schedules: BTreeMap::new(),
//!     disabled: BTreeMap::new(),
//! };
//! for poller in status.read(StatusQuery::All).await?.pollers {
//!     println!("{}: {:?} at {:?}", poller.poller, poller.health.state, poller.checkpoint);
//! }
//! if let Some(orders) = app.pollers.get("orders") {
//!     orders.admin().pause(Operator { by: "ops", reason: "maintenance of the target" }).await?;
//! }
//! // Finds pollers that cannot continue; repairs nothing.
//! for finding in app.recovery.look().await?.findings {
//!     println!("{}: {}", finding.poller, finding.condition);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Serving the Functions host
//!
//! ```no_run
//! use std::collections::BTreeMap;
//!
//! use highwater::builder::App;
//! use highwater::config::ProcessVars;
//! use highwater::host::server::{Functions, router};
//! use highwater::poller::StopSignal;
//! use highwater::status::StatusReader;
//! use highwater::telemetry::{Telemetry, TickLines};
//!
//! # async fn example(status: StatusReader) -> Result<(), Box<dyn std::error::Error>> {
//! let telemetry = Telemetry::start("info", &ProcessVars, TickLines::Written);
//! let app = App::build_to_run(&ProcessVars, None)?;
//! let functions = Functions::Ready(app.into_functions(status));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, router(functions, StopSignal::default())).await?;
//! telemetry.flush().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! | layer | modules | may depend on |
//! |---|---|---|
//! | programs | the packages `highwater-handler` and `highwater-cli` | everything |
//! | composition | [`builder`], `process`, `serve` | the layers below |
//! | edges | [`host`], `page`, `project`, [`telemetry`], `timers` | the layers below |
//! | adapters | `journal::file`, `state::{file, local}`, `handler::{durable, exec, http, stdout}`; the crates [`highwater_mssql`] and [`highwater_azure`] | their port, their driver |
//! | settings | [`config`] | the engine's rules and vocabulary |
//! | engine | the crate [`highwater_engine`], which describes a tick step by step | no driver, no web framework, no cloud |
//!
//! Imports only point downwards. Between crates, the manifests enforce this.
//!
//! # Invariants
//!
//! - The engine does not depend on a driver, a web framework or a cloud: its manifest has none.
//! - No adapter depends on another adapter. Adapters of the same service share code in [`mssql`]
//!   (`handler::sql`, `source::mssql`, `state::sql`, `journal::sql`) and [`azure`] (the blob stores,
//!   `handler::{blob, http, queue}`).
//! - Only [`config`] reads the environment, and only [`clock`] reads the wall clock.
//! - Only [`mssql::ident`] turns a name into SQL; values are parameters.
//! - Nothing below the edges prints. No engine module spawns a task.
//! - Safety depends on compare-and-swap and the fencing token, never on a client's clock.
//!
//! # Terms
//!
//! | term | meaning | origin |
//! |---|---|---|
//! | poller | a source, a handler and the state between them; it *ticks* | JDBC "poll" |
//! | batch | rows delivered in one handler call | |
//! | cursor | a position in the source's order | Airbyte |
//! | checkpoint | a committed cursor, with the time and the batch of the commit | Event Hubs |
//! | state document | checkpoint, lease, fingerprint and more in one JSON object | |
//! | lease, owner, fencing token | a time-limited right, its holder, a number that grows with each grant | Kleppmann |
//! | generation | orders tokens across a lost and recreated document | |
//! | in-flight record | the batch being delivered and its history so far | |
//! | step | one handler of a chain; its result is stored before the next step is called | Durable Functions |
//! | settle window | how far behind "now" a time-based poller stays | |
//! | partition | one share of a poller's keys; each partition ticks as its own poller | Event Hubs |
//! | replay, backfill | a past range of a poller that is redelivered while the poller runs, at once or in windows | |
//! | closed window | a delivered range that is read again to find rows committed late | |
//! | fingerprint | hash of the source settings that give a checkpoint its meaning | |

pub use highwater_engine::{
    admin, clock, cursor, error, event, explain, lease, metrics, partition, policy, poller,
    recovery, status, tick, value,
};
// Shared by the programs, the engine and the adapters.
#[doc(hidden)]
pub use highwater_azure as azure;
#[doc(hidden)]
pub use highwater_engine::{
    doctor, document, normalize, notification, printable, quarantine, range, redaction,
    repartition, repeats, schedule, trace,
};
#[doc(hidden)]
pub use highwater_mssql as mssql;

pub mod config;
#[doc(hidden)]
pub mod suggestion;

// Adapters, each below its port.
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
mod web;

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
