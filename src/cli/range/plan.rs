//! The plan of a range: its rows, its cost, and its effect on targets.

use std::sync::Arc;

use serde::Serialize;
use time::OffsetDateTime;

use super::{RangeOptions, Shape};
use crate::output::{Exit, Failed};
use highwater::builder::range::Ranges;
use highwater::cursor::{Cursor, CursorMode};
use highwater::event::counted;
use highwater::poller::Poller;
use highwater::range::{Purpose, Range, RangeError, position};
use highwater::state::RangeRecord;

/// Most rows that are counted for a plan. A backfill may cover the whole table, a replay usually does not.
const COUNT_MAX: [(Purpose, usize); 2] =
    [(Purpose::Replay, 1_000_000), (Purpose::Backfill, 1_000_000_000)];

/// A planned range.
pub(super) struct Plan {
    pub(super) record: RangeRecord,
    pub(super) report: PlanReport,
}

/// What is printed of a plan.
#[derive(Serialize)]
pub(super) struct PlanReport {
    poller: String,
    purpose: &'static str,
    /// Position before the first row; `null` for the beginning.
    from: Option<Cursor>,
    /// The last position of the range.
    to: Cursor,
    /// Rows in the range now.
    pub(super) rows: u64,
    /// Whether there may be more than were counted.
    more: bool,
    windows: usize,
    batch_rows_max: usize,
    /// Batches, if only the row limit applies.
    batches: u64,
}

impl PlanReport {
    pub(super) fn text(&self) -> String {
        let range = Range { after: self.from.clone(), upto: self.to.clone() };
        let at_least = if self.more { "at least " } else { "" };
        let rows = counted(self.rows, "row");
        let windows = match self.windows {
            1 => String::new(),
            windows => format!(" in {windows} windows"),
        };
        format!(
            "{}: {} {}\n  {at_least}{rows} in {} or more batches of up to {}{windows}, events keep \
             their ids\n  a target that detects duplicates by batch or replay id applies the rows again; the poller's \
             checkpoint does not move",
            self.poller,
            self.purpose,
            range.text(),
            self.batches,
            self.batch_rows_max,
        )
    }
}

impl Plan {
    pub(super) async fn make(
        live: &Poller,
        ranges: &Arc<Ranges>,
        options: &RangeOptions,
        shape: Shape,
    ) -> Result<Self, Failed> {
        let range = Box::pin(range(live, options)).await?;
        let counted = COUNT_MAX.iter().find(|(purpose, _)| *purpose == shape.purpose);
        let size = live.admin().size_of(&range, counted.map_or(0, |(_, max)| *max)).await?;
        let rows = usize::try_from(size.rows).unwrap_or(usize::MAX);
        // Tracked changes are few, and cannot be divided.
        let tracked = range.upto.mode == CursorMode::ChangeTracking;
        let wanted = if tracked { 1 } else { shape.windows.min(rows.max(1)) };
        let ends = live.admin().divide(&range, wanted, rows.div_ceil(wanted)).await?;
        let windows = range.windows(&ends);
        let batch_rows_max = ranges.batch_rows_max();
        let report = PlanReport {
            poller: options.poller.clone(),
            purpose: shape.purpose.as_str(),
            from: range.after.clone(),
            to: range.upto.clone(),
            rows: size.rows,
            more: size.more,
            windows: windows.len(),
            batch_rows_max,
            batches: size.rows.div_ceil(u64::try_from(batch_rows_max).unwrap_or(u64::MAX).max(1)),
        };
        let in_windows = shape.purpose == Purpose::Backfill;
        let ends = windows.into_iter().map(|window| window.upto).filter(|_| in_windows).collect();
        let record = RangeRecord {
            of: options.poller.clone(),
            after: range.after,
            upto: range.upto,
            windows: ends,
            rows_planned: size.rows,
            rows: 0,
            // Set by the store's clock.
            begun_at: OffsetDateTime::UNIX_EPOCH,
            done_at: None,
            cancelled_at: None,
            extra: serde_json::Map::new(),
        };
        Ok(Self { record, report })
    }
}

async fn range(live: &Poller, options: &RangeOptions) -> Result<Range, Failed> {
    let usage = |text: String| Failed::new(Exit::Usage, text);
    if options.from.is_none() && !options.from_beginning {
        return Err(usage("add the start: `--from CURSOR` or `--from-beginning`".to_owned()));
    }
    if options.to.is_none() && !options.to_checkpoint {
        return Err(usage("add the end: `--to CURSOR` or `--to-checkpoint`".to_owned()));
    }
    let Some(checkpoint) = live.admin().checkpoint().await? else {
        return Err(usage(format!(
            "poller `{0}` is at the beginning, so there are no earlier rows to redeliver: it was reset, or has never \
             delivered; run a tick first (`highwater tick {0}`)",
            options.poller
        )));
    };
    let wrong = |error: RangeError| usage(error.to_string());
    let read = |text: &Option<String>| {
        text.as_deref().map(|text| position(text, &checkpoint)).transpose().map_err(wrong)
    };
    Range::before(&checkpoint, read(&options.from)?, read(&options.to)?).map_err(wrong)
}
