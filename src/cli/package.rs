//! `highwater package`: what `func start --script-root DIR` and a deployment need.

pub(crate) mod contents;
mod program;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::from::FromOption;
use super::output::{Exit, Failed, OutputOption, say, tell};
use contents::{Ingredients, Package};
use highwater::config::{Config, Vars};
use highwater::error::chain;
use highwater::project::HANDLER;

/// Settings of pollers begin so.
const POLLERS: &str = "HIGHWATER__POLLERS__";

#[derive(Debug, Args)]
#[group(id = "where", required = true, multiple = true)]
struct Where {
    /// Zip file to write, ready to be deployed; the same content gives the same bytes.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Folder to lay the same out in, for `func start --script-root DIR`.
    #[arg(long, value_name = "DIR")]
    stage: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    to: Where,
    #[command(flatten)]
    from: FromOption,
    /// The handler to take; if not given, the one beside this program, or in a source tree the one built from it.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    #[command(flatten)]
    form: OutputOption,
}

/// What was made.
#[derive(Debug, Serialize)]
struct Made {
    functions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zip: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<String>,
    notes: Vec<String>,
}

impl Made {
    fn text(&self) -> String {
        let names = self.functions.join(", ");
        let what = |verb: &str, to: &str| {
            format!("{verb} `{HANDLER}`, host.json, licences and functions {names} in {to}")
        };
        let zip = self.zip.iter().map(|to| what("packed", to));
        zip.chain(self.folder.iter().map(|to| what("staged", to))).collect::<Vec<_>>().join("\n")
    }
}

/// Makes the package; functions are made for pollers where the settings are at hand.
pub(super) fn run(
    vars: &dyn Vars,
    options: &Options,
    settings: Option<&Path>,
) -> Result<Exit, Failed> {
    let config = if vars.names().iter().any(|name| name.starts_with(POLLERS)) {
        let read = Config::from_vars(vars);
        Some(read.map_err(|error| Failed::new(Exit::Settings, error.to_string()))?)
    } else {
        None
    };
    let failed = |error| Failed::new(Exit::Failed, chain(&error));
    let folder = options.from.folder(settings);
    let binary = options.binary.clone().map_or_else(program::find, Ok)?;
    let made_of = Ingredients {
        folder: &folder,
        binary: &binary,
        config: config.as_ref(),
        has_settings: settings.is_some(),
    };
    let package = Package::of(made_of, vars).map_err(failed)?;
    let Where { out, stage } = &options.to;
    let bytes = out.as_ref().map(|to| package.zip(to)).transpose().map_err(failed)?;
    stage.as_ref().map(|to| package.stage(to)).transpose().map_err(failed)?;
    let Package { functions, notes, unfit, .. } = package;
    for note in &notes {
        tell(&format!("note: {note}"));
    }
    if let Some(reason) = unfit {
        tell(&format!("note: for this machine only: {reason}"));
    }
    // A path that is no text has no JSON form.
    let shown = |path: &PathBuf| path.display().to_string();
    let (zip, folder) = (out.as_ref().map(shown), stage.as_ref().map(shown));
    let made = Made { functions, zip, bytes, folder, notes };
    say(&options.form.output.one(&made, || made.text()));
    Ok(Exit::Done)
}
