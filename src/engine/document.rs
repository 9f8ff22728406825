//! The state document: one JSON object that holds a poller's checkpoint and its lease.
//!
//! The document decides, and the store only swaps bytes. Who may write what is a pure function from one document to
//! the next (`document/transitions.rs`). A [`StateStore`](crate::store::StateStore) replaces the bytes if the given
//! version is still current. Checkpoint and lease share one object so that one compare-and-swap covers both. With two
//! objects, there would be a gap between checking one and writing the other.
//!
//! Nothing here reads a clock. Times are arguments, and come from the storage service, so that two instances with
//! wrong clocks still agree on when a lease has expired.
//!
//! [`DocumentStore`] loads, creates and changes a document where it is stored.

mod audit;
mod document_store;
mod fence;
mod format;
mod lease_record;
mod parked;
mod partition;
mod position_loss;
mod range;
mod snapshot;
mod state_document;
mod step_results;
mod transitions;

pub use self::audit::{Audit, AuditStep, ClosedWindow, IdSum, WINDOW_ROWS_MAX, WINDOWS_MAX};
pub use self::document_store::{DocumentStore, LoadError};
pub use self::fence::{Fence, StaleWrite};
pub use self::format::{
    FormatError, Marker, VERSION, decode, decode_marker, encode, encode_marker,
};
pub use self::lease_record::{LeaseRecord, ReleasedGrants};
pub use self::parked::{AnnouncedEntry, EntryCounts, ParkedKeys};
pub use self::partition::{NoCommonBound, RepartitionRecord, common_bound, seed_position};
pub(crate) use self::position_loss::without_loss;
pub use self::range::RangeRecord;
pub use self::snapshot::Snapshot;
pub use self::state_document::{
    ACTIVITY_PERIOD, ACTIVITY_PERIODS, Activity, BacklogObservation, Checkpoint,
    CheckpointMetadata, FailureRecord, FirstLoad, Histogram, InFlight, LastFailure, OnMissingState,
    Paused, PositionTime, RECENT_MAX, RecentTick, StateDocument,
};
pub use self::step_results::{STEP_TAKEN, StepResult};
pub use self::transitions::{
    Acquire, AfterCommit, Commit, DocumentAge, EndOfTick, Failure, LeaseState, Refusal, TOKEN_MAX,
};
pub use crate::grant::{FencingToken, Generation, Holder};
