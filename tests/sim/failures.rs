//! The invariants of failures: which rows may be quarantined, and what may stop a poller.
//!
//! Derived from the handler's calls and from which leases expired over which rows, not from the counters that
//! the code keeps.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use highwater_engine::handler::HandlerError;
use highwater_engine::policy::{FailurePolicy, OnFailure};
use serde_json::Value;

use crate::bad::{Bad, BadRows};
use crate::invariants::{Judge, Landed};
use crate::parked::writes_entries;
use crate::script::Plan;
use crate::world::TickId;

/// The rows after `after` up to `upto` that a document records as in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) after: u64,
    pub(crate) upto: u64,
    pub(crate) rows: u64,
}

/// A call of the handler.
#[derive(Clone, Debug)]
struct Call {
    /// Versions of its rows.
    rows: Vec<u64>,
    /// How many rows from the front were reported as accepted.
    taken: usize,
    is_answered: bool,
    /// Dropped with the call, whether it was answered or stopped.
    running: Weak<()>,
    /// Whether the target rejected it.
    refused: bool,
}

impl Call {
    fn is_of(&self, version: u64) -> bool {
        self.rows == [version]
    }

    fn has_failed(&self) -> bool {
        self.taken < self.rows.len()
    }
}

/// Rows that were not accepted, and their outcome.
#[derive(Debug)]
pub(crate) struct Failures {
    policy: FailurePolicy,
    bad: BadRows,
    /// The rows that the document records as in flight.
    pub(crate) in_flight: Option<InFlight>,
    calls: BTreeMap<TickId, Vec<Call>>,
    /// Versions of the quarantined rows, with the reason.
    aside: BTreeMap<u64, String>,
    /// Keys of the rows that were quarantined after one rejection, since the target last accepted a row, with the
    /// version of the row.
    rejected_in_a_row: BTreeMap<String, u64>,
    /// What was in flight each time a holder let its lease expire, since a holder last reported a failure.
    /// Resuming the poller also ends this count, but not for the current holder of the lease.
    deaths: Vec<InFlight>,
    /// The tick whose lease was taken over by the write that is being judged.
    pub(crate) overtaken: Option<TickId>,
    /// Whether a commit may overlap the next handler call.
    overlaps: bool,
    pub(crate) is_stopped: bool,
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            policy: FailurePolicy::default(),
            bad: BadRows::NONE,
            in_flight: None,
            calls: BTreeMap::new(),
            aside: BTreeMap::new(),
            rejected_in_a_row: BTreeMap::new(),
            deaths: Vec::new(),
            overtaken: None,
            overlaps: false,
            is_stopped: false,
        }
    }
}

impl Failures {
    pub(crate) fn of(plan: &Plan) -> Self {
        let overlaps = plan.overlaps();
        Self { policy: plan.policy, bad: plan.bad, overlaps, ..Self::default() }
    }

    /// Whether a tick may be given rows after those that the document records as in flight. It may if its
    /// last call accepted all of them, so that only the response to their commit is missing. Rows of parked keys may
    /// follow those of the call. This allows one
    /// batch and no more, since the next one is compared with the rows of this one. A call that was stopped
    /// as stalled has no response; it counts if it had reported all rows as accepted. A call that is still
    /// running does not.
    pub(crate) fn may_overlap(&self, tick: TickId, first: u64) -> bool {
        let last = self.calls.get(&tick).and_then(|calls| calls.last());
        self.overlaps
            && self.in_flight.is_some_and(|said| {
                said.upto < first
                    && last.is_some_and(|call| {
                        call.running.strong_count() == 0
                            && !call.has_failed()
                            && call.rows.first().is_some_and(|row| said.after < *row)
                            && call.rows.last().is_some_and(|row| *row <= said.upto)
                            && u64::try_from(call.rows.len()).is_ok_and(|rows| rows >= said.rows)
                    })
            })
    }

    /// Returns the last call of a tick if its rows come after those that the document records as in flight.
    fn ahead(&self, tick: TickId) -> Option<&Call> {
        let upto = self.in_flight?.upto;
        let last = self.calls.get(&tick)?.last()?;
        last.rows.first().is_some_and(|first| upto < *first).then_some(last)
    }

    /// Whether a tick was given rows after those that the document records as in flight.
    pub(crate) fn is_ahead(&self, tick: TickId) -> bool {
        self.ahead(tick).is_some()
    }

    pub(crate) fn set_aside_count(&self) -> usize {
        self.aside.len()
    }

    /// Returns the versions of the quarantined rows, with the reason.
    pub(crate) fn take_set_aside(&mut self) -> BTreeMap<u64, String> {
        std::mem::take(&mut self.aside)
    }

    /// Whether a tick has delivered this row alone and the target did not accept it.
    pub(crate) fn has_failed_alone(&self, tick: TickId, version: u64) -> bool {
        let calls = self.calls.get(&tick).into_iter().flatten();
        calls.into_iter().any(|call| call.is_of(version) && call.has_failed())
    }

