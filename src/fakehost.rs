//! A stand-in for the Azure Functions host, for tests and the demo: it starts the handler, calls it,
//! judges what comes back, and restarts or kills it, by the recorded contract of the real one.
//!
//! Faithful where it counts: the five variables and one port for all lives of the process; a ping each
//! 25 ms until something answers; chunked requests with the recorded headers; replies judged by the
//! recorded table, where an empty success is a *hang* (reported at once here); no concurrency limit
//! for the handler, one run at a time for a timer; a time-out that does not cancel the request but
//! kills the process; three errors in a row that shut the host down; SIGKILL as the only signal.
//!
//! It has no schedule of its own: [`FakeHost::fire`] is the timer, [`FakeHost::invoke`] the admin
//! endpoint. It stands alone but for [`crate::clock`].

mod body;
mod host;
mod journal;
mod judge;
mod process;
mod timers;
mod wire;

use std::time::Duration;

pub use self::{
    body::{Invocation, Retry},
    host::{FakeHost, Outcome},
    journal::{Journal, Level, Record},
    judge::{Verdict, judge},
    process::{Exit, Options, Phase, Signal, free_port},
    timers::Timers,
    wire::{Connection, Framing, Reply},
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
/// How long the host waits for a killed process.
pub const KILL_WAIT: Duration = Duration::from_secs(1);
/// How long a stopping host waits for running timers.
pub const STOP_WAIT: Duration = Duration::from_secs(10);
/// From a run's time-out to the kill.
pub const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// Lines of stderr that are kept for the message about an exit.
pub const STDERR_LINES_KEPT: usize = 3;
/// Where the handler's own lines go.
pub const CONSOLE_CATEGORY: &str = "Host.Function.Console";
/// Beginnings of lines that the host takes for its own.
pub const RESERVED_PREFIXES: [&str; 2] = ["LanguageWorkerConsoleLog", "azfuncjsonlog:"];
