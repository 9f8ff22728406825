//! What is given away with the program: the licences of what is linked into it, held to what cargo says.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value as Json;

use crate::settings::read;

/// Most bytes of the file: it is compiled into the program.
const BYTES_MAX: usize = 256 * 1024;

fn cargo_metadata() -> Json {
    let options = ["--format-version", "1", "--locked", "--offline", "--no-default-features"];
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("metadata").args(options).args(["--filter-platform", "x86_64-unknown-linux-musl"]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn list(json: &Json) -> &[Json] {
    json.as_array().unwrap()
}

/// Name and version of every crate that is linked into the deployable program.
fn linked() -> BTreeSet<String> {
    let metadata = cargo_metadata();
    let by_id = |items: &Json| -> BTreeMap<String, Json> {
        let id = |item: &Json| item["id"].as_str().unwrap().to_owned();
        list(items).iter().map(|item| (id(item), item.clone())).collect()
    };
    let (packages, nodes) = (by_id(&metadata["packages"]), by_id(&metadata["resolve"]["nodes"]));
    let is_macro = |id: &str| {
        let targets = list(&packages[id]["targets"]);
        targets.iter().any(|target| list(&target["kind"]).contains(&Json::from("proc-macro")))
    };
    let root = metadata["resolve"]["root"].as_str().unwrap();
    let (mut seen, mut open) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(id) = open.pop() {
        for dep in list(&nodes[&id]["deps"]) {
            let is_linked = list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let dep = dep["pkg"].as_str().unwrap();
            if is_linked && !is_macro(dep) && seen.insert(dep.to_owned()) {
                open.push(dep.to_owned());
            }
        }
    }
    let text = |id: &str, field: &str| packages[id][field].as_str().unwrap().to_owned();
    seen.iter().map(|id| format!("{} {}", text(id, "name"), text(id, "version"))).collect()
}

#[test]
fn the_notices_name_every_crate_that_is_linked_and_no_other() {
    let notices = read("docs/third-party-notices.txt");
    let named = notices.lines().filter_map(|line| line.split_once(" | "));
    let named: BTreeSet<String> = named.map(|(name, _)| name.to_owned()).collect();
    let linked = linked();
    assert!(linked.iter().any(|it| it.starts_with("tokio 1.")));
    let differ: Vec<&String> = linked.symmetric_difference(&named).collect();
    assert!(differ.is_empty(), "run `node .ci/notices.mjs`: {differ:?}");
    assert!(notices.len() < BYTES_MAX && notices.contains("Permission is hereby granted"));
}

#[test]
fn the_bill_of_materials_has_every_crate_that_is_linked_with_its_checksum() {
    let made = || {
        let mut node = Command::new("node");
        node.arg(".ci/sbom.mjs").arg("c0ffee").current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = node.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let bytes = made();
    assert_eq!(made(), bytes, "the same sources give the same bytes");
    let bill: Json = serde_json::from_slice(&bytes).unwrap();
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(bill["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(bill["metadata"]["properties"][0]["value"], "c0ffee");
    let components = list(&bill["components"]);
    let text = |component: &Json, field: &str| component[field].as_str().unwrap().to_owned();
    let named: BTreeSet<String> = components
        .iter()
        .map(|it| format!("{} {}", text(it, "name"), text(it, "version")))
        .collect();
    assert_eq!(named, linked());
    for component in components {
        let sum = component["hashes"][0]["content"].as_str().unwrap_or_default();
        assert_eq!(sum.len(), 64, "{component}");
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
    }
    // Every end of an edge is a component.
    let references: BTreeSet<String> = components.iter().map(|it| text(it, "bom-ref")).collect();
    for dependency in list(&bill["dependencies"]) {
        for to in list(&dependency["dependsOn"]) {
            assert!(references.contains(to.as_str().unwrap()), "{to}");
        }
    }
}
