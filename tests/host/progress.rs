//! Progress within a batch: rows that were accepted before a kill, a failure or a stall are not redelivered.
//!
//! `queue_rows_per_second` prints how fast rows are sent to a queue that takes 9 or 20 ms for a message:
//!
//! ```text
//! cargo test -p highwater-cli --test host queue_rows_per_second -- --nocapture
//! ```

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use highwater::handler::sql::{create_fence, table_name};
use highwater_devdb::Fault;
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::bench::{Bench, PROGRAM, within};
use crate::orphan::until;

/// Longer than any of these ticks.
const LIMIT: Duration = Duration::from_secs(60);

/// What a queue has received.
#[derive(Debug, Default)]
struct Received {
    /// Keys of the rows, in the order in which their messages were accepted.
    ids: Vec<i64>,
    in_flight: usize,
    in_flight_max: usize,
    began_at: Option<Instant>,
    ended_at: Option<Instant>,
}

/// A stand-in for the queue service.
#[derive(Debug)]
struct QueueStandIn {
    connection: String,
    received: Arc<Mutex<Received>>,
    /// Messages of later rows get no answer.
    last_row: Arc<Mutex<i64>>,
    task: AbortHandle,
}

impl Drop for QueueStandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct StandInState {
    received: Arc<Mutex<Received>>,
    last_row: Arc<Mutex<i64>>,
    latency: Duration,
}

impl QueueStandIn {
    async fn start(last_row: i64, latency: Duration) -> Self {
        let (received, last_row) = (Arc::default(), Arc::new(Mutex::new(last_row)));
        let state = StandInState {
            received: Arc::clone(&received),
            last_row: Arc::clone(&last_row),
            latency,
        };
        let router = Router::new().route("/acme/changes/messages", post(message)).with_state(state);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connection =
            format!("QueueEndpoint=http://{address}/acme;AccountName=acme;AccountKey=czNjcmV0");
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Self { connection, received, last_row, task: task.abort_handle() }
    }

    fn ids(&self) -> Vec<i64> {
        self.received.lock().unwrap().ids.clone()
    }

    fn accept_up_to(&self, last_row: i64) {
        *self.last_row.lock().unwrap() = last_row;
    }
}

/// Counts a request until its answer, or until the client is gone.
struct InFlight(Arc<Mutex<Received>>);

impl InFlight {
    fn begin(received: &Arc<Mutex<Received>>) -> Self {
        let mut counts = received.lock().unwrap();
        counts.in_flight += 1;
        counts.in_flight_max = counts.in_flight_max.max(counts.in_flight);
        counts.began_at.get_or_insert(Instant::now());
        Self(Arc::clone(received))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.lock().unwrap().in_flight -= 1;
    }
}

async fn message(State(state): State<StandInState>, body: String) -> (StatusCode, &'static str) {
    let _in_flight = InFlight::begin(&state.received);
    let (_, text) = body.split_once("<MessageText>").unwrap();
    let (text, _) = text.split_once("</MessageText>").unwrap();
    let event: Json = serde_json::from_str(&text.replace("&quot;", "\"")).unwrap();
    let id = event["pk"]["id"].as_i64().unwrap();
    sleep(state.latency).await;
    if id > *state.last_row.lock().unwrap() {
        std::future::pending::<()>().await;
    }
    let mut received = state.received.lock().unwrap();
    received.ids.push(id);
    received.ended_at = Some(Instant::now());
    (StatusCode::CREATED, "<?xml version=\"1.0\"?><QueueMessagesList></QueueMessagesList>")
}

/// A table of `rows` rows, polled into the queue.
async fn bench_of(rows: i64, queue: &QueueStandIn) -> Bench {
    let mut bench = Bench::with_rows(1..=rows).await;
    bench.unset("HANDLER__URL");
    bench.set("HANDLER__KIND", "queue");
    bench.set("HANDLER__CONNECTION", "Storage");
    bench.set("HANDLER__QUEUE", "changes");
    bench.set("HANDLER__MESSAGE_ENCODING", "none");
    bench.set_env("Storage", &queue.connection);
    bench
}