    /// Whether a row is in flight alone after another row has failed alone in the same tick: a probe for
    /// whether the target accepts anything at all.
    pub(crate) fn is_probing(&self, tick: TickId) -> bool {
        let calls = self.calls.get(&tick).map(Vec::as_slice).unwrap_or_default();
        let Some((Call { rows, .. }, before)) = calls.split_last() else { return false };
        let [row] = rows[..] else { return false };
        before.iter().any(|call| call.rows.len() == 1 && call.has_failed() && call.rows[0] < row)
    }

    /// Whether the target rejected the row, alone, in the tick's last call, and will reject it again.
    fn was_refused(&self, tick: TickId, version: u64, is_of_refused_key: bool) -> bool {
        let last = self.calls.get(&tick).and_then(|calls| calls.last());
        last.is_some_and(|call| call.is_of(version) && call.refused)
            && (self.bad.of(version) == Some(Bad::Refused) || is_of_refused_key)
    }

    /// Whether, within this tick, the row failed alone, then the target accepted another row, and then the
    /// row failed alone again.
    fn failed_beside_another(&self, tick: TickId, version: u64) -> bool {
        let Some((last, before)) = self.calls.get(&tick).and_then(|calls| calls.split_last())
        else {
            return false;
        };
        let mut rest = before.iter().skip_while(|call| !(call.is_of(version) && call.taken == 0));
        let another = rest.any(|call| call.taken > 0 && !call.rows.contains(&version));
        another && last.is_of(version) && last.taken == 0
    }

    /// Whether the row failed together with others, then the target accepted another row, then the row failed alone,
    /// and then the target accepted another row again, all in this tick.
    fn failed_between_others(&self, tick: TickId, version: u64) -> bool {
        let Some(calls) = self.calls.get(&tick) else { return false };
        let accepts_another = |call: &Call| call.taken > 0 && !call.rows.contains(&version);
        // The target may have accepted rows before it.
        let place = |call: &Call| call.rows.iter().position(|row| *row == version);
        let fails = |call: &Call| place(call).is_some_and(|place| place >= call.taken);
        let mut calls = calls.iter();
        calls.any(fails)
            && calls.any(accepts_another)
            && calls.any(|call| fails(call) && call.is_of(version))
            && calls.any(accepts_another)
            && calls.all(|call| !call.rows.contains(&version))
    }

    fn died_often(&self) -> bool {
        self.deaths.len() >= usize::try_from(self.policy.crashes_max).expect("few")
    }

    /// Whether holders have let their leases expire as often as the policy requires, the last one with this
    /// row alone in flight.
    fn died_with(&self, version: u64) -> bool {
        self.died_often()
            && self
                .deaths
                .last()
                .is_some_and(|last| last.rows == 1 && last.after < version && version <= last.upto)
    }
}

/// Returns the version of an entry's row, and why it was quarantined.
fn entry(bytes: &[u8]) -> (u64, String) {
    let entry: Value = serde_json::from_slice(bytes).expect("an entry is JSON");
    let cursor = entry["events"][0]["cursor"]["value"].as_str().expect("a cursor");
    let version = u64::from_str_radix(&cursor[2..], 16).expect("a rowversion");
    (version, entry["reason"].as_str().expect("a reason").to_owned())
}

impl Judge {
    /// Records a handler call; returns a token that lives as long as the call.
    pub(crate) fn handed_over(&mut self, tick: TickId, rows: &[(i64, u64)]) -> Arc<()> {
        let rows: Vec<u64> = rows.iter().map(|(_, version)| *version).collect();
        let calls = self.failures.calls.entry(tick).or_default();
        if let Some(before) = calls.last().filter(|call| call.has_failed()) {
            if before.rows.first() == rows.first() && rows.len() < before.rows.len() {
                self.saw.push("policy: batch made smaller after a failure");
            }
            if before.rows.len() == 1 && before.rows.first() < rows.first() {
                self.saw.push("policy: row behind a failing one probed");
            }
        }
        let call = Arc::new(());
        let running = Arc::downgrade(&call);
        calls.push(Call { rows, taken: 0, is_answered: false, running, refused: false });
        call
    }

    /// Records that the running handler has reported this many rows as accepted.
    pub(crate) fn accepted(&mut self, tick: TickId, rows: usize) {
        if let Some(call) = self.failures.calls.get_mut(&tick).and_then(|calls| calls.last_mut()) {
            call.taken = call.taken.max(rows);
            if rows > 0 {
                self.failures.rejected_in_a_row.clear();
            }
        }
    }

    /// Records the handler's result.
    pub(crate) fn answered(&mut self, tick: TickId, taken: &Result<(), HandlerError>) {
        let Some(call) = self.failures.calls.get_mut(&tick).and_then(|calls| calls.last_mut())
        else {
            return;
        };
        call.is_answered = true;
        match taken {
            Ok(()) => call.taken = call.rows.len(),
            Err(HandlerError::Partial { accepted, .. }) => call.taken = call.taken.max(*accepted),
            Err(error) => call.refused = matches!(error, HandlerError::Rejected(_)),
        }
        if call.taken > 0 {
            self.failures.rejected_in_a_row.clear();
        }
    }

