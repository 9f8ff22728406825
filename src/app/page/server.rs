//! The standalone server of the page, for use without a Functions host: `highwater run --status` and
//! `highwater status --serve`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::RwLock;
use tokio::time::Instant;
use tracing::{Instrument as _, error_span, info, warn};
use url::form_urlencoded;
use uuid::Uuid;

use super::{PageActions, PageRequest, PageResponse, answer, failed, health, readiness};
use crate::admin::{PauseOutcome, Redrive, RedriveEnd, RedriveOutcome, ResumeOutcome};
use crate::cursor::KeyId;
use crate::error::chain;
use crate::event::counted;
use crate::poller::{Operator, Poller, StopSignal};
use crate::status::StatusReader;
use crate::tick::TickRequest;
use crate::web::{
    Authority, BodyError, ClientTimeouts, Refusal, guarded, is_own_navigation, is_same_origin,
    is_token, read_body, serve as serve_clients,
};

/// Largest form: a reason and the other fields.
const FORM_BYTES_MAX: usize = 16 << 10;
/// Longest reason that is accepted.
const REASON_CHARS_MAX: usize = 1000;
/// How long the response to "tick now" waits for the tick, which continues afterwards.
const TICK_WAIT: Duration = Duration::from_secs(10);
/// How long the result of an action is shown: later, the page shows what has happened since.
const RESULT_SHOWN: Duration = Duration::from_secs(60);
/// How often the page refreshes.
const REFRESH_SECONDS: u32 = 5;

/// What the server needs.
#[derive(Debug)]
pub struct PageServer {
    /// Reads the status of the pollers.
    pub board: StatusReader,
    /// The host names that are accepted.
    pub authority: Authority,
    /// The operator recorded for actions; `None` if the page offers no actions.
    pub operator: Option<String>,
    /// Stops ticks that were started from the page.
    pub stop: StopSignal,
}

struct Shared {
    served: PageServer,
    token: String,
    /// Result of the last action, by poller, and when it was known.
    results: Mutex<BTreeMap<String, (Instant, String)>>,
    /// Each tick that was started from the page holds it for reading.
    ticks: Arc<RwLock<()>>,
}

/// Serves the page until `shutdown` completes, then waits for the ticks that were started from it.
pub async fn serve(
    listener: TcpListener,
    served: PageServer,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let shared = Arc::new(Shared {
        served,
        token: Uuid::new_v4().simple().to_string(),
        results: Mutex::default(),
        ticks: Arc::default(),
    });
    let ticks = Arc::clone(&shared.ticks);
    serve_clients(listener, routes(shared), ClientTimeouts::default(), shutdown).await;
    drop(ticks.write().await);
}

fn routes(shared: Arc<Shared>) -> Router {
    let authority = shared.served.authority.clone();
    let routes = Router::new()
        .route("/", get(start))
        .route("/api/status", get(json))
        .route("/api/status/page", get(page))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/actions/{action}", post(act))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .with_state(shared);
    guarded(routes, authority, refuse)
}

fn refuse(refusal: Refusal) -> Response<Body> {
    let text = match refusal {
        Refusal::Host => {
            "this server accepts only loopback and the host names given with --status-host"
        }
        Refusal::Origin => refusal.reason(),
    };
    respond(&failed(refusal.status().as_u16(), text, PageRequest::default()))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns the query parameters of an address.
fn query(uri: &Uri) -> BTreeMap<String, String> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect()
}

impl Shared {
    async fn answer(&self, page: bool, headers: &HeaderMap, uri: &Uri) -> Response<Body> {
        let query = query(uri);
        if query.contains_key("key") && !is_own_navigation(text(headers, "sec-fetch-site")) {
            let text = "the browser did not say that this page asks, as over plain http from another machine; use the \
                        trace command instead";
            return respond(&failed(403, text, PageRequest { page, ..PageRequest::default() }));
        }
        let poller = query.get("poller").map(String::as_str);
        let result = poller.and_then(|poller| self.result(poller));
        let actions = PageActions { token: &self.token, result: result.as_deref() };
        let question = PageRequest {
            page,
            poller,
            key: query.get("key").map(String::as_str),
            runbook: query.get("runbook").map(String::as_str),
            html: query.contains_key("html"),
            code: None,
            actions: self.served.operator.as_ref().map(|_| actions),
            refresh_seconds: REFRESH_SECONDS,
        };
        respond(&answer(&self.served.board, question).await)
    }

    /// Returns the result of the last action for a poller, while it is recent.
    fn result(&self, poller: &str) -> Option<String> {
        let mut results = self.results();
        results.retain(|_, (at, _)| at.elapsed() < RESULT_SHOWN);
        results.get(poller).map(|(_, text)| text.clone())
    }

