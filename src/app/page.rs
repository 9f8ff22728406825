//! The status page: the state of all pollers as HTML, and the JSON it is built from.
//!
//! `GET /api/status` returns a [`Report`] as JSON, and `GET /api/status/page` returns the page.
//! `?poller=NAME` selects one poller and adds its journal. The Functions host and the standalone server
//! serve the same two paths under different prefixes, so the page uses relative addresses.
//!
//! # Design
//!
//! All HTML is rendered here, including refreshes: the page's script requests the JSON with `?html=1`,
//! which adds the rendered content to the data. So there is one renderer, the page works without the
//! script, and only `markup` has to escape untrusted text. If escaping ever fails, injected code still
//! does not run: the content security policy allows only the style and script with the known hashes.

mod charts;
mod detail;
mod keys;
mod markup;
mod overview;
mod parts;
mod runbook;
mod server;
mod trace;
pub mod words;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use url::form_urlencoded;

use self::markup::Html;
pub use self::server::{PageServer, serve};
use self::trace::Traced;
pub use self::trace::lines as trace_lines;
use crate::error::chain;
use crate::explain::TraceRequest;
use crate::printable::{printable, printable_json};
use crate::redaction::{redact, redact_json};
use crate::status::health::Severity;
use crate::status::{Report, StatusError, StatusQuery, StatusReader};
pub use crate::web::Authority;

/// Name of the function in the Functions host.
pub const FUNCTION: &str = "highwater_status";

/// Name of the function for uptime monitors that send no key. It answers one word, if a setting allows it.
pub const HEALTH_FUNCTION: &str = "highwater_health";

/// How long a page waits for the explanation of a row.
const TRACE_TIME_MAX: Duration = Duration::from_secs(5);

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");
/// Two waves: the only image.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E\
    %3Crect width='32' height='32' rx='7' fill='%230b63c5'/%3E\
    %3Cpath d='M4 14q4-5 8 0t8 0 8 0M4 21q4-5 8 0t8 0 8 0' fill='none' stroke='%23fff' stroke-width='3' \
    stroke-linecap='round'/%3E%3C/svg%3E";
const MARK: &str = "<svg class=\"mark\" viewBox=\"0 0 32 32\" aria-hidden=\"true\">\
    <rect width=\"32\" height=\"32\" rx=\"7\"></rect>\
    <path d=\"M4 14q4-5 8 0t8 0 8 0M4 21q4-5 8 0t8 0 8 0\"></path></svg>";

/// A request for the status.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageRequest<'a> {
    /// Whether to return the page instead of the JSON.
    pub page: bool,
    /// The poller to show; all if `None`.
    pub poller: Option<&'a str>,
    /// The key of a row to explain.
    pub key: Option<&'a str>,
    /// The runbook to show.
    pub runbook: Option<&'a str>,
    /// Whether the JSON includes the page's content.
    pub html: bool,
    /// The function key from the address, repeated in the page's links.
    pub code: Option<&'a str>,
    /// The actions that the page offers.
    pub actions: Option<PageActions<'a>>,
    /// How often the page refreshes; 0 for never.
    pub refresh_seconds: u32,
}

/// The actions that the page offers.
#[derive(Clone, Copy, Debug)]
pub struct PageActions<'a> {
    /// Proves that a request comes from a page of this process.
    pub token: &'a str,
    /// Result of the previous action.
    pub result: Option<&'a str>,
}

/// A response to a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageResponse {
    /// HTTP status.
    pub status: u16,
    /// Media type.
    pub content_type: &'static str,
    /// The content.
    pub body: String,
}

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json; charset=utf-8";

impl PageResponse {
    /// Returns headers that restrict what a browser may do with the page.
    pub fn headers(&self) -> [(&'static str, String); 7] {
        [
            ("Content-Type", self.content_type.to_owned()),
            ("Content-Security-Policy", policy()),
            ("Cache-Control", "no-store".to_owned()),
            ("X-Content-Type-Options", "nosniff".to_owned()),
            // The address may contain a key, so it is sent to our own pages only. They need it: without a
            // referrer, a form would have no origin.
            ("Referrer-Policy", "same-origin".to_owned()),
            ("Cross-Origin-Opener-Policy", "same-origin".to_owned()),
            ("Cross-Origin-Resource-Policy", "same-origin".to_owned()),
        ]
    }
}

fn policy() -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    let (style, script) = (hash(STYLE), hash(SCRIPT));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; img-src data:; \
         connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
}

/// The JSON of `/api/status`.
#[derive(Serialize)]
struct StatusJson<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<String>,
}

