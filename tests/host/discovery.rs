//! Compares the findings of `validate` about an app with what the real host did with it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::bench::{Bench, PROGRAM};
use crate::data;

/// Findings that are warnings.
const WARNED: [(&str, &str); 8] = [
    ("disabled_true", "`disabled` has no effect"),
    ("disabled_text", "`disabled` has no effect"),
    ("excluded", "`excluded` has no effect"),
    ("folder_case_twice", "2 functions run `orders`"),
    ("http_worker", "`httpWorker` is the old name"),
    ("http_worker_both", "`httpWorker` has no effect"),
    ("route_prefix_empty", "the status page is not below `/api`"),
    ("extension_bundle", "`extensionBundle` is not needed"),
];

/// The fix for each recorded error, one text per error in the order of findings. `ROOT` is the folder.
const FIXES: [(&str, &[&str]); 29] = [
    (
        "allow_list",
        &[
            "add `highwater_recovery` to `functions` in `host.json`, or remove that list",
            "add `highwater_status` to `functions` in `host.json`, or remove that list",
        ],
    ),
    (
        "allow_list_other",
        &[
            "add `highwater_recovery` to `functions` in `host.json`, or remove that list",
            "add `orders` to `functions` in `host.json`, or remove that list",
        ],
    ),
    (
        "env_jobhost",
        &[
            "remove `AzureFunctionsJobHost__functions__0`, or name `highwater_recovery` in another setting of that list",
            "remove `AzureFunctionsJobHost__functions__0`, or name `orders` in another setting of that list",
        ],
    ),
    ("arguments", &["leave `arguments` and `workerArguments` empty"]),
    ("arguments_bad", &["leave `arguments` and `workerArguments` empty"]),
    ("http_worker", &["rename `httpWorker` in `host.json` to `customHandler`"]),
    ("configuration_source", &["remove `configurationSource`"]),
    ("script_file", &["remove `scriptFile`"]),
    ("wrong_type", &["set `type` to `timerTrigger`, or remove the function's folder"]),
    ("queue_type", &["set `type` to `timerTrigger`, or remove the function's folder"]),
    ("second_bad_folder", &["set `type` to `timerTrigger`, or remove the function's folder"]),
    ("empty_bindings", &["add a `timerTrigger` to `bindings`, or remove the function's folder"]),
    ("folder_name_host", &["rename the folder"]),
    ("folder_case_twice", &["rename one of them"]),
    ("binding_name_bad", &["set `name` to `timer`"]),
    ("schedule_invalid", &["change the field `a`, for example to `0`"]),
    ("schedule_seconds_60", &["change the field `60`, for example to `0`"]),
    ("schedule_dow7", &["change the field `7`, for example to `0`"]),
    ("schedule_never", &["choose a date that exists"]),
    ("schedule_question", &["change the field `?`, for example to `*`"]),
    ("schedule_macro", &["write six fields, seconds first, such as `*/15 * * * * *`"]),
    (
        "schedule_mixed",
        &["put all six fields into one setting, and write its name between two `%`"],
    ),
    ("schedule_absent", &["set `schedule` to six fields, seconds first, such as `*/15 * * * * *`"]),
    (
        "two_triggers",
        &["leave one `timerTrigger` in `bindings`; another timer is another function"],
    ),
    ("host_version_missing", &["write `\"version\": \"2.0\"`"]),
    ("host_trailing_comma", &["correct the JSON there"]),
    ("not_executable", &["run `chmod +x ROOT/handler`"]),
    ("no_handler", &["run `install -m 755 PROGRAM ROOT/handler`"]),
    (
        "timeout_too_small",
        &["set `functionTimeout` to a time of at least a second, such as `00:05:00`"],
    ),
];

/// Rejected by the recording for reasons that a user may want, or for lack of a network.
const FINE: [&str; 2] = ["route_prefix_empty", "extension_bundle"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_recorded_app_gets_the_verdict_of_the_host() {
    let recorded = data::json("discovery.json");
    let mut bench = with_orders().await;
    let plain = bench.env.clone();
    let variants = recorded["variants"].as_array().unwrap();
    assert!(variants.len() > 40);
    for variant in variants {
        let name = variant["name"].as_str().unwrap();
        let root = tempfile::tempdir().unwrap();
        lay_out(root.path(), &recorded["base"], &variant["change"]);
        bench.env.clone_from(&plain);
        for (setting, value) in variant["change"]["settings"].as_object().into_iter().flatten() {
            bench.set_env(setting, value.as_str().unwrap());
        }
        let found = validate(&bench, root.path()).await;
        let of = |level: &str| of(&found, level);
        let warned = WARNED.iter().find(|(of, _)| *of == name).map(|(_, text)| *text);
        let is_refused = !FINE.contains(&name) && is_refused(&variant["host"]);
        assert_eq!(!of("error").is_empty(), is_refused, "{name}: {found:#?}");
        let fixes = FIXES.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, fixes)| fixes);
        assert_eq!(fixes_of(&found, root.path()), fixes, "{name}");
        match (warned, &of("warning")[..]) {
            (None, []) => {}
            (Some(text), [finding_list]) => {
                assert!(finding_list.contains(text), "{name}: {finding_list}");
            }
            (warned, finding_list) => panic!("{name}: {warned:?}, and said is {finding_list:?}"),
        }
    }
}

