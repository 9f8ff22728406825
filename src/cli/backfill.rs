//! `highwater backfill`: redelivers a range of rows in windows, in parallel.

use clap::Args;

use super::output::{Exit, Failed};
use super::range::{self, RangeOptions, Shape};
use highwater::config::Vars;
use highwater::range::Purpose;

/// Most windows: each has its own document.
const WINDOWS_MAX: i64 = 1_000;
/// Most concurrent windows in one process: each has its own connections.
const PARALLEL_MAX: i64 = 64;

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    range: RangeOptions,
    /// Number of windows, with about the same number of rows each.
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=WINDOWS_MAX))]
    windows: u16,
    /// Number of concurrent windows in this process; other processes can share the rest.
    #[arg(long, value_name = "P", default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=PARALLEL_MAX))]
    parallel: u16,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let shape = Shape {
        purpose: Purpose::Backfill,
        windows: options.windows.into(),
        parallel: options.parallel.into(),
    };
    Box::pin(range::run(vars, &options.range, shape)).await
}
