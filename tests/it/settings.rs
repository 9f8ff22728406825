//! Settings, as README, the example file and the code tell them: all the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use highwater::config::{Config, connection_keys_table, settings_table};

fn read(name: &str) -> String {
    fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

fn example() -> BTreeMap<String, String> {
    let json: serde_json::Value =
        serde_json::from_str(&read("local.settings.json.example")).unwrap();
    serde_json::from_value(json["Values"].clone()).unwrap()
}

/// Returns what a document holds between two comments of one name.
fn part(document: &str, name: &str) -> String {
    let text = read(document);
    let (_, rest) = text.split_once(&format!("<!-- {name} -->\n")).unwrap();
    rest.split_once(&format!("<!-- /{name} -->")).unwrap().0.trim().to_owned()
}

#[test]
fn the_table_of_the_readme_is_the_one_of_the_code() {
    let table = settings_table();
    assert_eq!(part("README.md", "settings"), table.trim(), "copy it into README.md:\n{table}");
}

#[test]
fn the_keys_of_the_document_are_those_of_the_code() {
    let table = connection_keys_table();
    let document = "docs/connections.md";
    assert_eq!(part(document, "keys"), table.trim(), "copy it into {document}:\n{table}");
}

#[test]
fn the_errors_of_the_document_are_those_of_the_code() {
    let table = highwater::mssql::errors_table();
    let document = "docs/connections.md";
    assert_eq!(part(document, "errors"), table.trim(), "copy it into {document}:\n{table}");
}

#[test]
fn the_example_settings_are_good_and_every_function_has_a_poller() {
    let config = Config::from_vars(&example()).unwrap_or_else(|error| panic!("{error}"));
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("function-definitions");
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(config.poller_of_function(&name).is_some(), "function `{name}` has no poller");
        let definition = read(&format!("function-definitions/{name}/function.json"));
        let json: serde_json::Value = serde_json::from_str(&definition).unwrap();
        let schedule = json["bindings"][0]["schedule"].as_str().unwrap().trim_matches('%');
        assert!(example().contains_key(schedule), "`{schedule}` is not in the example settings");
    }
}
