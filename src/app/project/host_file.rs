//! `host.json`, and the settings that override it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::timeout::{self, time_span};
use super::{HANDLER, HOST_FILE, Host, Place, Problem, Wrong, read_json, wrong_retry};
use crate::config::Vars;
use crate::suggestion::quoted;

/// Prefix of settings that override this file; the parts between `__` are the path of a value.
pub(super) const OVERRIDES: &str = "AzureFunctionsJobHost";

/// `SingletonOptions.cs` of the host's SDK: `MinimumLeasePeriod`, `MaximumLeasePeriod`.
const LOCK_PERIOD: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(60)];

/// Levels that hide informational lines.
const HIDES_INFORMATION: [&str; 4] = ["Warning", "Error", "Critical", "None"];

/// The prefix of HTTP routes in `host.json`.
const ROUTE_PREFIX: &str = "/extensions/http/routePrefix";
const DEFAULT_PREFIX: &str = "api";

const HOST_ENDS: &str = "the host does not start";

/// Reads the file in `root`. With `is_laid_out`, the host can start from there, so the program must be there too.
pub(super) fn read(root: &Path, is_laid_out: bool, vars: &dyn Vars) -> (Host, Vec<Problem>) {
    let path = root.join(HOST_FILE);
    let error = |found: String, fix: &str| Problem::error(Place::Host, &path, found, fix);
    let mut json = match read_json(&path) {
        Ok(json @ Json::Object(_)) => json,
        Ok(_) => return (Host::default(), vec![error("is not an object".to_owned(), REPLACE)]),
        Err((found, fix)) => {
            let fix = if path.is_file() { &fix } else { MISSING };
            return (Host::default(), vec![error(found, fix)]);
        }
    };
    override_by(&mut json, vars);
    let mut problems = Vec::new();
    if json.get("version") != Some(&Json::from("2.0")) {
        let found = format!("`version` must be \"2.0\", otherwise {HOST_ENDS}");
        problems.push(error(found, "write `\"version\": \"2.0\"`"));
    }
    if let Err(wrong) = timeout::of_file(&json) {
        let found = format!("{wrong}; {HOST_ENDS}");
        let by = overriding(vars, timeout::FIELD);
        let by = by.as_deref().unwrap_or(timeout::FIELD);
        let fix = format!("set `{by}` to a time of at least a second, such as `00:05:00`");
        problems.push(error(found, &fix));
    }
    problems.extend(lock_periods(&json).map(|(found, fix)| error(found, &fix)));
    let retry = json.get("retry").and_then(wrong_retry);
    problems.extend(retry.map(|(found, fix)| error(found, &fix)));
    let (program, stops_forwarding) = program(&json, root, is_laid_out);
    problems.extend(program.into_iter().map(|(found, fix)| error(found, &fix)));
    let differs = without_effect(&json).into_iter();
    problems.extend(differs.map(|(found, fix)| Problem::warning(Place::Host, &path, found, fix)));
    let allowed = json.get("functions").and_then(Json::as_array);
    let allowed =
        allowed.map(|names| names.iter().filter_map(Json::as_str).map(str::to_owned).collect());
    let names = |name: &String| match &overridden(name)[..] {
        [field, ..] => field.eq_ignore_ascii_case("functions"),
        [] => false,
    };
    let mut allowed_by: Vec<String> = vars.names().into_iter().filter(names).collect();
    allowed_by.sort();
    allowed_by.dedup();
    (Host { allowed, allowed_by, stops_forwarding }, problems)
}

const MISSING: &str = "run this in the folder of your project; `highwater init orders --table dbo.orders --out orders` \
     creates one";
const REPLACE: &str = "replace it with `new/host.json`, which `highwater init orders --table dbo.orders --out new` writes";

fn lock_periods(json: &Json) -> impl Iterator<Item = Wrong> {
    let [least, most] = LOCK_PERIOD;
    // The values of our own file.
    [
        ("listenerLockPeriod", most, "00:01:00"),
        ("listenerLockRecoveryPollingInterval", Duration::MAX, "00:00:15"),
    ]
    .into_iter()
    .filter_map(move |(name, most, ours)| {
        let set = json.get("singleton")?.get(name)?;
        let span = set.as_str().and_then(time_span);
        if span.is_some_and(|span| (least..=most).contains(&span)) {
            return None;
        }
        let limit = if most == Duration::MAX { "of 15 s or more" } else { "from 15 s to 60 s" };
        let found = format!("`singleton.{name}` is `{set}`, so {HOST_ENDS}");
        Some((found, format!("write a time {limit}, such as `{ours}`")))
    })
}

