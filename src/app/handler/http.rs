//! Handler: sends each batch as one POST to a URL.
//!
//! # Request
//!
//! `POST`, with a body in one of three formats. The default is `application/json` with one object. A batch
//! of CloudEvents or an array of Debezium envelopes contains the same events in another envelope. The body
//! can be compressed; the signature is computed before compression.
//!
//! | field | |
//! |---|---|
//! | `batch_id` | content identity: the same id always means the same events |
//! | `step` | only in a handler chain: `{name, of_batch}`, where `of_batch` is the id of the batch that all steps receive |
//! | `poller` | name of the poller |
//! | `generation`, `fencing_token` | order of leases, compared as a pair; refuse a lower pair than the highest seen |
//! | `attempt` | 1 for the first known delivery of this range |
//! | `started_at` | when the batch was first recorded; the same for every attempt, so use it as "now" |
//! | `replay_id` | set during a replay of a range, else `null` |
//! | `source` | `{poller, object, mode}` |
//! | `rows` | number of events |
//! | `events` | the events, oldest first, each `{id, op, pk, cursor, before, after, source}` |
//!
//! The headers are those of [Standard Webhooks](https://www.standardwebhooks.com/): `webhook-id` (the
//! batch id), `webhook-timestamp` (Unix seconds of this try) and, if secrets are set,
//! `webhook-signature`, with one signature per secret. The batch id is also in `idempotency-key`. Other
//! headers repeat fields of the body, for receivers that route before they parse: `x-highwater-poller`,
//! `x-highwater-generation`, `x-highwater-fencing-token`, `x-highwater-attempt`,
//! `x-highwater-started-at` and, in a handler chain, `x-highwater-step`. `traceparent` is set if there is
//! a trace.
//!
//! # Reply
//!
//! | reply | meaning |
//! |---|---|
//! | complete 2xx without `batchItemFailures` | all events accepted |
//! | 2xx with `{"batchItemFailures": [{"itemIdentifier": "<event id>"}]}` | accepted up to the first event in the list; with an id that is not in the batch, nothing counts as accepted |
//! | 2xx of `text/html` whose body starts with `<` | a web page: misconfigured, unless the setting accepts it |
//! | 2xx that is cut short, longer than 1 MiB, or has a misplaced or invalid `batchItemFailures` | retryable |
//! | 429; 503 with `Retry-After` | throttled |
//! | 413 | too large: send smaller batches |
//! | 401, 403, 404, 3xx | wrong address or credentials; redirects are not followed |
//! | 410 | permanently gone |
//! | 400, 422 | permanently rejected |
//! | anything else, including other 4xx, timeout, reset, no connection | retryable |
//!
//! # Tries
//!
//! A retryable request is retried within the tick, up to a limit, with doubling delays and the same bytes.
//! A throttled request is left to a later tick, unless the target asks for two seconds or less. The lease
//! is held during these delays, so longer ones are up to the engine.
//!
//! # Concurrency
//!
//! With a `CONCURRENCY` above 1, a batch is split by key into that many parallel requests, each a batch
//! with its own id. Rows with the same key go into one request, in order. The next batch starts after all
//! requests have completed. The position moves up to the first row that was not accepted; the rows of each answered
//! request count at once, as far as the rows before them are accepted.
//!
//! # Secrets
//!
//! The path of the URL may be a key, and query and user contain keys and signatures. Neither they nor keys and
//! tokens in headers appear in an error or a log, even if the target echoes them.
//!
//! # Proxies
//!
//! Proxy settings of the environment are ignored, since only the configuration reads the environment.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use highwater_engine::backoff::{Backoff, seed_of};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Request, Response};
use time::format_description::well_known::Rfc3339;
use tracing::{Instrument as _, Level, debug, event_enabled};
use url::Url;

use self::auth::Auth;
use self::body::Body;
pub use self::client::{Client, ClientError};
use self::concurrency::Part;
pub use self::notifier::{Terms, Webhook};
use self::reply::{Received, Target};
use self::sign::Signer;
use super::prefix::AcceptedPrefix;
use super::tries::{DELAYS, log_retry};
use super::{Delivery, Handler, HandlerError};
use crate::azure::Tokens;
use crate::clock::Clock;
use crate::config::{BodyForm, HttpConfig, shown_url};
use crate::error::chain;
use crate::event;
use crate::redaction;
use crate::state::Fence;

mod auth;
pub(super) mod body;
mod client;
mod concurrency;
mod gzip;
mod notifier;
mod reply;
mod sign;
#[cfg(test)]
mod tests;
mod traced;

