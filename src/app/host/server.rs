//! The HTTP server for the Functions host.
//!
//! `GET /` always answers immediately. `POST /{function}` runs one tick in its own task. If the connection closes
//! or the server stops, the tick stops after its current batch and is never cancelled in the middle. A panic in a
//! tick fails the invocation, not the process.
//!
//! Only the host is meant to call, on loopback. A website in a browser on the same machine is refused: see
//! [`Authority`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::routing::{get, post};
use hyper::ext::ReasonPhrase;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use time::format_description::well_known::Rfc3339;
use tokio::net::TcpListener;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;
use tracing::{Instrument as _, Level, error, error_span, info, warn};
use uuid::Uuid;

use super::group::PollerGroup;
use super::reason::reason_phrase;
use super::traced::{TracedInvocation, note, note_recovery};
use super::{INVOCATION_ID_HEADER, Invocation, InvocationResponse, call};
use crate::clock::{Clock as _, SystemClock};
use crate::error::chain;
use crate::metrics::{Invocations, Trigger};
use crate::page::{self, OpenReadiness, PageRequest};
use crate::poller::{Poller, StopSignal, TickOutcome, outcome_row};
use crate::printable::printable_json;
use crate::recovery::Controller;
use crate::redaction::{redact, redact_json};
use crate::repeats::LogThrottle;
use crate::status::StatusReader;
use crate::telemetry::{LineForm, Telemetry};
use crate::tick::{TickLine, TickReport, TickRequest};
use crate::trace::TraceContext;
use crate::web::{
    Authority, BodyError, ClientTimeouts, Refusal, guarded, read_body, serve as serve_clients,
};

/// The functions of this process.
#[derive(Debug)]
pub enum Functions {
    /// Settings are valid.
    Ready(BTreeMap<String, Function>),
    /// Settings are invalid: each function fails with this text.
    ///
    /// The process stays up, because the host shuts down after a handler has exited three times, and its log is
    /// lost.
    Broken(String),
}

/// One function.
#[derive(Clone, Debug)]
pub enum Function {
    /// Runs a tick of a poller.
    Tick(Arc<Poller>),
    /// Runs ticks of several pollers.
    Group(Arc<PollerGroup>),
    /// Looks for pollers that cannot continue.
    Recovery(Arc<Controller>),
    /// Shows the status of the pollers.
    Status(Arc<StatusReader>),
    /// Answers uptime monitors with one word.
    Health(Arc<OpenReadiness>),
}

/// Largest body of an invocation. A retry includes an exception dump of any length.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Largest body of an invocation for the status page: the head of a request for it.
const STATUS_BODY_BYTES_MAX: usize = 1 << 20;
/// The Functions host keeps an idle connection for a minute, and looks for such connections each 15 seconds. It must
/// close first: a request that meets a connection being closed fails.
const OF_THE_HOST: ClientTimeouts =
    ClientTimeouts { head: Duration::from_secs(120), body: Duration::from_secs(60) };

/// What the server needs.
#[derive(Debug)]
pub struct Service {
    /// The functions.
    pub functions: Functions,
    /// When it is set, ticks stop early.
    pub stop: StopSignal,
    /// Receives the telemetry of a tick before the tick is answered.
    pub telemetry: Telemetry,
}

/// How often idle ticks reply with a log line. Alerts on silence need several lines in their window of 15 minutes or
/// more; each line costs a kilobyte in Application Insights.
const IDLE_LINE_INTERVAL: Duration = Duration::from_secs(5 * 60);

struct Shared {
    service: Service,
    ticks: Ticks,
    /// Whether there has been no invocation yet.
    is_cold: AtomicBool,
    invocations: Invocations,
    /// Functions without a poller that were reported.
    log_throttle: LogThrottle,
    /// Functions whose last tick was idle.
    idle: LogThrottle,
}

impl Shared {
    fn new(service: Service, ticks: Ticks) -> Self {
        let is_cold = AtomicBool::new(true);
        let (invocations, log_throttle) = (Invocations::default(), LogThrottle::default());
        let idle = LogThrottle::each(IDLE_LINE_INTERVAL);
        Self { service, ticks, is_cold, invocations, log_throttle, idle }
    }

    /// Whether this is the first invocation; called once by each.
    fn is_first(&self) -> bool {
        self.is_cold.swap(false, Ordering::Relaxed)
    }
}

/// Each running tick holds it for reading.
type Ticks = Arc<RwLock<()>>;

