//! State documents of earlier builds: this build reads them, and writes back all their fields.
//!
//! A file here is never changed. Each release that adds a field adds a file, as written by that release.

use std::fs;

use highwater::state::{decode, encode};
use serde_json::Value as Json;

/// Returns the first place where `written` lacks something that `read` had; additions are fine.
pub(crate) fn lost(read: &Json, written: &Json, place: &str) -> Option<String> {
    match (read, written) {
        (Json::Object(fields), Json::Object(others)) => fields.iter().find_map(|(name, value)| {
            let place = format!("{place}/{name}");
            // An absent field and a null one are equivalent to every reader.
            let other = others.get(name).unwrap_or(&Json::Null);
            lost(value, other, &place)
        }),
        (Json::Array(items), Json::Array(others)) if items.len() == others.len() => {
            let pairs = items.iter().zip(others).enumerate();
            pairs
                .into_iter()
                .find_map(|(n, (item, other))| lost(item, other, &format!("{place}/{n}")))
        }
        _ if read == written => None,
        _ => Some(format!("{place}: {read} became {written}")),
    }
}

#[test]
fn documents_of_earlier_builds_round_trip() {
    let folder = highwater_test_support::root().join("tests/it/documents");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let json: Json = serde_json::from_slice(&bytes).unwrap();
        let document = decode("orders", &bytes).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let written = encode(&document);
        let again: Json = serde_json::from_slice(&written).unwrap();
        assert_eq!(lost(&json, &again, ""), None, "{path:?}");
        assert_eq!(decode("orders", &written).unwrap(), document, "{path:?}");
        count += 1;
    }
    assert!(count >= 2);
}

#[test]
fn a_lost_field_is_detected() {
    let read = serde_json::json!({ "a": { "b": [1, { "c": 2 }] }, "d": null });
    for (written, expected) in [
        (serde_json::json!({ "a": { "b": [1, { "c": 2, "new": 0 }] } }), None),
        (serde_json::json!({ "a": { "b": [1, { "c": 3 }] } }), Some("/a/b/1/c: 2 became 3")),
        (serde_json::json!({ "a": {} }), Some("/a/b: [1,{\"c\":2}] became null")),
    ] {
        assert_eq!(lost(&read, &written, "").as_deref(), expected);
    }
}
