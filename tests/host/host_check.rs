//! `.ci/host-check.mjs`, which is meant for the real host, tried on the fake one, which provides the admin
//! API and the log lines that the script needs.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::{Path as Segment, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use highwater_fakehost::{FakeHost, Invocation, Outcome};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::AbortHandle;

use crate::bench::{Bench, LIMIT, within};
use crate::{data, package};

const FUNCTION: &str = "poll";

/// A host's admin API, for the script only.
struct Admin {
    url: String,
    log: PathBuf,
    task: AbortHandle,
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Shared {
    host: FakeHost,
    log: PathBuf,
}

impl Admin {
    async fn start(host: FakeHost, folder: &Path) -> Self {
        let log = folder.join("func.log");
        File::create(&log).unwrap();
        let shared = Shared { host, log: log.clone() };
        let router = Router::new()
            .route("/admin/host/status", get(|| async { r#"{"state":"Running"}"# }))
            .route("/admin/functions/{name}", post(run))
            .with_state(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serve = async move { axum::serve(listener, router).await.unwrap() };
        Self { url, log, task: tokio::spawn(serve).abort_handle() }
    }
}

/// Answers before the function has run, as the host does.
async fn run(
    State(Shared { host, log }): State<Shared>,
    Segment(name): Segment<String>,
) -> StatusCode {
    tokio::spawn(async move {
        let body = data::body("14_admin_empty_input");
        let Outcome { id, verdict, .. } = host.invoke(Invocation::new(&name, body)).await;
        let how = if verdict.is_success() { "Succeeded" } else { "Failed" };
        let line = format!("[x] Executed 'Functions.{name}' ({how}, Id={id}, Duration=5ms)\n");
        OpenOptions::new().append(true).open(log).unwrap().write_all(line.as_bytes()).unwrap();
    });
    StatusCode::ACCEPTED
}

/// Runs the script; returns whether it found no error, and its lines.
async fn check(bench: &mut Bench, kill: bool) -> (bool, Vec<String>) {
    let dist = bench.folder.path().join("dist");
    package::stage(&dist).await;
    bench.options.root.clone_from(&dist);
    bench.options.program = dist.join("handler");
    bench.set_env("HIGHWATER__FUNCTIONS__POLL__POLLERS", "all");
    let host = bench.host().await;
    let admin = Admin::start((*host).clone(), bench.folder.path()).await;
    let script = highwater_test_support::root().join(".ci/host-check.mjs");
    let mut node = Command::new("node");
    node.arg(script).args(["--url", &admin.url, "--function", FUNCTION]);
    node.arg("--root").arg(&dist).arg("--log").arg(&admin.log).kill_on_drop(true);
    if kill {
        node.arg("--kill");
    }
    let output = within(LIMIT * 3, node.output()).await.unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    (output.status.success(), lines)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_for_the_real_host_passes_on_the_fake_host() {
    let mut bench = Bench::with_rows(1..=3).await;
    let (good, lines) = check(&mut bench, cfg!(target_os = "linux")).await;
    assert!(good, "{lines:#?}");
    let is_told =
        |id: &str, how: &str| lines.iter().any(|line| line.starts_with(&format!("{id:9} {how}")));
    for id in ["START-01", "START-06", "REQ-01", "REQ-14", "REQ-21", "CONC-01", "PKG-01"] {
        assert!(is_told(id, "passed"), "{id} {lines:#?}");
    }
    assert!(is_told("STOP-02", "by hand") && is_told("TRACE-01", "by hand"), "{lines:#?}");
    assert_eq!(is_told("CRASH-01", "passed"), cfg!(target_os = "linux"));
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    // Steps that it leaves to the user are on the page.
    let page =
        fs::read_to_string(highwater_test_support::root().join("docs/contributing/host-check.md"));
    let page = page.unwrap();
    let by_hand = lines.iter().filter(|line| line.get(10..17) == Some("by hand"));
    let by_hand: BTreeSet<&str> = by_hand.map(|line| line.split(' ').next().unwrap()).collect();
    let listed: BTreeSet<&str> = page.lines().filter_map(|line| line.split('`').nth(1)).collect();
    let missing: Vec<_> = by_hand.difference(&listed).collect();
    assert!(
        missing.is_empty() && by_hand.len() > 10,
        "not in docs/contributing/host-check.md: {missing:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_finds_a_handler_that_fails() {
    let mut bench = Bench::new().await;
    bench.set("SOURCE__TABLE", "");
    let (good, lines) = check(&mut bench, false).await;
    assert!(!good, "{lines:#?}");
    for (id, words) in
        [("REQ-01", "the handler answered 500"), ("RESP-01", "judged an invocation Failed")]
    {
        let line = lines.iter().find(|line| line.starts_with(id)).unwrap();
        assert!(line.contains("failed") && line.contains(words), "{line}");
    }
}
