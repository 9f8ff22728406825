//! Handler: each batch starts one Durable Functions orchestration.
//!
//! # Requests
//!
//! The handler uses the HTTP API of the Durable Task extension, at `{URL}/runtime/webhooks/durabletask`,
//! with the system key as `code` in the query. The instance id is the batch id.
//!
//! 1. `GET /instances/{batch id}` checks whether the instance exists. This always comes first: by default
//!    the extension restarts an instance whose orchestration has ended, so a start alone could run a
//!    batch twice.
//! 2. `POST /orchestrators/{name}/{batch id}` starts it, with the batch as the orchestration's input.
//!
//! <https://learn.microsoft.com/azure/azure-functions/durable/durable-functions-http-api>
//!
//! # Replies
//!
//! [`reply`] describes their meaning. Only a reply that no other site would give counts as success: a
//! status with a `runtimeStatus`, or a 202 with the instance's own id. A started orchestration has
//! accepted the batch; the function app is responsible for its outcome.
//!
//! # Input
//!
//! One object: `batch_id`, `poller`, `generation`, `fencing_token`, `attempt`, `started_at`, `replay_id`,
//! `source`, `rows` and `events`, the same object that the `http` handler posts.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, RequestBuilder};
use secrecy::ExposeSecret as _;
use thiserror::Error;
use url::Url;

use self::reply::{Received, Start};
use super::tries::Tries;
use super::{Delivery, Handler, HandlerError, Progress, envelope};
use crate::config::{DurableConfig, shown_url};
use crate::error::chain;

mod reply;
#[cfg(test)]
mod tests;

/// Interprets a reply to a status request and to a start request; for tests and fuzzing.
///
/// # Errors
///
/// As [`Handler::handle`].
#[cfg(any(test, feature = "test-util"))]
pub fn judge_replies(status: u16, body: &[u8]) -> Result<(bool, bool), HandlerError> {
    let received = Received {
        from: "https://contoso.com".to_owned(),
        status,
        retry_after: None,
        body: body.to_vec(),
        is_cut: false,
    };
    let started = reply::judge_start(&received, "batch", "orchestrator")? == Start::Started;
    Ok((reply::is_known(&received)?, started))
}

/// At most this much of a reply is read. The output in a status may be long, but its beginning is enough.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Limit on establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Path of the extension's API in a function app.
const API: [&str; 3] = ["runtime", "webhooks", "durabletask"];

/// The HTTP client could not be built, usually because there are no root certificates.
#[derive(Debug, Error)]
#[error("build the HTTP client")]
pub struct ClientError(#[source] reqwest::Error);

/// Starts orchestrations in one function app.
pub struct Durable {
    client: reqwest::Client,
    config: DurableConfig,
}

impl fmt::Debug for Durable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Durable").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Durable {
    /// Returns a handler that starts the orchestrator of `config`.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the system has no usable root certificates.
    pub fn new(config: &DurableConfig) -> Result<Self, ClientError> {
        let client = reqwest::Client::builder()
            .user_agent(concat!("highwater/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(config.timeout)
            .build()
            .map_err(ClientError)?;
        Ok(Self { client, config: config.clone() })
    }

    /// Returns the URL of an API path, including the key.
    fn address(&self, path: &[&str], more: Option<(&str, &str)>) -> Result<Url, HandlerError> {
        let mut url = self.config.url.clone();
        let shown = shown_url(&url);
        let no_path = |()| HandlerError::Misconfigured(format!("`{shown}` cannot have a path"));
        url.path_segments_mut().map_err(no_path)?.pop_if_empty().extend(API).extend(path);
        let key = self.config.system_key.as_ref().map(|key| ("code", key.expose_secret()));
        if more.is_some() || key.is_some() {
            url.query_pairs_mut().extend_pairs(more).extend_pairs(key);
        }
        Ok(url)
    }

    /// Starts the orchestration of a batch, unless it exists.
    async fn start_once(&self, input: &[u8], delivery: &Delivery<'_>) -> Result<(), HandlerError> {
        let (id, name) = (delivery.batch_id.as_str(), self.config.orchestrator.as_str());
        let progress = delivery.progress;
        if self.is_known(id, progress).await? {
            return Ok(());
        }
        let start = self.address(&["orchestrators", name, id], None)?;
        let mut request = self.client.request(Method::POST, start).body(input.to_vec());
        request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let trace = [("traceparent", delivery.traceparent), ("tracestate", delivery.tracestate)];
        for (name, value) in trace {
            if let Some(value) = value.and_then(|it| HeaderValue::from_str(it).ok()) {
                request = request.header(name, value);
            }
        }
        let received = self.exchange(request, progress).await?;
        match reply::judge_start(&received, id, name)? {
            Start::Started => Ok(()),
            Start::Exists if self.is_known(id, progress).await? => Ok(()),
            Start::Exists => Err(received.contradicted()),
        }
    }

    async fn is_known(&self, id: &str, progress: &Progress) -> Result<bool, HandlerError> {
        let status = self.address(&["instances", id], Some(("showInput", "false")))?;
        let request = self.client.request(Method::GET, status);
        reply::is_known(&self.exchange(request, progress).await?)
    }

    /// Sends a request, and reads the reply up to its limit. Each is a step of progress, whatever becomes of it.
    async fn exchange(
        &self,
        request: RequestBuilder,
        progress: &Progress,
    ) -> Result<Received, HandlerError> {
        let received = self.receive(request).await;
        progress.report(1);
        received
    }

    async fn receive(&self, request: RequestBuilder) -> Result<Received, HandlerError> {
        let shown = shown_url(&self.config.url);
        let lost = |error: reqwest::Error| {
            HandlerError::Retryable(format!("{shown}: {}", chain(&error.without_url())))
        };
        let mut response = request.send().await.map_err(lost)?;
        let retry_after = response.headers().get("retry-after");
        let mut received = Received {
            from: shown.clone(),
            status: response.status().as_u16(),
            retry_after: retry_after.and_then(|it| it.to_str().ok()?.trim().parse().ok()),
            body: Vec::new(),
            is_cut: false,
        };
        // Terminates: each iteration adds at least one byte.
        while !received.is_cut
            && let Some(chunk) = response.chunk().await.map_err(lost)?
        {
            let room = REPLY_BYTES_MAX.saturating_sub(received.body.len());
            received.is_cut = chunk.len() > room;
            received.body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
        }
        Ok(received)
    }
}

#[async_trait]
impl Handler for Durable {
    fn recognises_batches(&self) -> bool {
        true
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let events: Vec<_> = delivery.events.iter().collect();
        let input =
            envelope::encode(&delivery, delivery.batch_id.as_str(), &events).map_err(|error| {
                HandlerError::Rejected(format!("encode batch `{}`: {error}", delivery.batch_id))
            })?;
        let mut tries = Tries::up_to(self.config.tries_max);
        // Terminates: each iteration counts as a try.
        loop {
            let Err(error) = self.start_once(&input, &delivery).await else { return Ok(()) };
            tries.after(error, &delivery).await?;
        }
    }
}
