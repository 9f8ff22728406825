//! Due times of timers: the expressions of the Functions host, in its time zone. Pure.
//!
//! The host parses schedules with `NCrontab`: six fields, seconds first. A day must match both the day of the month
//! and the day of the week. The host's other format, an interval such as `00:05:00`, does not work in a Consumption
//! plan, so it is rejected here.
//!
//! Expressions are local time. For clock changes, [`Schedule::next_after`] follows `CronSchedule.cs` of the host's
//! timer extension: a time that is skipped moves forward by the skipped amount. A time that occurs twice counts once,
//! the first time, for a schedule of fixed times (`0 30 1 * * *`), and both times for an interval (`0 */30 * * * *`).

mod zone;

use std::cmp::Ordering;
use std::fmt;

use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use croner::{CivilDateTime, Cron, CronDateTime, Resolution, Weekday};
use thiserror::Error;
use time::{Date, Duration, Month, OffsetDateTime, PrimitiveDateTime, Time};

pub use self::zone::{Zone, ZoneError};

/// The text is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid schedule `{text}`: {reason}")]
pub struct ScheduleError {
    /// The text.
    pub text: String,
    /// What is wrong, and what was expected.
    pub reason: String,
    /// How to fix it.
    pub fix: String,
}

/// The expected format, for a fix.
pub const SIX_FIELDS: &str = "six fields, seconds first, such as `*/15 * * * * *`";

/// A timer's schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    text: String,
    cron: Cron,
    /// Whether it repeats within a day, as the host determines it: by `*`, `-` or `/` in the first three fields.
    is_interval: bool,
    zone: Zone,
}

/// The valid values of each field, in the order of the fields.
const FIELDS: [(&str, u16, u16, &[&str]); 6] = [
    ("second", 0, 59, &[]),
    ("minute", 0, 59, &[]),
    ("hour", 0, 23, &[]),
    ("day of the month", 1, 31, &[]),
    ("month", 1, 12, &MONTHS),
    ("day of the week", 0, 6, &DAYS),
];

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

const DAYS: [&str; 7] =
    ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

/// A time before any possible due time: a schedule without a due time after it never has one.
const EPOCH: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

impl Schedule {
    /// Parses an expression such as `*/15 * * * * *`, in UTC.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`] if the host would reject it, or if it is never due.
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        let wrong =
            |reason: String, fix: String| ScheduleError { text: text.to_owned(), reason, fix };
        let six_fields = || format!("write {SIX_FIELDS}");
        let mut fields: Vec<&str> = text.split_whitespace().collect();
        if fields.len() == FIELDS.len() - 1 {
            fields.insert(0, "0");
        }
        if fields.len() != FIELDS.len() {
            return Err(wrong(number_of_fields(text, fields.len()), six_fields()));
        }
        let mut plain = Vec::new();
        for (field, (name, min, max, names)) in fields.iter().zip(FIELDS) {
            let parts = field.split(',').map(|part| plain_part(part, min, max, names));
            let parts: Option<Vec<String>> = parts.collect();
            let parts = parts.ok_or_else(|| {
                let words = if names.is_empty() { "" } else { " or names" };
                let reason = format!(
                    "the field `{field}` for the {name} must have `*`, numbers from {min} to {max}{words}, \
                     ranges `a-b`, steps `*/n`, or several of them between commas"
                );
                wrong(reason, field_fix(field, min))
            })?;
            plain.push(parts.join(","));
        }
        let mut parser = CronParser::builder();
        // A single number with a step extends to the end of the field, as in the host.
        parser = parser.seconds(Seconds::Required).year(Year::Disallowed);
        parser = parser.dom_and_dow(true).sloppy_ranges(true);
        let cron = parser.build().parse(&plain.join(" "));
        let cron = cron.map_err(|error| wrong(error.to_string(), six_fields()))?;
        let is_interval = fields.iter().take(3).any(|field| field.contains(['*', '-', '/']));
        let schedule = Self { text: text.to_owned(), cron, is_interval, zone: Zone::utc() };
        match schedule.next_after(EPOCH) {
            Some(_) => Ok(schedule),
            None => Err(wrong(
                "no such date exists, so it is never due".to_owned(),
                "choose a date that exists".to_owned(),
            )),
        }
    }

    /// Returns the same schedule in another time zone.
    #[must_use]
    pub fn in_zone(self, zone: Zone) -> Self {
        Self { zone, ..self }
    }

    /// The time zone of the expression.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Returns the first due time after `time`, in its zone; `None` if there is none.
    pub fn next_after(&self, time: OffsetDateTime) -> Option<OffsetDateTime> {
        let now = self.zone.local(time);
        let mut local = self.next_local(wall(now))?;
        let mut next = self.zone.occurrences(local);
        // For a time that occurs twice, the host starts with the second occurrence and then corrects itself.
        match (self.is_interval, next.last.offset() != now.offset()) {
            (true, false) => return Some(next.last),
            (true, true) => {
                let is_twice =
                    next.is_ambiguous() || self.zone.occurrences(wall(now)).is_ambiguous();
                let by = offset_seconds(next.last) - offset_seconds(now);
                let moved = next.last + Duration::seconds(if is_twice { by.into() } else { 0 });
                return Some(self.zone.local(moved));
            }
            (false, true) => return Some(next.first),
            (false, false) => {}
        }
        // It ran at the first of both.
        while next.is_ambiguous() {
            local = self.next_local(local)?;
            next = self.zone.occurrences(local);
        }
        Some(next.first)
    }

    /// Returns the next matching local time.
    fn next_local(&self, after: PrimitiveDateTime) -> Option<PrimitiveDateTime> {
        let found = self.cron.find_next_occurrence(&Utc(after.assume_utc()), false);
        found.ok().map(|Utc(next)| wall(next))
    }
}

