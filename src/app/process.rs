//! The process around a program: its runtime, its secrets, the watcher of what `exec` starts.

use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::config::{ProcessVars, Vars, secrets};
use crate::error::chain;
use crate::exit::{Exit, Failed, end};
use crate::handler::exec::guard;
use crate::redaction;
use crate::telemetry::flush_lines;

/// How long the end of the process waits for a call to the system that blocks a thread, such as a write.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(5);

/// Runs a program on a runtime of its own; or the watcher of the processes of `exec`, where it was started as that.
///
/// The future is boxed, and driven here: the program's own crate would hold all that it may await once more for each
/// kind of runtime, some megabytes.
pub fn run(program: Pin<Box<dyn Future<Output = ExitCode>>>) -> ExitCode {
    // Without a runtime, since it only waits for the end of a pipe.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == guard::COMMAND) {
        guard::run(std::io::stdin());
        return Exit::Done.into();
    }
    hold_secrets(&ProcessVars);
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return end(Err(Failed::new(Exit::Failed, chain(&error)))),
    };
    // Where it is not known, processes are not guarded, which is said once there is one.
    if let Ok(program) = std::env::current_exe() {
        guard::guard_with(program);
    }
    let exit = runtime.block_on(program);
    // Not dropped: that would wait without a limit for a row in a pipe that is not read.
    runtime.shutdown_timeout(SHUTDOWN_TIME_MAX);
    flush_lines();
    exit
}

/// Registers every secret of the environment, before anything can be said about it.
pub fn hold_secrets(vars: &dyn Vars) {
    redaction::hold(secrets(vars).into_iter().map(|found| found.value));
}
