//! Text of others cannot change a terminal, forge a line or reorder one, wherever it is printed: replies of a target,
//! errors of a database, standard error of an `exec` handler, and what operators wrote into the state.

use std::process::Stdio;

use axum::Router;
use axum::http::StatusCode;
use highwater::printable::printable_char;
use highwater_devdb::{Fault, SqlError};
use highwater_fakehost::{Outcome, Reply, free_port};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::bench::{Bench, PROGRAM};
use crate::secrets::page;

/// Clears a terminal, rings, reverses the text, hides a difference, and starts a line of its own.
const HOSTILE: &str =
    "m4rk\u{1b}[2J\u{7}\u{9b}31m\u{202e}drow\u{200b}\u{2066}\u{85}\u{7f}\u{e0041}\r\u{2028}x";
/// The part of it that is always shown.
const MARK: &str = "m4rk";

fn is_printable(place: &str, text: &str) {
    let is_layout = |c: char| matches!(c, '\n' | '\t');
    let found = text.chars().find(|c| !is_layout(*c) && printable_char(*c) != *c);
    assert_eq!(found, None, "{place}: {text:?}");
}

/// Starts a target that rejects every batch with hostile text; returns its URL.
async fn target(status: StatusCode) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let router = Router::new().fallback(async move || (status, HOSTILE));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// Runs the poller and everything that prints what it left; returns all of it.
async fn prints_printable_text(bench: &Bench) -> String {
    let mut all = String::new();
    let mut check = |place: &str, text: &str| {
        is_printable(place, text);
        all += text;
    };
    let host = bench.host().await;
    for _ in 0..2 {
        let outcome = host.run().await;
        let Outcome { reply: Some(Reply { reason, body, .. }), .. } = &outcome else {
            panic!("{outcome:?}")
        };
        check("the reason", reason);
        let body: serde_json::Value = serde_json::from_slice(body).unwrap();
        for log in body["Logs"].as_array().unwrap() {
            check("a line in the reply", log.as_str().unwrap());
        }
    }
    host.stop().await.unwrap();
    for record in host.journal().records() {
        check("the log", &record.message);
    }
    bench.command(&["pause", "nightly", "--reason", HOSTILE, "--by", HOSTILE]).await;
    let list = bench.command(&["quarantine", "list", "nightly", "--output", "jsonl"]).await.data;
    let entry = list.lines().next().map(|line| serde_json::from_str(line).unwrap());
    let entry: Option<serde_json::Value> = entry;
    let id = entry.as_ref().and_then(|entry| entry["event_id"].as_str()).unwrap_or("none");
    for command in [
        &["tick", "nightly"][..],
        &["status"],
        &["state", "show", "nightly"],
        &["journal", "show", "nightly"],
        &["journal", "tail", "nightly"],
        &["quarantine", "list", "nightly"],
        &["quarantine", "show", "nightly", id],
        &["quarantine", "redrive", "nightly", "--all"],
        &["recover"],
        &["doctor"],
        &["validate"],
        &["reset", "nightly", "to-beginning", "--dry-run"],
        &["clone", "nightly", "mirror", "--dry-run"],
        &["pause", "nightly", "--reason", HOSTILE],
        &["status", HOSTILE],
        &[HOSTILE],
    ] {
        for form in [&[][..], &["--output", "json"]] {
            let result = bench.command(&[command, form].concat()).await;
            let place = format!("{command:?} {form:?}");
            check(&place, &result.data);
            check(&place, &result.rest);
        }
    }
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let mut command = Command::new(PROGRAM);
    command.args(["status", "--serve", &address]).env_clear().envs(&bench.env);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    for path in ["api/status", "api/status?poller=nightly", "api/status/page?poller=nightly"] {
        let text = page(&format!("http://{address}/{path}")).await;
        check(path, &text);
        assert!(text.contains(MARK), "{path}: {text}");
    }
    child.kill().await.unwrap();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_of_a_target_is_printable() {
    for status in [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::INTERNAL_SERVER_ERROR] {
        let mut bench = Bench::with_rows(1..=1).await;
        bench.set("HANDLER__URL", &target(status).await);
        bench.set("ON_FAILURE", "park");
        bench.set("RETRY_DELAY_MIN", "1ms");
        bench.set("RETRY_DELAY_MAX", "1ms");
        bench.set("JOURNAL", "full");
        let all = prints_printable_text(&bench).await;
        assert!(all.matches(MARK).count() > 10, "{all}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_of_a_database_is_printable() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("JOURNAL", "full");
    // A first tick creates the state, to which the failure is added.
    assert_eq!(bench.command(&["tick", "nightly"]).await.code, 0);
    let error = SqlError::new(50_000, 16, HOSTILE.to_owned());
    bench.server.faults().arm_matching("[orders]", 1_000, Fault::Error(error));
    let all = prints_printable_text(&bench).await;
    assert!(all.matches(MARK).count() > 10, "{all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standard_error_of_a_process_is_printable() {
    let mut bench = Bench::with_rows(1..=1).await;
    for other in ["URL", "TRIES_MAX"] {
        bench.env.remove(&format!("HIGHWATER__POLLERS__NIGHTLY__HANDLER__{other}"));
    }
    let path = bench.folder.path().join("hostile");
    std::fs::write(&path, HOSTILE).unwrap();
    let script = "/bin/cat \"$0\" >&2; exit 1";
    let command = serde_json::json!(["/bin/sh", "-c", script, path.to_str().unwrap()]);
    bench.set("HANDLER__KIND", "exec");
    bench.set("HANDLER__COMMAND", &command.to_string());
    bench.set("JOURNAL", "full");
    let all = prints_printable_text(&bench).await;
    assert!(all.matches(MARK).count() > 10, "{all}");
}
