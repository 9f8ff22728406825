//! A tick with rows: its trace, its metrics and its log records.

use std::collections::BTreeSet;

use highwater_fakehost::Invocation;
use serde_json::{Value as Json, json};

use crate::bench::{Bench, logs};
use crate::collector::{Collector, attribute};
use crate::data;
use crate::page;
use crate::receiver::Answer;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Returns a bench whose program exports to a collector, like an app in Azure.
pub(crate) async fn exporting(collector: &Collector) -> Bench {
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set_env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url());
    for (name, value) in [
        ("HIGHWATER__APP", "local"),
        ("WEBSITE_SITE_NAME", "shop"),
        ("WEBSITE_RESOURCE_GROUP", "group"),
        ("WEBSITE_OWNER_NAME", "1111+group-webspace"),
    ] {
        bench.set_env(name, value);
    }
    bench
}

fn invocation(flags: &str) -> Invocation {
    let traceparent = Some(format!("00-{TRACE}-{PARENT}-{flags}"));
    let tracestate = Some("a=1,b=2".to_owned());
    Invocation { traceparent, tracestate, ..Invocation::new("nightly", data::body("01_scheduled")) }
}

/// Ids are base64 in protobuf's JSON.
fn hex(base64: &Json) -> String {
    use base64::Engine as _;
    let text = base64.as_str().unwrap_or_default();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn named<'a>(spans: &'a [Json], name: &str) -> &'a Json {
    let mut found = spans.iter().filter(|span| span["name"] == name);
    let span = found.next().unwrap_or_else(|| panic!("no `{name}` in {spans:#?}"));
    assert!(found.next().is_none(), "`{name}` twice in {spans:#?}");
    span
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tick_is_one_trace_under_the_hosts_span() {
    let collector = Collector::start();
    let bench = exporting(&collector).await;
    let host = bench.host().await;
    // Sampling is decided by us, not by the caller.
    let outcome = host.invoke(invocation("00")).await;
    logs(&outcome);
    let spans = collector.spans().await;
    let traces: BTreeSet<String> = spans.iter().map(|span| hex(&span["trace_id"])).collect();
    assert_eq!(traces, BTreeSet::from([TRACE.to_owned()]));

    let tick = named(&spans, "nightly");
    assert_eq!(hex(&tick["parent_span_id"]), PARENT);
    assert_eq!(tick["kind"], "SPAN_KIND_SERVER");
    for (key, value) in [
        ("faas.trigger", json!("timer")),
        ("faas.invocation_id", json!(outcome.id)),
        ("faas.coldstart", json!(true)),
        (
            "cloud.resource_id",
            json!(
                "/subscriptions/1111/resourceGroups/group/providers/Microsoft.Web/sites/shop/functions/nightly"
            ),
        ),
        ("poller.name", json!("nightly")),
        ("outcome", json!("committed")),
        ("rows", json!("3")),
        ("error.type", Json::Null),
    ] {
        assert_eq!(attribute(tick, key), value, "{key} of {tick:#}");
    }

    // The first tick of a poller reads twice, because its document is created in between.
    let fetches = spans.iter().filter(|span| span["name"] == "SELECT dbo.orders");
    let fetches: Vec<&Json> = fetches.collect();
    assert_eq!(fetches.len(), 2);
    assert!(fetches.iter().all(|fetch| fetch["parent_span_id"] == tick["span_id"]));
    let fetch = fetches[1];
    assert_eq!(fetch["kind"], "SPAN_KIND_CLIENT");
    for (key, value) in [
        ("db.system.name", json!("microsoft.sql_server")),
        ("db.collection.name", json!("dbo.orders")),
        ("db.operation.name", json!("SELECT")),
        ("db.query.summary", json!("SELECT dbo.orders")),
        ("db.response.returned_rows", json!("3")),
    ] {
        assert_eq!(attribute(fetch, key), value, "{key} of {fetch:#}");
    }
    assert!(attribute(fetch, "server.port").is_string(), "it is not 1433: {fetch:#}");

    let (deliver, post) = (named(&spans, "deliver batch"), named(&spans, "POST"));
    assert_eq!(deliver["parent_span_id"], tick["span_id"]);
    assert_eq!(attribute(deliver, "highwater.batch.rows"), "3");
    assert_eq!(post["parent_span_id"], deliver["span_id"]);
    assert_eq!(post["kind"], "SPAN_KIND_CLIENT");
    assert_eq!(attribute(post, "http.response.status_code"), "200");
    // The receiver's spans are children of the request that reached it.
    let sent = bench.receiver.batches()[0].traceparent.clone().unwrap();
    assert_eq!(sent, format!("00-{TRACE}-{}-01", hex(&post["span_id"])));
    assert_eq!(bench.receiver.batches()[0].tracestate.as_deref(), Some("a=1,b=2"));
    assert_eq!(
        (&tick["trace_state"], &post["trace_state"]),
        (&"a=1,b=2".into(), &"a=1,b=2".into())
    );

    let writes = spans.iter().filter(|span| span["name"] == "state write");
    let keys: Vec<Json> = writes.map(|span| attribute(span, "highwater.state.answer")).collect();
    assert!(keys.len() >= 3 && keys.iter().all(|answer| answer == "done"), "{spans:#?}");
    for span in &spans {
        let at = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
        assert!(at("start_time_unix_nano") <= at("end_time_unix_nano"), "{span:#}");
        assert!(span["status"].is_null(), "nothing failed: {span:#}");
    }
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parent_decides_sampling_if_the_standard_variable_says_so() {
    let collector = Collector::start();
    let mut bench = exporting(&collector).await;
    bench.set_env("OTEL_TRACES_SAMPLER", "parentbased_always_on");
    let host = bench.host().await;
    logs(&host.invoke(invocation("00")).await);
    assert!(collector.spans().await.is_empty());
    let sent = bench.receiver.batches()[0].traceparent.clone().unwrap();
    assert!(sent.starts_with(&format!("00-{TRACE}-")) && sent.ends_with("-00"), "{sent}");
    bench.insert(4..=4);
    logs(&host.invoke(invocation("01")).await);
    assert!(!collector.spans().await.is_empty());
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_tick_has_failed_spans() {
    let collector = Collector::start();
    let mut bench = exporting(&collector).await;
    bench.set("SOURCE__TABLE", "dbo.missing");
    let host = bench.host().await;
    host.run().await;
    let spans = collector.spans().await;
    for name in ["nightly", "SELECT dbo.missing"] {
        let span = named(&spans, name);
        assert_eq!(span["status"]["code"], "STATUS_CODE_ERROR", "{span:#}");
    }
    assert_eq!(attribute(named(&spans, "nightly"), "error.type"), "FetchError");
    let metrics = collector.metrics().await;
    let calls = metrics.iter().find(|metric| metric["name"] == "db.client.operation.duration");
    let call = &calls.unwrap()["histogram"]["data_points"][0];
    let failed = metrics.iter().rfind(|metric| metric["name"] == "faas.errors").unwrap();
    assert_eq!(failed["sum"]["data_points"][0]["as_int"], "1", "{failed:#}");
    assert!(metrics.iter().all(|metric| metric["name"] != "faas.invocations"), "{metrics:#?}");
    let error = attribute(named(&spans, "SELECT dbo.missing"), "error.type");
    assert!(error.is_string() && attribute(call, "error.type") == error, "{call:#}");
    let failed = collector.event("fetch_failed").await;
    assert_eq!(failed["severity_text"], "ERROR");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_records_name_their_trace_and_invocation() {
    let collector = Collector::start();
    let bench = exporting(&collector).await;
    let host = bench.host().await;
    let outcome = host.run().await;
    logs(&outcome);
    let spans = collector.spans().await;
    let tick = named(&spans, "nightly");
    let record = collector.event("tick_complete").await;
    assert_eq!(record["trace_id"], tick["trace_id"], "{record:#}");
    assert_eq!(attribute(&record, "invocation_id"), outcome.id, "{record:#}");
    assert_eq!(record["severity_number"], "SEVERITY_NUMBER_INFO");
    let text = record["body"]["string_value"].as_str().unwrap();
    assert!(text.contains("nightly"), "{record:#}");
    // The line is unchanged.
    let (_, line) = host.event("tick_complete").await;
    assert_eq!(line["invocation_id"], outcome.id);
    host.finish().await;
    // Lines logged between the last tick and the exit are exported too.
    collector.event("stopping").await;
}

fn calls_of_the_database_are_timed(metrics: &[Json]) {
    let calls = metrics.iter().find(|metric| metric["name"] == "db.client.operation.duration");
    let call = &calls.unwrap()["histogram"]["data_points"][0];
    for (name, value) in [
        ("db.system.name", "microsoft.sql_server"),
        ("db.operation.name", "SELECT"),
        ("db.collection.name", "dbo.orders"),
    ] {
        assert_eq!(attribute(call, name), value, "{call:#}");
    }
    assert!(attribute(call, "error.type").is_null(), "{call:#}");
}

fn invocations_are_timed(metrics: &[Json]) {
    let timed = metrics.iter().filter(|metric| metric["name"] == "faas.invoke_duration");
    let points = timed.flat_map(|metric| metric["histogram"]["data_points"].as_array().unwrap());
    let mut count = 0;
    for point in points {
        assert_eq!(attribute(point, "faas.trigger"), "timer", "{point:#}");
        count += point["count"].as_str().unwrap().parse::<u64>().unwrap();
    }
    assert_eq!(count, 2, "one for each invocation");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_match_the_reference_page_and_its_units() {
    let collector = Collector::start();
    let mut bench = exporting(&collector).await;
    bench.set_env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
    bench.set_env("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta");
    let host = bench.host().await;
    logs(&host.run().await);
    logs(&host.run().await);
    host.finish().await;
    let metrics = collector.metrics().await;
    let page = page::rows();
    for metric in &metrics {
        let name = metric["name"].as_str().unwrap();
        let row = page.iter().find(|row| row.name == name);
        let row = row.unwrap_or_else(|| panic!("`{name}` is not on the page"));
        assert_eq!(metric["unit"].as_str().unwrap_or_default(), row.unit, "{name}");
        let kind = ["sum", "gauge", "histogram"].into_iter().find(|kind| !metric[*kind].is_null());
        let kind = kind.unwrap();
        let is_total = metric["sum"]["is_monotonic"] == true;
        let shown = match kind {
            "sum" if is_total => "counter",
            "sum" => "updown",
            other => other,
        };
        assert_eq!(shown, row.kind, "{name}");
        for point in metric[kind]["data_points"].as_array().unwrap() {
            // Log lines belong to the process.
            if name == "highwater.log.lines_dropped" {
                let stream = attribute(point, "stream");
                assert!(stream == "stdout" || stream == "stderr", "{point:#}");
                continue;
            }
            if name == "highwater.build_info" {
                assert_eq!(attribute(point, "version"), env!("CARGO_PKG_VERSION"), "{point:#}");
                continue;
            }
            assert_eq!(attribute(point, "poller.name"), "nightly", "{point:#}");
        }
        if kind == "histogram" || is_total {
            let delta = "AGGREGATION_TEMPORALITY_DELTA";
            assert_eq!(metric[kind]["aggregation_temporality"], delta, "{name}");
        }
    }
    let sum = |name: &str| -> i64 {
        let points = metrics.iter().filter(|metric| metric["name"] == name);
        let points = points.flat_map(|metric| metric["sum"]["data_points"].as_array().unwrap());
        points.map(|point| point["as_int"].as_str().unwrap().parse::<i64>().unwrap()).sum()
    };
    for (name, expected) in [
        ("highwater.rows.committed", 3),
        ("highwater.batches.committed", 1),
        // The first tick of a poller reads twice, because its document is created in between.
        ("highwater.rows.fetched", 6),
        // The first one finds no document, and creates it.
        ("highwater.lease.acquire.attempts", 2),
        ("faas.invocations", 2),
        ("faas.errors", 0),
        ("faas.coldstarts", 1),
    ] {
        assert_eq!(sum(name), expected, "{name}");
    }
    calls_of_the_database_are_timed(&metrics);
    invocations_are_timed(&metrics);
    let last = |name: &str| {
        let metric = metrics.iter().rfind(|metric| metric["name"] == name);
        metric.unwrap_or_else(|| panic!("no {name}"))["gauge"]["data_points"][0].clone()
    };
    assert_eq!(last("highwater.lag.positions")["as_int"], "0", "the second tick found nothing");
    assert_eq!(last("highwater.lag.held_back")["as_int"], "0");
    assert!(last("highwater.last_success.age")["as_double"].as_f64().unwrap() < 60.0);
    for request in collector.requests().await {
        assert_eq!(request["headers"]["content-encoding"], "gzip");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_page_is_a_child_of_the_hosts_span_too() {
    let collector = Collector::start();
    let bench = exporting(&collector).await;
    let host = bench.host().await;
    let body = json!({"Data": {"request": {"Method": "GET", "Query": {}}}, "Metadata": {}});
    let page = Invocation { body: body.to_string().into(), ..invocation("00") };
    host.invoke(Invocation { function: highwater::page::FUNCTION.to_owned(), ..page }).await;
    let spans = collector.spans().await;
    let page = named(&spans, highwater::page::FUNCTION);
    assert_eq!(
        (hex(&page["trace_id"]), hex(&page["parent_span_id"])),
        (TRACE.to_owned(), PARENT.to_owned())
    );
    assert_eq!(page["kind"], "SPAN_KIND_SERVER");
    assert_eq!(attribute(page, "faas.trigger"), "http");
    // Its reads are child spans.
    let list = named(&spans, "state list");
    assert_eq!(list["parent_span_id"], page["span_id"]);
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn if_the_host_exports_lines_each_arrives_once() {
    for mode in [None, Some("opentelemetry")] {
        let collector = Collector::start();
        let mut bench = exporting(&collector).await;
        if let Some(mode) = mode {
            bench.set_env("AzureFunctionsJobHost__telemetryMode", mode);
        }
        let host = bench.host().await;
        host.run().await;
        bench.insert(4..=4);
        bench.receiver.script(&[Answer::Reject(500, "full")]);
        host.run().await;
        host.event("handler_failed").await;
        host.stop().await;
        let logs = collector.logs().await;
        for event in ["started", "handler_failed", "tick_complete"] {
            let is_of_it = |record: &&Json| {
                let body = record["body"]["string_value"].as_str().unwrap_or_default();
                record["event_name"] == event || body.contains(&format!("\"event\":\"{event}\""))
            };
            assert_eq!(logs.iter().filter(is_of_it).count(), 1, "{event} with {mode:?}: {logs:#?}");
        }
        assert!(!collector.spans().await.is_empty() && !collector.metrics().await.is_empty());
    }
}
