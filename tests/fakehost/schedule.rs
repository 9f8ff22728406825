//! When a timer fires. Written from the host's own `NCrontab` and `CronSchedule.cs` and independent of the
//! program's code, so that each checks the other.

use std::collections::BTreeMap;
use std::path::Path;

use time::{Date, OffsetDateTime, PrimitiveDateTime, Time, UtcOffset};
use tz::{LocalTimeType, TimeZone};

/// Every possible kind of date occurs within this many days: 29 February on one day of the week.
const DAYS_MAX: u32 = 366 * 41;
/// First and last value of each field.
const FIELDS: [(u32, u32); 6] = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A timer's schedule in the time zone of its host.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Matching values, by field.
    fields: [Vec<u32>; 6],
    is_interval: bool,
    /// `None` means UTC.
    zone: Option<TimeZone>,
}

impl Schedule {
    /// Parses an expression; `zone` is a file of the tz database, UTC without one. Returns `None` if it is
    /// invalid.
    pub fn parse(text: &str, zone: Option<&[u8]>) -> Option<Self> {
        let mut parts: Vec<&str> = text.split_whitespace().collect();
        if parts.len() == FIELDS.len() - 1 {
            parts.insert(0, "0");
        }
        let is_interval = parts.iter().take(3).any(|part| part.contains(['*', '-', '/']));
        let mut fields: [Vec<u32>; 6] = Default::default();
        if parts.len() != fields.len() {
            return None;
        }
        for (index, part) in parts.iter().enumerate() {
            *fields.get_mut(index)? = field(index, part)?;
        }
        // An invalid file counts as UTC.
        let zone = zone.and_then(|file| TimeZone::from_tz_data(file).ok());
        Some(Self { fields, is_interval, zone })
    }

    /// Reads the schedule as the host does: `TZ` names a file below `TZDIR`; UTC if it does not exist.
    pub(super) fn of_app(text: &str, env: &BTreeMap<String, String>) -> Option<Self> {
        let text = match text.strip_prefix('%').and_then(|rest| rest.strip_suffix('%')) {
            Some(setting) => env.get(setting)?,
            None => text,
        };
        let folder = env.get("TZDIR").map_or("/usr/share/zoneinfo", String::as_str);
        let name = env.get("TZ").map(|name| name.strip_prefix(':').unwrap_or(name));
        let file = name.and_then(|name| std::fs::read(Path::new(folder).join(name)).ok());
        Self::parse(text.trim(), file.as_deref())
    }

    /// Returns when it fires next after `now`; `None` if no date matches.
    pub fn next(&self, now: OffsetDateTime) -> Option<OffsetDateTime> {
        let now = self.local(now);
        let mut local = self.next_local(clock(now))?;
        let next = self.instant(local);
        let (is_now_twice, is_next_twice) = (self.is_ambiguous(now), self.is_ambiguous(next));
        let differs = next.offset() != now.offset();
        let moved = || {
            let by = next.offset().whole_seconds() - now.offset().whole_seconds();
            self.local(next + time::Duration::seconds(by.into()))
        };
        Some(match (self.is_interval, differs) {
            (false, true) if is_next_twice => moved(),
            (false, false) if is_next_twice => {
                while self.instants(local).len() > 1 {
                    local = self.next_local(local)?;
                }
                self.instant(local)
            }
            (true, true) if is_now_twice || is_next_twice => moved(),
            _ => next,
        })
    }

    /// The next matching local time, regardless of the zone.
    fn next_local(&self, after: PrimitiveDateTime) -> Option<PrimitiveDateTime> {
        let [seconds, minutes, hours, days, months, weekdays] = &self.fields;
        let mut date = after.date();
        let (hour, minute, second) = after.time().as_hms();
        let mut from = (u32::from(hour) * 60 + u32::from(minute)) * 60 + u32::from(second) + 1;
        for _ in 0..DAYS_MAX {
            let fits = days.contains(&date.day().into())
                && months.contains(&u8::from(date.month()).into())
                && weekdays.contains(&date.weekday().number_days_from_sunday().into());
            let all =
                hours.iter().flat_map(|hour| minutes.iter().map(move |minute| hour * 60 + minute));
            let mut all =
                all.flat_map(|minute| seconds.iter().map(move |second| minute * 60 + second));
            if fits && let Some(at) = all.find(|at| *at >= from) {
                return Some(at_second(date, at));
            }
            (date, from) = (date.next_day()?, 0);
        }
        None
    }

    /// .NET uses the standard offset for an ambiguous time, and the earlier offset for a skipped one.
    fn instant(&self, local: PrimitiveDateTime) -> OffsetDateTime {
        self.instants(local).last().copied().unwrap_or_else(|| {
            let before = self.offset(local.assume_utc() - time::Duration::days(1));
            self.local(local.assume_offset(before))
        })
    }

    /// Every time at which a clock in this zone shows `local`, in order.
    fn instants(&self, local: PrimitiveDateTime) -> Vec<OffsetDateTime> {
        let around =
            [-1, 1].map(|days| self.offset(local.assume_utc() + time::Duration::days(days)));
        let mut found: Vec<OffsetDateTime> =
            around.map(|offset| self.local(local.assume_offset(offset))).into();
        found.retain(|at| clock(*at) == local);
        found.sort();
        found.dedup();
        found
    }

    fn is_ambiguous(&self, at: OffsetDateTime) -> bool {
        self.instants(clock(at)).len() > 1
    }

    fn local(&self, at: OffsetDateTime) -> OffsetDateTime {
        at.to_offset(self.offset(at))
    }

    fn offset(&self, at: OffsetDateTime) -> UtcOffset {
        let kind = self.zone.as_ref().map(|zone| zone.find_local_time_type(at.unix_timestamp()));
        let seconds = kind.and_then(Result::ok).map_or(0, LocalTimeType::ut_offset);
        UtcOffset::from_whole_seconds(seconds).unwrap_or(UtcOffset::UTC)
    }
}

fn clock(at: OffsetDateTime) -> PrimitiveDateTime {
    PrimitiveDateTime::new(at.date(), at.time())
}

fn at_second(date: Date, second: u32) -> PrimitiveDateTime {
    PrimitiveDateTime::new(date, Time::MIDNIGHT) + time::Duration::seconds(second.into())
}

/// Returns the values of a field, in order.
fn field(index: usize, text: &str) -> Option<Vec<u32>> {
    let (min, max) = *FIELDS.get(index)?;
    let names: &[&str] = match index {
        4 => &MONTHS,
        5 => &DAYS,
        _ => &[],
    };
    let value = |text: &str| {
        let text = text.to_ascii_lowercase();
        let name = names.iter().zip(min..).find(|(name, _)| text.starts_with(**name));
        let number = name.map(|(_, number)| number).or_else(|| text.parse().ok())?;
        (min..=max).contains(&number).then_some(number)
    };
    let mut found = Vec::new();
    for part in text.split(',') {
        let (base, step) = part.split_once('/').map_or((part, None), |(a, b)| (a, Some(b)));
        let (first, last) = match base.split_once('-') {
            Some((one, other)) => (value(one)?, value(other)?),
            None if base == "*" => (min, max),
            // With a step it reaches to the end.
            None => (value(base)?, if step.is_some() { max } else { value(base)? }),
        };
        let step = step.map_or(Some(1), |step| step.parse().ok().filter(|step| *step > 0))?;
        found.extend((first.min(last)..=first.max(last)).step_by(step));
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}
