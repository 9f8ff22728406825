//! A fake Azure Functions host for tests. It starts the handler, calls it, judges the replies, and restarts,
//! kills or leaves it, following the recorded contract of the real host.
//!
//! What it reproduces:
//!
//! - the five variables, and one port for all runs of the process, until a restart in place
//! - a ping every 25 ms until there is an answer
//! - requests byte for byte as recorded, in chunks of 1,024 characters
//! - replies judged by the recorded verdicts, where an empty success is a *hang* (reported at once here)
//! - no concurrency limit for the handler; one run at a time for a timer; of several hosts with the same id, one fires
//! - a timeout does not cancel the request: it kills the current process 2 s later
//! - exit code 0 is permanent, 200 a restart; the third other one ends the host
//! - SIGKILL is the only signal; a host that ends before its runs leaves the handler running
//! - a host without its storage ends too
//!
//! Timers fire on their schedules after [`FakeHost::start_timers`]; without it, [`FakeHost::fire`] acts as
//! the timer. [`FakeHost::invoke`] is the admin endpoint. With `telemetryMode` `OpenTelemetry` it exports its
//! log.

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

// The recorded lifecycle constants of the host; a test checks them against the record.

/// How often a starting handler is pinged.
pub const READY_POLL_INTERVAL: Duration = Duration::from_millis(25);
/// How long a handler may refuse connections after its start; only the pauses count.
pub const INITIALIZATION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an invocation waits for a starting handler.
pub const INVOKE_WAIT_MAX: Duration = Duration::from_secs(120);
/// The number of errors at which the host shuts down.
pub const ERRORS_MAX: usize = 3;
/// Errors are forgotten when the last one is this old.
pub const ERRORS_FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 60);
/// Exit code that requests a restart, and is not an error.
pub const EXIT_CODE_RESTART: i32 = 200;
/// Exit code of the host itself, whatever ended it.
pub const HOST_EXIT_CODE: i32 = 0;
/// How long the host waits for a killed process.
pub const KILL_WAIT: Duration = Duration::from_secs(1);
/// How long a stopping host waits for running timers.
pub const STOP_WAIT: Duration = Duration::from_secs(10);
/// Time between a run's timeout and the kill.
pub const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// Lease of a timer's lock in Azure; it is renewed after half of this.
pub const LISTENER_LOCK_PERIOD: Duration = Duration::from_secs(60);
/// How often a host requests a lock that another host holds.
pub const LISTENER_LOCK_POLLING_INTERVAL: Duration = Duration::from_secs(60);
/// How long a host runs without its storage.
pub const STORAGE_WAIT: Duration = Duration::from_secs(25);
/// Shortest schedule for which the host stores a status, and so the shortest that can be past due.
pub const STATUS_SCHEDULE_MIN: Duration = Duration::from_secs(60);
/// Length of a chunk of a request.
pub const CHUNK_CHARACTERS: usize = 1024;
/// Lines of stderr that are kept for the message about an exit.
pub const STDERR_LINES_KEPT: usize = 3;
/// The category of the handler's own lines.
pub const CONSOLE_CATEGORY: &str = "Host.Function.Console";
/// Prefixes of lines that the host treats as its own.
pub const RESERVED_PREFIXES: [&str; 2] = ["LanguageWorkerConsoleLog", "azfuncjsonlog:"];