    fn results(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (Instant, String)>> {
        self.results.lock().expect("no holder of this lock panics")
    }
}

async fn start() -> Response<Body> {
    see("/api/status/page")
}

async fn json(State(shared): State<Arc<Shared>>, headers: HeaderMap, uri: Uri) -> Response<Body> {
    shared.answer(false, &headers, &uri).await
}

async fn page(State(shared): State<Arc<Shared>>, headers: HeaderMap, uri: Uri) -> Response<Body> {
    shared.answer(true, &headers, &uri).await
}

/// Reports that the process is up. Without details: any monitor that reaches the address may ask.
async fn healthz() -> Response<Body> {
    respond(&health(200, "ok"))
}

/// Reports the worst severity of all pollers: 200 unless a poller delivers nothing until an operator acts.
async fn readyz(State(shared): State<Arc<Shared>>) -> Response<Body> {
    respond(&readiness(&shared.served.board).await)
}

async fn unknown() -> Response<Body> {
    respond(&failed(404, "not found; the status page is at /", PageRequest::default()))
}

/// Runs the action of a form, and redirects to the poller's view, which shows the result.
async fn act(
    State(shared): State<Arc<Shared>>,
    Path(action): Path<String>,
    headers: HeaderMap,
    request: Request,
) -> Response<Body> {
    let body = match read_body(request, FORM_BYTES_MAX).await {
        Ok(body) => body,
        Err(BodyError { status, reason }) => {
            let page = PageRequest { page: true, ..PageRequest::default() };
            return respond(&failed(status.as_u16(), &reason, page));
        }
    };
    let fields: BTreeMap<String, String> = form_urlencoded::parse(&body).into_owned().collect();
    let (by, action, form) = match shared.judge(&action, &headers, &fields) {
        Ok(judged) => judged,
        Err((status, text)) => {
            warn!(
                event = "page_action_refused",
                action,
                error = text,
                "Refused `{action}`: {text}"
            );
            return respond(&failed(
                status,
                text,
                PageRequest { page: true, ..PageRequest::default() },
            ));
        }
    };
    let name = form.poller.name();
    info!(
        event = "page_action",
        poller.name = name,
        action = ?action,
        by,
        reason = form.reason,
        "Requested from the status page"
    );
    let operator = Operator { by, reason: form.reason };
    let result = match action {
        Action::Pause => match form.poller.admin().pause(operator).await {
            Ok(PauseOutcome::Paused { running: None, .. }) => "Paused.".to_owned(),
            Ok(PauseOutcome::Paused { running: Some(owner), .. }) => {
                format!("Paused. The tick of {owner} stops after its current batch.")
            }
            Ok(PauseOutcome::AlreadyPaused(paused)) => {
                format!("Already paused by {}.", paused.by)
            }
            Err(error) => format!("Not paused: {}", chain(&error)),
        },
        Action::Resume => match form.poller.admin().resume(operator).await {
            Ok(ResumeOutcome::Resumed { .. }) => "Resumed.".to_owned(),
            Ok(ResumeOutcome::BackoffEnded { .. }) => {
                "Backoff ended; the next tick retries the failed batch.".to_owned()
            }
            Ok(ResumeOutcome::NotPaused) => "The poller was not paused.".to_owned(),
            Err(error) => format!("Not resumed: {}", chain(&error)),
        },
        Action::Tick => tick(&shared, form.poller).await,
        Action::Redrive => redrive(&shared, form.poller).await,
    };
    shared.results().insert(name.to_owned(), (Instant::now(), result));
    let query =
        form_urlencoded::Serializer::new(String::new()).append_pair("poller", name).finish();
    see(&format!("/api/status/page?{query}"))
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Pause,
    Resume,
    Tick,
    Redrive,
}

/// The fields of a form.
struct Form<'a> {
    poller: &'a Arc<Poller>,
    reason: &'a str,
}

type Refused = (u16, &'static str);

impl Shared {
    /// Returns the operator, the action and its fields, or why the request is refused.
    fn judge<'a>(
        &'a self,
        action: &str,
        headers: &HeaderMap,
        fields: &'a BTreeMap<String, String>,
    ) -> Result<(&'a str, Action, Form<'a>), Refused> {
        let Some(by) = &self.served.operator else {
            return Err((403, "actions are disabled; --status-actions enables them"));
        };
        let text = |name| text(headers, name);
        if !is_same_origin(text("origin"), text("sec-fetch-site"), text("host")) {
            return Err((403, "the request did not come from a page of this server"));
        }
        let field = |name: &str| fields.get(name).map_or("", |value| value.trim());
        if !is_token(field("token"), &self.token) {
            return Err((403, "the page is from an earlier process; reload it"));
        }
        let action = match action {
            "pause" => Action::Pause,
            "resume" => Action::Resume,
            "tick" => Action::Tick,
            "redrive" => Action::Redrive,
            _ => return Err((404, "unknown action")),
        };
        if field("confirm") != "yes" {
            return Err((400, "nothing was done: confirmation is missing"));
        }
        let Some(poller) = self.served.board.pollers.get(field("poller")) else {
            return Err((404, "the settings contain no such poller"));
        };
        let reason = field("reason");
        let needs_reason = matches!(action, Action::Pause | Action::Resume | Action::Redrive);
        if needs_reason && (reason.is_empty() || reason.chars().count() > REASON_CHARS_MAX) {
            return Err((400, "nothing was done: enter a reason of 1 to 1000 characters"));
        }
        Ok((by.as_str(), action, Form { poller, reason }))
    }
}

