//! The status page: how the pollers stand as HTML, and as the JSON behind it.
//!
//! `GET /api/status` answers a [`Report`] as JSON, `GET /api/status/page` the page; `?poller=NAME` tells of
//! one poller, with its journal. The same two paths are there under the Functions host and in a process
//! of its own, so the page asks for them relative to itself.
//!
//! # Why so
//!
//! All HTML is made here, also what the page's script puts in place of the old: it asks for the JSON with
//! `?html=1`, which then has the page's content beside the data. So there is one way of showing things,
//! the page works without the script, and only `markup` has to know how foreign text is escaped. Should
//! it ever fail, nothing runs: the content security policy knows style and script by their hash, and
//! allows nothing else, from nowhere else.

mod detail;
mod guard;
mod markup;
mod overview;
mod parts;
mod server;
pub mod words;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use url::form_urlencoded;

pub use self::guard::Authority;
use self::markup::Html;
pub use self::server::{Served, serve};
use crate::redaction::{redact, redact_json};
use crate::status::{Report, StatusError, StatusQuery, StatusReader};

/// Name of the function that the Functions host calls it by.
pub const FUNCTION: &str = "highwater_status";

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");
/// A crest above two waves, as the only picture.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E\
    %3Crect width='32' height='32' rx='7' fill='%230b63c5'/%3E\
    %3Cpath d='M4 14q4-5 8 0t8 0 8 0M4 21q4-5 8 0t8 0 8 0' fill='none' stroke='%23fff' stroke-width='3' \
    stroke-linecap='round'/%3E%3C/svg%3E";
const MARK: &str = "<svg class=\"mark\" viewBox=\"0 0 32 32\" aria-hidden=\"true\">\
    <rect width=\"32\" height=\"32\" rx=\"7\"></rect>\
    <path d=\"M4 14q4-5 8 0t8 0 8 0M4 21q4-5 8 0t8 0 8 0\"></path></svg>";

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Question<'a> {
    /// Whether the page is wanted, and not the JSON.
    pub page: bool,
    /// The poller that is asked about; all if none.
    pub poller: Option<&'a str>,
    /// Whether the JSON is to have the page's content too.
    pub html: bool,
    /// The function key that came with the address, which the page's links need too.
    pub code: Option<&'a str>,
    /// What may be done to pollers here.
    pub offer: Option<Offer<'a>>,
    /// How often the page is to ask anew; 0 for never.
    pub refresh_seconds: u32,
}

/// What may be done to pollers here.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Proves that a request comes from a page of this process.
    pub token: &'a str,
    /// What became of what was asked for last.
    pub said: Option<&'a str>,
}

/// An answer to a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status of HTTP.
    pub status: u16,
    /// Media type.
    pub content_type: &'static str,
    /// The text.
    pub body: String,
}

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json; charset=utf-8";

impl Answer {
    /// Returns the headers that keep a browser from doing anything but what the page is for.
    pub fn headers(&self) -> [(&'static str, String); 7] {
        [
            ("Content-Type", self.content_type.to_owned()),
            ("Content-Security-Policy", policy()),
            ("Cache-Control", "no-store".to_owned()),
            ("X-Content-Type-Options", "nosniff".to_owned()),
            // Of its own pages only: a key may stand in the address. Without any, forms would come from nowhere.
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
struct Told<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<String>,
}

/// Answers a question; what cannot be read is an answer too.
pub async fn answer(board: &StatusReader, question: Question<'_>) -> Answer {
    let asked = question.poller.map_or(StatusQuery::All, StatusQuery::WithJournal);
    match board.read(asked).await {
        Ok(report) => told(&report, question),
        Err(error) => {
            let status = match error {
                StatusError::NoPoller(_) => 404,
                StatusError::Store(_) => 503,
            };
            failed(status, &error.text(), question)
        }
    }
}

fn told(report: &Report, question: Question<'_>) -> Answer {
    let view = View { poller: question.poller, code: question.code, offer: question.offer };
    if question.page {
        let body = document(&title(report, view.poller), question, |html| view.show(html, report));
        return Answer { status: 200, content_type: HTML, body };
    }
    let html = question.html.then(|| {
        let mut html = Html::default();
        view.show(&mut html, report);
        html.finish()
    });
    let title = question.html.then(|| title(report, view.poller));
    let body = serde_json::to_string(&Told { report, title, html });
    let body = body.expect("a report has only string keys");
    Answer { status: 200, content_type: JSON, body: redact_json(&body).into_owned() }
}

/// Returns the answer of a health route: one word, which names no poller and no cause.
fn health(status: u16, word: &str) -> Answer {
    let body = serde_json::json!({ "status": word }).to_string();
    Answer { status, content_type: JSON, body }
}

/// Returns an answer that says what went wrong.
pub fn failed(status: u16, text: &str, question: Question<'_>) -> Answer {
    if !question.page {
        let body = serde_json::json!({ "error": redact(text) }).to_string();
        return Answer { status, content_type: JSON, body };
    }
    let view = View { poller: None, code: question.code, offer: None };
    let body = document("Highwater", question, |html| {
        html.raw("<h1>Status cannot be shown</h1>");
        html.within("pre", &[("class", "card notice bad")], |html| html.foreign(text));
        let link = view.link(None);
        html.within("p", &[], |html| html.element("a", &[("href", &link)], "All pollers"));
    });
    Answer { status, content_type: HTML, body }
}

fn title(report: &Report, poller: Option<&str>) -> String {
    let attention = report.pollers.iter().filter(|status| status.needs_attention()).count();
    let name = poller.unwrap_or(&report.app);
    let title = format!("{name} · Highwater");
    if attention == 0 { title } else { format!("({attention}) {title}") }
}

fn document(title: &str, question: Question<'_>, content: impl FnOnce(&mut Html)) -> String {
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
            // Hidden until the script can make it true.
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

/// Which part of a report is shown, and how its links look.
struct View<'a> {
    poller: Option<&'a str>,
    code: Option<&'a str>,
    offer: Option<Offer<'a>>,
}

impl View<'_> {
    /// Returns the address of another view.
    fn link(&self, poller: Option<&str>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(poller.map(|poller| ("poller", poller)));
        query.extend_pairs(self.code.map(|code| ("code", code)));
        let query = query.finish();
        if query.is_empty() { "page".to_owned() } else { format!("page?{query}") }
    }

    fn show(&self, html: &mut Html, report: &Report) {
        match (self.poller, report.pollers.first()) {
            (Some(_), Some(status)) => detail::show(html, status, report, self),
            (Some(_), None) | (None, _) => overview::show(html, report, self),
        }
        html.within("footer", &[], |html| {
            html.text("App ");
            html.foreign(&report.app);
            if let Some(at) = report.at {
                html.text(", as of ");
                parts::time(html, at, &words::clock(at));
                html.text(" UTC by the storage service");
            }
            html.text(&format!(". Highwater {}.", report.version));
        });
    }
}

#[cfg(test)]
mod tests;
