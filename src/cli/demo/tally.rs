//! What has arrived, by row state, and why some of it arrived again. Pure.

use std::collections::BTreeMap;

/// One state of one row, as it was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowState {
    /// The row's key.
    pub(super) id: i64,
    /// Its version, which grows with each change.
    pub(super) version: u64,
}

/// How a call of the receiver ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// It is answered with success.
    Accepted,
    /// It is answered with an error.
    Failed,
    /// It is never answered, since the process that made it is killed.
    Killed,
}

/// Deliveries beyond the first, by the end of the call before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Redeliveries {
    /// The call before had failed.
    pub(super) failed_call: u64,
    /// The process that made the call before was killed.
    pub(super) killed_process: u64,
    /// The call before had been answered with success.
    pub(super) other: u64,
}

impl Redeliveries {
    /// Returns all of them.
    pub(super) fn total(self) -> u64 {
        self.failed_call + self.killed_process + self.other
    }
}

#[derive(Debug)]
struct Arrived {
    accepted: bool,
    last: End,
}

/// What has arrived so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    arrived: BTreeMap<RowState, Arrived>,
    accepted: u64,
    again: Redeliveries,
}

impl Tally {
    /// Notes a call with `states` that ends as `end`.
    pub(super) fn note(&mut self, states: &[RowState], end: End) {
        for state in states {
            let arrived = self.arrived.get(state);
            match arrived.map(|arrived| arrived.last) {
                Some(End::Failed) => self.again.failed_call += 1,
                Some(End::Killed) => self.again.killed_process += 1,
                Some(End::Accepted) => self.again.other += 1,
                None => {}
            }
            let before = arrived.is_some_and(|arrived| arrived.accepted);
            let accepted = before || end == End::Accepted;
            self.accepted += u64::from(accepted && !before);
            self.arrived.insert(*state, Arrived { accepted, last: end });
        }
    }

    /// Returns how many row states have been accepted.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Returns the deliveries beyond the first of each state.
    pub(super) fn redeliveries(&self) -> Redeliveries {
        self.again
    }

    /// Whether a row state has been accepted.
    pub(super) fn has(&self, state: &RowState) -> bool {
        self.arrived.get(state).is_some_and(|arrived| arrived.accepted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(ids: std::ops::Range<i64>) -> Vec<RowState> {
        ids.map(|id| RowState { id, version: 7 }).collect()
    }

    #[test]
    fn a_state_counts_when_it_is_accepted_and_each_further_delivery_by_its_cause() {
        let mut tally = Tally::default();
        tally.note(&states(0..2), End::Accepted);
        tally.note(&states(2..5), End::Failed);
        assert_eq!((tally.accepted(), tally.redeliveries()), (2, Redeliveries::default()));
        assert!(!tally.has(&RowState { id: 2, version: 7 }));
        tally.note(&states(2..5), End::Killed);
        tally.note(&states(2..6), End::Accepted);
        tally.note(&states(5..6), End::Accepted);
        let again = Redeliveries { failed_call: 3, killed_process: 3, other: 1 };
        assert_eq!((tally.accepted(), tally.redeliveries()), (6, again));
        assert!(tally.has(&RowState { id: 2, version: 7 }));
        assert!(!tally.has(&RowState { id: 2, version: 8 }));
    }
}
