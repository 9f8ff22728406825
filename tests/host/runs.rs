//! RETRY, CONC and CRASH: runs that overlap another one, or are killed.

use std::time::Duration;

use highwater_fakehost::{Invocation, Level, Options, Phase, Retry, Signal, Verdict};
use serde_json::Value as Json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, sleep};

use crate::bench::{Bench, LIMIT, failure, logs};
use crate::data;
use crate::receiver::Answer;

pub(crate) async fn retry_policy() {
    let bench = Bench::with_rows(1..=3).await;
    bench.receiver.script(&[Answer::Reject(500, "not yet"), Answer::Reject(500, "not yet")]);
    let host = bench.host().await;
    // Shorter than the poller's own backoff, which the tick waits for.
    let policy = Retry { count_max: 3, delay: Duration::from_millis(50) };
    let outcomes = host.fire_with_retry("nightly", Some(policy)).await;
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome.id == outcomes[0].id));
    assert!(outcomes[2].verdict.is_success(), "{outcomes:?}");
    for count in 1..=2 {
        host.line(|line| line["event"] == "invocation" && line["retry_count"] == count).await;
    }
    let batches = bench.receiver.batches();
    let attempts: Vec<u64> = batches.iter().map(|batch| batch.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert!(batches.iter().all(|batch| batch.id == batches[0].id));
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    assert!(logs(&host.run().await)[0].contains("nothing new"));
}

/// If the backoff outlasts the tick, the host must continue; a success would end its retries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backoff_longer_than_the_tick_keeps_the_host_retrying() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("RETRY_DELAY_MIN", "3s");
    bench.set("TICK_TIME_MAX", "1s");
    bench.receiver.script(&[Answer::Reject(500, "not yet")]);
    let host = bench.host().await;
    let policy = Retry { count_max: 9, delay: Duration::from_millis(50) };
    let outcomes = host.fire_with_retry("nightly", Some(policy)).await;
    // One is rejected, two or three wait for a second each, the next one delivers.
    assert!((3..=5).contains(&outcomes.len()), "{outcomes:?}");
    assert!(failure(&outcomes[1]).contains("503 (poller `nightly`: backing off"), "{outcomes:?}");
    assert!(outcomes.last().unwrap().verdict.is_success(), "{outcomes:?}");
    assert_eq!(bench.receiver.accepted(), [1]);
    let outcomes = host.fire_with_retry("nightly", Some(policy)).await;
    assert!(logs(&outcomes[0])[0].contains("nothing new") && outcomes.len() == 1, "{outcomes:?}");

    bench.insert(2..=2);
    bench.receiver.script(&[Answer::Reject(500, "not yet")]);
    host.run().await;
    let outcome = host.run().await;
    assert!(logs(&outcome)[0].contains("backing off until"), "without a policy: {outcome:?}");
    let paused = bench.command(&["pause", "nightly", "--reason", "a test"]).await;
    paused.done();
    let outcomes = host.fire_with_retry("nightly", Some(policy)).await;
    assert!(logs(&outcomes[0])[0].contains("paused by") && outcomes.len() == 1, "{outcomes:?}");
}

/// With unlimited retries, the host retries until the target has recovered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unlimited_retries_deliver_the_rows_without_flooding_the_log() {
    const REFUSED: usize = 12;
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("RETRY_DELAY_MIN", "10ms");
    bench.set("RETRY_DELAY_MAX", "10ms");
    bench.receiver.script(&[const { Answer::Reject(500, "not yet") }; REFUSED]);
    let host = bench.host().await;
    let policy = Retry { count_max: -1, delay: Duration::from_millis(1) };
    let outcomes = host.fire_with_retry("nightly", Some(policy)).await;
    assert_eq!(outcomes.len(), REFUSED + 1, "{outcomes:?}");
    assert!(outcomes[REFUSED].verdict.is_success(), "{outcomes:?}");
    assert_eq!(bench.receiver.accepted(), [1]);

    // An attempt during a backoff lasts as long as a tick may, and logs no warning.
    bench.set("RETRY_DELAY_MIN", "3s");
    bench.set("RETRY_DELAY_MAX", "3s");
    bench.set("TICK_TIME_MAX", "1s");
    bench.insert(2..=2);
    bench.receiver.script(&[Answer::Reject(500, "not yet")]);
    let host = bench.host().await;
    let outcomes = host.fire_with_retry("nightly", Some(policy)).await;
    assert!((3..=5).contains(&outcomes.len()), "{outcomes:?}");
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    let lines = host.lines();
    let is_ours = |line: &Json| line["event"].is_string();
    let loud = |(level, line): &&(Level, Json)| *level > Level::Information && is_ours(line);
    let loud: Vec<_> = lines.iter().filter(loud).map(|(_, line)| &line["event"]).collect();
    assert_eq!(loud, ["handler_failed"], "{lines:#?}");
}

pub(crate) async fn second_run() {
    let bench = Bench::with_rows(1..=2).await;
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (first, second) = tokio::join!(host.fire("nightly"), async {
        bench.receiver.arrived(1).await;
        let second = host.run().await;
        bench.receiver.release();
        second
    });
    assert!(logs(&second)[0].contains("skipped: already running"), "{second:?}");
    assert!(logs(&first)[0].contains("committed 2 rows"), "{first:?}");
    assert_eq!(bench.receiver.batches().len(), 1);
    host.finish().await;
}

