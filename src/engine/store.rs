//! The port for state stores: compare-and-swap of bytes under a key.

#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
mod date_check;
mod logged;
mod memory;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;
use time::OffsetDateTime;

pub use self::date_check::DateCheckedStore;
pub use self::logged::LoggedStore;
pub use self::memory::MemoryStore;
use crate::cursor::KeyId;
use crate::grant::Generation;

/// Opaque version of a stored value. It changes with every write, even of equal content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ETag(pub String);

/// Key of a stored value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateKey {
    /// The state document of a poller, or of a range that is redelivered alongside it.
    Document(String),
    /// The marker of a poller, which outlives its document.
    Marker(String),
    /// A key whose row a handler does not accept.
    Quarantined {
        /// The poller.
        poller: String,
        /// Id of the key.
        key: KeyId,
    },
    /// A document that was saved before another replaced it.
    Saved {
        /// The poller.
        poller: String,
        /// Generation of the document that replaced it. If that kept its generation, a higher number.
        before: Generation,
    },
}

impl StateKey {
    /// Parses a path as written by [`Self::path`]; `None` for a foreign name.
    pub fn parse(path: &str) -> Option<Self> {
        let name = path.strip_suffix(".json")?;
        if let Some((poller, key)) = name.split_once(".quarantine.") {
            let key = KeyId::parse(key)?;
            return Some(Self::Quarantined { poller: poller.to_owned(), key });
        }
        if let Some((poller, before)) = name.split_once(".saved.") {
            let before = Generation(before.parse().ok()?);
            let key = Self::Saved { poller: poller.to_owned(), before };
            return (key.path() == path).then_some(key);
        }
        let (poller, is_marker) = match name.strip_suffix(".marker") {
            Some(poller) => (poller, true),
            None => (name, false),
        };
        let poller = is_name(poller).then(|| poller.to_owned())?;
        Some(if is_marker { Self::Marker(poller) } else { Self::Document(poller) })
    }

    /// Returns the poller's name.
    pub fn poller(&self) -> &str {
        match self {
            Self::Document(poller)
            | Self::Marker(poller)
            | Self::Quarantined { poller, .. }
            | Self::Saved { poller, .. } => poller,
        }
    }

    /// Returns the path below the application's folder, such as `orders.json`.
    pub fn path(&self) -> String {
        match self {
            Self::Document(poller) => format!("{poller}.json"),
            Self::Marker(poller) => format!("{poller}.marker.json"),
            Self::Quarantined { poller, key } => format!("{poller}.quarantine.{key}.json"),
            Self::Saved { poller, before } => format!("{poller}.saved.{before}.json"),
        }
    }
}

/// Whether a document can have this name: that of a poller, or of a range redelivered alongside it, which is
/// `poller.replay.id`, `poller.backfill.id` or `poller.backfill.id.window`.
fn is_name(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let fits = match parts.as_slice() {
        [_] | [_, "replay" | "backfill", _] => true,
        [_, "backfill", _, window] => window.bytes().all(|byte| byte.is_ascii_digit()),
        _ => false,
    };
    fits && parts.iter().all(|part| !part.is_empty())
}

impl fmt::Display for StateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.path())
    }
}

/// A stored value, with the version at which it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The content.
    pub bytes: Vec<u8>,
    /// Its version.
    pub etag: ETag,
    /// When it was written, by the service's clock.
    pub last_modified: OffsetDateTime,
}

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResult {
    /// The value; `None` if nothing is stored under the key.
    pub stored: Option<StoredValue>,
    /// The service's clock at the time of the answer.
    pub date: OffsetDateTime,
}

/// The result of a successful write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteResult {
    /// The new version.
    pub etag: ETag,
    /// The service's clock at the time of the answer.
    pub date: OffsetDateTime,
}

/// The precondition of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing is stored under the key yet.
    Absent,
    /// The stored value still has this version.
    Matches(ETag),
}

