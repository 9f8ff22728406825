//! A container of a storage account, and the meaning of its answers: shared by all stores that use one.

use std::time::Duration;

use azure_core::http::Etag;
use azure_storage_blob::BlobContainerClient;
use azure_storage_blob::models::{BlobClientDeleteOptions, BlobContainerClientListBlobsOptions};
use futures_util::TryStreamExt as _;
use highwater_engine::store::StoreError;
use tokio::sync::OnceCell;

use crate::{Answer, BlobService, ConnectError, Failure};

/// A container. It must exist, except on the emulator, where the first request creates it.
pub(crate) struct Container {
    client: BlobContainerClient,
    folder: BlobContainerClient,
    name: String,
    folder_name: String,
    timeout: Duration,
    creates: bool,
    created: OnceCell<()>,
}

impl Container {
    /// Returns the folder `path` of the container `name`; sends nothing yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the container name is invalid.
    pub(crate) fn new(
        service: &BlobService,
        name: &str,
        path: &[&str],
    ) -> Result<Self, ConnectError> {
        let all: Vec<&str> = [name].iter().chain(path).copied().collect();
        Ok(Self {
            client: service.folder(&[name])?,
            folder: service.folder(&all)?,
            name: name.to_owned(),
            folder_name: format!("{}/", path.join("/")),
            timeout: service.timeout(),
            creates: service.is_development(),
            created: OnceCell::new(),
        })
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the folder in use.
    pub(crate) fn folder(&self) -> &BlobContainerClient {
        &self.folder
    }

    /// Returns the location of `name` in the folder: host or account, container and path, without any
    /// signature.
    pub(crate) fn location(&self, name: &str) -> String {
        format!("{}/{name}", location(&self.folder))
    }

    /// Creates the container if it does not exist; returns whether it was created.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub(crate) async fn create(&self) -> Result<bool, StoreError> {
        let place = location(&self.client);
        let create = async {
            match Box::pin(self.client.create(None)).await {
                Ok(_) => Ok(true),
                Err(error) => {
                    let failure = Failure::of(&error);
                    match failure.answer() {
                        Some(answer) if answer.code == "ContainerAlreadyExists" => Ok(false),
                        Some(_) | None => Err(self.failed(&place, &failure)),
                    }
                }
            }
        };
        self.in_time(&place, create).await
    }

    pub(crate) async fn create_once(&self) -> Result<(), StoreError> {
        if !self.creates {
            return Ok(());
        }
        let create = async || self.create().await.map(|_created| ());
        self.created.get_or_try_init(create).await.copied()
    }

