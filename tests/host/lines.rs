//! LOG: the handler's own lines, of which the host makes one record each.

use highwater::fakehost::{CONSOLE_CATEGORY, Level, RESERVED_PREFIXES};
use serde_json::Value as Json;

use crate::bench::{Bench, Host, logs};
use crate::receiver::Answer;
use crate::responses::pause;

pub(crate) async fn good_run() {
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set("HANDLER__TRIES_MAX", "2");
    bench.set("BATCH_ROWS_MAX", "2");
    bench.set_env("HIGHWATER__LOG", "highwater=debug");
    // A try that fails and is made again within the run is part of a good run.
    bench.receiver.script(&[Answer::Refuse(500, "busy")]);
    let host = bench.host().await;
    let outcome = host.run().await;
    assert!(logs(&outcome)[0].contains("committed 3 rows in 2 batches"), "{outcome:?}");
    host.finish().await;
    for record in host.journal().records() {
        assert!(!RESERVED_PREFIXES.iter().any(|prefix| record.message.starts_with(prefix)));
        assert!(record.category != CONSOLE_CATEGORY || record.message.starts_with('{'));
    }
    assert_ids(&host, &outcome.id);
    let retried = host.lines().iter().any(|(_, line)| line["tries"] == 1);
    assert!(retried, "{:#?}", host.lines());
}

/// Each line of a run names it; those of the process's start and end cannot.
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

/// What a person did is told on stdout, whatever it says; what a rule did is a warning.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_stays_one_whatever_its_text() {
    let reason = "Warnemünde: \\u0077arn, \\WARN \"wArn\" \\\\";
    let mut bench = Bench::with_rows(1..=1).await;
    bench.receiver.script(&[Answer::Refuse(500, reason)]);
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