/// Returns the routes of `functions`; ticks stop early once `stop` is set.
pub fn router(functions: Functions, stop: StopSignal) -> Router {
    routes(Service { functions, stop, telemetry: Telemetry::default() }, Ticks::default())
}

fn routes(service: Service, ticks: Ticks) -> Router {
    let routes = Router::new()
        .route("/", get(ready))
        .route("/{function}", post(invoke))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .with_state(Arc::new(Shared::new(service, ticks)));
    guarded(routes, Authority::loopback(), refuse)
}

fn refuse(refusal: Refusal) -> Response<Body> {
    warn!(event = "bad_request", error = refusal.reason(), "{}", refusal.reason());
    reply(refusal.status(), refusal.reason())
}

/// Serves the routes of [`router`] until `shutdown` completes. Then waits until running invocations have been
/// answered and all ticks have ended, including those whose caller is gone.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let ticks = Ticks::default();
    let router = routes(service, Arc::clone(&ticks));
    serve_clients(listener, router, OF_THE_HOST, shutdown).await;
    drop(ticks.write().await);
}

async fn ready() -> Response<Body> {
    reply(StatusCode::OK, "ready")
}

async fn unknown() -> Response<Body> {
    reply(StatusCode::NOT_FOUND, "no such function")
}

async fn invoke(
    State(shared): State<Arc<Shared>>,
    function: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    request: Request,
) -> Response<Body> {
    // A name that is not UTF-8 is not one of ours. The default reply of axum would not be JSON.
    let Ok(Path(function)) = function else { return unknown().await };
    // Log lines of different invocations could not be distinguished without an id.
    let id = text(&headers, INVOCATION_ID_HEADER).filter(|id| !id.trim().is_empty());
    let id = id.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned);
    // The host stores log lines of a handler without the operation id.
    let operation_id = text(&headers, "traceparent").and_then(operation_id);
    let span = error_span!("invocation", invocation_id = id, operation_id);
    let is_http = [page::FUNCTION, page::HEALTH_FUNCTION].contains(&function.as_str());
    let bytes_max = if is_http { STATUS_BODY_BYTES_MAX } else { BODY_BYTES_MAX };
    let body = read_body(request, bytes_max).await;
    dispatch(&shared, function, &id, &headers, body).instrument(span).await
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns the id that Application Insights gives to all telemetry of an invocation: its trace id.
fn operation_id(traceparent: &str) -> Option<String> {
    TraceContext::parse(traceparent).map(|context| context.trace_id_text())
}

async fn dispatch(
    shared: &Shared,
    function: String,
    id: &str,
    headers: &HeaderMap,
    body: Result<Bytes, BodyError>,
) -> Response<Body> {
    let functions = match &shared.service.functions {
        Functions::Ready(functions) => functions,
        Functions::Broken(reason) => {
            shared.invocations.begin(Trigger::Other, None, shared.is_first()).end(true);
            error!(
                event = "configuration_invalid",
                invocation_id = id,
                function,
                error = reason,
                "Invalid settings: function `{function}` cannot run"
            );
            let body = body.unwrap_or_default();
            // Show the errors on the page: a failed call would show nothing.
            if function == page::FUNCTION {
                let text = format!("ConfigurationError: {reason}");
                return shown(call::status(Err(&text), &body).await);
            }
            if function == page::HEALTH_FUNCTION {
                return shown(call::health(&page::unavailable(), &body));
            }
            return reply(
                StatusCode::INTERNAL_SERVER_ERROR,
                &format!("ConfigurationError: {reason}"),
            );
        }
    };
    let Some(target) = functions.get(&function) else {
        if function == page::HEALTH_FUNCTION {
            let text = "the setting `HIGHWATER__HEALTH__ANONYMOUS` is not `true`";
            let answer = page::failed(404, text, PageRequest::default());
            return shown(call::health(&answer, &body.unwrap_or_default()));
        }
        if shared.log_throttle.are_due(&function, "") {
            warn!(
                event = "unknown_function",
                invocation_id = id,
                function,
                "No poller is configured for function `{function}`"
            );
        }
        return reply(StatusCode::NOT_FOUND, &format!("no function `{function}` is configured"));
    };
    let refuse = |status, reason: String| {
        warn!(event = "bad_request", invocation_id = id, function, error = reason, "{reason}");
        reply(status, &reason)
    };
    let body = match body {
        Ok(body) => body,
        Err(BodyError { status, reason }) => return refuse(status, reason),
    };
    let read = Invocation::read(id, &body);
    match read.map(|it| it.traced(text(headers, "traceparent"), tracestate(headers))) {
        Ok(invocation) => match target {
            Function::Tick(poller) => run(shared, &function, Arc::clone(poller), invocation).await,
            Function::Group(group) => tick_all(shared, &function, group, &invocation).await,
            Function::Recovery(controller) => {
                recover(shared, &function, Arc::clone(controller), invocation).await
            }
            Function::Status(board) => {
                let outputs = call::status(Ok(board), &body);
                show(shared, &function, &invocation, outputs).await
            }
            Function::Health(readiness) => {
                let outputs = async { call::health(&readiness.answer().await, &body) };
                show(shared, &function, &invocation, outputs).await
            }
        },
        Err(error) => refuse(StatusCode::BAD_REQUEST, chain(&error)),
    }
}

