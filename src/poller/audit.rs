//! Looking back: closed windows are read again, and rows that came late are delivered.
//!
//! It happens where the source has nothing new, or limits allow no further batch, so that late rows are
//! the next batch of the same lease and cost no call of their own. Nothing is acquired or written for a
//! window that is as it was delivered: that it is forgotten rides on the next write, whichever that is.
//!
//! Of a window whose ids are known, only the rows that were never delivered are. Of any other only the
//! sum is known: where that differs, the window is delivered again from its beginning, and its rows come
//! with the event ids that they had. A row that changed since has left its window; that is no loss.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::timeout_at;

use super::batch::{Batch, Next, Reading, took_too_long};
use super::deliver::Hand;
use super::known::Known;
use super::observe::Observation;
use super::{Poller, Position, TickError};
use crate::cursor::{Cursor, SourceState};
use crate::event::ChangeEvent;
use crate::lease::{Lease, Snapshot};
use crate::normalize::fitting;
use crate::source::{FetchWindow, Rows};
use crate::state::{Audit, AuditStep, ClosedWindow, IdSum, StateDocument};

/// When a poller looks back, and what it knows of what it has delivered.
pub(super) struct Auditor {
    wait: Duration,
    known: Mutex<Known>,
}

impl Auditor {
    pub(super) fn new(wait: Duration) -> Self {
        Self { wait, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Auditor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Auditor").field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// What there is to look back at.
struct Past {
    audit: Audit,
    generation: u64,
    replay_id: Option<String>,
    state: SourceState,
    now: OffsetDateTime,
    /// Whether newer rows are waiting.
    waiting: bool,
    /// Whether a batch that is finished waits to be written down.
    behind: bool,
    finished: Option<ClosedWindow>,
}

/// What looking back has come to.
struct LookedBack {
    /// The last window that holds nothing more.
    finished: Option<ClosedWindow>,
    late: Option<Box<Batch>>,
}

/// What one window has come to.
enum Found {
    /// Nothing that was not delivered.
    Nothing,
    Late(Box<Batch>),
    /// The tick's time is over.
    NotNow,
}

impl Poller {
    /// Reads each window again that was closed so long ago, in the modes that go by time.
    #[must_use]
    pub fn auditing(self, wait: Duration) -> Self {
        Self { audit: Some(Auditor::new(wait)), ..self }
    }

    fn auditor(&self) -> Option<&Auditor> {
        self.audit.as_ref().filter(|_| self.source.shape().mode.goes_by_time())
    }

    /// Returns what the commit of `batch` on `document` means for the windows.
    pub(super) fn audit_step(&self, batch: &Batch, document: &StateDocument) -> AuditStep {
        match self.auditor() {
            _ if batch.late => AuditStep::ReadAgain,
            Some(_) => {
                let events = behind(document.checkpoint.cursor.as_ref(), batch);
                AuditStep::Closes(IdSum::of(events.iter().map(|event| &event.id)))
            }
            None => AuditStep::Off,
        }
    }

    /// Keeps the ids of rows that were taken, of which `before` was the checkpoint.
    pub(super) fn keep_ids(&self, batch: &Batch, before: Option<&Cursor>) {
        if let Some(auditor) = self.auditor().filter(|_| !batch.late) {
            auditor.known().keep(behind(before, batch));
        }
    }

    /// Returns late rows where a closed window is due; what else came of it is noted in `base`.
    pub(super) async fn late_batch(
        &self,
        base: &mut Snapshot,
        seen: &mut Observation<'_>,
    ) -> Result<Option<Box<Batch>>, TickError> {
        let Some(past) = self.past(&base.document, None, base.now(), false) else {
            return Ok(None);
        };
        let end_of_time = seen.began_at() + self.limits.handler_stop_after;
        let looked = timeout_at(end_of_time, self.look_back(past, seen)).await;
        let found = looked.unwrap_or_else(|_| Err(took_too_long()))?;
        if let Some(window) = &found.finished {
            base.document_mut().audit.finish(window);
        }
        Ok(found.late)
    }

    /// Returns late rows where a closed window is due, reading under the lease.
    pub(super) async fn late_batch_under(
        &self,
        lease: &mut Lease<'_>,
        in_hand: &Batch,
        waiting: bool,
        seen: &mut Observation<'_>,
    ) -> Result<Option<Box<Batch>>, TickError> {
        let Some(past) = self.past(lease.document(), Some(in_hand), lease.now(), waiting) else {
            return Ok(None);
        };
        let looked = Box::pin(lease.hold_while(self.look_back(past, seen))).await;
        let found = looked.map_err(TickError::LeaseLost)??;
        if let Some(window) = found.finished {
            lease.finish(window);
        }
        Ok(found.late)
    }

    /// Puts late rows in the place of an end, where a closed window is due and holds some.
    pub(super) async fn or_late(
        &self,
        lease: &mut Lease<'_>,
        hand: &mut Hand<'_>,
        end: Next,
        seen: &mut Observation<'_>,
    ) -> Result<Next, TickError> {
        let waiting = match &end {
            Next::Batch(_) | Next::Later(_) => return Ok(end),
            Next::NotNow => true,
            Next::Nothing(remember) => {
                // It goes with the batch in hand, whatever looking back comes to.
                if remember.is_some() {
                    hand.batch.remember.clone_from(remember);
                }
                false
            }
        };
        if hand.batch.late && !self.may_go_on(lease, seen) {
            return Ok(end);
        }
        match self.late_batch_under(lease, &hand.batch, waiting, seen).await {
            Ok(Some(batch)) => Ok(Next::Batch(batch)),
            // The batch in hand was taken; whether it can still be committed is the commit's to find.
            Ok(None) | Err(TickError::LeaseLost(_)) => Ok(end),
            Err(error) => Err(error),
        }
    }

    /// Returns what there is to look back at, once `in_hand` is committed; `None` where nothing is due.
    fn past(
        &self,
        document: &StateDocument,
        in_hand: Option<&Batch>,
        now: OffsetDateTime,
        waiting: bool,
    ) -> Option<Past> {
        let auditor = self.auditor()?;
        let mut audit = document.audit.clone();
        if let Some(batch) = in_hand.filter(|batch| batch.late) {
            audit.deliver_again(batch.after.as_ref(), &batch.upto);
        }
        let known = auditor.known();
        let finished = known.finished().filter(|window| audit.finish(window)).cloned();
        audit.due(now, auditor.wait, self.store.grain())?;
        let (generation, replay_id) = (document.generation.0, document.replay_id.clone());
        let state = document.source_state.clone();
        let behind = in_hand.is_some();
        Some(Past { audit, generation, replay_id, state, now, waiting, behind, finished })
    }

    async fn look_back(
        &self,
        mut past: Past,
        seen: &mut Observation<'_>,
    ) -> Result<LookedBack, TickError> {
        let mut found = LookedBack { finished: past.finished.take(), late: None };
        let Some(auditor) = self.auditor() else { return Ok(found) };
        while let Some(window) = past.audit.due(past.now, auditor.wait, self.store.grain()).cloned()
        {
            match Box::pin(self.read_again(auditor, &window, &past, seen)).await? {
                Found::Nothing => {
                    seen.window_audited(&window);
                    auditor.known().finish(&window);
                    past.audit.finish(&window);
                    found.finished = Some(window);
                }
                Found::Late(batch) => {
                    found.late = Some(batch);
                    break;
                }
                Found::NotNow => break,
            }
        }
        Ok(found)
    }

    /// Reads a window again, page by page, up to the first one that holds late rows.
    async fn read_again(
        &self,
        auditor: &Auditor,
        window: &ClosedWindow,
        past: &Past,
        seen: &mut Observation<'_>,
    ) -> Result<Found, TickError> {
        let ids = auditor.known().ids_of(window);
        // Of one that was delivered again in part it is known that it differs.
        if ids.is_none() && window.again_upto.is_none() {
            let Some(sum) = self.sum_of(window, past, seen).await? else {
                return Ok(Found::NotNow);
            };
            if sum == window.ids {
                return Ok(Found::Nothing);
            }
            seen.window_differs(window, sum);
        }
        let (mut at, mut end) = (window.begin().cloned(), window.end());
        while self.may_look_back(seen) {
            let (mut rows, events) = self.page(at.as_ref(), end, past, seen).await?;
            let last = events.last().map(|event| event.cursor.clone());
            let late = |event: &ChangeEvent| {
                ids.as_ref().is_none_or(|ids| ids.binary_search(&event.id.number()).is_err())
            };
            let pairs = std::mem::take(&mut rows.rows).into_iter().zip(events);
            let (late_rows, late): (Vec<_>, Vec<_>) =
                pairs.filter(|(_, event)| late(event)).unzip();
            if !late.is_empty() {
                seen.late_commits_found(window, late.len(), ids.is_some());
                rows.rows = late_rows;
                return self.late(window, &rows, late, past);
            }
            match last.filter(|_| rows.more) {
                Some(last) => at = Some(last),
                None if *end == window.upto => return Ok(Found::Nothing),
                // What was not taken is gone; the rest of the window is read on from there.
                None => (at, end) = (Some(end.clone()), &window.upto),
            }
        }
        Ok(Found::NotNow)
    }

    /// Makes a batch of late rows, or of as many as fit.
    fn late(
        &self,
        window: &ClosedWindow,
        rows: &Rows,
        mut events: Vec<ChangeEvent>,
        past: &Past,
    ) -> Result<Found, TickError> {
        let cut = fitting(self.source.shape(), rows, &events, self.limits.batch_bytes_max);
        events.truncate(cut.map_err(TickError::Normalize)?);
        let position = Position {
            generation: past.generation,
            replay_id: past.replay_id.clone(),
            after: window.begin().cloned(),
            end: None,
        };
        let batch =
            Batch::of(&self.name, position, events.into(), past.waiting, None).map(|mut batch| {
                let not_taken = window.not_taken.as_ref();
                batch.died_alone =
                    not_taken.is_some_and(|late| late.rows == 1 && late.batch_id == batch.id);
                batch.late = true;
                batch
            });
        Ok(batch.map_or(Found::Nothing, |batch| Found::Late(Box::new(batch))))
    }

    /// Returns the sum of what a window holds now; `None` where the tick's time is over.
    async fn sum_of(
        &self,
        window: &ClosedWindow,
        past: &Past,
        seen: &mut Observation<'_>,
    ) -> Result<Option<IdSum>, TickError> {
        let mut sum = IdSum::default();
        let mut at = window.after.clone();
        while self.may_look_back(seen) {
            let (rows, events) = self.page(at.as_ref(), &window.upto, past, seen).await?;
            sum = sum.plus(IdSum::of(events.iter().map(|event| &event.id)));
            match events.last().filter(|_| rows.more) {
                Some(last) => at = Some(last.cursor.clone()),
                None => return Ok(Some(sum)),
            }
        }
        Ok(None)
    }

    /// Reads one batch's worth of a window.
    async fn page(
        &self,
        after: Option<&Cursor>,
        upto: &Cursor,
        past: &Past,
        seen: &mut Observation<'_>,
    ) -> Result<(Rows, Vec<ChangeEvent>), TickError> {
        let rows_max = self.limits.batch_rows_max;
        let window = FetchWindow { after, upto: Some(upto), rows_max, state: &past.state };
        let reading = if past.behind { Reading::Behind } else { Reading::First };
        let mut rows = self.read_window(window, reading, seen).await?;
        let events = self.events_of(&mut rows)?;
        Ok((rows, events))
    }

    fn may_look_back(&self, seen: &Observation<'_>) -> bool {
        !seen.request().stop.is_set() && seen.began_at().elapsed() < self.limits.tick_time_max
    }
}

/// Returns the rows of `batch` behind a checkpoint: what was accepted before may be committed already.
fn behind<'a>(checkpoint: Option<&Cursor>, batch: &'a Batch) -> &'a [ChangeEvent] {
    let committed = batch.events.iter().position(|event| Some(&event.cursor) == checkpoint);
    batch.events.get(committed.map_or(0, |last| last + 1)..).unwrap_or_default()
}
