//! State in Azure Blob Storage: for every deployment with more than one instance.
//!
//! A key is one block blob, read by one Get Blob and written by one conditional Put Blob. Times are
//! the service's: `Date` of each answer and `Last-Modified` of the blob, both in whole seconds.
//! Requests are never repeated here, and a lost answer is reported as lost: see [`crate::azure`].

use std::fmt;
use std::num::NonZero;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::RequestContent;
use azure_core::http::headers::{HeaderName, Headers};
use azure_storage_blob::BlobContainerClient;
use azure_storage_blob::models::{
    BlobClientDownloadOptions, BlobClientDownloadResult, BlobClientUploadOptions,
};
use time::OffsetDateTime;
use tokio::sync::OnceCell;

use super::{ETag, Loaded, Precondition, StateKey, StateStore, StoreError, Stored, Written};
use crate::azure::{self, Answer, BlobService, ConnectError, Failure};

/// Keeps state in a container of a storage account, as `state/{app}/{poller}.json`.
///
/// The container must exist, except on the emulator, where the first request creates it.
pub struct BlobStore {
    container: BlobContainerClient,
    folder: BlobContainerClient,
    container_name: String,
    app: String,
    timeout: Duration,
    creates_container: bool,
    container_created: OnceCell<()>,
}

impl fmt::Debug for BlobStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BlobStore")
            .field("container", &self.container_name)
            .field("app", &self.app)
            .finish_non_exhaustive()
    }
}

impl BlobStore {
    /// Keeps state of the application `app` in `container`; sends nothing yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the name of the container is none.
    pub fn new(service: &BlobService, container: &str, app: &str) -> Result<Self, ConnectError> {
        Ok(Self {
            container: service.folder(&[container])?,
            folder: service.folder(&[container, "state", &encode(app)])?,
            container_name: container.to_owned(),
            app: app.to_owned(),
            timeout: service.timeout(),
            creates_container: service.is_development(),
            container_created: OnceCell::new(),
        })
    }

    /// Creates the container if it does not exist, and returns whether it did not.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn create_container(&self) -> Result<bool, StoreError> {
        let create = async {
            match Box::pin(self.container.create(None)).await {
                Ok(_) => Ok(true),
                Err(error) => {
                    let failure = Failure::of(&error);
                    match failure.answer() {
                        Some(answer) if answer.code == "ContainerAlreadyExists" => Ok(false),
                        Some(_) | None => Err(self.failed(&self.container_name, &failure)),
                    }
                }
            }
        };
        self.in_time(&self.container_name, create).await
    }

    async fn load_once(&self, key: &StateKey) -> Result<Loaded, StoreError> {
        self.create_container_once().await?;
        let name = key.path();
        let options = BlobClientDownloadOptions {
            partition_size: NonZero::new(BYTES_MAX),
            timeout: Some(self.service_timeout()),
            ..BlobClientDownloadOptions::default()
        };
        let blob = self.folder.blob_client(&file_name(key));
        match Box::pin(blob.download(Some(options))).await {
            Ok(found) => self.read(&name, found).await,
            Err(error) => {
                let failure = Failure::of(&error);
                match failure.answer() {
                    Some(answer) if answer.code == "BlobNotFound" => {
                        let date = answer.date.ok_or_else(|| unknown(&name, NO_DATE))?;
                        Ok(Loaded { stored: None, date })
                    }
                    Some(_) | None => Err(self.failed(&name, &failure)),
                }
            }
        }
    }

    async fn read(
        &self,
        name: &str,
        found: BlobClientDownloadResult,
    ) -> Result<Loaded, StoreError> {
        if total_bytes(&found.headers).is_some_and(|bytes| bytes > BYTES_MAX) {
            return Err(too_large(name));
        }
        let date = date(name, &found.headers)?;
        let etag = found.properties.etag.ok_or_else(|| unknown(name, "answer without `ETag`"))?;
        let last_modified = found
            .properties
            .last_modified
            .ok_or_else(|| unknown(name, "answer without `Last-Modified`"))?;
        let bytes = found.body.collect().await;
        let bytes = bytes.map_err(|error| self.failed(name, &Failure::of(&error)))?.to_vec();
        let stored = Stored { bytes, etag: ETag(etag.into()), last_modified };
        Ok(Loaded { stored: Some(stored), date })
    }

    async fn store_once(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<Written, StoreError> {
        let name = key.path();
        if bytes.len() > BYTES_MAX {
            return Err(too_large(&name));
        }
        self.create_container_once().await?;
        let mut options = BlobClientUploadOptions {
            blob_content_type: Some("application/json".to_owned()),
            per_request_timeout: Some(self.service_timeout()),
            ..BlobClientUploadOptions::default()
        };
        match precondition {
            Precondition::Absent => options.if_none_match = Some("*".into()),
            Precondition::Matches(ETag(etag)) => options.if_match = Some(etag.into()),
        }
        let blob = self.folder.blob_client(&file_name(key));
        let content = RequestContent::from(bytes);
        match Box::pin(blob.upload(content, Some(options))).await {
            Ok(written) => {
                let etag = written.etag.ok_or_else(|| unknown(&name, "answer without `ETag`"))?;
                let date = date(&name, written.raw_response.headers())?;
                Ok(Written { etag: ETag(etag.into()), date })
            }
            Err(error) => {
                let failure = Failure::of(&error);
                if failure.answer().is_some_and(is_conflict) {
                    return Err(StoreError::Conflict { key: name });
                }
                Err(self.failed(&name, &failure))
            }
        }
    }

    async fn create_container_once(&self) -> Result<(), StoreError> {
        if !self.creates_container {
            return Ok(());
        }
        let create = async || self.create_container().await.map(|_created| ());
        self.container_created.get_or_try_init(create).await.copied()
    }

    /// Limits the whole of a request: the HTTP client's own limit leaves out asking for a token.
    async fn in_time<T>(
        &self,
        name: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.timeout + GRACE, request).await {
            Ok(result) => result,
            Err(_elapsed) => Err(unknown(name, "timed out")),
        }
    }

    /// Returns after how many seconds the service shall give up by itself: before we do, so that
    /// fewer abandoned writes land late.
    fn service_timeout(&self) -> i32 {
        i32::try_from(self.timeout.as_secs().saturating_sub(1)).unwrap_or(i32::MAX).max(1)
    }

    /// Judges a failure that is no conflict.
    fn failed(&self, name: &str, failure: &Failure) -> StoreError {
        let key = name.to_owned();
        match failure {
            Failure::NotSent(reason) => StoreError::Unreachable { key, reason: reason.clone() },
            Failure::NoAnswer(reason) => StoreError::Unknown { key, reason: reason.clone() },
            Failure::Answered(answer) => {
                let container = &self.container_name;
                match remedy(answer, container) {
                    Some(remedy) => {
                        let reason = format!("{}: {remedy}", answer.text);
                        StoreError::Refused { key, reason }
                    }
                    None => StoreError::Unknown { key, reason: answer.text.clone() },
                }
            }
        }
    }
}

