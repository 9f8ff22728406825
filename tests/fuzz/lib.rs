//! Targets for coverage-guided fuzzing: everything that others can send to Highwater.
//!
//! A target gets arbitrary bytes and must not panic, hang or break a rule that it checks itself. `.ci/fuzz` runs the
//! targets with coverage counters. `replay.rs` runs each input of `corpus` through its target, with any
//! toolchain and on every change, so an input that once failed stays a test.

use std::collections::BTreeMap;

mod devdb;
mod host;
mod replies;
mod settings;
mod stored;

/// A target: its name, which is also that of its corpus, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 8] = [
    ("host_requests", host::requests),
    ("state_documents", stored::documents),
    ("settings", settings::settings),
    ("connection_strings", settings::connection_strings),
    ("filters", settings::filters),
    ("handler_replies", replies::replies),
    ("journal_lines", stored::journal),
    ("tds", devdb::tds),
];

/// Returns the target of this name.
#[must_use]
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, run)| *run)
}

/// Returns text, if the input is text. Others are of no interest where the environment or a file has text.
fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

/// Returns the lines `NAME = value` as a map.
fn assignments(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}
