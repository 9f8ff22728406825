//! The files of a function app: `host.json`, and one `function.json` for each function.
//!
//! What the host would refuse is refused here, by file and with what was expected: the host itself
//! says it at its start only, one mistake at a time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value as Json;
use thiserror::Error;

use crate::config::Vars;
use crate::schedule::{Schedule, ScheduleError};

/// Name of the file with what counts for the whole app.
pub const HOST_FILE: &str = "host.json";
/// Name of the program in a package; `host.json` must name exactly this, since Core Tools sets the
/// executable bit of that entry alone.
pub const HANDLER: &str = "handler";

/// Folder of the functions in the repository, from which the host cannot start.
pub const DEFINITIONS: &str = "function-definitions";

/// The files cannot be read, or the host would refuse them.
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
}

/// What `host.json` says, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The file.
    pub path: PathBuf,
    /// The limit on one function call; `None` where the file has none, or an unlimited one.
    pub function_timeout: Option<Duration>,
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
        /// Why.
        #[source]
        source: ScheduleError,
    },
}

impl Function {
    /// Returns when it is to run, as the settings say; `None` where requests start it.
    ///
    /// # Errors
    ///
    /// [`FunctionScheduleError`] if a setting is missing, or the expression is wrong.
    pub fn schedule(&self, vars: &dyn Vars) -> Result<Option<Schedule>, FunctionScheduleError> {
        let function = || self.name.clone();
        let Some(schedule) = &self.schedule else { return Ok(None) };
        let text = match setting_of(schedule) {
            None => schedule.clone(),
            Some(setting) => {
                let value = vars.get(setting).filter(|text| !text.trim().is_empty());
                value.ok_or_else(|| FunctionScheduleError::NotSet {
                    function: function(),
                    setting: setting.to_owned(),
                })?
            }
        };
        Schedule::parse(text.trim())
            .map(Some)
            .map_err(|source| FunctionScheduleError::Wrong { function: function(), source })
    }
}

/// Returns the setting that a schedule is to be taken from.
fn setting_of(schedule: &str) -> Option<&str> {
    schedule.strip_prefix('%').and_then(|rest| rest.strip_suffix('%'))
}

/// Reads and checks `host.json` in `folder`.
///
/// # Errors
///
/// [`ProjectError`] if it is missing, no JSON, or would not start this program.
pub fn host(folder: &Path) -> Result<Host, ProjectError> {
    let path = folder.join(HOST_FILE);
    let json = read_json(&path)?;
    let wrong = |reason| ProjectError::Content { path: path.clone(), reason };
    let program = json.pointer("/customHandler/description/defaultExecutablePath");
    if program != Some(&Json::from(HANDLER)) {
        return Err(wrong(format!(
            "`customHandler.description.defaultExecutablePath` must be exactly `{HANDLER}`"
        )));
    }
    let function_timeout = match json.get("functionTimeout").and_then(Json::as_str) {
        None | Some("-1") => None,
        Some(text) => Some(time_span(text).ok_or_else(|| {
            wrong(format!("`functionTimeout` is `{text}`, expected a time such as `00:05:00`"))
        })?),
    };
    Ok(Host { path, function_timeout })
}

