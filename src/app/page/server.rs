//! The page's own server, for where no Functions host is: `highwater run --status` and
//! `highwater status --serve`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::RwLock;
use tracing::{Instrument as _, error_span, info, warn};
use url::form_urlencoded;
use uuid::Uuid;

use super::guard::{Authority, is_same_origin, is_token};
use super::{Answer, Offer, Question, answer, failed, health};
use crate::admin::{PauseOutcome, ResumeOutcome};
use crate::error::chain;
use crate::poller::{Operator, Poller, StopSignal};
use crate::status::health::Severity;
use crate::status::{StatusQuery, StatusReader};
use crate::tick::TickRequest;

/// Largest form: a reason, and what is around it.
const FORM_BYTES_MAX: usize = 16 << 10;
/// Longest reason that is kept.
const REASON_CHARS_MAX: usize = 1000;
/// How long the answer to "tick now" waits for the tick; it goes on all the same.
const TICK_WAIT: Duration = Duration::from_secs(10);
/// How often the page asks anew.
const REFRESH_SECONDS: u32 = 5;

/// What is served.
#[derive(Debug)]
pub struct Served {
    /// What tells how the pollers stand.
    pub board: StatusReader,
    /// The names that are answered to.
    pub authority: Authority,
    /// Who asks, where pollers may be paused, resumed and ticked from the page; `None` where they may not.
    pub operator: Option<String>,
    /// Once it is set, ticks that were asked for end early.
    pub stop: StopSignal,
}

struct Shared {
    served: Served,
    token: String,
    /// What became of what was asked for last, by poller.
    said: Mutex<BTreeMap<String, String>>,
    /// Each tick that was asked for holds it for reading.
    ticks: Arc<RwLock<()>>,
}

/// Serves the page until `shutdown` completes, then until the ticks that were asked for have ended.
///
/// # Errors
///
/// [`std::io::Error`] if the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let shared = Arc::new(Shared {
        served,
        token: Uuid::new_v4().simple().to_string(),
        said: Mutex::default(),
        ticks: Arc::default(),
    });
    let ticks = Arc::clone(&shared.ticks);
    let ended = axum::serve(listener, routes(shared)).with_graceful_shutdown(shutdown).await;
    drop(ticks.write().await);
    ended
}

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(start))
        .route("/api/status", get(json))
        .route("/api/status/page", get(page))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/actions/{action}", post(act))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        // Outermost: nothing is told to whom it is not for, not even that there is nothing.
        .layer(from_fn_with_state(Arc::clone(&shared), guarded))
        .with_state(shared)
}

async fn guarded(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let host = text(request.headers(), "host");
    if shared.served.authority.knows(host) {
        return next.run(request).await;
    }
    let text =
        "this server answers to loopback and to the names that it was given with --status-host";
    respond(&failed(421, text, Question::default()))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns what stands in an address.
fn query(uri: &Uri) -> BTreeMap<String, String> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect()
}

impl Shared {
    async fn answer(&self, page: bool, asked: &BTreeMap<String, String>) -> Response<Body> {
        let poller = asked.get("poller").map(String::as_str);
        let said = poller.and_then(|poller| self.said().get(poller).cloned());
        let offer = Offer { token: &self.token, said: said.as_deref() };
        let question = Question {
            page,
            poller,
            html: asked.contains_key("html"),
            code: None,
            offer: self.served.operator.as_ref().map(|_| offer),
            refresh_seconds: REFRESH_SECONDS,
        };
        respond(&answer(&self.served.board, question).await)
    }

