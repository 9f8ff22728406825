//! START: from the process's start to its first response.

use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::time::Duration;

use highwater_fakehost::{
    CONSOLE_CATEGORY, Connection, FakeHost, Invocation, Level, Options, Phase, Record, Signal,
};
use serde_json::Value as Json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use crate::bench::{Bench, LIMIT, PROGRAM, exchange, failure, logs, within};
use crate::data;
use crate::receiver::Answer;

/// Allows for a busy machine; the goal is below one second.
const READY: Duration = Duration::from_secs(10);

pub(crate) async fn ready_within_time() {
    let bench = Bench::new().await;
    let host = bench.host().await;
    let Phase::Ready { after, life: 1, .. } = host.phase() else { panic!("{:?}", host.phase()) };
    assert!(after < READY, "{after:?}");
    let (_, reply) = exchange(host.port(), &data::wire("ping", host.port())).await.unwrap();
    assert_eq!(reply.status, 200);
    host.finish().await;

    // No socket that accepts and stays silent: the first connection that is not refused is answered.
    let port = host.port();
    let mut child =
        command(&bench, &[("FUNCTIONS_CUSTOMHANDLER_PORT", &port.to_string())]).spawn().unwrap();
    let mut connection = within(READY, connect(port)).await;
    let reply = within(Duration::from_secs(2), connection.ping()).await.unwrap();
    assert_eq!(reply.status, 200);
    child.kill().await.unwrap();
}

pub(crate) async fn old_port_variable() {
    let bench = Bench::new().await;
    let port = bench.free_port().await;
    let mut child =
        command(&bench, &[("FUNCTIONS_HTTPWORKER_PORT", &port.to_string())]).spawn().unwrap();
    let reply = within(READY, connect(port)).await.ping().await.unwrap();
    assert_eq!(reply.status, 200);
    child.kill().await.unwrap();
}

pub(crate) async fn no_port() {
    let bench = Bench::new().await;
    for env in [&[][..], &[("FUNCTIONS_CUSTOMHANDLER_PORT", " ")]] {
        let (code, line) = only_line(&bench, env).await;
        assert_ne!(code, 0);
        assert!(line.contains("FUNCTIONS_CUSTOMHANDLER_PORT"), "{line}");
    }
}

pub(crate) async fn wrong_port() {
    let bench = Bench::new().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (port, expected) in [("x", "`x`"), ("0", "`0`"), ("65536", "`65536`")] {
        let (code, line) = only_line(&bench, &[("FUNCTIONS_CUSTOMHANDLER_PORT", port)]).await;
        assert_ne!(code, 0);
        assert!(line.contains(expected) && line.contains("1 to 65535"), "{line}");
    }
    taken_port(&bench, &taken, &port).await;
    port_taken_for_a_moment(&bench, taken, &port).await;
}

/// The process waits for a port that stays taken before it gives up.
async fn taken_port(bench: &Bench, _taken: &TcpListener, port: &str) {
    let mut command = command(bench, &[("FUNCTIONS_CUSTOMHANDLER_PORT", port)]);
    let ended = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let ended = within(2 * LIMIT, ended).await.unwrap();
    let [out, err] = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(ended.status.code(), Some(6), "{err}");
    assert!(out.contains("port_taken"), "{out}");
    assert!(err.lines().count() == 1 && err.contains(port) && err.contains("in use"), "{err}");
}

/// Three exits end the host, so the process waits for a port that another process is about to release.
async fn port_taken_for_a_moment(bench: &Bench, taken: TcpListener, port: &str) {
    let mut command = command(bench, &[("FUNCTIONS_CUSTOMHANDLER_PORT", port)]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = within(LIMIT, lines.next_line()).await.unwrap().unwrap();
    assert!(line.contains("port_taken") && line.contains(port), "{line}");
    drop(taken);
    let reply = within(READY, connect(port.parse().unwrap())).await.ping().await.unwrap();
    assert_eq!(reply.status, 200);
    child.kill().await.unwrap();
}

/// The reason why a process could not start reaches the host as an error, whatever its text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_fails_under_the_host_is_an_error_there() {
    let bench = Bench::new().await;
    let script = "FUNCTIONS_CUSTOMHANDLER_PORT=warn exec \"$0\"";
    let options = Options {
        program: "sh".into(),
        arguments: vec!["-c".into(), script.into(), PROGRAM.into()],
        env: bench.env.clone(),
        ..bench.options.clone()
    };
    let host = FakeHost::start(options).unwrap();
    let exit = within(LIMIT, host.exit(1, LIMIT)).await;
    assert_eq!(exit.map(|exit| exit.code), Some(2));
    let is_line = |record: &Record| record.category == CONSOLE_CATEGORY;
    let record = host.journal().find(LIMIT, is_line).await.unwrap();
    let line: Json = serde_json::from_str(&record.message).unwrap();
    assert_eq!((record.level, &line["event"]), (Level::Error, &"not_started".into()));
    assert!(line["message"].as_str().unwrap().contains("is `warn`, expected a port"), "{line}");
}

