//! The handler `stdout` over real descriptors: rows that cannot be read are not acknowledged.

use std::process::{Output, Stdio};

use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;

use crate::bench::{Bench, LIMIT, PROGRAM, within};

const ROWS: i64 = 3_000;

/// More rows in one batch than fit into a pipe.
async fn bench() -> Bench {
    let mut bench = Bench::new().await;
    let values: Vec<String> = (1..=ROWS).map(|id| format!("({id}, N'item {id}')")).collect();
    for values in values.chunks(500) {
        let sql = format!("INSERT INTO dbo.orders (id, item) VALUES {}", values.join(", "));
        bench.database.execute(&sql).unwrap();
    }
    bench.env.retain(|name, _| !name.contains("__HANDLER__"));
    bench.set("HANDLER__KIND", "stdout");
    bench.set("BATCH_ROWS_MAX", &ROWS.to_string());
    bench.set("RETRY_DELAY_MIN", "1ms");
    bench.set("RETRY_DELAY_MAX", "1ms");
    bench
}

fn tick(bench: &Bench) -> Command {
    command(bench, &["tick", "nightly"])
}

fn command(bench: &Bench, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments);
    with_env(command, bench)
}

/// Returns a command whose standard output is closed.
fn without_stdout(bench: &Bench, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" >&-"#, PROGRAM]).args(arguments);
    with_env(command, bench)
}

fn with_env(mut command: Command, bench: &Bench) -> Command {
    command.env_clear().envs(&bench.env);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

fn ids(stdout: &[u8]) -> Vec<i64> {
    let lines = str::from_utf8(stdout).unwrap().lines();
    let events = lines.filter_map(|line| serde_json::from_str::<Json>(line).ok());
    events.filter_map(|event| event["pk"]["id"].as_i64()).collect()
}

/// Checks that nothing was committed: the next tick delivers all rows.
async fn assert_nothing_is_committed(bench: &Bench) {
    let output = tick(bench).stdout(Stdio::piped()).output();
    let output = within(LIMIT, output).await.unwrap();
    assert!(output.status.success(), "{}", stderr_text(&output));
    assert_eq!(ids(&output.stdout), (1..=ROWS).collect::<Vec<_>>());
    assert_eq!(bench.state()["checkpoint"]["metadata"]["row_count"], json!(ROWS));
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_standard_output_is_rejected_at_start() {
    let bench = bench().await;
    let output = without_stdout(&bench, &["tick", "nightly"]).output();
    let output = within(LIMIT, output).await.unwrap();
    let text = stderr_text(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("handler of poller `nightly`"), "{text}");
    assert!(text.contains("standard output is closed"), "{text}");
    assert!(!bench.state_path().exists(), "it did not start");
    assert_nothing_is_committed(&bench).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_without_a_reader_is_rejected_at_start() {
    let bench = bench().await;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    // Not `output`, which would read.
    let process = tick(&bench).stdout(writer).spawn().unwrap();
    let output = within(LIMIT, process.wait_with_output()).await.unwrap();
    let text = stderr_text(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("its reader is gone"), "{text}");
    assert!(!bench.state_path().exists(), "it did not start");
    assert_nothing_is_committed(&bench).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_closes_the_pipe_fails_the_batch() {
    let bench = bench().await;
    let mut process = tick(&bench).stdout(Stdio::piped()).spawn().unwrap();
    let mut reader = process.stdout.take().unwrap();
    // It writes, and there is more than the pipe can hold.
    within(LIMIT, reader.read_u8()).await.unwrap();
    drop(reader);
    let output = within(LIMIT, process.wait_with_output()).await.unwrap();
    let text = stderr_text(&output);
    assert_eq!(output.status.code(), Some(7), "{text}");
    assert!(text.contains("standard output is closed: its reader is gone; start"), "{text}");
    assert_eq!(bench.state()["in_flight"]["attempt"], json!(0), "the rows are not at fault");
    assert_eq!(bench.state()["checkpoint"]["cursor"], Json::Null);
    assert_nothing_is_committed(&bench).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_deliver_nothing_need_no_standard_output() {
    let bench = bench().await;
    assert_nothing_is_committed(&bench).await;
    for arguments in [
        &["pause", "nightly", "--reason", "no reader"][..],
        &["status"],
        &["resume", "nightly"],
        &["reset", "nightly", "to-beginning", "--dry-run"],
        &["state", "show", "nightly"],
    ] {
        let output = without_stdout(&bench, arguments).output();
        let output = within(LIMIT, output).await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr_text(&output));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_exits_without_a_reader_even_with_nothing_to_deliver() {
    let bench = bench().await;
    assert_nothing_is_committed(&bench).await;
    bench.schedule("* * * * * *");
    let root = bench.folder.path().join("root").to_str().unwrap().to_owned();
    let mut process = command(&bench, &["run", "--from", &root]);
    let mut process = process.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    within(LIMIT, lines.next_line()).await.unwrap();
    drop(lines);
    let output = within(LIMIT, process.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr_text(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_exits_once_its_reader_is_gone() {
    let bench = bench().await;
    bench.schedule("* * * * * *");
    let root = bench.folder.path().join("root").to_str().unwrap().to_owned();
    let mut process = command(&bench, &["run", "--from", &root]);
    let mut process = process.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let first_row =
        async { while !lines.next_line().await.unwrap().unwrap().starts_with("{\"id\"") {} };
    within(LIMIT, first_row).await;
    drop(lines);
    let output = within(LIMIT, process.wait_with_output()).await.unwrap();
    let text = stderr_text(&output);
    assert_eq!(output.status.code(), Some(7), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.contains("standard output is closed: its reader is gone"), "{text}");
    assert_eq!(bench.state()["checkpoint"]["cursor"], Json::Null);
    assert_nothing_is_committed(&bench).await;
}
