//! The licences and the bill of materials that are published with the programs, checked against cargo.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value as Json;

use crate::settings::read;

/// Maximum size of the file: it is compiled into the command line.
const BYTES_MAX: usize = 256 * 1024;

/// Dependencies that no linked crate uses; `.ci/linked.mjs` checks with the linker that these are all.
const UNUSED: [&str; 2] = ["adler2", "num-traits"];

/// What is linked and is not a crate of cargo; `.ci/linked.mjs` checks with the linker that this is all.
const TOOLCHAIN: [&str; 5] =
    ["rust-std", "compiler_builtins", "musl", "llvm-libunwind", "llvm-compiler-rt"];

fn list(json: &Json) -> &[Json] {
    json.as_array().unwrap()
}

/// Name and version of every third-party crate linked into the program of a package.
fn linked(package: &str) -> BTreeSet<String> {
    let options = ["--target", "x86_64-unknown-linux-musl", "--prefix", "depth", "--no-dedupe"];
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--locked", "--offline", "-p", package, "-e", "normal"]).args(options);
    let output = cargo.current_dir(highwater_test_support::root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut linked = BTreeSet::new();
    // Dependencies of a macro run in the compiler.
    let mut skipped_below = usize::MAX;
    for line in text.lines() {
        let digits = line.find(|c: char| !c.is_ascii_digit()).unwrap();
        let depth: usize = line[..digits].parse().unwrap();
        if depth > skipped_below {
            continue;
        }
        skipped_below = if line.contains("(proc-macro)") { depth } else { usize::MAX };
        let (name, rest) = line[digits..].split_once(" v").unwrap();
        let (version, origin) = rest.split_once(' ').unwrap_or((rest, ""));
        // Our own crates have a path.
        let is_used = !UNUSED.contains(&name);
        if skipped_below == usize::MAX && !origin.contains('/') && is_used {
            linked.insert(format!("{name} {version}"));
        }
    }
    linked
}

#[test]
fn the_notices_list_exactly_the_linked_crates() {
    for (file, package) in [
        ("docs/third-party-notices.txt", "highwater-handler"),
        ("docs/third-party-notices-highwater.txt", "highwater-cli"),
    ] {
        let notices = read(file);
        let named = notices.lines().filter_map(|line| line.split_once(" | "));
        let named: BTreeSet<String> = named.map(|(name, _)| name.to_owned()).collect();
        let linked = linked(package);
        assert!(linked.iter().any(|it| it.starts_with("tokio 1.")));
        let differ: Vec<&String> = linked.symmetric_difference(&named).collect();
        assert!(differ.is_empty(), "run `node .ci/notices.mjs`: {differ:?}");
        assert!(notices.len() < BYTES_MAX && notices.contains("Permission is hereby granted"));
        for part in TOOLCHAIN {
            assert!(notices.lines().any(|line| line.starts_with(&format!("{part}: "))), "{part}");
        }
        assert!(notices.contains("LLVM Exceptions to the Apache 2.0 License"));
        // The database and the second TLS provider are not in the deployed program.
        let has_database = named.iter().any(|name| name.starts_with("libsqlite3-sys "));
        assert_eq!(has_database, package == "highwater-cli");
        assert!(!named.iter().any(|name| name.starts_with("ring ")));
    }
}

#[test]
fn the_bill_of_materials_lists_every_linked_crate_with_its_checksum() {
    let made = || {
        let mut node = Command::new("node");
        node.arg(".ci/sbom.mjs").arg("c0ffee").current_dir(highwater_test_support::root());
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
    let text = |component: &Json, field: &str| component[field].as_str().unwrap().to_owned();
    // Crates of the program itself have no checksum.
    let (crates, others): (Vec<_>, Vec<_>) = list(&bill["components"])
        .iter()
        .partition(|it| it["purl"].as_str().unwrap().starts_with("pkg:cargo/"));
    let toolchain: Vec<_> = others.iter().map(|it| text(it, "name")).collect();
    assert_eq!(toolchain, TOOLCHAIN);
    for part in others {
        assert!(part["licenses"][0]["expression"].is_string(), "{part}");
        // That of musl is read from the target for static programs, which may not be installed.
        assert!(part["version"].is_string() || part["name"] == "musl", "{part}");
    }
    let (own, components): (Vec<_>, Vec<_>) =
        crates.into_iter().partition(|it| it["name"].as_str().unwrap().starts_with("highwater"));
    let libraries: Vec<_> = own.iter().map(|it| text(it, "name")).collect();
    assert_eq!(libraries, ["highwater", "highwater-azure", "highwater-engine", "highwater-mssql"]);
    let named: BTreeSet<String> = components
        .iter()
        .map(|it| format!("{} {}", text(it, "name"), text(it, "version")))
        .collect();
    assert_eq!(named, linked("highwater-handler"));
    for component in &components {
        let sum = component["hashes"][0]["content"].as_str().unwrap_or_default();
        assert_eq!(sum.len(), 64, "{component}");
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
    }
    // Every end of an edge is a component.
    let references: BTreeSet<String> =
        own.iter().chain(&components).map(|it| text(it, "bom-ref")).collect();
    for dependency in list(&bill["dependencies"]) {
        for to in list(&dependency["dependsOn"]) {
            assert!(references.contains(to.as_str().unwrap()), "{to}");
        }
    }
}
