//! TIME: the host's limit, and ours below it.

use std::time::Duration;

use highwater_fakehost::{Exit, Level, Phase, TIMEOUT_GRACE, Verdict};

use crate::bench::{Bench, LIMIT, failure, logs};
use crate::receiver::Answer;

pub(crate) async fn host_limit() {
    let mut bench = Bench::with_rows(1..=3).await;
    bench.options.function_timeout = Duration::from_secs(2);
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let outcome = host.fire("nightly").await;
    assert_eq!(outcome.verdict, Verdict::TimedOut);
    assert!(outcome.duration >= bench.options.function_timeout + TIMEOUT_GRACE, "{outcome:?}");
    let exit = host.exit(1, LIMIT).await.unwrap();
    assert_eq!(exit, Exit { code: 137, counted: false });
    let phase = host.ready(2).await;
    assert!(matches!(phase, Phase::Ready { life: 2, .. }), "{phase:?}");
    host.run_until(|| !bench.receiver.accepted().is_empty()).await;
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    assert!(logs(&host.run().await)[0].contains("nothing new"));
}

pub(crate) async fn own_deadline() {
    // No further batch starts after this time, which is not a failure.
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set("BATCH_ROWS_MAX", "1");
    bench.set("TICK_TIME_MAX", "1ms");
    let host = bench.host().await;
    let outcome = host.run().await;
    assert!(logs(&outcome)[0].contains("committed 1 row in 1 batch, more to do"), "{outcome:?}");
    host.run_until(|| bench.receiver.accepted().len() == 3).await;
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    host.finish().await;

    // A call to a target that never responds is abandoned 15 seconds before the host's limit.
    let mut bench = Bench::with_rows(1..=1).await;
    let limit = Duration::from_secs(21);
    bench.set_env("HIGHWATER__FUNCTION_TIMEOUT", "21s");
    bench.options.function_timeout = limit;
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let outcome = host.fire("nightly").await;
    assert!(failure(&outcome).contains("500 (HandlerError"), "{outcome:?}");
    assert!(outcome.duration + Duration::from_secs(10) < limit, "{outcome:?}");
    let (level, line) = host.event("handler_failed").await;
    assert_eq!(level, Level::Error);
    assert_eq!(line["invocation_id"], *outcome.id, "{line}");
    assert_eq!(host.exits(), []);
    host.run_until(|| !bench.receiver.accepted().is_empty()).await;
    assert_eq!(bench.receiver.accepted(), [1]);
}

/// With only the host's limit set, ticks end before it; if no tick fits, they are rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hosts_timeout_applies_if_it_is_shorter() {
    let mut bench = Bench::with_rows(1..=1).await;
    let host_json = bench.folder.path().join("root/host.json");
    let text = std::fs::read_to_string(&host_json).unwrap();
    std::fs::write(&host_json, text.replace("00:10:00", "00:00:21")).unwrap();
    bench.options.function_timeout = Duration::from_secs(21);
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let warned =
        |(_, line): &(Level, serde_json::Value)| line["event"] == "function_timeout_shortened";
    let outcome = host.fire("nightly").await;
    assert!(failure(&outcome).contains("500 (HandlerError"), "{outcome:?}");
    assert_eq!(host.exits(), [], "it was not killed");
    assert_eq!(host.lines().iter().filter(|line| warned(line)).count(), 1);
    // It is stopped and its lease not broken manually, so that the next one does not wait.
    host.run_until(|| !bench.receiver.accepted().is_empty()).await;

    bench.set_env("AzureFunctionsJobHost__functionTimeout", "00:00:10");
    let host = bench.host().await;
    let outcome = host.run().await;
    let reason = failure(&outcome);
    assert!(reason.contains("ConfigurationError"), "{reason}");
    assert!(reason.contains("`AzureFunctionsJobHost__functionTimeout` is `00:00:10`"), "{reason}");

    bench.set_env("AzureFunctionsJobHost__functionTimeout", "00:10:00");
    let host = bench.host().await;
    host.run().await;
    assert!(!host.lines().iter().any(warned), "longer than ours");
    host.finish().await;
}
