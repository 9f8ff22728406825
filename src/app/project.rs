//! The files of a function app, `host.json` and one `function.json` per function, read by the rules of the host.
//!
//! The host reports invalid files only at its start and one at a time, and it does not report what it ignores.
//! Here everything is a [`Problem`] with a fix. It is an error if the host does not start, a function is missing
//! or never runs, or this program is never reached; a warning if something has no effect or only moves the status
//! page. Used by `validate`, `run` and `package`.

mod function_file;
mod host_file;
pub(crate) mod time_zone;
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
use crate::page::HEALTH_FUNCTION;
use crate::schedule::{SIX_FIELDS, Schedule, ScheduleError};

pub use self::function_file::timer_definition;
pub use self::timeout::function_timeout;

/// Name of the file with the settings of the whole app.
pub const HOST_FILE: &str = "host.json";
/// Name of the program in a package. `host.json` must contain exactly this name, since Core Tools makes only that
/// entry executable.
pub const HANDLER: &str = "handler";

/// Folder of the functions in the repository, from which the host cannot start.
pub const DEFINITIONS: &str = "function-definitions";

/// A file cannot be read or written, or the host would reject it.
#[derive(Debug, Error)]
pub enum ProjectError {
    /// A file or folder cannot be read or written.
    #[error("{verb} `{path}`")]
    File {
        /// The attempted operation.
        verb: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The host would reject the content of a file.
    #[error("`{path}`: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// Several problems with their fixes, one per line.
    #[error("{0}")]
    Several(String),
    /// The host would not start with the value of a setting.
    #[error("setting `{name}` {reason}")]
    Setting {
        /// Its name.
        name: String,
        /// What is wrong, and what was expected.
        reason: String,
    },
}

/// The location of a [`Problem`], in the order of reporting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// `host.json`, the program, or settings that override that file.
    Host,
    /// The folder of the functions.
    Functions,
    /// A function, by name.
    Function(String),
    /// A setting, which may differ on another machine.
    Settings,
}

/// Something in an app that does not work as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it is.
    pub place: Place,
    /// Whether something does not run because of it; otherwise it is a warning.
    pub is_error: bool,
    /// The file, or the name of the setting.
    pub at: PathBuf,
    /// What is wrong, and its consequence.
    pub found: String,
    /// How to fix it.
    pub fix: String,
    /// Whether it is a setting that disables the function, which is intended: the rest of the app runs.
    pub turns_off: bool,
}

/// What is wrong, and how to fix it.
type Wrong = (String, String);

/// The parts of `host.json` that affect functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Host {
    /// The functions that are loaded; `None` for all.
    allowed: Option<Vec<String>>,
    /// The settings that override this list; empty if only the file has it.
    allowed_by: Vec<String>,
    /// How to stop the host from forwarding HTTP requests unchanged, if it does.
    stops_forwarding: Option<&'static str>,
}

/// A function with a timer or HTTP trigger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    /// Name of its folder.
    pub name: String,
    /// Its `function.json`.
    pub definition: PathBuf,
    /// Its schedule as written: an expression, or `%SETTING%`; `None` for an HTTP trigger.
    pub schedule: Option<String>,
    /// Its route as written; `None` for a timer.
    pub route: Option<String>,
}

/// An app as the host would run it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// The functions that can be called, by name.
    pub functions: Vec<Function>,
    /// The problems, in the order of [`Place`].
    pub problems: Vec<Problem>,
}

/// The schedule of a function cannot be determined.
#[derive(Debug, Error)]
pub enum FunctionScheduleError {
    /// The setting with the schedule is not set.
    #[error("function `{function}`: setting `{setting}` with its schedule is not set")]
    NotSet {
        /// The function.
        function: String,
        /// The setting.
        setting: String,
    },
    /// The expression is invalid.
    #[error("function `{function}`")]
    Wrong {
        /// The function.
        function: String,
        /// The setting with the expression, if there is one.
        setting: Option<String>,
        /// Why.
        #[source]
        source: ScheduleError,
    },
}

impl FunctionScheduleError {
    /// Returns how to fix it.
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
    /// Reads `host.json` in `root`, and the functions directly in `folder`.
    ///
    /// `vars` are the settings of the host: some override its file, some disable a function.
    pub fn read(root: &Path, folder: &Path, vars: &dyn Vars) -> Self {
        let (host, mut problems) = host_file::read(root, folder == root, vars);
        let (functions, wrong) = function_file::read(folder, &host);
        problems.extend(wrong);
        problems.extend(settings(&functions, vars));
        problems.sort_by(|one, other| one.place.cmp(&other.place));
        Self { functions, problems }
    }

    /// Returns the errors in the places selected by `counts`, each with its fix, without disabled functions.
    pub fn errors(&self, counts: impl Fn(&Place) -> bool) -> Vec<String> {
        let counts =
            |problem: &&Problem| problem.is_error && !problem.turns_off && counts(&problem.place);
        self.problems.iter().filter(counts).map(ToString::to_string).collect()
    }

    /// Whether a function never runs because of an error or a setting that disables it.
    pub fn never_runs(&self, function: &str) -> bool {
        self.why_it_never_runs(function).is_some()
    }

    /// Returns the names of all function folders, including functions that cannot be called.
    pub fn folders(&self) -> BTreeSet<&str> {
        let wrong = self.problems.iter().filter_map(|problem| match &problem.place {
            Place::Function(name) => Some(name.as_str()),
            Place::Host | Place::Functions | Place::Settings => None,
        });
        self.functions.iter().map(|function| function.name.as_str()).chain(wrong).collect()
    }

