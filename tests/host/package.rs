//! PKG: the staged folder.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use highwater::fakehost::Invocation;
use tokio::process::Command;

use crate::bench::{Bench, PROGRAM, failure};
use crate::data;

/// Stages the repository with the program under test.
async fn stage(folder: &Path) {
    let mut command = Command::new(PROGRAM);
    command.args(["package", "--from", env!("CARGO_MANIFEST_DIR"), "--stage"]).arg(folder);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn functions(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

pub(crate) async fn layout() {
    let root = tempfile::tempdir().unwrap();
    let dist = root.path().join("dist");
    stage(&dist).await;
    let handler = dist.join("handler");
    assert_eq!(fs::metadata(&handler).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(fs::read(&handler).unwrap().starts_with(b"\x7fELF"));
    assert!(dist.join("host.json").is_file());
    let functions = functions(&dist);
    assert!(!functions.is_empty());
    let mut files = vec![handler, dist.join("host.json"), dist.clone()];
    for name in functions {
        let first = name.starts_with(|first: char| first.is_ascii_alphabetic());
        let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        assert!(first && rest && name.len() <= 128 && name != "host", "{name}");
        files.push(dist.join(&name).join("function.json"));
    }
    for file in files {
        assert!(!fs::symlink_metadata(&file).unwrap().is_symlink(), "{}", file.display());
    }
}

pub(crate) async fn routes() {
    let root = tempfile::tempdir().unwrap();
    let dist = root.path().join("dist");
    stage(&dist).await;
    let mut bench = Bench::new().await;
    bench.options.root.clone_from(&dist);
    bench.options.program = dist.join("handler");
    let functions = functions(&dist);
    // The sample functions run the poller of these tests, whatever they are called.
    let ours = [highwater::recovery::FUNCTION, highwater::page::FUNCTION];
    for function in functions.iter().filter(|name| !ours.contains(&name.as_str())) {
        let segment = function.to_ascii_uppercase().replace('-', "_");
        bench.set_env(&format!("HIGHWATER__FUNCTIONS__{segment}__POLLER"), "nightly");
    }
    let host = bench.host().await;
    for function in &functions {
        let outcome = host.invoke(Invocation::new(function, data::body("01_scheduled"))).await;
        assert!(outcome.verdict.is_success(), "{outcome:?}");
    }
    let outcome = host.invoke(Invocation::new("not_there", data::body("01_scheduled"))).await;
    assert!(failure(&outcome).contains(" 404 ("), "{outcome:?}");
    for function in functions {
        let definition = fs::read(dist.join(&function).join("function.json")).unwrap();
        let definition: serde_json::Value = serde_json::from_slice(&definition).unwrap();
        let bindings = definition["bindings"].as_array().unwrap();
        assert_eq!(bindings.len(), 1, "{function}");
        assert_eq!(bindings[0]["type"], "timerTrigger", "{function}");
        let name = bindings[0]["name"].as_str().unwrap();
        assert!(name.starts_with(|first: char| first.is_ascii_alphabetic()), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        let schedule = bindings[0]["schedule"].as_str().unwrap();
        let is_setting = schedule.starts_with('%') && schedule.ends_with('%');
        assert!(is_setting || schedule.split_whitespace().count() == 6, "{schedule}");
    }
}