/// Returns the wall-clock time in the zone of `time`.
fn wall(time: OffsetDateTime) -> PrimitiveDateTime {
    PrimitiveDateTime::new(time.date(), time.time())
}

fn offset_seconds(time: OffsetDateTime) -> i32 {
    time.offset().whole_seconds()
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

fn number_of_fields(text: &str, count: usize) -> String {
    match count {
        1 if text.contains(':') => "an interval works in a dedicated plan only".to_owned(),
        _ => format!("it has {count} fields and must have six, seconds first"),
    }
}

/// Returns the fix for a field that the host would reject.
fn field_fix(field: &str, min: u16) -> String {
    if field.contains('%') {
        // The host replaces a setting only if it is the whole text.
        return "put all six fields into one setting, and write its name between two `%`"
            .to_owned();
    }
    // Not `*` for a value out of range: that could mean once a second.
    let example = if field == "?" { "*".to_owned() } else { min.to_string() };
    format!("change the field `{field}`, for example to `{example}`")
}

/// Returns `part` in numbers if it is `*`, a value or a range, with or without a step.
///
/// As in `CrontabFieldImpl.cs` of `NCrontab`, any prefix of a name is valid and the first match counts, and a range
/// with swapped ends is turned around.
fn plain_part(part: &str, min: u16, max: u16, names: &[&str]) -> Option<String> {
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u16>().ok())?;
    let value = |text: &str| {
        let text = text.to_ascii_lowercase();
        let name = || names.iter().zip(min..).find(|(name, _)| name.starts_with(&text));
        let known = number(&text).or_else(|| Some(name().filter(|_| !text.is_empty())?.1));
        known.filter(|known| (min..=max).contains(known))
    };
    let (base, step) = part.split_once('/').map_or((part, None), |(base, step)| (base, Some(step)));
    let base = match base.split_once('-') {
        None if base == "*" => base.to_owned(),
        None => value(base)?.to_string(),
        Some((one, other)) => {
            let (one, other) = (value(one)?, value(other)?);
            format!("{}-{}", one.min(other), one.max(other))
        }
    };
    match step {
        None => Some(base),
        Some(step) => Some(format!("{base}/{}", number(step).filter(|step| *step > 0)?)),
    }
}

/// A time without daylight saving, so that no time is skipped or occurs twice.
#[derive(Clone, Copy, Debug)]
struct Utc(OffsetDateTime);

impl CronDateTime for Utc {
    fn to_civil(&self) -> CivilDateTime {
        let Self(time) = self;
        let (year, month, day) = time.to_calendar_date();
        let (hour, minute, second) = time.to_hms();
        CivilDateTime::from_ymd_hms_opt(
            year,
            u8::from(month).into(),
            day.into(),
            hour.into(),
            minute.into(),
            second.into(),
        )
        .expect("what one calendar has, the other has too")
    }

