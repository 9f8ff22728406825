//! Kinds of faults and events, and how often each occurred: a simulation that breaks nothing proves nothing.

use std::collections::BTreeMap;
use std::fmt;

/// Kinds that a run of the default number of cases must meet at least once.
pub(crate) const KINDS: &[&str] = &[
    "document: keeps that the position is lost",
    "document: keeps what the source asked for",
    "document: prefix committed on a renewal",
    "handler: down",
    "handler: key refused for a while",
    "handler: row bad for good",
    "handler: row kills the process",
    "overlap: commit landed when the next handler was done",
    "overlap: commit landed while the next handler ran",
    "overlap: holder gone with two batches in hand",
    "overlap: next handler in vain, since the commit failed",
    "policy: batch made smaller after a failure",
    "policy: row behind a failing one probed",
    "policy: row set aside after attempts",
    "policy: row set aside after crashes",
    "policy: row set aside once refused",
    "policy: breaker opened",
    "policy: stopped the poller",
    "handler: failed before any write",
    "handler: failed after some writes",
    "handler: failed after all writes",
    "handler: fenced by a later generation",
    "handler: fenced",
    "handler: gone",
    "handler: hung",
    "handler: stalled",
    "handler: step of a chain",
    "handler: partial",
    "handler: throttled",
    "handler: write landed after its writer was gone",
    "instance: crash in a tick",
    "instance: another app name",
    "instance: crash between ticks",
    "instance: frozen in a tick",
    "instance: frozen past its lease",
    "instance: lapsed lease taken over",
    "instance: second tick while one runs",
    "instance: told to stop",
    "journal: answer of an append lost",
    "journal: append given up that may land late",
    "journal: append never arrived",
    "journal: behind the document",
    "journal: gap named",
    "journal: leads to the document",
    "operator: accepted another name, position kept",
    "operator: broke the lease",
    "operator: crashed in a redrive",
    "operator: dropped an entry",
    "operator: redrove entries",
    "operator: cloned the document of another app name",
    "operator: deleted a marker",
    "operator: deleted a document that is not created again",
    "operator: deleted the document under a held lease",
    "operator: deleted the document",
    "operator: paused under a held lease",
    "operator: paused",
    "operator: put an older copy back, grants and all",
    "operator: raised the grants above the fence",
    "operator: reset after the table was replaced",
    "operator: reset to the beginning",
    "operator: restored an older copy",
    "parking: entry landed after its writer lost the lease",
    "parking: key quarantined after retries",
    "parking: key quarantined at once",
    "parking: key recovered",
    "parking: key retried",
    "parking: row diverted",
    "order: judged anew after a document was lost",
    "source: asks to have something kept",
    "source: column added or dropped",
    "source: late commit",
    "source: position of another table",
    "source: read failed",
    "source: read in vain, since the batch was not taken",
    "source: read while nothing was tracked",
    "source: read while the handler runs failed",
    "source: read while the handler runs",
    "source: rollback",
    "source: rows held back",
    "source: slow read",
    "source: table replaced behind the checkpoint",
    "source: two rows with one position",
    "source: update of a row not yet delivered",
    "store: answer of a write lost",
    "store: creation landed after a deletion",
    "store: late write landed",
    "store: late write refused",
    "store: read failed",
    "store: read garbled",
    "store: read with a foreign version",
    "store: read with a wrong date",
    "store: slow",
    "store: write answered by something else",
    "store: write answered with a foreign version",
    "store: write landed after its writer was gone",
    "store: write never arrived, writer cannot know",
    "store: write refused by its precondition",
    "store: write unreachable",
    "tick: acquire_failed",
    "tick: backing_off",
    "tick: commit_failed",
    "tick: committed",
    "tick: fenced",
    "tick: fence_ahead",
    "tick: fetch_failed",
    "tick: fingerprint",
    "tick: first_run_elsewhere",
    "tick: handler_failed",
    "tick: idle",
    "tick: lease_lost",
    "tick: load_failed",
    "tick: out_of_time",
    "tick: paused",
    "tick: position_lost",
    "tick: skipped",
    "tick: state_vanished",
    "tick: took the lease again after it had run out of rows",
];

/// Kinds that a fault-free run of the default number of cases must meet.
pub(crate) const CALM: &[&str] = &[
    "document: keeps what the source asked for",
    "document: prefix committed on a renewal",
    "handler: step of a chain",
    "instance: second tick while one runs",
    "instance: told to stop",
    "journal: leads to the document",
    "operator: paused",
    "operator: paused under a held lease",
    "overlap: commit landed when the next handler was done",
    "overlap: commit landed while the next handler ran",
    "source: asks to have something kept",
    "source: late commit",
    "source: rollback",
    "source: rows held back",
    "source: update of a row not yet delivered",
    "store: write refused by its precondition",
    "tick: committed",
    "tick: idle",
    "tick: paused",
    "tick: skipped",
];

#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    pub(crate) fn saw(&mut self, kind: &str) {
        match self.0.get_mut(kind) {
            Some(count) => *count += 1,
            None => drop(self.0.insert(kind.to_owned(), 1)),
        }
    }

    pub(crate) fn count(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (kind, count) in &other.0 {
            *self.0.entry(kind.clone()).or_default() += count;
        }
    }

    pub(crate) fn missing(&self, kinds: &'static [&'static str]) -> Vec<&'static str> {
        kinds.iter().copied().filter(|kind| !self.0.contains_key(*kind)).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(kind, count)| writeln!(formatter, "{count:>9}  {kind}"))
    }
}
