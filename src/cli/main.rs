//! The command line: one file for each command.
//!
//! Data goes to standard output, in the format of `--output`; everything else goes to standard error.
//! Commands prompt only at a terminal. Exit codes: 0 done, 1 failed, 2 wrong usage or missing confirmation,
//! 3 invalid settings, 4 not allowed, 5 another instance holds the lease or was faster, 6 a service is
//! unreachable, 7 rejected by the handler, 8 (`status --check`) a poller needs attention, 9 (`status --check`) a
//! poller delivers nothing until an operator acts, 129, 130 or 143 stopped by a signal before it was done.

mod backfill;
mod clone;
mod config;
mod confirm;
mod ddl;
mod demo;
mod dev;
mod doctor;
mod findings;
mod from;
mod help;
mod init;
mod journal;
mod lease;
mod output;
mod package;
mod page;
mod pause;
mod quarantine;
mod range;
mod recover;
mod repartition;
mod replay;
mod reset;
mod restore;
mod run;
mod schema;
mod shell;
mod state;
mod status;
mod terminal_line;
mod tick;
mod trace;
mod validate;
mod version;
mod warnings;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::output::{Exit, Failed, Output, end, end_as, print_message, print_text};
use highwater::builder::App;
use highwater::builder::parts::PartitionablePoller;
use highwater::config::{LocalSettings, ProcessVars, Vars};
use highwater::error::chain;
use highwater::partition::poller_of_partition;
use highwater::poller::Poller;
use highwater::process;
use highwater::suggestion;

/// A polling trigger for Microsoft SQL Server on Azure Functions.
#[derive(Debug, Parser)]
#[command(name = "highwater", version, about)]
struct Arguments {
    /// Settings file; by default, `local.settings.json` in the current folder. The environment takes precedence.
    #[arg(long, value_name = "FILE", global = true, overrides_with = "settings")]
    settings: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the Functions host (default).
    Serve,
    /// Run pollers on their functions' timers, without the Functions host, until stopped.
    Run(run::Options),
    /// Run the pollers and the receiver of a project side by side, until stopped.
    Dev(dev::Options),
    /// Run one tick of a poller now.
    Tick(tick::Options),
    /// Check settings, host.json and functions for consistency, offline.
    Validate(validate::Options),
    /// Build a deployment package, or stage it for `func start --script-root DIR`.
    Package(package::Options),
    /// Create a poller's state; with `--table`, scaffold a project for a table.
    Init(init::Options),
    /// Check configuration, database and permissions, and suggest fixes. Writes nothing.
    Doctor(doctor::Options),
    /// Show the status of each poller, from its state document. Writes nothing.
    Status(status::Options),
    /// Explain why a row was or was not delivered. Writes nothing.
    Trace(trace::Options),
    /// Find pollers that are stuck, and with `--yes` repair what is safe to repair.
    Recover(recover::Options),
    /// Pause a poller in all processes until it is resumed.
    Pause(pause::PauseOptions),
    /// Resume a paused poller.
    Resume(pause::ResumeOptions),
    /// Change a poller's number of partitions, without losing or reordering rows.
    Repartition(repartition::Options),
    /// Redeliver a range of rows once, in order; the poller continues undisturbed.
    Replay(replay::Options),
    /// Redeliver a range of rows in windows, in parallel and in several processes.
    Backfill(backfill::Options),
    /// Move a poller's checkpoint, which redelivers or skips rows.
    Reset(reset::Options),
    /// Copy a poller's position to a new poller, or continue from another app's position.
    Clone(clone::Options),
    /// Take a poller's lease from its holder.
    #[command(subcommand)]
    Lease(lease::Options),
    /// List, show, redrive or drop quarantined rows.
    #[command(subcommand)]
    Quarantine(quarantine::Options),
    /// Show, copy, verify or rebuild a state document.
    #[command(subcommand)]
    State(state::Options),
    /// Show, export or compact a poller's journal.
    #[command(subcommand)]
    Journal(journal::Options),
    /// Show the settings that are set, without secrets.
    #[command(subcommand)]
    Config(config::Options),
    /// Print the JSON Schema of a poller's deliveries, with the column types of its table.
    Schema(schema::Options),
    /// Print the statements that create one of Highwater's own tables, without running them.
    Ddl(ddl::Options),
    /// Print a shell completion script.
    Completions(shell::CompletionsOptions),
    /// Print version, commit and the format of state documents.
    Version(version::Options),
    /// Print the manual, for `man -l -`, or write a page for each command.
    Man(shell::ManOptions),
    /// Demonstrate lossless delivery of real data through failures and kills; needs nothing installed.
    Demo(demo::Options),
    /// Serve in-memory databases as a stand-in for SQL Server, and print the connection string.
    Devdb(demo::devdb::Options),
}

