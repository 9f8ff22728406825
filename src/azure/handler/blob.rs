//! Handler: each batch becomes one blob, with one event per line.
//!
//! # The blob
//!
//! `{poller}/{first}_{last}_{batch id}.ndjson`, with the positions of the first and the last event, without
//! characters that file systems dislike. The positions are for people: they have a fixed width, so the blobs
//! of a poller sort in the order of its rows. The batch id makes the name unique: it identifies the content,
//! so the blob is created only if it does not exist, and an existing one already has that content. Nothing is
//! ever replaced.
//!
//! The content is sent as one request whatever its size, so there are no partial blobs. Two blobs may contain
//! the same event: after a crash between the write and the commit, the same rows may be part of another
//! batch. Event ids identify duplicates.
//!
//! # Errors
//!
//! The container must exist, except in development storage, where the first batch creates it. A lost answer
//! is retried, since a retry changes nothing; the setting `HANDLER__TRIES_MAX` limits the attempts per tick.

use std::fmt;
use std::num::NonZero;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::RequestContent;
use azure_storage_blob::BlobContainerClient;
use azure_storage_blob::models::BlobClientUploadOptions;
use highwater_engine::event::ChangeEvent;
use highwater_engine::handler::tries::Tries;
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::BlobConfig;
use super::storage::Resource;
use super::traced;
use crate::{Answer, BlobService, ConnectError, Failure};

/// How much longer than one HTTP request an attempt may take: its limit does not cover token requests.
const GRACE: Duration = Duration::from_millis(500);

/// Writes batches as blobs of one container.
pub struct Blob {
    container: BlobContainerClient,
    container_name: String,
    tries_max: u32,
    timeout: Duration,
    creates_container: bool,
    container_created: OnceCell<()>,
}

impl fmt::Debug for Blob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let container = &self.container_name;
        formatter.debug_struct("Blob").field("container", container).finish_non_exhaustive()
    }
}

impl Blob {
    /// Returns a handler that writes to the container of `config`; sends nothing yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if tokens would be sent without https.
    pub fn new(service: &BlobService, config: &BlobConfig) -> Result<Self, ConnectError> {
        Ok(Self {
            container: service.folder(&[&config.container])?,
            container_name: config.container.clone(),
            tries_max: config.tries_max,
            timeout: service.timeout(),
            creates_container: service.is_development(),
            container_created: OnceCell::new(),
        })
    }

    fn resource(&self) -> Resource<'_> {
        Resource {
            kind: "container",
            name: &self.container_name,
            role: "Storage Blob Data Contributor",
            rights: "cw",
        }
    }

    async fn create_container_once(&self) -> Result<(), HandlerError> {
        if !self.creates_container {
            return Ok(());
        }
        let create = async || match Box::pin(self.container.create(None)).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let failure = Failure::of(&error);
                let code = failure.answer().map(|answer| answer.code.as_str());
                match code {
                    Some("ContainerAlreadyExists") => Ok(()),
                    Some(_) | None => Err(self.resource().failed(&failure)),
                }
            }
        };
        self.container_created.get_or_try_init(create).await.copied()
    }

    /// Creates a blob unless it exists.
    async fn create(&self, name: &str, bytes: Vec<u8>) -> Result<(), HandlerError> {
        self.create_container_once().await?;
        let seconds = self.timeout.as_secs().saturating_sub(1);
        let options = BlobClientUploadOptions {
            blob_content_type: Some("application/x-ndjson".to_owned()),
            if_none_match: Some("*".into()),
            // One request for the complete content, not one per block.
            partition_size: NonZero::new(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            // The service's timeout is shorter than ours, so that fewer abandoned writes land late.
            per_request_timeout: Some(i32::try_from(seconds).unwrap_or(i32::MAX).max(1)),
            ..BlobClientUploadOptions::default()
        };
        let content = RequestContent::from(bytes);
        match Box::pin(self.container.blob_client(name).upload(content, Some(options))).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let failure = Failure::of(&error);
                match failure.answer() {
                    Some(answer) if exists(answer) => Ok(()),
                    Some(_) | None => Err(self.resource().failed(&failure)),
                }
            }
        }
    }
}

