//! The record of the host's contract.

use std::path::PathBuf;

use serde_json::Value as Json;

/// Returns where the record lies.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/data")).join(name)
}

/// Returns a file of the record.
pub(crate) fn json(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap()
}

/// Returns the exact body of a recorded invocation.
pub(crate) fn body(name: &str) -> Vec<u8> {
    std::fs::read(path(&format!("requests/{name}.json"))).unwrap()
}

/// Returns a whole recorded request.
pub(crate) fn wire(name: &str, port: u16) -> String {
    let recorded = json(&format!("wire/{name}.json"));
    recorded["raw"].as_str().unwrap().replace("%PORT%", &port.to_string())
}
