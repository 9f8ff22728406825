//! Formats numbers, times and states for the page and the terminal.

use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

use crate::event;
use crate::status::health::{Failure, Health, PollerState, Severity};
use crate::status::{Status, Tick, Tone};

/// Returns a time span in one readable unit. The page's script uses the same rules.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6_000 => format!("{} min", seconds / 60),
        6_000..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns a short span.
pub fn milliseconds(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => span(ms / 1_000),
    }
}

/// Returns a time span as "… ago".
pub fn ago(seconds: i64) -> String {
    // The service's clock is coarse, so a recent write may appear to be in the future.
    format!("{} ago", span(u64::try_from(seconds).unwrap_or(0)))
}

/// Returns how many keys are parked, and what becomes of them.
pub fn parked(status: &Status) -> String {
    let Some(parked) = status.parked.as_ref().filter(|_| status.quarantined > 0) else {
        return count(status.quarantined);
    };
    let kinds = [(parked.retrying, "retried"), (parked.quarantined, "quarantined")];
    let kinds = kinds.into_iter().filter(|(keys, _)| *keys > 0);
    let kinds: Vec<_> = kinds.map(|(keys, kind)| format!("{} {kind}", count(keys))).collect();
    format!("{} ({})", count(status.quarantined), kinds.join(", "))
}

/// Returns a number with thousands separators.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number with its noun: `1 row`, `2,000 rows`.
pub fn counted(number: u64, noun: &str) -> String {
    event::counted(number, noun).replacen(&number.to_string(), &count(number), 1)
}

/// Returns a rate with one decimal below 10, and none above.
pub fn rate(rows_per_minute: f64) -> String {
    let text = if rows_per_minute < 10.0 { format!("{rows_per_minute:.1}") } else { String::new() };
    match text.as_str() {
        // Only infinity does not parse: a rate is never negative.
        "" => format!("{rows_per_minute:.0}").parse().map_or_else(|_| "∞".to_owned(), count),
        "0.0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// Returns a time to the second, in UTC.
pub fn clock(at: OffsetDateTime) -> String {
    let form = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    at.to_offset(UtcOffset::UTC).format(form).unwrap_or_default()
}

/// Returns a time to the second with its own offset, and the name of its time zone.
pub fn local(at: OffsetDateTime, zone: Option<&str>) -> String {
    let form = format_description!(
        "[year]-[month]-[day] [hour]:[minute]:[second] [offset_hour sign:mandatory]:[offset_minute]"
    );
    let text = at.format(form).unwrap_or_default();
    zone.map_or_else(|| text.clone(), |zone| format!("{text} ({zone})"))
}

/// Returns how far a poller is behind, from the most recent observation.
pub fn lag(status: &Status) -> Option<String> {
    let last = status.recent.last().map(|tick| tick.at);
    let seen = status.observed.as_ref();
    // The lag seen by an idle tick counts if it is newer than the last batch.
    let idle = seen.filter(|seen| last.is_none_or(|at| seen.at > at));
    let idle = idle.and_then(|seen| {
        let lag = std::time::Duration::try_from_secs_f64(seen.lag_seconds?).ok()?;
        u64::try_from(lag.as_millis()).ok()
    });
    match (idle.or(status.lag_ms), seen.and_then(|seen| seen.positions)) {
        (Some(lag), _) => Some(milliseconds(lag)),
        (None, positions) => positions.map(|positions| format!("{} behind", count(positions))),
    }
}

/// Returns the label and the colour of a state.
pub fn state(health: &Health) -> (&'static str, Tone) {
    let (word, fine) = match health.state {
        PollerState::NeverRan => ("Never ran", Tone::Note),
        PollerState::Running => ("Running", Tone::Good),
        PollerState::Idle => ("Idle", Tone::Good),
        PollerState::BackingOff => ("Backing off", Tone::Warning),
        PollerState::Failing => ("Failing", Tone::Bad),
        PollerState::Stopped => ("Stopped", Tone::Bad),
        PollerState::Silent => ("Silent", Tone::Bad),
        PollerState::Unknown => ("Unknown", Tone::Note),
        PollerState::Vanished => ("State lost", Tone::Bad),
        PollerState::Paused => ("Paused", Tone::Note),
        PollerState::Disabled => ("Disabled", Tone::Note),
        PollerState::Done => ("Done", Tone::Note),
        PollerState::Cancelled => ("Cancelled", Tone::Note),
        PollerState::TakenOver => ("Taken over", Tone::Note),
    };
    let tone = match health.severity {
        Severity::Ok => fine,
        Severity::Warning => Tone::Warning,
        Severity::Error => Tone::Bad,
    };
    (word, tone)
}

/// Returns the number of failed ticks and the time of the first.
pub fn failures(failure: &Failure) -> String {
    let ticks = counted(failure.count, "failed tick");
    format!("{ticks} since {} UTC", clock(failure.since))
}

/// Returns when a tick last succeeded, relative to `now`.
pub fn last_success(health: &Health, now: Option<OffsetDateTime>) -> Option<String> {
    let at = health.last_success_at?;
    Some(now.map_or_else(|| format!("{} UTC", clock(at)), |now| ago((now - at).whole_seconds())))
}

/// Returns the CSS class of a tone.
pub fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Warning => "warning",
        Tone::Bad => "bad",
        Tone::Note => "note",
    }
}