    fn said(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, String>> {
        self.said.lock().expect("no holder of this lock panics")
    }
}

async fn start() -> Response<Body> {
    see("/api/status/page")
}

async fn json(State(shared): State<Arc<Shared>>, uri: Uri) -> Response<Body> {
    shared.answer(false, &query(&uri)).await
}

async fn page(State(shared): State<Arc<Shared>>, uri: Uri) -> Response<Body> {
    shared.answer(true, &query(&uri)).await
}

/// Answers that the process is up. Names nothing: monitors may ask from anywhere that reaches the address.
async fn healthz() -> Response<Body> {
    respond(&health(200, "ok"))
}

/// Answers with the most urgent severity of all pollers: 200 unless one delivers nothing until someone acts.
async fn readyz(State(shared): State<Arc<Shared>>) -> Response<Body> {
    let answer =
        match shared.served.board.read(StatusQuery::All).await.map(|report| report.severity()) {
            Ok(Severity::Ok) => health(200, "ok"),
            Ok(Severity::Warning) => health(200, "warning"),
            Ok(Severity::Error) => health(503, "error"),
            // Why is in the log and on the page.
            Err(_) => health(503, "unavailable"),
        };
    respond(&answer)
}

async fn unknown() -> Response<Body> {
    respond(&failed(404, "there is nothing here; the page is at /", Question::default()))
}

/// Does what a form asks for, and leads back to the poller's view, which tells what became of it.
async fn act(
    State(shared): State<Arc<Shared>>,
    Path(action): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let asked: BTreeMap<String, String> = form_urlencoded::parse(&body).into_owned().collect();
    let (by, action, form) = match shared.judge(&action, &headers, &asked) {
        Ok(judged) => judged,
        Err((status, text)) => {
            warn!(
                event = "page_action_refused",
                action,
                error = text,
                "Refused `{action}`: {text}"
            );
            return respond(&failed(status, text, Question { page: true, ..Question::default() }));
        }
    };
    let name = form.poller.name();
    info!(event = "page_action", poller.name = name, action = ?action, "Asked for by the status page");
    let operator = Operator { by, reason: form.reason };
    let said = match action {
        Action::Pause => match form.poller.admin().pause(operator).await {
            Ok(PauseOutcome::Paused { running: None, .. }) => "Paused.".to_owned(),
            Ok(PauseOutcome::Paused { running: Some(owner), .. }) => {
                format!("Paused; the tick of {owner} ends after the batch in hand.")
            }
            Ok(PauseOutcome::AlreadyPaused(paused)) => {
                format!("Has been paused by {} before.", paused.by)
            }
            Err(error) => format!("Not paused: {}", chain(&error)),
        },
        Action::Resume => match form.poller.admin().resume(operator).await {
            Ok(ResumeOutcome::Resumed { .. }) => "Resumed.".to_owned(),
            Ok(ResumeOutcome::BackoffEnded { .. }) => {
                "Backoff ended; the next tick retries the failed batch.".to_owned()
            }
            Ok(ResumeOutcome::NotPaused) => "It was not paused.".to_owned(),
            Err(error) => format!("Not resumed: {}", chain(&error)),
        },
        Action::Tick => tick(&shared, form.poller).await,
    };
    shared.said().insert(name.to_owned(), said);
    let query =
        form_urlencoded::Serializer::new(String::new()).append_pair("poller", name).finish();
    see(&format!("/api/status/page?{query}"))
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Pause,
    Resume,
    Tick,
}

/// What a form says.
struct Form<'a> {
    poller: &'a Arc<Poller>,
    reason: &'a str,
}

type Refused = (u16, &'static str);

impl Shared {
    /// Says who asks for what, or why that is refused.
    fn judge<'a>(
        &'a self,
        action: &str,
        headers: &HeaderMap,
        asked: &'a BTreeMap<String, String>,
    ) -> Result<(&'a str, Action, Form<'a>), Refused> {
        let Some(by) = &self.served.operator else {
            return Err((403, "this page is only looked at; --status-actions lets it act"));
        };
        let text = |name| text(headers, name);
        if !is_same_origin(text("origin"), text("sec-fetch-site"), text("host")) {
            return Err((403, "the request does not come from a page of this server"));
        }
        let field = |name: &str| asked.get(name).map_or("", |value| value.trim());
        if !is_token(field("token"), &self.token) {
            return Err((403, "the page is older than this process: load it again"));
        }
        let action = match action {
            "pause" => Action::Pause,
            "resume" => Action::Resume,
            "tick" => Action::Tick,
            _ => return Err((404, "there is no such action")),
        };
        if field("confirm") != "yes" {
            return Err((400, "nothing was done: it was not confirmed"));
        }
        let Some(poller) = self.served.board.pollers.get(field("poller")) else {
            return Err((404, "there is no such poller in the settings"));
        };
        let reason = field("reason");
        let needs_reason = !matches!(action, Action::Tick);
        if needs_reason && (reason.is_empty() || reason.chars().count() > REASON_CHARS_MAX) {
            return Err((400, "nothing was done: a reason of 1 to 1000 characters is wanted"));
        }
        Ok((by.as_str(), action, Form { poller, reason }))
    }
}

/// Runs a tick in a task of its own, and says how it ended if that is soon.
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
        Err(_elapsed) => "The tick runs on; its end will be seen below.".to_owned(),
    }
}

fn see(place: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    // Made of constants and of what is encoded for an address.
    if let Ok(place) = HeaderValue::from_str(place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

fn respond(answer: &Answer) -> Response<Body> {
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