/// Runs a tick in its own task, and returns its result if it ends soon.
async fn tick(shared: &Shared, poller: &Arc<Poller>) -> String {
    let invocation_id = Uuid::new_v4().to_string();
    let span = error_span!("tick", poller.name = poller.name(), invocation_id);
    let stop = shared.served.stop.child();
    let request = TickRequest { invocation_id, stop, ..TickRequest::default() };
    let poller = Arc::clone(poller);
    let running = Arc::clone(&shared.ticks).read_owned().await;
    let ticking = tokio::spawn(
        async move {
            let report = poller.tick(&request).await;
            drop(running);
            report.summary
        }
        .instrument(span),
    );
    match tokio::time::timeout(TICK_WAIT, ticking).await {
        Ok(Ok(summary)) => summary,
        Ok(Err(failure)) => format!("The tick panicked: {failure}"),
        Err(_elapsed) => "The tick is still running; its result will appear below.".to_owned(),
    }
}

/// Redrives all keys in its own task, and returns the result if it ends soon.
async fn redrive(shared: &Shared, poller: &Arc<Poller>) -> String {
    let stop = shared.served.stop.child();
    let poller = Arc::clone(poller);
    let running = Arc::clone(&shared.ticks).read_owned().await;
    let redriving = tokio::spawn(async move {
        let result = redrive_all(&poller, stop).await;
        drop(running);
        result
    });
    match tokio::time::timeout(TICK_WAIT, redriving).await {
        Ok(Ok(result)) => result,
        Ok(Err(failure)) => format!("The redrive panicked: {failure}"),
        Err(_elapsed) => "The redrive is still running; delivered keys leave the list.".to_owned(),
    }
}

async fn redrive_all(poller: &Poller, stop: StopSignal) -> String {
    let keys = match poller.admin().quarantined().await {
        Ok(keys) => keys,
        Err(error) => return format!("Not redriven: {}", chain(&error)),
    };
    let id = format!("replay-{}", Uuid::new_v4().simple());
    let redrive = Redrive {
        id: &id,
        keys: &keys,
        as_stored: false,
        drop_gone: false,
        interval: Duration::ZERO,
        stop,
    };
    let (mut delivered, mut left) = (0, Vec::new());
    let mut report = |key: &KeyId, outcome| match outcome {
        RedriveOutcome::Delivered { .. } => delivered += 1,
        RedriveOutcome::Missing | RedriveOutcome::RowDeleted { removed: true } => {}
        RedriveOutcome::RowDeleted { removed: false } => {
            left.push(format!("{key}: the row no longer exists"));
        }
        RedriveOutcome::Refused { error, .. } | RedriveOutcome::NotAttempted { error } => {
            left.push(format!("{key}: {error}"));
        }
        RedriveOutcome::Unreadable(error) => left.push(format!("{key}: {}", chain(&error))),
    };
    let ended = poller.admin().redrive(&redrive, &mut report).await;
    let end = match ended {
        Err(error) if delivered == 0 && left.is_empty() => {
            return format!("Not redriven: {}", chain(&error));
        }
        Ok(RedriveEnd::Done) => String::new(),
        Ok(RedriveEnd::Stopped) => " Stopped.".to_owned(),
        Ok(RedriveEnd::TargetAtFault(error)) => {
            format!(" The target rejects everything: {}.", chain(&error))
        }
        Err(error) => format!(" {}.", chain(&error)),
    };
    let rest = left.first().map(|first| {
        let keys = counted(u64::try_from(left.len()).unwrap_or(u64::MAX), "key");
        format!(" Not delivered: {keys}; the first is {first}")
    });
    format!("Redelivered {}.{end}{}", counted(delivered, "key"), rest.unwrap_or_default())
}

fn see(place: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    // Built from constants and URL-encoded text, so this cannot fail.
    if let Ok(place) = HeaderValue::from_str(place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

fn respond(answer: &PageResponse) -> Response<Body> {
    let mut response = Response::new(Body::from(answer.body.clone()));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in answer.headers() {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests;
