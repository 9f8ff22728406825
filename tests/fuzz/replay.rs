//! Runs each input of the corpora through its target.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use highwater_fuzz::TARGETS;
use serde_json::Value as Json;

/// Maximum size of all corpora: they are part of the repository.
const BYTES_MAX: usize = 5 << 18;

/// Returns an input as `.ci/corpus.mjs` writes it.
fn input(line: &str) -> Vec<u8> {
    match serde_json::from_str(line).unwrap() {
        Json::String(text) => text.into_bytes(),
        other => STANDARD.decode(other["base64"].as_str().unwrap()).unwrap(),
    }
}

#[test]
fn every_input_of_the_corpora_passes() {
    let corpora = highwater_test_support::root().join("tests/fuzz/corpus");
    let mut bytes = 0;
    for (name, run) in TARGETS {
        for kind in ["seeds.jsonl", "jsonl"] {
            let lines = fs::read_to_string(corpora.join(format!("{name}.{kind}"))).unwrap();
            assert!(!lines.is_empty(), "{name} has no input");
            bytes += lines.len();
            for line in lines.lines() {
                run(&input(line));
            }
        }
    }
    assert!(bytes < BYTES_MAX, "{bytes} bytes");
}

#[test]
fn every_corpus_and_every_name_in_the_script_has_a_target() {
    let root = highwater_test_support::root();
    let entries = fs::read_dir(root.join("tests/fuzz/corpus")).unwrap();
    let mut files: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    let mut names: Vec<String> = TARGETS
        .iter()
        .flat_map(|(name, _)| [format!("{name}.jsonl"), format!("{name}.seeds.jsonl")])
        .collect();
    let script = fs::read_to_string(root.join(".ci/fuzz")).unwrap();
    let all: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert!(script.contains(&format!("all=({})", all.join(" "))), "{all:?}");
    names.sort();
    assert_eq!(files, names);
}
