//! The last log line of a tick.

use serde::Serialize;
use tracing::{Level, debug, error, info, warn};

use super::Report;
use crate::document::StaleWrite;
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
        }
    }

    /// Whether more rows may wait than were counted.
    fn is_count_capped(&self) -> bool {
        let most = u64::try_from(self.poller.rows_counted_max).unwrap_or(u64::MAX);
        most > 0 && self.rows_behind == Some(most)
    }

    /// Returns the number of waiting rows for people.
    pub(super) fn waiting(&self) -> String {
        match self.rows_behind {
            Some(rows) if self.is_count_capped() => format!(", more to do: at least {rows} rows"),
            Some(rows) if rows > 0 => format!(", more to do: {rows} rows"),
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