/// Answers a request. A state store that cannot be read gives an error response.
pub async fn answer(board: &StatusReader, question: PageRequest<'_>) -> PageResponse {
    if let Some(name) = question.runbook.filter(|_| question.page) {
        // The name becomes part of commands to copy, so only names in the settings are accepted.
        let poller = question.poller.filter(|name| board.pollers.contains_key(*name));
        return show_runbook(name, PageRequest { poller, ..question });
    }
    let query = question.poller.map_or(StatusQuery::All, StatusQuery::WithJournal);
    match board.read(query).await {
        Ok(report) => render(&report, question, traced(board, question).await.as_ref()),
        Err(error) => {
            let status = match error {
                StatusError::NoPoller(_) => 404,
                StatusError::Store(_) => 503,
            };
            failed(status, &error.text(), question)
        }
    }
}

/// Explains the row that was asked for. Only the page does: its refreshes do not ask again.
async fn traced(board: &StatusReader, question: PageRequest<'_>) -> Option<Traced> {
    let (poller, key) = question.poller.zip(question.key.filter(|_| question.page))?;
    let request = TraceRequest { key: vec![key.to_owned()], since: None };
    let explanation = match timeout(TRACE_TIME_MAX, board.trace(poller, &request)).await {
        Ok(explanation) => explanation.map_err(|error| chain(&error)),
        Err(_elapsed) => Err(format!("no answer within {} s", TRACE_TIME_MAX.as_secs())),
    };
    Some(Traced { key: key.to_owned(), explanation })
}

fn show_runbook(name: &str, question: PageRequest<'_>) -> PageResponse {
    let Some(text) = runbook::page(name) else {
        return failed(404, &format!("no runbook `{name}`"), question);
    };
    let question = PageRequest { refresh_seconds: 0, ..question };
    let view = View::of(question);
    let title = format!("{name} · Highwater");
    let body = document(&title, question, |html| runbook::show(html, text, question.poller, &view));
    PageResponse { status: 200, content_type: HTML, body }
}

fn render(report: &Report, question: PageRequest<'_>, traced: Option<&Traced>) -> PageResponse {
    let view = View::of(question);
    if question.page {
        // The explanation shows one moment, and a refresh would remove it.
        let refresh_seconds = if traced.is_some() { 0 } else { question.refresh_seconds };
        let question = PageRequest { refresh_seconds, ..question };
        let title = title(report, view.poller);
        let body = document(&title, question, |html| view.show(html, report, traced));
        return PageResponse { status: 200, content_type: HTML, body };
    }
    let html = question.html.then(|| {
        let mut html = Html::default();
        view.show(&mut html, report, None);
        html.finish()
    });
    let title = question.html.then(|| title(report, view.poller));
    let body = serde_json::to_string(&StatusJson { report, title, html });
    let body = body.expect("a report has only string keys");
    PageResponse {
        status: 200,
        content_type: JSON,
        body: printable_json(&redact_json(&body)).into_owned(),
    }
}

/// Answers a readiness check: 503 if a poller delivers nothing until an operator acts, or if the state store cannot be
/// read, else 200.
pub async fn readiness(board: &StatusReader) -> PageResponse {
    match board.read(StatusQuery::All).await.map(|report| report.severity()) {
        Ok(Severity::Ok) => health(200, "ok"),
        Ok(Severity::Warning) => health(200, "warning"),
        Ok(Severity::Error) => health(503, "error"),
        // The log and the page show the reason.
        Err(_) => unavailable(),
    }
}

/// How long the answer to requests without a key is kept: anyone can send them, and each read costs the storage account
/// that ticks use.
const READINESS_AGE_MAX: Duration = Duration::from_secs(10);

/// The answer to readiness checks without a key, read once for all requests of some seconds.
#[derive(Debug)]
pub struct OpenReadiness {
    board: Arc<StatusReader>,
    last: Mutex<Option<(Instant, PageResponse)>>,
}

impl OpenReadiness {
    /// Returns the answers about the pollers of `board`.
    pub fn new(board: Arc<StatusReader>) -> Self {
        Self { board, last: Mutex::new(None) }
    }

