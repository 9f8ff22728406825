//! placeholder
use std::process::ExitCode;
/// Options.
#[derive(Debug, clap::Args)]
pub struct Options {}
/// Runs.
pub async fn run(_: Options) -> ExitCode {
    ExitCode::SUCCESS
}
