//! `function.json`, one in each function's folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::{Function, Host, Place, Problem, read_json, setting_of, wrong_retry};
use crate::schedule::Schedule;

/// Reads the functions that lie directly in `folder`, by name.
pub(super) fn read(folder: &Path, host: &Host) -> (Vec<Function>, Vec<Problem>) {
    let (mut functions, mut problems) = (Vec::new(), Vec::new());
    let mut wrong = |found: String, fix: &str| {
        problems.push(Problem::error(Place::Functions, folder, found, fix));
    };
    let layout = "lay out one folder for each function, with a `function.json` in it";
    let definitions = match definitions(folder) {
        Ok(definitions) => definitions,
        Err(error) => {
            wrong(format!("cannot be read: {error}"), layout);
            return (functions, problems);
        }
    };
    if definitions.is_empty() {
        wrong("no `<function>/function.json` in it".to_owned(), layout);
    }
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    for name in definitions.keys() {
        if let Some(other) = names.insert(name.to_ascii_lowercase(), name) {
            let found =
                format!("`{other}` and `{name}` differ in case only, so the host does not start");
            wrong(found, "rename one of them");
        }
    }
    for (name, definition) in definitions {
        let place = || Place::Function(name.clone());
        let mut json = Json::Null;
        match read_json(&definition).and_then(|read| {
            json = read;
            function(&name, &definition, &json)
        }) {
            Ok(function) => {
                let refused = refused_by(&function, host)
                    .map(|(found, fix)| Problem::error(place(), &definition, found, fix));
                problems.extend(refused);
                functions.push(function);
            }
            Err(reason) => {
                let fix = "mend it, or take that of another function";
                problems.push(Problem::error(place(), &definition, reason, fix));
            }
        }
        for field in ["disabled", "excluded"].into_iter().filter(|field| json.get(field).is_some())
        {
            let found = format!("`{field}` has no effect: the host does not read it there");
            let fix =
                format!("remove it; the setting `AzureWebJobs.{name}.Disabled` stops the function");
            problems.push(Problem::warning(place(), &definition, found, fix));
        }
    }
    (functions, problems)
}

fn definitions(folder: &Path) -> std::io::Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let definition = entry.path().join("function.json");
        if definition.is_file() {
            found.insert(entry.file_name().to_string_lossy().into_owned(), definition);
        }
    }
    Ok(found)
}

/// Says why the host does not call a function whose own file is right.
fn refused_by(function: &Function, host: &Host) -> Option<(String, String)> {
    let name = &function.name;
    if host.allowed.as_ref().is_some_and(|allowed| !allowed.contains(name)) {
        let found = "`functions` of `host.json`, or the settings `AzureFunctionsJobHost__functions__…`, do not name \
                     it, so the host does not load it";
        return Some((found.to_owned(), format!("add `{name}` there, or remove `functions`")));
    }
    if host.forwards_requests && function.schedule.is_none() {
        let found =
            "the host forwards requests as they come, so the status page does not get its calls";
        let fix = "set `customHandler.enableForwardingHttpRequest` to `false` in `host.json`";
        return Some((found.to_owned(), fix.to_owned()));
    }
    None
}

fn function(name: &str, path: &Path, json: &Json) -> Result<Function, String> {
    if !is_function_name(name) {
        return Err(
            "the folder's name must be a letter, then letters, digits, `_` or `-`".to_owned()
        );
    }
    let text = |field: &str| json.get(field).and_then(Json::as_str).unwrap_or_default();
    let script = text("scriptFile");
    if !script.is_empty() && !path.with_file_name(script).is_file() {
        return Err(format!(
            "`scriptFile` is `{script}`, and there is no such file; remove `scriptFile`"
        ));
    }
    if !matches!(text("configurationSource"), "" | "config") {
        return Err(
            "`configurationSource` makes the host look for a .NET method; remove it".to_owned()
        );
    }
    if let Some(wrong) = json.get("retry").and_then(wrong_retry) {
        return Err(wrong);
    }
    let bindings = json.get("bindings").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let made = |schedule| Function { name: name.to_owned(), schedule, definition: path.to_owned() };
    match bindings {
        [binding] => check_timer(binding).map(|schedule| made(Some(schedule))),
        [request, response] if is(request, "type", "httpTrigger") => {
            check_http(request, response)?;
            Ok(made(None))
        }
        _ => Err("exactly one binding, a `timerTrigger`, is expected; or two, an `httpTrigger` and its `http` output"
            .to_owned()),
    }
}

/// Whether a field is `wanted` in any case, as the host compares.
fn is(binding: &Json, field: &str, wanted: &str) -> bool {
    binding.get(field).and_then(Json::as_str).is_some_and(|text| text.eq_ignore_ascii_case(wanted))
}

/// Checks the binding of a timer, and returns its schedule as written.
fn check_timer(binding: &Json) -> Result<String, String> {
    let text = |field: &str| binding.get(field).and_then(Json::as_str).unwrap_or_default();
    // Without one the host takes `in`.
    let is_input = binding.get("direction").is_none() || is(binding, "direction", "in");
    if !is(binding, "type", "timerTrigger") || !is_input {
        return Err("the binding must be a `timerTrigger` of direction `in`".to_owned());
    }
    if !is_binding_name(text("name")) {
        return Err("the binding's name must be a letter, then letters and digits".to_owned());
    }
    let schedule = text("schedule");
    match setting_of(schedule) {
        Some(name) if name.is_empty() || name.contains('%') => {
            return Err(format!("the schedule is `{schedule}`, expected `%SETTING%`"));
        }
        Some(_) => {}
        None => drop(Schedule::parse(schedule).map_err(|error| error.to_string())?),
    }
    Ok(schedule.to_owned())
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
fn check_http(request: &Json, response: &Json) -> Result<(), String> {
    let fail = |text: &str| Err(text.to_owned());
    let is_input = request.get("direction").is_none() || is(request, "direction", "in");
    if !is_input || !is(response, "type", "http") {
        return fail(
            "the bindings must be an `httpTrigger` of direction `in`, then an `http` output",
        );
    }
    if !is(response, "direction", "out") || response.get("name") != Some(&Json::from("res")) {
        return fail("the binding of type `http` must have the direction `out` and the name `res`");
    }
    // Without one the host takes `function`.
    let level = request.get("authLevel").map_or(Some("function"), Json::as_str);
    if !level.is_some_and(|level| {
        ["function", "admin"].iter().any(|known| level.eq_ignore_ascii_case(known))
    }) {
        return fail(
            "`authLevel` must be `function` or `admin`: what it shows is not for everybody",
        );
    }
    let methods = request.get("methods").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let is_method = |method: &Json, known: &str| {
        method.as_str().is_some_and(|method| method.eq_ignore_ascii_case(known))
    };
    let reads = methods.iter().all(|method| is_method(method, "get") || is_method(method, "head"));
    if !reads || !methods.iter().any(|method| is_method(method, "get")) {
        return fail(
            "`methods` must be `[\"get\"]` or `[\"get\", \"head\"]`: the function only shows",
        );
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
