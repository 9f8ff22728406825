//! PKG: the package, staged and zipped.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use highwater_fakehost::Invocation;
use serde_json::Value as Json;
use tokio::process::Command;

use crate::bench::{Bench, PROGRAM, failure};
use crate::data;

/// Stages the repository with the program under test.
pub(crate) async fn stage(folder: &Path) {
    let mut command = Command::new(PROGRAM);
    command.args(["package", "--binary", PROGRAM, "--from"]).arg(highwater_test_support::root());
    command.arg("--stage").arg(folder);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The shortest file that identifies itself as a static program for `machine`.
/// <https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html>
fn planted(machine: u16) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[16] = 2;
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[24] = 1;
    bytes
}

const X86_64: u16 = 62;
const AARCH64: u16 = 183;

/// Packages the repository's functions from `folder`.
async fn package(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).args(["package", "--binary", "program"]).args(arguments);
    command.output().await.unwrap()
}

/// A folder like the repository's, with a planted program.
fn project() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let repository = highwater_test_support::root();
    fs::copy(repository.join("host.json"), root.path().join("host.json")).unwrap();
    let from = repository.join("function-definitions/poll/function.json");
    let orders = root.path().join("function-definitions/orders");
    fs::create_dir_all(&orders).unwrap();
    let definition = fs::read_to_string(from).unwrap().replace("POLL_", "ORDERS_");
    fs::write(orders.join("function.json"), definition).unwrap();
    fs::write(root.path().join("program"), planted(X86_64)).unwrap();
    root
}

/// The content of a zip according to an independent reader: name, mode, whether it is a link, time.
const LIST: &str = "import json, sys, zipfile
archive = zipfile.ZipFile(sys.argv[1])
assert archive.testzip() is None
print(json.dumps([[i.filename, oct(i.external_attr >> 16 & 0o7777), i.external_attr >> 28,
  i.create_system, i.date_time[0]] for i in archive.infolist()]))";

pub(crate) async fn zip() {
    let root = project();
    for name in ["one.zip", "two.zip"] {
        let output = package(root.path(), &["--out", name]).await;
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    let bytes = |name: &str| fs::read(root.path().join(name)).unwrap();
    assert_eq!(bytes("one.zip"), bytes("two.zip"));
    let mut python = Command::new("python3");
    let output =
        python.arg("-c").arg(LIST).arg(root.path().join("one.zip")).output().await.unwrap();
    let listed: Json = serde_json::from_slice(&output.stdout).unwrap();
    let regular = |name: &str, mode: &str| serde_json::json!([name, mode, 8, 3, 1980]);
    let expected = [
        regular("LICENSE", "0o644"),
        regular("THIRD-PARTY-NOTICES", "0o644"),
        regular("handler", "0o755"),
        regular("host.json", "0o644"),
        regular("orders/function.json", "0o644"),
    ];
    assert_eq!(listed, Json::from(expected.to_vec()));
}

#[tokio::test]
async fn each_packaging_error_has_a_fix_and_leaves_no_zip() {
    let write = |root: &Path, name: &str, bytes: &[u8]| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let nested = "function-definitions/shop/orders/function.json";
    let settings = "function-definitions/orders/local.settings.json";
    for (name, bytes, expected) in [
        (
            "program",
            &planted(AARCH64)[..],
            "is built for aarch64, Azure Functions runs x86_64; build",
        ),
        ("program", &planted(X86_64)[..40], "is damaged"),
        ("program", &b"#!/bin/sh"[..], "is not a Linux program; build one with `.ci/deployable`"),
        ("host.json", &b"{\"version\":\"2.0\"}"[..], "must be exactly `handler`"),
        (nested, &b"{}"[..], "move its folder up"),
        (settings, &b"{}"[..], "move it out"),
        ("function-definitions/a b/function.json", &b"{}"[..], "the folder's name must be"),
        ("function-definitions/handler/function.json", TIMER, "rename the folder"),
    ] {
        let root = project();
        write(root.path(), name, bytes);
        let output = package(root.path(), &["--out", "app.zip"]).await;
        let result = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), result.contains(expected)), (Some(1), true), "{result}");
        assert!(!root.path().join("app.zip").exists() && output.stdout.is_empty());
    }
    let root = project();
    assert_eq!(package(root.path(), &[]).await.status.code(), Some(2), "nowhere to write to");
}

const TIMER: &[u8] = br#"{"bindings":[{"name":"timer","type":"timerTrigger","direction":"in","schedule":"0 * * * * *"}]}"#;

