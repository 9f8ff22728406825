//! State in Azure Blob Storage, for every deployment with more than one instance.
//!
//! Each key is one block blob, read by one Get Blob and written by one conditional Put Blob. Times are the
//! service's: `Date` of each answer and `Last-Modified` of the blob, both in whole seconds. Requests are
//! never retried here, and a lost answer is reported as lost: see [`crate`].

use std::fmt;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::RequestContent;
use azure_core::http::headers::{HeaderName, Headers};
use azure_storage_blob::models::{
    BlobClientDownloadOptions, BlobClientDownloadResult, BlobClientUploadOptions,
};
use highwater_engine::store::{
    ETag, Precondition, ReadResult, StateKey, StateStore, StoreError, StoredValue, WriteResult,
};
use time::OffsetDateTime;

use crate::container::{Container, decode, encode, unknown};
use crate::{BlobService, ConnectError, Failure};

/// Keeps state in a container of a storage account, as `state/{app}/{poller}.json`.
///
/// The container must exist, except on the emulator, where the first request creates it.
pub struct BlobStore {
    service: Box<BlobService>,
    container: Container,
    /// The folder of all applications.
    apps: Box<Container>,
    app: String,
}

impl fmt::Debug for BlobStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BlobStore")
            .field("container", &self.container.name())
            .field("app", &self.app)
            .finish_non_exhaustive()
    }
}

impl BlobStore {
    /// Keeps state of the application `app` in `container`; sends nothing yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the container name is invalid.
    pub fn new(service: &BlobService, container: &str, app: &str) -> Result<Self, ConnectError> {
        let container = Container::new(service, container, &["state", &encode(app)])?;
        let apps = Box::new(Container::new(service, container.name(), &["state"])?);
        Ok(Self { service: Box::new(service.clone()), container, apps, app: app.to_owned() })
    }

    /// Creates the container if it does not exist; returns whether it was created.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn create_container(&self) -> Result<bool, StoreError> {
        self.container.create().await
    }

    async fn load_once(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        self.container.create_once().await?;
        let name = self.location(key);
        let options = BlobClientDownloadOptions {
            partition_size: NonZero::new(BYTES_MAX),
            timeout: Some(self.container.service_timeout()),
            ..BlobClientDownloadOptions::default()
        };
        let blob = self.container.folder().blob_client(&file_name(key));
        match Box::pin(blob.download(Some(options))).await {
            Ok(found) => self.read(&name, found).await,
            Err(error) => {
                let failure = Failure::of(&error);
                match failure.answer() {
                    Some(answer) if answer.code == "BlobNotFound" => {
                        let date = answer.date.ok_or_else(|| unknown(&name, NO_DATE))?;
                        Ok(ReadResult { stored: None, date })
                    }
                    Some(_) | None => Err(self.container.failed(&name, &failure)),
                }
            }
        }
    }

    async fn read(
        &self,
        name: &str,
        found: BlobClientDownloadResult,
    ) -> Result<ReadResult, StoreError> {
        if total_bytes(&found.headers).is_some_and(|bytes| bytes > BYTES_MAX) {
            return Err(too_large(name));
        }
        let date = date(name, &found.headers)?;
        let etag =
            found.properties.etag.ok_or_else(|| unknown(name, "the answer has no `ETag`"))?;
        let last_modified = found
            .properties
            .last_modified
            .ok_or_else(|| unknown(name, "the answer has no `Last-Modified`"))?;
        let bytes = found.body.collect().await;
        let bytes =
            bytes.map_err(|error| self.container.failed(name, &Failure::of(&error)))?.to_vec();
        let stored = StoredValue { bytes, etag: ETag(etag.into()), last_modified };
        Ok(ReadResult { stored: Some(stored), date })
    }

    async fn store_once(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        let name = self.location(key);
        if bytes.len() > BYTES_MAX {
            return Err(too_large(&name));
        }
        self.container.create_once().await?;
        let mut options = BlobClientUploadOptions {
            blob_content_type: Some("application/json".to_owned()),
            per_request_timeout: Some(self.container.service_timeout()),
            ..BlobClientUploadOptions::default()
        };
        match precondition {
            Precondition::Absent => options.if_none_match = Some("*".into()),
            Precondition::Matches(ETag(etag)) => options.if_match = Some(etag.into()),
        }
        let blob = self.container.folder().blob_client(&file_name(key));
        let content = RequestContent::from(bytes);
        match Box::pin(blob.upload(content, Some(options))).await {
            Ok(written) => {
                let etag =
                    written.etag.ok_or_else(|| unknown(&name, "the answer has no `ETag`"))?;
                let date = date(&name, written.raw_response.headers())?;
                Ok(WriteResult { etag: ETag(etag.into()), date })
            }
            Err(error) => Err(self.container.refused(&name, &Failure::of(&error))),
        }
    }
}

