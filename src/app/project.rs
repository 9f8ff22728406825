//! The files of a function app, `host.json` and one `function.json` for each function, read as the host reads them.
//!
//! The host says what it refuses at its start only, one mistake at a time, and says nothing of what it passes over.
//! Here everything is a [`Problem`], with what fixes it: an error where the host does not start, a function is missing
//! or dead, or this program is never reached; a warning where something has no effect, or only moves the status page.
//! `validate`, `run` and `package` all go by it.

mod function_file;
mod host_file;
mod time_zone;
mod timeout;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jsonc_parser::ParseOptions;
use serde_json::Value as Json;
use thiserror::Error;

use crate::config::{Vars, meant_by_single_underscores};
use crate::schedule::{SIX_FIELDS, Schedule, ScheduleError};

pub use self::function_file::timer_definition;
pub use self::timeout::function_timeout;

/// Name of the file with what counts for the whole app.
pub const HOST_FILE: &str = "host.json";
/// Name of the program in a package; `host.json` must name exactly this, since Core Tools sets the
/// executable bit of that entry alone.
pub const HANDLER: &str = "handler";

/// Folder of the functions in the repository, from which the host cannot start.
pub const DEFINITIONS: &str = "function-definitions";

/// A file cannot be read or written, or the host would refuse it.
#[derive(Debug, Error)]
pub enum ProjectError {
    /// A file or folder cannot be read or written.
    #[error("{verb} `{path}`")]
    File {
        /// What was tried.
        verb: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A file says what the host would refuse.
    #[error("`{path}`: {reason}")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// Several things are wrong, each told with its fix, one a line.
    #[error("{0}")]
    Several(String),
    /// A setting of the host has a value with which it would not start.
    #[error("setting `{name}` {reason}")]
    Setting {
        /// Its name.
        name: String,
        /// What is wrong, and what was expected.
        reason: String,
    },
}

/// Where a [`Problem`] is, in the order in which they are told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// `host.json`, the program, or settings that override that file.
    Host,
    /// The folder of the functions.
    Functions,
    /// A function, by name.
    Function(String),
    /// A setting, which another machine may not have.
    Settings,
}

/// Something of an app that the host would not do as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it is.
    pub place: Place,
    /// Whether something does not run for it; else it only differs from what was meant.
    pub is_error: bool,
    /// The file, or the name of the setting.
    pub at: PathBuf,
    /// What is wrong, and what the host does.
    pub found: String,
    /// What fixes it.
    pub fix: String,
    /// Whether it is a setting that turns the function off, which someone wanted: the rest of the app runs.
    pub turns_off: bool,
}

/// What is wrong, and what fixes it.
type Wrong = (String, String);

/// What `host.json` says, as far as functions depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Host {
    /// The functions that are loaded, where not all are.
    allowed: Option<Vec<String>>,
    /// The settings that name some of them; empty where the file alone does.
    allowed_by: Vec<String>,
    /// What keeps a request of an HTTP trigger from being sent on as it came, where it is.
    stops_forwarding: Option<&'static str>,
}

/// One function, which a timer or a request starts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    /// Name of its folder.
    pub name: String,
    /// Its `function.json`.
    pub definition: PathBuf,
    /// Its schedule as written: an expression, or `%SETTING%`; `None` where requests start it.
    pub schedule: Option<String>,
    /// The route of the requests that start it, as written; `None` where a timer does.
    pub route: Option<String>,
}

/// An app as the host would run it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// The functions that can be called, by name.
    pub functions: Vec<Function>,
    /// What is wrong, in the order of [`Place`].
    pub problems: Vec<Problem>,
}

/// A schedule cannot be told.
#[derive(Debug, Error)]
pub enum FunctionScheduleError {
    /// The setting that holds it is not set.
    #[error("function `{function}`: setting `{setting}`, which holds its schedule, is not set")]
    NotSet {
        /// The function.
        function: String,
        /// The setting.
        setting: String,
    },
    /// The expression is wrong.
    #[error("function `{function}`")]
    Wrong {
        /// The function.
        function: String,
        /// The setting that holds it, if one does.
        setting: Option<String>,
        /// Why.
        #[source]
        source: ScheduleError,
    },
}