fn main() -> ExitCode {
    process::run(Box::pin(run()))
}

async fn run() -> ExitCode {
    let parsed = help::decorated(Arguments::command()).try_get_matches();
    let parsed = parsed.and_then(|found| {
        Arguments::from_arg_matches(&found).map(|arguments| (arguments, form_of(&found)))
    });
    let (arguments, form) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version are not errors; clap knows which stream each belongs to.
            if error.use_stderr() {
                if let Some(renamed) = renamed(std::env::args().skip(1)) {
                    return end(Err(Failed::new(Exit::Usage, renamed)));
                }
                // It repeats arguments.
                print_message(error.to_string().trim_end());
                return Exit::Usage.into();
            }
            return if error.print().is_ok() { Exit::Done } else { Exit::Failed }.into();
        }
    };
    let command = match arguments.command {
        Some(command) => command,
        // The Functions host starts the program without arguments, and without a terminal.
        None if std::io::stdout().is_terminal() => {
            print_text(help::START.trim_end());
            return Exit::Done.into();
        }
        None => Command::Serve,
    };
    let found = || {
        command.finds_settings().then_some(Path::new(LOCAL_SETTINGS)).filter(|path| path.is_file())
    };
    let settings = arguments.settings.as_deref().or_else(found);
    let vars: &dyn Vars = match settings {
        None => &ProcessVars,
        Some(path) => match LocalSettings::read(path, ProcessVars) {
            Ok(read) => {
                process::hold_secrets(&read);
                if arguments.settings.is_some() {
                    suggestion::hold_settings(path);
                } else if !matches!(command, Command::Dev(_)) {
                    print_message(&format!("note: with the settings in ./{LOCAL_SETTINGS}"));
                }
                &read.clone()
            }
            Err(error) => return end_as(form, Err(Failed::new(Exit::Settings, chain(&error)))),
        },
    };
    let ended = match command {
        Command::Serve => highwater::serve::run(vars).await,
        Command::Run(options) => run::run(vars, &options, settings).await,
        Command::Dev(options) => Box::pin(dev::run(vars, &options, settings)).await,
        Command::Tick(options) => tick::run(vars, &options).await,
        Command::Validate(options) => Ok(validate::run(vars, &options, settings)),
        Command::Package(options) => package::run(vars, &options, settings),
        Command::Init(options) => init::run(vars, &options).await,
        Command::Doctor(options) => doctor::run(vars, &options, settings).await,
        Command::Status(options) => status::run(vars, &options, settings).await,
        Command::Trace(options) => Box::pin(trace::run(vars, &options, settings)).await,
        Command::Recover(options) => recover::run(vars, &options, settings).await,
        Command::Pause(options) => pause::pause(vars, &options).await,
        Command::Resume(options) => pause::resume(vars, &options).await,
        Command::Repartition(options) => Box::pin(repartition::run(vars, &options)).await,
        Command::Replay(options) => Box::pin(replay::run(vars, &options)).await,
        Command::Backfill(options) => Box::pin(backfill::run(vars, &options)).await,
        Command::Reset(options) => Box::pin(reset::run(vars, &options)).await,
        Command::Clone(options) => Box::pin(clone::run(vars, &options)).await,
        Command::Lease(options) => Box::pin(lease::run(vars, &options)).await,
        Command::Quarantine(options) => quarantine::run(vars, &options).await,
        Command::State(options) => Box::pin(state::run(vars, &options)).await,
        Command::Journal(options) => Box::pin(journal::run(vars, &options)).await,
        Command::Schema(options) => schema::run(vars, &options).await,
        Command::Config(options) => Ok(config::run(vars, &options)),
        Command::Ddl(options) => ddl::run(&options),
        Command::Completions(options) => {
            shell::completions(&options, help::decorated(Arguments::command()));
            Ok(Exit::Done)
        }
        Command::Version(options) => {
            version::run(&options);
            Ok(Exit::Done)
        }
        Command::Man(options) => shell::man(&options, help::decorated(Arguments::command())),
        Command::Demo(options) => return demo::run(options).await,
        Command::Devdb(options) => return demo::devdb::run(options).await,
    };
    end_as(form, ended)
}

