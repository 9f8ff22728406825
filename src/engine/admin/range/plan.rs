//! What a range will cost, before it is started.

use crate::admin::Admin;
use crate::cursor::{Cursor, SourceState};
use crate::normalize::normalize;
use crate::poller::TickError;
use crate::range::Range;
use crate::source::FetchWindow;

/// Rows of a range, as far as they were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeSize {
    /// The number of rows, or a lower bound.
    pub rows: u64,
    /// Whether there may be more.
    pub more: bool,
}

impl Admin<'_> {
    /// Counts the rows of a range, but not beyond `rows_max`.
    ///
    /// # Errors
    ///
    /// [`TickError::Fetch`] if the source cannot be read, or no longer has all of the range.
    pub async fn size_of(self, range: &Range, rows_max: usize) -> Result<RangeSize, TickError> {
        let state = SourceState::new();
        let window = FetchWindow {
            after: range.after.as_ref(),
            upto: Some(&range.upto),
            rows_max,
            state: &state,
        };
        let rows = self.poller.source.count(window).await.map_err(TickError::Fetch)?;
        Ok(RangeSize { rows, more: u64::try_from(rows_max).is_ok_and(|max| rows >= max) })
    }

    /// Returns where windows of this many rows end within a range; the last window ends with the range.
    ///
    /// # Errors
    ///
    /// As [`Self::size_of`]; also if the source cannot split its ranges.
    pub async fn divide(
        self,
        range: &Range,
        windows: usize,
        rows: usize,
    ) -> Result<Vec<Cursor>, TickError> {
        let state = SourceState::new();
        let mut ends: Vec<Cursor> = Vec::new();
        for _ in 1..windows {
            let window = FetchWindow {
                after: ends.last().or(range.after.as_ref()),
                upto: Some(&range.upto),
                rows_max: rows.max(1),
                state: &state,
            };
            let last = self.poller.source.last_of(window).await.map_err(TickError::Fetch)?;
            let events =
                normalize(self.poller.source.shape(), &last).map_err(TickError::Normalize)?;
            let Some(end) = events.into_iter().next_back().map(|event| event.cursor) else { break };
            ends.push(end);
        }
        Ok(ends)
    }
}
