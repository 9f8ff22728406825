//! LOG: the handler's own lines, of which the host makes one record each.

use highwater_fakehost::{CONSOLE_CATEGORY, Invocation, Level, RESERVED_PREFIXES};
use serde_json::Value as Json;

use crate::bench::{Bench, Host, LIMIT, logs};
use crate::data;
use crate::receiver::Answer;
use crate::responses::pause;

pub(crate) async fn good_run() {
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set("HANDLER__TRIES_MAX", "2");
    bench.set("BATCH_ROWS_MAX", "2");
    bench.set_env("HIGHWATER__LOG", "highwater=debug");
    // An attempt that fails and is retried within the run is part of a successful run.
    bench.receiver.script(&[Answer::Reject(500, "busy")]);
    let host = bench.host().await;
    let outcome = host.run().await;
    assert!(logs(&outcome)[0].contains("committed 3 rows in 2 batches"), "{outcome:?}");
    host.finish().await;
    for record in host.journal().records() {
        assert!(!RESERVED_PREFIXES.iter().any(|prefix| record.message.starts_with(prefix)));
        assert!(record.category != CONSOLE_CATEGORY || record.message.starts_with('{'));
    }
    assert_ids(&host, &outcome.id);
    let lines = host.lines();
    let retried = lines.iter().find(|(_, line)| line["tries"] == 1);
    let (_, retried) = retried.unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!(retried["message"], "Retrying the handler of poller `nightly` (attempt 2 of 2)");
    // The levels above Information arrive as intended, too.
    warning().await;
    error().await;
}

/// Each line of a run names it; lines of the process's start and exit cannot.
fn assert_ids(host: &Host, id: &str) {
    for (level, line) in host.lines() {
        assert_eq!(level, Level::Information);
        if line["event"] == "started" || line["event"] == "stopping" {
            continue;
        }
        let fields = [&line["invocation_id"], &line["span"]["invocation_id"]];
        assert!(fields.contains(&&Json::from(id)), "{line}");
    }
}

/// Operator actions are reported on stdout, whatever their text; automatic actions are warnings.
pub(crate) async fn warning() {
    for (by, level, name) in
        [("ann", Level::Information, "INFO"), ("handler of `nightly`", Level::Warning, "WARN")]
    {
        let bench = Bench::with_rows(1..=1).await;
        bench.host().await.run().await;
        pause(&bench, by, "a Warning of Warnemünde");
        let host = bench.host().await;
        host.run().await;
        let (seen, line) = host.event("tick_paused").await;
        assert_eq!((seen, line["level"].as_str()), (level, Some(name)));
        host.stop().await;
    }
}

async fn error() {
    let reason = "Warnemünde: \\u0077arn, \\WARN \"wArn\" \\\\";
    let mut bench = Bench::with_rows(1..=1).await;
    bench.receiver.script(&[Answer::Reject(500, reason)]);
    let host = bench.host().await;
    host.run().await;
    let (level, line) = host.event("handler_failed").await;
    assert_eq!((level, line["level"].as_str()), (Level::Error, Some("ERROR")), "{line}");
    assert!(line["message"].as_str().unwrap().contains(reason), "{line}");
    host.stop().await;
    bench.set("SOURCE__TABLE", "dbo.warnings");
    let host = bench.host().await;
    host.run().await;
    let (level, line) = host.line(|line| line["level"] == "ERROR").await;
    assert_eq!(level, Level::Error, "{line}");
    assert!(line["message"].as_str().unwrap().contains("`dbo.warnings`"), "{line}");
}