    /// Judges a quarantine entry when it is sent. It may land much later, when more is known.
    pub(crate) fn sets_aside(&mut self, tick: TickId, bytes: &[u8]) {
        let (version, reason) = entry(bytes);
        let failures = &self.failures;
        let is_of_refused_key = self.parked.was_refused(version);
        let (kind, proven) = match reason.as_str() {
            "refused" => (
                "policy: row set aside once refused",
                failures.was_refused(tick, version, is_of_refused_key),
            ),
            "attempts" => {
                let proven = failures.failed_beside_another(tick, version)
                    || failures.failed_between_others(tick, version);
                ("policy: row set aside after attempts", proven)
            }
            _ => ("policy: row set aside after crashes", failures.died_with(version)),
        };
        let asked = writes_entries(&failures.policy);
        self.require(asked && proven, || {
            format!("tick {} set row at {version} aside for {reason}, unproven", tick.0)
        });
        self.saw.push(kind);
        if reason == "refused" {
            self.rejected(tick, version, bytes);
        }
    }

    /// Counts a row that is quarantined because it was rejected: no more in a row than the breaker allows. A
    /// row that was rejected again after the target accepted another row does not count, since the accepted
    /// row may be next to it, in one commit.
    fn rejected(&mut self, tick: TickId, version: u64, bytes: &[u8]) {
        if self.failures.failed_beside_another(tick, version) {
            self.failures.rejected_in_a_row.clear();
            return;
        }
        let entry: Value = serde_json::from_slice(bytes).expect("an entry is JSON");
        let rejected = &mut self.failures.rejected_in_a_row;
        rejected.insert(entry["events"][0]["pk"].to_string(), version);
        let (rows, most) = (rejected.len(), self.failures.policy.breaker_rows);
        let most = usize::try_from(most).expect("few");
        if rows == most {
            self.saw.push("policy: breaker opened");
        }
        self.require(rows <= most, || {
            format!("tick {} quarantined {rows} rows in a row, more than {most}", tick.0)
        });
    }

    /// Records a quarantine entry that has just landed; returns its reason.
    pub(crate) fn set_aside(&mut self, bytes: &[u8]) -> String {
        let (version, reason) = entry(bytes);
        let text = format!("row at {version}: {reason}");
        self.failures.aside.insert(version, reason);
        text
    }

    /// Records what a document write of a tick says about failures.
    pub(crate) fn failures_landed(
        &mut self,
        tick: TickId,
        landed: &Landed,
        checkpoint: u64,
        given_up: bool,
    ) {
        let failures = &mut self.failures;
        if *landed != Landed::Other {
            // A row is counted by the commit that moves past it. If its entry was stored and the commit was not, the
            // next tick adds the row to the entry, and does not count it.
            failures.rejected_in_a_row.retain(|_, version| *version <= checkpoint);
        }
        // A process that crashes while it retries a parked key did not crash with the batch in flight.
        if *landed == Landed::TakenOver && !self.parked.is_retrying {
            let overtaken = failures.overtaken.take();
            let mut in_hand = failures.in_flight;
            let overtaken = overtaken.filter(|_| failures.overlaps);
            if let Some(next) = overtaken.and_then(|tick| failures.ahead(tick)) {
                // It is unknown which of the two batches it crashed with, so it counts for neither alone.
                let rows = u64::try_from(next.rows.len()).expect("few");
                if let Some(in_hand) = &mut in_hand {
                    in_hand.rows += rows;
                }
                self.saw.push("overlap: holder gone with two batches in hand");
            }
            failures.deaths.extend(in_hand);
        }
        let is_ahead = failures.is_ahead(tick);
        let last = failures.calls.get(&tick).and_then(|calls| calls.last());
        let Some(last) = last else { return };
        if given_up && last.has_failed() {
            failures.deaths.clear();
        } else if !given_up && checkpoint > self.checkpoint && is_ahead {
            self.saw.push(if last.is_answered {
                "overlap: commit landed when the next handler was done"
            } else {
                "overlap: commit landed while the next handler ran"
            });
        } else if !given_up && !last.is_answered && checkpoint > self.checkpoint {
            self.saw.push("document: prefix committed on a renewal");
        }
    }

    /// Records whether the policy has paused the poller.
    pub(crate) fn paused(&mut self, by: Option<String>) {
        let stopped = by.is_some_and(|by| by.starts_with("failure policy of "));
        if stopped && !self.failures.is_stopped {
            let failures = &self.failures;
            let failed = failures.calls.values().flatten().any(Call::has_failed);
            let asked = failures.policy.on_failure == OnFailure::Stop;
            let caused = failed || failures.died_often();
            self.require(asked && caused, || "the policy stopped the poller unasked".to_owned());
            self.saw.push("policy: stopped the poller");
        }
        self.failures.is_stopped = stopped;
    }
}