#[tokio::test]
async fn local_settings_map_functions_to_pollers_and_are_never_packaged() {
    let root = project();
    let example = highwater_test_support::root().join("local.settings.json.example");
    let text = fs::read_to_string(example).unwrap();
    let text = text
        .replace("__POLLERS__ORDERS__", "__POLLERS__INVOICES__")
        .replace("\"HIGHWATER__FUNCTIONS__POLL__POLLERS\": \"all\",", "")
        .replace("change me", "s3cret");
    fs::write(root.path().join("local.settings.json"), text).unwrap();
    let arguments = ["--settings", "local.settings.json", "--out", "app.zip", "--stage", "dist"];
    let refused = package(root.path(), &arguments).await;
    let result = String::from_utf8(refused.stderr).unwrap();
    assert!(result.contains("set `HIGHWATER__FUNCTIONS__ORDERS__POLLER`, or"), "{result}");
    fs::remove_dir_all(root.path().join("function-definitions")).unwrap();
    let output = package(root.path(), &arguments).await;
    let result = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && result.contains("setting `INVOICES_SCHEDULE`"), "{result}");
    let definition = fs::read(root.path().join("dist/invoices/function.json")).unwrap();
    let definition: Json = serde_json::from_slice(&definition).unwrap();
    assert_eq!(definition["bindings"][0]["schedule"], "%INVOICES_SCHEDULE%");
    assert!(!root.path().join("dist/local.settings.json").exists());
    for file in ["host.json", "invoices/function.json"] {
        let text = fs::read_to_string(root.path().join("dist").join(file)).unwrap();
        assert!(!text.contains("s3cret"), "{file}");
    }
    let zip = fs::read(root.path().join("app.zip")).unwrap();
    assert!(!zip.windows(14).any(|part| part == b"local.settings"));
}

/// `validate` and `package` use the same table of the host's behaviour.
#[tokio::test]
async fn packaging_reports_how_the_host_would_use_the_settings() {
    let root = project();
    let host = root.path().join("host.json");
    let mut json: Json = serde_json::from_slice(&fs::read(&host).unwrap()).unwrap();
    json["extensionBundle"] = serde_json::json!({ "id": "x", "version": "1" });
    json["httpWorker"] = serde_json::json!({});
    fs::write(&host, json.to_string()).unwrap();
    let names = ["AzureFunctionsJobHost__functions__0", "AzureWebJobs.orders.Disabled"];
    let run = async |settings: &[(&str, &str)], in_file: bool| {
        let mut command = Command::new(PROGRAM);
        command.current_dir(root.path()).env_clear();
        command.args(["package", "--binary", "program", "--stage", "dist"]);
        if in_file {
            let values: serde_json::Map<String, Json> =
                settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let file = root.path().join("local.settings.json");
            fs::write(file, serde_json::json!({ "Values": values }).to_string()).unwrap();
            command.args(["--settings", "local.settings.json"]);
        } else {
            command.envs(settings.iter().copied());
        }
        let output = command.output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, result) = run(&[], false).await;
    assert_eq!(code, Some(0), "{result}");
    for warning in ["`httpWorker` has no effect", "`extensionBundle` is not needed"] {
        assert!(result.contains(warning), "{result}");
    }
    // Settings of this machine may differ from those of the app.
    let (code, result) = run(&[(names[0], "x"), (names[1], "true")], false).await;
    assert_eq!(code, Some(0), "{result}");
    assert!(result.contains("do not name `orders`") && result.contains("turns this function off"));
    // Those of an explicitly named file apply.
    let (code, result) = run(&[(names[0], "x")], true).await;
    assert_eq!(code, Some(1), "{result}");
    assert!(result.contains("do not name `orders`") && result.contains(names[0]), "{result}");
    // A disabled function was disabled on purpose.
    let (code, result) = run(&[(names[1], "true")], true).await;
    assert!(code == Some(0) && result.contains("turns this function off"), "{result}");
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
    // The sample functions run the poller of these tests, whatever their names.
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
        if function == highwater::page::FUNCTION {
            let types: Vec<_> = bindings.iter().map(|binding| &binding["type"]).collect();
            assert_eq!(types, ["httpTrigger", "http"], "{function}");
            continue;
        }
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

/// The first step in README: all functions of the repository, with the settings of the example.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_repositorys_functions_can_be_packaged_with_the_example_settings() {
    let folder = tempfile::tempdir().unwrap();
    let repository = highwater_test_support::root();
    let mut command = Command::new(PROGRAM);
    command.arg("--settings").arg(repository.join("local.settings.json.example"));
    command.args(["package", "--binary", PROGRAM, "--from"]).arg(repository);
    command.arg("--stage").arg(folder.path());
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    for function in ["poll", "highwater_status"] {
        assert!(folder.path().join(function).join("function.json").is_file(), "{function}");
    }
}