/// Lines of the handler during its first run, and their levels.
async fn lines_of_a_run(bench: &Bench) -> (Host, Vec<(Level, String)>) {
    let host = bench.host().await;
    // One-time lines, at the start and at a connection, are not part of it.
    host.run().await;
    bench.insert(3..=4);
    let before = host.journal().records().len();
    host.run().await;
    let records = host.journal().records().split_off(before);
    let is_ours = |category: &str| category == CONSOLE_CATEGORY || category.ends_with(".User");
    let lines = records.into_iter().filter(|record| is_ours(&record.category));
    let lines = lines.map(|record| (record.level, record.message)).collect();
    (host, lines)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_of_one_batch_is_one_line() {
    let bench = Bench::with_rows(1..=2).await;
    let (host, lines) = lines_of_a_run(&bench).await;
    let [(Level::Information, line)] = lines.as_slice() else { panic!("{lines:#?}") };
    let line: Json = serde_json::from_str(line).unwrap();
    let expected = "poller `nightly`: committed 2 rows in 1 batch (";
    assert!(line["message"].as_str().unwrap().starts_with(expected), "{line}");
    let numbers = (&line["event"], &line["level"], &line["rows"], &line["batches"]);
    assert_eq!(numbers, (&"tick_complete".into(), &"INFO".into(), &2.into(), &1.into()));
    assert!(line["timestamp"].is_string() && line["poller.name"] == "nightly", "{line}");
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_func_a_line_is_short_text_and_keeps_its_level() {
    let mut bench = Bench::with_rows(1..=2).await;
    bench.set_env("FUNCTIONS_CORETOOLS_ENVIRONMENT", "true");
    let (host, lines) = lines_of_a_run(&bench).await;
    let [(Level::Information, line)] = lines.as_slice() else { panic!("{lines:#?}") };
    assert!(line.starts_with("poller `nightly`: committed 2 rows in 1 batch ("), "{line}");
    let result = async |text: &str| {
        // The host's own record of a failure contains the text too, and may come first.
        let found = host.journal().find(LIMIT, |record| {
            record.category == CONSOLE_CATEGORY && record.message.contains(text)
        });
        let found = found.await;
        found.unwrap_or_else(|| panic!("{text}: {:#?}", host.journal().records()))
    };
    assert!(result("Serving functions").await.message.starts_with("Serving functions: "));
    bench.insert(5..=5);
    bench.receiver.script(&[Answer::Reject(500, "full"), Answer::Reject(500, "Warnemünde")]);
    host.run().await;
    let line = result("answered 500: full").await;
    assert_eq!(line.level, Level::Error, "{line:?}");
    assert!(line.message.starts_with("Error: poller `nightly`: failed after 0 rows"), "{line:?}");
    // Text with these letters would become a warning.
    bench.command(&["resume", "nightly"]).await.done();
    host.run().await;
    let line = result("\\u0057arnemünde").await;
    assert_eq!(line.level, Level::Error, "{line:?}");
    let stops = bench.host().await;
    pause(&bench, "handler of `nightly`", "gone");
    stops.run().await;
    let found = stops.journal().find(LIMIT, |record| record.level == Level::Warning).await;
    let line = found.unwrap();
    assert!(line.message.starts_with("Warning: poller `nightly`: paused by handler"), "{line:?}");
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The host stores a handler's lines without their operation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_line_of_an_invocation_names_its_operation() {
    let bench = Bench::with_rows(1..=1).await;
    bench.receiver.script(&[Answer::Reject(500, "full")]);
    let host = bench.host().await;
    let traceparent = Some(format!("00-{TRACE}-00f067aa0ba902b7-00"));
    for (function, event) in [("nightly", "handler_failed"), ("nobody", "unknown_function")] {
        let invocation = Invocation::new(function, data::body("01_scheduled"));
        host.invoke(Invocation { traceparent: traceparent.clone(), ..invocation }).await;
        let (_, line) = host.event(event).await;
        assert_eq!(line["span"]["operation_id"], TRACE, "{line}");
    }
    // Without a trace there is no operation.
    host.invoke(Invocation::new("other", data::body("01_scheduled"))).await;
    let (_, line) = host.line(|line| line["function"] == "other").await;
    assert!(line["span"]["operation_id"].is_null(), "{line}");
    host.stop().await;
}
