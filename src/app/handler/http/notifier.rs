//! Notifies an operator's endpoint of changes of pollers.
//!
//! A notification is a `POST` with the client, the headers and the signature of deliveries. Its body is one JSON
//! object: `docs/how-to/production.md` shows it. It is best effort: a failure never fails a tick, and delays it by at
//! most [`Terms::timeout`].
//!
//! Path and query of the URL may be secret, as those of chat services are, so they are never shown: [`shown_url`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::cursor::KeyId;
use highwater_engine::notification::{Change, Notifier};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;
use tracing::{debug, warn};
use url::Url;
use uuid::Uuid;

use super::body::Body;
use super::cause;
use super::sign::Signer;
use super::{Client, Http, IDEMPOTENCY_KEY, POLLER, WEBHOOK_ID};
use crate::clock::Clock;
use crate::config::{NotifyConfig, shown_url};
use crate::metrics::Metrics;
use crate::redaction;
use crate::repeats::LogThrottle;

/// How often and how long notifications are sent.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Shortest time between two notifications of one poller.
    pub interval: Duration,
    /// Limit on one notification, from connecting to the end of the reply.
    pub timeout: Duration,
    /// Attempts after which changes are dropped.
    pub tries_max: u32,
}

impl Default for Terms {
    fn default() -> Self {
        let (interval, timeout) = (Duration::from_secs(60), Duration::from_secs(5));
        Self { interval, timeout, tries_max: 5 }
    }
}

/// What happens to changes that could not be sent.
const RETRIED: &str = "a later tick retries";
const DROPPED: &str = "the changes are dropped";

/// Posts changes to a URL.
pub struct Webhook {
    client: Client,
    url: Url,
    /// The URL as it may be shown.
    shown: String,
    signer: Signer,
    app: String,
    terms: Terms,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    log_throttle: LogThrottle,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pollers: BTreeMap<String, Pending>,
    /// When the next poller may try; set after a timeout.
    resumes_at: Option<Instant>,
}

/// Changes of a poller that are not sent yet.
#[derive(Debug)]
struct Pending {
    /// Id of the notification. A retry has the same id unless changes were added, so that the endpoint can recognise it.
    id: Uuid,
    changes: Vec<Change>,
    /// When the newest of them was made.
    at: Option<OffsetDateTime>,
    /// Failed attempts to send them.
    failed: u32,
    /// When a notification was last sent, or could not be sent.
    tried_at: Option<Instant>,
}

impl Pending {
    fn new(tried_at: Option<Instant>) -> Self {
        Self { id: Uuid::new_v4(), changes: Vec::new(), at: None, failed: 0, tried_at }
    }

    /// Adds changes. The attempts start again with the first change of an event and kind.
    fn add(&mut self, changes: Vec<Change>, at: Option<OffsetDateTime>) {
        if changes.is_empty() {
            return;
        }
        let before = self.changes.len();
        for change in changes {
            change.add_to(&mut self.changes);
        }
        if self.changes.len() > before {
            self.failed = 0;
        }
        (self.id, self.at) = (Uuid::new_v4(), at);
    }
}

/// Why a notification failed.
struct SendError {
    why: String,
    /// Whether the endpoint took the whole time.
    timed_out: bool,
}

impl From<reqwest::Error> for SendError {
    fn from(error: reqwest::Error) -> Self {
        Self { timed_out: error.is_timeout(), why: cause(error) }
    }
}

impl From<String> for SendError {
    fn from(why: String) -> Self {
        Self { why, timed_out: false }
    }
}

/// The body of a notification.
#[derive(Serialize)]
struct Notification<'a> {
    app: &'a str,
    poller: &'a str,
    at: String,
    changes: Vec<NotifiedChange<'a>>,
}

#[derive(Serialize)]
struct NotifiedChange<'a> {
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    reason: String,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<&'a str>,
}