pub(crate) async fn unreachable() {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let blob = format!(
        "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;\
         AccountKey=AAAA;BlobEndpoint=http://{nobody}/devstoreaccount1"
    );
    let database =
        format!("Server=tcp:127.0.0.1,{};Database=x;User ID=x;Password=x", nobody.port());
    for (settings, expected) in [
        (vec![("SqlConnection", database.as_str())], "FetchError"),
        (vec![("HIGHWATER__STATE__FOLDER", "/dev/null/nowhere")], "LeaseAcquireError"),
        (
            vec![("HIGHWATER__STATE__STORE", "blob"), ("AzureWebJobsStorage", blob.as_str())],
            "LeaseAcquireError",
        ),
    ] {
        let mut bench = Bench::with_rows(1..=1).await;
        bench.set("LEASE__TTL", "15s");
        for (name, value) in settings {
            bench.set_env(name, value);
        }
        let host = bench.host().await;
        let pid = host.pid();
        let tries = if expected == "FetchError" { 4 } else { 1 };
        for _ in 0..tries {
            let outcome = host.run().await;
            assert!(failure(&outcome).contains(expected), "{outcome:?}");
            assert_eq!(outcome.reply.as_ref().unwrap().status, 500);
            let (level, _) = host.line(|line| line["invocation_id"] == *outcome.id).await;
            assert_eq!(level, Level::Error);
        }
        assert_eq!((host.pid(), host.exits()), (pid, vec![]));
    }
}

pub(crate) async fn pings_during_a_run() {
    let bench = Bench::with_rows(1..=2).await;
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        let mut taken = Vec::new();
        for _ in 0..21 {
            let began_at = Instant::now();
            let mut connection = Connection::open(host.port()).await.unwrap();
            assert_eq!(connection.ping().await.unwrap().status, 200);
            taken.push(began_at.elapsed());
        }
        taken.sort();
        // Single ones may be slow on a busy machine; a queue behind the run would delay all.
        assert!(taken[10] < Duration::from_millis(100), "{taken:?}");
        bench.receiver.release();
    });
    assert_eq!(logs(&outcome).len(), 1);
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    host.finish().await;
}

pub(crate) async fn loopback_only() {
    let bench = Bench::new().await;
    let host = bench.host().await;
    for (address, listens) in [("127.0.0.1", true), ("127.0.0.2", false), ("[::1]", false)] {
        let connected = TcpStream::connect(format!("{address}:{}", host.port())).await;
        assert_eq!(connected.is_ok(), listens, "{address}: {connected:?}");
    }
    host.finish().await;
}

pub(crate) async fn same_port_after_a_kill() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    let mut idle = Connection::open(host.port()).await.unwrap();
    idle.ping().await.unwrap();
    bench.receiver.script(&[Answer::Hold]);
    let (outcome, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        host.signal(Signal::Kill).await.unwrap();
    });
    assert!(failure(&outcome).starts_with("HttpRequestException"), "{outcome:?}");
    let phase = host.ready(2).await;
    assert!(matches!(phase, Phase::Ready { life: 2, .. }), "{phase:?}");
    idle.ping().await.unwrap_err();
    let pinged = Connection::open(host.port()).await.unwrap().ping().await.unwrap();
    assert_eq!(pinged.status, 200);
    assert_eq!(host.exits().len(), 1, "{:#?}", host.journal().records());
}

/// Wrong settings: ready anyway, and each invocation reports every error.
pub(crate) async fn wrong_settings() {
    let mut bench = Bench::new().await;
    bench.set("SOURCE__MODE", "sideways");
    bench.set("BATCH_ROWS_MAX", "none");
    bench.set("HANDLER__URLL", "x");
    let host = bench.host().await;
    let pid = host.pid();
    for _ in 0..4 {
        let outcome = host.invoke(Invocation::new("nightly", data::body("01_scheduled"))).await;
        assert!(failure(&outcome).contains("500 (ConfigurationError"), "{outcome:?}");
        let (level, line) = host.line(|line| line["invocation_id"] == *outcome.id).await;
        assert_eq!(level, Level::Error);
        for mistake in ["SOURCE__MODE", "BATCH_ROWS_MAX", "HANDLER__URLL"] {
            assert!(line["error"].as_str().unwrap().contains(mistake), "{line}");
        }
    }
    assert_eq!((host.pid(), host.exits()), (pid, vec![]));
}

/// The program with the bench's settings and these, and none of the host's.
fn command(bench: &Bench, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.env_clear().envs(&bench.env).envs(env.iter().copied()).kill_on_drop(true);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Connects as soon as the connection is not refused.
async fn connect(port: u16) -> Connection {
    loop {
        match Connection::open(port).await {
            Ok(connection) => return connection,
            Err(_) => sleep(Duration::from_millis(2)).await,
        }
    }
}

/// Runs the program until it exits, and returns its code and its one line on stderr.
async fn only_line(bench: &Bench, env: &[(&str, &str)]) -> (i32, String) {
    let mut command = command(bench, env);
    let ended = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let Output { status, stdout, stderr } = timeout(LIMIT, ended).await.unwrap().unwrap();
    assert!(stdout.is_empty());
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    (status.code().unwrap(), text)
}
