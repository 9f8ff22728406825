//! Operations of operators and commands on a poller.
//!
//! Everything here is started by an operator, never by a tick: pause, reset, restore a document, redeliver. Dangerous
//! operations are planned first, and then done under the version for which they were planned.

mod clone;
mod history;
mod init;
mod pause;
mod peek;
mod quarantine_entries;
mod range;
mod redrive;
mod repartition;
mod reset;
mod restore;

pub use self::clone::CloneError;
pub use self::history::{CompactResult, HistoryCheck};
pub use self::init::InitResult;
pub use self::pause::{PauseOutcome, ResumeOutcome};
pub use self::peek::{HeldBackRows, Peek};
pub use self::quarantine_entries::StoredEntry;
pub use self::range::{RangeEnd, RangeSize, RangeStart};
pub use self::redrive::{Redrive, RedriveEnd, RedriveError, RedriveOutcome};
pub use self::repartition::SeedError;
pub use self::reset::{ResetError, ResetImpact, ResetPlan, ResetTo, RowCount};
pub use self::restore::{PresentState, RestoreError, RestoredDocument};
pub use crate::poller::Operator;
use crate::poller::Poller;

/// The operations on one poller.
#[derive(Clone, Copy, Debug)]
pub struct Admin<'p> {
    poller: &'p Poller,
}

impl Poller {
    /// Returns the operations of operators on the poller.
    pub fn admin(&self) -> Admin<'_> {
        Admin { poller: self }
    }
}
