//! Handler: each batch becomes one blob, with one event a line.
//!
//! # The blob
//!
//! `{poller}/{first}_{last}_{batch id}.ndjson`, where the first and the last event's positions are
//! written without the signs that file systems dislike. They are for people: by name the blobs of a
//! poller stand in the order of its rows, as positions have a fixed width. The batch id is what makes
//! the name: it stands for the bytes, so the blob is created only where there is none, and one that
//! exists already holds what would be written. Nothing is ever replaced.
//!
//! The bytes are sent as one request whatever their number, so there is no half of a blob. Two blobs
//! may hold the same event: after an end between the write and the commit the same rows may come in
//! another batch. Event ids tell.
//!
//! # Refusals
//!
//! The container must exist, except in development storage, where the first batch creates it. An
//! answer that is lost is worth another try, since trying again changes nothing; the setting
//! `HANDLER__TRIES_MAX` limits the tries of one tick.

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

/// How much longer than one HTTP request a try may take: asking for a token is not part of that.
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
    /// [`ConnectError`] if the address cannot be used with tokens, which need https.
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

    /// Writes a blob where there is none of its name.
    async fn create(&self, name: &str, bytes: Vec<u8>) -> Result<(), HandlerError> {
        self.create_container_once().await?;
        let seconds = self.timeout.as_secs().saturating_sub(1);
        let options = BlobClientUploadOptions {
            blob_content_type: Some("application/x-ndjson".to_owned()),
            if_none_match: Some("*".into()),
            // One request for all of it, not one for each block.
            partition_size: NonZero::new(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            // The service shall give up before we do, so that fewer abandoned writes land late.
            per_request_timeout: Some(i32::try_from(seconds).unwrap_or(i32::MAX).max(1)),
            ..BlobClientUploadOptions::default()
        };
        let content = RequestContent::from(bytes);
        match Box::pin(self.container.blob_client(name).upload(content, Some(options))).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let failure = Failure::of(&error);
                match failure.answer() {
                    Some(answer) if is_there(answer) => Ok(()),
                    Some(_) | None => Err(self.resource().failed(&failure)),
                }
            }
        }
    }
}

#[async_trait]
impl Handler for Blob {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let span = traced::create_blob(&self.container_name);
        traced::within(span, self.create_or_retry(&delivery)).await
    }
}

impl Blob {
    /// Writes the blob of a batch, with as many tries as it may take.
    async fn create_or_retry(&self, delivery: &Delivery<'_>) -> Result<(), HandlerError> {
        let name = name(delivery);
        let mut tries = Tries::up_to(delivery.tries_max(self.tries_max));
        // Each round that goes on counts a try.
        loop {
            let create = self.create(&name, lines(delivery.events));
            let created = timeout(self.timeout + GRACE, create).await;
            let created = created.unwrap_or_else(|_elapsed| Err(self.resource().timed_out()));
            let Err(error) = created else { return Ok(()) };
            tries.after(error, delivery).await?;
        }
    }
}

/// Whether an answer says that a blob of the name exists. Codes of the service's own leases mean
/// something else.
/// <https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes>
fn is_there(answer: &Answer) -> bool {
    match answer.status {
        409 => answer.code == "BlobAlreadyExists",
        412 => answer.code == "ConditionNotMet",
        // What a signature without the right to write gets told.
        403 => answer.code == "UnauthorizedBlobOverwrite",
        _ => false,
    }
}

/// Returns the name of a batch's blob.
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
    fn only_a_blob_that_is_there_counts_as_written() {
        for (status, code, there) in [
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
            assert_eq!(is_there(&answer), there, "{status} {code}");
        }
    }
}
