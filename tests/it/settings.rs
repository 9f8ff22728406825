//! Settings: the reference page, the example file and the code agree.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use highwater::config::{Config, connection_keys_table, settings_table};
use highwater::mssql::errors_table;
use highwater::recovery::table::conditions_table;

fn path(name: &str) -> PathBuf {
    highwater_test_support::root().join(name)
}

pub(crate) fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

pub(crate) fn example() -> BTreeMap<String, String> {
    let json: serde_json::Value =
        serde_json::from_str(&read("local.settings.json.example")).unwrap();
    serde_json::from_value(json["Values"].clone()).unwrap()
}

/// Checks that a document shows a table between two comments with its name.
pub(crate) fn holds(document: &str, name: &str, table: &str) {
    let text = read(document);
    let (first, last) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (before, rest) = text.split_once(&first).unwrap();
    let (shown, after) = rest.split_once(&last).unwrap();
    // Like other expectations that are stored in files.
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let text = format!("{before}{first}{table}{last}{after}");
        return fs::write(path(document), text).unwrap();
    }
    assert_eq!(shown.trim(), table.trim(), "run this with UPDATE_EXPECT=1");
}

#[test]
fn the_reference_page_shows_the_settings_of_the_code() {
    holds("docs/reference/settings.md", "settings", &settings_table());
}

#[test]
fn the_page_of_connections_shows_the_keys_and_errors_of_the_code() {
    holds("docs/reference/connections.md", "keys", &connection_keys_table());
    holds("docs/reference/connections.md", "errors", &errors_table());
}

#[test]
fn the_page_of_the_recovery_controller_shows_the_table_of_the_code() {
    holds("docs/reference/recovery.md", "conditions", &conditions_table());
}

#[test]
fn every_instrument_is_on_the_page_of_metrics() {
    let page = read("docs/reference/telemetry.md");
    let code = read("src/engine/metrics.rs") + &read("src/engine/metrics/backlog.rs");
    let ours = |text: &&str| text.starts_with("highwater.") && !text.contains(' ');
    let names = code.split('"').filter(ours);
    let names: std::collections::BTreeSet<&str> = names.collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "`{name}` is not on the page");
    }
}

#[test]
fn the_example_settings_are_valid_and_every_function_has_a_poller() {
    let config = Config::from_vars(&example()).unwrap_or_else(|error| panic!("{error}"));
    let folder = highwater_test_support::root().join("function-definitions");
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if [highwater::recovery::FUNCTION, highwater::page::FUNCTION].contains(&name.as_str()) {
            continue;
        }
        let runs = config.pollers_by_function([name.as_str()].into_iter());
        assert!(!runs[name.as_str()].is_empty(), "function `{name}` has no poller");
        let definition = read(&format!("function-definitions/{name}/function.json"));
        let json: serde_json::Value = serde_json::from_str(&definition).unwrap();
        let schedule = json["bindings"][0]["schedule"].as_str().unwrap().trim_matches('%');
        assert!(example().contains_key(schedule), "`{schedule}` is not in the example settings");
    }
}

#[test]
fn no_host_retry_policy_is_shipped_because_it_would_multiply_attempts() {
    for name in [
        "host.json",
        "function-definitions/poll/function.json",
        "function-definitions/highwater_status/function.json",
    ] {
        let json: serde_json::Value = serde_json::from_str(&read(name)).unwrap();
        assert!(json.get("retry").is_none(), "{name} has a retry policy");
    }
}
