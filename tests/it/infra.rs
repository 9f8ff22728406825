//! The deployment, checked against the code: settings, functions, alerts and database permissions.
//!
//! The Bicep itself is checked by `.ci/bicep/run`. Here it is read as text, with `x` for values that only a
//! deployment knows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use highwater::config::{Config, Fallback, SETTINGS, parse_duration};
use serde_json::Value as Json;

use crate::settings::{example, holds, read};

/// Settings that the Functions host reads.
const OF_THE_HOST: [&str; 5] = [
    "AzureWebJobsStorage__blobServiceUri",
    "AzureWebJobsStorage__credential",
    "AzureWebJobsStorage__clientId",
    "APPLICATIONINSIGHTS_CONNECTION_STRING",
    "APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
];

/// Settings that Flex Consumption rejects or that break a deployment there.
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
    let folder = highwater_test_support::root().join("function-definitions");
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

/// Returns the deployed value of a Bicep expression.
fn value(expression: &str, store: &str) -> String {
    let of_parameter = parameters().remove(expression);
    match expression {
        "appName" => "shop".to_owned(),
        "stateStore" => store.to_owned(),
        "stateContainerName" => "db-state".to_owned(),
        _ if of_parameter.is_some() => of_parameter.unwrap(),
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

/// Returns the settings in the object `variable` of functions.bicep.
fn block(variable: &str, store: &str) -> BTreeMap<String, String> {
    let text = read("infra/app/functions.bicep");
    let (_, rest) = text.split_once(&format!("var {variable} = {{\n")).unwrap();
    let (inside, _) = rest.split_once("\n}").unwrap();
    let pairs = inside.lines().map(|line| line.trim().split_once(": ").unwrap());
    pairs
        .map(|(name, text)| {
            let name = name.trim_matches('\'').replace("${poller}", "HIGHWATER__POLLERS__ORDERS");
            (name, value(text, store))
        })
        .collect()
}

/// Values that a user has entered in azd, or set with `azd env set`.
const ANSWERS: [(&str, &str); 8] = [
    ("AZURE_ENV_NAME", "shop"),
    ("AZURE_LOCATION", "westeurope"),
    ("HANDLER_URL", "https://hooks.contoso.com/orders"),
    ("SOURCE_TABLE", "dbo.orders"),
    ("SOURCE_CURSOR", "version"),
    ("SOURCE_KEY", "id"),
    ("SOURCE_SQL_SERVER", "shop.database.windows.net"),
    ("SOURCE_SQL_DATABASE", "shop"),
];

/// Returns the parameters that azd would pass, as text: it replaces `${NAME}` and `${NAME=default}`, and
/// omits a parameter that is then empty and whose variable is not set, so that the template's default applies
/// or azd prompts.
/// <https://github.com/Azure/azure-dev/blob/main/cli/azd/pkg/infra/provisioning/bicep/bicep_provider.go>
fn resolved(answers: &BTreeMap<&str, &str>) -> BTreeMap<String, String> {
    let file = json("infra/main.parameters.json");
    let entries = file["parameters"].as_object().unwrap().iter();
    let resolve = |(name, entry): (&String, &Json)| {
        let Json::String(text) = &entry["value"] else {
            return Some((name.clone(), entry["value"].to_string()));
        };
        let inside = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).unwrap();
        let (variable, default) = inside.split_once('=').unwrap_or((inside, ""));
        let set = answers.get(variable).copied().filter(|text| !text.is_empty());
        let value = set.unwrap_or(default).to_owned();
        (!value.is_empty()).then(|| (name.clone(), value))
    };
    entries.filter_map(resolve).collect()
}

fn parameters() -> BTreeMap<String, String> {
    resolved(&ANSWERS.into())
}

/// Returns all settings of a deployed app.
fn deployed(store: &str) -> BTreeMap<String, String> {
    let state = if store == "blob" { "blobStateSettings" } else { "sqlStateSettings" };
    let blocks = ["hostSettings", "commonSettings", state, "pollerSettings"];
    blocks.into_iter().flat_map(|name| block(name, store)).collect()
}

#[test]
fn deployed_settings_are_valid_and_every_function_has_a_poller_and_a_schedule() {
    for store in ["blob", "sql"] {
        let settings = deployed(store);
        let config =
            Config::from_vars(&settings).unwrap_or_else(|error| panic!("{store}: {error}"));
        for function in functions() {
            let runs = config.pollers_by_function([function.as_str()].into_iter());
            let names = runs[function.as_str()].iter().map(|poller| poller.name.as_str());
            assert!(names.eq(["orders"]), "`{function}` runs {runs:?}");
            let schedule = schedule(&function);
            assert!(settings.contains_key(&schedule), "`{schedule}` is not deployed");
        }
    }
    let named = &json("infra/main.parameters.json")["parameters"]["functionNames"]["value"];
    let named: BTreeSet<String> = serde_json::from_value(named.clone()).unwrap();
    assert_eq!(named, functions(), "functionNames of main.parameters.json");
}

#[test]
fn every_deployed_setting_is_read() {
    let schedules: BTreeSet<String> = functions().iter().map(|name| schedule(name)).collect();
    for store in ["blob", "sql"] {
        for name in deployed(store).keys() {
            // The code rejects unknown settings with its own prefix; see above.
            let read = name.starts_with("HIGHWATER__")
                || OF_THE_HOST.contains(&name.as_str())
                || schedules.contains(name)
                || name == "SqlConnection"
                || (store == "blob" && name.starts_with("StateStorage__"));
            assert!(read, "`{name}` is unused");
            assert!(!REFUSED_BY_FLEX.contains(&name.as_str()), "Flex Consumption refuses `{name}`");
        }
    }
}

#[test]
fn templates_use_no_setting_rejected_by_flex_consumption() {
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
fn the_example_and_the_deployment_use_the_same_settings() {
    let local = ["FUNCTIONS_WORKER_RUNTIME", "AzureWebJobsStorage"];
    let deployed = deployed("blob");
    for name in example().keys().filter(|name| !local.contains(&name.as_str())) {
        assert!(deployed.contains_key(name), "`{name}` is in the example, and is not deployed");
    }
    for name in block("pollerSettings", "blob").keys() {
        assert!(example().contains_key(name), "`{name}` is deployed, and is not in the example");
    }
}

#[test]
fn azd_prompts_only_for_what_only_the_user_knows() {
    let main = read("infra/main.bicep");
    let known = resolved(&[("AZURE_ENV_NAME", "shop"), ("AZURE_LOCATION", "westeurope")].into());
    let declared = main.lines().filter_map(|line| line.strip_prefix("param "));
    let required = declared.filter(|line| !line.contains(" = "));
    let asked: Vec<&str> = required
        .map(|line| line.split(' ').next().unwrap())
        .filter(|name| !known.contains_key(*name))
        .collect();
    assert_eq!(asked, ["handlerUrl", "sourceTable", "sourceCursor", "sourceKey"]);
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
fn host_json_and_the_code_agree_on_program_timeout_and_logging() {
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
    // The host's own two lines per call add nothing to its record of the request.
    assert_eq!(logging["logLevel"]["Function"], "Warning");
    // It would print hundreds of the host's own lines on a terminal.
    assert!(logging["logLevel"]["default"].is_null(), "{logging}");
}

/// The sources of a crate, without tests.
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

/// The queries of the workbook, one per line.
pub(crate) fn queries() -> String {
    let items = json("infra/app/workbook.json")["items"].take();
    let queries =
        items.as_array().unwrap().iter().filter_map(|item| item["content"]["query"].as_str());
    queries.collect::<Vec<_>>().join("\n")
}

/// Names of the events in queries of the alerts or the workbook.
fn queried_events() -> BTreeSet<String> {
    let text = read("infra/app/alerts.bicep") + &queries();
    let lists = text.split("event in (").skip(1).map(|rest| rest.split(')').next().unwrap());
    let single = text.split("event == \"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let listed = lists.flat_map(|list| list.split(", ").map(|name| name.trim_matches('"')));
    listed.chain(single).map(str::to_owned).collect()
}

#[test]
fn alerts_and_workbook_use_only_events_logged_at_a_visible_level() {
    let code = code(&highwater_test_support::root().join("src"));
    let squeezed: String = code.split_whitespace().collect();
    let outcomes = read("src/engine/poller/outcome.rs");
    let events = queried_events();
    assert!(events.len() > 10 && events.contains("handler_failed"), "{events:?}");
    for event in events {
        let logged = ["error", "warn", "info", "$level"].iter().any(|level| {
            // The first arguments of `tick_event!` are the report and the level.
            let forms =
                [format!("{level}!(event=\"{event}\""), format!(",{level},event=\"{event}\"")];
            forms.iter().any(|form| squeezed.contains(form))
        });
        // The events at the end of a tick are in the table of outcomes.
        let row = outcomes
            .lines()
            .find(|line| line.starts_with("///") && line.contains(&format!("| `{event}` |")));
        let ends = row.is_some_and(|row| !row.contains("| DEBUG |"));
        assert!(logged || ends, "the code does not log `{event}` at a visible level");
    }
}

#[test]
fn alerts_match_the_result_of_an_invocation() {
    let parts = ["report.rs", "report/line.rs", "report/blocked.rs"];
    let report: String = parts.map(|part| read(&format!("src/engine/tick/{part}"))).concat();
    let alerts = read("infra/app/alerts.bicep");
    for (sought, made) in [
        (": nothing new", "\"nothing new"),
        (": committed ", "\"committed {rows} in"),
        (", more to do", "\", more to do\".to_owned()"),
        (": skipped: ", "\"skipped: "),
        (": paused by ", "\"paused by {by}"),
    ] {
        let sought = format!("message contains \"{sought}\"");
        assert!(alerts.contains(&sought), "{sought}");
        assert!(report.contains(made), "no tick returns {made}");
    }
    assert!(report.contains("\"poller `{}`: {what} ("));
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// Permissions that `grant.sql` grants on the tables of a variable.
fn granted(variable: &str) -> BTreeSet<String> {
    let text = read("infra/sql/grant.sql");
    let end = format!("', N'$({variable})');");
    let lines = text.lines().filter_map(|line| line.strip_suffix(end.as_str()));
    lines
        .map(|line| line.strip_prefix("INSERT INTO @rights VALUES (N'").unwrap().to_owned())
        .collect()
}

/// Built-in roles by their ids.
/// <https://learn.microsoft.com/azure/role-based-access-control/built-in-roles>
const ROLES: [(&str, &str); 3] = [
    ("b7e6dc6d-f1e8-4753-8033-0f276bb0955b", "Storage Blob Data Owner"),
    ("ba92f5b4-2d11-453d-a403-e96b0029c9fe", "Storage Blob Data Contributor"),
    ("3913510d-42f4-4e42-8a64-420c390055eb", "Monitoring Metrics Publisher"),
];

/// Returns identity, role and scope of each role assignment of a template, in the words of the table.
fn assigned(file: &str) -> BTreeSet<[String; 3]> {
    let text = read(file);
    let is_receiver = file.ends_with("receiver.bicep");
    let assignments = text.split("'Microsoft.Authorization/roleAssignments@").skip(1);
    let rights = assignments.map(|rest| {
        let body = rest.split("\n}\n").next().unwrap();
        let value = |key: &str| {
            let line = body.lines().find_map(|line| line.trim().strip_prefix(key));
            line.unwrap_or_else(|| panic!("no `{key}` in {body}")).trim().to_owned()
        };
        let role = value("roleDefinitionId:");
        let variable = role.rsplit(", ").next().unwrap().trim_end_matches(')').to_owned();
        let id = text.split(&format!("var {variable} = '")).nth(1).unwrap();
        let id = id.split('\'').next().unwrap();
        let (_, role) = ROLES.iter().find(|(known, _)| *known == id).unwrap();
        let identity = match (value("principalId:").as_str(), is_receiver) {
            ("identity.properties.principalId" | "identityPrincipalId", false) => {
                "the app's identity"
            }
            ("identity.properties.principalId", true) => "the receiver's identity",
            ("operatorObjectId", false) => "the deployer (`AZURE_PRINCIPAL_ID`)",
            (other, _) => panic!("{file}: {other}"),
        };
        let scope = match (value("scope:").as_str(), is_receiver) {
            ("hostAccount", false) => "the host's account",
            ("hostAccount", true) => "its own host's account",
            ("container", false) => "the state container",
            ("insights", _) => "the Application Insights component",
            (other, _) => panic!("{file}: {other}"),
        };
        [identity, role, scope].map(str::to_owned)
    });
    rights.collect()
}

#[test]
fn the_table_of_permissions_has_exactly_the_roles_that_the_templates_assign() {
    let mut in_templates = BTreeSet::new();
    for entry in fs::read_dir(highwater_test_support::root().join("infra/app")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if Path::new(&name).extension().is_some_and(|extension| extension == "bicep") {
            in_templates.extend(assigned(&format!("infra/app/{name}")));
        }
    }
    assert!(!read("infra/main.bicep").contains("roleAssignments"), "roles are in modules");
    let page = read("infra/README.md");
    assert_eq!(listed(&page), in_templates);
    assert_eq!(in_templates.len(), 6, "each role once: {in_templates:?}");
    // Any other role, scope or identity in the table is found too, even one that no template uses.
    let first = "| the app's identity | Storage Blob Data Owner | the host's account |";
    for other in [
        "| the app's identity | Contributor | the host's account |",
        "| the app's identity | Storage Blob Data Owner | the resource group |",
        "| the receiver's identity | Storage Blob Data Owner | the host's account |",
        "| a new identity | Storage Blob Data Reader | the host's account |",
    ] {
        assert_ne!(listed(&page.replacen(first, other, 1)), in_templates, "{other}");
        let more = page.replacen(first, &format!("{other} x |\n{first}"), 1);
        assert_ne!(listed(&more), in_templates, "{other}");
    }
}

/// Returns identity, role and scope of each row of the table of permissions that is about a role of Azure: all but those
/// about permissions in a database, and those of identities that the templates give nothing.
fn listed(page: &str) -> BTreeSet<[String; 3]> {
    const NOT_ASSIGNED: [&str; 3] =
        ["the deployer", "a Microsoft Entra administrator of the server", "no identity"];
    let table = page.split("| identity | role or permission").nth(1).unwrap();
    let table = table.split("\n\n").next().unwrap();
    // Without the rest of the header, and the line below it.
    let rows = table.lines().skip(2).filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, identity, role, scope, ..] = cells.as_slice() else { panic!("{line}") };
        let is_role = !role.starts_with('`') && !NOT_ASSIGNED.contains(identity);
        is_role.then(|| [*identity, *role, *scope].map(str::to_owned))
    });
    rows.collect()
}

#[test]
fn deployed_grants_match_the_printed_grants() {
    for (command, variable) in [
        ("fence", "FENCE_TABLE"),
        ("ledger", "LEDGER_TABLE"),
        ("state", "STATE_TABLE"),
        ("journal", "JOURNAL_TABLE"),
    ] {
        let output =
            run(Command::new(env!("CARGO_BIN_EXE_highwater")).args(["ddl", command]).env_clear());
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

/// The output of `sqlcmd --version`: go-sqlcmd, and that of the ODBC driver.
const GO_SQLCMD: &str = "Version: v1.8.2";
const ODBC_SQLCMD: &str = "Sqlcmd: '--version': Unknown Option. Enter '-?' for help.";

/// Runs a script of `infra` with fakes of the tools it calls, which only print their arguments.
fn script(name: &str, sqlcmd: &str, settings: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let words = "for word in \"$@\"; do printf '%s\\n' \"$word\"; done\n";
    for (tool, text) in [
        ("sqlcmd", format!("[ \"$1\" != --version ] || {{ echo \"{sqlcmd}\"; exit; }}\n{words}")),
        ("azd", words.to_owned()),
        ("curl", "echo 203.0.113.7\n".to_owned()),
    ] {
        let path = folder.path().join(tool);
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let script = highwater_test_support::root().join("infra").join(name);
    let mut command = Command::new("/bin/sh");
    command.arg(script).env_clear().env("PATH", path);
    command.envs(settings.iter().copied()).output().unwrap()
}

/// Runs `grant.sh` with the variables that azd passes after a deployment.
fn grant(settings: &[(&str, &str)]) -> Output {
    let outputs = [
        ("SQL_SERVER_FQDN", "shop.example"),
        ("SQL_DATABASE", "shop"),
        ("IDENTITY_NAME", "id-shop"),
        ("IDENTITY_CLIENT_ID", "1111"),
    ];
    script("sql/grant.sh", GO_SQLCMD, &[&outputs, settings].concat())
}

#[test]
fn grants_run_as_the_user_who_is_logged_in() {
    let output = grant(&[("SOURCE_TABLES", "dbo.orders;dbo.customers")]);
    assert!(output.status.success(), "{output:?}");
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
    // The table of the first poller is an output of the templates.
    let output = grant(&[("SOURCE_TABLE", "dbo.orders")]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("\nSOURCE_TABLES=dbo.orders\n"));
}

#[test]
fn grants_are_printed_ready_to_run_by_another_person() {
    let output = grant(&[("GRANT_SQL", "false"), ("SOURCE_TABLES", "dbo.orders;sales.[a-b]")]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("$("), "{text}");
    assert!(text.contains("(N'SELECT', N'dbo.orders;sales.[a-b]')"), "{text}");
    assert!(text.contains("CAST('1111' AS uniqueidentifier)"), "{text}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("in shop on shop.example"));
}

#[test]
fn the_odbc_sqlcmd_is_rejected_with_what_to_install() {
    let output = script("sql/grant.sh", ODBC_SQLCMD, &[]);
    assert_eq!(output.status.code(), Some(2));
    let check = |sqlcmd| {
        let settings =
            [("SOURCE_SQL_SERVER", "shop.database.windows.net"), ("SOURCE_SQL_DATABASE", "shop")];
        script("check.sh", sqlcmd, &settings)
    };
    assert!(check(GO_SQLCMD).status.success(), "{:?}", check(GO_SQLCMD));
    let refused = check(ODBC_SQLCMD);
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(
        text.contains("https://aka.ms/go-sqlcmd") && text.contains("GRANT_SQL false"),
        "{text}"
    );
}

#[test]
fn predictable_failures_are_rejected_before_anything_is_created() {
    let good = [
        ("SOURCE_SQL_SERVER", "shop.database.windows.net"),
        ("SOURCE_SQL_DATABASE", "shop"),
        ("AZURE_LOCATION", "westeurope"),
        ("HANDLER_URL", "https://hooks.contoso.com/orders"),
    ];
    let good_run = script("check.sh", GO_SQLCMD, &good);
    assert!(good_run.status.success() && good_run.stdout.is_empty(), "{good_run:?}");
    for (name, value, fragment) in [
        ("SOURCE_SQL_SERVER", "", "azd env set SOURCE_SQL_SERVER"),
        ("SOURCE_SQL_DATABASE", "", "azd env set SOURCE_SQL_DATABASE"),
        ("AZURE_LOCATION", "atlantis", "choose one of: australiaeast"),
        ("HANDLER_URL", "https://example.com/orders", "azd env set HANDLER_URL"),
        ("HANDLER_URL", "https://www.example.org:8443/orders", "azd env set HANDLER_URL"),
        ("HANDLER_URL", "https://hooks.invalid", "azd env set HANDLER_URL"),
        ("SOURCE_TABLE", "dbo.\"orders\"", "quotation mark"),
        ("POLLER_NAME", "My-Orders", "lower-case letters"),
        ("AZURE_ENV_NAME", "shop.", "must not end with a dot"),
        ("STATE_STORE", "sql", "azd env set STATE_TABLE"),
    ] {
        let mut settings: BTreeMap<&str, &str> = good.into();
        settings.insert(name, value);
        let settings: Vec<(&str, &str)> = settings.into_iter().collect();
        let output = script("check.sh", GO_SQLCMD, &settings);
        assert_eq!(output.status.code(), Some(2), "{name}={value}: {output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(fragment), "{name}={value}: {text}");
    }
    let private =
        [("VNET_ENABLED", "true"), ("STATE_STORE", "sql"), ("STATE_TABLE", "dbo.highwater_state")];
    let output = script("check.sh", GO_SQLCMD, &[&good[..], &private].concat());
    assert!(String::from_utf8(output.stderr).unwrap().contains("SOURCE_SQL_SERVER_ID"));
}

#[test]
fn a_demo_database_needs_nothing_but_a_handler() {
    let output = script("check.sh", GO_SQLCMD, &[("SQL_DEMO", "true")]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for (name, value) in [
        ("SOURCE_TABLE", "dbo.orders"),
        ("SOURCE_CURSOR", "version"),
        ("SOURCE_KEY", "id"),
        ("DEPLOYER_ADDRESS", "203.0.113.7"),
    ] {
        assert!(text.contains(&format!("env\nset\n{name}\n{value}\n")), "{text}");
    }
    let demo = read("infra/sql/demo.sql");
    for column in ["dbo.orders (", "version rowversion", "id int IDENTITY PRIMARY KEY"] {
        assert!(demo.contains(column), "{column}");
    }
}

#[test]
fn a_released_zip_is_deployed_without_a_toolchain() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("app.zip"), folder.path().join("package/app.zip"));
    let package = |content: &[u8]| {
        fs::write(&from, content).unwrap();
        let mut command = Command::new("/bin/sh");
        command.arg(highwater_test_support::root().join("infra/package.sh")).arg(&to);
        run(command.env_clear().env("PATH", "/usr/bin:/bin").env("HIGHWATER_PACKAGE", &from))
    };
    let output = package(b"PK and the rest");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read(&to).unwrap(), b"PK and the rest");
    let output = package(b"<html>");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn values_that_could_inject_sql_are_rejected() {
    for bad in ["dbo.orders'--", "dbo.a,dbo.b", "dbo.$(x)", "dbo.my table"] {
        let output = grant(&[("SOURCE_TABLES", bad)]);
        assert_eq!(output.status.code(), Some(2), "{bad}");
        assert!(output.stdout.is_empty(), "{bad}: sqlcmd was run");
    }
    let output = grant(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("azd env set SOURCE_TABLES"));
}
