//! An unavailable collector: ticks neither fail nor wait for it.

use std::time::Duration;

use crate::bench::{Bench, logs};
use crate::collector::Collector;
use crate::exports::exporting;

/// Far less than the 10 s a hanging request may take; more than a busy machine needs.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_delays_no_tick_for_long() {
    let collector = Collector::start();
    collector.be("hang").await;
    let bench = exporting(&collector).await;
    let host = bench.host().await;
    for id in 4..=6 {
        let outcome = host.run().await;
        logs(&outcome);
        assert!(outcome.duration < SOON, "{outcome:?}");
        bench.insert(id..=id);
    }
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5]);
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_rejected_temporarily_by_a_collector_is_sent_later() {
    let collector = Collector::start();
    collector.be("refuse").await;
    let bench = exporting(&collector).await;
    let host = bench.host().await;
    let outcome = host.run().await;
    logs(&outcome);
    assert!(outcome.duration < SOON, "{outcome:?}");
    assert!(collector.requests().await.is_empty());
    let (_, line) = host.event("telemetry_export_failed").await;
    assert!(line["error"].as_str().unwrap().contains("503"), "{line}");
    collector.be("take").await;
    logs(&host.run().await);
    host.event("telemetry_export_works").await;
    let ticks = collector.spans().await;
    let ticks: Vec<_> = ticks.iter().filter(|span| span["name"] == "nightly").collect();
    assert_eq!(ticks.len(), 2, "the trace of the first tick is not lost");
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_collector_is_logged_once() {
    let mut bench = Bench::with_rows(1..=3).await;
    let port = bench.free_port().await;
    bench.set_env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{port}"));
    let host = bench.host().await;
    for _ in 0..3 {
        let outcome = host.run().await;
        logs(&outcome);
        assert!(outcome.duration < SOON, "{outcome:?}");
    }
    host.finish().await;
    let lines = host.lines();
    let reported = lines.iter().filter(|(_, line)| line["event"] == "telemetry_export_failed");
    assert_eq!(reported.count(), 1, "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_exported_unless_an_endpoint_is_set() {
    let collector = Collector::start();
    let mut bench = exporting(&collector).await;
    bench.set_env("OTEL_SDK_DISABLED", "true");
    let host = bench.host().await;
    logs(&host.run().await);
    host.finish().await;
    assert!(collector.requests().await.is_empty());
}