/// Reads `hours:minutes:seconds`, with days in front where there are some.
fn time_span(text: &str) -> Option<Duration> {
    let (days, clock) = text.split_once('.').unwrap_or(("0", text));
    let mut parts = clock.split(':').map(|part| part.parse::<u64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    let whole = parts.next().is_none() && minutes < 60 && seconds < 60;
    let hours = days.parse::<u64>().ok()?.checked_mul(24)?.checked_add(hours)?;
    let seconds = hours.checked_mul(3_600)?.checked_add(minutes * 60 + seconds)?;
    whole.then(|| Duration::from_secs(seconds))
}

/// Reads and checks the functions that lie directly in `folder`, by name.
///
/// # Errors
///
/// [`ProjectError`] if there is none, or the host would refuse one.
pub fn functions(folder: &Path) -> Result<Vec<Function>, ProjectError> {
    each_function(folder)?.into_iter().collect()
}

/// Reads the functions that lie directly in `folder`, by name, each of which may be wrong.
///
/// # Errors
///
/// [`ProjectError`] if there is none, or the folder cannot be read.
pub fn each_function(folder: &Path) -> Result<Vec<Result<Function, ProjectError>>, ProjectError> {
    let mut functions = Vec::new();
    for entry in fs::read_dir(folder).map_err(at("read", folder))? {
        let entry = entry.map_err(at("read", folder))?;
        let definition = entry.path().join("function.json");
        if definition.is_file() {
            let name = entry.file_name().to_string_lossy().into_owned();
            functions.push((name, definition));
        }
    }
    if functions.is_empty() {
        let reason = "no `<function>/function.json` in it".to_owned();
        return Err(ProjectError::Content { path: folder.to_owned(), reason });
    }
    functions.sort();
    Ok(functions.into_iter().map(|(name, definition)| function(name, definition)).collect())
}

/// Returns the folder of the functions of `root`: itself where they lie at the root, as they are deployed.
pub fn functions_folder(root: &Path) -> PathBuf {
    let definitions = root.join(DEFINITIONS);
    if definitions.is_dir() { definitions } else { root.to_owned() }
}

fn function(name: String, path: PathBuf) -> Result<Function, ProjectError> {
    let wrong = |reason: String| ProjectError::Content { path: path.clone(), reason };
    if !is_function_name(&name) {
        let reason = "the folder's name must be a letter, then letters, digits, `_` or `-`";
        return Err(wrong(reason.to_owned()));
    }
    let json = read_json(&path)?;
    let bindings = json.get("bindings").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let binding = match bindings {
        [binding] => binding,
        [request, response] if request.get("type") == Some(&Json::from("httpTrigger")) => {
            check_http(request, response).map_err(|reason| wrong(reason.to_owned()))?;
            return Ok(Function { name, schedule: None, definition: path });
        }
        _ => {
            let reason = "exactly one binding, a timerTrigger, is expected";
            return Err(wrong(format!("{reason}; or two, an httpTrigger and its `http` output")));
        }
    };
    let text = |field: &str| binding.get(field).and_then(Json::as_str).unwrap_or_default();
    if text("type") != "timerTrigger" || text("direction") != "in" {
        return Err(wrong("the binding must be a `timerTrigger` of direction `in`".to_owned()));
    }
    if !is_binding_name(text("name")) {
        let reason = "the binding's name must be a letter, then letters and digits";
        return Err(wrong(reason.to_owned()));
    }
    let schedule = text("schedule");
    match setting_of(schedule) {
        Some(name) if name.is_empty() || name.contains('%') => {
            return Err(wrong(format!("the schedule is `{schedule}`, expected `%SETTING%`")));
        }
        Some(_) => {}
        None => drop(Schedule::parse(schedule).map_err(|error| wrong(error.to_string()))?),
    }
    Ok(Function { name, schedule: Some(schedule.to_owned()), definition: path })
}

/// Returns the `function.json` of a timer; `schedule` is a cron expression, or the name of a setting between
/// two `%`.
pub(crate) fn timer_definition(schedule: &str) -> String {
    let binding = serde_json::json!({
        "name": "timer",
        "type": "timerTrigger",
        "direction": "in",
        "schedule": schedule,
        "useMonitor": true,
        "runOnStartup": false,
    });
    format!("{:#}\n", serde_json::json!({ "bindings": [binding] }))
}

/// Checks the bindings of a function that shows something: nobody sees it without a key.
fn check_http(request: &Json, response: &Json) -> Result<(), &'static str> {
    let is = |binding: &Json, field, wanted: &str| binding.get(field) == Some(&Json::from(wanted));
    if !is(request, "direction", "in") || !is(response, "type", "http") {
        return Err(
            "the bindings must be an `httpTrigger` of direction `in`, then an `http` output",
        );
    }
    if !is(response, "direction", "out") || !is(response, "name", "res") {
        return Err("the binding of type `http` must have the direction `out` and the name `res`");
    }
    // Without one the host takes `function`.
    let level = request.get("authLevel").map_or(Some("function"), Json::as_str);
    if !matches!(level, Some("function" | "admin")) {
        return Err(
            "`authLevel` must be `function` or `admin`: what it shows is not for everybody",
        );
    }
    if request.get("methods") != Some(&serde_json::json!(["get"])) {
        return Err("`methods` must be `[\"get\"]`: the function only shows");
    }
    Ok(())
}

/// `Utility.cs` of the Functions host: `^[a-z][a-z0-9_\-]{0,127}$` in any case, and not `host`.
fn is_function_name(name: &str) -> bool {
    let rest_ok = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let first_ok = name.starts_with(|c: char| c.is_ascii_alphabetic());
    rest_ok && first_ok && name.len() <= 128 && !name.eq_ignore_ascii_case("host")
}

/// `Utility.cs` of the Functions host: `^[a-zA-Z][a-zA-Z0-9]{0,127}$`.
fn is_binding_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric())
        && name.len() <= 128
}

fn read_json(path: &Path) -> Result<Json, ProjectError> {
    let text = fs::read(path).map_err(at("read", path))?;
    serde_json::from_slice(&text).map_err(|error| ProjectError::Content {
        path: path.to_owned(),
        reason: format!("not JSON: {error}"),
    })
}

/// Returns how an error of a file becomes one of ours.
pub(crate) fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ProjectError {
    let path = path.to_owned();
    move |source| ProjectError::File { verb, path, source }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn times_are_read_as_the_host_writes_them() {
        for (text, expected) in [
            ("00:05:00", Some(300)),
            ("1.00:00:00", Some(86_400)),
            ("00:60:00", None),
            ("5m", None),
            ("00:05", None),
            ("00:05:00:00", None),
        ] {
            assert_eq!(time_span(text), expected.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn what_shows_something_wants_a_key_and_only_reads() {
        let request = serde_json::json!({ "name": "request", "type": "httpTrigger", "direction": "in",
            "authLevel": "function", "methods": ["get"], "route": "status/{view?}" });
        let response = serde_json::json!({ "name": "res", "type": "http", "direction": "out" });
        assert_eq!(check_http(&request, &response), Ok(()));
        for (is_request, field, value, expected) in [
            (true, "authLevel", "anonymous", "`function` or `admin`"),
            (true, "direction", "out", "of direction `in`"),
            (true, "methods", "get", "only shows"),
            (false, "type", "queue", "then an `http` output"),
            (false, "name", "$return", "the name `res`"),
        ] {
            let (mut request, mut response) = (request.clone(), response.clone());
            let binding = if is_request { &mut request } else { &mut response };
            binding[field] = value.into();
            let error = check_http(&request, &response).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_schedule_comes_from_the_file_or_from_the_setting_that_it_names() {
        let of = |schedule: &str, vars: &[(&str, &str)]| {
            let function = Function {
                name: "orders".to_owned(),
                definition: PathBuf::new(),
                schedule: Some(schedule.to_owned()),
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
        assert!(wrong.contains("function `orders`: `5m` is no schedule"), "{wrong}");
    }
}
