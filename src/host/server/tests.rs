use super::*;
use crate::lease::{Instance, LeaseTerms};
use crate::metrics::Metrics;
use crate::poller::{Limits, PollerParts};
use crate::state::{MemoryStore, OnMissingState, StateKey, StateStore as _, decode};
use crate::testing::{RecordingHandler, TableSource};

const SECOND: Duration = Duration::from_secs(1);

/// One poller whose every batch takes ten seconds, and has one row.
struct World {
    store: Arc<MemoryStore>,
    handler: Arc<RecordingHandler>,
    source: Arc<TableSource>,
    poller: Arc<Poller>,
    shared: Arc<Shared>,
}

impl World {
    fn with_rows(rows: u32) -> Self {
        let store = Arc::new(MemoryStore::default());
        let handler = Arc::new(RecordingHandler::default());
        let source = Arc::new(TableSource::new("orders"));
        source.fill(i64::from(rows));
        for _ in 0..rows {
            handler.then_take(10 * SECOND);
        }
        let poller = Arc::new(Poller::new(PollerParts {
            name: "orders".to_owned(),
            source: source.clone(),
            handler: handler.clone(),
            store: store.clone(),
            instance: Arc::new(Instance::new("a")),
            terms: LeaseTerms::of(30 * SECOND),
            limits: Limits {
                batch_rows_max: 1,
                batch_bytes_max: 1 << 20,
                batches_max: None,
                tick_time_max: 240 * SECOND,
                handler_stop_after: 285 * SECOND,
                handler_stall_max: None,
                state_refresh: 300 * SECOND,
                status_interval: Duration::ZERO,
                retry_delay_min: SECOND,
                retry_delay_max: SECOND,
                on_missing_state: OnMissingState::Stop,
            },
            policy: crate::policy::FailurePolicy::default(),
            metrics: Arc::new(Metrics::default()),
        }));
        let functions = BTreeMap::from([("orders".to_owned(), Function::Tick(poller.clone()))]);
        let service = Service {
            functions: Functions::Ready(functions),
            stop: StopSignal::new(),
            telemetry: Telemetry::default(),
        };
        let shared = Arc::new(Shared::new(service, Ticks::default()));
        Self { store, handler, source, poller, shared }
    }

    async fn invoke(&self) -> Response<Body> {
        let body = br#"{"Data":{},"Metadata":{}}"#;
        let invocation = Invocation::read("i", body).unwrap();
        run(&self.shared, "orders", Arc::clone(&self.poller), invocation).await
    }

    async fn document(&self) -> crate::state::StateDocument {
        let loaded = self.store.load(&StateKey::Document("orders".to_owned())).await.unwrap();
        decode("orders", &loaded.stored.unwrap().bytes).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_connection_does_not_cancel_a_tick_but_ends_it_after_the_batch_in_hand() {
    let world = World::with_rows(5);
    // The server drops the future of a request whose connection was closed.
    let closed = tokio::time::timeout(15 * SECOND, world.invoke()).await;
    assert!(closed.is_err());
    assert_eq!(world.handler.received().len(), 2, "the second batch is in hand");
    // What waits for running ticks at the end of the server waits for this one.
    drop(world.shared.ticks.write().await);
    assert_eq!((world.handler.finished(), world.handler.received().len()), (2, 2));
    let document = world.document().await;
    assert!(document.lease.released_at.is_some(), "its commit gave the lease up");
    assert_eq!(document.in_flight, None);
    // The next invocation goes on from there.
    assert_eq!(world.invoke().await.status(), StatusCode::OK);
    assert_eq!(world.handler.ids(), [1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_second_invocation_while_one_runs_is_answered_at_once() {
    let world = World::with_rows(1);
    let (first, second) = tokio::join!(world.invoke(), async {
        tokio::time::sleep(SECOND).await;
        tokio::time::timeout(SECOND, world.invoke()).await.unwrap()
    });
    assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
    let body = axum::body::to_bytes(second.into_body(), 1 << 16).await.unwrap();
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("skipped: already running"), "{text}");
    assert_eq!(world.handler.ids(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_the_process_ends_every_tick_after_the_batch_in_hand() {
    let world = World::with_rows(5);
    let (response, ()) = tokio::join!(world.invoke(), async {
        tokio::time::sleep(15 * SECOND).await;
        world.shared.service.stop.set();
    });
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(world.handler.ids(), [1, 2]);
    assert!(world.document().await.lease.released_at.is_some());
}

/// Returns what the host logs of an answer.
async fn logs(response: Response<Body>) -> Vec<String> {
    assert_eq!(response.status(), StatusCode::OK);
    let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
    let reply: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let logs = reply["Logs"].as_array().unwrap().iter();
    logs.map(|line| line.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_idle_hour_is_a_line_each_five_minutes_and_every_change_is_a_line() {
    let world = World::with_rows(1);
    assert!(logs(world.invoke().await).await[0].contains("committed 1 row"));
    let mut told = 0;
    for _ in 0..720 {
        told += logs(world.invoke().await).await.len();
        tokio::time::advance(5 * SECOND).await;
    }
    assert_eq!(told, 12);
    world.source.fill(1);
    world.handler.then_take(SECOND);
    assert!(logs(world.invoke().await).await[0].contains("committed 1 row"));
    assert!(logs(world.invoke().await).await[0].contains("nothing new"));
    assert!(logs(world.invoke().await).await.is_empty());
}

#[test]
fn a_reason_phrase_is_redacted_before_it_is_cut() {
    let secret = "reason-5ecret-of-this-test";
    crate::redaction::hold([secret]);
    let padding = "x".repeat(1985);
    let response = reply(StatusCode::INTERNAL_SERVER_ERROR, &format!("{padding} {secret} tail"));
    let phrase = response.extensions().get::<ReasonPhrase>().unwrap();
    let phrase = String::from_utf8_lossy(phrase.as_bytes()).into_owned();
    assert!(phrase.len() <= 2000 && !phrase.contains("5ec"), "{phrase}");
    let response = reply(StatusCode::INTERNAL_SERVER_ERROR, &format!("{secret} is bad"));
    let phrase = response.extensions().get::<ReasonPhrase>().unwrap();
    assert_eq!(phrase.as_bytes(), b"[redacted] is bad");
}