/// Returns the format that was chosen for the data of a command; a table if it has none.
fn form_of(found: &ArgMatches) -> Output {
    match found.subcommand() {
        Some((_, found)) => form_of(found),
        None => found.try_get_one("output").ok().flatten().copied().unwrap_or_default(),
    }
}

impl Command {
    /// Whether it reads the settings of the project in whose folder it is started. The Functions host sets the settings of
    /// `serve` itself.
    fn finds_settings(&self) -> bool {
        !matches!(
            self,
            Self::Serve
                | Self::Ddl(_)
                | Self::Completions(_)
                | Self::Version(_)
                | Self::Man(_)
                | Self::Demo(_)
                | Self::Devdb(_)
        )
    }
}

/// The settings file of a project.
const LOCAL_SETTINGS: &str = "local.settings.json";

/// Former names of commands, and their current names.
const RENAMED: &[(&str, &str)] = &[
    ("fence ddl", "ddl fence"),
    ("journal ddl", "ddl journal"),
    ("ledger ddl", "ddl ledger"),
    ("state ddl", "ddl state"),
    ("quarantine replay", "quarantine redrive"),
];

/// Returns a hint to the current name, if a command line has a former one. Options may come before it.
fn renamed(arguments: impl Iterator<Item = String>) -> Option<String> {
    let words: Vec<String> = arguments.filter(|word| !word.starts_with('-')).collect();
    let (old, new) = RENAMED.iter().find(|(old, _)| {
        let old: Vec<&str> = old.split(' ').collect();
        words.windows(old.len()).any(|words| words == old)
    })?;
    Some(format!("`{old}` is now `{new}`: `highwater help` lists all commands"))
}

/// Builds the poller of a name from the settings, without connecting to anything.
fn poller(vars: &dyn Vars, name: &str) -> Result<Arc<Poller>, Failed> {
    poller_of(&App::build(vars)?.pollers, name)
}

/// As [`stored_poller`], for a command that writes a document: also if the store's folder is missing.
async fn poller_to_restore(vars: &dyn Vars, name: &str) -> Result<Arc<Poller>, Failed> {
    stored_part(vars, name, &App::build_to_restore(vars)?).await
}

/// As [`poller`], for a command that replaces a document, and so may unblock a repartition.
///
/// While a repartition waits for old partitions, this is the old partition of that name, whatever number the settings
/// have: the repartition prints such commands, and continues after them.
async fn stored_poller(vars: &dyn Vars, name: &str) -> Result<Arc<Poller>, Failed> {
    stored_part(vars, name, &App::build(vars)?).await
}

async fn stored_part(vars: &dyn Vars, name: &str, app: &App) -> Result<Arc<Poller>, Failed> {
    let whole = poller_of_partition(name);
    // If the settings have an unpartitioned poller of that name, no old partition has it.
    let may_be_old = whole != name || !app.pollers.contains_key(name);
    if may_be_old
        && let Some(partitionable) = PartitionablePoller::build(vars, whole)?
        && let Some(old) = Box::pin(partitionable.old_partition(name)).await?
    {
        return Ok(Arc::new(old));
    }
    poller_of(&app.pollers, name)
}

