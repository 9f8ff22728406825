//! The dependencies of the programs, according to cargo.

use std::collections::BTreeSet;
use std::process::Command;

/// Crates that only commands, tests or the development server need.
const FOREIGN: [&str; 12] = [
    "clap",
    "clap_complete",
    "clap_mangen",
    "highwater-cli",
    "highwater-devdb",
    "highwater-fakehost",
    "highwater-test-support",
    "indicatif",
    "libsqlite3-sys",
    "rusqlite",
    "tempfile",
    "zip",
];

/// Returns each crate linked into a release build of a package, with its features.
fn tree(package: &str) -> Vec<(String, BTreeSet<String>)> {
    let options =
        ["-e", "normal", "--prefix", "none", "--format", "{p}\t{f}", "--locked", "--offline"];
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "-p", package]).args(options);
    let output = cargo.current_dir(highwater_test_support::root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| {
        let (name, features) = line.split_once('\t').unwrap();
        let features = features.trim_end_matches(" (*)").split(',').map(str::to_owned).collect();
        (name.split(' ').next().unwrap().to_owned(), features)
    });
    lines.collect()
}

#[test]
fn the_handler_links_no_command_no_test_double_and_no_database() {
    let tree = tree("highwater-handler");
    let names: BTreeSet<&str> = tree.iter().map(|(name, _)| name.as_str()).collect();
    let own: Vec<&str> =
        names.iter().copied().filter(|name| name.starts_with("highwater")).collect();
    let expected = [
        "highwater",
        "highwater-azure",
        "highwater-engine",
        "highwater-handler",
        "highwater-mssql",
    ];
    assert_eq!(own, expected);
    assert!(names.contains("tokio") && names.contains("tiberius"), "{names:?}");
    for name in FOREIGN {
        assert!(!names.contains(name), "`{name}` is linked into the handler");
    }
}

#[test]
fn no_release_build_has_pausable_time_or_test_doubles() {
    for package in ["highwater-handler", "highwater-cli"] {
        for (name, features) in tree(package) {
            assert!(!features.contains("test-util"), "`{name}` of {package} has `test-util`");
        }
    }
}

#[test]
fn the_engine_links_no_driver_no_web_framework_and_no_cloud() {
    let tree = tree("highwater-engine");
    for (name, features) in &tree {
        let foreign = ["azure_", "axum", "hyper", "reqwest", "rusqlite", "tiberius"];
        assert!(!foreign.iter().any(|start| name.starts_with(start)), "`{name}` is linked");
        let io = ["fs", "net", "process"];
        assert!(name != "tokio" || !io.iter().any(|it| features.contains(*it)), "{features:?}");
    }
}