/// Returns a text alternative for a strip of ticks.
pub fn strip(ticks: &[Tick]) -> String {
    if ticks.is_empty() {
        return "no deliveries yet".to_owned();
    }
    let of = |tone| ticks.iter().filter(|tick| tick.tone == tone).count();
    let rows: u64 = ticks.iter().map(|tick| tick.rows).sum();
    let parts = [
        (of(Tone::Good), "delivered"),
        (of(Tone::Warning), "cut short"),
        (of(Tone::Bad), "failed"),
        (of(Tone::Note), "by an operator"),
    ];
    let parts = parts.iter().filter(|(number, _)| *number > 0);
    let parts: Vec<String> = parts.map(|(number, what)| format!("{number} {what}")).collect();
    let ticks = counted(u64::try_from(ticks.len()).unwrap_or(u64::MAX), "tick");
    format!("last {ticks}: {}, {}", parts.join(", "), counted(rows, "row"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::BacklogStatus;

    #[test]
    fn spans_are_shown_in_one_unit() {
        for (seconds, expected) in [
            (0, "0 s"),
            (99, "99 s"),
            (100, "1 min"),
            (5_999, "99 min"),
            (6_000, "1 h"),
            (172_799, "47 h"),
            (172_800, "2 d"),
        ] {
            assert_eq!(span(seconds), expected);
        }
        for (ms, expected) in [
            (999, "999 ms"),
            (1_000, "1.0 s"),
            (9_999, "9.9 s"),
            (10_000, "10 s"),
            (700_000, "11 min"),
        ] {
            assert_eq!(milliseconds(ms), expected);
        }
        assert_eq!((ago(-3), ago(61)), ("0 s ago".to_owned(), "61 s ago".to_owned()));
    }

    #[test]
    fn numbers_are_readable() {
        let all = [0, 999, 1_000, 1_234_567].map(count);
        assert_eq!(all, ["0", "999", "1,000", "1,234,567"]);
        let all = [0.0, 0.04, 0.25, 9.9, 120.4, 2_926.0].map(rate);
        assert_eq!(all, ["0", "0", "0.2", "9.9", "120", "2,926"]);
    }

    #[test]
    fn the_newest_observation_gives_the_lag() {
        let at = |minute: u8| {
            time::macros::datetime!(2026-01-01 1:00 UTC) + time::Duration::minutes(minute.into())
        };
        let tick = |minute| Tick {
            at: at(minute),
            outcome: "tick_complete".to_owned(),
            tone: Tone::Good,
            rows: 1,
            batches: 1,
            duration_ms: 1,
            idle_before: 0,
            longest_ms: std::collections::BTreeMap::new(),
            note: None,
        };
        let seen = |minute, lag_seconds, positions| BacklogStatus {
            at: at(minute),
            lag_seconds,
            positions,
            rows: None,
            held_back: None,
            retention_left: None,
            idle_ticks: 1,
        };
        let shown = |lag_ms, observed| {
            lag(&Status { lag_ms, recent: vec![tick(5)], observed, ..Status::default() })
        };
        assert_eq!(shown(Some(70), None).as_deref(), Some("70 ms"));
        assert_eq!(shown(Some(70), Some(seen(5, Some(9.0), None))).as_deref(), Some("70 ms"));
        assert_eq!(shown(Some(70), Some(seen(6, Some(9.0), None))).as_deref(), Some("9.0 s"));
        // A mode without times, after a tick that left rows.
        assert_eq!(shown(None, Some(seen(5, None, Some(1200)))).as_deref(), Some("1,200 behind"));
        assert_eq!(lag(&Status::default()), None);
    }
}
