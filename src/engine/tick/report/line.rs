//! The last log line of a tick.

use serde::Serialize;
use tracing::{Level, debug, error, info, warn};

use super::super::batch::Batch;
use super::Report;
use crate::cursor::Cursor;
use crate::document::StaleWrite;
use crate::error::shortened;
use crate::event::{ChangeEvent, counted};
use crate::handler::HandlerError;
use crate::poller::{OutcomeRow, TickError, TickOutcome};
use crate::trace::TICK_TARGET;

/// Its fields.
#[derive(Clone, Debug, Serialize)]
pub struct TickLine {
    /// Name of the event.
    pub event: &'static str,
    /// Name of the poller.
    #[serde(rename = "poller.name")]
    pub poller: String,
    /// Id of the invocation.
    pub invocation_id: String,
    /// How the tick ended.
    pub outcome: &'static str,
    /// Rows committed.
    pub rows: u64,
    /// Batches committed.
    pub batches: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// How far the poller lags behind the source, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<f64>,
    /// The same in positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_positions: Option<u64>,
    /// Positions that may not be read yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_back: Option<u64>,
    /// Positions until changes are lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_left: Option<u64>,
    /// Rows that wait, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_behind: Option<u64>,
    /// Set if counting stopped at that number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_behind_at_least: Option<bool>,
    /// The batch that the handler did not accept.
    #[serde(flatten)]
    pub failed: Option<FailedBatch>,
}

/// The batch with which a tick failed.
#[derive(Clone, Debug, Serialize)]
pub struct FailedBatch {
    /// Its content identity.
    pub batch_id: String,
    /// Which attempt at it failed.
    pub attempt: u32,
    /// Rows in it.
    pub batch_rows: u64,
    /// Key of its first row, as JSON.
    pub first_key: String,
    /// Key of its last row, as JSON.
    pub last_key: String,
    /// The position after which it starts; empty for the beginning.
    pub checkpoint: String,
}

impl FailedBatch {
    fn of(batch: &Batch, attempt: u32, checkpoint: Option<&Cursor>) -> Self {
        let key = |event: Option<&ChangeEvent>| {
            let key = event.map(|event| serde_json::to_string(&event.cursor.key));
            shortened(key.and_then(Result::ok).unwrap_or_default())
        };
        Self {
            batch_id: batch.id.as_str().to_owned(),
            attempt,
            batch_rows: batch.rows(),
            first_key: key(batch.events.first()),
            last_key: key(batch.events.last()),
            checkpoint: checkpoint.map(|at| at.value.clone()).unwrap_or_default(),
        }
    }

    /// Returns which rows failed, for people.
    fn text(&self) -> String {
        let rows = counted(self.batch_rows, "row");
        let keys = match (&self.first_key, &self.last_key) {
            (first, last) if first == last => format!("key {first}"),
            (first, last) => format!("keys {first} to {last}"),
        };
        format!("batch {} of {rows}, {keys}, attempt {}", self.batch_id, self.attempt)
    }
}

impl Report<'_> {
    pub(super) fn line(&self, row: OutcomeRow, duration_ms: u64) -> TickLine {
        TickLine {
            event: row.event,
            poller: self.poller.name.clone(),
            invocation_id: self.request.invocation_id.clone(),
            outcome: row.outcome,
            rows: self.rows,
            batches: self.batches,
            duration_ms,
            lag_seconds: self.lag.time.map(|lag| lag.as_secs_f64()),
            lag_positions: self.lag.positions,
            held_back: self.lag.held_back,
            retention_left: self.lag.retention_left,
            rows_behind: self.rows_behind,
            rows_behind_at_least: self.is_count_capped().then_some(true),
            failed: self.failed.clone(),
        }
    }

    /// Notes the batch with which the tick fails.
    pub(in crate::tick) fn note_failed_batch(
        &mut self,
        batch: &Batch,
        attempt: u32,
        checkpoint: Option<&Cursor>,
    ) {
        self.failed = Some(FailedBatch::of(batch, attempt, checkpoint));
    }

    /// Returns the batch with which the tick failed, for people.
    pub(super) fn failed_batch(&self) -> String {
        self.failed.as_ref().map(|failed| format!(" ({})", failed.text())).unwrap_or_default()
    }

    /// Whether more rows may wait than were counted.
    fn is_count_capped(&self) -> bool {
        let most = u64::try_from(self.poller.rows_counted_max).unwrap_or(u64::MAX);
        most > 0 && self.rows_behind == Some(most)
    }

    /// Returns the number of waiting rows for people.
    pub(super) fn waiting(&self) -> String {
        match self.rows_behind {
            Some(rows) if self.is_count_capped() => {
                format!(", more to do: at least {}", counted(rows, "row"))
            }
            Some(rows) if rows > 0 => format!(", more to do: {}", counted(rows, "row")),
            Some(_) | None => ", more to do".to_owned(),
        }
    }
}

/// Logs the end of a tick.
pub(super) fn log(
    line: &TickLine,
    row: OutcomeRow,
    result: &Result<TickOutcome, TickError>,
    summary: &str,
) {
    let failed = line.failed.as_ref().filter(|_| result.is_err());
    macro_rules! line {
        ($level:ident, { $($target:tt)* } $($stale:tt)*) => {
            $level!(
                $($target)*
                event = line.event,
                poller.name = line.poller,
                invocation_id = line.invocation_id,
                outcome = line.outcome,
                error.type = row.error.filter(|_| result.is_err()).unwrap_or_default(),
                rows = line.rows,
                batches = line.batches,
                duration_ms = line.duration_ms,
                lag_seconds = line.lag_seconds,
                lag_positions = line.lag_positions,
                held_back = line.held_back,
                retention_left = line.retention_left,
                rows_behind = line.rows_behind,
                rows_behind_at_least = line.rows_behind_at_least,
                batch_id = failed.map(|failed| failed.batch_id.as_str()),
                attempt = failed.map(|failed| failed.attempt),
                batch_rows = failed.map(|failed| failed.batch_rows),
                first_key = failed.map(|failed| failed.first_key.as_str()),
                last_key = failed.map(|failed| failed.last_key.as_str()),
                checkpoint = failed.map(|failed| failed.checkpoint.as_str()),
                $($stale)*
                "{summary}"
            )
        };
    }
    match (result, row.level) {
        (Err(TickError::Handler(HandlerError::Fenced(refused))), _) => line!(
            warn, {}
            stale_token = refused.stale.token.0,
            current_token = refused.current.token.0,
            reason = StaleWrite::REASON,
        ),
        (Err(TickError::FenceAhead { stale, current, .. }), _) => line!(
            error, {}
            stale_token = stale.token.0,
            current_token = current.token.0,
            reason = StaleWrite::REASON,
        ),
        (_, Level::ERROR) => line!(error, {}),
        (_, Level::WARN) => line!(warn, {}),
        (_, Level::INFO) => line!(info, { target: TICK_TARGET, }),
        (_, Level::DEBUG | Level::TRACE) => line!(debug, {}),
    }
}
