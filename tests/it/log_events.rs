//! `docs/reference/log-events.md`: its tables are those of the source, from which they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use highwater_engine::event::counted;

use crate::settings::{holds, read};

const PAGE: &str = "docs/reference/log-events.md";
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
/// What the page shows in place of a part of a text that is inserted at run time.
const INSERTED: &str = "…";

/// Returns the source of the product, without tests.
fn sources() -> Vec<String> {
    let mut folders = vec![highwater_test_support::root().join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let is_test = ["tests", "testing"].contains(&name.as_str());
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension() == Some(Path::new("rs").as_os_str()) && !is_test {
                let text = fs::read_to_string(&path).unwrap();
                found.push(text.split("\nmod tests {").next().unwrap().to_owned());
            }
        }
    }
    found
}

/// Returns a macro call: its name with what precedes it in the line, and its arguments.
fn call_around(text: &str, at: usize) -> (&str, &str) {
    let mut depth = 0;
    let start = text[..at].char_indices().rev().find(|(_, c)| {
        depth += match c {
            ')' => 1,
            '(' => -1,
            _ => 0,
        };
        depth < 0
    });
    let start = start.unwrap().0;
    let name = text[..start].rsplit([' ', '\n']).next().unwrap();
    let (mut depth, mut is_text, mut is_escaped) = (0, false, false);
    let end = text[start..].char_indices().find(|(_, c)| {
        if is_text {
            is_text = *c != '"' || is_escaped;
            is_escaped = *c == '\\' && !is_escaped;
            return false;
        }
        is_text = *c == '"';
        depth += match c {
            '(' | '[' | '{' => 1,
            ')' | ']' | '}' => -1,
            _ => 0,
        };
        depth == 0
    });
    (name, &text[start + 1..start + end.unwrap().0])
}

/// Returns the last string literal of a macro's arguments, as its reader sees it. One within parentheses is an argument
/// of a call: of `counted(rows, "row")`, the reader sees a number of rows.
fn message(arguments: &str) -> String {
    let (mut literal, mut nouns) = ("", Vec::new());
    let mut rest = arguments;
    let mut depth = 0_i32;
    while let Some((before, after)) = rest.split_once('"') {
        // Each comma between calls starts an argument, which is counted or not.
        for c in before.chars() {
            depth += i32::from(c == '(') - i32::from(c == ')');
            if depth == 0 && c == ',' {
                nouns.push(None);
            }
        }
        let mut is_escaped = false;
        let end = after.find(|c| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        let (text, after) = after.split_at(end.unwrap());
        if depth == 0 {
            literal = text;
            nouns.clear();
        } else if before.contains("counted(")
            && let Some(last) = nouns.last_mut()
        {
            *last = Some(text);
        }
        rest = &after[1..];
    }
    // A line that continues.
    let parts: Vec<&str> = literal.split("\\\n").map(str::trim_start).collect();
    let text = parts.concat().replace("\\\"", "\"");
    let mut nouns = nouns.into_iter();
    let mut shown = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        let (inserted, after) = after.split_once('}').unwrap();
        shown.push_str(before);
        shown.push_str(INSERTED);
        let is_positional = inserted.is_empty() || inserted.starts_with(':');
        if is_positional && let Some(Some(noun)) = nouns.next() {
            let plural = counted(0, noun);
            shown.push_str(plural.trim_start_matches('0'));
        }
        rest = after;
    }
    shown.push_str(rest);
    shown.replace('|', "\\|")
}

/// Returns each event with its levels and texts.
fn events() -> BTreeMap<String, BTreeSet<(String, String)>> {
    let mut found: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for text in sources() {
        for (at, start) in text.match_indices("event = \"") {
            let name = text[at + start.len()..].split('"').next().unwrap();
            let (called, arguments) = call_around(&text, at);
            let called = called.trim_end_matches('!').trim_start_matches("tracing::");
            // `tick_event!(self, warn, …)` has its level among its arguments; a level of a variable is in none.
            let level = if LEVELS.contains(&called) {
                called.to_uppercase()
            } else {
                let level = arguments.split(',').nth(1).map(str::trim).unwrap_or_default();
                if LEVELS.contains(&level) { level.to_uppercase() } else { "differs".to_owned() }
            };
            let shown = message(arguments);
            let shown = if shown == name { INSERTED.to_owned() } else { shown };
            found.entry(name.to_owned()).or_default().insert((level, shown));
        }
    }
    found
}

/// Returns how ticks fail: the event of the last line, its `outcome` and its `error.type`.
fn failures() -> BTreeSet<(String, String, String)> {
    let text = read("src/engine/poller/outcome.rs");
    let text = text.split("pub(super) fn failed").nth(1).unwrap().split("\n}\n").next().unwrap();
    let triples = text.split("(\"").skip(1).filter_map(|rest| {
        let literals: Vec<&str> = rest.split(')').next()?.split("\", \"").collect();
        let [outcome, error, event] = literals[..] else { return None };
        Some((event.trim_end_matches('"').to_owned(), outcome.to_owned(), error.to_owned()))
    });
    triples.collect()
}

/// Returns how ticks end, as the source describes it.
fn ends() -> String {
    let text = read("src/engine/poller/outcome.rs");
    let header = "| event | level | `outcome` | `error.type` | the tick |\n|---|---|---|---|---|\n";
    let mut rows = vec![header.to_owned()];
    for line in text.lines().filter_map(|line| line.strip_prefix("/// | ")).skip(1) {
        let cells: Vec<&str> = line.trim_end_matches(" |").split(" | ").collect();
        let [end, outcome, error, event, level, ..] = cells[..] else { panic!("{line}") };
        let error = error.split(',').next().unwrap().replace('–', "");
        rows.push(format!("| {event} | {level} | {outcome} | {error} | {end} |\n"));
    }
    rows.concat()
}

#[test]
fn the_page_lists_the_log_events_of_the_code() {
    let events = events();
    assert!(events.len() > 80, "{}", events.len());
    let mut rows = vec!["| event | level | text |\n|---|---|---|\n".to_owned()];
    for (event, lines) in &events {
        let levels: BTreeSet<&str> = lines.iter().map(|(level, _)| level.as_str()).collect();
        let texts: BTreeSet<&str> = lines.iter().map(|(_, text)| text.as_str()).collect();
        let levels = levels.into_iter().collect::<Vec<_>>().join(", ");
        let texts = texts.into_iter().collect::<Vec<_>>().join("<br>");
        rows.push(format!("| <a id=\"{event}\"></a>`{event}` | {levels} | {texts} |\n"));
    }
    holds(PAGE, "events", &rows.concat());
    let table = ends();
    for (event, outcome, error) in failures() {
        let row = format!("| `{event}` | ");
        let rest = format!(" | `{outcome}` | `{error}` |");
        let is_listed = table.lines().any(|line| line.starts_with(&row) && line.contains(&rest));
        assert!(is_listed, "no row of `{event}` with `{outcome}` and `{error}`");
    }
    holds(PAGE, "ends", &table);
}