/// Cases that §11 of the host's record names besides the recorded apps: a value of `host.json` or of the
/// function, or a setting; the finding, and its fix.
const NAMED: &[(&str, &str, &str, &str, &str, &str)] = &[
    ("host", "/version", r#""1.0""#, "error", "`version` must be", "write `\"version\": \"2.0\"`"),
    (
        "host",
        "/functionTimeout",
        r#""soon""#,
        "error",
        "`functionTimeout` is `soon`",
        "set `functionTimeout` to a time",
    ),
    (
        "host",
        "/customHandler/description/defaultExecutablePath",
        r#""bin/handler""#,
        "error",
        "`customHandler.description.defaultExecutablePath` is `bin/handler`",
        "set `customHandler.description.defaultExecutablePath` to `handler`",
    ),
    (
        "host",
        "/customHandler/description/workerArguments",
        r#"["tick"]"#,
        "error",
        "starts the program with `tick`",
        "leave `arguments` and `workerArguments` empty",
    ),
    (
        "host",
        "/customHandler/description/workingDirectory",
        r#""bin""#,
        "error",
        "`bin`, and the program is not there",
        "leave it empty",
    ),
    (
        "host",
        "/customHandler/enableForwardingHttpRequest",
        "true",
        "error",
        "does not receive its invocations",
        "set `customHandler.enableForwardingHttpRequest` in `host.json` to `false`",
    ),
    (
        "host",
        "/retry",
        r#"{"strategy":"fixedDelay"}"#,
        "error",
        "`retry.maxRetryCount`",
        "set `retry.maxRetryCount` to a number from 0, or to -1 for no limit",
    ),
    (
        "host",
        "/retry",
        r#"{"strategy":"often","maxRetryCount":3}"#,
        "error",
        "`retry.strategy` is `often`",
        "set `retry.strategy` to `fixedDelay` or `exponentialBackoff`",
    ),
    (
        "host",
        "/singleton/listenerLockPeriod",
        r#""00:02:00""#,
        "error",
        "listenerLockPeriod",
        "write a time from 15 s to 60 s, such as `00:01:00`",
    ),
    (
        "host",
        "/singleton/listenerLockRecoveryPollingInterval",
        r#""00:00:05""#,
        "error",
        "listenerLockRecoveryPollingInterval",
        "write a time of 15 s or more, such as `00:00:15`",
    ),
    (
        "highwater_status",
        "/bindings/0/route",
        r#""ops/{view?}""#,
        "warning",
        "the status page is at `ops/page` below the app's prefix",
        "set `route` to `status/{view?}`, or open the page at its new address",
    ),
    (
        "highwater_status",
        "/bindings/0/route",
        r#""ops""#,
        "warning",
        "the status page has no address",
        "set `route` to `status/{view?}`",
    ),
    (
        "highwater_status",
        "/bindings/0/route",
        r#""admin/{view?}""#,
        "error",
        "`admin` is reserved by the host",
        "set `route` to `status/{view?}`",
    ),
    (
        "highwater_status",
        "/bindings",
        r#"[{"name":"request","type":"httpTrigger","direction":"in","authLevel":"function","methods":["get"],"route":"status/{view?}"}]"#,
        "error",
        "no `http` output",
        r#"add `{ "name": "res", "type": "http", "direction": "out" }` to `bindings`"#,
    ),
    (
        "highwater_status",
        "/bindings",
        r#"[{"name":"res","type":"http","direction":"out"}]"#,
        "error",
        "no `httpTrigger`",
        r#""type": "httpTrigger", "direction": "in", "authLevel": "function""#,
    ),
    (
        "highwater_status",
        "/bindings",
        r#"[{"name":"res","type":"http","direction":"out"},{"name":"request","type":"httpTrigger","direction":"in","authLevel":"function","methods":["get"],"route":"status/{view?}"}]"#,
        "",
        "",
        "",
    ),
    (
        "host",
        "/logging/logLevel/Function",
        r#""Warning""#,
        "warning",
        "alerts need them",
        "add `\"Function.*.User\": \"Information\"`",
    ),
    (
        "host",
        "/logging/logLevel/Host.Function.Console",
        r#""Warning""#,
        "warning",
        "the lines of the process (start, stop, retries, late ticks) are not shown",
        "write `Information`",
    ),
    (
        "orders",
        "/retry",
        r#"{"strategy":"fixedDelay","maxRetryCount":3}"#,
        "error",
        "`retry.delayInterval`",
        "set `retry.delayInterval` to a time such as `00:00:05`",
    ),
    (
        "orders",
        "/retry",
        r#"{"strategy":"exponentialBackoff","maxRetryCount":3}"#,
        "error",
        "`retry.minimumInterval` and `retry.maximumInterval`",
        "set both to times in ascending order, such as `00:00:05` and `00:05:00`",
    ),
    (
        "orders",
        "/bindings/0/direction",
        r#""out""#,
        "error",
        "the `direction` of the binding is `out`",
        "set `direction` to `in`",
    ),
    (
        "orders",
        "/bindings/0/schedule",
        r#""%A%B%""#,
        "error",
        "the schedule is `%A%B%`",
        "write the name of one setting between two `%`",
    ),
    (
        "setting",
        "ORDERS_SCHEDULE",
        "",
        "error",
        "`ORDERS_SCHEDULE` with its schedule is not set",
        "set `ORDERS_SCHEDULE` to six fields, seconds first, such as `*/15 * * * * *`",
    ),
    (
        "setting",
        "ORDERS_SCHEDULE",
        "0 0 0 30 2 *",
        "error",
        "no such date exists",
        "in the setting `ORDERS_SCHEDULE`, choose a date that exists",
    ),
    (
        "setting",
        "AzureWebJobs.orders.Disabled",
        "true",
        "error",
        "turns this function off",
        "remove the setting `AzureWebJobs.orders.Disabled`",
    ),
    (
        "setting",
        "azurewebjobs_ORDERS_disabled",
        "1",
        "error",
        "turns this function off",
        "remove the setting `azurewebjobs_ORDERS_disabled`",
    ),
    (
        "setting",
        "AzureWebJobs__orders__Disabled",
        "true",
        "warning",
        "has no effect",
        "write `AzureWebJobs.orders.Disabled`",
    ),
    ("setting", "AzureWebJobs.orders.Disabled", "false", "", "", ""),
    (
        "setting",
        "AzureWebJobs.highwater_status.Disabled",
        "true",
        "warning",
        "turns this function off",
        "remove the setting `AzureWebJobs.highwater_status.Disabled`",
    ),
    (
        "setting",
        "AzureFunctionsJobHost__functionTimeout",
        "00:00:00",
        "error",
        "`00:00:00`",
        "set `AzureFunctionsJobHost__functionTimeout` to a time of at least a second",
    ),
    (
        "setting",
        "AzureFunctionsJobHost_functionTimeout",
        "00:10:00",
        "warning",
        "two underscores",
        "write `AzureFunctionsJobHost__functionTimeout`",
    ),
    (
        "setting",
        "SqlConnection",
        "Server=tcp:127.0.0.1,1;User ID=u;Password=hunter2",
        "warning",
        "names no database",
        "add `Database=NAME`",
    ),
    (
        "setting",
        "HIGHWATER_POLLERS__ORDERS__SOURCE__TABLE",
        "x",
        "warning",
        "two underscores",
        "write `HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE`",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_errors_are_reported_with_a_matching_fix() {
    let base = &data::json("discovery.json")["base"];
    let mut bench = with_orders().await;
    let plain = bench.env.clone();
    for (place, path, value, level, text, fix) in NAMED {
        let root = tempfile::tempdir().unwrap();
        let mut change = json!({});
        bench.env.clone_from(&plain);
        if *place == "setting" {
            bench.set_env(path, value);
        } else {
            let function = format!("{place}/function.json");
            let file = if *place == "host" { "host.json" } else { &function };
            let mut json: Json = serde_json::from_str(base[file].as_str().unwrap()).unwrap();
            let (parent, name) = path.rsplit_once('/').unwrap();
            if parent == "/singleton" {
                json["singleton"] = json!({});
            }
            json.pointer_mut(parent).unwrap()[name] = serde_json::from_str(value).unwrap();
            change["files"][file] = json.to_string().into();
        }
        lay_out(root.path(), base, &change);
        let found = validate(&bench, root.path()).await;
        let finding_list: Vec<&Json> =
            found.iter().filter(|finding| finding["level"] != "ok").collect();
        match finding_list[..] {
            [] => assert_eq!(*level, "", "{path}"),
            [one] => {
                let (found, advised) = (one["found"].as_str(), one["fix"].as_str());
                assert_eq!(one["level"], *level, "{path}: {one}");
                assert!(found.unwrap().contains(text), "{path}: {one}");
                assert!(advised.unwrap().contains(fix), "{path}: {one}");
            }
            _ => panic!("{path}: {finding_list:#?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_for_a_missing_program_runs_as_printed_and_changes_nothing_else() {
    let base = &data::json("discovery.json")["base"];
    let bench = with_orders().await;
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("it's (mine)");
    lay_out(&root, base, &json!({"removed": ["handler"]}));
    // Edited since it was laid out.
    let edited = format!("{} ", base["host.json"].as_str().unwrap());
    std::fs::write(root.join("host.json"), &edited).unwrap();
    let found = validate(&bench, &root).await;
    let errors: Vec<&Json> = found.iter().filter(|finding| finding["level"] == "error").collect();
    let [missing] = errors[..] else { panic!("{errors:#?}") };
    let fix = missing["fix"].as_str().unwrap();
    let command = fix.strip_prefix("run `").and_then(|rest| rest.strip_suffix('`')).unwrap();
    let ended = tokio::process::Command::new("sh").args(["-c", command]).status().await.unwrap();
    assert!(ended.success(), "{command}");
    let found = validate(&bench, &root).await;
    assert!(found.iter().all(|finding| finding["level"] != "error"), "{found:#?}");
    assert_eq!(std::fs::read_to_string(root.join("host.json")).unwrap(), edited);
}

async fn with_orders() -> Bench {
    let mut bench = Bench::new().await;
    for (name, value) in std::mem::take(&mut bench.env) {
        bench.set_env(&name.replace("__NIGHTLY__", "__ORDERS__"), &value);
    }
    bench.set_env("ORDERS_SCHEDULE", "*/5 * * * * *");
    bench
}

async fn validate(bench: &Bench, root: &Path) -> Vec<Json> {
    let from = root.to_str().unwrap();
    let result = bench.command(&["validate", "--from", from, "--output", "json"]).await;
    serde_json::from_str(&result.data).unwrap()
}

/// Returns the fixes of errors, with `ROOT` for the folder and `PROGRAM` for the program under test.
fn fixes_of(found: &[Json], root: &Path) -> Vec<String> {
    let errors = found.iter().filter(|finding| finding["level"] == "error");
    let fix = |finding: &Json| finding["fix"].as_str().map(str::to_owned);
    errors
        .filter_map(fix)
        .map(|fix| fix.replace(root.to_str().unwrap(), "ROOT").replace(PROGRAM, "PROGRAM"))
        .collect()
}

fn of(found: &[Json], level: &str) -> Vec<String> {
    let found = found.iter().filter(|finding| finding["level"] == level);
    found.map(|finding| finding["found"].to_string()).collect()
}

/// Whether the host does not start, a function is missing or dead, or the program is never reached.
fn is_refused(host: &Json) -> bool {
    let says = host["says"].as_array().into_iter().flatten();
    let errors = says.filter(|line| line.as_str().unwrap().starts_with("[Error]")).count();
    let is = |field: &str| host[field] == true;
    let all_run = is("starts") && is("handler_answers") && is("orders_runs_by_its_timer");
    !all_run
        || errors > 0
        || host["functions_loaded"].as_i64() < Some(3)
        || host["status_page"] != 200
}

fn lay_out(root: &Path, base: &Json, change: &Json) {
    std::fs::create_dir_all(root).unwrap();
    symlink(PROGRAM, root.join("handler")).unwrap();
    let files = [base, &change["files"]].into_iter().filter_map(Json::as_object);
    for (name, text) in files.flatten() {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text.as_str().unwrap()).unwrap();
    }
    for name in change["removed"].as_array().into_iter().flatten() {
        std::fs::remove_file(root.join(name.as_str().unwrap())).unwrap();
    }
    for (name, mode) in change["modes"].as_object().into_iter().flatten() {
        let mode = mode.as_str().and_then(|mode| mode.strip_prefix("0o")).unwrap();
        let mode = u32::from_str_radix(mode, 8).unwrap();
        // Not that of the program itself.
        std::fs::remove_file(root.join(name)).unwrap();
        std::fs::write(root.join(name), "").unwrap();
        std::fs::set_permissions(root.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
}
