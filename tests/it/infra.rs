//! What is deployed, held to the code: settings, functions, alerts and rights in the database.
//!
//! The Bicep itself is checked by `.ci/bicep/run`. Here it is read as text, with `x` in the place of what only
//! a deployment knows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use highwater::config::{Config, Fallback, SETTINGS, parse_duration};
use serde_json::Value as Json;

use crate::settings::{example, holds, read};

/// Settings that the Functions host reads.
const OF_THE_HOST: [&str; 5] = [
    "AzureWebJobsStorage__accountName",
    "AzureWebJobsStorage__credential",
    "AzureWebJobsStorage__clientId",
    "APPLICATIONINSIGHTS_CONNECTION_STRING",
    "APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
];

/// Settings that Flex Consumption refuses or that break a deployment there.
/// <https://learn.microsoft.com/azure/azure-functions/functions-app-settings#flex-consumption-plan-deprecations>
const REFUSED_BY_FLEX: [&str; 11] = [
    "FUNCTIONS_WORKER_RUNTIME",
    "FUNCTIONS_WORKER_RUNTIME_VERSION",
    "FUNCTIONS_EXTENSION_VERSION",
    "WEBSITE_RUN_FROM_PACKAGE",
    "WEBSITE_CONTENTAZUREFILECONNECTIONSTRING",
    "WEBSITE_CONTENTSHARE",
    "WEBSITE_TIME_ZONE",
    "WEBSITE_VNET_ROUTE_ALL",
    "SCM_DO_BUILD_DURING_DEPLOYMENT",
    "ENABLE_ORYX_BUILD",
    "TZ",
];

pub(crate) fn json(name: &str) -> Json {
    serde_json::from_str(&read(name)).unwrap()
}

/// Names of the folders of functions that run a poller.
fn functions() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("function-definitions");
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let ours = [highwater::recovery::FUNCTION, highwater::page::FUNCTION];
    names.filter(|name| !ours.contains(&name.as_str())).collect()
}

/// Name of the setting with a function's schedule.
fn schedule(function: &str) -> String {
    let definition = json(&format!("function-definitions/{function}/function.json"));
    let text = definition["bindings"][0]["schedule"].as_str().unwrap().to_owned();
    let name = text.strip_prefix('%').and_then(|rest| rest.strip_suffix('%'));
    name.unwrap_or_else(|| panic!("the schedule of `{function}` is `{text}`, not a setting"))
        .to_owned()
}

/// What an expression of Bicep is once deployed.
fn value(expression: &str, store: &str) -> String {
    match expression {
        "appName" => "shop".to_owned(),
        "stateStore" => store.to_owned(),
        "stateContainerName" => "db-state".to_owned(),
        text => {
            let mut value = text.trim_matches('\'').to_owned();
            while let Some(start) = value.find("${") {
                let end = start + value[start..].find('}').unwrap();
                value.replace_range(start..=end, "x");
            }
            value
        }
    }
}

/// The settings in the object `variable` of functions.bicep.
fn block(variable: &str, store: &str) -> BTreeMap<String, String> {
    let text = read("infra/app/functions.bicep");
    let (_, rest) = text.split_once(&format!("var {variable} = {{\n")).unwrap();
    let (inside, _) = rest.split_once("\n}").unwrap();
    let pairs = inside.lines().map(|line| line.trim().split_once(": ").unwrap());
    pairs.map(|(name, text)| (name.to_owned(), value(text, store))).collect()
}

/// The settings that come out of main.parameters.json.
fn parameters() -> BTreeMap<String, String> {
    let file = json("infra/main.parameters.json");
    serde_json::from_value(file["parameters"]["settings"]["value"].clone()).unwrap()
}

/// All settings of a deployed app.
fn deployed(store: &str) -> BTreeMap<String, String> {
    let mut settings = block("hostSettings", store);
    settings.extend(block("commonSettings", store));
    settings.extend(block(
        if store == "blob" { "blobStateSettings" } else { "sqlStateSettings" },
        store,
    ));
    settings.extend(parameters());
    settings
}

