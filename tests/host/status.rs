//! The status page: as a function of the host, beside a timer loop, and on a terminal.

use std::process::Stdio;

use highwater::fakehost::Invocation;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::bench::{Bench, Host, LIMIT, PROGRAM, within};

/// Returns what the host sends for a request: names that are repeated have their values joined by commas.
fn request(view: Option<&str>, query: &Json) -> Invocation {
    let params = view.map_or(json!({}), |view| json!({ "view": view }));
    let body = json!({
        "Data": { "request": {
            "Url": "https://shop.example/api/status", "Method": "GET", "Query": query,
            "Headers": { "Accept": ["text/html"] }, "Params": params, "Identities": [],
        } },
        "Metadata": { "sys": { "MethodName": "highwater_status" } },
    });
    Invocation::new(highwater::page::FUNCTION, body.to_string())
}

/// Returns what the host would make a response of, all of whose fields it wants.
async fn response(host: &Host, view: Option<&str>, query: &Json) -> Json {
    let outcome = host.invoke(request(view, query)).await;
    assert!(outcome.verdict.is_success(), "{outcome:?}");
    let reply: Json = serde_json::from_slice(&outcome.reply.unwrap().body).unwrap();
    let response = reply["Outputs"]["res"].clone();
    for field in ["statusCode", "status", "headers", "body"] {
        assert!(!response[field].is_null(), "{field} of {response}");
    }
    assert!(response["statusCode"].is_string(), "{response}");
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_shows_the_page_and_the_json_behind_it() {
    let mut bench = Bench::with_rows(1..=2).await;
    bench.set("JOURNAL", "full");
    bench.schedule("0 0 3 1 1 *");
    let host = bench.host().await;
    host.run().await;
    let answer = response(&host, None, &json!({})).await;
    assert_eq!(answer["statusCode"], "200");
    assert_eq!(answer["headers"]["Content-Type"], "application/json; charset=utf-8");
    let report: Json = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    let nightly = &report["pollers"][0];
    assert_eq!((&nightly["poller"], &nightly["state"]), (&"nightly".into(), &"free".into()));
    assert_eq!((&nightly["recent"][0]["rows"], &nightly["token"]), (&2.into(), &1.into()));
    assert!(nightly["next_tick_at"].is_string() && nightly["schedule"].is_string(), "{nightly}");
    assert!(nightly["journal"].is_null(), "only one poller's is read");

    let answer = response(&host, Some("page"), &json!({ "code": "k/+==" })).await;
    assert_eq!(answer["headers"]["Content-Type"], "text/html; charset=utf-8");
    let page = answer["body"].as_str().unwrap();
    assert!(page.contains("href=\"page?poller=nightly&amp;code=k%2F%2B%3D%3D\""), "{page}");
    assert!(!page.contains("<form"), "here it is only looked at");

    let query = json!({ "poller": "nightly", "html": "1" });
    let answer = response(&host, None, &query).await;
    let report: Json = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    assert!(report["html"].as_str().unwrap().contains("batch_complete"), "{report}");
    assert_eq!(report["pollers"][0]["journal"][0]["event"], "batch_complete");

    let answer = response(&host, None, &json!({ "poller": "<b>weekly" })).await;
    assert_eq!(answer["statusCode"], "404");
    let answer = response(&host, Some("other"), &json!({})).await;
    assert_eq!(answer["statusCode"], "404");
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_loop_serves_the_page_where_it_is_told_to_and_ends_with_it() {
    let bench = Bench::with_rows(1..=1).await;
    bench.schedule("0 0 3 1 1 *");
    let from = bench.folder.path().join("root");
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--status", "127.0.0.1:0", "--from"]).arg(from);
    command.env_clear().envs(&bench.env).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let line = within(LIMIT, lines.next_line()).await.unwrap().unwrap();
    let url = line.strip_prefix("status page: ").unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let page = client.get(url).send().await.unwrap();
    assert_eq!(page.url().path(), "/api/status/page");
    let page = page.text().await.unwrap();
    assert!(page.contains("nightly") && !page.contains("<form"), "{page}");
    let killed = Command::new("kill").arg(process.id().unwrap().to_string()).status();
    assert!(within(LIMIT, killed).await.unwrap().success());
    assert_eq!(within(LIMIT, process.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watching_wants_a_terminal_or_prints_line_by_line() {
    let bench = Bench::with_rows(1..=1).await;
    bench.host().await.run().await;
    bench.command(&["status", "--watch"]).await.failed(2, "`--output jsonl`");
    bench.command(&["status", "--watch", "--output", "json"]).await.failed(2, "`--watch` draws");
    bench.command(&["status", "--watch", "--every", "1ms"]).await.failed(2, "at least a second");
    bench.command(&["status", "--status-host", "x"]).await.failed(2, "--serve");
    let mut command = Command::new(PROGRAM);
    command.args(["status", "--watch", "--every", "1s", "--output", "jsonl"]);
    command.env_clear().envs(&bench.env).stdin(Stdio::null());
    command.stdout(Stdio::piped()).kill_on_drop(true);
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = within(LIMIT, lines.next_line()).await.unwrap().unwrap();
        let status: Json = serde_json::from_str(&line).unwrap();
        assert_eq!(status["poller"], "nightly");
    }
    let killed = Command::new("kill").arg(process.id().unwrap().to_string()).status();
    assert!(within(LIMIT, killed).await.unwrap().success());
    assert_eq!(within(LIMIT, process.wait()).await.unwrap().code(), Some(0));
}
