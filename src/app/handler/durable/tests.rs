//! Tests against a fake of the extension's HTTP API, written from its documentation and source.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use expect_test::expect;
use serde_json::{Value as Json, json};

use super::*;
use crate::handler::testing::Sample;
use highwater_test_support::raw::{Act, Raw, SOCKET_BYTES};

const KEY: &str = "s3cret/s3cret==";

#[derive(Default)]
struct App {
    /// Inputs of the starts of each instance, by its id.
    starts: Mutex<BTreeMap<String, Vec<Json>>>,
    /// Overrides for the next replies, by method.
    instead: Mutex<Vec<(&'static str, u16, String)>>,
    /// State of every instance.
    runtime_status: Mutex<&'static str>,
    seen: Mutex<Vec<String>>,
}

type AppRequest = (State<Arc<App>>, Path<BTreeMap<String, String>>, RawQuery);

impl App {
    fn instead(&self, method: &str) -> Option<Response> {
        let mut instead = self.instead.lock().unwrap();
        let at = instead.iter().position(|(of, ..)| *of == method)?;
        let (_, status, body) = instead.remove(at);
        Some((StatusCode::from_u16(status).unwrap(), body).into_response())
    }

    fn answer_instead(&self, method: &'static str, status: u16, body: &str) {
        self.instead.lock().unwrap().push((method, status, body.to_owned()));
    }

    fn starts(&self, sample: &Sample) -> usize {
        self.starts.lock().unwrap().get(sample.batch_id.as_str()).map_or(0, Vec::len)
    }

