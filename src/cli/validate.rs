//! `highwater validate`: checks settings, `host.json` and functions for consistency, offline.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::findings;
use super::from::FromOption;
use super::output::{Exit, Output, OutputOption, Record, print_text};
use highwater::builder::App;
use highwater::clock::{Clock as _, SystemClock};
use highwater::config::{
    Config, FUNCTION_TIMEOUT_ABOVE, FoundSecret, FunctionTimeout, Mistake, Vars, secrets,
};
use highwater::doctor::Finding;
use highwater::error::chain;
use highwater::page::{self, words};
use highwater::project::{self, Function, Place, Problem, Project, functions_folder};
use highwater::recovery;
use highwater::redaction::SECRET_BYTES_MIN;

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    from: FromOption,
    #[command(flatten)]
    form: OutputOption,
}

/// A finding and its place.
#[derive(Debug, Serialize)]
struct Checked {
    place: String,
    #[serde(flatten)]
    finding: Finding,
}

impl Record for Checked {
    const COLUMNS: &'static [&'static str] = &["place", "level", "check", "found", "fix"];

    fn cells(&self) -> Vec<String> {
        let Finding { check, level, found, fix, .. } = &self.finding;
        let fix = fix.clone().unwrap_or_default();
        vec![self.place.clone(), level.to_string(), (*check).to_owned(), found.clone(), fix]
    }
}

/// The suggested limit without a valid setting.
const FIVE_MINUTES: Duration = Duration::from_secs(300);

/// Runs all offline checks, and prints the findings.
pub(super) fn run(vars: &dyn Vars, options: &Options, settings: Option<&Path>) -> Exit {
    let found = check(vars, &options.from.folder(settings));
    print_text(&match options.form.output {
        Output::Table => {
            let lines = found.iter().map(|checked| (checked.place.clone(), &checked.finding));
            findings::text(lines, findings::Passed::Listed)
        }
        form @ (Output::Json | Output::Jsonl) => form.list(&found),
    });
    findings::exit(&found, |checked| checked.finding.clone())
}

fn check(vars: &dyn Vars, from: &Path) -> Vec<Checked> {
    let mut found = Vec::new();
    let mut add = |place: &str, finding| found.push(Checked { place: place.to_owned(), finding });
    let config = match Config::from_vars(vars) {
        Ok(config) => {
            let names: Vec<&str> = config.pollers.keys().map(String::as_str).collect();
            let summary = format!("pollers `{}` of app `{}`", names.join("`, `"), config.app);
            match App::build(vars) {
                Ok(_) => add("settings", Finding::ok("settings", summary)),
                Err(error) => {
                    let fix = "fix that setting";
                    add("settings", Finding::error("settings", chain(&error), fix));
                }
            }
            Some(config)
        }
        Err(mistakes) => {
            for mistake in &mistakes.0 {
                let fix = format!("set `{}` to {}", mistake.setting, mistake.expected);
                let fix = mistake.hint.clone().unwrap_or(fix);
                let page = mistake.page().map(|page| format!("; see {page}"));
                let fix = format!("{fix}{}", page.unwrap_or_default());
                let text = Mistake { hint: None, ..mistake.clone() }.to_string();
                // The name of the check already says that it is a setting.
                let text = text.strip_prefix("setting ").unwrap_or(&text);
                add("settings", Finding::error("setting", text, fix));
            }
            None
        }
    };
    for finding in config.iter().flat_map(nameless_databases) {
        add("settings", finding);
    }
    for short in secrets(vars).iter().filter(|found| found.is_ours && found.is_short()) {
        add("settings", short_secret(short));
    }
    let project = Project::read(from, &functions_folder(from), vars);
    // An invalid file is reported as a problem below.
    if let Ok(timeout) = project::function_timeout(vars, from) {
        add("host.json", timeout_finding(&timeout, config.as_ref()));
    }
    for Problem { place, is_error, at, found, fix, turns_off: _ } in &project.problems {
        let text = format!("`{}`: {found}", at.display());
        let (place, check) = match place {
            Place::Host => ("host.json".to_owned(), "host.json"),
            Place::Functions => ("functions".to_owned(), "function.json"),
            Place::Function(name) => (format!("function {name}"), "function.json"),
            Place::Settings => ("settings".to_owned(), "setting"),
        };
        let make = if *is_error { Finding::error } else { Finding::warning };
        add(&place, make(check, text, fix.clone()));
    }
    for function in &project.functions {
        let place = format!("function {}", function.name);
        let never_runs = project.never_runs(&function.name);
        add(&place, schedule_finding(function, never_runs, vars));
        if let Some(config) = &config {
            add(&place, poller_finding(function, &project, config));
        }
    }
    for finding in config.iter().flat_map(|config| idle_pollers(&project, config)) {
        add("functions", finding);
    }
    found
}

/// Returns a finding for each connection string without a database.
fn nameless_databases(config: &Config) -> impl Iterator<Item = Finding> {
    let pollers = config.pollers.values();
    let nameless = pollers.filter(|poller| poller.source.connection.database.is_none());
    let settings: BTreeSet<&str> =
        nameless.map(|poller| poller.connection_setting.as_str()).collect();
    settings.into_iter().map(|setting| {
        Finding::warning(
            "database",
            format!(
                "`{setting}` names no database, so the login's default applies, often `master`"
            ),
            "add `Database=NAME`",
        )
    })
}

