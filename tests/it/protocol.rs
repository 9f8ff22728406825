//! The pages that map rules to tests: each test they name exists, under exactly that path.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Test binaries besides the library's, as named by `cargo test --test`.
const BINARIES: [&str; 8] =
    ["engine", "it", "host", "handler", "azurite", "sim", "demo", "telemetry"];

fn root() -> PathBuf {
    highwater_test_support::root().to_owned()
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// Returns the paths of all tests of a binary, as cargo prints them; `lib` is the unit tests of the crates of `src`.
fn tests_of(binary: &str) -> BTreeSet<String> {
    let folder = match binary {
        "lib" => root().join("src"),
        other => root().join("tests").join(other),
    };
    let crates = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let crates: Vec<_> = crates.filter(|path| path.join("Cargo.toml").is_file()).collect();
    let mut found = BTreeSet::new();
    visit(&folder, &mut |path| {
        let text = fs::read_to_string(path).unwrap();
        let root = crates.iter().find(|it| path.starts_with(it)).unwrap_or(&folder);
        let relative = path.strip_prefix(root).unwrap().with_extension("");
        let names: Vec<_> =
            relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let is_root = ["main", "lib"].contains(&names.join("::").as_str());
        let module = if is_root { Vec::new() } else { names };
        found.extend(tests_in(&module, &text));
    });
    found
}

fn visit(folder: &Path, seen: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("node_modules") {
            visit(&path, seen);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            seen(&path);
        }
    }
}

/// Reads formatted source: an inline module starts and ends at the start of a line.
fn tests_in(module: &[String], text: &str) -> Vec<String> {
    let mut path = module.to_vec();
    let mut is_test = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let code = line.trim_start();
        if let Some(name) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
            path.push(name.to_owned());
        } else if line == "}" {
            path.truncate(module.len());
        } else if ["#[test]", "#[tokio::test"].iter().any(|start| code.starts_with(start)) {
            is_test = true;
        } else if let Some(name) = function(code).filter(|_| is_test) {
            found.push([path.clone(), vec![name]].concat().join("::"));
            is_test = false;
        } else if let Some((_, name)) = case(code) {
            found.push([path.clone(), vec![name]].concat().join("::"));
        }
    }
    found
}

fn function(code: &str) -> Option<String> {
    let rest = code.strip_prefix("async ").unwrap_or(code).strip_prefix("fn ")?;
    rest.split_once('(').map(|(name, _)| name.to_owned())
}

/// A line of the table that defines the tests of `tests/host`: `"STOP-01" => name = …`.
fn case(code: &str) -> Option<(String, String)> {
    let (id, rest) = code.strip_prefix('"')?.split_once("\" => ")?;
    let (name, _) = rest.split_once(" =")?;
    Some((id.to_owned(), name.to_owned()))
}

/// Returns the table rows of a page, without headers, as cells.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = page.lines().collect();
    let is_head = |index: usize| lines.get(index + 1).is_some_and(|next| next.starts_with("|---"));
    let rows = lines.iter().enumerate().filter(|(index, line)| {
        line.starts_with('|') && !line.starts_with("|---") && !is_head(*index)
    });
    rows.map(|(_, line)| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Returns each text in backticks, with the text up to the next one.
fn quoted(cell: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = cell.split('`').skip(1).collect();
    parts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

#[test]
fn every_test_that_the_page_of_rules_names_exists() {
    let library = tests_of("lib");
    let others = BINARIES.map(|binary| (binary, tests_of(binary)));
    let page = page("contributing/protocol.md");
    let rows = rows(&page);
    assert!(rows.len() > 100, "{} rules", rows.len());
    for cells in rows {
        let [rule, tests] = cells[..] else { panic!("not a rule and its tests: {cells:?}") };
        let tests = quoted(tests);
        assert!(!tests.is_empty(), "no test is named after the rule: {rule}");
        for (name, after) in tests {
            let binary =
                others.iter().find(|(binary, _)| after.starts_with(&format!(" ({binary})")));
            let (binary, known) = binary.map_or(("lib", &library), |(name, known)| (*name, known));
            assert!(known.contains(name), "`{name}` is no test of `{binary}`, but: {rule}");
        }
    }
}

#[test]
fn the_page_of_failure_windows_names_exactly_the_existing_tests() {
    assert_names_all(&page("contributing/failure-windows.md"), "engine", "windows::");
}

#[test]
fn the_page_of_the_http_handler_names_all_bad_input_tests() {
    let page = page("reference/http-handler.md");
    let (_, part) = page.split_once("\n### Bad input\n").unwrap();
    let (part, _) = part.split_once("\n## ").unwrap();
    assert_names_all(part, "lib", "handler::http::tests::bad_input::");
}

#[test]
fn the_page_of_steps_names_tests_that_exist() {
    let (library, engine, it) = (tests_of("lib"), tests_of("engine"), tests_of("it"));
    let page = page("reference/steps.md");
    let (_, rules) = page.split_once("## The rules of durable checkpoints").unwrap();
    let rows = rows(rules);
    assert!(rows.len() >= 10, "{} rules", rows.len());
    for cells in rows {
        let [_, _, tests] = cells[..] else { panic!("rule, how it holds, tests: {cells:?}") };
        for (name, after) in quoted(tests) {
            let known = match after {
                _ if after.starts_with(" (engine)") => &engine,
                _ if after.starts_with(" (it)") => &it,
                _ => &library,
            };
            assert!(known.contains(name), "the page names `{name}`, which is no test");
        }
    }
}

/// Each row of a page must name one test of a module in its last cell, and the rows together must name all of
/// them.
fn assert_names_all(page: &str, binary: &str, module: &str) {
    let known = tests_of(binary);
    let defined: BTreeSet<&str> =
        known.iter().filter_map(|name| name.strip_prefix(module)).collect();
    assert!(page.contains(&format!("`{module}`")), "the page names its test module");
    let mut named = BTreeSet::new();
    for cells in rows(page) {
        let tests = quoted(cells.last().unwrap());
        let [(name, _)] = tests[..] else { panic!("one test each: {cells:?}") };
        assert!(defined.contains(name), "the page names `{name}`, which is no test");
        assert!(named.insert(name.to_owned()), "one test each: `{name}` is named twice");
    }
    for name in defined {
        assert!(named.contains(name), "the page does not name the test `{name}`");
    }
}

#[test]
fn tests_are_found_where_cargo_finds_them() {
    let text = "\
fn helper() {}

#[test]
fn at_the_top() {}

    \"STOP-01\" => stop_01 = stop::idle();

#[cfg(test)]
mod tests {
    #[tokio::test(start_paused = true)]
    #[expect(unused, reason = \"why\")]
    async fn inside() {}

    fn no_test() {}
}
";
    let found = tests_in(&["lease".to_owned()], text);
    assert_eq!(found, ["lease::at_the_top", "lease::stop_01", "lease::tests::inside"]);
    // The running test is among them, so the files are found.
    let own = concat!(module_path!(), "::tests_are_found_where_cargo_finds_them");
    let (_, own) = own.split_once("::").unwrap();
    assert!(tests_of("it").contains(own), "{own}");
}