#[async_trait]
impl StateStore for BlobStore {
    fn grain(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn load(&self, key: &StateKey) -> Result<Loaded, StoreError> {
        self.in_time(&key.path(), self.load_once(key)).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<Written, StoreError> {
        self.in_time(&key.path(), self.store_once(key, bytes, precondition)).await
    }
}

/// Largest document: the blob crate sends up to 4 MiB as one Put Blob and more in blocks, which
/// would be several requests.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// How much longer than one HTTP request a whole operation may take.
const GRACE: Duration = Duration::from_millis(500);

/// Returns whether the answer proves that the precondition did not hold.
///
/// `BlobNotFound` does too: what was to be replaced is gone. The codes of the service's own leases
/// have the same status and mean something else.
fn is_conflict(answer: &Answer) -> bool {
    match answer.status {
        404 => answer.code == "BlobNotFound",
        409 => answer.code == "BlobAlreadyExists",
        412 => !answer.code.starts_with("Lease"),
        _ => false,
    }
}

/// Returns what to do about an answer that repetition will not mend; `None` if it may.
fn remedy(answer: &Answer, container: &str) -> Option<String> {
    let code = answer.code.as_str();
    let role = || {
        format!(
            "the identity needs the role `Storage Blob Data Contributor` on the container \
             `{container}`"
        )
    };
    let remedy = match (answer.status, code) {
        (_, "ContainerNotFound") => {
            format!("create the container `{container}` in the storage account")
        }
        (409, "ContainerBeingDeleted") => {
            format!("the container `{container}` is being deleted; use another, or wait")
        }
        (_, "KeyBasedAuthenticationNotPermitted") => {
            format!("the account takes no keys; connect with an identity: {}", role())
        }
        (_, "AuthenticationFailed") => format!(
            "check the account key, when the signature ends and this machine's clock; {}",
            role()
        ),
        (_, "AuthorizationFailure") => {
            format!("the account's firewall may not let this address in; {}", role())
        }
        (401 | 403, _) => format!("a signature needs the rights `rwc`; {}", role()),
        (409 | 412, _) if code.starts_with("Lease") => {
            "somebody holds a native lease on the blob; break it, this program uses none".to_owned()
        }
        (409, _) if code.contains("Immut") => {
            format!("the container `{container}` has an immutability policy; use another")
        }
        (400, "InvalidHeaderValue") => "an emulator must be Azurite 3.37 or newer".to_owned(),
        // A document that changed while it was read; the next read sees it whole.
        (408 | 412 | 429, _) => return None,
        (status, _) if status >= 500 => return None,
        (_, _) => "check the storage address and the container's name".to_owned(),
    };
    Some(remedy)
}

/// Without the service's clock no lease can be judged.
const NO_DATE: &str = "answer without `Date`";

fn unknown(name: &str, reason: &str) -> StoreError {
    StoreError::Unknown { key: name.to_owned(), reason: reason.to_owned() }
}

fn too_large(name: &str) -> StoreError {
    let reason = format!("a document may have at most {BYTES_MAX} bytes");
    StoreError::Refused { key: name.to_owned(), reason }
}

fn date(name: &str, headers: &Headers) -> Result<OffsetDateTime, StoreError> {
    azure::date(headers).ok_or_else(|| unknown(name, NO_DATE))
}

/// Returns the size of the whole blob: the read asks for a range, so the length is the range's.
fn total_bytes(headers: &Headers) -> Option<usize> {
    let range = headers.get_optional_str(&HeaderName::from_static("content-range"))?;
    range.rsplit_once('/')?.1.parse().ok()
}

/// Returns the last part of a blob's name; that of [`StateKey::path`] for every ordinary poller.
fn file_name(key: &StateKey) -> String {
    match key {
        StateKey::Document(poller) => format!("{}.json", encode(poller)),
        StateKey::Marker(poller) => format!("{}.marker.json", encode(poller)),
        StateKey::Quarantined { poller, event } => {
            format!("{}.quarantine.{}.json", encode(poller), encode(event.as_str()))
        }
    }
}

/// Replaces what could mean a folder or another ending, so that no two names meet.
fn encode(name: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn ordinary_names_are_kept_and_odd_ones_stay_apart() {
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

    const ANSWERS: [(u16, &str); 21] = [
        (304, ""),
        (400, "InvalidHeaderValue"),
        (400, "InvalidUri"),
        (401, "InvalidAuthenticationInfo"),
        (403, "AuthenticationFailed"),
        (403, "AuthorizationPermissionMismatch"),
        (403, "AuthorizationFailure"),
        (403, "KeyBasedAuthenticationNotPermitted"),
        (404, "BlobNotFound"),
        (404, "ContainerNotFound"),
        (404, ""),
        (408, ""),
        (409, "BlobAlreadyExists"),
        (409, "BlobImmutableDueToPolicy"),
        (409, "ContainerBeingDeleted"),
        (412, "ConditionNotMet"),
        (412, ""),
        (412, "LeaseIdMissing"),
        (429, ""),
        (500, "OperationTimedOut"),
        (503, "ServerBusy"),
    ];

    #[test]
    fn answers_to_a_write_are_judged_by_code() {
        let judged = ANSWERS.map(|(status, code)| {
            let answer = Answer { status, code: code.to_owned(), date: None, text: String::new() };
            let judgement = match remedy(&answer, "db-state") {
                _ if is_conflict(&answer) => "conflict".to_owned(),
                Some(remedy) => format!("refused: {remedy}"),
                None => "unknown".to_owned(),
            };
            format!("{status} {code}\n  {judgement}\n")
        });
        expect![[r"
            304 
              refused: check the storage address and the container's name
            400 InvalidHeaderValue
              refused: an emulator must be Azurite 3.37 or newer
            400 InvalidUri
              refused: check the storage address and the container's name
            401 InvalidAuthenticationInfo
              refused: a signature needs the rights `rwc`; the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
            403 AuthenticationFailed
              refused: check the account key, when the signature ends and this machine's clock; the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
            403 AuthorizationPermissionMismatch
              refused: a signature needs the rights `rwc`; the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
            403 AuthorizationFailure
              refused: the account's firewall may not let this address in; the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
            403 KeyBasedAuthenticationNotPermitted
              refused: the account takes no keys; connect with an identity: the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
            404 BlobNotFound
              conflict
            404 ContainerNotFound
              refused: create the container `db-state` in the storage account
            404 
              refused: check the storage address and the container's name
            408 
              unknown
            409 BlobAlreadyExists
              conflict
            409 BlobImmutableDueToPolicy
              refused: the container `db-state` has an immutability policy; use another
            409 ContainerBeingDeleted
              refused: the container `db-state` is being deleted; use another, or wait
            412 ConditionNotMet
              conflict
            412 
              conflict
            412 LeaseIdMissing
              refused: somebody holds a native lease on the blob; break it, this program uses none
            429 
              unknown
            500 OperationTimedOut
              unknown
            503 ServerBusy
              unknown
        "]].assert_eq(&judged.concat());
    }
}