/// Returns why the host would not start or reach this program, and how to stop it from forwarding requests if it
/// does.
fn program(json: &Json, root: &Path, is_laid_out: bool) -> (Vec<Wrong>, Option<&'static str>) {
    // `HttpWorkerOptionsSetup.cs`: the old section applies if the new one is missing, and always forwards.
    let is_old = json.get("customHandler").is_none() && json.get("httpWorker").is_some();
    let section = if is_old { "httpWorker" } else { "customHandler" };
    let value = |name: &str| json.pointer(&format!("/{section}/{name}"));
    let is_set = match value("enableForwardingHttpRequest") {
        Some(Json::String(text)) => text.eq_ignore_ascii_case("true"),
        flag => flag == Some(&Json::Bool(true)),
    };
    let stops_forwarding = match (is_old, is_set) {
        (true, _) => Some("rename `httpWorker` in `host.json` to `customHandler`"),
        (false, true) => {
            Some("set `customHandler.enableForwardingHttpRequest` in `host.json` to `false`")
        }
        (false, false) => None,
    };
    let mut wrong = Vec::new();
    let text = |name: &str| {
        value(&format!("description/{name}")).and_then(Json::as_str).unwrap_or_default()
    };
    let named = text("defaultExecutablePath");
    if named.strip_prefix("./").unwrap_or(named) != HANDLER {
        let field = format!("{section}.description.defaultExecutablePath");
        let is = if named.is_empty() { "not set".to_owned() } else { format!("`{named}`") };
        let found = format!("`{field}` is {is}, and must be exactly `{HANDLER}`");
        let has_section = json.get(section).is_some();
        let fix =
            if has_section { format!("set `{field}` to `{HANDLER}`") } else { REPLACE.to_owned() };
        wrong.push((found, fix));
    }
    let arguments = ["arguments", "workerArguments"].into_iter();
    let arguments = arguments.filter_map(|name| value(&format!("description/{name}"))?.as_array());
    let arguments: Vec<&str> = arguments.flatten().filter_map(Json::as_str).collect();
    if !matches!(arguments[..], [] | ["serve"]) {
        let found = format!(
            "the host starts the program with `{}`, which does not serve the host",
            arguments.join(" ")
        );
        let fix = "leave `arguments` and `workerArguments` empty";
        wrong.push((found, fix.to_owned()));
    }
    let folder = text("workingDirectory");
    let program = root.join(folder).join(HANDLER);
    if !folder.is_empty() && (!is_laid_out || !program.is_file()) {
        let found = format!(
            "`customHandler.description.workingDirectory` is `{folder}`, and the program is not there"
        );
        wrong.push((found, "leave it empty".to_owned()));
    } else if is_laid_out && named.ends_with(HANDLER) {
        wrong.extend(unfit(&program));
    }
    (wrong, stops_forwarding)
}

/// Returns why the host could not start the program.
fn unfit(program: &Path) -> Option<Wrong> {
    let path = quoted(&program.to_string_lossy());
    let Ok(file) = fs::metadata(program) else {
        let found = format!("`{}` is missing, so the host calls no function", program.display());
        // Replace only the program: other files in the folder may have been edited.
        let fix = match std::env::current_exe() {
            Ok(ours) => format!("run `install -m 755 {} {path}`", quoted(&ours.to_string_lossy())),
            Err(_) => format!("copy this program to {path}"),
        };
        return Some((found, fix));
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        if file.permissions().mode() & 0o111 == 0 {
            let found =
                format!("`{}` is not executable, so the host calls no function", program.display());
            return Some((found, format!("run `chmod +x {path}`")));
        }
    }
    None
}

/// Returns fields that do not work as expected.
fn without_effect(json: &Json) -> Vec<Wrong> {
    let mut found = Vec::new();
    let mut add = |text: &str, fix: &str| found.push((text.to_owned(), fix.to_owned()));
    match (json.get("httpWorker"), json.get("customHandler")) {
        (Some(_), Some(_)) => {
            add("`httpWorker` has no effect, since `customHandler` is set", "remove `httpWorker`");
        }
        (Some(_), None) => add("`httpWorker` is the old name of `customHandler`", "rename it"),
        (None, _) => {}
    }
    if json.get("extensionBundle").is_some() {
        let text = "`extensionBundle` is not needed and slows the start: the host downloads it, and does not start \
                    if that fails";
        add(text, "remove it");
    }
    if let Some(prefix) = json.pointer(ROUTE_PREFIX).filter(|prefix| **prefix != DEFAULT_PREFIX) {
        let text = format!(
            "`extensions.http.routePrefix` is `{prefix}`, so the status page is not below `/api`"
        );
        add(&text, "remove it, or open the page at its new address");
    }
    let levels = json.pointer("/logging/logLevel").and_then(Json::as_object);
    let hides = |category: &str| {
        let level = levels.and_then(|levels| levels.get(category)?.as_str());
        level
            .filter(|level| HIDES_INFORMATION.iter().any(|other| other.eq_ignore_ascii_case(level)))
    };
    // The category of the output of the process; successful ticks are in the replies.
    if let Some(level) = hides("Host.Function.Console") {
        let text = format!(
            "`Host.Function.Console` is `{level}`: the lines of the process (start, stop, retries, late ticks) are \
             not shown"
        );
        add(&text, "write `Information`");
    }
    let is_of_answers =
        |category: &String| category.starts_with("Function.") && category.ends_with(".User");
    let has_answers = levels.is_some_and(|levels| levels.keys().any(is_of_answers));
    if let Some(level) = hides("Function").filter(|_| !has_answers) {
        let text = format!(
            "`Function` is `{level}`: the results of ticks are not stored, but alerts need them"
        );
        add(&text, "add `\"Function.*.User\": \"Information\"`");
    }
    found
}

