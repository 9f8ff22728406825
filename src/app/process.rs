//! The process around a program: its runtime, its secrets, and the guard of `exec` processes.

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

/// How long an exiting process waits for threads blocked in system calls, such as a write.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(5);

/// Runs a program on its own runtime, or the guard of `exec` processes if it was started as that.
///
/// The future is boxed and driven here: otherwise the program's crate would contain another copy of all awaited
/// code for each kind of runtime, some megabytes.
pub fn run(program: Pin<Box<dyn Future<Output = ExitCode>>>) -> ExitCode {
    // The guard only waits for the end of a pipe, so it needs no runtime.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == guard::COMMAND) {
        guard::run(std::io::stdin());
        return Exit::Done.into();
    }
    hold_secrets(&ProcessVars);
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return end(Err(Failed::new(Exit::Failed, chain(&error)))),
    };
    // If the path is unknown, processes are not guarded.
    if let Ok(program) = std::env::current_exe() {
        guard::guard_with(program);
    }
    let exit = runtime.block_on(program);
    // Do not drop the runtime: that would wait forever for a write to a pipe that is not read.
    runtime.shutdown_timeout(SHUTDOWN_TIME_MAX);
    flush_lines();
    exit
}

/// Registers every secret of the environment for redaction, before anything is printed.
pub fn hold_secrets(vars: &dyn Vars) {
    redaction::hold(secrets(vars).into_iter().map(|found| found.value));
}
