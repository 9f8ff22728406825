//! `function.json` in each function's folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::{Function, Host, Place, Problem, Wrong, read_json, setting_of, wrong_retry};
use crate::page::HEALTH_FUNCTION;
use crate::schedule::{SIX_FIELDS, Schedule};

/// Route of the status page in the repository.
pub(super) const PAGE_ROUTE: &str = "status/{view?}";

/// Reads the functions directly in `folder`, by name.
pub(super) fn read(folder: &Path, host: &Host) -> (Vec<Function>, Vec<Problem>) {
    let (mut functions, mut problems) = (Vec::new(), Vec::new());
    let mut wrong = |found: String, fix: &str| {
        problems.push(Problem::error(Place::Functions, folder, found, fix));
    };
    let layout = "run this in the folder of your project, which has a folder with `function.json` for each function";
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
                let moved = moved(&function)
                    .map(|(found, fix)| Problem::warning(place(), &definition, found, fix));
                problems.extend(moved);
                functions.push(function);
            }
            Err((found, fix)) => {
                problems.push(Problem::error(place(), &definition, found, fix));
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

/// Returns why the host does not call a function although its own file is valid.
fn refused_by(function: &Function, host: &Host) -> Option<Wrong> {
    let name = &function.name;
    if host.allowed.as_ref().is_some_and(|allowed| !allowed.contains(name)) {
        let Host { allowed_by, .. } = host;
        let (by, fix) = if allowed_by.is_empty() {
            let fix = format!("add `{name}` to `functions` in `host.json`, or remove that list");
            ("`functions` in `host.json` does".to_owned(), fix)
        } else {
            let settings = allowed_by.join("`, `");
            let fix =
                format!("remove `{settings}`, or name `{name}` in another setting of that list");
            ("the settings `AzureFunctionsJobHost__functions__…` do".to_owned(), fix)
        };
        return Some((format!("{by} not name `{name}`, so the host does not load it"), fix));
    }
    let fix = host.stops_forwarding.filter(|_| function.schedule.is_none())?;
    let found = "the host forwards HTTP requests unchanged, so the status page does not receive its invocations";
    Some((found.to_owned(), fix.to_owned()))
}

fn function(name: &str, path: &Path, json: &Json) -> Result<Function, Wrong> {
    if !is_function_name(name) {
        let found = if name.eq_ignore_ascii_case(RESERVED) {
            format!("the folder's name `{name}` is reserved: the host does not load the function")
        } else {
            "the folder's name must be a letter, then letters, digits, `_` or `-`, 128 in all at most"
                .to_owned()
        };
        return Err((found, "rename the folder".to_owned()));
    }
    let text = |field: &str| json.get(field).and_then(Json::as_str).unwrap_or_default();
    let script = text("scriptFile");
    if !script.is_empty() && !path.with_file_name(script).is_file() {
        let found = format!("`scriptFile` is `{script}`, and there is no such file");
        return Err((found, "remove `scriptFile`".to_owned()));
    }
    if !matches!(text("configurationSource"), "" | "config") {
        return fail(
            "`configurationSource` makes the host look for a .NET method",
            "remove `configurationSource`",
        );
    }
    if let Some(wrong) = json.get("retry").and_then(wrong_retry) {
        return Err(wrong);
    }
    let bindings = json.get("bindings").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let made = |schedule, route| {
        let (name, definition) = (name.to_owned(), path.to_owned());
        Function { name, definition, schedule, route }
    };
    let expected = "exactly one binding, a `timerTrigger`, is expected; or two, an `httpTrigger` and its `http` output";
    let is_request = |binding: &Json| is(binding, "type", "httpTrigger");
    let is_response = |binding: &Json| is(binding, "type", "http");
    match bindings {
        // The host accepts them in any order.
        [request, response] | [response, request] if is_request(request) => {
            check_http(name, request, response)?;
            Ok(made(None, Some(route(name, request)?)))
        }
        [only] if is_request(only) => fail(
            "the `httpTrigger` has no `http` output, so its responses are lost",
            "add `{ \"name\": \"res\", \"type\": \"http\", \"direction\": \"out\" }` to `bindings`",
        ),
        [only] if is_response(only) => fail(
            "the `http` output has no `httpTrigger`, so nothing starts the function",
            "add `{ \"name\": \"request\", \"type\": \"httpTrigger\", \"direction\": \"in\", \"authLevel\": \
             \"function\", \"methods\": [\"get\", \"head\"], \"route\": \"status/{view?}\" }` to `bindings`",
        ),
        [binding] => check_timer(binding).map(|schedule| made(Some(schedule), None)),
        [..] if bindings.iter().any(is_request) => {
            fail(expected, "leave one `httpTrigger` and one `http` output in `bindings`")
        }
        [] => fail(expected, "add a `timerTrigger` to `bindings`, or remove the function's folder"),
        [..] => fail(
            expected,
            "leave one `timerTrigger` in `bindings`; another timer is another function",
        ),
    }
}

fn fail<T>(found: &str, fix: &str) -> Result<T, Wrong> {
    Err((found.to_owned(), fix.to_owned()))
}

/// Whether a field equals `wanted`, ignoring case like the host.
fn is(binding: &Json, field: &str, wanted: &str) -> bool {
    binding.get(field).and_then(Json::as_str).is_some_and(|text| text.eq_ignore_ascii_case(wanted))
}

/// Checks the binding of a timer, and returns its schedule as written.
fn check_timer(binding: &Json) -> Result<String, Wrong> {
    let text = |field: &str| binding.get(field).and_then(Json::as_str).unwrap_or_default();
    if !is(binding, "type", "timerTrigger") {
        let found = format!(
            "the `type` of the binding is `{}`, expected a `timerTrigger`; or two bindings, an `httpTrigger` and its \
             `http` output",
            text("type")
        );
        let fix = "set `type` to `timerTrigger`, or remove the function's folder";
        return Err((found, fix.to_owned()));
    }
    check_input(binding)?;
    let name = text("name");
    if !is_binding_name(name) {
        let found = format!(
            "the `name` of the binding is `{name}`, expected a letter, then letters and digits"
        );
        return Err((found, "set `name` to `timer`".to_owned()));
    }
    let schedule = text("schedule");
    match setting_of(schedule) {
        Some(name) if name.is_empty() || name.contains('%') => {
            let found = format!("the schedule is `{schedule}`, expected `%SETTING%`");
            let fix = "write the name of one setting between two `%`, such as `%ORDERS_SCHEDULE%`";
            return Err((found, fix.to_owned()));
        }
        Some(_) => {}
        None if schedule.trim().is_empty() => {
            let fix = format!("set `schedule` to {SIX_FIELDS}");
            return Err(("the binding has no `schedule`".to_owned(), fix));
        }
        None => {
            Schedule::parse(schedule).map_err(|error| (error.to_string(), error.fix))?;
        }
    }
    Ok(schedule.to_owned())
}

/// Checks the direction of a trigger; the host's default is `in`.
fn check_input(binding: &Json) -> Result<(), Wrong> {
    match binding.get("direction") {
        Some(direction) if !is(binding, "direction", "in") => {
            let direction = direction.as_str().map_or_else(|| direction.to_string(), str::to_owned);
            let found = format!("the `direction` of the binding is `{direction}`, expected `in`");
            Err((found, "set `direction` to `in`".to_owned()))
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns the `function.json` of a timer. `schedule` is a cron expression, or the name of a setting between two `%`.
pub fn timer_definition(schedule: &str) -> String {
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

/// Checks the bindings of an HTTP function: it must be read-only, and require a key unless it answers one word.
fn check_http(name: &str, request: &Json, response: &Json) -> Result<(), Wrong> {
    check_input(request)?;
    if !is(response, "type", "http") {
        return fail(
            "the bindings must be an `httpTrigger`, then an `http` output",
            "set `type` of the second binding to `http`",
        );
    }
    if !is(response, "direction", "out") || response.get("name") != Some(&Json::from("res")) {
        return fail(
            "the binding of type `http` must have the direction `out` and the name `res`",
            "set `direction` of that binding to `out`, and `name` to `res`",
        );
    }
    // The host's default is `function`.
    let level = request.get("authLevel").map_or(Some("function"), Json::as_str);
    let is = |known: &str| level.is_some_and(|level| level.eq_ignore_ascii_case(known));
    let is_open = name == HEALTH_FUNCTION && is("anonymous");
    if !is("function") && !is("admin") && !is_open {
        return fail(
            "`authLevel` must be `function` or `admin`: the page must not be public",
            "set `authLevel` to `function`",
        );
    }
    let methods = request.get("methods").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let is_method = |method: &Json, known: &str| {
        method.as_str().is_some_and(|method| method.eq_ignore_ascii_case(known))
    };
    let reads = methods.iter().all(|method| is_method(method, "get") || is_method(method, "head"));
    if !reads || !methods.iter().any(|method| is_method(method, "get")) {
        return fail(
            "`methods` contains more than `get` and `head`, or no `get`: the function is read-only",
            "set `methods` to `[\"get\", \"head\"]`",
        );
    }
    Ok(())
}

/// Returns the route of an HTTP function; its name by default.
fn route(name: &str, request: &Json) -> Result<String, Wrong> {
    let route = request.get("route").and_then(Json::as_str).unwrap_or_default();
    let route = if route.trim().is_empty() { name } else { route };
    // `ValidateHttpFunction` of the host's `ScriptHost.cs`.
    if route.trim_matches('/').to_ascii_lowercase().starts_with("admin") {
        let found = format!("`route` is `{route}`, but `admin` is reserved by the host");
        return Err((found, format!("set `route` to `{PAGE_ROUTE}`")));
    }
    Ok(route.to_owned())
}

/// Warns if the address of the status page has changed or is gone.
fn moved(function: &Function) -> Option<Wrong> {
    let is_page = function.name != HEALTH_FUNCTION;
    let route = function.route.as_ref().filter(|route| is_page && *route != PAGE_ROUTE)?;
    let fix = format!("set `route` to `{PAGE_ROUTE}`");
    Some(match page_path(route) {
        Some(path) => (
            format!(
                "`route` is `{route}`, so the status page is at `{path}` below the app's prefix"
            ),
            format!("{fix}, or open the page at its new address"),
        ),
        None => (
            format!(
                "`route` is `{route}`, so the status page has no address: the last part must be `{{view?}}`"
            ),
            fix,
        ),
    })
}

/// Returns the path of the status page for the route of its function; `None` if the route cannot address the page.
pub(super) fn page_path(route: &str) -> Option<String> {
    let route = route.trim_matches('/');
    let (before, view) = route.rsplit_once('/').unwrap_or(("", route));
    if !view.eq_ignore_ascii_case("{view?}") || before.contains('{') {
        return None;
    }
    Some(if before.is_empty() { "page".to_owned() } else { format!("{before}/page") })
}

/// Name reserved by the host.
const RESERVED: &str = "host";

/// `Utility.cs` of the Functions host: `^[a-z][a-z0-9_\-]{0,127}$` in any case, and not `host`.
fn is_function_name(name: &str) -> bool {
    let rest_ok = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let first_ok = name.starts_with(|c: char| c.is_ascii_alphabetic());
    rest_ok && first_ok && name.len() <= 128 && !name.eq_ignore_ascii_case(RESERVED)
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
    fn the_last_part_of_the_route_must_be_the_view() {
        for (route, expected) in [
            ("status/{view?}", Some("status/page")),
            ("/ops/Orders/{VIEW?}", Some("ops/Orders/page")),
            ("{view?}", Some("page")),
            ("status/{view}", None),
            ("status", None),
            ("{team}/{view?}", None),
            ("highwater_status", None),
        ] {
            assert_eq!(page_path(route).as_deref(), expected, "{route}");
        }
    }

    #[test]
    fn an_http_function_requires_a_key_and_is_read_only() {
        let request = serde_json::json!({ "name": "request", "type": "httpTrigger", "direction": "in",
            "authLevel": "function", "methods": ["get"], "route": "status/{view?}" });
        let response = serde_json::json!({ "name": "res", "type": "http", "direction": "out" });
        assert_eq!(check_http("highwater_status", &request, &response), Ok(()));
        // Only the function that answers one word may be public.
        let mut open = request.clone();
        open["authLevel"] = "anonymous".into();
        assert_eq!(check_http(HEALTH_FUNCTION, &open, &response), Ok(()));
        for (is_request, field, value, expected) in [
            (true, "authLevel", "anonymous", "`function` or `admin`"),
            (true, "direction", "out", "expected `in`"),
            (true, "methods", "get", "is read-only"),
            (false, "type", "queue", "then an `http` output"),
            (false, "name", "$return", "the name `res`"),
        ] {
            let (mut request, mut response) = (request.clone(), response.clone());
            let binding = if is_request { &mut request } else { &mut response };
            binding[field] = value.into();
            let (found, fix) = check_http("highwater_status", &request, &response).unwrap_err();
            assert!(found.contains(expected), "{found}");
            assert!(fix.contains(&format!("`{field}`")), "{fix}");
        }
    }
}
