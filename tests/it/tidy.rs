//! Checks the shape of the source itself: who may import whom, who may name which crate, how long a
//! file may be, and how it is formatted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The import map: module, modules of this crate that it may name, crates that it may name beside
/// `std`, `serde`, `serde_json`, `thiserror`, `tracing`, `async_trait`, `time` and `tokio::time`.
///
/// A module stands for all below it unless a longer path has a line of its own. Imports point
/// downwards only: a line may name what stands above it, and no line names a line below.
const MAP: &[(&str, &[&str], &[&str])] = &[
    // Vocabulary.
    ("clock", &[], &[]),
    ("redaction", &[], &["base64"]),
    ("error", &["redaction"], &[]),
    ("repeats", &[], &[]),
    ("suggestion", &[], &[]),
    ("value", &[], &["base64", "itoa"]),
    ("partition", &[], &[]),
    ("cursor", &[], &["sha2"]),
    ("event", &["cursor", "value"], &["sha2"]),
    ("trace", &["clock"], &["opentelemetry", "tracing_subscriber", "uuid"]),
    // Pure rules and ports.
    ("state", &["cursor", "error", "event", "partition", "trace"], &[]),
    ("policy", &[], &[]),
    ("schedule", &[], &["croner", "tz"]),
    ("journal", &["cursor", "event", "state", "trace"], &[]),
    (
        "config",
        &["cursor", "journal", "partition", "policy", "redaction", "state"],
        &["base64", "secrecy", "tracing_subscriber", "url"],
    ),
    ("source", &["cursor", "error", "event", "value"], &[]),
    ("range", &["cursor"], &[]),
    ("quarantine", &["cursor", "event", "state"], &[]),
    ("handler", &["event", "redaction", "state"], &[]),
    ("normalize", &["cursor", "event", "source", "value"], &[]),
    // Engine.
    ("metrics", &[], &["opentelemetry"]),
    ("lease", &["cursor", "event", "journal", "metrics", "state"], &[]),
    ("doctor", &["clock", "cursor", "error", "event", "range", "source", "state"], &[]),
    (
        "poller",
        &[
            "cursor",
            "error",
            "event",
            "handler",
            "journal",
            "lease",
            "metrics",
            "normalize",
            "partition",
            "policy",
            "quarantine",
            "range",
            "repeats",
            "source",
            "state",
            "trace",
        ],
        &["tokio::sync"],
    ),
    (
        "recovery",
        &["cursor", "error", "event", "journal", "lease", "metrics", "poller", "state"],
        &["futures_util", "tokio::sync"],
    ),
    ("repartition", &["cursor", "partition", "poller", "state"], &[]),
    (
        "status",
        &[
            "cursor",
            "doctor",
            "error",
            "journal",
            "partition",
            "poller",
            "recovery",
            "schedule",
            "state",
        ],
        &["futures_util"],
    ),
    // Adapters: a port, their own crate, and nothing of each other.
    ("journal::appender", &["state", "trace"], &[]),
    ("journal::conformance", &["state"], &["tokio::spawn"]),
    ("journal::file", &["state"], &[]),
    ("journal::memory", &["state"], &[]),
    ("state::memory", &["clock"], &[]),
    ("state::local", &[], &["tokio::task"]),
    ("state::date_check", &["clock"], &[]),
    ("state::file", &["clock", "cursor"], &["sha2"]),
    (
        "azure",
        &["clock", "config", "error", "redaction"],
        &[
            "azure_*",
            "base64",
            "futures_util",
            "reqwest",
            "rustls",
            "secrecy",
            "tokio::sync",
            "url",
        ],
    ),
    ("state::container", &["azure"], &["azure_*", "futures_util", "tokio::sync"]),
    ("state::blob", &["azure"], &["azure_*"]),
    ("journal::blob", &["azure", "state"], &["azure_*"]),
    ("state::conformance", &["event"], &["tokio::spawn", "tokio::task"]),
    (
        "mssql",
        &["config", "error", "redaction"],
        &["azure_core", "futures_util", "secrecy", "tiberius", "tokio::net", "tokio_util"],
    ),
    (
        "state::sql",
        &["config", "cursor", "error", "mssql"],
        &["azure_core", "tiberius", "tokio::sync"],
    ),
    ("journal::sql", &["mssql", "state"], &["tiberius"]),
    (
        "source::mssql",
        &[
            "clock",
            "config",
            "cursor",
            "doctor",
            "error",
            "event",
            "metrics",
            "mssql",
            "partition",
            "source",
            "trace",
            "value",
        ],
        &["azure_core", "base64", "itoa", "tiberius", "tokio::sync"],
    ),
    ("handler::tries", &["handler"], &[]),
    ("handler::paced", &["handler"], &[]),
    ("handler::envelope", &["event", "handler"], &["hyper"]),
    ("handler::testing::raw", &[], &["tokio::io", "tokio::net", "tokio::spawn"]),
    ("handler::storage", &["azure", "handler"], &[]),
    ("handler::traced", &["handler", "trace"], &[]),
    (
        "handler::blob",
        &["azure", "config", "event", "handler"],
        &["azure_core", "azure_storage_blob", "tokio::sync"],
    ),
    (
        "handler::queue",
        &["azure", "config", "event", "handler"],
        &["azure_core", "azure_storage_queue", "base64", "tokio::sync"],
    ),
    (
        "handler::durable",
        &["config", "error", "event", "handler", "redaction"],
        &["reqwest", "secrecy", "url"],
    ),
    (
        "handler::exec",
        &["config", "event", "handler", "redaction"],
        &["rustix", "tokio::io", "tokio::process", "tokio::signal"],
    ),
    ("handler::chain", &["handler"], &[]),
    (
        "handler::http",
        &[
            "azure",
            "clock",
            "config",
            "cursor",
            "error",
            "event",
            "handler",
            "redaction",
            "state",
            "trace",
        ],
        &[
            "base64",
            "flate2",
            "futures_util",
            "hmac",
            "hyper",
            "reqwest",
            "secrecy",
            "sha2",
            "tokio::task",
            "url",
        ],
    ),
    (
        "handler::sql",
        &["config", "error", "event", "handler", "metrics", "mssql", "state"],
        &["azure_core", "base64", "tiberius", "tokio::sync"],
    ),
    ("handler::stdout", &["error", "event", "handler"], &["rustix", "tokio::io", "tokio::sync"]),
    ("handler::testing", &["cursor", "event", "handler", "state", "value"], &[]),
    // Edges.
    (
        "telemetry",
        &["clock", "config", "error", "metrics", "redaction", "suggestion", "trace"],
        &[
            "axum",
            "flate2",
            "opentelemetry*",
            "prost",
            "reqwest",
            "tokio::net",
            "tokio::runtime",
            "tokio::spawn",
            "tokio::sync",
            "tokio::task",
            "tracing_subscriber",
            "url",
            "uuid",
        ],
    ),
    (
        "page",
        &["cursor", "error", "event", "poller", "redaction", "state", "status"],
        &["axum", "base64", "sha2", "tokio::net", "tokio::spawn", "tokio::sync", "url", "uuid"],
    ),
    (
        "host",
        &[
            "clock",
            "error",
            "metrics",
            "page",
            "poller",
            "recovery",
            "redaction",
            "repeats",
            "status",
            "telemetry",
            "trace",
        ],
        &["axum", "hyper", "tokio::net", "tokio::spawn", "tokio::sync", "url", "uuid"],
    ),
    ("project", &["config", "schedule"], &["jsonc_parser"]),
    ("timers", &["clock", "schedule"], &["tokio::spawn", "tokio::sync", "tokio::task"]),
    ("package", &["config", "page", "partition", "project", "recovery"], &["flate2", "zip"]),
    // The development stand-in knows nothing of the product.
    ("devdb", &[], &["rcgen", "rusqlite", "rustls", "sha2", "tokio", "tokio_rustls", "uuid"]),
    (
        "testing",
        &[
            "cursor",
            "error",
            "event",
            "handler",
            "journal",
            "lease",
            "metrics",
            "partition",
            "policy",
            "poller",
            "quarantine",
            "source",
            "state",
            "value",
        ],
        &["opentelemetry*", "tokio::spawn", "tracing_subscriber"],
    ),
];

