//! The target of the deliveries: a small HTTP server that answers as a test scripts it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// What the next delivery gets; without a script it is taken.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// This status and text.
    Refuse(u16, &'static str),
    /// Taken, but only once [`Receiver::release`] lets one go.
    Hold,
}

/// A delivery.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) id: String,
    pub(crate) attempt: u64,
    pub(crate) token: u64,
    /// Under whose name it came.
    pub(crate) poller: String,
    /// What tells a target that its rows come again.
    pub(crate) replay_id: Option<String>,
    /// Keys of its rows.
    pub(crate) rows: Vec<i64>,
    /// Its events, whole.
    pub(crate) events: Vec<Json>,
    pub(crate) taken: bool,
    /// The span that it lies in.
    pub(crate) traceparent: Option<String>,
    pub(crate) tracestate: Option<String>,
}

#[derive(Debug)]
struct Shared {
    script: Mutex<VecDeque<Answer>>,
    batches: watch::Sender<Vec<Batch>>,
    permits: Semaphore,
    /// How long each delivery takes.
    takes: Mutex<Duration>,
}

/// The running server; gone when dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) url: String,
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

impl Receiver {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared {
            script: Mutex::default(),
            batches: watch::Sender::default(),
            permits: Semaphore::new(0),
            takes: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/changes", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/changes", post(receive))
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, shared, task: task.abort_handle() }
    }

    /// Says what the next deliveries get.
    pub(crate) fn script(&self, answers: &[Answer]) {
        self.shared.script.lock().unwrap().extend(answers.iter().cloned());
    }

    /// Says how long each delivery takes from now on.
    pub(crate) fn takes(&self, time: Duration) {
        *self.shared.takes.lock().unwrap() = time;
    }

    /// Forgets what was scripted, and what came so far.
    pub(crate) fn forget(&self) {
        self.shared.script.lock().unwrap().clear();
        self.shared.batches.send_modify(Vec::clear);
    }

    /// Lets one held delivery be taken.
    pub(crate) fn release(&self) {
        self.shared.permits.add_permits(1);
    }

    /// Waits until so many deliveries have come in all, and returns them.
    pub(crate) async fn arrived(&self, count: usize) -> Vec<Batch> {
        let mut batches = self.shared.batches.subscribe();
        let there = timeout(LIMIT, batches.wait_for(|batches| batches.len() >= count)).await;
        there.expect("the delivery comes").unwrap().clone()
    }

    /// Returns every delivery so far.
    pub(crate) fn batches(&self) -> Vec<Batch> {
        self.shared.batches.borrow().clone()
    }

    /// Returns the keys of all rows taken, in the order in which they came.
    pub(crate) fn taken(&self) -> Vec<i64> {
        let batches = self.batches();
        batches.iter().filter(|batch| batch.taken).flat_map(|batch| batch.rows.clone()).collect()
    }
}

async fn receive(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, &'static str) {
    let body: Json = serde_json::from_slice(&body).unwrap();
    let answer = shared.script.lock().unwrap().pop_front();
    let events = body["events"].as_array().unwrap();
    let batch = Batch {
        id: body["batch_id"].as_str().unwrap().to_owned(),
        attempt: body["attempt"].as_u64().unwrap(),
        token: body["fencing_token"].as_u64().unwrap(),
        poller: body["poller"].as_str().unwrap().to_owned(),
        replay_id: body["replay_id"].as_str().map(str::to_owned),
        rows: events.iter().map(|event| event["pk"]["id"].as_i64().unwrap()).collect(),
        events: events.clone(),
        taken: false,
        traceparent: headers.get("traceparent").map(|it| it.to_str().unwrap().to_owned()),
        tracestate: headers.get("tracestate").map(|it| it.to_str().unwrap().to_owned()),
    };
    let mut index = 0;
    shared.batches.send_modify(|batches| {
        index = batches.len();
        batches.push(batch);
    });
    let takes = *shared.takes.lock().unwrap();
    sleep(takes).await;
    match answer {
        Some(Answer::Refuse(status, text)) => return (StatusCode::from_u16(status).unwrap(), text),
        Some(Answer::Hold) => shared.permits.acquire().await.unwrap().forget(),
        None => {}
    }
    shared.batches.send_modify(|batches| batches[index].taken = true);
    (StatusCode::OK, "")
}
