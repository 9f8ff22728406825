//! `highwater version`: version, commit and document format, for a report or a script.

use clap::Args;
use serde::Serialize;

use super::output::{OutputOption, print_text};
use highwater::state;

/// The commit of the build, if it was set.
const COMMIT: Option<&str> = option_env!("HIGHWATER_COMMIT");

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    form: OutputOption,
}

#[derive(Debug, Serialize)]
struct Build {
    version: &'static str,
    commit: Option<&'static str>,
    /// Format of state documents: builds that share one can share a document.
    state_document: u32,
}

pub(super) fn run(options: &Options) {
    let build = Build {
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT.filter(|commit| !commit.is_empty()),
        state_document: state::VERSION,
    };
    print_text(&options.form.output.one(&build, || {
        let Build { version, commit, state_document } = build;
        let commit = commit.unwrap_or("unknown");
        format!("highwater {version}\ncommit           {commit}\nstate document   {state_document}")
    }));
}
