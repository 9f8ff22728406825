//! Handler: each batch is one POST to a URL.
//!
//! # The request
//!
//! `POST`, with a body in one of three forms. By itself it is `application/json` and one object; a batch
//! of CloudEvents or an array of Debezium envelopes holds the same events otherwise wrapped. Where that
//! is set, it is compressed, and its signature is that of the body before.
//!
//! | field | |
//! |---|---|
//! | `batch_id` | content identity: the same id always means the same events |
//! | `step` | only in a handler chain: `{name, of_batch}`, where `of_batch` is the id of the batch that all steps get |
//! | `poller` | name of the poller |
//! | `generation`, `fencing_token` | order of leases, compared as a pair; refuse a lower pair than the highest seen |
//! | `attempt` | 1 for the first time this range is delivered, as far as is known |
//! | `started_at` | when the batch was first announced; the same at each attempt, for a receiver that asks for "now" |
//! | `replay_id` | set while a range is delivered again on purpose, else `null` |
//! | `source` | `{poller, object, mode}` |
//! | `rows` | number of events |
//! | `events` | the events, oldest first, each `{id, op, pk, cursor, before, after, source}` |
//!
//! The headers are those of [Standard Webhooks](https://www.standardwebhooks.com/): `webhook-id` (the
//! batch id), `webhook-timestamp` (unix seconds of this try) and, where a secret is set,
//! `webhook-signature`, with one signature for each secret. The batch id is also in `idempotency-key`. The rest repeats the body for receivers that route before they
//! parse: `x-highwater-poller`, `x-highwater-generation`, `x-highwater-fencing-token`,
//! `x-highwater-attempt`, `x-highwater-started-at`, in a handler chain `x-highwater-step`; and `traceparent` where a trace goes on.
//!
//! # The reply
//!
//! | reply | meaning |
//! |---|---|
//! | complete 2xx without `batchItemFailures` | all taken |
//! | 2xx with `{"batchItemFailures": [{"itemIdentifier": "<event id>"}]}` | taken up to the first event in the list; an id that is not in the batch means nothing was taken |
//! | 2xx of `text/html` whose body starts with `<` | a web page: the address is wrong, unless the setting accepts it |
//! | 2xx that is cut short, or longer than 1 MiB; one whose `batchItemFailures` stands elsewhere or cannot be read | worth another attempt |
//! | 429; 503 with `Retry-After` | patience |
//! | 413 | smaller batches |
//! | 401, 403, 404, 3xx | address or credentials are wrong; redirects are not followed |
//! | 410 | gone for good |
//! | 400, 422 | these bytes will never be taken |
//! | the rest, other 4xx too, time-out, reset, no connection | worth another attempt |
//!
//! # Tries
//!
//! What is worth another attempt is tried again within the tick, up to a limit, with doubling pauses
//! and the same bytes. A target that asks for patience is left alone until a later tick, unless it
//! asks for two seconds or less. The lease is held all the while, so more patience is the engine's.
//!
//! # Concurrency
//!
//! With a `CONCURRENCY` of more than 1, a batch is divided by key over as many requests at once, each a batch with an id
//! of its own. Rows of one key go into one request, in order, and no further batch begins before all have
//! answered. The position moves as far as every row before was taken.
//!
//! # What is not said
//!
//! Query and user of the URL hold keys and signatures. Neither they nor keys and tokens of headers
//! appear in an error or a log, not even where the target echoes them. The environment's proxy settings are not obeyed, since only the
//! configuration reads the environment.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use highwater_engine::backoff::{Backoff, seed_of};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Request, Response};
use time::format_description::well_known::Rfc3339;
use tracing::Instrument as _;
use url::Url;

use self::auth::Auth;
use self::body::Body;
pub use self::client::{Client, ClientError};
use self::concurrency::Part;
use self::reply::{Received, Target};
use self::sign::Signer;
use super::tries::{DELAYS, log_retry};
use super::{Delivery, Handler, HandlerError};
use crate::azure::Tokens;
use crate::clock::Clock;
use crate::config::{BodyForm, HttpConfig, redacted};
use crate::error::chain;
use crate::redaction;
use crate::state::Fence;

mod auth;
mod body;
mod client;
mod concurrency;
mod gzip;
mod reply;
mod sign;
#[cfg(test)]
mod tests;
mod traced;

/// Longest part of a reply that is read.
const REPLY_BYTES_MAX: usize = 1 << 20;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const POLLER: HeaderName = HeaderName::from_static("x-highwater-poller");
const GENERATION: HeaderName = HeaderName::from_static("x-highwater-generation");
const FENCING_TOKEN: HeaderName = HeaderName::from_static("x-highwater-fencing-token");
const ATTEMPT: HeaderName = HeaderName::from_static("x-highwater-attempt");
const STARTED_AT: HeaderName = HeaderName::from_static("x-highwater-started-at");
const STEP: HeaderName = HeaderName::from_static("x-highwater-step");

/// Returns the body of a delivery in Highwater's own form: for tests that count what it costs.
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