/// Returns the key of the row that the checkpoint is at; 0 for none.
fn last_committed(bench: &Bench) -> i64 {
    let state = std::fs::metadata(bench.state_path()).is_ok().then(|| bench.state());
    state.and_then(|state| state["checkpoint"]["cursor"]["tiebreaker"]["id"].as_i64()).unwrap_or(0)
}

/// Starts a tick in a process of its own.
fn start_tick(bench: &Bench) -> tokio::process::Child {
    let mut command = Command::new(PROGRAM);
    command.args(["tick", "nightly"]).env_clear().envs(&bench.env).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_600_of_1000_messages_resumes_after_them() {
    // Rows after the 600th get no answer. A renewal commits the 600 then.
    let queue = QueueStandIn::start(600, Duration::ZERO).await;
    let mut bench = bench_of(1_000, &queue).await;
    // Not so short that a busy machine loses it.
    bench.set("LEASE__TTL", "6s");
    let mut tick = start_tick(&bench);
    until("a renewal commits 600 rows", async || last_committed(&bench) == 600).await;
    assert_eq!(queue.ids().len(), 600);
    assert_eq!(queue.received.lock().unwrap().in_flight, 16, "the next ones are in flight");
    tick.kill().await.unwrap();

    queue.accept_up_to(1_000);
    // Skipped until the lease has lapsed.
    until("another process sends the rest", async || {
        drop(within(LIMIT, start_tick(&bench).wait()).await);
        last_committed(&bench) == 1_000
    })
    .await;
    let ids = queue.ids();
    assert_eq!(ids.len(), 1_000, "no message was sent twice");
    assert_eq!(ids.into_iter().collect::<BTreeSet<i64>>().len(), 1_000, "and none is missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_rows_per_second() {
    const ROWS: i64 = 400;
    let latencies = [9, 20].map(Duration::from_millis);
    for (latency, concurrency) in latencies.into_iter().flat_map(|it| [(it, 1_u32), (it, 16)]) {
        let queue = QueueStandIn::start(i64::MAX, latency).await;
        let mut bench = bench_of(ROWS, &queue).await;
        bench.set("HANDLER__CONCURRENCY", &concurrency.to_string());
        let ended = within(LIMIT, start_tick(&bench).wait()).await.unwrap();
        assert!(ended.success());
        let received = queue.received.lock().unwrap();
        assert_eq!(received.ids.len(), usize::try_from(ROWS).unwrap());
        let in_flight_max = u32::try_from(received.in_flight_max).unwrap();
        assert!(in_flight_max <= concurrency && (in_flight_max > 1 || concurrency == 1));
        let took = received.ended_at.unwrap() - received.began_at.unwrap();
        let rate = f64::from(i32::try_from(ROWS).unwrap()) / took.as_secs_f64();
        println!("CONCURRENCY={concurrency}: {rate:.0} rows/s with {latency:?} per message");
    }
}

/// A server that reads requests and never answers.
async fn silent_server() -> (String, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.push(connection);
        }
    });
    (address, task.abort_handle())
}