#[test]
fn the_settings_that_are_deployed_are_good_and_every_function_has_a_poller_and_a_schedule() {
    for store in ["blob", "sql"] {
        let settings = deployed(store);
        let config =
            Config::from_vars(&settings).unwrap_or_else(|error| panic!("{store}: {error}"));
        for function in functions() {
            assert!(config.poller_of_function(&function).is_some(), "no poller for `{function}`");
            let schedule = schedule(&function);
            assert!(parameters().contains_key(&schedule), "`{schedule}` is not deployed");
        }
    }
    let named = &json("infra/main.parameters.json")["parameters"]["functionNames"]["value"];
    let named: BTreeSet<String> = serde_json::from_value(named.clone()).unwrap();
    assert_eq!(named, functions(), "functionNames of main.parameters.json");
}

#[test]
fn nothing_is_deployed_that_nobody_reads() {
    let schedules: BTreeSet<String> = functions().iter().map(|name| schedule(name)).collect();
    for store in ["blob", "sql"] {
        for name in deployed(store).keys() {
            // Of its own prefix the code refuses what it does not know; see above.
            let read = name.starts_with("HIGHWATER__")
                || OF_THE_HOST.contains(&name.as_str())
                || schedules.contains(name)
                || name == "SqlConnection"
                || (store == "blob" && name.starts_with("StateStorage__"));
            assert!(read, "nobody reads `{name}`");
            assert!(!REFUSED_BY_FLEX.contains(&name.as_str()), "Flex Consumption refuses `{name}`");
        }
    }
}

#[test]
fn a_template_names_no_setting_that_flex_consumption_refuses() {
    for file in ["infra/main.bicep", "infra/app/functions.bicep", "infra/main.parameters.json"] {
        let text = read(file);
        let words: BTreeSet<&str> =
            text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        for refused in REFUSED_BY_FLEX {
            assert!(!words.contains(refused), "{file} names `{refused}`");
        }
    }
}

#[test]
fn the_example_and_the_deployment_speak_of_the_same_settings() {
    let local = ["FUNCTIONS_WORKER_RUNTIME", "AzureWebJobsStorage"];
    let deployed = deployed("blob");
    for name in example().keys().filter(|name| !local.contains(&name.as_str())) {
        assert!(deployed.contains_key(name), "`{name}` is in the example, and is not deployed");
    }
    for name in parameters().keys() {
        assert!(example().contains_key(name), "`{name}` is deployed, and is not in the example");
    }
}

#[test]
fn every_other_setting_is_listed_as_optional() {
    let mut set = deployed("blob");
    set.extend(deployed("sql"));
    let others = SETTINGS.iter().filter(|setting| {
        let name = setting.name_for(Some("ORDERS"));
        !set.contains_key(&name)
    });
    let rows = others.map(|setting| {
        let default = match setting.fallback {
            Fallback::Required => "required".to_owned(),
            Fallback::Text(text) => format!("`{text}`"),
            Fallback::Words(words) => words.to_owned(),
        };
        format!("| `{}` | {default} |\n", setting.name)
    });
    let table = "| setting | default |\n|---|---|\n".to_owned() + &rows.collect::<String>();
    holds("infra/README.md", "optional", &table);
}

