//! The audit: closed windows are read again, and rows that were committed late are delivered.
//!
//! An audit runs when the source has nothing new, or when limits allow no further batch. Late rows then become the
//! next batch under the same lease and cost no call of their own. A window that is unchanged causes no write: that
//! it is done is recorded with the next write, whichever that is.
//!
//! If the ids delivered from a window are known, only the rows that were never delivered are delivered. Otherwise
//! only their sum is known: if it differs, the whole window is delivered again, and its rows keep their event ids. A
//! row that has changed since has left its window; nothing is lost by that.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::timeout_at;

use super::batch::{Batch, Origin, Position};
use super::fetch::{Next, ReadKind, fetch_timeout};
use super::report::Report;
use super::{LeasedTick, Tick};
use crate::cursor::{Cursor, SourceState};
use crate::document::{Audit, AuditStep, ClosedWindow, IdSum, Snapshot, StateDocument};
use crate::event::ChangeEvent;
use crate::poller::delivered_ids::Auditor;
use crate::poller::{Poller, TickError};
use crate::source::{FetchWindow, Rows};

/// What there is to audit.
struct AuditScope {
    audit: Audit,
    generation: u64,
    replay_id: Option<String>,
    state: SourceState,
    now: OffsetDateTime,
    /// Whether newer rows are waiting.
    waiting: bool,
    /// Whether the audit runs under a lease, with a finished batch that waits for its commit.
    under_lease: bool,
    finished: Option<ClosedWindow>,
}

/// The result of an audit.
struct AuditResult {
    /// The last window that holds nothing more.
    finished: Option<ClosedWindow>,
    late: Option<Box<Batch>>,
}

/// The state of one window.
enum WindowState {
    /// All of its rows were delivered.
    Nothing,
    Late(Box<Batch>),
    /// The tick's time is up.
    OutOfTime,
}

impl Tick<'_> {
    /// Returns late rows if a closed window is due and has some. What else the audit found is noted in `base`.
    pub(super) async fn late(
        &mut self,
        base: &mut Snapshot,
    ) -> Result<Option<Box<Batch>>, TickError> {
        let poller = self.poller;
        let Some(scope) = poller.audit_scope(&base.document, None, base.now(), false) else {
            return Ok(None);
        };
        let end_of_time = self.report.started_at() + poller.limits.handler_stop_after;
        let audited = timeout_at(end_of_time, poller.audit_windows(scope, &mut self.report)).await;
        let found = audited.unwrap_or_else(|_| Err(fetch_timeout()))?;
        if let Some(window) = &found.finished {
            base.document_mut().audit.finish(window);
        }
        Ok(found.late)
    }
}

impl LeasedTick<'_, '_> {
    /// Returns late rows in place of an end, if a closed window is due and has some.
    pub(super) async fn or_late_rows(&mut self, end: Next) -> Result<Next, TickError> {
        let waiting = match &end {
            Next::Work(_) | Next::Deferred(_) => return Ok(end),
            Next::LimitReached => true,
            Next::Nothing(remember) => {
                // It belongs to the current batch, whatever the audit finds.
                if remember.is_some() {
                    self.work.remember.clone_from(remember);
                }
                false
            }
        };
        if self.work.batch.is_late() && !self.may_continue() {
            return Ok(end);
        }
        match self.late_batch(waiting).await {
            Ok(Some(late)) => Ok(Next::Work(Box::new(self.work_of(late).await?))),
            // The current batch was accepted. Whether it can still be committed, the commit finds out.
            Ok(None) | Err(TickError::LeaseLost(_)) => Ok(end),
            Err(error) => Err(error),
        }
    }

    async fn late_batch(&mut self, waiting: bool) -> Result<Option<Box<Batch>>, TickError> {
        let (poller, document) = (self.poller, self.lease.expected());
        let current = Some(&*self.work.batch);
        let Some(scope) = poller.audit_scope(document, current, self.lease.now(), waiting) else {
            return Ok(None);
        };
        let auditing = poller.audit_windows(scope, self.report);
        let audited = Box::pin(self.lease.hold_while(auditing)).await;
        let found = audited.map_err(TickError::LeaseLost)??;
        if let Some(window) = found.finished {
            self.lease.finish(window);
        }
        Ok(found.late)
    }
}

impl Poller {
    /// Audits each window that was closed that long ago, in the modes that go by time.
    #[must_use]
    pub fn with_audit_after(self, wait: Duration) -> Self {
        Self { audit: Some(Auditor::new(wait)), ..self }
    }

    fn auditor(&self) -> Option<&Auditor> {
        self.audit.as_ref().filter(|_| self.source.shape().mode.is_time_based())
    }

    /// Returns what the commit of `batch` on `document` means for the windows.
    pub(super) fn audit_step(&self, batch: &Batch, document: &StateDocument) -> AuditStep {
        match self.auditor() {
            _ if batch.is_late() => AuditStep::ReadAgain,
            Some(_) => {
                AuditStep::Closes(IdSum::of(batch.ids_after(document.checkpoint.cursor.as_ref())))
            }
            None => AuditStep::Off,
        }
    }

    /// Keeps the ids of accepted rows; `before` was the checkpoint before them.
    pub(super) fn keep_ids(&self, batch: &Batch, before: Option<&Cursor>) {
        if let Some(auditor) = self.auditor().filter(|_| !batch.is_late()) {
            let ids: Vec<_> = batch.ids_after(before).collect();
            auditor.known().keep(&batch.upto, &ids);
        }
    }