impl Webhook {
    /// Returns a notifier of the URL of `config`, for the pollers of `app`.
    pub fn new(
        client: Client,
        config: &NotifyConfig,
        app: &str,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            client,
            url: config.url.clone(),
            shown: shown_url(&config.url),
            signer: Signer::new(&config.signing_secrets),
            app: app.to_owned(),
            terms: Terms::default(),
            clock,
            metrics,
            log_throttle: LogThrottle::default(),
            state: Mutex::default(),
        }
    }

    /// Returns the same notifier with other terms.
    #[must_use]
    pub fn with_terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `changes` to those that wait, and returns all of them if they are due.
    ///
    /// The interval starts here, so that no other tick sends in the meantime.
    fn due(&self, poller: &str, changes: &[Change]) -> Option<Pending> {
        let mut state = self.state();
        let State { pollers, resumes_at } = &mut *state;
        if changes.is_empty() && !pollers.contains_key(poller) {
            return None;
        }
        let pending = pollers.entry(poller.to_owned()).or_insert_with(|| Pending::new(None));
        pending.add(changes.to_vec(), Some(self.clock.now()));
        let is_early = pending.tried_at.is_some_and(|at| at.elapsed() < self.terms.interval);
        if pending.changes.is_empty() || is_early {
            return None;
        }
        let now = Instant::now();
        // Pollers of a group share a few slots, and each try may hold one for the whole timeout. So after a timeout
        // one poller tries in each interval, until the endpoint replies.
        if let Some(resumes_at) = resumes_at {
            if now < *resumes_at {
                return None;
            }
            *resumes_at = now + self.terms.interval;
        }
        Some(std::mem::replace(pending, Pending::new(Some(now))))
    }

    /// Keeps changes that could not be sent for the next notification; returns whether it did.
    fn keep(&self, poller: &str, sent: Pending) -> bool {
        let failed = sent.failed + 1;
        if failed >= self.terms.tries_max {
            return false;
        }
        let mut state = self.state();
        let pending = state.pollers.entry(poller.to_owned()).or_insert_with(|| Pending::new(None));
        let kept = Pending { failed, tried_at: pending.tried_at, ..sent };
        let newer = std::mem::replace(pending, kept);
        pending.add(newer.changes, newer.at);
        true
    }

    async fn send(&self, poller: &str, pending: &Pending) -> Result<(), SendError> {
        let changes = pending.changes.iter().map(|change| NotifiedChange {
            event: change.event.as_str(),
            kind: change.kind,
            reason: redaction::redacted(change.reason.clone()),
            count: change.count,
            key_id: change.key_id.as_ref().map(KeyId::as_str),
        });
        let now = self.clock.now();
        let at = pending.at.unwrap_or(now).format(&Rfc3339).unwrap_or_default();
        let notification = Notification { app: &self.app, poller, at, changes: changes.collect() };
        let body = serde_json::to_vec(&notification).map_err(|error| error.to_string())?;
        let headers = self.headers(poller, pending.id, now, &body.clone().into());
        let request = self.client.0.post(self.url.clone()).timeout(self.terms.timeout);
        let reply = request.headers(headers).body(body).send().await?;
        let is_success = reply.status().is_success();
        let received = Http::receive(reply).await;
        let status = received.status;
        if is_success && received.is_html_page() {
            let why = "with a web page, so this may not be the receiver";
            return Err(format!("answered {status} {why}").into());
        }
        if is_success { Ok(()) } else { Err(format!("answered {status}").into()) }
    }

    fn headers(&self, poller: &str, id: Uuid, now: OffsetDateTime, body: &Body) -> HeaderMap {
        let id = id.to_string();
        let mut headers = self.signer.headers(&id, now, body);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let texts = [(WEBHOOK_ID, id.as_str()), (IDEMPOTENCY_KEY, &id), (POLLER, poller)];
        headers.extend(
            texts
                .into_iter()
                .filter_map(|(name, text)| Some((name, HeaderValue::from_str(text).ok()?))),
        );
        headers
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Webhook").field("url", &self.shown).finish_non_exhaustive()
    }
}

/// Returns the subject under which a log line is repeated at most hourly.
fn subject(poller: &str, then: &str) -> String {
    format!("{poller}: {then}")
}

#[async_trait]
impl Notifier for Webhook {
    async fn tick_ended(&self, poller: &str, changes: &[Change]) {
        let Some(pending) = self.due(poller, changes) else { return };
        let sent = self.send(poller, &pending).await;
        let timed_out = matches!(sent, Err(SendError { timed_out: true, .. }));
        self.state().resumes_at = timed_out.then(|| Instant::now() + self.terms.interval);
        let Err(SendError { why, .. }) = sent else {
            self.metrics.notified(poller, "sent");
            for then in [RETRIED, DROPPED] {
                self.log_throttle.forget(&subject(poller, then));
            }
            debug!(
                event = "notification_sent",
                poller.name = poller,
                "Notified {} of changes of poller `{poller}`",
                self.shown
            );
            return;
        };
        self.metrics.notified(poller, "failed");
        let (why, is_kept) = (redaction::redacted(why), self.keep(poller, pending));
        let then = if is_kept { RETRIED } else { DROPPED };
        if self.log_throttle.are_due(&subject(poller, then), "") {
            warn!(
                event = "notification_failed",
                poller.name = poller,
                error = why,
                "Could not notify {} (`HIGHWATER__NOTIFY__URL`) of changes of poller `{poller}`: {why}; {then}",
                self.shown
            );
        }
    }
}