#[test]
fn the_host_and_the_code_agree_on_program_time_out_and_what_is_kept_of_logs() {
    let host = json("host.json");
    assert_eq!(host["customHandler"]["description"]["defaultExecutablePath"], "handler");
    let parts: Vec<u64> = host["functionTimeout"]
        .as_str()
        .unwrap()
        .split(':')
        .map(|part| part.parse().unwrap())
        .collect();
    let timeout = parts.iter().fold(0, |seconds, part| seconds * 60 + part);
    let setting = SETTINGS.iter().find(|each| each.name == "HIGHWATER__FUNCTION_TIMEOUT").unwrap();
    let Fallback::Text(default) = setting.fallback else { panic!("no default") };
    let deployed = deployed("blob").remove(setting.name).unwrap_or_else(|| default.to_owned());
    assert_eq!(parse_duration(&deployed).unwrap().as_secs(), timeout);
    // Alerts on single lines need them all.
    let logging = &host["logging"];
    let kept =
        logging["applicationInsights"]["samplingSettings"]["excludedTypes"].as_str().unwrap();
    assert!(kept.split(';').any(|kind| kind == "Trace"), "{kept}");
    assert_eq!(logging["logLevel"]["Host.Function.Console"], "Information");
    assert_eq!(logging["logLevel"]["Function.*.User"], "Information");
    // The host's own two lines of each call say no more than its record of the request.
    assert_eq!(logging["logLevel"]["Function"], "Warning");
    // It would put hundreds of the host's own lines on a person's terminal.
    assert!(logging["logLevel"]["default"].is_null(), "{logging}");
}

/// Texts of the crate's own sources, without tests.
pub(crate) fn code(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            text += &code(&path);
        } else if path.extension().is_some_and(|end| end == "rs") && name != "tests.rs" {
            text += &fs::read_to_string(path).unwrap();
        }
    }
    text
}

/// The queries of the workbook, one a line.
pub(crate) fn queries() -> String {
    let items = json("infra/app/workbook.json")["items"].take();
    let queries =
        items.as_array().unwrap().iter().filter_map(|item| item["content"]["query"].as_str());
    queries.collect::<Vec<_>>().join("\n")
}

