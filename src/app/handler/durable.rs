//! Handler: each batch starts one Durable Functions orchestration.
//!
//! # The requests
//!
//! Those of the Durable Task extension's HTTP API, below `{URL}/runtime/webhooks/durabletask`, with the
//! system key as `code` in the query. The instance id is the batch id.
//!
//! 1. `GET /instances/{batch id}` asks whether the instance is known. It is asked first, always: by
//!    default the extension starts an instance again whose orchestration has ended, so starting alone
//!    would run a batch twice.
//! 2. `POST /orchestrators/{name}/{batch id}` starts it, with the batch as the orchestration's input.
//!
//! <https://learn.microsoft.com/azure/azure-functions/durable/durable-functions-http-api>
//!
//! # The replies
//!
//! What they mean stands in [`reply`]. Only what no other site would answer counts as success: a status
//! with a `runtimeStatus`, an acceptance with the instance's own id. A started orchestration has taken the
//! batch; whether it ends well is for the function app to watch.
//!
//! # The input
//!
//! One object: `batch_id`, `poller`, `generation`, `fencing_token`, `attempt`, `started_at`, `replay_id`, `source`, `rows`
//! and `events`, as the handler `http` posts it.

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
use super::{Delivery, Handler, HandlerError, envelope};
use crate::config::{DurableConfig, redacted};
use crate::error::chain;

mod reply;
#[cfg(test)]
mod tests;

/// Longest part of a reply that is read; of a status, whose output may be long, the
/// beginning is enough.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Limit on making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Where the extension's API lies in a function app.
const API: [&str; 3] = ["runtime", "webhooks", "durabletask"];

/// The HTTP client could not be made: no root certificates, as a rule.
#[derive(Debug, Error)]
#[error("make the HTTP client")]
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

    /// Returns the address of a part of the API, with the key in it.
    fn address(&self, path: &[&str], more: Option<(&str, &str)>) -> Result<Url, HandlerError> {
        let mut url = self.config.url.clone();
        let shown = redacted(&url);
        let no_path = |()| HandlerError::Misconfigured(format!("{shown} takes no path"));
        url.path_segments_mut().map_err(no_path)?.pop_if_empty().extend(API).extend(path);
        let key = self.config.system_key.as_ref().map(|key| ("code", key.expose_secret()));
        if more.is_some() || key.is_some() {
            url.query_pairs_mut().extend_pairs(more).extend_pairs(key);
        }
        Ok(url)
    }

    /// Starts the orchestration of a batch, unless there is one.
    async fn start_once(&self, input: &[u8], delivery: &Delivery<'_>) -> Result<(), HandlerError> {
        let (id, name) = (delivery.batch_id.as_str(), self.config.orchestrator.as_str());
        if self.is_known(id).await? {
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
        let received = self.exchange(request).await?;
        match reply::judge_start(&received, id, name)? {
            Start::Started => Ok(()),
            Start::Exists if self.is_known(id).await? => Ok(()),
            Start::Exists => Err(received.contradicted()),
        }
    }

    async fn is_known(&self, id: &str) -> Result<bool, HandlerError> {
        let status = self.address(&["instances", id], Some(("showInput", "false")))?;
        reply::is_known(&self.exchange(self.client.request(Method::GET, status)).await?)
    }

    /// Sends a request, and reads the reply as far as its limit.
    async fn exchange(&self, request: RequestBuilder) -> Result<Received, HandlerError> {
        let said = redacted(&self.config.url);
        let lost = |error: reqwest::Error| {
            HandlerError::Retryable(format!("{said}: {}", chain(&error.without_url())))
        };
        let mut response = request.send().await.map_err(lost)?;
        let retry_after = response.headers().get("retry-after");
        let mut received = Received {
            from: said.clone(),
            status: response.status().as_u16(),
            retry_after: retry_after.and_then(|it| it.to_str().ok()?.trim().parse().ok()),
            body: Vec::new(),
            is_cut: false,
        };
        // Each round adds at least a byte or ends.
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
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let events: Vec<_> = delivery.events.iter().collect();
        let input =
            envelope::encode(&delivery, delivery.batch_id.as_str(), &events).map_err(|error| {
                HandlerError::Rejected(format!("encode batch `{}`: {error}", delivery.batch_id))
            })?;
        let mut tries = Tries::up_to(delivery.tries_max(self.config.tries_max));
        // Each round that goes on counts a try.
        loop {
            let Err(error) = self.start_once(&input, &delivery).await else { return Ok(()) };
            tries.after(error, &delivery).await?;
        }
    }
}
