//! `highwater run`: each tick is a separate trace, exported before the next one.

use std::process::Stdio;

use serde_json::json;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::bench::{LIMIT, PROGRAM};
use crate::collector::{Collector, attribute};
use crate::exports::exporting;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_without_the_host_is_a_trace_too() {
    let collector = Collector::start();
    let bench = exporting(&collector).await;
    let root = bench.folder.path().join("root");
    let function = json!({"bindings": [
        {"name": "timer", "type": "timerTrigger", "direction": "in", "schedule": "* * * * * *"},
    ]});
    std::fs::create_dir_all(root.join("nightly")).unwrap();
    std::fs::write(root.join("nightly/function.json"), function.to_string()).unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("run").arg("--from").arg(&root).env_clear().envs(&bench.env);
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let process = command.spawn().unwrap();
    let end = Instant::now() + LIMIT;
    let (ticks, spans) = loop {
        let spans = collector.spans().await;
        let of_ticks = spans.iter().filter(|span| span["name"] == "nightly").cloned();
        let ticks: Vec<_> = of_ticks.collect();
        if ticks.len() >= 2 {
            break (ticks, spans);
        }
        assert!(Instant::now() < end, "{spans:#?}");
        sleep(std::time::Duration::from_millis(50)).await;
    };
    let reported = async |name: &str| {
        let metrics = collector.metrics().await;
        let metric = metrics.iter().rfind(|metric| metric["name"] == name);
        let count = metric.map(|metric| metric["sum"]["data_points"][0]["as_int"].clone());
        count.map_or(0, |count| count.as_str().unwrap().parse::<u64>().unwrap())
    };
    while reported("faas.invocations").await < 2 {
        assert!(Instant::now() < end, "{:#?}", collector.metrics().await);
        sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!((reported("faas.coldstarts").await, reported("faas.errors").await), (1, 0));
    drop(process);
    assert_ne!(ticks[0]["trace_id"], ticks[1]["trace_id"]);
    for (tick, is_first) in ticks.iter().zip([true, false]) {
        assert!(tick["parent_span_id"].is_null(), "{tick:#}");
        assert_eq!(attribute(tick, "faas.coldstart"), is_first, "{tick:#}");
        assert_eq!(attribute(tick, "poller.name"), "nightly");
        assert_eq!(attribute(tick, "faas.cron"), "* * * * * *");
        assert!(attribute(tick, "faas.time").as_str().unwrap().ends_with('Z'), "{tick:#}");
        let within = |name: &str| {
            let mut named = spans.iter().filter(|span| span["name"] == name);
            named.any(|span| span["trace_id"] == tick["trace_id"])
        };
        assert!(within("SELECT dbo.orders"), "{spans:#?}");
        assert_eq!(within("deliver batch"), is_first, "{spans:#?}");
    }
}
