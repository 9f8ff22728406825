//! The target of the batches: it takes its time, rejects stale terms, and records everything.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use highwater::cursor::RowVersion;
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::ledger::{Call, End, RowState, Shared, Term, token_of};
use crate::rng::Rng;

/// The running server; stops when dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    port: u16,
    task: AbortHandle,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Desk {
    ledger: Shared,
    rng: Arc<Mutex<Rng>>,
}

impl Receiver {
    pub(crate) async fn start(ledger: Shared, rng: Rng) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new()
            .route("/{worker}", post(receive))
            .layer(DefaultBodyLimit::disable())
            .with_state(Desk { ledger, rng: Arc::new(Mutex::new(rng)) });
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, task: task.abort_handle() }
    }

    /// Each instance has its own URL, which identifies the caller.
    pub(crate) fn url(&self, worker: usize) -> String {
        format!("http://127.0.0.1:{}/{worker}", self.port)
    }
}

/// An open call; dropped with the connection if the caller goes away.
struct OpenCall {
    ledger: Shared,
    number: usize,
    end: End,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.ledger.write(|ledger| ledger.end(self.number, self.end));
    }
}

async fn receive(
    State(desk): State<Desk>,
    Path(worker): Path<usize>,
    body: Bytes,
) -> (StatusCode, &'static str) {
    let (call, ids) = read(worker, &body);
    let ledger = &desk.ledger;
    let (number, is_stale) = ledger.write(|ledger| {
        let number = ledger.begin(call, ids);
        (number, ledger.calls[number].end == End::Stale)
    });
    if is_stale {
        return (StatusCode::CONFLICT, "a newer lease was granted");
    }
    let mut open = OpenCall { ledger: ledger.clone(), number, end: End::Dropped };
    let delay = desk.rng.lock().unwrap().millis(0..=80);
    sleep(delay).await;
    open.end = End::Answered;
    (StatusCode::OK, "")
}

fn read(worker: usize, body: &[u8]) -> (Call, Vec<String>) {
    let body: Json = serde_json::from_slice(body).unwrap();
    let number = |name: &str| body[name].as_u64().unwrap();
    let text = |json: &Json| json.as_str().unwrap().to_owned();
    let events = body["events"].as_array().unwrap();
    let row = |event: &Json| RowState {
        key: event["pk"]["id"].as_i64().unwrap(),
        version: text(&event["cursor"]["value"]).parse::<RowVersion>().unwrap().0,
        token: token_of(event["after"]["item"].as_str().unwrap()),
    };
    let call = Call {
        worker,
        term: Term { generation: number("generation"), token: number("fencing_token") },
        batch_id: text(&body["batch_id"]),
        rows: events.iter().map(row).collect(),
        began: Instant::now(),
        ended: None,
        end: End::Open,
    };
    (call, events.iter().map(|event| text(&event["id"])).collect())
}
