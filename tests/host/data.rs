//! The record of the host's contract.

use std::path::PathBuf;

use serde_json::Value as Json;

/// Returns the path of the record.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/host/data")).join(name)
}

/// Returns a file of the record.
pub(crate) fn json(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap()
}

/// Returns the exact body of a recorded invocation.
pub(crate) fn body(name: &str) -> Vec<u8> {
    std::fs::read(path(&format!("requests/{name}.json"))).unwrap()
}

/// Returns the names and the contents of all requests recorded from the real host.
pub(crate) fn recorded_requests() -> Vec<(String, Json)> {
    let files = std::fs::read_dir(path("recorded/wire")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.into_iter().map(|name| (name.clone(), json(&format!("recorded/wire/{name}")))).collect()
}

/// Returns a complete request as the host sends it.
pub(crate) fn wire(name: &str, port: u16) -> String {
    raw(&json(&format!("wire/{name}.json")), port)
}

/// Returns the bytes of a request for a port.
pub(crate) fn raw(request: &Json, port: u16) -> String {
    request["raw"].as_str().unwrap().replace("%PORT%", &port.to_string())
}