/// Target of the log line about each request and its reply, at level DEBUG.
pub const REPLY_TARGET: &str = "highwater::replies";

/// At most this much of a reply is read.
const REPLY_BYTES_MAX: usize = 1 << 20;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const POLLER: HeaderName = HeaderName::from_static("x-highwater-poller");
const GENERATION: HeaderName = HeaderName::from_static("x-highwater-generation");
const FENCING_TOKEN: HeaderName = HeaderName::from_static("x-highwater-fencing-token");
const ATTEMPT: HeaderName = HeaderName::from_static("x-highwater-attempt");
const STARTED_AT: HeaderName = HeaderName::from_static("x-highwater-started-at");
const STEP: HeaderName = HeaderName::from_static("x-highwater-step");

/// Returns the body of a delivery in Highwater's own format, for tests that measure its cost.
///
/// # Errors
///
/// If the delivery has no JSON form.
#[cfg(any(test, feature = "test-util"))]
pub fn body_of(delivery: Delivery<'_>) -> Result<Vec<u8>, serde_json::Error> {
    let parts = concurrency::divide(delivery, 1);
    let encode = |part| body::encode(BodyForm::Highwater, part);
    let body = parts.first().map(encode).transpose()?;
    Ok(body.map(Body::into_bytes).unwrap_or_default())
}

/// Interprets a reply with these headers, in lower case, to a delivery of `events`; for tests and fuzzing.
///
/// # Errors
///
/// As [`Handler::handle`].
#[cfg(any(test, feature = "test-util"))]
pub fn judge_reply(
    status: u16,
    headers: &std::collections::BTreeMap<String, String>,
    body: &[u8],
    events: &[&event::ChangeEvent],
) -> Result<(), HandlerError> {
    let header = |name: &str| headers.get(name).cloned();
    let received = Received {
        status,
        retry_after: header("retry-after"),
        date: header("date"),
        location: header("location"),
        content_type: header("content-type"),
        body: body.to_vec(),
        cut: None,
    };
    let target = Target { shown: "https://contoso.com".to_owned(), accepts_html: false };
    let grant =
        Fence { generation: crate::state::Generation(1), token: crate::state::FencingToken(7) };
    reply::judge(&target, &received, (events, grant), time::OffsetDateTime::UNIX_EPOCH)
}

/// Delays between tries within a tick.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    /// Delays between tries.
    pub backoff: Backoff,
    /// Longest delay by `Retry-After` that is waited for within the tick.
    pub retry_after_max: Duration,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { backoff: DELAYS, retry_after_max: Duration::from_secs(2) }
    }
}

/// A request that can be sent several times.
struct Prepared {
    /// Everything except the body.
    head: Request,
    body: Body,
    /// The body before compression, if a signature needs it.
    plain: Option<Body>,
}

impl Prepared {
    /// Returns the request of one try.
    fn request(&self) -> Request {
        let mut request = self.head.try_clone().expect("a request without a body can be cloned");
        *request.body_mut() = Some(self.body.clone().into());
        request
    }

    /// Returns the body to sign: as the receiver parses it.
    fn signed(&self) -> &Body {
        self.plain.as_ref().unwrap_or(&self.body)
    }
}

/// Posts batches to a URL.
pub struct Http {
    client: Client,
    url: Url,
    target: Target,
    timeout: Duration,
    tries_max: u32,
    concurrency: usize,
    form: BodyForm,
    gzip: bool,
    signer: Signer,
    auth: Auth,
    pacing: Pacing,
    clock: Arc<dyn Clock>,
}

impl Http {
    /// Returns a handler that posts to the URL of `config`.
    pub fn new(client: Client, config: &HttpConfig, clock: Arc<dyn Clock>) -> Self {
        Self::with_pacing(client, config, clock, Pacing::default())
    }

    /// Returns a handler with the given delays between tries.
    pub fn with_pacing(
        client: Client,
        config: &HttpConfig,
        clock: Arc<dyn Clock>,
        pacing: Pacing,
    ) -> Self {
        Self {
            client,
            url: config.url.clone(),
            target: Target::of(&config.url, config.accept_html),
            timeout: config.timeout,
            tries_max: config.tries_max,
            concurrency: config.concurrency,
            form: config.body,
            gzip: config.gzip,
            signer: Signer::new(&config.signing_secrets),
            auth: Auth::of(&config.auth),
            pacing,
            clock,
        }
    }