#[async_trait]
impl Handler for Blob {
    fn recognises_batches(&self) -> bool {
        true
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let span = traced::create_blob(&self.container_name);
        traced::within(span, self.create_or_retry(&delivery)).await
    }
}

impl Blob {
    /// Writes the blob of a batch, with the allowed number of attempts.
    async fn create_or_retry(&self, delivery: &Delivery<'_>) -> Result<(), HandlerError> {
        let name = name(delivery);
        let mut tries = Tries::up_to(self.tries_max);
        // Each iteration counts an attempt.
        loop {
            let create = self.create(&name, lines(delivery.events));
            let created = timeout(self.timeout + GRACE, create).await;
            let created = created.unwrap_or_else(|_elapsed| Err(self.resource().timed_out()));
            delivery.progress.report(1);
            let Err(error) = created else { return Ok(()) };
            tries.after(error, delivery).await?;
        }
    }
}

/// Whether an answer shows that the blob already exists. The codes of the service's native leases mean
/// something else.
/// <https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes>
fn exists(answer: &Answer) -> bool {
    match answer.status {
        409 => answer.code == "BlobAlreadyExists",
        412 => answer.code == "ConditionNotMet",
        // The answer to a signature without permission to overwrite.
        403 => answer.code == "UnauthorizedBlobOverwrite",
        _ => false,
    }
}

/// Returns the blob name of a batch.
fn name(delivery: &Delivery<'_>) -> String {
    let position = |event: Option<&ChangeEvent>| {
        let text = event.map(|event| event.cursor.value.as_str()).unwrap_or_default();
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        text.chars().filter(is_plain).collect::<String>()
    };
    let (first, last) = (position(delivery.events.first()), position(delivery.events.last()));
    format!("{}/{first}_{last}_{}.ndjson", delivery.poller, delivery.batch_id)
}

fn lines(events: &[ChangeEvent]) -> Vec<u8> {
    // Allocated once: a batch is the largest thing in memory.
    let mut lines = Vec::with_capacity(events.iter().map(|event| event.json.len() + 1).sum());
    for event in events {
        lines.extend_from_slice(event.json.as_bytes());
        lines.push(b'\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use highwater_engine::cursor::{Cursor, KeyValues};
    use highwater_engine::handler::testing::Sample;

    use super::*;

    #[test]
    fn a_blob_is_named_by_its_range_and_its_content() {
        let mut sample = Sample::new(2);
        let id = sample.batch_id.as_str().to_owned();
        assert_eq!(
            name(&sample.delivery()),
            format!("orders/0x0000000000000001_0x0000000000000002_{id}.ndjson")
        );
        let cursor = |text| Cursor::timestamp(text, KeyValues::new()).unwrap();
        sample.events[0].cursor = cursor("2026-04-07T01:23:45.5");
        sample.events[1].cursor = cursor("2026-04-07T01:23:46Z");
        assert_eq!(
            name(&sample.delivery()),
            format!("orders/2026-04-07T012345.5000000_2026-04-07T012346.0000000Z_{id}.ndjson")
        );
    }

    #[test]
    fn only_an_existing_blob_counts_as_written() {
        for (status, code, existing) in [
            (409, "BlobAlreadyExists", true),
            (412, "ConditionNotMet", true),
            (403, "UnauthorizedBlobOverwrite", true),
            (403, "AuthorizationFailure", false),
            (409, "ContainerBeingDeleted", false),
            (409, "BlobImmutableDueToPolicy", false),
            (412, "LeaseIdMissing", false),
            (412, "", false),
            (404, "ContainerNotFound", false),
        ] {
            let text = String::new();
            let answer = Answer { status, code: code.to_owned(), date: None, text };
            assert_eq!(exists(&answer), existing, "{status} {code}");
        }
    }
}
