//! Code blocks of the documentation: each that can run is run by a test.
//!
//! Pages that a reader follows are run line by line in `tests/host` ([`FOLLOWED`]). Here, every other block is checked as
//! far as it goes without the reader's database and cloud: shell by the shell's own parser and by the arguments of each
//! `highwater` command, SQL by the development server, JSON by a parser, units by systemd.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::process::{Command as Process, Output, Stdio};

use highwater_devdb::{Database, Engine as _, Reply};

use crate::deploy::commands;
use crate::settings::read;

/// Pages that tests in `tests/host` run line by line: `first_steps.rs`, `tutorials.rs`.
const FOLLOWED: [&str; 4] = [
    "docs/tutorials/csharp.md",
    "docs/tutorials/first-steps.md",
    "docs/tutorials/python.md",
    "docs/tutorials/typescript.md",
];

/// The page of the development server, whose statements `statements.rs` runs.
const DEVDB: &str = "docs/contributing/devdb.md";

/// Statements that the development server does not have: users, rights, computed columns.
const NEEDS_SQL_SERVER: [&str; 3] =
    ["CREATE USER ", "GRANT ", "ALTER TABLE dbo.orders ADD orders_part AS"];

/// Languages that nothing here can run. `csharp` is parsed by `.ci/bicep/csharp.py`, and TypeScript and Python are in
/// pages that are followed or that `receiver_projects.rs` runs.
const NOT_RUN: [&str; 9] =
    ["", "console", "csharp", "dockerfile", "kusto", "mermaid", "python", "text", "typescript"];

struct Block {
    page: String,
    language: String,
    text: String,
}

/// Returns every block of the documentation, also indented ones.
fn blocks() -> Vec<Block> {
    let root = highwater_test_support::root();
    let listed = Process::new("git").args(["ls-files", "*.md"]).current_dir(root).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let pages = listed.lines().filter(|page| !page.starts_with("src/") && root.join(page).exists());
    let mut found = Vec::new();
    for page in pages {
        let mut block: Option<Block> = None;
        for line in read(page).lines() {
            match (line.trim_start().strip_prefix("```"), &mut block) {
                (Some(language), None) => {
                    let (page, language) = (page.to_owned(), language.to_owned());
                    block = Some(Block { page, language, text: String::new() });
                }
                (Some(_), Some(_)) => found.extend(block.take()),
                (None, Some(block)) => block.text.extend([line.trim_end(), "\n"]),
                (None, None) => {}
            }
        }
        assert!(block.is_none(), "{page}: a block is not closed");
    }
    found
}

fn of_language(language: &str) -> Vec<Block> {
    let found: Vec<Block> =
        blocks().into_iter().filter(|block| block.language == language).collect();
    assert!(!found.is_empty(), "{language}");
    found
}

/// Runs a tool on a text.
fn judged(tool: &[&str], text: &str) -> Output {
    let mut process = Process::new(tool[0]);
    process.args(&tool[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = process.spawn().unwrap();
    process.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    process.wait_with_output().unwrap()
}

#[test]
fn every_block_has_a_language_that_is_checked() {
    let mut unknown = BTreeMap::new();
    for Block { page, language, text } in blocks() {
        let is_checked = ["ini", "json", "sh", "sql"].contains(&language.as_str());
        let is_devdbs = page == DEVDB && language.starts_with("sql ");
        if !is_checked && !is_devdbs && !NOT_RUN.contains(&language.as_str()) {
            unknown.insert((page, language), text);
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[test]
fn shell_blocks_are_shell() {
    for Block { page, text, .. } in of_language("sh") {
        let output = judged(&["bash", "-n"], &text);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{page}: {why}\n{text}");
    }
}

/// With `--help`, the program parses all arguments before it prints its help, and does nothing else.
#[test]
fn commands_of_shell_blocks_have_valid_arguments() {
    let mut tried = BTreeSet::new();
    for Block { page, text, .. } in of_language("sh") {
        for command in commands(&text) {
            let at = command.words.iter().position(|word| {
                word == "highwater" || word.ends_with("/highwater") || word == "handler"
            });
            let Some(at) = at.filter(|at| *at == 0 || command.words[*at - 1].contains('=')) else {
                continue;
            };
            let is_next =
                |word: &&String| !["|", "||", ">", ">>", "<", "&", ";"].contains(&word.as_str());
            let words: Vec<String> =
                command.words[at + 1..].iter().take_while(is_next).cloned().collect();
            if !tried.insert(words.clone()) {
                continue;
            }
            let mut process = Process::new(env!("CARGO_BIN_EXE_highwater"));
            let output = process.args(&words).arg("--help").env_clear().output().unwrap();
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{page}: highwater {}\n{why}", words.join(" "));
        }
    }
    assert!(tried.len() > 60, "{}", tried.len());
}

#[test]
fn json_blocks_are_json() {
    for Block { page, text, .. } in of_language("json") {
        // A part of an object.
        let text = if text.starts_with('"') { format!("{{{text}}}") } else { text };
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(&text);
        assert!(parsed.is_ok(), "{page}: {parsed:?}\n{text}");
    }
}

/// Statements with parameters or gaps describe what the poller sends; `tests/it/source*.rs` run the real ones.
#[test]
fn sql_blocks_run_on_the_development_server() {
    let (mut run, mut not_run) = (0, 0);
    for Block { page, text, .. } in of_language("sql") {
        let is_run_elsewhere =
            FOLLOWED.contains(&page.as_str()) || page == DEVDB || page == "README.md";
        if is_run_elsewhere || text.contains(['…', '@']) || text.starts_with("CAST(") {
            continue;
        }
        let database = Database::in_memory().unwrap();
        database
            .execute("CREATE TABLE dbo.orders (id int NOT NULL PRIMARY KEY, version2 int)")
            .unwrap();
        let mut session = database.connect("Shop").unwrap();
        for statement in text.split(";\n").map(str::trim).filter(|statement| !statement.is_empty())
        {
            if NEEDS_SQL_SERVER.iter().any(|start| statement.starts_with(start)) {
                not_run += 1;
                continue;
            }
            let replies = session.run(statement, &[]);
            let error = replies.iter().find_map(|reply| match reply {
                Reply::Error(error) => Some(error),
                Reply::Rows { .. } | Reply::Done(_) => None,
            });
            // The index on the column of a statement that was not run.
            let is_of_computed = error.is_some_and(|_| statement.contains("orders_part"));
            assert!(error.is_none() || is_of_computed, "{page}: {statement}: {error:?}");
            run += 1;
        }
    }
    assert!(run > 5 && not_run > 3, "{run}, {not_run}");
}

#[test]
fn units_pass_the_check_of_systemd() {
    if Process::new("systemd-analyze").arg("--version").output().is_err() {
        println!("systemd-analyze is missing: units are not checked");
        return;
    }
    for Block { page, text, .. } in of_language("ini") {
        let folder = tempfile::tempdir().unwrap();
        let unit = folder.path().join("highwater.service");
        let command = text.split("ExecStart=").nth(1).unwrap().lines().next().unwrap();
        let program = command.split(' ').next().unwrap();
        fs::write(&unit, text.replace(program, env!("CARGO_BIN_EXE_highwater"))).unwrap();
        let output = Process::new("systemd-analyze").arg("verify").arg(&unit).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && why.is_empty(), "{page}: {why}");
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let mut process = Process::new(env!("CARGO_BIN_EXE_highwater"));
        let output = process.args(words).arg("--help").env_clear().output().unwrap();
        assert!(output.status.success(), "{page}: {command}");
    }
}