    /// Sets the source of bearer tokens, for [`HttpAuth::Identity`](crate::config::HttpAuth).
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens) -> Self {
        Self { auth: Auth::Bearer(Some(tokens)), ..self }
    }

    /// Returns the request of a delivery, without the headers that differ between tries.
    async fn prepare(&self, part: &Part<'_>) -> Result<Prepared, HandlerError> {
        let cannot = |what: &str, error: &dyn fmt::Display| {
            let reason = format!("{what} batch `{}`: {error}", part.id);
            HandlerError::Rejected(reason)
        };
        let mut body = body::encode(self.form, part).map_err(|error| cannot("encode", &error))?;
        let mut headers = headers(self.form, part);
        let mut plain = None;
        if self.gzip {
            let packed = gzip::gzip(&body).await.map_err(|error| cannot("compress", &error))?;
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            plain =
                Some(std::mem::replace(&mut body, packed.into())).filter(|_| self.signer.signs());
        }
        let head = self.client.0.post(self.url.clone()).timeout(self.timeout);
        let head = head.headers(headers).build();
        let head = head.map_err(|error| HandlerError::Misconfigured(self.failed(error)))?;
        Ok(Prepared { head, body, plain })
    }

    /// Delivers a part, with retries.
    async fn deliver(&self, part: &Part<'_>) -> Result<(), HandlerError> {
        let prepared = self.prepare(part).await?;
        let seed = seed_of((part.batch.poller, part.id.as_str()));
        let mut tries = 1;
        loop {
            let Err(failed) = self.send(&prepared, part, tries).await else { return Ok(()) };
            let (error, tries_max) = match failed {
                Failed::Replied(error @ HandlerError::Retryable(_)) => {
                    (error, part.batch.tries_max(self.tries_max))
                }
                Failed::Replied(error) | Failed::Unanswered(error) => (error, self.tries_max),
            };
            let pause = self.pause(tries, seed, &error).filter(|_| tries < tries_max);
            let Some(pause) = pause else { return Err(counted(error, tries)) };
            log_retry(part.batch.poller, &part.id, tries, tries_max, &error);
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    /// Sends a request once and interprets the reply.
    async fn send(&self, prepared: &Prepared, part: &Part<'_>, tries: u32) -> Result<(), Failed> {
        let mut request = prepared.request();
        let (id, now) = (part.id.as_str(), self.clock.now());
        request.headers_mut().extend(self.signer.headers(id, now, prepared.signed()));
        let proof = self.auth.prove(self.timeout).await;
        part.batch.progress.report(1);
        let proof = proof.map_err(Failed::Unanswered)?;
        request.headers_mut().extend(proof.map(|proof| (proof.name, proof.value)));
        let span = traced::span(&self.url, tries);
        // The span of this try becomes the parent of the receiver's spans.
        if let Some((name, value)) = traced::header(&span) {
            request.headers_mut().insert(name, value);
        }
        let (mut status, began_at) = (None, tokio::time::Instant::now());
        let exchange = async {
            match self.client.0.execute(request).await {
                Ok(response) => {
                    traced::note_status(response.status());
                    status = Some(response.status());
                    let received = Self::receive(response).await;
                    let Delivery { generation, fencing_token: token, .. } = part.batch;
                    let sent = (part.events.as_slice(), Fence { generation, token });
                    let judged = reply::judge(&self.target, &received, sent, self.clock.now());
                    judged.map_err(Failed::Replied)
                }
                Err(error) => Err(Failed::Unanswered(HandlerError::Retryable(self.failed(error)))),
            }
        };
        let result = exchange.instrument(span.clone()).await;
        part.batch.progress.report(1);
        if let Err(failed) = &result {
            traced::note_error(&span, failed.error());
        }
        log_reply(part, status, &result, began_at.elapsed());
        result
    }

    /// Reads a reply up to its limit.
    async fn receive(mut response: Response) -> Received {
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let mut received = Received {
            status: response.status().as_u16(),
            retry_after: header("retry-after"),
            date: header("date"),
            location: header("location"),
            content_type: header("content-type"),
            body: Vec::new(),
            cut: None,
        };
        // Terminates: each iteration adds at least one byte.
        while received.cut.is_none() {
            match response.chunk().await {
                Ok(None) => break,
                Ok(Some(chunk)) if received.body.len() + chunk.len() <= REPLY_BYTES_MAX => {
                    received.body.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => received.cut = Some("the reply is longer than 1 MiB".to_owned()),
                Err(error) => {
                    received.cut = Some(format!("the reply is cut short: {}", cause(error)));
                }
            }
        }
        received
    }

    fn failed(&self, error: reqwest::Error) -> String {
        redaction::redacted(format!("POST {}: {}", self.target.shown, cause(error)))
    }

    /// Returns the delay before the next try; `None` to leave it to a later tick.
    fn pause(&self, tries: u32, seed: u64, error: &HandlerError) -> Option<Duration> {
        let Pacing { backoff, retry_after_max } = self.pacing;
        if matches!(error, HandlerError::Retryable(_)) {
            return Some(backoff.delay(tries, seed));
        }
        error.retry_after().filter(|delay| *delay <= retry_after_max)
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Http").field("url", &shown_url(&self.url)).finish_non_exhaustive()
    }
}

/// A try that failed.
#[derive(Debug)]
enum Failed {
    /// The target said so.
    Replied(HandlerError),
    /// There is no reply, so the target may have accepted the events. Another try under the same id tells it that they
    /// are the same.
    Unanswered(HandlerError),
}

impl Failed {
    fn error(&self) -> &HandlerError {
        let (Self::Replied(error) | Self::Unanswered(error)) = self;
        error
    }
}

#[async_trait]
impl Handler for Http {
    fn time_limit(&self) -> Option<Duration> {
        Some(self.timeout)
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let parts = concurrency::divide(delivery, self.concurrency);
        let accepted = AcceptedPrefix::new(delivery.events.len(), delivery.progress);
        let accepted = Mutex::new(accepted);
        let deliver = async |part: &Part<'_>| {
            let result = self.deliver(part).await;
            let mut accepted = accepted.lock().unwrap_or_else(PoisonError::into_inner);
            accepted.accept(part.accepted(&result));
            result
        };
        // Wait for all requests: an abandoned one might still be accepted, after newer rows.
        let results = join_all(parts.iter().map(deliver)).await;
        concurrency::combine(&parts, results)
    }
}

/// Logs a request and its reply in one line, for `highwater dev`.
fn log_reply(
    part: &Part<'_>,
    status: Option<reqwest::StatusCode>,
    result: &Result<(), Failed>,
    took: Duration,
) {
    if !event_enabled!(target: REPLY_TARGET, Level::DEBUG) {
        return;
    }
    let (poller, rows) = (part.batch.poller, part.events.len());
    let posted = event::counted(u64::try_from(rows).unwrap_or(u64::MAX), "row");
    let reply = status.map_or("no reply".to_owned(), |status| status.as_u16().to_string());
    let error = result.as_ref().err().map(|failed| format!(": {}", chain(failed.error())));
    let (error, ms) = (error.unwrap_or_default(), took.as_millis());
    debug!(
        target: REPLY_TARGET,
        event = "request_answered",
        poller,
        rows,
        status = status.map(|status| status.as_u16()),
        "{poller}: {posted} posted, {reply} after {ms} ms{error}"
    );
}

/// Adds the number of tries to an error that was retried.
fn counted(error: HandlerError, tries: u32) -> HandlerError {
    if tries == 1 {
        return error;
    }
    if let HandlerError::Retryable(reason) = error {
        return HandlerError::Retryable(format!("{reason} (after {tries} tries)"));
    }
    error
}

/// Returns an error's text without the URL.
fn cause(error: reqwest::Error) -> String {
    if error.is_timeout() && !error.is_connect() {
        return "timed out".to_owned();
    }
    chain(&error.without_url())
}

fn headers(form: BodyForm, part: &Part<'_>) -> HeaderMap {
    let delivery = &part.batch;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(body::content_type(form)));
    // Ids and names are plain ASCII. A foreign trace context that is not is omitted.
    let mut put = |name: HeaderName, value: &str| {
        headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
    };
    put(WEBHOOK_ID, part.id.as_str());
    put(IDEMPOTENCY_KEY, part.id.as_str());
    put(POLLER, delivery.poller);
    put(GENERATION, &delivery.generation.to_string());
    put(FENCING_TOKEN, &delivery.fencing_token.to_string());
    put(ATTEMPT, &delivery.attempt.to_string());
    put(STARTED_AT, &delivery.started_at.format(&Rfc3339).unwrap_or_default());
    if let Some(step) = delivery.step {
        put(STEP, step.name);
    }
    if let Some(traceparent) = delivery.traceparent {
        put(TRACEPARENT, traceparent);
    }
    if let Some(tracestate) = delivery.tracestate {
        put(TRACESTATE, tracestate);
    }
    headers
}
