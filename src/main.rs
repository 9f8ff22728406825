//! Entry point; all logic is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    highwater::cli::main()
}