/// Composition and what stands above it may name anything.
const ABOVE_THE_MAP: &[&str] = &["app", "cli", "demo", "fakehost", "lib", "main", "race"];

/// Crates that every module may name.
const COMMON: &[&str] = &[
    "std",
    "core",
    "serde",
    "serde_json",
    "thiserror",
    "tracing",
    "async_trait",
    "time",
    "tokio::time",
    "tokio::select",
    "tokio::pin",
    "tokio::test",
    "tokio::join",
];

/// Crates of `Cargo.toml` that a path may begin with.
const CRATES: &[&str] = &[
    "axum",
    "azure_core",
    "azure_identity",
    "azure_storage_blob",
    "azure_storage_queue",
    "base64",
    "clap",
    "clap_complete",
    "clap_mangen",
    "croner",
    "flate2",
    "futures_util",
    "hmac",
    "hyper",
    "indicatif",
    "itoa",
    "jsonc_parser",
    "opentelemetry",
    "opentelemetry_proto",
    "opentelemetry_sdk",
    "prost",
    "rcgen",
    "reqwest",
    "rusqlite",
    "rustix",
    "rustls",
    "secrecy",
    "sha2",
    "tiberius",
    "tokio",
    "tokio_rustls",
    "tokio_util",
    "tracing_subscriber",
    "tz",
    "url",
    "uuid",
    "zip",
];

