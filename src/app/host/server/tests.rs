use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::lease::{Instance, LeaseTerms};
use crate::metrics::Metrics;
use crate::poller::{Limits, PollerParts};
use crate::recovery::{ControllerParts, Mode, Thresholds};
use crate::state::{MemoryStore, StateKey, StateStore as _, decode};
use crate::testing::{RecordingHandler, TableSource, limits};

const SECOND: Duration = Duration::from_secs(1);

/// A server with one [`Member`].
struct World {
    store: Arc<MemoryStore>,
    handler: Arc<RecordingHandler>,
    source: Arc<TableSource>,
    poller: Arc<Poller>,
    shared: Arc<Shared>,
}

/// A poller whose batches have one row and take ten seconds each.
struct Member {
    store: Arc<MemoryStore>,
    handler: Arc<RecordingHandler>,
    source: Arc<TableSource>,
    poller: Arc<Poller>,
}

impl Member {
    fn new(name: &str, rows: u32) -> Self {
        let store = Arc::new(MemoryStore::default());
        let handler = Arc::new(RecordingHandler::default());
        let source = Arc::new(TableSource::new(name));
        source.fill(i64::from(rows));
        for _ in 0..rows {
            handler.then_take(10 * SECOND);
        }
        let poller = Arc::new(Poller::new(PollerParts {
            name: name.to_owned(),
            source: source.clone(),
            handler: handler.clone(),
            store: store.clone(),
            instance: Arc::new(Instance::new("a")),
            terms: LeaseTerms::of(30 * SECOND),
            limits: Limits {
                batch_rows_max: 1,
                retry_delay_max: SECOND,
                retry_after_max: SECOND,
                ..limits()
            },
            policy: crate::policy::FailurePolicy::default(),
            metrics: Arc::new(Metrics::default()),
        }));
        Self { store, handler, source, poller }
    }
}

impl World {
    fn with_rows(rows: u32) -> Self {
        let Member { store, handler, source, poller } = Member::new("orders", rows);
        let shared = Self::shared(Function::Tick(poller.clone()));
        Self { store, handler, source, poller, shared }
    }

