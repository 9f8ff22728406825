//! The command `demo`, run like by a script, also from the Python and npm packages.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_highwater");

fn demo(temporary: &Path, arguments: &[&str]) -> Command {
    demo_of(Path::new(PROGRAM), temporary, arguments)
}

fn demo_of(program: &Path, temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    // The user's own settings must not reach the demo's processes.
    command.env("TMPDIR", temporary).env("HIGHWATER__POLLERS__FLIGHTS__SOURCE__MODE", "wrong");
    command.arg("demo").args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the number on the line of the table that starts with `name`.
fn number(table: &str, name: &str) -> u64 {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(name));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    words.first().unwrap().replace(',', "").parse().unwrap()
}

/// Fails if the demo has left a folder or a process.
#[track_caller]
fn nothing_is_left(temporary: &Path) {
    let left: Vec<_> = fs::read_dir(temporary).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // Without such a folder, processes are not checked.
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        let ours = environment.contains(temporary.to_str().unwrap());
        assert!(!ours, "{} is left", process.path().display());
    }
}

#[test]
fn the_demo_loses_nothing_and_says_so() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(temporary.path(), &["--rows", "6000"]).output().unwrap();
    let (table, printed) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{table}{printed}");
    let is_nothing_lost = |line: &str| line.split_whitespace().eq(["lost", "0"]);
    assert!(table.lines().any(is_nothing_lost), "{table}");
    let written = number(&table, "rows written");
    assert!(written > 6_000, "some rows are written twice: {table}");
    // `delivered` starts two lines; this is the first one.
    assert_eq!(number(&table, "delivered"), written, "{table}");
    let again = number(&table, "delivered again");
    let by_cause = ["failed call", "killed process", "other"].map(|cause| number(&table, cause));
    assert_eq!(by_cause, [500, 500, 0], "{table}");
    assert_eq!(again, by_cause.iter().sum::<u64>(), "{table}");
    assert!(number(&table, "storage calls") > 0 && number(&table, "rows per second") > 0);
    assert!(!printed.contains('\u{1b}'), "no progress bar without a terminal: {printed}");
    nothing_is_left(temporary.path());
}

#[test]
fn an_interrupted_demo_leaves_no_files() {
    let temporary = tempfile::tempdir().unwrap();
    let mut child = demo(temporary.path(), &["--verbose"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let started = lines.any(|line| line.unwrap().contains(r#""event":"started""#));
    assert!(started, "no handler process reported its start");
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    nothing_is_left(temporary.path());
}

#[test]
fn more_rows_than_the_demo_has_are_rejected() {
    let temporary = tempfile::tempdir().unwrap();
    for rows in ["0", "99", "27005", "all"] {
        let output = demo(temporary.path(), &["--rows", rows]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{rows}");
    }
}

/// Runs a command that must succeed, and returns its output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Installs the Python and npm packages of this build without a network, and uses the programs.
#[test]
fn installed_packages_run_the_demo_and_stage_their_handler() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Symbols are most of a debug build.
    run(Command::new("strip").arg("-o").arg(at("highwater")).arg(PROGRAM));
    fs::write(at("handler"), "what is deployed").unwrap();
    let pack = || {
        let script = highwater_test_support::root().join(".ci/installers.py");
        let [program, handler, out] = ["highwater", "handler", "packages"].map(at);
        run(Command::new("python3").arg(script).args([program, handler, out]))
    };
    let packed = pack();
    let files: Vec<&Path> = packed.lines().map(Path::new).collect();
    let [wheel, program, launcher] = files[..] else { panic!("{packed}") };
    let bytes = fs::read(wheel).unwrap();
    pack();
    assert!(fs::read(wheel).unwrap() == bytes, "the same input gives the same bytes");

    run(Command::new("python3").args(["-m", "venv"]).arg(at("python")));
    let quiet = ["install", "--quiet", "--no-index", "--disable-pip-version-check"];
    run(Command::new(at("python/bin/pip")).args(quiet).arg(wheel));
    let quiet = ["install", "--offline", "--no-audit", "--no-fund", "--prefix"];
    run(Command::new("npm").args(quiet).arg(at("node")).args([program, launcher]));

    for installed in [at("python/bin/highwater"), at("node/node_modules/.bin/highwater")] {
        let temporary = tempfile::tempdir().unwrap();
        let table = run(&mut demo_of(&installed, temporary.path(), &["--rows", "1000"]));
        let is_nothing_lost = |line: &str| line.split_whitespace().eq(["lost", "0"]);
        assert!(table.lines().any(is_nothing_lost), "{table}");
        nothing_is_left(temporary.path());

        let stage = at("stage");
        let from = highwater_test_support::root();
        run(Command::new(&installed)
            .args(["package", "--stage"])
            .arg(&stage)
            .arg("--from")
            .arg(from));
        assert_eq!(fs::read_to_string(stage.join("handler")).unwrap(), "what is deployed");
        fs::remove_dir_all(stage).unwrap();
    }
}
