//! What the proofs say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Where the rules stand that the simulation runs.
const SIMULATED: [&str; 4] = ["src/state", "src/lease", "src/poller", "src/event"];

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names of the seeded breaks of those rules, as they stand in the list that is run.
fn breaks() -> BTreeSet<String> {
    let script = read(".ci/mutants.mjs");
    let file = |line: &str| {
        let (name, path) = line.strip_prefix("const ")?.split_once(" = \"")?;
        Some((name.to_owned(), path.trim_end_matches("\";").to_owned()))
    };
    let files: BTreeMap<String, String> = script.lines().filter_map(file).collect();
    let simulated = |line: &str| {
        let (name, rest) = line.strip_prefix("  [\"")?.split_once("\", ")?;
        let path = files.get(rest.split(',').next()?)?;
        SIMULATED.iter().any(|folder| path.starts_with(folder)).then(|| name.to_owned())
    };
    let names: BTreeSet<String> = script.lines().filter_map(simulated).collect();
    assert!(names.len() >= 20, "the list has too few breaks, or is not found: {names:?}");
    names
}

#[test]
fn the_simulation_names_the_seeded_breaks_of_what_it_runs() {
    let text = read("tests/sim/main.rs");
    let (_, list) = text.split_once("keeps this list equal to that one").unwrap();
    let lines = list.lines().skip_while(|line| !line.starts_with("//! - "));
    let named = lines.map_while(|line| line.strip_prefix("//! - ")).map(str::to_owned);
    assert_eq!(named.collect::<BTreeSet<_>>(), breaks(), "add new ones to tests/sim/main.rs");
}
