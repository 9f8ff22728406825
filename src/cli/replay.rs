//! `highwater replay`: redelivers a range of rows once, in order.

use clap::Args;

use super::output::{Exit, Failed};
use super::range::{self, RangeOptions, Shape};
use highwater::config::Vars;
use highwater::range::Purpose;

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    range: RangeOptions,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let shape = Shape { purpose: Purpose::Replay, windows: 1, parallel: 1 };
    Box::pin(range::run(vars, &options.range, shape)).await
}
