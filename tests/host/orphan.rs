//! ORPHAN: the behaviour of a handler whose host is gone.

use std::io::pipe;
use std::process::Stdio;
use std::time::Duration;

use highwater_fakehost::{Connection, Signal, free_port};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::bench::{Bench, LIMIT, PROGRAM, exchange, within};
use crate::data;
use crate::receiver::Answer;
use crate::stop::exec_that_holds_a_pipe;

/// Returns a command with the variables that a host sets for its handler on `port`.
fn hosted(bench: &Bench, program: &str, port: u16) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(&bench.env)
        .env("FUNCTIONS_CUSTOMHANDLER_PORT", port.to_string())
        .env("FUNCTIONS_CUSTOMHANDLER_WORKER_ID", "a-worker")
        .env("FUNCTIONS_APP_ROOT_PATH", &bench.options.root)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Starts a shell in place of the host: it starts the handler, and prints its id. Its output goes to a file,
/// so that only the shell's exit shows that it is gone.
async fn shell_over_a_handler(bench: &Bench, port: u16) -> (Child, u32) {
    let mut shell = hosted(bench, "/bin/sh", port);
    let log = bench.folder.path().join("log");
    shell.args(["-c", r#""$0" serve > "$1" 2>&1 & echo $!; wait"#, PROGRAM]).arg(log);
    let mut shell = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    let id = within(LIMIT, lines.next_line()).await.unwrap().unwrap();
    (shell, id.parse().unwrap())
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, looks).await.is_ok(), "{what}");
}

async fn answers(port: u16) -> bool {
    let Ok(mut connection) = Connection::open(port).await else { return false };
    connection.ping().await.is_ok()
}

/// Whether a process runs; a zombie does not count.
pub(crate) fn runs(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_frees_its_port_finishes_its_batch_and_exits() {
    let mut bench = Bench::with_rows(1..=2).await;
    bench.set("BATCH_ROWS_MAX", "1");
    bench.set_env("HIGHWATER__STOP_GRACE", "2s");
    bench.receiver.script(&[Answer::Hold]);
    let port = free_port().unwrap();
    let (mut shell, orphan) = shell_over_a_handler(&bench, port).await;
    until("it answers", async || answers(port).await).await;
    let request = data::wire("invoke_chunked", port);
    // The caller goes away with its host.
    let call = tokio::spawn(async move { exchange(port, &request).await.map(drop) });
    bench.receiver.arrived(1).await;
    shell.kill().await.unwrap();
    until("it closes its port", async || Connection::open(port).await.is_err()).await;

    // Another host has the same port, and its handler waits for the lease.
    let next = hosted(&bench, PROGRAM, port).arg("serve").stdout(Stdio::piped()).spawn().unwrap();
    until("the next one answers", async || answers(port).await).await;
    let request = data::wire("invoke_chunked", port);
    let (_, reply) = exchange(port, &request).await.unwrap();
    let body = String::from_utf8(reply.body).unwrap();
    assert!(body.contains("skipped: lease held by"), "{body}");
    // Longer than the grace period, which only applies to requested stops.
    sleep(Duration::from_secs(3)).await;
    assert!(runs(orphan), "it has the time of its tick");
    bench.receiver.release();
    until("it ends", async || !runs(orphan)).await;
    assert_eq!(bench.receiver.accepted(), [1], "it starts no other batch");
    let state = bench.state();
    assert!(state["lease"]["released_at"].is_string(), "{state}");
    let (_, reply) = exchange(port, &request).await.unwrap();
    assert!(String::from_utf8(reply.body).unwrap().contains("committed 1 row"));
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    let log = std::fs::read_to_string(bench.folder.path().join("log")).unwrap();
    assert_eq!(log.matches("\"host_gone\"").count(), 1, "{log}");
    call.abort();
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_gone_before_the_first_check_is_detected() {
    let bench = Bench::with_rows(1..=1).await;
    for to_stderr in [false, true] {
        let port = free_port().unwrap();
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut handler = hosted(&bench, PROGRAM, port);
        handler.arg("serve").stdout(Stdio::null()).stderr(Stdio::null());
        if to_stderr {
            handler.stderr(writer)
        } else {
            handler.stdout(writer)
        };
        let mut handler = handler.spawn().unwrap();
        within(LIMIT, handler.wait()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_host_is_detected_behind_a_wrapper_script() {
    let bench = Bench::with_rows(1..=1).await;
    let port = free_port().unwrap();
    let (reader, writer) = pipe().unwrap();
    let mut shell = hosted(&bench, "/bin/sh", port);
    shell.args(["-c", r#""$0" serve; exit 0"#, PROGRAM]).stdout(writer).stderr(Stdio::null());
    let mut running = shell.spawn().unwrap();
    drop(shell);
    until("it answers", async || answers(port).await).await;
    assert!(running.try_wait().unwrap().is_none());
    drop(reader);
    within(LIMIT, running.wait()).await.unwrap();
    assert!(!answers(port).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_processes_end_with_a_killed_handler() {
    let mut bench = Bench::with_rows(1..=1).await;
    let pipe = bench.folder.path().join("up");
    let (first, rest) = exec_that_holds_a_pipe(&mut bench, &pipe);
    let host = bench.host().await;
    let (_, ()) = tokio::join!(host.run(), async {
        let line = within(LIMIT, first).await;
        assert_eq!(line.as_deref(), Ok("up\n"), "the process opens its pipe");
        host.signal(Signal::Kill).await.unwrap();
        let rest = within(LIMIT, rest).await;
        assert_eq!(rest.as_deref(), Ok(""), "killed with the program");
    });
}