    fn civil_weekday(&self) -> Weekday {
        Weekday::from_days_from_sunday(self.0.weekday().number_days_from_sunday().into())
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let date = || {
            let month = Month::try_from(u8::try_from(civil.month()).ok()?).ok()?;
            let day = u8::try_from(civil.day()).ok()?;
            Date::from_calendar_date(civil.year(), month, day).ok()
        };
        let time = || {
            let [hour, minute, second] =
                [civil.hour(), civil.minute(), civil.second()].map(|part| u8::try_from(part).ok());
            Time::from_hms(hour?, minute?, second?).ok()
        };
        let date = date().ok_or(CronError::InvalidDate)?;
        let time = time().ok_or(CronError::InvalidTime)?;
        Ok(Resolution::Single(Self(PrimitiveDateTime::new(date, time).assume_utc())))
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0.checked_add(Duration::seconds(seconds)).map(Self)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::testing::zone_file;

    fn due(text: &str, from: OffsetDateTime, times: usize) -> Vec<OffsetDateTime> {
        let schedule = Schedule::parse(text).unwrap();
        let next = |time: &OffsetDateTime| schedule.next_after(*time);
        std::iter::successors(Some(from), next).skip(1).take(times).collect()
    }

    #[test]
    fn a_schedule_is_due_when_the_host_would_call() {
        let from = datetime!(2026-11-21 13:59:50.5 UTC);
        for (text, expected) in [
            (
                "*/15 * * * * *",
                [datetime!(2026-11-21 14:00 UTC), datetime!(2026-11-21 14:00:15 UTC)],
            ),
            ("0 */5 * * * *", [datetime!(2026-11-21 14:00 UTC), datetime!(2026-11-21 14:05 UTC)]),
            (
                "30 1/20 * * * *",
                [datetime!(2026-11-21 14:01:30 UTC), datetime!(2026-11-21 14:21:30 UTC)],
            ),
            (
                "0 0 6,18 * * MON-FRI",
                [datetime!(2026-11-23 6:00 UTC), datetime!(2026-11-23 18:00 UTC)],
            ),
            ("0 0 0 29 feb *", [datetime!(2028-02-29 0:00 UTC), datetime!(2032-02-29 0:00 UTC)]),
            // Both the day of the month and that of the week, unlike cron.
            ("0 0 0 13 * 5", [datetime!(2027-08-13 0:00 UTC), datetime!(2028-10-13 0:00 UTC)]),
        ] {
            assert_eq!(due(text, from, 2), expected, "{text}");
        }
    }

    #[test]
    fn a_due_time_is_not_logged_again() {
        let due_at = datetime!(2026-11-21 14:00 UTC);
        assert_eq!(due("0 * * * * *", due_at, 1), [datetime!(2026-11-21 14:01 UTC)]);
    }

    #[test]
    fn names_may_be_long_and_ranges_turned_around_and_seconds_left_out() {
        for (text, same) in [
            ("0 0 0 * january-Mar mon,WEDNESDAY", "0 0 0 * 1-3 1,3"),
            ("50-10 * * * * *", "10-50 * * * * *"),
            ("0 0 0 * * FRI-MON", "0 0 0 * * 1-5"),
            ("*/5 * * * *", "0 */5 * * * *"),
        ] {
            let from = datetime!(2026-11-21 13:59:50.5 UTC);
            assert_eq!(due(text, from, 60), due(same, from, 60), "{text}");
        }
    }

    /// From the comments of the host's own `CronSchedule.cs`: clock changes in Los Angeles in 2018.
    #[test]
    fn clock_changes_move_ticks_as_in_the_host() {
        let zone = Zone::parse("Pacific", &zone_file("PST8PDT,M3.2.0,M11.1.0")).unwrap();
        for (text, from, expected) in [
            (
                "0 */30 * * * *",
                datetime!(2018-11-04 0:30 -7),
                vec![
                    datetime!(2018-11-04 1:00 -7),
                    datetime!(2018-11-04 1:30 -7),
                    datetime!(2018-11-04 1:00 -8),
                    datetime!(2018-11-04 1:30 -8),
                    datetime!(2018-11-04 2:00 -8),
                ],
            ),
            (
                "0 30 1 * * *",
                datetime!(2018-11-03 1:30 -7),
                vec![datetime!(2018-11-04 1:30 -7), datetime!(2018-11-05 1:30 -8)],
            ),
            ("0 30 1 * * *", datetime!(2018-11-04 1:29 -8), vec![datetime!(2018-11-05 1:30 -8)]),
            (
                "0 30 2 * * *",
                datetime!(2018-03-10 3:00 -8),
                vec![datetime!(2018-03-11 3:30 -7), datetime!(2018-03-12 2:30 -7)],
            ),
            (
                "0 */30 * * * *",
                datetime!(2018-03-11 1:30 -8),
                vec![datetime!(2018-03-11 3:00 -7), datetime!(2018-03-11 3:30 -7)],
            ),
            ("0 0 0 1 7 *", datetime!(2018-03-11 1:30 -8), vec![datetime!(2018-07-01 0:00 -7)]),
        ] {
            let schedule = Schedule::parse(text).unwrap().in_zone(zone.clone());
            let next = |time: &OffsetDateTime| schedule.next_after(*time);
            let due = std::iter::successors(Some(from), next).skip(1).take(expected.len());
            let due: Vec<String> = due.map(|time| time.to_string()).collect();
            let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(due, expected, "{text} after {from}");
        }
    }

    /// A request that the real host made in New York: the time of the run, and the next one as computed by the host.
    #[test]
    fn the_next_tick_is_the_one_of_a_recorded_request() {
        let recorded = include_str!("../../tests/host/data/requests/10_scheduled_tz_newyork.json");
        let recorded: serde_json::Value = serde_json::from_str(recorded).unwrap();
        let status = &recorded["Data"]["myTimer"]["ScheduleStatus"];
        let time = |name: &str| {
            let text = status[name].as_str().unwrap();
            OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).unwrap()
        };
        let zone = Zone::parse("New York", &zone_file("EST5EDT,M3.2.0,M11.1.0")).unwrap();
        let schedule = Schedule::parse("0 */5 * * * *").unwrap().in_zone(zone);
        let next = schedule.next_after(time("Last")).unwrap();
        assert_eq!(next.to_string(), time("Next").to_string());
    }

