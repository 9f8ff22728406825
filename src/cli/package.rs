//! `highwater package`: builds a package for a deployment or for `func start --script-root DIR`.

pub(crate) mod contents;
mod program;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::from::FromOption;
use super::output::{Exit, Failed, OutputOption, print_message, print_text};
use contents::{Package, PackageInputs};
use highwater::config::{Config, Vars};
use highwater::error::chain;
use highwater::project::HANDLER;

/// Prefix of the settings of pollers.
const POLLERS: &str = "HIGHWATER__POLLERS__";

#[derive(Debug, Args)]
#[group(id = "where", required = true, multiple = true)]
struct Where {
    /// Zip file to write, ready for deployment; the same content gives the same bytes.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Folder to stage the same files in, for `func start --script-root DIR`.
    #[arg(long, value_name = "DIR")]
    stage: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    to: Where,
    #[command(flatten)]
    from: FromOption,
    /// The handler's executable; by default, the one next to this program, or in a source tree a fresh build.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    #[command(flatten)]
    form: OutputOption,
}

/// The built package.
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

/// Builds the package; if the settings are known, it generates functions for pollers without one.
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
    let ingredients = PackageInputs {
        folder: &folder,
        binary: &binary,
        config: config.as_ref(),
        has_settings: settings.is_some(),
    };
    let package = Package::of(ingredients, vars).map_err(failed)?;
    let Where { out, stage } = &options.to;
    let bytes = out.as_ref().map(|to| package.zip(to)).transpose().map_err(failed)?;
    stage.as_ref().map(|to| package.stage(to)).transpose().map_err(failed)?;
    let Package { functions, notes, unfit, .. } = package;
    for note in &notes {
        print_message(&format!("note: {note}"));
    }
    if let Some(reason) = unfit {
        print_message(&format!("note: this package runs only on this machine: {reason}"));
    }
    // JSON cannot represent a path that is not valid Unicode.
    let shown = |path: &PathBuf| path.display().to_string();
    let (zip, folder) = (out.as_ref().map(shown), stage.as_ref().map(shown));
    let made = Made { functions, zip, bytes, folder, notes };
    print_text(&options.form.output.one(&made, || made.text()));
    Ok(Exit::Done)
}
