//! STOP: signals, of which the host itself only sends SIGKILL.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_fakehost::{Connection, Exit, Phase, Signal};
use tokio::sync::oneshot::{Receiver, channel};

use crate::bench::{Bench, LIMIT, failure, logs, within};
use crate::data;
use crate::receiver::Answer;

/// Whether a signal reaches the programs that these tests start: under `nohup` they inherit an ignored
/// SIGHUP.
fn arrives(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let is_ignored = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0;
    signal != Signal::HangUp || !is_ignored
}

pub(crate) async fn idle() {
    let signals = [(Signal::Terminate, 200), (Signal::HangUp, 200), (Signal::Interrupt, 0)];
    for (signal, code) in signals.into_iter().filter(|(signal, _)| arrives(*signal)) {
        let bench = Bench::with_rows(1..=1).await;
        let host = bench.host().await;
        host.run().await;
        // Idle connections in every state must not delay it.
        let _fresh = Connection::open(host.port()).await.unwrap();
        let mut used = Connection::open(host.port()).await.unwrap();
        used.ping().await.unwrap();
        let request = data::wire("invoke_chunked", host.port());
        used.exchange(request.as_bytes()).await.unwrap();
        host.signal(signal).await.unwrap();
        let exit = host.exit(1, Duration::from_secs(1)).await;
        assert_eq!(exit, Some(Exit { code, counted: false }), "{signal:?}");
        host.lines();
        if code == 0 {
            assert_eq!(host.ready(2).await, Phase::Dead, "the host never starts it again");
            continue;
        }
        // The host restarts it, and the next tick runs.
        let phase = host.ready(2).await;
        assert!(matches!(phase, Phase::Ready { life: 2, .. }), "{signal:?}: {phase:?}");
        bench.insert(2..=2);
        assert!(logs(&host.run().await)[0].contains("committed 1 row"));
    }
}

pub(crate) async fn sigterm() {
    // A closed terminal requests the same.
    for signal in [Signal::Terminate, Signal::HangUp].into_iter().filter(|it| arrives(*it)) {
        during_a_run(signal, 200).await;
    }
    // A second signal stops it at once, whatever runs.
    let bench = Bench::with_rows(1..=1).await;
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        host.force_stop().await;
        let exit = host.exit(1, Duration::from_secs(2)).await.unwrap();
        assert_eq!(exit, Exit { code: 200, counted: false });
    });
    assert!(!outcome.verdict.is_success());
}

pub(crate) async fn sigint() {
    during_a_run(Signal::Interrupt, 0).await;
    longer_than_the_grace_period(Signal::Interrupt).await;
}

/// The in-flight batch is finished and answered; the next one is left to the next process.
async fn during_a_run(signal: Signal, code: i32) {
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set("BATCH_ROWS_MAX", "1");
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        host.signal(signal).await.unwrap();
        host.event("stopping").await;
        assert_eq!(host.exits(), []);
        bench.receiver.release();
    });
    assert!(logs(&outcome)[0].contains("committed 1 row in 1 batch, more to do"), "{outcome:?}");
    let exit = host.exit(1, Duration::from_secs(2)).await;
    assert_eq!(exit, Some(Exit { code, counted: false }), "{signal:?}");
    // Its lease was released, so the next owner need not wait for it to expire.
    let next = bench.host().await;
    assert!(logs(&next.run().await)[0].contains("committed 2 rows"));
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    next.finish().await;
}

/// A run whose caller is gone is finished too: the host may exit first if all get the signal.
pub(crate) async fn caller_gone() {
    let bench = Bench::with_rows(1..=2).await;
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    tokio::select! {
        outcome = host.run() => panic!("{outcome:?}"),
        _ = bench.receiver.arrived(1) => {}
    }
    host.signal(Signal::Terminate).await.unwrap();
    host.event("stopping").await;
    bench.receiver.release();
    let exit = host.exit(1, LIMIT).await;
    assert_eq!(exit, Some(Exit { code: 200, counted: false }));
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    assert!(bench.state()["in_flight"].is_null(), "{}", bench.state());
    // Nobody waits for the reply that would carry the tick's line.
    let (_, line) = host.event("tick_unanswered").await;
    assert!(line["message"].as_str().unwrap().contains("committed 2 rows"), "{line}");
}