/// Runs a tick whose handler stops answering, and checks that the call is recorded as stalled. Returns the key of the last
/// row that was committed.
async fn stalls(bench: &mut Bench) -> i64 {
    bench.set("HANDLER__STALL_MAX", "400ms");
    let mut command = Command::new(PROGRAM);
    command.args(["tick", "nightly"]).env_clear().envs(&bench.env).kill_on_drop(true);
    // Standard output is not read.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut tick = command.spawn().unwrap();
    let mut error = String::new();
    until("the failure is recorded", async || {
        let state = std::fs::metadata(bench.state_path()).is_ok().then(|| bench.state());
        let last = state.map(|state| state["in_flight"]["last_error"].clone());
        error = last.and_then(|last| Some(last.as_str()?.to_owned())).unwrap_or_default();
        !error.is_empty()
    })
    .await;
    assert!(error.contains("no progress for 400ms"), "{error}");
    tick.kill().await.unwrap();
    last_committed(bench)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_stops_answering_is_a_stall_and_the_messages_before_it_count() {
    let queue = QueueStandIn::start(7, Duration::ZERO).await;
    let mut bench = bench_of(30, &queue).await;
    assert_eq!(stalls(&mut bench).await, 7);
    assert_eq!(queue.ids().len(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_a_stall_for_every_handler_that_calls_one() {
    let (address, server) = silent_server().await;
    let storage = |service: &str| {
        format!("{service}Endpoint=http://{address}/acme;AccountName=acme;AccountKey=czNjcmV0")
    };
    let url = format!("http://{address}/");
    let kinds: [&[(&str, &str)]; 5] = [
        &[("KIND", "http"), ("URL", &url)],
        &[("KIND", "http"), ("URL", &url), ("CONCURRENCY", "4")],
        &[("KIND", "blob"), ("CONNECTION", "Blobs"), ("CONTAINER", "changes")],
        &[("KIND", "durable"), ("URL", &url), ("ORCHESTRATOR", "Run")],
        &[
            ("KIND", "chain"),
            ("STEPS", "first, second"),
            ("STEP__FIRST__KIND", "exec"),
            ("STEP__FIRST__COMMAND", "true"),
            ("STEP__SECOND__KIND", "http"),
            ("STEP__SECOND__URL", &url),
        ],
    ];
    for settings in kinds {
        let mut bench = Bench::with_rows(1..=5).await;
        bench.unset("HANDLER__URL");
        bench.unset("HANDLER__TRIES_MAX");
        bench.set_env("Blobs", &storage("Blob"));
        for (name, value) in settings {
            bench.set(&format!("HANDLER__{name}"), value);
        }
        assert_eq!(stalls(&mut bench).await, 0, "{settings:?}");
    }
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_hangs_is_a_stall_and_the_events_that_it_accepted_count() {
    let mut bench = Bench::with_rows(1..=5).await;
    bench.unset("HANDLER__URL");
    bench.unset("HANDLER__TRIES_MAX");
    bench.set("HANDLER__KIND", "exec");
    // Accepts two events, then hangs.
    let script = r#"for row in 1 2; do read -r line; id=${line#*'"id":"'}; \
        printf '{"batchItemAccepted":"%s"}\n' "${id%%'"'*}"; done; sleep 60"#;
    let command = serde_json::to_string(&["sh", "-c", script]).unwrap();
    bench.set("HANDLER__COMMAND", &command);
    bench.set_env("PATH", "/usr/bin:/bin");
    assert_eq!(stalls(&mut bench).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_hangs_is_a_stall() {
    let mut bench = Bench::with_rows(1..=5).await;
    let fence = create_fence(&table_name("HANDLER__FENCE_TABLE", "dbo.fence").unwrap());
    let copies = "CREATE TABLE dbo.copies (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL)";
    bench.database.execute(&fence).unwrap();
    bench.database.execute(copies).unwrap();
    bench.unset("HANDLER__URL");
    for (name, value) in [
        ("KIND", "sql"),
        ("CONNECTION", "SqlConnection"),
        ("TABLE", "dbo.copies"),
        ("FENCE_TABLE", "dbo.fence"),
        ("COLUMNS", "id, item"),
    ] {
        bench.set(&format!("HANDLER__{name}"), value);
    }
    let hangs = Fault::Stall(Duration::from_secs(60));
    bench.server.faults().arm_matching("[dbo].[copies]", 1, hangs);
    assert_eq!(stalls(&mut bench).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_reading_is_a_stall() {
    let mut bench = Bench::with_rows(1..=1_000).await;
    bench.unset("HANDLER__URL");
    bench.unset("HANDLER__TRIES_MAX");
    bench.set("HANDLER__KIND", "stdout");
    // More than a pipe holds.
    assert_eq!(stalls(&mut bench).await, 0);
}