    /// Returns why a function never runs, and how to fix it; `None` if it runs.
    pub fn why_it_never_runs(&self, function: &str) -> Option<String> {
        let of = |problem: &&Problem| match &problem.place {
            Place::Function(name) => problem.is_error && name == function,
            Place::Host | Place::Functions | Place::Settings => false,
        };
        let problem = self.problems.iter().find(of)?;
        Some(format!("function `{function}` does not run: {problem}"))
    }

    /// Returns the setting that disables a function, if there is one.
    pub fn turned_off_by(&self, function: &str) -> Option<&Path> {
        let of = |problem: &&Problem| match &problem.place {
            Place::Function(name) => problem.turns_off && name == function,
            Place::Host | Place::Functions | Place::Settings => false,
        };
        self.problems.iter().find(of).map(|problem| problem.at.as_path())
    }
}

impl Function {
    /// Returns its schedule by the settings, in the host's time zone; `None` for an HTTP trigger.
    ///
    /// # Errors
    ///
    /// [`FunctionScheduleError`] if a setting is missing or the expression is invalid.
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

/// Returns the setting that a schedule refers to.
fn setting_of(schedule: &str) -> Option<&str> {
    schedule.strip_prefix('%').and_then(|rest| rest.strip_suffix('%'))
}

/// Returns the folder of the functions: `function-definitions` in `root`, else `root` itself, as in a deployment.
pub fn functions_folder(root: &Path) -> PathBuf {
    let definitions = root.join(DEFINITIONS);
    if definitions.is_dir() { definitions } else { root.to_owned() }
}

/// Returns a problem with the settings of the host's time zone.
pub fn time_zone_problem(vars: &dyn Vars) -> Option<Problem> {
    time_zone::problem(vars)
}

/// Returns the path of the status page of the app in `root`, with the prefix of HTTP functions.
///
/// # Errors
///
/// [`ProjectError::Content`] if the route of its function gives the page no address.
pub fn page_path(vars: &dyn Vars, root: &Path) -> Result<String, ProjectError> {
    let functions = Project::read(root, &functions_folder(root), vars).functions;
    let mut pages = functions.iter().filter(|it| it.name != HEALTH_FUNCTION);
    let page = pages.find_map(|it| Some((it.route.as_deref()?, &it.definition)));
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

/// Whether the host exports telemetry by OpenTelemetry, including log lines of this program: `telemetryMode` in
/// `host.json` of `root`, or the setting that overrides it.
pub fn is_open_telemetry(vars: &dyn Vars, root: &Path) -> bool {
    host_file::is_open_telemetry(root, vars)
}

/// Returns the port of `func start`, from `Host.LocalHttpPort` in its `local.settings.json`.
pub fn local_port(settings: Option<&Path>) -> u16 {
    /// Default port of `func`.
    const DEFAULT: u16 = 7071;
    let json = settings.and_then(|path| read_json(path).ok());
    let port = json.as_ref().and_then(|json| json.pointer("/Host/LocalHttpPort")?.as_u64());
    port.and_then(|port| port.try_into().ok()).unwrap_or(DEFAULT)
}

/// Returns problems with settings that the host obeys or ignores.
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
                // Only a disabled timer is an error, since its rows are not delivered.
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
            let found = "has no effect: the parts of a name are separated by two underscores";
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

/// Returns the likely intended name if there is a single underscore between the first two parts.
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

/// Reads a file like the host: comments and a byte order mark are allowed.
fn read_json(path: &Path) -> Result<Json, Wrong> {
    let text = fs::read_to_string(path).map_err(|error| {
        (format!("cannot be read: {error}"), "let this user read it, as UTF-8".to_owned())
    })?;
    // `JsonTextReader` of Json.NET accepts everything that this parser accepts, except missing commas.
    let options = ParseOptions { allow_missing_commas: false, ..ParseOptions::default() };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    jsonc_parser::parse_to_serde_value(text, &options)
        .map_err(|error| (format!("not JSON: {error}"), "correct the JSON there".to_owned()))
}

/// Returns a function that converts an I/O error of a file.
pub fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ProjectError {
    let path = path.to_owned();
    move |source| ProjectError::File { verb, path, source }
}

/// Checks the `retry` of a function or of the whole app, like `ValidateRetryOptions` of the host.
fn wrong_retry(retry: &Json) -> Option<Wrong> {
    let text = |field: &str| retry.get(field).and_then(Json::as_str);
    let span = |field: &str| text(field).and_then(timeout::time_span);
    let wrong = |found: &str, fix: &str| Some((found.to_owned(), fix.to_owned()));
    let count = retry.get("maxRetryCount").and_then(Json::as_i64);
    if count.is_none_or(|count| count < -1) {
        return wrong(
            "`retry.maxRetryCount` is missing, or is not a number from -1",
            "set `retry.maxRetryCount` to a number from 0, or to -1 for no limit",
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
                "`retry.minimumInterval` and `retry.maximumInterval` are not two times in ascending order",
                "set both to times in ascending order, such as `00:00:05` and `00:05:00`",
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
    fn a_schedule_comes_from_the_file_or_from_a_setting() {
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
    fn single_underscores_are_detected() {
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
    fn a_retry_is_checked_by_the_rules_of_the_host() {
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
                Some("in ascending order"),
            ),
        ] {
            let wrong = wrong_retry(&serde_json::from_str(retry).unwrap());
            assert_eq!(wrong.is_some(), expected.is_some(), "{retry}: {wrong:?}");
            let (found, _) = wrong.unwrap_or_default();
            assert!(found.contains(expected.unwrap_or_default()), "{retry}: {found}");
        }
    }
}