pub(crate) async fn killed_mid_run() {
    let bench = Bench::with_rows(1..=3).await;
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        host.signal(Signal::Kill).await.unwrap();
    });
    assert!(failure(&outcome).starts_with("HttpRequestException"), "{outcome:?}");
    let exit = host.exit(1, LIMIT).await.unwrap();
    assert!(exit.code == 137 && exit.counted, "{exit:?}");
    host.ready(2).await;
    check_redelivery(&bench, &host).await;
}

/// After SIGKILL during a run the rows are redelivered once the lease has expired, and not a schedule later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_in_flight_at_a_kill_are_redelivered_in_time() {
    // Documents in files have a clock with full resolution.
    const LAPSES_AFTER: Duration = Duration::from_secs(2 + 2);
    const SCHEDULE: Duration = Duration::from_millis(500);
    let bench = Bench::with_rows(1..=3).await;
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (_, killed_at) = tokio::join!(host.fire("nightly"), async {
        bench.receiver.arrived(1).await;
        host.signal(Signal::Kill).await.unwrap();
        Instant::now()
    });
    host.ready(2).await;
    let mut skipped = Vec::new();
    loop {
        let began_at = Instant::now();
        let outcome = host.fire("nightly").await;
        if !bench.receiver.accepted().is_empty() {
            break;
        }
        // A busy machine may delay a tick, but the first one after that time must deliver.
        assert!(began_at < killed_at + LAPSES_AFTER, "{outcome:?}");
        skipped.extend(logs(&outcome));
        sleep(SCHEDULE).await;
    }
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    let lease_until = |text: &String| {
        let (_, rest) = text.split_once("skipped: lease held by `")?;
        let (_, rest) = rest.split_once("` until ")?;
        let (until, _) = rest.split_once(" unless it is renewed")?;
        OffsetDateTime::parse(until, &Rfc3339).ok()
    };
    assert!(!skipped.is_empty() && skipped.iter().all(|text| lease_until(text).is_some()));
    let (_, line) = host.line(|line| line["taken_over"] == true).await;
    assert_eq!((&line["event"], &line["level"]), (&"lease_acquired".into(), &"WARN".into()));
    let text = line["message"].as_str().unwrap();
    assert!(text.contains("rows of the batch in flight may be delivered twice"), "{line}");
}

/// The rows of the killed run are redelivered, as the same batch under a newer token.
pub(crate) async fn check_redelivery(bench: &Bench, host: &crate::bench::Host) {
    let outcome = host.run_until(|| !bench.receiver.accepted().is_empty()).await;
    assert!(outcome.verdict.is_success(), "{outcome:?}");
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    let batches = bench.receiver.batches();
    assert_eq!(batches.len(), 2, "{batches:?}");
    assert_eq!(batches[0].id, batches[1].id);
    assert_eq!(batches[1].attempt, 2);
    assert!(batches[1].token > batches[0].token);
    let state = bench.state();
    assert!(state["in_flight"].is_null(), "{state}");
    assert!(logs(&host.run().await)[0].contains("nothing new"));
}

pub(crate) async fn three_exits() {
    // The fake host first: the third error ends the host.
    let bench = Bench::with_rows(1..=1).await;
    let options = Options {
        arguments: vec!["-c".into(), "echo one >&2; echo two; exit 7".into()],
        ..Options::new("sh", bench.folder.path())
    };
    let host = highwater_fakehost::FakeHost::start(options).unwrap();
    assert_eq!(host.ready(1).await, Phase::ShutDown);
    host.exit(3, LIMIT).await;
    let exits: Vec<_> = host.exits().iter().map(|exit| (exit.code, exit.counted)).collect();
    assert_eq!(exits, [(7, true), (7, true), (7, true)]);
    assert_eq!(host.phase().host_exit_code(), Some(0), "which looks like an end without a fault");
    let outcome = host.invoke(Invocation::new("nightly", "{}")).await;
    assert!(matches!(outcome.verdict, Verdict::Failure(_)));

    // So no invocation may end our process, however it fails.
    let refusals = [400, 401, 404, 410, 413, 429, 500, 503].map(|code| Answer::Reject(code, "no"));
    let mut bench = bench;
    bench.set("RETRY_DELAY_MIN", "1ms");
    bench.set("RETRY_DELAY_MAX", "1ms");
    bench.receiver.script(&refusals);
    let host = bench.host().await;
    let pid = host.pid();
    for _ in &refusals {
        host.run().await;
    }
    for body in ["", "{", "[]"] {
        host.invoke(Invocation::new("nightly", body)).await;
    }
    host.invoke(Invocation::new("unknown", data::body("01_scheduled"))).await;
    std::fs::write(bench.state_path(), "{\"half\": ").unwrap();
    for host in [host.clone(), bench.host().await] {
        host.run().await;
    }
    assert_eq!((host.pid(), host.exits()), (pid, vec![]));
}
