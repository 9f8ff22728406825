//! One request to a collector.

use std::collections::BTreeMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Client, Response};

use super::settings::Endpoint;
use crate::error::chain;

/// A collector did not accept a request.
#[derive(Debug)]
pub(super) struct Refused {
    /// Why, without secrets.
    pub(super) reason: String,
    /// Whether a retry may succeed.
    pub(super) is_transient: bool,
}

/// Sends requests; connections are reused.
#[derive(Debug, Default)]
pub(super) struct Poster {
    /// Clients by their CA file. Built on first use, since that takes longer than the rest of the start.
    clients: BTreeMap<Option<String>, Client>,
}

impl Poster {
    pub(super) async fn post(&mut self, endpoint: &Endpoint, bytes: &[u8]) -> Result<(), Refused> {
        let permanent = |reason| Refused { reason, is_transient: false };
        let client = self.client(endpoint.certificate.as_deref()).map_err(permanent)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &endpoint.headers {
            let pair = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
            headers.extend(pair);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let mut body = bytes.to_vec();
        if endpoint.gzip {
            body = gzip(bytes).map_err(|error| permanent(format!("compress: {error}")))?;
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let request = client.post(endpoint.url.clone()).timeout(endpoint.timeout);
        match request.headers(headers).body(body).send().await {
            Ok(response) => judge(&response),
            Err(error) => {
                let reason = if error.is_timeout() {
                    "timed out".to_owned()
                } else {
                    chain(&error.without_url())
                };
                Err(Refused { reason, is_transient: true })
            }
        }
    }

    fn client(&mut self, certificate: Option<&str>) -> Result<Client, String> {
        let key = certificate.map(str::to_owned);
        if let Some(client) = self.clients.get(&key) {
            return Ok(client.clone());
        }
        let authorities = match certificate {
            Some(path) => authorities(path)?,
            None => Vec::new(),
        };
        let client = Client::builder()
            .user_agent(concat!("highwater/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .tls_certs_merge(authorities)
            .build()
            .map_err(|error| chain(&error))?;
        self.clients.insert(key, client.clone());
        Ok(client)
    }
}

fn authorities(path: &str) -> Result<Vec<Certificate>, String> {
    let pem =
        std::fs::read(path).map_err(|error| format!("read certificates `{path}`: {error}"))?;
    let found = Certificate::from_pem_bundle(&pem);
    found.map_err(|error| format!("read certificates `{path}`, expected PEM: {}", chain(&error)))
}

/// The retryable statuses are those of the specification:
/// <https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes>
fn judge(response: &Response) -> Result<(), Refused> {
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let is_transient = matches!(status.as_u16(), 429 | 502 | 503 | 504);
    Err(Refused { reason: format!("the collector answered {status}"), is_transient })
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}