impl FunctionScheduleError {
    /// Returns what fixes it.
    pub fn fix(&self) -> String {
        match self {
            Self::NotSet { setting, .. } => format!("set `{setting}` to {SIX_FIELDS}"),
            Self::Wrong { setting: Some(setting), source, .. } => {
                format!("in the setting `{setting}`, {}", source.fix)
            }
            Self::Wrong { setting: None, source, .. } => source.fix.clone(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, found, fix, .. } = self;
        write!(f, "`{}`: {found}; {fix}", at.display())
    }
}

impl Problem {
    fn error(
        place: Place,
        at: impl Into<PathBuf>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (found, fix) = (found.into(), fix.into());
        Self { place, is_error: true, at: at.into(), found, fix, turns_off: false }
    }

    fn warning(
        place: Place,
        at: impl Into<PathBuf>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { is_error: false, ..Self::error(place, at, found, fix) }
    }
}

impl Project {
    /// Reads `host.json` in `root`, and the functions that lie directly in `folder`.
    ///
    /// `vars` are the settings that the host would have: some override its file, some disable a function.
    pub fn read(root: &Path, folder: &Path, vars: &dyn Vars) -> Self {
        let (host, mut problems) = host_file::read(root, folder == root, vars);
        let (functions, wrong) = function_file::read(folder, &host);
        problems.extend(wrong);
        problems.extend(settings(&functions, vars));
        problems.sort_by(|one, other| one.place.cmp(&other.place));
        Self { functions, problems }
    }

    /// Returns the errors that count, each with its fix. That someone has turned a function off never does.
    pub fn errors(&self, counts: impl Fn(&Place) -> bool) -> Vec<String> {
        let counts =
            |problem: &&Problem| problem.is_error && !problem.turns_off && counts(&problem.place);
        self.problems.iter().filter(counts).map(ToString::to_string).collect()
    }

    /// Whether an error keeps a function from running, a setting that turns it off included.
    pub fn never_runs(&self, function: &str) -> bool {
        self.why_it_never_runs(function).is_some()
    }

    /// Returns the names of all folders of functions, those that cannot be called included.
    pub fn folders(&self) -> BTreeSet<&str> {
        let wrong = self.problems.iter().filter_map(|problem| match &problem.place {
            Place::Function(name) => Some(name.as_str()),
            Place::Host | Place::Functions | Place::Settings => None,
        });
        self.functions.iter().map(|function| function.name.as_str()).chain(wrong).collect()
    }

    /// Returns why a function never runs, and what fixes it; `None` if it runs.
    pub fn why_it_never_runs(&self, function: &str) -> Option<String> {
        let of = |problem: &&Problem| match &problem.place {
            Place::Function(name) => problem.is_error && name == function,
            Place::Host | Place::Functions | Place::Settings => false,
        };
        let problem = self.problems.iter().find(of)?;
        Some(format!("function `{function}` does not run: {problem}"))
    }

