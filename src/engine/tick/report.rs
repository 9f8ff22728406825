//! What a tick reports: log events, metrics, and one line for people.
//!
//! The steps call in here with facts; nothing here decides anything. A failure is logged and counted once, at the
//! end of the tick.

/// Logs an event of a tick. Every one of them names the poller and the invocation, right after the event.
macro_rules! tick_event {
    ($report:expr, $level:ident, event = $event:expr, $($fields:tt)+) => {
        tracing::$level!(
            event = $event,
            poller.name = $report.poller_name(),
            invocation_id = $report.request().invocation_id,
            $($fields)+
        )
    };
}
pub(super) use tick_event;

mod blocked;
mod calls;
mod changes;
mod line;
mod timings;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::Span;
use tracing::field::Empty;

pub use self::line::{FailedBatch, TickLine};
use self::timings::RoundStart;
use super::batch::{Batch, Diverted};
use super::fetch::{FetchObserver, FetchStats, Next};
use crate::cursor::{Cursor, KeyId};
use crate::document::{Checkpoint, ClosedWindow, IdSum, Snapshot, StateDocument};
use crate::error::chain;
use crate::event::{BatchId, ChangeEvent as RowEvent, EventId, counted};
use crate::handler::HandlerError;
use crate::lease::{Lease, LeaseError};
use crate::metrics::SourceLag;
use crate::notification::{Change, ChangeEvent};
use crate::poller::outcome::{rfc3339, whole_second_after};
use crate::poller::{OutcomeRow, Poller, Skipped, TickError, TickOutcome, outcome_row};
use crate::quarantine::{Entry, EntryError, EntryState, Reason};
use crate::source::Lag;
use crate::tick::{TickReport, TickRequest};
use crate::trace::span;

/// Retries that took less than this share of a tick left its regular rows the time of a whole tick.
const RETRY_TIME_SHARE: u32 = 10;

/// What is known about one tick so far.
pub(super) struct Report<'a> {
    poller: &'a Poller,
    request: &'a TickRequest,
    started_at: Instant,
    /// Name of the event with which the tick will end, as far as its last commit knows.
    end: &'static str,
    rows: u64,
    batches: u64,
    quarantined: u64,
    parked: u64,
    /// Rows of parked keys that a retry delivered.
    recovered: u64,
    /// How much of the tick's time retries of parked keys took.
    retried_for: Duration,
    /// The batch whose rows were counted last.
    counted: Option<BatchId>,
    warned_of_skips: bool,
    /// Whether the breaker was open when it was looked at last.
    breaker_was_open: Option<bool>,
    /// Whether the document records how the tick failed.
    is_failure_recorded: bool,
    /// How ticks fail according to the document with which this one started.
    known_failure: Option<String>,
    /// The batch with which the tick fails.
    failed: Option<FailedBatch>,
    changes: Vec<Change>,
    idle_before: u64,
    fencing_token: u64,
    lag: Lag,
    /// When the read that found `lag` started, if it found rows.
    waits_since: Option<Instant>,
    /// Whether the last fetch reached the end of the source.
    all_read: bool,
    /// Rows that waited when they were counted last, at the end of an earlier tick.
    rows_counted: Option<u64>,
    rows_behind: Option<u64>,
    service_time: Option<OffsetDateTime>,
    timings: Vec<(&'static str, Duration)>,
    /// Totals at the start of the current round.
    round_start: RoundStart,
    /// Longest duration of each step, in milliseconds.
    longest_ms: BTreeMap<String, u64>,
}

impl<'a> Report<'a> {
    pub(super) fn start(poller: &'a Poller, request: &'a TickRequest) -> Self {
        let report = Self {
            poller,
            request,
            started_at: Instant::now(),
            end: "tick_complete",
            rows: 0,
            batches: 0,
            quarantined: 0,
            parked: 0,
            recovered: 0,
            retried_for: Duration::ZERO,
            counted: None,
            warned_of_skips: false,
            breaker_was_open: None,
            is_failure_recorded: false,
            known_failure: None,
            failed: None,
            changes: Vec::new(),
            idle_before: 0,
            fencing_token: 0,
            lag: Lag::default(),
            waits_since: None,
            all_read: false,
            rows_counted: None,
            rows_behind: None,
            service_time: None,
            timings: Vec::new(),
            round_start: RoundStart::now(),
            longest_ms: poller.last_commit().into_iter().collect(),
        };
        tick_event!(report, debug, event = "tick_start", "Tick of poller `{}` begins", poller.name);
        poller.metrics.tick_started(&poller.name);
        report
    }

