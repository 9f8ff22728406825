//! The target of the deliveries: a small HTTP server with scripted responses.

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

/// The response to the next delivery; without a script it is accepted.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// This status and text.
    Reject(u16, &'static str),
    /// Accepted, but only once [`Receiver::release`] releases it.
    Hold,
}

/// A delivery.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) id: String,
    pub(crate) attempt: u64,
    pub(crate) token: u64,
    /// The poller that sent it.
    pub(crate) poller: String,
    /// Tells a target that rows are redelivered.
    pub(crate) replay_id: Option<String>,
    /// Keys of its rows.
    pub(crate) rows: Vec<i64>,
    /// Its complete events.
    pub(crate) events: Vec<Json>,
    pub(crate) accepted: bool,
    /// Its parent span.
    pub(crate) traceparent: Option<String>,
    pub(crate) tracestate: Option<String>,
}

#[derive(Debug)]
struct Shared {
    script: Mutex<VecDeque<Answer>>,
    batches: watch::Sender<Vec<Batch>>,
    permits: Semaphore,
    /// How long each delivery takes.
    delivery_time: Mutex<Duration>,
}

/// The running server; stops when dropped.
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

/// Longer than any step of these tests.
const LIMIT: Duration = Duration::from_secs(20);

impl Receiver {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared {
            script: Mutex::default(),
            batches: watch::Sender::default(),
            permits: Semaphore::new(0),
            delivery_time: Mutex::default(),
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

    /// Scripts the next responses.
    pub(crate) fn script(&self, answers: &[Answer]) {
        self.shared.script.lock().unwrap().extend(answers.iter().cloned());
    }

    /// Sets how long each delivery takes from now on.
    pub(crate) fn delivery_time(&self, time: Duration) {
        *self.shared.delivery_time.lock().unwrap() = time;
    }

    /// Clears the script and the deliveries so far.
    pub(crate) fn forget(&self) {
        self.shared.script.lock().unwrap().clear();
        self.shared.batches.send_modify(Vec::clear);
    }

    /// Releases one held delivery.
    pub(crate) fn release(&self) {
        self.shared.permits.add_permits(1);
    }

    /// Waits for this many deliveries in total, and returns them.
    pub(crate) async fn arrived(&self, count: usize) -> Vec<Batch> {
        let mut batches = self.shared.batches.subscribe();
        let there = timeout(LIMIT, batches.wait_for(|batches| batches.len() >= count)).await;
        there.expect("the delivery comes").unwrap().clone()
    }

    /// Returns every delivery so far.
    pub(crate) fn batches(&self) -> Vec<Batch> {
        self.shared.batches.borrow().clone()
    }

    /// Returns the keys of all accepted rows, in order of arrival.
    pub(crate) fn accepted(&self) -> Vec<i64> {
        let batches = self.batches();
        batches.iter().filter(|batch| batch.accepted).flat_map(|batch| batch.rows.clone()).collect()
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
        accepted: false,
        traceparent: headers.get("traceparent").map(|it| it.to_str().unwrap().to_owned()),
        tracestate: headers.get("tracestate").map(|it| it.to_str().unwrap().to_owned()),
    };
    let mut index = 0;
    shared.batches.send_modify(|batches| {
        index = batches.len();
        batches.push(batch);
    });
    let delivery_time = *shared.delivery_time.lock().unwrap();
    sleep(delivery_time).await;
    match answer {
        Some(Answer::Reject(status, text)) => return (StatusCode::from_u16(status).unwrap(), text),
        Some(Answer::Hold) => shared.permits.acquire().await.unwrap().forget(),
        None => {}
    }
    shared.batches.send_modify(|batches| batches[index].accepted = true);
    (StatusCode::OK, "")
}
