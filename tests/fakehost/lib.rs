//! A stand-in for the Azure Functions host, for tests: it starts the handler, calls it, judges the replies, and
//! restarts, kills or leaves it, by the recorded contract of the real host.
//!
//! Faithful where it counts:
//!
//! - the five variables, and one port for all lives of the process, until a restart in place
//! - a ping every 25 ms until something answers
//! - requests byte for byte as recorded, in chunks of 1,024 characters
//! - replies judged by the recorded verdicts, where an empty success is a *hang* (reported at once here)
//! - no concurrency limit for the handler; one run at a time for a timer; of several hosts with the same id, one fires
//! - a time-out does not cancel the request: it kills whatever process is there 2 s later
//! - exit code 0 is permanent, 200 a restart; the third other one ends the host
//! - SIGKILL is the only signal; a host that ends before its runs leaves the handler behind
//! - a host without its storage ends too
//!
//! Timers fire by their schedules once [`FakeHost::start_timers`] says so; without that [`FakeHost::fire`] is the timer.
//! [`FakeHost::invoke`] is the admin endpoint. With `telemetryMode` `OpenTelemetry` it exports what it logs.

mod body;
mod exporter;
mod host;
mod journal;
mod judge;
mod listener;
mod process;
mod schedule;
mod timers;
mod wire;

use std::time::Duration;

pub use self::{
    body::{Invocation, Retry},
    host::{FakeHost, InPlace, Outcome},
    journal::{Journal, Level, Record},
    judge::{Verdict, judge},
    listener::Singleton,
    process::{Exit, Options, Phase, Signal, free_port},
    schedule::Schedule,
    timers::Timers,
    wire::{Connection, Framing, Reply, call},
};

// The recorded life cycle of the host; a test holds these against the record.

/// How often a starting handler is pinged.
pub const READY_POLL_INTERVAL: Duration = Duration::from_millis(25);
/// How long a handler may refuse connections after its start; only the pauses count.
pub const INITIALIZATION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an invocation waits for a handler that is being started.
pub const INVOKE_WAIT_MAX: Duration = Duration::from_secs(120);
/// The error at which the host shuts down.
pub const ERRORS_MAX: usize = 3;
/// Errors are forgotten when the last one is this old.
pub const ERRORS_FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 60);
/// Exit code that asks for a restart, and is no error.
pub const EXIT_CODE_RESTART: i32 = 200;
/// Exit code of the host itself, whatever has ended it.
pub const HOST_EXIT_CODE: i32 = 0;
/// How long the host waits for a killed process.
pub const KILL_WAIT: Duration = Duration::from_secs(1);
/// How long a stopping host waits for running timers.
pub const STOP_WAIT: Duration = Duration::from_secs(10);
/// From a run's time-out to the kill.
pub const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// Lease of a timer's lock in Azure; it is renewed after half of this.
pub const LISTENER_LOCK_PERIOD: Duration = Duration::from_secs(60);
/// How often a host asks for a lock that another host has.
pub const LISTENER_LOCK_POLLING_INTERVAL: Duration = Duration::from_secs(60);
/// How long a host runs without its storage.
pub const STORAGE_WAIT: Duration = Duration::from_secs(25);
/// Shortest schedule of which the host keeps a status, and so the shortest that can be past due.
pub const STATUS_SCHEDULE_MIN: Duration = Duration::from_secs(60);
/// Length of a chunk of a request.
pub const CHUNK_CHARACTERS: usize = 1024;
/// Lines of stderr that are kept for the message about an exit.
pub const STDERR_LINES_KEPT: usize = 3;
/// Where the handler's own lines go.
pub const CONSOLE_CATEGORY: &str = "Host.Function.Console";
/// Beginnings of lines that the host takes for its own.
pub const RESERVED_PREFIXES: [&str; 2] = ["LanguageWorkerConsoleLog", "azfuncjsonlog:"];
