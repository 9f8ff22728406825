//! Settings of batch sizes, prefetch, overlapped commits and follow mode.

use std::time::Duration;

use super::parse::{self, Expected};
use super::read::Reader;
use super::{HandlerConfig, settings};
use crate::policy::{FailurePolicy, Flow, Follow, OVERLAP_CRASHES_MIN};

/// Shortest interval between polls in follow mode.
const FOLLOW_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Reads the flow of batches of at most `rows_max` rows.
pub(super) fn read(reader: &mut Reader<'_>, segment: &str, rows_max: u32) -> Option<Flow> {
    let at = Some(segment);
    let is_set = reader.text(&settings::BATCH_ROWS_MIN.name_for(at)).is_some();
    let rows_min = reader.read(&settings::BATCH_ROWS_MIN, at, |text| {
        let read = parse::number(1..=u32::MAX)(text)?;
        if is_set && read > rows_max {
            let max = &settings::BATCH_ROWS_MAX.name_for(at);
            return Err(Expected::new(format!("at most {rows_max}, the value of `{max}`")));
        }
        Ok(read.min(rows_max))
    });
    let prefetch = reader.read(&settings::PREFETCH, at, parse::boolean);
    let overlap_commit = reader.read(&settings::OVERLAP_COMMIT, at, parse::boolean);
    let follow = read_follow(reader, segment);
    Some(Flow {
        prefetch: prefetch?,
        overlap_commit: overlap_commit?,
        batch_rows_min: usize::try_from(rows_min?).unwrap_or(usize::MAX),
        follow: follow.map(|follow| (!follow.time.is_zero()).then_some(follow))?,
    })
}

/// Rejects overlapped commits if they would have no effect or blame the wrong rows: a chain writes between its
/// steps, late rows are compared with committed ones, and a first crash may be caused by the next batch.
pub(super) fn check_overlap(
    reader: &mut Reader<'_>,
    segment: &str,
    (audit_after, handler, policy): (Option<Duration>, &HandlerConfig, &FailurePolicy),
) -> Option<()> {
    let at = Some(segment);
    let since = if matches!(handler, HandlerConfig::Chain(_)) {
        format!("`{}` is `chain`", settings::HANDLER_KIND.name_for(at))
    } else if audit_after.is_some() {
        format!("`{}` is set", settings::SOURCE_AUDIT_AFTER.name_for(at))
    } else if policy.crashes_max < OVERLAP_CRASHES_MIN {
        format!("`{}` is `{}`", settings::CRASHES_MAX.name_for(at), policy.crashes_max)
    } else {
        return Some(());
    };
    let name = settings::OVERLAP_COMMIT.name_for(at);
    reader.wrong(&name, "true", Expected::new(format!("`false`, since {since}")));
    None
}

/// Reads the settings of follow mode; a time of zero disables it.
fn read_follow(reader: &mut Reader<'_>, segment: &str) -> Option<Follow> {
    let at = Some(segment);
    let time = reader.read(&settings::FOLLOW_FOR, at, parse::duration);
    let interval =
        reader.read(&settings::FOLLOW_INTERVAL, at, parse::duration_from(FOLLOW_INTERVAL_MIN));
    let (time, interval) = (time?, interval?);
    Some(Follow { time, interval })
}