/// Returns the response that makes the host answer its client with these outputs.
fn shown(outputs: Map<String, Json>) -> Response<Body> {
    respond(StatusCode::OK, "", &InvocationResponse::new("status").with_outputs(outputs))
}

/// Returns the lists of all `tracestate` headers as one list, as the specification requires.
fn tracestate(headers: &HeaderMap) -> Option<String> {
    let lists = headers.get_all("tracestate").iter().filter_map(|value| value.to_str().ok());
    let list = lists.filter(|list| !list.trim().is_empty()).collect::<Vec<_>>().join(",");
    (!list.is_empty()).then_some(list)
}

/// Sets its signal on drop: axum drops an invocation whose connection was closed.
struct StopWhenDropped(StopSignal);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.set();
    }
}

async fn run(
    shared: &Shared,
    function: &str,
    poller: Arc<Poller>,
    invocation: Invocation,
) -> Response<Body> {
    log_invocation(&poller, &invocation);
    let stop = shared.service.stop.child();
    let is_retried = invocation.has_retry_policy;
    let name = poller.name().to_owned();
    let (invocation, closed) = (&invocation, &stop);
    let call = Call { function, invocation, closed, is_first: shared.is_first() };
    let tick = begin(shared, call, poller, stop.clone()).await;
    let closed_early = StopWhenDropped(stop);
    let ended = tick.await;
    drop(closed_early);
    match ended {
        // The host stops retrying after a success.
        Ok(report) if is_retried && matches!(report.result, Ok(TickOutcome::BackingOff { .. })) => {
            reply(StatusCode::SERVICE_UNAVAILABLE, &report.summary)
        }
        Ok(report) => match line(shared, function, &report) {
            Some(line) => answer(&report, &line),
            None => respond(StatusCode::OK, "", &InvocationResponse::silent()),
        },
        Err(failure) => reply(
            StatusCode::INTERNAL_SERVER_ERROR,
            &log_panic(&name, &invocation.id, &failure.to_string()),
        ),
    }
}

/// Runs a tick of each poller of a group, and the recovery controller when it is due.
///
/// The host drops all log lines of a failed call, and alerts need the lines of each poller. So the call fails only if
/// every tick has failed.
async fn tick_all(
    shared: &Shared,
    function: &str,
    group: &PollerGroup,
    invocation: &Invocation,
) -> Response<Body> {
    if let Some(why) = invocation.why() {
        info!(
            event = "invocation",
            invocation_id = invocation.id,
            "Invocation of `{function}` {why}"
        );
    }
    let closed = shared.service.stop.child();
    let closed_early = StopWhenDropped(closed.clone());
    // Also set when the turn of the group is over, while the host still waits for the reply.
    let stop = closed.child();
    let is_first = shared.is_first();
    let recovery = async {
        let controller = Arc::clone(group.recovery_due()?);
        Some(run_recovery(shared, function, controller, invocation, is_first).await)
    };
    // The host's retries would call all pollers again because of one that backs off.
    let invocation = Invocation { has_retry_policy: false, ..invocation.clone() };
    let tick = |poller: Arc<Poller>| {
        let call = Call { function, invocation: &invocation, closed: &closed, is_first };
        let stop = stop.clone();
        Box::pin(async move {
            let name = poller.name().to_owned();
            let tick = begin(shared, call, poller, stop).await;
            (name, tick.await)
        })
    };
    let (ended, recovered) = tokio::join!(Box::pin(group.tick_all(&stop, tick)), recovery);
    drop(closed_early);
    let (mut lines, mut failed) = (Vec::new(), 0);
    let count = ended.len();
    for (name, ended) in ended {
        match ended {
            Ok(report) => {
                failed += usize::from(report.result.is_err());
                lines.extend(line(shared, &name, &report));
            }
            Err(failure) => {
                failed += 1;
                lines.push(log_panic(&name, &invocation.id, &failure.to_string()));
            }
        }
    }
    if count > 0 && failed == count {
        return reply(StatusCode::INTERNAL_SERVER_ERROR, &lines.join("; "));
    }
    lines.extend(recovered.map(|ended| ended.unwrap_or_else(|reason| reason)));
    respond(StatusCode::OK, "", &InvocationResponse::of_lines(lines))
}