/// Returns the prefix of HTTP routes for `host.json` in `root`, or the host's default.
pub(super) fn route_prefix(root: &Path, vars: &dyn Vars) -> String {
    let json = effective(root, vars);
    let prefix = json.pointer(ROUTE_PREFIX).and_then(Json::as_str);
    prefix.unwrap_or(DEFAULT_PREFIX).trim_matches('/').to_owned()
}

/// Whether the host exports log lines by OpenTelemetry, for `host.json` in `root`.
pub(super) fn is_open_telemetry(root: &Path, vars: &dyn Vars) -> bool {
    let json = effective(root, vars);
    let mode = json.get("telemetryMode").and_then(Json::as_str).unwrap_or_default();
    mode.eq_ignore_ascii_case("OpenTelemetry")
}

/// Returns the file in `root` with overrides from the settings; only the overrides if it cannot be read.
fn effective(root: &Path, vars: &dyn Vars) -> Json {
    let mut json = read_json(&root.join(HOST_FILE)).unwrap_or(Json::Null);
    override_by(&mut json, vars);
    json
}

/// Applies the settings `AzureFunctionsJobHost__…` to the file, like the host.
pub(super) fn override_by(json: &mut Json, vars: &dyn Vars) {
    let mut names = vars.names();
    names.sort();
    names.dedup();
    for name in names {
        let path = overridden(&name);
        if !path.is_empty()
            && let Some(value) = vars.get(&name)
        {
            put(json, &path, value);
        }
    }
}

/// Returns the name of the setting that overrides a top-level field, if one is set.
pub(super) fn overriding(vars: &dyn Vars, field: &str) -> Option<String> {
    let names_field = |name: &String| match &overridden(name)[..] {
        [only] => only.eq_ignore_ascii_case(field),
        _ => false,
    };
    vars.names().into_iter().filter(names_field).max()
}

/// Returns the path in the file that the setting `name` overrides; empty if it overrides nothing.
fn overridden(name: &str) -> Vec<String> {
    let path = name.replace(':', "__");
    let mut parts = path.split("__");
    let is_override = parts.next().is_some_and(|first| first.eq_ignore_ascii_case(OVERRIDES));
    parts.filter(|_| is_override).map(str::to_owned).collect()
}

/// Sets the value at `path`, and replaces values that are in the way.
fn put(json: &mut Json, path: &[String], value: String) {
    let Some((first, rest)) = path.split_first() else {
        *json = Json::String(value);
        return;
    };
    let below = match (first.parse::<usize>(), &mut *json) {
        (Ok(index), Json::Array(items)) => {
            if index >= items.len() {
                items.push(Json::Null);
            }
            let last = items.len() - 1;
            items.get_mut(index.min(last)).expect("the array is not empty")
        }
        (_, Json::Object(fields)) => {
            let known = fields.keys().find(|key| key.eq_ignore_ascii_case(first)).cloned();
            fields.entry(known.unwrap_or_else(|| first.clone())).or_insert(Json::Null)
        }
        (Ok(_), other) => {
            *other = Json::Array(vec![Json::Null]);
            &mut other[0]
        }
        (Err(_), other) => {
            *other = Json::Object(Map::new());
            &mut other[first]
        }
    };
    put(below, rest, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_override_the_file_in_any_case_and_depth() {
        let mut json =
            serde_json::json!({ "functionTimeout": "00:05:00", "functions": ["orders"] });
        let vars: std::collections::BTreeMap<String, String> = [
            ("AzureFunctionsJobHost__FUNCTIONTIMEOUT", "00:01:00"),
            ("azurefunctionsjobhost:functions:0", "status"),
            ("AzureFunctionsJobHost__functions__1", "orders"),
            ("AzureFunctionsJobHost__singleton__listenerLockPeriod", "00:00:15"),
            ("AzureFunctionsJobHost_functionTimeout", "never read"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        override_by(&mut json, &vars);
        let expected = serde_json::json!({ "functionTimeout": "00:01:00", "functions": ["status", "orders"],
            "singleton": { "listenerLockPeriod": "00:00:15" } });
        assert_eq!(json, expected);
    }

    #[test]
    fn lock_periods_of_the_host_have_limits() {
        for (singleton, expected) in [
            (
                serde_json::json!({ "listenerLockPeriod": "00:01:00", "listenerLockRecoveryPollingInterval": "00:00:15" }),
                0,
            ),
            (serde_json::json!({ "listenerLockPeriod": "00:00:14" }), 1),
            (serde_json::json!({ "listenerLockPeriod": "00:01:01" }), 1),
            (serde_json::json!({ "listenerLockRecoveryPollingInterval": "00:00:10" }), 1),
            (serde_json::json!({ "listenerLockRecoveryPollingInterval": 15 }), 1),
        ] {
            let json = serde_json::json!({ "singleton": singleton });
            let found: Vec<Wrong> = lock_periods(&json).collect();
            assert_eq!(found.len(), expected, "{found:?}");
        }
    }
}