/// Names of events that a query of the alerts or of the workbook asks for.
fn events_asked_for() -> BTreeSet<String> {
    let text = read("infra/app/alerts.bicep") + &queries();
    let lists = text.split("event in (").skip(1).map(|rest| rest.split(')').next().unwrap());
    let single = text.split("event == \"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let listed = lists.flat_map(|list| list.split(", ").map(|name| name.trim_matches('"')));
    listed.chain(single).map(str::to_owned).collect()
}

#[test]
fn alerts_and_workbook_name_only_events_that_are_logged_at_a_level_that_is_shown() {
    let code = code(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src"));
    let squeezed: String = code.split_whitespace().collect();
    let outcomes = read("src/poller/outcome.rs");
    let events = events_asked_for();
    assert!(events.len() > 10 && events.contains("handler_failed"), "{events:?}");
    for event in events {
        let logged = ["error", "warn", "info", "$level"]
            .iter()
            .any(|level| squeezed.contains(&format!("{level}!(event=\"{event}\"")));
        // The events with which a tick ends stand in the one table of ends.
        let row = outcomes
            .lines()
            .find(|line| line.starts_with("///") && line.contains(&format!("| `{event}` |")));
        let ends = row.is_some_and(|row| !row.contains("| DEBUG |"));
        assert!(logged || ends, "no line of the code logs `{event}` so that it is shown");
    }
}

#[test]
fn alerts_look_for_what_an_invocation_answers() {
    let parts = ["observe.rs", "observe/end.rs", "observe/hindrance.rs"];
    let observe: String = parts.map(|part| read(&format!("src/poller/{part}"))).concat();
    let alerts = read("infra/app/alerts.bicep");
    for (sought, made) in [
        (": nothing new", "\"nothing new\""),
        (": committed ", "\"committed {rows} in"),
        (", more to do", "\", more to do\".to_owned()"),
        (": skipped: ", "\"skipped: "),
        (": paused by ", "\"paused by {by}"),
    ] {
        let sought = format!("message contains \"{sought}\"");
        assert!(alerts.contains(&sought), "{sought}");
        assert!(observe.contains(made), "no tick answers {made}");
    }
    assert!(observe.contains("\"poller `{}`: {what} ("));
}

fn run(command: &mut Command) -> Output {
    command.env_clear().output().unwrap()
}

/// Rights that `grant.sql` gives on the tables of a variable.
fn granted(variable: &str) -> BTreeSet<String> {
    let text = read("infra/sql/grant.sql");
    let end = format!("', N'$({variable})');");
    let lines = text.lines().filter_map(|line| line.strip_suffix(end.as_str()));
    lines
        .map(|line| line.strip_prefix("INSERT INTO @rights VALUES (N'").unwrap().to_owned())
        .collect()
}

#[test]
fn the_rights_that_are_granted_are_the_ones_that_the_commands_print() {
    for (command, variable) in [
        ("fence", "FENCE_TABLE"),
        ("ledger", "LEDGER_TABLE"),
        ("state", "STATE_TABLE"),
        ("journal", "JOURNAL_TABLE"),
    ] {
        let output = run(Command::new(env!("CARGO_BIN_EXE_highwater")).args(["ddl", command]));
        let text = String::from_utf8(output.stdout).unwrap();
        let printed: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("GRANT ")?.split(" ON ").next())
            .map(str::to_owned)
            .collect();
        assert!(!printed.is_empty());
        assert_eq!(granted(variable), printed, "{variable}");
    }
    let rights = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(granted("SOURCE_TABLES"), rights(&["SELECT"]));
    assert_eq!(granted("TRACKED_TABLES"), rights(&["VIEW CHANGE TRACKING"]));
    assert_eq!(granted("TARGET_TABLES"), rights(&["DELETE", "INSERT", "SELECT", "UPDATE"]));
}

/// Runs `grant.sh` with a `sqlcmd` that only writes down what it was called with.
fn grant(settings: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let sqlcmd = folder.path().join("sqlcmd");
    fs::write(&sqlcmd, "#!/bin/sh\nfor word in \"$@\"; do printf '%s\\n' \"$word\"; done\n")
        .unwrap();
    fs::set_permissions(&sqlcmd, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("infra/sql/grant.sh");
    let mut command = Command::new("/bin/sh");
    command.arg(script).env_clear().env("PATH", path);
    command.env("SQL_SERVER_FQDN", "shop.example").env("SQL_DATABASE", "shop");
    command.env("IDENTITY_NAME", "id-shop").env("IDENTITY_PRINCIPAL_ID", "1111");
    command.envs(settings.iter().copied()).output().unwrap()
}

#[test]
fn the_grants_are_asked_for_as_who_is_logged_in_and_nothing_else_is() {
    let output = grant(&[("SOURCE_TABLES", "dbo.orders;dbo.customers")]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.lines().collect();
    assert_eq!(
        words[..5],
        ["-S", "tcp:shop.example,1433", "-d", "shop", "--authentication-method"]
    );
    for expected in
        ["SOURCE_TABLES=dbo.orders;dbo.customers", "STATE_TABLE=none", "IDENTITY_NAME=id-shop"]
    {
        assert!(words.contains(&expected), "{text}");
    }
    assert!(!text.contains("demo.sql"), "{text}");
}

#[test]
fn what_could_become_part_of_a_statement_is_refused() {
    for bad in ["dbo.orders'--", "dbo.a,dbo.b", "dbo.$(x)", "dbo.my table"] {
        let output = grant(&[("SOURCE_TABLES", bad)]);
        assert_eq!(output.status.code(), Some(2), "{bad}");
        assert!(output.stdout.is_empty(), "{bad}: sqlcmd was run");
    }
    let output = grant(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("azd env set SOURCE_TABLES"));
}

#[test]
fn an_alert_tells_when_the_recovery_controller_is_silent() {
    let named = format!("union(functionNames, ['{}'])", highwater::recovery::FUNCTION);
    assert!(read("infra/app/alerts.bicep").contains(&named), "{named}");
}