/// An invocation of a function that runs ticks.
#[derive(Clone, Copy)]
struct Call<'a> {
    function: &'a str,
    invocation: &'a Invocation,
    /// Set when the host has closed the connection or the process stops.
    closed: &'a StopSignal,
    /// Whether it is the first invocation of this process.
    is_first: bool,
}

/// Starts a tick in its own task, so that a closed connection does not cancel it.
async fn begin(
    shared: &Shared,
    Call { function, invocation, closed, is_first }: Call<'_>,
    poller: Arc<Poller>,
    stop: StopSignal,
) -> JoinHandle<TickReport> {
    let closed = closed.clone();
    let request = TickRequest {
        invocation_id: invocation.id.clone(),
        traceparent: invocation.traceparent.clone(),
        tracestate: invocation.tracestate.clone(),
        stop,
        is_retried: invocation.has_retry_policy,
    };
    let (invocation_id, name) = (request.invocation_id.clone(), poller.name().to_owned());
    // A span of the highest level passes every filter, so all lines inside it have the id.
    let operation_id = request.traceparent.as_deref().and_then(operation_id);
    let span = error_span!("tick", poller.name = name, invocation_id, operation_id);
    let running = Arc::clone(&shared.ticks).read_owned().await;
    let telemetry = shared.service.telemetry.clone();
    let measured = shared.invocations.begin(Trigger::Timer, Some(&name), is_first);
    let exported = TracedInvocation::of(function, &request, is_first).span(&telemetry);
    let tick = async move {
        let report = poller.tick(&request).instrument(exported.clone()).await;
        note(exported, &poller, &report);
        measured.end(report.result.is_err());
        // If the host has closed the connection, the line in the reply is lost.
        if closed.is_set() && report.level == Level::INFO {
            info!(event = "tick_unanswered", "{}", report.summary);
        }
        telemetry.flush().await;
        drop(running);
        report
    };
    tokio::spawn(tick.instrument(span))
}

/// Logs that a tick panicked, and returns the text of the reply.
fn log_panic(poller: &str, invocation_id: &str, error: &str) -> String {
    error!(
        event = "tick_panicked",
        poller.name = poller,
        invocation_id,
        error,
        "Tick of poller `{poller}` panicked; please report this bug"
    );
    format!("poller `{poller}` panicked")
}

/// Answers a request for the status page.
async fn show(
    shared: &Shared,
    function: &str,
    invocation: &Invocation,
    outputs: impl Future<Output = Map<String, Json>> + Send,
) -> Response<Body> {
    let telemetry = &shared.service.telemetry;
    let is_first = shared.is_first();
    let measured = shared.invocations.begin(Trigger::Http, None, is_first);
    let invoked = TracedInvocation {
        function,
        id: &invocation.id,
        schedule: None,
        traceparent: invocation.traceparent.as_deref(),
        tracestate: invocation.tracestate.as_deref(),
        trigger: Trigger::Http,
        is_first,
    };
    let outputs = outputs.instrument(invoked.span(telemetry)).await;
    measured.end(false);
    telemetry.flush().await;
    shown(outputs)
}

/// Runs the controller in its own task, like a tick.
async fn recover(
    shared: &Shared,
    function: &str,
    controller: Arc<Controller>,
    invocation: Invocation,
) -> Response<Body> {
    let is_first = shared.is_first();
    match run_recovery(shared, function, controller, &invocation, is_first).await {
        Ok(summary) => reply(StatusCode::OK, &summary),
        Err(reason) => reply(StatusCode::INTERNAL_SERVER_ERROR, &reason),
    }
}

