//! The port: compare-and-swap of bytes under a key.

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
use crate::event::EventId;
use crate::grant::Generation;

/// Opaque version of what is stored; it changes with every write, also of equal content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ETag(pub String);

/// What is read or written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateKey {
    /// The state document of a poller, or of a range that is redelivered alongside it.
    Document(String),
    /// The marker of a poller, which outlives its document.
    Marker(String),
    /// A row that a handler will not take.
    Quarantined {
        /// The poller.
        poller: String,
        /// Id of the row's event.
        event: EventId,
    },
    /// What stood in a document's place before another was put there.
    Saved {
        /// The poller.
        poller: String,
        /// Generation of the document that took its place; where that kept the one it had, a number above it.
        before: Generation,
    },
}

impl StateKey {
    /// Returns the key of a path as [`Self::path`] gives it; `None` for a foreign name.
    pub fn parse(path: &str) -> Option<Self> {
        let name = path.strip_suffix(".json")?;
        if let Some((poller, event)) = name.split_once(".quarantine.") {
            let event = EventId::parse(event)?;
            return Some(Self::Quarantined { poller: poller.to_owned(), event });
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
            Self::Quarantined { poller, event } => format!("{poller}.quarantine.{event}.json"),
            Self::Saved { poller, before } => format!("{poller}.saved.{before}.json"),
        }
    }
}

/// Whether a document can have the name: a poller's, or `poller.replay.id`, `poller.backfill.id` and
/// `poller.backfill.id.window`, which are those of ranges that are redelivered alongside it.
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

/// Bytes together with the version they were read at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The content.
    pub bytes: Vec<u8>,
    /// Its version.
    pub etag: ETag,
    /// When it was written, by the service's clock.
    pub last_modified: OffsetDateTime,
}

/// The answer to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// What was found; `None` where nothing is stored under the key.
    pub stored: Option<Stored>,
    /// The service's clock when it answered.
    pub date: OffsetDateTime,
}

/// The answer to a write that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The new version.
    pub etag: ETag,
    /// The service's clock when it answered.
    pub date: OffsetDateTime,
}

/// What must hold for a write to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing is stored under the key yet.
    Absent,
    /// What is stored still has this version.
    Matches(ETag),
}

/// Why a store did not do what was asked.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The precondition did not hold when the request was judged.
    ///
    /// Definite for this request only: an earlier try of the same write may have landed, so read
    /// again before deciding anything.
    #[error("`{key}` was changed by another writer")]
    Conflict {
        /// What was to be written.
        key: String,
    },
    /// The request never reached the service; nothing was written.
    #[error("`{key}`: state store cannot be reached: {reason}")]
    Unreachable {
        /// What was asked for.
        key: String,
        /// Why, without secrets.
        reason: String,
    },
    /// No usable answer: a write may or may not have happened, or may still happen.
    #[error("`{key}`: no answer from the state store: {reason}")]
    Unknown {
        /// What was asked for.
        key: String,
        /// Why, without secrets.
        reason: String,
    },
    /// The store rejects the request, and a retry will not help.
    #[error("`{key}`: state store refuses: {reason}")]
    Refused {
        /// What was asked for.
        key: String,
        /// Why, and what to do, without secrets.
        reason: String,
    },
}

/// Keeps bytes under keys, changed only by compare-and-swap.
///
/// # Contract
///
/// A write happens at once or not at all, and only if its precondition holds at that moment. Every
/// write yields a new [`ETag`]. A read that begins after a write was answered sees it. Damaged
/// content is returned as it is: judging it is the reader's part. Neither method retries: the lease
/// knows what a repetition means, the store does not. Dropping a future leaves its outcome unknown.
/// The suite in `store::conformance` is this contract as tests.
///
/// No method has a body here, so that a store which passes calls on to another cannot forget one.
#[async_trait]
pub trait StateStore: fmt::Debug + Send + Sync {
    /// Granularity of the service's clock: the most by which two of its times may be too close.
    fn grain(&self) -> Duration;

    /// Returns where `key` is kept, for errors: with the account and the container, where there are such.
    fn location(&self, key: &StateKey) -> String;

    /// Makes the place that the store keeps things in, where it lacks one that it can make: for an
    /// explicit first start, never for a tick.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn prepare(&self) -> Result<(), StoreError>;

    /// Returns the store for a command that puts a document there on purpose: a place that is missing holds nothing, and
    /// the first write makes it. `None` from a store whose place no command can make.
    fn making_place(&self) -> Option<Arc<dyn StateStore>> {
        None
    }

    /// Reads what is stored under `key`.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn load(&self, key: &StateKey) -> Result<Loaded, StoreError>;

    /// Writes `bytes` under `key` if `precondition` holds.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; only `Conflict`, `Unreachable` and `Refused` prove that this request wrote
    /// nothing.
    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<Written, StoreError>;

    /// Returns the keys of the application, sorted; names that are none of a key's are left out.
    ///
    /// For operators, never for a tick: it costs a request per 5,000 keys, or a scan.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn list(&self) -> Result<Vec<StateKey>, StoreError>;

    /// Returns the same, and how many requests it took.
    ///
    /// # Errors
    ///
    /// As [`Self::list`].
    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError>;

    /// Returns the other applications that keep something under `key` in the same place; `None` from a store
    /// that does not know.
    ///
    /// For a poller's first start: it costs a request per 5,000 keys of all applications, or a scan.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError>;

    /// Returns the store of another application in the same place; `None` from one that knows a single one.
    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>>;

    /// Removes what is stored under `key` if it still has the version `etag`.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; `Conflict` also where nothing is stored any more.
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