    fn is_authorized(&self, RawQuery(query): RawQuery) -> bool {
        let query = query.unwrap_or_default();
        let is_authorized = url::form_urlencoded::parse(query.as_bytes())
            .any(|(name, value)| name == "code" && value == KEY);
        self.seen.lock().unwrap().push(query);
        is_authorized
    }
}

async fn status((State(app), Path(path), query): AppRequest) -> Response {
    if !app.is_authorized(query) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if let Some(response) = app.instead("GET") {
        return response;
    }
    let id = &path["id"];
    if !app.starts.lock().unwrap().contains_key(id) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let runtime_status = *app.runtime_status.lock().unwrap();
    let code = if runtime_status == "Running" { StatusCode::ACCEPTED } else { StatusCode::OK };
    let body = json!({"name": "Load", "instanceId": id, "runtimeStatus": runtime_status});
    (code, body.to_string()).into_response()
}

async fn start(request: AppRequest, headers: HeaderMap, body: Bytes) -> Response {
    let (State(app), Path(path), query) = request;
    if !app.is_authorized(query) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if path["name"] != "Load" {
        let text = format!("The function '{}' doesn't exist; code={KEY}", path["name"]);
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    assert_eq!(headers["content-type"], "application/json");
    let (id, input) = (path["id"].clone(), serde_json::from_slice(&body).unwrap());
    let is_running = *app.runtime_status.lock().unwrap() == "Running";
    let mut starts = app.starts.lock().unwrap();
    // The default: an instance that has ended is started again.
    if starts.contains_key(&id) && is_running {
        return (StatusCode::CONFLICT, "already exists").into_response();
    }
    starts.entry(id.clone()).or_default().push(input);
    drop(starts);
    let body = json!({"id": id, "statusQueryGetUri": "https://x"}).to_string();
    app.instead("POST").unwrap_or_else(|| (StatusCode::ACCEPTED, body).into_response())
}

async fn serve() -> (Arc<App>, DurableConfig) {
    let app = Arc::new(App { runtime_status: Mutex::new("Running"), ..App::default() });
    let api = "/runtime/webhooks/durabletask";
    let router = Router::new()
        .route(&format!("{api}/instances/{{id}}"), get(status))
        .route(&format!("{api}/orchestrators/{{name}}/{{id}}"), post(start))
        .with_state(Arc::clone(&app));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let config = DurableConfig {
        url: url.parse().unwrap(),
        orchestrator: "Load".to_owned(),
        system_key: Some(KEY.into()),
        timeout: Duration::from_secs(20),
        tries_max: 2,
    };
    (app, config)
}

async fn deliver(config: &DurableConfig, sample: &Sample) -> Result<(), HandlerError> {
    Durable::new(config).unwrap().handle(sample.delivery()).await
}

#[tokio::test]
async fn a_batch_starts_one_orchestration_however_often_it_is_delivered() {
    let (app, config) = serve().await;
    let sample = Sample::new(3);
    for runtime_status in ["Running", "Completed", "Failed", "Terminated"] {
        *app.runtime_status.lock().unwrap() = runtime_status;
        deliver(&config, &sample).await.unwrap();
        assert_eq!(app.starts(&sample), 1, "{runtime_status}");
    }
    let input = app.starts.lock().unwrap()[sample.batch_id.as_str()][0].clone();
    assert_eq!(input["batch_id"], sample.batch_id.as_str());
    assert_eq!((&input["generation"], &input["fencing_token"]), (&json!(7), &json!(42)));
    assert_eq!((&input["rows"], &input["replay_id"]), (&json!(3), &Json::Null));
    let events: Vec<Json> =
        sample.events.iter().map(|event| serde_json::from_str(&event.json).unwrap()).collect();
    assert_eq!(input["events"], Json::Array(events));
    assert!(app.seen.lock().unwrap()[0].contains("showInput"));

    deliver(&config, &Sample::new(2)).await.unwrap();
    assert_eq!(app.starts.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_start_whose_reply_is_lost_is_not_repeated() {
    for status in [500, 502, 503, 408] {
        let (app, config) = serve().await;
        *app.runtime_status.lock().unwrap() = "Completed";
        let sample = Sample::new(1);
        app.answer_instead("POST", status, "");
        deliver(&config, &sample).await.unwrap();
        assert_eq!(app.starts(&sample), 1, "{status}");
    }
}

#[tokio::test]
async fn an_instance_that_exists_must_be_confirmed() {
    let (app, config) = serve().await;
    let sample = Sample::new(1);
    deliver(&config, &sample).await.unwrap();
    // Another instance started it between the status request and the start.
    app.answer_instead("GET", 404, "");
    deliver(&config, &sample).await.unwrap();
    for _ in 0..4 {
        app.answer_instead("GET", 404, "");
    }
    let error = deliver(&config, &sample).await.unwrap_err();
    assert!(error.to_string().contains("but then did not find the instance"), "{error}");
    assert_eq!(app.starts(&sample), 1);
}

#[tokio::test]
async fn a_status_may_be_longer_than_the_read_limit() {
    let (app, config) = serve().await;
    let long = format!(r#"{{"runtimeStatus":"Completed","output":"{}"}}"#, "x".repeat(2 << 20));
    app.answer_instead("GET", 200, &long);
    deliver(&config, &Sample::new(1)).await.unwrap();
    assert_eq!(app.starts(&Sample::new(1)), 0);
}

/// Returns the result of a reply, without the port.
async fn after(method: &'static str, status: u16, body: &str) -> String {
    crate::redaction::hold([KEY, "s3crets3cret"]);
    let (app, config) = serve().await;
    for _ in 0..config.tries_max {
        app.answer_instead(method, status, body);
    }
    // A second try would find the instance.
    let config = DurableConfig { tries_max: 1, ..config };
    shown(&config, deliver(&config, &Sample::new(1)).await)
}

fn shown(config: &DurableConfig, ended: Result<(), HandlerError>) -> String {
    let text = ended.map_or_else(|error| format!("{error:?}"), |()| "accepted".to_owned());
    assert!(!text.contains("s3cret"), "{text}");
    let origin = config.url.origin().ascii_serialization();
    text.replace(&origin, "URL")
}

#[tokio::test]
async fn every_reply_has_one_meaning() {
    let failed = r#"{"runtimeStatus":"Failed"}"#;
    let mut texts = Vec::new();
    for (method, status, body) in [
        ("GET", 400, failed),
        ("GET", 500, failed),
        ("GET", 200, "<html>log in</html>"),
        ("GET", 200, "{}"),
        ("GET", 302, ""),
        ("GET", 403, ""),
        ("GET", 500, "down"),
        ("POST", 202, ""),
        ("POST", 202, r#"{"id":"other"}"#),
        ("POST", 200, "OK"),
        ("POST", 404, ""),
        ("POST", 413, ""),
        ("POST", 429, ""),
        ("POST", 500, "at /x?code=s3cret%2Fs3cret%3D%3D or s3cret/s3cret=="),
    ] {
        texts.push(format!("{method} {status} {}", after(method, status, body).await));
    }
    let (_, config) = serve().await;
    for config in [
        DurableConfig { orchestrator: "Other".to_owned(), ..config.clone() },
        DurableConfig { system_key: None, ..config.clone() },
        DurableConfig { url: config.url.join("elsewhere?x=s3crets3cret").unwrap(), ..config },
    ] {
        texts.push(shown(&config, deliver(&config, &Sample::new(1)).await));
    }
    expect![[r#"
        GET 400 accepted
        GET 500 accepted
        GET 200 Misconfigured("URL answered 200, but not in the form of the Durable Functions extension; check the URL")
        GET 200 Misconfigured("URL answered 200, but not in the form of the Durable Functions extension; check the URL")
        GET 302 Misconfigured("URL answered 302 to a status request: redirects are not followed")
        GET 403 Misconfigured("URL answered 403 to a status request; check the system key `durabletask_extension`")
        GET 500 Retryable("URL answered 500 to a status request: down")
        POST 202 Misconfigured("URL answered 202, but not in the form of the Durable Functions extension; check the URL")
        POST 202 Misconfigured("URL answered 202, but not in the form of the Durable Functions extension; check the URL")
        POST 200 Misconfigured("URL answered 200, but not in the form of the Durable Functions extension; check the URL")
        POST 404 Misconfigured("URL answered 404 to a start request; check that the app has an orchestrator `Load` and the Durable Functions extension")
        POST 413 TooLarge("URL answered 413 to a start request")
        POST 429 Throttled { reason: "URL answered 429 to a start request", retry_after: None }
        POST 500 Retryable("URL answered 500 to a start request: at /x?code=[redacted] or [redacted]")
        Misconfigured("URL answered 400 to a start request: The function 'Other' doesn't exist; code=[redacted]; check that the app has an orchestrator `Other` and the Durable Functions extension")
        Misconfigured("URL answered 401 to a status request; check the system key `durabletask_extension`")
        Misconfigured("URL/…#b660bf answered 404 to a start request; check that the app has an orchestrator `Load` and the Durable Functions extension")
    "#]].assert_eq(&(texts.join("\n") + "\n"));
}

#[tokio::test]
async fn an_unreachable_app_is_retryable() {
    let (_, config) = serve().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let config = DurableConfig { url, tries_max: 1, ..config };
    let error = deliver(&config, &Sample::new(1)).await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("refused") && !text.contains("code"), "{text}");
}

#[tokio::test]
async fn an_app_that_answers_garbage_hangs_or_resets_has_one_outcome_each() {
    const FLOOD: &[u8] = b"HTTP/1.1 202 Accepted\r\ncontent-length: 104857600\r\n\r\n";
    for (act, name, text) in [
        (Act::Say(b"SSH-2.0-OpenSSH\r\n"), "Retryable", ""),
        (Act::Say(b""), "Retryable", ""),
        (Act::Say(b"HTTP/1.1 404 No\r\ncontent-length: 9\r\n\r\n{"), "Retryable", ""),
        (Act::Reset, "Retryable", ""),
        (Act::Stall(b""), "Retryable", "timed out"),
        (
            Act::Stall(b"HTTP/1.1 202 Accepted\r\ncontent-length: 9\r\n\r\n{"),
            "Retryable",
            "timed out",
        ),
        (
            Act::Flood(FLOOD, &[b'x'; 16_384]),
            "Misconfigured",
            "not in the form of the Durable Functions",
        ),
    ] {
        let (raw, origin) = Raw::start(act).await;
        let (_, config) = serve().await;
        let is_stalled = matches!(act, Act::Stall(_));
        let timeout = if is_stalled { Duration::from_millis(50) } else { config.timeout };
        let config =
            DurableConfig { url: origin.parse().unwrap(), timeout, tries_max: 1, ..config };
        let error = deliver(&config, &Sample::new(1)).await.unwrap_err();
        assert!(format!("{error:?}").starts_with(name), "{act:?}: {error:?}");
        assert!(error.to_string().contains(text), "{act:?}: {error}");
        let sent = raw.sent.load(std::sync::atomic::Ordering::Relaxed);
        assert!(sent < REPLY_BYTES_MAX + SOCKET_BYTES, "the app sent {sent} bytes");
    }
}
