//! Limits the size of answers.

use async_trait::async_trait;
use azure_core::error::{Error, ErrorKind};
use azure_core::http::{AsyncRawResponse, HttpClient, Method, Request};
use futures_util::StreamExt as _;

/// Longest answer to a request other than a read: it only reports success or an error.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// An HTTP client that stops reading an endless answer, since the Azure crates buffer what they read.
#[derive(Debug)]
pub(super) struct BoundedClient(pub(super) reqwest::Client);

#[async_trait]
impl HttpClient for BoundedClient {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let Self(client) = self;
        let response = client.execute_request(request).await?;
        // Stored content, and lists of it, have no limit.
        if request.method() == Method::Get && response.status().is_success() {
            return Ok(response);
        }
        let (status, headers, body) = response.deconstruct();
        let mut room = ANSWER_BYTES_MAX;
        let body = body.map(move |chunk| {
            let chunk = chunk?;
            room = room.checked_sub(chunk.len()).ok_or_else(too_long)?;
            Ok(chunk)
        });
        Ok(AsyncRawResponse::new(status, headers, Box::pin(body)))
    }
}

fn too_long() -> Error {
    Error::with_message(ErrorKind::Io, "the answer is longer than 1 MiB")
}