    /// Returns the state of a server with one function, `orders`.
    fn shared(function: Function) -> Arc<Shared> {
        let functions = BTreeMap::from([("orders".to_owned(), function)]);
        let service = Service {
            functions: Functions::Ready(functions),
            stop: StopSignal::new(),
            telemetry: Telemetry::default(),
        };
        Arc::new(Shared::new(service, Ticks::default()))
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
async fn a_closed_connection_does_not_cancel_a_tick_but_stops_it_after_its_batch() {
    let world = World::with_rows(5);
    // The server drops the future of a request whose connection was closed.
    let closed = tokio::time::timeout(15 * SECOND, world.invoke()).await;
    assert!(closed.is_err());
    assert_eq!(world.handler.received().len(), 2, "the second batch is in flight");
    // A stopping server waits for this tick.
    drop(world.shared.ticks.write().await);
    assert_eq!((world.handler.finished(), world.handler.received().len()), (2, 2));
    let document = world.document().await;
    assert!(document.lease.released_at.is_some(), "its commit released the lease");
    assert_eq!(document.in_flight, None);
    // The next invocation continues from there.
    assert_eq!(world.invoke().await.status(), StatusCode::OK);
    assert_eq!(world.handler.ids(), [1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_second_invocation_during_a_tick_is_answered_immediately() {
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
async fn a_stopping_process_stops_every_tick_after_its_batch() {
    let world = World::with_rows(5);
    let (response, ()) = tokio::join!(world.invoke(), async {
        tokio::time::sleep(15 * SECOND).await;
        world.shared.service.stop.set();
    });
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(world.handler.ids(), [1, 2]);
    assert!(world.document().await.lease.released_at.is_some());
}

/// Returns the log lines of a reply.
async fn logs(response: Response<Body>) -> Vec<String> {
    assert_eq!(response.status(), StatusCode::OK);
    let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
    let reply: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let logs = reply["Logs"].as_array().unwrap().iter();
    logs.map(|line| line.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn idle_ticks_log_a_line_every_five_minutes_and_every_change_logs_a_line() {
    let world = World::with_rows(1);
    assert!(logs(world.invoke().await).await[0].contains("committed 1 row"));
    let mut lines = 0;
    for _ in 0..720 {
        lines += logs(world.invoke().await).await.len();
        tokio::time::advance(5 * SECOND).await;
    }
    assert_eq!(lines, 12);
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

/// Calls a function that runs `group`; returns the reply and how long it took.
async fn call_group(shared: &Shared, group: &PollerGroup) -> (Response<Body>, Duration) {
    let invocation = Invocation::read("i", br#"{"Data":{},"Metadata":{}}"#).unwrap();
    let began_at = tokio::time::Instant::now();
    let response = tick_all(shared, "poll", group, &invocation).await;
    (response, began_at.elapsed())
}

fn group(members: &[Member]) -> (Arc<Shared>, Arc<PollerGroup>) {
    let pollers = members.iter().map(|member| member.poller.clone()).collect();
    let group = Arc::new(PollerGroup::new(pollers, None));
    (World::shared(Function::Group(group.clone())), group)
}

#[tokio::test(start_paused = true)]
async fn the_pollers_of_a_group_tick_in_parallel_and_each_has_a_line() {
    let members = [Member::new("a", 1), Member::new("b", 1), Member::new("c", 0)];
    let (shared, group) = group(&members);
    let (response, took) = call_group(&shared, &group).await;
    assert!(took < 11 * SECOND, "{took:?}");
    let lines = logs(response).await;
    assert_eq!(lines.len(), 3, "{lines:?}");
    for (name, end) in [("a", "committed 1 row"), ("b", "committed 1 row"), ("c", "nothing new")] {
        let expected = format!("poller `{name}`: {end}");
        assert!(lines.iter().any(|line| line.contains(&expected)), "{expected}: {lines:?}");
    }
    // Now they are idle, and log a line every five minutes.
    assert_eq!(logs(call_group(&shared, &group).await.0).await.len(), 2);
    assert!(logs(call_group(&shared, &group).await.0).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn pollers_that_could_not_start_are_first_in_the_next_call() {
    let names: Vec<String> = (0..12).map(|number| format!("p{number:02}")).collect();
    let members: Vec<Member> = names.iter().map(|name| Member::new(name, 2)).collect();
    let (shared, group) = group(&members);
    let delivered = || members.iter().map(|it| it.handler.ids().len()).collect::<Vec<_>>();
    // Eight run in parallel for 20 s: too late for the other four.
    call_group(&shared, &group).await;
    assert_eq!(delivered(), [2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0]);
    call_group(&shared, &group).await;
    assert_eq!(delivered(), [2; 12]);
}

#[tokio::test(start_paused = true)]
async fn a_backlog_of_one_poller_delays_the_others_by_at_most_a_minute() {
    let members = [Member::new("backlog", 30), Member::new("quick", 0)];
    let (shared, group) = group(&members);
    let (response, took) = call_group(&shared, &group).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(took >= 60 * SECOND && took <= 70 * SECOND, "{took:?}");
    let delivered = members[0].handler.ids().len();
    assert!((6..=7).contains(&delivered), "{delivered}");
    // Both continue in the next call.
    members[1].source.fill(1);
    members[1].handler.then_take(SECOND);
    call_group(&shared, &group).await;
    assert!(members[0].handler.ids().len() > delivered);
    assert_eq!(members[1].handler.ids(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_group_of_one_poller_may_use_the_full_tick_time() {
    let members = [Member::new("backlog", 30)];
    let (shared, group) = group(&members);
    let (_, took) = call_group(&shared, &group).await;
    assert!(took >= 240 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_group_call_fails_only_if_every_tick_fails() {
    let members = [Member::new("a", 1), Member::new("b", 1)];
    let (shared, group) = group(&members);
    members[0].source.fail_next("no route to the database");
    let lines = logs(call_group(&shared, &group).await.0).await;
    assert!(lines.iter().any(|line| line.contains("`b`: committed")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("FetchError")), "{lines:?}");
    for member in &members {
        member.source.fail_next("no route to the database");
    }
    let (response, _) = call_group(&shared, &group).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_process_stops_every_tick_of_a_group() {
    let members = [Member::new("a", 5), Member::new("b", 5)];
    let (shared, group) = group(&members);
    let ((response, _), ()) = tokio::join!(call_group(&shared, &group), async {
        tokio::time::sleep(15 * SECOND).await;
        shared.service.stop.set();
    });
    assert_eq!(response.status(), StatusCode::OK);
    assert!(members.iter().all(|member| member.handler.ids() == [1, 2]));
}

#[tokio::test(start_paused = true)]
async fn a_group_runs_the_recovery_controller_every_five_minutes() {
    let member = Member::new("orders", 0);
    let controller = Controller::new(ControllerParts {
        store: member.store.clone(),
        instance: Arc::new(Instance::new("a")),
        metrics: Arc::new(Metrics::default()),
        pollers: BTreeMap::from([("orders".to_owned(), member.poller.clone())]),
        thresholds: Thresholds { stuck_after: 1800 * SECOND, paused_max: 86_400 * SECOND },
        mode: Mode::Repair,
        time_max: 285 * SECOND,
    });
    let group = PollerGroup::new(vec![member.poller.clone()], Some(Arc::new(controller)));
    let shared = World::shared(Function::Tick(member.poller));
    let mut runs = 0;
    for _ in 0..20 {
        let lines = logs(call_group(&shared, &group).await.0).await;
        runs += lines.iter().filter(|line| line.starts_with("recovery: ")).count();
        tokio::time::advance(30 * SECOND).await;
    }
    assert_eq!(runs, 2);
}

/// Starts a server with the function `orders` of a poller with one row, and the status page. Sends it one request, and
/// returns the reply and how many batches were delivered.
async fn sent(path: &str, headers: &str, body: &str) -> (String, usize) {
    let world = World::with_rows(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let board = StatusReader {
        app: "shop".to_owned(),
        state: world.store.clone(),
        pollers: BTreeMap::from([("orders".to_owned(), Arc::clone(&world.poller))]),
        schedules: BTreeMap::new(),
        disabled: BTreeMap::new(),
    };
    let functions = BTreeMap::from([
        ("orders".to_owned(), Function::Tick(Arc::clone(&world.poller))),
        (page::FUNCTION.to_owned(), Function::Status(Arc::new(board))),
    ]);
    let router = router(Functions::Ready(functions), StopSignal::new());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "POST /{path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    (reply, world.handler.received().len())
}

async fn posted(headers: &str) -> (String, usize) {
    sent("orders", headers, r#"{"Data":{},"Metadata":{}}"#).await
}

#[tokio::test]
async fn each_function_has_its_own_limit_of_bodies() {
    for (function, bytes, status) in [
        ("orders", STATUS_BODY_BYTES_MAX + 1, 200),
        ("orders", BODY_BYTES_MAX + 1, 413),
        (page::FUNCTION, STATUS_BODY_BYTES_MAX, 200),
        (page::FUNCTION, STATUS_BODY_BYTES_MAX + 1, 413),
    ] {
        let body = format!("{{{}}}", " ".repeat(bytes - 2));
        let (reply, _) = sent(function, "Host: localhost\r\n", &body).await;
        let start = reply.lines().next();
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{function} {bytes}: {start:?}");
    }
}

/// A website can send a form to this port, and can reach it under a name of its own (DNS rebinding).
#[tokio::test(start_paused = true)]
async fn a_website_starts_no_tick() {
    for (headers, status) in [
        ("Host: evil.example\r\n", 421),
        ("", 421),
        ("Host: 127.0.0.1\r\nHost: evil.example\r\n", 421),
        ("Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n", 403),
        ("Host: 127.0.0.1\r\nOrigin: null\r\nContent-Type: text/plain\r\n", 403),
    ] {
        let (reply, delivered) = posted(headers).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {reply}");
        assert!(reply.contains(r#""ReturnValue":null"#), "{headers}: {reply}");
        assert_eq!(delivered, 0, "{headers}");
    }
    // As recorded of the host.
    let (reply, delivered) = posted("Host: 127.0.0.1:7071\r\n").await;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    assert_eq!(delivered, 1);
}