    #[test]
    fn a_zone_is_read_from_its_file_and_utc_is_recognised_by_its_rules() {
        assert!(Zone::parse("X", b"TZif").is_err());
        assert_eq!(Zone::parse("Etc/UCT", &zone_file("UTC0")).unwrap().name(), "UTC");
        let fixed = Zone::parse("Etc/GMT-3", &zone_file("<+03>-3")).unwrap();
        let local = fixed.local(datetime!(2026-11-21 23:00 UTC));
        assert_eq!(
            (fixed.name(), local.to_string()),
            ("Etc/GMT-3", "2026-11-22 2:00:00.0 +03:00:00".to_owned())
        );
    }

    #[test]
    fn what_the_host_rejects_is_rejected_with_the_expected_format() {
        for (text, expected) in [
            ("*/5 * * *", "it has 4 fields"),
            ("00:05:00", "dedicated plan only"),
            ("", "0 fields"),
            ("60 * * * * *", "second must have `*`, numbers from 0 to 59"),
            ("0 0 0 * * 7", "day of the week must have `*`, numbers from 0 to 6 or names"),
            ("0 0 0 L * *", "day of the month"),
            ("0 0 0 * * MON#2", "day of the week"),
            ("0 */0 * * * *", "minute"),
            ("/5 * * * * *", "second"),
            ("0 5- * * * *", "0 5-"),
            ("0 0 0 * foo *", "or names"),
            ("@daily", "six"),
            ("0 0 0 31 2 *", "it is never due"),
        ] {
            let error = Schedule::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn each_mistake_has_its_own_fix() {
        for (text, expected) in [
            ("00:05:00", "write six fields"),
            ("60 * * * * *", "change the field `60`, for example to `0`"),
            ("0 0 0 32 * *", "change the field `32`, for example to `1`"),
            ("0 0 0 ? * *", "change the field `?`, for example to `*`"),
            ("0 %MINUTE% * * * *", "put all six fields into one setting"),
            ("0 0 0 31 2 *", "choose a date that exists"),
        ] {
            let fix = Schedule::parse(text).unwrap_err().fix;
            assert!(fix.contains(expected), "{text}: {fix}");
        }
    }
}
