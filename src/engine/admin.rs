//! What operators and commands do to a poller.
//!
//! Everything here is done by hand, and nothing of it by a tick: pausing, resetting, putting another document in place,
//! delivering again. What is dangerous is planned first, and then done under the version that was planned for.

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
pub use self::history::{Compacting, HistoryCheck};
pub use self::init::Init;
pub use self::pause::{PauseOutcome, ResumeOutcome};
pub use self::peek::{HeldBack, Peek};
pub use self::quarantine_entries::StoredEntry;
pub use self::range::{RangeEnd, RangeSize, RangeStart};
pub use self::redrive::{Redrive, RedriveEnd, RedriveError, RedriveOutcome};
pub use self::repartition::SeedError;
pub use self::reset::{ResetError, ResetImpact, ResetPlan, ResetTo, RowCount};
pub use self::restore::{Present, RestoreError, Restored};
pub use crate::poller::Operator;
use crate::poller::Poller;

/// The commands of one poller.
#[derive(Clone, Copy, Debug)]
pub struct Admin<'p> {
    poller: &'p Poller,
}

impl Poller {
    /// Returns what operators may do to the poller.
    pub fn admin(&self) -> Admin<'_> {
        Admin { poller: self }
    }
}