    /// Returns what there is to audit once `current` is committed; `None` if nothing is due.
    fn audit_scope(
        &self,
        document: &StateDocument,
        current: Option<&Batch>,
        now: OffsetDateTime,
        waiting: bool,
    ) -> Option<AuditScope> {
        let auditor = self.auditor()?;
        let mut audit = document.audit.clone();
        if let Some(batch) = current.filter(|batch| batch.is_late()) {
            audit.deliver_again(batch.at.after.as_ref(), &batch.upto);
        }
        let known = auditor.known();
        let finished = known.finished().filter(|window| audit.finish(window)).cloned();
        audit.due(now, auditor.wait, self.store.grain())?;
        let (generation, replay_id) = (document.generation.0, document.replay_id.clone());
        let state = document.source_state.clone();
        let under_lease = current.is_some();
        Some(AuditScope {
            audit,
            generation,
            replay_id,
            state,
            now,
            waiting,
            under_lease,
            finished,
        })
    }

    async fn audit_windows(
        &self,
        mut scope: AuditScope,
        report: &mut Report<'_>,
    ) -> Result<AuditResult, TickError> {
        let mut found = AuditResult { finished: scope.finished.take(), late: None };
        let Some(auditor) = self.auditor() else { return Ok(found) };
        while let Some(window) =
            scope.audit.due(scope.now, auditor.wait, self.store.grain()).cloned()
        {
            match Box::pin(self.audit_window(auditor, &window, &scope, report)).await? {
                WindowState::Nothing => {
                    report.window_audited(&window);
                    auditor.known().finish(&window);
                    scope.audit.finish(&window);
                    found.finished = Some(window);
                }
                WindowState::Late(batch) => {
                    found.late = Some(batch);
                    break;
                }
                WindowState::OutOfTime => break,
            }
        }
        Ok(found)
    }

    /// Reads a window again, page by page, up to the first page with late rows.
    async fn audit_window(
        &self,
        auditor: &Auditor,
        window: &ClosedWindow,
        scope: &AuditScope,
        report: &mut Report<'_>,
    ) -> Result<WindowState, TickError> {
        let ids = auditor.known().ids_of(window);
        // A window that was delivered again in part is known to differ.
        if ids.is_none() && window.again_upto.is_none() {
            let Some(sum) = self.sum_of(window, scope, report).await? else {
                return Ok(WindowState::OutOfTime);
            };
            if sum == window.ids {
                return Ok(WindowState::Nothing);
            }
            report.window_differs(window, sum);
        }
        let (mut at, mut end) = (window.begin().cloned(), window.end());
        while report.has_time() {
            let (mut rows, events) = self.page(at.as_ref(), end, scope, report).await?;
            let last = events.last().map(|event| event.cursor.clone());
            let late = |event: &ChangeEvent| {
                ids.as_ref().is_none_or(|ids| ids.binary_search(&event.id.number()).is_err())
            };
            let pairs = std::mem::take(&mut rows.rows).into_iter().zip(events);
            let (late_rows, late): (Vec<_>, Vec<_>) =
                pairs.filter(|(_, event)| late(event)).unzip();
            if !late.is_empty() {
                report.late_commits_found(window, late.len(), ids.is_some());
                rows.rows = late_rows;
                return self.late(window, &rows, late, scope);
            }
            match last.filter(|_| rows.more) {
                Some(last) => at = Some(last),
                None if *end == window.upto => return Ok(WindowState::Nothing),
                // The rows that were rejected are gone; continue with the rest of the window.
                None => (at, end) = (Some(end.clone()), &window.upto),
            }
        }
        Ok(WindowState::OutOfTime)
    }

    /// Builds a batch of late rows, or of as many as fit.
    fn late(
        &self,
        window: &ClosedWindow,
        rows: &Rows,
        mut events: Vec<ChangeEvent>,
        scope: &AuditScope,
    ) -> Result<WindowState, TickError> {
        let cut = self.deliverable(rows, &mut events)?;
        events.truncate(cut);
        let position = Position {
            generation: scope.generation,
            replay_id: scope.replay_id.clone(),
            after: window.begin().cloned(),
            end: None,
        };
        let batch =
            Batch::of(&self.name, position, events.into(), scope.waiting, None).map(|mut batch| {
                let not_taken = window.not_taken.as_ref();
                let alone = not_taken.filter(|late| late.rows == 1);
                batch.crashed_with = alone.map(|late| late.batch_id.clone());
                batch.origin = Origin::Late;
                batch
            });
        Ok(batch.map_or(WindowState::Nothing, |batch| WindowState::Late(Box::new(batch))))
    }

    /// Returns the sum of what a window holds now; `None` if the tick's time is up.
    async fn sum_of(
        &self,
        window: &ClosedWindow,
        scope: &AuditScope,
        report: &mut Report<'_>,
    ) -> Result<Option<IdSum>, TickError> {
        let mut sum = IdSum::default();
        let mut at = window.after.clone();
        while report.has_time() {
            let (rows, events) = self.page(at.as_ref(), &window.upto, scope, report).await?;
            sum = sum.plus(IdSum::of(events.iter().map(|event| &event.id)));
            match events.last().filter(|_| rows.more) {
                Some(last) => at = Some(last.cursor.clone()),
                None => return Ok(Some(sum)),
            }
        }
        Ok(None)
    }

    /// Reads as many rows of a window as fit one batch.
    async fn page(
        &self,
        after: Option<&Cursor>,
        upto: &Cursor,
        scope: &AuditScope,
        report: &mut Report<'_>,
    ) -> Result<(Rows, Vec<ChangeEvent>), TickError> {
        let rows_max = self.limits.batch_rows_max;
        let window = FetchWindow { after, upto: Some(upto), rows_max, state: &scope.state };
        let reading = ReadKind::Audit { under_lease: scope.under_lease };
        let mut rows = self.read_window(window, reading, report).await?;
        let events = self.events_of(&mut rows)?;
        Ok((rows, events))
    }
}
