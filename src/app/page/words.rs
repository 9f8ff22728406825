//! Formats numbers, times and states for the page and the terminal.

use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

pub use crate::clock::span;
use crate::event;
use crate::status::health::{Failure, Health, PollerState, Severity};
use crate::status::{Status, Tick, Tone};

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

/// How old a checkpoint of a first load may be so that its rate is shown.
const RECENT_SECONDS: i64 = 900;

/// Returns the age of the oldest undelivered row, or the progress of the first load.
pub fn lag(status: &Status) -> Option<String> {
    // Of a poller that delivers nothing, the last rate says nothing.
    let advances = matches!(status.health.state, PollerState::Idle | PollerState::Running)
        && status.checkpoint_age_seconds.is_none_or(|age| age <= RECENT_SECONDS);
    if let Some(load) = status.first_load.as_ref().filter(|_| advances) {
        let (rows, rate) = (counted(load.rows, "row"), rate(load.rows_per_second));
        return Some(format!("first load: {rows}, {rate}/s"));
    }
    let lag = std::time::Duration::try_from_secs_f64(status.lag_seconds?).ok()?;
    Some(match u64::try_from(lag.as_millis()).ok()? {
        0 => "0 s".to_owned(),
        ms => milliseconds(ms),
    })
}

/// Returns how many rows were waiting when they were last counted, if any.
pub fn backlog(status: &Status) -> Option<String> {
    let rows = status.observed.as_ref()?.rows.filter(|rows| *rows > 0)?;
    Some(format!("{} pending", counted(rows, "row")))
}

/// Returns when the next tick is due; `None` if that is unknown, or if it would deliver nothing.
pub fn next_tick(status: &Status) -> Option<NextTick> {
    let at = status.next_tick_at.filter(|_| status.health.state.announces_tick())?;
    let is_failing = matches!(status.health.state, PollerState::BackingOff | PollerState::Failing);
    let batch = status.in_flight.as_ref().filter(|_| is_failing);
    let retry = batch.and_then(|batch| batch.next_attempt_at);
    Some(match retry.filter(|retry| *retry > at) {
        Some(retry) => NextTick { at: retry, is_retry: true },
        None => NextTick { at, is_retry: false },
    })
}

/// A future tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextTick {
    /// When it is due.
    pub at: OffsetDateTime,
    /// Whether earlier ticks do nothing, because the batch is not retried before.
    pub is_retry: bool,
}

/// Returns the time until something that is due in `seconds`.
pub fn due_in(seconds: u64) -> String {
    if seconds == 0 { "due now".to_owned() } else { format!("in {}", span(seconds)) }
}

/// Returns a schedule in words; `None` if that would be long.
pub fn schedule(text: &str) -> Option<String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let every = |step: &str, unit: &str| match step.parse::<u64>().ok()? {
        1 => Some(format!("every {unit}")),
        step => Some(format!("every {}", counted(step, unit))),
    };
    let number = |field: &str| field.parse::<u8>().ok();
    let step = |field: &str| match field {
        "*" => Some("1".to_owned()),
        _ => field.strip_prefix("*/").map(str::to_owned),
    };
    let [second, minute, hour, day, month, weekday] = fields[..] else { return None };
    if (day, month) != ("*", "*") {
        return None;
    }
    let at = |hour: u8, minute: u8, second: u8| match second {
        0 => format!("{hour:02}:{minute:02}"),
        _ => format!("{hour:02}:{minute:02}:{second:02}"),
    };
    match (number(second), number(minute), number(hour), weekday) {
        (None, None, None, "*") if (minute, hour) == ("*", "*") => every(&step(second)?, "second"),
        (Some(_), None, None, "*") if hour == "*" => every(&step(minute)?, "minute"),
        (Some(_), Some(0), None, "*") => every(&step(hour)?, "hour"),
        (Some(_), Some(minute), None, "*") => {
            Some(format!("{} at minute {minute}", every(&step(hour)?, "hour")?))
        }
        (Some(second), Some(minute), Some(hour), weekday) => {
            let days = match weekday {
                "*" => "every day".to_owned(),
                "1-5" => "Monday to Friday".to_owned(),
                day => format!("every {}", DAYS.get(usize::from(number(day)?))?),
            };
            Some(format!("{days} at {}", at(hour, minute, second)))
        }
        _ => None,
    }
}

const DAYS: [&str; 8] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Returns a position in a short form: rowversions without leading zeros.
pub fn position(text: &str) -> String {
    match text.strip_prefix("0x").map(|digits| digits.trim_start_matches('0')) {
        Some("") => "0x0".to_owned(),
        Some(digits) => format!("0x{digits}"),
        None => text.to_owned(),
    }
}

