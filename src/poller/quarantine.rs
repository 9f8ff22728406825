//! Setting a row aside: proof that it is the row, the record, and what crashes say.

use super::batch::{Batch, Fetched};
use super::deliver::{Hand, blame};
use super::journal::of_batch;
use super::observe::Observation;
use super::suspicion::Tried;
use super::{NotTaken, Poller, TickError};
use crate::error::chain;
use crate::handler::HandlerError;
use crate::journal::{Details, Happened};
use crate::lease::{Lease, LeaseError};
use crate::policy::{Blame, Verdict};
use crate::quarantine::{QuarantinedRow, Reason};
use crate::state::{InFlight, Paused, Precondition, StoreError};

/// How many rows behind a failing one are tried alone, to tell a bad row from a target that is down.
const PROBE_ROWS_MAX: usize = 8;

impl Poller {
    /// Looks for another row that the target accepts now.
    ///
    /// The rest of the batch is tried first, since most often one row only is bad; but where
    /// processes have died with these rows only one row of it, another with each lease, since the next
    /// one that is met may be the one that kills.
    pub(super) async fn probe(
        &self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'_>,
        seen: &mut Observation<'_>,
    ) -> Result<Proof, TickError> {
        let suspicion = hand.batch.suspicion.as_mut();
        let deadly = suspicion.as_ref().is_some_and(|suspicion| suspicion.deadly);
        let rest = match suspicion
            .and_then(|suspicion| suspicion.rest.take())
            .or_else(|| hand.waiting.pop())
        {
            Some(rest) => rest,
            // What lies behind late rows was delivered before.
            None if hand.batch.late => return Ok(Proof::None),
            None => match self.read_behind(lease, &hand.batch, seen).await {
                Ok(Fetched::Batch(next)) => *next,
                Err(lost @ TickError::LeaseLost(LeaseError::Lost(_) | LeaseError::Gone)) => {
                    return Err(lost);
                }
                // Without another row there is no proof.
                Ok(Fetched::Nothing(_)) | Err(_) => return Ok(Proof::None),
            },
        };
        self.write_down_what_is_probed(lease, &hand.batch, &rest).await?;
        if deadly {
            return self.probe_one_of(lease, hand, rest, seen).await;
        }
        match self.try_rows(lease, &rest, seen).await? {
            ProbeResult::Accepted => return Ok(Proof::Next(Box::new(rest))),
            ProbeResult::AcceptedFront(rows) => {
                if let Some((front, behind)) = rest.split(&self.name, lease, rows) {
                    hand.waiting.push(behind);
                    return Ok(Proof::Next(Box::new(front)));
                }
            }
            ProbeResult::TargetAtFault => return Ok(Proof::None),
            ProbeResult::Rejected => {}
        }
        // A single row has just been tried.
        let rows = if rest.events.len() == 1 { 0 } else { PROBE_ROWS_MAX };
        for row in 0..rows {
            if !self.may_still_try(lease, seen) {
                break;
            }
            let Some(alone) = rest.row(&self.name, lease, row) else { break };
            match self.try_rows(lease, &alone, seen).await? {
                ProbeResult::Accepted => {
                    hand.waiting.push(rest);
                    return Ok(Proof::Elsewhere);
                }
                ProbeResult::TargetAtFault => break,
                ProbeResult::Rejected | ProbeResult::AcceptedFront(_) => {}
            }
        }
        Ok(Proof::None)
    }

    async fn probe_one_of(
        &self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'_>,
        rest: Batch,
        seen: &mut Observation<'_>,
    ) -> Result<Proof, TickError> {
        let index = lease.token().0.checked_rem(rest.rows()).unwrap_or(0);
        let alone = rest.row(&self.name, lease, usize::try_from(index).unwrap_or(0));
        let Some(alone) = alone else { return Ok(Proof::None) };
        let probed = self.try_rows(lease, &alone, seen).await?;
        hand.waiting.push(rest);
        Ok(match probed {
            ProbeResult::Accepted => Proof::Elsewhere,
            ProbeResult::AcceptedFront(_) | ProbeResult::Rejected | ProbeResult::TargetAtFault => {
                Proof::None
            }
        })
    }

    async fn try_rows(
        &self,
        lease: &mut Lease<'_>,
        rows: &Batch,
        seen: &mut Observation<'_>,
    ) -> Result<ProbeResult, TickError> {
        match self.handle(lease, rows, None, seen).await {
            Ok(()) => Ok(ProbeResult::Accepted),
            Err(NotTaken::Handler(HandlerError::Partial { accepted, .. })) if accepted > 0 => {
                Ok(ProbeResult::AcceptedFront(accepted))
            }
            Err(NotTaken::Handler(error)) if blame(&error) == Blame::Target => {
                Ok(ProbeResult::TargetAtFault)
            }
            Err(NotTaken::Handler(_) | NotTaken::Front(..)) => Ok(ProbeResult::Rejected),
            Err(NotTaken::OutOfTime { .. }) => Ok(ProbeResult::TargetAtFault),
            Err(NotTaken::Lost(error)) => Err(error),
        }
    }