fn poller_of(pollers: &BTreeMap<String, Arc<Poller>>, name: &str) -> Result<Arc<Poller>, Failed> {
    pollers.get(name).cloned().ok_or_else(|| unknown(name, pollers))
}

/// Returns the poller of a name, or all its partitions.
fn parts(vars: &dyn Vars, name: &str) -> Result<Vec<Arc<Poller>>, Failed> {
    let app = App::build(vars)?;
    let matching = app.pollers.values().filter(|poller| is_of(poller.name(), name));
    let found: Vec<Arc<Poller>> = matching.cloned().collect();
    if found.is_empty() {
        return Err(unknown(name, &app.pollers));
    }
    Ok(found)
}

/// Whether `poller` is the requested one, or a partition of it.
fn is_of(poller: &str, requested: &str) -> bool {
    poller == requested || poller_of_partition(poller) == requested
}

/// Reports an unknown poller name, and lists the known ones.
fn unknown<T>(name: &str, known: &BTreeMap<String, T>) -> Failed {
    let (parts, others): (Vec<&str>, Vec<&str>) =
        known.keys().map(String::as_str).partition(|known| is_of(known, name));
    let text = if parts.is_empty() {
        format!("there is no poller `{name}`; the settings have `{}`", others.join("`, `"))
    } else {
        let parts = parts.join("`, `");
        format!(
            "poller `{name}` is partitioned, and this command works on one partition: name `{parts}`"
        )
    };
    Failed::new(Exit::Usage, text)
}

#[cfg(test)]
mod suggested;

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that print no data, or data with a single format: lines and documents as stored, SQL, a script,
    /// a page.
    const OF_ONE_FORM: [&str; 11] = [
        "completions",
        "ddl",
        "demo",
        "dev",
        "devdb",
        "journal export",
        "man",
        "run",
        "schema",
        "serve",
        "state export",
    ];

    #[test]
    fn a_former_command_is_answered_with_the_current_one_also_after_options() {
        let hint = |line: &str| renamed(line.split(' ').map(str::to_owned));
        for (line, current) in [
            ("quarantine replay orders", "`quarantine redrive`"),
            ("--settings f.json quarantine replay orders --key 7", "`quarantine redrive`"),
            ("ledger ddl", "`ddl ledger`"),
        ] {
            assert!(hint(line).is_some_and(|hint| hint.contains(current)), "{line}");
        }
        assert_eq!(hint("quarantine list replay"), None);
    }

    /// Returns the names of all leaf commands, each with whether it has `--output`.
    fn leaves(of: &clap::Command, path: &str) -> Vec<(String, bool)> {
        let children = of.get_subcommands().flat_map(|child| {
            let path = format!("{path} {}", child.get_name());
            let has_form = child.get_arguments().any(|argument| argument.get_id() == "output");
            if child.has_subcommands() {
                leaves(child, &path)
            } else {
                vec![(path.trim_start().to_owned(), has_form)]
            }
        });
        children.collect()
    }

    /// A shell alias may add `--settings` to a command printed by an error, which has it too.
    #[test]
    fn the_last_file_of_settings_counts() {
        let words = ["highwater", "--settings", "a", "--settings", "b", "status"];
        let parsed = Arguments::try_parse_from(words).unwrap();
        assert_eq!(parsed.settings, Some(PathBuf::from("b")));
        let parsed = Arguments::try_parse_from([
            "highwater",
            "--settings",
            "a",
            "tick",
            "x",
            "--settings",
            "b",
        ]);
        assert_eq!(parsed.unwrap().settings, Some(PathBuf::from("b")));
    }

    #[test]
    fn every_command_with_data_has_all_its_forms() {
        let leaves = leaves(&Arguments::command(), "");
        assert!(leaves.len() > 30, "{leaves:?}");
        let without =
            leaves.iter().filter(|(_, has_form)| !has_form).map(|(name, _)| name.as_str());
        let mut without: Vec<&str> = without.collect();
        without.sort_unstable();
        assert_eq!(without, OF_ONE_FORM);
    }
}
