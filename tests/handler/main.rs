//! The deployed program: under a host, in each of its modes, and its dependencies.
//!
//! `tests/host` checks the host's contract with the program `highwater`, which serves by the same function.

#![expect(
    clippy::unwrap_used,
    reason = "a test may panic; `allow-*-in-tests` does not reach helper functions"
)]

mod dependencies;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use highwater_devdb::{Database, Options as ServerOptions, Server};
use highwater_fakehost::{EXIT_CODE_RESTART, FakeHost, Invocation, Options, Phase, Signal};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_handler");
/// Longer than any step of these tests.
const LIMIT: Duration = Duration::from_secs(20);

/// A database with one row, and the settings of a poller that delivers it to a process.
struct Bench {
    folder: TempDir,
    options: Options,
    _server: Server,
}

impl Bench {
    async fn new(script: &str, argument: &Path, folder: TempDir) -> Self {
        let database = Database::in_memory().unwrap();
        database
            .execute("CREATE TABLE dbo.orders (id int NOT NULL PRIMARY KEY, version rowversion NOT NULL)")
            .unwrap();
        database.execute("INSERT INTO dbo.orders (id) VALUES (1)").unwrap();
        let server = ServerOptions { tls: false, ..ServerOptions::default() };
        let server = Server::start(database, server).await.unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("nightly")).unwrap();
        std::fs::create_dir_all(folder.path().join("state")).unwrap();
        let config = highwater_test_support::root().join("tests/host/data/config");
        for file in ["host.json", "nightly/function.json"] {
            std::fs::copy(config.join(file), root.join(file)).unwrap();
        }
        let mut options =
            Options { inherit_env: false, terminate_first: true, ..Options::new(PROGRAM, root) };
        let command = serde_json::json!(["/bin/sh", "-c", script, argument.to_str().unwrap()]);
        for (name, value) in [
            ("SqlConnection", server.connection_string()),
            ("HIGHWATER__STATE__STORE", "file".to_owned()),
            ("HIGHWATER__STATE__FOLDER", folder.path().display().to_string()),
            ("HIGHWATER__POLLERS__NIGHTLY__SOURCE__CONNECTION", "SqlConnection".to_owned()),
            ("HIGHWATER__POLLERS__NIGHTLY__SOURCE__TABLE", "dbo.orders".to_owned()),
            ("HIGHWATER__POLLERS__NIGHTLY__SOURCE__CURSOR", "version".to_owned()),
            ("HIGHWATER__POLLERS__NIGHTLY__SOURCE__KEY", "id".to_owned()),
            ("HIGHWATER__POLLERS__NIGHTLY__HANDLER__KIND", "exec".to_owned()),
            ("HIGHWATER__POLLERS__NIGHTLY__HANDLER__COMMAND", command.to_string()),
        ] {
            options.env.insert(name.to_owned(), value);
        }
        Self { folder, options, _server: server }
    }

    async fn host(&self, arguments: &[&str]) -> FakeHost {
        let arguments = arguments.iter().map(Into::into).collect();
        let host = FakeHost::start(Options { arguments, ..self.options.clone() }).unwrap();
        let phase = host.ready(1).await;
        assert!(matches!(phase, Phase::Ready { .. }), "{phase:?} {:#?}", host.journal().records());
        host
    }
}

fn invocation() -> Invocation {
    let body = highwater_test_support::root().join("tests/host/data/requests/01_scheduled.json");
    Invocation::new("nightly", std::fs::read(body).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_starts_it_with_serve_or_without_and_rows_arrive() {
    for arguments in [&[][..], &["serve"]] {
        let folder = tempfile::tempdir().unwrap();
        let batch = folder.path().join("batch");
        let bench = Bench::new("cat > \"$0\"", &batch, folder).await;
        let host = bench.host(arguments).await;
        let outcome = host.invoke(invocation()).await;
        assert!(outcome.verdict.is_success(), "{outcome:?}");
        let batch = std::fs::read_to_string(&batch).unwrap();
        assert!(batch.contains("\"id\":1"), "{batch}");
        assert!(bench.folder.path().join("state/local/nightly.json").is_file());
        let exit = host.stop().await.expect("it exits on request");
        assert_eq!(exit.code, EXIT_CODE_RESTART);
    }
}

/// Reads a named pipe in a separate thread, because opening one blocks until it has a writer. Returns its
/// first line as soon as it arrives, and then the rest.
fn read_pipe(path: &Path) -> (Receiver<String>, Receiver<String>) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let ((send_first, first), (send_rest, rest)) = (channel(), channel());
    let path = path.to_owned();
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(File::open(path).unwrap());
        let (mut line, mut text) = (String::new(), String::new());
        pipe.read_line(&mut line).unwrap();
        // A test that no longer listens has already failed.
        drop(send_first.send(line));
        pipe.read_to_string(&mut text).unwrap();
        drop(send_rest.send(text));
    });
    (first, rest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_handler_kills_its_exec_process() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let (first, rest) = read_pipe(&pipe);
    let script = "read -r batch; (echo up; sleep 60; echo orphan) > \"$0\" & wait";
    let bench = Bench::new(script, &pipe, folder).await;
    let host = bench.host(&[]).await;
    let receive = async |lines: Receiver<String>| {
        tokio::task::spawn_blocking(move || lines.recv_timeout(LIMIT)).await.unwrap()
    };
    let (outcome, ()) = tokio::join!(host.invoke(invocation()), async {
        assert_eq!(receive(first).await.as_deref(), Ok("up\n"));
        host.signal(Signal::Kill).await.unwrap();
        assert_eq!(receive(rest).await.as_deref(), Ok(""), "the watcher has killed it");
    });
    assert!(!outcome.verdict.is_success(), "{outcome:?}");
    host.kill().await;
}

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).env_clear().output().unwrap()
}

#[test]
fn commands_are_rejected_with_the_name_of_the_program_that_has_them() {
    for arguments in [&["status"][..], &["serve", "--verbose"], &["--version"]] {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{text}");
        let argument = arguments[arguments.len() - 1];
        assert!(text.contains(&format!("unexpected argument `{argument}`")), "{text}");
        assert!(text.contains("the program `highwater`"), "{text}");
    }
}

#[test]
fn outside_a_host_the_error_names_the_port_setting() {
    let output = run(&[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("`FUNCTIONS_CUSTOMHANDLER_PORT`"), "{text}");
}