/// Returns the holder of a lease in a short form: the host, and the end of the id of its process.
pub fn owner(text: &str) -> String {
    const END: usize = 6;
    let instance = text.rsplit('/').next().unwrap_or(text);
    match instance.rsplit_once('-') {
        Some((host, id)) if id.chars().count() > END => {
            let skipped = id.chars().count() - END;
            let end: String = id.chars().skip(skipped).collect();
            format!("{host} (…{end})")
        }
        _ => instance.to_owned(),
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
    use crate::status::{BacklogStatus, LoadProgress};

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
    fn the_lag_is_an_age_or_the_progress_of_the_first_load() {
        let shown = |lag_seconds| lag(&Status { lag_seconds, ..Status::default() });
        assert_eq!(shown(None), None);
        assert_eq!(shown(Some(0.0)).as_deref(), Some("0 s"));
        assert_eq!(shown(Some(1.25)).as_deref(), Some("1.2 s"));
        let started_at = time::macros::datetime!(2026-01-01 1:00 UTC);
        let load = LoadProgress { started_at, rows: 1_200_000, rows_per_second: 30_000.0 };
        let loading = Status {
            health: Health { state: PollerState::Idle, ..Health::default() },
            first_load: Some(load),
            lag_seconds: Some(1e9),
            ..Status::default()
        };
        assert_eq!(lag(&loading).as_deref(), Some("first load: 1,200,000 rows, 30,000/s"));
    }

    #[test]
    fn schedules_are_in_words_if_they_are_simple() {
        for (text, expected) in [
            ("* * * * * *", Some("every second")),
            ("*/5 * * * * *", Some("every 5 seconds")),
            ("0 * * * * *", Some("every minute")),
            ("30 */15 * * * *", Some("every 15 minutes")),
            ("0 0 * * * *", Some("every hour")),
            ("0 20 */2 * * *", Some("every 2 hours at minute 20")),
            ("0 30 3 * * *", Some("every day at 03:30")),
            ("15 30 3 * * 1-5", Some("Monday to Friday at 03:30:15")),
            ("0 0 3 * * 1", Some("every Monday at 03:00")),
            ("0 0 3 1 1 *", None),
            ("0 0,30 * * * *", None),
            ("0 */5 8-18 * * *", None),
            ("00:05:00", None),
        ] {
            assert_eq!(schedule(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn positions_and_owners_are_short() {
        assert_eq!(position("0x00000000000007D1"), "0x7D1");
        assert_eq!((position("0x0000000000000000"), position("17")), ("0x0".into(), "17".into()));
        assert_eq!(owner("shop/0123456789ab-6a184cc42b0e4c5e"), "0123456789ab (…0e4c5e)");
        assert_eq!(owner("shop/uid-0@vm-00112233445566"), "uid-0@vm (…445566)");
        assert_eq!(owner("one"), "one");
    }

    #[test]
    fn pending_rows_have_a_unit() {
        let seen = |rows| {
            let at = time::macros::datetime!(2026-01-01 1:00 UTC);
            let observed = BacklogStatus {
                at,
                lag_seconds: None,
                positions: Some(9),
                rows,
                held_back: None,
                retention_left: None,
                idle_ticks: 1,
            };
            backlog(&Status { observed: Some(observed), ..Status::default() })
        };
        assert_eq!((seen(None), seen(Some(0))), (None, None));
        assert_eq!(seen(Some(1)).as_deref(), Some("1 row pending"));
        assert_eq!(seen(Some(1_200)).as_deref(), Some("1,200 rows pending"));
    }

    #[test]
    fn a_first_load_shows_its_rate_only_while_it_advances() {
        let at = time::macros::datetime!(2026-01-01 1:00 UTC);
        let load = LoadProgress { started_at: at, rows: 7, rows_per_second: 0.5 };
        let shown = |state, age| {
            let status = Status {
                health: Health { state, ..Health::default() },
                first_load: Some(load.clone()),
                checkpoint_age_seconds: Some(age),
                lag_seconds: Some(3.0),
                ..Status::default()
            };
            lag(&status).unwrap()
        };
        assert!(shown(PollerState::Idle, 5).starts_with("first load: 7 rows"));
        for (state, age) in
            [(PollerState::Failing, 5), (PollerState::BackingOff, 5), (PollerState::Idle, 3_600)]
        {
            assert!(!shown(state, age).contains("first load"), "{state:?}");
        }
    }

    #[test]
    fn no_tick_is_announced_that_would_deliver_nothing() {
        let at = time::macros::datetime!(2026-01-01 1:00 UTC);
        let retry_at = at + time::Duration::MINUTE;
        let next = |state, retry: Option<OffsetDateTime>| {
            let health = Health { state, ..Health::default() };
            let batch = crate::status::Batch { next_attempt_at: retry, ..batch() };
            let in_flight = Some(batch);
            next_tick(&Status { health, in_flight, next_tick_at: Some(at), ..Status::default() })
        };
        for state in [
            PollerState::Paused,
            PollerState::Stopped,
            PollerState::Disabled,
            PollerState::Silent,
            PollerState::Unknown,
            PollerState::Vanished,
            PollerState::TakenOver,
            PollerState::Done,
            PollerState::Cancelled,
        ] {
            assert_eq!(next(state, None), None, "{state:?}");
        }
        let tick = Some(NextTick { at, is_retry: false });
        assert_eq!(next(PollerState::Idle, Some(retry_at)), tick);
        assert_eq!(next(PollerState::BackingOff, None), tick);
        let retry = Some(NextTick { at: retry_at, is_retry: true });
        assert_eq!(next(PollerState::BackingOff, Some(retry_at)), retry);
        assert_eq!((due_in(0), due_in(5)), ("due now".to_owned(), "in 5 s".to_owned()));
    }

    fn batch() -> crate::status::Batch {
        crate::status::Batch {
            batch_id: String::new(),
            rows: 1,
            after: None,
            upto: crate::cursor::Cursor::integer(1, crate::cursor::KeyValues::new()),
            late: false,
            attempt: 1,
            crashes: 0,
            started_at: None,
            first_failed_at: None,
            next_attempt_at: None,
            first_error: None,
            last_error: None,
            steps_done: Vec::new(),
        }
    }
}