/// Reads a named pipe in a separate thread, because opening one blocks until it has a writer, and a test that
/// waits for its own threads would never end. Returns its first line as soon as it arrives, and then the
/// rest.
fn read_pipe(path: PathBuf) -> (Receiver<String>, Receiver<String>) {
    let ((tell_first, first), (tell_rest, rest)) = (channel(), channel());
    std::thread::spawn(move || {
        let mut held = BufReader::new(File::open(path).unwrap());
        let (mut line, mut text) = (String::new(), String::new());
        held.read_line(&mut line).unwrap();
        // A receiver that no longer listens has already failed.
        drop(tell_first.send(line));
        held.read_to_string(&mut text).unwrap();
        drop(tell_rest.send(text));
    });
    (first, rest)
}

/// Sets up a handler `exec` whose process has a child that holds a named pipe, and reports if it is left
/// alone. It reads its batch first, because the process is guarded from then on. Returns the same as
/// [`read_pipe`].
pub(crate) fn exec_that_holds_a_pipe(
    bench: &mut Bench,
    pipe: &Path,
) -> (Receiver<String>, Receiver<String>) {
    assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let script = "read -r batch; (echo up; sleep 60; echo orphan) > \"$0\" & wait";
    let command = serde_json::json!(["/bin/sh", "-c", script, pipe.to_str().unwrap()]);
    bench.set("HANDLER__KIND", "exec");
    // Settings of the HTTP handler, which this one lacks.
    for other in ["URL", "TRIES_MAX"] {
        bench.env.remove(&format!("HIGHWATER__POLLERS__NIGHTLY__HANDLER__{other}"));
    }
    bench.set("HANDLER__COMMAND", &command.to_string());
    read_pipe(pipe.to_owned())
}

/// Abandoned work leaves no process running.
pub(crate) async fn an_in_flight_process() {
    let mut bench = Bench::with_rows(1..=1).await;
    let pipe = bench.folder.path().join("up");
    let (first, rest) = exec_that_holds_a_pipe(&mut bench, &pipe);
    let host = bench.host().await;
    let (outcome, ()) = tokio::join!(host.run(), async {
        let line = within(LIMIT, first).await;
        assert_eq!(line.as_deref(), Ok("up\n"), "the process opens its pipe");
        host.force_stop().await;
        let exit = host.exit(1, Duration::from_secs(2)).await.unwrap();
        assert_eq!(exit, Exit { code: 200, counted: false });
        let rest = within(LIMIT, rest).await;
        assert_eq!(rest.as_deref(), Ok(""), "killed with the program");
    });
    assert!(!outcome.verdict.is_success());
}

/// A request that never ends keeps the process running, although no tick runs and no lease is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_stop_claims_no_lease() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    host.run().await;
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", host.port())).unwrap());
    let head = "POST /nightly HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n";
    write!(stream.get_mut(), "{head}Content-Length: 9\r\n\r\n").unwrap();
    // From now on it waits for the body.
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 100"), "{line}");
    host.force_stop().await;
    host.event("aborting").await;
    host.signal(Signal::Terminate).await.unwrap();
    let exit = host.exit(1, LIMIT).await;
    assert_eq!(exit, Some(Exit { code: 200, counted: false }));
    let (_, line) = host.event("forced_stop").await;
    let message = line["message"].as_str().unwrap();
    assert!(message.ends_with("; leases that are still held will expire"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_longer_than_the_grace_period_is_aborted_and_its_lease_released() {
    longer_than_the_grace_period(Signal::Terminate).await;
}

/// A batch that outlasts the grace period: its lease is released before the process exits, and the stop
/// counts as unfinished.
async fn longer_than_the_grace_period(signal: Signal) {
    let mut bench = Bench::with_rows(1..=1).await;
    // Too long to wait for.
    bench.set("LEASE__TTL", "10m");
    bench.set("JOURNAL", "full");
    bench.set_env("HIGHWATER__STOP_GRACE", "2500ms");
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        host.signal(signal).await.unwrap();
    });
    let reply = failure(&outcome);
    assert!(reply.contains("500 (HandlerError") && reply.contains("aborted"), "{outcome:?}");
    let exit = host.exit(1, Duration::from_secs(5)).await;
    assert_eq!(exit, Some(Exit { code: 200, counted: false }), "{signal:?}");
    assert!(!host.lines().iter().any(|(_, line)| line["event"] == "forced_stop"));
    let state = bench.state();
    assert!(state["lease"]["released_at"].is_string(), "{state}");
    let in_flight = &state["in_flight"];
    assert_eq!((&in_flight["attempt"], &in_flight["crashes"]), (&0.into(), &0.into()));
    let journal = bench.command(&["journal", "show", "nightly", "--output", "jsonl"]).await;
    assert!(journal.done().contains("lease_released"), "{journal:?}");
    let next = bench.host().await;
    assert!(logs(&next.run().await)[0].contains("committed 1 row"));
    next.finish().await;
}