/// Runs the controller, and returns a summary of its findings, or why it failed.
async fn run_recovery(
    shared: &Shared,
    function: &str,
    controller: Arc<Controller>,
    invocation: &Invocation,
    is_first: bool,
) -> Result<String, String> {
    let invocation_id = invocation.id.clone();
    let operation_id = invocation.traceparent.as_deref().and_then(operation_id);
    let span = error_span!("recovery", invocation_id, operation_id);
    let running = Arc::clone(&shared.ticks).read_owned().await;
    let telemetry = shared.service.telemetry.clone();
    let measured = shared.invocations.begin(Trigger::Timer, None, is_first);
    let invoked = TracedInvocation {
        function,
        id: &invocation_id,
        schedule: None,
        traceparent: invocation.traceparent.as_deref(),
        tracestate: invocation.tracestate.as_deref(),
        trigger: Trigger::Timer,
        is_first,
    };
    let exported = invoked.span(&telemetry);
    let run = async move {
        let ended = controller.invoke().instrument(exported.clone()).await;
        note_recovery(exported, &ended);
        measured.end(ended.is_err());
        telemetry.flush().await;
        drop(running);
        ended
    };
    let reason = match tokio::spawn(run.instrument(span)).await {
        Ok(Ok(report)) => return Ok(report.summary()),
        Ok(Err(error)) => chain(&error),
        Err(failure) => failure.to_string(),
    };
    error!(
        event = "recovery_failed",
        invocation_id,
        error = reason,
        "The recovery controller failed: {reason}"
    );
    Err(format!("RecoveryError: {reason}"))
}

/// Logs an unusual invocation. An ordinary one is covered by the line of its tick.
fn log_invocation(poller: &Poller, invocation: &Invocation) {
    if let Some(why) = invocation.why() {
        info!(
            event = "invocation",
            poller.name = poller.name(),
            invocation_id = invocation.id,
            is_past_due = invocation.is_past_due,
            is_manual = invocation.is_manual,
            retry_count = invocation.retry_count,
            missed = invocation.missed,
            "Invocation of poller `{}` {why}",
            poller.name()
        );
    }
}

/// The final line of a tick, in the format of the log streams.
#[derive(Serialize)]
struct AnsweredLine<'a> {
    timestamp: Option<String>,
    level: &'static str,
    message: &'a str,
    #[serde(flatten)]
    line: &'a TickLine,
}

/// Returns the reply's log line for a tick; `None` if an idle tick need not be reported again.
fn line(shared: &Shared, subject: &str, report: &TickReport) -> Option<String> {
    let form = shared.service.telemetry.form();
    if !matches!(report.result, Ok(TickOutcome::Idle)) {
        shared.idle.forget(subject);
    } else if form == LineForm::Json && !shared.idle.are_due(subject, "") {
        return None;
    }
    let row = outcome_row(&report.result);
    if let Some(error) = row.error.filter(|_| report.result.is_err()) {
        return Some(redact(&format!("{error}: {}", report.summary)).into_owned());
    }
    // Each tick has one line. This one is not written to a stream.
    if form == LineForm::Json && report.level == Level::INFO {
        let line = AnsweredLine {
            timestamp: SystemClock.now().format(&Rfc3339).ok(),
            level: report.level.as_str(),
            message: &report.summary,
            line: &report.line,
        };
        let line = serde_json::to_string(&line).expect("a line has only string keys");
        return Some(printable_json(&redact_json(&line)).into_owned());
    }
    Some(redact(&report.summary).into_owned())
}

/// Returns a reply with the line of a tick; on failure, the line is also the reason phrase.
fn answer(report: &TickReport, line: &str) -> Response<Body> {
    let status = outcome_row(&report.result).status;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    respond(status, line, &InvocationResponse::new(line))
}

/// Returns a reply with a text; on failure, the text is also the reason phrase.
fn reply(status: StatusCode, text: &str) -> Response<Body> {
    let text = redact(text);
    respond(status, &text, &InvocationResponse::new(text.as_ref()))
}

fn respond(status: StatusCode, text: &str, response: &InvocationResponse) -> Response<Body> {
    let body = response.to_json();
    let mut response = Response::new(Body::from(redact_json(&body).into_owned()));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    if !status.is_success()
        && let Ok(reason) = ReasonPhrase::try_from(reason_phrase(text))
    {
        response.extensions_mut().insert(reason);
    }
    response
}

#[cfg(test)]
mod tests;
