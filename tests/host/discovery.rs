//! What `validate` says of an app, beside what the real host did with it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::bench::{Bench, PROGRAM};
use crate::data;

/// What is warned of.
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

/// Refused by the recording for what somebody may want, or for want of a network.
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
        match (warned, &of("warning")[..]) {
            (None, []) => {}
            (Some(text), [told]) => assert!(told.contains(text), "{name}: {told}"),
            (warned, told) => panic!("{name}: {warned:?}, and said is {told:?}"),
        }
    }
}

/// What §11 of the host's record names beside the recorded apps: a value of `host.json` or of the function, or a
/// setting, and what is said of it.
const NAMED: [(&str, &str, &str, &str, &str); 19] = [
    ("host", "/version", r#""1.0""#, "error", "`version` must be"),
    ("host", "/functionTimeout", r#""soon""#, "error", "`functionTimeout` is `soon`"),
    (
        "host",
        "/customHandler/description/workerArguments",
        r#"["tick"]"#,
        "error",
        "starts the program with `tick`",
    ),
    (
        "host",
        "/customHandler/description/workingDirectory",
        r#""bin""#,
        "error",
        "`bin`, and the program is not there",
    ),
    (
        "host",
        "/customHandler/enableForwardingHttpRequest",
        "true",
        "error",
        "does not get its calls",
    ),
    ("host", "/retry", r#"{"strategy":"fixedDelay"}"#, "error", "maxRetryCount"),
    ("host", "/singleton/listenerLockPeriod", r#""00:02:00""#, "error", "listenerLockPeriod"),
    ("host", "/logging/logLevel/Function", r#""Warning""#, "warning", "alerts read them"),
    ("host", "/logging/logLevel/Host.Function.Console", r#""Warning""#, "warning", "are not shown"),
    (
        "orders",
        "/retry",
        r#"{"strategy":"fixedDelay","maxRetryCount":3}"#,
        "error",
        "delayInterval",
    ),
    ("setting", "AzureWebJobs.orders.Disabled", "true", "error", "turns this function off"),
    ("setting", "azurewebjobs_ORDERS_disabled", "1", "error", "turns this function off"),
    ("setting", "AzureWebJobs__orders__Disabled", "true", "warning", "has no effect"),
    ("setting", "AzureWebJobs.orders.Disabled", "false", "", ""),
    (
        "setting",
        "AzureWebJobs.highwater_status.Disabled",
        "true",
        "warning",
        "turns this function off",
    ),
    ("setting", "AzureFunctionsJobHost__functionTimeout", "00:00:00", "error", "`00:00:00`"),
    (
        "setting",
        "AzureFunctionsJobHost_functionTimeout",
        "00:10:00",
        "warning",
        "`AzureFunctionsJobHost__functionTimeout`",
    ),
    (
        "setting",
        "SqlConnection",
        "Server=tcp:127.0.0.1,1;User ID=u;Password=hunter2",
        "warning",
        "names no database",
    ),
    ("setting", "HIGHWATER_POLLERS__ORDERS__SOURCE__TABLE", "x", "warning", "two underscores"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_host_s_record_names_is_told() {
    let base = &data::json("discovery.json")["base"];
    let mut bench = with_orders().await;
    let plain = bench.env.clone();
    for (place, path, value, level, text) in NAMED {
        let root = tempfile::tempdir().unwrap();
        let mut change = json!({});
        bench.env.clone_from(&plain);
        if place == "setting" {
            bench.set_env(path, value);
        } else {
            let file = if place == "host" { "host.json" } else { "orders/function.json" };
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
        let told: Vec<(&str, String)> = ["error", "warning"]
            .into_iter()
            .flat_map(|level| of(&found, level).into_iter().map(move |told| (level, told)))
            .collect();
        let fixes = found.iter().filter_map(|finding| finding["fix"].as_str()).collect::<String>();
        match &told[..] {
            [] => assert_eq!(level, "", "{path}"),
            [(seen, told)] => {
                assert!(
                    *seen == level && format!("{told}{fixes}").contains(text),
                    "{path}: {found:#?}"
                );
            }
            _ => panic!("{path}: {told:#?}"),
        }
    }
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
    let said = bench.command(&["validate", "--from", from, "--output", "json"]).await;
    serde_json::from_str(&said.data).unwrap()
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