fn short_secret(found: &FoundSecret) -> Finding {
    let FoundSecret { setting, .. } = found;
    Finding::warning(
        "secret",
        format!(
            "`{setting}` has a secret of fewer than {SECRET_BYTES_MIN} characters, too short to be \
             redacted from logs and errors"
        ),
        format!("use at least {SECRET_BYTES_MIN} characters"),
    )
}

/// Checks the host's limit on one function call as `serve` does: the shorter limit applies.
fn timeout_finding(host: &FunctionTimeout, config: Option<&Config>) -> Finding {
    const CHECK: &str = "functionTimeout";
    let set_by = host.set_by.as_str();
    let Some(limit) = host.limit else {
        return Finding::ok(CHECK, format!("no limit (`{set_by}`)"));
    };
    let theirs = limit.as_secs();
    let ours = config.map(|config| config.function_timeout);
    if limit <= FUNCTION_TIMEOUT_ABOVE {
        let found = format!("{theirs} s (`{set_by}`), too short for any tick");
        return Finding::error(CHECK, found, host.raised_to(ours.unwrap_or(FIVE_MINUTES)));
    }
    match ours {
        Some(ours) if limit < ours => Finding::warning(
            CHECK,
            format!(
                "{theirs} s (`{set_by}`), less than `HIGHWATER__FUNCTION_TIMEOUT` ({} s): ticks end \
                 before {theirs} s",
                ours.as_secs()
            ),
            host.raised_to(ours),
        ),
        Some(_) | None => Finding::ok(CHECK, format!("{theirs} s (`{set_by}`)")),
    }
}

fn schedule_finding(function: &Function, never_runs: bool, vars: &dyn Vars) -> Finding {
    match function.schedule(vars) {
        Ok(Some(schedule)) => {
            let zone = schedule.zone().name();
            let next = match schedule.next_after(SystemClock.now()) {
                _ if never_runs => ", no next tick: see the error of this function".to_owned(),
                Some(at) => format!(", next tick {}", words::local(at, None)),
                // The schedule has no further times.
                None => String::new(),
            };
            let found = format!("`{schedule}` in {zone}{next}");
            Finding::ok("schedule", found)
        }
        Ok(None) => Finding::ok("schedule", "none: started by requests"),
        Err(error) => Finding::error("schedule", chain(&error), error.fix()),
    }
}

fn poller_finding(function: &Function, project: &Project, config: &Config) -> Finding {
    if function.name == recovery::FUNCTION {
        return Finding::ok("poller", "runs none: it is the recovery controller");
    }
    let is_health = function.name == page::HEALTH_FUNCTION;
    if is_health && function.schedule.is_none() {
        return if config.health_is_anonymous {
            Finding::ok("poller", "runs none: it answers uptime monitors without a key")
        } else {
            Finding::warning(
                "poller",
                "answers 404: `HIGHWATER__HEALTH__ANONYMOUS` is not `true`",
                "set it, or remove the folder: `api/status/health` answers with a key",
            )
        };
    }
    let is_page = function.name == page::FUNCTION;
    if is_page && function.schedule.is_none() {
        return Finding::ok("poller", "runs none: it is the status page");
    }
    if is_page || function.schedule.is_none() {
        return Finding::error(
            "poller",
            "only the status page can be started by HTTP requests",
            format!(
                "use the repository's `{0}/function.json`, or remove the folder",
                page::FUNCTION
            ),
        );
    }
    let folders = project.functions.iter().map(|function| function.name.as_str());
    let runs = config.pollers_by_function(folders).remove(function.name.as_str());
    let runs = runs.unwrap_or_default();
    if !runs.is_empty() {
        let names: Vec<&str> = runs.iter().map(|poller| poller.name.as_str()).collect();
        return Finding::ok("poller", format!("runs `{}`", names.join("`, `")));
    }
    let segment = highwater::config::function_segment(&function.name);
    Finding::error(
        "poller",
        "runs no poller, so all its calls fail",
        format!(
            "set `HIGHWATER__FUNCTIONS__{segment}__POLLER`, or `HIGHWATER__FUNCTIONS__{segment}__POLLERS=all`, or \
             remove the folder"
        ),
    )
}

/// Returns a finding for each poller that no function runs.
fn idle_pollers(project: &Project, config: &Config) -> Vec<Finding> {
    let mut runs: BTreeMap<&str, usize> = BTreeMap::new();
    // A function with an error has its own finding.
    let refused = project.problems.iter().filter_map(|problem| match &problem.place {
        Place::Function(name) if problem.is_error => Some(name.as_str()),
        Place::Function(_) | Place::Host | Place::Functions | Place::Settings => None,
    });
    let refused = config.pollers_by_function(refused.collect::<Vec<_>>().into_iter());
    let refused: BTreeSet<&str> =
        refused.values().flatten().map(|poller| poller.name.as_str()).collect();
    let timers = project.functions.iter().filter(|function| function.schedule.is_some());
    let timers = timers.map(|function| function.name.as_str());
    for poller in config.pollers_by_function(timers).into_values().flatten() {
        *runs.entry(&poller.name).or_default() += 1;
    }
    let finding = |name: &String| match runs.get(name.as_str()) {
        Some(1) => None,
        None if refused.contains(name.as_str()) => None,
        None => Some(Finding::error(
            "poller",
            format!("no function runs `{name}`"),
            format!("create a folder `{name}` with a `function.json`, like that of another poller"),
        )),
        Some(several) => Some(Finding::warning(
            "poller",
            format!("{several} functions run `{name}`; all but one of their ticks find it busy"),
            "keep one of them",
        )),
    };
    config.pollers.keys().filter_map(finding).collect()
}
