//! `/metrics`, read by Prometheus' own parser.

use highwater_fakehost::free_port;
use serde_json::Value as Json;

use crate::bench::{Bench, logs};
use crate::collector::Collector;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_parses_the_metrics_endpoint() {
    let collector = Collector::start();
    let mut bench = Bench::with_rows(1..=3).await;
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    bench.set_env("HIGHWATER__METRICS__ADDRESS", &address);
    let host = bench.host().await;
    logs(&host.run().await);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let scraped = client.get(format!("http://{address}/metrics")).send().await.unwrap();
    let kind = scraped.headers()["content-type"].to_str().unwrap().to_owned();
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    let text = scraped.text().await.unwrap();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(text.contains(&format!("# HELP {name} ")), "no help for `{name}`");
    }
    let families = collector.parsed(text).await;
    let family = |name: &str| {
        let mut all = families.as_array().unwrap().iter();
        all.find(|family| family["name"] == name).unwrap_or_else(|| panic!("no `{name}`")).clone()
    };
    for (name, kind) in [
        // The parser removes `_total` from the names of counters.
        ("highwater_rows_committed", "counter"),
        ("highwater_rows_fetched", "counter"),
        ("highwater_tick_duration_seconds", "histogram"),
        ("highwater_batch_size", "histogram"),
        ("highwater_last_success_age_seconds", "gauge"),
        ("highwater_lag_held_back", "gauge"),
        ("highwater_poller_state", "gauge"),
        ("highwater_build_info", "gauge"),
        ("target_info", "gauge"),
    ] {
        assert_eq!(family(name)["type"], kind, "{name}");
    }
    let build = &family("highwater_build_info")["samples"][0];
    assert_eq!(build["labels"]["version"], env!("CARGO_PKG_VERSION"));
    let events = &family("highwater_rows_committed")["samples"][0];
    assert_eq!(
        (&events["value"], &events["labels"]["poller_name"]),
        (&"3".into(), &"nightly".into())
    );
    let states = family("highwater_poller_state");
    let current = states["samples"].as_array().unwrap().iter().filter(|it| it["value"] == "1");
    let current: Vec<&Json> = current.map(|it| &it["labels"]["state"]).collect();
    assert_eq!(current, ["idle"], "{states}");
    let buckets = family("highwater_tick_duration_seconds");
    let infinite = buckets["samples"].as_array().unwrap().iter();
    let infinite: Vec<&Json> = infinite.filter(|it| it["labels"]["le"] == "+Inf").collect();
    assert_eq!(infinite.len(), 1);
    host.finish().await;
}