    pub(super) fn poller_name(&self) -> &'a str {
        &self.poller.name
    }

    pub(super) fn request(&self) -> &'a TickRequest {
        self.request
    }

    pub(super) fn started_at(&self) -> Instant {
        self.started_at
    }

    /// Whether the tick may start anything new: it was not asked to stop, and its time is not up.
    pub(super) fn has_time(&self) -> bool {
        !self.request.stop.is_set() && self.started_at.elapsed() < self.poller.limits.tick_time_max
    }

    /// Returns the span of one delivery of a batch, whichever handler it is for.
    pub(super) fn delivery_span(&self, batch: &Batch, step: Option<&str>) -> Span {
        span!(
            "deliver batch",
            highwater.batch.id = batch.id.as_str(),
            highwater.batch.rows = batch.rows(),
            highwater.step = step,
            highwater.fencing_token = self.fencing_token,
            error.type = Empty,
        )
    }

    /// Returns the number of rows delivered so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn batches(&self) -> u64 {
        self.batches
    }

    pub(super) fn note_idle_ticks(&mut self, ticks: u64) {
        self.idle_before = ticks;
    }

    /// Notes that the write which released the lease records how the tick failed.
    pub(super) fn note_failure_recorded(&mut self) {
        self.is_failure_recorded = true;
    }

    pub(super) fn is_failure_recorded(&self) -> bool {
        self.is_failure_recorded
    }

    /// Notes whether the read of the next batch succeeded, and whether there is one.
    pub(super) fn note_next(&mut self, next: &Result<Next, TickError>) {
        self.all_read = matches!(next, Ok(Next::Nothing(_)));
        self.end = if next.is_ok() { "tick_complete" } else { "fetch_failed" };
    }

    pub(super) fn end(&self) -> &'static str {
        self.end
    }

    pub(super) fn note_time(&mut self, at: OffsetDateTime) {
        self.service_time = Some(at);
    }

    /// Notes a fetch; a prefetch counts only once its rows are used.
    pub(super) fn rows_read(&mut self, stats: FetchStats) {
        let FetchStats { rows, lag, started_at, took: duration } = stats;
        let count = u64::try_from(rows).unwrap_or(u64::MAX);
        self.took("fetch", duration);
        self.poller.metrics.fetched(&self.poller.name, count, duration);
        if let Some(lag) = lag {
            self.lag = lag;
            self.waits_since = (rows > 0).then_some(started_at);
            let Lag { time, positions, held_back, retention_left, range: _ } = lag;
            let waiting = rows > 0;
            let behind = SourceLag {
                time,
                read_at: started_at,
                waiting,
                positions,
                held_back,
                retention_left,
            };
            self.poller.metrics.behind(&self.poller.name, &behind);
        }
        tick_event!(
            self,
            debug,
            event = "fetch_complete",
            rows,
            duration_ms = ms(duration),
            "Read {}",
            counted(count, "row")
        );
    }

    pub(super) fn lease_acquired(&mut self, lease: &Lease<'_>, base: &Snapshot) {
        self.fencing_token = lease.token().0;
        let crashes =
            |document: &StateDocument| document.in_flight.as_ref().map_or(0, |batch| batch.crashes);
        let taken_over = crashes(lease.expected()) > crashes(&base.document);
        macro_rules! line {
            ($level:ident, $($text:tt)*) => {
                tick_event!(
                    self,
                    $level,
                    event = "lease_acquired",
                    token = self.fencing_token,
                    generation = lease.generation().0,
                    taken_over,
                    $($text)*
                )
            };
        }
        let (name, token) = (&self.poller.name, self.fencing_token);
        if taken_over {
            self.poller.metrics.taken_over(name);
            let owner_id = base.document.lease.owner_id.as_deref().unwrap_or_default();
            line!(
                warn,
                "Took over the lease of poller `{name}` from `{owner_id}`, which stopped renewing it; rows \
                 of the batch in flight may be delivered twice"
            );
        } else {
            line!(debug, "Acquired the lease of poller `{name}` with token {token}");
        }
    }

    pub(super) fn handler_ran(&mut self, duration: Duration) {
        self.took("handler", duration);
        self.poller.metrics.handled(&self.poller.name, duration);
    }

    pub(super) fn batch_complete(
        &mut self,
        batch: &Batch,
        rows: u64,
        before: Option<&Cursor>,
        duration: Duration,
        at: OffsetDateTime,
    ) {
        self.rows += rows;
        self.batches += 1;
        self.counted = Some(batch.id.clone());
        self.service_time = Some(at);
        self.took("commit", duration);
        self.poller.keep_commit(ms(duration));
        self.poller.metrics.committed(&self.poller.name, rows, Some(duration), batch.lag);
        let late = batch.is_late();
        if !late {
            self.poller.forget_committed(&batch.upto);
        }
        let after = if late { before } else { Some(&batch.upto) };
        let text = |cursor: Option<&Cursor>| cursor.map_or(String::new(), |at| at.value.clone());
        tick_event!(
            self,
            debug,
            event = "batch_complete",
            batch_id = batch.id.as_str(),
            token = self.fencing_token,
            rows,
            late,
            checkpoint_before = text(before),
            checkpoint_after = text(after),
            commit_duration_ms = ms(duration),
            "Committed {} of poller `{}`",
            counted(rows, "event"),
            self.poller.name
        );
    }

    /// Logs and counts the accepted front of a batch that failed.
    pub(super) fn prefix_committed(&mut self, front: &Batch) {
        self.count_front(&front.id, &front.upto, front.rows());
    }

    fn count_front(&mut self, id: &BatchId, upto: &Cursor, rows: u64) {
        self.rows += rows;
        self.batches += 1;
        self.counted = Some(id.clone());
        self.poller.forget_committed(upto);
        self.poller.metrics.committed(&self.poller.name, rows, None, None);
        tick_event!(
            self,
            debug,
            event = "batch_complete",
            batch_id = id.as_str(),
            token = self.fencing_token,
            rows,
            checkpoint_after = upto.value,
            "Committed the first {} of a batch of poller `{}`",
            counted(rows, "event"),
            self.poller.name
        );
    }

    /// Logs and counts what renewals have committed of a batch that gets no commit of its own.
    pub(super) fn front_committed(&mut self, batch: &Batch, document: &StateDocument) {
        let Checkpoint { cursor, last_successful_batch_id: id, .. } = &document.checkpoint;
        let (Some(upto), Some(id)) = (cursor, id) else { return };
        let last = batch.events.iter().position(|event| event.cursor == *upto);
        if let Some(last) = last.filter(|_| self.counted.as_ref() != Some(id)) {
            self.count_front(id, upto, u64::try_from(last + 1).unwrap_or(u64::MAX));
        }
    }

    /// Logs that no row after a failing one could be tried, so that it is unknown whether the target accepts any.
    pub(super) fn probe_read_failed(&self, error: &TickError) {
        tick_event!(
            self,
            warn,
            event = "probe_read_failed",
            token = self.fencing_token,
            error = chain(error),
            "Poller `{}` could not read rows after a failing one, so it is not parked now",
            self.poller.name
        );
    }

    /// Logs that the damaged entry of a key was replaced.
    pub(super) fn entry_replaced(&self, key_id: &KeyId, damaged: &EntryError) {
        let name = self.poller.of();
        tick_event!(
            self,
            error,
            event = "entry_replaced",
            key_id = key_id.as_str(),
            token = self.fencing_token,
            error = chain(damaged),
            "The entry of a parked key of poller `{name}` was damaged, and is replaced by one of the row's current version; \
             deliver it with `highwater quarantine redrive {name} {key_id}`",
        );
    }

    /// Logs that a target accepts less at once than the settings allow.
    pub(super) fn batch_halved(&self, batch: &Batch, half: usize, error: &HandlerError) {
        let (rows, reason) = (batch.rows(), chain(error));
        macro_rules! line {
            ($level:ident) => {
                tick_event!(
                    self,
                    $level,
                    event = "batch_halved",
                    batch_id = batch.id.as_str(),
                    token = self.fencing_token,
                    rows,
                    error = reason,
                    "A batch of {} is too large for the handler of poller `{}`, so {half} are tried; \
                     lower `BATCH_ROWS_MAX` or `BATCH_BYTES_MAX`",
                    counted(rows, "row"),
                    self.poller.name
                )
            };
        }
        // Every full batch is too large until a setting changes.
        if self.poller.log_throttle.are_due("batch_halved", "") {
            line!(warn);
        } else {
            line!(debug);
        }
    }

    /// Logs that the failing row is searched for.
    pub(super) fn bisecting(&self, batch: &Batch, error: &HandlerError) {
        let rows = batch.rows();
        tick_event!(
            self,
            warn,
            event = "batch_bisected",
            batch_id = batch.id.as_str(),
            token = self.fencing_token,
            rows,
            error = chain(error),
            "Halving a batch of {} of poller `{}` to find the failing one",
            counted(rows, "row"),
            self.poller.name
        );
    }

    /// Logs and counts a key that is not retried any more.
    pub(super) fn key_quarantined(&mut self, entry: &Entry) {
        self.quarantined += 1;
        self.poller.metrics.quarantined(&self.poller.name, entry.reason.as_str(), 1);
        self.key_was_quarantined(entry);
        let (name, key_id) = (&self.poller.name, &entry.key_id);
        tick_event!(
            self,
            error,
            event = "key_quarantined",
            key_id = key_id.as_str(),
            retries = entry.retries,
            reason = entry.reason.as_str(),
            error = entry.error,
            "Stopped retrying a parked key of poller `{name}`; fix its row or the target, then \
             `highwater quarantine redrive {name} {key_id}`",
        );
    }

    /// Notes that a retry delivered the row of a parked key.
    pub(super) fn note_recovered(&mut self) {
        self.recovered += 1;
    }

    /// Notes that keys were retried until now.
    pub(super) fn note_retries(&mut self) {
        self.retried_for = self.started_at.elapsed();
    }

    /// Whether rows that are delivered now do not have the time of a whole tick.
    pub(super) fn is_late_start(&self) -> bool {
        self.batches > 0 || self.retried_for > self.poller.limits.tick_time_max / RETRY_TIME_SHARE
    }

    /// Logs rows that wait because their keys are parked.
    pub(super) fn diverted(&self, rows: &[Diverted], gone: &BTreeSet<EventId>) {
        let events = rows.iter().map(|row| &row.event);
        for event in events.filter(|event| !gone.contains(&event.id)) {
            tracing::debug!(
                event = "row_diverted",
                poller.name = self.poller.name,
                event_id = event.id.as_str(),
                key_id = KeyId::of(&event.cursor.key).as_str(),
                cursor = event.cursor.value,
                "A row of poller `{}` waits, because its key is parked",
                self.poller.name
            );
        }
    }

    /// Logs and counts rows whose keys were parked, or quarantined at once.
    pub(super) fn set_aside(
        &mut self,
        state: EntryState,
        batch_id: &BatchId,
        events: &[RowEvent],
        reason: Reason,
        error: &str,
    ) {
        match state {
            EntryState::Retrying => self.parked(batch_id, events, reason, error),
            EntryState::Quarantined => self.quarantined(batch_id, events, reason, error),
        }
    }

    /// Logs rows whose keys were parked, to be retried automatically.
    fn parked(&mut self, batch_id: &BatchId, events: &[RowEvent], reason: Reason, error: &str) {
        self.parked += rows_of(events);
        self.rows_were_set_aside(ChangeEvent::RowParked, events, reason, error);
        let name = &self.poller.name;
        for event in events {
            let key_id = KeyId::of(&event.cursor.key);
            tick_event!(
                self,
                warn,
                event = "row_parked",
                batch_id = batch_id.as_str(),
                event_id = event.id.as_str(),
                key_id = key_id.as_str(),
                token = self.fencing_token,
                cursor = event.cursor.value,
                reason = reason.as_str(),
                error,
                "Parked a row of poller `{name}` with the later versions of its key, and retries it; look at it with \
                 `highwater quarantine show {name} {key_id}`",
            );
        }
    }

    /// Logs and counts quarantined rows.
    fn quarantined(
        &mut self,
        batch_id: &BatchId,
        events: &[RowEvent],
        reason: Reason,
        error: &str,
    ) {
        let rows = rows_of(events);
        self.quarantined += rows;
        self.poller.metrics.quarantined(&self.poller.name, reason.as_str(), rows);
        self.rows_were_set_aside(ChangeEvent::RowQuarantined, events, reason, error);
        // Rows that a range quarantines are kept under the name of its poller.
        let name = self.poller.of();
        for event in events {
            let key_id = KeyId::of(&event.cursor.key);
            tick_event!(
                self,
                error,
                event = "row_quarantined",
                batch_id = batch_id.as_str(),
                event_id = event.id.as_str(),
                key_id = key_id.as_str(),
                token = self.fencing_token,
                cursor = event.cursor.value,
                reason = reason.as_str(),
                error,
                "Quarantined a row of poller `{name}`; look at it with `highwater quarantine show {name} {key_id}`",
            );
        }
    }

    /// Logs and counts that the breaker opened or closed since it was looked at last.
    pub(super) fn breaker(&mut self, quarantined_in_a_row: u32) {
        let is_open = self.poller.policy.breaker_is_open(quarantined_in_a_row);
        match (self.breaker_was_open.replace(is_open), is_open) {
            (Some(false), true) => {
                self.poller.metrics.breaker_opened(&self.poller.name);
                self.breaker_has_opened(quarantined_in_a_row);
                // Rows that a range quarantines are kept under the name of its poller.
                let name = self.poller.of();
                tick_event!(
                    self,
                    error,
                    event = "breaker_opened",
                    token = self.fencing_token,
                    rows = quarantined_in_a_row,
                    "{quarantined_in_a_row} rows of poller `{name}` in a row were parked: the target may be rejecting \
                     every row, so no further row is parked until it accepts one; look at them with \
                     `highwater quarantine list {name}`, and fix the target; \
                     `highwater quarantine redrive {name} --all` retries them at once"
                );
            }
            (Some(true), false) => tick_event!(
                self,
                info,
                event = "breaker_closed",
                token = self.fencing_token,
                "The target of poller `{}` accepts rows again",
                self.poller.name
            ),
            (None | Some(false), false) | (None | Some(true), true) => {}
        }
    }

    /// Counts a window that was read again and holds nothing more.
    pub(super) fn window_audited(&self, window: &ClosedWindow) {
        let again = window.again_upto.is_some();
        let outcome = if again { "delivered_again" } else { "as_delivered" };
        self.poller.metrics.audited(&self.poller.name, outcome);
        tick_event!(
            self,
            debug,
            event = "window_audited",
            after = window.after.as_ref().map_or("", |cursor| cursor.value.as_str()),
            upto = window.upto.value,
            rows = window.ids.rows,
            outcome,
            "Read a closed window of poller `{}` again",
            self.poller.name
        );
    }

    /// Logs and counts rows that were committed later than the settle window allows. Rows that were rejected before
    /// have been logged then. Unless it is `certain` which rows those are, [`Self::window_differs`] logs them.
    pub(super) fn late_commits_found(&self, window: &ClosedWindow, rows: usize, certain: bool) {
        if window.not_taken.is_some() || !certain {
            return;
        }
        let rows = u64::try_from(rows).unwrap_or(u64::MAX);
        self.poller.metrics.late(&self.poller.name, rows);
        tick_event!(
            self,
            warn,
            event = "late_commits_found",
            after = window.after.as_ref().map_or("", |cursor| cursor.value.as_str()),
            upto = window.upto.value,
            rows,
            "{} of poller `{}` committed later than its settle window allows; delivered now. Raise `SOURCE__SETTLE`, or \
             shorten the transactions that write them",
            counted(rows, "row"),
            self.poller.name
        );
    }

    /// Logs a window that has changed since it was delivered, if it is no longer known which rows were delivered.
    pub(super) fn window_differs(&self, window: &ClosedWindow, found: IdSum) {
        if window.not_taken.is_some() {
            return;
        }
        let (delivered, rows) = (window.ids.rows, found.rows);
        tick_event!(
            self,
            warn,
            event = "window_differs",
            after = window.after.as_ref().map_or("", |cursor| cursor.value.as_str()),
            upto = window.upto.value,
            delivered,
            rows,
            "A closed window of poller `{}` held {delivered} rows and holds {rows} now: some have \
             changed since or were committed late, and which is not known any more, so it is delivered \
             again",
            self.poller.name
        );
    }

    /// Logs and counts rows that will not be audited, given the total before and after.
    pub(super) fn rows_not_audited(&mut self, before: u64, after: u64) {
        let rows = after.saturating_sub(before);
        if rows == 0 {
            return;
        }
        self.poller.metrics.not_audited(&self.poller.name, rows);
        if std::mem::replace(&mut self.warned_of_skips, true) {
            return;
        }
        tick_event!(
            self,
            warn,
            event = "rows_not_audited",
            rows,
            "More rows of poller `{}` wait to be read again than can be kept track of: {} and \
             maybe more of this tick are not; lower `SOURCE__AUDIT_AFTER`",
            self.poller.name,
            counted(rows, "row")
        );
    }

    /// Logs a lease that could not be released; it lapses by itself.
    pub(super) fn could_not_release(&self, error: &LeaseError) {
        tick_event!(
            self,
            warn,
            event = "lease_release_failed",
            token = self.fencing_token,
            error = chain(error),
            "Could not give up the lease of poller `{}`; it will lapse",
            self.poller.name
        );
    }

    /// Ends the tick: one log line, its metrics, its report.
    pub(super) fn finish(self, result: Result<TickOutcome, TickError>) -> TickReport {
        let duration = self.started_at.elapsed();
        let row = outcome_row(&result);
        let failure = row.error.filter(|_| row.metric.is_some());
        let metrics = &self.poller.metrics;
        if let Err(error) = &result
            && let Some(by) = error.refused_by()
        {
            metrics.write_rejected(&self.poller.name, by);
        }
        metrics.tick(&self.poller.name, row.outcome, failure, duration);
        if let (Ok(TickOutcome::Committed { .. } | TickOutcome::Idle), Some(at)) =
            (&result, self.service_time)
        {
            metrics.success(&self.poller.name, at);
        }
        let what = self.what(&result);
        let row = OutcomeRow { level: self.level(&result, row, &what), ..row };
        let summary = format!("poller `{}`: {what} ({} ms)", self.poller.name, ms(duration));
        let line = self.line(row, ms(duration));
        line::log(&line, row, &result, &summary);
        let (rows, batches, level) = (self.rows, self.batches, row.level);
        TickReport { result, rows, batches, duration, summary, level, line, changes: self.changes }
    }

    /// Returns the outcome for people.
    fn what(&self, result: &Result<TickOutcome, TickError>) -> String {
        let of_parking = [
            (self.recovered, "delivered from parking"),
            (self.parked, "parked"),
            (self.quarantined, "quarantined"),
        ];
        let of_parking = of_parking.into_iter().filter(|(rows, _)| *rows > 0);
        let of_parking = of_parking.map(|(rows, what)| format!(", {what} {rows}"));
        let breaker = (self.breaker_was_open == Some(true)).then(|| ", breaker open".to_owned());
        let of_parking: String = of_parking.chain(breaker).collect();
        match result {
            Ok(TickOutcome::Committed { more }) => {
                let waiting = if *more { self.waiting() } else { String::new() };
                let (rows, batches) = (counted(self.rows, "row"), counted(self.batches, "batch"));
                format!("committed {rows} in {batches}{of_parking}{waiting}")
            }
            Ok(TickOutcome::Idle) => format!("nothing new{of_parking}"),
            Ok(TickOutcome::Skipped(Skipped::AlreadyRunning)) => {
                "skipped: already running".to_owned()
            }
            Ok(TickOutcome::Skipped(Skipped::Held { owner_id, until })) => {
                let until = rfc3339(whole_second_after(*until));
                format!("skipped: lease held by `{owner_id}` until {until} unless it is renewed")
            }
            Ok(TickOutcome::Skipped(Skipped::Conflict)) => {
                "skipped: another instance was first".to_owned()
            }
            Ok(TickOutcome::BackingOff { until, failing }) => {
                self.backing_off(*until, failing.as_ref())
            }
            Ok(TickOutcome::Paused { by, reason, since }) => self.paused(by, reason, *since),
            Err(error) => {
                let (rows, batch) = (counted(self.rows, "row"), self.failed_batch());
                format!("failed after {rows}{of_parking}: {}{batch}", chain(error))
            }
        }
    }

    /// Returns the command that ends a pause or a backoff; a range is resumed by the command that started it.
    fn resume(&self, effect: &str) -> String {
        let poller = self.poller;
        match poller.range_of {
            None => format!(" (`highwater resume {name}` {effect})", name = poller.name),
            Some(_) => String::new(),
        }
    }
}

impl FetchObserver for Report<'_> {
    fn fetched(&mut self, stats: FetchStats) {
        self.rows_read(stats);
    }
}

fn rows_of(events: &[RowEvent]) -> u64 {
    u64::try_from(events.len()).unwrap_or(u64::MAX)
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