#[async_trait]
impl StateStore for BlobStore {
    fn grain(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn location(&self, key: &StateKey) -> String {
        self.container.location(&file_name(key))
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.create_container().await.map(|_created| ())
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        self.container.in_time(&self.location(key), self.load_once(key)).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        self.container.in_time(&self.location(key), self.store_once(key, bytes, precondition)).await
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        Ok(self.list_counted().await?.0)
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        let (names, requests) = self.container.list_counted("").await?;
        let mut keys: Vec<_> = names.iter().filter_map(|name| StateKey::parse(name)).collect();
        keys.sort();
        Ok((keys, requests))
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        let file = file_name(key);
        let names = self.apps.list("").await?;
        let app = |name: &String| decode(name.strip_suffix(&file)?.strip_suffix('/')?);
        Ok(Some(names.iter().filter_map(app).filter(|app| *app != self.app).collect()))
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        let store = Self::new(&self.service, self.container.name(), app).ok()?;
        Some(Arc::new(store))
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        let etag = Some(etag.0.clone().into());
        self.container.remove(&file_name(key), etag).await
    }
}

/// Largest document: the blob crate sends up to 4 MiB as one Put Blob, and more in blocks, which would take
/// several requests.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Leases depend on the service's clock.
const NO_DATE: &str = "the answer has no `Date`";

fn too_large(name: &str) -> StoreError {
    let reason = format!("a document is limited to {BYTES_MAX} bytes");
    StoreError::Refused { key: name.to_owned(), reason }
}

fn date(name: &str, headers: &Headers) -> Result<OffsetDateTime, StoreError> {
    crate::date(headers).ok_or_else(|| unknown(name, NO_DATE))
}

/// Returns the size of the complete blob: the read asks for a range, so the length is that of the range.
fn total_bytes(headers: &Headers) -> Option<usize> {
    let range = headers.get_optional_str(&HeaderName::from_static("content-range"))?;
    range.rsplit_once('/')?.1.parse().ok()
}

/// Returns the last part of a blob's name; the same as in [`StateKey::path`] for every ordinary poller.
fn file_name(key: &StateKey) -> String {
    match key {
        StateKey::Document(poller) => format!("{}.json", encode(poller)),
        StateKey::Marker(poller) => format!("{}.marker.json", encode(poller)),
        StateKey::Quarantined { poller, key } => {
            format!("{}.quarantine.{}.json", encode(poller), encode(key.as_str()))
        }
        StateKey::Saved { poller, before } => format!("{}.saved.{before}.json", encode(poller)),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::StorageConnection;

    #[test]
    fn a_document_is_the_blob_state_app_poller_json_of_its_container() {
        let connection = StorageConnection::parse("UseDevelopmentStorage=true").unwrap();
        let options = crate::ServiceOptions {
            timeout: Duration::from_secs(20),
            clock: Arc::new(highwater_engine::clock::SystemClock),
            identity: crate::IdentitySource::DeveloperTools,
        };
        let service = BlobService::connect(&connection, &options).unwrap();
        let store = BlobStore::new(&service, "db-state", "shop").unwrap();
        for (key, path) in [
            (StateKey::Document("orders".to_owned()), "db-state/state/shop/orders.json"),
            (StateKey::Marker("orders".to_owned()), "db-state/state/shop/orders.marker.json"),
        ] {
            let blob = store.container.folder().blob_client(&file_name(&key));
            assert!(blob.url().path().ends_with(&format!("/{path}")), "{}", blob.url().path());
        }
    }

    #[test]
    fn ordinary_names_are_kept_and_odd_ones_do_not_collide() {
        let names = ["orders", "a/b", "../a", "a%2Fb", "ä", "a.marker", "."];
        let files: Vec<_> =
            names.iter().map(|name| file_name(&StateKey::Document((*name).to_owned()))).collect();
        expect![[r"
            orders.json
            a%2Fb.json
            %2E%2E%2Fa.json
            a%252Fb.json
            %C3%A4.json
            a%2Emarker.json
            %2E.json"]]
        .assert_eq(&files.join("\n"));
        let key = StateKey::Marker("orders".to_owned());
        assert_eq!(file_name(&key), key.path());
    }
}
