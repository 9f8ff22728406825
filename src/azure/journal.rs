//! Journals in Azure Blob Storage, next to the state documents.
//!
//! A part is one append blob, `journal/{app}/{poller}/{day}.{number}.ndjson`. An append is one Append Block,
//! on condition that the blob has the length that the writer expects: so an append whose answer was lost can
//! be retried. A blob is limited to 50,000 blocks
//! (<https://learn.microsoft.com/rest/api/storageservices/append-block>); then the next number starts.
//! Requests are never retried here.

use std::fmt;
use std::num::NonZero;

use async_trait::async_trait;
use azure_core::http::{Etag, RequestContent};
use azure_storage_blob::AppendBlobClient;
use azure_storage_blob::models::{
    AppendBlobClientAppendBlockOptions, AppendBlobClientCreateOptions, BlobClientDownloadOptions,
    BlobClientGetPropertiesOptions, BlobClientGetPropertiesResultHeaders as _,
};
use highwater_engine::journal::{Appended, JournalStore, Part, length};
use highwater_engine::store::StoreError;

use crate::container::{Container, encode};
use crate::{BlobService, ConnectError, Failure};

/// Keeps journals in a container of a storage account.
///
/// The container must exist, except on the emulator, where the first request creates it.
pub struct BlobJournal {
    container: Container,
    app: String,
}

impl fmt::Debug for BlobJournal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BlobJournal")
            .field("container", &self.container.name())
            .field("app", &self.app)
            .finish_non_exhaustive()
    }
}

impl BlobJournal {
    /// Keeps journals of the application `app` in `container`; sends nothing yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the container name is invalid.
    pub fn new(service: &BlobService, container: &str, app: &str) -> Result<Self, ConnectError> {
        let container = Container::new(service, container, &["journal", &encode(app)])?;
        Ok(Self { container, app: app.to_owned() })
    }

    async fn append_once(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError> {
        let name = self.container.location(&file_name(part));
        self.container.create_once().await?;
        let blob = self.container.folder().blob_client(&file_name(part)).append_blob_client();
        if position == 0 {
            self.create(&blob, &name).await?;
        }
        let options = AppendBlobClientAppendBlockOptions {
            append_position: i64::try_from(position).ok(),
            timeout: Some(self.container.service_timeout()),
            ..AppendBlobClientAppendBlockOptions::default()
        };
        let appended = length(&bytes);
        let block = blob.append_block(RequestContent::from(bytes), appended, Some(options));
        match Box::pin(block).await {
            Ok(_) => Ok(Appended::UpTo(position + appended)),
            Err(error) => {
                let failure = Failure::of(&error);
                match failure.answer() {
                    Some(answer) if answer.code == "BlockCountExceedsLimit" => Ok(Appended::Full),
                    Some(_) | None => Err(self.container.refused(&name, &failure)),
                }
            }
        }
    }

    /// Creates a part if it does not exist, as an append requires.
    async fn create(&self, blob: &AppendBlobClient, name: &str) -> Result<(), StoreError> {
        let options = AppendBlobClientCreateOptions {
            blob_content_type: Some("application/x-ndjson".to_owned()),
            if_none_match: Some("*".into()),
            timeout: Some(self.container.service_timeout()),
            ..AppendBlobClientCreateOptions::default()
        };
        match Box::pin(blob.create(Some(options))).await {
            Ok(_) => Ok(()),
            Err(error) => match self.container.refused(name, &Failure::of(&error)) {
                // It exists already; the append will find out whether it is empty.
                StoreError::Conflict { .. } => Ok(()),
                error @ (StoreError::Unreachable { .. }
                | StoreError::Unknown { .. }
                | StoreError::Refused { .. }) => Err(error),
            },
        }
    }

    /// Returns the length of a part in bytes, and its version; `None` if it does not exist.
    async fn properties(&self, part: &Part) -> Result<Option<(u64, Option<Etag>)>, StoreError> {
        let name = self.container.location(&file_name(part));
        self.container.create_once().await?;
        let options = BlobClientGetPropertiesOptions {
            timeout: Some(self.container.service_timeout()),
            ..BlobClientGetPropertiesOptions::default()
        };
        let blob = self.container.folder().blob_client(&file_name(part));
        let found = match Box::pin(blob.get_properties(Some(options))).await {
            Ok(found) => found.content_length().and_then(|length| Ok((length, found.etag()?))),
            Err(error) if is_absent(&Failure::of(&error)) => return Ok(None),
            Err(error) => Err(error),
        };
        let (length, etag) =
            found.map_err(|error| self.container.failed(&name, &Failure::of(&error)))?;
        Ok(Some((length.unwrap_or_default(), etag)))
    }

    async fn read_once(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
        let name = self.container.location(&file_name(part));
        self.container.create_once().await?;
        let from = usize::try_from(position).unwrap_or(usize::MAX);
        let options = BlobClientDownloadOptions {
            partition_size: NonZero::new(READ_BYTES),
            range: (from > 0).then(|| (from..).into()),
            timeout: Some(self.container.service_timeout()),
            ..BlobClientDownloadOptions::default()
        };
        let blob = self.container.folder().blob_client(&file_name(part));
        let failed = |error: &azure_core::Error| {
            let failure = Failure::of(error);
            let is_end = failure.answer().is_some_and(|answer| answer.status == 416);
            if is_end || is_absent(&failure) {
                return Ok(Vec::new());
            }
            Err(self.container.failed(&name, &failure))
        };
        match Box::pin(blob.download(Some(options))).await {
            Ok(found) => match found.body.collect().await {
                Ok(bytes) => Ok(bytes.to_vec()),
                Err(error) => failed(&error),
            },
            Err(error) => failed(&error),
        }
    }
}

/// Bytes per request.
const READ_BYTES: usize = 4 * 1024 * 1024;

fn is_absent(failure: &Failure) -> bool {
    failure.answer().is_some_and(|answer| {
        answer.status == 404 && matches!(answer.code.as_str(), "" | "BlobNotFound")
    })
}

/// Returns the name below the application's folder.
fn file_name(part: &Part) -> String {
    format!("{}/{}", encode(&part.poller), part.file_name())
}

#[async_trait]
impl JournalStore for BlobJournal {
    async fn append(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError> {
        let append = self.append_once(part, position, bytes);
        self.container.in_time(&self.container.location(&file_name(part)), append).await
    }

    async fn length(&self, part: &Part) -> Result<u64, StoreError> {
        let found = self
            .container
            .in_time(&self.container.location(&file_name(part)), self.properties(part))
            .await?;
        Ok(found.map_or(0, |(length, _)| length))
    }

    async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
        self.read_once(part, position).await
    }

    async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
        let folder = format!("{}/", encode(poller));
        let names = self.container.list(&folder).await?;
        let files = names.iter().filter_map(|name| name.strip_prefix(folder.as_str()));
        let mut parts: Vec<_> = files.filter_map(|file| Part::parse(poller, file)).collect();
        parts.sort();
        Ok(parts)
    }

    async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError> {
        let name = self.container.location(&file_name(part));
        let Some(wanted) = length else {
            return match self.container.remove(&file_name(part), None).await {
                Err(StoreError::Conflict { .. }) => Ok(()),
                removed => removed,
            };
        };
        match self.container.in_time(&name, self.properties(part)).await? {
            // A concurrent append would change the version.
            Some((length, Some(etag))) if length == wanted => {
                self.container.remove(&file_name(part), Some(etag)).await
            }
            Some(_) | None => Err(StoreError::Conflict { key: name }),
        }
    }
}
