//! Logs: one JSON object per line, errors on stderr and everything else on stdout.
//!
//! The Functions host makes one record of each line: stdout is Information, stderr is Error. A closed
//! pipe must not end the process, which is why nothing here uses `println!`. Each line of a tick carries
//! the invocation's id, in a field of its own or in `span`.

use std::io;
use std::panic::{self, PanicHookInfo};

use tracing::{Level, error};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::MakeWriterExt as _;

/// Sends log events of at least `filter` (such as `info` or `highwater=debug,warn`) to the streams.
///
/// Returns whether `filter` was understood; `info` is used where it was not.
pub fn start(filter: &str) -> bool {
    let parsed = EnvFilter::try_new(filter);
    let understood = parsed.is_ok();
    let streams = io::stderr.with_max_level(Level::ERROR).or_else(io::stdout);
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_target(false)
        .with_env_filter(parsed.unwrap_or_else(|_| EnvFilter::new("info")))
        .with_writer(streams)
        // It would be told by `eprintln!`, which panics where the host is gone with both pipes.
        .log_internal_errors(false)
        .finish();
    // Fails only where a subscriber is set already, as by a test.
    let started = tracing::subscriber::set_global_default(subscriber).is_ok();
    if started {
        panic::set_hook(Box::new(log_panic));
    }
    started && understood
}

/// Logs a panic as one line: the standard text has several, each an error without an id to the host.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("(no text)");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    error!(event = "panic", error = text, place, "Panicked at {place}: {text}");
}
