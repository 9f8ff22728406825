//! Logs: one JSON object per line, errors on stderr and everything else on stdout.
//!
//! The Functions host makes one record of each line: stdout is Information, stderr is Error. A closed
//! pipe must not end the process, which is why nothing here uses `println!`.

use std::io;

use tracing::Level;
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
        .with_current_span(false)
        .with_span_list(false)
        .with_target(false)
        .with_env_filter(parsed.unwrap_or_else(|_| EnvFilter::new("info")))
        .with_writer(streams)
        .finish();
    // Fails only where a subscriber is set already, as by a test.
    tracing::subscriber::set_global_default(subscriber).is_ok() && understood
}
