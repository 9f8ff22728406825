//! What the proofs say of themselves.

use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names of the seeded breaks, as they stand in the list that is run.
fn breaks() -> Vec<String> {
    let script = read(".ci/mutants.mjs");
    let (_, list) = script.split_once("const BREAKS = [").unwrap();
    let list = list.lines().take_while(|line| *line != "];");
    let names = list.filter_map(|line| line.strip_prefix("  [\"")?.split('"').next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    assert!(names.len() >= 20, "the list has too few breaks, or is not found: {names:?}");
    names
}

#[test]
fn the_simulation_names_the_seeded_breaks() {
    let text = read("tests/sim/main.rs");
    let (_, list) = text.split_once("keeps this list equal to that one:").unwrap();
    let lines = list.lines().skip(2).map_while(|line| line.strip_prefix("//! - "));
    let mut named = lines.map(str::to_owned).collect::<Vec<_>>();
    named.sort();
    assert_eq!(named, breaks(), "add new ones to tests/sim/main.rs");
}
