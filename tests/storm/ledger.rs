//! The events observed from outside, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::state::ReleasedGrants;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// One state of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowState {
    pub(crate) key: i64,
    /// Row version: the cursor.
    pub(crate) version: u64,
    /// From the payload: the number of the write that produced it.
    pub(crate) token: u64,
}

/// Returns the token in the `item` of a row.
pub(crate) fn token_of(item: &str) -> u64 {
    item.rsplit(' ').next().and_then(|token| token.parse().ok()).expect("an item ends in its token")
}

/// A grant of the lease; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Term {
    pub(crate) generation: u64,
    pub(crate) token: u64,
}

/// The outcome of a call to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Still open.
    Open,
    /// Answered with success.
    Answered,
    /// Rejected, since a newer term had been seen.
    Stale,
    /// The caller went away before the response.
    Dropped,
}

/// One call to the receiver.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The instance that made it.
    pub(crate) worker: usize,
    pub(crate) term: Term,
    pub(crate) batch_id: String,
    pub(crate) rows: Vec<RowState>,
    pub(crate) began: Instant,
    pub(crate) ended: Option<Instant>,
    pub(crate) end: End,
}

/// The kind and victim of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Kill(usize),
    Terminate(usize),
    Freeze,
    Restart,
    /// This many connections to the database.
    Cut(u64),
}

impl Kind {
    pub(crate) fn is_of_storage(self) -> bool {
        matches!(self, Self::Freeze | Self::Restart)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) from: Instant,
    /// When it was over; a killed process is gone by then.
    pub(crate) to: Option<Instant>,
    /// The grant in the state document right after a kill, if it could be read, and whether it was a lease
    /// held by the killed process.
    pub(crate) term_after: Option<(Term, bool)>,
}

/// The exit of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub(crate) worker: usize,
    pub(crate) at: Instant,
    pub(crate) code: i32,
}

/// An invocation that the handler answered with an error.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) worker: usize,
    pub(crate) at: Instant,
    pub(crate) text: String,
}

/// The state document as it was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) term: Term,
    pub(crate) owner: Option<String>,
    pub(crate) is_held: bool,
    /// Row version of the checkpoint.
    pub(crate) checkpoint: u64,
    /// The grants that the document lists as released by their holders.
    pub(crate) released: ReleasedGrants,
}

/// Counts of the copying poller's invocations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copying {
    pub(crate) invocations: u64,
    /// Invocations that were answered with an error.
    pub(crate) failed: u64,
    /// Invocations that the target's fence rejected.
    pub(crate) stale: u64,
}

/// All recorded events.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) calls: Vec<Call>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) exits: Vec<Exit>,
    pub(crate) failed: Vec<Failed>,
    pub(crate) invocations: u64,
    pub(crate) samples: u64,
    /// Violations found during the run.
    pub(crate) violations: Vec<String>,
    pub(crate) accepted: BTreeSet<RowState>,
    pub(crate) copying: Copying,
    highest: Term,
    ids: BTreeMap<RowState, String>,
    contents: BTreeMap<String, usize>,
    owners: BTreeMap<Term, String>,
    last: Sample,
    /// Every list of released grants that was read, with its generation.
    pub(crate) released: Vec<(u64, ReleasedGrants)>,
}

impl Ledger {
    /// Records the start of a call; `ids` are those of its events. Returns its number.
    pub(crate) fn begin(&mut self, call: Call, ids: Vec<String>) -> usize {
        let number = self.calls.len();
        for (row, id) in call.rows.iter().zip(ids) {
            let known = self.ids.entry(*row).or_insert_with(|| id.clone());
            if *known != id {
                self.violations.push(format!("{row:?} came as `{known}` and as `{id}`"));
            }
        }
        let first = *self.contents.entry(call.batch_id.clone()).or_insert(number);
        if self.calls.get(first).is_some_and(|first| first.rows != call.rows) {
            let id = &call.batch_id;
            self.violations.push(format!("calls {first} and {number} differ and are both `{id}`"));
        }
        let end = if call.term < self.highest { End::Stale } else { End::Open };
        self.highest = self.highest.max(call.term);
        self.calls.push(Call { end, ..call });
        number
    }

    /// Records the outcome of an open call.
    pub(crate) fn end(&mut self, number: usize, end: End) {
        let call = &mut self.calls[number];
        (call.ended, call.end) = (Some(Instant::now()), end);
        if end == End::Answered {
            self.accepted.extend(call.rows.iter().copied());
        }
    }

    /// Records the content of the state document. Samples are in the order of the reads.
    pub(crate) fn sample(&mut self, sample: Sample) {
        self.samples += 1;
        let listed = (sample.term.generation, sample.released.clone());
        if self.released.last() != Some(&listed) {
            self.released.push(listed);
        }
        let last = &self.last;
        if sample.checkpoint < last.checkpoint || sample.term < last.term {
            self.violations.push(format!("the state went back from {last:?} to {sample:?}"));
        }
        if let Some(owner) = &sample.owner {
            let first = self.owners.entry(sample.term).or_insert_with(|| owner.clone());
            if first != owner {
                let term = sample.term;
                self.violations.push(format!("{term:?} is of `{first}` and of `{owner}`"));
            }
        }
        self.last = sample;
    }

    pub(crate) fn count(&self, fits: impl Fn(Kind) -> bool) -> u64 {
        let count = self.faults.iter().filter(|fault| fits(fault.kind)).count();
        u64::try_from(count).unwrap()
    }

    pub(crate) fn kills(&self) -> u64 {
        self.count(|kind| matches!(kind, Kind::Kill(_)))
    }

    /// The newest call, if it is unanswered.
    pub(crate) fn open_call(&self) -> Option<&Call> {
        self.calls.last().filter(|call| call.end == End::Open)
    }
}

/// The ledger that all tasks write; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ledger: Mutex<Ledger>,
    changed: watch::Sender<()>,
}

impl Shared {
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Ledger) -> T) -> T {
        read(&self.0.ledger.lock().unwrap())
    }

    pub(crate) fn write<T>(&self, write: impl FnOnce(&mut Ledger) -> T) -> T {
        let written = write(&mut self.0.ledger.lock().unwrap());
        self.0.changed.send_replace(());
        written
    }

    /// Waits until `find` finds something.
    pub(crate) async fn wait<T>(
        &self,
        limit: Duration,
        find: impl Fn(&Ledger) -> Option<T>,
    ) -> Option<T> {
        let mut changes = self.0.changed.subscribe();
        let look = async {
            loop {
                changes.borrow_and_update();
                if let Some(found) = self.read(&find) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        };
        timeout(limit, look).await.ok()
    }

    /// Records the start of a fault, and returns its number.
    pub(crate) fn fault(&self, kind: Kind) -> usize {
        let fault = Fault { kind, from: Instant::now(), to: None, term_after: None };
        self.write(|ledger| {
            ledger.faults.push(fault);
            ledger.faults.len() - 1
        })
    }

    pub(crate) fn fault_over(&self, number: usize) {
        self.write(|ledger| ledger.faults[number].to = Some(Instant::now()));
    }
}
