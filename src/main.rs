//! Entry point; all logic is in the library.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    highwater::cli::run().await
}
