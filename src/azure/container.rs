//! A container of a storage account, and what its answers mean for a store: the shared half of all
//! that is kept in one.

use std::time::Duration;

use azure_core::http::Etag;
use azure_storage_blob::BlobContainerClient;
use azure_storage_blob::models::{BlobClientDeleteOptions, BlobContainerClientListBlobsOptions};
use futures_util::TryStreamExt as _;
use highwater_engine::store::StoreError;
use tokio::sync::OnceCell;

use crate::{Answer, BlobService, ConnectError, Failure};

/// A container, which must exist, except on the emulator, where the first request creates it.
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
    /// Returns the container `name`, of which `path` is used; sends nothing yet.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the name of the container is none.
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

    /// Returns the folder that is used of it.
    pub(crate) fn folder(&self) -> &BlobContainerClient {
        &self.folder
    }

    /// Returns where `name` is kept in the folder: host or account, container and path. A signature in the
    /// address stays out.
    pub(crate) fn location(&self, name: &str) -> String {
        format!("{}/{name}", location(&self.folder))
    }

    /// Creates the container if it does not exist, and returns whether it did not.
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

    /// Returns the names below the folder that begin with `prefix`, without the folder.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        Ok(self.list_counted(prefix).await?.0)
    }

    /// Returns the same, and how many requests it took: the service answers with at most 5,000 names.
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

    /// Removes the blob `file`, where its version is `etag` if one is given.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; `Conflict` also where there is none.
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

    /// Limits the whole of a request: the HTTP client's own limit leaves out asking for a token.
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

    /// Returns after how many seconds the service shall give up by itself: before we do, so that
    /// fewer abandoned writes land late.
    pub(crate) fn service_timeout(&self) -> i32 {
        i32::try_from(self.timeout.as_secs().saturating_sub(1)).unwrap_or(i32::MAX).max(1)
    }

    /// Judges a write that did not happen, or may not have.
    pub(crate) fn refused(&self, key: &str, failure: &Failure) -> StoreError {
        if failure.answer().is_some_and(is_conflict) {
            return StoreError::Conflict { key: key.to_owned() };
        }
        self.failed(key, failure)
    }

    /// Judges a failure that is no conflict.
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

/// How much longer than one HTTP request a whole operation may take.
const GRACE: Duration = Duration::from_millis(500);

/// Returns the address of a container or a folder, without scheme and signature.
fn location(client: &BlobContainerClient) -> String {
    let url = client.url();
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{host}{port}{}", url.path().trim_end_matches('/'))
}

/// Returns whether the answer proves that the precondition did not hold.
///
/// `BlobNotFound` does too: what was to be replaced is gone. The codes of the service's own leases
/// have the same status and mean something else.
pub(crate) fn is_conflict(answer: &Answer) -> bool {
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
        (401, "InvalidAuthenticationInfo") => format!(
            "the token is of another tenant or service, or has expired: check which identity is \
             used, and this machine's clock; {}",
            role()
        ),
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

pub(crate) fn unknown(name: &str, reason: &str) -> StoreError {
    StoreError::Unknown { key: name.to_owned(), reason: reason.to_owned() }
}

/// Replaces what could mean a folder or another ending, so that no two names meet.
pub(crate) fn encode(name: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(encoded).collect()
}

/// Reads a name as [`encode`] writes it; `None` for one that it never writes.
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
    fn names_are_read_as_they_were_written() {
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
              refused: the token is of another tenant or service, or has expired: check which identity is used, and this machine's clock; the identity needs the role `Storage Blob Data Contributor` on the container `db-state`
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