    /// As [`readiness`], up to 10 seconds old.
    pub async fn answer(&self) -> PageResponse {
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < READINESS_AGE_MAX
        {
            return answer.clone();
        }
        let answer = readiness(&self.board).await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// Returns the response of a readiness check if the state of the pollers is unknown.
pub fn unavailable() -> PageResponse {
    health(503, "unavailable")
}

/// Returns the response of a health route: one word, without the name of a poller or a cause.
fn health(status: u16, word: &str) -> PageResponse {
    let body = serde_json::json!({ "status": word }).to_string();
    PageResponse { status, content_type: JSON, body }
}

/// Returns an error response.
pub fn failed(status: u16, text: &str, question: PageRequest<'_>) -> PageResponse {
    if !question.page {
        let body = serde_json::json!({ "error": printable(&redact(text)) }).to_string();
        return PageResponse { status, content_type: JSON, body };
    }
    let view = View { poller: None, ..View::of(question) };
    let body = document("Highwater", question, |html| {
        html.raw("<h1>Cannot read the status</h1>");
        html.within("pre", &[("class", "card notice bad")], |html| html.foreign(text));
        let link = view.link(None);
        html.within("p", &[], |html| html.element("a", &[("href", &link)], "All pollers"));
    });
    PageResponse { status, content_type: HTML, body }
}

fn title(report: &Report, poller: Option<&str>) -> String {
    let attention = report.pollers.iter().filter(|status| status.needs_attention()).count();
    let name = poller.unwrap_or(&report.app);
    let title = format!("{name} · Highwater");
    if attention == 0 { title } else { format!("({attention}) {title}") }
}

fn document(title: &str, question: PageRequest<'_>, content: impl FnOnce(&mut Html)) -> String {
    let refresh = question.refresh_seconds.to_string();
    let mut html = Html::default();
    html.raw("<!DOCTYPE html>\n");
    html.within("html", &[("lang", "en")], |html| {
        html.within("head", &[], |html| {
            html.raw("<meta charset=\"utf-8\">");
            html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
            html.raw("<meta name=\"color-scheme\" content=\"light dark\">");
            html.raw("<meta name=\"robots\" content=\"noindex\">");
            html.element("title", &[], title);
            html.void("link", &[("rel", "icon"), ("href", ICON)]);
            html.within("style", &[], |html| html.raw(STYLE));
        });
        html.within("body", &[], |html| {
            html.raw("<a class=\"skip\" href=\"#content\">Skip to the content</a>");
            html.raw("<header>");
            html.raw(MARK);
            html.raw("<span class=\"brand\">Highwater</span>");
            // The script shows it: without the script there is no refresh.
            html.within(
                "p",
                &[("id", "refresh"), ("hidden", ""), ("data-seconds", &refresh)],
                |html| {
                    html.raw("<span id=\"fresh\"></span>");
                    html.raw("<button type=\"button\" id=\"stop\">Stop refreshing</button>");
                },
            );
            html.raw("</header>");
            html.raw("<p id=\"changes\" class=\"unseen\" role=\"status\"></p>");
            html.within("main", &[("id", "content"), ("tabindex", "-1")], content);
            html.within("script", &[], |html| html.raw(SCRIPT));
        });
    });
    html.finish()
}

/// Which part of a report is shown, and what its links contain.
struct View<'a> {
    poller: Option<&'a str>,
    code: Option<&'a str>,
    actions: Option<PageActions<'a>>,
}

impl<'a> View<'a> {
    fn of(question: PageRequest<'a>) -> Self {
        Self { poller: question.poller, code: question.code, actions: question.actions }
    }

    /// Returns the address of a runbook, from which a link leads back here.
    fn runbook(&self, name: &str) -> String {
        self.link_with(self.poller, Some(("runbook", name)))
    }

    /// Returns the address of another view.
    fn link(&self, poller: Option<&str>) -> String {
        self.link_with(poller, None)
    }

    fn link_with(&self, poller: Option<&str>, more: Option<(&'static str, &str)>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(poller.map(|poller| ("poller", poller)));
        query.extend_pairs(more);
        query.extend_pairs(self.code.map(|code| ("code", code)));
        let query = query.finish();
        if query.is_empty() { "page".to_owned() } else { format!("page?{query}") }
    }

    fn show(&self, html: &mut Html, report: &Report, traced: Option<&Traced>) {
        match (self.poller, report.pollers.first()) {
            (Some(_), Some(status)) => detail::show(html, status, report, self, traced),
            (Some(_), None) | (None, _) => overview::show(html, report, self),
        }
        html.within("footer", &[], |html| {
            html.text("App ");
            html.foreign(&report.app);
            if let Some(at) = report.at {
                html.text(", as of ");
                parts::time(html, at, &words::clock(at));
                html.text(" UTC, by the storage service");
            }
            html.text(". All times are in UTC. ");
            html.text(match self.actions {
                Some(_) => "Actions are on the page of each poller.",
                None => "This page only shows: act with the command line.",
            });
            html.text(&format!(" Highwater {}.", report.version));
        });
    }
}

#[cfg(test)]
mod tests;