/// How long the handler waits between tries within a tick.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    /// Delays between tries.
    pub backoff: Backoff,
    /// Longest wait that a target may ask for without being left alone for this tick.
    pub retry_after_max: Duration,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { backoff: DELAYS, retry_after_max: Duration::from_secs(2) }
    }
}

/// A request that can be sent several times.
struct Prepared {
    /// All but the body.
    head: Request,
    body: Body,
    /// The body before it was compressed, where that is what is signed.
    plain: Option<Body>,
}

impl Prepared {
    /// Returns the request of one try.
    fn request(&self) -> Request {
        let mut request = self.head.try_clone().expect("a request without a body can be cloned");
        *request.body_mut() = Some(self.body.clone().into());
        request
    }

    /// Returns what is signed: the body as the receiver parses it.
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
    /// Returns a handler that posts to the URL of `config`, through a client that trusts its
    /// authorities.
    pub fn new(client: Client, config: &HttpConfig, clock: Arc<dyn Clock>) -> Self {
        Self::with_pacing(client, config, clock, Pacing::default())
    }

    /// Returns a handler that waits between tries as `pacing` says.
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

    /// Sets where bearer tokens come from, for [`HttpAuth::Identity`](crate::config::HttpAuth).
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens) -> Self {
        Self { auth: Auth::Bearer(Some(tokens)), ..self }
    }

    /// Returns the request of a delivery, without what differs between tries.
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

    /// Delivers a part, in several tries if need be.
    async fn deliver(&self, part: &Part<'_>) -> Result<(), HandlerError> {
        let prepared = self.prepare(part).await?;
        let seed = seed_of((part.batch.poller, part.id.as_str()));
        let tries_max = part.batch.tries_max(self.tries_max);
        let mut tries = 1;
        loop {
            let Err(error) = self.send(&prepared, part, tries).await else { return Ok(()) };
            let pause = self.pause(tries, seed, &error).filter(|_| tries < tries_max);
            let Some(pause) = pause else { return Err(counted(error, tries)) };
            log_retry(part.batch.poller, &part.id, tries, tries_max, &error);
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    /// Sends a request once and judges the reply.
    async fn send(
        &self,
        prepared: &Prepared,
        part: &Part<'_>,
        tries: u32,
    ) -> Result<(), HandlerError> {
        let mut request = prepared.request();
        request.headers_mut().extend(self.date_and_signature(prepared, part));
        let proof = self.auth.prove(self.timeout).await?;
        request.headers_mut().extend(proof.map(|proof| (proof.name, proof.value)));
        let span = traced::span(&self.url, tries);
        // The receiver's spans lie in the one of this try.
        if let Some((name, value)) = traced::header(&span) {
            request.headers_mut().insert(name, value);
        }
        let exchange = async {
            match self.client.0.execute(request).await {
                Ok(response) => {
                    traced::note_status(response.status());
                    let received = self.receive(response).await;
                    let Delivery { generation, fencing_token: token, .. } = part.batch;
                    let sent = (part.events.as_slice(), Fence { generation, token });
                    reply::judge(&self.target, &received, sent, self.clock.now())
                }
                Err(error) => Err(HandlerError::Retryable(self.failed(error))),
            }
        };
        let result = exchange.instrument(span.clone()).await;
        traced::note_result(&span, &result);
        result
    }

    /// Returns the headers that differ between tries.
    fn date_and_signature(&self, prepared: &Prepared, part: &Part<'_>) -> HeaderMap {
        let timestamp = self.clock.now().unix_timestamp();
        let mut headers = HeaderMap::from_iter([(WEBHOOK_TIMESTAMP, timestamp.into())]);
        let signature = self.signer.sign(part.id.as_str(), timestamp, prepared.signed());
        let value = signature.and_then(|text| HeaderValue::from_str(&text).ok());
        headers.extend(value.map(|value| (WEBHOOK_SIGNATURE, value)));
        headers
    }

    /// Reads a reply as far as its limit.
    async fn receive(&self, mut response: Response) -> Received {
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
        // Each round adds at least a byte or ends.
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

    /// Returns how long to wait before trying again; `None` where that is for a later tick.
    fn pause(&self, tries: u32, seed: u64, error: &HandlerError) -> Option<Duration> {
        let Pacing { backoff, retry_after_max } = self.pacing;
        if matches!(error, HandlerError::Retryable(_)) {
            return Some(backoff.delay(tries, seed));
        }
        error.retry_after().filter(|asked| *asked <= retry_after_max)
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Http").field("url", &redacted(&self.url)).finish_non_exhaustive()
    }
}

#[async_trait]
impl Handler for Http {
    fn time_limit(&self) -> Option<Duration> {
        Some(self.timeout)
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let parts = concurrency::divide(delivery, self.concurrency);
        // All are waited for: one that is given up might still be taken, after newer rows.
        let results = join_all(parts.iter().map(|part| self.deliver(part))).await;
        concurrency::combine(&parts, results)
    }
}

/// Adds the number of tries to an error that was worth several.
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
    // Ids and names are plain ASCII; a trace context from outside that is not is left out.
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