struct SourceFile {
    relative: PathBuf,
    module: String,
    /// Without the tests at its end.
    code: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn source_files() -> Vec<SourceFile> {
    let mut files = Vec::new();
    visit(&root().join("src"), &mut |path| {
        let relative = path.strip_prefix(root().join("src")).unwrap().to_owned();
        let name = relative.with_extension("").to_string_lossy().replace('/', "::");
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap().to_owned();
        files.push(SourceFile { relative, module: name, code });
    });
    files
}

fn visit(folder: &Path, seen: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, seen);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            seen(&path);
        }
    }
}

fn is_test(file: &SourceFile) -> bool {
    file.module.ends_with("::tests") || file.module.contains("::tests::")
}

/// Returns the line of the map for a module: the longest that it lies in.
fn line_of(
    module: &str,
) -> Option<&'static (&'static str, &'static [&'static str], &'static [&'static str])> {
    let lies_in = |name: &str| module == name || module.starts_with(&format!("{name}::"));
    MAP.iter().filter(|(name, ..)| lies_in(name)).max_by_key(|(name, ..)| name.len())
}

/// Returns lines of code with their numbers; comments, which may name anything, are left out.
fn code_lines(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = code.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[test]
fn modules_name_only_what_the_map_allows() {
    let mut offences = Vec::new();
    for file in source_files().iter().filter(|file| !is_test(file)) {
        let top = file.module.split("::").next().unwrap();
        if ABOVE_THE_MAP.contains(&top) {
            continue;
        }
        let Some((name, modules, crates)) = line_of(&file.module) else {
            offences.push(format!("{}: not in the map", file.relative.display()));
            continue;
        };
        let own = name.split("::").next().unwrap();
        for (number, line) in code_lines(&file.code) {
            let at = format!("{}:{number}", file.relative.display());
            for used in line.split("crate::").skip(1).map(identifier) {
                if used != own && !modules.contains(&used.as_str()) {
                    offences.push(format!("{at}: `{name}` may not name `crate::{used}`"));
                }
            }
            for path in paths(line) {
                let allowed = |list: &[&str]| list.iter().any(|entry| matches(entry, &path));
                if !allowed(COMMON) && !allowed(crates) {
                    offences.push(format!("{at}: `{name}` may not name `{path}`"));
                }
            }
        }
    }
    assert!(offences.is_empty(), "\n{}", offences.join("\n"));
}

/// Returns the paths of a line that begin with a crate, such as `tokio::net`.
fn paths(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, _) in line.match_indices("::") {
        let before: String = line[..index]
            .chars()
            .rev()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect();
        let is_inner = line[..index - before.len()].ends_with("::");
        if !is_inner && CRATES.contains(&before.as_str()) {
            found.push(format!("{before}::{}", identifier(&line[index + 2..])));
        }
    }
    found
}

/// Whether an entry such as `tokio::net`, `axum` or `azure_*` covers a path such as `tokio::net`.
fn matches(entry: &str, path: &str) -> bool {
    if let Some(prefix) = entry.strip_suffix('*') {
        return path.starts_with(prefix);
    }
    path == entry || path.split("::").next() == Some(entry)
}

#[test]
fn the_map_points_downwards_only() {
    for (index, (name, modules, _)) in MAP.iter().enumerate() {
        for used in *modules {
            let position = MAP.iter().position(|(other, ..)| other == used);
            assert!(position.is_some_and(|at| at < index), "`{name}` names `{used}` below it");
        }
    }
}

#[test]
fn every_crate_of_the_manifest_is_known_to_the_map() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap();
    let dependencies = dependencies.split("\n[").next().unwrap();
    for line in dependencies.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, _)) = line.split_once(" = ") else { continue };
        let name = name.replace('-', "_");
        // Chosen for other crates by its version; no module names it.
        let is_named = name != "idna_adapter";
        let known = CRATES.contains(&name.as_str()) || COMMON.contains(&name.as_str()) || !is_named;
        assert!(known, "`{name}` is not known to the import map");
    }
}

#[test]
fn the_source_is_formatted() {
    let output = Command::new(env!("CARGO"))
        .args(["fmt", "--all", "--check"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn no_file_names_a_machine_path_or_a_download_host() {
    let tracked = Command::new("git").args(["ls-files"]).current_dir(root()).output().unwrap();
    let banned =
        [concat!("registry.", "npmjs"), concat!("index.", "crates"), concat!("/wo", "rk/")];
    for name in String::from_utf8_lossy(&tracked.stdout).lines() {
        let Ok(text) = fs::read_to_string(root().join(name)) else { continue };
        for word in banned {
            assert!(!text.contains(word), "{name} names `{word}`");
        }
    }
}