    /// Returns the names below the folder that start with `prefix`, without the folder.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        Ok(self.list_counted(prefix).await?.0)
    }

    /// Returns the same, and the number of requests: the service returns at most 5,000 names at once.
    pub(crate) async fn list_counted(
        &self,
        prefix: &str,
    ) -> Result<(Vec<String>, u64), StoreError> {
        self.create_once().await?;
        let folder = &self.folder_name;
        let options = BlobContainerClientListBlobsOptions {
            prefix: Some(format!("{folder}{prefix}")),
            timeout: Some(self.service_timeout()),
            ..BlobContainerClientListBlobsOptions::default()
        };
        let place = location(&self.folder);
        let failed = |error: azure_core::Error| self.failed(&place, &Failure::of(&error));
        let mut pages = self.client.list_blobs(Some(options)).map_err(failed)?.into_pages();
        let (mut names, mut requests) = (Vec::new(), 0);
        loop {
            let next = async { pages.try_next().await.map_err(failed) };
            let Some(page) = self.in_time(&place, next).await? else { break };
            requests += 1;
            for blob in page.into_model().map_err(failed)?.blob_items {
                let name = blob.name.unwrap_or_default();
                names.extend(name.strip_prefix(folder.as_str()).map(str::to_owned));
            }
        }
        Ok((names, requests))
    }

    /// Deletes the blob `file`, on condition that its version is `etag` if that is given.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; `Conflict` also if the blob does not exist.
    pub(crate) async fn remove(&self, file: &str, etag: Option<Etag>) -> Result<(), StoreError> {
        self.create_once().await?;
        let options = BlobClientDeleteOptions {
            if_match: etag,
            timeout: Some(self.service_timeout()),
            ..BlobClientDeleteOptions::default()
        };
        let (blob, place) = (self.folder.blob_client(file), self.location(file));
        let remove = async {
            match Box::pin(blob.delete(Some(options))).await {
                Ok(_) => Ok(()),
                Err(error) => Err(self.refused(&place, &Failure::of(&error))),
            }
        };
        self.in_time(&place, remove).await
    }

    /// Limits the complete request: the HTTP client's own limit does not cover token requests.
    pub(crate) async fn in_time<T>(
        &self,
        name: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.timeout + GRACE, request).await {
            Ok(result) => result,
            Err(_elapsed) => Err(unknown(name, "timed out")),
        }
    }

    /// Returns the timeout in seconds for the service itself. It is shorter than ours, so that fewer
    /// abandoned writes land late.
    pub(crate) fn service_timeout(&self) -> i32 {
        i32::try_from(self.timeout.as_secs().saturating_sub(1)).unwrap_or(i32::MAX).max(1)
    }

    /// Classifies a write that did not happen, or may not have happened.
    pub(crate) fn refused(&self, key: &str, failure: &Failure) -> StoreError {
        if failure.answer().is_some_and(is_conflict) {
            return StoreError::Conflict { key: key.to_owned() };
        }
        self.failed(key, failure)
    }

    /// Classifies a failure that is not a conflict.
    pub(crate) fn failed(&self, name: &str, failure: &Failure) -> StoreError {
        let key = name.to_owned();
        match failure {
            Failure::NotSent(reason) => StoreError::Unreachable { key, reason: reason.clone() },
            Failure::NoAnswer(reason) => StoreError::Unknown { key, reason: reason.clone() },
            Failure::Answered(answer) => {
                let container = &self.name;
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

/// How much longer than one HTTP request a complete operation may take.
const GRACE: Duration = Duration::from_millis(500);

/// Returns the address of a container or a folder, without scheme and signature.
fn location(client: &BlobContainerClient) -> String {
    let url = client.url();
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{host}{port}{}", url.path().trim_end_matches('/'))
}

/// Returns whether the answer proves that the precondition failed.
///
/// `BlobNotFound` does too: the blob to replace is gone. The codes of the service's native leases have the
/// same status but another meaning.
pub(crate) fn is_conflict(answer: &Answer) -> bool {
    match answer.status {
        404 => answer.code == "BlobNotFound",
        409 => answer.code == "BlobAlreadyExists",
        412 => !answer.code.starts_with("Lease"),
        _ => false,
    }
}

/// Returns the fix for an answer that a retry will not change; `None` if a retry may help.
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
            format!("the account does not accept keys; connect with an identity: {}", role())
        }
        (_, "AuthenticationFailed") => format!(
            "check the account key, the signature's expiry and this machine's clock; {}",
            role()
        ),
        (_, "AuthorizationFailure") => {
            format!("the account's firewall may block this address; {}", role())
        }
        (401, "InvalidAuthenticationInfo") => format!(
            "the token belongs to another tenant or service, or has expired: check which identity is \
             used, and this machine's clock; {}",
            role()
        ),
        (401 | 403, _) => format!("a signature needs the permissions `rwc`; {}", role()),
        (409 | 412, _) if code.starts_with("Lease") => {
            "another client holds a native lease on the blob; break it (this program uses none)"
                .to_owned()
        }
        (409, _) if code.contains("Immut") => {
            format!("the container `{container}` has an immutability policy; use another")
        }
        (400, "InvalidHeaderValue") => "the emulator must be Azurite 3.37 or newer".to_owned(),
        // A document that changed while it was read; the next read returns it complete.
        (408 | 412 | 429, _) => return None,
        (status, _) if status >= 500 => return None,
        (_, _) => "check the storage address and the container's name".to_owned(),
    };
    Some(remedy)
}

pub(crate) fn unknown(name: &str, reason: &str) -> StoreError {
    StoreError::Unknown { key: name.to_owned(), reason: reason.to_owned() }
}

/// Escapes characters that could mean a folder or an extension, so that no two names collide.
pub(crate) fn encode(name: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(encoded).collect()
}

/// Decodes a name from [`encode`]; `None` if it cannot come from there.
pub(crate) fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut parts = encoded.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(part.get(2..)?.bytes());
    }
    String::from_utf8(bytes).ok().filter(|name| encode(name) == encoded)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn names_are_decoded_as_they_were_encoded() {
        for name in ["shop", "shop.eu", "a/b", "ä%2F", ""] {
            assert_eq!(decode(&encode(name)).as_deref(), Some(name));
        }
        for foreign in ["a b", "%2", "%zz", "a/b", "%C3"] {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
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
    fn answers_to_a_write_are_classified_by_code() {
        let outcomes = ANSWERS.map(|(status, code)| {
            let answer = Answer { status, code: code.to_owned(), date: None, text: String::new() };
            let outcome = match remedy(&answer, "db-state") {
                _ if is_conflict(&answer) => "conflict".to_owned(),
                Some(remedy) => format!("refused: {remedy}"),
                None => "unknown".to_owned(),
            };
            format!("{status} {code}\n  {outcome}\n")
        });
        expect![[r"
            304 
              refused: check the storage address and the container's name
            400 InvalidHeaderValue
              refused: the emulator must be Azurite 3.37 or newer
            400 InvalidUri
              refused: check the storage address and the container's name
            401 InvalidAuthenticationInfo
              refused: the token belongs to another tenant or service, or has expired: check which identity is used, and this machine's clock; the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
            403 AuthenticationFailed
              refused: check the account key, the signature's expiry and this machine's clock; the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
            403 AuthorizationPermissionMismatch
              refused: a signature needs the permissions `rwc`; the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
            403 AuthorizationFailure
              refused: the account's firewall may block this address; the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
            403 KeyBasedAuthenticationNotPermitted
              refused: the account does not accept keys; connect with an identity: the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
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
              refused: another client holds a native lease on the blob; break it (this program uses none)
            429 
              unknown
            500 OperationTimedOut
              unknown
            503 ServerBusy
              unknown
        "]].assert_eq(&outcomes.concat());
    }
}
