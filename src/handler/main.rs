//! The deployed custom handler. It only serves the Functions host.
//!
//! Commands are in the program `highwater`. Build this one with `-p highwater-handler` alone, so that no
//! features of other packages are enabled.

use std::ffi::OsString;
use std::process::ExitCode;

use highwater::config::ProcessVars;
use highwater::exit::{Exit, Failed, end};
use highwater::{process, serve};

/// The only argument, which the host may pass: the equivalent command of `highwater`.
const SERVE: &str = "serve";

fn main() -> ExitCode {
    process::run(Box::pin(async {
        match unexpected(std::env::args_os().skip(1)) {
            None => end(serve::run(&ProcessVars).await),
            Some(argument) => end(Err(Failed::new(Exit::Usage, refusal(&argument)))),
        }
    }))
}

/// Returns the first argument that is not accepted.
fn unexpected(mut arguments: impl Iterator<Item = OsString>) -> Option<OsString> {
    let first = arguments.next().filter(|argument| argument != SERVE);
    first.or_else(|| arguments.next())
}

fn refusal(argument: &OsString) -> String {
    let argument = argument.to_string_lossy();
    format!(
        "unexpected argument `{argument}`: this program only serves the Functions host, with `{SERVE}` or without \
         arguments; for commands such as `status`, use the program `highwater`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serve_is_the_only_argument() {
        for (arguments, expected) in [
            (&[][..], None),
            (&["serve"], None),
            (&["status"], Some("status")),
            (&["serve", "--help"], Some("--help")),
            (&["serve", "serve"], Some("serve")),
        ] {
            let found = unexpected(arguments.iter().map(OsString::from));
            assert_eq!(found.as_deref(), expected.map(AsRef::as_ref), "{arguments:?}");
        }
    }
}