    /// Returns the setting that turns a function off, if one does.
    pub fn turned_off_by(&self, function: &str) -> Option<&Path> {
        let of = |problem: &&Problem| match &problem.place {
            Place::Function(name) => problem.turns_off && name == function,
            Place::Host | Place::Functions | Place::Settings => false,
        };
        self.problems.iter().find(of).map(|problem| problem.at.as_path())
    }
}

impl Function {
    /// Returns when it is to run, as the settings say, in the host's time zone; `None` where requests start it.
    ///
    /// # Errors
    ///
    /// [`FunctionScheduleError`] if a setting is missing, or the expression is wrong.
    pub fn schedule(&self, vars: &dyn Vars) -> Result<Option<Schedule>, FunctionScheduleError> {
        let function = || self.name.clone();
        let Some(schedule) = &self.schedule else { return Ok(None) };
        let setting = setting_of(schedule);
        let text = match setting {
            None => schedule.clone(),
            Some(setting) => {
                let value = vars.get(setting).filter(|text| !text.trim().is_empty());
                value.ok_or_else(|| FunctionScheduleError::NotSet {
                    function: function(),
                    setting: setting.to_owned(),
                })?
            }
        };
        let zone = time_zone::of_host(vars).zone;
        Schedule::parse(text.trim()).map(|schedule| Some(schedule.in_zone(zone))).map_err(
            |source| {
                let setting = setting.map(str::to_owned);
                FunctionScheduleError::Wrong { function: function(), setting, source }
            },
        )
    }
}

/// Returns the setting that a schedule is to be taken from.
fn setting_of(schedule: &str) -> Option<&str> {
    schedule.strip_prefix('%').and_then(|rest| rest.strip_suffix('%'))
}

/// Returns the folder of the functions of `root`: itself where they lie at the root, as they are deployed.
pub fn functions_folder(root: &Path) -> PathBuf {
    let definitions = root.join(DEFINITIONS);
    if definitions.is_dir() { definitions } else { root.to_owned() }
}

/// Returns what is wrong with the settings about the host's time zone.
pub fn time_zone_problem(vars: &dyn Vars) -> Option<Problem> {
    time_zone::problem(vars)
}

/// Returns the path of the status page of the app in `root`, with the prefix of HTTP functions.
///
/// # Errors
///
/// [`ProjectError::Content`] if the route of its function leaves the page without an address.
pub fn page_path(vars: &dyn Vars, root: &Path) -> Result<String, ProjectError> {
    let functions = Project::read(root, &functions_folder(root), vars).functions;
    let page = functions.iter().find_map(|it| Some((it.route.as_deref()?, &it.definition)));
    let (route, definition) = page.unzip();
    let route = route.unwrap_or(function_file::PAGE_ROUTE);
    let Some(path) = function_file::page_path(route) else {
        let path = definition.cloned().unwrap_or_default();
        let reason = format!(
            "`route` is `{route}`, so the status page has no address; set `route` to `{}`",
            function_file::PAGE_ROUTE
        );
        return Err(ProjectError::Content { path, reason });
    };
    let prefix = host_file::route_prefix(root, vars);
    Ok(if prefix.is_empty() { path } else { format!("{prefix}/{path}") })
}

/// Whether the host exports by OpenTelemetry, log lines of this program included: `telemetryMode` in `host.json` of
/// `root`, or the setting that overrides it.
pub fn is_open_telemetry(vars: &dyn Vars, root: &Path) -> bool {
    host_file::is_open_telemetry(root, vars)
}

/// Returns the port at which `func start` serves, by `Host.LocalHttpPort` of its `local.settings.json`.
pub fn local_port(settings: Option<&Path>) -> u16 {
    /// What `func` takes where nothing is set.
    const DEFAULT: u16 = 7071;
    let json = settings.and_then(|path| read_json(path).ok());
    let port = json.as_ref().and_then(|json| json.pointer("/Host/LocalHttpPort")?.as_u64());
    port.and_then(|port| port.try_into().ok()).unwrap_or(DEFAULT)
}

/// Looks for settings that the host goes by, or passes over.
fn settings(functions: &[Function], vars: &dyn Vars) -> Vec<Problem> {
    let mut problems: Vec<Problem> = time_zone::problem(vars).into_iter().collect();
    for name in vars.names() {
        let is_set = || {
            let value = vars.get(&name).unwrap_or_default();
            value.eq_ignore_ascii_case("true") || value.trim() == "1"
        };
        let disables = |between: &str, function: &Function| {
            name.eq_ignore_ascii_case(&format!(
                "AzureWebJobs{between}{}{between}Disabled",
                function.name
            ))
        };
        for function in functions {
            if [".", "_"].iter().any(|between| disables(between, function)) && is_set() {
                let place = Place::Function(function.name.clone());
                let found = "turns this function off";
                let fix = format!("remove the setting `{name}`");
                // Rows wait for a timer; nobody needs a page that was turned off.
                let is_error = function.schedule.is_some();
                let error = Problem::error(place, &name, found, fix);
                problems.push(Problem { is_error, turns_off: true, ..error });
            }
            if disables("__", function) {
                let found = "has no effect: the host does not read it in this form";
                let fix = format!("write `AzureWebJobs.{}.Disabled`, or remove it", function.name);
                problems.push(Problem::warning(Place::Settings, &name, found, fix));
            }
        }
        if let Some(meant) = with_two_underscores(&name) {
            let found = "has no effect: parts of a name are divided by two underscores";
            problems.push(Problem::warning(
                Place::Settings,
                &name,
                found,
                format!("write `{meant}`"),
            ));
        }
    }
    problems
}

/// Returns the name that was likely meant by one with a single underscore between its first two parts.
fn with_two_underscores(name: &str) -> Option<String> {
    if let Some(ours) = meant_by_single_underscores(name) {
        return Some(ours);
    }
    let is_part = |rest: &str, parts: &[&str]| parts.iter().any(|part| rest.starts_with(part));
    for (first, parts) in [
        (host_file::OVERRIDES, &[""][..]),
        (
            "AzureWebJobsStorage",
            &["accountName", "blobServiceUri", "clientId", "credential", "queueServiceUri"],
        ),
    ] {
        let rest = name.strip_prefix(first).and_then(|rest| rest.strip_prefix('_'));
        if let Some(rest) = rest.filter(|rest| !rest.starts_with('_') && is_part(rest, parts)) {
            return Some(format!("{first}__{rest}"));
        }
    }
    None
}

/// Reads a file as the host does: comments and a byte order mark are fine.
fn read_json(path: &Path) -> Result<Json, Wrong> {
    let text = fs::read_to_string(path).map_err(|error| {
        (format!("cannot be read: {error}"), "let this user read it, as UTF-8".to_owned())
    })?;
    // `JsonTextReader` of Json.NET is content with all that this parser takes, but for a comma that is missing.
    let options = ParseOptions { allow_missing_commas: false, ..ParseOptions::default() };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    jsonc_parser::parse_to_serde_value(text, &options)
        .map_err(|error| (format!("not JSON: {error}"), "correct the JSON there".to_owned()))
}

/// Returns how an error of a file becomes one of ours.
pub fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ProjectError {
    let path = path.to_owned();
    move |source| ProjectError::File { verb, path, source }
}

/// Says what is wrong with a `retry` of a function or of the whole app; `ValidateRetryOptions` of the host.
fn wrong_retry(retry: &Json) -> Option<Wrong> {
    let text = |field: &str| retry.get(field).and_then(Json::as_str);
    let span = |field: &str| text(field).and_then(timeout::time_span);
    let wrong = |found: &str, fix: &str| Some((found.to_owned(), fix.to_owned()));
    let count = retry.get("maxRetryCount").and_then(Json::as_i64);
    if count.is_none_or(|count| count < -1) {
        return wrong(
            "`retry.maxRetryCount` is missing, or is not a number from -1",
            "set `retry.maxRetryCount` to a number from 0, or to -1 for no end",
        );
    }
    let strategy = text("strategy").unwrap_or_default();
    match strategy.to_ascii_lowercase().as_str() {
        "fixeddelay" if span("delayInterval").is_some() => None,
        "fixeddelay" => wrong(
            "`retry.delayInterval` is missing, or is not a time",
            "set `retry.delayInterval` to a time such as `00:00:05`",
        ),
        "exponentialbackoff" => match (span("minimumInterval"), span("maximumInterval")) {
            (Some(one), Some(other)) if one <= other => None,
            _ => wrong(
                "`retry.minimumInterval` and `retry.maximumInterval` are not two times, the longer one last",
                "set both to times such as `00:00:05` and `00:05:00`, the longer one last",
            ),
        },
        _ => wrong(
            &format!("`retry.strategy` is `{strategy}`"),
            "set `retry.strategy` to `fixedDelay` or `exponentialBackoff`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_schedule_comes_from_the_file_or_from_the_setting_that_it_names() {
        let of = |schedule: &str, vars: &[(&str, &str)]| {
            let function = Function {
                name: "orders".to_owned(),
                definition: PathBuf::new(),
                schedule: Some(schedule.to_owned()),
                route: None,
            };
            let vars: BTreeMap<String, String> =
                vars.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let schedule = function.schedule(&vars).map(|schedule| schedule.unwrap().to_string());
            schedule.map_err(|error| crate::error::chain(&error))
        };
        assert_eq!(of("0 * * * * *", &[]).unwrap(), "0 * * * * *");
        assert_eq!(of("%EACH%", &[("EACH", " */5 * * * * * ")]).unwrap(), "*/5 * * * * *");
        let missing = of("%EACH%", &[("EACH", " ")]).unwrap_err();
        assert!(missing.contains("function `orders`: setting `EACH`"), "{missing}");
        let wrong = of("%EACH%", &[("EACH", "5m")]).unwrap_err();
        assert!(wrong.contains("function `orders`: invalid schedule `5m`"), "{wrong}");
    }

    #[test]
    fn one_underscore_where_two_are_meant_is_seen() {
        for (name, meant) in [
            (
                "HIGHWATER_POLLERS__ORDERS__SOURCE__TABLE",
                Some("HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE"),
            ),
            ("HIGHWATER_STATE_STORE", Some("HIGHWATER__STATE__STORE")),
            (
                "HIGHWATER_POLLERS_NEW_LINES_HANDLER_KIND",
                Some("HIGHWATER__POLLERS__NEW_LINES__HANDLER__KIND"),
            ),
            (
                "HIGHWATER_POLLERS_ORDERS_BATCH_ROWS_MAX",
                Some("HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX"),
            ),
            (
                "AzureFunctionsJobHost_functionTimeout",
                Some("AzureFunctionsJobHost__functionTimeout"),
            ),
            ("AzureWebJobsStorage_accountName", Some("AzureWebJobsStorage__accountName")),
            ("HIGHWATER__APP", None),
            ("HIGHWATER_TEST_BROWSER", None),
            ("AzureFunctionsJobHost__functionTimeout", None),
        ] {
            assert_eq!(with_two_underscores(name).as_deref(), meant, "{name}");
        }
    }

    #[test]
    fn a_retry_is_what_the_host_takes() {
        for (retry, expected) in [
            (r#"{"strategy":"fixedDelay","maxRetryCount":-1,"delayInterval":"00:00:05"}"#, None),
            (
                r#"{"strategy":"exponentialBackoff","maxRetryCount":5,"minimumInterval":"00:00:05","maximumInterval":"00:01:00"}"#,
                None,
            ),
            (r#"{"strategy":"fixedDelay","maxRetryCount":3}"#, Some("delayInterval")),
            (r#"{"strategy":"fixedDelay","delayInterval":"00:00:05"}"#, Some("maxRetryCount")),
            (r#"{"strategy":"often","maxRetryCount":3}"#, Some("`often`")),
            (
                r#"{"strategy":"exponentialBackoff","maxRetryCount":5,"minimumInterval":"00:01:00","maximumInterval":"00:00:05"}"#,
                Some("the longer one last"),
            ),
        ] {
            let wrong = wrong_retry(&serde_json::from_str(retry).unwrap());
            assert_eq!(wrong.is_some(), expected.is_some(), "{retry}: {wrong:?}");
            let (found, _) = wrong.unwrap_or_default();
            assert!(found.contains(expected.unwrap_or_default()), "{retry}: {found}");
        }
    }
}