    /// Writes the row of `batch` into the quarantine, so that the checkpoint may move past it.
    ///
    /// What cannot be written there is not passed: the failure is written down instead.
    pub(super) async fn set_aside(
        &self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'_>,
        (error, reason): (&HandlerError, Reason),
        seen: &mut Observation<'_>,
    ) -> Result<(), TickError> {
        let known = Tried::of(lease.document().in_flight.as_ref());
        let suspicion = hand.batch.suspicion.take();
        let tried = suspicion.as_ref().map_or(&known, |suspicion| &suspicion.tried);
        let row = QuarantinedRow {
            poller: self.of(),
            batch_id: &hand.batch.id,
            holder: lease.holder(),
            reason,
            attempts: tried.attempt.saturating_add(1),
            crashes: tried.crashes,
            first_failed_at: tried.first_failed_at.unwrap_or_else(|| lease.now()),
            quarantined_at: lease.now(),
            first_error: &tried.first_error(error),
            last_error: &chain(error),
        };
        let entries: Vec<_> = hand.batch.events.iter().map(|event| row.entry(event)).collect();
        let mut failed = None;
        for (key, bytes) in entries {
            let put = self.store.store(&key, bytes, Precondition::Absent);
            match lease.hold_while(put).await {
                // Set aside before, by a tick that did not come to commit.
                Ok(Ok(_) | Err(StoreError::Conflict { .. })) => {}
                Ok(Err(error)) => failed = Some(chain(&error)),
                Err(LeaseError::OutOfTime) => failed = Some("the tick's time is over".to_owned()),
                Err(error) => return Err(TickError::LeaseLost(error)),
            }
        }
        if let Some(why) = failed {
            let error = HandlerError::Retryable(format!(
                "{}; and the row could not be set aside: {why}",
                chain(error)
            ));
            hand.batch.suspicion = suspicion;
            self.write_down(lease, &hand.batch, (&error, None), seen).await;
            return Err(TickError::Handler(error));
        }
        hand.waiting.extend(suspicion.and_then(|suspicion| suspicion.rest));
        hand.batch.quarantined = true;
        seen.quarantined(&hand.batch, reason, error);
        lease.note(Happened::RowQuarantined, || Details {
            error: Some(chain(error)),
            reason: Some(reason.as_str().to_owned()),
            ..of_batch(&hand.batch, None)
        });
        Ok(())
    }

    /// Does what the policy says about rows with which processes have died: `true` where `batch` is
    /// done with.
    pub(super) async fn answer_crashes(
        &self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'_>,
        seen: &mut Observation<'_>,
    ) -> Result<bool, TickError> {
        let crashes = lease.document().in_flight.as_ref().map_or(0, InFlight::crashes_in_a_row);
        let batch = &mut hand.batch;
        if batch.suspicion.is_some() {
            return Ok(false);
        }
        let judged = self.policy.judge_crashes(batch.events.len(), crashes, batch.died_alone);
        let error = || {
            HandlerError::Retryable(format!(
                "{crashes} processes have ended with these rows in hand, without a word"
            ))
        };
        match judged {
            Some(Verdict::Bisect) => {
                batch.suspect(lease, None);
                if let Some(suspicion) = &mut batch.suspicion {
                    // One more crash is enough to narrow further.
                    suspicion.tried.crashes = self.policy.crashes_max.saturating_sub(1);
                    suspicion.tried.crashes_survived = 0;
                    suspicion.deadly = true;
                }
                seen.bisecting(batch, &error());
                Ok(false)
            }
            Some(Verdict::Quarantine) => {
                self.set_aside(lease, hand, (&error(), Reason::Crashes), seen).await?;
                Ok(true)
            }
            Some(Verdict::Stop) => {
                let error = error();
                let pause = self.stopped(lease, batch, &error);
                self.write_down(lease, batch, (&error, Some(pause)), seen).await;
                Err(TickError::Handler(error))
            }
            Some(Verdict::Retry | Verdict::Isolate | Verdict::Probe) | None => Ok(false),
        }
    }

    /// Writes down which rows are handed over, where they may be the process's end.
    pub(super) async fn write_down_what_is_tried(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        tried: &Batch,
    ) -> Result<(), TickError> {
        let Some(suspicion) = batch.suspicion.as_ref().filter(|suspicion| suspicion.deadly) else {
            return Ok(());
        };
        let part = tried.in_flight_after(suspicion.tried.clone());
        lease.narrow(part).await.map_err(TickError::LeaseLost)
    }

    /// Writes down that more rows than the one at fault are handed over: a process that dies now has
    /// not died with that one alone.
    async fn write_down_what_is_probed(
        &self,
        lease: &mut Lease<'_>,
        batch: &Batch,
        rest: &Batch,
    ) -> Result<(), TickError> {
        let whole = batch.clone().joined(Some(rest.clone()), &self.name, lease);
        let tried = Tried::of(lease.document().in_flight.as_ref());
        let whole = InFlight { probing: true, ..whole.in_flight_after(tried) };
        lease.narrow(whole).await.map_err(TickError::LeaseLost)
    }

    /// Returns the pause that a policy of `stop` ends with.
    pub(super) fn stopped(&self, lease: &Lease<'_>, batch: &Batch, error: &HandlerError) -> Paused {
        let rows = batch.rows();
        Paused {
            by: Paused::by_policy_of(&self.name),
            reason: format!(
                "{rows} rows from `{}` on were not taken: {}",
                batch.events.first().map_or("", |event| event.cursor.value.as_str()),
                chain(error)
            ),
            at: lease.now(),
            extra: serde_json::Map::new(),
        }
    }
}

/// What became of rows that were tried out of turn.
enum ProbeResult {
    Accepted,
    /// So many from the front.
    AcceptedFront(usize),
    Rejected,
    TargetAtFault,
}

/// Whether the target accepts other rows now, so that a failing row is at fault and not the target.
pub(super) enum Proof {
    /// It accepted these, which follow the failing row.
    Next(Box<Batch>),
    /// It accepted a row that lies elsewhere, and comes again in its turn.
    Elsewhere,
    /// It accepted none.
    None,
}
