//! Runs the target that the variable `FUZZ_TARGET` names under libFuzzer, which provides `main`: `.ci/fuzz`.
#![no_main]

use std::sync::LazyLock;

use highwater::config::{ProcessVars, Vars as _};

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = ProcessVars.get("FUZZ_TARGET").unwrap_or_default();
    highwater_fuzz::target(&name).unwrap_or_else(|| panic!("`{name}` is no target"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET(input));