/// Why a store request failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The precondition did not hold when the request was evaluated.
    ///
    /// Final for this request only: an earlier attempt of the same write may have succeeded, so read again
    /// before deciding anything.
    #[error("`{key}` was changed by another writer")]
    Conflict {
        /// The key.
        key: String,
    },
    /// The request did not reach the service; nothing was written.
    #[error("`{key}`: cannot reach the state store: {reason}")]
    Unreachable {
        /// The key.
        key: String,
        /// Why, without secrets.
        reason: String,
    },
    /// The outcome is unknown: a write may have happened, or may still happen.
    #[error("`{key}`: no response from the state store: {reason}")]
    Unknown {
        /// The key.
        key: String,
        /// Why, without secrets.
        reason: String,
    },
    /// The store rejects the request, and a retry will not help.
    #[error("`{key}`: the state store rejected the request: {reason}")]
    Refused {
        /// The key.
        key: String,
        /// Why, and what to do, without secrets.
        reason: String,
    },
}

impl StoreError {
    /// Whether the service gave no usable reply, so that the same request may succeed later.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Unknown { .. } => true,
            Self::Conflict { .. } | Self::Refused { .. } => false,
        }
    }
}

/// Stores bytes under keys, changed only by compare-and-swap.
///
/// # Contract
///
/// A write is atomic, and happens only if its precondition holds at that moment. Every write yields a new
/// [`ETag`]. A read that starts after a write was answered sees that write. Damaged content is returned
/// unchanged: the reader judges it. No method retries: the lease knows what a repeated write means, the
/// store does not. Dropping a future leaves its outcome unknown. The suite in `store::conformance` tests
/// this contract.
///
/// No method has a default body, so that a store that wraps another cannot forget one.
#[async_trait]
pub trait StateStore: fmt::Debug + Send + Sync {
    /// Granularity of the service's clock: two of its times may be too close by at most this much.
    fn grain(&self) -> Duration;

    /// Returns where `key` is stored, for errors; includes the account and container if there are any.
    fn location(&self, key: &StateKey) -> String;

    /// Creates the container, directory or similar if it is missing and the store can create it. Used by an explicit
    /// first start, never by a tick.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn prepare(&self) -> Result<(), StoreError>;

    /// Returns the store for a command that writes a document on purpose: a missing container reads as empty, and the
    /// first write creates it. `None` if no command can create the container.
    fn making_place(&self) -> Option<Arc<dyn StateStore>> {
        None
    }

    /// Reads the value under `key`.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError>;

    /// Writes `bytes` under `key` if `precondition` holds.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; only `Conflict`, `Unreachable` and `Refused` prove that this request wrote nothing.
    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError>;

    /// Returns the keys of the application, sorted; foreign names are left out.
    ///
    /// For operators, never for a tick: it costs one request per 5,000 keys, or a scan.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn list(&self) -> Result<Vec<StateKey>, StoreError>;

    /// Like [`Self::list`]; also returns the number of requests.
    ///
    /// # Errors
    ///
    /// As [`Self::list`].
    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError>;

    /// Returns the other applications that store something under `key` in the same place; `None` if the store does
    /// not know.
    ///
    /// For a poller's first start: it costs one request per 5,000 keys of all applications, or a scan.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError>;

    /// Returns the store of another application in the same place; `None` if the store knows only one application.
    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>>;

    /// Removes the value under `key` if it still has the version `etag`.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; `Conflict` also if nothing is stored any more.
    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_back_as_the_key_that_has_it() {
        let poller = || "orders".to_owned();
        for key in [
            StateKey::Document(poller()),
            StateKey::Marker(poller()),
            StateKey::Saved { poller: poller(), before: Generation(1_775_525_026_020) },
        ] {
            assert_eq!(StateKey::parse(&key.path()), Some(key));
        }
        for foreign in
            ["orders.saved.json", "orders.saved.x.json", "orders.saved.07.json", "a.b.json"]
        {
            assert_eq!(StateKey::parse(foreign), None, "{foreign}");
        }
    }
}
