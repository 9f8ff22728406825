//! Helpers for the tests of several crates.

#![expect(clippy::unwrap_used, reason = "what fails here is to fail")]

pub mod json_schema;
pub mod raw;

use std::path::Path;

/// Returns the folder of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}
